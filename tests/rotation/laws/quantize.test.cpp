// SPDX-License-Identifier: MIT
#include <rope/rotation/quantized_view.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/wide.hpp"

using rope::Index;

namespace {

/// Heads [1, tokens, 1, dim], quantized.
struct rounded_heads {
  std::vector<std::int8_t> integers;
  std::vector<float> scales;

  template <class X>
  rounded_heads(const std::vector<X>& x, Index dim)
      : integers(x.size()), scales(x.size() / static_cast<std::size_t>(dim)) {
    rope::quantize(rope::thd(x.data(), tokens(), 1, dim), view(dim));
  }
  Index tokens() const { return static_cast<Index>(scales.size()); }
  rope::quantized_view<std::int8_t> view(Index dim) {
    return rope::thd(integers.data(), scales.data(), tokens(), 1, dim);
  }
};

/// |x - scale i| as a multiple of the documented bound of quantize, and how often an integer is not the
/// nearest.
struct errors {
  testing::wide worst = 0;
  long beyond_127 = 0;
};
template <class X>
errors errors_of(const std::vector<X>& x, const rounded_heads& got, Index dim) {
  errors result;
  for (std::size_t n = 0; n < x.size(); ++n) {
    const auto scale = static_cast<testing::wide>(got.scales[n / static_cast<std::size_t>(dim)]);
    const testing::wide off =
        testing::abs(static_cast<testing::wide>(x[n]) - scale * static_cast<testing::wide>(got.integers[n]));
    testing::raise_to(result.worst, off / (scale * (0.5L + 0x1p-15L)));
    result.beyond_127 += got.integers[n] == -128;
  }
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("integers are within half a scale of every channel", "[rotation]", float, Eigen::half,
                   Eigen::bfloat16) {
  const std::uint64_t seed = 5101;
  testing::random numbers(seed);
  for (Index dim = 1; dim <= 130; ++dim) {
    const auto x = testing::random_channels<TestType>(numbers, 7 * dim, -7, 1);
    rounded_heads got(x, dim);
    const errors e = errors_of(x, got, dim);
    CAPTURE(seed, dim);
    CHECK(e.worst <= 1);
    CHECK(e.beyond_127 == 0);
    // The scale is that of the largest channel, which is 127 or -127.
    for (Index t = 0; t < got.tokens(); ++t) {
      testing::wide largest = 0;
      int found = 0;
      for (Index d = 0; d < dim; ++d) {
        const auto n = static_cast<std::size_t>(t * dim + d);
        largest = (std::max)(largest, testing::abs(static_cast<testing::wide>(x[n])));
        found = (std::max)(found, std::abs(int{got.integers[n]}));
      }
      CHECK(found == 127);
      CHECK(testing::abs(127 * static_cast<testing::wide>(got.scales[static_cast<std::size_t>(t)]) -
                         largest) <= largest * 0x1p-22L);
    }
  }
}

TEST_CASE("channels of every magnitude are rounded in the same way", "[rotation]") {
  const std::uint64_t seed = 5102;
  testing::random numbers(seed);
  const Index dim = 33;
  for (int exponent = -117; exponent <= 126; ++exponent) {
    const auto x = testing::random_channels<float>(numbers, 4 * dim, exponent, exponent);
    rounded_heads got(x, dim);
    CAPTURE(seed, exponent);
    CHECK(errors_of(x, got, dim).worst <= 1);
  }
  // The largest float.
  std::vector<float> x = {(std::numeric_limits<float>::max)(), -1e38f, 0};
  rounded_heads got(x, 3);
  CHECK(got.integers == std::vector<std::int8_t>{127, -37, 0});
}

TEST_CASE("ties are rounded to even integers and signs are kept", "[rotation]") {
  std::vector<float> x = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, 0, -0.0f, 3, -127};
  const rounded_heads got(x, static_cast<Index>(x.size()));
  CHECK(got.scales[0] == 1);
  CHECK(got.integers == std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -2, 126, -126, 0, 0, 3, -127});
}

TEST_CASE("a head of zeros stays zeros", "[rotation]") {
  for (const float largest : {0.0f, 0x1p-119f, -0x1.fffffep-119f, 1e-45f}) {
    std::vector<float> x = {0, largest, -0.0f};
    const rounded_heads got(x, 3);
    CHECK(got.scales[0] == 0);
    CHECK(got.integers == std::vector<std::int8_t>{0, 0, 0});
  }
  const rounded_heads smallest(std::vector<float>{0x1p-118f, 0, -0x1p-119f}, 3);
  CHECK(smallest.integers == std::vector<std::int8_t>{127, 0, -64});
}

TEMPLATE_TEST_CASE("a head with a channel that is NaN has a scale of NaN", "[rotation]", float, Eigen::half,
                   Eigen::bfloat16) {
  const auto infinity = static_cast<float>(Eigen::NumTraits<TestType>::infinity());
  const auto nan = static_cast<float>(Eigen::NumTraits<TestType>::quiet_NaN());
  for (const float bad : {infinity, -infinity, nan, -nan})
    for (std::size_t at = 0; at < 20; ++at) {
      std::vector<TestType> x(60, static_cast<TestType>(1.0f));
      x[20 + at] = static_cast<TestType>(bad);
      rounded_heads got(x, 20);
      CHECK((got.scales[0] == got.scales[2] && std::abs(127 * got.scales[0] - 1) < 1e-6f));
      // Compared by their bits, which -ffast-math does not change.
      CHECK((std::bit_cast<std::uint32_t>(got.scales[1]) & 0x7fffffffu) > 0x7f800000u);
      CHECK(got.integers[20 + at] == 0);
      std::vector<TestType> back(60);
      rope::dequantize(got.view(20), rope::thd(back.data(), 3, 1, 20));
      CHECK(std::abs(static_cast<float>(back[19]) - 1) < 1e-6f);
      const float nothing = static_cast<float>(back[20]);
      CHECK((std::bit_cast<std::uint32_t>(nothing) & 0x7fffffffu) > 0x7f800000u);
    }
}

TEMPLATE_TEST_CASE("a scale with any bits of a NaN makes its head NaN", "[rotation]", float, Eigen::half,
                   Eigen::bfloat16) {
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u, 0x7f800000u}) {
    const std::vector<std::int8_t> integers(37, 3);
    const float scale = std::bit_cast<float>(bits);
    std::vector<TestType> got(37, static_cast<TestType>(1.0f));
    rope::dequantize(rope::thd(integers.data(), &scale, 1, 1, 37), rope::thd(got.data(), 1, 1, 37));
    for (const TestType channel : got)
      CHECK((std::bit_cast<std::uint32_t>(static_cast<float>(channel)) & 0x7fffffffu) > 0x7f800000u);
  }
}

TEMPLATE_TEST_CASE("integers times scales are rounded once", "[rotation]", float, Eigen::half,
                   Eigen::bfloat16) {
  const Index dim = GENERATE(1, 3, 4, 8, 15, 16, 17, 64, 130);
  std::vector<std::int8_t> integers(static_cast<std::size_t>(4 * dim));
  for (std::size_t n = 0; n < integers.size(); ++n)
    integers[n] = static_cast<std::int8_t>(int(n * 89 % 256) - 128);
  std::vector<float> scales = {0.37f, -0.011f, 0, 1.7e-3f};
  std::vector<TestType> got(integers.size());
  rope::dequantize(rope::thd(integers.data(), scales.data(), 4, 1, dim), rope::thd(got.data(), 4, 1, dim));
  long wrong = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    volatile const float exact = static_cast<float>(
        static_cast<double>(scales[n / static_cast<std::size_t>(dim)]) * static_cast<double>(integers[n]));
    wrong += !(static_cast<TestType>(float{exact}) == got[n]);
  }
  CHECK(wrong == 0);
}

TEST_CASE("heads in any order of axes, with gaps, are quantized in place", "[rotation]") {
  const std::uint64_t seed = 5103;
  testing::random numbers(seed);
  const auto x = testing::random_channels<float>(numbers, 2 * 6 * 5 * 24, -7, 1);
  const auto heads = rope::bhsd(x.data(), 2, 5, 6, 24).token_range(1, 4).head_range(1, 3).channels(2, 17);
  std::vector<std::int8_t> integers(2 * 8 * 5 * 17, 99);
  std::vector<float> scales(2 * 8 * 5, 99);
  auto frame = rope::bshd(integers.data(), scales.data(), 2, 8, 5, 17);
  const auto out = frame.token_range(2, 4).head_range(1, 3);
  rope::quantize(heads, out);
  std::vector<float> back(2 * 4 * 3 * 17);
  const auto loaded = rope::sbhd(back.data(), 4, 2, 3, 17);
  rope::dequantize(out, loaded);
  float worst = 0;
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 4; ++t)
      for (Index h = 0; h < 3; ++h)
        for (Index d = 0; d < 17; ++d)
          testing::raise_to(worst,
                            std::abs(loaded.at(b, t, h)[d] - heads.at(b, t, h)[d]) / *out.scale_at(b, t, h));
  CAPTURE(seed);
  CHECK(worst <= 0.5001f);
  long outside = 0;
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 8; ++t)
      for (Index h = 0; h < 5; ++h)
        if (t < 2 || t >= 6 || h < 1 || h >= 4)
          outside +=
              *frame.scale_at(b, t, h) != 99 || *frame.at(b, t, h) != 99 || frame.at(b, t, h)[16] != 99;
  CHECK(outside == 0);
}

TEST_CASE("quantization gives the same bits on threads", "[rotation]") {
  const std::uint64_t seed = 5104;
  testing::random numbers(seed);
  const Index tokens = 3000, dim = 64;  // 1.5 MB: enough for two pieces
  const auto x = testing::random_channels<float>(numbers, 2 * tokens * dim, -7, 1);
  rounded_heads alone(x, dim);
  std::vector<std::int8_t> integers(x.size());
  std::vector<float> scales(alone.scales.size()), numbers_alone(x.size()), numbers_shared(x.size());
  const auto shared = rope::thd(integers.data(), scales.data(), 2 * tokens, 1, dim);
  rope::quantize(rope::thd(x.data(), 2 * tokens, 1, dim), shared, testing::own_threads(2));
  CAPTURE(seed);
  CHECK((integers == alone.integers && scales == alone.scales));
  rope::dequantize(shared, rope::thd(numbers_alone.data(), 2 * tokens, 1, dim));
  rope::dequantize(shared, rope::thd(numbers_shared.data(), 2 * tokens, 1, dim), testing::own_threads(2));
  CHECK(testing::same_bits(numbers_alone, numbers_shared));
}

TEST_CASE("quantization throws if views do not fit and writes nothing", "[rotation]") {
  std::vector<float> x(24, 1);
  std::vector<std::int8_t> integers(24, 99);
  std::vector<float> scales(4, 99);
  const auto heads = rope::thd(x.data(), 2, 2, 6);
  const auto good = rope::thd(integers.data(), scales.data(), 2, 2, 6);
  const auto rejected = [&](auto call, const char* rule) {
    CHECK_THROWS_WITH(call(), testing::ContainsSubstring(rule));
    CHECK(integers == std::vector<std::int8_t>(24, 99));
    CHECK(scales == std::vector<float>(4, 99));
    CHECK(x == std::vector<float>(24, 1));
  };
  auto other = good;
  other.head_dim = 5;
  rejected([&] { rope::quantize(heads, other); }, "quantize: both views must have the same shape");
  rejected([&] { rope::dequantize(other, heads); }, "dequantize: both views must have the same shape");
  other = good;
  other.scales.heads = 1;
  rejected([&] { rope::quantize(heads, other); }, "quantize: scales must be [1, 2, 2, 1], got [1, 2, 1, 1]");
  other = good;
  other.scales.data = nullptr;
  rejected([&] { rope::quantize(heads, other); }, "a quantized view must have data and scales");
  other = good;
  other.data = nullptr;
  rejected([&] { rope::dequantize(other, heads); }, "a quantized view must have data and scales");
  other = good;
  other.tokens = other.scales.tokens = -1;
  rejected([&] { rope::quantize(heads, other); }, "must not be negative");
  auto nothing = heads;
  nothing.data = nullptr;
  rejected([&] { rope::quantize(nothing, good); }, "a view must have data");
  // Views without elements need none.
  rope::quantize(rope::thd(static_cast<float*>(nullptr), 0, 2, 6),
                 rope::thd(static_cast<std::int8_t*>(nullptr), static_cast<float*>(nullptr), 0, 2, 6));
}
