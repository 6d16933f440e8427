// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_GRADIENT_KERNEL_HPP
#define ROPE_ATTENTION_DETAIL_GRADIENT_KERNEL_HPP

#include <algorithm>  // std::fill, std::fill_n, std::max, std::min
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/gradient_rows.hpp>
#include <rope/attention/detail/gradient_scratch.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/softmax.hpp>  // score_factors
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/config.hpp>

// Except on Linux, std::atomic::wait of libstdc++ 12 may miss a notification and wait forever: it compares
// the value first, and only then locks the mutex of its condition variable.
#if defined(__GLIBCXX__) && !defined(__linux__)
#define ROPE_DETAIL_YIELD
#include <thread>  // std::this_thread::yield
#endif

/// The backward pass of attention, tile by tile. A block is consecutive query tokens, in all query heads of
/// one key head. It processes one tile of keys at a time and recomputes the weights from the log-sum-exp of
/// each query, so no array of size tokens x tokens exists. In the formulas, w are the weights, o is the
/// output, g is the gradient with respect to the output, and bend is the slope of the softcap:
///
///     scores_ij = scale q_i . k_j                            queries x keys
///     slopes_ij = w_ij (g_i . v_j - g_i . o_i) bend_ij       queries x keys
///     dq_i = scale sum_j slopes_ij k_j
///     dk_j = scale sum_i slopes_ij q_i
///     dv_j = sum_i w_ij g_i
///
/// Only one block adds to a sum dq. All blocks of a key head add to the sums dk and dv.
///
/// Each block is a task. Tasks add to shared sums in a fixed order (sum_order), so that rounding does not
/// depend on the number of threads. Every shared sum belongs to one tile, and every task visits its tiles in
/// ascending order. While a task works on tile n, later tasks may add to tiles below n.
///
/// Tasks must be started in ascending order. The first unfinished task never waits, so one task always
/// proceeds, even with one thread.

namespace rope::inline ROPE_ABI::detail {

/// The place of one task in the order of all tasks that add to the same sums.
class sum_order {
 public:
  static constexpr Index finished = (std::numeric_limits<Index>::max)();

  /// \param tiles  the current tile of each task, initially 0
  sum_order(std::atomic<Index>* tiles, Index task) : tiles_(tiles), task_(task) {}
  sum_order(const sum_order&) = delete;
  sum_order& operator=(const sum_order&) = delete;
  /// Marks this task as finished, even after an exception, so that no other task waits for it forever.
  ~sum_order() { begin(finished); }

  /// Announces that this task adds nothing more to tiles below `tile`.
  void begin(Index tile) {
    tiles_[task_].store(tile, std::memory_order_release);
    tiles_[task_].notify_all();
  }

  /// Returns when every task before this one is finished.
  void wait_for_the_end() { wait(finished - 1); }

  /// Returns when every task before this one is past `tile`.
  void wait(Index tile) {
    while (oldest_ < task_ && tiles_[oldest_].load(std::memory_order_acquire) == finished) ++oldest_;
    for (Index before = oldest_; before < task_; ++before)
      for (Index at = tiles_[before].load(std::memory_order_acquire); at <= tile;
           at = tiles_[before].load(std::memory_order_acquire)) {
#ifdef ROPE_DETAIL_YIELD
        std::this_thread::yield();
#else
        tiles_[before].wait(at, std::memory_order_acquire);
#endif
      }
  }

 private:
  std::atomic<Index>* tiles_;
  Index task_, oldest_ = 0;  // every task before oldest_ is finished
};

// strip_slopes is the softmax of a strip of queries and one tile of keys in the backward pass. It works in
// place. Scores are replaced by weights, and products g_i . v_j by the gradients with respect to the scores,
// here called slopes:
//
//     w_ij = 2^(score_ij - shift_i) factor_i
//     slope_ij = w_ij (gain_ij g_i . v_j - g_i . o_i) bend_ij
//
// gain is 1 / (1 - dropout) for a kept weight, and 0 for a dropped weight. The weights that run() returns are
// w times gain, because these multiply values in the forward pass. bend is the slope of the softcap. w and
// slope are 0 if the key is not visible.

template <class A>
class strip_slopes {
  using P = packet<A>;

 public:
  static constexpr Index L = lanes<P>, tile = gradient_shape<A>::tile;
  static constexpr int rows = gradient_shape<A>::rows;

  /// \param d_bias  the gradient with respect to the bias, at the strides of the bias, or null
  strip_slopes(const block_keys& keys, const strip_rows& strip, double* d_bias)
      : strip_(keys, strip), d_bias_(d_bias) {}

  /// Keys of the tile that may be visible to some row.
  const tile_range& hull() const { return strip_.hull; }

  /// In the rows of the strip, replaces the scores in `block.weights` by weights, and the products g_i . v_j
  /// in `block.slopes` by slopes. Both are read in the panels that contain a key of the hull, and written
  /// everywhere. `block.seen` becomes 1 if a key of the tile is visible to the row.
  void run(const attention_gradient_scratch<A>& block, const score_factors& factors) {
    for (Index r = 0; r < rows; ++r) {
      const Index row = strip_.rows.first_row + r;
      A *weights = block.weights + row * tile, *slopes = block.slopes + row * tile;
      if (r >= strip_.rows.count || !prepare(r, weights, slopes, factors)) {
        clear(weights, slopes, 0, tile);
      } else {
        differentiate(r, weights, slopes, block.shifts[row], block.factors[row], block.products[row]);
        block.seen[row] = A(1);
      }
    }
  }

  /// Calls pair(j) for every key of the tile that is visible to row r.
  void for_each_visible(Index r, const auto& pair) {
    const tile_range range = strip_.visible[r].range;
    if (range.empty()) return;
    strip_.mark_hidden(r, hidden_);
    for (Index j = range.first; j < range.last; ++j)
      if (!hidden_[j]) pair(j);
  }

 private:
  static void clear(A* weights, A* slopes, Index first, Index last) {
    std::fill(weights + first, weights + last, A(0));
    std::fill(slopes + first, slopes + last, A(0));
  }

  /// Applies softcap and bias to the scores of row r, and dropout to its products. Returns false if no key is
  /// visible to row r.
  bool prepare(Index r, A* scores, A* products, const score_factors& factors) {
    const tile_range range = strip_.visible[r].range;
    if (range.empty() || (strip_.visible[r].has_holes && strip_.mark_hidden(r, hidden_) == range.last))
      return false;
    if (strip_.options().softcap > 0) {
      const tile_range whole = packets_of<L>(range);
      hyperbolic_tangents(scores + whole.first, whole.last - whole.first, bends_ + whole.first);
      for (Index j = whole.first; j < whole.last; j += L) {
        const P tangent = load<P>(bends_ + j);
        store(scores + j, multiply(tangent, fill<P>(static_cast<A>(factors.cap))));
        store(bends_ + j, multiply_add(subtract(fill<P>(A(0)), tangent), tangent, fill<P>(A(1))));
      }
    }
    strip_.for_each_bias(r, [&](Index j, float added) {
      scores[j] = multiply_add(static_cast<A>(added), static_cast<A>(log2_e), scores[j]);
    });
    if (strip_.options().dropout > 0) {
      const A gain = static_cast<A>(1 / (1 - strip_.options().dropout));
      strip_.for_each_kept(r, [&](Index j, bool kept) {
        gains_[j] = kept ? gain : A(0);
        products[j] *= gains_[j];
      });
    }
    return true;
  }

  void differentiate(Index r, A* weights, A* slopes, A shift_number, A factor_number, A product_number) {
    const tile_range range = strip_.visible[r].range, whole = packets_of<L>(range);
    const P shift = fill<P>(shift_number), factor = fill<P>(factor_number), product = fill<P>(product_number);
    // A visible score can be infinite only if the largest score of the row was. The shift is then the largest
    // finite number of that sign.
    if (equal((std::abs)(shift_number), (std::numeric_limits<A>::max)()))
      for (Index j = whole.first; j < whole.last; ++j) weights[j] = saturated(weights[j]);
    for (Index j = whole.first; j < whole.last; j += L) {
      const P weight = multiply(exp2(subtract(load<P>(weights + j), shift)), factor);
      store(weights + j, weight);
      store(slopes + j, multiply(weight, subtract(load<P>(slopes + j), product)));
    }
    clear(weights, slopes, 0, range.first);
    clear(weights, slopes, range.last, tile);
    if (strip_.visible[r].has_holes)
      for (Index j = range.first; j < range.last; ++j) {
        weights[j] = hidden_[j] ? A(0) : weights[j];
        slopes[j] = hidden_[j] ? A(0) : slopes[j];
      }
    if (const score_view<float>& bias = strip_.options().bias; d_bias_ != nullptr)
      for_each_entry(d_bias_ + (strip_.entries_of(bias, r) - bias.data), bias.key_step(), strip_.begin, range,
                     [&](Index j, double& sum) { sum += static_cast<double>(slopes[j]); });
    // The softmax includes dropped keys. Dropout changes only the weights that multiply values.
    if (strip_.options().dropout > 0)
      for (Index j = range.first; j < range.last; ++j) weights[j] *= gains_[j];
    if (strip_.options().softcap > 0)
      for (Index j = range.first; j < range.last; ++j)  // for a hidden key, bends_[j] may be NaN
        slopes[j] *= strip_.visible[r].has_holes && hidden_[j] ? A(0) : bends_[j];
  }

  strip_in_tile<rows> strip_;
  double* d_bias_;
  key_mark<A> hidden_[std::size_t(tile)];  // of a row that has holes
  A bends_[std::size_t(tile)];
  A gains_[std::size_t(tile)];
};

template <class T>
class attention_gradient_block {
  using A = arithmetic<T>;
  using shape = gradient_shape<A>;

 public:
  /// The number of tokens of a block.
  static Index tokens_of(Index group) {
    return (std::max)(Index{1}, shape::block / (std::max)(group, Index{1}));
  }

  /// \param rows  the block's queries
  /// \param sums  the sums of the key head that the queries share
  /// \param order  the block's place among the blocks that add to `sums`
  attention_gradient_block(attention_gradient_rows<T>& rows, const bias_gradient& d_bias,
                           const key_sums<A>& sums, sum_order& order)
      : rows_(rows), m_(rows.m), d_bias_(d_bias), sums_(sums), order_(order) {}

  /// Adds the contribution of every tile of keys to the gradients with respect to the block's queries and to
  /// `sums`.
  void run() {
    rows_.keys.for_each_tile(shape::tile, [&](Index begin, Index count) { add_tile(begin, count); });
  }

 private:
  void add_tile(Index begin, Index count) {
    const Index tile = begin / shape::tile;
    order_.begin(tile);
    rows_.pack_keys(begin, count);
    rows_.pack_values(begin, count);
    // A hidden pair of query and key has a weight and a slope of 0. It changes sums only if 0 is multiplied
    // by a number that is not finite.
    const Index packed = panel_shape<A>::padded(count) * rows_.tape.k.head_dim;
    // A tile may have fewer than shape::tile keys because all later keys are hidden. These count as hidden
    // keys of the tile.
    const bool hides =
        !rows_.keys.all_see_all() || count < (std::min)(shape::tile, rows_.tape.k.tokens - begin);
    const bool careful = hides && !(rows_.finite && all_finite(m_.transposed_keys, packed));
    if (d_bias_.joins_keys)
      order_.wait_for_the_end();
    else if (careful || d_bias_.is_shared)
      order_.wait(tile);
    for (Index s = 0; s < m_.strips; ++s) {
      weigh(s);
      if (!careful) add_to_queries(s, m_.hulls[s]);
    }
    if (careful) return add_visible(tile);
    order_.wait(tile);
    for (Index j = 0; j < count; j += shape::rows) add_to_keys(j, sums_.keys(tile), sums_.values(tile));
  }

  /// Computes the weights and slopes of strip s.
  void weigh(Index s) {
    strip_slopes<A> slopes(rows_.keys, rows_.strip(s), d_bias_.data);
    const Index place = s * shape::rows * shape::tile;
    m_.hulls[s] = slopes.hull();
    rows_.multiply(m_.queries, s, m_.transposed_keys, rows_.tape.k.head_dim, slopes.hull(),
                   m_.weights + place, shape::tile);
    rows_.multiply(m_.upstream, s, m_.transposed_values, rows_.tape.v.head_dim, slopes.hull(),
                   m_.slopes + place, shape::tile);
    slopes.run(m_, rows_.factors);
  }

  void add_to_queries(Index s, tile_range hull) const {
    add_products<A, shape::tile, 1>(m_.slopes + s * shape::rows * shape::tile + hull.first,
                                    m_.keys + hull.first * shape::width, sums_.panel_size,
                                    hull.last - hull.first, rows_.tape.k.head_dim, nullptr,
                                    m_.strip_d_queries(s), shape::rows * shape::width);
  }

  /// Adds the contributions of queries to the sums of keys [first, first + rows) of a tile. Only strips to
  /// which one of these keys may be visible contribute.
  void add_to_keys(Index first, A* d_keys, A* d_values) const {
    Index begin = m_.strips, end = 0;
    for (Index s = 0; s < m_.strips; ++s)
      if (m_.hulls[s].first < first + shape::rows && m_.hulls[s].last > first) {
        begin = (std::min)(begin, s);
        end = s + 1;
      }
    if (begin >= end) return;
    const Index row = begin * shape::rows, depth = end * shape::rows - row;
    const auto add = [&](const A* numbers, const A* packed, Index channels, A* sums) {
      add_products<A, 1, shape::tile>(numbers + row * shape::tile + first, packed + row * shape::width,
                                      rows_.panel_stride(), depth, channels, nullptr,
                                      sums + first * shape::width, sums_.panel_size);
    };
    add(m_.weights, m_.upstream, rows_.tape.v.head_dim, d_values);
    add(m_.slopes, m_.queries, rows_.tape.k.head_dim, d_keys);
  }

  /// Adds all contributions of the tile over visible pairs only, which is slow. As in add_products, sums of
  /// this block and tile are formed first and then added.
  void add_visible(Index tile) const {
    add_visible_to_keys(m_.weights, m_.upstream, m_.value_panels, sums_.values(tile));
    add_visible_to_keys(m_.slopes, m_.queries, m_.key_panels, sums_.keys(tile));
    A* const of_row = m_.wide;  // no longer needed once keys and values are packed
    for_each_row([&](Index row, const auto& for_each_key) {
      std::fill_n(of_row, m_.key_panels * shape::width, A(0));
      for_each_key([&](Index j) {
        add_panels(m_.slopes[row * shape::tile + j], m_.keys + j * shape::width, sums_.panel_size,
                   m_.key_panels, of_row, shape::width);
      });
      A* sums = m_.strip_d_queries(row / shape::rows) + row % shape::rows * shape::width;
      add_panels(A(1), of_row, shape::width, m_.key_panels, sums, shape::rows * shape::width);
    });
  }

  void add_visible_to_keys(const A* numbers, const A* packed, Index panels, A* sums) const {
    A* const of_tile = m_.wide;
    std::fill_n(of_tile, panels * sums_.panel_size, A(0));
    for_each_row([&](Index row, const auto& for_each_key) {
      for_each_key([&](Index j) {
        add_panels(numbers[row * shape::tile + j], packed + row * shape::width, rows_.panel_stride(), panels,
                   of_tile + j * shape::width, sums_.panel_size);
      });
    });
    add_panels(A(1), of_tile, shape::width, panels * shape::tile, sums, shape::width);
  }

  /// Calls body(row, for_each_key) for the rows of the block. for_each_key(pair) calls pair(j) for the keys
  /// of the tile that are visible to the row.
  void for_each_row(const auto& body) const {
    for (Index s = 0; s < m_.strips; ++s) {
      strip_slopes<A> slopes(rows_.keys, rows_.strip(s), nullptr);
      for (Index r = 0; r < rows_.strip(s).count; ++r)
        body(s * shape::rows + r, [&](const auto& pair) { slopes.for_each_visible(r, pair); });
    }
  }

  /// Adds number * (one row of each panel of `from`) to the rows of the panels of `to`.
  static void add_panels(A number, const A* from, Index from_stride, Index panels, A* to, Index to_stride) {
    for (Index p = 0; p < panels; ++p, from += from_stride, to += to_stride)
      for (Index c = 0; c < shape::width; ++c) to[c] = multiply_add(number, from[c], to[c]);
  }

  attention_gradient_rows<T>& rows_;
  const attention_gradient_scratch<A>& m_;
  bias_gradient d_bias_;
  key_sums<A> sums_;
  sum_order& order_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_GRADIENT_KERNEL_HPP
