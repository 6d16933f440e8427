#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

// A decoding loop with the heads of Llama 3 8B: a prompt of 12 tokens, then 52 tokens one at a time, from a
// bfloat16 cache. Then all 64 tokens in one call without a cache, to compare.
int main() {
  const int heads = 32, kv_heads = 8, head_dim = 128, all = 64;
  const rope::frequency_table table(rope::frequencies(head_dim, 500000.0, rope::llama3_scaling{.factor = 8}),
                                    8192);
  rope::kv_cache<Eigen::bfloat16> cache(1, 8192, kv_heads, head_dim);  // batch, capacity, kv_heads, head_dim

  // In a model these are projections of its tokens.
  std::vector<float> q(all * heads * head_dim), out(q.size()), k(all * kv_heads * head_dim), v(k.size());
  std::mt19937 random(1);
  for (auto* x : {&q, &k, &v})
    for (float& channel : *x) channel = 2 * static_cast<float>(random()) / 4294967296.0f - 1;
  const auto queries = rope::thd(q.data(), all, heads, head_dim);
  const auto keys = rope::thd(k.data(), all, kv_heads, head_dim);
  const auto values = rope::thd(v.data(), all, kv_heads, head_dim);
  const auto outputs = rope::thd(out.data(), all, heads, head_dim);

  for (rope::Index first = 0, count = 12; first < all; first += count, count = 1) {
    cache.append<rope::half_split>(keys.token_range(first, count), values.token_range(first, count),
                                   table);  // rotates the keys
    rope::attention<rope::half_split>(queries.token_range(first, count), cache,
                                      outputs.token_range(first, count), table);
  }
  std::printf("%d tokens in the cache, the next one is at position %d\n", static_cast<int>(cache.size()),
              static_cast<int>(cache.next_positions()[0]));

  std::vector<float> at_once(out.size());
  rope::attention<rope::half_split>(queries, keys, values, rope::thd(at_once.data(), all, heads, head_dim),
                                    table);
  double difference = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    difference = std::max(difference, static_cast<double>(std::abs(out[i] - at_once[i])));
  std::printf("largest difference from one call without a cache: %.4f (a bfloat16 is off by up to %.4f)\n",
              difference, 1.0 / 512);
}
