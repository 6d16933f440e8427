// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_BLOCK_PARTS_HPP
#define ROPE_TESTS_BLOCK_PARTS_HPP

/// The tested blocks, and small pieces of the reference's arguments.

#include <cstddef>
#include <vector>

#include "support/block.hpp"

namespace block_parts {

inline const testing::block_kind kinds[] = {
    {},                                                                        // grouped queries
    {.heads = 3, .kv_heads = 3, .bias = true},                                 // one key head per query head
    {.heads = 4, .kv_heads = 1, .head_dim = 8, .value_dim = 5, .out_dim = 7},  // one key head; other values
    {.bias = true, .norm = true},                                              // Qwen 3
    {.norm = true, .norm_offset = 1},                                          // Gemma 3
};

inline std::vector<long long> counted(std::size_t count, long long first = 0) {
  std::vector<long long> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(first + static_cast<long long>(i));
  return result;
}

/// Rows [first, first + count) of a matrix, for the reference.
template <class T>
reference::matrix part(const testing::rows_of<T>& x, rope::Index first, rope::Index count) {
  return testing::exact(x.middleRows(first, count));
}

inline const reference::sees_key causal = [](std::size_t i, std::size_t j) { return j <= i; };
inline const reference::sees_key everything = [](std::size_t, std::size_t) { return true; };

/// Frequencies of 4 of the channels of a head.
inline const rope::frequencies narrow(4, 50.0);

}  // namespace block_parts

#endif  // ROPE_TESTS_BLOCK_PARTS_HPP
