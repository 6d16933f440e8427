#include <rope/rope.hpp>

#include <cstdio>
#include <random>
#include <vector>

// Rotary attention with the heads of Llama 3 8B (Hugging Face weights: half_split), over a prompt of 16 tokens.
int main() {
  const int batch = 1, tokens = 16, heads = 32, kv_heads = 8, head_dim = 128;
  std::vector<float> q(batch * tokens * heads * head_dim), out(q.size());
  std::vector<float> k(batch * tokens * kv_heads * head_dim), v(k.size());
  std::mt19937 random(1);
  for (auto* x : {&q, &k, &v})
    for (float& channel : *x) channel = 2 * static_cast<float>(random()) / 4294967296.0f - 1;

  const rope::frequency_table table(rope::frequencies(head_dim, 500000.0), 8192);  // once per model

  const auto queries = rope::bshd(q.data(), batch, tokens, heads, head_dim);
  const auto keys = rope::bshd(k.data(), batch, tokens, kv_heads, head_dim);
  const auto values = rope::bshd(v.data(), batch, tokens, kv_heads, head_dim);
  const auto outputs = rope::bshd(out.data(), batch, tokens, heads, head_dim);
  const auto attend = [&](const char* positions) {
    rope::attention(queries, keys, values, outputs);
    std::printf("%-23s first channel of the last token: %.5f\n", positions, double(*outputs.at(0, 15, 0)));
  };

  attend("no positions:");
  rope::rotate<rope::half_split>(queries, keys, table);  // in place; token t is at position t
  attend("positions 0 to 15:");
  rope::unrotate<rope::half_split>(queries, keys, table);
  rope::rotate<rope::half_split>(queries, keys, table, 5000);  // only distances matter, so the same again
  attend("positions 5000 to 5015:");
}
