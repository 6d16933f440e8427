// SPDX-License-Identifier: MIT
#include <rope/cache.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/rotation/rotate.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <tuple>
#include <vector>

#include "support/catch.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

using Layout = half_split;
constexpr Index batch = 3, capacity = 16, kv_heads = 2, head_dim = 8;

/// Heads [3, 2, 2, 8] of one number.
struct heads_of {
  float number;
  std::vector<float> memory = std::vector<float>(batch * 2 * kv_heads * head_dim, number);
  head_view<float> view = bshd(memory.data(), batch, 2, kv_heads, head_dim);
};

/// Attention to values of 1 is 1, whatever the weights are.
struct step {
  heads_of q_memory{1}, k_memory{1}, v_memory{1}, out_memory{7};
  head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view;
  frequency_table<> table{frequencies(head_dim), 2000};
};

/// Up to the rounding of a sum of weights. On ARMv7 with NEON the sum is multiplied by a rounded quotient.
bool is_one(float x) { return std::abs(x - 1) <= 2 * std::numeric_limits<float>::epsilon(); }

}  // namespace

TEST_CASE("the examples in the comments of kv_cache work", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  cache.append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  CHECK(is_one(*out.at(0, 0, 0)));
  const Index channels = cache.kv_heads() * (cache.head_dim() + cache.value_dim());  // of a token
  CHECK(channels == 32);

  const int ids[] = {7, 8};
  cache.append_at<Layout>(k, v, table, ids);
  attention<Layout>(q, cache, out, table);
  const Index keep = 1, n = 2;
  cache.remove(keep, n);
  cache.shift<Layout>(keep, cache.size() - keep, -n, table);
  CHECK(cache.size() == 2);

  cache.truncate(1, batch_row{0});
  cache.copy_row(0, 2);
  CHECK(cache.size(2) == 1);
  const int parents[] = {1, 1, 0};
  cache.reorder(parents);
  CHECK(cache.size(0) == 2);
  CHECK(cache.size(2) == 1);
}

TEST_CASE("the examples of moving, dropping and restoring tokens in caches work", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim), prefilled = cache, restored = cache;
  prefilled.append<Layout>(k, v, table);
  cache.copy_row(prefilled, 0, 2);
  CHECK(cache.size(2) == 2);
  cache.reserve(2 * cache.capacity());
  CHECK(cache.capacity() == 2 * capacity);
  cache.append<Layout>(k, v, table);
  cache.append<Layout>(k, v, table);
  cache.append<Layout>(k, v, table);
  cache.truncate(6, batch_row{2});
  cache.evict(std::vector{3, 5, 4});
  CHECK(cache.size() == 3);

  const auto keys = cache.keys(), values = cache.values();
  const std::vector<int> positions = {0, 1, 2};
  restored.append_rotated<Layout>(keys, values, table, positions);
  restored.clear();
  const key_rotation saved = cache.rotation();
  const bool same = saved == restored.rotation_by<Layout>(table);
  if (same) restored.append_rotated<Layout>(keys, values, table, positions);
  CHECK(restored.size() == 3);

  ring_cache<float> ring(batch, {.sinks = 4, .window = 8}, kv_heads, head_dim);
  ring.append_at<Layout>(k, v, table, 1000);
  CHECK(ring.next_positions()[0] == 1002);
}

TEST_CASE("the example in the comment of latent_cache works", "[cache]") {
  step s;
  const Index latent_dim = 6, rotary_dim = 2, unrotated_dim = 6, expanded_dim = 8;
  const frequency_table<> table(frequencies(rotary_dim), 2000);
  const head_view<float> q_absorbed = s.q, latent = s.k.head_range(0, 1).channels(0, latent_dim),
                         rotated_part = s.v.head_range(0, 1).channels(0, rotary_dim),
                         out = s.out.channels(0, latent_dim), q = s.q, k = s.k, v = s.v;
  latent_cache<float> cache(batch, capacity, latent_dim, rotary_dim);
  cache.append<Layout>(latent, rotated_part, table);
  attention<Layout>(q_absorbed, cache, out, table, {.scale = 1 / std::sqrt(expanded_dim)});
  CHECK(is_one(*out.at(0, 0, 0)));
  const head_view<float> expanded_out = s.out;
  attention<Layout>(q, k, v, expanded_out, table.at_channel(unrotated_dim));
  CHECK(is_one(*expanded_out.at(0, 1, 1)));
}

TEST_CASE("the examples in the comments of attention to a cache work", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  cache.append(k, v);
  attention(q, cache, out);
  CHECK(is_one(*out.at(0, 0, 0)));
  cache.clear();
  rotate<Layout>(q, table, row_starts{cache.next_positions()});
  cache.append<Layout>(k, v, table);
  attention(q, cache, out, {.queries_are_rotated = true});
  CHECK(is_one(*out.at(0, 1, 1)));
  cache.clear();
  cache.append<Layout>(k, v, table);  // or cache.append(k, v) where it stores raw keys
  attention<Layout>(q, cache, out, table);
  CHECK(is_one(*out.at(0, 1, 0)));
}

TEST_CASE("the examples of rows and trees in the comments of attention to a cache work", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  const int counts[] = {2, 1, 0};
  cache.append(k, v, counts);
  attention(q, cache, out, {}, counts);
  CHECK(is_one(*out.at(1, 0, 0)));
  CHECK(*out.at(1, 1, 0) == 0);

  cache.clear();
  cache.append(k.token_range(0, 1), v.token_range(0, 1));
  const int depths[] = {1, 1};  // two guesses of the next token
  const Index tokens = 2;
  const bool seen[] = {true, true, false, true, false, true};
  cache.append_at(k, v, depths);
  attention(q, cache, out, {.mask = score_matrix(seen, 1, 1, tokens, cache.size())});
  CHECK(is_one(*out.at(2, 1, 1)));
}

TEST_CASE("the examples in the comments of token_axes and token_coordinates work", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const frequencies schedule(head_dim);
  const axis_assignment sections = contiguous_sections({2, 1, 1});
  const std::vector<prompt_run> runs = {text_run{1}, vision_run{1, 1, 1}};
  {
    kv_cache<float> cache(batch, capacity, kv_heads, head_dim, token_axes{3});
    const auto prompt = qwen_vl_positions(runs, cache.next_positions()[0]);
    const frequency_table<> table(on_axes(schedule, sections), prompt.coordinates);
    cache.append<Layout>(k, v, table);
    attention<Layout>(q, cache, out, table);
    CHECK(is_one(*out.at(2, 1, 0)));
  }
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim, token_axes{3}, 0, key_storage::raw);
  const auto prompt = qwen_vl_positions(runs);
  cache.append_at(k, v, token_coordinates(prompt.coordinates));
  CHECK(cache.next_positions()[2] == 2);
}

TEST_CASE("the example in the comment of describe works", "[cache]") {
  const kv_cache<float> cache(2, 64, kv_heads, head_dim);
  std::puts(describe(cache).c_str());
  CHECK(describe(cache).size() > 100);
}

TEST_CASE("the example in the comment of batch_row works", "[cache]") {
  step s;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  for (int i = 0; i < 3; ++i) cache.append(s.k, s.v);
  cache.truncate(5, batch_row{2});
  CHECK(cache.size(2) == 5);
  CHECK(cache.size(1) == 6);
}

TEST_CASE("the example in the comment of ring_policy works", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  ring_cache<float> cache(batch, {.sinks = 4, .window = 1024, .chunk = 512}, kv_heads, head_dim);
  cache.append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  CHECK(is_one(*out.at(0, 1, 0)));
}

TEST_CASE("the example of a prompt longer than a chunk in the comment of ring_cache::append works",
          "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
  attention<Layout>(q, k, v, out, table, {.window = 1024, .sinks = 4});  // those of the ring
  cache.append<Layout>(k, v, table);
  CHECK(is_one(*out.at(0, 1, 0)));
}

TEST_CASE("the example in the comment of ring_cache works", "[cache]") {
  step s;
  const head_view<float> q = s.q.token_range(0, 1), k = s.k.token_range(0, 1), v = s.v.token_range(0, 1),
                         out = s.out.token_range(0, 1);
  const auto& table = s.table;
  ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
  cache.append<Layout>(k, v, table);
  attention<Layout>(q, cache, out, table);
  CHECK(is_one(*out.at(0, 0, 0)));
}

TEST_CASE("the examples in the comments of pages work", "[cache]") {
  step s;
  const auto [q, k, v, out] = std::tie(s.q, s.k, s.v, s.out);
  const auto& table = s.table;
  const Index page_count = 9, page_size = 1, value_dim = head_dim;
  std::vector<float> keys(page_count * kv_heads * head_dim), values = keys;
  float *key_pool = keys.data(), *value_pool = values.data();
  const std::vector<int> blocks = {8, 1, 2, 3, 4, 5}, lengths = {2, 2, 2};
  const page_view<float> pages({.keys = bhsd(key_pool, page_count, kv_heads, page_size, head_dim),
                                .values = bhsd(value_pool, page_count, kv_heads, page_size, value_dim)},
                               blocks, lengths);
  write_pages<Layout>(k, v, pages, table);  // the newest tokens of every sequence
  attention<Layout>(q, pages, out, table);
  CHECK(is_one(*out.at(0, 0, 0)));
  const std::vector<std::int64_t> offsets = {0, 2, 3, 4};
}

TEST_CASE("the example of packed tokens in the comment of attention to pages works", "[cache]") {
  std::vector<float> memory(4 * kv_heads * head_dim, 1.0f), result = memory;
  const auto q = thd(memory.data(), 4, kv_heads, head_dim), out = thd(result.data(), 4, kv_heads, head_dim);
  const std::vector<int> blocks = {1, 0}, lengths = {2, 2};
  const auto pool = bshd(memory.data(), 2, 2, kv_heads, head_dim);
  const page_view<float> pages({.keys = pool, .values = pool}, blocks, lengths);
  const std::vector<std::int64_t> offsets = {0, 2, 4};
  attention(q, pages, out, {.query_offsets = offsets});
  CHECK(is_one(*out.at(0, 0, 0)));
}

TEST_CASE("the examples in the comments of shift_keys and rebase_keys work", "[cache]") {
  step s;
  const auto& table = s.table;
  const auto keys = s.k;
  const Index keep = 1, count = 1, dropped = 2;
  rotate<Layout>(keys, table, 5);
  shift_keys<Layout>(keys.token_range(keep, count), -dropped, table);
  std::vector<float> expected(kv_heads * head_dim, 1.0f);
  rotate<Layout>(thd(expected.data(), 1, kv_heads, head_dim), table, 4);
  CHECK(*keys.at(0, 1, 0) == testing::Approx(expected[0]));

  std::vector<float> pool(200 * kv_heads * head_dim);
  const auto memory = bshd(pool.data(), 200, 1, kv_heads, head_dim);
  std::vector<int> blocks(600), lengths(3, 0);
  for (int i = 0; i < 200; ++i) blocks[static_cast<std::size_t>(400 + i)] = i;
  lengths[2] = 200;
  const page_view<float> pages({.keys = memory, .values = memory}, blocks, lengths);
  shift_keys<Layout>(pages, {.sequence = 2, .first = 64, .count = 100}, -16, table);
  CHECK(pool[0] == 0);
}

TEST_CASE("the examples in the comments of weights of a cache work", "[cache]") {
  step s;
  const auto [q, k, v] = std::tie(s.q, s.k, s.v);
  const auto& table = s.table;
  const Index heads = kv_heads, tokens = 2;
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  cache.append(k, v);
  std::vector<float> weights(std::size_t(batch * heads * tokens * cache.size()));
  attention_weights(q, cache, weights, {.queries_are_rotated = true});
  std::vector<float> sums(std::size_t(batch * kv_heads * cache.size()));
  attention_weight_sums(q, cache, sums, {.queries_are_rotated = true});
  CHECK(weights[0] == 1);
  CHECK(sums[0] == testing::Approx(1.5));
  cache.clear();
  cache.append<Layout>(k, v, table);
  rotate<Layout>(q, table, 5);
  attention_weights<Layout>(q, cache, weights, table);
  attention_weight_sums<Layout>(q, cache, sums, table);
  CHECK(weights[2] + weights[3] == testing::Approx(1));
  CHECK(sums[0] == testing::Approx(1 + weights[2]));
}

TEST_CASE("the examples in the comments of weights for pages work", "[cache]") {
  step s;
  const Index heads = kv_heads, tokens = 4, longest = 2;
  std::vector<float> memory(4 * kv_heads * head_dim, 1.0f);
  const std::vector<int> blocks = {1, 0}, lengths = {2, 2};
  const auto pool = bshd(memory.data(), 2, 2, kv_heads, head_dim);
  const page_view<float> pages({.keys = pool, .values = pool}, blocks, lengths);
  const std::vector<std::int64_t> offsets = {0, 2, 4};
  const auto& table = s.table;
  const auto packed = [&](const head_view<float>& q) {
    std::vector<float> weights(std::size_t(heads * tokens * longest));
    attention_weights(q, pages, weights, {.query_offsets = offsets});
    std::vector<float> sums(std::size_t(pages.sequences() * kv_heads * longest));
    attention_weight_sums(q, pages, sums, {.query_offsets = offsets});
    CHECK(weights[0] == 1);
    CHECK(sums[0] == testing::Approx(1.5));
  };
  packed(thd(memory.data(), 4, kv_heads, head_dim));
  const auto q = bshd(memory.data(), 2, 2, kv_heads, head_dim);
  std::vector<float> weights(std::size_t(2 * heads * 2 * longest)), sums(std::size_t(2 * kv_heads * longest));
  attention_weights<Layout>(q, pages, weights, table);
  attention_weight_sums<Layout>(q, pages, sums, table);
  CHECK(weights[2] + weights[3] == testing::Approx(1));
  CHECK(sums[0] == testing::Approx(1 + weights[2]));
}
