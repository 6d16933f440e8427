// SPDX-License-Identifier: MIT
// Integers of several words, sums that may leave their type, and hashes, against arithmetic bit by bit and published values.
#include <rope/base/hash.hpp>
#include <rope/base/integer_range.hpp>
#include <rope/base/wide_integer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>

#include "support/catch.hpp"
#include "support/random.hpp"

using rope::Index;
using rope::detail::uint128;
using rope::detail::uint192;

namespace {

/// Bits from the lowest on, of words from the highest on.
template <std::size_t words>
using bits = std::array<bool, 64 * words>;

template <std::size_t words>
bits<words> bits_of(const std::array<std::uint64_t, words>& number) {
  bits<words> result = {};
  for (std::size_t i = 0; i < 64 * words; ++i) result[i] = (number[words - 1 - i / 64] >> (i % 64) & 1) != 0;
  return result;
}

template <std::size_t size>
std::array<bool, size> sum(const std::array<bool, size>& a, const std::array<bool, size>& b,
                           bool carry = false) {
  std::array<bool, size> result = {};
  for (std::size_t i = 0; i < size; ++i) {
    result[i] = (a[i] != b[i]) != carry;
    carry = (a[i] && b[i]) || (carry && (a[i] || b[i]));
  }
  return result;
}

template <std::size_t size>
std::array<bool, size> negative(std::array<bool, size> a) {
  for (bool& bit : a) bit = !bit;
  return sum(a, {}, true);
}

}  // namespace

TEST_CASE("integers of two and three words add and change their sign as bits do", "[base]") {
  const std::uint64_t seed = 181;
  CAPTURE(seed);
  testing::random random(seed);
  // Words that carry, or just do not.
  const auto word = [&] {
    const std::uint64_t all = ~std::uint64_t{0};
    const std::uint64_t words[] = {0, 1, all, all - 1, std::uint64_t{1} << 63, random.bits()};
    return words[random.integer(0, 5)];
  };
  for (int i = 0; i < 20000; ++i) {
    const uint192 a = {word(), word(), word()}, b = {word(), word(), word()}, c = a + b, n = -a;
    const auto of = [](const uint192& x) { return bits_of<3>({x.hi, x.mid, x.lo}); };
    REQUIRE(of(c) == sum(of(a), of(b)));
    REQUIRE(of(n) == negative(of(a)));
    const uint128 d = {a.hi, a.lo}, e = {b.hi, b.lo}, f = d + e, m = -d;
    const auto of_two = [](const uint128& x) { return bits_of<2>({x.hi, x.lo}); };
    REQUIRE(of_two(f) == sum(of_two(d), of_two(e)));
    REQUIRE(of_two(m) == negative(of_two(d)));
  }
}

TEST_CASE("sums and differences are positions up to the last one", "[base]") {
  using rope::detail::difference_is_position, rope::detail::sum_is_position;
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                         most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t d : {1, 2, 100}) {
    CAPTURE(d);
    CHECK(sum_is_position(most - d, d));
    CHECK_FALSE(sum_is_position(most - d + 1, d));
    CHECK(sum_is_position(least + d, -d));
    CHECK_FALSE(sum_is_position(least + d - 1, -d));
    CHECK(difference_is_position(most - d, -d));
    CHECK_FALSE(difference_is_position(most - d + 1, -d));
    CHECK(difference_is_position(least + d, d));
    CHECK_FALSE(difference_is_position(least + d - 1, d));
  }
  for (const std::int64_t p : {least, std::int64_t{0}, most}) {
    CHECK(sum_is_position(p, 0));
    CHECK(difference_is_position(p, 0));
  }
  CHECK(sum_is_position(most, least));
  CHECK_FALSE(difference_is_position(0, least));
}

// Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (java.util.SplittableRandom): the first numbers
// of the generator with seed 0, as its published implementations give them.
TEST_CASE("hashes are those of SplitMix64, and see every number", "[base]") {
  using rope::detail::mix;
  CHECK(mix(0, 0) == 0xe220a8397b1dcdafu);
  CHECK(mix(0x9e3779b97f4a7c15u, 0) == 0x6e789e6aa1b965f4u);
  CHECK(mix(0, 0x9e3779b97f4a7c15u * 2) == 0x06c45d188009454fu);
  std::set<std::uint64_t> seen;
  for (Index changed = -1; changed < 6; ++changed)
    seen.insert(mix(7, 3, 2, [&](Index r, Index c) { return 3 * c + r == changed ? 0.5 : 0.25; }));
  CHECK(seen.size() == 7);
  const auto zero = [](Index, Index) { return 0.0; };
  CHECK(mix(7, 3, 2, zero) != mix(7, 2, 3, zero));
}
