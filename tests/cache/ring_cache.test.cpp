// SPDX-License-Identifier: MIT
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

/// Tokens [first, first + count) of two rows with one head of two channels: token i of row b has the key
/// (100 b + i, -i) and the value 1000 + its key.
struct numbered {
  Index count;
  std::vector<float> k, v;

  numbered(std::int64_t first, Index tokens) : count(tokens) {
    for (int b = 0; b < 2; ++b)
      for (Index t = 0; t < tokens; ++t) {
        const auto i = static_cast<float>(first + t);
        k.insert(k.end(), {static_cast<float>(100 * b) + i, -i});
        v.insert(v.end(), {static_cast<float>(1000 + 100 * b) + i, 1000 - i});
      }
  }
  head_view<const float> keys() const { return bshd(k.data(), 2, count, 1, 2); }
  head_view<const float> values() const { return bshd(v.data(), 2, count, 1, 2); }
};

/// The positions in a row, in order, each with the channels of its token in its slot.
std::vector<std::int64_t> held(const ring_cache<float>& cache, Index b) {
  std::vector<std::int64_t> result;
  const auto positions = cache.positions(b);
  const auto keys = cache.keys(b), values = cache.values(b);
  CHECK(keys.tokens == static_cast<Index>(positions.size()));
  for (std::size_t s = 0; s < positions.size(); ++s) {
    if (positions[s] == ring_cache<float>::no_position) continue;
    result.push_back(positions[s]);
    const auto i = static_cast<float>(positions[s]);
    const float *k = keys.at(0, static_cast<Index>(s), 0), *v = values.at(0, static_cast<Index>(s), 0);
    CHECK((k[0] == static_cast<float>(100 * b) + i && k[1] == -i));
    CHECK((v[0] == static_cast<float>(1000 + 100 * b) + i && v[1] == 1000 - i));
    CHECK(cache.slot(positions[s]) == static_cast<Index>(s));
  }
  std::sort(result.begin(), result.end());
  CHECK(cache.size(b) == static_cast<Index>(result.size()));
  return result;
}

using positions = std::vector<std::int64_t>;

/// The first `sinks` of n tokens, and the last `ring` of the others.
positions expected(std::int64_t n, std::int64_t sinks, std::int64_t ring) {
  positions result;
  for (std::int64_t i = 0; i < n; ++i)
    if (i < sinks || i >= n - ring) result.push_back(i);
  return result;
}

}  // namespace

TEST_CASE("a ring keeps its sinks and the newest tokens, for any pieces", "[cache]") {
  const Index sinks = GENERATE(0, 1, 3), window = GENERATE(1, 4), chunk = GENERATE(1, 3);
  const Index piece = GENERATE(1, 2, 5, 9, 40);
  CAPTURE(sinks, window, chunk, piece);
  ring_cache<float> cache(2, {.sinks = sinks, .window = window, .chunk = chunk}, 1, 2);
  CHECK(cache.capacity() == sinks + window + chunk - 1);
  const float* memory = cache.keys(0).data;
  for (std::int64_t n = 0; n < 40; n += piece) {
    const numbered tokens(n, piece);
    cache.append(tokens.keys(), tokens.values());
    CHECK(held(cache, 0) == expected(n + piece, sinks, window + chunk - 1));
    CHECK(held(cache, 1) == expected(n + piece, sinks, window + chunk - 1));
    CHECK(cache.next_positions()[1] == n + piece);
  }
  CHECK(cache.keys(0).data == memory);
  cache.clear();
  CHECK(held(cache, 0).empty());
  const numbered again(0, 2);
  cache.append(again.keys(), again.values());
  CHECK(held(cache, 1) == expected(2, sinks, window + chunk - 1));
}

TEST_CASE("rows of a ring advance independently", "[cache]") {
  ring_cache<float> cache(2, {.sinks = 1, .window = 3}, 1, 2);
  const numbered five(0, 5);
  cache.append(five.keys(), five.values(), std::vector<Index>{5, 2});
  CHECK(held(cache, 0) == positions{0, 2, 3, 4});
  CHECK(held(cache, 1) == positions{0, 1});
  CHECK(cache.next_positions()[0] == 5);
  CHECK(cache.next_positions()[1] == 2);
  const numbered more(2, 4);
  cache.append(more.keys(), more.values(), std::vector<Index>{0, 4});
  CHECK(held(cache, 0) == positions{0, 2, 3, 4});
  CHECK(held(cache, 1) == positions{0, 3, 4, 5});
}

TEST_CASE("a rollback hides tokens, and only as many as leave the next query its window", "[cache]") {
  ring_cache<float> cache(2, {.sinks = 2, .window = 3, .chunk = 3}, 1, 2);
  const numbered ten(0, 10);
  cache.append(ten.keys(), ten.values());
  CHECK(held(cache, 0) == positions{0, 1, 5, 6, 7, 8, 9});
  CHECK(
      throws_saying<std::out_of_range>([&] { cache.truncate(6); },
                                       "rope::ring_cache::truncate: tokens before 5 were overwritten and the "
                                       "window of token 6 needs them"));
  CHECK(throws_saying<std::out_of_range>([&] { cache.truncate(11); },
                                         "rope::ring_cache::truncate: size must be in [0, 10], got 11"));
  CHECK(throws_saying<std::out_of_range>([&] { cache.truncate(-1, batch_row{1}); },
                                         "rope::ring_cache::truncate: size must be in [0, 10], got -1"));
  CHECK(throws_saying<std::out_of_range>([&] { cache.truncate(9, batch_row{2}); },
                                         "rope::ring_cache::truncate: row must be in [0, 2), got 2"));
  CHECK(held(cache, 0) == positions{0, 1, 5, 6, 7, 8, 9});
  cache.truncate(7, batch_row{0});
  CHECK(held(cache, 0) == positions{0, 1, 5, 6});
  CHECK(held(cache, 1) == positions{0, 1, 5, 6, 7, 8, 9});
  CHECK(cache.next_positions()[0] == 7);
  // Overwritten tokens stay lost.
  CHECK_THROWS_AS(cache.truncate(6, batch_row{0}), std::out_of_range);
  const numbered more(7, 1);
  cache.append(more.keys(), more.values(), std::vector<Index>{1, 0});
  CHECK(held(cache, 0) == positions{0, 1, 5, 6, 7});
  // The sinks alone need no window.
  cache.truncate(1, batch_row{0});
  CHECK(held(cache, 0) == positions{0});
  cache.truncate(0);
  CHECK(held(cache, 0).empty());
  CHECK(held(cache, 1).empty());
  const numbered twelve(0, 12);
  cache.append(twelve.keys(), twelve.values());
  CHECK(held(cache, 1) == positions{0, 1, 7, 8, 9, 10, 11});
}

TEST_CASE("invalid extents of a ring throw", "[cache]") {
  const auto rejected = [](const ring_policy& policy, key_storage storage, const std::string& text) {
    CHECK(
        throws_saying<std::invalid_argument>([&] { ring_cache<float>(1, policy, 1, 2, 0, storage); }, text));
  };
  constexpr Index huge = (std::numeric_limits<Index>::max)() / 2;
  for (const ring_policy& policy :
       {ring_policy{.sinks = -1, .window = 3}, ring_policy{.window = 0}, ring_policy{.window = -4},
        ring_policy{.window = 3, .chunk = 0}, ring_policy{.sinks = huge, .window = 3},
        ring_policy{.window = huge}, ring_policy{.window = 3, .chunk = huge}}) {
    const std::string got = std::to_string(policy.sinks) + ", " + std::to_string(policy.window) + " and " +
                            std::to_string(policy.chunk);
    rejected(policy, key_storage::raw,
             "rope::ring_cache: sinks must not be negative, window and chunk be positive, none above a "
             "quarter of the largest Index, got " +
                 got);
  }
  rejected({.window = 3, .positions = ring_positions::cache}, key_storage::rotated,
           "rope::ring_cache: positions in the cache change with every token and need raw keys");
  CHECK(throws_saying<std::invalid_argument>(
      [] { ring_cache<float>(1, {.window = 3}, -1, 2); },
      "rope::ring_cache: extents must not be negative, got [1, 3, -1, 2]"));
  CHECK_THROWS_AS(ring_cache<float>(-1, {.window = 3}, 1, 2), std::invalid_argument);
  CHECK_THROWS_AS(ring_cache<float>(1 << 20, {.window = 1 << 28}, 1 << 20, 128), std::length_error);
}

TEST_CASE("tokens that do not fit a ring throw and it does not change", "[cache]") {
  const frequency_table<> table(frequencies(2), 40), other(frequencies::pixel(2), 40);
  const numbered three(0, 3);
  ring_cache<float> raw(2, {.sinks = 1, .window = 3}, 1, 2, 0, key_storage::raw);
  ring_cache<float> rotated(2, {.sinks = 1, .window = 3}, 1, 2), given(2, {.sinks = 1, .window = 3}, 1, 2);
  raw.append(three.keys(), three.values());
  rotated.append<interleaved>(three.keys(), three.values(), table);
  given.append(three.keys(), three.values());
  const auto rejects = [&]<class E>(E, ring_cache<float>& cache, const std::string& text, const auto& call) {
    const ring_cache<float> before = cache;
    CHECK(throws_saying<E>(call, "rope::" + text));
    for (Index b = 0; b < 2; ++b) {
      CHECK(testing::same_heads(cache.keys(b), before.keys(b)));
      CHECK(testing::same_heads(cache.values(b), before.values(b)));
      CHECK(cache.next_positions()[static_cast<std::size_t>(b)] == 3);
    }
  };
  const std::invalid_argument invalid("");
  const auto k = three.keys(), v = three.values();
  const auto short_v = v.token_range(0, 2);
  rejects(invalid, raw, "ring_cache::append: k and v must have the same tokens, got 3 and 2",
          [&] { raw.append(k, short_v); });
  rejects(invalid, raw, "ring_cache::append: k must be [2, tokens, 1, 2], got [2, 3, 1, 1]",
          [&] { raw.append(k.channels(0, 1), v); });
  rejects(invalid, raw, "ring_cache::append: v must be [2, tokens, 1, 2], got [2, 3, 1, 1]",
          [&] { raw.append(k, v.channels(0, 1)); });
  rejects(invalid, raw, "ring_cache::append: counts must be in [0, tokens] = [0, 3], got 4", [&] {
    raw.append(k, v, std::vector<Index>{1, 4});
  });
  rejects(invalid, raw, "ring_cache::append: raw keys are rotated when they are read",
          [&] { raw.append<interleaved>(k, v, table); });
  rejects(invalid, rotated, "ring_cache::append: this cache rotates its keys, give the layout and the table",
          [&] { rotated.append(k, v); });
  const char* mixed = "ring_cache: give the layout and the table that the keys were rotated by, got ";
  rejects(invalid, rotated, mixed, [&] { rotated.append<interleaved>(k, v, other); });
  rejects(invalid, given, mixed, [&] { given.append<half_split>(k, v, table); });
  rejects(std::out_of_range(""), rotated, "ring_cache::append: position 5 is outside the table's [0, 5)",
          [&] { rotated.append<interleaved>(k, v, frequency_table<>(frequencies(2), 5)); });
  // The only pair of two channels is the same in both layouts. With four channels, the pairs differ.
  const std::vector<float> four(2 * 3 * 4, 1.0f);
  const auto heads = bshd(four.data(), 2, 3, 1, 4);
  const frequency_table<> table_of_four(frequencies(4), 40);
  ring_cache<float> two_pairs(2, {.sinks = 1, .window = 3}, 1, 4);
  two_pairs.append<interleaved>(heads, heads, table_of_four);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { two_pairs.append<half_split>(heads, heads, table_of_four); }, std::string("rope::") + mixed));
  CHECK(throws_saying<std::out_of_range>([&] { raw.size(2); },
                                         "rope::ring_cache::size: row must be in [0, 2), got 2"));
  CHECK_THROWS_AS(raw.positions(-1), std::out_of_range);
  // An index so large that reading anything of such a row is a memory error.
  for (const rope::Index none : {rope::Index{-1}, rope::Index{2}, rope::Index{1} << 40})
    CHECK_THROWS_AS(raw.coordinates(none), std::out_of_range);
  CHECK_THROWS_AS(raw.keys(2), std::out_of_range);
  CHECK_THROWS_AS(raw.values(2), std::out_of_range);
  rotated.clear();
  rotated.append<half_split>(k, v, other);
  rotated.check_table<half_split>(other);
  CHECK(throws_saying<std::invalid_argument>([&] { rotated.check_table<half_split>(table); }, mixed));
}

TEST_CASE("a ring rotates a key by its position in the sequence, not by its slot", "[cache]") {
  const frequency_table<> table(frequencies(2, 50.0), 40);
  ring_cache<float> cache(2, {.sinks = 1, .window = 3}, 1, 2);
  std::vector<float> rotated_keys;
  for (std::int64_t n = 0; n < 9; n += 3) {
    const numbered tokens(n, 3);
    cache.append<interleaved>(tokens.keys(), tokens.values(), table);
  }
  for (const std::int64_t i : {0, 6, 7, 8}) {
    numbered one(i, 1);
    rotate<interleaved>(bshd(one.k.data(), 2, 1, 1, 2), table, i);
    for (Index b = 0; b < 2; ++b)
      CHECK(testing::same_bits(cache.keys(b).at(0, cache.slot(i), 0), one.keys().at(b, 0, 0), 2));
  }
}
