// A cache of 48 tokens instead of 320. After every step, the token that has received the least attention so
// far is removed, and the newest ones stay (H2O, Zhang et al. 2023, arXiv:2306.14048). A cache of the newest
// 48 tokens does the same, and both are compared with a cache of all tokens.
//
// SnapKV uses `received` of the last queries of the prompt only, TOVA `received` of the newest query only.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <rope/rope.hpp>
#include <vector>

namespace {

using rope::Index;
using Layout = rope::half_split;

constexpr Index heads = 4, kv_heads = 2, head_dim = 64, prompt = 256, steps = 64, budget = 48, recent = 16;

/// Removes the tokens that have received the least attention until `budget` are left.
///
/// \param received  by each token of the cache, summed over all queries so far
void keep_heavy_hitters(rope::kv_cache<float>& cache, std::vector<float>& received) {
  while (cache.size() > budget) {
    const auto least = std::min_element(received.begin(), received.end() - recent);
    cache.remove(least - received.begin(), 1);  // the others keep their positions
    received.erase(least);
  }
}

/// Adds the attention that the tokens of the cache receive from new queries, over all heads.
void add_received(rope::head_view<const float> q, const rope::kv_cache<float>& cache,
                  const rope::frequency_table<>& table, std::vector<float>& received) {
  std::vector<float> sums(static_cast<std::size_t>(kv_heads * cache.size()));
  rope::attention_weight_sums<Layout>(q, cache, sums, table);
  received.resize(static_cast<std::size_t>(cache.size()), 0.0f);
  for (std::size_t i = 0; i < sums.size(); ++i) received[i % received.size()] += sums[i];
}

/// The length of a - b divided by the length of b.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / length);
}

}  // namespace

int main() {
  // Random heads. As in a trained model, some tokens attract the attention of all later ones: here one in 25,
  // through the last channel, which is not rotated.
  constexpr Index tokens = prompt + steps;
  std::mt19937 random(1);
  const auto noise = [&random] { return 2 * static_cast<float>(random()) / 4294967296.0f - 1; };
  std::vector<float> q(tokens * heads * head_dim), k(tokens * kv_heads * head_dim), v(k.size());
  for (auto* x : {&q, &k, &v}) std::generate(x->begin(), x->end(), noise);
  for (std::size_t i = head_dim - 1; i < q.size(); i += head_dim) q[i] = 7;
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < kv_heads; ++h)
      k[static_cast<std::size_t>((t * kv_heads + h + 1) * head_dim - 1)] = t % 25 == 7 ? 8.0f : 0.0f;
  const auto queries = rope::thd(q.data(), tokens, heads, head_dim);
  const auto keys = rope::thd(k.data(), tokens, kv_heads, head_dim);
  const auto values = rope::thd(v.data(), tokens, kv_heads, head_dim);
  const rope::frequency_table<> table(rope::frequencies(32), tokens);

  rope::kv_cache<float> all(1, tokens, kv_heads, head_dim), thinned = all, newest = all;
  std::vector<float> received;
  double error_of_thinned = 0, error_of_newest = 0;
  for (Index first = 0, count = prompt; first < tokens; first += count, count = 1) {
    const auto asking = queries.token_range(first, count);
    std::vector<std::vector<float>> outputs;
    for (auto* cache : {&all, &thinned, &newest}) {
      cache->append<Layout>(keys.token_range(first, count), values.token_range(first, count), table);
      outputs.emplace_back(static_cast<std::size_t>(count * heads * head_dim));
      rope::attention<Layout>(asking, *cache, rope::thd(outputs.back().data(), count, heads, head_dim),
                              table);
    }
    if (count == 1) {
      error_of_thinned += distance(outputs[1], outputs[0]) / steps;
      error_of_newest += distance(outputs[2], outputs[0]) / steps;
    }
    add_received(asking, thinned, table, received);
    keep_heavy_hitters(thinned, received);
    newest.remove(0, newest.size() - budget);
  }
  std::printf("%d of %d tokens kept; the next one is at position %d in each cache\n",
              static_cast<int>(thinned.size()), static_cast<int>(all.size()),
              static_cast<int>(thinned.next_positions()[0]));
  std::printf("distance of outputs from the outputs of all tokens, over their length:\n");
  std::printf("  the tokens that received most attention, and the newest %d: %.3f\n",
              static_cast<int>(recent), error_of_thinned);
  std::printf("  the newest %d: %.3f\n", static_cast<int>(budget), error_of_newest);
  const bool right = thinned.size() == budget && thinned.next_positions()[0] == all.next_positions()[0] &&
                     error_of_thinned < 0.1 && error_of_newest > 0.3;
  return right ? 0 : 1;
}
