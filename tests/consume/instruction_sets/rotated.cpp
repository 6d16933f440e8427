// SPDX-License-Identifier: MIT
#include <rope/rotation.hpp>
#include <written.hpp>

#if !defined(FLAG_OF_APP) || !defined(FLAG_OF_LIBRARY) || __cplusplus <= 202002L || defined(linux)
#error "this instruction set is compiled without the flags of app"
#endif

namespace ROPE_INSTRUCTION_SET {

void rotated(float* x, long head_dim);

void rotated(float* x, long head_dim) {
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 8);
  rope::rotate<rope::half_split>(rope::thd(x, 1, 1, head_dim), table, 3);
}

}  // namespace ROPE_INSTRUCTION_SET
