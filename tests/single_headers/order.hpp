// SPDX-License-Identifier: MIT
// The use of the three single headers in each file of this program, which includes them in its own order.
#ifndef ROPE_TEST_SINGLE_HEADERS_ORDER_HPP
#define ROPE_TEST_SINGLE_HEADERS_ORDER_HPP

#include <vector>

/// Queries that attend to a cache, with the rotation and options of the only layer of a model with one group.
inline std::vector<float> attended() {
  const rope::model_facts facts = {.source = "test", .architecture = "one", .max_position = 8};
  rope::Index head_dim = 8, tokens = 3;
  const rope::frequency_table<float> table(rope::frequencies(head_dim, 500.0), 8);
  std::vector<float> q, k, v, out(24);
  for (int i = 0; i < 24; ++i) {
    q.push_back(0.25f * static_cast<float>(i % 7));
    k.push_back(0.5f * static_cast<float>(i % 5));
    v.push_back(static_cast<float>(i % 3) + static_cast<float>(facts.max_position));
  }
  rope::kv_cache<float> cache(1, 8, 1, head_dim);
  cache.append<rope::half_split>(rope::thd(k.data(), tokens, 1, head_dim),
                                 rope::thd(v.data(), tokens, 1, head_dim), table);
  rope::attention<rope::half_split>(rope::thd(q.data(), tokens, 1, head_dim), cache,
                                    rope::thd(out.data(), tokens, 1, head_dim), table);
  return out;
}

std::vector<float> ROPE_TEST_ORDER();
std::vector<float> ROPE_TEST_ORDER() { return attended(); }

#endif  // ROPE_TEST_SINGLE_HEADERS_ORDER_HPP
