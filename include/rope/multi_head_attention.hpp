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
    const head_view<T> none = bshd(static_cast<T*>(nullptr), 1, 0, shape_.heads, shape_.head_dim);
    detail::checked_attention<T>(none, none, none, none, options.attention);
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
    return options;
  }

 private:
  struct queries {};
  struct keys {};
  struct values {};
  struct attended {};

  static void require(bool holds, const char* rule, Index got, Index of) {
    if (!holds)
      ROPE_THROW(std::invalid_argument,
                 detail::message("multi_head_attention: ", rule, ", got ", got, " and ", of));
  }

  /// The tokens of each row of a batch.
  static Index tokens_per_row(const tokens& x, Index batch) {
    require(batch >= 0 && (batch == 0 ? x.rows() == 0 : x.rows() % batch == 0),
            "the rows of x must be batch * tokens", x.rows(), batch);
    return batch == 0 ? 0 : x.rows() / batch;
  }
  void check(const tokens& x, const tokens& context, const writable_tokens& out) const {
    require(x.cols() == shape_.model_dim, "x must have model_dim columns", x.cols(), shape_.model_dim);
    require(context.cols() == shape_.context_dim, "the keys' tokens must have context_dim columns",
            context.cols(), shape_.context_dim);
    require(out.rows() == x.rows(), "out and x must have the same rows", out.rows(), x.rows());
    require(out.cols() == shape_.out_dim, "out must have out_dim columns", out.cols(), shape_.out_dim);
  }

  /// Projected and normalised heads in scratch.
  head_view<T> query_heads(const tokens& x, Index batch, Index count) const {
    auto rows = detail::scratch_rows<queries, T>(x.rows(), shape_.heads * shape_.head_dim);
    detail::project(x, weights_.q, rows);
    const head_view<T> heads = bshd(rows.data(), batch, count, shape_.heads, shape_.head_dim);
    norm(weights_.q_norm).apply(heads, heads);
    return heads;
  }
  head_view<T> key_heads(const tokens& x, Index batch, Index count) const {
    auto rows = detail::scratch_rows<keys, T>(x.rows(), shape_.kv_heads * shape_.head_dim);
    detail::project(x, weights_.k, rows);
    const head_view<T> heads = bshd(rows.data(), batch, count, shape_.kv_heads, shape_.head_dim);
    norm(weights_.k_norm).apply(heads, heads);
    return heads;
  }
  head_view<T> value_heads(const tokens& x, Index batch, Index count) const {
    auto rows = detail::scratch_rows<values, T>(x.rows(), shape_.kv_heads * shape_.value_dim);
    detail::project(x, weights_.v, rows);
    return bshd(rows.data(), batch, count, shape_.kv_heads, shape_.value_dim);
  }
  detail::head_norm<T> norm(const typename multi_head_weights<T>::norm_map& weight) const {
    return {weight.size() == 0 ? nullptr : weight.data(), options_.norm_epsilon, options_.norm_offset};
  }

  template <class Rotation>
  void attend(const tokens& x, const tokens& context, Index batch, writable_tokens& out,
              const attention_options& options, const Rotation& rotation) const {
    check(x, context, out);
    const Index count = tokens_per_row(x, batch), key_count = tokens_per_row(context, batch);
    {
      // What can be wrong with positions shows before the first product.
      const head_view<T> q = bshd(static_cast<T*>(nullptr), batch, count, shape_.heads, shape_.head_dim);
      const head_view<T> k =
          bshd(static_cast<T*>(nullptr), batch, key_count, shape_.kv_heads, shape_.head_dim);
      rotation.check(q, k);
    }
    const head_view<T> q = query_heads(x, batch, count), k = key_heads(context, batch, key_count),
                       v = value_heads(context, batch, key_count);
    rotation.apply(q, k);
    auto rows = detail::scratch_rows<attended, T>(x.rows(), shape_.heads * shape_.value_dim);
    const head_view<T> heads = bshd(rows.data(), batch, count, shape_.heads, shape_.value_dim);
    for (Index s = 0; s < rotation.segment_count(); ++s)
      attention(rotation.query_tokens(q, s), rotation.key_tokens(k, s), rotation.key_tokens(v, s),
                rotation.query_tokens(heads, s), options);
    detail::project(rows, weights_.o, out);
  }

  template <class S, class Cache>
  void attend_to_cache(const tokens& x, Cache& cache, writable_tokens& out, const frequency_table<S>* table,
                       std::span<const Index> counts) const {
    check(x, x, out);
    const Index batch = cache.batch(), count = tokens_per_row(x, batch);
    detail::check_next<Layout>(cache, shape_, options_.attention, count, table, counts);
    const head_view<T> q = query_heads(x, batch, count), k = key_heads(x, batch, count),
                       v = value_heads(x, batch, count);
    auto rows = detail::scratch_rows<attended, T>(x.rows(), shape_.heads * shape_.value_dim);
    const head_view<T> heads = bshd(rows.data(), batch, count, shape_.heads, shape_.value_dim);
    const Index chunk = detail::chunk_of(cache, count);
    struct chunk_counts {};
    Index* now = detail::workspace<chunk_counts, Index>(batch);
    for (Index first = 0; first < count; first += chunk) {
      const Index size = (std::min)(chunk, count - first);
      for (Index b = 0; b < batch; ++b)
        now[b] = (std::min)(size, (std::max)(Index{0}, detail::count_of(b, count, counts) - first));
      const std::span<const Index> taken(now, static_cast<std::size_t>(batch));
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
    detail::project(rows, weights_.o, out);
  }

  multi_head_weights<T> weights_;
  multi_head_options options_;
  multi_head_shape shape_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MULTI_HEAD_ATTENTION_HPP
