// SPDX-License-Identifier: MIT
// A cache with a table placed in the head stores and returns the bits of a cache whose keys were rotated in
// these channels before. Another first channel is another rotation.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/cache.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/wide.hpp"

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
      CHECK(testing::same_bits(x.out, y.out));
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
      CHECK(testing::same_bits(read.out, y.out));

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
      CHECK(testing::same_bits(x.out, y.out));
      CHECK(testing::same_bits(read.out, y.out));

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
      for (Index t = 0; t < n; ++t) {
        const auto part = [&](const head_view<T>& of) { return of.token_range(t, 1); };
        ranked.append(part(x.keys()), part(x.values()));
        attention<Layout>(part(x.queries()), ranked, part(by_table.output()), placed);
        reordered.append(part(z.keys()), part(z.values()));
        attention<Layout>(part(z.queries()), reordered, part(z.output()), table);
      }
      // The scores are sums of the same 20 products in another order.
      CHECK(testing::largest_difference(z.out, by_table.out) <=
            40 * static_cast<double>(std::numeric_limits<T>::epsilon()));
    }
  });
}

// Keys that are normalised and rotated while they are written, into every kind of memory.

namespace {

constexpr Index B = 2, L = 9, H = 3, D = 20;

/// The channel types of new keys and of the cache that stores them.
template <class K, class C>
struct key_types {
  using given = K;
  using kept = C;
};
using every_key = std::tuple<key_types<float, float>, key_types<double, double>,
                             key_types<Eigen::half, Eigen::half>, key_types<Eigen::bfloat16, Eigen::bfloat16>,
                             key_types<float, Eigen::half>, key_types<float, Eigen::bfloat16>>;

template <class K>
struct new_tokens {
  std::vector<K> k = testing::random_channels<K>(B * L * H * D, 91),
                 v = testing::random_channels<K>(B * L * H * D, 92);
  std::vector<float> weight = testing::random_channels<float>(H * D, 93);
  head_norm<float> norm = {.weight = weight, .epsilon = 0.25, .offset = 1};
  frequency_table<float> table{rope::frequencies(12), 60};

  head_view<const K> keys() const { return rope::bshd(k.data(), B, L, H, D); }
  head_view<const K> values() const { return rope::bshd(v.data(), B, L, H, D); }
  /// The keys after the norm and the rotation, in place.
  template <class P>
  std::vector<K> rotated(const P& at) const {
    std::vector<K> x = k;
    rope::normalize_and_rotate<half_split>(rope::bshd(x.data(), B, L, H, D), norm, table.at_channel(5), at);
    return x;
  }
};

template <class K>
head_view<const K> view(const std::vector<K>& x) {
  return rope::bshd(x.data(), B, L, H, D);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("keys normalised during an append have the bits of keys normalised before", "[cache]",
                        every_key) {
  using K = typename TestType::given;
  using C = typename TestType::kept;
  const new_tokens<K> of;
  const normed_table normed(of.norm, of.table.at_channel(5));
  const testing::own_threads threads(3);

  kv_cache<C> one(B, 2 * L, H, D), two = one;
  for (const int round : {0, 1}) {
    one.template append<half_split>(of.keys(), of.values(), normed, {}, threads);
    two.append(view(of.rotated(round * L)), of.values());
  }
  CHECK(testing::same_heads(one.keys(), two.keys()));
  CHECK(testing::same_heads(one.values(), two.values()));
  // The cache is tied to the table of its keys: attention accepts only that table.
  one.template check_table<half_split>(of.table.at_channel(5));
  CHECK(throws_saying<std::invalid_argument>([&] { one.template check_table<half_split>(of.table); },
                                             "the right table at another channel"));

  const std::vector<int> ids = {4, 0, 33, 2, 2, 59, 8, 1, 5, 7, 6, 5, 4, 3, 2, 1, 0, 50};
  kv_cache<C> at(B, L, H, D), at_two = at;
  at.template append_at<half_split>(of.keys(), of.values(), normed, ids);
  at_two.append_at(view(of.rotated(ids)), of.values(), ids);
  CHECK(testing::same_heads(at.keys(), at_two.keys()));

  ring_cache<C> ring(B, {.sinks = 1, .window = 5, .chunk = 3}, H, D), ring_two = ring;
  ring.template append<half_split>(of.keys(), of.values(), normed, {}, threads);
  ring_two.append(view(of.rotated(0)), of.values());
  for (Index b = 0; b < B; ++b) CHECK(testing::same_heads(ring.keys(b), ring_two.keys(b)));

  std::vector<C> key_pool(6 * 4 * H * D, C(0)), value_pool = key_pool, key_pool_two = key_pool,
                                                value_pool_two = key_pool;
  const std::vector<int> blocks = {5, 0, 3, 1, 2, 4};
  const std::vector<std::int64_t> lengths = {L, L};
  const auto pages_of = [&](std::vector<C>& keys, std::vector<C>& values) {
    return rope::page_view<C>(
        {.keys = rope::bhsd(keys.data(), 6, H, 4, D), .values = rope::bhsd(values.data(), 6, H, 4, D)},
        blocks, lengths);
  };
  rope::write_pages<half_split>(of.keys(), of.values(), pages_of(key_pool, value_pool), normed);
  rope::write_pages(view(of.rotated(0)), of.values(), pages_of(key_pool_two, value_pool_two));
  CHECK(testing::same_bits(key_pool, key_pool_two));
  CHECK(testing::same_bits(value_pool, value_pool_two));
}

TEST_CASE("a norm that does not fit the keys throws, and the cache does not change", "[cache]") {
  const new_tokens<float> of;
  kv_cache<float> cache(B, 3 * L, H, D);
  ring_cache<float> ring(B, {.sinks = 1, .window = 5, .chunk = 3}, H, D);
  cache.append<half_split>(of.keys(), of.values(), of.table);
  ring.append<half_split>(of.keys(), of.values(), of.table);
  const kv_cache<float> before = cache;
  const ring_cache<float> ring_before = ring;
  const auto rejected = [&](const head_norm<float>& norm, const char* text) {
    const normed_table normed(norm, of.table);
    CHECK(throws_saying<std::invalid_argument>(
        [&] { cache.append<half_split>(of.keys(), of.values(), normed); }, "rope::kv_cache::append: ", text));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { cache.append_at<half_split>(of.keys(), of.values(), normed, 20); },
        "rope::kv_cache::append_at: ", text));
    CHECK(
        throws_saying<std::invalid_argument>([&] { ring.append<half_split>(of.keys(), of.values(), normed); },
                                             "rope::ring_cache::append: ", text));
  };
  rejected({.weight = std::span(of.weight).first(19)},
           "the weight of the norm must have length head_dim or heads * head_dim, 20 or 60, got 19");
  rejected({.weight = of.weight, .epsilon = -1}, "the epsilon of the norm must be finite and not negative");
  rejected({.weight = of.weight, .epsilon = std::numeric_limits<double>::quiet_NaN()}, "epsilon");
  CHECK(cache.size() == L);
  CHECK(testing::same_heads(cache.keys(), before.keys()));
  CHECK(ring.seen()[0] == L);
  for (Index b = 0; b < B; ++b) CHECK(testing::same_heads(ring.keys(b), ring_before.keys(b)));
}
