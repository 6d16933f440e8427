// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: x must be a head_view; name the order of its axes

#include <vector>

#include <rope/rope.hpp>

void test(rope::latent_cache<float>& cache, std::vector<float>& latent, std::vector<float>& part) {
#ifdef SHOULD_FAIL
  cache.append(latent, part);
#else
  cache.append(rope::thd(latent.data(), 1, 1, 8), rope::thd(part.data(), 1, 1, 4));
#endif
}
