// SPDX-License-Identifier: MIT
// Attention, caches, an attention block and the backward passes, with their tables.

#include <rope/rope.hpp>

#include "part.hpp"

namespace {

constexpr rope::Index tokens = 40, heads = 4, kv_heads = 2, head_dim = 32, model_dim = heads * head_dim;

struct blocks {
  rope::frequencies schedule{head_dim};
  rope::frequency_table<float> table{schedule, tokens};
  rope::xpos<float> fading{schedule, tokens, {.center = 8}};
  rope::kv_cache<float> cache{1, tokens, kv_heads, head_dim};
  rope::ring_cache<float> ring{1, {.sinks = 1, .window = 4, .chunk = 2}, kv_heads, head_dim};
  std::vector<float> weights = wave(3 * model_dim * model_dim, 5);

  void change() { table = rope::frequency_table<float>(schedule, tokens); }

  std::vector<odr::result> use() {
    std::vector<odr::result> results;
    std::vector<float> q = wave(tokens * heads * head_dim, 0), k = wave(tokens * kv_heads * head_dim, 1),
                       v = wave(tokens * kv_heads * head_dim, 2), out(q.size());
    const auto queries = rope::thd(q.data(), tokens, heads, head_dim),
               result = rope::thd(out.data(), tokens, heads, head_dim);
    const auto keys = rope::thd(k.data(), tokens, kv_heads, head_dim),
               values = rope::thd(v.data(), tokens, kv_heads, head_dim);
    rope::rotate<rope::half_split>(keys, fading.keys());
    for (float& number : k) number /= 2;  // growth is below 2

    // |q| |k| <= 2 head_dim, so a score, summed in any order, has an error of 2 head_dim^2 u /
    // sqrt(head_dim). A weight changes by twice that of the scores. exp and the sum over tokens round too.
    // All this happens in both files, to values of at most 1.
    constexpr double score = 2 * head_dim * 6 * u, attention = 2 * 2 * (2 * score + 2 * tokens * u);
    cache.clear();
    cache.append<rope::half_split>(keys, values, table);
    rope::attention<rope::half_split>(queries, cache, result, table);
    results.push_back(result_of("attention to a cache", out, attention));
    ring.clear();
    ring.append<rope::half_split>(keys.token_range(0, 2), values.token_range(0, 2), table);
    rope::attention<rope::half_split>(queries.token_range(0, 2), ring, result.token_range(0, 2), table,
                                      {.window = 4, .sinks = 1});
    results.push_back(result_of("attention to a ring", out, attention));

    std::vector<float> d_q(q.size()), d_k(k.size()), d_v(v.size());
    std::vector<double> sums(q.size() / std::size_t(head_dim));
    rope::attention(queries, keys, values, result, {.log_sum_exp = sums});
    rope::attention_gradient(
        rope::attention_tape<float>{.q = queries,
                                    .k = keys,
                                    .v = values,
                                    .out = result,
                                    .d_out = queries,
                                    .d_q = rope::thd(d_q.data(), tokens, heads, head_dim),
                                    .d_k = rope::thd(d_k.data(), tokens, kv_heads, head_dim),
                                    .d_v = rope::thd(d_v.data(), tokens, kv_heads, head_dim)},
        {.log_sum_exp = sums});
    results.push_back(result_of("the gradient with respect to values", d_v, heads * tokens * attention));
    // Sums of tokens * heads products below 2 and positions below tokens, in double, of floats.
    results.push_back(result_of("the gradient with respect to frequencies",
                                rope::inv_freq_gradient<rope::half_split>(queries, queries, table),
                                tokens * tokens * heads * 0x1p-40));

    const rope::multi_head_weights<float> all = {
        .q = {weights.data(), model_dim, model_dim},
        .k = {weights.data(), kv_heads * head_dim, model_dim},
        .v = {weights.data() + 9, kv_heads * head_dim, model_dim},
        .o = {weights.data() + model_dim * model_dim, model_dim, model_dim}};
    const rope::multi_head_attention<float, rope::half_split> block(all,
                                                                    {.heads = heads, .kv_heads = kv_heads});
    using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    for (float& number : q) number /= model_dim;  // so that projected numbers are at most 1
    const Eigen::Map<const matrix> x(q.data(), tokens, model_dim);
    block.forward(x, 1, Eigen::Map<matrix>(out.data(), tokens, model_dim), table);
    // The error of a projected number is model_dim u, that of a score twice that in every channel, and the
    // output is a sum of model_dim attended numbers.
    constexpr double projected = model_dim * u, attended = attention + 4 * head_dim * projected;
    results.push_back(result_of("block", out, model_dim * attended));
    const rope::multi_head_gradients<float> gradients = {.x = {d_q.data(), tokens, model_dim}};
    rope::multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = x}, gradients, table);
    results.push_back(result_of("the gradient of a block", d_q, model_dim * attended * 8));
    return results;
  }
};

const part_of<blocks> part;

}  // namespace
