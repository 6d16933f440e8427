// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_OTHER_ROTATIONS_HPP
#define ROPE_BENCH_OTHER_ROTATIONS_HPP

#include <rope/tables.hpp>

#include <functional>

/// Other ways to rotate floats [tokens, heads, head_dim] in place by rows 1 .. tokens of the same table.

namespace bench {

struct rotated_shape {
  rope::Index tokens, heads, head_dim;
};

/// Loops over tokens, heads and pairs.
template <class Layout>
void plain_loop(float* x, const rope::frequency_table<float>& table, const rotated_shape& s);

/// Eigen expressions: arrays (half_split), or a product of complex arrays (interleaved). Work that a model
/// does once is done in the constructor.
template <class Layout>
std::function<void(float* x)> eigen_expression(const rope::frequency_table<float>& table,
                                               const rotated_shape& s);

}  // namespace bench

#endif  // ROPE_BENCH_OTHER_ROTATIONS_HPP
