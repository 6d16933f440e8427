// SPDX-License-Identifier: MIT
// Float queries and outputs with 16-bit keys and values: attention has the bits of attention to their float
// copies, wherever they are in memory.
#include <rope/attention/attention.hpp>

#include <cstdint>
#include <random>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

using namespace attention_call;

namespace {

/// Operands whose keys and values C can represent exactly.
template <class C>
operands mixed_operands(std::mt19937& generator, const extents& e) {
  operands x = random_operands<float>(generator, e);
  x.k = random<C>(generator, x.k);
  x.v = random<C>(generator, x.v);
  return x;
}

/// Calls `attend` on q and out of float and on k and v of C. Each has its own order of axes and lies within
/// other tokens, heads and channels.
template <class C, class Attend>
tensor mixed_output(const operands& x, axes key_order, axes value_order, const Attend& attend) {
  const auto framed = [](const tensor& inner) {
    tensor frame(inner.batch, inner.tokens + 2, inner.heads + 3, inner.dim + 5, 3e4);
    for_each_element(
        inner, [&](long b, long t, long h, long d) { frame(b, t + 1, h + 2, d + 3) = inner(b, t, h, d); });
    return frame;
  };
  const auto window = [](auto whole) {
    return whole.token_range(1, whole.tokens - 2)
        .head_range(2, whole.heads - 3)
        .channels(3, whole.head_dim - 5);
  };
  const tensor k_frame = framed(x.k), v_frame = framed(x.v);
  const auto q = stored<float>(x.q);
  const auto k = stored<C>(k_frame, key_order), v = stored<C>(v_frame, value_order);
  const tensor shape(x.q.batch, x.q.tokens, x.q.heads, x.v.dim, unwritten);
  std::vector<float> out = stored<float>(shape);
  attend(view(q, x.q), window(view(k, k_frame, key_order)), window(view(v, v_frame, value_order)),
         view(out, shape));
  return loaded(out, shape);
}

template <class C, class Threads = rope::this_thread>
tensor mixed(const operands& x, const rope::attention_options& options, axes key_order = axes::bshd,
             axes value_order = axes::bshd, const Threads& threads = {}) {
  return mixed_output<C>(x, key_order, value_order, [&](auto q, auto k, auto v, auto out) {
    rope::attention(q, k, v, out, options, threads);
  });
}

}  // namespace

TEMPLATE_TEST_CASE("16-bit keys and values give the bits of their float copies under every option",
                   "[attention]", Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 91;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(40); ++draw) {
    CAPTURE(seed, draw);
    const features::setting s = features::draw(dice, draw % 8 == 7 ? 2500 : 300);
    const operands x = mixed_operands<TestType>(dice.generator(), s.e);
    const tensor expected = mixed<float>(x, s.options);
    CHECK(features::out_error<float>(features::definition(s, x), expected) <= 1);
    CHECK(same_bits(mixed<TestType>(x, s.options), expected));
    CHECK(same_bits(mixed<TestType>(x, s.options, axes::bhsd, axes::sbhd), expected));
    CHECK(
        same_bits(mixed<TestType>(x, s.options, axes::sbhd, axes::bhsd, testing::own_threads(2)), expected));
  }
}

TEMPLATE_TEST_CASE("a few queries attend to a window and sinks in every group and head_dim", "[attention]",
                   float, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 92;
  std::mt19937 generator(seed);
  const long group = GENERATE(1, 2, 3, 4, 5, 6, 7, 8), kv_heads = 1 + group % 3;
  const auto [dim, value_dim] =
      GENERATE(std::pair{7L, 20L}, std::pair{20L, 7L}, std::pair{33L, 33L}, std::pair{128L, 64L});
  features::setting s;
  s.e = {2, 1 + group % 2, 1100, group * kv_heads, kv_heads, dim, value_dim};
  s.options.window = 1050;  // two splits
  s.options.sinks = 5;
  CAPTURE(seed, group, kv_heads, dim, value_dim);
  const operands x = mixed_operands<TestType>(generator, s.e);
  const tensor got = mixed<TestType>(x, s.options);
  CHECK(features::out_error<float>(features::definition(s, x), got) <= 1);
  CHECK(same_bits(mixed<TestType>(x, s.options, axes::bhsd, axes::bhsd), got));
  CHECK(same_bits(mixed<TestType>(x, s.options, axes::sbhd, axes::bhsd, testing::own_threads(2)), got));
}

TEMPLATE_TEST_CASE("16-bit keys are converted to float before they are rotated", "[attention]", Eigen::half,
                   Eigen::bfloat16) {
  const std::uint32_t seed = 93;
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 3, 40);
  const extents e = {2, queries, 150, 6, 2, 20, 9};
  CAPTURE(seed, queries);
  const operands x = mixed_operands<TestType>(generator, e);
  const rope::frequency_table<float> table(rope::frequencies(16, 50.0), 150);
  const rope::attention_options options = {.window = 90, .sinks = 2};
  const auto rotated = [&]<class Layout, class C>(Layout, C, axes order) {
    return mixed_output<C>(x, order, order, [&](auto q, auto k, auto v, auto out) {
      rope::attention<Layout>(q, k, v, out, table, options);
    });
  };
  for (const axes order : {axes::bshd, axes::bhsd}) {
    CHECK(same_bits(rotated(rope::half_split{}, TestType{}, order),
                    rotated(rope::half_split{}, float{}, order)));
    CHECK(same_bits(rotated(rope::interleaved{}, TestType{}, order),
                    rotated(rope::interleaved{}, float{}, order)));
  }
}
