// SPDX-License-Identifier: MIT
// Rows that move to another cache, and caches that grow, have the bits of a cache to which the tokens were
// appended.
#include <cstddef>
#include <cstdint>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "fuzz/support/shown.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

const frequency_table<> moved_table(frequencies(8, 100.0), 200);

/// Heads [2, tokens, 2, 8] for caches of G.
template <class G>
struct random_heads {
  std::vector<G> memory;
  head_view<const G> view;
  random_heads(Index tokens, std::uint32_t seed)
      : memory(testing::random_channels<G>(2 * tokens * 2 * 8, seed)),
        view(bshd(static_cast<const G*>(memory.data()), 2, tokens, 2, 8)) {}
};
template <class C>
using heads_for = random_heads<std::conditional_t<std::is_same_v<C, double>, double, float>>;

template <class Cache, class K, class V>
void append_all(Cache& cache, const K& k, const V& v, const detail::row_counts& counts = {}) {
  if (cache.storage() == key_storage::raw)
    cache.append(k, v, counts);
  else
    cache.template append<half_split>(k, v, moved_table, counts);
}

/// All that a cache returns of row b, as bits.
template <class Cache>
fuzz::bits shown_row(const Cache& cache, Index b) {
  fuzz::bits all;
  fuzz::add_number(all, cache.size(b));
  fuzz::add_number(all, cache.next_positions()[static_cast<std::size_t>(b)]);
  for (const std::int64_t position : cache.order(b)) fuzz::add_number(all, position);
  fuzz::add_bits(all, cache.keys(b));
  fuzz::add_bits(all, cache.values(b));
  const key_rotation rotation = cache.rotation();
  fuzz::add_number(all, rotation);
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("a row moved from another cache equals a row of appended tokens", "[cache]", float, double,
                   Eigen::half, Eigen::bfloat16, std::int8_t) {
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    kv_cache<TestType> prefilled(2, 9, 2, 8, 0, storage), batch(2, 20, 2, 8, 0, storage),
        expected(2, 20, 2, 8, 0, storage);
    const heads_for<TestType> prompt(7, 1), next(2, 2);
    append_all(prefilled, prompt.view, prompt.view, std::vector{3, 7});
    append_all(batch, next.view, next.view);
    append_all(expected, next.view, next.view);
    batch.copy_row(prefilled, 1, 0);
    expected.truncate(0, batch_row{0});
    // Row 0 of the expected cache takes the tokens of row 1.
    const auto from = prompt.view.batch_range(1, 1);
    const auto both = head_view<typename decltype(from)::value_type const>{
        from.data, 2, 7, 2, 8, 0, from.token_stride, from.head_stride};
    append_all(expected, both, both, std::vector{7, 0});
    CHECK(shown_row(batch, 0) == shown_row(expected, 0));
    CHECK(shown_row(batch, 1) == shown_row(expected, 1));
    CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(batch.query_counts(1)); }, "counts"));
    append_all(batch, next.view.token_range(0, 1), next.view.token_range(0, 1));
    append_all(expected, next.view.token_range(0, 1), next.view.token_range(0, 1));
    CHECK(shown_row(batch, 0) == shown_row(expected, 0));
    CHECK(batch.query_counts(1).empty());
  }
}

TEST_CASE("a row of another ring or latent cache is copied with all of its state", "[cache]") {
  const heads_for<float> prompt(19, 3), next(1, 4);
  const ring_policy policy = {.sinks = 2, .window = 6, .chunk = 2};
  ring_cache<float> prefilled(2, policy, 2, 8), batch(2, policy, 2, 8);
  prefilled.append<half_split>(prompt.view, prompt.view, moved_table, std::vector{19, 11});
  batch.append<half_split>(next.view, next.view, moved_table);
  batch.copy_row(prefilled, 0, 1);
  CHECK(shown_row(batch, 1) == shown_row(prefilled, 0));
  CHECK(batch.seen(1) == 19);
  CHECK(batch.holds_window(1, 18));
  CHECK_FALSE(batch.holds_window(1, 12));
  const ring_cache<float> other(2, {.sinks = 2, .window = 7, .chunk = 2}, 2, 8);
  CHECK(throws_saying<std::invalid_argument>([&] { batch.copy_row(other, 0, 0); }, "ring_cache::copy_row",
                                             "window", "6", "7"));

  latent_cache<float> latents(2, 19, 8, 8), joined(2, 30, 8, 8);
  latents.append<half_split>(prompt.view.head_range(0, 1), prompt.view.head_range(1, 1), moved_table);
  joined.copy_row(latents, 0, 1);
  CHECK(shown_row(joined, 1) == shown_row(latents, 0));
  CHECK(joined.size(0) == 0);
  joined.check_table<half_split>(moved_table);
  // A row that is emptied has slots, but no keys of an earlier rotation.
  prefilled.clear();
  prefilled.append<interleaved>(next.view, next.view, moved_table);
  prefilled.truncate(0, batch_row{1});
  batch.copy_row(prefilled, 1, 0);
  CHECK(batch.seen(0) == 0);
  batch.check_table<half_split>(moved_table);

  const latent_cache<float> narrower(2, 19, 6, 10);
  CHECK(throws_saying<std::invalid_argument>([&] { joined.copy_row(narrower, 0, 0); },
                                             "latent_cache::copy_row", "[1, 16, 8]", "[1, 16, 6]"));
}

TEST_CASE("the only row of a cache attends as the row that it copies", "[cache]") {
  const heads_for<float> x(5, 7);
  kv_cache<float> padded(2, 9, 2, 8), full(2, 9, 2, 8), one(1, 9, 2, 8);
  append_all(padded, x.view, x.view, std::vector{5, 3});
  one.copy_row(padded, 1, 0);
  REQUIRE(one.query_counts(5).size() == 1);
  CHECK(one.query_counts(5)[0] == 3);
  append_all(full, x.view, x.view);
  one.copy_row(full, 1, 0);
  CHECK(one.query_counts(5).empty());
  std::vector<float> out(4 * 2 * 8), expected = out;
  const auto q = x.view.batch_range(1, 1).token_range(1, 4);
  attention<half_split>(q, one, bshd(out.data(), 1, 4, 2, 8), moved_table);
  attention<half_split>(q, one, bshd(expected.data(), 1, 4, 2, 8), moved_table, {}, std::vector{4});
  CHECK(testing::same_bits(out, expected));
}

TEST_CASE("a row that does not fit a cache throws before anything changes", "[cache]") {
  const heads_for<float> x(5, 6);
  kv_cache<float> from(2, 8, 2, 8), to(2, 4, 2, 8);
  from.append<half_split>(x.view, x.view, moved_table, std::vector{5, 3});
  to.append<half_split>(x.view.token_range(0, 2), x.view.token_range(0, 2), moved_table);
  const fuzz::bits before = shown_row(to, 0);
  CHECK(throws_saying<std::length_error>([&] { to.copy_row(from, 0, 0); }, "kv_cache::copy_row",
                                         "5 tokens do not fit", "holds 4"));
  CHECK(throws_saying<std::out_of_range>([&] { to.copy_row(from, 2, 0); }, "row must be in [0, 2)"));
  CHECK(throws_saying<std::out_of_range>([&] { to.copy_row(from, 0, -1); }, "got -1"));
  kv_cache<float> raw(2, 8, 2, 8, 0, key_storage::raw), axes(2, 8, 2, 8, token_axes{3}), given(2, 8, 2, 8),
      other(2, 8, 2, 8), wide(2, 8, 2, 8, 7);
  CHECK(throws_saying<std::invalid_argument>([&] { to.copy_row(raw, 0, 0); }, "rotated and raw"));
  CHECK(throws_saying<std::invalid_argument>([&] { to.copy_row(axes, 0, 0); }, "axes", "0", "3"));
  CHECK(throws_saying<std::invalid_argument>([&] { to.copy_row(wide, 0, 0); }, "[2, 8, 8]", "[2, 8, 7]"));
  given.append(x.view, x.view);
  CHECK(throws_saying<std::length_error>([&] { to.copy_row(given, 0, 0); }, "5 tokens do not fit"));
  given.truncate(3);
  CHECK(throws_saying<std::invalid_argument>([&] { to.copy_row(given, 0, 0); }, "unknown rotation"));
  other.append<interleaved>(x.view.token_range(0, 2), x.view.token_range(0, 2), moved_table);
  CHECK(throws_saying<std::invalid_argument>([&] { to.copy_row(other, 0, 0); }, "different rotations"));
  CHECK(shown_row(to, 0) == before);
  // The only row with tokens may take any rotation, and an empty row has none.
  to.truncate(0, batch_row{1});
  to.copy_row(other, 0, 0);
  to.check_table<interleaved>(moved_table);
  from.truncate(0, batch_row{0});
  to.copy_row(from, 0, 0);
  CHECK(to.size() == 0);
  to.copy_row(to, 0, 1);
  CHECK(to.size() == 0);
}

TEMPLATE_TEST_CASE("a cache that grows keeps its tokens, and has more free slots", "[cache]", float,
                   Eigen::bfloat16, std::int8_t) {
  const heads_for<TestType> x(6, 8);
  for (const bool on_axes : {false, true}) {
    kv_cache<TestType> cache = on_axes ? kv_cache<TestType>(2, 6, 2, 8, token_axes{2})
                                       : kv_cache<TestType>(2, 6, 2, 8),
                       large = on_axes ? kv_cache<TestType>(2, 15, 2, 8, token_axes{2})
                                       : kv_cache<TestType>(2, 15, 2, 8);
    const std::vector<Index> counts = {6, 4};
    for (kv_cache<TestType>* one : {&cache, &large}) append_all(*one, x.view, x.view, counts);
    cache.reserve(4);
    CHECK(cache.capacity() == 6);
    CHECK(throws_saying<std::length_error>([&] { append_all(cache, x.view, x.view, counts); }, "do not fit"));
    cache.reserve(15);
    CHECK(cache.capacity() == 15);
    CHECK(fuzz::shown_by(cache) == fuzz::shown_by(large));
    CHECK(cache.query_counts(6)[1] == 4);
    for (kv_cache<TestType>* one : {&cache, &large}) append_all(*one, x.view, x.view, counts);
    CHECK(fuzz::shown_by(cache) == fuzz::shown_by(large));
    const fuzz::bits before = fuzz::shown_by(cache);
    CHECK(throws_saying<std::invalid_argument>([&] { cache.reserve(-1); }, "kv_cache::reserve", "got -1"));
    CHECK(throws_saying<std::length_error>([&] { cache.reserve(Index{1} << 60); }, "address space"));
    CHECK(fuzz::shown_by(cache) == before);
  }
  latent_cache<float> latents(1, 0, 4, 2);
  latents.reserve(3);
  const std::vector<float> ones(12, 1.0f);
  latents.append(bshd(ones.data(), 1, 3, 1, 4), bshd(ones.data(), 1, 3, 1, 2));
  CHECK(latents.size() == 3);
}
