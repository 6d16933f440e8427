// SPDX-License-Identifier: MIT
#include <rope/rotation/rotate.hpp>
#include <rope/tables/given_table.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"

// Tables whose entries have another type than the arithmetic: each entry is converted once, to the value in a
// table of that type, or is multiplied in double if it would exceed the range of float.

using namespace rope;
using testing::for_each_layout;
using testing::random_channels;
using testing::same_bits;

namespace {

constexpr std::uint32_t seed = 21;
constexpr Index tokens = 3, heads = 2;

/// The channels after a rotation with entries cos[i] and sin[i] of type A, one at a time.
template <class Layout, class A, class T, class Cos, class Sin>
std::vector<T> rotated(std::vector<T> x, Index head_dim, Index pairs, const Cos& cos, const Sin& sin) {
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < pairs; ++i) {
        T* head = x.data() + (t * heads + h) * head_dim;
        T &u = head[Layout::first(i, pairs)], &v = head[Layout::second(i, pairs)];
        const A c = cos(t, i), s = sin(t, i), a = static_cast<A>(u), b = static_cast<A>(v);
        const A minus = b * -s, plus = a * s;
        u = static_cast<T>(std::fma(a, c, minus));
        v = static_cast<T>(std::fma(b, c, plus));
      }
  return x;
}

/// Whether a build multiplies and adds in one instruction, as the reference above does.
constexpr bool fuses =
#if defined(__FMA__)
    true;
#else
    false;
#endif

}  // namespace

TEMPLATE_TEST_CASE("entries of double rotate float channels as a table of float does", "[rotation]", float,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  CAPTURE(seed);
  for_each_layout([&]<class Layout>(Layout) {
    for (const Index head_dim : {2, 8, 36, 72, 100, 128, 258, 600}) {
      CAPTURE(testing::name_of<Layout>, head_dim);
      const frequencies of = frequencies::custom(frequencies(head_dim).inv_freq(), 1.25);
      const frequency_table<double> doubles(of, 40);
      const frequency_table<float> floats(of, 40);
      const Index pairs = head_dim / 2;
      bool rounded_alike = true;
      for (Index p = 30; p < 30 + tokens; ++p)
        for (Index i = 0; i < pairs; ++i)
          rounded_alike = rounded_alike && static_cast<float>(doubles.cos(p)(i)) == floats.cos(p)(i) &&
                          static_cast<float>(doubles.sin(p)(i)) == floats.sin(p)(i);
      REQUIRE(rounded_alike);  // at these positions double rounding changes no entry
      const std::vector<T> x = random_channels<T>(tokens * heads * head_dim, seed);
      std::vector<T> by_doubles = x, by_floats = x;
      rotate<Layout>(bshd(by_doubles.data(), 1, tokens, heads, head_dim), doubles, 30);
      rotate<Layout>(bshd(by_floats.data(), 1, tokens, heads, head_dim), floats, 30);
      CHECK(same_bits(by_doubles, by_floats));
      CHECK_FALSE(same_bits(by_doubles, x));
      if (fuses)
        CHECK(same_bits(by_doubles,
                        rotated<Layout, float>(
                            x, head_dim, pairs,
                            [&](Index t, Index i) { return static_cast<float>(doubles.cos(30 + t)(i)); },
                            [&](Index t, Index i) { return static_cast<float>(doubles.sin(30 + t)(i)); })));
    }
  });
}

TEST_CASE("entries of float rotate double channels exactly as doubles of their value", "[rotation]") {
  CAPTURE(seed);
  for_each_layout([&]<class Layout>(Layout) {
    for (const Index head_dim : {2, 6, 36, 128}) {
      CAPTURE(testing::name_of<Layout>, head_dim);
      const frequency_table<float> table(frequencies(head_dim), 40);
      const std::vector<double> x = random_channels<double>(tokens * heads * head_dim, seed);
      std::vector<double> y = x;
      rotate<Layout>(bshd(y.data(), 1, tokens, heads, head_dim), table, 30);
      const std::vector<double> expected = rotated<Layout, double>(
          x, head_dim, head_dim / 2, [&](Index t, Index i) { return double{table.cos(30 + t)(i)}; },
          [&](Index t, Index i) { return double{table.sin(30 + t)(i)}; });
      if (fuses) CHECK(same_bits(y, expected));
      for (std::size_t d = 0; d < x.size(); ++d)
        CHECK(std::abs(y[d] - expected[d]) <=
              4 * std::numeric_limits<double>::epsilon());  // channels below 1
    }
  });
}

TEST_CASE("unrotating with a table of double divides by the square of its magnitude", "[rotation]") {
  CAPTURE(seed);
  for_each_layout([&]<class Layout>(Layout) {
    constexpr Index head_dim = 72;
    const double m = 1.7;
    const frequency_table<double> table(frequencies::custom(frequencies(head_dim).inv_freq(), m), 40);
    const std::vector<float> x = random_channels<float>(tokens * heads * head_dim, seed);
    std::vector<float> y = x;
    unrotate<Layout>(bshd(y.data(), 1, tokens, heads, head_dim), table, 30);
    const std::vector<float> expected = rotated<Layout, float>(
        x, head_dim, head_dim / 2,
        [&](Index t, Index i) { return static_cast<float>(table.cos(30 + t)(i) * (1 / (m * m))); },
        [&](Index t, Index i) { return static_cast<float>(table.sin(30 + t)(i) * -(1 / (m * m))); });
    if (fuses) CHECK(same_bits(y, expected));
    for (std::size_t d = 0; d < x.size(); ++d)
      CHECK(std::abs(y[d] - expected[d]) <= 2 * std::numeric_limits<float>::epsilon());
  });
}

TEST_CASE("entries beyond the range of float rotate small float channels", "[rotation]") {
  for_each_layout([&]<class Layout>(Layout) {
    constexpr Index head_dim = 16, pairs = head_dim / 2;
    const double m = 0x1p150;
    const frequency_table<double> table(frequencies::custom(frequencies(head_dim).inv_freq(), m), 8);
    std::vector<float> x(head_dim, 0.0f);
    for (Index i = 0; i < pairs; ++i) x[static_cast<std::size_t>(Layout::first(i, pairs))] = 0x1p-100f;
    rotate<Layout>(bshd(x.data(), 1, 1, 1, head_dim), table, 5);
    for (Index i = 0; i < pairs; ++i) {
      const float u = x[static_cast<std::size_t>(Layout::first(i, pairs))],
                  v = x[static_cast<std::size_t>(Layout::second(i, pairs))];
      CHECK(u == static_cast<float>(table.cos(5)(i) * 0x1p-100));
      CHECK(v == static_cast<float>(table.sin(5)(i) * 0x1p-100));
    }
  });
}

TEMPLATE_TEST_CASE("entries beyond the range of float rotate 16-bit channels", "[rotation]", Eigen::half,
                   Eigen::bfloat16) {
  using T = TestType;
  for_each_layout([&]<class Layout>(Layout) {
    constexpr Index head_dim = 16, pairs = head_dim / 2;
    const frequency_table<double> angles(frequencies::custom(frequencies(head_dim).inv_freq(), 0x1p150), 8);
    const frequency_table<double> given = table_of_entries<double>(
        Eigen::ArrayXXd::Constant(8, pairs, 0x1p150), Eigen::ArrayXXd::Constant(8, pairs, 0x1p149));
    for (const auto* table : {&angles, &given}) {
      std::vector<T> zeros(head_dim, T(0));
      rotate<Layout>(bshd(zeros.data(), 1, 1, 1, head_dim), *table, 5);
      for (const T channel : zeros) CHECK(channel == T(0));
      if constexpr (std::is_same_v<T, Eigen::bfloat16>) {  // a half times 2^150 is a half for 0 only
        std::vector<T> x(head_dim, T(0));
        for (Index i = 0; i < pairs; ++i) x[static_cast<std::size_t>(Layout::first(i, pairs))] = T(0x1p-100f);
        rotate<Layout>(bshd(x.data(), 1, 1, 1, head_dim), *table, 5);
        for (Index i = 0; i < pairs; ++i) {
          CHECK(x[static_cast<std::size_t>(Layout::first(i, pairs))] ==
                T(static_cast<float>(table->cos(5)(i) * 0x1p-100)));
          CHECK(x[static_cast<std::size_t>(Layout::second(i, pairs))] ==
                T(static_cast<float>(table->sin(5)(i) * 0x1p-100)));
        }
      }
    }
  });
}
