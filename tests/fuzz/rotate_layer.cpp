// SPDX-License-Identifier: MIT
// Layers of models assembled from any parts: rotate_layer rotates, scales and describes each according to the
// parts, or throws.
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/types.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"
#include "support/model_parts.hpp"
#include "support/reference.hpp"
#include "support/tolerance.hpp"

using fuzz::bytes;
using fuzz::check;
using rope::Index;
using testing::wide;

namespace {

constexpr Index positions_of_tables = 24, chunk = 5;

/// A model of one group or two, some layers without rotation, with windows, chunks, sinks and factors of
/// queries.
testing::model_parts draw_model(bytes& b, Index layers) {
  testing::model_parts parts;
  const char* const names[] = {"full_attention", "sliding_attention"};
  const std::size_t groups = static_cast<std::size_t>(b.between(1, 2));
  for (std::size_t i = 0; i < groups; ++i) {
    const Index pairs = b.between(1, 6);
    rope::layer_group group = testing::group_named(
        names[i],
        rope::frequencies::custom(rope::frequencies(2 * pairs, 100.0).inv_freq(), b.coin() ? 1.0 : 1.25));
    group.layout = b.coin() ? rope::layout_kind::half_split : rope::layout_kind::interleaved;
    group.first_channel = b.up_to(3);
    group.head_dim = group.first_channel + 2 * pairs + b.up_to(3);
    group.scale = 0.25 + b.moderate();
    group.softcap = b.coin() ? 0 : b.moderate();
    parts.groups.push_back(group);
  }
  for (Index layer = 0; layer < layers; ++layer) {
    parts.layers.push_back(names[static_cast<std::size_t>(b.up_to(static_cast<long>(groups) - 1))]);
    const long kind = b.up_to(7);
    if (kind == 7) parts.layers_not_known.push_back(layer);
    if (kind == 6 || kind == 5) parts.layers_without_rope.push_back(layer);
  }
  parts.causal = !b.one_in(4);
  parts.windows.clear();
  for (Index layer = 0; layer < layers; ++layer)
    parts.windows.push_back(b.one_in(5) ? rope::not_known_window : b.up_to(9));
  if (b.one_in(3)) parts.attention_chunk = chunk;
  parts.sink_logits = b.one_in(3);
  if (parts.sink_logits)
    for (Index layer = 0; layer < layers; ++layer)
      if (b.one_in(3)) parts.layers_without_sinks.push_back(layer);
  parts.keys_are_values = b.one_in(12);
  static constexpr rope::scaled_queries scaled[] = {
      rope::scaled_queries::none, rope::scaled_queries::every_layer,
      rope::scaled_queries::layers_without_rope, rope::scaled_queries::not_known};
  parts.scaled = b.one_of(scaled);
  if (b.coin())
    parts.query_rule = {rope::log_n_query_scaling{.train_length = 4}};
  else
    parts.query_rule = {rope::llama4_query_scaling{.floor_scale = 3, .attention_scale = 0.5}};
  return parts;
}

bool is_listed(const std::vector<Index>& list, Index layer) {
  for (const Index one : list)
    if (one == layer) return true;
  return false;
}

/// The facts of one layer, read from the parts.
struct layer_facts {
  const rope::layer_group* group;  // by the type of the layer, also if it does not rotate
  bool rotates, known;
  Index window;
  bool attends_in_chunks, has_sinks;
  bool scales, scale_known;

  layer_facts(const testing::model_parts& parts, Index layer) {
    const std::string& type = parts.layers[static_cast<std::size_t>(layer)];
    group = &parts.groups[parts.groups.size() == 2 && type == parts.groups[1].layer_type ? 1 : 0];
    known = !is_listed(parts.layers_not_known, layer);
    rotates = known && !is_listed(parts.layers_without_rope, layer);
    window = parts.windows[parts.windows.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
    attends_in_chunks =
        parts.attention_chunk > 0 && parts.causal && window == rope::not_known_window && rotates;
    has_sinks = parts.sink_logits && !is_listed(parts.layers_without_sinks, layer);
    using rope::scaled_queries;
    scales = parts.scaled == scaled_queries::every_layer ||
             (parts.scaled == scaled_queries::layers_without_rope && known && !rotates);
    scale_known = parts.scaled == scaled_queries::none || parts.scaled == scaled_queries::every_layer ||
                  (parts.scaled == scaled_queries::layers_without_rope && known);
  }
};

/// The factor of a query, by its formula.
wide factor_at(const testing::model_parts& parts, std::int64_t position) {
  const wide p = wide(position);
  if (std::get_if<rope::log_n_query_scaling>(&parts.query_rule.rule))
    return p + 1 <= 4 ? wide(1) : testing::log(p + 1) / testing::log(wide(4));
  return 1 + testing::log1p(testing::floor((p + 1) / 3)) / 2;
}

template <class T>
struct heads {
  testing::guarded_memory<T> memory = testing::guarded_memory<T>(0);
  rope::head_view<T> view;

  heads(bytes& b, Index batch, Index tokens, Index count, Index dim) {
    view = fuzz::draw_view(b, memory, batch, tokens, count, dim);
    memory.fill(view, static_cast<std::uint32_t>(b.bits(1)));
  }
};

/// Heads after rotate_layer: rotated, then multiplied by the factor of their position.
template <class T, class PositionOf>
void compare(const heads<T>& x, const layer_facts& layer, const testing::model_parts* scaled,
             const PositionOf& position_of) {
  check(x.memory.untouched_outside(x.view), "memory between heads does not change");
  const auto before = x.memory.remembered(x.view);
  const rope::layer_group& group = *layer.group;
  const Index pairs = group.frequencies.pairs();
  testing::for_each_head(x.view, [&](Index b, Index t, Index h) {
    const std::int64_t p = position_of(b, t);
    const wide factor = scaled ? factor_at(*scaled, p) : wide(1);
    std::vector<wide> head;
    for (Index d = 0; d < x.view.head_dim; ++d) head.push_back(static_cast<wide>(before.at(b, t, h)[d]));
    std::vector<wide> size(head.size());
    for (std::size_t d = 0; d < head.size(); ++d) size[d] = testing::abs(head[d]);
    for (Index i = 0; layer.rotates && i < pairs; ++i) {
      const bool halves = group.layout == rope::layout_kind::half_split;
      const auto u = static_cast<std::size_t>(group.first_channel + (halves ? i : 2 * i)),
                 v = static_cast<std::size_t>(group.first_channel + (halves ? i + pairs : 2 * i + 1));
      const double f = group.frequencies.inv_freq()(i, 0);
      const wide m = static_cast<wide>(group.frequencies.attention_factor());
      const wide c = m * reference::cos(wide(p), f), s = m * reference::sin(wide(p), f);
      const wide a = head[u], d = head[v];
      head[u] = a * c - d * s;
      head[v] = d * c + a * s;
      size[u] = size[v] = m * testing::hypot(a, d);
    }
    for (std::size_t d = 0; d < head.size(); ++d) {
      const wide exact = factor * head[d], got = static_cast<wide>(x.view.at(b, t, h)[d]);
      // A rotation with a factor m, the product with the factor of the query, and two roundings of 16-bit
      // channels.
      const wide u = (std::max)(tolerance::unit_roundoff<T>(),
                                tolerance::unit_roundoff<float>());  // tables are of floats
      const wide bound = factor * (tolerance::rotation_bound<T, float>(size[d]) + 3 * u * size[d]);
      check(testing::abs(got - exact) <= bound, "a channel is rotated by its position and then scaled");
    }
  });
}

template <class T>
void run(bytes& b) {
  const Index layers = b.between(1, 4);
  const testing::model_parts parts = draw_model(b, layers);
  const rope::model_rope model = parts.model();
  const rope::model_tables tables(model, positions_of_tables);
  const Index layer = b.one_in(8) ? static_cast<Index>(b.integer()) : b.up_to(static_cast<long>(layers) - 1);
  const bool exists = layer >= 0 && layer < layers;
  const layer_facts facts(parts, exists ? layer : 0);

  const Index batch = b.up_to(2), tokens = b.up_to(4), q_heads = b.between(1, 3), k_heads = b.between(1, 3);
  const bool wrong_size = b.one_in(12), wrong_position = b.one_in(12), wrong_sinks = b.one_in(12);
  const bool with_ranges = b.coin(), with_keys = with_ranges || b.coin();
  const Index dim = facts.group->head_dim + (wrong_size ? 1 : 0);
  heads<T> q(b, batch, tokens, q_heads, dim), k(b, batch, tokens, k_heads, dim);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(batch * tokens));
  for (std::int64_t& id : ids) id = b.up_to(positions_of_tables - 1);
  const bool moved = wrong_position && !ids.empty();
  if (moved) ids.back() = b.coin() ? -1 : positions_of_tables;
  std::vector<float> sinks(static_cast<std::size_t>((facts.has_sinks ? q_heads : 0) + (wrong_sinks ? 1 : 0)),
                           0.5f);
  std::vector<rope::key_range> ranges(b.coin() ? 3 : 0, rope::key_range{7, 7});
  const auto ranges_before = ranges.size();

  rope::attention_options options;
  const auto call = [&] {
    const std::span<const float> logits = sinks;
    if (with_ranges)
      options = rope::rotate_layer(tables, layer, q.view, k.view, ids, ranges, logits);
    else if (with_keys)
      options = rope::rotate_layer(tables, layer, q.view, k.view, ids, logits);
    else
      options = rope::rotate_layer(tables, layer, q.view, ids, logits);
  };
  // Reasons why the call throws. A layer without rotation has no table that must contain the positions, and
  // no head size.
  const bool no_window = facts.window == rope::not_known_window && !(facts.attends_in_chunks && with_ranges);
  const bool bad_position = moved && (facts.rotates || (ids.back() < 0 && facts.scales) ||
                                      (facts.attends_in_chunks && with_ranges && ids.back() < 0));
  const bool wrong = !exists || !facts.known || no_window || parts.keys_are_values || wrong_sinks ||
                     !facts.scale_known || (facts.rotates && wrong_size) || bad_position;
  if (wrong) {
    fuzz::rejects<std::logic_error>("a call that does not fit its layer throws", call);
    check(q.memory.untouched() && k.memory.untouched(), "a call that throws changes no heads");
    return check(ranges.size() == ranges_before, "a call that throws changes no ranges");
  }
  call();
  const auto position_of = [&](Index row, Index t) {
    return ids[static_cast<std::size_t>(row * tokens + t)];
  };
  compare(q, facts, facts.scales ? &parts : nullptr, position_of);
  if (with_keys)
    compare(k, facts, nullptr, position_of);
  else
    check(k.memory.untouched(), "queries alone leave the keys");
  check(options.scale == facts.group->scale && options.softcap == facts.group->softcap &&
            options.causal == parts.causal && options.queries_are_rotated &&
            options.sink_logits.data() == (sinks.empty() ? options.sink_logits.data() : sinks.data()) &&
            options.sink_logits.size() == sinks.size(),
        "the options are those of the layer");
  if (facts.attends_in_chunks) {
    check(options.window == 0 && ranges.size() == ids.size() && options.key_ranges.size() == ids.size(),
          "every query of a chunk has a range");
    for (std::size_t i = 0; i < ids.size(); ++i)
      check(ranges[i].first == ids[i] / chunk * chunk && ranges[i].count == ids[i] % chunk + 1,
            "a query sees its chunk up to itself");
  } else {
    check(options.window == facts.window && options.key_ranges.empty() && (!with_ranges || ranges.empty()),
          "a layer without chunks has a window");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  fuzz::with_one_of<float, double, Eigen::half, Eigen::bfloat16>(b, [&](auto x) { run<decltype(x)>(b); });
  return 0;
}
