// SPDX-License-Identifier: MIT
#include <rope/rotation.hpp>

namespace ROPE_INSTRUCTION_SET {

void rotated(float* x, long head_dim);

void rotated(float* x, long head_dim) {
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 8);
  rope::rotate<rope::half_split>(rope::thd(x, 1, 1, head_dim), table, 3);
}

}  // namespace ROPE_INSTRUCTION_SET
