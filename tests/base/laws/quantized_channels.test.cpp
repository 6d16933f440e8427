// SPDX-License-Identifier: MIT
// Quantization of channels to int8 with one scale, and back.
#include <rope/base/quantized_channels.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

using namespace rope::detail;
using rope::Index;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }

struct quantized {
  float scale;
  std::vector<int> integers;
};
quantized of(const std::vector<float>& x) {
  std::vector<std::int8_t> out(x.size() + 1, std::int8_t{99});
  const float scale = quantize_channels(x.data(), static_cast<Index>(x.size()), out.data());
  CHECK(out.back() == 99);
  return {scale, std::vector<int>(out.begin(), out.end() - 1)};
}

template <class A>
void check_dequantized(A scale) {
  const Index longest = 3 * lanes<packet<A>> + 2;
  std::vector<std::int8_t> integers;
  for (Index i = 0; i < longest; ++i) integers.push_back(static_cast<std::int8_t>(i % 2 == 0 ? -i : 127 - i));
  for (Index count = 0; count <= longest; ++count) {
    CAPTURE(count);
    std::vector<A> out(std::size_t(longest + 1), A(99));
    dequantize_channels(integers.data(), count, scale, out.data());
    for (Index i = 0; i <= longest; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(out[at] == (i < count ? static_cast<A>(integers[at]) * scale : A(99)));
    }
  }
}

}  // namespace

TEST_CASE("integers are multiplied by their scale, and nothing after them is written", "[base]") {
  check_dequantized(0.37f);
  check_dequantized(-1.25f);
}

TEST_CASE("the largest channel is 127, ties go to even", "[base]") {
  // A scale of 1/8 makes every quotient exact.
  const auto exact = of({127 / 8.0f, 0.5f / 8, 1.5f / 8, 2.5f / 8, -0.5f / 8, -1.5f / 8, -127 / 8.0f,
                         126.5f / 8, 0.0f, -0.0f, 0.75f / 8, -63.25f / 8});
  CHECK(exact.scale == 0.125f);
  CHECK(exact.integers == std::vector<int>{127, 0, 2, 2, 0, -2, -127, 126, 0, 0, 1, -63});
  CHECK(of({-127.0f, 1.0f}).integers == std::vector<int>{-127, 1});

  const std::uint64_t seed = 1753;
  CAPTURE(seed);
  testing::random random(seed);
  for (int n = 0; n < 2000; ++n) {
    std::vector<float> x(static_cast<std::size_t>(random.integer(1, 40)));
    const int exponent = static_cast<int>(random.integer(-100, 100));
    float largest = 0;
    for (float& channel : x) {
      channel = static_cast<float>(random.scaled(exponent - 9, exponent));
      largest = (std::max)(largest, std::abs(channel));
    }
    const quantized seen = of(x);
    REQUIRE(seen.scale == largest / 127);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // A quotient of at most 127 has an error of two roundings of 2^-24, of the inverse and of the product,
      // before its own.
      const double quotient = static_cast<double>(x[i]) / static_cast<double>(seen.scale);
      REQUIRE(std::abs(quotient - seen.integers[i]) <= 0.5 + 127 * 2 * 0x1p-24);
    }
  }
}

TEST_CASE("heads without a scale become zeros", "[base]") {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, -infinity, nan, -nan})
    for (std::size_t at = 0; at < 5; ++at) {
      std::vector<float> x = {1, -2, 3, -4, 5};
      x[at] = bad;
      CAPTURE(at);
      const quantized seen = of(x);
      CHECK(is_nan(seen.scale));
      CHECK(seen.integers == std::vector<int>(5, 0));
    }
  const float least = 0x1p-118f;
  for (const float small : {0.0f, -0.0f, std::nextafter(least, 0.0f), -std::nextafter(least, 0.0f)}) {
    const quantized seen = of({small, 0.0f, small});
    CHECK(bits_of(seen.scale) == 0);
    CHECK(seen.integers == std::vector<int>(3, 0));
  }
  CHECK(of({0.0f, -least}).integers == std::vector<int>{0, -127});
  CHECK(of({0.0f, -least}).scale == least / 127);
  CHECK(of({std::numeric_limits<float>::max(), 0}).integers == std::vector<int>{127, 0});
  CHECK(bits_of(of({}).scale) == 0);
}

TEST_CASE("a scale that is NaN stays NaN, and every number below a limit is a number", "[base]") {
  const float most = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN(), tiny = std::numeric_limits<float>::denorm_min();
  for (const float scale : {0.0f, -0.0f, 1.0f, -2.5f, most, -most, tiny})
    CHECK(bits_of(usable_scale(scale)) == bits_of(scale));
  for (const float scale : {infinity, -infinity, nan, std::bit_cast<float>(0x7f800001u)})
    CHECK(is_nan(usable_scale(scale)));
  for (const float sign : {1.0f, -1.0f}) {
    CHECK(is_below(sign * 1.0f, 2.0f));
    CHECK(is_below(sign * std::nextafter(2.0f, 0.0f), 2.0f));
    CHECK_FALSE(is_below(sign * 2.0f, 2.0f));
    CHECK_FALSE(is_below(sign * 3.0f, 2.0f));
    CHECK_FALSE(is_below(sign * infinity, most));
    CHECK_FALSE(is_below(sign * nan, most));
    CHECK(is_below(sign * 0.0f, tiny));
  }
}
