// SPDX-License-Identifier: MIT
// Sums of products in double: every channel counts once, and the library decides about fusing, not the
// compiler.
#include <cstddef>
#include <cstdint>
#include <rope/base/simd/channel_rows.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using rope::Index;
using rope::detail::channels_per_step;
using rope::detail::sum_of_products;

TEMPLATE_TEST_CASE("a sum of products contains every product once", "[base]", float, double) {
  testing::random numbers(testing::seed());
  constexpr Index most = 3 * channels_per_step + 5;
  std::vector<TestType> x, y;
  std::int64_t expected = 0;  // all sums are integers below 2^24, so exact in any order
  for (Index count = 0; count <= most; ++count) {
    CAPTURE(count);
    CHECK(sum_of_products(x.data(), y.data(), count) == static_cast<double>(expected));
    const std::int64_t a = numbers.integer(-500, 500), b = numbers.integer(-500, 500);
    x.push_back(static_cast<TestType>(a));
    y.push_back(static_cast<TestType>(b));
    expected += a * b;
  }
}

TEST_CASE("a product of doubles is fused with its sum as multiply_add fuses it", "[base]") {
  volatile double step = 0x1p-30;           // not a constant: clang fuses those anywhere
  const double x = 1 + step, y = 1 - step;  // x y - 1 = -2^-60 if it is rounded once, otherwise 0
  const double expected = rope::detail::multiply_add(x, y, -1.0);
  for (const Index count : {2 * channels_per_step, channels_per_step + 1}) {
    CAPTURE(count);
    std::vector<double> a(static_cast<std::size_t>(count)), b(a.size());
    a[0] = -1;
    b[0] = 1;
    a[channels_per_step] = x;
    b[channels_per_step] = y;
    CHECK(sum_of_products(a.data(), b.data(), count) == expected);
  }
}
