// SPDX-License-Identifier: MIT
// A cache with a table placed in the head stores and returns the bits of a cache whose keys were rotated in
// these channels before. Another first channel is another rotation.
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index batch = 2, heads = 4, kv_heads = 2, head_dim = 20, value_dim = 6, rotary_dim = 8;

template <class T>
struct tokens {
  Index count;
  std::vector<T> q, k, v, out;
  explicit tokens(Index n)
      : count(n),
        q(testing::random_channels<T>(batch * n * heads * head_dim, 15)),
        k(testing::random_channels<T>(batch * n * kv_heads * head_dim, 16)),
        v(testing::random_channels<T>(batch * n * kv_heads * value_dim, 17)),
        out(static_cast<std::size_t>(batch * n * heads * value_dim), T(-99)) {}
  head_view<T> queries() { return bshd(q.data(), batch, count, heads, head_dim); }
  head_view<T> keys() { return bshd(k.data(), batch, count, kv_heads, head_dim); }
  head_view<T> values() { return bshd(v.data(), batch, count, kv_heads, value_dim); }
  head_view<T> output() { return bshd(out.data(), batch, count, heads, value_dim); }
  /// Heads whose channels are rotated before, for queries and keys from position `start` on.
  template <class Layout, class S>
  tokens rotated(const placed_table<S>& by, std::int64_t start = 0) const {
    tokens y = *this;
    rotate<Layout>(y.queries().channels(by.first_channel(), rotary_dim), by.table(), start);
    rotate<Layout>(y.keys().channels(by.first_channel(), rotary_dim), by.table(), start);
    return y;
  }
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && testing::same_bits(a.data(), b.data(), static_cast<Index>(a.size()));
}

}  // namespace

TEMPLATE_TEST_CASE("a kv_cache rotates the placed channels of its keys and queries", "[cache]", float,
                   double) {
  using T = TestType;
  const Index n = 11;
  const frequency_table<T> table(frequencies(rotary_dim, 50.0), -20, 40);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    for (const Index first : {0, 5, 12}) {
      CAPTURE(testing::name_of<Layout>, first);
      const auto placed = table.at_channel(first);
      tokens<T> x(n), y = x.template rotated<Layout>(placed);
      kv_cache<T> given(batch, n, kv_heads, head_dim, value_dim),
          rotating = given, at = given, raw(batch, n, kv_heads, head_dim, value_dim, key_storage::raw);
      given.append(y.keys(), y.values());
      attention(y.queries(), given, y.output());
      // Rotated: in one call, token by token, at positions of the caller.
      rotating.template append<Layout>(x.keys(), x.values(), placed);
      CHECK(testing::same_heads(rotating.keys(), given.keys()));
      attention<Layout>(x.queries(), rotating, x.output(), placed);
      CHECK(same(x.out, y.out));
      at.template append_at<Layout>(x.keys(), x.values(), placed, 0);
      CHECK(testing::same_heads(at.keys(), given.keys()));
      tokens<T> stepped(n);
      kv_cache<T> growing(batch, n, kv_heads, head_dim, value_dim);
      for (Index t = 0; t < n; ++t) {
        growing.template append<Layout>(x.keys().token_range(t, 1), x.values().token_range(t, 1), placed);
        attention<Layout>(x.queries().token_range(t, 1), growing, stepped.output().token_range(t, 1), placed);
      }
      CHECK(testing::same_heads(growing.keys(), given.keys()));
      // Raw: rotated when they are read.
      raw.append(x.keys(), x.values());
      tokens<T> read(n);
      attention<Layout>(x.queries(), raw, read.output(), placed);
      CHECK(same(read.out, y.out));

      // A context shift rotates these channels and nothing else.
      kv_cache<T> windowed(batch, n, kv_heads, rotary_dim, value_dim);
      windowed.template append<Layout>(x.keys().channels(first, rotary_dim), x.values(), table);
      rotating.template shift<Layout>(2, n - 2, -2, placed);
      windowed.template shift<Layout>(2, n - 2, -2, table);
      CHECK(testing::same_heads(rotating.keys().channels(first, rotary_dim), windowed.keys()));
      CHECK(testing::same_heads(rotating.keys().channels(0, first), given.keys().channels(0, first)));
      CHECK(testing::same_heads(rotating.keys().channels(first + rotary_dim, head_dim - first - rotary_dim),
                                given.keys().channels(first + rotary_dim, head_dim - first - rotary_dim)));
      // So does a rebase to another table, to which the cache is then tied.
      const frequency_table<T> other(frequencies(rotary_dim, 80.0), -20, 40);
      rotating.template rebase<Layout>(placed, other.at_channel(first));
      windowed.template rebase<Layout>(table, other);
      CHECK(testing::same_heads(rotating.keys().channels(first, rotary_dim), windowed.keys()));
      CHECK_NOTHROW(rotating.template check_table<Layout>(other.at_channel(first)));
    }
  });
}

TEST_CASE("16-bit caches round the rotated channels once", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 20);
  const Index n = 9;
  tokens<float> x(n), y = x.rotated<interleaved>(table.at_channel(12));
  kv_cache<Eigen::bfloat16> given(batch, n, kv_heads, head_dim, value_dim), rotating = given;
  given.append(y.keys(), y.values());
  rotating.append<interleaved>(x.keys(), x.values(), table.at_channel(12));
  CHECK(testing::same_heads(rotating.keys(), given.keys()));
}

TEST_CASE("a cache throws if its table is placed at another channel, and does not change", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 20);
  tokens<float> x(3);
  kv_cache<float> cache(batch, 9, kv_heads, head_dim, value_dim);
  ring_cache<float> ring(batch, {.sinks = 1, .window = 6}, kv_heads, head_dim, value_dim);
  cache.append<half_split>(x.keys(), x.values(), table.at_channel(12));
  ring.append<half_split>(x.keys(), x.values(), table.at_channel(12));
  const kv_cache<float> before = cache;
  const auto rejects = [&](const auto& call) {
    return throws_saying<std::invalid_argument>(call,
                                                "give the layout and the table that the keys were rotated "
                                                "by, got the right table at another channel");
  };
  CHECK(rejects([&] { cache.append<half_split>(x.keys(), x.values(), table.at_channel(11)); }));
  CHECK(rejects([&] { cache.append<half_split>(x.keys(), x.values(), table); }));
  CHECK(rejects([&] { cache.shift<half_split>(0, 3, 1, table); }));
  CHECK(rejects([&] { cache.rebase<half_split>(table, table); }));
  CHECK(rejects([&] { attention<half_split>(x.queries(), cache, x.output(), table); }));
  CHECK(rejects([&] { ring.append<half_split>(x.keys(), x.values(), table); }));
  CHECK(rejects([&] { attention<half_split>(x.queries(), ring, x.output(), table.at_channel(2)); }));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { cache.rebase<half_split>(table.at_channel(12), table.at_channel(3)); },
      "both tables must begin at the same channel, got 12 and 3"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        kv_cache<float> fresh(batch, 9, kv_heads, head_dim, value_dim);
        fresh.append<half_split>(x.keys(), x.values(), table.at_channel(13));
      },
      "kv_cache::append: the rotated channels must lie in the head of 20 channels, got 8 channels from"));
  CHECK(testing::same_heads(cache.keys(), before.keys()));
  CHECK(cache.size() == 3);
  CHECK(x.out == tokens<float>(3).out);
}

TEMPLATE_TEST_CASE("a ring_cache rotates the placed channels of its keys and queries", "[cache]", float,
                   double) {
  using T = TestType;
  const Index n = 23;
  const frequency_table<T> table(frequencies(rotary_dim, 50.0), n);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    for (const Index first : {0, 5, 12}) {
      CAPTURE(testing::name_of<Layout>, first);
      const auto placed = table.at_channel(first);
      const ring_policy policy = {.sinks = 2, .window = 5, .chunk = 3};
      tokens<T> x(n), y = x.template rotated<Layout>(placed), read(n);
      ring_cache<T> given(batch, policy, kv_heads, head_dim, value_dim),
          rotating = given, raw(batch, policy, kv_heads, head_dim, value_dim, key_storage::raw);
      for (Index t = 0; t < n; t += 3) {
        const Index count = std::min<Index>(3, n - t);
        const auto part = [&](const head_view<T>& of) { return of.token_range(t, count); };
        given.append(part(y.keys()), part(y.values()));
        attention(part(y.queries()), given, part(y.output()));
        rotating.template append<Layout>(part(x.keys()), part(x.values()), placed);
        attention<Layout>(part(x.queries()), rotating, part(x.output()), placed);
        raw.append(part(x.keys()), part(x.values()));
        attention<Layout>(part(x.queries()), raw, part(read.output()), placed);
      }
      CHECK(same(x.out, y.out));
      CHECK(same(read.out, y.out));

      // By the positions in the cache. The expected result is that of a ring whose heads have the rotated
      // channels first and the others after them.
      ring_policy by_rank = policy;
      by_rank.positions = ring_positions::cache;
      ring_cache<T> ranked(batch, by_rank, kv_heads, head_dim, value_dim, key_storage::raw),
          reordered = ranked;
      const auto window_first = [first](std::vector<T> memory) {
        for (auto head = memory.begin(); head != memory.end(); head += head_dim)
          std::rotate(head, head + first, head + first + rotary_dim);
        return memory;
      };
      tokens<T> z = x, by_table(n);
      z.q = window_first(x.q);
      z.k = window_first(x.k);
      double worst = 0;
      for (Index t = 0; t < n; ++t) {
        const auto part = [&](const head_view<T>& of) { return of.token_range(t, 1); };
        ranked.append(part(x.keys()), part(x.values()));
        attention<Layout>(part(x.queries()), ranked, part(by_table.output()), placed);
        reordered.append(part(z.keys()), part(z.values()));
        attention<Layout>(part(z.queries()), reordered, part(z.output()), table);
      }
      for (std::size_t i = 0; i < z.out.size(); ++i)
        worst = std::max(worst, static_cast<double>(std::abs(z.out[i] - by_table.out[i])));
      // The scores are sums of the same 20 products in another order.
      CHECK(worst <= 40 * static_cast<double>(std::numeric_limits<T>::epsilon()));
    }
  });
}
