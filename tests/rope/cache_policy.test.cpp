// SPDX-License-Identifier: MIT
#include <rope/cache_policy.hpp>

#include <rope/kv_cache.hpp>
#include <rope/ring_cache.hpp>
#include <rope/rotate.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"

using namespace rope;

TEST_CASE("raw storage keeps keys as they came, rotated storage keeps them turned") {
  const std::vector<float> memory = testing::random_channels<float>(3 * 2 * 4, 11);
  const head_view<const float> k = bshd(memory.data(), 1, 3, 2, 4);
  const frequency_table<> table(frequencies(4), 8);
  std::vector<float> turned = memory;
  rotate<half_split>(bshd(turned.data(), 1, 3, 2, 4), table);

  kv_cache<float> raw(1, 4, 2, 4, 0, key_storage::raw), rotated(1, 4, 2, 4);
  raw.append(k, k);
  rotated.append<half_split>(k, k, table);
  CHECK(testing::same_heads(raw.keys(), k));
  CHECK(testing::same_heads(rotated.keys(), bshd(turned.data(), 1, 3, 2, 4)));
  CHECK(raw.storage() == key_storage::raw);
  CHECK(rotated.storage() == key_storage::rotated);

  ring_cache<float> raw_ring(1, {.window = 4}, 2, 4, 0, key_storage::raw),
      rotated_ring(1, {.window = 4}, 2, 4);
  raw_ring.append(k, k);
  rotated_ring.append<half_split>(k, k, table);
  CHECK(testing::same_heads(raw_ring.keys(0), k));
  CHECK(testing::same_heads(rotated_ring.keys(0), bshd(turned.data(), 1, 3, 2, 4)));
}

TEST_CASE("one row changes alone, every row together") {
  const std::vector<float> memory(2 * 5 * 4);
  kv_cache<float> cache(2, 5, 1, 4);
  cache.append(bshd(memory.data(), 2, 5, 1, 4), bshd(memory.data(), 2, 5, 1, 4));
  cache.truncate(4, every_row);
  CHECK(cache.size(0) == 4);
  CHECK(cache.size(1) == 4);
  cache.truncate(2, batch_row{1});
  CHECK(cache.size(0) == 4);
  CHECK(cache.size(1) == 2);
}
