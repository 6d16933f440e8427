// SPDX-License-Identifier: MIT
#include <rope/tables/xpos.hpp>

#include <rope/attention/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/rotate.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_reference.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/reference.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using attention_call::axes;
using attention_call::operands;
using attention_call::random_operands;
using reference::tensor;
using rope::half_split;
using rope::Index;
using rope::interleaved;
using testing::throws_saying;

namespace {

/// Half an ulp of a number printed with `digits` digits.
double printed(double value, int digits) {
  return 0.5 * testing::pow(10.0, testing::floor(testing::log10(testing::abs(value))) + 1 - digits);
}

/// exp(sign rate (position - center) / scale_base), as in the paper's zeta.
testing::wide growth(Index i, Index rotary_dim, testing::wide position, testing::wide center,
                     testing::wide scale_base, int sign) {
  const auto d = static_cast<testing::wide>(rotary_dim);
  const testing::wide zeta =
      (20 * static_cast<testing::wide>(i) + 4 * d) / (14 * d);  // (2 i + 0.4 d) / (1.4 d)
  return testing::pow(zeta, sign * (position - center) / scale_base);
}

/// Every head rotated and scaled in long double, then rounded to double: token t is at start + t.
tensor exactly_rotated(tensor x, long start, long rotary_dim, double center, double scale_base, int sign) {
  const rope::frequencies frequencies(rotary_dim);
  const std::vector<double> inv_freq(frequencies.inv_freq().data(),
                                     frequencies.inv_freq().data() + frequencies.pairs());
  for (long b = 0; b < x.batch; ++b)
    for (long t = 0; t < x.tokens; ++t)
      for (long h = 0; h < x.heads; ++h) {
        std::vector<testing::wide> head;
        for (long d = 0; d < x.dim; ++d) head.push_back(x(b, t, h, d));
        head =
            reference::rotate(head, inv_freq, static_cast<testing::wide>(start + t), reference::half_split);
        for (long i = 0; i < rotary_dim / 2; ++i)
          for (const long d : {i, i + rotary_dim / 2})
            head[static_cast<std::size_t>(d)] *=
                growth(i, rotary_dim, static_cast<testing::wide>(start + t), center, scale_base, sign);
        for (long d = 0; d < x.dim; ++d)
          x(b, t, h, d) = static_cast<double>(head[static_cast<std::size_t>(d)]);
      }
  return x;
}

template <class T>
std::vector<T> rotated(const tensor& x, const rope::frequency_table<T>& table, std::int64_t start) {
  auto memory = attention_call::stored<T>(x);
  rope::rotate<half_split>(attention_call::view(memory, x), table, start);
  return memory;
}

}  // namespace

// Golden vector G14: d = 8, scale_base 512, four positions around 2, x = 1..8 interleaved, evaluated in
// double from lucidrains' formulas by a script that shares no code with this library.
TEMPLATE_TEST_CASE("a head of 8 has the published values", "[tables]", float, double) {
  const Eigen::ArrayXd rates = rope::xpos_rates(8);
  const double zeta[] = {0.2857143, 0.4642857, 0.6428571, 0.8214286};
  for (Index i = 0; i < 4; ++i)
    CHECK_THAT(testing::exp(rates(i)), testing::WithinAbs(zeta[i], printed(zeta[i], 7)));

  const rope::xpos<TestType> tables(rope::frequencies(8), 4, {.center = 2, .scale_base = 512});
  const auto check = [&](const rope::frequency_table<TestType>& table, int position,
                         const std::vector<double>& head) {
    std::vector<TestType> x = {1, 2, 3, 4, 5, 6, 7, 8};
    rope::rotate<interleaved>(rope::thd(x.data(), 1, 1, 8), table, position);
    for (std::size_t d = 0; d < 8; ++d) {
      // |(7, 8)| times a growth of at most 1.005. An entry has one rounding more than in a table of angles.
      const double bound = 3.75 * static_cast<double>(tolerance::unit_roundoff<TestType>()) *
                               testing::hypot(7.0, 8.0) * 1.005 +
                           printed(head[d], 9);
      CHECK_THAT(static_cast<double>(x[d]), testing::WithinAbs(head[d], bound));
    }
  };
  check(tables.queries(), 0,
        {1.0049056, 2.0098112, 3.00900476, 4.01200634, 5.008637, 6.0103644, 7.00538086, 8.00614956});
  check(tables.keys(), 0,
        {0.995118349, 1.9902367, 2.99102219, 3.98802959, 4.9913779, 5.98965348, 6.99462327, 7.99385516});
  check(tables.queries(), 3,
        {-1.26912342, -1.83437115, 1.68140709, 4.70085685, 4.81362144, 6.14197517, 6.97328889, 8.01788291});
  check(tables.keys(), 3,
        {-1.27534923, -1.84336983, 1.68645398, 4.71496688, 4.82193648, 6.15258481, 6.97864922, 8.02404621});
  const double scale_0[] = {1.004906, 1.003002, 1.001727, 1.000769};
  for (Index i = 0; i < 4; ++i)
    CHECK_THAT(testing::hypot(double(tables.queries().cos(0)(i)), double(tables.queries().sin(0)(i))),
               testing::WithinAbs(scale_0[i], printed(scale_0[i], 7) + 0x1p-23));
}

TEMPLATE_TEST_CASE("an entry is cos or sin times the growth", "[tables]", float, double) {
  using S = TestType;
  // 0.51 ulp, or 3 ulp of double: cos and sin, the growth, and their product, of a magnitude up to 2 ulp of
  // the entry each, plus the long double exponent of up to 40 with an error of 2^-59.
  const testing::wide allowed = std::is_same_v<S, float> ? 0.51L : 3.0L;
  const Index d = 64;
  const rope::frequencies frequencies(d);
  for (const auto& [center, scale_base] :
       {std::pair(0.0, 512.0), std::pair(-100.5, 64.0), std::pair(1e6, 3e5)}) {
    const rope::xpos<S> tables(frequencies, -700, 900, {.center = center, .scale_base = scale_base});
    CHECK(tables.center() == center);
    CHECK(tables.scale_base() == scale_base);
    testing::wide worst = 0;
    for (std::int64_t p = -700; p < 900; p += 37)
      for (Index i = 0; i < d / 2; ++i)
        for (const int sign : {1, -1}) {
          const auto& table = sign > 0 ? tables.queries() : tables.keys();
          // The growth is computed from the double rate that the library reports.
          const testing::wide size = testing::exp(static_cast<testing::wide>(sign * tables.rates()(i)) *
                                                  ((static_cast<testing::wide>(p) - center) / scale_base));
          const auto angle = static_cast<testing::wide>(p);
          const double inv_freq = frequencies.inv_freq()(i, 0);
          worst = std::max(
              {worst, tolerance::error_in_ulp(table.cos(p)(i), size * reference::cos(angle, inv_freq)),
               tolerance::error_in_ulp(table.sin(p)(i), size * reference::sin(angle, inv_freq))});
          const testing::wide published = growth(i, d, angle, center, scale_base, sign);
          CHECK(testing::abs(size / published - 1) <
                8 * tolerance::unit_roundoff<double>() * (1 + testing::abs(testing::log(published))));
        }
    CHECK(worst <= allowed);
  }
}

TEST_CASE("a length below 1 grows faster", "[tables]") {
  const Index d = 8;
  const rope::frequencies frequencies(d);
  const rope::xpos<double> tables(frequencies, 4, {.center = 2, .scale_base = 0.5});
  CHECK(tables.scale_base() == 0.5);
  for (Index i = 0; i < d / 2; ++i) {  // 3 ulp, for the reasons given above
    const testing::wide size = testing::exp(static_cast<testing::wide>(tables.rates()(i)) * (3 - 2) / 0.5L);
    const testing::wide exact = size * reference::cos(3, frequencies.inv_freq()(i, 0));
    CHECK(tolerance::error_in_ulp(tables.queries().cos(3)(i), exact) <= 3);
  }
}

TEST_CASE("a score depends only on the distance and decays with it", "[tables]") {
  testing::random numbers(testing::seed());
  const rope::xpos<double> tables(rope::frequencies(32), -3000, 3000, {.center = 100});
  std::vector<double> q(32), k(32);
  for (double& value : q) value = numbers.scaled(-2, 0);
  for (double& value : k) value = numbers.scaled(-2, 0);
  const auto score = [&](std::int64_t at, std::int64_t key) {
    auto a = q, b = k;
    rope::rotate<interleaved>(rope::thd(a.data(), 1, 1, 32), tables.queries(), at);
    rope::rotate<interleaved>(rope::thd(b.data(), 1, 1, 32), tables.keys(), key);
    double sum = 0, size = 0;
    for (std::size_t d = 0; d < 32; ++d) {
      sum += a[d] * b[d];
      size += testing::abs(a[d] * b[d]);
    }
    return std::pair(sum, size);
  };
  for (const std::int64_t distance : {0, 1, 7, 500, 2000}) {
    const auto [expected, size] = score(distance, 0);
    for (const std::int64_t shift : {-3000, -1, 3, 999}) {
      const auto [shifted, of] = score(shift + distance, shift);
      // 2 rotations of 4.2 u and 31 additions.
      CHECK_THAT(shifted, testing::WithinAbs(expected, 64 * 0x1p-53 * std::max(size, of)));
    }
  }
  // The magnitude of one pair's product is exp(rate * distance / scale_base).
  for (const std::int64_t distance : {-900, 0, 512, 2000})
    for (Index i = 0; i < 16; ++i) {
      const auto norm = [&](const rope::frequency_table<double>& table, std::int64_t p) {
        return testing::hypot(table.cos(p)(i), table.sin(p)(i));
      };
      const double product = norm(tables.queries(), distance) * norm(tables.keys(), 0);
      CHECK_THAT(product, testing::WithinRel(static_cast<double>(growth(
                                                 i, 32, static_cast<testing::wide>(distance), 0, 512, 1)),
                                             64 * 0x1p-53));
      if (distance > 0) CHECK(product < 1);
      if (distance < 0) CHECK(product > 1);
    }
}

TEMPLATE_TEST_CASE("unrotate divides by the growth, and the gradient with respect to the heads keeps it",
                   "[tables]", float, double) {
  using T = TestType;
  testing::random numbers(testing::seed());
  const auto u = static_cast<double>(tolerance::unit_roundoff<T>());
  const rope::xpos<T> tables(rope::frequencies::custom(rope::frequencies(16).inv_freq(), 1.25), 2000,
                             {.center = 700, .scale_base = 100});
  for (const auto* table : {&tables.queries(), &tables.keys()})
    for (const std::int64_t p : {0, 1, 700, 1999}) {
      const auto x = testing::random_channels<T>(numbers, 16, -3, 1),
                 g = testing::random_channels<T>(numbers, 16, -3, 1);
      auto y = x, d_x = g;
      rope::rotate<half_split>(rope::thd(y.data(), 1, 1, 16), *table, p);
      rope::rotate_gradient<half_split>(rope::thd(d_x.data(), 1, 1, 16), *table, p);
      for (Index i = 0; i < 8; ++i) {
        const auto a = static_cast<std::size_t>(i), b = a + 8;
        const double c = double(table->cos(p)(i)), s = double(table->sin(p)(i)), size = testing::hypot(c, s);
        const double bound = 4 * u * size * testing::hypot(double(g[a]), double(g[b]));
        CHECK_THAT(double(d_x[a]), testing::WithinAbs(c * double(g[a]) + s * double(g[b]), bound));
        CHECK_THAT(double(d_x[b]), testing::WithinAbs(c * double(g[b]) - s * double(g[a]), bound));
      }
      rope::unrotate<half_split>(rope::thd(y.data(), 1, 1, 16), *table, p);
      for (std::size_t d = 0; d < 16; ++d)
        CHECK_THAT(
            double(y[d]),
            testing::WithinAbs(double(x[d]), 9 * u * testing::hypot(double(x[d % 8]), double(x[d % 8 + 8]))));
    }
}

TEST_CASE("cached keys stay valid, token by token and with longer tables", "[tables]") {
  std::mt19937 generator(testing::seed());
  const long tokens = 40, dim = 16;
  const operands x = random_operands<float>(generator, {1, tokens, tokens, 4, 2, dim, dim});
  const rope::xpos<float> small(rope::frequencies(dim), 25, {.center = 20, .scale_base = 30}),
      large(rope::frequencies(dim), 64, {.center = 20, .scale_base = 30});
  CHECK(small.keys().fingerprint() == large.keys().fingerprint());
  CHECK(small.queries().fingerprint() == large.queries().fingerprint());
  CHECK(small.keys().fingerprint() != small.queries().fingerprint());

  const tensor whole = attention_call::output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto out) {
    rope::attention<half_split>(q, k, v, out, large);
  });
  const tensor stepped =
      attention_call::output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto out) {
        rope::kv_cache<float> cache(1, tokens, 2, dim);
        std::vector<float> query(static_cast<std::size_t>(4 * dim));
        for (Index t = 0; t < tokens; ++t) {
          const rope::xpos<float>& tables = t < 25 ? small : large;
          cache.template append<half_split>(k.token_range(t, 1), v.token_range(t, 1), tables.keys());
          const auto one = rope::thd(query.data(), 1, 4, dim);
          rope::rotate_to<half_split>(q.token_range(t, 1), one, tables.queries(), t);
          rope::attention(one, cache.keys(), cache.values(), out.token_range(t, 1));
        }
        // A table of another center, base, rate or side makes other keys.
        const auto other = [&](const rope::xpos_growth& growth) {
          return rope::xpos<float>(rope::frequencies(dim), 64, growth);
        };
        Eigen::ArrayXd rates = rope::xpos_rates(dim);
        rates(3) *= 1.5;
        cache.template check_table<half_split>(large.keys());
        CHECK_THROWS_AS(cache.template check_table<half_split>(large.queries()), std::invalid_argument);
        CHECK_THROWS_AS(
            cache.template check_table<half_split>(other({.center = 21, .scale_base = 30}).keys()),
            std::invalid_argument);
        CHECK_THROWS_AS(
            cache.template check_table<half_split>(other({.center = 20, .scale_base = 31}).keys()),
            std::invalid_argument);
        CHECK_THROWS_AS(cache.template check_table<half_split>(
                            other({.center = 20, .scale_base = 30, .rates = rates}).keys()),
                        std::invalid_argument);
      });
  // Both are within the bound of exact arithmetic on scaled queries and keys, of up to 3.8 u each more.
  const operands exact = {exactly_rotated(x.q, 0, dim, 20, 30, 1), exactly_rotated(x.k, 0, dim, 20, 30, -1),
                          x.v};
  const double bound = 3 * reference::attention_bound<float>(exact.q, exact.k, exact.v, {});
  CHECK(reference::worst_error<float>(whole, reference::attention(exact.q, exact.k, exact.v, {}), bound) <=
        1);
  CHECK(reference::worst_error<float>(stepped, reference::attention(exact.q, exact.k, exact.v, {}), bound) <=
        1);
}

TEST_CASE("attention uses the positions of the options", "[tables]") {
  std::mt19937 generator(testing::seed());
  const operands x = random_operands<double>(generator, {2, 5, 9, 2, 2, 8, 4});
  const rope::xpos<double> tables(rope::frequencies(8), -20, 60, {.center = 11, .scale_base = 40});
  const std::vector<std::int64_t> queries = {30, 31, 32, 33, 40, 7, 8, 9, 10, 11};
  const std::vector<std::int64_t> keys = {-1, 0, 1, 2, 3, 31, 32, 33, 50, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  const rope::attention_options options = {.window = 31, .query_positions = queries, .key_positions = keys};
  const tensor got = attention_call::output_of<double>(x, axes::bshd, [&](auto q, auto k, auto v, auto out) {
    rope::attention<half_split>(q, k, v, out, tables, options);
  });
  operands rotated_operands = x;
  auto q = attention_call::stored<double>(x.q), k = attention_call::stored<double>(x.k);
  rope::rotate<half_split>(attention_call::view(q, x.q), tables.queries(), queries);
  rope::rotate<half_split>(attention_call::view(k, x.k), tables.keys(), keys);
  rotated_operands.q = attention_call::loaded(q, x.q);
  rotated_operands.k = attention_call::loaded(k, x.k);
  const tensor expected = attention_call::output_of<double>(
      rotated_operands, axes::bshd,
      [&](auto a, auto b, auto c, auto out) { rope::attention(a, b, c, out, options); });
  CHECK(got.values == expected.values);
  CHECK(expected.largest() > 0);
}

TEST_CASE("xPos without a causal mask, or beyond the range of its entries, throws", "[tables]") {
  std::mt19937 generator(1);
  const operands x = random_operands<float>(generator, {1, 3, 3, 1, 1, 8, 8});
  const rope::frequencies frequencies(8);
  const rope::xpos<float> tables(frequencies, 3, {.center = 1});
  const tensor out = attention_call::output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto to) {
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rope::attention<half_split>(q, k, v, to, tables, {.causal = false}); },
        "rope::attention: xPos needs causal attention"));
    CHECK(throws_saying<std::out_of_range>(
        [&] { rope::attention<half_split>(q, k, v, to, rope::xpos<float>(frequencies, 2, {.center = 1})); },
        "rope::attention: position 2 is outside the table's [0, 2)"));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rope::attention<half_split>(q, k, v, to, tables, {.window = -1}); },
        "rope::attention: window"));
  });
  CHECK(out.values == tensor(1, 3, 1, 8, attention_call::unwritten).values);

  using tables_of_float = rope::xpos<float>;
  CHECK(throws_saying<std::invalid_argument>([&] { tables_of_float(frequencies, 5, 4, {.center = 1}); },
                                             "rope::xpos: last must not be below first", "[5, 4)"));
  CHECK(throws_saying<std::invalid_argument>([&] { tables_of_float(frequencies, -1, {.center = 1}); },
                                             "[0, -1)"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { tables_of_float(frequencies, 5, {.center = std::numeric_limits<double>::quiet_NaN()}); },
      "rope::xpos: center must be finite"));
  for (const double scale_base : {0.0, -1.0, std::numeric_limits<double>::infinity()})
    CHECK(throws_saying<std::invalid_argument>(
        [&] { tables_of_float(frequencies, 5, {.center = 1, .scale_base = scale_base}); },
        "rope::xpos: scale_base must be finite and positive"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { tables_of_float(frequencies, 5, {.center = 1, .rates = Eigen::ArrayXd::Zero(3)}); },
      "rope::xpos: rates must be [pairs] = 4, got 3"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        tables_of_float(
            frequencies, 5,
            {.center = 1, .rates = Eigen::ArrayXd::Constant(4, std::numeric_limits<double>::infinity())});
      },
      "rope::xpos: a rate must be finite"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { tables_of_float(rope::frequencies::custom(Eigen::ArrayXXd::Ones(4, 2)), 5, {.center = 1}); },
      "rope::xpos: positions have one axis, got frequencies of 2 axes"));
  // ln(1 / 0.2857) = 1.2528 per 512 positions: float ends at 126 ln 2 = 87.3, after 35,692 positions.
  CHECK(throws_saying<std::invalid_argument>([&] { tables_of_float(frequencies, 35700, {.center = 0}); },
                                             "rope::xpos: the growth exp(-87.3",
                                             "of pair 0 at position 35699", "move the center"));
  const auto with_m = [](double m) { return rope::frequencies::custom(Eigen::ArrayXd::Ones(4), m); };
  CHECK(throws_saying<std::invalid_argument>([&] { tables_of_float(with_m(0x1p127), 3, {.center = 1}); },
                                             "rope::xpos: attention_factor must be in [2^-126, 2^126], got"));
  CHECK(throws_saying<std::invalid_argument>([&] { tables_of_float(with_m(0x1p125), 400, {.center = 1}); },
                                             "rope::xpos: the growth exp(",
                                             ") for an attention_factor of 4.2535295865117308e+37; move"));
  CHECK(throws_saying<std::length_error>(
      [&] {
        tables_of_float(frequencies, std::int64_t{1} << 61, {.center = 0, .rates = Eigen::ArrayXd::Zero(4)});
      },
      "rope::xpos: "));
  // Without growth, any center and length give the exact rotation.
  const rope::xpos<float> still(frequencies, 3,
                                {.center = 1e300, .scale_base = 1e-100, .rates = Eigen::ArrayXd::Zero(4)});
  const rope::frequency_table<float> exact(frequencies, 3);
  CHECK((still.queries().cos() == exact.cos()).all());
  CHECK((still.keys().sin() == exact.sin()).all());
  CHECK_NOTHROW(tables_of_float(frequencies, 35600, {.center = 0}));
  CHECK_NOTHROW(tables_of_float(frequencies, 35700, {.center = 17850}));
  CHECK_NOTHROW(rope::xpos<double>(frequencies, 35700, {.center = 0}));
  for (const Index dim : {0, -2, 7}) CHECK_THROWS_AS(rope::xpos_rates(dim), std::invalid_argument);
  for (const double gamma : {0.0, -1.0, std::numeric_limits<double>::infinity()})
    CHECK_THROWS_AS(rope::xpos_rates(8, gamma), std::invalid_argument);
}
