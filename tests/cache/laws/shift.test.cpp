// SPDX-License-Identifier: MIT
// A shifted key is the key rotated at its new position, for any number of shifts.
#include <rope/cache/kv_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using testing::throws_saying;

const frequencies plain(8, 1e4), loud(8, 1e4, yarn_scaling{.factor = 4, .original_max_position = 512});

/// The largest difference of the keys of a cache from those of `direct`, in units of the allowed error of
/// `rotations` rotations after the first: 3.13 u each in the 2-norm, an ulp for m, and half an ulp of 16-bit
/// storage in both channels of the pair each time.
template <class Layout, class T>
testing::wide worst(const kv_cache<T>& cache, const kv_cache<T>& direct, long rotations) {
  const auto a = cache.keys(), b = direct.keys();
  const testing::wide u =
      tolerance::unit_roundoff<std::conditional_t<std::is_same_v<T, double>, double, float>>();
  testing::wide result = 0;
  testing::for_each_head(a, [&](Index row, Index t, Index h) {
    const T *x = a.at(row, t, h), *y = b.at(row, t, h);
    for (Index i = 0; i < 4; ++i) {
      const Index first = Layout::first(i, 4), second = Layout::second(i, 4);
      const testing::wide pair =
          testing::hypot(static_cast<testing::wide>(y[first]), static_cast<testing::wide>(y[second]));
      const testing::wide computed = (2 + static_cast<testing::wide>(rotations)) * 4.2L * u * pair;
      const testing::wide stored =
          tolerance::is_16_bit<T>
              ? testing::sqrt(2.0L) * static_cast<testing::wide>(rotations + 2) * tolerance::ulp<T>(pair) / 2
              : 0;
      for (const Index d : {first, second}) {
        const testing::wide part =
            testing::abs(static_cast<testing::wide>(x[d]) - static_cast<testing::wide>(y[d])) /
            (computed + stored);
        result = part >= 0 ? (std::max)(result, part) : std::numeric_limits<testing::wide>::infinity();
      }
    }
    if (!testing::same_bits(x + 8, y + 8, a.head_dim - 8))
      result = std::numeric_limits<testing::wide>::infinity();
  });
  return result;
}

template <class T>
struct tokens_of {
  std::vector<T> memory;
  Index count;
  explicit tokens_of(Index n, std::uint32_t seed = 31)
      : memory(testing::random_channels<T>(2 * n * 3 * 10, seed)), count(n) {}
  head_view<const T> view() const { return bshd(memory.data(), 2, count, 3, 10); }
};

/// A cache of keys that were rotated at `start`, `start` + 1, ... in one call.
template <class Layout, class T, class S>
kv_cache<T> at(std::int64_t start, const tokens_of<T>& tokens, const frequency_table<S>& table) {
  std::vector<T> memory = tokens.memory;
  rotate<Layout>(bshd(memory.data(), 2, tokens.count, 3, 10), table, start);
  kv_cache<T> cache(2, tokens.count, 3, 10);
  cache.append(bshd(memory.data(), 2, tokens.count, 3, 10), tokens.view());
  return cache;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a shift gives the rotation at the new position, and keeps the attention factor",
                        "[cache]", testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const tokens_of<T> tokens(12);
  for (const frequencies& f : {plain, loud}) {
    const frequency_table<S> table(f, -1000, 100100);
    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      for (const std::int64_t delta : {1, -1, 7, -600, 100000}) {
        CAPTURE(testing::name_of<Layout>, delta, f.attention_factor());
        kv_cache<T> cache(2, 12, 3, 10);
        cache.template append<Layout>(tokens.view(), tokens.view(), table);
        cache.template shift<Layout>(0, 12, delta, table);
        const kv_cache<T> direct = at<Layout>(delta, tokens, table);
        CHECK(worst<Layout>(cache, direct, 1) <= 1);
        CHECK(testing::same_heads(cache.values(), tokens.view()));
        CHECK(cache.positions(1)[3] == 3 + delta);
      }
    });
  }
}

TEMPLATE_LIST_TEST_CASE("many shifts add their roundings and nothing else", "[cache]",
                        testing::native_types) {
  using T = typename TestType::channel;
  const tokens_of<T> tokens(6);
  const frequency_table<typename TestType::entry> table(loud, -100, 5000);
  kv_cache<T> cache(2, 6, 3, 10);
  cache.template append<half_split>(tokens.view(), tokens.view(), table);
  for (int i = 0; i < 1000; ++i) cache.template shift<half_split>(0, 6, i % 2 == 0 ? 7 : -3, table);
  CHECK(cache.positions(0)[0] == 2000);
  CHECK(worst<half_split>(cache, at<half_split>(2000, tokens, table), 1000) <= 1);
}

TEST_CASE("a shift rotates only the given tokens and rows", "[cache]") {
  const tokens_of<float> tokens(6);
  const frequency_table<> table(plain, 100);
  kv_cache<float> cache(2, 6, 3, 10);
  cache.append<interleaved>(tokens.view(), tokens.view(), table);
  const kv_cache<float> before = cache;
  cache.shift<interleaved>(2, 3, 20, table, batch_row{1});
  const kv_cache<float> moved = at<interleaved>(20, tokens, table);
  testing::for_each_head(cache.keys(), [&](Index b, Index t, Index h) {
    const bool same = testing::same_bits(cache.keys().at(b, t, h), before.keys().at(b, t, h), 10);
    CHECK(same == !(b == 1 && t >= 2 && t < 5));
  });
  cache.shift<interleaved>(0, 2, 20, table, batch_row{1});
  cache.shift<interleaved>(5, 1, 20, table, batch_row{1});
  cache.shift<interleaved>(0, 6, 20, table, batch_row{0});
  CHECK(worst<interleaved>(cache, moved, 1) <= 1);
  const kv_cache<float> shifted = cache;
  cache.shift<interleaved>(0, 6, 0, table);
  CHECK(testing::same_heads(cache.keys(), shifted.keys()));
}

TEST_CASE("after a context shift attention is as if the removed tokens had never existed", "[cache]") {
  // llama.cpp keeps 4 tokens, discards 6 and moves the others.
  const tokens_of<double> tokens(20);
  const frequency_table<double> table(plain, 40);
  kv_cache<double> cache(2, 20, 3, 10), direct(2, 20, 3, 10);
  cache.append<half_split>(tokens.view(), tokens.view(), table);
  cache.remove(4, 6);
  cache.shift<half_split>(4, cache.size() - 4, -6, table);
  direct.append<half_split>(tokens.view().token_range(0, 4), tokens.view().token_range(0, 4), table);
  direct.append<half_split>(tokens.view().token_range(10, 10), tokens.view().token_range(10, 10), table);
  CHECK(worst<half_split>(cache, direct, 1) <= 1);
  CHECK(testing::same_heads(cache.values(), direct.values()));
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 14; ++t) CHECK(cache.positions(b)[static_cast<std::size_t>(t)] == t);
  CHECK(cache.next_positions()[0] == 14);
}

TEST_CASE("a rebase uses the shifted positions", "[cache]") {
  const tokens_of<double> tokens(5);
  const frequency_table<double> from(plain, 100), to(frequencies(8, 5e5), 100);
  kv_cache<double> cache(2, 5, 3, 10);
  cache.append<half_split>(tokens.view(), tokens.view(), from);
  cache.shift<half_split>(0, 5, 30, from);
  cache.rebase<half_split>(from, to);
  CHECK(worst<half_split>(cache, at<half_split>(30, tokens, to), 2) <= 1);
}

TEST_CASE("a shift with another table or layout, or with inexact angles, throws", "[cache]") {
  const tokens_of<float> tokens(5);
  const frequency_table<> table(plain, 40),
      longer(frequencies(8, 1e4, dynamic_ntk_scaling{4, 1024, 3000}), 40);
  const auto rounded = frequency_table<>::with_float_angles(plain, 0, 40);
  const frequency_table<> grid(plain, Eigen::ArrayXd::LinSpaced(40, 0, 195));
  kv_cache<float> cache(2, 9, 3, 10), inexact(2, 9, 3, 10), given(2, 9, 3, 10), real(2, 9, 3, 10);
  cache.append<half_split>(tokens.view(), tokens.view(), table);
  inexact.append<half_split>(tokens.view(), tokens.view(), rounded);
  real.append<half_split>(tokens.view(), tokens.view(), grid);
  given.append(tokens.view(), tokens.view());
  const auto rejected = [](kv_cache<float>& of, const char* text, const auto& call) {
    const kv_cache<float> before = of;
    CHECK(throws_saying<std::invalid_argument>(call, text));
    CHECK(testing::same_heads(of.keys(), before.keys()));
    CHECK(of.next_positions()[1] == 5);
  };
  const char* mixed = "rope::kv_cache: give the layout and the table that the keys were rotated by";
  const char* exact = "rope::kv_cache::shift: the angle must be position * inv_freq, not of float angles or";
  rejected(cache, mixed, [&] { cache.shift<half_split>(0, 5, 2, longer); });
  rejected(cache, mixed, [&] { cache.shift<interleaved>(0, 5, 2, table); });
  rejected(given, mixed, [&] { given.shift<half_split>(0, 5, 2, table); });
  rejected(inexact, exact, [&] { inexact.shift<half_split>(0, 5, 2, rounded); });
  rejected(real, exact, [&] { real.shift<half_split>(0, 5, 2, grid); });
}
