// SPDX-License-Identifier: MIT
#ifndef ROPE_MULTI_HEAD_ATTENTION_HPP
#define ROPE_MULTI_HEAD_ATTENTION_HPP

#include <algorithm>  // std::min, std::max
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention.hpp>
#include <rope/cached_attention.hpp>
#include <rope/config.hpp>
#include <rope/detail/cache_step.hpp>
#include <rope/detail/head_norm.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/multi_head_pass.hpp>
#include <rope/multi_head_weights.hpp>
#include <rope/positions.hpp>
#include <rope/table.hpp>
#include <rope/view.hpp>

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
/// Tokens are row-major Eigen matrices [batch * tokens, dim], row after row of the batch.
///
/// \tparam T       float or double
/// \tparam Layout  the pairing of the channels; may be left out by a block that never rotates
///
/// Requires:  the weights outlive the block. The block itself is immutable and may be shared between threads
/// Cost:      the projections are Eigen products, which allocate their own blocking buffers when they are
///            large; nothing else is allocated once a call of the same size has been made on the thread
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
    numbers.query_positions = numbers.key_positions = numbers.key_counts = {};
    numbers.query_offsets = numbers.key_offsets = {};
    numbers.bias = {};
    numbers.mask = {};
    detail::check_options("multi_head_attention", numbers, {1, 0, 0, shape_.heads, shape_.head_dim});
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
  void forward(const tokens& x, Index batch, writable_tokens out) const {
    attend(x, x, batch, out, options_.attention, detail::block_without_rotation{});
  }

  /// Self-attention with rotation.
  ///
  /// \param positions  as in `rotate`. Tokens in different `segments` do not see each other; otherwise the
  ///                   causal mask goes by the order of tokens
  ///
  /// Throws:  as above; std::out_of_range if a position is outside the table
  template <class S, class P = std::int64_t>
  void forward(const tokens& x, Index batch, writable_tokens out, const frequency_table<S>& table,
               const P& positions = P{}) const {
    attend(x, x, batch, out, options_.attention,
           detail::block_rotation<Layout, S, P, P>{table, positions, positions});
  }

  /// Self-attention to everything in a cache, to which the new tokens are appended. They start at the
  /// positions the cache gives them.
  ///
  /// \param cache   kv_cache or ring_cache, of kv_heads heads; T or, for float, a 16-bit type. A ring takes
  ///                any number of tokens, chunk by chunk
  /// \param counts  [batch] or empty: row b has counts[b] new tokens; the rest attends to nothing
  ///
  /// Throws:  as `append` and `attention` of a cache; out and the cache are then unchanged
  template <class Cache>
  requires detail::is_cache<Cache>
  void forward(const tokens& x, Cache& cache, writable_tokens out, std::span<const Index> counts = {}) const {
    attend_to_cache<float>(x, cache, out, nullptr, counts);
  }
  template <class Cache, class S>
  requires detail::is_cache<Cache>
  void forward(const tokens& x, Cache& cache, writable_tokens out, const frequency_table<S>& table,
               std::span<const Index> counts = {}) const {
    static_assert(pair_layout<Layout>,
                  "multi_head_attention: name the pairing of the channels to rotate, "
                  "multi_head_attention<T, interleaved> or multi_head_attention<T, half_split>");
    attend_to_cache<S>(x, cache, out, &table, counts);
  }

  /// Cross-attention: queries from x, keys and values from a context, every one of which a query sees.
  ///
  /// \param x        [batch * queries, model_dim]
  /// \param context  [batch * keys, context_dim]
  /// \param out      [batch * queries, out_dim]
  void cross(const tokens& x, const tokens& context, Index batch, writable_tokens out) const {
    attend(x, context, batch, out, all_visible(), detail::block_without_rotation{});
  }

  /// Cross-attention with rotation: queries and keys have positions of their own.
  ///
  /// Throws:  as above; std::invalid_argument if only one of the two has segments, or not the same number
  template <class S, class PQ, class PK>
  void cross(const tokens& x, const tokens& context, Index batch, writable_tokens out,
             const frequency_table<S>& table, const PQ& query_positions, const PK& key_positions) const {
    attend(x, context, batch, out, all_visible(),
           detail::block_rotation<Layout, S, PQ, PK>{table, query_positions, key_positions});
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
  struct queries {};
  struct keys {};
  struct values {};
  struct attended {};

  detail::block_pass<T> pass() const { return {weights_, options_, shape_}; }

  /// Projected and normalised heads in scratch.
  head_view<T> query_heads(const tokens& x, Index batch) const {
    const head_view<T> heads = pass().template projected<queries>(x, batch, weights_.q, shape_.heads);
    pass().q_norm().apply(heads, heads);
    return heads;
  }
  head_view<T> key_heads(const tokens& x, Index batch) const {
    const head_view<T> heads = pass().template projected<keys>(x, batch, weights_.k, shape_.kv_heads);
    pass().k_norm().apply(heads, heads);
    return heads;
  }
  head_view<T> value_heads(const tokens& x, Index batch) const {
    return pass().template projected<values>(x, batch, weights_.v, shape_.kv_heads);
  }
  head_view<T> attended_heads(const tokens& x, Index batch) const {
    return pass().template scratch_heads<attended>(x.rows(), batch, shape_.heads, shape_.value_dim);
  }

  template <class Rotation>
  void attend(const tokens& x, const tokens& context, Index batch, writable_tokens& out,
              const attention_options& options, const Rotation& rotation) const {
    pass().check(x, context, out);
    pass().check_positions(rotation, batch, pass().tokens_per_row(x, batch),
                           pass().tokens_per_row(context, batch));
    const head_view<T> q = query_heads(x, batch), k = key_heads(context, batch),
                       v = value_heads(context, batch), heads = attended_heads(x, batch);
    rotation.apply(q, k);
    for (Index s = 0; s < rotation.segment_count(); ++s)
      attention(rotation.query_tokens(q, s), rotation.key_tokens(k, s), rotation.key_tokens(v, s),
                rotation.query_tokens(heads, s), options);
    detail::project(detail::as_rows(heads), weights_.o, out);
  }

  template <class S, class Cache>
  void attend_to_cache(const tokens& x, Cache& cache, writable_tokens& out, const frequency_table<S>* table,
                       std::span<const Index> counts) const {
    pass().check(x, x, out);
    const Index batch = cache.batch(), count = pass().tokens_per_row(x, batch);
    detail::check_next<Layout>(cache, shape_, options_.attention, count, table, counts);
    const head_view<T> q = query_heads(x, batch), k = key_heads(x, batch), v = value_heads(x, batch),
                       heads = attended_heads(x, batch);
    const Index chunk = detail::chunk_of(cache, count);
    struct chunk_counts {};
    Index* now = detail::workspace<chunk_counts, Index>(batch);
    for (Index first = 0; first < count; first += chunk) {
      const Index size = (std::min)(chunk, count - first);
      for (Index b = 0; b < batch; ++b)
        now[b] = (std::min)(size, (std::max)(Index{0}, detail::count_of(b, count, counts) - first));
      const std::span<const Index> taken =
          counts.empty() ? counts : std::span<const Index>(now, static_cast<std::size_t>(batch));
      const head_view<T> new_q = q.token_range(first, size), new_k = k.token_range(first, size),
                         new_v = v.token_range(first, size), result = heads.token_range(first, size);
      if (table == nullptr) {
        cache.append(new_k, new_v, taken);
        attention(new_q, cache, result, options_.attention, taken);
      } else if constexpr (pair_layout<Layout>) {
        if (cache.storage() == key_storage::raw)
          cache.append(new_k, new_v, taken);
        else
          cache.template append<Layout>(new_k, new_v, *table, taken);
        attention<Layout>(new_q, cache, result, *table, options_.attention, taken);
      }
    }
    detail::project(detail::as_rows(heads), weights_.o, out);
  }

  multi_head_weights<T> weights_;
  multi_head_options options_;
  multi_head_shape shape_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MULTI_HEAD_ATTENTION_HPP
