// SPDX-License-Identifier: MIT
// Integers of several words, sums that may overflow their type, and hashes, against arithmetic bit by bit and
// published values.
#include <rope/base/integer_list.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>

#include <algorithm>
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

/// Bits of each word from the lowest on, words from the highest on.
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

template <std::size_t size>
std::array<bool, 2 * size> product(const std::array<bool, size>& a, const std::array<bool, size>& b) {
  std::array<bool, 2 * size> result = {};
  for (std::size_t i = 0; i < size; ++i) {
    if (!a[i]) continue;
    std::array<bool, 2 * size> shifted = {};
    std::copy(b.begin(), b.end(), shifted.begin() + static_cast<std::ptrdiff_t>(i));
    result = sum(result, shifted);
  }
  return result;
}

}  // namespace

TEST_CASE("integers of two and three words add and negate bit by bit", "[base]") {
  const std::uint64_t seed = 181;
  CAPTURE(seed);
  testing::random random(seed);
  // Words that carry, or just do not.
  const auto word = [&] {
    const std::uint64_t all = ~std::uint64_t{0};
    const std::uint64_t words[] = {0, 1, all, all - 1, std::uint64_t{1} << 63, random.bits()};
    return words[random.integer(0, 5)];
  };
  for (int i = 0; i < testing::draws(20000); ++i) {
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

TEST_CASE("integers of two and three words begin at zero", "[base]") {
  CHECK(uint128{} == uint128{0, 0});
  CHECK(uint192{} == uint192{0, 0, 0});
}

TEST_CASE("products of extents fit up to the largest number, and always if one extent is zero", "[base]") {
  using rope::detail::product_fits;
  constexpr Index most = std::numeric_limits<Index>::max();
  CHECK(product_fits({}));
  CHECK(product_fits({0, most, most}));
  CHECK(product_fits({most, most, 0}));
  CHECK(product_fits({1, most}));
  CHECK(product_fits({1, most, 1}));
  CHECK_FALSE(product_fits({1, most, 2}));
  CHECK(product_fits({most / 3, 3}));
  CHECK_FALSE(product_fits({most / 3 + 1, 3}));
  CHECK(product_fits({most / 4, 2}));
  CHECK(product_fits({most / 2 + 1, 1}));
  CHECK_FALSE(product_fits({most / 2 + 1, 2}));
  CHECK_FALSE(product_fits({most, most, most, most}));
  CHECK(product_fits({6, 7}, 42));
  CHECK_FALSE(product_fits({6, 7}, 41));
}

TEST_CASE("products of words are sums of shifted bits", "[base]") {
  using rope::detail::multiply, rope::detail::multiply_halves, rope::detail::multiply_upper;
  const std::uint64_t seed = 191;
  CAPTURE(seed);
  testing::random random(seed);
  // Halves of words that carry, or just do not.
  const auto word = [&] {
    const std::uint64_t halves[] = {0, 1, 0xffffffffu, 0xfffffffeu, 0x80000000u, random.bits() >> 32};
    return halves[random.integer(0, 5)] << 32 | halves[random.integer(0, 5)];
  };
  for (int i = 0; i < testing::draws(3000); ++i) {
    const uint192 a = {word(), word(), word()};
    const uint128 b = {word(), word()};
    const auto exact = product(bits_of<2>({a.mid, a.lo}), bits_of<2>({b.hi, b.lo}));  // 256 bits
    const uint128 low = multiply(a.lo, b.lo), halves = multiply_halves(a.lo, b.lo);
    const uint192 wide = multiply(a, b.lo);
    const auto of_low = product(bits_of<1>({a.lo}), bits_of<1>({b.lo}));
    REQUIRE(bits_of<2>({low.hi, low.lo}) == of_low);
    REQUIRE(halves == low);
    const auto whole = product(bits_of<3>({a.hi, a.mid, a.lo}), bits_of<3>({0, 0, b.lo}));
    const auto modulo = bits_of<3>({wide.hi, wide.mid, wide.lo});
    REQUIRE(std::equal(modulo.begin(), modulo.end(), whole.begin()));

    const uint128 upper = multiply_upper({a.mid, a.lo}, b);
    bits<2> floor = {};
    std::copy(exact.begin() + 128, exact.end(), floor.begin());
    const auto missing = sum(floor, negative(bits_of<2>({upper.hi, upper.lo})));
    REQUIRE((missing == bits<2>{} || missing == bits_of<2>({0, 1}) || missing == bits_of<2>({0, 2})));
  }
}

TEST_CASE("sums and differences are valid positions up to the last one", "[base]") {
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

// Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (java.util.SplittableRandom):
// the first numbers of the generator with seed 0, as its published implementations give them.
TEST_CASE("hashes are those of SplitMix64, and depend on every number", "[base]") {
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
