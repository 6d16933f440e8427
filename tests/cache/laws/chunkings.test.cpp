// SPDX-License-Identifier: MIT
// Prefill in one call, in chunks and token by token give the same attention, for every combination of layout,
// schedule, grouping, window, sinks, storage of keys and type of the cache.
#include <rope/cache/attention.hpp>

#include <cstdint>
#include <random>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"

using namespace attention_call;

namespace {

using rope::Index;
constexpr long tokens = 19, batch = 2, kv_heads = 2, dim = 8, value_dim = 5;

struct schedule {
  std::string name;
  rope::frequencies frequencies;
};

/// Every schedule uses its long form: 19 tokens are more than the trained length.
std::vector<schedule> schedules() {
  const std::vector<double> near_one = {1, 1.05, 1.1, 1.3}, growing = {1, 2, 4, 8};
  const auto of = [](const auto& scaling) { return rope::frequencies(dim, 100.0, scaling); };
  return {{"plain", rope::frequencies(dim, 100.0)},
          {"partial", rope::frequencies(6, 100.0)},
          {"linear", of(rope::linear_scaling{.factor = 4})},
          {"ntk", of(rope::ntk_scaling{.factor = 4})},
          {"dynamic ntk", of(rope::dynamic_ntk_scaling{.factor = 2, .max_position = 8, .length = tokens})},
          {"yarn", of(rope::yarn_scaling{.factor = 4, .original_max_position = 8})},
          {"longrope", of(rope::longrope_scaling{.short_factor = near_one,
                                                 .long_factor = growing,
                                                 .original_max_position = 8,
                                                 .max_position = 32,
                                                 .length = tokens})},
          {"llama3", of(rope::llama3_scaling{.factor = 8, .original_max_position = 16})},
          {"proportional", of(rope::proportional_scaling{.partial_rotary_factor = 0.5})}};
}

template <class Layout, class C>
tensor decoded(const operands& x, const std::vector<long>& chunks, const rope::frequency_table<float>& table,
               rope::key_storage storage, const rope::attention_options& options) {
  rope::kv_cache<C> cache(batch, tokens, kv_heads, dim, value_dim, storage);
  return output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto out) {
    for (const long count : chunks) {
      const Index first = cache.size();
      const auto now = [&](auto whole) { return whole.token_range(first, count); };
      if (storage == rope::key_storage::raw)
        cache.append(now(k), now(v));
      else
        cache.template append<Layout>(now(k), now(v), table);
      rope::attention<Layout>(now(q), cache, now(out), table, options);
    }
  });
}

}  // namespace

TEMPLATE_TEST_CASE("prefill, chunks and single tokens give the same attention in every combination",
                   "[cache]", (testing::types<rope::interleaved, float>),
                   (testing::types<rope::interleaved, Eigen::half>),
                   (testing::types<rope::interleaved, Eigen::bfloat16>),
                   (testing::types<rope::half_split, float>), (testing::types<rope::half_split, Eigen::half>),
                   (testing::types<rope::half_split, Eigen::bfloat16>)) {
  using Layout = typename TestType::channel;
  using C = typename TestType::entry;
  const std::uint32_t seed = 45;
  std::mt19937 generator(seed);
  const std::vector<std::vector<long>> chunkings = {
      std::vector<long>(tokens, 1), {7, 7, 5}, {1, 18}, {18, 1}, {0, 2, 3, 0, 14}};
  for (const long group : {1, 3}) {
    const operands x =
        random_operands<C>(generator, {batch, tokens, tokens, group * kv_heads, kv_heads, dim, value_dim});
    // A rotated channel has at most magnitude sqrt(2) factor, for keys and for queries.
    for (const auto& [name, frequencies] : schedules()) {
      const rope::frequency_table<float> table(frequencies, tokens);
      const double rotated = 2.05 * frequencies.attention_factor() * frequencies.attention_factor();
      for (const Index window : {0, 4})
        for (const Index sinks : {0, 2})
          for (const auto storage : {rope::key_storage::rotated, rope::key_storage::raw}) {
            CAPTURE(seed, group, name, window, sinks, storage == rope::key_storage::raw);
            const rope::attention_options options = {.window = window, .sinks = sinks};
            // Keys and queries have the same bits in both cases, so each output is within the bound of the
            // same exact value.
            reference::attention_rule rule = {.window = window};
            rule.scale = rotated * static_cast<double>(reference::scale_of(dim, rule));
            const double bound = reference::attention_bound<float>(x.q, x.k, x.v, rule);
            const tensor whole = decoded<Layout, C>(x, {tokens}, table, storage, options);
            for (const auto& chunks : chunkings) {
              const tensor parts = decoded<Layout, C>(x, chunks, table, storage, options);
              CHECK(reference::worst_error<float>(parts, whole, 2 * bound, 2) <= 1);
            }
            // In 16 bits the keys of the cache and the keys of a call without cache are rounded differently.
            if (!std::is_same_v<C, float>) continue;
            const tensor direct = output_of<float>(x, axes::bhsd, [&](auto q, auto k, auto v, auto out) {
              rope::attention<Layout>(q, k, v, out, table, options);
            });
            CHECK(reference::worst_error<float>(direct, whole, 2 * bound, 2) <= 1);
          }
    }
  }
}
