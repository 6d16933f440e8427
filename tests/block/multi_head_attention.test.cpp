// SPDX-License-Identifier: MIT
#include <rope/block/multi_head_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/attention/dropout.hpp>
#include <string>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using namespace block_parts;
using testing::block_kind;
using testing::random_block;
using testing::rows_of;
using testing::throws_saying;

}  // namespace

TEMPLATE_TEST_CASE("a block follows its definition, with and without rotation", "[block]", float, double) {
  using T = TestType;
  const frequencies louder = frequencies::custom(narrow.inv_freq(), 1.2);
  for (const block_kind& kind : kinds) {
    const random_block<T> memory(kind, 501);
    testing::random numbers(502);
    const Index batch = 2, count = 7;
    const rows_of<T> x = testing::random_rows<T>(numbers, batch * count, kind.model_dim, 2);
    rows_of<T> out(batch * count, kind.out_dim);
    CAPTURE(kind.heads, kind.kv_heads, kind.bias, kind.norm);

    multi_head_attention<T>(memory.weights(), memory.options()).forward(x, batch, out);
    for (Index b = 0; b < batch; ++b) {
      const reference::matrix row = part(x, b * count, count);
      CHECK(testing::worst(out, b * count,
                           forward(memory.reference(), row, row, counted(7), counted(7), causal)) <= 1);
    }

    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      const multi_head_attention<T, Layout> block(memory.weights(), memory.options());
      const frequency_table<T> table(louder, -20, 60);
      const auto m = memory.template reference<Layout>(louder);
      const auto check = [&](const auto& positions_of) {
        for (Index b = 0; b < batch; ++b) {
          const reference::matrix row = part(x, b * count, count);
          const std::vector<long long> positions = positions_of(b);
          CHECK(testing::worst(out, b * count, forward(m, row, row, positions, positions, causal)) <= 1);
        }
        out.setConstant(-77);
      };
      block.forward(x, batch, out, table);
      check([](Index) { return counted(7); });
      block.forward(x, batch, out, table, 30);
      check([](Index) { return counted(7, 30); });
      const std::vector<int> ids = {3, 1, 4, 1, 5, 9, -2, 6, 5, 3, 5, 8, 9, 7};
      block.forward(x, batch, out, table, ids);
      check([&](Index b) { return std::vector<long long>(ids.begin() + b * 7, ids.begin() + b * 7 + 7); });
      const std::vector<std::int64_t> starts = {-5, 40};
      block.forward(x, batch, out, table, row_starts{starts});
      check([](Index b) { return counted(7, b == 0 ? -5 : 40); });
    });
  }
}

TEST_CASE("scale, window and softcap reach the attention of a block", "[block]") {
  const random_block<double> memory({}, 503);
  testing::random numbers(504);
  const rows_of<double> x = testing::random_rows<double>(numbers, 9, 10, 2);
  rows_of<double> out(9, 10);
  multi_head_options options = memory.options();
  options.attention.window = 3;
  options.attention.softcap = 0.7;
  multi_head_attention<double>(memory.weights(), options).forward(x, 1, out);
  reference::block m = memory.reference();
  m.softcap = 0.7L;
  const reference::matrix row = testing::exact(x);
  const auto near = [](std::size_t i, std::size_t j) { return j <= i && i - j < 3; };
  CHECK(testing::worst(out, 0, forward(m, row, row, counted(9), counted(9), near)) <= 1);
}

TEST_CASE("every option of attention applies between the projections of a block", "[block]") {
  const random_block<double> memory({.bias = true}, 519);
  testing::random numbers(520);
  const Index batch = 2, count = 9;
  const rows_of<double> x = testing::random_rows<double>(numbers, batch * count, 10, 2);
  const rows_of<float> bias = testing::random_rows<float>(numbers, count, count, 1);
  const std::vector<float> logits = {0.5f, -1, 2, 0};
  bool mask[9];
  for (int j = 0; j < 9; ++j) mask[j] = j != 4;
  const frequency_table<double> table(narrow, 40);
  multi_head_options options = memory.options();
  options.attention = {.scale = 0.3,
                       .window = 4,
                       .softcap = 1.5,
                       .sinks = 1,
                       .sink_logits = logits,
                       .bias = score_matrix(bias.data(), 1, 1, count, count),
                       .mask = score_matrix(mask, 1, 1, 1, count),
                       .dropout = 0.3,
                       .dropout_seed = 11};
  rows_of<double> out(batch * count, 10);
  multi_head_attention<double, half_split>(memory.weights(), options).forward(x, batch, out, table, 5);

  const auto linear = [&](const rows_of<double>& weight, const testing::row_of<double>& b) {
    rows_of<double> y = x.lazyProduct(weight.transpose());
    y.rowwise() += b;
    return y;
  };
  rows_of<double> q = linear(memory.q, memory.q_bias), k = linear(memory.k, memory.k_bias),
                  v = linear(memory.v, memory.v_bias), attended(batch * count, 24);
  rotate<half_split>(bshd(q.data(), batch, count, 4, 6), table, 5);
  rotate<half_split>(bshd(k.data(), batch, count, 2, 6), table, 5);
  attention(bshd(q.data(), batch, count, 4, 6), bshd(k.data(), batch, count, 2, 6),
            bshd(v.data(), batch, count, 2, 6), bshd(attended.data(), batch, count, 4, 6), options.attention);
  rows_of<double> expected = attended.lazyProduct(memory.o.transpose());
  expected.rowwise() += memory.o_bias;
  CHECK(testing::worst(out, 0, testing::exact(expected)) <= 1);

  // Each of them changes the result.
  const auto differs_without = [&](const auto& change) {
    multi_head_options other = options;
    change(other.attention);
    rows_of<double> without(batch * count, 10);
    multi_head_attention<double, half_split>(memory.weights(), other).forward(x, batch, without, table, 5);
    return testing::worst(without, 0, testing::exact(expected)) > 1000;
  };
  CHECK(differs_without([](attention_options& o) { o.scale = 0; }));
  CHECK(differs_without([](attention_options& o) { o.window = 0; }));
  CHECK(differs_without([](attention_options& o) { o.softcap = 0; }));
  CHECK(differs_without([](attention_options& o) { o.sinks = 0; }));
  CHECK(differs_without([](attention_options& o) { o.sink_logits = {}; }));
  CHECK(differs_without([](attention_options& o) { o.bias = {}; }));
  CHECK(differs_without([](attention_options& o) { o.mask = {}; }));
  CHECK(differs_without([](attention_options& o) { o.dropout = 0; }));
  CHECK(differs_without([](attention_options& o) { o.dropout_seed = 12; }));
}

TEST_CASE("dropout drops weights of every row, head, query and key independently", "[block]") {
  const random_block<double> memory({}, 521);
  testing::random numbers(522);
  const rows_of<double> x = testing::random_rows<double>(numbers, 2 * 7, 10, 2);
  rows_of<double> out(14, 10);
  multi_head_options options = memory.options();
  options.attention.dropout = 0.4;
  options.attention.dropout_seed = 23;
  multi_head_attention<double>(memory.weights(), options).forward(x, 2, out);
  reference::block m = memory.reference();
  m.gain = dropout_gain(0.4, 23);
  for (Index b = 0; b < 2; ++b) {
    const reference::matrix row = part(x, 7 * b, 7);
    CHECK(testing::worst(out, 7 * b,
                         forward(m, row, row, counted(7), counted(7), causal, static_cast<std::size_t>(b))) <=
          1);
  }
}

TEST_CASE("all_visible disables the rules that hide keys by position, and no others", "[block]") {
  const random_block<double> memory({}, 523);
  multi_head_options options = memory.options();
  options.attention = {.scale = 0.3, .window = 4, .softcap = 1.5, .sinks = 2, .dropout = 0.3};
  const attention_options visible = multi_head_attention<double>(memory.weights(), options).all_visible();
  CHECK_FALSE(visible.causal);
  CHECK(visible.window == 0);
  CHECK(visible.sinks == 0);
  CHECK(visible.scale == 0.3);
  CHECK(visible.softcap == 1.5);
  CHECK(visible.dropout == 0.3);
}

TEMPLATE_TEST_CASE("a block of more tokens and channels than a tile of its products follows its definition",
                   "[block]", float, double) {
  using T = TestType;
  // Tiles are 1024 tokens by 64 channels.
  const block_kind kind = {.heads = 6,
                           .kv_heads = 2,
                           .head_dim = 45,
                           .value_dim = 11,
                           .model_dim = 5,
                           .context_dim = 5,
                           .out_dim = 259,
                           .bias = true,
                           .norm = true};
  const random_block<T> memory(kind, 525);
  testing::random numbers(526);
  const auto near = [](std::size_t i, std::size_t j) { return j <= i && i - j < 3; };
  multi_head_options options = memory.options();
  options.attention.window = 3;
  const frequency_table<T> table(narrow, 1100);
  const multi_head_attention<T, half_split> block(memory.weights(), options);
  for (const Index count : {2, 8, 9, 65, 1040}) {
    CAPTURE(count);
    const rows_of<T> x = testing::random_rows<T>(numbers, count, 5, 2);
    rows_of<T> out(count, 259);
    block.forward(x, 1, out, table);
    const reference::matrix row = testing::exact(x);
    const auto positions = counted(row.rows);
    CHECK(testing::worst(out, 0,
                         forward(memory.template reference<half_split>(narrow), row, row, positions,
                                 positions, near)) <= 1);
  }
}

TEST_CASE("tokens of different segments do not attend to each other", "[block]") {
  const random_block<double> memory({}, 505);
  testing::random numbers(506);
  const rows_of<double> x = testing::random_rows<double>(numbers, 11, 10, 2);
  rows_of<double> out(11, 10);
  const frequency_table<double> table(narrow, 40);
  const std::vector<int> offsets = {0, 4, 4, 9, 11}, starts = {0, 0, 20, 3};
  const multi_head_attention<double, interleaved> block(memory.weights(), memory.options());
  block.forward(x, 1, out, table, segments<int>{std::span<const int>(offsets), std::span<const int>(starts)});
  for (std::size_t s = 0; s < 4; ++s) {
    const reference::matrix row = part(x, offsets[s], offsets[s + 1] - offsets[s]);
    const auto positions = counted(row.rows, starts[s]);
    if (row.rows > 0)
      CHECK(testing::worst(
                out, offsets[s],
                forward(memory.reference<interleaved>(narrow), row, row, positions, positions, causal)) <= 1);
  }
}

TEST_CASE("ids of a block may be written in braces", "[block]") {
  const random_block<double> memory({}, 543);
  testing::random numbers(544);
  const rows_of<double> x = testing::random_rows<double>(numbers, 3, 10, 2);
  const frequency_table<double> table(narrow, 40);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const std::vector<int> ids = {3, 0, 7};
  rows_of<double> out(3, 10), expected(3, 10);
  block.forward(x, 1, expected, table, ids);
  block.forward(x, 1, out, table, {3, 0, 7});
  CHECK(out == expected);
  const auto projected = block.project_context(x, 1, table, {3, 0, 7});
  CHECK(testing::same_heads(projected.keys(), block.project_context(x, 1, table, ids).keys()));
  block.cross(x, projected, expected, table, ids);
  block.cross(x, projected, out, table, {3, 0, 7});
  CHECK(out == expected);
}

TEST_CASE("a block evaluates an expression of positions once, for queries and keys", "[block]") {
  const random_block<double> memory({}, 541);
  testing::random numbers(542);
  const rows_of<double> x = testing::random_rows<double>(numbers, 3, 10, 2);
  const frequency_table<double> table(narrow, 40);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  int next = 5;  // other positions at each evaluation
  const auto ids = Eigen::ArrayXi::NullaryExpr(3, [&next](Index) { return next++; });
  rows_of<double> out(3, 10), expected(3, 10);
  block.forward(x, 1, expected, table, 5);
  block.forward(x, 1, out, table, ids);
  CHECK(next == 8);
  CHECK(out == expected);
  next = 5;
  const auto projected = block.project_context(x, 1, table, ids);
  CHECK(next == 8);
  CHECK(testing::same_heads(projected.keys(), block.project_context(x, 1, table, 5).keys()));
}

TEMPLATE_TEST_CASE("cross-attention attends to a whole context, at its own positions", "[block]", float,
                   double) {
  using T = TestType;
  const block_kind kind{.context_dim = 6, .bias = true, .norm = true};
  const random_block<T> memory(kind, 507);
  testing::random numbers(508);
  const rows_of<T> x = testing::random_rows<T>(numbers, 2 * 3, 10, 2),
                   context = testing::random_rows<T>(numbers, 2 * 8, 6, 2);
  rows_of<T> out(6, 10);
  const frequency_table<T> table(narrow, 100);
  multi_head_options options = memory.options();
  options.attention.window = 2;  // for self-attention
  const multi_head_attention<T, half_split> block(memory.weights(), options);
  const auto check = [&](const reference::block& m, const auto& query_positions, const auto& key_positions) {
    for (Index b = 0; b < 2; ++b)
      CHECK(testing::worst(out, b * 3,
                           forward(m, part(x, b * 3, 3), part(context, b * 8, 8), query_positions(b),
                                   key_positions(b), everything)) <= 1);
    out.setConstant(-77);
  };
  block.cross(x, context, 2, out);
  check(
      memory.reference(), [](Index) { return counted(3); }, [](Index) { return counted(8); });
  block.cross(x, context, 2, out, table, 50, 7);
  check(
      memory.template reference<half_split>(narrow), [](Index) { return counted(3, 50); },
      [](Index) { return counted(8, 7); });
  const std::vector<Index> starts = {10, 90}, ids = {8, 6, 7, 5, 3, 0, 9, 1};
  block.cross(x, context, 2, out, table, row_starts{starts}, ids);
  check(
      memory.template reference<half_split>(narrow), [](Index b) { return counted(3, b == 0 ? 10 : 90); },
      [&](Index) { return std::vector<long long>(ids.begin(), ids.end()); });

  const std::vector<int> q_offsets = {0, 1, 3}, k_offsets = {0, 5, 8}, bad = {0, 8};
  const rows_of<T> one = x.topRows(3), one_context = context.topRows(8);
  rows_of<T> one_out(3, 10);
  block.cross(one, one_context, 1, one_out, table, segments<int>{std::span<const int>(q_offsets)},
              segments<int>{std::span<const int>(k_offsets)});
  for (Index s = 0; s < 2; ++s) {
    const auto at = static_cast<std::size_t>(s);
    const reference::matrix q = part(one, q_offsets[at], q_offsets[at + 1] - q_offsets[at]),
                            k = part(one_context, k_offsets[at], k_offsets[at + 1] - k_offsets[at]);
    CHECK(testing::worst(one_out, q_offsets[at],
                         forward(memory.template reference<half_split>(narrow), q, k, counted(q.rows),
                                 counted(k.rows), everything)) <= 1);
  }
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        block.cross(one, one_context, 1, one_out, table, segments<int>{std::span<const int>(q_offsets)},
                    segments<int>{std::span<const int>(bad)});
      },
      "rope::multi_head_attention: queries and keys must have the same number of segments, got 2 and 1"));
}

TEST_CASE("a block reads tokens from any rows of a matrix and does not copy them", "[block]") {
  const random_block<double> memory({}, 515);
  testing::random numbers(516);
  rows_of<double> wide = testing::random_rows<double>(numbers, 6, 30, 2), result(6, 25);
  const rows_of<double> x = wide.middleCols(7, 10);
  rows_of<double> out(6, 10);
  const multi_head_attention<double> block(memory.weights(), memory.options());
  block.forward(x, 2, out);
  result.setConstant(-77);
  block.forward(wide.middleCols(7, 10), 2, result.middleCols(3, 10));
  CHECK(result.middleCols(3, 10) == out);
  CHECK((result.leftCols(3).array() == -77).all());
  CHECK((result.rightCols(12).array() == -77).all());
}

TEST_CASE("a call whose heads exceed the address space throws", "[block]") {
  // Neither tokens nor outputs have columns, so there can be any number of them.
  const double memory[1] = {};
  const auto linear = [&](Index out, Index in) { return projection<const double>(memory, out, in); };
  const multi_head_attention<double> block(
      {.q = linear(24, 0), .k = linear(12, 0), .v = linear(6, 0), .o = linear(0, 12)},
      {.heads = 4, .kv_heads = 2});
  const Index rows = (std::numeric_limits<Index>::max)() / 2;
  const Eigen::Map<const rows_of<double>> x(memory, rows, 0);
  double written[1];
  Eigen::Map<rows_of<double>> out(written, rows, 0);
  const auto rejected = [&](const std::string& heads, const auto& call) {
    CHECK(throws_saying<std::length_error>(
        call, "rope::multi_head_attention: the heads of a call must not exceed the address space, got [1, " +
                  std::to_string(rows) + heads));
  };
  std::vector<double> sums(5);
  rejected(", 4, 6]", [&] { block.forward(x, 1, out); });
  rejected(", 4, 6]", [&] { block.reporting({.log_sum_exp = sums}).forward(x, 1, out); });
  rejected(", 2, 6]", [&] { block.cross(x.topRows(1), x, 1, out.topRows(1)); });
  rejected(", 2, 6]", [&] { block.project_context(x, 1); });
}

TEST_CASE("an invalid call of a block throws, and neither output nor cache changes", "[block]") {
  const random_block<double> memory({.context_dim = 6}, 517), self({}, 518);
  const rows_of<double> x = rows_of<double>::Ones(6, 10), context = rows_of<double>::Ones(8, 6),
                        wrong = rows_of<double>::Ones(6, 9);
  rows_of<double> out = rows_of<double>::Constant(6, 10, -77), narrow_out(6, 9), short_out(5, 10);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options()),
      itself(self.weights(), self.options());
  const frequency_table<double> table(narrow, 4), other(frequencies(4, 60.0), 40), wide(frequencies(8), 40);
  kv_cache<double> cache(2, 4, 2, 6), raw(2, 20, 2, 6, 0, key_storage::raw), other_heads(2, 9, 4, 6),
      full(2, 2, 2, 6);
  itself.forward(x.topRows(2), cache, out.topRows(2), table);
  itself.forward(x.topRows(2), raw, out.topRows(2), table);
  raw.shift(0, 1, 10);
  ring_cache<double> ring(2, {.sinks = 1, .window = 2}, 2, 6);
  itself.forward(x.topRows(2), ring, out.topRows(2), table);
  out.setConstant(-77);
  const auto rejected = [&]<class E>(E, const std::string& text, const auto& call) {
    CHECK(throws_saying<E>(call, "rope::" + text));
    CHECK((out.array() == -77).all());
    CHECK(cache.size() == 1);
    CHECK(raw.size() == 1);
    CHECK(full.size() == 0);
    CHECK(ring.next_positions()[0] == 1);
  };
  const std::invalid_argument invalid("");
  const std::out_of_range range("");
  const std::string m = "multi_head_attention: ";
  rejected(invalid, m + "the rows of tokens must be a multiple of batch, got 6 and 4",
           [&] { itself.forward(x, 4, out); });
  rejected(invalid, m + "batch must not be negative, got -1", [&] { itself.forward(x, -1, out); });
  rejected(invalid, m + "the rows of tokens must be a multiple of batch, got 6 and 0",
           [&] { itself.forward(x, 0, out); });
  rejected(invalid, m + "the columns of x and model_dim must be equal, got 9 and 10",
           [&] { itself.forward(wrong, 2, out); });
  rejected(invalid, m + "the columns of the keys' tokens and context_dim must be equal, got 10 and 6",
           [&] { block.forward(x, 2, out); });
  rejected(invalid, m + "the columns of the keys' tokens and context_dim must be equal, got 10 and 6",
           [&] { block.cross(x, x, 2, out); });
  rejected(invalid, m + "the rows of tokens must be a multiple of batch, got 8 and 3",
           [&] { block.cross(x, context, 3, out); });
  rejected(invalid, m + "the columns of out and out_dim must be equal, got 9 and 10",
           [&] { itself.forward(x, 2, narrow_out); });
  rejected(invalid, m + "out and x must have the same rows, got 5 and 6",
           [&] { itself.forward(x, 2, short_out); });
  using map = Eigen::Map<rows_of<double>>;
  const map null(nullptr, 6, 10), no_context(nullptr, 8, 6);
  rejected(invalid, m + "x must have memory, got null for [6, 10]", [&] { itself.forward(null, 2, out); });
  rejected(invalid, m + "x must have memory, got null for [6, 10]",
           [&] { itself.forward(null, cache, out, table); });
  rejected(invalid, m + "out must have memory, got null for [6, 10]",
           [&] { itself.forward(x, 2, map(nullptr, 6, 10)); });
  rejected(invalid, m + "the keys' tokens must have memory, got null for [8, 6]",
           [&] { block.cross(x, no_context, 2, out); });
  rejected(invalid, m + "the keys' tokens must have memory, got null for [8, 6]",
           [&] { block.project_context(no_context, 2); });
  rejected(range, m + "position 4 is outside the table's [0, 4)",
           [&] { itself.forward(x, 2, out, table, 2); });
  rejected(range, m + "position 4 is outside the table's [0, 4)",
           [&] { block.cross(x, context, 2, out, table, 2, 0); });
  rejected(range, m + "position 4 is outside the table's [0, 4)",
           [&] { block.cross(x, context, 2, out, table, 0, 1); });
  rejected(invalid, m + "products in bfloat16 need queries, keys, values and outputs of bfloat16", [&] {
    auto options = self.options();
    options.attention.products = product_precision::bfloat16;
    multi_head_attention<double, half_split>(self.weights(), options);
  });
  rejected(invalid, m + "rotary_dim must not exceed head_dim, got 8 of 6",
           [&] { itself.forward(x, 2, out, wide); });
  rejected(invalid, m + "ids must be [tokens] = 3 or [batch * tokens] = 6, got 2", [&] {
    itself.forward(x, 2, out, table, std::vector<int>{0, 1});
  });

  rejected(invalid, m + "the cache must have [kv_heads, head_dim, value_dim] = [2, 6, 6], got [4, 6, 6]",
           [&] { itself.forward(x, other_heads, out, table); });
  rejected(invalid, m + "the rows of tokens must be a multiple of batch, got 5 and 2",
           [&] { itself.forward(x.topRows(5), cache, out.topRows(5), table); });
  rejected(std::length_error(""), "kv_cache::append: 3 tokens do not fit into row 0, which holds 0 of 2",
           [&] { itself.forward(x, full, out, table); });
  rejected(invalid, "kv_cache: give the layout and the table that the keys were rotated by",
           [&] { itself.forward(x, cache, out, other); });
  rejected(invalid, "kv_cache::append: this cache rotates its keys, give the layout and the table",
           [&] { itself.forward(x, cache, out); });
  rejected(invalid, m + "this cache stores raw keys, give the table", [&] { itself.forward(x, raw, out); });
  // A raw key was shifted to 10, so a table of 4 positions cannot read it.
  rejected(range, m + "position 10 is outside the table's [0, 4)",
           [&] { itself.forward(x, raw, out, table); });
  rejected(range, m + "position 3 is outside the table's [0, 3)",
           [&] { itself.forward(x, cache, out, frequency_table<double>(narrow, 3)); });
  rejected(invalid, m + "counts must be in [0, tokens] = [0, 3], got 4", [&] {
    itself.forward(x, cache, out, table, std::vector<Index>{4, 1});
  });
  rejected(range, m + "position 3 is outside the table's [0, 3)",
           [&] { itself.forward(x, ring, out, frequency_table<double>(narrow, 3)); });
  multi_head_options windowed = self.options();
  windowed.attention.window = 5;
  rejected(invalid,
           m + "leave causal, window and sinks at their defaults, the ring_cache has its own, causal with "
               "window = 2 and sinks = 1, got window = 5",
           [&] {
             multi_head_attention<double, half_split>(self.weights(), windowed).forward(x, ring, out, table);
           });
}

namespace {

/// The log-sum-exps of rows [first, first + count) of x as one sequence, [queries, heads], of a block without
/// rotation.
reference::list log_sums(const random_block<double>& m, const rows_of<double>& x, Index first, Index count,
                         const reference::sees_key& sees) {
  const reference::block exact = m.reference();
  const reference::matrix row = part(x, first, count);
  return reference::weights_and_sums(exact, exact.q(row), exact.k(row), sees).log_sums;
}

/// Scores below 20 and sums of at most 16 keys: a hundred roundings of 40.
bool near(double got, testing::wide exact) {
  return testing::abs(got - exact) <= static_cast<testing::wide>(testing::block_bound<double>());
}

}  // namespace

TEST_CASE("a block reports the log-sum-exp of every query: in one call, in segments and in chunks",
          "[block]") {
  const random_block<double> memory({}, 527);
  testing::random numbers(528);
  const Index batch = 2, count = 9, heads = memory.kind.heads;
  const rows_of<double> x = testing::random_rows<double>(numbers, batch * count, 10, 2);
  rows_of<double> out(batch * count, 10), expected(batch * count, 10);
  std::vector<double> sums(static_cast<std::size_t>(batch * count * heads));
  multi_head_options options = memory.options();
  const auto block_of = [&](const multi_head_options& o) {
    return multi_head_attention<double, half_split>(memory.weights(), o);
  };
  multi_head_options reporting = options;
  reporting.attention.log_sum_exp = sums;
  const auto check = [&](Index row, Index first, const std::vector<testing::wide>& exact) {
    const auto begin = static_cast<std::size_t>((row * count + first) * heads);
    bool holds = true;
    for (std::size_t n = 0; n < exact.size(); ++n) holds = holds && near(sums[begin + n], exact[n]);
    CHECK(holds);
  };
  const auto forget = [&] { std::fill(sums.begin(), sums.end(), -77.0); };

  block_of(reporting).forward(x, batch, out);
  for (Index b = 0; b < batch; ++b) check(b, 0, log_sums(memory, x, b * count, count, causal));
  block_of(options).forward(x, batch, expected);
  CHECK(out == expected);
  forget();
  block_of(reporting).cross(x, x, batch, out);
  for (Index b = 0; b < batch; ++b) check(b, 0, log_sums(memory, x, b * count, count, everything));

  // A table of frequency 0, so that the definition needs no rotation. The segments of both rows are equal.
  const frequency_table<double> still(frequencies::custom(Eigen::ArrayXd::Zero(2)), 40);
  const std::vector<int> offsets = {0, 4, 4, 9};
  forget();
  block_of(reporting).forward(x, batch, out, still, segments<int>{std::span<const int>(offsets)});
  for (Index b = 0; b < batch; ++b)
    for (std::size_t s = 0; s < 3; ++s)
      check(b, offsets[s], log_sums(memory, x, b * count + offsets[s], offsets[s + 1] - offsets[s], causal));

  // A ring takes 9 tokens in chunks of 4, and every query attends to its last 3 keys and the first one.
  const auto ringed = [](std::size_t i, std::size_t j) { return j <= i && (i - j < 3 || j == 0); };
  ring_cache<double> ring(batch, {.sinks = 1, .window = 3, .chunk = 4}, 2, 6);
  kv_cache<double> cache(batch, 20, 2, 6);
  forget();
  block_of(reporting).forward(x, ring, out);
  for (Index b = 0; b < batch; ++b) check(b, 0, log_sums(memory, x, b * count, count, ringed));
  forget();
  block_of(reporting).forward(x, cache, out);
  for (Index b = 0; b < batch; ++b) check(b, 0, log_sums(memory, x, b * count, count, causal));

  // Row 1 has 6 new tokens, which end within the second chunk.
  const std::vector<Index> counts = {9, 6};
  ring.clear();
  forget();
  block_of(reporting).forward(x, ring, out, counts);
  check(0, 0, log_sums(memory, x, 0, 9, ringed));
  check(1, 0, log_sums(memory, x, count, 6, ringed));
  for (std::size_t n = static_cast<std::size_t>((count + 6) * heads); n < sums.size(); ++n)
    CHECK(sums[n] == attention_options::no_keys);
}

TEST_CASE("a mask and a bias of a block apply to all its segments", "[block]") {
  const random_block<double> memory({}, 529);
  testing::random numbers(530);
  const Index count = 9;
  const rows_of<double> x = testing::random_rows<double>(numbers, count, 10, 2);
  rows_of<double> out(count, 10);
  bool mask[81];
  std::vector<float> bias(81, 0.0f);
  for (int n = 0; n < 81; ++n) {
    mask[n] = n % 10 == 0 || numbers.unit() > 0.3;  // a query attends to itself
    if (n % 10 != 0 && numbers.unit() < 0.2) bias[static_cast<std::size_t>(n)] = -1e31f;
  }
  multi_head_options options = memory.options();
  options.attention.mask = score_matrix(mask, 1, 1, count, count);
  options.attention.bias = score_matrix(bias.data(), 1, 1, count, count);
  const frequency_table<double> table(narrow, 40);
  const std::vector<int> offsets = {0, 4, 5, 5, 9};
  multi_head_attention<double, half_split>(memory.weights(), options)
      .forward(x, 1, out, table, segments<int>{std::span<const int>(offsets)});
  for (std::size_t s = 0; s < 4; ++s) {
    const auto first = static_cast<std::size_t>(offsets[s]);
    const reference::matrix row = part(x, offsets[s], offsets[s + 1] - offsets[s]);
    const auto sees = [&](std::size_t i, std::size_t j) {
      const std::size_t n = (first + i) * 9 + first + j;
      return j <= i && mask[n] && bias[n] == 0;
    };
    if (row.rows > 0)
      CHECK(testing::worst(out, offsets[s],
                           forward(memory.reference<half_split>(narrow), row, row, counted(row.rows),
                                   counted(row.rows), sees)) <= 1);
  }
}

TEST_CASE("attention options that do not fit a call of a block throw with their name, and nothing changes",
          "[block]") {
  const random_block<double> memory({}, 531);
  const rows_of<double> x = rows_of<double>::Ones(6, 10);
  rows_of<double> out = rows_of<double>::Constant(6, 10, -77);
  std::vector<double> sums(24, -77);
  const std::vector<float> bias(36, 0.0f);
  const frequency_table<double> table(narrow, 40);
  ring_cache<double> ring(2, {.sinks = 1, .window = 3, .chunk = 2}, 2, 6);
  const std::vector<int> offsets = {0, 2, 6};
  const segments<int> parts{std::span<const int>(offsets)};
  const auto rejected = [&](const auto& change, const std::string& text, const auto& call) {
    multi_head_options options = memory.options();
    change(options.attention);
    const multi_head_attention<double, half_split> block(memory.weights(), options);
    CHECK(throws_saying<std::invalid_argument>([&] { call(block); }, "rope::multi_head_attention: " + text));
    CHECK((out.array() == -77).all());
    CHECK(sums == std::vector<double>(24, -77));
    CHECK(ring.next_positions()[0] == 0);
  };
  const auto short_sums = [&](attention_options& o) { o.log_sum_exp = std::span(sums).first(23); };
  rejected(short_sums, "log_sum_exp must be empty or have length 24, got 23",
           [&](const auto& block) { block.forward(x, 2, out); });
  rejected(short_sums, "log_sum_exp must be empty or have length 24, got 23",
           [&](const auto& block) { block.forward(x, ring, out, table); });
  rejected(short_sums, "log_sum_exp must be empty or have length 24, got 23",
           [&](const auto& block) { block.forward(x, 1, out, table, parts); });
  const auto small_bias = [&](attention_options& o) { o.bias = score_matrix(bias.data(), 1, 1, 4, 4); };
  rejected(small_bias, "the extents of bias must be 1 or those of the scores, [1, 4, 6, 6], got [1, 1, 4, 4]",
           [&](const auto& block) { block.forward(x, 1, out, table, parts); });
  const std::vector<std::int64_t> list = {0, 1, 2, 3, 4, 5}, lengths = {6}, ends = {0, 6}, one = {1};
  const std::string counted_from =
      "segments say where tokens are; leave query_positions, key_positions, query_counts, key_counts and "
      "query_offsets empty in the options, got lengths ";
  for (const int which : {0, 1, 2, 3, 4})
    rejected(
        [&](attention_options& o) {
          if (which == 0) o.query_positions = list;
          if (which == 1) o.key_positions = list;
          if (which == 2) o.key_counts = lengths;
          if (which == 3) o.query_offsets = ends;
          if (which == 4) o.query_counts = one;
          o.causal = which != 4;  // causal attention needs counts of keys too
        },
        counted_from, [&](const auto& block) { block.forward(x, 1, out, table, parts); });
  rejected([&](attention_options& o) { o.query_counts = one; }, counted_from + "0, 0, 1, 0 and 0",
           [&](const auto& block) { block.cross(x, x, 1, out, table, parts, parts); });
  const std::vector<rope::key_range> ranges(6, {0, 1}), few(5, {0, 1});
  rejected([&](attention_options& o) { o.key_ranges = ranges; },
           "segments limit the keys of their queries; leave key_ranges empty in the options, got 6",
           [&](const auto& block) { block.forward(x, 1, out, table, parts); });
  rejected([&](attention_options& o) { o.key_ranges = few; },
           "key_ranges must be empty or have length 3 or 6, got 5",
           [&](const auto& block) { block.forward(x, 2, out, table); });
}

TEST_CASE("a block throws before it appends to a ring in which its queries would need a skipped position",
          "[block]") {
  const random_block<double> memory({}, 533);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const rows_of<double> x = rows_of<double>::Ones(6, 10);
  rows_of<double> out = rows_of<double>::Constant(6, 10, -77);
  const frequency_table<double> table(narrow, 4);
  ring_cache<double> ring(2, {.sinks = 1, .window = 3, .chunk = 2, .positions = ring_positions::cache}, 2, 6,
                          6, key_storage::raw);
  const std::vector<double> numbers(24, 0.5);
  const auto k = bshd(numbers.data(), 2, 1, 2, 6);
  ring.append(k, k);
  ring.append_at(k, k, 1000, std::vector<int>{0, 1});
  CHECK(throws_saying<std::invalid_argument>([&] { block.forward(x, ring, out, table); },
                                             "rope::multi_head_attention: ring_positions::cache needs every "
                                             "key of the window and the sinks, but row "
                                             "1 has no token at position 999"));
  CHECK((out.array() == -77).all());
  CHECK(ring.seen(0) == 1);
  CHECK(ring.seen(1) == 1001);

  // A row without new tokens has no queries.
  CHECK_NOTHROW(block.forward(x, ring, out, table, std::vector<int>{3, 0}));
  CHECK(ring.seen(0) == 4);
  CHECK(ring.seen(1) == 1001);
}

TEST_CASE("a block throws before it appends the first chunk if a later one would exceed the largest position",
          "[block]") {
  const random_block<double> memory({}, 543);
  const rows_of<double> x = rows_of<double>::Ones(5, 10);
  rows_of<double> out = rows_of<double>::Constant(5, 10, -77);
  const std::vector<double> numbers(24, 0.5);
  const auto k = bshd(numbers.data(), 1, 1, 2, 6);
  constexpr std::int64_t end = std::int64_t{1} << 53;
  const auto rejects = [&](auto& ring, const auto& call) {
    ring.append_at(k, k, end - 2);
    CHECK(throws_saying<std::out_of_range>([&] { call(ring); },
                                           "rope::multi_head_attention: positions must stay within 2^53 in "
                                           "magnitude, got 9007199254740995"));
    CHECK(ring.seen(0) == end - 1);
    CHECK((out.array() == -77).all());
  };
  ring_cache<double> plain(1, {.window = 4, .chunk = 1}, 2, 6),
      raw(1, {.window = 4, .chunk = 1}, 2, 6, 6, key_storage::raw);
  const multi_head_attention<double> without(memory.weights(), memory.options());
  rejects(plain, [&](auto& ring) { without.forward(x, ring, out); });
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const frequency_table<double> table(narrow, end - 10, end + 10);
  rejects(raw, [&](auto& ring) { block.forward(x, ring, out, table); });

  block.forward(x.topRows(2), raw, out.topRows(2), table);
  CHECK(raw.seen(0) == end + 1);
}

TEST_CASE("a table of a block needs no position that a ring of raw keys overwrites before it is read",
          "[block]") {
  const random_block<double> memory({}, 544);
  testing::random numbers(545);
  const rows_of<double> x = testing::random_rows<double>(numbers, 7, 10, 2);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const frequency_table<double> all(narrow, 40);
  const auto check = [&](const ring_policy& policy, std::int64_t first, std::int64_t last) {
    ring_cache<double> ring(1, policy, 2, 6, 6, key_storage::raw), expected = ring;
    rows_of<double> out(7, 10), of_all(7, 10);
    block.forward(x.topRows(4), ring, out.topRows(4), all);
    block.forward(x.topRows(4), expected, of_all.topRows(4), all);
    block.forward(x.bottomRows(3), expected, of_all.bottomRows(3), all);
    const ring_cache<double> before = ring;
    CHECK(throws_saying<std::out_of_range>(
        [&] {
          block.forward(x.bottomRows(3), ring, out.bottomRows(3),
                        frequency_table<double>(narrow, first + 1, last));
        },
        "rope::multi_head_attention: position " + std::to_string(first) + " is outside"));
    CHECK(testing::same_heads(ring.keys(0), before.keys(0)));
    block.forward(x.bottomRows(3), ring, out.bottomRows(3), frequency_table<double>(narrow, first, last));
    CHECK(out == of_all);
  };
  check({.window = 4, .chunk = 1}, 1, 7);              // token 4 overwrites token 0
  check({.window = 3, .chunk = 2}, 2, 7);              // tokens 4 and 5 overwrite 0 and 1
  check({.window = 2, .chunk = 3}, 3, 7);              // one chunk: all but token 3 are overwritten
  check({.sinks = 1, .window = 3, .chunk = 1}, 0, 7);  // a sink is not
}

TEST_CASE("a block whose options select keys throws on construction", "[block]") {
  const random_block<double> memory({}, 532);
  const std::vector<int> list = {0, 1};
  multi_head_options options = memory.options();
  options.attention.selected = list;
  CHECK(throws_saying<std::invalid_argument>(
      [&] { multi_head_attention<double, half_split>(memory.weights(), options); },
      "a block computes its queries itself, so no list can be selected for them before; call attention, got "
      "lists of 1 queries"));
}

TEST_CASE("an argument that is not a matrix of tokens is rejected everywhere that takes one", "[block]") {
  using tokens = rope::detail::token_ref<float>;
  STATIC_REQUIRE_FALSE(rope::detail::lacks_tokens<float, tokens, int, tokens>(0b101));
  STATIC_REQUIRE(rope::detail::lacks_tokens<float, int, int, tokens>(0b101));
  STATIC_REQUIRE(rope::detail::lacks_tokens<float, tokens, int, int>(0b101));
  STATIC_REQUIRE(rope::detail::lacks_tokens<float, tokens, int>(0b101));
}
