// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_OTHER_ROTATIONS_HPP
#define ROPE_BENCH_OTHER_ROTATIONS_HPP

#include <rope/tables.hpp>

#include <functional>
#include <string>
#include <vector>

/// Other ways to write the rotation of floats [tokens, heads, head_dim] by the same table.

namespace bench {

struct rotation_way {
  std::string name;  // what/layout
  /// The rotation of `x` by the rows 0 .. tokens - 1 of `table`, with everything made that a model would make
  /// once.
  std::function<std::function<void()>(float* x, const rope::frequency_table<float>& table, rope::Index tokens,
                                      rope::Index heads, rope::Index head_dim)>
      prepare;
};

/// Plain loops, Eigen array expressions, a complex product.
std::vector<rotation_way> plain_ways();

/// PyTorch's tensor expressions; there where its C++ library is installed.
std::vector<rotation_way> torch_ways();

}  // namespace bench

#endif  // ROPE_BENCH_OTHER_ROTATIONS_HPP
