// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_NUMBERS_HPP
#define ROPE_BASE_NUMBERS_HPP

#include <algorithm>  // std::max, std::max_element, std::min
#include <bit>        // std::bit_cast
#include <concepts>   // std::integral, std::same_as
#include <cstdint>
#include <functional>  // std::equal_to
#include <limits>
#include <type_traits>

#include <rope/config.hpp>

/// Numbers: comparisons and conversions that compilers warn about or optimise away, the arithmetic type of
/// channels, tests of bits for infinities, and hashes.

namespace rope::inline ROPE_ABI::detail {

using std::bit_cast;

/// a == b, for comparisons that must be exact, for example of a factor with 1.
template <class A, class B>
constexpr bool equal(A a, B b) {
  return std::equal_to<>{}(a, b);
}

/// Whether x is neither infinite nor NaN. Tests the bits, because under -ffast-math std::isfinite may be
/// folded to true.
constexpr bool is_finite(double x) {
  constexpr std::uint64_t exponent = 0x7ff0000000000000u;
  return (bit_cast<std::uint64_t>(x) & exponent) != exponent;
}

/// Whether |x| <= 2^53, as tables need. Tests the bits, so that NaN is rejected under -ffast-math too.
constexpr bool is_within_2_53(double x) {
  constexpr std::uint64_t two_to_the_53 = 0x4340000000000000u, sign = std::uint64_t{1} << 63;
  return (bit_cast<std::uint64_t>(x) & ~sign) <= two_to_the_53;
}

/// Converts a count that fits in an Index. There is no cast if the types are equal, because compilers would
/// warn about it.
template <std::integral Count>
constexpr Index to_index(Count count) {
  if constexpr (std::same_as<Count, Index>)
    return count;
  else
    return static_cast<Index>(count);
}

/// The number of pieces of at most `size` elements that cover `count` elements: count / size, rounded up.
constexpr Index pieces_of(Index count, Index size) { return (count + size - 1) / size; }

/// Whether channels of type C are integers with a scale.
template <class C>
inline constexpr bool is_quantized = std::is_same_v<C, std::int8_t>;

/// The arithmetic type for channels of type T.
template <class T>
using arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// `count` channels in memory, as an Eigen row.
template <class T>
using channels_map = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using const_channels_map = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

/// Whether all of x[0 .. count) are finite.
template <class X>
bool all_finite(const X* x, Index count) {
  using A = arithmetic<X>;
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  constexpr bits exponent = sizeof(A) == 4 ? bits(0x7f800000u) : bits(0x7ff0000000000000u);
  const auto exponent_of = [x](Index i) { return bit_cast<bits>(static_cast<A>(x[i])) & exponent; };
  constexpr Index block = 16;  // g++ -O2 would reduce a single maximum to one number after every 16 numbers
  bits largest[block] = {};
  Index i = 0;
  for (; i + block <= count; i += block)
    for (Index j = 0; j < block; ++j) largest[j] = (std::max)(largest[j], exponent_of(i + j));
  for (; i < count; ++i) largest[0] = (std::max)(largest[0], exponent_of(i));
  return *std::max_element(largest, largest + block) != exponent;
}

/// x, or the largest finite number of its sign if x is infinite.
template <class A>
A saturated(A x) {
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  constexpr bits magnitude = static_cast<bits>(~bits(0)) >> 1,
                 infinity = sizeof(A) == 4 ? bits(0x7f800000u) : bits(0x7ff0000000000000u);
  const bits word = bit_cast<bits>(x);
  return bit_cast<A>(static_cast<bits>(word - bits((word & magnitude) == infinity)));
}

/// x as a number of A, saturated.
template <class A>
A saturated_to(double x) {
  constexpr double largest = static_cast<double>((std::numeric_limits<A>::max)());
  if constexpr (std::is_same_v<A, double>)
    return saturated(x);
  else
    return static_cast<A>((std::min)((std::max)(x, -largest), largest));
}

/// The finaliser of SplitMix64: every bit of the word affects every bit of the result.
constexpr std::uint64_t finalised(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

/// Folds a 64-bit word into a hash so that every bit of both affects every bit of the result.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  return finalised((hash ^ word) + 0x9e3779b97f4a7c15u);
}

/// Folds the shape [rows, columns] and the doubles value(r, c) into a hash.
template <class Value>
std::uint64_t mix(std::uint64_t hash, Index rows, Index columns, const Value& value) {
  hash = mix(mix(hash, static_cast<std::uint64_t>(rows)), static_cast<std::uint64_t>(columns));
  for (Index c = 0; c < columns; ++c)
    for (Index r = 0; r < rows; ++r) hash = mix(hash, bit_cast<std::uint64_t>(value(r, c)));
  return hash;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_NUMBERS_HPP
