// SPDX-License-Identifier: MIT
#include <rope/cache/policy.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/rotation/rotate.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;

namespace {

/// Half split under another name, and with the two channels of one pair exchanged.
struct same_pairs {
  static constexpr Index first(Index i, Index) { return i; }
  static constexpr Index second(Index i, Index pairs) { return i + pairs; }
};
struct one_exchanged {
  static constexpr Index first(Index i, Index pairs) { return i == 1 ? i + pairs : i; }
  static constexpr Index second(Index i, Index pairs) { return i == 1 ? i : i + pairs; }
};

/// Any layout of 3 pairs.
struct listed {
  static inline std::array<Index, 6> channels = {};
  static Index first(Index i, Index) { return channels[static_cast<std::size_t>(2 * i)]; }
  static Index second(Index i, Index) { return channels[static_cast<std::size_t>(2 * i + 1)]; }
};

}  // namespace

TEST_CASE("a cache compares layouts by the channels they pair, not by name", "[cache]") {
  const std::vector<float> memory = testing::random_channels<float>(3 * 2 * 8, 12);
  const head_view<const float> k = bshd(memory.data(), 1, 3, 2, 8);
  const frequency_table<> table(frequencies(6), 8);
  kv_cache<float> cache(1, 9, 2, 8);
  cache.append<half_split>(k, k, table);
  CHECK_NOTHROW(cache.append<same_pairs>(k, k, table));
  CHECK_NOTHROW(cache.check_table<half_split>(table));
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { cache.append<interleaved>(k, k, table); }, [&] { cache.append<one_exchanged>(k, k, table); },
           [&] { cache.check_table<interleaved>(table); }})
    CHECK(testing::throws_saying<std::invalid_argument>(call, "got the right table in another layout"));

  // All 720 layouts of 3 pairs have different hashes.
  std::array<Index, 6> channels = {0, 1, 2, 3, 4, 5};
  std::set<std::uint64_t> known;
  int layouts = 0;
  do {
    listed::channels = channels;
    known.insert(detail::layout_fingerprint<listed>(3));
    ++layouts;
  } while (std::next_permutation(channels.begin(), channels.end()));
  CHECK(known.size() == 720);
  CHECK(layouts == 720);
  CHECK(known.count(detail::layout_fingerprint<half_split>(3)) == 1);
  CHECK(known.count(detail::layout_fingerprint<interleaved>(3)) == 1);
  // With a single pair, both layouts of the library are equal.
  CHECK(detail::layout_fingerprint<half_split>(1) == detail::layout_fingerprint<interleaved>(1));
  CHECK(detail::layout_fingerprint<same_pairs>(1) == detail::layout_fingerprint<interleaved>(1));
}

TEST_CASE("raw storage keeps keys unrotated, rotated storage keeps them rotated", "[cache]") {
  const std::vector<float> memory = testing::random_channels<float>(3 * 2 * 4, 11);
  const head_view<const float> k = bshd(memory.data(), 1, 3, 2, 4);
  const frequency_table<> table(frequencies(4), 8);
  std::vector<float> rotated_k = memory;
  rotate<half_split>(bshd(rotated_k.data(), 1, 3, 2, 4), table);

  kv_cache<float> raw(1, 4, 2, 4, 0, key_storage::raw), rotated(1, 4, 2, 4);
  raw.append(k, k);
  rotated.append<half_split>(k, k, table);
  CHECK(testing::same_heads(raw.keys(), k));
  CHECK(testing::same_heads(rotated.keys(), bshd(rotated_k.data(), 1, 3, 2, 4)));
  CHECK(raw.storage() == key_storage::raw);
  CHECK(rotated.storage() == key_storage::rotated);

  ring_cache<float> raw_ring(1, {.window = 4}, 2, 4, 0, key_storage::raw),
      rotated_ring(1, {.window = 4}, 2, 4);
  raw_ring.append(k, k);
  rotated_ring.append<half_split>(k, k, table);
  CHECK(testing::same_heads(raw_ring.keys(0), k));
  CHECK(testing::same_heads(rotated_ring.keys(0), bshd(rotated_k.data(), 1, 3, 2, 4)));
}

TEST_CASE("one row changes alone, and every_row changes all", "[cache]") {
  const std::vector<float> memory(2 * 5 * 4);
  kv_cache<float> cache(2, 5, 1, 4);
  cache.append(bshd(memory.data(), 2, 5, 1, 4), bshd(memory.data(), 2, 5, 1, 4));
  cache.truncate(4, every_row);
  CHECK(cache.size(0) == 4);
  CHECK(cache.size(1) == 4);
  cache.truncate(2, batch_row{1});
  CHECK(cache.size(0) == 4);
  CHECK(cache.size(1) == 2);
}

TEST_CASE("an invalid row never means every row", "[cache]") {
  const std::vector<float> memory(2 * 5 * 4);
  const auto k = bshd(memory.data(), 2, 5, 1, 4);
  kv_cache<float> cache(2, 5, 1, 4, 0, key_storage::raw), rotated(2, 5, 1, 4);
  ring_cache<float> ring(2, {.window = 5}, 1, 4);
  const frequency_table<> table(frequencies(4), 100);
  cache.append(k, k);
  rotated.append<half_split>(k, k, table);
  ring.append(k, k);
  using limits = std::numeric_limits<Index>;
  for (const Index wrong : {Index{-1}, Index{-2}, Index{2}, (limits::min)(), (limits::max)()}) {
    CAPTURE(wrong);
    const auto rejected = [&](const auto& call) {
      CHECK(testing::throws_saying<std::out_of_range>(call, "row must be in [0, 2), got ",
                                                      std::to_string(wrong)));
    };
    const batch_row row = {wrong};
    rejected([&] { cache.truncate(1, row); });
    rejected([&] { cache.truncate(1, batch_row{wrong}); });
    rejected([&] { cache.remove(0, 1, row); });
    rejected([&] { cache.shift(0, 1, 3, row); });
    rejected([&] { rotated.shift<half_split>(0, 1, 3, table, row); });
    rejected([&] { ring.truncate(4, row); });
    rejected([&] { (void)cache.size(wrong); });
    rejected([&] { (void)cache.positions(wrong); });
    rejected([&] { (void)cache.keys(wrong); });
    rejected([&] { (void)cache.values(wrong); });
    rejected([&] { (void)ring.size(wrong); });
    rejected([&] { (void)ring.positions(wrong); });
    rejected([&] { (void)ring.keys(wrong); });
    rejected([&] { (void)ring.values(wrong); });
    rejected([&] { (void)ring.holds_window(wrong, 0); });
  }
  for (const Index b : {0, 1}) {
    CHECK(cache.size(b) == 5);
    CHECK(ring.size(b) == 5);
    CHECK(cache.positions(b)[0] == 0);
    CHECK(rotated.positions(b)[0] == 0);
  }
  for (const std::int64_t wrong : {std::int64_t{-1}, (std::numeric_limits<std::int64_t>::min)()}) {
    const auto rejected = [&](const auto& call) {
      CHECK(testing::throws_saying<std::out_of_range>(
          call, "position in a sequence must not be negative, got ", std::to_string(wrong)));
    };
    rejected([&] { (void)ring.holds_window(0, wrong); });
    rejected([&] { (void)ring.slot(wrong); });
  }
  CHECK(ring.holds_window(0, (std::numeric_limits<std::int64_t>::max)()));
}
