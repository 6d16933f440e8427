// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention_weight_sums

#include <rope/rope.hpp>

#include <vector>

#ifdef SHOULD_FAIL
using number = double;
#else
using number = float;
#endif

void test(rope::head_view<float> q, const rope::kv_cache<float>& cache, std::vector<number>& sums) {
  rope::attention_weight_sums(q, cache, sums);
}
