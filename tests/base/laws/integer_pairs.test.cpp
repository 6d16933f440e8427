// SPDX-License-Identifier: MIT
// Products of integers in registers give the sums of plain loops.
#include <rope/base/simd/integer_pairs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/base/quantized_channels.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/wide.hpp"

namespace {

using rope::detail::integer_floats;
using rope::detail::integer_products;
using rope::detail::load_first_pairs;
using packets = integer_products<integer_floats>;
using one = integer_products<float>;
constexpr auto lanes = static_cast<std::size_t>(packets::lanes);

/// Random integers, including both ends of their range.
template <class X>
std::vector<X> integers(std::mt19937& generator, std::size_t count, int least, int most) {
  std::vector<X> x(count);
  for (X& value : x) {
    const auto kind = generator() % 8;
    value = static_cast<X>(
        kind == 0   ? least
        : kind == 1 ? most
                    : least + static_cast<int>(generator() % static_cast<unsigned>(most - least + 1)));
  }
  return x;
}

}  // namespace

TEST_CASE("products of pairs of integers are exact in every lane", "[base]") {
  const std::uint32_t seed = 401;
  std::mt19937 generator(seed);
  CAPTURE(seed, lanes);
  for (int round = 0; round < 200; ++round) {
    const auto queries = integers<std::int16_t>(generator, 2 * lanes, -32767, 32767);
    const auto keys = integers<std::int8_t>(generator, 2 * lanes, -128, 127);
    const auto before = integers<std::int32_t>(generator, 2 * lanes, -1000000000, 1000000000);
    const auto count = static_cast<rope::Index>(generator() % (2 * lanes + 1));
    auto of_registers = packets::load_sums(before.data());
    // Compares the product of whole registers with that of the first channels of one.
    of_registers.even =
        packets::multiply_add(packets::load(queries.data()), packets::load(keys.data()), of_registers.even);
    of_registers.odd = packets::multiply_add(load_first_pairs<packets>(queries.data(), count),
                                             load_first_pairs<packets>(keys.data(), count), of_registers.odd);
    std::vector<std::int32_t> got(2 * lanes), expected(2 * lanes);
    packets::store_sums(got.data(), of_registers.even, of_registers.odd);
    // In memory, sums are in the order of channels, while unpacking alternates every four.
    const std::size_t half = std::min<std::size_t>(lanes, 4);
    for (std::size_t i = 0; i < 2 * lanes; ++i) {
      const bool is_odd = i / half % 2 == 1;
      const std::size_t lane = i / (2 * half) * half + i % half;
      const auto at = static_cast<rope::Index>(2 * lane);
      expected[i] = before[i];
      for (rope::Index d = at; d < at + 2; ++d)
        if (!is_odd || d < count)
          expected[i] += queries[static_cast<std::size_t>(d)] * keys[static_cast<std::size_t>(d)];
    }
    CHECK(got == expected);
  }
}

TEST_CASE("pairs of tokens are multiplied by their pair of weights, in the channels of the sums", "[base]") {
  const std::uint32_t seed = 402;
  std::mt19937 generator(seed);
  CAPTURE(seed, lanes);
  for (int round = 0; round < 200; ++round) {
    const auto weights = integers<std::int16_t>(generator, 2, -32767, 32767);
    const auto first = integers<std::int8_t>(generator, 2 * lanes, -128, 127),
               second = integers<std::int8_t>(generator, 2 * lanes, -128, 127);
    const auto before = integers<std::int32_t>(generator, 2 * lanes, -1000000000, 1000000000);
    auto sums = packets::load_sums(before.data());
    const auto tokens = packets::of_tokens(packets::load(first.data()), packets::load(second.data()));
    sums.even = packets::multiply_add(packets::fill(weights.data()), tokens.even, sums.even);
    sums.odd = packets::multiply_add(packets::fill(weights.data()), tokens.odd, sums.odd);
    std::vector<std::int32_t> got(2 * lanes), expected(2 * lanes);
    packets::store_sums(got.data(), sums.even, sums.odd);
    for (std::size_t i = 0; i < 2 * lanes; ++i)
      expected[i] = before[i] + weights[0] * first[i] + weights[1] * second[i];
    CHECK(got == expected);

    std::vector<std::int32_t> twin(2 * lanes);
    for (std::size_t i = 0; i < 2 * lanes; i += 2) {
      auto of = one::load_sums(before.data() + i);
      const auto pair = one::of_tokens(one::load(first.data() + i), one::load(second.data() + i));
      of.even = one::multiply_add(one::fill(weights.data()), pair.even, of.even);
      of.odd = one::multiply_add(one::fill(weights.data()), pair.odd, of.odd);
      one::store_sums(twin.data() + i, of.even, of.odd);
    }
    CHECK(twin == expected);
  }
}

TEST_CASE("the lanes of several registers are summed, as many registers as lanes", "[base]") {
  const std::uint32_t seed = 403;
  std::mt19937 generator(seed);
  CAPTURE(seed, lanes);
  for (int round = 0; round < 50; ++round) {
    packets::sums registers[lanes];
    std::vector<std::int32_t> expected(lanes), got(lanes);
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto queries = integers<std::int16_t>(generator, 2 * lanes, -32767, 32767);
      const auto keys = integers<std::int8_t>(generator, 2 * lanes, -128, 127);
      registers[i] =
          packets::multiply_add(packets::load(queries.data()), packets::load(keys.data()), packets::zero());
      for (std::size_t d = 0; d < 2 * lanes; ++d) expected[i] += queries[d] * keys[d];
    }
    packets::store_sums_of_lanes(got.data(), registers);
    CHECK(got == expected);
  }
}

TEST_CASE("channels are rounded to the nearest step, for any number of steps", "[base]") {
  const std::uint32_t seed = 404;
  std::mt19937 generator(seed);
  for (const std::int32_t most : {127, 300, 32703, 32767}) {
    CAPTURE(seed, most);
    std::vector<float> x(200);
    for (float& value : x) value = static_cast<float>(generator()) / 2147483648.0f - 1;
    x[17] = -1.5f;
    std::vector<std::int16_t> got(x.size());
    const float scale =
        rope::detail::quantize_channels(x.data(), static_cast<rope::Index>(x.size()), got.data(), most);
    CHECK(got[17] == -most);
    // x / scale has two roundings of half a unit in 2^24 each.
    const double slack = 0.5 + 3 * most * 0x1p-24;
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      testing::raise_to(worst, std::abs(static_cast<double>(x[i]) * most / 1.5 - got[i]));
    CHECK(static_cast<double>(scale) == static_cast<double>(1.5f / static_cast<float>(most)));
    CHECK(worst <= slack);
    CHECK(worst > 0.4);
    // Heads whose scale has no finite inverse become zeros.
    for (float& value : x) value *= 0x1p-120f;
    const float none =
        rope::detail::quantize_channels(x.data(), static_cast<rope::Index>(x.size()), got.data(), most);
    const bool is_small = 1.5 * 0x1p-120 < 0x1p-125 * most;
    CHECK((none > 0) != is_small);
    CHECK((got[17] == 0) == is_small);
  }
}
