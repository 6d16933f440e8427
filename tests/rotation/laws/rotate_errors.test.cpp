// SPDX-License-Identifier: MIT
#include <rope/rotation/rotate.hpp>

#include <cstdint>
#include <rope/frequencies/axes.hpp>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

// Invalid input throws in every form of a call, with the rule and the value, before anything is written.
// Invalid positions are in tests/positions/positions.test.cpp, invalid views in tests/rotation/view.test.cpp.

using rope::head_view;
using rope::Index;
using testing::guarded_memory;
using testing::throws_saying;

namespace {

/// Whether rotate and unrotate of x, in place and into y, throw an Exception that contains `parts`.
template <class Exception, class T, class S, class... Parts>
bool rejects(head_view<T> x, head_view<T> y, const rope::frequency_table<S>& table, const Parts&... parts) {
  using rope::half_split, rope::interleaved;
  return throws_saying<Exception>([&] { rope::rotate<half_split>(x, table, 1); },
                                  "rope::rotate: ", parts...) &&
         throws_saying<Exception>([&] { rope::rotate_to<interleaved>(head_view<const T>(x), y, table, 1); },
                                  "rope::rotate_to: ", parts...) &&
         throws_saying<Exception>([&] { rope::unrotate<interleaved>(x, table, 1); },
                                  "rope::unrotate: ", parts...) &&
         throws_saying<Exception>([&] { rope::unrotate_to<half_split>(x, y, table, 1); },
                                  "rope::unrotate_to: ", parts...);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("more rotated channels than head_dim throw", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  const rope::frequency_table<typename TestType::entry> table(rope::frequencies(8), 10);
  guarded_memory<T> a(200), b(200);
  for (const Index head_dim : {7, 6, 1, 0})
    CHECK(rejects<std::invalid_argument>(
        rope::bshd(a.data(), 1, 2, 3, head_dim), rope::bhsd(b.data(), 1, 3, 2, head_dim), table,
        "rotary_dim must not exceed head_dim, got 8 of " + std::to_string(head_dim)));
  const auto window = rope::bshd(a.data(), 1, 2, 3, 20).channels(13, 7);
  CHECK(rejects<std::invalid_argument>(window, window, table, "got 8 of 7"));
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEMPLATE_LIST_TEST_CASE("an output of another shape throws", "[rotation]", testing::native_types) {
  using T = typename TestType::channel;
  const rope::frequency_table<typename TestType::entry> table(rope::frequencies(4), 10);
  guarded_memory<T> a(400), b(400);
  const auto x = rope::bshd(a.data(), 2, 3, 4, 6);
  struct shape {
    Index batch, tokens, heads, head_dim;
    const char* text;
  };
  for (const auto& [batch, tokens, heads, head_dim, text] : {shape{1, 3, 4, 6, "[1, 3, 4, 6]"},
                                                             {3, 3, 4, 6, "[3, 3, 4, 6]"},
                                                             {2, 2, 4, 6, "[2, 2, 4, 6]"},
                                                             {2, 4, 3, 6, "[2, 4, 3, 6]"},
                                                             {2, 3, 5, 6, "[2, 3, 5, 6]"},
                                                             {2, 3, 4, 5, "[2, 3, 4, 5]"},
                                                             {2, 3, 4, 8, "[2, 3, 4, 8]"},
                                                             {0, 3, 4, 6, "[0, 3, 4, 6]"}}) {
    const auto y = rope::bshd(b.data(), batch, tokens, heads, head_dim);
    const std::string got = std::string("out must have the shape of x, [2, 3, 4, 6], got ") + text;
    CHECK(throws_saying<std::invalid_argument>([&] { rope::rotate_to<rope::half_split>(x, y, table); },
                                               "rope::rotate_to: ", got));
    CHECK(throws_saying<std::invalid_argument>([&] { rope::unrotate_to<rope::interleaved>(x, y, table); },
                                               "rope::unrotate_to: ", got));
  }
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEST_CASE("a view with a negative extent throws", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(4), 10);
  guarded_memory<float> a(400), b(400);
  struct shape {
    Index batch, tokens, heads, head_dim;
    const char* text;
  };
  for (const auto& [batch, tokens, heads, head_dim, text] : {shape{-1, 3, 4, 6, "[-1, 3, 4, 6]"},
                                                             {2, -3, 4, 6, "[2, -3, 4, 6]"},
                                                             {2, 3, -4, 6, "[2, 3, -4, 6]"},
                                                             {2, 3, 4, -6, "[2, 3, 4, -6]"},
                                                             {-2, -3, 4, 6, "[-2, -3, 4, 6]"}}) {
    const head_view<float> x = {a.data(), batch, tokens, heads, head_dim, 72, 24, 6};
    const head_view<float> y = {b.data(), batch, tokens, heads, head_dim, 72, 24, 6};
    CHECK(rejects<std::invalid_argument>(
        x, y, table, std::string("the extents of a view must not be negative, got ") + text));
  }
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEST_CASE("a view whose extents exceed the address space throws", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(4), 10);
  guarded_memory<float> a(400), b(400);
  constexpr Index large = Index{1} << (sizeof(Index) * 4);  // its square exceeds any memory
  struct shape {
    Index batch, tokens, heads, head_dim;
  };
  for (const auto& [batch, tokens, heads, head_dim] : {shape{large, large, 1, 4},
                                                       {1, large, large, 4},
                                                       {2, 3, large, large},
                                                       {large / 4, large / 4, 2, 4}}) {
    const head_view<float> x = {a.data(), batch, tokens, heads, head_dim, 0, 0, 0};
    const head_view<float> y = {b.data(), batch, tokens, heads, head_dim, 0, 0, 0};
    CAPTURE(batch, tokens, heads, head_dim);
    CHECK(rejects<std::length_error>(x, y, table, "the extents of a view must not exceed the address space"));
    CHECK(throws_saying<std::length_error>([&] { rope::rotate<rope::half_split>(x, y, table); },
                                           "rope::rotate: the extents of a view"));
  }
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEST_CASE("queries and keys throw together if one is invalid or they do not match", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(8), 10);
  guarded_memory<float> a(400), b(400);
  const auto q = rope::bshd(a.data(), 2, 3, 4, 8);
  const auto both_rejected = [&](const head_view<float>& first, const head_view<float>& second,
                                 const char* text) {
    return throws_saying<std::invalid_argument>([&] { rope::rotate<rope::half_split>(first, second, table); },
                                                "rope::rotate: ", text) &&
           throws_saying<std::invalid_argument>(
               [&] { rope::unrotate<rope::interleaved>(first, second, table); }, "rope::unrotate: ", text);
  };
  const char* mismatch = "q and k must have the same batch and tokens, got [2, 3] and [";
  CHECK(both_rejected(q, rope::bshd(b.data(), 2, 4, 2, 8), mismatch));
  CHECK(both_rejected(q, rope::bshd(b.data(), 1, 3, 2, 8), mismatch));
  CHECK(both_rejected(q, rope::bshd(b.data(), 3, 2, 2, 8), mismatch));
  CHECK(both_rejected(q, rope::bshd(b.data(), 2, 3, 2, 6), "got 8 of 6"));
  CHECK(both_rejected(rope::bshd(b.data(), 2, 3, 2, 7), q, "got 8 of 7"));
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEST_CASE("a table contains only its own positions", "[rotation]") {
  guarded_memory<float> a(4), b(4);
  const auto x = rope::thd(a.data(), 1, 1, 4), y = rope::thd(b.data(), 1, 1, 4);
  const rope::frequencies frequencies(4);
  const auto is_outside = [&](const char* range, const rope::frequency_table<float>& table) {
    return rejects<std::out_of_range>(x, y, table, std::string("position 1 is outside the table's ") + range);
  };
  CHECK(is_outside("[0, 0)", {frequencies, 0}));
  CHECK(is_outside("[0, 1)", {frequencies, 1}));
  CHECK(is_outside("[2, 5)", {frequencies, 2, 5}));
  CHECK(is_outside("[-5, 1)", {frequencies, -5, 1}));
  CHECK(is_outside("[0, 1)", {frequencies, Eigen::Array<double, 1, 1>(1.0)}));  // row 0 is at coordinate 1
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEST_CASE("ids from which a table was made throw if they are passed again", "[rotation]") {
  const rope::frequencies f(8);
  using list = std::vector<int>;
  const auto table_at = [&](const list& coordinates) {
    return rope::frequency_table<>(
        f, Eigen::Map<const Eigen::ArrayXi>(coordinates.data(), Index(coordinates.size())));
  };
  guarded_memory<float> memory(4 * 2 * 8);
  const auto flat = rope::thd(memory.data(), 4, 2, 8), rows = rope::bshd(memory.data(), 2, 2, 2, 8);
  const auto rejected = [&](const head_view<float>& x, const list& coordinates, const auto& ids, int first) {
    const auto table = table_at(coordinates);
    const std::string rule =
        ": the table was made of these ids, its row r of id number r; leave the ids out, or take a table of "
        "positions, got id " +
        std::to_string(first) + " for row 0";
    return throws_saying<std::invalid_argument>([&] { rope::rotate<rope::half_split>(x, table, ids); },
                                                "rope::rotate" + rule) &&
           throws_saying<std::invalid_argument>([&] { rope::unrotate<rope::interleaved>(x, x, table, ids); },
                                                "rope::unrotate") &&
           throws_saying<std::invalid_argument>([&] { rope::rotate_to<rope::half_split>(x, x, table, ids); },
                                                "rope::rotate_to" + rule);
  };
  CHECK(rejected(flat, {5, 6, 7, 9}, list{5, 6, 7, 9}, 5));  // also where no row has such a position
  CHECK(rejected(flat, {1, 0, 3, 2}, list{1, 0, 3, 2}, 1));
  CHECK(rejected(flat, {0, 0, 1, 2}, std::vector<std::uint8_t>{0, 0, 1, 2}, 0));
  CHECK(rejected(rows, {0, 3}, list{0, 3}, 0));              // of every row of the batch
  CHECK(rejected(rows, {0, 3, 1, 2}, list{0, 3, 1, 2}, 0));  // [batch * tokens]
  CHECK(rejected(rows, {0, 3, 1, 2}, Eigen::Matrix2i{{0, 3}, {1, 2}}, 0));
  CHECK(rejected(rows, {0, 3, 1, 2}, (Eigen::Matrix2i{{0, 3}, {1, 2}} * 1), 0));
  CHECK(memory.untouched());
  // Rows of the table, by number: in another order, a part of them, and rows that equal their ids.
  for (const list& ids : {list{0, 1, 2, 3}, list{3, 2, 1, 0}, list{1, 1, 1, 1}})
    CHECK_NOTHROW(rope::rotate<rope::half_split>(flat, table_at({5, 6, 7, 9}), ids));
  CHECK_NOTHROW(rope::rotate<rope::half_split>(flat, table_at({0, 1, 2, 3}), list{0, 1, 2, 3}));
  CHECK_NOTHROW(rope::rotate<rope::half_split>(flat, rope::frequency_table<>(f, 10), list{5, 6, 7, 9}));
  const rope::frequency_table<> on_two(rope::axial(rope::frequencies(4), 2),
                                       Eigen::Matrix<int, 4, 2>::Ones());
  CHECK_NOTHROW(rope::rotate<rope::half_split>(flat, on_two, list{1, 1, 1, 1}));
}

TEST_CASE("coordinates for every token of a batch throw if the positions are left out", "[rotation]") {
  using rope::half_split;
  const rope::frequency_table<> table(
      rope::axial(rope::frequencies(4), 2),
      Eigen::Matrix<int, 6, 2>{{0, 0}, {0, 1}, {1, 0}, {3, 3}, {2, 5}, {7, 4}});
  const auto x = testing::random_channels<float>(6 * 2 * 8, 1);
  std::vector<float> a = x, b = x;
  const auto of_a = rope::bshd(a.data(), 2, 3, 2, 8), of_b = rope::bshd(b.data(), 2, 3, 2, 8);
  const std::string rule =
      ": the table has coordinates for 2 rows of 3 tokens, and without positions every row would get those "
      "of "
      "the first; give id b * tokens + t for token t of row b";
  CHECK(throws_saying<std::invalid_argument>([&] { rope::rotate<half_split>(of_a, table); },
                                             "rope::rotate" + rule));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::rotate<half_split>(of_a, of_b, table); },
                                             "rope::rotate" + rule));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::rotate_to<half_split>(of_a, of_b, table); },
                                             "rope::rotate_to" + rule));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::unrotate<half_split>(of_a, table); },
                                             "rope::unrotate" + rule));
  CHECK((a == x && b == x));
  // One sequence of six tokens, and the six ids of two rows.
  rope::rotate<half_split>(rope::thd(a.data(), 6, 2, 8), table);
  rope::rotate<half_split>(of_b, table, {0, 1, 2, 3, 4, 5});
  CHECK((a == b && a != x));
  // The first three rows of the table for both rows of the batch.
  a = b = x;
  rope::rotate<half_split>(of_a, table, 0);
  for (Index row = 0; row < 2; ++row) rope::rotate<half_split>(of_b.batch_range(row, 1), table);
  CHECK((a == b && a != x));
}
