// SPDX-License-Identifier: MIT
#include <rope/attention.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>

#include <array>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
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

/// Whether channel d of token (b, s) and head h is number ((b S + s) H + h) D + d, wherever that lies in memory.
bool counts(const rope::head_view<const float>& x, const std::vector<float>& in_memory) {
  bool all = x.batch == Index(B) && x.tokens == Index(S) && x.heads == Index(H) && x.head_dim == Index(D);
  for (std::size_t b = 0; all && b < B; ++b)
    for (std::size_t s = 0; s < S; ++s)
      for (std::size_t h = 0; h < H; ++h)
        for (std::size_t d = 0; d < D; ++d)
          all = all && x.at(Index(b), Index(s), Index(h))[d] == in_memory[((b * S + s) * H + h) * D + d];
  return all;
}

/// An accessor that scales numbers as they are read has values for references.
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

TEST_CASE("indices of one letter are one axis of an mdspan, or are refused", "[library]") {
  std::vector<float> x = counted();
  const span_of_strides<float, 5> video(x.data(), {B, 1, S, H, D}, {S * H * D, 7, H * D, D, 1});
  CHECK(counts(rope::view_as<"bsshd">(video), x));
  const span_of_strides<float, 4> apart(x.data(), {B, S, H, D}, {S * H * D + 1, H * D, D, 1});
  CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(rope::view_as<"sshd">(apart)); },
                                             "indices of one letter must be contiguous"));
}

TEST_CASE("channels of an mdspan that are not contiguous are refused", "[library]") {
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
      "the mdspan must have entries"));
}

#if defined(__cpp_lib_mdspan)
TEST_CASE("std::mdspan is one", "[library]") {
  std::vector<float> x = counted();
  CHECK(counts(rope::bshd(std::mdspan(x.data(), B, S, H, D)), x));
  const std::mdspan<float, std::dextents<int, 4>, std::layout_left> left(x.data(), 6, 4, 3, 2);
  CHECK(counts(rope::dhsb(left), x));
}
#endif
