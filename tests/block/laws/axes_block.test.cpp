// SPDX-License-Identifier: MIT
// A block with caches with axes: alternating text and images give the outputs of one call for all of them.
#include <rope/block/multi_head_attention.hpp>

#include <rope/frequencies/axes.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <stdexcept>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::block_kind;
using testing::random_block;
using testing::rows_of;
using testing::throws_saying;

namespace {

const frequencies text_schedule(6, 50.0), on_three = on_axes(text_schedule, contiguous_sections({1, 1, 1}));
const std::vector<std::vector<prompt_run>> messages = {
    {text_run{2}, vision_run{1, 2, 3}}, {text_run{1}}, {vision_run{2, 2, 1}, text_run{1}}, {text_run{1}}};

}  // namespace

TEST_CASE("alternating text and images through a block with caches give the outputs of one call", "[block]") {
  for (const block_kind& kind : block_parts::kinds) {
    if (kind.head_dim < 6) continue;
    const random_block<double> memory(kind, 901);
    testing::random numbers(902);
    std::vector<prompt_run> all;
    for (const auto& runs : messages) all.insert(all.end(), runs.begin(), runs.end());
    const auto prompt = qwen_vl_positions(all);
    const Index count = prompt.coordinates.rows();
    const rows_of<double> x = testing::random_rows<double>(numbers, count, kind.model_dim, 1);
    const frequency_table<double> whole(on_three, prompt.coordinates), text(text_schedule, 40);
    const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
    rows_of<double> expected(count, kind.out_dim), out = expected;
    block.forward(x, 1, expected, whole);
    const auto check = [&](auto cache, bool by_positions) {
      out.setConstant(-77);
      Index first = 0;
      for (const auto& runs : messages) {
        const auto now = qwen_vl_positions(runs, cache.next_positions()[0]);
        const Index tokens = now.coordinates.rows();
        rows_of<double> result(tokens, kind.out_dim);
        const frequency_table<double> table(on_three, now.coordinates);
        block.forward(x.middleRows(first, tokens).eval(), cache, result,
                      by_positions && tokens == 1 ? text : table);
        out.middleRows(first, tokens) = result;
        first += tokens;
      }
      CHECK(testing::worst(out, 0, testing::exact(expected)) <= 1);
    };
    for (const bool by_positions : {false, true}) {
      CAPTURE(kind.heads, by_positions);
      check(kv_cache<double>(1, count, kind.kv_heads, kind.head_dim, token_axes{3}, kind.value_dim),
            by_positions);
      check(ring_cache<double>(1, {.window = count, .chunk = 8}, kind.kv_heads, kind.head_dim, token_axes{3},
                               kind.value_dim),
            by_positions);
    }
  }
}

TEST_CASE("a block throws if a table does not fit a cache with axes, and the cache is not changed",
          "[block]") {
  const block_kind kind = {};
  const random_block<double> memory(kind, 903);
  testing::random numbers(904);
  const rows_of<double> x = testing::random_rows<double>(numbers, 4, kind.model_dim, 1);
  rows_of<double> out = rows_of<double>::Constant(4, kind.out_dim, -77);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  kv_cache<double> cache(1, 9, kind.kv_heads, kind.head_dim, token_axes{3}, kind.value_dim),
      raw(1, 9, kind.kv_heads, kind.head_dim, token_axes{3}, kind.value_dim, key_storage::raw);
  ring_cache<double> ring(1, {.window = 4, .chunk = 2}, kind.kv_heads, kind.head_dim, token_axes{3},
                          kind.value_dim);
  const auto rejected = [&](auto& of, const frequency_table<double>& table, const char* text) {
    CHECK(throws_saying<std::invalid_argument>([&] { block.forward(x, of, out, table); },
                                               "multi_head_attention: ", text));
    CHECK(of.size(0) == 0);
    CHECK((out.array() == -77).all());
  };
  const Eigen::ArrayXXd zeros = Eigen::ArrayXXd::Zero(4, 3);
  rejected(cache, {on_three, zeros.topRows(3)},
           "coordinates must have [tokens] = 4 or [batch * tokens] = 4 rows, got 3");
  rejected(raw, {on_three, zeros}, "raw keys on 3 axes are read by a table of all tokens");
  rejected(ring, {on_three, zeros},
           "a ring with axes takes chunk = 2 tokens at a time by a table of their coordinates, got 4");
  // Text is cut into chunks as usual.
  block.forward(x, ring, out, frequency_table<double>(text_schedule, 4));
  CHECK(ring.next_positions()[0] == 4);
}
