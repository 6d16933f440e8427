// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_MULTI_HEAD_ATTENTION_HPP
#define ROPE_BLOCK_MULTI_HEAD_ATTENTION_HPP

#include <algorithm>  // std::min, std::max
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/workspace.hpp>
#include <rope/block/detail/block_rotation.hpp>
#include <rope/block/detail/pass.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/weights.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/detail/cache_step.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The attention block of a transformer.

namespace rope {
inline namespace ROPE_ABI {

/// Projects tokens to queries, keys and values, normalises and rotates the heads of q and k, attends, and
/// projects the result.
///
///     q = R(norm(x Wq^T + bq)),  k = R(norm(c Wk^T + bk)),  v = c Wv^T + bv,   c = x or a context
///     out = attention(q, k, v) Wo^T + bo
///
///     multi_head_attention<float, half_split> block(weights, {.heads = 32, .kv_heads = 8});
///     block.forward(prompt, cache, out, table);
///     block.forward(token, cache, out, table);
///
/// Tokens are row-major Eigen matrices, maps or blocks [batch * tokens, dim], row after row of the batch;
/// they are never copied.
///
/// \tparam T       float or double
/// \tparam Layout  interleaved, half_split or a pair_layout; may be left out by a block that never rotates
///
/// Every form takes the caller's threads last (base/parallel.hpp): projections, norms, rotation and attention
/// run on all of them, and give the same bits for any number. `{}` stands for positions or counts before
/// them.
///
///     block.forward(token, cache, out, table, {}, pool);
///
/// The options of attention are those of every call: a bias, a mask and lists have the extents of the whole
/// call, of all its segments too. Their log_sum_exp [batch, queries, heads] receives that of the latest call.
///
/// Requires:  the weights outlive the block. The block itself is immutable and may be shared between threads,
///            unless its options have a log_sum_exp to write to
/// Cost:      2 flops per token and weight, and those of attention; nothing is allocated once a call of the
///            same size has been made on the thread, which keeps the heads of a call as scratch
///            (base/scratch.hpp)
/// Source:    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; `LlamaAttention`, `Qwen3Attention` and
///            `Gemma3Attention` of Hugging Face transformers
template <class T, class Layout = detail::unnamed_layout>
class multi_head_attention {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "multi_head_attention: T is float or double; a cache may store half or bfloat16");

 public:
  using tokens = detail::token_ref<T>;
  using writable_tokens = detail::writable_token_ref<T>;

  /// Throws:  std::invalid_argument if the weights do not fit each other or the options
  multi_head_attention(const multi_head_weights<T>& weights, const multi_head_options& options)
      : weights_(weights), options_(options), shape_(detail::checked_shape(weights, options)) {
    attention_options numbers = options.attention;  // lists and views are checked when the tokens are known
    numbers.query_positions = numbers.key_positions = numbers.query_counts = numbers.key_counts = {};
    numbers.query_offsets = numbers.key_offsets = {};
    numbers.bias = {};
    numbers.mask = {};
    numbers.log_sum_exp = {};
    detail::check_options("multi_head_attention", numbers, {1, 0, 0, shape_.heads, shape_.head_dim});
    detail::check_magnitudes<T>("multi_head_attention", numbers, shape_.head_dim);
  }

  const multi_head_weights<T>& weights() const { return weights_; }
  const multi_head_options& options() const { return options_; }
  const multi_head_shape& shape() const { return shape_; }

  /// Self-attention without rotation.
  ///
  /// \param x    [batch * tokens, model_dim]
  /// \param out  [batch * tokens, out_dim]
  ///
  /// Requires:  out shares no element with x or a weight
  /// Throws:    std::invalid_argument if shapes disagree; out is then unchanged. The same holds below
  template <parallel_executor Threads = this_thread>
  void forward(const tokens& x, Index batch, writable_tokens out, const Threads& threads = {}) const {
    attend(x, x, batch, out, options_.attention, detail::block_without_rotation{}, threads);
  }

  /// Self-attention with rotation.
  ///
  /// \param positions  as in `rotate`. Tokens in different `segments` do not see each other; otherwise the
  ///                   causal mask goes by the order of tokens
  ///
  /// Throws:  as above; std::out_of_range if a position is outside the table
  template <rotation_table Table, class P = std::int64_t, parallel_executor Threads = this_thread>
  void forward(const tokens& x, Index batch, writable_tokens out, const Table& table,
               const P& positions = P{}, const Threads& threads = {}) const {
    attend(x, x, batch, out, options_.attention,
           detail::block_rotation<Layout, typename Table::scalar, P, P>{detail::placed(table), positions,
                                                                        positions},
           threads);
  }

  /// Self-attention to everything in a cache, to which the new tokens are appended. They start at the
  /// positions the cache gives them.
  ///
  /// \param cache   kv_cache or ring_cache, of kv_heads heads; T or, for float, a 16-bit type. A ring takes
  ///                any number of tokens, chunk by chunk
  /// \param counts  any integers, [batch] or empty: row b has counts[b] new tokens; the rest sees nothing
  ///
  /// Throws:  as `append` and `attention` of a cache; out and the cache are then unchanged
  template <class Cache, parallel_executor Threads = this_thread>
  requires detail::is_cache<Cache>
  void forward(const tokens& x, Cache& cache, writable_tokens out, const detail::row_counts& counts = {},
               const Threads& threads = {}) const {
    attend_to_cache<float>(x, cache, out, nullptr, counts, threads);
  }
  template <class Cache, rotation_table Table, parallel_executor Threads = this_thread>
  requires detail::is_cache<Cache>
  void forward(const tokens& x, Cache& cache, writable_tokens out, const Table& table,
               const detail::row_counts& counts = {}, const Threads& threads = {}) const {
    static_assert(pair_layout<Layout>,
                  "multi_head_attention: name the layout of the channel pairs to rotate, "
                  "multi_head_attention<T, interleaved> or multi_head_attention<T, half_split>");
    const auto rotation = detail::placed(table);
    attend_to_cache<typename Table::scalar>(x, cache, out, &rotation, counts, threads);
  }

  /// Cross-attention: queries from x, keys and values from a context, every one of which a query sees.
  ///
  /// \param x        [batch * queries, model_dim]
  /// \param context  [batch * keys, context_dim]
  /// \param out      [batch * queries, out_dim]
  template <parallel_executor Threads = this_thread>
  void cross(const tokens& x, const tokens& context, Index batch, writable_tokens out,
             const Threads& threads = {}) const {
    attend(x, context, batch, out, all_visible(), detail::block_without_rotation{}, threads);
  }

  /// Cross-attention with rotation: queries and keys have positions of their own.
  ///
  /// Throws:  as above; std::invalid_argument if only one of the two has segments, or not the same number
  template <rotation_table Table, class PQ, class PK, parallel_executor Threads = this_thread>
  void cross(const tokens& x, const tokens& context, Index batch, writable_tokens out, const Table& table,
             const PQ& query_positions, const PK& key_positions, const Threads& threads = {}) const {
    attend(x, context, batch, out, all_visible(),
           detail::block_rotation<Layout, typename Table::scalar, PQ, PK>{detail::placed(table),
                                                                          query_positions, key_positions},
           threads);
  }

  /// The options of cross-attention: every key is visible.
  attention_options all_visible() const {
    attention_options options = options_.attention;
    options.causal = false;
    options.window = 0;
    options.sinks = 0;
    return options;
  }

 private:
  detail::block_pass<T> pass() const { return {weights_, options_, shape_}; }

  /// Projected heads, and room for the attended ones, in scratch.
  struct block_heads {
    head_view<T> q, k, v, attended;
  };
  template <class Threads>
  block_heads project(const tokens& x, const tokens& context, Index batch, const Threads& threads) const {
    const auto [q, k, v] = pass().project(x, context, batch, threads);
    return {q, k, v,
            pass().template scratch_heads<detail::block_scratch::attended>(x.rows(), batch, shape_.heads,
                                                                           shape_.value_dim)};
  }
  template <class Threads>
  void project_back(const head_view<T>& attended, writable_tokens& out, const Threads& threads) const {
    detail::run_products(threads, detail::projected<T>(detail::as_rows(attended), weights_.o, out));
  }

  /// Calls run(options) for `count` of the queries of every row from `first` on, whose log-sum-exps then come
  /// to their place among those of all queries.
  template <class Run>
  static void attend_part(const block_heads& heads, Index first, Index count, attention_options options,
                          const Run& run) {
    const head_view<T>& q = heads.q;
    const detail::log_sums_of_part sums = {options.log_sum_exp, q.batch, q.tokens, q.heads, first, count};
    options.log_sum_exp = sums.span();
    run(options);
    sums.put_back(options.log_sum_exp);
  }

  template <class Rotation, class Threads>
  void attend(const tokens& x, const tokens& context, Index batch, writable_tokens& out,
              const attention_options& options, const Rotation& rotation, const Threads& threads) const {
    pass().check_call(x, context, out);
    pass().check_positions(rotation, x, context, batch);
    pass().check_attention(rotation, options, x, context, batch);
    const block_heads heads = project(x, context, batch, threads);
    rotation.apply_to_queries(heads.q, pass().q_norm(), threads);
    rotation.apply_to_keys(heads.k, pass().k_norm(), threads);
    Index first = 0;
    for (Index s = 0; s < rotation.segment_count(); ++s) {
      const head_view<T> q = rotation.query_tokens(heads.q, s);
      attend_part(heads, first, q.tokens, rotation.options_of(options, s), [&](const auto& part) {
        attention(q, rotation.key_tokens(heads.k, s), rotation.key_tokens(heads.v, s),
                  rotation.query_tokens(heads.attended, s), part, threads);
      });
      first += q.tokens;
    }
    project_back(heads.attended, out, threads);
  }

  template <class S, class Cache, class Threads>
  void attend_to_cache(const tokens& x, Cache& cache, writable_tokens& out, const placed_table<S>* table,
                       const detail::row_counts& counts, const Threads& threads) const {
    pass().check_call(x, x, out);
    const Index batch = cache.batch(), count = pass().tokens_per_row(x, batch);
    detail::check_next<Layout>(cache, {shape_.heads, shape_.kv_heads, shape_.head_dim, shape_.value_dim},
                               options_.attention, count, table, counts);
    const block_heads heads = project(x, x, batch, threads);
    detail::normalize_if(pass().q_norm(), heads.q, heads.q, threads);
    detail::normalize_if(pass().k_norm(), heads.k, heads.k, threads);
    const Index chunk = detail::chunk_of(cache, count);
    Index* now = detail::workspace<detail::block_scratch::counts, Index>(batch);
    for (Index first = 0; first < count; first += chunk) {
      const Index size = (std::min)(chunk, count - first);
      for (Index b = 0; b < batch; ++b)
        now[b] = (std::min)(size, (std::max)(Index{0}, detail::count_of(b, count, counts) - first));
      const detail::row_counts taken =
          counts.empty() ? counts : std::span<const Index>(now, static_cast<std::size_t>(batch));
      const head_view<T> q = heads.q.token_range(first, size), k = heads.k.token_range(first, size),
                         v = heads.v.token_range(first, size),
                         result = heads.attended.token_range(first, size);
      attend_part(heads, first, size, options_.attention, [&](const attention_options& part) {
        if (table == nullptr) {
          cache.append(k, v, taken, threads);
          attention(q, cache, result, part, taken, threads);
        } else if constexpr (pair_layout<Layout>) {
          if (cache.storage() == key_storage::raw)
            cache.append(k, v, taken, threads);
          else
            cache.template append<Layout>(k, v, *table, taken, threads);
          attention<Layout>(q, cache, result, *table, part, taken, threads);
        }
      });
    }
    project_back(heads.attended, out, threads);
  }

  multi_head_weights<T> weights_;
  multi_head_options options_;
  multi_head_shape shape_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_MULTI_HEAD_ATTENTION_HPP
