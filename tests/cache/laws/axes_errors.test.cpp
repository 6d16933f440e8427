// SPDX-License-Identifier: MIT
// Errors of a cache with axes: the message has the rule and the value, and nothing changes.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/cache/ring_cache.hpp>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/given_table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index batch = 2, capacity = 12, kv_heads = 2, heads = 4, head_dim = 10, most = 14;
using Axes = Eigen::ArrayXXd;

const frequencies plain(8, 1e4), other(8, 2e4);
const frequencies on_three = on_axes(plain, contiguous_sections({1, 1, 2}));

struct memory {
  testing::tensor<float> q = testing::random_tensor<float>(batch, most, heads, head_dim, 1),
                         k = testing::random_tensor<float>(batch, most, kv_heads, head_dim, 2),
                         v = testing::random_tensor<float>(batch, most, kv_heads, head_dim, 3), out = q;
  auto queries(Index n) const { return view(q).token_range(0, n); }
  auto keys(Index n) const { return view(k).token_range(0, n); }
  auto values(Index n) const { return view(v).token_range(0, n); }
  auto output(Index n) { return view(out).token_range(0, n); }
};

/// Coordinates [rows, 3] of an image that begins at `start`.
Axes image(Index rows, double start = 0) {
  Axes c(rows, 3);
  for (Index r = 0; r < rows; ++r) c.row(r) << start, start + double(r / 2), start + double(r % 2);
  return c;
}

bool same(const kv_cache<float>& a, const kv_cache<float>& b) {
  return testing::same_heads(a.keys(), b.keys()) && testing::same_heads(a.values(), b.values()) &&
         a.coordinates().rows() == b.coordinates().rows() && (a.coordinates() == b.coordinates()).all() &&
         (a.next_coordinates() == b.next_coordinates()).all();
}

const std::invalid_argument invalid("");
const std::out_of_range range("");
const std::length_error length("");

struct refusals {
  memory x;
  kv_cache<float> cache{batch, capacity, kv_heads, head_dim, token_axes{3}};

  template <class E, class Call, class... Parts>
  void operator()(E, const Call& call, const Parts&... parts) {
    const kv_cache<float> before = cache;
    const auto out = x.out;
    CHECK(throws_saying<E>(call, parts...));
    CHECK(same(cache, before));
    CHECK(same_bits(x.out, out));
  }
};

}  // namespace

TEST_CASE("coordinates that do not fit the axes or tokens of a cache throw", "[cache]") {
  refusals rejected;
  auto& x = rejected.x;
  auto& cache = rejected.cache;
  const frequency_table<> table(on_three, image(4)), text(plain, 40),
      two(on_axes(plain, contiguous_sections({2, 2})), Axes::Zero(4, 2));
  cache.append<half_split>(x.keys(4), x.values(4), table);
  const auto append = [&](Index tokens, const auto& of, const auto&... more) {
    cache.append<half_split>(x.keys(tokens), x.values(tokens), of, more...);
  };
  rejected(
      invalid, [&] { append(4, two); },
      "rope::kv_cache::append: tokens of this cache have 3 axes, got coordinates of 2");
  for (const Index rows : {Index{0}, Index{3}, Index{5}, Index{9}})
    rejected(
        invalid, [&] { append(4, frequency_table<>(on_three, image(rows))); },
        "kv_cache::append: coordinates must have [tokens] = 4 or [batch * tokens] = 8 rows, got ");
  rejected(
      length, [&] { append(9, frequency_table<>(on_three, image(9))); },
      "9 tokens do not fit into row 0, which holds 4 of 12");
  rejected(
      invalid,
      [&] {
        append(4, table, std::vector<int>{5, 0});
      },
      "counts must be in [0, tokens] = [0, 4], got 5");
  rejected(
      invalid, [&] { cache.append_at<half_split>(x.keys(4), x.values(4), table, 0); },
      "kv_cache::append_at: a table of coordinates has the positions of its tokens; leave out positions");
  rejected(
      range, [&] { append(4, frequency_table<>(plain, 4)); }, "kv_cache::append: position ",
      " is outside the table's [0, 4)");
  rejected(
      invalid, [&] { append(4, frequency_table<>::with_float_angles(plain, 0, 40)); },
      "a cache with axes takes a table of coordinates or, for text, of positions, got one of float angles");
  rejected(
      invalid, [&] { append(4, table_of_angles(Eigen::ArrayXXf::Zero(4, 4), table_form::half_width)); },
      "got one of given entries");
  rejected(
      invalid, [&] { append(4, frequency_table<>(on_three, image(4)).at_channel(3)); },
      "the right ones at another channel");

  kv_cache<float> given(batch, capacity, kv_heads, head_dim, token_axes{3}),
      of_positions(batch, capacity, kv_heads, head_dim);
  given.append_at(x.keys(2), x.values(2), token_coordinates(image(2)));
  const kv_cache<float> before = given;
  const auto at = [&](kv_cache<float>& to, Index tokens, const Axes& c) {
    to.append_at(x.keys(tokens), x.values(tokens), token_coordinates(c));
  };
  CHECK(throws_saying<std::invalid_argument>([&] { at(given, 2, Axes::Zero(2, 2)); },
                                             "kv_cache::append_at: tokens of this cache have 3 axes, got "
                                             "coordinates of 2"));
  CHECK(
      throws_saying<std::invalid_argument>([&] { at(given, 2, image(3)); },
                                           "coordinates must have [tokens] = 2 or [batch * tokens] = 4 rows, "
                                           "got 3"));
  CHECK(throws_saying<std::length_error>([&] { at(given, 11, image(11)); }, "11 tokens do not fit"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { given.append<half_split>(x.keys(2), x.values(2), frequency_table<>(on_three, image(2))); },
      "got a table, but they were rotated before they were appended"));
  CHECK(same(given, before));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { at(of_positions, 2, image(2)); },
      "kv_cache::append_at: a cache of positions takes no coordinates, make it with token_axes{3}"));
  CHECK(of_positions.size() == 0);
  rejected(
      invalid, [&] { at(cache, 2, image(2)); }, "this cache rotates its keys, give the layout and the table");
}

TEST_CASE("a cache with axes is tied to its frequencies, layout and first channel", "[cache]") {
  refusals rejected;
  auto& x = rejected.x;
  auto& cache = rejected.cache;
  const frequency_table<> table(on_three, image(2)), text(plain, 40), other_text(other, 40),
      others(on_axes(other, contiguous_sections({1, 1, 2})), image(2)),
      dealt(on_axes(plain, interleaved_sections({2, 1, 1})), image(2)),
      mixed(along_directions(plain, Eigen::MatrixXd::Ones(4, 3)), image(2));
  const char* rule =
      "rope::kv_cache: give the layout and the frequencies that the keys were rotated by, got ";
  const auto all_reject = [&](const auto& of, const char* got) {
    rejected(
        invalid, [&] { cache.append<half_split>(x.keys(2), x.values(2), of); }, rule, got);
    rejected(
        invalid, [&] { attention<half_split>(x.queries(2), cache, x.output(2), of); }, rule, got);
    rejected(
        invalid, [&] { cache.shift<half_split>(0, 1, 1, of); }, rule, got);
    rejected(
        invalid, [&] { cache.rebase<half_split>(of, of); }, rule, got);
    rejected(
        invalid, [&] { cache.check_table<half_split>(of); }, rule, got);
  };
  // Text first: its axes are not known yet.
  cache.append<half_split>(x.keys(2), x.values(2), text);
  all_reject(other_text, "other frequencies");
  all_reject(others, "other frequencies");
  all_reject(mixed, "a table of positions and one of coordinates, for pairs that rotate along");
  all_reject(text.at_channel(1), "the right ones at another channel");
  CHECK_NOTHROW(cache.check_table<half_split>(dealt));
  CHECK_NOTHROW(cache.check_table<half_split>(table));
  // An image: now they are known.
  cache.append<half_split>(x.keys(2), x.values(2), table);
  all_reject(dealt, "other frequencies");
  all_reject(others, "other frequencies");
  all_reject(other_text, "other frequencies");
  rejected(
      invalid, [&] { cache.append<interleaved>(x.keys(2), x.values(2), table); }, rule,
      "the right ones in another layout");
  CHECK_NOTHROW(cache.check_table<half_split>(text));
  cache.append<half_split>(x.keys(1), x.values(1), text);
  all_reject(dealt, "other frequencies");
  kv_cache<float> foreign(batch, capacity, kv_heads, head_dim, token_axes{3});
  foreign.append<half_split>(x.keys(2), x.values(2), others);
  rejected(
      invalid, [&] { cache.copy_row(foreign, 0, 1); }, "rope::kv_cache::copy_row: ", "got other frequencies");
  rejected(
      invalid, [&] { cache.rebase<half_split>(table, text); },
      "kv_cache::rebase: keys on 3 axes need two tables of coordinates, the second is one of positions");
  rejected(
      invalid, [&] { cache.rebase<half_split>(text, table); }, "the first is one of positions");
  rejected(
      invalid, [&] { cache.rebase<half_split>(table, others.at_channel(2)); },
      "both tables must begin at the same channel, got 0 and 2");
  rejected(
      invalid,
      [&] { cache.rebase<half_split>(table, frequency_table<>(axial(frequencies(2), 3), image(2))); },
      "both tables must have the same pairs, got 4 and 3");
  // A cache from which all tokens are removed has neither frequencies nor axes.
  cache.clear();
  CHECK_NOTHROW(cache.rebase<half_split>(text, other_text));
  CHECK_NOTHROW(cache.append<half_split>(x.keys(2), x.values(2), mixed));
  all_reject(text, "a table of positions and one of coordinates");
}

TEST_CASE("text, shifts and positions of a cache with axes have limits", "[cache]") {
  refusals rejected;
  auto& x = rejected.x;
  auto& cache = rejected.cache;
  const frequency_table<> text(plain, 40);
  Axes real = image(3);
  real(2, 1) = 2.5;
  cache.append<half_split>(x.keys(3), x.values(3), frequency_table<>(on_three, real));
  const char* fraction =
      "the next position must be an integer, got one after a coordinate of 2.5; give "
      "coordinates, see next_coordinates";
  rejected(
      invalid, [&] { cache.append<half_split>(x.keys(1), x.values(1), text); },
      "kv_cache::append: ", fraction);
  rejected(
      invalid, [&] { cache.next_positions(); }, "kv_cache::next_positions: ", fraction);
  CHECK(cache.next_coordinates(2)(3, 0) == 4.5);
  rejected(
      invalid, [&] { cache.next_coordinates(-1); }, "next_coordinates: tokens must not be negative, got -1");
  rejected(
      invalid, [&] { cache.positions(0); },
      "kv_cache::positions: tokens of this cache have 3 axes, ask for their coordinates or order");
  for (const Index b : {Index{-1}, batch}) {
    rejected(
        range, [&] { cache.coordinates(b); }, "kv_cache::coordinates: row must be in [0, 2)");
    rejected(
        range, [&] { cache.order(b); }, "kv_cache::order: row must be in [0, 2)");
  }
  constexpr std::int64_t end = std::int64_t{1} << 53;
  const frequency_table<> table(on_three, image(2));
  for (const std::int64_t delta :
       {end, -end - 1, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})
    rejected(
        range, [&] { cache.shift<half_split>(0, 3, delta, table); },
        "kv_cache::shift: coordinates must stay within 2^53 in magnitude, got ");
  kv_cache<float> far = cache;
  far.shift<half_split>(0, 3, -end, table);
  CHECK(far.coordinates().minCoeff() == -0x1p53);
  rejected(
      range, [&] { cache.shift<half_split>(2, 2, 1, table); }, "kv_cache::shift: first 2 and count 2");
  rejected(
      invalid, [&] { cache.shift(0, 1, 1); }, "pass the layout and the table to shift rotated keys");

  cache.clear();
  cache.append<half_split>(x.keys(2), x.values(2), frequency_table<>(on_three, image(2, 0x1p53 - 1)));
  CHECK(cache.next_positions()[0] == end + 1);
  const kv_cache<float> before = cache;
  CHECK(throws_saying<std::out_of_range>([&] { cache.next_coordinates(); },
                                         "coordinates must be at most 2^53, got 1 after 9007199254740992"));
  CHECK(throws_saying<std::out_of_range>(
      [&] { cache.append<half_split>(x.keys(1), x.values(1), frequency_table<>(plain, end, end + 5)); },
      "positions must stay within 2^53"));
  CHECK(testing::same_heads(cache.keys(), before.keys()));
  CHECK((cache.coordinates() == before.coordinates()).all());

  CHECK(throws_saying<std::invalid_argument>([] { token_axes{0}; },
                                             "token_axes: axes must be positive, got 0"));
  CHECK_THROWS_AS(token_axes{-3}, std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(-1, 4, 2, 8, token_axes{3}), std::invalid_argument);
  CHECK(throws_saying<std::length_error>(
      [] { kv_cache<float>(4, 4, 2, 8, token_axes{std::numeric_limits<Index>::max()}); },
      "kv_cache: coordinates of ", "exceed the address space"));
  CHECK(throws_saying<std::length_error>(
      [] {
        constexpr Index tokens = std::numeric_limits<Index>::max() / 1024 + 1;
        kv_cache<float>(2048, 1, 1, 4, token_axes{2}).next_coordinates(tokens);
      },
      "kv_cache::next_coordinates: coordinates of [2048, ", "exceed the address space"));
  CHECK_NOTHROW(kv_cache<float>(0, 4, 2, 8, token_axes{3}));
  CHECK_NOTHROW(kv_cache<float>(2, 0, 2, 8, token_axes{3}));
}

TEST_CASE("attention throws if a table does not cover the coordinates of the tokens", "[cache]") {
  refusals rejected;
  auto& x = rejected.x;
  auto& cache = rejected.cache;
  const frequency_table<> text(plain, 40), table(on_three, image(4));
  cache.append<half_split>(x.keys(4), x.values(4), table);
  const auto ask = [&](Index queries, const auto& of) {
    attention<half_split>(x.queries(queries), cache, x.output(queries), of);
  };
  rejected(
      invalid, [&] { ask(3, table); },
      "attention: coordinates must have [tokens] = 3 or [batch * tokens] = 6");
  rejected(
      invalid, [&] { ask(4, frequency_table<>(on_three, image(4, 1))); },
      "attention: the table must be at the coordinates of the queries, which are the newest tokens, row 0 is "
      "at 1 "
      "on axis 0 and the token at 0");
  Axes shifted(8, 3);
  shifted << image(4), image(4);
  shifted(6, 2) += 0.5;
  rejected(
      invalid, [&] { ask(4, frequency_table<>(on_three, shifted)); }, "row 6 is at 0.5 on axis 2");
  rejected(
      invalid, [&] { ask(1, text); },
      "attention: a table of positions rotates text only (one integer on all axes); pass a table of "
      "coordinates for a query at 0 and 1");
  rejected(
      invalid, [&] { ask(5, frequency_table<>(on_three, image(5))); },
      "append the keys of the queries before they attend");
  rejected(
      invalid,
      [&] {
        ask(1, frequency_table<>(on_axes(plain, contiguous_sections({2, 2})), Axes::Zero(1, 2)));
      },
      "rope::kv_cache: tokens of this cache have 3 axes, got coordinates of 2");
  cache.append<half_split>(x.keys(1), x.values(1), text);
  rejected(
      range, [&] { ask(1, frequency_table<>(plain, 2)); }, "position 2 is outside the table's [0, 2)");
  CHECK_NOTHROW(ask(1, text));

  kv_cache<float> raw(batch, capacity, kv_heads, head_dim, token_axes{3}, 0, key_storage::raw);
  raw.append_at(x.keys(3), x.values(3), token_coordinates(image(3)));
  const auto ask_raw = [&](const auto& of) { attention<half_split>(x.queries(1), raw, x.output(1), of); };
  const auto out = x.out;
  CHECK(throws_saying<std::invalid_argument>(
      [&] { ask_raw(text); },
      "attention: raw keys on 3 axes are read by a table at cache.coordinates(), got one of positions"));
  CHECK(throws_saying<std::invalid_argument>([&] { ask_raw(frequency_table<>(on_three, image(3))); },
                                             "cache.coordinates(), which has 6 rows, got 3"));
  Axes moved(6, 3);
  moved << image(3), image(3);
  moved(4, 1) = 9;
  CHECK(throws_saying<std::invalid_argument>(
      [&] { ask_raw(frequency_table<>(on_three, moved)); },
      "the table must be at the coordinates of all tokens, row 4 is at 9 on "
      "axis 1"));
  CHECK(throws_saying<std::invalid_argument>([&] { attention(x.queries(1), raw, x.output(1)); },
                                             "the stored keys are raw, give the layout and the table"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { raw.append<half_split>(x.keys(1), x.values(1), frequency_table<>(on_three, image(1))); },
      "raw keys are rotated when they are read"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        raw.rebase<half_split>(frequency_table<>(on_three, image(1)), frequency_table<>(on_three, image(1)));
      },
      "raw keys are stored unrotated"));
  CHECK(same_bits(x.out, out));
  CHECK(raw.size() == 3);
  CHECK_NOTHROW(ask_raw(frequency_table<>(on_three, raw.coordinates())));
}

TEST_CASE("keys rotated with a table of positions are text", "[cache]") {
  refusals rejected;
  auto& x = rejected.x;
  auto& cache = rejected.cache;
  const frequency_table<> text(plain, 40), longer(frequencies(8, 1e4, linear_scaling{.factor = 2}), 40);
  Axes at(3, 3);
  at << 0, 0, 0, 1, 1, 1, 2, 2, 3;
  const auto append = [&](const auto& to, const auto&... more) {
    cache.append_rotated<half_split>(x.keys(3), x.values(3), text, token_coordinates(to), more...);
  };
  rejected(
      invalid, [&] { append(at); },
      "kv_cache::append_rotated: a table of positions rotates text only (one integer on all axes); pass "
      "a table of coordinates for a token at 2 and 3");
  at.row(2).setConstant(2.5);
  rejected(
      invalid, [&] { append(at); }, "a token at 2.5 and 2.5");
  ring_cache<float> ring(batch, {.window = 4}, kv_heads, head_dim, token_axes{3});
  CHECK(throws_saying<std::invalid_argument>(
      [&] { ring.append_rotated<half_split>(x.keys(3), x.values(3), text, token_coordinates(at)); },
      "ring_cache::append_rotated: a table of positions rotates text only"));
  CHECK(ring.seen(0) == 0);

  append(at, std::vector<int>{2, 1});  // the last token is not taken
  cache.append<half_split>(x.keys(1), x.values(1), text);
  REQUIRE(cache.size(0) == 3);
  cache.rebase<half_split>(text, longer);
  // The keys of row 0 were given as already rotated to positions 0 and 1, and one was rotated to 2 by the
  // cache.
  auto memory = testing::random_tensor<float>(1, 3, kv_heads, head_dim, 0);
  const auto rotated = view(memory);
  for (Index t = 0; t < 3; ++t)
    for (Index h = 0; h < kv_heads; ++h)
      std::copy_n(x.keys(3).at(0, t < 2 ? t : 0, h), head_dim, rotated.at(0, t, h));
  rotate<half_split>(rotated.token_range(2, 1), text, 2);
  unrotate<half_split>(rotated, text);
  rotate<half_split>(rotated, longer);
  const auto rebased = cache.keys(0);
  // Four rotations of pairs shorter than 1.5.
  CHECK(testing::largest_difference(rotated, rebased) <= 4 * tolerance::rotation_bound<float>(1.5L));
}
