// SPDX-License-Identifier: MIT
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
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// A cache that rotates its own keys is tied to one table and layout, and can be rebased to another table.

namespace {

using namespace rope;
using testing::throws_saying;

const frequencies plain(8, 1e4), longer(8, 1e4, dynamic_ntk_scaling{4, 1024, 3000});

/// Keys and values of some tokens, [2, tokens, 3, 10] and [2, tokens, 3, 4].
template <class T>
struct sequence {
  Index tokens;
  std::vector<T> keys, values;
  explicit sequence(Index n, std::uint32_t seed = 71)
      : tokens(n),
        keys(testing::random_channels<T>(2 * n * 3 * 10, seed)),
        values(testing::random_channels<T>(2 * n * 3 * 4, seed + 1)) {}
  head_view<const T> k() const { return bshd(keys.data(), 2, tokens, 3, 10); }
  head_view<const T> v() const { return bshd(values.data(), 2, tokens, 3, 4); }
};

const char* const other_table =
    "rope::kv_cache: give the layout and the table that the keys were rotated by, got ";

/// Whether `call` throws an Exception with this text and does not change the cache.
template <class Exception = std::invalid_argument, class T, class Call>
bool rejects(const kv_cache<T>& cache, const Call& call, const char* text = other_table) {
  const kv_cache<T> before = cache;
  const bool thrown = throws_saying<Exception>(call, text);
  return thrown && testing::same_heads(cache.keys(), before.keys()) &&
         testing::same_heads(cache.values(), before.values());
}

/// The bound of the error of a key that was rotated with `from` and rebased to `to`, compared with one
/// rotation with `to`: three rotations of 3.13 u each in the 2-norm (tolerance::group_bound), for each of
/// them the rounding of m into its entries, and the rounding of the quotient of both m, 4 u. 16-bit channels
/// are rounded when they are stored in both cases, half an ulp each, and once more between the two rotations,
/// at the magnitude of `from` and in both channels of the pair.
template <class T, class S>
testing::wide rebase_bound(testing::wide pair, double from, double to) {
  const testing::wide u =
      (std::max)(tolerance::unit_roundoff<std::conditional_t<std::is_same_v<T, double>, double, float>>(),
                 tolerance::unit_roundoff<S>());
  const testing::wide after = static_cast<testing::wide>(to) * pair,
                      before = static_cast<testing::wide>(from) * pair;
  const testing::wide computed = (9.4L + 4) * u * after + 2 * tolerance::ulp<T>(0);
  if constexpr (tolerance::is_16_bit<T>)
    return computed + tolerance::ulp<T>(after) +
           testing::sqrt(2.0L) * tolerance::ulp<T>(before) / 2 * (after / before);
  return computed;
}

/// The largest difference of the rotated channels of two views of rotated `keys`, in units of the bound. The
/// channels after them must equal those of `keys`.
template <class Layout, class S, class T>
testing::wide worst_difference(const head_view<const T>& keys, const head_view<const T>& a,
                               const head_view<const T>& b, const frequency_table<S>& from,
                               const frequency_table<S>& to) {
  testing::wide worst = 0;
  testing::for_each_head(keys, [&](Index row, Index t, Index h) {
    const T *in = keys.at(row, t, h), *x = a.at(row, t, h), *y = b.at(row, t, h);
    for (Index i = 0; i < to.pairs(); ++i) {
      const Index channels[] = {Layout::first(i, to.pairs()), Layout::second(i, to.pairs())};
      const testing::wide pair = testing::hypot(static_cast<testing::wide>(in[channels[0]]),
                                                static_cast<testing::wide>(in[channels[1]]));
      for (const Index d : channels) {
        const testing::wide part =
            testing::abs(static_cast<testing::wide>(x[d]) - static_cast<testing::wide>(y[d])) /
            rebase_bound<T, S>(pair, from.attention_factor(), to.attention_factor());
        worst = part >= 0 ? (std::max)(worst, part) : std::numeric_limits<testing::wide>::infinity();
      }
    }
    if (!testing::same_bits(x + to.rotary_dim(), in + to.rotary_dim(), keys.head_dim - to.rotary_dim()))
      worst = std::numeric_limits<testing::wide>::infinity();
  });
  return worst;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("appending with a table is rotating and appending, with the same bits", "[cache]",
                        testing::all_types) {
  using T = typename TestType::channel;
  const frequency_table<typename TestType::entry> table(plain, 40);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    kv_cache<T> checked(2, 40, 3, 10, 4), by_hand(2, 40, 3, 10, 4);
    for (const Index piece : {1, 17, 0, 5, 3}) {
      const sequence<T> tokens(piece, static_cast<std::uint32_t>(80 + piece));
      std::vector<T> rotated = tokens.keys;
      const auto k = bshd(rotated.data(), 2, piece, 3, 10);
      rotate<Layout>(k, table, by_hand.size());
      by_hand.append(k, tokens.v());
      checked.template append<Layout>(tokens.k(), tokens.v(), table);
    }
    CHECK(checked.size() == 26);
    CHECK(testing::same_heads(checked.keys(), by_hand.keys()));
    CHECK(testing::same_heads(checked.values(), by_hand.values()));
  });
}

TEST_CASE("a cache throws if keys or queries come with another table or layout, and does not change",
          "[cache][kv_cache]") {
  const sequence<float> tokens(5);
  const frequency_table<> table(plain, 40), other(longer, 40);
  kv_cache<float> cache(2, 40, 3, 10, 4);
  cache.append<half_split>(tokens.k(), tokens.v(), table);
  const auto append = [&]<class Layout>(Layout, const auto& with) {
    return rejects(cache, [&] { cache.append<Layout>(tokens.k(), tokens.v(), with); });
  };
  const auto require = [&]<class Layout>(Layout, const auto& with) {
    return rejects(cache, [&] { cache.check_table<Layout>(with); });
  };
  CHECK(append(half_split{}, other));
  CHECK(append(interleaved{}, table));
  CHECK(append(half_split{}, frequency_table<>::with_float_angles(plain, 0, 40)));
  CHECK(append(half_split{}, frequency_table<>(frequencies::custom(plain.inv_freq(), 2.0), 40)));
  CHECK(require(half_split{}, other));
  CHECK(require(interleaved{}, table));
  CHECK(rejects(
      cache, [&] { cache.append(tokens.k(), tokens.v()); },
      "rope::kv_cache::append: this cache rotates its keys, give the layout and the table"));
  // A table with the same frequencies but another range and type is accepted.
  cache.check_table<half_split>(table);
  cache.check_table<half_split>(frequency_table<double>(plain, -3, 7));
  cache.append<half_split>(tokens.k(), tokens.v(), frequency_table<double>(plain, 4, 11));
  CHECK(cache.size() == 10);
}

TEST_CASE("keys that the caller rotated can only be followed by such keys, and are tied to no table",
          "[cache][kv_cache]") {
  const sequence<float> tokens(5);
  const frequency_table<> table(plain, 40);
  kv_cache<float> cache(2, 40, 3, 10, 4);
  cache.append(tokens.k(), tokens.v());
  CHECK(rejects(cache, [&] { cache.append<half_split>(tokens.k(), tokens.v(), table); }));
  CHECK(rejects(cache, [&] { cache.check_table<half_split>(table); }));
  CHECK(rejects(cache, [&] { cache.rebase<half_split>(table, table); }));
  cache.append(tokens.k(), tokens.v());
  CHECK(cache.size() == 10);
}

TEST_CASE("an emptied cache accepts any table and layout, a shortened one does not", "[cache][kv_cache]") {
  const sequence<float> tokens(5);
  const frequency_table<> table(plain, 40), other(longer, 40);
  kv_cache<float> cache(2, 40, 3, 10, 4);
  cache.append<half_split>(tokens.k(), tokens.v(), table);
  cache.truncate(1);
  CHECK(rejects(cache, [&] { cache.append<half_split>(tokens.k(), tokens.v(), other); }));
  cache.truncate(0);
  cache.append<interleaved>(tokens.k(), tokens.v(), other);
  cache.check_table<interleaved>(other);
  cache.clear();
  cache.append(tokens.k(), tokens.v());
  CHECK(rejects(cache, [&] { cache.check_table<interleaved>(other); }));
  cache.clear();
  cache.append<half_split>(tokens.k(), tokens.v(), table);
  cache.check_table<half_split>(table);
  // Appending no tokens does not tie a cache to a table.
  kv_cache<float> empty(2, 40, 3, 10, 4);
  const sequence<float> none(0);
  empty.append<half_split>(none.k(), none.v(), table);
  empty.append<interleaved>(tokens.k(), tokens.v(), other);
  CHECK(empty.size() == 5);
}

TEST_CASE("an append that throws does not change the cache", "[cache][kv_cache]") {
  const sequence<float> tokens(5);
  kv_cache<float> cache(2, 12, 3, 10, 4);
  const frequency_table<> table(plain, 40), too_short(plain, 9), too_wide(frequencies(12), 40);
  cache.append<half_split>(tokens.k(), tokens.v(), table);
  const auto fails = [&]<class Exception>(Exception, const auto& with, const auto& k, const auto& v,
                                          const char* text) {
    return rejects<Exception>(
        cache, [&] { cache.append<half_split>(k, v, with); }, text);
  };
  const auto k = tokens.k(), v = tokens.v();
  CHECK(fails(std::out_of_range(""), too_short, k, v,
              "rope::kv_cache::append: position 9 is outside the table's [0, 9)"));
  cache.append<half_split>(k, v, table);
  CHECK(fails(std::length_error(""), table, k, v, "5 tokens do not fit into row 0, which holds 10 of 12"));
  cache.clear();
  CHECK(fails(std::invalid_argument(""), too_wide, k, v,
              "rope::kv_cache::append: rotary_dim must not exceed head_dim, got 12 of 10"));
  CHECK(cache.size() == 0);
  cache.append<half_split>(k, v, table);
  cache.check_table<half_split>(table);
}

TEMPLATE_LIST_TEST_CASE("rebased keys are those that were rotated with the other table", "[cache]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  std::vector<std::int64_t> positions;  // the first, those in the middle and the last of a long context
  for (const Index first : {0, 50000, 99001})
    for (Index t = 0; t < 1000; ++t) positions.push_back(first + t);
  const Index tokens = 3000, rows = 100001;
  const std::vector<T> source = testing::random_channels<T>(tokens * 10, 72);
  const head_view<const T> keys = bshd(source.data(), 1, tokens, 1, 10);
  const frequencies yarn(8, 1e4, yarn_scaling{.factor = 4, .original_max_position = 8192});
  const frequencies quieter = frequencies::custom(longer.inv_freq(), 0.75);
  for (const auto& [f, g] : {std::pair(plain, longer), std::pair(longer, yarn), std::pair(yarn, quieter)}) {
    const frequency_table<S> from(f, rows), to(g, rows);
    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      CAPTURE(testing::name_of<Layout>, from.attention_factor(), to.attention_factor());
      kv_cache<T> cache(1, tokens, 1, 10), direct(1, tokens, 1, 10);
      cache.template append_at<Layout>(keys, keys, from, positions);
      direct.template append_at<Layout>(keys, keys, to, positions);
      const kv_cache<T> original = cache;
      const auto difference = [&](const kv_cache<T>& a, const kv_cache<T>& b, const auto& before,
                                  const auto& after) {
        return worst_difference<Layout>(keys, a.keys(), b.keys(), before, after);
      };
      CHECK(difference(cache, direct, from, to) > 10);
      cache.template rebase<Layout>(from, to);
      CHECK(difference(cache, direct, from, to) <= 1);
      CHECK(testing::same_heads(cache.values(), keys));
      // And back: two more rotations of the keys in `original`.
      cache.template rebase<Layout>(to, from);
      CHECK(difference(cache, original, to, from) <= 1);
    });
  }
}

TEST_CASE("every row and head is rebased, and the cache is then tied to the other table",
          "[cache][kv_cache]") {
  const sequence<double> tokens(9);
  const frequency_table<double> from(plain, 40), to(longer, 40);
  kv_cache<double> cache(2, 40, 3, 10, 4), direct(2, 40, 3, 10, 4);
  cache.append<half_split>(tokens.k(), tokens.v(), from);
  cache.rebase<half_split>(from, to);
  CHECK(rejects(cache, [&] { cache.check_table<half_split>(from); }));
  cache.append<half_split>(tokens.k(), tokens.v(), to);
  direct.append<half_split>(tokens.k(), tokens.v(), to);
  direct.append<half_split>(tokens.k(), tokens.v(), to);
  CHECK(cache.size() == 18);
  CHECK(testing::same_heads(cache.values(), direct.values()));
  CHECK(testing::same_heads(cache.keys().token_range(9, 9), direct.keys().token_range(9, 9)));
  CHECK(worst_difference<half_split>(tokens.k(), cache.keys().token_range(0, 9),
                                     direct.keys().token_range(0, 9), from, to) <= 1);
  // The tables need not cover the positions of the cache: only their frequencies count.
  cache.rebase<half_split>(frequency_table<double>(longer, 1), frequency_table<double>(plain, 1));
  cache.check_table<half_split>(from);
}

TEST_CASE("rebasing to the same table changes no bit of a key", "[cache][kv_cache]") {
  const sequence<float> tokens(9);
  const frequency_table<> table(frequencies(8, 1e4, yarn_scaling{4, 512}), 40);
  kv_cache<float> cache(2, 40, 3, 10, 4);
  cache.append<interleaved>(tokens.k(), tokens.v(), table);
  const kv_cache<float> before = cache;
  cache.rebase<interleaved>(table, table);
  CHECK(testing::same_heads(cache.keys(), before.keys()));
}

TEST_CASE("a rebase from another table or layout, or to another number of pairs, throws",
          "[cache][kv_cache]") {
  const sequence<float> tokens(5);
  const frequency_table<> from(plain, 40), to(longer, 40), narrow(frequencies(6), 40);
  kv_cache<float> cache(2, 40, 3, 10, 4);
  cache.append<half_split>(tokens.k(), tokens.v(), from);
  CHECK(rejects(cache, [&] { cache.rebase<half_split>(to, from); }));
  CHECK(rejects(cache, [&] { cache.rebase<interleaved>(from, to); }));
  const char* pairs = "rope::kv_cache::rebase: both tables must have the same pairs, got 4 and 3";
  CHECK(rejects(
      cache, [&] { cache.rebase<half_split>(from, narrow); }, pairs));
}

TEST_CASE("a rebase needs the exact angles of a range of positions on both sides", "[cache][kv_cache]") {
  const sequence<float> tokens(5);
  const char* exact = "rope::kv_cache::rebase: the angle must be position * inv_freq in both tables";
  const frequency_table<> range(plain, 40);
  const frequency_table<> others[] = {
      frequency_table<>(frequencies::custom(Eigen::ArrayXXd::Ones(4, 2)), Eigen::ArrayXXd::Ones(40, 2)),
      frequency_table<>(plain, Eigen::ArrayXd::LinSpaced(40, 0, 195)),
      frequency_table<>::with_float_angles(plain, 0, 40)};
  for (const auto& other : others) {
    kv_cache<float> from_range(2, 40, 3, 10, 4), from_other(2, 40, 3, 10, 4);
    from_range.append<half_split>(tokens.k(), tokens.v(), range);
    from_other.append<half_split>(tokens.k(), tokens.v(), other);
    CHECK(rejects(
        from_range, [&] { from_range.rebase<half_split>(range, other); }, exact));
    CHECK(rejects(
        from_other, [&] { from_other.rebase<half_split>(other, range); }, exact));
  }
}

TEST_CASE("an empty cache is tied to no table", "[cache][kv_cache]") {
  kv_cache<float> cache(2, 40, 3, 10, 4);
  const frequency_table<> from(plain, 40), to(longer, 40);
  CHECK_NOTHROW(cache.check_table<half_split>(from));
  CHECK_NOTHROW(cache.rebase<half_split>(from, to));
}
