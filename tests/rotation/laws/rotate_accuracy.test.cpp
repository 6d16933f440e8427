// SPDX-License-Identifier: MIT
#include <cmath>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

// The error of rotations against exact arithmetic, and against the laws of exact rotations.

using rope::Index;
using testing::for_each_layout;
using testing::name_of;

namespace {

constexpr std::uint32_t seed = 20240521;

/// |pair| of channel d of a head of 2 * pairs channels.
template <class Layout, class T>
testing::wide pair_norm(const std::vector<T>& x, Index d, Index pairs) {
  for (Index i = 0; i < pairs; ++i) {
    const Index u = Layout::first(i, pairs), v = Layout::second(i, pairs);
    if (u == d || v == d)
      return testing::hypot(static_cast<testing::wide>(x[static_cast<std::size_t>(u)]),
                            static_cast<testing::wide>(x[static_cast<std::size_t>(v)]));
  }
  return 0;
}

/// The largest difference of one head from another, in units of `bound(|pair|)`.
template <class Layout, class T, class Bound>
testing::wide worst_difference(const std::vector<T>& got, const std::vector<T>& expected, Bound bound) {
  const auto count = static_cast<Index>(got.size());
  testing::wide worst = 0;
  for (Index d = 0; d < count; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const auto difference = static_cast<testing::wide>(got[at]) - static_cast<testing::wide>(expected[at]);
    testing::raise_to(worst, testing::abs(difference) / bound(pair_norm<Layout>(expected, d, count / 2)));
  }
  return worst;
}

template <class Layout, class T, class S>
std::vector<T> rotated(std::vector<T> x, const rope::frequency_table<S>& table, std::int64_t position) {
  rope::rotate<Layout>(rope::thd(x.data(), 1, 1, static_cast<Index>(x.size())), table, position);
  return x;
}

template <class T>
testing::wide norm(const std::vector<T>& x) {
  testing::wide sum = 0;
  for (const T value : x) sum += static_cast<testing::wide>(value) * static_cast<testing::wide>(value);
  return testing::sqrt(sum);
}

template <class T>
testing::wide dot(const std::vector<T>& x, const std::vector<T>& y) {
  testing::wide sum = 0;
  for (std::size_t d = 0; d < x.size(); ++d)
    sum += static_cast<testing::wide>(x[d]) * static_cast<testing::wide>(y[d]);
  return sum;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("the error of a rotated channel is within its bound at every head_dim", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    for (Index head_dim = 2; head_dim <= 130; head_dim += 2) {
      const rope::frequencies frequencies(head_dim, 500000);
      const rope::frequency_table<S> table(frequencies, -3, 30);
      const std::vector<T> x =
          testing::random_channels<T>(5 * 3 * head_dim, seed + static_cast<std::uint32_t>(head_dim));
      std::vector<T> y(x.size());
      const auto in = rope::thd(x.data(), 5, 3, head_dim);
      rope::rotate_to<Layout>(in, rope::thd(y.data(), 5, 3, head_dim), table, -2);
      CAPTURE(name_of<Layout>, head_dim);
      CHECK(testing::worst_error<Layout, S>(in, rope::thd(std::as_const(y).data(), 5, 3, head_dim),
                                            frequencies, [](Index, Index t) { return t - 2; }) <= 1);
    }
  });
}

TEMPLATE_LIST_TEST_CASE("an attention_factor scales the exact rotation", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    for (const double factor : {0.5, 1.2, 1.138629436}) {
      const auto frequencies = rope::frequencies::custom(rope::frequencies(80).inv_freq(), factor);
      const rope::frequency_table<S> table(frequencies, 8);
      std::vector<T> x = testing::random_channels<T>(8 * 2 * 96, seed);
      const std::vector<T> before = x;
      rope::rotate<Layout>(rope::bhsd(x.data(), 1, 2, 8, 96), table);
      CAPTURE(name_of<Layout>, factor);
      CHECK(testing::worst_error<Layout, S>(rope::bhsd(before.data(), 1, 2, 8, 96),
                                            rope::bhsd(std::as_const(x).data(), 1, 2, 8, 96), frequencies,
                                            [](Index, Index t) { return t; }) <= 1);
    }
  });
}

// The error of the float result is at most 3 u, far below half an ulp of a 16-bit type. So the stored value
// is the exact one rounded, or its neighbour if the exact one is close to the midpoint of two.
TEMPLATE_TEST_CASE("a 16-bit channel is the exact value rounded once or a neighbour of it", "[rotation]",
                   Eigen::half, Eigen::bfloat16) {
  const Index head_dim = GENERATE(6, 128), pairs = head_dim / 2;  // one by one, and in packets
  CAPTURE(seed, head_dim);
  for_each_layout([=]<class Layout>(Layout) {
    const rope::frequency_table<float> table(rope::frequencies(head_dim), 100);
    const std::vector<TestType> x = testing::random_channels<TestType>(head_dim, seed);
    std::vector<testing::wide> wide;
    for (const TestType value : x) wide.push_back(static_cast<testing::wide>(value));
    Index equal = 0, neighbours = 0;
    for (Index position = 1; position < 100; ++position) {
      const std::vector<TestType> y = rotated<Layout>(x, table, position);
      for (Index i = 0; i < pairs; ++i) {
        const auto u = static_cast<std::size_t>(Layout::first(i, pairs)),
                   v = static_cast<std::size_t>(Layout::second(i, pairs));
        const auto c = static_cast<testing::wide>(table.cos(position)[i]),
                   s = static_cast<testing::wide>(table.sin(position)[i]);
        for (const auto& [d, exact] :
             {std::pair{u, wide[u] * c - wide[v] * s}, std::pair{v, wide[v] * c + wide[u] * s}}) {
          const auto rounded = static_cast<TestType>(static_cast<float>(exact));
          const auto off =
              testing::abs(static_cast<testing::wide>(y[d]) - static_cast<testing::wide>(rounded));
          equal += off == 0;
          neighbours += off <= tolerance::ulp<TestType>(exact);
        }
      }
    }
    CAPTURE(name_of<Layout>);
    CHECK(neighbours == 99 * head_dim);
    // 3 u of float cross a midpoint of half in 3 * 2^-24 / 2^-11 of all cases, more often if u c and v s
    // cancel: well below 1 in 100.
    CHECK(99 * head_dim - equal <= 99 * head_dim / 100);
  });
}

TEMPLATE_LIST_TEST_CASE("unrotate is the inverse of rotate", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    for (const Index head_dim : {2, 6, 30, 64, 80, 128, 130}) {
      const rope::frequency_table<S> table(rope::frequencies(head_dim), -100, 100);
      const std::vector<T> x =
          testing::random_channels<T>(head_dim, seed + static_cast<std::uint32_t>(head_dim));
      for (const std::int64_t position : {-100, -1, 0, 1, 99}) {
        std::vector<T> y = rotated<Layout>(x, table, position);
        rope::unrotate<Layout>(rope::thd(y.data(), 1, 1, head_dim), table, position);
        CAPTURE(name_of<Layout>, head_dim, position);
        CHECK(worst_difference<Layout>(y, x, tolerance::inverse_bound<T, S>) <= 1);
      }
    }
  });
}

// With m = 1.2 an entry m cos, m sin has an error of 0.93 u in the 2-norm, 1 / m^2 adds 0.72 u and their
// product 0.85 u. With 2.42 u for the arithmetic of each of the two rotations that is 8.3 u. A 16-bit channel
// is rounded once at m |pair|, which spreads to both channels and is divided by m, and once at the end.
TEMPLATE_LIST_TEST_CASE("unrotate also inverts an attention_factor of 1.2", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const auto bound = [](testing::wide pair) {
    using tolerance::ulp;
    const testing::wide stored =
        tolerance::is_16_bit<T> ? testing::sqrt(2.0L) / 1.2L * ulp<T>(1.2L * pair) / 2 + ulp<T>(pair) / 2 : 0;
    return 8.4L * tolerance::detail::u<T, S>() * pair + stored;
  };
  CAPTURE(seed);
  for_each_layout([&]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies::custom(rope::frequencies(90).inv_freq(), 1.2),
                                         100);
    const std::vector<T> x = testing::random_channels<T>(90, seed);
    for (const std::int64_t position : {0, 1, 17, 99}) {
      std::vector<T> y = rotated<Layout>(x, table, position), z(x.size());
      rope::unrotate_to<Layout>(rope::thd(y.data(), 1, 1, 90), rope::thd(z.data(), 1, 1, 90), table,
                                position);
      CAPTURE(name_of<Layout>, position);
      CHECK(worst_difference<Layout>(z, x, bound) <= 1);
    }
  });
}

// The factor 1 / m^2 of the inverse leaves the range of the type long before m does. A subnormal entry has an
// error of at most u m, so the bound of the factor 1.2 grows by sqrt(2) u.
using wide_types = std::tuple<testing::types<float, float>, testing::types<double, double>,
                              testing::types<double, float>, testing::types<float, double>>;
TEMPLATE_LIST_TEST_CASE("unrotate inverts every attention_factor that has an inverse", "[rotation]",
                        wide_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const auto bound = [](testing::wide pair) { return 9.9L * tolerance::detail::u<T, S>() * pair; };
  CAPTURE(seed);
  std::vector<int> exponents = {-126, -125, -100, -64, -63, -51, -50, -49, 49, 50, 51, 63, 64, 100, 125, 126};
  if (std::is_same_v<T, double> && std::is_same_v<S, double>)
    for (const int exponent : {1022, 1021, 800, 512, 511, 401, 400, 399})
      exponents.insert(exponents.end(), {exponent, -exponent});
  for_each_layout([&]<class Layout>(Layout) {
    for (const int exponent : exponents)
      for (const double part : {1.0, 1.2345}) {
        if (part > 1 && (exponent == 126 || exponent == 1022)) continue;
        if (tolerance::flushes_subnormals && std::abs(exponent) > 100) continue;  // m or 1 / m times a cosine
        const double m = std::ldexp(part, exponent);
        const rope::frequency_table<S> table(rope::frequencies::custom(rope::frequencies(90).inv_freq(), m),
                                             100);
        std::vector<T> x = testing::random_channels<T>(90, seed);
        for (T& value : x) value = std::ldexp(value, exponent < 0 ? 20 : -20);
        for (const std::int64_t position : {0, 1, 99}) {
          CAPTURE(name_of<Layout>, exponent, part, position);
          std::vector<T> y = rotated<Layout>(x, table, position);
          rope::unrotate<Layout>(rope::thd(y.data(), 1, 1, 90), table, position);
          CHECK(worst_difference<Layout>(y, x, bound) <= 1);
        }
      }
  });
}

TEMPLATE_TEST_CASE("unrotate throws if the attention_factor has no inverse in the type of the table",
                   "[rotation]", float, double) {
  constexpr double largest = std::is_same_v<TestType, float> ? 0x1p126 : 0x1p1022;
  const rope::frequencies above = rope::frequencies::custom(rope::frequencies(8).inv_freq(), 1.25 * largest);
  const rope::frequency_table<TestType> table(above, 10);
  std::vector<TestType> x(16, TestType(0.25)), before = x;
  const auto heads = rope::thd(x.data(), 1, 1, 8), others = rope::thd(x.data() + 8, 1, 1, 8);
  const auto rejected = [](const char* function, const auto& call) {
    CHECK(testing::throws_saying<std::invalid_argument>(
        call, std::string("rope::") + function + ": the attention_factor must be at most 2^" +
                  (std::is_same_v<TestType, float> ? "126 " : "1022 ")));
  };
  rejected("unrotate", [&] { rope::unrotate<rope::half_split>(heads, table, 3); });
  rejected("unrotate", [&] { rope::unrotate<rope::half_split>(heads, others, table, 3); });
  rejected("unrotate_to", [&] { rope::unrotate_to<rope::interleaved>(heads, others, table, 3); });
  CHECK(x == before);
  CHECK_NOTHROW(rope::rotate<rope::interleaved>(heads, table, 3));
}

TEMPLATE_LIST_TEST_CASE("rotating by a and then by b is rotating by a + b", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies(96), -200, 200);
    const std::vector<T> x = testing::random_channels<T>(96, seed);
    for (const auto& [a, b] : {std::pair{3, 4}, std::pair{-50, 120}, std::pair{100, -67}, std::pair{-1, 1}}) {
      CAPTURE(name_of<Layout>, a, b);
      const std::vector<T> twice = rotated<Layout>(rotated<Layout>(x, table, a), table, b);
      CHECK(worst_difference<Layout>(twice, rotated<Layout>(x, table, a + b), tolerance::group_bound<T, S>) <=
            1);
    }
  });
}

TEMPLATE_LIST_TEST_CASE("a rotation preserves the norm of every pair", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    constexpr Index pairs = 40;
    const rope::frequency_table<S> table(rope::frequencies(2 * pairs), 1000);
    const std::vector<T> x = testing::random_channels<T>(2 * pairs, seed), y = rotated<Layout>(x, table, 999);
    testing::wide worst = 0;
    for (Index d = 0; d < 2 * pairs; ++d) {
      const testing::wide pair = pair_norm<Layout>(x, d, pairs);
      worst = std::max(
          worst, testing::abs(pair_norm<Layout>(y, d, pairs) - pair) / tolerance::norm_bound<T, S>(pair));
    }
    CAPTURE(name_of<Layout>);
    CHECK(worst <= 1);
  });
}

TEMPLATE_TEST_CASE("a score depends only on the distance of its positions", "[rotation]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<double, float>)) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies(128, 500000), -100000, 131072);
    const std::vector<T> q = testing::random_channels<T>(128, seed),
                         k = testing::random_channels<T>(128, seed + 1);
    const testing::wide score = dot(rotated<Layout>(q, table, 5), k);
    for (const std::int64_t n : {-100000, -6, 1, 1000, 131000}) {
      CAPTURE(name_of<Layout>, n);
      const testing::wide shifted = dot(rotated<Layout>(q, table, n + 5), rotated<Layout>(k, table, n));
      CHECK(testing::abs(shifted - score) <= tolerance::score_bound<T, S>(norm(q), norm(k)));
    }
    CHECK(testing::abs(dot(rotated<Layout>(q, table, 6), k) - score) >
          tolerance::score_bound<T, S>(norm(q), norm(k)));
  });
}
