// SPDX-License-Identifier: MIT
#include <rope/attention.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/block.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>

#include <array>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>
#if __has_include(<mdspan>)
#include <mdspan>
#endif

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/span_of_strides.hpp"

namespace {

using rope::Index;
using testing::span_of_strides;
using testing::throws_saying;

constexpr std::size_t B = 2, S = 3, H = 4, D = 6;

std::vector<float> counted() {
  std::vector<float> numbers(B * S * H * D);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  return numbers;
}

/// Whether channel d of token (b, s) and head h is number ((b S + s) H + h) D + d, wherever that lies in
/// memory.
bool counts(const rope::head_view<const float>& x, const std::vector<float>& in_memory) {
  bool all = x.batch == Index(B) && x.tokens == Index(S) && x.heads == Index(H) && x.head_dim == Index(D);
  for (std::size_t b = 0; all && b < B; ++b)
    for (std::size_t s = 0; s < S; ++s)
      for (std::size_t h = 0; h < H; ++h)
        for (std::size_t d = 0; d < D; ++d)
          all = all && x.at(Index(b), Index(s), Index(h))[d] == in_memory[((b * S + s) * H + h) * D + d];
  return all;
}

/// An accessor that scales numbers as they are read returns values instead of references.
struct scaled_span : span_of_strides<float, 4> {
  using span_of_strides::span_of_strides;
  using reference = float;
};

}  // namespace

TEST_CASE("an mdspan of any strides is viewed by its own indices", "[library]") {
  std::vector<float> x = counted();
  CHECK(counts(rope::bshd(span_of_strides<float, 4>(x.data(), {B, S, H, D})), x));
  const span_of_strides<float, 4> heads_first(x.data(), {B, H, S, D}, {S * H * D, D, H * D, 1});
  CHECK(counts(rope::bhsd(heads_first), x));
  const span_of_strides<float, 4> tokens_first(x.data(), {S, B, H, D}, {H * D, S * H * D, D, 1});
  CHECK(counts(rope::sbhd(tokens_first), x));
  const span_of_strides<float, 4> channels_first(x.data(), {D, H, S, B}, {1, D, H * D, S * H * D});
  CHECK(counts(rope::dhsb(channels_first), x));
  STATIC_REQUIRE(std::is_same_v<decltype(rope::bshd(span_of_strides<const float, 4>(x.data(), {B, S, H, D}))),
                                rope::head_view<const float>>);
  STATIC_REQUIRE_FALSE(rope::detail::strided_span<scaled_span, 4>);
  STATIC_REQUIRE_FALSE(rope::detail::strided_span<span_of_strides<float, 3>, 4>);
  STATIC_REQUIRE_FALSE(rope::detail::strided_span<std::vector<float>, 1>);
}

TEST_CASE("indices with the same letter are one axis of an mdspan, or throw", "[library]") {
  std::vector<float> x = counted();
  const span_of_strides<float, 5> video(x.data(), {B, 1, S, H, D}, {S * H * D, 7, H * D, D, 1});
  CHECK(counts(rope::view_as<"bsshd">(video), x));
  const span_of_strides<float, 4> with_gap(x.data(), {B, S, H, D}, {S * H * D + 1, H * D, D, 1});
  CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(rope::view_as<"sshd">(with_gap)); },
                                             "indices of one letter must be contiguous"));
  const std::size_t far = std::size_t{1} << (8 * sizeof(rope::Index) - 2);  // five times this overflows to it
  const span_of_strides<float, 3> wrapped(x.data(), {5, 5, D}, {far, far, 1});
  CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(rope::view_as<"ssd">(wrapped)); },
                                             "indices of one letter must be contiguous"));
}

TEST_CASE("channels of an mdspan that are not contiguous throw", "[library]") {
  std::vector<float> x = counted();
  const span_of_strides<float, 4> strided(x.data(), {B, S, H, D / 2}, {S * H * D, H * D, D, 2});
  CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(rope::bshd(strided)); },
                                             "channels must be contiguous, got a stride of 2"));
  const span_of_strides<float, 4> huge(x.data(), {std::size_t{1} << 31, std::size_t{1} << 31, H, D},
                                       {0, 0, D, 1});
  CHECK_THROWS_AS(rope::bshd(huge), std::length_error);
}

TEST_CASE("an mdspan gives positions and masks as other lists and matrices do", "[library]") {
  const rope::frequency_table<> table(rope::frequencies(Index(D)), 32);
  std::vector<float> x = counted(), expected = x;
  const std::vector<int> ids = {7, -1, 3, -1, 9, -1};  // every second one
  rope::rotate<rope::half_split>(rope::bshd(x.data(), 2, 3, 4, 6), table,
                                 span_of_strides<const int, 1>(ids.data(), {3}, {2}));
  rope::rotate<rope::half_split>(rope::bshd(expected.data(), 2, 3, 4, 6), table, std::vector<int>{7, 3, 9});
  CHECK(x == expected);

  x = expected = counted();
  const std::vector<int> of_rows = {1, 4, 2, 5, 3, 6};  // [tokens, batch]
  rope::rotate<rope::half_split>(rope::bshd(x.data(), 2, 3, 4, 6), table,
                                 span_of_strides<const int, 2>(of_rows.data(), {2, 3}, {1, 2}));
  rope::rotate<rope::half_split>(rope::bshd(expected.data(), 2, 3, 4, 6), table,
                                 std::vector<int>{1, 2, 3, 4, 5, 6});
  CHECK(x == expected);

  const std::array<float, 12> bias = {};
  const auto scores = rope::score_matrix(span_of_strides<const float, 2>(bias.data(), {3, 4}, {1, 3}));
  CHECK(scores.data == bias.data());
  CHECK((scores.batch == 1 && scores.heads == 1 && scores.queries == 3 && scores.keys == 4));
  CHECK((scores.query_stride == 1 && scores.key_stride == 3));
  const std::array<bool, 24> mask = {};
  const auto seen = rope::score_matrix(span_of_strides<const bool, 4>(mask.data(), {2, 1, 3, 4}));
  CHECK((seen.batch == 2 && seen.heads == 1 && seen.queries == 3 && seen.keys == 4));
  CHECK((seen.batch_stride == 12 && seen.query_stride == 4 && seen.key_stride == 1));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        static_cast<void>(rope::score_matrix(span_of_strides<const bool, 2>(nullptr, {0, 4})));
      },
      "the matrix must have entries"));
}

TEST_CASE("an mdspan of any strides is copied by its own indices, and stored back", "[library]") {
  std::vector<float> x = counted();
  const auto copy = rope::staged<"bshd">(span_of_strides<const float, 4>(x.data(), {B, S, H, D}));
  CHECK(counts(copy.view(), x));
  // Copies with channels slowest, in two memory orders.
  std::vector<float> rotated(x.size(), -1), gaps(2 * x.size(), -1);
  const span_of_strides<float, 4> channels_slowest(rotated.data(), {D, B, S, H}),
      spaced(gaps.data(), {B, S, H, D}, {2, 2 * B, 2 * B * S, 2 * B * S * H});
  copy.store(spaced);
  for (std::size_t d = 0; d < D; ++d)
    for (std::size_t t = 0; t < B * S * H; ++t) rotated[d * (B * S * H) + t] = x[t * D + d];
  CHECK(counts(std::as_const(copy).view(), x));
  CHECK(counts(rope::staged<"dbsh">(channels_slowest).view(), x));
  CHECK(counts(rope::staged<"bshd">(spaced).view(), x));
  for (std::size_t i = 1; i < gaps.size(); i += 2) CHECK(gaps[i] == -1);
  // Tokens of two indices are numbered in memory order, whichever index comes first.
  const span_of_strides<float, 5> rows_first(x.data(), {B, 1, S, H, D}),
      rows_last(x.data(), {B, S, 1, H, D}, {S * H * D, H * D, 99, D, 1});
  CHECK(counts(rope::staged<"bsshd">(rows_first).view(), x));
  CHECK(counts(rope::staged<"bsshd">(rows_last).view(), x));
  const auto rows_joined = rope::staged<"sshd">(span_of_strides<const float, 4>(x.data(), {B, S, H, D}));
  CHECK(std::vector<float>(rows_joined.view().data, rows_joined.view().data + x.size()) == x);
  const std::vector<float> grid = {0, 2, 4, 1, 3, 5};  // token 2 r + c is at (c, r)
  const auto tokens = rope::staged<"ssd">(span_of_strides<const float, 3>(grid.data(), {3, 2, 1}, {1, 3, 1}));
  CHECK(std::vector<float>(tokens.view().data, tokens.view().data + 6) == grid);

  const rope::frequency_table<> table(rope::frequencies(Index(D)), 32);
  auto s = rope::staged<"bshd">(spaced);
  rope::rotate<rope::half_split>(s.view(), table);
  s.store(span_of_strides<float, 4>(rotated.data(), {B, S, H, D}));
  rope::rotate<rope::half_split>(rope::bshd(x.data(), B, S, H, D), table);
  CHECK(rotated == x);

  const std::vector<float> before = gaps;
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        s.store(span_of_strides<float, 4>(gaps.data(), {B, S, D, H}));
      },
      "got 6 for 4 on index 2"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        s.store(span_of_strides<float, 4>(gaps.data(), {B, S, H, D}, {0, H * D, D, 1}));
      },
      "store(x) needs memory for every number, got a stride of 0 on index 0"));
  CHECK(gaps == before);
  CHECK_THROWS_AS(rope::staged<"bshd">(span_of_strides<const float, 4>(
                      x.data(), {std::size_t{1} << 31, std::size_t{1} << 31, H, D}, {0, 0, D, 1})),
                  std::length_error);
}

TEST_CASE("an mdspan is a weight of the block if it is row-major without gaps", "[library]") {
  std::vector<float> w = counted(), b = {1, 2, 3, 4};
  const rope::projection<const float> one(span_of_strides<float, 2>(w.data(), {4, 6}));
  CHECK((one.weight.data() == w.data() && one.weight.rows() == 4 && one.weight.cols() == 6));
  CHECK(one.bias.size() == 0);
  const rope::projection<float> two(span_of_strides<float, 2>(w.data(), {4, 6}, {6, 1}),
                                    span_of_strides<float, 1>(b.data(), {4}));
  CHECK((two.weight.data() == w.data() && two.bias.data() == b.data() && two.bias.size() == 4));
  const auto rejected = [&](std::size_t to_row, std::size_t to_column, const char* text) {
    return throws_saying<std::invalid_argument>(
        [&] {
          rope::projection<const float>(
              span_of_strides<const float, 2>(w.data(), {4, 6}, {to_row, to_column}));
        },
        text);
  };
  CHECK(rejected(1, 4, "row-major without gaps (layout_right), got a stride of 4 on index 1 in place of 1"));
  CHECK(rejected(8, 1, "got a stride of 8 on index 0 in place of 6"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::projection<const float>(span_of_strides<const float, 2>(w.data(), {2, 6}),
                                      span_of_strides<const float, 1>(b.data(), {2}, {2}));
      },
      "an mdspan of a bias must be row-major without gaps (layout_right), got a stride of 2 on index 0"));
}

#if defined(__cpp_lib_mdspan)
TEST_CASE("std::mdspan is one", "[library]") {
  std::vector<float> x = counted();
  CHECK(counts(rope::bshd(std::mdspan(x.data(), B, S, H, D)), x));
  const std::mdspan<float, std::dextents<int, 4>, std::layout_left> left(x.data(), 6, 4, 3, 2);
  CHECK(counts(rope::dhsb(left), x));
}
#endif
