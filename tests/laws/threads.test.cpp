// SPDX-License-Identifier: MIT
// The other calls with threads: with enough data to be cut into pieces, they give the bits of one thread.
#include <algorithm>  // std::equal
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/rope.hpp>
#include <span>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"

using rope::bshd;
using rope::half_split;
using rope::Index;
using rope::interleaved;

namespace {

constexpr Index batch = 2, tokens = 301, heads = 8, head_dim = 64;  // 1.2 MB: four pieces of 256 KiB

std::vector<float> random_heads(testing::random& numbers, Index count = batch * tokens * heads * head_dim) {
  return testing::random_channels<float>(numbers, count, -3, 1);
}

rope::head_view<float> view(std::vector<float>& x) { return bshd(x.data(), batch, tokens, heads, head_dim); }

/// Runs `call(heads, threads)` on one thread and on three, and compares the results.
template <class Call>
void same_bits(std::vector<float> x, const Call& call) {
  std::vector<float> alone = x;
  call(view(alone), rope::this_thread{});
  const testing::own_threads threads(3);
  call(view(x), threads);
  CHECK(threads.runs() >= 1);
  CHECK(x == alone);
}

}  // namespace

TEST_CASE("scaled queries have the same bits on threads", "[library]") {
  testing::random numbers(testing::seed());
  const auto rule = [](std::int64_t p) { return 1 + 0.125 * static_cast<double>(p); };
  same_bits(random_heads(numbers),
            [&](auto x, const auto& threads) { rope::scale_queries(x, rule, 7, threads); });
}

TEST_CASE("channels and rows are permuted to the same order on threads", "[library]") {
  testing::random numbers(testing::seed());
  same_bits(random_heads(numbers), [](auto x, const auto& threads) {
    rope::permute_channels<interleaved, half_split>(x, 48, threads);
  });
  same_bits(random_heads(numbers), [](auto x, const auto& threads) {
    using weight = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
    Eigen::Map<weight> rows(x.data, heads * head_dim, batch * tokens);
    rope::permute_rows<half_split, interleaved>(rows, heads, 0, 0, threads);
  });
}

TEST_CASE("merged parts of attention have the same bits on threads", "[library]") {
  testing::random numbers(testing::seed());
  std::vector<float> other = random_heads(numbers);
  std::vector<double> sums(static_cast<std::size_t>(batch * tokens * heads)), other_sums(sums.size());
  for (double& sum : sums) sum = numbers.scaled(0, 3);
  for (double& sum : other_sums) sum = numbers.scaled(0, 3);
  other_sums[5] = sums[9] = rope::attention_options::no_keys;
  std::vector<std::vector<double>> left;
  same_bits(random_heads(numbers), [&](auto x, const auto& threads) {
    std::vector<double> own = sums;
    rope::merge_attention(x, std::span<double>(own), view(other), std::span<const double>(other_sums),
                          threads);
    left.push_back(own);
  });
  REQUIRE(left.size() == 2);
  CHECK(left[0] == left[1]);
}

TEST_CASE("weights of attention have the same bits on threads", "[library]") {
  testing::random numbers(testing::seed());
  const Index queries = 40, keys = 90, kv_heads = 2;
  std::vector<float> q = random_heads(numbers, queries * heads * head_dim),
                     k = random_heads(numbers, keys * kv_heads * head_dim);
  const auto asking = bshd(q.data(), 1, queries, heads, head_dim),
             asked = bshd(k.data(), 1, keys, kv_heads, head_dim);
  const rope::frequency_table<float> table(rope::frequencies(head_dim), keys);
  std::vector<float> alone(static_cast<std::size_t>(heads * queries * keys)), shared(alone.size());
  const testing::own_threads threads(3);
  rope::attention_weights(asking, asked, std::span(alone));
  rope::attention_weights(asking, asked, std::span(shared), {}, threads);
  CHECK(threads.runs() == 1);
  CHECK(shared == alone);
  rope::attention_weights<half_split>(asking, asked, std::span(alone), table, {.window = 20});
  rope::attention_weights<half_split>(asking, asked, std::span(shared), table, {.window = 20}, threads);
  CHECK(threads.runs() == 1);
  CHECK(shared == alone);
}

namespace {

/// Appends to a cache on one thread and on three, and compares its contents.
template <class Cache, class Append>
void same_cache(Cache alone, const Append& append) {
  Cache shared = alone;
  const testing::own_threads threads(3);
  append(alone, rope::this_thread{});
  append(shared, threads);
  CHECK(threads.runs() >= 1);
  for (Index b = 0; b < batch; ++b) {
    REQUIRE(shared.keys(b).tokens == alone.keys(b).tokens);
    CHECK(testing::same_heads(shared.keys(b), alone.keys(b)));
    CHECK(testing::same_heads(shared.values(b), alone.values(b)));
    CHECK(std::equal(shared.positions(b).begin(), shared.positions(b).end(), alone.positions(b).begin(),
                     alone.positions(b).end()));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("appended tokens have the same bits on threads", "[library]", float, Eigen::half) {
  testing::random numbers(testing::seed());
  std::vector<float> keys = random_heads(numbers), values = random_heads(numbers);
  const auto k = view(keys), v = view(values);
  const rope::frequency_table<float> table(rope::frequencies(48), 2 * tokens);
  const std::vector<Index> counts = {tokens, 130};
  std::vector<int> ids;
  for (Index n = 0; n < batch * tokens; ++n) ids.push_back(static_cast<int>((n * 37 + 5) % (2 * tokens)));
  const rope::kv_cache<TestType> cache(batch, 2 * tokens, heads, head_dim);
  same_cache(cache, [&](auto& to, const auto& threads) { to.append(k, v, counts, threads); });
  same_cache(cache, [&](auto& to, const auto& threads) {
    to.template append<half_split>(k, v, table, counts, threads);
    to.template append_at<half_split>(k, v, table, ids, counts, threads);
  });
  same_cache(cache, [&](auto& to, const auto& threads) { to.append_at(k, v, ids, {}, threads); });
  // 301 tokens for 41 slots: most are overwritten by later ones of the same call.
  const rope::ring_cache<TestType> ring(batch, {.sinks = 3, .window = 30, .chunk = 9}, heads, head_dim);
  same_cache(ring, [&](auto& to, const auto& threads) {
    to.append(k.token_range(0, 7), v.token_range(0, 7));
    to.append(k, v, counts, threads);
  });
  same_cache(ring, [&](auto& to, const auto& threads) {
    to.template append<interleaved>(k.token_range(0, 7), v.token_range(0, 7), table);
    to.template append<interleaved>(k, v, table, counts, threads);
  });
}
