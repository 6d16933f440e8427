// SPDX-License-Identifier: MIT
// Attention to integers with scales is attention to the numbers that they represent.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/quantized.hpp"
#include "support/random.hpp"

using namespace attention_call;
using quantized::heads;

namespace {

/// Queries, and quantized keys and values, of a call.
struct narrow_operands {
  tensor q;
  heads k, v;

  narrow_operands(std::mt19937& generator, const extents& e)
      : q(random<float>(generator, {e.batch, e.queries, e.heads, e.dim})),
        k(quantized::random_heads(generator, e.batch, e.keys, e.kv_heads, e.dim)),
        v(quantized::random_heads(generator, e.batch, e.keys, e.kv_heads, e.value_dim)) {}
  /// The numbers that they represent.
  operands numbers() const { return {q, k.numbers(), v.numbers()}; }
};

/// Where keys and values are stored.
struct places {
  axes k = axes::bshd, k_scales = axes::bshd, v = axes::bshd, v_scales = axes::bshd;
  bool framed = false;
};

/// Calls `attend` on views and a new output, which it returns.
template <class Attend>
tensor output(const narrow_operands& x, const places& at, const Attend& attend) {
  const auto q = stored<float>(x.q);
  const quantized::memory k(x.k, at.k, at.k_scales, at.framed), v(x.v, at.v, at.v_scales, at.framed);
  const tensor shape(x.q.batch, x.q.tokens, x.q.heads, x.v.integers.dim, unwritten);
  std::vector<float> out = stored<float>(shape);
  attend(view(q, x.q), k.view(), v.view(), view(out, shape));
  return loaded(out, shape);
}
template <class Threads = rope::this_thread>
tensor attended(const narrow_operands& x, const rope::attention_options& options, const places& at = {},
                const Threads& threads = {}) {
  return output(x, at,
                [&](auto q, auto k, auto v, auto out) { rope::attention(q, k, v, out, options, threads); });
}

/// The bound for floats holds: the additional rounding of a score, or a channel, and of a weight for their
/// scale is less than the margin of its six standard deviations.
double error_of(const features::setting& s, const narrow_operands& x, const tensor& got) {
  return features::out_error<float>(features::definition(s, x.numbers()), got);
}

/// Whether key j of key head kv of row b is visible to some query.
bool is_seen(const features::setting& s, long b, long kv, long j) {
  const long group = s.e.heads / s.e.kv_heads;
  for (long h = kv * group; h < (kv + 1) * group; ++h)
    for (long i = 0; i < s.e.queries; ++i)
      if (features::sees(s, b, h, i, j)) return true;
  return false;
}

}  // namespace

TEST_CASE("attention to integers is attention to their dequantized values under every option",
          "[attention]") {
  const std::uint32_t seed = 5201;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(60); ++draw) {
    CAPTURE(seed, draw);
    const features::setting s = features::draw(dice, draw % 8 == 7 ? 2500 : 300, {.queries = 90, .dim = 70});
    const narrow_operands x(dice.generator(), s.e);
    const tensor got = attended(x, s.options);
    CHECK(error_of(s, x, got) <= 1);
    CHECK(same_bits(attended(x, s.options, {axes::bhsd, axes::bshd, axes::sbhd, axes::bhsd, true}), got));
    CHECK(same_bits(
        attended(x, s.options, {axes::sbhd, axes::sbhd, axes::bhsd, axes::bhsd}, testing::own_threads(2)),
        got));
  }
}

TEST_CASE("a few queries attend to integers in every group and head_dim", "[attention]") {
  const std::uint32_t seed = 5202;
  std::mt19937 generator(seed);
  const long dim = GENERATE(range(1L, 131L));
  const long group = 1 + dim % 8, kv_heads = 1 + dim % 3;
  features::setting s;
  s.e = {1 + dim % 2, 1 + dim % 2, 150 + dim, group * kv_heads, kv_heads, dim, 131 - dim};
  s.options.window = dim % 4 == 0 ? 70 : 0;
  s.options.sinks = 3;
  CAPTURE(seed, dim);
  const narrow_operands x(generator, s.e);
  const tensor got = attended(x, s.options);
  CHECK(error_of(s, x, got) <= 1);
  CHECK(same_bits(attended(x, s.options, {axes::bhsd, axes::bhsd, axes::bhsd, axes::bhsd}), got));
}

TEST_CASE("splits of integer keys are merged", "[attention]") {
  const std::uint32_t seed = 5203;
  std::mt19937 generator(seed);
  const long keys = GENERATE(1023, 1024, 1025, 2500), queries = GENERATE(1, 3);
  features::setting s;
  s.e = {2, queries, keys, 4, 2, 24, 40};
  CAPTURE(seed, keys, queries);
  const narrow_operands x(generator, s.e);
  const tensor got = attended(x, s.options);
  CHECK(error_of(s, x, got) <= 1);
  CHECK(same_bits(
      attended(x, s.options, {axes::bhsd, axes::bhsd, axes::sbhd, axes::sbhd, true}, testing::own_threads(3)),
      got));
}

TEST_CASE("many queries attend to integers as to their dequantized floats, with the same bits",
          "[attention]") {
  const std::uint32_t seed = 5204;
  std::mt19937 generator(seed);
  const long dim = GENERATE(1, 7, 33, 64, 130);
  const extents e = {2, 70, 210, 4, 2, dim, 135 - dim};
  CAPTURE(seed, dim);
  const narrow_operands x(generator, e);
  operands floats = x.numbers();
  for (tensor* t : {&floats.k, &floats.v})
    for (double& value : t->values) value = static_cast<double>(static_cast<float>(value));
  const rope::attention_options options = {.window = 90, .sinks = 2};
  const rope::frequency_table<float> table(rope::frequencies(dim / 2 * 2 == 0 ? 2 : dim / 2 * 2, 50.0), 210);
  CHECK(same_bits(attended(x, options),
                  output_of<float>(floats, axes::bshd, [&](auto q, auto k, auto v, auto out) {
                    rope::attention(q, k, v, out, options);
                  })));
  if (dim < 2) return;
  const auto rotated = [&](auto q, auto k, auto v, auto out) {
    rope::attention<rope::half_split>(q, k, v, out, table, options);
  };
  CHECK(
      same_bits(output(x, {axes::bhsd, axes::sbhd}, rotated), output_of<float>(floats, axes::bshd, rotated)));
}

TEST_CASE("integers are dequantized before they are rotated", "[attention]") {
  const std::uint32_t seed = 5205;
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 3, 40);
  features::setting s;
  s.e = {2, queries, 150, 6, 2, 20, 9};
  s.options.window = 90;
  s.options.sinks = 2;
  CAPTURE(seed, queries);
  const narrow_operands x(generator, s.e);
  operands floats = x.numbers();
  for (tensor* t : {&floats.k, &floats.v})
    for (double& value : t->values) value = static_cast<double>(static_cast<float>(value));
  const rope::frequency_table<float> table(rope::frequencies(16, 50.0), 150);
  const auto check = [&]<class Layout>(Layout) {
    const auto rotated = [&](auto q, auto k, auto v, auto out) {
      rope::attention<Layout>(q, k, v, out, table, s.options);
    };
    const tensor got = output(x, {}, rotated), expected = output_of<float>(floats, axes::bshd, rotated);
    // Keys have the same bits. Values are multiplied by their scales at another step.
    CHECK(reference::worst_error<float>(got, expected, 2 * quantized::bound(s, floats)) <= 1);
    CHECK(same_bits(output(x, {axes::bhsd, axes::bhsd, axes::sbhd, axes::bhsd, true}, rotated), got));
  };
  check(rope::half_split{});
  check(rope::interleaved{});
}

TEST_CASE("integers and scales of hidden tokens may contain anything", "[attention]") {
  const std::uint32_t seed = 5206;
  features::dice dice(seed);
  long hidden = 0;
  for (int draw = 0; draw < testing::draws(60); ++draw) {
    CAPTURE(seed, draw);
    const features::setting s = features::draw(dice, draw % 8 == 7 ? 1500 : 200, {.queries = 60, .dim = 20});
    const narrow_operands clean(dice.generator(), s.e);
    narrow_operands x = clean;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const float poison[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 3e38f, 1e37f};
    for (long b = 0; b < s.e.batch; ++b)
      for (long kv = 0; kv < s.e.kv_heads; ++kv)
        for (long j = 0; j < s.e.keys; ++j) {
          if (is_seen(s, b, kv, j)) continue;
          ++hidden;
          const long kind = draw % 6 == 5 ? j : draw;  // all equal, or all at once
          x.k.scales(b, j, kv, 0) = static_cast<double>(poison[kind % 5]);
          x.v.scales(b, j, kv, 0) = static_cast<double>(poison[kind % 5]);
        }
    CHECK(error_of(s, clean, attended(x, s.options)) <= 1);
  }
  CHECK(hidden > testing::draws(1000));
}

TEST_CASE("a hidden scale of infinity does not affect a decoding step", "[attention]") {
  // Without vectors, values are converted to floats before they are weighted, and 0 times infinity is NaN.
  const std::uint32_t seed = 5212;
  std::mt19937 generator(seed);
  features::setting s;
  s.e = {1, 1, 300, 2, 2, 6, 5};
  s.mask = std::make_unique<bool[]>(300);
  for (long j = 0; j < 300; ++j) s.mask[static_cast<std::size_t>(j)] = j % 3 != 0;
  s.options.mask = rope::score_matrix(s.mask.get(), 1, 1, 1, 300);
  const narrow_operands clean(generator, s.e);
  narrow_operands x = clean;
  for (long j = 0; j < 300; j += 3)
    for (long kv = 0; kv < 2; ++kv) x.k.scales(0, j, kv, 0) = x.v.scales(0, j, kv, 0) = 1e37;
  CAPTURE(seed);
  CHECK(error_of(s, clean, attended(x, s.options)) <= 1);
}

TEST_CASE("a scale that is NaN reaches exactly the queries that attend to its token", "[attention]") {
  const std::uint32_t seed = 5207;
  features::dice dice(seed);
  long reached = 0, kept = 0, missed = 0, leaked = 0;
  for (int draw = 0; draw < testing::draws(200); ++draw) {
    const features::setting s = features::draw(dice, draw % 8 == 7 ? 1500 : 200, {.queries = 40, .dim = 12});
    if (s.e.keys == 0 || s.e.queries == 0) continue;
    narrow_operands x(dice.generator(), s.e);
    const long b = dice.up_to(s.e.batch - 1), j = dice.up_to(s.e.keys - 1), kv = dice.up_to(s.e.kv_heads - 1);
    const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity()};
    (draw % 2 == 0 ? x.k : x.v).scales(b, j, kv, 0) = static_cast<double>(bad[draw / 2 % 3]);
    const tensor got = attended(x, s.options);
    for_each_element(got, [&](long row, long i, long h, long c) {
      const bool sees = row == b && h / (s.e.heads / s.e.kv_heads) == kv && features::sees(s, b, h, i, j);
      const bool is_nan =
          (std::bit_cast<std::uint64_t>(got(row, i, h, c)) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
      (sees ? reached : kept) += 1;
      missed += sees && !is_nan;
      leaked += !sees && is_nan;
    });
  }
  CAPTURE(seed, reached, kept);
  CHECK(reached > testing::draws(1000));
  CHECK(kept > testing::draws(1000));
  CHECK(missed == 0);
  CHECK(leaked == 0);
}

TEST_CASE("quantization changes attention by at most the documented bound", "[attention]") {
  const std::uint32_t seed = 5208;
  features::dice dice(seed);
  std::normal_distribution<float> normal;
  double closest = 0;
  for (int draw = 0; draw < testing::draws(80); ++draw) {
    CAPTURE(seed, draw);
    const features::setting s = features::draw(dice, 200, {.queries = 40, .dim = 40});
    const auto [batch, queries, keys, count, kv_heads, dim, value_dim] = s.e;
    if (keys == 0) continue;
    operands x = random_operands<float>(dice.generator(), s.e);
    // Every third token has outlier channels.
    for_each_element(x.k, [&](long b, long t, long h, long d) {
      x.k(b, t, h, d) = static_cast<double>(normal(dice.generator()) * ((t + d) % 3 == 0 ? 3.0f : 0.3f));
    });
    narrow_operands rounded(dice.generator(), s.e);
    const auto quantize = [](const tensor& from, heads& to) {
      const auto channels = stored<float>(from);
      std::vector<std::int8_t> integers(channels.size());
      std::vector<float> scales(to.scales.values.size());
      rope::quantize(view(channels, from), rope::bshd(integers.data(), scales.data(), from.batch, from.tokens,
                                                      from.heads, from.dim));
      to = {loaded(integers, from), loaded(scales, to.scales)};
    };
    rounded.q = x.q;
    quantize(x.k, rounded.k);
    quantize(x.v, rounded.v);
    const tensor got = attended(rounded, s.options), exact = features::definition(s, x).out;
    const double ordinary = quantized::bound(s, rounded.numbers());
    const double scale =
        s.options.scale != 0 ? std::abs(s.options.scale) : 1 / std::sqrt(static_cast<double>(dim));
    for (long b = 0; b < batch; ++b)
      for (long h = 0; h < count; ++h)
        for (long i = 0; i < queries; ++i) {
          const long kv = h / (count / kv_heads);
          double s_k = 0, s_v = 0, largest_value = 0, length = 0;
          for (long j = 0; j < keys; ++j) {
            if (!features::sees(s, b, h, i, j)) continue;
            s_k = (std::max)(s_k, rounded.k.scales(b, j, kv, 0));
            s_v = (std::max)(s_v, rounded.v.scales(b, j, kv, 0));
            for (long c = 0; c < value_dim; ++c)
              largest_value = (std::max)(largest_value, std::abs(x.v(b, j, kv, c)));
          }
          for (long d = 0; d < dim; ++d) length += std::abs(x.q(b, i, h, d));
          const double e = scale * s_k * length * (0.5 + 0x1p-15);
          const double allowed =
              ((std::exp(2 * e) - 1) * largest_value + s_v * (0.5 + 0x1p-15)) / (1 - s.options.dropout) +
              ordinary;
          for (long c = 0; c < value_dim; ++c) {
            const double off = std::abs(got(b, i, h, c) - exact(b, i, h, c));
            closest = (std::max)(closest, off / allowed);
          }
        }
  }
  CHECK(closest <= 1);
  CHECK(closest > 0.05);  // the bound is not trivial
}

TEST_CASE("attention to integers throws if views do not fit, and writes nothing", "[attention]") {
  std::vector<float> q(4 * 2 * 8, 1), out(4 * 2 * 8, 99), scales(4 * 2, 0.1f);
  const std::vector<std::int8_t> integers(4 * 2 * 8, 3);
  const auto queries = rope::bshd(q.data(), 1, 4, 2, 8), written = rope::bshd(out.data(), 1, 4, 2, 8);
  const auto k = rope::bshd(integers.data(), scales.data(), 1, 4, 2, 8);
  const rope::frequency_table<float> table(rope::frequencies(8), 4);
  const auto rejected = [&](auto keys, auto values, const char* rule) {
    CHECK_THROWS_WITH(rope::attention(queries, keys, values, written), testing::ContainsSubstring(rule));
    CHECK_THROWS_WITH(rope::attention<rope::half_split>(queries, keys, values, written, table),
                      testing::ContainsSubstring(rule));
    CHECK(out == std::vector<float>(out.size(), 99));
  };
  auto other = k;
  other.scales.tokens = 3;
  rejected(other, k, "attention: scales must be [1, 4, 2, 1], got [1, 3, 2, 1]");
  rejected(k, other, "attention: scales must be [1, 4, 2, 1], got [1, 3, 2, 1]");
  other = k;
  other.scales.head_dim = 8;
  rejected(k, other, "attention: scales must be [1, 4, 2, 1], got [1, 4, 2, 8]");
  other = k;
  other.scales.data = nullptr;
  rejected(other, k, "attention: a quantized view must have data and scales");
  other = k;
  other.data = nullptr;
  rejected(k, other, "attention: a quantized view must have data and scales");
  other = k;
  other.batch = other.scales.batch = -1;
  rejected(other, k, "must not be negative");
  rejected(k.token_range(0, 3), k, "attention: k and v must have the same tokens, got 3 and 4");
  rejected(k.head_range(0, 1), k, "attention: k and v must have the same heads, got 1 and 2");
  other = k;
  other.head_dim = 7;
  rejected(other, k, "attention: q and k must have the same head_dim");
  rejected(k, other, "attention: v and out must have the same head_dim");
  auto nowhere = written;
  nowhere.data = nullptr;
  CHECK_THROWS_AS(rope::attention(queries, k, k, nowhere), std::invalid_argument);
  CHECK_THROWS_AS(rope::attention(queries, k, k, written, {.window = -1}), std::invalid_argument);
  const rope::frequency_table<float> short_table(rope::frequencies(8), 3);
  CHECK_THROWS_AS(rope::attention<rope::half_split>(queries, k, k, written, short_table), std::out_of_range);
  CHECK(out == std::vector<float>(out.size(), 99));
}
