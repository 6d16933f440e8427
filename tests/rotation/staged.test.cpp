// SPDX-License-Identifier: MIT
#include <rope/rotation/staged.hpp>

#include <cstddef>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>

#include <rope/positions/grid_positions.hpp>
#include <rope/rotation/rotate.hpp>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/span_of_strides.hpp"

using rope::Index;

namespace {

constexpr Index B = 2, S = 3, H = 4, D = 6;

template <class Tensor>
void count_up(Tensor& x) {
  std::iota(x.data(), x.data() + x.size(), 1.0f);
}

}  // namespace

TEST_CASE("a tensor of any rank is described by a letter for each of its indices", "[rotation]") {
  constexpr Index T = 2, Y = 3, X = 5, N = T * Y * X;
  Eigen::Tensor<float, 5, Eigen::RowMajor> rows(B, T, Y, X, D);
  Eigen::Tensor<float, 5> columns(D, X, Y, T, B);
  const auto by_rows = rope::view_as<"bsssd">(rows);
  const auto by_columns = rope::view_as<"dtttb">(columns);
  const auto grid = rope::grid_positions({T, Y, X});
  for (const auto& view : {by_rows, by_columns}) {
    CHECK(view.batch == B);
    CHECK(view.tokens == N);
    CHECK(view.heads == 1);
    CHECK(view.head_dim == D);
  }
  bool same = true;
  for (Index b = 0; b < B; ++b)
    for (Index n = 0; n < N; ++n) {
      const auto t = Index(grid(n, 0)), y = Index(grid(n, 1)), x = Index(grid(n, 2));
      same = same && by_rows.at(b, n, 0) == &rows(b, t, y, x, 0) &&
             by_columns.at(b, n, 0) == &columns(0, x, y, t, b);
    }
  CHECK(same);
  Eigen::Tensor<float, 2> one(D, S);
  CHECK(rope::view_as<"ds">(one).at(0, 2, 0) + 1 == &one(1, 2));
  Eigen::Tensor<float, 3, Eigen::RowMajor> merged(S, H, D);
  CHECK(rope::view_as<"sdd">(merged).head_dim == H * D);
}

TEST_CASE("a copy that exceeds the address space throws", "[rotation]") {
  float number = 0;
  const std::size_t tokens = (std::numeric_limits<Index>::max)();  // an Index, but not their bytes
  const testing::span_of_strides<float, 2> repeated(&number, {tokens, 1}, {0, 1});
  CHECK(testing::throws_saying<std::length_error>(
      [&] { static_cast<void>(rope::staged<"sd">(repeated)); },
      "rope::staged: the numbers must not exceed the address space, got an extent of " +
          std::to_string(tokens)));
}

TEST_CASE("a staged tensor has the numbers of the tensor by index, in every storage order", "[rotation]") {
  Eigen::Tensor<float, 4> columns(B, S, H, D);
  Eigen::Tensor<float, 4, Eigen::RowMajor> middle(D, B, H, S);
  count_up(columns);
  count_up(middle);
  auto a = rope::staged<"bshd">(columns);
  const auto b = rope::staged<"dbht">(std::as_const(middle));
  STATIC_REQUIRE(std::is_same_v<decltype(a.view()), rope::head_view<float>>);
  STATIC_REQUIRE(std::is_same_v<decltype(b.view()), rope::head_view<const float>>);
  bool same = true;
  for (Index r = 0; r < B; ++r)
    for (Index s = 0; s < S; ++s)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d)
          same = same && a.view().at(r, s, h)[d] == columns(r, s, h, d) &&
                 b.view().at(r, s, h)[d] == middle(d, r, h, s);
  CHECK(same);
  Eigen::Tensor<float, 4, Eigen::RowMajor> back(B, S, H, D);  // stored by index into the other order
  back.setZero();
  a.store(back);
  same = true;
  for (Index r = 0; r < B; ++r)
    for (Index s = 0; s < S; ++s)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d) same = same && back(r, s, h, d) == columns(r, s, h, d);
  CHECK(same);
}

TEST_CASE("indices with equal letters are tokens in the memory order of the tensor", "[rotation]") {
  Eigen::Tensor<float, 3> columns(S, 5, D);
  Eigen::Tensor<float, 3, Eigen::RowMajor> rows(S, 5, D);
  count_up(columns);
  count_up(rows);
  const auto a = rope::staged<"ssd">(columns), c = rope::staged<"ssd">(std::as_const(columns));
  const auto b = rope::staged<"ssd">(rows);
  bool same = a.view().tokens == 5 * S && b.view().tokens == 5 * S;
  for (Index y = 0; y < S; ++y)
    for (Index x = 0; x < 5; ++x)
      for (Index d = 0; d < D; ++d)
        same = same && a.view().at(0, x * S + y, 0)[d] == columns(y, x, d) &&
               c.view().at(0, x * S + y, 0)[d] == columns(y, x, d) &&
               b.view().at(0, y * 5 + x, 0)[d] == rows(y, x, d);
  CHECK(same);
}

TEST_CASE("rotating the copy and storing it back rotates the tensor by index", "[rotation]") {
  Eigen::Tensor<float, 4> columns(B, S, H, D);
  Eigen::Tensor<float, 4, Eigen::RowMajor> rows(B, S, H, D);
  for (Index r = 0; r < B; ++r)
    for (Index s = 0; s < S; ++s)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d) columns(r, s, h, d) = rows(r, s, h, d) = float(r + 2 * s - h + 3 * d);
  const rope::frequency_table table(rope::frequencies(D), 10);
  auto copy = rope::staged<"bshd">(columns);
  rope::rotate<rope::half_split>(copy.view(), table, 3);
  CHECK(columns(1, 2, 3, 4) == rows(1, 2, 3, 4));  // unchanged before it is stored
  copy.store(columns);
  rope::rotate<rope::half_split>(rope::bshd(rows), table, 3);
  bool same = true;
  for (Index r = 0; r < B; ++r)
    for (Index s = 0; s < S; ++s)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d) same = same && columns(r, s, h, d) == rows(r, s, h, d);
  CHECK(same);
  Eigen::Tensor<float, 4> other(B, S, H, D + 1);
  other.setConstant(7);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { copy.store(other); },
      "rope::staged: store(x) takes the extents of the tensor that was copied, got 7 for 6 on index 3"));
  CHECK(other(0, 0, 0, 0) == 7);
}

TEST_CASE("a tensor without numbers is copied and stored back", "[rotation]") {
  Eigen::Tensor<float, 4> columns(B, 0, H, D);
  Eigen::Tensor<float, 4, Eigen::RowMajor> rows(B, S, 0, D);
  auto copy = rope::staged<"bshd">(columns);
  rope::rotate<rope::half_split>(copy.view(), rope::frequency_table(rope::frequencies(D), 10));
  CHECK_NOTHROW(copy.store(columns));
  CHECK_NOTHROW(rope::staged<"bshd">(rows).store(rows));
}
