// SPDX-License-Identifier: MIT
#include <rope_instruction_sets.hpp>

#include <cmath>
#include <vector>

#define DECLARE(set, runs)               \
  namespace set {                        \
  void rotated(float* x, long head_dim); \
  }
ROPE_FOR_EACH_INSTRUCTION_SET(DECLARE)

namespace {

// Channels 0 and 16 are pair 0, which rotates by 3 radians. Every instruction set that runs here is tested.
bool rotates(void (*rotated)(float*, long)) {
  std::vector<float> x(32);
  x[0] = 1;
  rotated(x.data(), 32);
  return std::abs(x[0] - std::cos(3.0f)) < 1e-6f && std::abs(x[16] - std::sin(3.0f)) < 1e-6f;
}

}  // namespace

int main() {
  int tried = 0, failed = 0;
#define TRY(set, runs)                \
  if (runs) {                         \
    ++tried;                          \
    failed += !rotates(set::rotated); \
  }
  ROPE_FOR_EACH_INSTRUCTION_SET(TRY)
  return tried > 0 && failed == 0 ? 0 : 1;
}
