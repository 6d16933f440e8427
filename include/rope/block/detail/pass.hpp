// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_PASS_HPP
#define ROPE_BLOCK_DETAIL_PASS_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <type_traits>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/projected_context.hpp>
#include <rope/block/weights.hpp>
#include <rope/cache/detail/cache_step.hpp>  // is_cache
#include <rope/config.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The steps that the forward and the backward pass of an attention block share.
///
/// This file also checks, at compile time, the argument types of a call of a block, with one message for each
/// mistake. token_view checks the scalar type and storage order of a matrix.

namespace rope::inline ROPE_ABI::detail {

/// Tags for the scratch buffers of a block, shared by all passes.
struct block_scratch {
  struct queries;
  struct keys;
  struct values;
  struct attended;
  struct counts;
  struct log_sums;
  // of the backward pass
  struct rotated_queries;
  struct rotated_keys;
  struct d_attended;
  struct d_queries;
  struct d_keys;
  struct d_values;
};

/// The tokens of contiguous heads as rows [batch * tokens, heads * head_dim].
template <class T>
token_view<T> as_rows(const head_view<T>& heads) {
  const Index numbers = heads.heads * heads.head_dim;
  return {heads.data, heads.batch * heads.tokens, numbers, numbers};
}

/// The steps of a block. Each step has scratch memory of its own.
template <class T>
struct block_pass {
  const multi_head_weights<T>& weights;
  const multi_head_options& options;
  const multi_head_shape& shape;
  const char* function = "multi_head_attention";  // the name of the call in messages
  const char* out_name = "out";                   // the name of its output in messages: out or d_out

  /// Throws:  std::invalid_argument if the tokens, the output or the gradient with respect to the output have
  ///          a wrong shape or no memory, here and in check_queries
  void check_context(const token_ref<T>& context) const {
    check_rule(function, context.cols() == shape.context_dim,
               "the columns of the keys' tokens and context_dim must be equal", context.cols(),
               shape.context_dim);
    demand_memory(function, "the keys' tokens", context);
  }
  template <class Out>
  void check_queries(const token_ref<T>& x, const Out& out) const {
    check_rule(function, x.cols() == shape.model_dim, "the columns of x and model_dim must be equal",
               x.cols(), shape.model_dim);
    if (out.rows() != x.rows())
      throw_invalid(function, out_name, " and x must have the same rows, got ", out.rows(), " and ",
                    x.rows());
    if (out.cols() != shape.out_dim)
      throw_invalid(function, "the columns of ", out_name, " and out_dim must be equal, got ", out.cols(),
                    " and ", shape.out_dim);
    demand_memory(function, "x", x);
    demand_memory(function, out_name, out);
  }
  /// The tokens per row of the batch, for heads that are projected from them.
  ///
  /// Throws:  std::invalid_argument unless batch divides the rows; std::length_error if the heads exceed the
  ///          address space
  Index tokens_per_row(const token_ref<T>& x, Index batch, Index heads) const {
    if (batch < 0) throw_invalid(function, "batch must not be negative, got ", batch);
    check_rule(function, batch == 0 ? x.rows() == 0 : x.rows() % batch == 0,
               "the rows of tokens must be a multiple of batch", x.rows(), batch);
    const Index tokens = batch == 0 ? 0 : x.rows() / batch;
    check_extents<T>(function, batch, tokens, heads, (std::max)(shape.head_dim, shape.value_dim),
                     "the heads of a call");
    return tokens;
  }
  /// Checks shapes, positions and options of a call, before the first product. Queries are projected from x,
  /// keys and values from `context`.
  template <class Out, class Rotation>
  void check_call(const token_ref<T>& x, const token_ref<T>& context, const Out& out, Index batch,
                  const Rotation& rotation, const attention_options& attention) const {
    check_queries(x, out);
    check_context(context);
    const Index queries = tokens_per_row(x, batch, shape.heads),
                keys = tokens_per_row(context, batch, shape.kv_heads);
    rotation.check_call(function, batch, queries, keys, shape.head_dim);
    check_attention(rotation, attention, batch, queries, keys);
  }
  /// Checks the options of attention against the shape of the tokens.
  template <class Rotation>
  void check_attention(const Rotation& rotation, const attention_options& attention, Index batch,
                       Index queries, Index keys) const {
    check_options(function, attention, {batch, queries, keys, shape.heads, shape.head_dim});
    rotation.check_options(function, attention);
  }

  /// [batch, tokens, heads, head_dim] in the scratch of `Purpose`; valid until the next call with that
  /// Purpose on the thread.
  template <class Purpose>
  static head_view<T> scratch_heads(Index batch, Index tokens, Index heads, Index head_dim) {
    head_view<T> x = bshd(static_cast<T*>(nullptr), batch, tokens, heads, head_dim);  // checks the extents
    x.data = workspace<Purpose, T>(x.size());
    return x;
  }
  /// The heads of queries, keys and values in scratch: projected, not yet normalised or rotated.
  struct projected_heads {
    head_view<T> q, k, v;
  };
  template <class Threads>
  projected_heads project(const token_ref<T>& x, const token_ref<T>& context, Index batch,
                          const Threads& threads) const {
    const Index queries = tokens_per_row(x, batch, shape.heads),
                keys = tokens_per_row(context, batch, shape.kv_heads);
    const projected_heads to = {
        scratch_heads<block_scratch::queries>(batch, queries, shape.heads, shape.head_dim),
        scratch_heads<block_scratch::keys>(batch, keys, shape.kv_heads, shape.head_dim),
        scratch_heads<block_scratch::values>(batch, keys, shape.kv_heads, shape.value_dim)};
    run_products(threads, projected<T>(x, weights.q, as_rows(to.q)),
                 projected<T>(context, weights.k, as_rows(to.k)),
                 projected<T>(context, weights.v, as_rows(to.v)));
    return to;
  }
  head_norm<T> q_norm() const { return norm(weights.q_norm); }
  head_norm<T> k_norm() const { return norm(weights.k_norm); }

 private:
  head_norm<T> norm(const typename multi_head_weights<T>::norm_map& weight) const {
    return {
        {weight.data(), static_cast<std::size_t>(weight.size())}, options.norm_epsilon, options.norm_offset};
  }
};

template <class X>
inline constexpr bool is_projected = false;
template <class T>
inline constexpr bool is_projected<projected_context<T>> = true;

/// Whether an argument that should be tokens is missing or not a matrix. If bit i of `places` is set,
/// argument i should be tokens.
template <class T, class... Arguments>
constexpr bool lacks_tokens(unsigned places) {
  unsigned place = 0;
  bool lacks = false;
  ((lacks |= (places >> place++) % 2 == 1 && !std::is_convertible_v<Arguments, token_ref<T>>), ...);
  return lacks || places >> place != 0;
}

/// lacks_tokens for forward(x, batch, out, ...) or forward(x, cache, out, ...).
template <class T, class X, class Rows, class... More>
constexpr bool lacks_tokens_of_forward() {
  return !(std::is_convertible_v<Rows, Index> || is_cache<std::remove_reference_t<Rows>>) ||
         lacks_tokens<T, X, Rows, More...>(0b101);
}

/// lacks_tokens for cross(x, context, batch, out, ...) or cross(x, projected, out, ...).
template <class T, class X, class Context, class... More>
constexpr bool lacks_tokens_of_cross() {
  return lacks_tokens<T, X, Context, More...>(is_projected<std::remove_cvref_t<Context>> ? 0b101 : 0b1011);
}

/// Whether the arguments from `first` on are wrong. Two forms are valid: threads alone; or a table, `fewest`
/// to `most` positions and, optionally, threads.
template <class... Arguments>
constexpr bool misplaced_after(std::size_t first, std::size_t fewest, std::size_t most) {
  constexpr std::size_t count = sizeof...(Arguments);
  // The arrays have one entry more than there are arguments, because an array must not be empty.
  constexpr bool tables[] = {rotation_table<std::remove_cvref_t<Arguments>>..., false},
                 threads[] = {parallel_executor<std::remove_cvref_t<Arguments>>..., false};
  if (count <= first) return false;
  if (tables[first]) return count < first + 1 + fewest || count > first + 1 + most + 1;
  return !threads[first] || count > first + 1;
}

/// misplaced_after for the arguments of forward after out. For a cache, counts are in the place of positions.
template <class X, class Rows, class Out, class... More>
constexpr bool misplaced_after_forward() {
  constexpr bool tables[] = {rotation_table<std::remove_cvref_t<More>>..., false};
  if (is_cache<std::remove_reference_t<Rows>>) return lacks_list<row_counts, More...>(tables[0] ? 1 : 0);
  return misplaced_after<X, Rows, Out, More...>(3, 0, 1);
}

/// misplaced_after for the arguments of cross after out.
template <class X, class Context, class... More>
constexpr bool misplaced_after_cross() {
  return is_projected<std::remove_cvref_t<Context>> ? misplaced_after<X, Context, More...>(3, 0, 1)
                                                    : misplaced_after<X, Context, More...>(4, 2, 2);
}

}  // namespace rope::inline ROPE_ABI::detail

/// An overload of `function` for calls that no other overload accepts: tokens are not matrices, or the
/// arguments after them are not those in `after`.
#define ROPE_DETAIL_ASK_OF_LAYER(function, lacking, calls, misplaced, after)                          \
  template <class... Arguments>                                                                       \
  requires((lacking) || (misplaced)) void function(Arguments&&...) const {                            \
    static_assert(                                                                                    \
        !(lacking),                                                                                   \
        "multi_head_attention::" #function                                                            \
        ": tokens are row-major Eigen matrices, maps or blocks, [batch * tokens, dim]; call " calls); \
    static_assert((lacking) || !(misplaced), "multi_head_attention::" #function ": after " after);    \
  }                                                                                                   \
  static_assert(true)

/// An overload of a gradient for calls that no other overload accepts: the arguments after the gradients are
/// not a table, `fewest` to `most` positions, and threads.
#define ROPE_DETAIL_ASK_OF_GRADIENT(function, fewest, most, positions)                            \
  template <class T, class Layout, class... More>                                                 \
  requires(detail::misplaced_after<More...>(0, fewest, most)) void function(                      \
      const multi_head_attention<T, Layout>&, const std::type_identity_t<multi_head_tape<T>>&,    \
      const multi_head_gradients<T>&, More&&...) {                                                \
    static_assert(!detail::misplaced_after<More...>(0, fewest, most),                             \
                  #function ": after the gradients pass a table if the block rotates, " positions \
                            ", then the threads");                                                \
  }                                                                                               \
  static_assert(true)

#endif  // ROPE_BLOCK_DETAIL_PASS_HPP
