// SPDX-License-Identifier: MIT
#include <rope/attention.hpp>
#include <rope/cache.hpp>
#include <rope/frequencies.hpp>
#include <rope/positions.hpp>
#include <rope/rotation/rotate.hpp>

#include <cstdint>
#include <vector>

#include "support/catch.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

/// Queries of ones.
struct ones {
  std::vector<float> memory;
  head_view<float> view;
  ones(Index batch, Index tokens, Index head_dim)
      : memory(static_cast<std::size_t>(batch * tokens * head_dim), 1.0f),
        view(bshd(memory.data(), batch, tokens, 1, head_dim)) {}
};

}  // namespace

TEST_CASE("the examples in the comments of grids work", "[positions]") {
  const Index height = 4, width = 6;
  {
    frequency_table table(axial(frequencies::pixel(16, 256), 3),
                          grid_coordinates(evenly_spaced(8), evenly_spaced(64), evenly_spaced(32)));
    CHECK(table.rows() == 8 * 64 * 32);
  }
  {
    const frequency_table table(axial(frequencies(8), 2), grid_positions({64, 64}));
    ones memory(1, height * width, 16);
    const head_view<float> patches = memory.view;
    rotate<half_split>(patches, table, grid_ids({height, width}, {64, 64}));
    CHECK(*patches.at(0, width, 0) != 1);
  }
  {
    const auto at = cogvideox_positions({.frames = 13, .height = 30, .width = 45});
    CHECK(at.rows() == 13 * 30 * 45);
  }
  const auto order = spatial_merge_order(1, height, width, 2);
  const auto positions = rows_in_order(grid_positions({height, width}), order);
  CHECK(positions(1, 1) == 1);
  CHECK(positions(2, 0) == 1);
}

TEST_CASE("the examples in the comments of runs of a prompt work", "[positions]") {
  const std::vector<prompt_run> runs = {text_run{3}, merged_patches(1, 8, 4, 2)};
  std::vector<Index> seen;
  const auto encode = [&](Index height, Index width) { seen = {height, width}; };
  for (const prompt_run& run : runs)
    if (run.is_vision) encode(run.vision.height, run.vision.width);
  CHECK(seen == std::vector<Index>{4, 2});
}

TEST_CASE("the examples in the comments of prompts with sound work", "[positions]") {
  const rope::frequencies frequencies = on_axes(rope::frequencies(16), contiguous_sections({2, 3, 3}));
  const sounding_video_run clip = {.video = merged_patches(30, 16, 24, 2, 25.0), .audio_tokens = 750};
  CHECK(clip.video.height == 8);
  {
    ones memory(1, 63, 16);
    const head_view<float> queries = memory.view;
    const std::vector<omni_run> runs = {text_run{3}, sounding_video_run{{2, 1, 2, 25}, 50}, text_run{2}};
    const auto prompt = qwen2_5_omni_positions(runs);
    rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
    CHECK(prompt.next == 57);
    std::vector<Index> heard;
    const auto encode_sound = [&](Index tokens) { heard.push_back(tokens); };
    for (const omni_run& run : runs)
      if (run.has_sound) encode_sound(run.audio_tokens);
    CHECK(heard == std::vector<Index>{50});
  }
  {
    ones memory(1, 39, 16);
    const head_view<float> queries = memory.view;
    const std::vector<omni_run> runs = {text_run{3}, sounding_video_run{{2, 1, 2, 13}, 26}, text_run{2}};
    const auto prompt = qwen3_omni_positions(runs);
    rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
    CHECK(prompt.next == 35);
  }
}

TEST_CASE("the example in the comment of prompts for HunYuan VL works", "[positions]") {
  const rope::frequencies frequencies = on_axes(rope::frequencies(16), contiguous_sections({2, 2, 2, 2}));
  ones memory(1, 11, 16);
  const head_view<float> queries = memory.view;
  const auto prompt = hunyuan_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}}, 4);
  rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
  CHECK(prompt.next == 11);
}

TEST_CASE("the examples in the comments of prompts work", "[positions]") {
  const rope::frequencies frequencies = on_axes(rope::frequencies(16), contiguous_sections({2, 3, 3}));
  ones prompt_memory(1, 9, 16), next(1, 1, 16);
  const head_view<float> queries = prompt_memory.view, next_query = next.view;
  {
    const auto prompt = qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}});
    rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
    CHECK(prompt.next == 7);
  }
  {
    const vision_run image = {.height = 16, .width = 24};  // of 32 x 48 patches, merged 2 x 2
    CHECK(image.frames == 1);
  }
  const std::vector<prompt_run> runs = {text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}};
  const frequency_table text_table(rope::frequencies(16), 20);
  const std::int64_t tokens_so_far = 9;
  const prompt_positions<std::int64_t> prompt = qwen_vl_positions(runs);
  rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
  rotate<half_split>(next_query, text_table, tokens_so_far + prompt.delta());
  CHECK(tokens_so_far + prompt.delta() == prompt.next);
}

TEST_CASE("the examples in the comments of selected keys work", "[positions]") {
  ones one_query(1, 1, 16), six_keys(1, 6, 16), written(1, 1, 16);
  const head_view<float> q = one_query.view, k = six_keys.view, v = k, out = written.view;
  *k.at(0, 1, 0) = 3;                          // a key that is not selected
  const std::vector<int> top = {5, 0, 2, -1};  // of one query
  attention(q, k, v, out, {.selected = top});
  CHECK(*out.at(0, 0, 0) == 1);
  const selected_shape shape = {.queries = 1, .key_heads = 2, .keys = 2};
  const selected_keys lists(top.data(), shape);
  CHECK(lists.at(0, 1, 0) == 2);
}

TEST_CASE("the examples in the comments of position maps work", "[positions]") {
  const dual_chunk rule = {.chunk_size = 262144, .local_size = 8192};
  const Index tokens = 7;
  const auto ids = mapped_positions(0, tokens, [&](std::int64_t p) { return rule.query(p); });
  CHECK(ids.back() == 6);
}

TEST_CASE("the examples in the comments of rules of distance work", "[positions]") {
  const std::int64_t p = 300000;
  {
    const auto ids = key_positions(self_extend{.group = 8, .window = 1024}, p, 0, p + 1);
    CHECK(p - ids.front() == p / 8 + 1024 - 1024 / 8);
  }
  {
    const auto ids = key_positions(rerope{.window = 1024}, p, 0, p + 1);
    CHECK(p - ids.front() == 1024);
  }
  const dual_chunk rule = {.chunk_size = 262144, .local_size = 8192};
  const auto ids = key_positions(rule, p, 0, p + 1);
  CHECK(ids.back() == p);
}

TEST_CASE("the examples in the comments of lists of positions work", "[positions]") {
  const frequency_table table(frequencies(8), 300);
  {
    ones memory(3, 2, 8);
    const head_view<float> q = memory.view;
    rotate<half_split>(q, table, row_starts{std::vector{17, 4, 250}});  // three sequences in a batch
    CHECK(*q.at(1, 0, 0) != *q.at(0, 0, 0));
  }
  {
    const std::vector cu_seqlens = {0, 17, 21, 271};
    ones memory(1, 271, 8);
    const head_view<float> q = memory.view;
    rotate<half_split>(q, table, segments{cu_seqlens});  // std::vector{0, 17, 21, 271}: three sequences
    CHECK(*q.at(0, 17, 0) == 1);
  }
  const Index length = 16, ranks = 4, rank = 1;
  ones memory(1, 4, 8);
  const head_view<float> queries_of_this_rank = memory.view;
  rotate<half_split>(queries_of_this_rank, table, context_parallel_ids(length, ranks, rank));
  CHECK(*queries_of_this_rank.at(0, 0, 0) != 1);
}

TEST_CASE("the examples in the comments of ranges of keys work", "[positions]") {
  const Index tokens = 3, prefix = 2, chunk = 2;
  const ones q_memory(1, tokens, 8);
  ones out_memory(1, tokens, 8);
  const head_view<float> q = q_memory.view, k = q, v = q, out = out_memory.view;
  {
    const auto ranges = prefix_ranges(prefix, {.queries = tokens, .keys = tokens});
    attention(q, k, v, out, {.key_ranges = ranges});
    CHECK(ranges[0].count == 2);
  }
  {
    const key_range ranges[] = {{0, 2}, {0, 2}, {1, 2}};  // of three queries
    attention(q, k, v, out, {.key_ranges = ranges});
  }
  kv_cache<float> cache(1, 40, 1, 8);
  cache.append(k, v);
  const auto ranges = chunk_ranges(chunk, {.queries = 1, .keys = cache.size()});
  CHECK(ranges[0].first == 2);
  CHECK(*out.at(0, 2, 0) == 1);
}

TEST_CASE("the example in the comment of segment_ranges works", "[positions]") {
  const ones q_memory(1, 32, 8);
  ones out_memory(1, 32, 8);
  const head_view<float> q = q_memory.view, k = q, v = q, out = out_memory.view;
  const std::vector offsets = {0, 16, 32}, lengths = {13, 9};
  attention(q, k, v, out, {.key_ranges = segment_ranges(offsets, true, lengths)});
  CHECK(*out.at(0, 12, 0) == 1);
  CHECK(*out.at(0, 13, 0) == 0);
}

TEST_CASE("the examples in the comments of padded rows work", "[positions]") {
  using Layout = half_split;
  const Index tokens = 3;
  const ones q_memory(2, tokens, 8), k_memory(2, tokens, 8), v_memory(2, tokens, 8);
  ones out_memory(2, tokens, 8);
  const head_view<float> q = q_memory.view, k = k_memory.view, v = v_memory.view, out = out_memory.view;
  const frequency_table<> table(frequencies(8), 40);
  Eigen::Matrix<int, 2, 3> mask;
  mask << 0, 1, 1, 1, 1, 1;
  const padded_rows rows = positions_of_mask(mask);
  rotate<Layout>(q, k, table, rows.positions);
  attention(q, k, v, out, {.key_ranges = rows.key_ranges});
  CHECK(*out.at(0, 0, 0) == 0);
  CHECK(*out.at(1, 0, 0) == 1);
  kv_cache<float> cache(2, 40, 1, 8);
  cache.append_at<Layout>(k, v, table, rows.positions);
  attention<Layout>(q, cache, out, table, {.key_ranges = rows.key_ranges});
  CHECK(*out.at(0, 0, 0) == 0);
  CHECK(*out.at(0, 1, 0) == 1);
}
