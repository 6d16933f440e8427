// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention_weights: weights are numbers that can be written, float, or double where q is double

#include <rope/rope.hpp>

#include <vector>

#ifdef SHOULD_FAIL
using number = double;
#else
using number = float;
#endif

void test(rope::head_view<float> q, const rope::kv_cache<float>& cache, std::vector<number>& weights) {
  rope::attention_weights(q, cache, weights);
}
