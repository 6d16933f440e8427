// SPDX-License-Identifier: MIT
#include <rope/block/projected_context.hpp>

#include <rope/block/multi_head_attention.hpp>

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/own_threads.hpp"

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::interleaved;
using rope::multi_head_attention;
using rope::projected_context;
using rope::row_starts;
using rope::segments;
using testing::random_block;
using testing::rows_of;
using testing::throws_saying;

namespace {

constexpr Index batch = 2, keys = 41, steps = 35;

}  // namespace

TEMPLATE_TEST_CASE("cross-attention to a projected context has the bits of cross-attention to the context",
                   "[block]", float, double) {
  using T = TestType;
  for (const bool norm : {false, true}) {
    const random_block<T> memory({.value_dim = 5, .context_dim = 7, .bias = norm, .norm = norm}, 551);
    testing::random numbers(552);
    const rows_of<T> context = testing::random_rows<T>(numbers, batch * keys, 7, 1);
    const frequency_table<T> table(frequencies(4), 100);
    const multi_head_attention<T, interleaved> block(memory.weights(), memory.options());
    const testing::own_threads threads(3);
    // One token per row, as in a decoder, and more tokens than a product processes together.
    for (const Index count : {Index(1), Index(3), steps}) {
      const rows_of<T> x = testing::random_rows<T>(numbers, batch * count, 10, 1);
      rows_of<T> out(batch * count, 10), expected(batch * count, 10);
      const auto check = [&](const auto& kept, const auto& plain) {
        out.setConstant(-77);
        kept();
        plain();
        CHECK(out == expected);
      };
      const projected_context<T> still = block.project_context(context, batch, threads);
      CHECK(still.batch() == batch);
      CHECK(still.tokens() == keys);
      check([&] { block.cross(x, still, out, threads); }, [&] { block.cross(x, context, batch, expected); });

      const projected_context<T> rotated = block.project_context(context, batch, table.at_channel(1), 11);
      check([&] { block.cross(x, rotated, out, table.at_channel(1), 50); },
            [&] { block.cross(x, context, batch, expected, table.at_channel(1), 50, 11); });
      // The keys differ from unrotated ones, and so does the output.
      const rows_of<T> with_rotation = out;
      block.cross(x, still, out);
      CHECK(out != with_rotation);

      const std::vector<int> starts = {40, 3}, offsets = {0, 1, 1, static_cast<int>(count)},
                             key_offsets = {0, 20, 30, static_cast<int>(keys)};
      const auto in_rows = block.project_context(context, batch, table, row_starts{starts}, threads);
      check([&] { block.cross(x, in_rows, out, table, row_starts{starts}, threads); },
            [&] { block.cross(x, context, batch, expected, table, row_starts{starts}, row_starts{starts}); });
      const auto in_segments = block.project_context(context, batch, table, segments{key_offsets});
      check(
          [&] { block.cross(x, in_segments, out, table, segments{offsets}, threads); },
          [&] { block.cross(x, context, batch, expected, table, segments{offsets}, segments{key_offsets}); });
    }
  }
}

TEST_CASE("a projected context owns its values and does not refer to its source", "[block]") {
  const random_block<float> memory({}, 553);
  testing::random numbers(554);
  rows_of<float> context = testing::random_rows<float>(numbers, batch * keys, 10);
  const rows_of<float> x = testing::random_rows<float>(numbers, batch, 10);
  rows_of<float> out(batch, 10), expected(batch, 10);
  const multi_head_attention<float> block(memory.weights(), memory.options());
  block.cross(x, context, batch, expected);
  projected_context<float> first = block.project_context(context, batch);
  context.setConstant(5);
  const projected_context<float> copy = first;
  projected_context<float> moved = std::move(first);
  for (const projected_context<float>* each : {&copy, &std::as_const(moved)}) {
    out.setZero();
    block.cross(x, *each, out);
    CHECK(out == expected);
  }
  CHECK(first.batch() == 0);
  CHECK(first.keys().size() == 0);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { block.cross(x, first, out); },
      "the projected context must have [kv_heads, head_dim, value_dim] = [2, 6, 6], got [0, 0, 0]"));
  first = copy;
  block.cross(x, first, out);
  CHECK(out == expected);
}

TEST_CASE("arguments that do not fit a projected context throw before anything is written", "[block]") {
  const random_block<double> memory({}, 555), other({.heads = 3, .kv_heads = 3}, 556);
  testing::random numbers(557);
  const rows_of<double> context = testing::random_rows<double>(numbers, batch * keys, 10),
                        x = testing::random_rows<double>(numbers, batch * 3, 10),
                        wide = testing::random_rows<double>(numbers, batch * 3, 11),
                        odd = testing::random_rows<double>(numbers, 5, 10);
  const frequency_table<double> table(frequencies(6), 60), faster(frequencies(6, 50.0), 60);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const multi_head_attention<double, half_split> narrow(other.weights(), other.options());
  const multi_head_attention<double, interleaved> in_pairs(memory.weights(), memory.options());
  const rows_of<double> before = rows_of<double>::Constant(batch * 3, 10, -77);
  rows_of<double> out = before;
  const auto still = block.project_context(context, batch);
  const auto rotated = block.project_context(context, batch, table);
  const std::vector<int> offsets = {0, 3}, key_offsets = {0, 20, keys};
  const auto in_segments = block.project_context(context, batch, table, segments{key_offsets});
  const auto rejected = [&](const auto& call, const char* text) {
    CHECK(throws_saying<std::invalid_argument>(call, "rope::multi_head_attention: ", text));
  };
  rejected([&] { narrow.cross(x, still, out); }, "= [3, 6, 6], got [2, 6, 6]");
  rejected([&] { block.cross(x, still, out, table); }, "got a table, and keys that are not rotated");
  rejected([&] { block.cross(x, rotated, out); }, "got none, and keys that are rotated");
  rejected([&] { block.cross(x, rotated, out, faster); }, "got another one than that of its keys");
  rejected([&] { block.cross(x, rotated, out, table.at_channel(0), segments{offsets}); },
           "queries and keys must have the same number of segments, got 1 and 0");
  rejected([&] { in_pairs.cross(x, rotated, out, table); }, "got another one than that of its keys");
  rejected([&] { block.cross(x, in_segments, out, table); },
           "queries and keys must have the same number of segments, got 0 and 2");
  rejected([&] { block.cross(x, in_segments, out, table, segments{offsets}); },
           "queries and keys must have the same number of segments, got 1 and 2");
  rejected([&] { block.cross(wide, rotated, out, table); }, "the columns of x and model_dim must be equal");
  rejected([&] { block.cross(odd, still, out.topRows(5)); },
           "the rows of tokens must be a multiple of batch");
  rejected([&] { static_cast<void>(block.project_context(wide, batch)); },
           "the columns of the keys' tokens and context_dim must be equal");
  CHECK(throws_saying<std::out_of_range>([&] { block.cross(x, rotated, out, table, 58); }, "position 60"));
  CHECK(throws_saying<std::out_of_range>(
      [&] { static_cast<void>(block.project_context(context, batch, table, 20)); }, "position 60"));
  CHECK(out == before);
}
