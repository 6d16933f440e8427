// SPDX-License-Identifier: MIT
#include <rope/positions/positions.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <list>
#include <rope/rotation/rotate.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using rope::Index;
using rope::position_form;
using testing::same_bits;

namespace {

constexpr std::uint32_t seed = 5;
constexpr Index B = 3, L = 4, H = 2, D = 34;
constexpr auto int64_min = (std::numeric_limits<std::int64_t>::min)();
constexpr auto int64_max = (std::numeric_limits<std::int64_t>::max)();
constexpr auto uint64_max = (std::numeric_limits<std::uint64_t>::max)();

const rope::frequency_table<float>& table() {
  static const rope::frequency_table<float> rows(rope::frequencies(32), -50, 300);
  return rows;
}

/// [B, L, H, D] heads, rotated by positions in any form.
template <class Layout, class P>
std::vector<float> rotated(const P& positions, Index batch = B, Index tokens = L) {
  std::vector<float> x = testing::random_channels<float>(batch * tokens * H * D, seed);
  rope::rotate<Layout>(rope::bshd(x.data(), batch, tokens, H, D), table(), positions);
  return x;
}

/// Rotates them head by head, each at its own position.
template <class Layout, class PositionOf>
std::vector<float> expected(PositionOf position_of, Index batch = B, Index tokens = L) {
  std::vector<float> x = testing::random_channels<float>(batch * tokens * H * D, seed);
  for (Index b = 0; b < batch; ++b)
    for (Index t = 0; t < tokens; ++t)
      for (Index h = 0; h < H; ++h)
        rope::rotate<Layout>(rope::thd(x.data() + ((b * tokens + t) * H + h) * D, 1, 1, D), table(),
                             position_of(b, t));
  return x;
}

/// Whether every form of a call throws for the positions with an Exception that contains `parts`, and changes
/// nothing.
template <class Exception, class P, class... Parts>
bool rejects(const P& positions, Index batch, Index tokens, const Parts&... parts) {
  const std::vector<float> before = testing::random_channels<float>(batch * tokens * H * D, seed);
  std::vector<float> x = before, y = before;
  const auto in = rope::bshd(x.data(), batch, tokens, H, D), out = rope::bhsd(y.data(), batch, H, tokens, D);
  using testing::throws_saying;
  return throws_saying<Exception>([&] { rope::rotate<rope::half_split>(in, table(), positions); },
                                  "rope::rotate: ", parts...) &&
         throws_saying<Exception>([&] { rope::rotate_to<rope::half_split>(in, out, table(), positions); },
                                  "rope::rotate_to: ", parts...) &&
         throws_saying<Exception>([&] { rope::unrotate<rope::interleaved>(in, table(), positions); },
                                  "rope::unrotate: ", parts...) &&
         throws_saying<Exception>([&] { rope::unrotate_to<rope::interleaved>(in, out, table(), positions); },
                                  "rope::unrotate_to: ", parts...) &&
         same_bits(x, before) && same_bits(y, before);
}

/// True if positions outside the table throw. `named` is the position in the message.
template <class P>
bool is_outside(const P& positions, std::int64_t named, Index batch = B) {
  return rejects<std::out_of_range>(
      positions, batch, L, "position " + std::to_string(named) + " is outside the table's [-50, 300)");
}

}  // namespace

TEST_CASE("positions are integers and lists of integers", "[positions]") {
  STATIC_REQUIRE(position_form<int>);
  STATIC_REQUIRE(position_form<std::uint8_t>);
  STATIC_REQUIRE(position_form<std::uint64_t>);
  STATIC_REQUIRE(position_form<std::vector<std::int32_t>>);
  STATIC_REQUIRE(position_form<std::span<const std::int64_t>>);
  STATIC_REQUIRE(position_form<std::array<short, 3>>);
  STATIC_REQUIRE(position_form<Eigen::VectorXi>);
  STATIC_REQUIRE(position_form<Eigen::Map<const Eigen::VectorXi>>);
  STATIC_REQUIRE(position_form<rope::row_starts<int>>);
  STATIC_REQUIRE(position_form<rope::segments<std::int64_t>>);
}

TEST_CASE("floats, bools and non-contiguous lists are not positions", "[positions]") {
  STATIC_REQUIRE_FALSE(position_form<float>);
  STATIC_REQUIRE_FALSE(position_form<double>);
  STATIC_REQUIRE_FALSE(position_form<Eigen::half>);
  STATIC_REQUIRE_FALSE(position_form<bool>);
  STATIC_REQUIRE_FALSE(position_form<std::vector<float>>);
  STATIC_REQUIRE_FALSE(position_form<std::vector<bool>>);
  STATIC_REQUIRE_FALSE(position_form<std::span<const double>>);
  STATIC_REQUIRE_FALSE(position_form<Eigen::VectorXf>);
  STATIC_REQUIRE_FALSE(position_form<std::list<int>>);
  STATIC_REQUIRE_FALSE(position_form<const char*>);
}

TEST_CASE("token t of every row is at start plus t", "[positions]") {
  CAPTURE(seed);
  for (const std::int64_t start : {-50, -2, 0, 1, 200, 296}) {
    CAPTURE(start);
    const auto position_of = [start](Index, Index t) { return start + t; };
    CHECK(same_bits(rotated<rope::interleaved>(start), expected<rope::interleaved>(position_of)));
    CHECK(same_bits(rotated<rope::half_split>(static_cast<short>(start)),
                    expected<rope::half_split>(position_of)));
  }
  CHECK(same_bits(rotated<rope::half_split>(std::uint8_t{200}), rotated<rope::half_split>(200)));
  CHECK(same_bits(rotated<rope::half_split>(std::uint64_t{200}), rotated<rope::half_split>(200)));
}

TEST_CASE("positions start at 0 by default", "[positions]") {
  std::vector<float> x = testing::random_channels<float>(B * L * H * D, seed);
  rope::rotate<rope::half_split>(rope::bshd(x.data(), B, L, H, D), table());
  CHECK(same_bits(x, rotated<rope::half_split>(0)));
}

TEMPLATE_TEST_CASE("ids of any integer type give the same bits", "[positions]", std::int8_t, std::uint8_t,
                   std::int16_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t) {
  CAPTURE(seed);
  const std::vector<std::int64_t> shared = {7, 3, 120, 3};
  const std::vector<std::int64_t> per_row = {7, 3, 120, 3, 0, 1, 2, 3, 9, 9, 9, 100};
  const std::vector<TestType> shared_ids(shared.begin(), shared.end()),
      row_ids(per_row.begin(), per_row.end());
  CHECK(same_bits(rotated<rope::half_split>(shared_ids), expected<rope::half_split>([&](Index, Index t) {
                    return shared[static_cast<std::size_t>(t)];
                  })));
  CHECK(same_bits(rotated<rope::half_split>(row_ids), expected<rope::half_split>([&](Index b, Index t) {
                    return per_row[static_cast<std::size_t>(b * L + t)];
                  })));
}

TEST_CASE("ids that are not contiguous are read at their stride", "[positions]") {
  const int memory[] = {10, -1, 11, -1, 12, -1, 20, -1, 21, -1, 22, -1};
  using list = rope::detail::integer_list<int>;
  for (const list& ids : {list(memory, 6, 2), list(memory, 2, 3, 6, 2)}) {
    const rope::detail::listed_positions<list> positions(ids, 3);
    for (rope::Index b = 0; b < 2; ++b)
      for (rope::Index t = 0; t < 3; ++t) CHECK(positions(b, t) == 10 * (b + 1) + t);
  }
}

TEST_CASE("ids in any contiguous container give the same bits", "[positions]") {
  CAPTURE(seed);
  const std::vector<int> ids = {-50, 299, 0, 7};
  const auto expected_bits =
      expected<rope::interleaved>([&](Index, Index t) { return ids[static_cast<std::size_t>(t)]; });
  const Eigen::VectorXi vector = Eigen::Map<const Eigen::VectorXi>(ids.data(), 4);
  const Eigen::RowVector4i row = vector.transpose();
  CHECK(same_bits(rotated<rope::interleaved>(ids), expected_bits));
  CHECK(same_bits(rotated<rope::interleaved>(std::span<const int>(ids)), expected_bits));
  CHECK(same_bits(rotated<rope::interleaved>(std::array<long, 4>{-50, 299, 0, 7}), expected_bits));
  CHECK(same_bits(rotated<rope::interleaved>(vector), expected_bits));
  CHECK(same_bits(rotated<rope::interleaved>(row), expected_bits));
  CHECK(same_bits(rotated<rope::interleaved>(Eigen::Map<const Eigen::Array4i>(ids.data())), expected_bits));
}

TEST_CASE("start, ids, ids per row, row starts and segments give the same bits for equal positions",
          "[positions]") {
  CAPTURE(seed);
  const std::vector<int> ids = {6, 7, 8, 9}, row_ids = {6, 7, 8, 9, 6, 7, 8, 9, 6, 7, 8, 9},
                         starts = {6, 6, 6};
  const auto from_start = rotated<rope::half_split>(6);
  CHECK(same_bits(rotated<rope::half_split>(ids), from_start));
  CHECK(same_bits(rotated<rope::half_split>(row_ids), from_start));
  CHECK(same_bits(rotated<rope::half_split>(rope::row_starts{starts}), from_start));

  const std::vector<int> offsets = {0, L}, first = {6};
  CHECK(same_bits(rotated<rope::half_split>(rope::segments<int>{offsets, first}, 1),
                  rotated<rope::half_split>(6, 1)));
  CHECK(same_bits(rotated<rope::half_split>(rope::segments{offsets}, 1), rotated<rope::half_split>(0, 1)));
}

TEST_CASE("each row begins at its own start", "[positions]") {
  CAPTURE(seed);
  const std::vector<std::int64_t> starts = {17, -50, 296};
  const auto position_of = [&](Index b, Index t) { return starts[static_cast<std::size_t>(b)] + t; };
  CHECK(same_bits(rotated<rope::interleaved>(rope::row_starts{starts}),
                  expected<rope::interleaved>(position_of)));
  const std::array<std::uint8_t, 3> small = {17, 0, 255};
  const auto small_position_of = [&](Index b, Index t) { return small[static_cast<std::size_t>(b)] + t; };
  CHECK(same_bits(rotated<rope::interleaved>(rope::row_starts{small}),
                  expected<rope::interleaved>(small_position_of)));
  CHECK(same_bits(rotated<rope::interleaved>(rope::row_starts<std::uint8_t>{small}, B, 0), {}));
}

TEST_CASE("each segment of a ragged batch counts from its own start", "[positions]") {
  CAPTURE(seed);
  const std::vector<std::int32_t> offsets = {0, 0, 3, 4, 4, 9, 9}, starts = {1, 20, -7, 5000, 250, -9000};
  const std::vector<Index> from_zero = {0, 1, 2, 0, 0, 1, 2, 3, 4},
                           from_starts = {20, 21, 22, -7, 250, 251, 252, 253, 254};
  CHECK(same_bits(rotated<rope::half_split>(rope::segments{offsets}, 1, 9),
                  expected<rope::half_split>(
                      [&](Index, Index t) { return from_zero[static_cast<std::size_t>(t)]; }, 1, 9)));
  CHECK(same_bits(rotated<rope::half_split>(rope::segments<std::int32_t>{offsets, starts}, 1, 9),
                  expected<rope::half_split>(
                      [&](Index, Index t) { return from_starts[static_cast<std::size_t>(t)]; }, 1, 9)));
  const std::array<std::uint64_t, 1> none = {0};
  CHECK(same_bits(rotated<rope::half_split>(rope::segments{none}, 1, 0), {}));
}

TEST_CASE("a start outside the table throws", "[positions]") {
  for (const std::int64_t start : {std::int64_t{-51}, int64_min, int64_min + 1})
    CHECK(is_outside(start, start));
  CHECK(is_outside(297, 300));
  CHECK(is_outside(int64_max, int64_max));
  CHECK(is_outside(int64_max - 1, int64_max - 1));
  CHECK(is_outside(uint64_max, int64_max));
  CHECK(is_outside(uint64_max - 49, int64_max));  // would be -50, which is in the table
  CHECK(is_outside(std::uint64_t{1} << 63, int64_max));
}

TEST_CASE("one id outside the table throws", "[positions]") {
  for (const std::int64_t bad : {std::int64_t{-51}, std::int64_t{300}, int64_min, int64_max})
    for (std::size_t at = 0; at < static_cast<std::size_t>(B * L); ++at) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(B * L), 3);
      ids[at] = bad;
      CHECK(is_outside(ids, bad));
    }
  CHECK(is_outside(std::array<std::uint64_t, 4>{0, 1, uint64_max, 2}, int64_max));
  CHECK(is_outside(std::array<std::uint64_t, 4>{0, 1, uint64_max - 49, 2}, int64_max));
}

TEST_CASE("an empty batch does not check its ids", "[positions]") {
  const std::vector<int> outside(L, 400);
  CHECK(rotated<rope::half_split>(outside, 0).empty());
  const std::vector<int> offsets = {0, 1, L}, starts = {0, 400};
  CHECK(rotated<rope::half_split>(rope::segments(offsets, starts), 0).empty());
}

TEST_CASE("ids throw if their length is neither tokens nor batch times tokens", "[positions]") {
  for (const std::size_t length : {0u, 1u, 3u, 5u, 8u, 11u, 13u, 24u})
    CHECK(rejects<std::invalid_argument>(
        std::vector<int>(length), B, L,
        "ids must be [tokens] = 4 or [batch * tokens] = 12, got " + std::to_string(length)));
}

TEST_CASE("with one row the message names the required length once", "[positions]") {
  CHECK(rejects<std::invalid_argument>(std::vector<int>(3), 1, L, "ids must be [tokens] = 4, got 3"));
  CHECK(rejects<std::invalid_argument>(std::vector<int>(1), 0, L,
                                       "ids must be [tokens] = 4 or [batch * tokens] = 0, got 1"));
}

TEST_CASE("a start that leads out of the table is reported with its positions", "[positions]") {
  CHECK(rejects<std::out_of_range>(298, B, L,
                                   "position 301 is outside the table's [-50, 300), got positions 298 to 301 "
                                   "(start 298, 4 tokens); the table has 350 rows, make it with "
                                   "frequency_table(frequencies, -50, 302)"));
  CHECK(rejects<std::out_of_range>(-52, B, L,
                                   "position -52 is outside the table's [-50, 300), got positions -52 to -49 "
                                   "(start -52, 4 tokens); the table has 350 rows, make it with "
                                   "frequency_table(frequencies, -52, 300)"));
  CHECK(rejects<std::out_of_range>(
      int64_max - 1, B, L,
      "got positions 9223372036854775806 to 9223372036854775807 (start 9223372036854775806, 4 tokens)"));
  // A single position is reported alone, and a table of float angles is made again.
  const auto message_of = [](const rope::frequency_table<float>& short_table) {
    std::vector<float> x(4);
    try {
      rope::rotate<rope::half_split>(rope::thd(x.data(), 1, 1, 4), short_table, 7);
    } catch (const std::out_of_range& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const rope::frequencies f(4);
  CHECK(message_of({f, 5}) ==
        "rope::rotate: position 7 is outside the table's [0, 5); the table has 5 rows, make it with "
        "frequency_table(frequencies, 8)");
  CHECK(message_of(rope::frequency_table<float>::with_float_angles(f, 0, 5)) ==
        "rope::rotate: position 7 is outside the table's [0, 5); the table has 5 rows, make it with "
        "frequency_table<>::with_float_angles(frequencies, 0, 8)");
  CHECK(
      message_of({f, 100, 110}) ==
      "rope::rotate: position 7 is outside the table's [100, 110); the table has 10 rows, start at its first "
      "position (append_at) or make it with frequency_table(frequencies, 7, 110)");
}

TEST_CASE("row starts throw if their number is wrong or a row leaves the table", "[positions]") {
  for (const std::size_t length : {0u, 1u, 2u, 4u, 12u}) {
    const std::vector<int> starts(length);
    CHECK(rejects<std::invalid_argument>(rope::row_starts{starts}, B, L,
                                         "row_starts must be [batch] = 3, got " + std::to_string(length)));
  }
  struct start {
    std::int64_t bad, named;
  };
  for (const auto& [bad, named] : {start{-51, -51},
                                   {297, 300},
                                   {int64_min, int64_min},
                                   {int64_max, int64_max},
                                   {int64_max - 2, int64_max}}) {
    const std::array<std::int64_t, 3> starts = {0, bad, 5};
    CHECK(is_outside(rope::row_starts{starts}, named));
  }
  const std::array<std::uint64_t, 3> huge = {0, uint64_max, 5};
  CHECK(is_outside(rope::row_starts{huge}, int64_max));
}

TEST_CASE("segments that do not cover the tokens throw", "[positions]") {
  using list = std::vector<std::int64_t>;
  for (const list& offsets : {list{}, list{0}, list{4}, list{1, 4}, list{0, 3}, list{0, 5}, list{-1, 4},
                              list{0, int64_max}, list{int64_min, 4}})
    CHECK(rejects<std::invalid_argument>(rope::segments{offsets}, 1, L,
                                         "segment offsets must begin with 0 and end with 4, got "));
  CHECK(rejects<std::invalid_argument>(rope::segments{list{}}, 1, L, "got none"));
  CHECK(rejects<std::invalid_argument>(rope::segments{list{0, 2, 5}}, 1, L, "got 0 and 5"));
  CHECK(rejects<std::invalid_argument>(rope::segments{list{-1, 4}}, 1, L, "got -1 and 4"));
}

TEST_CASE("segments that decrease throw", "[positions]") {
  using list = std::vector<std::int64_t>;
  for (const list& offsets : {list{0, 3, 2, 4}, list{0, 5, 4}, list{0, -1, 4}, list{0, 100, 4},
                              list{0, std::int64_t{1} << 32, 4}, list{0, int64_max, int64_min, 4}})
    CHECK(rejects<std::invalid_argument>(rope::segments{offsets}, 1, L, "segment offsets must not decrease"));
  CHECK(rejects<std::invalid_argument>(rope::segments{list{0, 3, 2, 4}}, 1, L, "got 2 after 3"));
}

TEST_CASE("segment starts throw if their number is wrong or a segment leaves the table", "[positions]") {
  const std::vector<int> offsets = {0, 1, 4};
  for (const std::vector<int>& starts : {std::vector<int>{1}, {1, 2, 3}})
    CHECK(rejects<std::invalid_argument>(rope::segments<int>{offsets, starts}, 1, L,
                                         "segment starts must be empty or one per segment, got " +
                                             std::to_string(starts.size()) + " for 2 segments"));
  CHECK(is_outside(rope::segments<int>{offsets, std::array{-51, 0}}, -51, 1));
  CHECK(is_outside(rope::segments<int>{offsets, std::array{0, 298}}, 300, 1));
  CHECK(is_outside(rope::segments<int>{offsets, std::array{300, 0}}, 300, 1));
  CHECK(is_outside(rope::segments<int>{offsets, std::array{0, -51}}, -51, 1));
  const std::array<std::int64_t, 3> wide_offsets = {0, 1, 4};
  CHECK(is_outside(rope::segments<std::int64_t>{wide_offsets, std::array{std::int64_t{0}, int64_max - 1}},
                   int64_max, 1));
}
