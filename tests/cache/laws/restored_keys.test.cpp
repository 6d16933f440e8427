// SPDX-License-Identifier: MIT
// Keys that were rotated, saved and appended again give the bits of an uninterrupted cache, and attention by
// its definition.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index saved_batch = 2, saved_kv_heads = 2, saved_heads = 4, saved_dim = 8, saved_value_dim = 6,
                saved_capacity = 40;
const frequency_table<> saved_table(frequencies(6, 100.0), -50, 300);
/// Random floats, from which every other channel type is made.
template <class C>
using given_as = std::conditional_t<std::is_same_v<C, double>, double, float>;

/// The bytes of stored heads [batch, tokens, heads, dim], as in a file.
template <class C>
struct heads_on_disk : testing::owned_heads<C> {
  using testing::owned_heads<C>::owned_heads;

  /// Saves the heads of one slot of a row as token t of row b.
  template <class View>
  void put(Index b, Index t, const View& row, Index slot) {
    testing::copy_heads(row.token_range(slot, 1), this->view().batch_range(b, 1).token_range(t, 1));
    if constexpr (std::is_same_v<C, std::int8_t>)
      for (Index h = 0; h < this->heads; ++h) *this->view().scale_at(b, t, h) = *row.scale_at(0, slot, h);
  }
};

/// The tokens of a cache in the order of their positions, row by row, and the rotation of the keys.
template <class C>
struct saved_cache {
  std::vector<std::int64_t> positions, counts;
  heads_on_disk<C> keys, values;
  key_rotation rotation;

  template <class Cache>
  explicit saved_cache(const Cache& cache)
      : counts(counts_of(cache)),
        keys(cache.batch(), longest(), cache.keys(0).heads, cache.keys(0).head_dim),
        values(cache.batch(), longest(), cache.values(0).heads, cache.values(0).head_dim),
        rotation(cache.rotation()) {
    for (Index b = 0; b < cache.batch(); ++b) {
      const auto order = cache.positions(b);
      std::vector<std::pair<std::int64_t, Index>> tokens;
      for (std::size_t s = 0; s < order.size(); ++s)
        if (order[s] != no_token) tokens.emplace_back(order[s], static_cast<Index>(s));
      if constexpr (requires { cache.slot(0); }) std::sort(tokens.begin(), tokens.end());
      for (Index t = 0; t < longest(); ++t) {
        const bool held = t < static_cast<Index>(tokens.size());
        // Ids of padding follow those of the tokens.
        positions.push_back(held ? tokens[static_cast<std::size_t>(t)].first : 0);
        if (!held) continue;
        keys.put(b, t, cache.keys(b), tokens[static_cast<std::size_t>(t)].second);
        values.put(b, t, cache.values(b), tokens[static_cast<std::size_t>(t)].second);
      }
    }
  }
  Index longest() const { return static_cast<Index>(*std::max_element(counts.begin(), counts.end())); }

 private:
  template <class Cache>
  static std::vector<std::int64_t> counts_of(const Cache& cache) {
    std::vector<std::int64_t> all;
    for (Index b = 0; b < cache.batch(); ++b) all.push_back(cache.size(b));
    return all;
  }
};

/// New tokens of every row, and the outputs of attention for them.
template <class G>
struct next_step {
  std::vector<G> q, k, v, out;
  Index tokens;

  next_step(Index of_tokens, std::uint32_t seed)
      : q(testing::random_channels<G>(saved_batch * of_tokens * saved_heads * saved_dim, seed)),
        k(testing::random_channels<G>(saved_batch * of_tokens * saved_kv_heads * saved_dim, seed + 1)),
        v(testing::random_channels<G>(saved_batch * of_tokens * saved_kv_heads * saved_value_dim, seed + 2)),
        out(static_cast<std::size_t>(saved_batch * of_tokens * saved_heads * saved_value_dim)),
        tokens(of_tokens) {}
  head_view<const G> queries() const { return view(q, saved_heads, saved_dim); }
  head_view<const G> keys() const { return view(k, saved_kv_heads, saved_dim); }
  head_view<const G> values() const { return view(v, saved_kv_heads, saved_value_dim); }
  head_view<const G> view(const std::vector<G>& x, Index heads, Index dim) const {
    return bshd(x.data(), saved_batch, tokens, heads, dim);
  }
  /// The bits of attention of the newest tokens.
  template <class Layout, class Cache, class Table>
  std::vector<G> attended(const Cache& cache, const Table& table) {
    attention<Layout>(queries(), cache, bshd(out.data(), saved_batch, tokens, saved_heads, saved_value_dim),
                      table, {}, {}, testing::own_threads(2));
    return out;
  }
};

/// Whether rows of two caches have the same tokens, bit by bit.
template <class C, class Cache>
bool same_tokens(const Cache& a, const Cache& b) {
  const saved_cache<C> x(a), y(b);
  return x.positions == y.positions && x.counts == y.counts &&
         testing::same_bits(x.keys.channels, y.keys.channels) &&
         testing::same_bits(x.values.channels, y.values.channels) &&
         testing::same_bits(x.keys.scales, y.keys.scales) &&
         testing::same_bits(x.values.scales, y.values.scales) && x.rotation == y.rotation;
}

template <class Layout, class C>
void go_on_as_uninterrupted() {
  using G = given_as<C>;
  kv_cache<C> original(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim);
  next_step<G> prompt(9, 11);
  original.template append<Layout>(prompt.keys(), prompt.values(), saved_table, std::vector{9, 4});
  const int ids[] = {30, 31, 17, 2, 3, -5};
  next_step<G> placed(3, 21);
  original.template append_at<Layout>(placed.keys(), placed.values(), saved_table, ids);

  const saved_cache<C> saved(original);
  kv_cache<C> restored(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim);
  REQUIRE(saved.rotation == restored.template rotation_by<Layout>(saved_table));
  restored.template append_rotated<Layout>(saved.keys.view(), saved.values.view(), saved_table,
                                           saved.positions, saved.counts, testing::own_threads(2));
  CHECK(same_tokens<C>(original, restored));
  CHECK(restored.rotates_keys());
  restored.template check_table<Layout>(saved_table);

  next_step<G> more(2, 31);
  for (kv_cache<C>* cache : {&original, &restored})
    cache->template append<Layout>(more.keys(), more.values(), saved_table);
  CHECK(same_tokens<C>(original, restored));
  CHECK(more.template attended<Layout>(original, saved_table) ==
        more.template attended<Layout>(restored, saved_table));
  for (kv_cache<C>* cache : {&original, &restored})
    cache->template shift<Layout>(1, 5, 7, saved_table, batch_row{1});
  CHECK(same_tokens<C>(original, restored));
  const frequency_table<> longer(frequencies(6, 100.0, linear_scaling{.factor = 4}), -50, 300);
  for (kv_cache<C>* cache : {&original, &restored}) cache->template rebase<Layout>(saved_table, longer);
  CHECK(same_tokens<C>(original, restored));
  CHECK(more.template attended<Layout>(original, longer) == more.template attended<Layout>(restored, longer));
}

template <class C>
void ring_goes_on() {
  using G = given_as<C>;
  for (const Index prompt_tokens : {3, 7, 26}) {
    const ring_policy policy = {.sinks = 2, .window = 6, .chunk = 3};
    ring_cache<C> original(saved_batch, policy, saved_kv_heads, saved_dim, saved_value_dim),
        restored(saved_batch, policy, saved_kv_heads, saved_dim, saved_value_dim);
    next_step<G> prompt(prompt_tokens, 41), more(2, 51);
    original.template append<half_split>(prompt.keys(), prompt.values(), saved_table,
                                         std::vector<Index>{prompt_tokens, prompt_tokens - 1});
    const saved_cache<C> saved(original);
    REQUIRE(saved.rotation == restored.template rotation_by<half_split>(saved_table));
    restored.template append_rotated<half_split>(saved.keys.view(), saved.values.view(), saved_table,
                                                 saved.positions, saved.counts);
    for (int i = 0; i < 12; ++i) {
      CHECK(same_tokens<C>(original, restored));
      CHECK(original.seen()[0] == restored.seen()[0]);
      for (ring_cache<C>* ring : {&original, &restored})
        ring->template append<half_split>(more.keys(), more.values(), saved_table);
      CHECK(more.template attended<half_split>(original, saved_table) ==
            more.template attended<half_split>(restored, saved_table));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a cache of restored keys has the bits of an uninterrupted one", "[cache]", float, double,
                   Eigen::half, Eigen::bfloat16, std::int8_t) {
  go_on_as_uninterrupted<half_split, TestType>();
  go_on_as_uninterrupted<interleaved, TestType>();
}

TEMPLATE_TEST_CASE("a ring of restored keys has the bits of an uninterrupted one", "[cache]", float,
                   Eigen::bfloat16, std::int8_t) {
  ring_goes_on<TestType>();
}

TEMPLATE_TEST_CASE("attention to restored keys follows the definition", "[cache]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  using namespace decoder_step;
  using C = TestType;
  using T = given_as<C>;
  std::mt19937 generator(77);
  CAPTURE(77);
  const reference::model m = model_of<interleaved>(4, plain);
  const frequency_table<entry<T>> table(plain, 0, 90);
  rows tokens(2);
  for (std::size_t b = 0; b < 2; ++b)
    for (long long t = 0; t < 6 + static_cast<long long>(b); ++t)
      tokens[b].push_back(reference::random_token<C>(generator, m, 3 * t));
  // The keys come from a plain rotation, not from a cache.
  step<T> before(m, tokens);
  std::vector<T> rotated = before.k;
  std::vector<std::int64_t> ids;
  for (std::size_t b = 0; b < 2; ++b)
    for (Index t = 0; t < before.tokens; ++t) ids.push_back(3 * t);
  rotate<interleaved>(bshd(rotated.data(), 2, before.tokens, 2, 8), table, ids);

  kv_cache<C> cache(2, 40, 2, 8, 5);
  cache.template append_rotated<interleaved>(bshd(rotated.data(), 2, before.tokens, 2, 8), before.values(),
                                             table, ids, before.counts);
  rows added(2);
  for (std::size_t b = 0; b < 2; ++b)
    for (long long t = 0; t < 2; ++t)
      added[b].push_back(reference::random_token<C>(generator, m, tokens[b].back().position + 1 + t));
  for (std::size_t b = 0; b < 2; ++b) tokens[b].insert(tokens[b].end(), added[b].begin(), added[b].end());
  step<T> now(m, added);
  cache.template append<interleaved>(now.keys(), now.values(), table);
  attention<interleaved>(now.queries(), cache, now.output(), table);
  CHECK(now.worst_by_position(reference::decoder_bound<T, C>(m, 12, 1, true), added, tokens) <= 1);
}

TEST_CASE("latents and rotated parts can be restored", "[cache]") {
  latent_cache<Eigen::half> original(1, 20, 6, 4), restored(1, 20, 6, 4);
  const frequency_table<> table(frequencies(4, 100.0), 90);
  const auto c = testing::random_channels<Eigen::half>(7 * 6, 1),
             r = testing::random_channels<Eigen::half>(7 * 4, 2);
  const auto latents = bshd(c.data(), 1, 7, 1, 6), parts = bshd(r.data(), 1, 7, 1, 4);
  original.append<half_split>(latents, parts, table);
  const auto keys = original.keys();
  restored.append_rotated<half_split>(keys.channels(0, 6), keys.channels(6, 4).token_range(0, 7), table);
  CHECK(restored.rotation() == original.rotation());
  const auto q = testing::random_channels<float>(2 * 10, 3);
  std::vector<float> out(2 * 6), again(2 * 6);
  for (latent_cache<Eigen::half>* cache : {&original, &restored}) {
    cache->append<half_split>(latents.token_range(0, 1), parts.token_range(0, 1), table);
    cache->shift<half_split>(2, 6, -2, table);
    attention<half_split>(bshd(q.data(), 1, 1, 2, 10), *cache,
                          bshd(cache == &original ? out.data() : again.data(), 1, 1, 2, 6), table,
                          {.scale = 0.5});
  }
  CHECK(testing::same_heads(original.keys(), restored.keys()));
  CHECK(out == again);
}

TEST_CASE("tokens with coordinates are restored at coordinates or with a table of them", "[cache]") {
  const frequencies f = on_axes(frequencies(6, 100.0), contiguous_sections({1, 1, 1}));
  Eigen::ArrayXXi first(4, 3), image(3, 3);
  first << 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3;
  image << 4, 4, 4, 4, 4, 5, 4, 5, 4;
  next_step<float> text(4, 5), shown(3, 6);
  const frequency_table<> of_text(f, first), of_image(f, image);
  const auto cache_of_axes = [] {
    return kv_cache<float>(saved_batch, saved_capacity, saved_kv_heads, saved_dim, token_axes{3},
                           saved_value_dim);
  };
  kv_cache<float> original = cache_of_axes(), by_table = cache_of_axes(), by_coordinates = cache_of_axes();
  original.append<half_split>(text.keys(), text.values(), of_text);
  original.append<half_split>(shown.keys(), shown.values(), of_image);
  const auto keys = original.keys(), values = original.values();
  by_table.append_rotated<half_split>(keys.token_range(0, 4), values.token_range(0, 4), of_text);
  by_table.append_rotated<half_split>(keys.token_range(4, 3), values.token_range(4, 3), of_image);
  Eigen::ArrayXXd all = original.coordinates(0);
  by_coordinates.append_rotated<half_split>(keys, values, of_image, token_coordinates(all));
  CHECK(original.next_positions()[0] == 6);
  const frequency_table<> next(frequencies(6, 100.0), 40);
  next_step<float> more(2, 8);
  original.append<half_split>(more.keys(), more.values(), next);
  const std::vector<float> expected = more.attended<half_split>(original, next);
  for (kv_cache<float>* cache : {&by_table, &by_coordinates}) {
    CHECK(cache->rotation() == original.rotation());
    CHECK(cache->next_positions()[1] == 6);
    CHECK((cache->coordinates(1) == all).all());
    cache->append<half_split>(more.keys(), more.values(), next);
    CHECK(more.attended<half_split>(*cache, next) == expected);
    CHECK(testing::same_heads(cache->keys(), original.keys()));
  }
  ring_cache<float> ring(saved_batch, {.sinks = 1, .window = 9, .chunk = 3}, saved_kv_heads, saved_dim,
                         token_axes{3}, saved_value_dim);
  ring.append_rotated<half_split>(keys, values, of_image, token_coordinates(all));
  ring.append<half_split>(more.keys(), more.values(), next);
  const std::vector<float> of_ring = more.attended<half_split>(ring, next);
  ring_cache<float> never_ended(saved_batch, ring.policy(), saved_kv_heads, saved_dim, token_axes{3},
                                saved_value_dim);
  never_ended.append<half_split>(text.keys(), text.values(), of_text);
  never_ended.append<half_split>(shown.keys(), shown.values(), of_image);
  never_ended.append<half_split>(more.keys(), more.values(), next);
  CHECK(more.attended<half_split>(never_ended, next) == of_ring);
}

TEST_CASE("keys of another rotation throw before anything is stored", "[cache]") {
  next_step<float> x(2, 9);
  const frequency_table<> other(frequencies(6, 200.0), 90), wide(frequencies(10, 100.0), 90);
  kv_cache<float> cache(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim);
  const auto again = [&](const auto& table, const auto&... where) {
    cache.append_rotated<half_split>(x.keys(), x.values(), table, where...);
  };
  CHECK(throws_saying<std::invalid_argument>([&] { again(wide); }, "kv_cache::append_rotated", "8"));
  CHECK(cache.size() == 0);
  again(saved_table);
  CHECK(throws_saying<std::invalid_argument>([&] { again(other); }, "different angles"));
  CHECK(throws_saying<std::invalid_argument>([&] { again(saved_table.at_channel(1)); }, "another channel"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { cache.append_rotated<interleaved>(x.keys(), x.values(), saved_table); }, "another layout"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        again(saved_table, 3, std::vector{1, 3});
      },
      "counts", "got 3"));
  CHECK(throws_saying<std::length_error>(
            [&] {
              again(saved_table, 5, std::vector{0, 0, 0});
            },
            "never") == false);
  CHECK(throws_saying<std::out_of_range>([&] { again(saved_table, std::int64_t{1} << 54); }, "2^53"));
  CHECK(throws_saying<std::invalid_argument>([&] { again(saved_table, std::vector{1, 2, 3}); }, "ids"));
  CHECK(cache.size() == 2);
  CHECK(cache.positions(0)[1] == 1);

  kv_cache<float> unknown(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim);
  unknown.append(x.keys(), x.values());
  CHECK(throws_saying<std::invalid_argument>(
      [&] { unknown.append_rotated<half_split>(x.keys(), x.values(), saved_table); },
      "rotated before they were appended; append such keys with append_rotated"));
  kv_cache<float> raw(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim,
                      key_storage::raw);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { raw.append_rotated<half_split>(x.keys(), x.values(), saved_table); }, "kv_cache::append_rotated",
      "stores raw keys"));
  CHECK(raw.size() == 0);
  ring_cache<float> ring(saved_batch, {.sinks = 1, .window = 4}, saved_kv_heads, saved_dim, saved_value_dim);
  ring.append<half_split>(x.keys(), x.values(), saved_table);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { ring.append_rotated<half_split>(x.keys(), x.values(), other); }, "different angles"));
  CHECK(ring.seen(0) == 2);
}

TEST_CASE("quantized tokens move to another cache without another rounding", "[cache]") {
  next_step<float> x(9, 61);
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    kv_cache<std::int8_t> cache(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim,
                                storage),
        copy(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_value_dim, storage);
    cache.append(x.keys(), x.values(), std::vector{9, 5});
    const saved_cache<std::int8_t> saved(cache);
    copy.append_at(saved.keys.view(), saved.values.view(), saved.positions, saved.counts);
    CHECK(same_tokens<std::int8_t>(cache, copy));
    copy.append(saved.keys.view(), saved.values.view(), saved.counts);
    CHECK(copy.size(0) == 18);
    CHECK(std::memcmp(copy.keys(0).at(0, 9, 1), copy.keys(0).at(0, 0, 1), 8) == 0);
    CHECK(std::memcmp(copy.keys(0).scale_at(0, 9, 1), copy.keys(0).scale_at(0, 0, 1), sizeof(float)) == 0);
  }
  const heads_on_disk<std::int8_t> three(2, 3, 2, 8);
  quantized_view<const std::int8_t> no_scales = three.view();
  no_scales.scales.data = nullptr;
  kv_cache<std::int8_t> cache(saved_batch, saved_capacity, saved_kv_heads, saved_dim, saved_dim);
  CHECK(throws_saying<std::invalid_argument>([&] { cache.append(no_scales, no_scales); }, "kv_cache::append",
                                             "scales"));
  CHECK(cache.size() == 0);
}
