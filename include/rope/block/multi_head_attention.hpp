// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_MULTI_HEAD_ATTENTION_HPP
#define ROPE_BLOCK_MULTI_HEAD_ATTENTION_HPP

#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/base/parallel.hpp>
#include <rope/block/detail/block_rotation.hpp>
#include <rope/block/detail/forward.hpp>
#include <rope/block/detail/pass.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/projected_context.hpp>
#include <rope/block/weights.hpp>
#include <rope/cache/detail/cache_step.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>  // the checks of types
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The attention block of a transformer.

namespace rope::inline ROPE_ABI {

/// Buffers for a block's optional outputs. Empty buffers are not written.
///
///     std::vector<float> probabilities(batch * heads * queries * keys);
///     block.reporting({.probabilities = probabilities}).forward(x, batch, out, table);
///
/// \tparam T  the T of the block
template <class T>
struct multi_head_report {
  /// [batch, queries, heads], as in attention_options. If given, it replaces the log_sum_exp of the options.
  std::span<double> log_sum_exp = {};
  /// [batch, heads, queries, keys]: the `attention_weights` of the projected heads, including dropout, and 0
  /// for keys that are not visible to a query. They are meant for inspection, and computed by plain loops in
  /// addition to attention. If `probabilities` is not empty, calls with a cache throw.
  std::span<T> probabilities = {};
};

/// An attention layer. It projects tokens to queries, keys and values, normalises and rotates the heads of q
/// and k, attends, and projects the result.
///
///     q = R(norm(x Wq^T + bq)),  k = R(norm(c Wk^T + bk)),  v = c Wv^T + bv,   c = x or a context
///     out = attention(q, k, v) Wo^T + bo
///
///     multi_head_attention<float, half_split> block(weights, {.heads = 32, .kv_heads = 8});
///     block.forward(prompt, cache, out, table);
///     block.forward(token, cache, out, table);
///
/// Tokens are row-major Eigen matrices, maps or blocks [batch * tokens, dim], one row of the batch after
/// another. They are never copied.
///
/// \tparam T       float or double
/// \tparam Layout  interleaved, half_split or a pair_layout; may be omitted if the block never rotates
///
/// Every function takes your threads as its last argument (base/parallel.hpp). Projections, norms, rotation
/// and attention run on all of them, and the bits do not depend on their number. To pass threads without
/// positions or counts, write `{}` in place of the positions or counts:
///
///     block.forward(token, cache, out, table, {}, pool);
///
/// The attention options apply to every call. Bias, mask and lists have the extents of the whole call, over
/// all segments. log_sum_exp [batch, queries, heads] is overwritten by each call.
///
/// Requires:  the weights, and the lists, bias, mask and sink_logits of the options, outlive the block. The
///            block is immutable, so threads may share it. Exception: calls write the log_sum_exp of the
///            options, if there is one
/// Cost:      2 flops per token and weight, plus attention. The heads of a call are in scratch memory of the
///            thread, so only the first call of a size on a thread allocates (base/scratch.hpp)
/// Source:    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; `LlamaAttention`, `Qwen3Attention` and
///            `Gemma3Attention` of Hugging Face transformers
template <class T, class Layout = detail::unnamed_layout>
class multi_head_attention {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "multi_head_attention: T is float or double; a cache may store half or bfloat16");

 public:
  /// Input tokens: a row-major Eigen matrix, map or block [batch * tokens, dim].
  using tokens = detail::token_ref<T>;
  /// Output tokens.
  using writable_tokens = detail::writable_token_ref<T>;

  /// Throws:  std::invalid_argument if weights and options do not fit together; std::length_error if heads *
  ///          value_dim exceeds the address space
  multi_head_attention(const multi_head_weights<T>& weights, const multi_head_options& options)
      : weights_(weights), options_(options), shape_(detail::checked_shape(weights, options)) {
    if (options.attention.selected)
      detail::throw_invalid(
          "multi_head_attention",
          "a block computes its queries itself, so no list can be selected for them before; "
          "call attention, got lists of ",
          options.attention.selected.queries(), " queries");
    // Calls check the lists and views that have the extents of a call.
    detail::check_numbers("multi_head_attention", options.attention);
    detail::check_sink_logits("multi_head_attention", options.attention, shape_.heads);
    detail::check_magnitudes<T>("multi_head_attention", options.attention, shape_.head_dim);
    detail::check_products<T, T>("multi_head_attention", options.attention.products, shape_.head_dim, false);
  }

  /// The weights passed to the constructor.
  const multi_head_weights<T>& weights() const ROPE_DETAIL_LIFETIMEBOUND { return weights_; }
  /// The options passed to the constructor, with the log_sum_exp of `reporting` if given.
  const multi_head_options& options() const ROPE_DETAIL_LIFETIMEBOUND { return options_; }
  /// The sizes derived from weights and options.
  const multi_head_shape& shape() const ROPE_DETAIL_LIFETIMEBOUND { return shape_; }

  /// Self-attention without rotation.
  ///
  /// \param x    [batch * tokens, model_dim]
  /// \param out  [batch * tokens, out_dim]
  ///
  /// Requires:  out shares no element with x or a weight
  /// Throws:    std::invalid_argument if shapes disagree, std::length_error if the heads of the call exceed
  ///            the address space; out is then unchanged, here and below
  template <parallel_executor Threads = this_thread>
  void forward(const tokens& x, Index batch, writable_tokens out, const Threads& threads = {}) const {
    run().attend(x, x, batch, out, options_.attention, detail::block_without_rotation, threads);
  }

  /// Self-attention with rotation.
  ///
  /// \param positions  as in `rotate`. Tokens of different `segments` do not attend to each other. The causal
  ///                   mask uses the order of tokens, not `positions`
  ///
  /// Throws:  as above; std::out_of_range if a position is outside the table
  template <rotation_table Table, class P = detail::braced_ids, class Threads = this_thread>
  void forward(const tokens& x, Index batch, writable_tokens out, const Table& table,
               const P& positions = P{}, const Threads& threads = {}) const {
    ROPE_DETAIL_CHECK_THREADS("multi_head_attention::forward", Threads);
    run().attend(x, x, batch, out, options_.attention, detail::rotation_of_block<Layout>(table, positions),
                 threads);
  }

  /// Self-attention to all tokens of a cache. The new tokens are appended first, at the positions that the
  /// cache assigns.
  ///
  /// \param cache   kv_cache or ring_cache with kv_heads heads, of T or, for float, a 16-bit type or
  ///                std::int8_t. A ring_cache accepts any number of tokens and processes them in chunks
  /// \param counts  any integers, [batch] or empty: row b has counts[b] new tokens. Other tokens of the row
  ///                attend to nothing
  ///
  /// Throws:  as `append` and `attention` of a cache; out and the cache are then unchanged. If memory runs
  ///          out or your threads fail, tokens may already be appended. The size of the cache shows whether
  ///          they are
  template <class Cache, class Threads = this_thread>
  requires detail::is_cache<Cache>
  void forward(const tokens& x, Cache& cache, writable_tokens out, const detail::row_counts& counts = {},
               const Threads& threads = {}) const {
    ROPE_DETAIL_CHECK_THREADS("multi_head_attention::forward", Threads);
    run().template attend_to_cache<Layout, float>(x, cache, out, nullptr, counts, threads);
  }
  /// Self-attention to a cache, with rotation. Queries are rotated. Keys are rotated before they are stored
  /// or, in a cache of raw keys, when they are read.
  ///
  /// Throws:  as above
  template <class Cache, rotation_table Table, class Threads = this_thread>
  requires detail::is_cache<Cache>
  void forward(const tokens& x, Cache& cache, writable_tokens out, const Table& table,
               const detail::row_counts& counts = {}, const Threads& threads = {}) const {
    ROPE_DETAIL_CHECK_THREADS("multi_head_attention::forward", Threads);
    const auto rotation = detail::rotation_of_block<Layout>(table, detail::no_positions);
    run().template attend_to_cache<Layout>(x, cache, out, &rotation.queries.table, counts, threads);
  }

  ROPE_DETAIL_ASK_OF_LAYER(
      forward, (detail::lacks_tokens_of_forward<T, Arguments...>()),
      "forward(x, batch, out, ...) or, with a kv_cache or ring_cache, forward(x, cache, out, ...)",
      (detail::misplaced_after_forward<Arguments...>()),
      "out pass a table if it rotates, then positions or, for a cache, counts (any integers, [batch], "
      "or {}), then the threads");

  /// Cross-attention. Queries are projected from x, and keys and values from a context. The options causal,
  /// window and sinks do not apply.
  ///
  /// \param x        [batch * queries, model_dim]
  /// \param context  [batch * keys, context_dim]
  /// \param out      [batch * queries, out_dim]
  ///
  /// Throws:  std::invalid_argument if shapes disagree; out is then unchanged, here and below
  template <parallel_executor Threads = this_thread>
  void cross(const tokens& x, const tokens& context, Index batch, writable_tokens out,
             const Threads& threads = {}) const {
    run().attend(x, context, batch, out, all_visible(), detail::block_without_rotation, threads);
  }

  /// Cross-attention with rotation.
  ///
  /// \param query_positions  of the tokens of x, as in `rotate`
  /// \param key_positions    of the tokens of the context, as in `rotate`
  ///
  /// Throws:  as above; std::out_of_range if a position is outside the table; std::invalid_argument if both
  ///          are `segments` and their numbers of segments differ. If only one is `segments`, the call does
  ///          not compile
  template <rotation_table Table, class PQ, class PK, class Threads = this_thread>
  void cross(const tokens& x, const tokens& context, Index batch, writable_tokens out, const Table& table,
             const PQ& query_positions, const PK& key_positions, const Threads& threads = {}) const {
    ROPE_DETAIL_CHECK_THREADS("multi_head_attention::cross", Threads);
    run().attend(x, context, batch, out, all_visible(),
                 detail::rotation_of_block<Layout>(table, query_positions, key_positions), threads);
  }

  /// Projects a context to keys and values, once for any number of calls of `cross` below.
  ///
  /// \param context  [batch * keys, context_dim]
  ///
  /// Throws:  std::invalid_argument if shapes disagree
  template <parallel_executor Threads = this_thread>
  projected_context<T> project_context(const tokens& context, Index batch,
                                       const Threads& threads = {}) const {
    return project(context, batch, detail::block_without_rotation, threads);
  }
  /// Projects a context to rotated keys and to values.
  ///
  /// \param positions  of the keys, as in `rotate`
  ///
  /// Throws:  as above; std::out_of_range if a position is outside the table
  template <rotation_table Table, class P = detail::braced_ids, class Threads = this_thread>
  projected_context<T> project_context(const tokens& context, Index batch, const Table& table,
                                       const P& positions = P{}, const Threads& threads = {}) const {
    ROPE_DETAIL_CHECK_THREADS("multi_head_attention::project_context", Threads);
    const auto rotation = detail::rotation_of_block<Layout>(table, positions);
    projected_context<T> to = project(context, batch, rotation, threads);
    to.rotation_ = detail::rotation_by<Layout>(rotation.keys.table);
    if constexpr (detail::is_segmented<P>)
      for (Index s = 0; s < positions.offsets.size(); ++s)
        to.offsets_.push_back(static_cast<std::int64_t>(positions.offsets[s]));
    return to;
  }
  ROPE_DETAIL_ASK_OF_LAYER(project_context, (detail::lacks_tokens<T, Arguments...>(0b1)),
                           "project_context(context, batch, ...)",
                           (detail::misplaced_after<Arguments...>(2, 0, 1)),
                           "the batch pass a table if it rotates, with positions, then the threads");

  /// Cross-attention to a projected context. The bits are those of the call with the context itself.
  ///
  /// Throws:  as above; std::invalid_argument if kv_heads, head_dim or value_dim of the context are not those
  ///          of the block, or if the keys of the context are rotated
  template <parallel_executor Threads = this_thread>
  void cross(const tokens& x, const projected_context<T>& context, writable_tokens out,
             const Threads& threads = {}) const {
    context.check_use(shape_, {}, 0);
    run().attend_projected(x, context.keys(), context.values(), out, all_visible(),
                           detail::block_without_rotation, threads);
  }
  /// Cross-attention to a projected context, with rotated queries.
  ///
  /// Throws:  std::invalid_argument if shapes disagree, if the keys of the context were not rotated by the
  ///          layout and table of this call, or if queries and keys have different numbers of segments;
  ///          std::out_of_range if a position is outside the table; out is then unchanged
  template <rotation_table Table, class P = detail::braced_ids, class Threads = this_thread>
  void cross(const tokens& x, const projected_context<T>& context, writable_tokens out, const Table& table,
             const P& query_positions = P{}, const Threads& threads = {}) const {
    ROPE_DETAIL_CHECK_THREADS("multi_head_attention::cross", Threads);
    const auto attend = [&](const auto& key_positions) {
      const auto rotation = detail::rotation_of_block<Layout>(table, query_positions, key_positions);
      context.check_use(shape_, detail::rotation_by<Layout>(rotation.queries.table), rotation.segments());
      run().attend_projected(x, context.keys(), context.values(), out, all_visible(), rotation, threads);
    };
    if constexpr (detail::is_segmented<P>)
      attend(segments{context.offsets_});
    else
      attend(std::int64_t{0});
  }
  ROPE_DETAIL_ASK_OF_LAYER(
      cross, (detail::lacks_tokens_of_cross<T, Arguments...>()),
      "cross(x, context, batch, out, ...) or cross(x, projected_context, out, ...)",
      (detail::misplaced_after_cross<Arguments...>()),
      "out pass a table if it rotates, with positions of x and of a context that is not projected, then the "
      "threads");

  /// A copy of the block, with the same weights, whose calls also write the report.
  ///
  ///     block.reporting({.log_sum_exp = sums}).forward(x, batch, out, table);
  ///
  /// Throws:  nothing; calls of the copy throw std::invalid_argument if a length differs
  multi_head_attention reporting(const multi_head_report<T>& report) const {
    multi_head_attention block = *this;
    if (!report.log_sum_exp.empty()) block.options_.attention.log_sum_exp = report.log_sum_exp;
    block.probabilities_ = report.probabilities;
    return block;
  }

  /// The options of cross-attention: without causal, window and sinks.
  attention_options all_visible() const {
    attention_options options = options_.attention;
    options.causal = false;
    options.window = 0;
    options.sinks = 0;
    return options;
  }

 private:
  detail::block_forward<T> run() const { return {{weights_, options_, shape_}, probabilities_}; }

  template <class Rotation, class Threads>
  projected_context<T> project(const tokens& context, Index batch, const Rotation& rotation,
                               const Threads& threads) const {
    const detail::block_pass<T> pass = {weights_, options_, shape_};
    pass.check_context(context);
    const Index keys = pass.tokens_per_row(context, batch, shape_.kv_heads);
    rotation.keys.check_positions(pass.function, batch, keys, shape_.head_dim);
    projected_context<T> to(batch, keys, shape_);
    const head_view<T> k = to.writable_keys(), v = to.writable_values();
    detail::run_products(threads, detail::projected<T>(context, weights_.k, detail::as_rows(k)),
                         detail::projected<T>(context, weights_.v, detail::as_rows(v)));
    rotation.keys.apply(k, pass.k_norm(), threads);
    return to;
  }

  multi_head_weights<T> weights_;
  multi_head_options options_;
  multi_head_shape shape_;
  std::span<T> probabilities_ = {};
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BLOCK_MULTI_HEAD_ATTENTION_HPP
