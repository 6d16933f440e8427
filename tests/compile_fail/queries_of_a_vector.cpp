// SPDX-License-Identifier: MIT
// EXPECT: error: .*scale_queries: x must be a head_view; name the order of its axes

#include <vector>

#include <rope/rope.hpp>

void test(std::vector<float>& q) {
#ifdef SHOULD_FAIL
  rope::scale_queries(q, rope::log_n_query_scaling{512}, 3);
#else
  rope::scale_queries(rope::thd(q.data(), 1, 1, 8), rope::log_n_query_scaling{512}, 3);
#endif
}
