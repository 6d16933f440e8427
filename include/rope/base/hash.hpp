// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_HASH_HPP
#define ROPE_BASE_HASH_HPP

#include <bit>  // std::bit_cast
#include <cstdint>

#include <rope/config.hpp>

/// Hashes by which tables and layouts are told apart.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Folds a 64-bit word into a hash so that every bit of both reaches every bit of the result (the finaliser
/// of SplitMix64).
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) + 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

/// Folds the shape [rows, columns] and the doubles value(r, c) into a hash.
template <class Value>
std::uint64_t mix(std::uint64_t hash, Index rows, Index columns, const Value& value) {
  hash = mix(mix(hash, static_cast<std::uint64_t>(rows)), static_cast<std::uint64_t>(columns));
  for (Index c = 0; c < columns; ++c)
    for (Index r = 0; r < rows; ++r) hash = mix(hash, std::bit_cast<std::uint64_t>(value(r, c)));
  return hash;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_HASH_HPP
