// SPDX-License-Identifier: MIT
// Everything of the library that owns memory, except caches and blocks, which take long to compile.

#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/positions/token_order.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/given_table.hpp>
#include <rope/tables/table.hpp>
#include <utility>

#include "part.hpp"

namespace {

constexpr rope::Index tokens = 24, heads = 4, head_dim = 32;

struct tables {
  rope::frequencies schedule{head_dim, 1e4, rope::yarn_scaling{.factor = 4, .original_max_position = 64}};
  rope::frequency_table<float> range{schedule, tokens};
  rope::frequency_table<float> grid{
      rope::axial(rope::frequencies(head_dim / 2), 2),
      rope::with_unrotated_tokens(rope::grid_positions({4, tokens / 4 - 1}), 4)};
  rope::frequency_table<double> given = rope::table_of_angles<double>(
      rope::grid_coordinates(rope::evenly_spaced(3), rope::evenly_spaced(tokens / 3)),
      rope::table_form::half_width);
  rope::prompt_positions<std::int64_t> prompt =
      rope::qwen_vl_positions({rope::text_run{3}, rope::merged_patches(1, 4, 4, 2)});

  /// Copies, assigns and moves, as programs do.
  void change() {
    rope::frequency_table<float> copy = range;
    range = rope::frequency_table<float>(schedule, 2 * tokens);
    range = std::move(copy);
    const rope::frequencies kept = schedule;
    schedule = rope::frequencies(2 * head_dim);
    schedule = kept;
  }

  std::vector<odr::result> use() {
    std::vector<float> q = wave(tokens * heads * head_dim, 0);
    const auto queries = rope::thd(q.data(), tokens, heads, head_dim);
    std::vector<odr::result> results = {result_of("frequencies", schedule.inv_freq(), 0),
                                        result_of("prompt", prompt.coordinates, 0)};
    // With and without contraction: u |pair| for the product that is not rounded and u |pair| for each final
    // rounding, where |pair| <= sqrt(2) and m < 1.2.
    constexpr double rotation = 3 * u * 1.42 * 1.2;
    rope::rotate<rope::interleaved>(queries, range);
    results.push_back(result_of("rotate", q, rotation));
    rope::rotate<rope::half_split>(queries, grid);
    results.push_back(result_of("rotate by a grid", q, 3 * rotation));
    rope::rotate<rope::half_split>(queries.channels(0, 4), given);
    results.push_back(result_of("rotate by given angles", q, 6 * rotation));
    return results;
  }
};

const part_of<tables> part;

}  // namespace
