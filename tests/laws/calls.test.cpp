// SPDX-License-Identifier: MIT
// The calls that README.md and include/rope/README.md list, as they are written there: tests/readme.cmake.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <rope/rope.hpp>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/span_of_strides.hpp"

using namespace rope;

namespace {

using Layout = half_split;
using T = float;
constexpr Index batch = 2, tokens = 3, heads = 4, kv_heads = 2, head_dim = 128;

/// Heads [2, 3, heads, head_dim] of ones.
struct ones {
  std::vector<float> memory;
  head_view<float> view;
  explicit ones(Index of_heads = heads, Index channels = head_dim, Index of_batch = batch)
      : memory(static_cast<std::size_t>(of_batch * tokens * of_heads * channels), 1.0f),
        view(bshd(memory.data(), of_batch, tokens, of_heads, channels)) {}
};

const Index start = 5;

}  // namespace

TEST_CASE("calls of the pages: frequencies", "[library]") {
  const Eigen::ArrayXd inv_freq = Eigen::ArrayXd::Constant(64, 0.5);
  const double attention_factor = 1.5;
  CHECK(frequencies(128, 500000.0).pairs() == 64);
  CHECK(frequencies::custom(inv_freq, attention_factor).attention_factor() == 1.5);
  CHECK(frequencies(128, 500000.0, llama3_scaling{.factor = 8}).inv_freq()(0, 0) == 1);
  CHECK(ggml_frequencies({.n_dims = 128, .freq_base = 500000.0, .freq_scale = 0.25}).inv_freq()(0, 0) ==
        0.25);
  const frequencies f(32);
  const Eigen::ArrayXXd directions = Eigen::ArrayXXd::Random(16, 2);
  CHECK(axial(f, 2).pairs() == 32);
  CHECK(on_axes(f, contiguous_sections({4, 6, 6})).axes() == 3);
  CHECK(along_directions(f, directions).axes() == 2);
  CHECK(dino_v3_frequencies(64).axes() == 2);
  CHECK(axial_blocks({44, 42, 42}).axes() == 3);
}

TEST_CASE("calls of the pages: positions", "[library]") {
  const frequency_table table(frequencies(head_dim), 200);
  const std::vector<int> starts = {17, 4}, offsets = {0, 1, 3};
  const ones memory, ragged(heads, head_dim, 1);
  const head_view<float> x = memory.view;
  rotate<Layout>(x, table, row_starts{starts});
  rotate<Layout>(ragged.view, table, segments{offsets});
  CHECK(*x.at(0, 0, 0) != 1);
  CHECK(*ragged.view.at(0, 1, 0) == 1);
  CHECK(grid_positions({8, 64, 32}).rows() == 8 * 64 * 32);
  CHECK(qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2)}).next == 5);
  CHECK(hunyuan_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2)}, 4).next == 9);
  CHECK(qwen2_5_omni_positions({text_run{3}, sounding_video_run{{2, 1, 2, 25}, 50}}).next == 55);
  CHECK(prefix_ranges(3, {.queries = 8, .keys = 8})[0].count == 3);
  CHECK(block_causal_ranges(4, {.queries = 8, .keys = 8})[0].count == 4);
  CHECK(chunk_ranges(4, {.queries = 1, .keys = 8})[0].first == 4);
  CHECK(segment_ranges(offsets, true)[2].first == 1);
  const Eigen::Matrix<int, 1, 3> padding = {0, 1, 1};
  CHECK(positions_of_mask(padding).counts[0] == 2);
  CHECK(key_positions(self_extend{.group = 8, .window = 1024}, 10, 0, 11).size() == 11);
  CHECK(key_positions(rerope{.window = 1024}, 10, 0, 11).size() == 11);
  CHECK(key_positions(dual_chunk{.chunk_size = 262144, .local_size = 8192}, 10, 0, 11).size() == 11);
}

TEST_CASE("calls of the pages: tables", "[library]") {
  const frequencies f(8);
  const int first = -3, last = 4;
  const Eigen::ArrayXd coordinates = Eigen::ArrayXd::LinSpaced(5, 0, 1);
  const Eigen::ArrayXXd angles = Eigen::ArrayXXd::Random(5, 4), cos = angles.cos(), sin = angles.sin();
  CHECK(frequency_table(f, 8192).rows() == 8192);
  CHECK(frequency_table(f, first, last).rows() == 7);
  CHECK(frequency_table(f, coordinates).rows() == 5);
  const frequency_table table(f, 8192);
  CHECK(table.at_channel(128).first_channel() == 128);
  const row_maker<> maker(f);
  std::vector<std::byte> memory(maker.memory_size(5));
  std::vector<float> rows(5 * 8);
  CHECK(maker.table(coordinates, memory).rows() == 5);
  maker.write(coordinates, rows);
  CHECK(rows[0] == 1);
  CHECK(frequency_table<>::with_float_angles(f, first, last).rows() == 7);
  CHECK(xpos(f, 4096, {.center = 2048}).queries().rows() == 4096);
  CHECK(table_of_angles(angles, table_form::half_width).pairs() == 4);
  CHECK(table_of_cos_sin(cos, sin, table_form::half_width).pairs() == 4);
  const frequencies kept = fourier_frequencies(frequencies(64), 8192);
  const Eigen::MatrixXd cos_coef = Eigen::MatrixXd::Identity(kept.pairs(), kept.pairs()), sin_coef = cos_coef;
  CHECK(fourier_table(kept, cos_coef, sin_coef, 32, 0, 8192).pairs() == 32);
}

TEST_CASE("calls of the pages: rotation", "[library]") {
  const frequency_table table(frequencies(head_dim), 200);
  const std::vector<int> ids = {7, 8, 9};
  const ones x_memory, q_memory, k_memory(kv_heads), out_memory, pope_memory(heads, 2 * head_dim);
  const head_view<float> x = x_memory.view, q = q_memory.view, k = k_memory.view, out = out_memory.view;
  const testing::own_threads threads(2);
  const testing::span_of_strides<const float, 4> span(x_memory.memory.data(), {2, 3, 4, 128});
  CHECK(bshd(span).heads == 4);
  Eigen::Tensor<float, 5, Eigen::RowMajor> tensor(2, 3, 4, 5, 6);
  CHECK(view_as<"bsssd">(tensor).tokens == 60);
  rotate<Layout>(x, table, start);
  rotate<Layout>(x, table, ids);
  rotate<Layout>(q, k, table, start);
  CHECK(*q.at(0, 0, 0) == *k.at(0, 0, 0));
  rotate_to<Layout>(x, out, table, start);
  unrotate<Layout>(q, k, table, start);
  unrotate_to<Layout>(out, x, table, start);
  rotate<Layout>(x, table, start, threads);
  CHECK(*q.at(0, 0, 0) == testing::Approx(1));
  CHECK(*x.at(0, 0, 0) == testing::Approx(*out.at(0, 0, 0)));
  Eigen::MatrixXf weight = Eigen::MatrixXf::Random(heads * head_dim, 6);
  const Eigen::MatrixXf before = weight;
  permute_rows<interleaved, half_split>(weight, heads);
  CHECK(weight.row(1) == before.row(2));
  permute_channels<interleaved, half_split>(x);
  std::vector<std::int8_t> integers(static_cast<std::size_t>(k.size()));
  std::vector<float> scales(integers.size() / head_dim);
  const auto keys = bshd(integers.data(), scales.data(), batch, tokens, k.heads, head_dim);
  hadamard_transform(q);
  hadamard_transform(q);
  CHECK(*q.at(0, 0, 0) == testing::Approx(1));
  quantize(k, keys);
  dequantize(keys, k);
  CHECK(*k.at(0, 0, 0) == testing::Approx(1).epsilon(0.01));
  pope<Layout>(q, pope_memory.view, frequency_table(pope_frequencies(head_dim), 20));
  scale_queries(q, llama4_query_scaling{}, start);
  CHECK(*q.at(0, 0, 0) == testing::Approx(1));
  const std::vector<float> weight_of_norm(static_cast<std::size_t>(head_dim), 1.0f);
  const head_norm<float> q_norm = {.weight = weight_of_norm}, k_norm = q_norm;
  normalize_and_rotate<Layout>(q, k, q_norm, k_norm, table, start);
  CHECK(*q.at(0, 0, 0) != testing::Approx(1));
}

TEST_CASE("calls of the pages: attention", "[library]") {
  const frequency_table table(frequencies(head_dim), 200);
  const ones q_memory, k_memory(kv_heads), v_memory(kv_heads), out_memory, other_memory;
  const head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view,
                         out_a = out, out_b = other_memory.view;
  const Index queries = tokens, keys = tokens;
  const std::vector<float> b(static_cast<std::size_t>(batch * heads * queries * keys), 0.5f);
  const std::unique_ptr<bool[]> hidden(new bool[std::size_t(batch * keys)]());
  const bool* m = hidden.get();
  std::vector<Eigen::bfloat16> numbers16(static_cast<std::size_t>(4 * q.size()), Eigen::bfloat16(1.0f));
  const auto q16 = bshd(numbers16.data(), batch, tokens, heads, head_dim), out16 = q16;
  const auto k16 = bshd(numbers16.data() + q.size(), batch, tokens, kv_heads, head_dim), v16 = k16;
  std::vector<float> weights(b.size());
  std::vector<double> lse_a(static_cast<std::size_t>(batch * tokens * heads)), lse_b(lse_a.size());
  attention(q, k, v, out);
  attention<Layout>(q, k, v, out, table);
  attention(q, k, v, out, {.window = 1024, .sinks = 4});
  attention(q16, k16, v16, out16, {.products = product_precision::bfloat16});
  {
    const std::vector<std::int8_t> integers(static_cast<std::size_t>(k.size()), 100);
    const std::vector<float> scales(static_cast<std::size_t>(batch * tokens * kv_heads), 0.01f);
    const auto narrow_keys = bshd(integers.data(), scales.data(), batch, tokens, kv_heads, head_dim);
    const auto k8 = narrow_keys, v8 = narrow_keys;
    attention(q, k8, v8, out, {.products = product_precision::integers});
    CHECK(*out.at(0, 0, 0) == testing::Approx(1));
  }
  attention<half_split>(q, k, v, out, table, {.window = 1024});
  CHECK(*out.at(0, 0, 0) == 1);
  attention(q, k, v, out_b,
            {.bias = score_matrix(b.data(), batch, heads, queries, keys),
             .mask = score_matrix(m, batch, 1, 1, keys)});
  CHECK(*out_b.at(0, 0, 0) == 0);
  attention(q, k, v, out, {.key_ranges = chunk_ranges(2, {.queries = queries, .keys = keys})});
  CHECK(*out.at(0, 0, 0) == 1);
  const std::vector<int> top(static_cast<std::size_t>(queries * 8), -1);
  attention(q, k, v, out, {.selected = selected_keys(top.data(), {.queries = queries, .keys = 8})});
  CHECK(*out.at(0, 0, 0) == 0);
  attention(q, k, v, out);
  attention_weights(q, k, weights);
  CHECK(weights[0] == 1);
  std::vector<float> sums(static_cast<std::size_t>(batch * kv_heads * keys));
  attention_weight_sums(q, k, sums);
  CHECK(sums[2] == testing::Approx(heads / kv_heads / 3.0));
  merge_attention(out_a, lse_a, out_b, lse_b);
  CHECK(*out.at(0, 0, 0) == 0.5f);
}

TEST_CASE("calls of the pages: attention to integers", "[library]") {
  const frequency_table table(frequencies(head_dim), 200);
  const ones q_memory, out_memory;
  const head_view<float> q = q_memory.view, out = out_memory.view;
  const std::vector<std::int8_t> integers(static_cast<std::size_t>(batch * tokens * kv_heads * head_dim), 10);
  const std::vector<float> scales(static_cast<std::size_t>(batch * tokens * kv_heads), 0.1f);
  const auto keys = bshd(integers.data(), scales.data(), batch, tokens, kv_heads, head_dim), values = keys;
  attention(q, keys, values, out);
  attention<Layout>(q, keys, values, out, table);
  CHECK(*out.at(0, 0, 0) == testing::Approx(1));
}

TEST_CASE("calls of the pages: caches", "[library]") {
  const frequency_table table(frequencies(head_dim), 200);
  const ones q_memory, k_memory(kv_heads), v_memory(kv_heads), out_memory;
  const head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view;
  const Index capacity = 16;
  const attention_options options = {.scale = 0.1};
  const testing::own_threads threads(2);
  auto cache = kv_cache<T>(batch, capacity, kv_heads, head_dim);
  cache.append<half_split>(k, v, table);
  attention<half_split>(q, cache, out, table);
  CHECK(*out.at(0, 0, 0) == 1);
  attention<Layout>(q, cache, out, table, options);
  attention<Layout>(q, cache, out, table, {}, {}, threads);
  attention<Layout>(q, k, v, out, table, {}, threads);
  CHECK(*out.at(0, 0, 0) == 1);
  auto narrow = kv_cache<std::int8_t>(batch, capacity, kv_heads, head_dim);
  narrow.append<half_split>(k, v, table);
  attention<half_split>(q, narrow, out, table);
  CHECK(*out.at(0, 0, 0) == testing::Approx(1));
  const std::vector<int> parents = {1, 1};
  cache.reorder(parents);
  cache.copy_row(0, 1);
  CHECK(cache.size() == tokens);
  const std::vector<float> weight_of_norm(static_cast<std::size_t>(head_dim), 1.0f);
  const head_norm<float> k_norm = {.weight = weight_of_norm};
  cache.append<Layout>(k, v, normed_table(k_norm, table));
  CHECK(cache.size() == 2 * tokens);
  rotate<Layout>(q, table, tokens);
  attention(q, cache, out, {.queries_are_rotated = true});
  CHECK(*out.at(0, 0, 0) == testing::Approx(1));
  auto ring = ring_cache<T>(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
  ring.append<Layout>(k, v, table);
  CHECK(ring.next_positions()[0] == tokens);
  auto restored = kv_cache<T>(batch, capacity, kv_heads, head_dim);
  restored.append_rotated<Layout>(k, v, table, start);
  const key_rotation saved = restored.rotation();
  CHECK(saved == restored.rotation_by<Layout>(table));
  const std::vector<int> indices = {0, 2};
  restored.evict(indices);
  CHECK(restored.next_positions()[0] == start + tokens);
  restored.reserve(2 * capacity);
  restored.copy_row(cache, 0, 1);
  CHECK(restored.size(1) == 2 * tokens);
  const Index latent_dim = 96, rotary_dim = 32;
  const frequency_table part_table(frequencies(rotary_dim), 200);
  const ones latent_memory(1, latent_dim), part_memory(1, rotary_dim), latent_out_memory(heads, latent_dim);
  auto latents = latent_cache<T>(batch, capacity, latent_dim, rotary_dim);
  latents.append<Layout>(latent_memory.view, part_memory.view, part_table);
  attention<Layout>(q, latents, latent_out_memory.view, part_table, {.scale = 0.1});
  CHECK(*latent_out_memory.view.at(0, 0, 0) == testing::Approx(1));
}

TEST_CASE("calls of the pages: weights of a cache", "[library]") {
  const frequency_table table(frequencies(head_dim), 200);
  const ones q_memory, k_memory(kv_heads);
  const head_view<float> q = q_memory.view, k = k_memory.view;
  auto cache = kv_cache<T>(batch, 16, kv_heads, head_dim);
  cache.append<Layout>(k, k, table);
  std::vector<float> weights(static_cast<std::size_t>(batch * heads * tokens * tokens)),
      sums(static_cast<std::size_t>(batch * kv_heads * tokens));
  attention_weights<Layout>(q, cache, weights, table);
  CHECK(weights[0] == 1);
  attention_weight_sums<Layout>(q, cache, sums, table);
  CHECK(sums[0] + sums[1] + sums[2] == testing::Approx(tokens * heads / kv_heads));
}

TEST_CASE("calls of the pages: different tokens for each head", "[library]") {
  const Index capacity = 16, many = 7;
  const frequency_table table(frequencies(head_dim), 200);
  std::vector<float> memory(static_cast<std::size_t>(batch * many * heads * head_dim), 1.0f), result = memory;
  const auto q = bhsd(memory.data(), batch, heads, many, head_dim),
             out = bhsd(result.data(), batch, heads, many, head_dim);
  const auto k = bhsd(memory.data(), batch, kv_heads, many, head_dim), v = k;
  kv_cache<T> by_head(batch * kv_heads, capacity, 1, head_dim);

  by_head.append<Layout>(heads_as_batch(k, kv_heads), heads_as_batch(v, kv_heads), table);
  attention<Layout>(heads_as_batch(q, kv_heads), by_head, heads_as_batch(out, kv_heads), table);
  by_head.evict(std::vector{5, 2}, batch_row{1 * kv_heads + 1});  // of key head 1 of row 1
  CHECK(by_head.size(2) == many);
  CHECK(by_head.size(3) == many - 2);
  by_head.evict(std::vector{4}, batch_row{3});  // the newest token
  for (const std::int64_t next : by_head.next_positions()) CHECK(next == many);
  std::fill(result.begin(), result.end(), 0.0f);
  by_head.append<Layout>(heads_as_batch(k, kv_heads), heads_as_batch(v, kv_heads), table);
  attention<Layout>(heads_as_batch(q, kv_heads), by_head, heads_as_batch(out, kv_heads), table);
  CHECK(*out.at(1, many - 1, 3) == testing::Approx(1));
  CHECK(by_head.size(3) == 2 * many - 3);
}

TEST_CASE("calls of the pages: caches of coordinates", "[library]") {
  const ones k_memory(kv_heads), v_memory(kv_heads);
  const head_view<float> k = k_memory.view, v = v_memory.view;
  const Index capacity = 16;
  auto cache = kv_cache<T>(batch, capacity, kv_heads, head_dim, token_axes{3});
  const auto prompt = qwen_vl_positions({text_run{tokens}});
  cache.append_at(k, v, token_coordinates(prompt.coordinates));
  CHECK(cache.next_positions()[0] == tokens);
  CHECK(describe(cache).find("text goes on at 3") != std::string::npos);
}

TEST_CASE("calls of the pages: memory of your own", "[library]") {
  const frequency_table table(frequencies(head_dim), 200), from = table, to(frequencies(head_dim, 1e5), 200);
  const ones q_memory, k_memory(kv_heads), v_memory(kv_heads), out_memory, key_memory(kv_heads),
      value_memory(kv_heads);
  const auto ragged = [](const head_view<float>& x) {
    return thd(x.data, x.batch * x.tokens, x.heads, x.head_dim);
  };
  const auto q = ragged(q_memory.view), out = ragged(out_memory.view), k = ragged(k_memory.view),
             v = ragged(v_memory.view), keys = k;
  const head_view<float> key_pool = key_memory.view, value_pool = value_memory.view;
  const std::vector<int> blocks = {1, 0}, lengths(2, int(tokens));
  const std::vector<std::int64_t> offsets = {0, tokens, 2 * tokens};
  const auto pages = page_view<T>({.keys = key_pool, .values = value_pool}, blocks, lengths);
  write_pages<Layout>(k, v, pages, table, offsets);
  attention<Layout>(q, pages, out, table, {.query_offsets = offsets});
  CHECK(*out.at(0, 0, 0) == 1);
  std::vector<float> weights(static_cast<std::size_t>(2 * tokens * heads * tokens)),
      sums(static_cast<std::size_t>(2 * kv_heads * tokens));
  attention_weights<Layout>(q, pages, weights, table, {.query_offsets = offsets});
  CHECK(weights[0] == 1);
  attention_weight_sums<Layout>(q, pages, sums, table, {.query_offsets = offsets});
  CHECK(sums[0] + sums[1] + sums[2] == testing::Approx(tokens * heads / kv_heads));
  const Index n = 1;
  shift_keys<Layout>(keys, -n, table);
  rebase_keys<Layout>(pages, from, to);
  CHECK(std::isfinite(*key_pool.at(0, 0, 0)));
}

TEST_CASE("calls of the pages: the block", "[library]") {
  constexpr Index of_heads = 32, of_keys = 8, channels = 4, model_dim = 16;
  testing::random numbers(11);
  auto wq = testing::random_rows<float>(numbers, of_heads * channels, model_dim),
       wk = testing::random_rows<float>(numbers, of_keys * channels, model_dim), wv = wk,
       wo = testing::random_rows<float>(numbers, model_dim, of_heads * channels);
  const multi_head_weights<float> weights = {.q = {wq.data(), of_heads * channels, model_dim},
                                             .k = {wk.data(), of_keys * channels, model_dim},
                                             .v = {wv.data(), of_keys * channels, model_dim},
                                             .o = {wo.data(), model_dim, of_heads * channels}};
  multi_head_attention<T, Layout> block(weights, {.heads = 32, .kv_heads = 8});
  CHECK(block.shape().head_dim == channels);
  const testing::rows_of<float> x = testing::random_rows<float>(numbers, batch, model_dim), context = x;
  testing::rows_of<float> out(batch, model_dim);
  std::vector<double> lse(batch * of_heads);
  std::vector<float> p(batch * of_heads);
  block.reporting({.log_sum_exp = lse, .probabilities = p}).forward(x, batch, out);
  CHECK(p[0] == 1);
  const auto encoded = block.project_context(context, batch);
  block.cross(x, encoded, out);
  CHECK(encoded.tokens() == 1);
}
