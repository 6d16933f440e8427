// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_TAPE_HPP
#define ROPE_ATTENTION_TAPE_HPP

#include <span>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>

/// Inputs and outputs of the backward pass of attention.

namespace rope::inline ROPE_ABI {

/// The heads of a forward pass, the gradient with respect to its output, and memory for the gradients with
/// respect to its inputs. Arguments are passed by name, because d_k and d_v often have the same shape, and
/// swapping them would go unnoticed.
///
///     attention_gradient<half_split>(
///         attention_tape<float>{
///             .q = q, .k = k, .v = v, .out = out, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v},
///         table, options);
///
/// \tparam T  the channel type of all heads and gradients
template <class T>
struct attention_tape {
  head_view<const T> q;      // [batch, queries, q.heads, head_dim]
  head_view<const T> k;      // [batch, keys, k.heads, head_dim]
  head_view<const T> v;      // [batch, keys, k.heads, value_dim]
  head_view<const T> out;    // [batch, queries, q.heads, value_dim], the output of the forward pass
  head_view<const T> d_out;  // [batch, queries, q.heads, value_dim], the gradient with respect to out
  head_view<T> d_q;          // receives the gradient with respect to q, in the shape of q
  head_view<T> d_k;          // receives the gradient with respect to k, in the shape of k
  head_view<T> d_v;          // receives the gradient with respect to v, in the shape of v

  /// Query heads that share a key head.
  Index group() const { return k.heads == 0 ? 0 : q.heads / k.heads; }
};

/// Outputs for the gradients with respect to options. Empty outputs are not written.
///
///     std::vector<double> d_sinks(heads);
///     attention_gradient(tape, options, {.sink_logits = d_sinks});
struct option_gradients {
  /// [q.heads]: with respect to options.sink_logits.
  std::span<double> sink_logits = {};
  /// With respect to options.bias. The gradient of an entry is at the offset of the entry. The length is the
  /// number of elements in memory from the first entry of the bias to the last. An entry that several scores
  /// share receives the sum of their gradients. No stride of the bias may be negative. Shared entries limit
  /// the number of busy threads: if queries, heads or rows share entries, at most one thread per 96 keys has
  /// work. If keys share entries, only one thread has work.
  std::span<double> bias = {};
};

namespace detail {

/// Checks that the views of a tape have matching shapes, and that gradients have memory of their own for
/// every channel.
template <class T>
void check_tape(const char* function, const attention_tape<T>& x) {
  const struct {
    const char* name;
    head_view<const T> view, like;  // of one shape, except that view has head_dim channels
    Index head_dim;
  } views[] = {{"d_q", x.d_q, x.q, x.q.head_dim}, {"d_k", x.d_k, x.k, x.k.head_dim},
               {"d_v", x.d_v, x.k, x.v.head_dim}, {"q", x.q, x.q, x.q.head_dim},
               {"k", x.k, x.k, x.k.head_dim},     {"v", x.v, x.k, x.v.head_dim},
               {"out", x.out, x.q, x.v.head_dim}, {"d_out", x.d_out, x.q, x.v.head_dim}};
  for (const auto& [name, view, like, head_dim] : views) check_heads(function, view);
  check_equal(function, "q and k", "batch", x.q.batch, x.k.batch);
  check_equal(function, "q and k", "head_dim", x.q.head_dim, x.k.head_dim);
  check_rule(function, x.k.heads == 0 ? x.q.heads == 0 : x.q.heads % x.k.heads == 0,
             "q.heads must be a multiple of k.heads", x.q.heads, x.k.heads);
  for (const auto& [name, view, like, head_dim] : views)
    if (view.batch != like.batch || view.tokens != like.tokens || view.heads != like.heads ||
        view.head_dim != head_dim)
      throw_invalid(function, name, " must be ", shape_text({like.batch, like.tokens, like.heads, head_dim}),
                    ", got ", shape_text(view));
  for (const head_view<T>& gradient : {x.d_q, x.d_k, x.d_v}) check_written(function, gradient);
  for (int i = 0; i < 3; ++i)
    for (int j = i + 1; j < 8; ++j)
      if (share_memory(views[i].view, views[j].view))
        throw_invalid(function, "each gradient must have memory of its own, got ", views[i].name, " and ",
                      views[j].name, " in shared memory");
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_TAPE_HPP
