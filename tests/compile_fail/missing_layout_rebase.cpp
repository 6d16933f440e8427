// SPDX-License-Identifier: MIT
// EXPECT: error: .*rebase: name the layout

#include <rope/rope.hpp>

void test(rope::latent_cache<float>& cache, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.rebase(table, table);
#else
  cache.rebase<rope::half_split>(table, table);
#endif
}
