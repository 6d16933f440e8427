// SPDX-License-Identifier: MIT
#include <cstdio>
#include <vector>

// Six files have included rope_single.hpp, rope_rotation_single.hpp and rope_models_single.hpp, each in
// another order.
std::vector<float> single_rotation_single_models_single();
std::vector<float> single_models_single_rotation_single();
std::vector<float> rotation_single_single_models_single();
std::vector<float> rotation_single_models_single_single();
std::vector<float> models_single_single_rotation_single();
std::vector<float> models_single_rotation_single_single();

int main() {
  const std::vector<float> first = single_rotation_single_models_single();
  // Every value is a mean of 8, 9 and 10. The first token's is the first value itself.
  bool right = first.size() == 24 && first[0] > 7.99f && first[0] < 8.01f;
  for (const float channel : first) right = right && channel > 7.99f && channel < 10.01f;
  for (const auto& other : {single_models_single_rotation_single(), rotation_single_single_models_single(),
                            rotation_single_models_single_single(), models_single_single_rotation_single(),
                            models_single_rotation_single_single()})
    right = right && other == first;
  std::puts(right ? "the same in every order" : "FAILED: orders of inclusion differ");
  return right ? 0 : 1;
}
