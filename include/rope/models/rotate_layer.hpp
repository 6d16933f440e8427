// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_ROTATE_LAYER_HPP
#define ROPE_MODELS_ROTATE_LAYER_HPP

#include <span>
#include <type_traits>
#include <vector>

#include <rope/attention/options.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/models/tables.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>

/// Prepares the queries and keys of a layer of an imported model for attention, in one call.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The ranges of keys of a layer that attends in chunks. Key j of a row must be at position j.
///
/// Throws:  std::invalid_argument, std::out_of_range
template <class T, class P>
std::vector<key_range> chunks_of_layer(Index chunk, const head_view<T>& q, const P& positions) {
  const auto source = position_source(positions, q.tokens);
  const position_range range = source.range("rotate_layer", q.batch, q.tokens);
  if (!range.empty() && range.smallest < 0)
    throw_invalid("rotate_layer", "chunks begin at position 0, got position ", range.smallest);
  std::vector<key_range> ranges;
  ranges.reserve(static_cast<std::size_t>(q.batch * q.tokens));
  for (Index b = 0; b < q.batch; ++b)
    for (Index t = 0; t < q.tokens; ++t) {
      const Index token = to_index(source(b, t));
      ranges.push_back({token - token % chunk, token % chunk + 1});
    }
  return ranges;
}

/// The attention options of the layer, with its sink logits and the ranges of its chunks. Checks these
/// arguments.
template <class T, class P>
attention_options options_of_layer(const model_rope& model, Index layer, const head_view<T>& q,
                                   const P& positions, std::span<const float> sink_logits,
                                   const std::vector<key_range>* chunks) {
  constexpr const char* function = "rotate_layer";
  attention_options options =
      chunks ? model.attention_of_layer(layer, *chunks) : model.attention_of_layer(layer);
  if (model.keys_are_values)
    throw_invalid(function, "layer ", layer,
                  " also un-rotates the output of attention; call rotate, attention and unrotate yourself");
  const auto got = static_cast<Index>(sink_logits.size());
  const bool has_sinks = model.layer_has_sinks(layer);
  if (has_sinks && got != q.heads)
    throw_invalid(function, "sink_logits must be those of the checkpoint, one for each of ", q.heads,
                  " query heads, got ", got, " for layer ", layer);
  if (!has_sinks && got > 0)
    throw_invalid(function, "sink_logits must be empty, for this ", model.sink_logits ? "layer" : "model",
                  " has none, got ", got, " for layer ", layer);
  options.sink_logits = sink_logits;
  options.queries_are_rotated = true;
  if (const query_scaling rule = model.query_scaling_of_layer(layer); !rule.is_one()) {
    const auto source = position_source(positions, q.tokens);
    source.range(function, q.batch, q.tokens);
    for (Index b = 0; b < q.batch; ++b)
      for (Index t = 0; t < q.tokens; ++t) static_cast<void>(rule(source(b, t)));
  }
  return options;
}

/// Throws unless head_dim of `x` is that of the layer.
template <class T>
void check_head_of_layer(const layer_group* group, const char* name, const head_view<T>& x) {
  if (group && x.head_dim != group->head_dim)
    throw_invalid("rotate_layer", "", name, " must have whole heads of the layer, of ", group->head_dim,
                  " channels, got ", x.head_dim);
}

/// Makes the checks of `rotate` for a layer that does not rotate, except the check that positions are in a
/// table.
template <class P, class T, class... K>
void check_unrotated(const P& positions, const head_view<T>& q, const head_view<K>&... k) {
  constexpr const char* function = "rotate_layer";
  check_view(function, q);
  (check_view(function, k), ...);
  (check_same_tokens(function, q, k), ...);
  check_memory(function, q, k...);
  if ((share_memory(q, k) || ...))
    throw_invalid(function, "q and k must not share channels, got one buffer for both");
  position_source(positions, q.tokens).range(function, q.batch, q.tokens);
}

/// The implementation of the functions below.
template <class S, class P, class Threads, class T, class... K>
attention_options rotate_layer(const model_tables<S>& tables, Index layer, const P& positions,
                               std::span<const float> sink_logits, std::vector<key_range>* ranges,
                               const Threads& threads, const head_view<T>& q, const head_view<K>&... k) {
  const auto table = tables.of_layer(layer);
  const model_rope& model = tables.model();
  const Index chunk = ranges ? model.chunk_of_layer(layer) : 0;
  std::vector<key_range> chunks = chunk > 0 ? chunks_of_layer(chunk, q, positions) : std::vector<key_range>();
  attention_options options =
      options_of_layer(model, layer, q, positions, sink_logits, chunk > 0 ? &chunks : nullptr);
  const layer_group* group = table ? model.group_of_layer(layer) : nullptr;
  check_head_of_layer(group, "q", q);
  (check_head_of_layer(group, "k", k), ...);
  if (group)
    with_layout(group->layout,
                [&](auto layout) { rotate<decltype(layout)>(q, k..., *table, positions, threads); });
  else
    check_unrotated(positions, q, k...);
  const query_scaling rule = model.query_scaling_of_layer(layer);
  if (!rule.is_one()) scale_queries(q, rule, positions, threads);
  if (ranges) {
    ranges->swap(chunks);
    options.key_ranges = *ranges;
  }
  return options;
}

}  // namespace detail

/// Prepares q and k for attention in layer `layer`, in place, and returns the layer's attention options. If
/// the layer rotates, q and k are rotated by the layer's table, in its layout. If the model scales queries by
/// their position, q is also multiplied by this scale.
///
///     attention(q, k, v, out, rotate_layer(tables, layer, q, k, start));
///
/// With a cache, append the rotated keys before attention:
///
///     const attention_options options = rotate_layer(tables, layer, q, k, cache.size());
///     cache.append(k, v);
///     attention(q, cache, out, options);
///
/// For a model with layers that attend in chunks (Llama 4), pass a vector for their ranges of keys:
///
///     std::vector<key_range> ranges;
///     attention(q, k, v, out, rotate_layer(tables, layer, q, k, start, ranges));
///
/// Apply norms of heads (q_norm, k_norm) before. rotate_layer is for text. For images, make tables with
/// frequencies_on_axes.
///
/// \param tables       of the model, for all positions used
/// \param q, k         [batch, tokens, heads, head_dim] each, whole heads, not rotated yet; heads may differ
/// \param positions    as in `rotate`
/// \param sink_logits  [q.heads] of this layer, if model_rope::layer_has_sinks (gpt-oss); otherwise empty
/// \param threads      your threads, see base/parallel.hpp
///
/// \return  attention_of_layer(layer) with queries_are_rotated and these sink_logits, which must outlive the
///          result
///
/// Throws:    as attention_of_layer, query_scaling_of_layer, rotate and scale_queries; std::out_of_range if
///            the rotation of the layer is unknown; std::invalid_argument if sink_logits are missing or the
///            layer has none, head_dim differs from that of the layer, or keys are also values (DeepSeek V4),
///            which requires that you un-rotate the output of attention. q and k are then unchanged
/// Accuracy:  those of `rotate` and `scale_queries`
/// Cost:      those of `rotate` and, if the layer scales queries, of `scale_queries`
template <class S, class Q, class K, class P = detail::braced_ids, class Threads = this_thread>
attention_options rotate_layer(const model_tables<S>& tables, Index layer, head_view<Q> q, head_view<K> k,
                               const P& positions = P{}, std::span<const float> sink_logits = {},
                               const Threads& threads = {}) {
  static_assert(
      !std::is_const_v<Q> && std::is_same_v<Q, K>,
      "rotate_layer: q and k are rotated in place, so they must be writable and of one channel type");
  const detail::kept_positions<P> kept = positions;
  return detail::rotate_layer(tables, layer, kept, sink_logits, nullptr, threads, q, k);
}
/// As above, also for layers that attend in chunks.
///
/// \param ranges  receives the key ranges of a layer that attends in chunks, [batch * tokens], and is emptied
///                for other layers. Token p of a row or cache must be at position p. The ranges must outlive
///                the result
///
/// Throws:  as above, except for layers that attend in chunks. For these, std::invalid_argument if a position
///          is negative
template <class S, class Q, class K, class P, class Threads = this_thread>
attention_options rotate_layer(const model_tables<S>& tables, Index layer, head_view<Q> q, head_view<K> k,
                               const P& positions, std::vector<key_range>& ranges,
                               std::span<const float> sink_logits = {}, const Threads& threads = {}) {
  static_assert(
      !std::is_const_v<Q> && std::is_same_v<Q, K>,
      "rotate_layer: q and k are rotated in place, must not be read-only and must have one channel type");
  const detail::kept_positions<P> kept = positions;
  return detail::rotate_layer(tables, layer, kept, sink_logits, &ranges, threads, q, k);
}

/// Prepares only queries, for layers that attend to the rotated keys of another layer (Gemma 3n).
///
///     attention(q, cache, out, rotate_layer(tables, layer, q, start));
///
/// Throws:    as above
template <class S, class Q, class P = detail::braced_ids, class Threads = this_thread>
requires position_form<P> attention_options rotate_layer(const model_tables<S>& tables, Index layer,
                                                         head_view<Q> q, const P& positions = P{},
                                                         std::span<const float> sink_logits = {},
                                                         const Threads& threads = {}) {
  static_assert(!std::is_const_v<Q>, "rotate_layer: q is rotated in place and must not be read-only");
  const detail::kept_positions<P> kept = positions;
  return detail::rotate_layer(tables, layer, kept, sink_logits, nullptr, threads, q);
}

ROPE_DETAIL_ASK_FOR_VIEWS_AT(rotate_layer, 0b1100);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_ROTATE_LAYER_HPP
