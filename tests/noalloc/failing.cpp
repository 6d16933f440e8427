// SPDX-License-Identifier: MIT
// The state of an object whose copy or assignment ran out of memory, and of one that was moved from.

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>
#include <vector>

#include "failures.hpp"
#include "support/catch.hpp"
#include "support/model_parts.hpp"
#include "support/same_table.hpp"

using rope::Index;
using testing::same_table;

namespace {

/// Assigns `from` to a copy of `to`. Whenever that fails, `same(copy, to)` must hold.
///
/// \param copied  see failures_of
template <class T, class Same>
void check_assignment(const T& to, const T& from, const Same& same, long copied = 0) {
  T copy = to;
  testing::failures_of([&] { copy = from; }, [&] { return same(copy, to); }, copied);
  CHECK(same(copy, from));
}

std::vector<rope::frequency_table<float>> tables_of_every_kind() {
  std::vector<rope::frequency_table<float>> tables;
  tables.emplace_back(rope::frequencies(8), 5);
  tables.emplace_back(rope::frequencies(32), -3, 40);
  tables.emplace_back(rope::axial(rope::frequencies(8), 2), rope::grid_positions({3, 4}));
  tables.push_back(rope::table_of_angles(Eigen::ArrayXXd::Constant(9, 4, 0.5), rope::table_form::half_width));
  return tables;
}

/// Heads of ones, [1, tokens, 2, 8].
struct ones {
  std::vector<float> numbers = std::vector<float>(64 * 16, 1.0f);
  rope::head_view<float> operator()(Index tokens) { return rope::bshd(numbers.data(), 1, tokens, 2, 8); }
};

template <class Cache>
bool same_cache(const Cache& a, const Cache& b) {
  if (a.batch() != b.batch() || a.capacity() != b.capacity() || a.size(0) != b.size(0)) return false;
  const auto p = a.positions(0), q = b.positions(0);
  return std::vector<std::int64_t>(p.begin(), p.end()) == std::vector<std::int64_t>(q.begin(), q.end()) &&
         a.keys(0).tokens == b.keys(0).tokens && *a.keys(0).at(0, 0, 1) == *b.keys(0).at(0, 0, 1) &&
         *a.values(0).at(0, 0, 1) == *b.values(0).at(0, 0, 1);
}

}  // namespace

TEST_CASE("a table whose assignment fails does not change", "[noalloc]") {
  const auto tables = tables_of_every_kind();
  for (const auto& to : tables)
    for (const auto& from : tables) check_assignment(to, from, same_table<float>);
}

TEST_CASE("a maker of rows and a staged tensor whose assignment fails do not change", "[noalloc]") {
  const auto same_rows = [](const rope::row_maker<>& a, const rope::row_maker<>& b) {
    if (a.pairs() != b.pairs()) return false;
    const auto row_of = [](const rope::row_maker<>& maker) {
      std::vector<float> row(static_cast<std::size_t>(maker.rotary_dim()));
      maker.write(Eigen::ArrayXXd::Constant(1, maker.axes(), 3.0), row);
      return row;
    };
    return row_of(a) == row_of(b);
  };
  const rope::row_maker<> eight(rope::frequencies(8)), wide(rope::frequencies(64, 500.0));
  check_assignment(eight, wide, same_rows);
  check_assignment(wide, eight, same_rows);

  using tensor = Eigen::Tensor<float, 3>;
  tensor small(2, 3, 4), large(5, 6, 8);
  small.setConstant(1.0f);
  large.setConstant(2.0f);
  using staged = rope::staged_tensor<"shd", float>;
  const auto same_numbers = [](const staged& a, const staged& b) {
    const auto x = a.view(), y = b.view();
    return x.tokens == y.tokens && x.heads == y.heads && x.head_dim == y.head_dim &&
           std::equal(x.data, x.data + x.size(), y.data);
  };
  check_assignment(staged(small), staged(large), same_numbers);
  check_assignment(staged(large), staged(small), same_numbers);
}

TEST_CASE("a table that was moved from is empty", "[noalloc]") {
  ones heads;
  for (auto& table : tables_of_every_kind()) {
    const auto copy = table;
    const std::int64_t first = table.first();
    auto moved = std::move(table);
    CHECK(same_table(moved, copy));
    CHECK(table.rows() == 0);  // NOLINT(bugprone-use-after-move): the state under test
    CHECK(table.pairs() == 0);
    CHECK(table.coordinates().size() == 0);
    CHECK_FALSE(table.contains(first));
    CHECK_THROWS_AS(table.cos(first), std::out_of_range);
    CHECK_THROWS_AS(rope::rotate<rope::half_split>(heads(1), table, first), std::out_of_range);
    rope::rotate<rope::half_split>(heads(0), table, first);
    table = moved;
    CHECK(same_table(table, copy));
    moved = std::move(table);
    CHECK(same_table(moved, copy));
    CHECK(table.rows() == 0);
  }
}

TEST_CASE("frequencies that were moved from make no table", "[noalloc]") {
  rope::frequencies f(16);
  const rope::frequencies moved = std::move(f);
  CHECK(moved.pairs() == 8);
  CHECK(f.pairs() == 0);  // NOLINT(bugprone-use-after-move): the state under test
  CHECK(f.axes() == 0);
  CHECK_THROWS_AS(rope::frequency_table<float>(f, 4), std::invalid_argument);
  CHECK_THROWS_AS(rope::frequency_table<float>(f, Eigen::ArrayXXd(3, 0)), std::invalid_argument);
  f = moved;
  CHECK(rope::frequency_table<float>(f, 4).rows() == 4);
  check_assignment(rope::frequencies(8), rope::frequencies(64, 1e6), [](const auto& a, const auto& b) {
    return a.pairs() == b.pairs() && a.attention_factor() == b.attention_factor() &&
           (a.inv_freq() == b.inv_freq()).all();
  });
}

TEST_CASE("tables of xPos whose assignment fails keep equal growths", "[noalloc]") {
  const rope::xpos<float> to(rope::frequencies(8), 5, {.center = 2}),
      from(rope::frequencies(16), 9, {.center = 4});
  check_assignment(to, from, [](const auto& a, const auto& b) {
    return same_table(a.queries(), b.queries()) && same_table(a.keys(), b.keys()) &&
           a.center() == b.center() && a.rates().size() == b.rates().size();
  });
}

TEST_CASE("the bias of pope keys follows its memory", "[noalloc]") {
  const rope::pope_bias to(Eigen::ArrayXXd::Constant(2, 3, -1.0)),
      from(Eigen::ArrayXXd::Constant(4, 6, -2.0));
  const auto same = [](const rope::pope_bias& a, const rope::pope_bias& b) {
    return a.heads() == b.heads() && a.channels() == b.channels() &&
           a.head(a.heads() - 1)[a.channels() - 1].cos == b.head(b.heads() - 1)[b.channels() - 1].cos;
  };
  check_assignment(to, from, same);
  rope::pope_bias bias = from;
  const rope::pope_bias moved = std::move(bias);
  CHECK(same(moved, from));
  CHECK(bias.heads() == 0);  // NOLINT(bugprone-use-after-move): the state under test
  CHECK(bias.channels() == 0);
}

TEST_CASE("the tables of a model whose assignment fails stay those of that model", "[noalloc]") {
  const auto model_of = [](Index groups) {
    testing::model_parts parts;
    for (Index g = 0; g < groups; ++g) {
      const std::string type = "type " + std::to_string(g);
      parts.groups.push_back(testing::group_named(type, rope::frequencies(8, 10.0 + static_cast<double>(g))));
      parts.layers.push_back(type);
    }
    return parts.model();
  };
  const rope::model_tables<float> to(model_of(1), 4), from(model_of(3), 9);
  check_assignment(
      to, from,
      [](const auto& a, const auto& b) {
        if (a.size() != b.size()) return false;
        for (Index layer = 0; layer < a.size(); ++layer)
          if (!same_table(a.of_layer(layer)->table(), b.of_layer(layer)->table())) return false;
        return true;
      },
      sizeof(std::string));  // a model has vectors of strings
  rope::model_tables<float> tables = to;
  const rope::model_tables<float> moved = std::move(tables);
  CHECK(moved.size() == 1);
  CHECK(tables.size() == 0);  // NOLINT(bugprone-use-after-move): the state under test
  CHECK_THROWS_AS(tables.of_layer(0), std::out_of_range);
  CHECK_THROWS_AS(tables.of_group(0), std::out_of_range);
}

TEST_CASE("a projected context whose assignment fails does not change", "[noalloc]") {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const matrix w = matrix::Constant(4, 4, 0.5f), two = matrix::Ones(2, 4), nine = matrix::Constant(9, 4, 2);
  const rope::multi_head_attention<float> block({.q = w, .k = w, .v = w, .o = w}, {.heads = 2});
  const auto few = block.project_context(two, 1), many = block.project_context(nine, 1);
  check_assignment(few, many, [](const auto& a, const auto& b) {
    const auto x = a.keys(), y = b.keys();
    return a.tokens() == b.tokens() && std::equal(x.data, x.data + x.size(), y.data) &&
           std::equal(a.values().data, a.values().data + a.values().size(), b.values().data);
  });
}

TEST_CASE("a cache whose assignment fails does not change", "[noalloc]") {
  ones heads;
  rope::kv_cache<float> few(1, 4, 2, 8), many(1, 60, 2, 8);
  few.append(heads(1), heads(1));
  heads.numbers.assign(heads.numbers.size(), 2.0f);
  many.append(heads(50), heads(50));
  check_assignment(few, many, [](const auto& a, const auto& b) { return same_cache(a, b); });
  rope::ring_cache<float> narrow(1, {.sinks = 1, .window = 2}, 2, 8),
      wide(1, {.sinks = 2, .window = 30}, 2, 8);
  wide.append(heads(40), heads(40));
  heads.numbers.assign(heads.numbers.size(), 1.0f);
  narrow.append(heads(5), heads(5));
  check_assignment(narrow, wide, [](const auto& a, const auto& b) { return same_cache(a, b); });
}

TEST_CASE("a cache that was moved from is empty", "[noalloc]") {
  ones heads;
  rope::kv_cache<float> cache(1, 4, 2, 8);
  cache.append(heads(3), heads(3));
  const rope::kv_cache<float> moved = std::move(cache);
  CHECK(moved.size() == 3);
  CHECK(cache.batch() == 0);  // NOLINT(bugprone-use-after-move): the state under test
  CHECK(cache.capacity() == 0);
  CHECK(cache.size() == 0);
  CHECK(cache.keys().tokens == 0);
  CHECK(cache.next_positions().empty());
  CHECK_THROWS_AS(cache.append(heads(1), heads(1)), std::invalid_argument);
  CHECK_THROWS_AS(cache.truncate(1), std::out_of_range);
  CHECK_THROWS_AS(cache.size(0), std::out_of_range);
  cache.clear();
  cache = moved;
  cache.append(heads(1), heads(1));
  CHECK(cache.size() == 4);

  rope::ring_cache<float> ring(1, {.window = 3}, 2, 8);
  ring.append(heads(5), heads(5));
  const rope::ring_cache<float> other = std::move(ring);
  CHECK(other.size(0) == 3);
  CHECK(ring.batch() == 0);  // NOLINT(bugprone-use-after-move): the state under test
  CHECK(ring.capacity() == 0);
  CHECK(ring.slot(7) == 0);
  CHECK_THROWS_AS(ring.append(heads(1), heads(1)), std::invalid_argument);
  CHECK_THROWS_AS(ring.size(0), std::out_of_range);
  ring = other;
  ring.append(heads(1), heads(1));
  CHECK(ring.next_positions()[0] == 6);
}
