// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_WIDE_INTEGER_HPP
#define ROPE_BASE_WIDE_INTEGER_HPP

#include <bit>  // std::countl_zero
#include <cstdint>

#include <rope/config.hpp>

/// Unsigned integers of 128 and 192 bits, with the operations that exact angles need.

namespace rope::inline ROPE_ABI::detail {

/// hi * 2^64 + lo. Every operation is modulo 2^128.
struct uint128 {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;

  friend constexpr bool operator==(const uint128&, const uint128&) = default;
  friend constexpr bool operator<(uint128 a, uint128 b) { return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo; }
  friend constexpr uint128 operator+(uint128 a, uint128 b) {
    const std::uint64_t sum = a.lo + b.lo;
    return {a.hi + b.hi + (sum < a.lo ? 1u : 0u), sum};
  }
  friend constexpr uint128 operator-(uint128 a) { return uint128{~a.hi, ~a.lo} + uint128{0, 1}; }
  friend constexpr uint128 operator-(uint128 a, uint128 b) {
    return {a.hi - b.hi - (a.lo < b.lo ? 1u : 0u), a.lo - b.lo};
  }
  /// Requires: places in [0, 127]
  friend constexpr uint128 operator<<(uint128 a, int places) {
    if (places >= 64) return {a.lo << (places - 64), 0};
    return {(a.hi << places) | (a.lo >> 1 >> (63 - places)), a.lo << places};
  }
  /// Requires: places in [0, 127]
  friend constexpr uint128 operator>>(uint128 a, int places) {
    if (places >= 64) return {0, a.hi >> (places - 64)};
    return {a.hi >> places, (a.lo >> places) | (a.hi << 1 << (63 - places))};
  }
};

/// hi * 2^128 + mid * 2^64 + lo. Every operation is modulo 2^192.
struct uint192 {
  std::uint64_t hi = 0;
  std::uint64_t mid = 0;
  std::uint64_t lo = 0;

  friend constexpr bool operator==(const uint192&, const uint192&) = default;
  friend constexpr uint192 operator+(uint192 a, uint192 b) {
    const std::uint64_t low = a.lo + b.lo, middle = a.mid + b.mid;
    const std::uint64_t carry = low < a.lo ? 1u : 0u, sum = middle + carry;
    // The two carries out of the middle exclude each other.
    return {a.hi + b.hi + (middle < a.mid ? 1u : 0u) + (sum < middle ? 1u : 0u), sum, low};
  }
  friend constexpr uint192 operator-(uint192 a) {
    const std::uint64_t carry = a.lo == 0 ? 1u : 0u;
    return {~a.hi + (a.lo == 0 && a.mid == 0 ? 1u : 0u), ~a.mid + carry, 0 - a.lo};
  }
};

/// -a if all bits of `sign` are set, a if none is. Has no branch.
constexpr uint192 negate_if(std::uint64_t sign, uint192 a) {
  return uint192{a.hi ^ sign, a.mid ^ sign, a.lo ^ sign} + uint192{0, 0, sign & 1};
}

/// The number of zero bits before the highest set bit.
constexpr int leading_zeros(uint128 a) {
  return a.hi != 0 ? std::countl_zero(a.hi) : 64 + std::countl_zero(a.lo);
}

/// a * b from four products of 32-bit halves: the portable version of `multiply`.
constexpr uint128 multiply_halves(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t low = 0xffffffffu;
  const std::uint64_t aa = a & low, ab = a >> 32, ba = b & low, bb = b >> 32;
  const std::uint64_t ll = aa * ba, lh = aa * bb, hl = ab * ba, hh = ab * bb;
  const std::uint64_t middle = (ll >> 32) + (lh & low) + (hl & low);
  return {hh + (lh >> 32) + (hl >> 32) + (middle >> 32), (middle << 32) | (ll & low)};
}

/// a * b, all 128 bits.
constexpr uint128 multiply(std::uint64_t a, std::uint64_t b) {
#if defined(__SIZEOF_INT128__)
  __extension__ using native = unsigned __int128;
  const native product = static_cast<native>(a) * b;
  return {static_cast<std::uint64_t>(product >> 64), static_cast<std::uint64_t>(product)};
#else
  return multiply_halves(a, b);
#endif
}

/// a * b modulo 2^192.
constexpr uint192 multiply(uint192 a, std::uint64_t b) {
  const uint128 low = multiply(a.lo, b), middle = multiply(a.mid, b);
  const uint128 upper = middle + uint128{a.hi * b, low.hi};
  return {upper.hi, upper.lo, low.lo};
}

/// a / divisor, rounded down.
constexpr uint128 divide(uint128 a, std::uint32_t divisor) {
  constexpr std::uint64_t low = 0xffffffffu;
  const std::uint64_t first = a.hi % divisor << 32 | a.lo >> 32;
  const std::uint64_t second = first % divisor << 32 | (a.lo & low);
  return {a.hi / divisor, (first / divisor) << 32 | second / divisor};
}

/// The upper half of a product.
constexpr std::uint64_t multiply_upper(std::uint64_t a, std::uint64_t b) { return multiply(a, b).hi; }

/// The upper 128 bits of the 256-bit product, at most 2 below the exact floor (the lowest partial products
/// carry into bits that no caller keeps).
constexpr uint128 multiply_upper(uint128 a, uint128 b) {
  const uint128 top = multiply(a.hi, b.hi);
  return top + uint128{0, multiply(a.hi, b.lo).hi} + uint128{0, multiply(a.lo, b.hi).hi};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_WIDE_INTEGER_HPP
