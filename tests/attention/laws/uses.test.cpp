// SPDX-License-Identifier: MIT
#include <rope/attention.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "support/catch.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

using Layout = half_split;
constexpr Index batch = 1, queries = 4, heads = 2, head_dim = 8;

/// Heads [1, 4, 2, 8] of ones.
struct ones {
  std::vector<float> memory = std::vector<float>(queries * heads * head_dim, 1.0f);
  head_view<float> view = bshd(memory.data(), batch, queries, heads, head_dim);
};

struct call {
  ones q_memory, k_memory, v_memory, out_memory;
  head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view;
  frequency_table<> table{frequencies(head_dim), 20};
};

}  // namespace

TEST_CASE("the examples in the comments of the options work", "[attention]") {
  call c;
  const auto [q, k, v, out] = std::tie(c.q, c.k, c.v, c.out);
  const auto& table = c.table;
  attention(q, k, v, out, {.window = 1024, .sinks = 4});
  attention<Layout>(q, k, v, out, table, {.causal = false, .softcap = 50});
  CHECK(std::abs(*out.at(0, 0, 0) - 1) <= std::numeric_limits<float>::epsilon());
  const Index keys = 4;
  const std::unique_ptr<bool[]> memory(new bool[queries * keys]());
  const bool* seen = memory.get();
  const score_view<bool> mask = score_matrix(seen, batch, 1, queries, keys);  // one mask for all heads
  attention(q, k, v, out, {.mask = mask});
  CHECK(*out.at(0, 0, 0) == 0);
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> seen_by(queries, keys);
  seen_by.setConstant(true);
  attention(q, k, v, out, {.mask = score_matrix(seen_by)});  // seen_by(query, key), in any order
  CHECK(*out.at(0, 0, 0) == 1);
}

TEST_CASE("the example in the comment of dropout_mask works", "[attention]") {
  const attention_options options = {.dropout = 0.25, .dropout_seed = 7};
  const Index row = 0, query_head = 1;
  const std::int64_t query_position = 5, key_position = 3;
  const dropout_mask mask(options.dropout, options.dropout_seed);
  const bool kept = mask.keeps(row, query_head, query_position, key_position);
  CHECK(kept == mask.row_of(row, query_head, query_position).keeps(key_position));
}

TEST_CASE("the examples in the comments of the backward pass work", "[attention]") {
  call c;
  const auto [q, k, v, out] = std::tie(c.q, c.k, c.v, c.out);
  const auto& table = c.table;
  ones d_out_memory, d_q_memory, d_k_memory, d_v_memory;
  const head_view<float> d_out = d_out_memory.view, d_q = d_q_memory.view, d_k = d_k_memory.view,
                         d_v = d_v_memory.view;
  attention_options options;
  attention<half_split>(q, k, v, out, table, options);
  attention_gradient<half_split>(
      attention_tape<float>{
          .q = q, .k = k, .v = v, .out = out, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v},
      table, options);
  CHECK(*d_q.at(0, 0, 0) == 0);  // equal values

  const std::vector<float> sinks(heads, 0.5f);
  options.sink_logits = sinks;
  attention(q, k, v, out, options);
  const attention_tape<float> tape = {q, k, v, out, d_out, d_q, d_k, d_v};
  std::vector<double> d_sinks(heads);
  attention_gradient(tape, options, {.sink_logits = d_sinks});
  CHECK(d_sinks[0] < 0);
}

TEST_CASE("the examples in the comments of attention to integers work", "[attention]") {
  call c;
  const auto [q, k, v, out] = std::tie(c.q, c.k, c.v, c.out);
  const auto& table = c.table;
  std::vector<std::int8_t> k_memory(queries * heads * head_dim), v_memory(k_memory.size());
  std::vector<float> k_scales(queries * heads), v_scales(queries * heads);
  const auto keys = bshd(k_memory.data(), k_scales.data(), batch, queries, heads, head_dim),
             values = bshd(v_memory.data(), v_scales.data(), batch, queries, heads, head_dim);
  quantize(k, keys);
  quantize(v, values);
  attention(q, keys, values, out, {.window = 1024});
  CHECK(std::abs(*out.at(0, 0, 0) - 1) < 1e-6f);
  attention<Layout>(q, keys, values, out, table);
  CHECK(std::abs(*out.at(0, 3, 1) - 1) < 1e-6f);
}

TEST_CASE("the example in the comment of merge_attention works for one part", "[attention]") {
  call c;
  const auto [q, k, v, out_a] = std::tie(c.q, c.k, c.v, c.out);
  const auto& table = c.table;
  const std::vector<std::int64_t> ids = {0, 1, 2, 3};
  const std::span<const std::int64_t> query_ids = ids, key_ids = ids;
  const std::size_t first = 1, n = 2;
  std::vector<double> log_sum_exp_a(queries * heads);
  attention<Layout>(q, k.token_range(first, n), v.token_range(first, n), out_a, table,
                    {.query_positions = query_ids,
                     .key_positions = key_ids.subspan(first, n),
                     .log_sum_exp = log_sum_exp_a});
  CHECK(log_sum_exp_a[0] == attention_options::no_keys);
  CHECK(*out_a.at(0, 3, 0) == 1);
}

TEST_CASE("the example in the comment of attention_weight_sums works", "[attention]") {
  call c;
  const auto [q, k] = std::tie(c.q, c.k);
  const Index kv_heads = heads, keys = queries;
  std::vector<float> sums(std::size_t(batch * kv_heads * keys));
  attention_weight_sums(q, k, sums);
  CHECK(std::abs(sums[3] - 0.25f) < 1e-6f);  // that of the last query alone
}
