// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: threads are an Eigen::ThreadPoolDevice or a type with threads\(\) and parallel_for\(count, body\), both const

#include <rope/rope.hpp>

struct pool {
  rope::Index threads() const { return 1; }
#ifdef SHOULD_FAIL
  void parallel_for(rope::Index count, const auto& body){
#else
  void parallel_for(rope::Index count, const auto& body) const {
#endif
      for (rope::Index i = 0; i < count; ++i) body(i);
}
}
;

void test(rope::head_view<float> x, const rope::kv_cache<float>& cache, pool& threads) {
  rope::attention(x, cache, x, {}, {}, threads);
}
