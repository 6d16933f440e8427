// SPDX-License-Identifier: MIT
// A kv_cache whose tokens are at positions that the caller gives: attention uses these positions in any
// order.
#include <rope/cache/kv_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/cache/attention.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/cache_history.hpp"
#include "support/catch.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

namespace {

using namespace rope;
using namespace decoder_step;
using testing::throws_saying;

template <class Layout, class T, class C>
void check_history(key_storage storage) {
  cache_history<Layout, T, C> d(88, 4, storage, plain);
  d.append_at(positions{9, 3, 3, -7, 40, 2, 100, 1}, {{9, 3, 3, -7}, {40, 2, 100, 1}});  // in any order
  d.append({2, 2});                                                                      // 41, 42; 101, 102
  d.append_at(std::vector<int>{5, -1}, {{5, -1}, {5, -1}}, 6);  // [tokens], shared by the rows, in a gap
  d.append_at(row_starts{std::vector<int>{60, 7}}, {{60, 61, 62}, {7, 8, 9}});
  d.append_at(-20, {{-20, -19}, {-20}});  // counts: row 1 takes one of two
  d.append_at(std::vector<unsigned>{4, 7, 9, 5}, {{4}, {9, 5}});
  d.append_at(positions{0}, {{0}, {0}}, 3);
  for (const std::size_t b : {0u, 1u}) d.truncate(b, 10);
  d.append({1, 1});
  for (const std::size_t b : {0u, 1u}) d.remove(b, 1, 6);
  d.append_at(positions{30, 6}, {{30}, {6}});
  d.shift(1, 2, 5, -3);
  d.append({2, 2});
  for (const std::size_t b : {0u, 1u}) d.truncate(b, 0);
  d.append_at(positions{-9, -30}, {{-9}, {-30}});
  d.append({3, 3});  // -8, -7, -6; -29, ...
}

}  // namespace

TEMPLATE_TEST_CASE("attention to a cache uses the positions at which its tokens were appended", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<float, Eigen::bfloat16>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    check_history<half_split, T, C>(storage);
    check_history<interleaved, T, C>(storage);
  }
}

TEST_CASE("keys at explicit positions have the bits of keys at equal default positions", "[cache]") {
  const std::vector<float> k = testing::random_channels<float>(2 * 9 * 2 * 8, 5);
  const frequency_table<> table(plain, 40);
  const auto keys = bshd(k.data(), 2, 9, 2, 8);
  kv_cache<float> following(2, 12, 2, 8), listed(2, 12, 2, 8), started(2, 12, 2, 8), by_rows(2, 12, 2, 8);
  for (const auto& [first, count] : {std::pair<Index, Index>{0, 4}, {4, 1}, {5, 4}}) {
    const auto now = keys.token_range(first, count);
    following.append<half_split>(now, now, table);
    positions ids;
    for (Index i = 0; i < count; ++i) ids.push_back(first + i);
    listed.append_at<half_split>(now, now, table, ids);
    started.append_at<half_split>(now, now, table, first);
    by_rows.append_at<half_split>(now, now, table, row_starts{by_rows.next_positions()});
  }
  for (const kv_cache<float>* other : {&listed, &started, &by_rows})
    for (Index b = 0; b < 2; ++b)
      for (Index t = 0; t < 9; ++t) {
        CHECK(other->positions(b)[static_cast<std::size_t>(t)] == t);
        for (Index h = 0; h < 2; ++h)
          CHECK(std::equal(following.keys().at(b, t, h), following.keys().at(b, t, h) + 8,
                           other->keys().at(b, t, h)));
      }
  // A cache that got its table from `append` accepts `append_at`, and the reverse.
  CHECK_NOTHROW(following.append_at<half_split>(keys.token_range(0, 1), keys.token_range(0, 1), table, 3));
  CHECK_NOTHROW(listed.append<half_split>(keys.token_range(0, 1), keys.token_range(0, 1), table));
}

TEST_CASE("left padding is hidden by a mask", "[cache]") {
  // Row 1 has two padding tokens. Its tokens are at positions 0, 1, ... like those of row 0.
  const Index queries = 2, keys = 6;
  const std::vector<double> k = testing::random_channels<double>(2 * keys * 2 * 8, 6),
                            q = testing::random_channels<double>(2 * queries * 4 * 8, 7);
  const frequency_table<double> table(plain, 40);
  const auto all = bshd(k.data(), 2, keys, 2, 8);
  const auto asked = bshd(q.data(), 2, queries, 4, 8);
  kv_cache<double> padded(2, keys, 2, 8);
  padded.append_at<half_split>(all, all, table, positions{0, 1, 2, 3, 4, 5, 0, 0, 0, 1, 2, 3});
  bool visible[12];
  for (int j = 0; j < 12; ++j) visible[j] = j != 6 && j != 7;
  std::vector<double> out(q.size()), expected(q.size());
  attention<half_split>(asked, padded, bshd(out.data(), 2, queries, 4, 8), table,
                        {.mask = score_matrix(visible, 2, 1, 1, keys)});
  for (const Index b : {0, 1}) {
    auto row_k = all, row_q = asked;
    auto row_out = bshd(expected.data(), 2, queries, 4, 8);
    row_k.data = all.at(b, 0, 0), row_q.data = asked.at(b, 0, 0), row_out.data = row_out.at(b, 0, 0);
    row_k.batch = row_q.batch = row_out.batch = 1;
    const auto real = row_k.token_range(2 * b, keys - 2 * b);
    kv_cache<double> alone(1, keys, 2, 8);
    alone.append<half_split>(real, real, table);
    attention<half_split>(row_q, alone, row_out, table);
  }
  // Channels below 4: scores below 128 / sqrt(8), and the order of sums may differ.
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - expected[i]) <= 0x1p-53 * 4 * 4 * 128);
}

TEST_CASE("invalid positions throw and nothing is written", "[cache]") {
  const std::vector<float> ones(2 * 3 * 2 * 8, 1.0f), twos(ones.size(), 2.0f);
  const auto old = bshd(ones.data(), 2, 3, 2, 8), added = bshd(twos.data(), 2, 3, 2, 8);
  const frequency_table<> table(plain, 10), other(frequencies(6, 50.0), 10);
  kv_cache<float> rotated(2, 5, 2, 8), raw(2, 5, 2, 8, 0, key_storage::raw);
  rotated.append<half_split>(old, old, table);
  raw.append(old, old);
  rotated.truncate(1);  // the slots after it contain old data, in which a write would show
  raw.truncate(1);
  const std::vector<float> before(rotated.keys().at(0, 0, 0), rotated.keys().at(0, 3, 0));
  const auto rejected = [&]<class E>(E, const std::string& text, const auto& call) {
    CHECK(throws_saying<E>(call, "rope::kv_cache" + text));
    for (const kv_cache<float>* cache : {&rotated, &raw}) {
      CHECK(cache->size() == 1);
      CHECK(cache->next_positions()[1] == 1);
    }
    CHECK(std::vector<float>(rotated.keys().at(0, 0, 0), rotated.keys().at(0, 3, 0)) == before);
  };
  const std::invalid_argument invalid("");
  const std::out_of_range range("");
  const auto at = [&](const auto& given, std::vector<Index> counts = {}) {
    return [&raw, &added, given, counts] { raw.append_at(added, added, given, counts); };
  };
  const auto appending = [&](const auto& given, std::vector<Index> counts = {}) {
    return [&, given, counts] { rotated.append_at<half_split>(added, added, table, given, counts); };
  };
  const std::int64_t limit = std::int64_t{1} << 53;
  const std::string far = "::append_at: positions must stay within 2^53 in magnitude, got ";
  rejected(range, far + "9007199254740993", at(positions{0, limit + 1, 1}));
  rejected(range, far + "-9007199254740993", at(positions{0, 1, -limit - 1}));
  rejected(range, far + "9007199254740993", at(limit - 1));
  rejected(range, far + "9223372036854775807", at((std::numeric_limits<std::int64_t>::max)()));
  rejected(range, far + "9223372036854775807", at(std::vector<std::uint64_t>{0, 1, ~std::uint64_t{0}}));
  rejected(invalid, "::append_at: ids must be [tokens] = 3 or [batch * tokens] = 6, got 4",
           at(positions{0, 1, 2, 3}));
  const std::vector<int> starts = {0, 1, 2};
  rejected(invalid, "::append_at: row_starts must be [batch] = 2, got 3", at(row_starts{starts}));
  rejected(invalid, "::append_at: counts must be in [0, tokens] = [0, 3], got 4", at(0, {4, 0}));
  rejected(std::length_error(""), "::append_at: 3 tokens do not fit into row 0, which holds 1 of 3", [&] {
    kv_cache<float> small(2, 3, 2, 8);
    small.append(old.token_range(0, 1), old.token_range(0, 1));
    small.append_at(added, added, 7);
  });
  rejected(range, "::append_at: position 10 is outside the table's [0, 10)", appending(positions{0, 9, 10}));
  rejected(range, "::append_at: position -1 is outside the table's [0, 10)",
           appending(positions{0, 1, 2, 3, 4, -1}));
  rejected(range, "::append_at: position 12 is outside the table's [0, 10)",
           appending(positions{0, 1, 2, 12, 4, 5}));
  rejected(range, "::append_at: position 10 is outside the table's [0, 10)", appending(8));
  rejected(invalid, "::append_at: this cache rotates its keys, give the layout and the table",
           [&] { rotated.append_at(added, added, 3); });
  rejected(invalid, "::append_at: raw keys are rotated when they are read",
           [&] { raw.append_at<half_split>(added, added, table, 3); });
  rejected(invalid, ": give the layout and the table that the keys were rotated by",
           [&] { rotated.append_at<half_split>(added, added, other, 3); });
  rejected(invalid, ": give the layout and the table that the keys were rotated by",
           [&] { rotated.append_at<interleaved>(added, added, table, 3); });

  // Tokens beyond the count of a row may have any position.
  appending(positions{9, limit + 1, (std::numeric_limits<std::int64_t>::min)(), 0, 1, 2}, {1, 3})();
  at(positions{-limit, limit, 0})();
  CHECK(rotated.size(0) == 2);
  CHECK(raw.next_positions()[0] == limit + 1);
  CHECK(throws_saying<std::out_of_range>(
      [&] { raw.append(added.token_range(0, 1), added.token_range(0, 1)); },
      "rope::kv_cache::append: positions must stay within 2^53 in magnitude, got 9007199254740993"));
}

TEST_CASE("positions from which a table was made throw if they are appended with it", "[cache]") {
  const std::vector<int> ids = {0, 0, 1, 2};
  const rope::frequency_table<> table(rope::frequencies(8), Eigen::Map<const Eigen::ArrayXi>(ids.data(), 4));
  const std::vector<float> x(4 * 8, 1.0f);
  const auto heads = rope::thd(x.data(), 4, 1, 8);
  rope::kv_cache<float> cache(1, 4, 1, 8);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { cache.append_at<rope::half_split>(heads, heads, table, ids); },
      "rope::kv_cache::append_at: the table was made of these ids, its row r of id number r; leave the ids "
      "out, or take a table of positions, got id 0 for row 0"));
  CHECK(cache.size(0) == 0);
  CHECK_NOTHROW(cache.append_at<rope::half_split>(heads, heads, table, std::vector{3, 2, 1, 0}));

  // Raw keys get the table when they are read.
  rope::kv_cache<float> raw(1, 4, 1, 8, 0, rope::key_storage::raw);
  raw.append_at(heads, heads, ids);
  std::vector<float> out(8, -1);
  const auto query = heads.token_range(3, 1);
  const auto result = rope::thd(out.data(), 1, 1, 8);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::attention<rope::half_split>(query, raw, result, table); },
      "rope::attention: the table was made of these ids, its row r of id number r; leave the ids out, or "
      "take "
      "a table of positions, got id 0 for row 0"));
  CHECK(out == std::vector<float>(8, -1));
  CHECK_NOTHROW(rope::attention<rope::half_split>(query, raw, result,
                                                  rope::frequency_table<>(rope::frequencies(8), 4)));
}
