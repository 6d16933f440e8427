// SPDX-License-Identifier: MIT
#include <rope/cache/policy.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/positions/multimodal_positions.hpp>
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

using testing::throws_saying;

TEST_CASE("coordinates of tokens are stored as doubles, for any type and storage order", "[cache]") {
  const auto prompt = qwen_vl_positions({text_run{2}, vision_run{1, 2, 2}});
  const token_coordinates tokens(prompt.coordinates);
  CHECK(tokens.rows() == 6);
  CHECK(tokens.axes() == 3);
  CHECK((tokens.coordinates() == prompt.coordinates.cast<double>()).all());

  Eigen::Array<float, Eigen::Dynamic, 2, Eigen::RowMajor> real(2, 2);
  real << 0.5f, -1.25f, 3.0f, 0.0f;
  CHECK((token_coordinates(real).coordinates() == real.cast<double>()).all());
  CHECK(token_coordinates(real.col(1)).axes() == 1);
  CHECK(token_coordinates(2 * real).coordinates()(0, 1) == -2.5);
  constexpr std::int64_t most = std::int64_t{1} << 53;
  CHECK(token_coordinates(Eigen::Array<std::int64_t, 1, 2>(most, -most)).coordinates()(0, 1) == -0x1p53);
}

TEST_CASE("invalid coordinates of tokens throw", "[cache]") {
  const char* rule =
      "rope::token_coordinates: a coordinate must be finite and at most 2^53 in magnitude, got ";
  constexpr std::int64_t beyond = (std::int64_t{1} << 53) + 1;
  const auto rejected = [&](const auto& x, const char* value) {
    CHECK(throws_saying<std::invalid_argument>([&] { token_coordinates{x}; }, rule, value));
  };
  Eigen::ArrayXXd real = Eigen::ArrayXXd::Zero(3, 2);
  for (const double x : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                         -std::numeric_limits<double>::infinity(), 0x1.0000000000001p53}) {
    real(2, 1) = x;
    rejected(real, " at row 2, axis 1");
  }
  rejected(Eigen::Array<std::int64_t, 1, 2>(0, beyond), "9007199254740993 at row 0, axis 1");
  rejected(Eigen::Array<std::int64_t, 1, 2>(-beyond, 0), "-9007199254740993 at row 0, axis 0");
  rejected(Eigen::Array<std::int64_t, 1, 2>(std::numeric_limits<std::int64_t>::min(), 0), "at row 0, axis 0");
  rejected(Eigen::Array<std::uint64_t, 1, 2>(0, ~std::uint64_t{0}), "18446744073709551615 at row 0, axis 1");
}
