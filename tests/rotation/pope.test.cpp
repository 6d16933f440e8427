// SPDX-License-Identifier: MIT
#include <rope/rotation/pope.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/attention/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using testing::throws_saying;

using matrix = Eigen::ArrayXXd;

/// log(1 + e^x) in two forms. The first loses digits for small e^x, and the second loses none in long double.
testing::wide exact_softplus(testing::wide x) {
  return x > 0 ? x + testing::log1p(testing::exp(-x)) : testing::log1p(testing::exp(x));
}

/// The bound of a pope channel for a magnitude with exact phase: see the documentation of `pope`.
template <class T>
testing::wide pope_bound(testing::wide magnitude) {
  const testing::wide in_u = std::is_same_v<T, double> ? 8 : 1.75L;
  return tolerance::detail::bound<T, tolerance::detail::wide<T>>(in_u, magnitude);
}

matrix random_bias(Index heads, Index channels) {
  testing::random numbers(testing::seed() + 1);
  matrix bias(heads, channels);
  for (double& phase : bias.reshaped()) phase = -6.2 * numbers.unit();
  return bias;
}

/// The polar form of one channel in long double: [cos, sin].
std::array<testing::wide, 2> exact(testing::wide x, testing::wide position, double inv_freq,
                                   testing::wide bias) {
  const testing::wide magnitude = exact_softplus(x), angle = position * inv_freq + bias;
  return {magnitude * testing::cos(angle), magnitude * testing::sin(angle)};
}

}  // namespace

TEST_CASE("softplus keeps its accuracy over the range of double", "[rotation][pope]") {
  testing::random numbers(testing::seed());
  testing::wide worst = 0;
  for (int n = 0; n < 20000; ++n) {
    const double x = numbers.scaled(-60, 9);
    if (x > -700) testing::raise_to(worst, tolerance::error_in_ulp(softplus(x), exact_softplus(x)));
  }
  CAPTURE(worst);
  CHECK(worst <= 3);
  CHECK(softplus(0.0) == testing::log(2.0));
  CHECK(softplus(1e300) == 1e300);
  CHECK(softplus(-1e300) == 0.0);
  CHECK(softplus(40.0) == 40.0);
  CHECK(softplus(-40.0) == testing::exp(-40.0));
}

TEST_CASE("pope frequencies are one per channel", "[rotation][pope]") {
  const frequencies schedule = pope_frequencies(6, 500.0);
  REQUIRE(schedule.pairs() == 6);
  for (Index i = 0; i < 6; ++i) {
    const testing::wide published = testing::pow(500.0L, -static_cast<testing::wide>(i) / 6);
    CHECK(tolerance::error_in_ulp(schedule.inv_freq()(i, 0), published) <= tolerance::inv_freq());
  }
}

// Golden vector G18: PoPE-pytorch ee11cab in fp64, printed with 7 digits.
TEST_CASE("PoPE-pytorch's example gives its values", "[rotation][pope]") {
  const std::vector<double> q = {0.5, -1, 2, 0}, k = {1, 0.25, -0.5, 3};
  const frequency_table<double> table(pope_frequencies(4), 6);
  std::vector<double> pope_q(8), pope_k(8);
  const auto agrees = [](const std::vector<double>& got, const std::vector<double>& printed) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK_THAT(got[i], testing::WithinRel(printed[i], 5e-7) || testing::WithinAbs(printed[i], 1e-15));
    }
  };
  const auto dot = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < 8; ++i) sum += pope_q[i] * pope_k[i];
    return sum;
  };
  pope<interleaved>(thd(q.data(), 1, 1, 4), thd(pope_q.data(), 1, 1, 8), table, 5);
  pope<interleaved>(thd(k.data(), 1, 1, 4), thd(pope_k.data(), 1, 1, 8), table, 2);
  agrees(pope_q, {0.2763088, -0.9340661, 0.274913, 0.1501857, 2.12427, 0.1063021, 0.6931385, 0.003465721});
  agrees(pope_k, {-0.5465097, 1.194145, 0.8094756, 0.1640888, 0.4739822, 0.009480908, 3.048581, 0.006097171});
  agrees({dot()}, {2.10174707});

  const pope_bias bias(Eigen::Array<double, 1, 4>(-0.1, -0.2, -0.3, -0.4));
  pope<interleaved>(thd(k.data(), 1, 1, 4), thd(pope_k.data(), 1, 1, 8), table, bias, 2);
  agrees(pope_k, {-0.4245638, 1.24274, 0.8259394, 0, 0.4556143, -0.1310139, 2.810304, -1.181558});
  agrees({dot()}, {1.84670519});

  // x-transformers: the cosines, then the sines.
  std::vector<double> concatenated(8);
  pope<half_split>(thd(k.data(), 1, 1, 4), thd(concatenated.data(), 1, 1, 8), table, bias, 2);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(concatenated[i] == pope_k[2 * i]);
    CHECK(concatenated[i + 4] == pope_k[2 * i + 1]);
  }
}

TEST_CASE("a pope channel is its softplus at the phase of its position and head", "[rotation][pope]") {
  const Index batch = 2, tokens = 3, heads = 2, pairs = 5, head_dim = 8, doubled = head_dim + pairs;
  const matrix bias = random_bias(heads, pairs);
  const pope_bias phases(bias);
  const std::vector<std::int64_t> ids = {3, 0, 1000, 7, 2, 5};
  const frequencies schedule = pope_frequencies(pairs, 1e3);
  const auto check = [&](auto number, auto layout, const pope_bias* ahead) {
    using T = decltype(number);
    using Layout = decltype(layout);
    const frequency_table<tolerance::detail::wide<T>> table(schedule, 1001);
    const std::vector<T> x = testing::random_channels<T>(batch * tokens * heads * head_dim, testing::seed());
    // Heads of the output in another order of axes, with gaps between them.
    std::vector<T> memory(static_cast<std::size_t>(batch * tokens * heads * (doubled + 2)));
    testing::fill_with_nan(memory);
    const std::vector<T> before = memory;
    const head_view<T> out = bhsd(memory.data(), batch, heads, tokens, doubled + 2).channels(1, doubled);
    const auto view = bshd(x.data(), batch, tokens, heads, head_dim);
    if (ahead != nullptr)
      pope<Layout>(view, out, table, *ahead, ids);
    else
      pope<Layout>(view, out, table, ids);
    testing::wide worst = 0;
    bool copied = true;
    testing::for_each_head(view, [&](Index b, Index t, Index h) {
      const T *in = view.at(b, t, h), *got = out.at(b, t, h);
      for (Index i = 0; i < pairs; ++i) {
        const testing::wide position =
            static_cast<testing::wide>(ids[static_cast<std::size_t>(b * tokens + t)]);
        const auto value = exact(static_cast<testing::wide>(in[i]), position, schedule.inv_freq()(i, 0),
                                 ahead == nullptr ? 0 : static_cast<testing::wide>(bias(h, i)));
        const testing::wide bound = pope_bound<T>(exact_softplus(static_cast<testing::wide>(in[i])));
        const Index u = std::is_same_v<Layout, interleaved> ? 2 * i : i,
                    v = std::is_same_v<Layout, interleaved> ? 2 * i + 1 : i + pairs;
        testing::raise_to(worst, testing::abs(static_cast<testing::wide>(got[u]) - value[0]) / bound);
        testing::raise_to(worst, testing::abs(static_cast<testing::wide>(got[v]) - value[1]) / bound);
      }
      copied = copied && testing::same_bits(in + pairs, got + 2 * pairs, head_dim - pairs);
      copied = copied && testing::same_bits(got - 1, before.data() + (got - 1 - memory.data()), 1) &&
               testing::same_bits(got + doubled, before.data() + (got + doubled - memory.data()), 1);
    });
    CAPTURE(sizeof(T), testing::name_of<Layout>, ahead != nullptr);
    CHECK(worst <= 1);
    CHECK(copied);
  };
  testing::for_each_layout([&](auto layout) {
    for (const pope_bias* ahead : {static_cast<const pope_bias*>(nullptr), &phases}) {
      check(float{}, layout, ahead);
      check(double{}, layout, ahead);
      check(Eigen::half{}, layout, ahead);
      check(Eigen::bfloat16{}, layout, ahead);
    }
  });
}

TEST_CASE("a pope score depends only on the distance and the bias", "[rotation][pope]") {
  const Index n = 16;
  const frequencies schedule = pope_frequencies(n);
  const frequency_table<double> table(schedule, -100, 5000);
  const matrix bias = random_bias(1, n);
  const std::vector<double> q = testing::random_channels<double>(n, testing::seed()),
                            k = testing::random_channels<double>(n, testing::seed() + 7);
  std::vector<double> pope_q(32), pope_k(32);
  for (const std::int64_t distance : {-30, 0, 1, 77}) {
    testing::wide exact_score = 0, size = 0;
    for (Index i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const testing::wide product = exact_softplus(q[at]) * exact_softplus(k[at]);
      size += product;
      exact_score += product * testing::cos(static_cast<testing::wide>(distance) * schedule.inv_freq()(i, 0) -
                                            static_cast<testing::wide>(bias(0, i)));
    }
    for (const std::int64_t key : {-50, 0, 4900}) {
      pope<half_split>(thd(q.data(), 1, 1, n), thd(pope_q.data(), 1, 1, 2 * n), table, key + distance);
      pope<half_split>(thd(k.data(), 1, 1, n), thd(pope_k.data(), 1, 1, 2 * n), table, pope_bias(bias), key);
      testing::wide score = 0;
      for (std::size_t i = 0; i < 32; ++i)
        score += static_cast<testing::wide>(pope_q[i]) * static_cast<testing::wide>(pope_k[i]);
      // 8 u for each operand, in the 2-norm of its two channels.
      CHECK(testing::abs(score - exact_score) <= 2 * 8 * testing::sqrt(2.0L) * 0x1p-53L * size);
    }
  }
}

TEST_CASE("phases outside [-2 pi, 0] count as the nearest one inside", "[rotation][pope]") {
  constexpr double full_turn = 2 * 3.14159265358979323846;
  const pope_bias outside(Eigen::Array<double, 1, 4>(0.5, -100, -full_turn, -1)),
      inside(Eigen::Array<double, 1, 4>(0, -full_turn, -full_turn, -1));
  for (Index i = 0; i < 4; ++i) {
    CHECK(outside.head(0)[i].cos == inside.head(0)[i].cos);
    CHECK(outside.head(0)[i].sin == inside.head(0)[i].sin);
  }
  CHECK(outside.head(0)[0].cos == 1);
  CHECK(outside.head(0)[3].sin == testing::sin(-1.0));
}

// AxialPoPE of PoPE-pytorch: axial_dims (2, 3) and the grid (2, 2) in reversed coordinates, x before y.
TEST_CASE("axial PoPE is a table of two axes", "[rotation][pope]") {
  matrix inv_freq = matrix::Zero(5, 2);
  for (Index i = 0; i < 2; ++i) inv_freq(i, 0) = testing::pow(1e4, -static_cast<double>(i) / 2);
  for (Index i = 0; i < 3; ++i) inv_freq(2 + i, 1) = testing::pow(1e4, -static_cast<double>(i) / 3);
  matrix coordinates(4, 2);
  coordinates << 0, 0, 1, 0, 0, 1, 1, 1;  // (x, y), y slowest
  const frequency_table<double> table(frequencies::custom(inv_freq), coordinates);
  const std::vector<double> x = testing::random_channels<double>(4 * 5, testing::seed());
  std::vector<double> out(4 * 10);
  pope<interleaved>(thd(x.data(), 4, 1, 5), thd(out.data(), 4, 1, 10), table);
  for (Index t = 0; t < 4; ++t)
    for (Index i = 0; i < 5; ++i) {
      const testing::wide position = i < 2 ? t % 2 : t / 2;
      const auto at = static_cast<std::size_t>(5 * t + i);
      const auto value = exact(x[at], position, i < 2 ? inv_freq(i, 0) : inv_freq(i, 1), 0);
      CHECK(testing::abs(out[2 * at] - value[0]) <= pope_bound<double>(exact_softplus(x[at])));
      CHECK(testing::abs(out[2 * at + 1] - value[1]) <= pope_bound<double>(exact_softplus(x[at])));
    }
}

// Calls of a decoder: keys in the cache are pope, values are unchanged, and the scale is still that of
// head_dim.
TEST_CASE("attention of pope queries and keys follows the formula", "[rotation][pope]") {
  const Index tokens = 9, heads = 4, kv_heads = 2, n = 6, value_dim = 3;
  const matrix bias = random_bias(kv_heads, n);
  const frequencies schedule = pope_frequencies(n);
  const frequency_table<double> table(schedule, tokens);
  const std::vector<double> q = testing::random_channels<double>(tokens * heads * n, testing::seed()),
                            k = testing::random_channels<double>(tokens * kv_heads * n, testing::seed() + 1),
                            v = testing::random_channels<double>(tokens * kv_heads * value_dim,
                                                                 testing::seed() + 2);
  std::vector<double> pope_q(2 * q.size()), pope_k(2 * k.size()),
      out(static_cast<std::size_t>(tokens * heads * value_dim));
  kv_cache<double> cache(1, tokens, kv_heads, 2 * n, value_dim);
  const auto queries = thd(pope_q.data(), tokens, heads, 2 * n);
  const auto keys = thd(pope_k.data(), tokens, kv_heads, 2 * n);
  pope<half_split>(thd(q.data(), tokens, heads, n), queries, table);
  pope<half_split>(thd(k.data(), tokens, kv_heads, n), keys, table, pope_bias(bias));
  const auto result = thd(out.data(), tokens, heads, value_dim);
  const attention_options options = {.scale = 1 / testing::sqrt(static_cast<double>(n))};
  const auto check = [&] {
    double worst = 0;
    for (Index t = 0; t < tokens; ++t)
      for (Index h = 0; h < heads; ++h) {
        testing::wide sum = 0;
        std::vector<testing::wide> expected(value_dim);
        for (Index j = 0; j <= t; ++j) {
          testing::wide score = 0;
          for (Index i = 0; i < n; ++i)
            score += exact_softplus(q[static_cast<std::size_t>((t * heads + h) * n + i)]) *
                     exact_softplus(k[static_cast<std::size_t>((j * kv_heads + h / 2) * n + i)]) *
                     testing::cos(static_cast<testing::wide>(t - j) * schedule.inv_freq()(i, 0) -
                                  static_cast<testing::wide>(bias(h / 2, i)));
          const testing::wide weight = testing::exp(score / testing::sqrt(6.0L));
          sum += weight;
          for (std::size_t d = 0; d < expected.size(); ++d)
            expected[d] += weight * v[static_cast<std::size_t>((j * kv_heads + h / 2) * value_dim) + d];
        }
        for (std::size_t d = 0; d < expected.size(); ++d)
          worst =
              (std::max)(worst, testing::abs(out[static_cast<std::size_t>((t * heads + h) * value_dim) + d] -
                                             static_cast<double>(expected[d] / sum)));
      }
    return worst;
  };
  // Scores are at most about 100, so weights have an error of 100 * 8 u for each operand. Values are below 4.
  const double bound = 4 * 2 * 100 * 16 * 0x1p-53;
  attention(queries, keys, thd(v.data(), tokens, kv_heads, value_dim), result, options);
  CHECK(check() <= bound);
  std::fill(out.begin(), out.end(), 0.0);
  for (Index t = 0; t < tokens; ++t) {
    cache.append(keys.token_range(t, 1), thd(v.data(), tokens, kv_heads, value_dim).token_range(t, 1));
    attention(queries.token_range(t, 1), cache.keys(), cache.values(), result.token_range(t, 1), options);
  }
  CHECK(check() <= bound);
}

TEST_CASE("pope gives the same bits on two threads", "[rotation][pope]") {
  const Index tokens = 1024, heads = 8, n = 64;
  const frequency_table table(pope_frequencies(n), tokens);
  const std::vector<float> x = testing::random_channels<float>(tokens * heads * n, testing::seed());
  std::vector<float> one(2 * x.size()), two(2 * x.size());
  pope<interleaved>(thd(x.data(), tokens, heads, n), thd(one.data(), tokens, heads, 2 * n), table, 0);
  pope<interleaved>(thd(x.data(), tokens, heads, n), thd(two.data(), tokens, heads, 2 * n), table, 0,
                    testing::own_threads(2));
  CHECK(testing::same_bits(one, two));
}

TEST_CASE("ids of pope may be written in braces", "[rotation][pope]") {
  const frequency_table table(pope_frequencies(2), 8);
  const pope_bias bias(Eigen::Array<double, 1, 2>(-0.1, -0.2));
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  const std::vector<int> ids = {3, 0, 7};
  std::vector<float> expected(12), out(12);
  const auto in = thd(x.data(), 3, 1, 2);
  pope<interleaved>(in, thd(expected.data(), 3, 1, 4), table, ids);
  pope<interleaved>(in, thd(out.data(), 3, 1, 4), table, {3, 0, 7});
  CHECK(testing::same_bits(out, expected));
  pope<interleaved>(in, thd(expected.data(), 3, 1, 4), table, bias, ids);
  pope<interleaved>(in, thd(out.data(), 3, 1, 4), table, bias, {3, 0, 7});
  CHECK(testing::same_bits(out, expected));
}

TEST_CASE("pope throws before it writes if an argument does not fit", "[rotation][pope]") {
  const frequency_table table(pope_frequencies(4), 10);
  std::vector<float> x(2 * 3 * 6, 1.0f), out(2 * 3 * 10);
  testing::fill_with_nan(out);
  const std::vector<float> before = out;
  const auto in = thd(x.data(), 2, 3, 6);
  const auto to = thd(out.data(), 2, 3, 10);
  CHECK(throws_saying<std::invalid_argument>([&] { pope<interleaved>(in, to.channels(0, 9), table); },
                                             "pope: out must be [batch, tokens, heads, head_dim + pairs]",
                                             "[1, 2, 3, 9]"));
  CHECK(throws_saying<std::invalid_argument>([&] { pope<interleaved>(in, to.head_range(0, 2), table); },
                                             "[1, 2, 2, 10]"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { pope<interleaved>(in.channels(0, 3), to.channels(0, 7), table); },
      "pope: x must have a channel for each pair, got 3 channels for 4 pairs"));
  CHECK(throws_saying<std::out_of_range>([&] { pope<interleaved>(in, to, table, 9); }, "position 10"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        pope<interleaved>(in, to, table, std::vector<int>{1, 2, 3});
      },
      "ids must be"));
  for (const auto& shape : {std::pair<Index, Index>{2, 4}, {3, 5}})
    CHECK(throws_saying<std::invalid_argument>(
        [&] { pope<interleaved>(in, to, table, pope_bias(matrix::Zero(shape.first, shape.second))); },
        "pope: bias must be [heads, pairs] = [3, 4]"));
  // Heads that become wider in place.
  CHECK(throws_saying<std::invalid_argument>(
      [&] { pope<interleaved>(thd(out.data() + 10, 1, 3, 6), to.token_range(0, 1), table); },
      "rope::pope: out must share no memory with x"));
  CHECK(testing::same_bits(out, before));

  matrix bias = matrix::Zero(2, 2);
  bias(1, 0) = std::numeric_limits<double>::quiet_NaN();
  CHECK(throws_saying<std::invalid_argument>([&] { pope_bias b(bias); }, "pope_bias: a phase must be finite",
                                             "head 1, channel 0"));
  CHECK(throws_saying<std::invalid_argument>([&] { pope_bias b(matrix(0, 4)); }, "not empty"));
  constexpr Index least = std::numeric_limits<Index>::min(), most = std::numeric_limits<Index>::max();
  for (const Index channels :
       {Index{0}, Index{-1}, least / 2 - 1, least, Index{32769}, most / 2, most / 2 + 1, most})
    CHECK(throws_saying<std::invalid_argument>(
        [&] { pope_frequencies(channels); },
        "rope::pope_frequencies: channels must be positive and at most 32768, got " +
            std::to_string(channels)));
  CHECK(pope_frequencies(32768).pairs() == 32768);
}
