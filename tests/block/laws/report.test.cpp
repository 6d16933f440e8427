// SPDX-License-Identifier: MIT
#include <rope/block/multi_head_attention.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/block.hpp"
#include "support/block_reference.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/wide.hpp"

using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::multi_head_attention;
using testing::random_block;
using testing::rows_of;
using testing::throws_saying;
using namespace block_parts;

namespace {

constexpr Index batch = 2, queries = 9, context_keys = 5, heads = 4;

/// Whether a key is visible in segments of 4, 0 and 5 tokens.
bool in_segment(std::size_t i, std::size_t j) { return j <= i && (i < 4) == (j < 4); }

/// The weights of one row of the batch, with rotated heads of x and of the context.
template <class T>
reference::weights_and_sums expected(const reference::block& m, const rows_of<T>& x,
                                     const rows_of<T>& context, const std::vector<long long>& query_positions,
                                     const std::vector<long long>& key_positions,
                                     const reference::sees_key& sees) {
  return {m, rotated_heads(m, m.q(testing::exact(x)), m.q_norm, query_positions),
          rotated_heads(m, m.k(testing::exact(context)), m.k_norm, key_positions), sees};
}

/// The largest error of the probabilities [heads, queries, keys], which are 0 for hidden keys.
template <class T>
testing::wide worst_probability(const reference::weights_and_sums& exact, const T* probabilities) {
  testing::wide worst = 0;
  for (const testing::wide weight : exact.weights) {
    const auto got = static_cast<testing::wide>(*probabilities++);
    if (weight == 0)
      CHECK(got == 0);
    else
      testing::raise_to(worst, testing::abs(got - weight));
  }
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("a block reports the probabilities of a call next to its output, in every form", "[block]",
                   float, double) {
  using T = TestType;
  const random_block<T> memory({.norm = true, .norm_offset = 1}, 541);
  testing::random numbers(542);
  const rows_of<T> x = testing::random_rows<T>(numbers, batch * queries, 10, 1),
                   context = testing::random_rows<T>(numbers, batch * context_keys, 10, 1);
  const rope::frequencies rotation(4);
  const frequency_table<T> table(rotation, 60);
  const multi_head_attention<T, half_split> block(memory.weights(), memory.options());
  const reference::block still = memory.reference(),
                         rotated = memory.template reference<half_split>(rotation);
  // A probability is the last of the sums that block_bound counts, and is at most 1.
  const auto bound = static_cast<testing::wide>(testing::block_bound<T>());
  const auto check = [&](Index keys, const auto& call, const auto& worst_of_row) {
    rows_of<T> out(batch * queries, 10), expected(batch * queries, 10);
    std::vector<T> probabilities(static_cast<std::size_t>(batch * heads * queries * keys), T(-77));
    std::vector<double> sums(static_cast<std::size_t>(batch * queries * heads), -77),
        expected_sums(sums.size());
    rope::multi_head_options options = memory.options();
    options.attention.log_sum_exp = expected_sums;
    call(block.reporting({.log_sum_exp = sums, .probabilities = probabilities}), out);
    call(multi_head_attention<T, half_split>(memory.weights(), options), expected);
    CHECK(out == expected);
    CHECK(sums == expected_sums);
    for (Index b = 0; b < batch; ++b)
      CHECK(worst_of_row(b, probabilities.data() + b * heads * queries * keys) <= bound);
    // The probabilities alone are the same, and reporting leaves the block itself unchanged.
    std::vector<T> alone(probabilities.size());
    call(block.reporting({.probabilities = alone}), out);
    CHECK(alone == probabilities);
    call(block, out);
    CHECK(out == expected);
  };
  const auto of_self = [&](const reference::block& m, long long first, const reference::sees_key& sees) {
    return [&, first, sees](Index b, const T* reported) {
      const rows_of<T> row = x.middleRows(b * queries, queries);
      return worst_probability(
          expected<T>(m, row, row, counted(queries, first), counted(queries, first), sees), reported);
    };
  };
  check(
      queries, [&](const auto& to, auto& out) { to.forward(x, batch, out); }, of_self(still, 0, causal));
  check(
      queries, [&](const auto& to, auto& out) { to.forward(x, batch, out, table, 7); },
      of_self(rotated, 7, causal));
  // Three segments of 4, 0 and 5 tokens. The positions of each begin at 0, and only their differences matter.
  const std::vector<int> offsets = {0, 4, 4, 9};
  check(
      queries, [&](const auto& to, auto& out) { to.forward(x, batch, out, table, rope::segments{offsets}); },
      of_self(rotated, 0, in_segment));

  const auto of_context = [&](const reference::block& m, long long first, long long first_key) {
    return [&, first, first_key](Index b, const T* reported) {
      const rows_of<T> row = x.middleRows(b * queries, queries),
                       seen = context.middleRows(b * context_keys, context_keys);
      return worst_probability(
          expected<T>(m, row, seen, counted(queries, first), counted(context_keys, first_key), everything),
          reported);
    };
  };
  check(
      context_keys, [&](const auto& to, auto& out) { to.cross(x, context, batch, out); },
      of_context(still, 0, 0));
  check(
      context_keys, [&](const auto& to, auto& out) { to.cross(x, context, batch, out, table, 3, 20); },
      of_context(rotated, 3, 20));
  const auto projected = block.project_context(context, batch, table, 20);
  check(
      context_keys, [&](const auto& to, auto& out) { to.cross(x, projected, out, table, 3); },
      of_context(rotated, 3, 20));
}

TEST_CASE("log-sum-exps of segments are those of their queries, for one row and for several", "[block]") {
  const random_block<double> memory({}, 545);
  testing::random numbers(546);
  const rope::frequencies rotation(4);
  const frequency_table<double> table(rotation, 60);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const reference::block exact = memory.reference<half_split>(rotation);
  const std::vector<int> offsets = {0, 4, 4, 9};
  for (const Index rows : {1, 2}) {
    CAPTURE(rows);
    const rows_of<double> x = testing::random_rows<double>(numbers, rows * queries, 10, 1);
    rows_of<double> out(rows * queries, 10);
    std::vector<double> sums(static_cast<std::size_t>(rows * queries * heads), -77);
    block.reporting({.log_sum_exp = sums}).forward(x, rows, out, table, rope::segments{offsets});
    const auto bound = static_cast<testing::wide>(testing::block_bound<double>());
    for (Index b = 0; b < rows; ++b) {
      const rows_of<double> row = x.middleRows(b * queries, queries);
      const auto positions = counted(queries);
      const auto log_sums = expected(exact, row, row, positions, positions, in_segment).log_sums;
      for (std::size_t n = 0; n < log_sums.size(); ++n)
        CHECK(testing::abs(static_cast<testing::wide>(sums[std::size_t(b) * log_sums.size() + n]) -
                           log_sums[n]) <= bound);
    }
  }
}

TEST_CASE("report buffers of the wrong length throw before anything is written", "[block]") {
  const random_block<double> memory({}, 543);
  testing::random numbers(544);
  const rows_of<double> x = testing::random_rows<double>(numbers, batch * queries, 10);
  const multi_head_attention<double> block(memory.weights(), memory.options());
  const rows_of<double> before = rows_of<double>::Constant(batch * queries, 10, -77);
  rows_of<double> out = before;
  const std::size_t count = std::size_t(batch * heads * queries * queries);
  std::vector<double> reported(count + 1, -5), sums(std::size_t(batch * queries * heads) + 1, -5);
  const std::vector<double> reported_before = reported, sums_before = sums;
  for (const std::size_t length : {std::size_t(1), count - 1, count + 1})
    CHECK(throws_saying<std::invalid_argument>(
        [&] { block.reporting({.probabilities = std::span(reported).first(length)}).forward(x, batch, out); },
        "probabilities must be empty or have length batch * heads * queries * keys = 648, got ",
        std::to_string(length)));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { block.reporting({.log_sum_exp = sums}).forward(x, batch, out); },
      "log_sum_exp must be empty or have length 72, got 73"));
  const auto projected = block.project_context(x, batch);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { block.reporting({.probabilities = reported}).cross(x, projected, out); },
      "probabilities must be empty or have length"));
  rope::kv_cache<double> cache(batch, 20, 2, 6);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { block.reporting({.probabilities = std::span(reported).first(count)}).forward(x, cache, out); },
      "a call with a cache cannot report probabilities, got memory for 648"));
  CHECK(out == before);
  CHECK(reported == reported_before);
  CHECK(sums == sums_before);
  CHECK(cache.size() == 0);
}
