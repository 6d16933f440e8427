#include <rope/rope.hpp>

#include <cstdio>
#include <vector>

// A decoding loop of one Llama 3 layer: a prompt of 12 tokens, then 52 tokens one at a time, from a bfloat16
// cache.
int main() {
  const int heads = 32, kv_heads = 8, head_dim = 128;
  const rope::frequency_table table(rope::frequencies(head_dim, 500000.0, rope::llama3_scaling{.factor = 8}),
                                    8192);
  rope::kv_cache<Eigen::bfloat16> cache(1, 8192, kv_heads, head_dim);  // batch, capacity, kv_heads, head_dim

  std::vector<float> q(12 * heads * head_dim, 0.5f), out(q), k(12 * kv_heads * head_dim, 0.1f), v(k);
  for (int tokens = 12; cache.size() < 64; tokens = 1) {
    // ... here a model projects its tokens to q, k and v ...
    cache.append<rope::half_split>(rope::thd(k.data(), tokens, kv_heads, head_dim),
                                   rope::thd(v.data(), tokens, kv_heads, head_dim),
                                   table);  // rotates the keys
    rope::attention<rope::half_split>(rope::thd(q.data(), tokens, heads, head_dim), cache,
                                      rope::thd(out.data(), tokens, heads, head_dim), table);
    // ... and continues with out ...
  }
  std::printf("%d tokens in the cache, the next one is at position %d\n", static_cast<int>(cache.size()),
              static_cast<int>(cache.next_positions()[0]));
}
