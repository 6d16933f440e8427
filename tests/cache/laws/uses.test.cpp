// SPDX-License-Identifier: MIT
#include <rope/cache.hpp>
#include <rope/rotation/rotate.hpp>

#include <tuple>
#include <vector>

#include "support/catch.hpp"

// What the comments of this room show, as they show it: tests/class_comments.cmake.

using namespace rope;

namespace {

using Layout = half_split;
constexpr Index batch = 3, capacity = 16, kv_heads = 2, head_dim = 8;

/// Heads [3, 2, 2, 8] of ones.
struct ones {
  std::vector<float> memory = std::vector<float>(batch * 2 * kv_heads * head_dim, 1.0f);
  head_view<float> view = bshd(memory.data(), batch, 2, kv_heads, head_dim);
};

struct step {
  ones q_memory, k_memory, v_memory, out_memory;
  head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view;
  frequency_table<> table{frequencies(head_dim), 2000};
};

}  // namespace

TEST_CASE("the comments of kv_cache show its use", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  cache.append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  CHECK(*out.at(0, 0, 0) == 1);

  const int ids[] = {7, 8};
  cache.append_at<Layout>(k, v, table, ids);
  attention<Layout>(q, cache, out, table);
  const Index keep = 1, n = 2;
  cache.remove(keep, n);
  cache.shift<Layout>(keep, cache.size() - keep, -n, table);
  CHECK(cache.size() == 2);
}

TEST_CASE("the comments of attention to a cache show its use", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  cache.append(k, v);
  attention(q, cache, out);
  CHECK(*out.at(0, 0, 0) == 1);
  cache.clear();
  cache.append<Layout>(k, v, table);  // or cache.append(k, v) where it stores raw keys
  attention<Layout>(q, cache, out, table);
  CHECK(*out.at(0, 1, 0) == 1);
}

TEST_CASE("the comment of batch_row shows its use", "[cache]") {
  step s;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  for (int i = 0; i < 3; ++i) cache.append(s.k, s.v);
  cache.truncate(5, batch_row{2});
  CHECK(cache.size(2) == 5);
  CHECK(cache.size(1) == 6);
}

TEST_CASE("the comment of ring_policy shows its use", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  ring_cache<float> cache(batch, {.sinks = 4, .window = 1024, .chunk = 512}, kv_heads, head_dim);
  cache.append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  CHECK(*out.at(0, 1, 0) == 1);
}

TEST_CASE("the comment of ring_cache shows its use", "[cache]") {
  step s;
  const head_view<float> q = s.q.token_range(0, 1), k = s.k.token_range(0, 1), v = s.v.token_range(0, 1),
                         out = s.out.token_range(0, 1);
  const auto& table = s.table;
  ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
  cache.append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  CHECK(*out.at(0, 0, 0) == 1);
}
