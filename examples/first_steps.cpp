#include <rope/rope.hpp>

#include <cstdio>
#include <vector>

// Rotary attention of a Llama 3 decoder layer (Hugging Face weights: half_split) over a prompt of 16 tokens.
int main() {
  const int batch = 1, tokens = 16, heads = 32, kv_heads = 8, head_dim = 128;
  std::vector<float> q(batch * tokens * heads * head_dim, 0.5f), out(q.size());
  std::vector<float> k(batch * tokens * kv_heads * head_dim, 0.25f), v(k.size(), 1.0f);

  const rope::frequency_table table(rope::frequencies(head_dim, 500000.0), 8192);  // once per model

  const auto queries = rope::bshd(q.data(), batch, tokens, heads, head_dim);
  const auto keys = rope::bshd(k.data(), batch, tokens, kv_heads, head_dim);
  const auto values = rope::bshd(v.data(), batch, tokens, kv_heads, head_dim);

  rope::rotate<rope::half_split>(queries, table);  // in place; token t is at position t
  rope::rotate<rope::half_split>(keys, table);
  rope::attention(queries, keys, values, rope::bshd(out.data(), batch, tokens, heads, head_dim));

  std::printf("first channel of the last token: %.6f\n",
              static_cast<double>(out[out.size() - heads * head_dim]));
}
