// SPDX-License-Identifier: MIT
#include <rope/rotation/quantized_view.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

using rope::Index;
using rope::quantized_view;

namespace {

/// Whether every channel and scale in memory of [2, 3, 4, 5] has the offset that the letters of a factory
/// describe.
template <class Place>
void check_places(const quantized_view<std::int8_t>& x, const std::int8_t* data, const float* scales,
                  const Place& place) {
  CHECK((x.batch == 2 && x.tokens == 3 && x.heads == 4 && x.head_dim == 5 && x.size() == 120));
  long wrong = 0;
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 3; ++t)
      for (Index h = 0; h < 4; ++h)
        wrong += x.at(b, t, h) != data + place(b, t, h) * 5 || x.scale_at(b, t, h) != scales + place(b, t, h);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("the letters of a factory name the axes of integers and scales", "[rotation]") {
  std::vector<std::int8_t> data(120);
  std::vector<float> scales(24);
  check_places(rope::bshd(data.data(), scales.data(), 2, 3, 4, 5), data.data(), scales.data(),
               [](Index b, Index t, Index h) { return (b * 3 + t) * 4 + h; });
  check_places(rope::bhsd(data.data(), scales.data(), 2, 4, 3, 5), data.data(), scales.data(),
               [](Index b, Index t, Index h) { return (b * 4 + h) * 3 + t; });
  check_places(rope::sbhd(data.data(), scales.data(), 3, 2, 4, 5), data.data(), scales.data(),
               [](Index b, Index t, Index h) { return (t * 2 + b) * 4 + h; });
  const auto ragged = rope::thd(data.data(), scales.data(), 6, 4, 5);
  CHECK((ragged.batch == 1 && ragged.tokens == 6));
  CHECK((ragged.at(0, 5, 3) == data.data() + 115 && ragged.scale_at(0, 5, 3) == scales.data() + 23));
}

TEST_CASE("ranges of integers have the same ranges of scales", "[rotation]") {
  std::vector<std::int8_t> data(120);
  std::vector<float> scales(24);
  const auto x = rope::bhsd(data.data(), scales.data(), 2, 4, 3, 5);
  const quantized_view<const std::int8_t> window = x.batch_range(1, 1).token_range(1, 2).head_range(2, 2);
  CHECK((window.batch == 1 && window.tokens == 2 && window.heads == 2 && window.head_dim == 5));
  CHECK((window.scales.batch == 1 && window.scales.tokens == 2 && window.scales.heads == 2));
  CHECK(window.at(0, 1, 1) == x.at(1, 2, 3));
  CHECK(window.scale_at(0, 1, 1) == x.scale_at(1, 2, 3));
  static_assert(std::is_same_v<decltype(window.scales), rope::head_view<const float>>);
  CHECK_THROWS_AS(x.batch_range(1, 2), std::out_of_range);
  CHECK_THROWS_AS(x.token_range(-1, 1), std::out_of_range);
  CHECK_THROWS_AS(x.head_range(0, 5), std::out_of_range);
}

TEST_CASE("factories of quantized views throw for the extents for which those of heads throw", "[rotation]") {
  std::int8_t data[1] = {};
  float scales[1] = {};
  const auto rejects = [](const auto& call, const char* text) {
    return testing::throws_saying<std::invalid_argument>(call, text);
  };
  CHECK(rejects([&] { rope::bshd(data, scales, 1, -1, 2, 4); },
                "rope::bshd: extents must not be negative, got [1, -1, 2, 4]"));
  CHECK(rejects([&] { rope::bhsd(data, scales, -1, 2, 3, 4); },
                "rope::bhsd: extents must not be negative, got [-1, 2, 3, 4]"));
  CHECK(rejects([&] { rope::sbhd(data, scales, 5, 2, -3, 4); },
                "rope::sbhd: extents must not be negative, got [5, 2, -3, 4]"));
  CHECK(rejects([&] { rope::thd(data, scales, -5, 2, 4); },
                "rope::thd: extents must not be negative, got [1, -5, 2, 4]"));
  CHECK_THROWS_AS(rope::bhsd(data, scales, 1, 1, 1, -1), std::invalid_argument);
  CHECK_THROWS_AS(rope::sbhd(data, scales, (std::numeric_limits<Index>::max)(), 2, 1, 1), std::length_error);
  CHECK_THROWS_AS(rope::thd(data, scales, 1, (std::numeric_limits<Index>::max)(), 2), std::length_error);
}

TEST_CASE("heads that are quantized or dequantized must not overlap, and neither must their scales",
          "[rotation]") {
  std::vector<std::int8_t> data(12, 7);
  std::vector<float> scales(2, 7.0f), numbers(12, 1.0f);
  const auto x = rope::bshd(numbers.data(), 1, 2, 1, 6);
  auto same_data = rope::bshd(data.data(), scales.data(), 1, 2, 1, 6), same_scale = same_data;
  auto same_numbers = x;
  same_data.token_stride = same_scale.scales.token_stride = same_numbers.token_stride = 0;
  const auto rejects = [](const auto& call) {
    return testing::throws_saying<std::invalid_argument>(
        call, "quantize: the channels of a view that is written must not overlap, got a stride of 0");
  };
  CHECK(rejects([&] { rope::quantize(x, same_data); }));
  CHECK(rejects([&] { rope::quantize(x, same_scale); }));
  CHECK(rejects([&] { rope::dequantize(same_scale, same_numbers); }));
  // Heads without channels have scales all the same.
  CHECK(rejects([&] { rope::quantize(x.channels(0, 0), same_scale.channels(0, 0)); }));
  CHECK(data == std::vector<std::int8_t>(12, 7));
  CHECK(scales == std::vector<float>(2, 7.0f));
  CHECK_NOTHROW(rope::dequantize(same_data, x));
}

TEST_CASE("heads that are quantized or dequantized share no memory with the result", "[rotation]") {
  std::vector<float> numbers(12, 1.0f), scales(4, 7.0f);
  std::vector<std::int8_t> integers(12, 7);
  const auto x = rope::thd(numbers.data(), 2, 1, 6);
  const auto rejects = [](const auto& call, const char* text) {
    return testing::throws_saying<std::invalid_argument>(call, text);
  };
  const auto in_place = rope::thd(reinterpret_cast<std::int8_t*>(numbers.data() + 3), scales.data(), 2, 1, 6);
  const auto scales_in_x = rope::thd(integers.data(), numbers.data() + 10, 2, 1, 6);
  const auto scales_in_data =
      rope::thd(reinterpret_cast<std::int8_t*>(scales.data()), scales.data() + 2, 2, 1, 6);
  CHECK(rejects([&] { rope::quantize(x, in_place); }, "rope::quantize: x and out must share no memory"));
  CHECK(rejects([&] { rope::quantize(x, scales_in_x); }, "rope::quantize: x and out must share no memory"));
  CHECK(rejects([&] { rope::dequantize(in_place, x); }, "rope::dequantize: x and out must share no memory"));
  CHECK(rejects([&] { rope::dequantize(scales_in_x, x); }, "dequantize: x and out must share no memory"));
  CHECK(rejects([&] { rope::quantize(x, scales_in_data); }, "the channels and the scales of out must share"));
  CHECK(numbers == std::vector<float>(12, 1.0f));
  CHECK(scales == std::vector<float>(4, 7.0f));
}
