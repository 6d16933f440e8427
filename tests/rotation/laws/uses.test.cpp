// SPDX-License-Identifier: MIT
#include <rope/cache/kv_cache.hpp>
#include <rope/frequencies.hpp>
#include <rope/positions.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <rope/rotation_extras.hpp>

#include <cstddef>
#include <cstdint>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

using Layout = half_split;

/// Heads [1, tokens, heads, head_dim] of ones.
struct ones {
  std::vector<float> memory;
  head_view<float> view;
  ones(Index tokens, Index heads, Index head_dim)
      : memory(static_cast<std::size_t>(tokens * heads * head_dim), 1.0f),
        view(bshd(memory.data(), 1, tokens, heads, head_dim)) {}
};

const int start = 5;

}  // namespace

TEST_CASE("the examples in the comments of layouts work", "[rotation]") {
  const frequency_table table(frequencies(8), 20);
  ones q_memory(3, 2, 8), k_memory(3, 1, 8);
  const head_view<float> q = q_memory.view, k = k_memory.view, queries = q;
  rotate<interleaved>(q, k, table, start);
  CHECK(*q.at(0, 0, 0) == *k.at(0, 0, 0));
  rotate<half_split>(q, k, table, start);
  const struct { layout_kind layout = layout_kind::interleaved; } group;
  with_layout(group.layout, [&](auto layout) { rotate<decltype(layout)>(queries, table); });
  CHECK(*q.at(0, 0, 0) == *k.at(0, 0, 0));
}

TEST_CASE("the example in the comment of head_view works", "[rotation]") {
  const Index batch = 1, tokens = 3, heads = 2, head_dim = 128;
  ones memory(tokens, heads, head_dim);
  float* data = memory.memory.data();
  const frequency_table table(frequencies(64), 20);
  const head_view<float> q = bshd(data, batch, tokens, heads, head_dim);
  rotate<half_split>(q.channels(64, 64), table);  // the second half of every head
  CHECK(q.at(0, 1, 0)[0] == 1);
  CHECK(q.at(0, 1, 0)[64] != 1);
}

TEST_CASE("the example of queries and keys in one call in the comment of rotate works", "[rotation]") {
  ones q_memory(3, 2, 8), k_memory(3, 1, 8);
  const frequency_table table(frequencies(8), 20);
  const auto bshd = [](const ones& x) { return x.view; };
  const ones &q = q_memory, &k = k_memory;
  rotate<half_split>(bshd(q), bshd(k), table, start);
  CHECK(q.memory[0] == k.memory[0]);
}

TEST_CASE("the example in the comment of rotate_heads works", "[rotation]") {
  const Index height = 2, width = 3;
  ones memory(height * width, 2, 8);
  const head_view<float> queries = memory.view;
  const std::vector<frequencies> learned = {axial(frequencies(4), 2), axial(frequencies(4, 50.0), 2)};
  std::vector<frequency_table<>> tables;
  for (const frequencies& f : learned) tables.emplace_back(f, grid_positions({height, width}));
  rotate_heads<interleaved>(queries, tables);
  CHECK(*queries.at(0, 5, 0) != 1);
}

TEST_CASE("the examples in the comments of head norms work", "[rotation]") {
  ones q_memory(3, 2, 8), k_memory(3, 1, 8), d_memory(3, 2, 8);
  const head_view<float> q = q_memory.view, k = k_memory.view, d_q = d_memory.view;
  const frequency_table table(frequencies(8), 20);
  const std::vector<float> q_weight(8, 0.5f);
  std::vector<float> d_q_weight(8);
  {
    const head_norm<float> q_norm = {.weight = q_weight, .offset = 1};  // Gemma 3
    normalize_and_rotate<half_split>(q, q_norm, table, start);
    CHECK(*q.at(0, 0, 0) != 1);
  }
  const head_norm<float> q_norm = {.weight = q_weight}, k_norm = q_norm;
  normalize_and_rotate<half_split>(q, k, q_norm, k_norm, table, start);
  CHECK(*q.at(0, 0, 0) != *k.at(0, 0, 0));
  rotate_gradient<half_split>(d_q, table, start);
  normalize_heads_gradient(q, q_norm, d_q, d_q_weight);
  CHECK(d_q_weight[0] != 0);
  const head_view<float> v = k;
  kv_cache<float> cache(1, 4, 1, 8);
  cache.append<half_split>(k, v, normed_table(k_norm, table));
  CHECK(cache.size() == 3);
}

TEST_CASE("the example in the comment of cos_sin_gradient works", "[rotation]") {
  const ones x_memory(3, 2, 8), d_y_memory(3, 2, 8);
  const head_view<float> x = x_memory.view, d_y = d_y_memory.view;
  const frequency_table table(frequencies(8), 20);
  const cos_sin_gradient d_table = table_gradient<half_split>(x, d_y, table);
  CHECK(d_table.cos(0, 0) == 4);  // two heads, two channels
  CHECK(d_table.sin(0, 0) == 0);
}

TEST_CASE("the example in the comment of pope_bias works", "[rotation]") {
  const ones memory(3, 2, 4), polar(3, 2, 8);
  const head_view<float> keys = memory.view, polar_keys = polar.view;
  const frequency_table table(pope_frequencies(4), 20);
  const Eigen::ArrayXXd learned = Eigen::ArrayXXd::Constant(2, 4, -0.5);
  const pope_bias bias(learned);  // [kv_heads, channels]
  pope<Layout>(keys, polar_keys, table, bias, start);
  CHECK(*polar_keys.at(0, 0, 0) != 1);
}

TEST_CASE("the example in the comment of quantized_view works", "[rotation]") {
  const Index batch = 1, tokens = 3, kv_heads = 2, head_dim = 4;
  const ones memory(tokens, kv_heads, head_dim);
  const head_view<float> k = memory.view;
  std::vector<std::int8_t> integer_memory(24);
  std::vector<float> scale_memory(6);
  std::int8_t* integers = integer_memory.data();
  float* scales = scale_memory.data();
  const quantized_view<std::int8_t> keys = bhsd(integers, scales, batch, kv_heads, tokens, head_dim);
  quantize(k, keys);
  CHECK(integer_memory == std::vector<std::int8_t>(24, 127));
}

TEST_CASE("the example in the comment of hadamard_transform works", "[rotation]") {
  const ones q_memory(3, 2, 8), k_memory(3, 1, 8);
  const head_view<float> q = q_memory.view, k = k_memory.view;
  const frequency_table table(frequencies(8), 20);
  std::vector<std::int8_t> integers(24);
  std::vector<float> scales(3);
  const auto keys = thd(integers.data(), scales.data(), 3, 1, 8);
  rotate<Layout>(q, k, table, start);
  hadamard_transform(q);
  hadamard_transform(k);
  quantize(k, keys);
  CHECK(scales[0] > 0);
}

TEST_CASE("the examples in the comments of query scaling work", "[rotation]") {
  const ones memory(3, 2, 4);
  const head_view<float> q = memory.view;
  scale_queries(q, log_n_query_scaling{.train_length = 2048}, start);
  scale_queries(q, llama4_query_scaling{}, start);
  scale_queries(q, llama4_query_scaling{.floor_scale = 16384, .offset = 0}, start);  // Ministral 3
  CHECK(*q.at(0, 0, 0) == 1);
}

TEST_CASE("the examples in the comments of tensors of any order work", "[rotation]") {
  Eigen::Tensor<float, 5, Eigen::RowMajor> row_major_video(1, 2, 3, 5, 8);
  Eigen::Tensor<float, 5> column_major_video(8, 5, 3, 2, 1);
  CHECK(view_as<"bsssd">(row_major_video).at(0, 29, 0) == &row_major_video(0, 1, 2, 4, 0));
  CHECK(view_as<"dsssb">(column_major_video).at(0, 29, 0) == &column_major_video(0, 4, 2, 1, 0));
  const auto show = [&] {
    view_as<"bsssd">(row_major_video);     // (batch, frames, height, width, channels)
    view_as<"dsssb">(column_major_video);  // (channels, width, height, frames, batch): the same tokens
  };
  show();
  const frequency_table table(frequencies(8), 20);
  {
    Eigen::Tensor<float, 4> x(1, 3, 2, 8);
    x.setConstant(1);
    auto s = staged<"bshd">(x);  // x: column-major (batch, tokens, heads, head_dim)
    rotate<half_split>(s.view(), table);
    s.store(x);
    CHECK(x(0, 0, 1, 0) == 1);
    CHECK(x(0, 1, 1, 0) != 1);
  }
  Eigen::Tensor<float, 4> x(1, 2, 8, 3);
  auto s = staged<"bhds">(x);  // channels between heads and tokens
  CHECK(s.view().tokens == 3);
}

TEST_CASE("the example in the comment of heads_as_batch works", "[rotation]") {
  const frequency_table table(frequencies(8), 20);
  ones memory(3, 2, 8), expected(3, 2, 8);
  const head_view<float> k = memory.view;
  const Index kv_heads = 2;
  const auto rows = heads_as_batch(k, kv_heads);  // [batch * kv_heads, tokens, 1, head_dim]
  rotate<Layout>(rows, table, start);
  rotate<Layout>(expected.view, table, start);
  CHECK(memory.memory == expected.memory);
}
