// SPDX-License-Identifier: MIT
#include <rope/cache/growing_cache.hpp>

#include <cstdint>
#include <limits>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

using rope::Index;
using testing::throws_saying;

namespace {

constexpr Index batch = 3, capacity = 8, dim = 4;

/// Token t of row b is 100 b + t in every channel.
rope::head_view<float> numbered(std::vector<float>& memory, Index tokens) {
  memory.resize(static_cast<std::size_t>(batch * tokens * dim));
  const auto x = rope::bshd(memory.data(), batch, tokens, 1, dim);
  for (Index b = 0; b < batch; ++b)
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < dim; ++c) x.at(b, t, 0)[c] = static_cast<float>(100 * b + t);
  return x;
}

template <class Cache>
Cache empty_cache(rope::key_storage storage) {
  if constexpr (std::is_same_v<Cache, rope::kv_cache<float>>)
    return Cache(batch, capacity, 1, dim, dim, storage);
  else
    return Cache(batch, capacity, dim, dim, storage);
}

template <class Cache>
const std::string name_of =
    std::is_same_v<Cache, rope::kv_cache<float>> ? "rope::kv_cache" : "rope::latent_cache";

std::vector<std::int64_t> list(std::span<const std::int64_t> x) { return {x.begin(), x.end()}; }

}  // namespace

TEMPLATE_TEST_CASE("every growing cache drops, moves and copies tokens in the same way",
                   "[cache][growing_cache]", rope::kv_cache<float>, rope::latent_cache<float>) {
  std::vector<float> memory;
  const auto x = numbered(memory, 6);
  auto cache = empty_cache<TestType>(rope::key_storage::raw);
  CHECK(cache.capacity() == capacity);
  CHECK(cache.storage() == rope::key_storage::raw);
  cache.append(x, x);
  CHECK(cache.size() == 6);

  cache.truncate(5);
  cache.remove(1, 2, rope::batch_row{2});
  CHECK(cache.size(0) == 5);
  CHECK(list(cache.positions(2)) == std::vector<std::int64_t>{0, 3, 4});
  cache.shift(1, 2, -2, rope::batch_row{2});
  CHECK(list(cache.positions(2)) == std::vector<std::int64_t>{0, 1, 2});
  CHECK(list(cache.next_positions()) == std::vector<std::int64_t>{5, 5, 3});
  CHECK(*cache.keys(2).at(0, 1, 0) == 203);
  CHECK(cache.ordered(2).counted == 3);

  const TestType before = cache;
  const int rows[] = {2, 0, 1};
  cache.reorder(rows);
  cache.copy_row(0, 1);
  CHECK(cache.size(1) == 3);
  CHECK(*cache.values(1).at(0, 2, 0) == 204);
  CHECK(*cache.values(2).at(0, 4, 0) == 104);

  cache = before;
  CHECK(list(cache.next_positions()) == std::vector<std::int64_t>{5, 5, 3});
  TestType moved = std::move(cache);
  CHECK(moved.size(0) == 5);
  moved.clear();
  CHECK(moved.size() == 0);
  CHECK(before.size(1) == 5);
}

TEMPLATE_TEST_CASE("invalid rows, ranges and shifts throw with the name of the cache, and nothing changes",
                   "[cache][growing_cache]", rope::kv_cache<float>, rope::latent_cache<float>) {
  std::vector<float> memory;
  const auto x = numbered(memory, 5);
  const rope::frequency_table<float> table(rope::frequencies(dim), 8), other(rope::frequencies(dim, 5e5), 8),
      no_positions(rope::frequencies(dim), Eigen::ArrayXd::Zero(8));
  auto raw = empty_cache<TestType>(rope::key_storage::raw),
       rotated = empty_cache<TestType>(rope::key_storage::rotated), given = rotated, uneven = rotated;
  raw.append(x, x);
  given.append(x, x);
  rotated.template append<rope::half_split>(x, x, table);
  uneven.template append<rope::half_split>(x, x, table, std::vector<int>{5, 4, 5});
  const auto rejected = [&]<class E>(E, TestType& cache, const std::string& text, const auto& call) {
    const TestType before = cache;
    CHECK(throws_saying<E>([&] { call(cache); }, name_of<TestType> + text));
    for (Index b = 0; b < batch; ++b) {
      CHECK(testing::same_heads(cache.keys(b), before.keys(b)));
      CHECK(testing::same_heads(cache.values(b), before.values(b)));
      CHECK(list(cache.positions(b)) == list(before.positions(b)));
    }
    CHECK(list(cache.next_positions()) == list(before.next_positions()));
  };
  const std::out_of_range range("");
  const std::invalid_argument invalid("");
  const auto row = [](Index b) { return rope::batch_row{b}; };
  rejected(range, raw, "::remove: first 2 and count 4 must stay inside the 5 tokens that are held",
           [](auto& c) { c.remove(2, 4); });
  rejected(range, raw, "::remove: first -1 and count 3 must stay", [](auto& c) { c.remove(-1, 3); });
  rejected(range, raw, "::remove: first 3 and count -1 must stay", [](auto& c) { c.remove(3, -1); });
  rejected(range, raw, "::shift: first 0 and count 6 must stay", [](auto& c) { c.shift(0, 6, 1); });
  rejected(range, raw, "::shift: first 4 and count 3 must stay", [](auto& c) { c.shift(4, 3, 1); });
  rejected(range, rotated, "::shift: first 2 and count 4 must stay",
           [&](auto& c) { c.template shift<rope::half_split>(2, 4, 1, table); });
  rejected(range, raw, "::truncate: size must be in [0, 5], got 6", [](auto& c) { c.truncate(6); });
  rejected(range, raw, "::truncate: size must be in [0, 5], got -1",
           [&](auto& c) { c.truncate(-1, row(1)); });
  for (const Index b : {Index{-2}, Index{-1}, batch}) {
    const std::string got = ": row must be in [0, 3), got " + std::to_string(b);
    rejected(range, raw, "::remove" + got, [&](auto& c) { c.remove(0, 1, row(b)); });
    rejected(range, raw, "::shift" + got, [&](auto& c) { c.shift(0, 1, 1, row(b)); });
    rejected(range, raw, "::truncate" + got, [&](auto& c) { c.truncate(0, row(b)); });
    rejected(range, raw, "::size" + got, [&](auto& c) { (void)c.size(b); });
    rejected(range, raw, "::positions" + got, [&](auto& c) { (void)c.positions(b); });
    rejected(range, raw, "::ordered" + got, [&](auto& c) { (void)c.ordered(b); });
    rejected(range, raw, "::keys" + got, [&](auto& c) { (void)c.keys(b); });
    rejected(range, raw, "::values" + got, [&](auto& c) { (void)c.values(b); });
  }
  const std::string differ = ": every row must have the same size, got 5 and 4";
  rejected(invalid, uneven, "::size" + differ, [](auto& c) { (void)c.size(); });
  rejected(invalid, uneven, "::keys" + differ, [](auto& c) { (void)c.keys(); });
  rejected(invalid, uneven, "::values" + differ, [](auto& c) { (void)c.values(); });
  rejected(invalid, uneven, "::truncate" + differ, [](auto& c) { c.truncate(2); });
  rejected(invalid, uneven, "::remove" + differ, [](auto& c) { c.remove(0, 1); });
  rejected(invalid, uneven, "::shift" + differ,
           [&](auto& c) { c.template shift<rope::half_split>(0, 1, 1, table); });
  for (TestType* of : {&rotated, &given})
    rejected(invalid, *of, "::shift: pass the layout and the table to shift rotated keys",
             [](auto& c) { c.shift(0, 1, 1); });
  rejected(invalid, rotated, ": give the layout and the table that the keys were rotated by",
           [&](auto& c) { c.template check_table<rope::half_split>(other); });
  rejected(invalid, rotated, "::rebase: the angle must be position * inv_freq",
           [&](auto& c) { c.template rebase<rope::half_split>(table, no_positions); });
  rejected(invalid, raw, "::rebase: raw keys are stored unrotated",
           [&](auto& c) { c.template rebase<rope::half_split>(table, table); });
  CHECK_NOTHROW(raw.template check_table<rope::half_split>(table));
  rejected(invalid, raw,
           "::append: raw keys are rotated when they are read; append them without a layout and table",
           [&, one = x.token_range(0, 1)](auto& c) { c.template append<rope::half_split>(one, one, table); });

  const std::int64_t limit = std::int64_t{1} << 53;
  for (const std::int64_t delta : {limit - 3, (std::numeric_limits<std::int64_t>::max)(), -limit - 1,
                                   (std::numeric_limits<std::int64_t>::min)()}) {
    rejected(range, raw, "::shift: positions must stay within 2^53 in magnitude, got ",
             [&](auto& c) { c.shift(0, 5, delta); });
    rejected(range, rotated, "::shift: positions must stay within 2^53 in magnitude, got ",
             [&](auto& c) { c.template shift<rope::half_split>(0, 5, delta, table); });
  }
  for (const std::int64_t delta : {-limit, limit - 4}) {
    auto far = raw;
    far.shift(0, 5, delta);
    CHECK(far.positions(0)[4] == 4 + delta);
    CHECK(far.next_positions()[1] == 5 + delta);
  }
}

// A cache keeps track of the order of its positions, so that attention can treat them as ranges without
// reading each one. After any calls this agrees with the positions themselves.

using namespace rope;

namespace {

void check_order(const kv_cache<float>& cache) {
  for (Index b = 0; b < cache.batch(); ++b) {
    const auto positions = cache.positions(b);
    std::size_t counted = 0, ascending = positions.empty() ? 0 : 1;
    while (counted < positions.size() && positions[counted] == static_cast<std::int64_t>(counted)) ++counted;
    while (ascending > 0 && ascending < positions.size() && positions[ascending] >= positions[ascending - 1])
      ++ascending;
    CHECK(cache.ordered(b).counted == static_cast<Index>(counted));
    CHECK(cache.ordered(b).ascending == static_cast<Index>(ascending));
  }
}

}  // namespace

TEST_CASE("a cache knows how far its positions count up and ascend after any calls", "[cache]") {
  testing::random random(11);
  const std::vector<float> data(3 * 4 * 4, 1.f);
  kv_cache<float> cache(3, 24, 1, 4, 4, key_storage::raw);  // keys that no position rotates
  const auto fits = [&](Index count) {
    for (Index b = 0; b < 3; ++b)
      if (cache.size(b) + count > cache.capacity()) return false;
    return true;
  };
  for (int step = 0; step < 3000; ++step) {
    CAPTURE(step);
    const auto tokens = static_cast<Index>(random.integer(0, 4));
    const auto x = bshd(data.data(), 3, tokens, 1, 4);
    const auto row = static_cast<Index>(random.integer(0, 2));
    const Index size = cache.size(row);
    const auto first = static_cast<Index>(random.integer(0, size));
    const auto count = static_cast<Index>(random.integer(0, size - first));
    switch (random.integer(0, 9)) {
      case 0:
      case 1:
      case 2:
        if (fits(tokens)) cache.append(x, x);
        break;
      case 3:
      case 4:
        if (fits(tokens)) {
          std::vector<std::int64_t> positions;
          for (Index t = 0; t < 3 * tokens; ++t)
            positions.push_back(random.integer(0, 3) + cache.size(t / tokens) + t % tokens);
          cache.append_at(x, x, positions);
        }
        break;
      case 5:
        cache.truncate(first, batch_row{row});
        break;
      case 6:
        cache.remove(first, count, batch_row{row});
        break;
      case 7:
        cache.shift(first, count, random.integer(-3, 3), batch_row{row});
        break;
      case 8: {
        const Index parents[] = {static_cast<Index>(random.integer(0, 2)),
                                 static_cast<Index>(random.integer(0, 2)),
                                 static_cast<Index>(random.integer(0, 2))};
        random.integer(0, 1) == 0 ? cache.reorder(parents) : cache.copy_row(parents[0], parents[1]);
        break;
      }
      default:
        if (random.integer(0, 7) == 0) cache.clear();
    }
    check_order(cache);
  }
}
