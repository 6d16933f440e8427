// SPDX-License-Identifier: MIT
#include <rope/cache/token_cache.hpp>

#include <rope/cache/kv_cache.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/ring_cache.hpp>

#include "support/catch.hpp"

TEST_CASE("caches of heads report their extents", "[cache][cache_shape]") {
  const auto check = [](const auto& cache, rope::Index value_dim) {
    CHECK(cache.batch() == 3);
    CHECK(cache.kv_heads() == 2);
    CHECK(cache.head_dim() == 6);
    CHECK(cache.value_dim() == value_dim);
  };
  check(rope::kv_cache<float>(3, 8, 2, 6), 6);
  check(rope::kv_cache<float>(3, 8, 2, 6, 4), 4);
  check(rope::ring_cache<float>(3, {.window = 8}, 2, 6), 6);
  check(rope::ring_cache<float>(3, {.window = 8}, 2, 6, 4), 4);
}
