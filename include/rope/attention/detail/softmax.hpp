// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_SOFTMAX_HPP
#define ROPE_ATTENTION_DETAIL_SOFTMAX_HPP

#include <algorithm>  // std::min, std::max, std::fill
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>  // std::pair

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/packet_pairs.hpp>  // convert_channels
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The online softmax of a strip of queries over one tile of keys: scores become weights in place. Scores are
/// in units of log2, because queries are multiplied by a factor that contains log2(e). A weight is therefore
/// a power of 2.
///
/// The score of a hidden key is first replaced by the score of a visible key, so that it does not change the
/// maximum. The weight of the hidden key is then set to zero. No infinity marks a hidden key, so -ffast-math
/// is allowed.
///
/// Scores beyond the range of the arithmetic type count as the largest finite number of their sign. If the
/// maximum of a row is finite, nothing is replaced, because a score of -infinity gives a weight of 0.
/// Otherwise the infinities of the row are replaced.
///
/// This file also has the initial state of a query's softmax, and the outputs computed from its final state.

namespace rope::inline ROPE_ABI::detail {

/// The running softmax of several queries, in units of log2. For each query it has the maximum of the scores,
/// and the sum of 2^(score - maximum). A sum of 0 means that no key was visible so far.
template <class A>
struct softmax_rows {
  A* maximum;
  A* sum;

  softmax_rows from(Index row) const { return {maximum + row, sum + row}; }
};

/// Weighted sums of values and the softmax of each row.
template <class A>
struct weighted_rows {
  Index channels;
  A* sums;                // [rows, channels]
  softmax_rows<A> state;  // [rows]

  weighted_rows from(Index row) const { return {channels, sums + row * channels, state.from(row)}; }
};

/// Weighted sums in scratch memory of the calling thread. `sums` ends where `state.maximum` begins, as
/// prefill_block assumes.
template <class User, class A>
weighted_rows<A> rows_in_scratch(Index rows, Index channels) {
  weighted_rows<A> all = {channels, nullptr, {}};
  place_arrays<User, A>({{&all.sums, rows * channels}, {&all.state.maximum, rows}, {&all.state.sum, rows}});
  return all;
}

/// Joins two softmaxes of one row, over different keys. The result replaces `total`. `part` must have a
/// visible key. Returns the factors by which the weighted sums of `total` and of `part` must be multiplied.
/// With the indices t for total and p for part:
///
///     m = max(m_t, m_p),   sum = 2^(m_t - m) sum_t + 2^(m_p - m) sum_p
///
/// multiply_add, not the compiler, decides about fusing: threads run another copy of this code and must give
/// the same bits.
template <class A>
std::pair<A, A> join(const softmax_rows<A>& total, const softmax_rows<A>& part) {
  const bool first = equal(*total.sum, A(0));
  const A maximum = first ? *part.maximum : (std::max)(*total.maximum, *part.maximum);
  const A of_total = first ? A(0) : std::exp2(*total.maximum - maximum),
          of_part = std::exp2(*part.maximum - maximum);
  *total.sum = multiply_add(*part.sum, of_part, *total.sum * of_total);
  *total.maximum = maximum;
  return {of_total, of_part};
}

/// The factors of scores in a call. Queries are multiplied by `query`. Their products with keys are then
/// scores in units of log2 or, with a softcap, arguments of tanh. A capped score is `cap` times that tanh.
struct score_factors {
  double query, cap;

  explicit score_factors(const visibility& rules)
      : query(rules.options().softcap > 0 ? rules.scale() / rules.options().softcap : rules.scale() * log2_e),
        cap(rules.options().softcap * log2_e) {}
};

// Scores and weights of one row, in the whole packets that contain its keys.

/// The largest score of the packets.
template <class A>
A largest_score(const A* scores, const tile_range& whole) {
  using P = packet<A>;
  P largest = load<P>(scores + whole.first);
  for (Index j = whole.first + lanes<P>; j < whole.last; j += lanes<P>)
    largest = larger(largest, load<P>(scores + j));
  return largest_lane(largest);
}
/// The largest score of the packets. If it is infinite or NaN, every infinite score is first replaced by the
/// largest finite number of its sign.
template <class A>
A largest_finite_score(A* scores, const tile_range& whole) {
  const A found = largest_score(scores, whole);
  if (is_finite(static_cast<double>(found))) return found;
  for (Index j = whole.first; j < whole.last; ++j) scores[j] = saturated(scores[j]);
  return largest_score(scores, whole);
}
/// Replaces scores by weights, 2^(score - maximum), and returns a partial sum of the weights per lane.
template <class A>
packet<A> weights_of_scores(A* scores, const tile_range& whole, A maximum) {
  using P = packet<A>;
  const P largest = fill<P>(maximum);
  P sum = fill<P>(A(0));
  for (Index j = whole.first; j < whole.last; j += lanes<P>) {
    const P weight = exp2(subtract(load<P>(scores + j), largest));
    store(scores + j, weight);
    sum = add(sum, weight);
  }
  return sum;
}
template <class A>
packet<A> sum_of_weights(const A* weights, const tile_range& whole) {
  using P = packet<A>;
  P sum = fill<P>(A(0));
  for (Index j = whole.first; j < whole.last; j += lanes<P>) sum = add(sum, load<P>(weights + j));
  return sum;
}
/// Sets the entries of the packets outside `range`.
template <class A>
void fill_around(A* entries, const tile_range& whole, const tile_range& range, A value) {
  std::fill(entries + whole.first, entries + range.first, value);
  std::fill(entries + range.last, entries + whole.last, value);
}

/// tile_softmax::run, with the same bits, for one row that sees all keys of `range` in a tile, without bias,
/// softcap and dropout. Returns the factor of earlier weights.
template <class A>
A weigh_visible_keys(A* scores, const tile_range& range, const softmax_rows<A>& state) {
  const tile_range whole = packets_of<lanes<packet<A>>>(range);
  fill_around(scores, whole, range, scores[range.first]);
  const A found = largest_finite_score(scores, whole);
  const bool first = equal(*state.sum, A(0));
  const A maximum = first ? found : (std::max)(found, *state.maximum);
  packet<A> sum = weights_of_scores(scores, whole, maximum);
  if (whole.first != range.first || whole.last != range.last) {
    fill_around(scores, whole, range, A(0));
    sum = sum_of_weights(scores, whole);
  }
  const A shrink = first ? A(1) : largest_lane(exp2(fill<packet<A>>(*state.maximum - maximum)));
  *state.sum = multiply_add(*state.sum, shrink, sum_of_lanes(sum));
  *state.maximum = maximum;
  return shrink;
}

/// The softmax of one strip over one tile. Scores are [rows, tile]. Only packets with a key of the strip's
/// hull are read and written.
template <class A>
class tile_softmax {
  using P = packet<A>;

 public:
  static constexpr Index L = lanes<P>, tile = panel_shape<A>::tile, rows = panel_shape<A>::rows;

  /// \param hull  keys of the tile that have scores even if they are hidden from every row
  tile_softmax(const block_keys& keys, const strip_rows& strip, const tile_range& hull = {0, 0})
      : strip_(keys, strip) {
    strip_.hull.include(hull);
    for (Index r = 0; r < strip.count; ++r)
      hides_ = hides_ || strip_.visible[r].has_holes || strip_.visible[r].range.first != strip_.hull.first ||
               strip_.visible[r].range.last != strip_.hull.last;
  }

  const strip_rows& strip() const { return strip_.rows; }
  /// The smallest range that contains all keys that are visible to some row, and the `hull` of the
  /// constructor.
  const tile_range& hull() const { return strip_.hull; }
  /// Whether a key of the hull is hidden from some row.
  bool hides() const { return hides_; }

  /// Replaces scores by weights. The caller must multiply earlier weights of row r, and sums weighted with
  /// them, by shrink()[r]. Keys of the hull that are hidden from a row get weight zero.
  void run(A* scores, const score_factors& factors, const softmax_rows<A>& state) {
    std::fill(shrink_, shrink_ + padded_rows, A(0));
    A maximum[std::size_t(rows)];
    for (Index r = 0; r < strip_.rows.count; ++r) {
      A* row = scores + r * tile;
      maximum[r] = state.maximum[r];
      if (!prepare(r, row, factors)) continue;
      const tile_range whole = packets_of<L>(strip_.visible[r].range);
      const A found = largest_finite_score(row, whole);
      maximum[r] = equal(state.sum[r], A(0)) ? found : (std::max)(found, state.maximum[r]);
      if (!equal(state.sum[r], A(0))) shrink_[r] = state.maximum[r] - maximum[r];
    }
    for (Index r = 0; r < padded_rows; r += L) store(shrink_ + r, exp2(load<P>(shrink_ + r)));
    for (Index r = 0; r < strip_.rows.count; ++r) {
      state.sum[r] = multiply_add(state.sum[r], shrink_[r], weigh(r, scores + r * tile, maximum[r]));
      state.maximum[r] = maximum[r];
    }
  }

  const A* shrink() const { return shrink_; }
  /// Whether key j of the tile is visible to row r.
  bool sees(Index r, Index j) const {
    const tile_range& range = strip_.visible[r].range;
    return range.first <= j && j < range.last && !(strip_.visible[r].has_holes && hidden_[r][j]);
  }

  /// Calls add(c, sum) with the weighted sum of channel c of the values of row r, for tiles with values that
  /// are not finite. Only values of keys that are visible to row r are read, because 0 times a value that is
  /// not finite is NaN. This is slow. value_of(j) is the row of values of key j of the tile.
  void visible_values(Index r, const A* weights, const auto& value_of, Index channels, const auto& add) {
    constexpr Index width = panel_shape<A>::width;
    const tile_range range = strip_.visible[r].range;
    for (Index first = 0; first < channels; first += width) {
      const Index here = (std::min)(width, channels - first);
      A sums[std::size_t(width)] = {};  // of the tile alone, as in add_products
      for (Index j = range.first; j < range.last; ++j) {
        if (strip_.visible[r].has_holes && hidden_[r][j]) continue;
        const auto* value = value_of(j) + first;
        for (Index c = 0; c < here; ++c)
          sums[c] = as_computed(multiply_add(weights[j], static_cast<A>(value[c]), sums[c]));
      }
      for (Index c = 0; c < here; ++c) add(first + c, sums[c]);
    }
  }

 private:
  static constexpr Index padded_rows = pieces_of(rows, L) * L;

  /// Applies softcap and bias to the scores of row r, and replaces the scores of hidden keys. Returns false
  /// if no key is visible to row r.
  bool prepare(Index r, A* row, const score_factors& factors) {
    const tile_range range = strip_.visible[r].range, whole = packets_of<L>(range);
    if (range.empty()) return false;
    if (strip_.options().softcap > 0) {
      hyperbolic_tangents(row + whole.first, whole.last - whole.first, row + whole.first);
      channels_map<A>(row + whole.first, whole.last - whole.first) *= static_cast<A>(factors.cap);
    }
    strip_.for_each_bias(r, [&](Index j, float added) {
      row[j] = multiply_add(static_cast<A>(added), static_cast<A>(log2_e), row[j]);
    });
    A seen = row[range.first];
    if (strip_.visible[r].has_holes) {
      const Index first = strip_.mark_hidden(r, hidden_[r]);
      if (first == range.last) {
        strip_.visible[r].range = {0, 0};
        return false;
      }
      const key_mark<A>* hidden = hidden_[r];
      seen = row[first];
      for_each_index(range.first, range.last, [&](Index j) { row[j] = hidden[j] ? seen : row[j]; });
    }
    fill_around(row, whole, range, seen);
    return true;
  }

  /// Replaces the prepared scores of row r by weights, 2^(score - maximum), or by zero for hidden keys.
  /// Returns the sum of the weights before dropout.
  A weigh(Index r, A* row, A maximum) {
    const tile_range range = strip_.visible[r].range, whole = packets_of<L>(range);
    if (range.empty()) {
      std::fill(row + hull().first, row + hull().last, A(0));
      return 0;
    }
    P sum = weights_of_scores(row, whole, maximum);
    if (strip_.visible[r].has_holes || whole.first != range.first || whole.last != range.last) {
      fill_around(row, whole, range, A(0));
      if (strip_.visible[r].has_holes)
        for_each_index(range.first, range.last, [&](Index j) { row[j] = hidden_[r][j] ? A(0) : row[j]; });
      sum = sum_of_weights(row, whole);
    }
    if (hull().first < whole.first) std::fill(row + hull().first, row + whole.first, A(0));
    if (hull().last > whole.last) std::fill(row + whole.last, row + hull().last, A(0));
    if (strip_.options().dropout > 0)
      strip_.for_each_kept(r, [&](Index j, bool kept) { row[j] = kept ? row[j] : A(0); });
    return sum_of_lanes(sum);
  }

  strip_in_tile<rows> strip_;
  bool hides_ = false;
  A shrink_[std::size_t(padded_rows)];
  key_mark<A> hidden_[std::size_t(rows)][std::size_t(tile)];  // of rows that have holes
};

/// a[c] = share_a a[c] + share_b b[c] for c in [0, count), in the arithmetic type.
///
/// In a sum of two products a compiler may fuse either product with the sum, and may choose differently in
/// each loop. Here multiply_add fixes the choice, so the bits do not depend on where the rows begin in
/// memory.
template <class T>
void add_shares(T* a, arithmetic<T> share_a, const T* b, arithmetic<T> share_b, Index count) {
  using A = arithmetic<T>;
  using P = packet<A>;
  constexpr bool in_packets = std::is_same_v<T, A> || (std::is_same_v<T, Eigen::half> && has_packets<T, P>);
  Index c = 0;
  if constexpr (in_packets) {
    const P of_a = fill<P>(share_a), of_b = fill<P>(share_b);
    for (; c + lanes<P> <= count; c += lanes<P>)
      store(a + c, multiply_add(of_b, load<P>(b + c), multiply(of_a, load<P>(a + c))));
  }
  for (; c < count; ++c)
    a[c] = static_cast<T>(multiply_add(share_b, static_cast<A>(b[c]), share_a * static_cast<A>(a[c])));
}

/// A sink logit in units of log2, saturated like scores.
template <class A>
double sink_score(float logit) {
  constexpr double largest = static_cast<double>((std::numeric_limits<A>::max)());
  return (std::min)((std::max)(static_cast<double>(logit) * log2_e, -largest), largest);
}

/// Initialises the softmax of the rows of a strip, with the learned sink logits of their heads if there are
/// any.
template <class A>
void begin_softmax(const visibility& rules, const strip_rows& strip, const softmax_rows<A>& state) {
  const auto logits = rules.options().sink_logits;
  for (Index r = 0; r < strip.count; ++r) {
    state.maximum[r] =
        logits.empty() ? A(0)
                       : static_cast<A>(sink_score<A>(logits[static_cast<std::size_t>(strip.head_of(r))]));
    state.sum[r] = logits.empty() ? A(0) : A(1);
  }
}

/// Writes the channels of an output: sums / (sum * (1 - dropout)), or zeros if no key was visible.
///
/// Packets and single channels must have the same bits. With -ffast-math and on 32-bit NEON, packets are
/// divided by an estimated reciprocal, and single channels are not. In these builds the reciprocal is
/// therefore computed once, before the loop, which only multiplies.
template <class A, class T>
void write_channels(const visibility& rules, const A* sums, A sum, Index count, T* out) {
  using P = packet<A>;
  if (equal(sum, A(0))) {
    std::fill(out, out + count, T(0));
    return;
  }
  const A divisor = sum * static_cast<A>(1 - rules.options().dropout);
  constexpr bool multiplies = ROPE_DETAIL_FAST_MATH || ROPE_DETAIL_ESTIMATED_QUOTIENTS;
  const A number = multiplies ? as_computed(A(1) / divisor) : divisor;
  const auto quotient = [number](const auto& x) {
    const auto numbers = fill<std::remove_cvref_t<decltype(x)>>(number);
    return multiplies ? multiply(x, numbers) : divide(x, numbers);
  };
  const auto divide_all = [&](const A* from, Index size, A* to) {
    Index c = 0;
    for (; c + lanes<P> <= size; c += lanes<P>) store(to + c, quotient(load<P>(from + c)));
    for (; c < size; ++c) to[c] = quotient(from[c]);
  };
  if constexpr (std::is_same_v<A, T>) {
    divide_all(sums, count, out);
  } else {
    constexpr Index most = 64;
    A quotients[most];
    for (Index c = 0, here; c < count; c += here) {
      here = (std::min)(most, count - c);
      divide_all(sums + c, here, quotients);
      convert_channels(quotients, here, out + c);
    }
  }
}

template <class A>
void write_log_sum_exp(const visibility& rules, Index b, Index i, Index h, A maximum, A sum) {
  if (rules.options().log_sum_exp.empty()) return;
  rules.log_sum_exp(b, i, h) =
      equal(sum, A(0)) || rules.is_padding(b, i)
          ? attention_options::no_keys
          : multiply_add(ln_2, static_cast<double>(maximum), std::log(static_cast<double>(sum)));
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_SOFTMAX_HPP
