// SPDX-License-Identifier: MIT
// Prints the bits of rotation, attention and a decoding step through a cache.
#ifdef SINGLE_HEADER
#include SINGLE_HEADER
#else
#include <rope/rope.hpp>
#endif

#include <cstddef>
#include <cstdio>
#include <vector>

namespace {

constexpr rope::Index tokens = 60, heads = 2, head_dim = 8;

template <class Layout, class T>
void print(const char* name) {
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 2 * tokens);
  std::vector<T> q, out(static_cast<std::size_t>(tokens * heads * head_dim));
  unsigned state = 1;
  for (std::size_t i = 0; i < out.size(); ++i) {
    state = state * 1103515245u + 12345u;
    q.push_back(static_cast<T>(static_cast<float>(state >> 16 & 255u) / 128.0f - 1.0f));
  }
  const std::vector<T> keys(q.rbegin(), q.rend());
  const auto x = rope::bshd(q.data(), 1, tokens, heads, head_dim);
  const auto k = rope::bshd(keys.data(), 1, tokens, heads, head_dim);
  const auto to = rope::bshd(out.data(), 1, tokens, heads, head_dim);
  std::printf("%s", name);
  const auto print_sum = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i)
      sum += static_cast<double>(static_cast<float>(out[i])) * static_cast<double>(i + 1);
    std::printf(" %a", sum);
  };

  rope::attention<Layout>(x, k, k, to, table);
  print_sum();
  rope::attention(x, k, k, to, {.window = 9});
  print_sum();
  rope::kv_cache<T> cache(1, tokens, heads, head_dim);
  cache.template append<Layout>(k.token_range(0, tokens - 1), k.token_range(0, tokens - 1), table);
  cache.template append<Layout>(k.token_range(tokens - 1, 1), k.token_range(tokens - 1, 1), table);
  rope::attention<Layout>(x.token_range(0, 1), cache, to.token_range(0, 1), table);
  print_sum();
  rope::rotate<Layout>(x, table);
  rope::rotate<Layout>(x, to, table, rope::Index{7});
  print_sum();
  std::printf("\n");
}

}  // namespace

int main() {
  print<rope::half_split, float>("half_split float");
  print<rope::interleaved, Eigen::bfloat16>("interleaved bfloat16");
}
