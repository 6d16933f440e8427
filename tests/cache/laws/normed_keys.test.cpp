// SPDX-License-Identifier: MIT
#include <rope/cache.hpp>

#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"

// Keys that are normalised and rotated while they are written, into every kind of memory.

using rope::frequency_table;
using rope::half_split;
using rope::head_norm;
using rope::head_view;
using rope::Index;
using rope::kv_cache;
using rope::normed_table;
using rope::ring_cache;
using testing::throws_saying;

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
