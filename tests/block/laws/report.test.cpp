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

namespace {

constexpr Index batch = 2, queries = 9, context_keys = 5, heads = 4;

using place_of = std::function<bool(std::size_t, std::size_t)>;

bool causal(std::size_t i, std::size_t j) { return j <= i; }
bool everything(std::size_t, std::size_t) { return true; }

/// exp of the score of key j for query i of head h.
testing::wide exponential(const reference::block& m, const auto& q, const auto& k, std::size_t h,
                          std::size_t i, std::size_t j) {
  testing::wide score = 0;
  for (std::size_t d = 0; d < m.head_dim; ++d)
    score += q(i, h * m.head_dim + d) * k(j, h / (m.heads / m.kv_heads) * m.head_dim + d);
  return testing::exp(score / testing::sqrt(static_cast<testing::wide>(m.head_dim)));
}

/// The largest error of the probabilities [heads, queries, keys] of one row of the batch.
template <class T>
testing::wide worst_probability(const reference::block& m, const rows_of<T>& x, const rows_of<T>& context,
                                const std::vector<long long>& query_positions,
                                const std::vector<long long>& key_positions, const place_of& sees,
                                const T* probabilities) {
  const auto q = reference::rotated_heads(m, m.q(testing::exact(x)), m.q_norm, query_positions),
             k = reference::rotated_heads(m, m.k(testing::exact(context)), m.k_norm, key_positions);
  testing::wide worst = 0;
  for (std::size_t h = 0; h < m.heads; ++h)
    for (std::size_t i = 0; i < q.rows; ++i) {
      std::vector<testing::wide> terms(k.rows);
      testing::wide sum = 0;
      for (std::size_t j = 0; j < k.rows; ++j) {
        if (!sees(i, j)) continue;
        terms[j] = exponential(m, q, k, h, i, j);
        sum += terms[j];
      }
      for (std::size_t j = 0; j < k.rows; ++j) {
        const auto got = static_cast<testing::wide>(probabilities[(h * q.rows + i) * k.rows + j]);
        if (!sees(i, j))
          CHECK(got == 0);
        else
          testing::raise_to(worst, testing::abs(got - terms[j] / sum));
      }
    }
  return worst;
}

std::vector<long long> counted(Index count, long long first) {
  std::vector<long long> list;
  for (Index i = 0; i < count; ++i) list.push_back(first + i);
  return list;
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
  const auto of_self = [&](const reference::block& m, long long first, const place_of& sees) {
    return [&, first, sees](Index b, const T* reported) {
      const rows_of<T> row = x.middleRows(b * queries, queries);
      return worst_probability<T>(m, row, row, counted(queries, first), counted(queries, first), sees,
                                  reported);
    };
  };
  check(
      queries, [&](const auto& to, auto& out) { to.forward(x, batch, out); }, of_self(still, 0, causal));
  check(
      queries, [&](const auto& to, auto& out) { to.forward(x, batch, out, table, 7); },
      of_self(rotated, 7, causal));
  // Three segments of 4, 0 and 5 tokens. The positions of each begin at 0, and only their differences matter.
  const std::vector<int> offsets = {0, 4, 4, 9};
  const auto in_segment = [](std::size_t i, std::size_t j) { return j <= i && (i < 4) == (j < 4); };
  check(
      queries, [&](const auto& to, auto& out) { to.forward(x, batch, out, table, rope::segments{offsets}); },
      of_self(rotated, 0, in_segment));

  const auto of_context = [&](const reference::block& m, long long first, long long first_key) {
    return [&, first, first_key](Index b, const T* reported) {
      const rows_of<T> row = x.middleRows(b * queries, queries),
                       seen = context.middleRows(b * context_keys, context_keys);
      return worst_probability<T>(m, row, seen, counted(queries, first), counted(context_keys, first_key),
                                  everything, reported);
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
      const auto row = testing::exact(rows_of<double>(x.middleRows(b * queries, queries)));
      const auto reported = [&](std::size_t i, std::size_t h) {
        return static_cast<testing::wide>(sums[(std::size_t(b * queries) + i) * std::size_t(heads) + h]);
      };
      const auto q = reference::rotated_heads(exact, exact.q(row), exact.q_norm, counted(queries, 0)),
                 k = reference::rotated_heads(exact, exact.k(row), exact.k_norm, counted(queries, 0));
      for (std::size_t h = 0; h < exact.heads; ++h)
        for (std::size_t i = 0; i < q.rows; ++i) {
          testing::wide sum = 0;
          for (std::size_t j = i < 4 ? 0 : 4; j <= i; ++j) sum += exponential(exact, q, k, h, i, j);
          CHECK(testing::abs(reported(i, h) - testing::log(sum)) <= bound);
        }
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
