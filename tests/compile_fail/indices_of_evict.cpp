// SPDX-License-Identifier: MIT
// EXPECT: error: .*token_indices

#include <rope/rope.hpp>

#include <vector>

#ifdef SHOULD_FAIL
using number = float;
#else
using number = int;
#endif

void test(rope::kv_cache<float>& cache, const std::vector<number>& list) { cache.evict(list); }
