// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_GRADIENT_HPP
#define ROPE_ATTENTION_GRADIENT_HPP

#include <algorithm>  // std::min, std::max, std::fill, std::sort
#include <array>
#include <atomic>
#include <cstddef>
#include <new>  // placement
#include <span>
#include <utility>  // std::pair

#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/gradient_kernel.hpp>
#include <rope/attention/detail/gradient_rows.hpp>
#include <rope/attention/detail/gradient_scratch.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/tape.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet_math.hpp>  // ln_2
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// The backward pass of `attention`.

namespace rope::inline ROPE_ABI {
namespace detail {

// The backward pass of attention is split into tasks. Each task processes one block of queries of one key
// head. The split and the order in which blocks add to shared sums depend only on the shapes, so the result
// does not depend on the number of threads.

/// The stride and the extent of each axis of a bias.
template <class X>
std::array<std::pair<Index, Index>, 4> axes_of(const score_view<X>& x) {
  return {{{x.batch_stride, x.batch},
           {x.head_stride, x.heads},
           {x.query_stride, x.queries},
           {x.key_stride, x.keys}}};
}

/// Whether no two scores share an entry of x.
template <class X>
bool has_own_entries(const score_view<X>& x, const attention_shape& shape) {
  if (x.batch != shape.batch || x.heads != shape.heads || x.queries != shape.queries || x.keys != shape.keys)
    return false;
  auto axes = axes_of(x);
  std::sort(axes.begin(), axes.end());
  Index span = 1;  // entries of the previous axes lie in [0, span)
  for (const auto& [stride, extent] : axes) {
    if (extent > 1 && stride < span) return false;
    span += (extent - 1) * stride;
  }
  return true;
}

/// Whether scores of different keys share an entry of x. If they do, no order of the tiles of keys prevents
/// two threads from adding to one entry at the same time.
template <class X>
bool joins_keys(const score_view<X>& x, const attention_shape& shape) {
  return x.keys != shape.keys || !has_own_entries(x, {x.batch, x.queries, x.keys, x.heads, shape.head_dim});
}

/// Computes d_q of a block of queries and adds their contribution to the other gradients of a key head. This
/// function is not inline, so that programs can compile it once (`extern template`).
///
/// \param d_sinks  receives the gradients with respect to the sink logits, or nullptr
template <class T>
void add_gradients_of_block(const attention_tape<T>& tape, const visibility& rules, const query_block& block,
                            const bias_gradient& d_bias, const key_sums<arithmetic<T>>& sums,
                            sum_order& order, double* d_sinks) {
  attention_gradient_rows<T> rows(tape, rules, block);
  attention_gradient_block<T>(rows, d_bias, sums, order).run();
  rows.write_queries();
  if (d_sinks != nullptr) rows.write_sinks(d_sinks);
}

/// Computes all gradients of a checked call.
template <class T>
class attention_gradient_tasks {
  using A = arithmetic<T>;
  using block = attention_gradient_block<T>;

 public:
  attention_gradient_tasks(const attention_tape<T>& tape, const visibility& rules,
                           const option_gradients& by_options)
      : tape_(tape),
        rules_(rules),
        by_options_(by_options),
        tokens_((std::min)((std::max)(tape.q.tokens, Index{1}), block::tokens_of(tape.group()))),
        blocks_(tape.group() == 0 ? 0 : pieces_of(tape.q.tokens, tokens_)) {
    if (!by_options.sink_logits.empty())
      d_sinks_ = workspace<struct sink_gradients, double>(tape.q.batch * tape.q.heads * blocks_);
    const score_view<float>& bias = rules.options().bias;
    if (!by_options.bias.empty())
      d_bias_ = {by_options.bias.data(), !has_own_entries(bias, rules.shape()),
                 joins_keys(bias, rules.shape())};
  }

  template <class Threads>
  void run(const Threads& threads) {
    std::fill(by_options_.bias.begin(), by_options_.bias.end(), 0.0);
    const Index heads = tape_.k.batch * tape_.k.heads, per_pass = heads_per_pass(heads);
    A* memory = workspace<struct sums_of_keys, A>(per_pass * head_size());
    for (Index first = 0; first < heads; first += per_pass)
      run_heads(threads, first, (std::min)(per_pass, heads - first), memory);
    // The gradients of the blocks with respect to the sink logits are added up in a fixed order.
    const std::span<double> d_sink_logits = by_options_.sink_logits;
    std::fill(d_sink_logits.begin(), d_sink_logits.end(), 0.0);
    for (Index head = 0; head < heads && !d_sink_logits.empty(); ++head)
      for (Index part = 0; part < blocks_; ++part)
        for (Index g = 0; g < tape_.group(); ++g)
          d_sink_logits[static_cast<std::size_t>(head % tape_.k.heads * tape_.group() + g)] +=
              d_sinks_of(head, part)[g];
  }

 private:
  /// The number of key heads whose sums are in memory at a time. It is just large enough to give many threads
  /// a task. With few queries and many keys it is limited, to save memory: to 16 heads, or to the heads whose
  /// sums are 2^24 numbers if these are more.
  Index heads_per_pass(Index heads) const {
    constexpr Index enough_tasks = 128, enough_heads = 16, enough_numbers = Index{1} << 24;
    const Index wanted = pieces_of(enough_tasks, (std::max)(blocks_, Index{1}));
    const Index affordable = (std::max)(enough_heads, enough_numbers / (std::max)(head_size(), Index{1}));
    return (std::min)(heads, (std::max)((std::min)(wanted, affordable), Index{1}));
  }
  /// The number of key heads that threads work on at a time. Usually it is one, so that the keys and sums of
  /// this head stay in shared L3. It is larger if one head has too little work to keep all threads busy. The
  /// gradients of a key head depend only on the order of its blocks, not on this number. If all blocks add to
  /// one bias, the gradient of the bias would depend on the number, so the number is then 1.
  Index heads_side_by_side(Index threads) const {
    if (d_bias_.is_shared) return 1;
    const Index tiles = pieces_of(tape_.k.tokens, gradient_shape<A>::tile);
    const Index busy = (std::max)((std::min)(blocks_, tiles) / 4, Index{1});
    return (std::max)(pieces_of(threads, busy), Index{1});
  }
  Index head_size() const { return key_sums<A>::size(tape_.k.tokens, tape_.k.head_dim, tape_.v.head_dim); }
  key_sums<A> sums_of(A* memory, Index head) const {
    return {memory + head * head_size(), gradient_shape<A>::panels(tape_.k.head_dim),
            gradient_shape<A>::panels(tape_.v.head_dim)};
  }

  /// Computes all gradients of key heads [first, first + heads). Heads are numbered across the batch, row by
  /// row.
  template <class Threads>
  void run_heads(const Threads& threads, Index first, Index heads, A* memory) {
    const auto pieces = [&](Index count, const auto& body) {
      parallel_pieces(threads, count, cost_of(heads, head_size(), sizeof(A)), body);
    };
    pieces(heads * head_size(), [&](Index from, Index to) { std::fill(memory + from, memory + to, A(0)); });

    const Index tasks = heads * blocks_, side_by_side = heads_side_by_side(available_threads(threads));
    auto* tiles = workspace<struct gradient_places, std::atomic<Index>>(tasks);
    for (Index task = 0; task < tasks; ++task) ::new (static_cast<void*>(tiles + task)) std::atomic<Index>(0);
    const double work =
        cost_of(tokens_, tape_.group(), tape_.k.tokens, 3 * tape_.k.head_dim + 2 * tape_.v.head_dim);
    parallel_tasks(threads, tasks, work, [&](Index task) {
      const Index before = task / (side_by_side * blocks_) * side_by_side,
                  here = (std::min)(side_by_side, heads - before), place = task - before * blocks_;
      const Index head = before + place % here, order = place / here;
      // The last tokens of a sequence attend to the most keys, so their long tasks start first. Short tasks
      // at the end keep all threads busy.
      const Index part = blocks_ - 1 - order, token = part * tokens_;
      // All blocks of one key head add to its sums. If entries of the bias are shared, blocks of all key
      // heads add to them.
      sum_order in_order(d_bias_.is_shared ? tiles : tiles + head * blocks_,
                         d_bias_.is_shared ? task : order);
      const query_block queries = block_of_key_head(first + head, tape_.k.heads, tape_.group(), token,
                                                    (std::min)(tokens_, tape_.q.tokens - token));
      add_gradients_of_block(tape_, rules_, queries, d_bias_, sums_of(memory, head), in_order,
                             d_sinks_ == nullptr ? nullptr : d_sinks_of(first + head, part));
    });

    pieces(heads * tape_.k.tokens, [&](Index from, Index to) {
      for (Index n = from; n < to; ++n) {
        const Index head = n / tape_.k.tokens, j = n % tape_.k.tokens;
        write_key(sums_of(memory, head), (first + head) / tape_.k.heads, (first + head) % tape_.k.heads, j);
      }
    });
  }

  double* d_sinks_of(Index head, Index part) const {
    return d_sinks_ + (head * blocks_ + part) * tape_.group();
  }

  /// Packed queries are multiplied by scale * log2(e) or, with a softcap, by scale / softcap. The gradient
  /// with respect to a key has only the factor scale, so the other factor is removed here.
  void write_key(const key_sums<A>& sums, Index b, Index kv, Index j) const {
    using shape = gradient_shape<A>;
    const double softcap = rules_.options().softcap;
    const Index tile = j / shape::tile, row = j % shape::tile * shape::width;
    write_panels(sums.keys(tile) + row, sums.panel_size, static_cast<A>(softcap > 0 ? softcap : ln_2),
                 tape_.k.head_dim, tape_.d_k.at(b, j, kv));
    write_panels(sums.values(tile) + row, sums.panel_size, A(1), tape_.v.head_dim, tape_.d_v.at(b, j, kv));
  }

  const attention_tape<T>& tape_;
  const visibility& rules_;
  const option_gradients& by_options_;
  bias_gradient d_bias_ = {nullptr, false, false};
  Index tokens_, blocks_;      // tokens of a block, and blocks of a key head
  double* d_sinks_ = nullptr;  // [batch, k.heads, blocks, group], or nullptr
};

/// Throws:  std::invalid_argument if the memory for the gradient of an option has the wrong length
inline void check_option_gradients(const char* function, const option_gradients& by_options,
                                   const attention_options& options) {
  if (!by_options.sink_logits.empty() && by_options.sink_logits.size() != options.sink_logits.size())
    throw_invalid(function, "the gradient with respect to sink_logits must have their length, ",
                  options.sink_logits.size(), ", got ", by_options.sink_logits.size());
  if (by_options.bias.empty()) return;
  Index span = options.bias ? 1 : 0;  // from the first entry in memory to the last
  for (const auto& [stride, extent] : axes_of(options.bias)) {
    if (extent > 1 && stride < 0)
      throw_invalid(function, "the gradient with respect to bias needs strides that are not negative, got ",
                    stride);
    span += (extent - 1) * stride;
  }
  if (static_cast<Index>(by_options.bias.size()) != span)
    throw_invalid(function, "the gradient with respect to bias must have length ", span,
                  ", from the first entry of the bias in memory to its last (0 without options.bias), got ",
                  by_options.bias.size());
}

/// Checks the arguments of a call before anything is written, and returns the visibility rules of the call.
template <class T>
visibility checked_gradient(const attention_tape<T>& x, const attention_options& options,
                            const option_gradients& by_options, bool rotates = false) {
  const char* function = "attention_gradient";
  check_tape(function, x);
  if (options.selected)
    throw_invalid(function, "selected keys have no gradient; give a mask of the same keys, got lists of ",
                  options.selected.queries(), " queries");
  const attention_shape shape = {x.q.batch, x.q.tokens, x.k.tokens, x.q.heads, x.q.head_dim};
  check_options(function, options, shape, rotates);
  check_magnitudes<arithmetic<T>>(function, options, x.q.head_dim);
  check_option_gradients(function, by_options, options);
  return {options, shape};
}

}  // namespace detail

/// Gradients of a loss with respect to q, k and v. d_out is the gradient of the loss with respect to the
/// output of `attention(q, k, v, out, options)`.
///
///     d_v_j = sum_i w_ij d_out_i
///     d_s_ij = w_ij (d_out_i . v_j - d_out_i . out_i)
///     d_q_i = scale sum_j d_s_ij k_j,   d_k_j = scale sum_i d_s_ij q_i
///
/// With a softcap, d_s is multiplied by the slope of the cap. Dropout masks and rescales w_ij in d_v_j, and
/// d_out_i . v_j, as in the forward pass. It does not change w_ij in d_s_ij. The gradient with respect to a
/// key head is a sum over the query heads of its group. A query without a visible key has a gradient of zero.
///
/// \param tape     the heads of the forward pass, d_out, and the outputs d_q, d_k and d_v
/// \param options  the options of the forward pass. options.log_sum_exp is an input here: pass the values
///                 that the forward pass wrote. If it is empty, they are recomputed at the cost of one more
///                 product
/// \param by_options  receives the gradients with respect to learned sink logits and the bias
/// \param threads  your threads; each takes blocks of queries of a key head. Blocks add to d_k and d_v in a
///                 fixed order, so the bits do not depend on the threads
///
/// Requires:  d_q, d_k and d_v share no element with any other argument; throws if an overlap of two views is
///            detected, which is certain if they have the same strides
/// Throws:    std::invalid_argument if shapes disagree, q.heads is not a multiple of k.heads, an option is
///            out of range, or channels of d_q, d_k or d_v overlap; nothing is written then
/// Accuracy:  arithmetic and sums are in float (double for double). Gradients of half and bfloat16 are
///            rounded once at the end, and the `out` of the forward pass is read as rounded to these types.
///            Sums over tokens are formed per tile of 96 keys and block of 240 queries and then added, so the
///            error is within 5e-5 at 65,536 equal tokens (tests/attention/gradient.test.cpp,
///            tests/attention/laws/repeated_tokens.test.cpp)
/// Cost:      2 (3 head_dim + 2 value_dim) flops per query head and visible key, and 2 head_dim more without
///            log_sum_exp. The share of peak multiply-adds is about that of `attention`. The calling thread
///            needs memory for keys * (head_dim + value_dim) numbers per key head, for as many key heads as
///            have 128 blocks of 240 queries, but at most for 16 heads or 2^24 numbers, whichever is more.
///            Each thread needs 240 * (2 head_dim + value_dim + 192) + 96 * (2 head_dim + value_dim +
///            max(head_dim, value_dim)) numbers, for a block and a tile of 96 keys. No memory grows with
///            queries * keys. All memory is kept until release_scratch() (base/scratch.hpp)
/// Source:    Dao 2023, FlashAttention-2, arXiv:2307.08691, algorithm 2, with queries in the outer loop
template <class Layout = detail::unnamed_layout, class T, class Threads = this_thread>
void attention_gradient(const attention_tape<T>& tape, const attention_options& options = {},
                        const option_gradients& by_options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_WRITABLE("attention_gradient", "d_q, d_k or d_v", T);
  ROPE_DETAIL_CHECK_THREADS("attention_gradient", Threads);
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_gradient", Layout);
  const auto rules = detail::checked_gradient(tape, options, by_options);
  detail::attention_gradient_tasks<T>(tape, rules, by_options).run(threads);
}

/// Gradients of `attention<Layout>(q, k, v, out, tables, options)`, including the rotation. q and k of the
/// tape are unrotated, and d_q and d_k are the gradients with respect to the unrotated q and k. With the
/// attention_factor m of the table and the rotation R by an angle:
///
///     d_q_i = m R(-angle(p_i)) (gradient with respect to the rotated query),   d_k_j alike
///
/// Throws:    as above; std::invalid_argument if the rotated channels exceed the head, or xPos tables are
///            used without causal options; std::out_of_range if a position is outside the table; nothing is
///            written then
/// Accuracy:  as above; gradients of half and bfloat16 channels are rounded before and after the inverse
///            rotation
/// Cost:      as above, one pass over q and k, and one over d_q and d_k. The calling thread keeps rotated
///            copies of q and k until release_scratch(): sizeof(T) (q.size() + k.size()) bytes
///            (base/scratch.hpp)
template <class Layout = detail::unnamed_layout, class T, attention_tables Tables,
          class Threads = this_thread>
void attention_gradient(const attention_tape<T>& tape, const Tables& tables,
                        const attention_options& options = {}, const option_gradients& by_options = {},
                        const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_WRITABLE("attention_gradient", "d_q, d_k or d_v", T);
  ROPE_DETAIL_CHECK_THREADS("attention_gradient", Threads);
  ROPE_DETAIL_CHECK_LAYOUT("attention_gradient", Layout);
  const query_key_tables pair = detail::checked_tables("attention_gradient", tables, options);
  const auto rules = detail::checked_gradient(tape, options, by_options, true);
  detail::checked_rotation<Layout>("attention_gradient", tape.q, tape.k, pair, rules);
  T* memory = detail::workspace<struct rotated_copies, T>(tape.q.size() + tape.k.size());
  const head_view<T> q = bhsd(memory, tape.q.batch, tape.q.heads, tape.q.tokens, tape.q.head_dim),
                     k = bhsd(memory + tape.q.size(), tape.k.batch, tape.k.heads, tape.k.tokens,
                              tape.k.head_dim);
  detail::rotate_operands<Layout, false, T>(tape.q, q, tape.k, k, pair, rules, threads);
  attention_tape<T> rotated = tape;
  rotated.q = q;
  rotated.k = k;
  detail::attention_gradient_tasks<T>(rotated, rules, by_options).run(threads);
  detail::rotate_operands<Layout, true, T>(tape.d_q, tape.d_q, tape.d_k, tape.d_k, pair, rules, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_GRADIENT_HPP
