// SPDX-License-Identifier: MIT
// Prefill in one call, in chunks and token by token give the same attention: for every combination of layout,
// schedule, grouping, window, sinks, storage of keys and type of the cache, at the boundaries of tiles, and
// after guesses were rejected.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <rope/attention/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/attention_call.hpp"
#include "support/attention_reference.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

using namespace attention_call;
using reference::attention_rule;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::interleaved;
using rope::kv_cache;

namespace {

/// The largest difference of two computations of one output, as a multiple of the allowed error. Rotated
/// queries and keys have the same bits in both, so each output is within attention_bound and one final
/// rounding of the same exact value. A rotated channel may be sqrt(2) max|x| times the attention factor, plus
/// one rounding, so the largest score is taken 2.05 times.
template <class T>
double disagreement(const tensor& a, const tensor& b, const operands& x, attention_rule rule,
                    double factor = 1) {
  rule.scale = 2.05 * factor * factor * static_cast<double>(reference::scale_of(x.q.dim, rule));
  const double bound = reference::attention_bound<arithmetic<T>>(x.q, x.k, x.v, rule);
  return reference::worst_error<T>(a, b, 2 * bound, 2);
}

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
tensor decoded(const operands& x, const std::vector<long>& chunks, const frequency_table<float>& table,
               rope::key_storage storage, const rope::attention_options& options) {
  kv_cache<C> cache(batch, tokens, kv_heads, dim, value_dim, storage);
  return output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto out) {
    for (const long count : chunks) {
      const Index first = cache.size();
      const auto now = [&](auto whole) { return whole.token_range(first, count); };
      testing::append_tokens<Layout>(cache, now(k), now(v), table);
      rope::attention<Layout>(now(q), cache, now(out), table, options);
    }
  });
}

}  // namespace

TEMPLATE_TEST_CASE("prefill, chunks and single tokens give the same attention in every combination",
                   "[cache]", (testing::types<interleaved, float>),
                   (testing::types<interleaved, Eigen::half>), (testing::types<interleaved, Eigen::bfloat16>),
                   (testing::types<half_split, float>), (testing::types<half_split, Eigen::half>),
                   (testing::types<half_split, Eigen::bfloat16>)) {
  using Layout = typename TestType::channel;
  using C = typename TestType::entry;
  const std::uint32_t seed = 45;
  std::mt19937 generator(seed);
  const std::vector<std::vector<long>> chunkings = {
      std::vector<long>(tokens, 1), {7, 7, 5}, {1, 18}, {18, 1}, {0, 2, 3, 0, 14}};
  for (const long group : {1, 3}) {
    const operands x =
        random_operands<C>(generator, {batch, tokens, tokens, group * kv_heads, kv_heads, dim, value_dim});
    for (const auto& [name, frequencies] : schedules()) {
      const frequency_table<float> table(frequencies, tokens);
      for (const Index window : {0, 4})
        for (const Index sinks : {0, 2})
          for (const auto storage : {rope::key_storage::rotated, rope::key_storage::raw}) {
            CAPTURE(seed, group, name, window, sinks, storage == rope::key_storage::raw);
            const rope::attention_options options = {.window = window, .sinks = sinks};
            const auto disagree = [&, factor = frequencies.attention_factor()](const tensor& one,
                                                                               const tensor& other) {
              return disagreement<float>(one, other, x, {.window = window}, factor);
            };
            const tensor whole = decoded<Layout, C>(x, {tokens}, table, storage, options);
            for (const auto& chunks : chunkings) {
              const tensor parts = decoded<Layout, C>(x, chunks, table, storage, options);
              CHECK(disagree(parts, whole) <= 1);
            }
            // In 16 bits the keys of the cache and the keys of a call without cache are rounded differently.
            if (!std::is_same_v<C, float>) continue;
            const tensor direct = output_of<float>(x, axes::bhsd, [&](auto q, auto k, auto v, auto out) {
              rope::attention<Layout>(q, k, v, out, table, options);
            });
            CHECK(disagree(direct, whole) <= 1);
          }
    }
  }
}

namespace {

/// A decoder of one layer: rotates new tokens, stores them in its cache, and attends to all tokens so far.
template <class Layout, class T>
class decoder {
 public:
  decoder(const operands& x, const attention_rule& rule, long rotary_dim)
      : q_(stored<T>(x.q)),
        k_(stored<T>(x.k)),
        v_(stored<T>(x.v)),
        shape_(x.q.batch, x.q.tokens, x.q.heads, x.v.dim, unwritten),
        out_(stored<T>(shape_)),
        x_(x),
        options_(options_of(rule)),
        table_(rope::frequencies(rotary_dim), x.q.tokens),
        cache_(x.k.batch, x.k.tokens, x.k.heads, x.k.dim, x.v.dim) {}

  /// The next `count` tokens, or rejected guesses of them.
  void step(long count, bool guess = false) {
    auto q = q_, k = k_, v = v_;  // the originals stay unrotated
    if (guess)
      for (auto* wrong : {&q, &k, &v})
        for (T& channel : *wrong) channel = -channel;
    const long first = cache_.size();
    const auto now = [&](auto whole) { return whole.token_range(first, count); };
    rope::rotate<Layout>(now(view(q, x_.q)), table_, first);
    rope::rotate<Layout>(now(view(k, x_.k)), table_, first);
    cache_.append(now(view(k, x_.k)), now(view(v, x_.v)));
    rope::attention(now(view(q, x_.q)), cache_.keys(), cache_.values(), now(view(out_, shape_)), options_);
  }
  /// Rolls back to `size` tokens.
  void rollback(long size) { cache_.truncate(size); }

  tensor output() const { return loaded(out_, shape_); }
  tensor prefill() const {
    return output_of<T>(x_, axes::bshd, [this](auto q, auto k, auto v, auto out) {
      rope::attention<Layout>(q, k, v, out, table_, options_);
    });
  }

 private:
  std::vector<T> q_, k_, v_;
  tensor shape_;
  std::vector<T> out_;
  operands x_;
  rope::attention_options options_;
  frequency_table<float> table_;
  kv_cache<T> cache_;
};

template <class Layout, class T>
tensor decoded(const operands& x, const attention_rule& rule, long rotary_dim,
               const std::vector<long>& chunks) {
  decoder<Layout, T> one(x, rule, rotary_dim);
  for (const long count : chunks) one.step(count);
  return one.output();
}

/// Chunks of `size` that cover `count` tokens, the last one perhaps shorter.
std::vector<long> chunks_of(long size, long count) {
  std::vector<long> chunks;
  for (; count > 0; count -= size) chunks.push_back((std::min)(size, count));
  return chunks;
}

template <class Layout, class T>
void check_chunkings(const operands& x, const attention_rule& rule, long rotary_dim,
                     const std::vector<std::vector<long>>& chunkings) {
  const tensor whole = decoder<Layout, T>(x, rule, rotary_dim).prefill();
  for (const std::vector<long>& chunks : chunkings) {
    CAPTURE(chunks);
    CHECK(disagreement<T>(decoded<Layout, T>(x, rule, rotary_dim, chunks), whole, x, rule) <= 1);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("chunks may end on either side of the boundary of a tile", "[cache]", float,
                   Eigen::bfloat16) {
  const std::uint32_t seed = 42;
  std::mt19937 generator(seed);
  const long window = GENERATE(0, 5, 64, 100);
  CAPTURE(seed, window);
  const operands x = random_operands<TestType>(generator, {1, 200, 200, 6, 2, 16, 16});
  check_chunkings<half_split, TestType>(x, {.window = window}, 16,
                                        {{200},
                                         chunks_of(1, 200),
                                         chunks_of(63, 200),
                                         chunks_of(64, 200),
                                         {65, 135},
                                         {128, 1, 71},
                                         {1, 62, 1, 1, 135}});
}

TEMPLATE_TEST_CASE("rejected guesses do not change later results", "[cache]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  const std::uint32_t seed = 44;
  std::mt19937 generator(seed);
  const operands x = random_operands<TestType>(generator, {2, 90, 90, 4, 2, 16, 16});
  const attention_rule rule = {.window = GENERATE(0, 7)};

  decoder<interleaved, TestType> straight(x, rule, 16), speculative(x, rule, 16);
  for (const long count : {60, 1, 1, 1, 3}) straight.step(count);

  speculative.step(60);
  speculative.step(1);
  speculative.step(8, true);  // across the boundary of a tile
  speculative.rollback(61);
  for (const long count : {1, 1}) speculative.step(count);
  speculative.step(20, true);
  speculative.rollback(63);
  speculative.step(3);
  const auto first_66 = [](const tensor& out) {
    tensor part(2, 66, 4, 16);
    for_each_element(part, [&](long b, long t, long h, long d) { part(b, t, h, d) = out(b, t, h, d); });
    return part;
  };
  CHECK(same_bits(first_66(speculative.output()), first_66(straight.output())));
}

TEST_CASE("a query against an empty cache gives zeros", "[cache]") {
  const kv_cache<float> cache(2, 8, 2, 4);
  const operands x = {tensor(2, 3, 4, 4, 1), tensor(2, 0, 2, 4), tensor(2, 0, 2, 4)};
  const auto q = stored<float>(x.q);
  const tensor shape(2, 3, 4, 4, unwritten);
  for (const bool causal : {true, false}) {
    std::vector<float> out = stored<float>(shape);
    rope::attention(view(q, x.q), cache.keys(), cache.values(), view(out, shape), {.causal = causal});
    CHECK(out == std::vector<float>(out.size(), 0.0f));
  }
}
