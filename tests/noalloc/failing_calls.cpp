// SPDX-License-Identifier: MIT
// Every class and every call that allocates memory, with memory for no allocation, for one, two, ... until it
// succeeds: it throws std::bad_alloc, frees all of its memory, does not change its arguments, and the call
// that succeeds has the result of one that never failed. Copies are in failing.cpp.

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "allocations.hpp"
#include "failures.hpp"
#include "fuzz/support/shown.hpp"
#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/same_table.hpp"
#include "support/tape.hpp"
#include "support/tensor.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "support/model_configs.hpp"
#define ROPE_TEST_HAS_JSON
#endif

using namespace rope;

namespace {

// Declared here, because names in the global namespace would shadow those of the headers.
using testing::batch, testing::tokens, testing::heads, testing::kv_heads, testing::head_dim;
using testing::check_making, testing::check_writing, testing::failures_of, testing::operands,
    testing::same_table, testing::vectors_lose_memory;

bool same_frequencies(const frequencies& a, const frequencies& b) {
  return a.pairs() == b.pairs() && a.axes() == b.axes() && a.attention_factor() == b.attention_factor() &&
         (a.inv_freq() == b.inv_freq()).all();
}

/// What attention goes by.
template <class Cache>
std::span<const std::int64_t> places(const Cache& cache, Index row) {
  if constexpr (requires { cache.order(row); })
    return cache.order(row);
  else
    return cache.positions(row);
}

/// How many of the `queries` newest tokens each row has, if a call of attention without counts may use them.
template <class Cache>
std::optional<std::vector<Index>> counts_of_queries(const Cache& cache, Index queries) {
  try {
    const auto counts = cache.query_counts(queries);
    return std::vector<Index>(counts.begin(), counts.end());
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

/// The table of the keys, and the one to which they are rebased.
const frequency_table<float>& table_of_keys() {
  static const frequency_table<float> table(frequencies(head_dim), 3 * tokens);
  return table;
}
const frequency_table<float>& other_table() {
  static const frequency_table<float> table(frequencies(head_dim, 1e6), 3 * tokens);
  return table;
}

/// Whether two caches contain the same tokens at the same positions, and continue in the same way.
template <class Cache>
bool same_cache(const Cache& a, const Cache& b) {
  for (const auto* table : {&table_of_keys(), &other_table()})
    if (fuzz::takes<half_split>(a, *table) != fuzz::takes<half_split>(b, *table)) return false;
  for (const Index queries : {1, 4, 9})
    if (counts_of_queries(a, queries) != counts_of_queries(b, queries)) return false;
  for (Index row = 0; row < a.batch(); ++row) {
    const auto here = places(a, row), there = places(b, row);
    if (a.size(row) != b.size(row) ||
        a.next_positions()[std::size_t(row)] != b.next_positions()[std::size_t(row)] ||
        !std::equal(here.begin(), here.end(), there.begin(), there.end()) ||
        !testing::same_heads(a.keys(row), b.keys(row)) || !testing::same_heads(a.values(row), b.values(row)))
      return false;
    if constexpr (requires { a.axes(); })
      if (a.axes() > 0 && !(a.coordinates(row) == b.coordinates(row)).all()) return false;
  }
  return true;
}

/// Checks a call that changes a cache, or the object that `same(a, b)` compares.
///
/// \return  how many times it failed
template <class Cache, class Call, class Same>
long check_changing(const Cache& cache, const Call& call, const Same& same) {
  Cache expected = cache, changed = cache;
  call(expected);
  const long failures = failures_of([&] { call(changed); }, [&] { return same(changed, cache); });
  CHECK(same(changed, expected));
  return failures;
}
template <class Cache, class Call>
long check_changing(const Cache& cache, const Call& call) {
  return check_changing(cache, call, [](const Cache& a, const Cache& b) { return same_cache(a, b); });
}
/// Checks a call that may overwrite tokens of a ring. After a failure, the ring is unchanged or empty.
template <class Ring, class Call>
long check_overwriting(const Ring& ring, const Call& call) {
  Ring expected = ring, changed = ring, empty = ring;
  call(expected);
  empty.clear();
  const auto unchanged_or_empty = [&] {
    const bool held = same_cache(changed, ring) || same_cache(changed, empty);
    changed = ring;
    return held;
  };
  const long failures = failures_of([&] { call(changed); }, unchanged_or_empty);
  CHECK(same_cache(changed, expected));
  return failures;
}

/// Two sequences in pages of a pool. The last 9 tokens of the first begin with one at the end of a page, so
/// that later pages need more scratch memory than the first.
template <class C>
struct paged {
  static constexpr Index pages = 11, page_size = 4;
  std::vector<C> keys = std::vector<C>(std::size_t(pages * page_size * kv_heads * head_dim), C(7)),
                 values = keys;
  std::vector<float> key_scales = std::vector<float>(std::size_t(pages * page_size * kv_heads), 1.0f),
                     value_scales = key_scales;
  std::vector<int> blocks = {8, 1, 6, 3, 0, 2, 9, 4}, lengths = {12, 10};
  key_storage storage = key_storage::rotated;

  page_view<C> view() {
    return {{.keys = pool(keys, key_scales), .values = pool(values, value_scales)}, blocks, lengths, storage};
  }
  /// These pages with zeros for the newest tokens of each sequence.
  paged without_newest(Index count) const {
    paged result = *this;
    for (std::size_t s = 0; s < lengths.size(); ++s)
      for (Index t = lengths[s] - count; t < lengths[s]; ++t) {
        const Index page = blocks[4 * s + static_cast<std::size_t>(t / page_size)],
                    head = (page * page_size + t % page_size) * kv_heads;
        std::fill_n(result.keys.begin() + head * head_dim, kv_heads * head_dim, C(0));
        std::fill_n(result.values.begin() + head * head_dim, kv_heads * head_dim, C(0));
        std::fill_n(result.key_scales.begin() + head, kv_heads, 0.0f);
        std::fill_n(result.value_scales.begin() + head, kv_heads, 0.0f);
      }
    return result;
  }
  friend bool operator==(const paged& a, const paged& b) {
    return testing::same_bits(a.keys, b.keys) && testing::same_bits(a.values, b.values) &&
           testing::same_bits(a.key_scales, b.key_scales) &&
           testing::same_bits(a.value_scales, b.value_scales);
  }

 private:
  static auto pool(std::vector<C>& memory, std::vector<float>& scales) {
    if constexpr (std::is_same_v<C, std::int8_t>)
      return bshd(memory.data(), scales.data(), pages, page_size, kv_heads, head_dim);
    else
      return (void)scales, bshd(memory.data(), pages, page_size, kv_heads, head_dim);
  }
};

/// Checks a call that writes the newest tokens to pages: if it fails, only these may have changed.
template <class C, class Call>
long check_page_writes(const paged<C>& pages, Index newest, const Call& call) {
  paged<C> expected = pages, changed = pages;
  call(expected);
  const paged<C> held = pages.without_newest(newest);
  const long failures =
      failures_of([&] { call(changed); }, [&] { return changed.without_newest(newest) == held; });
  CHECK(changed == expected);
  CHECK_FALSE(changed == pages);
  return failures;
}

}  // namespace

TEST_CASE("a vector without memory for an element leaks nothing, except with libc++ 14 and 15", "[noalloc]") {
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 16000
  if (vectors_lose_memory())
    WARN("libc++ "
         << _LIBCPP_VERSION
         << " loses the memory of a vector when the copy of an element fails: models may lose as much");
#if _LIBCPP_VERSION < 15000
  CHECK(vectors_lose_memory());
#endif
#else
  CHECK_FALSE(vectors_lose_memory());
#endif
}

TEST_CASE("schedules without memory leak nothing", "[noalloc]") {
  const std::vector<double> longer(8, 2.0), shorter(8, 1.0);
  const Eigen::ArrayXd given = Eigen::ArrayXd::Constant(8, 0.5);
  const Eigen::ArrayXXd directions = Eigen::ArrayXXd::Constant(8, 2, 0.25);
  const frequencies f(16);
  const auto check = [](const auto& make) { check_making(make, same_frequencies); };
  check([] { return frequencies(16, 5e5); });
  check([] { return frequencies(16, 1e4, yarn_scaling{.factor = 4, .original_max_position = 2048}); });
  check([] { return frequencies(16, 1e4, llama3_scaling{.factor = 8}, linear_scaling{2}); });
  check([&] {
    return frequencies(16, 1e4,
                       longrope_scaling{.short_factor = shorter,
                                        .long_factor = longer,
                                        .original_max_position = 4096,
                                        .max_position = 131072,
                                        .length = 5000});
  });
  check([&] { return frequencies::custom(given, 1.5); });
  check([] { return frequencies::pixel(16); });
  check([&] { return axial(f, 2); });
  check([&] { return on_axes(f, contiguous_sections({2, 3, 3})); });
  check([&] { return along_directions(f, directions); });
  check([] { return dino_v3_frequencies(16); });
  check([] { return axial_blocks({8, 4, 4}); });
}

TEST_CASE("positions without memory leak nothing", "[noalloc]") {
  const auto same = [](const auto& a, const auto& b) { return (a == b).all(); };
  const auto same_prompt = [](const auto& a, const auto& b) {
    return (a.coordinates == b.coordinates).all() && a.next == b.next;
  };
  check_making([] { return grid_positions({3, 4, 5}); }, same);
  check_making([] { return spatial_merge_order(2, 4, 4, 2); },
               [](const auto& a, const auto& b) { return a == b; });
  const std::vector<prompt_run> runs = {text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}};
  check_making([&] { return qwen_vl_positions(runs); }, same_prompt);
  check_making([&] { return hunyuan_vl_positions(runs, 4); }, same_prompt);
  check_making([&] { return key_positions(self_extend{.group = 8, .window = 10}, 30, 0, 31); },
               [](const auto& a, const auto& b) { return a == b; });
  const auto same_ranges = [](const std::vector<key_range>& a, const std::vector<key_range>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const key_range& x, const key_range& y) {
      return x.first == y.first && x.count == y.count;
    });
  };
  const std::vector<int> offsets = {0, 3, 8}, mask = {0, 0, 1, 1, 1};
  check_making([] { return chunk_ranges(3, {.queries = 8, .keys = 8}); }, same_ranges);
  check_making([&] { return segment_ranges(offsets, true); }, same_ranges);
  check_making([&] { return positions_of_mask(mask); },
               [&](const padded_rows& a, const padded_rows& b) {
                 return a.positions == b.positions && a.counts == b.counts &&
                        same_ranges(a.key_ranges, b.key_ranges);
               });
}

TEMPLATE_TEST_CASE("tables without memory leak nothing", "[noalloc]", float, double) {
  using S = TestType;
  const frequencies f(16);
  const Eigen::ArrayXXd angles = Eigen::ArrayXXd::Constant(9, 8, 0.5), cos = angles.cos(), sin = angles.sin();
  const Eigen::ArrayXXd coordinates = Eigen::ArrayXXd::Constant(5, 1, 0.5);
  const frequencies kept = fourier_frequencies(frequencies(64), 8192);
  const Eigen::MatrixXd mix = Eigen::MatrixXd::Identity(kept.pairs(), kept.pairs());
  const auto check = [](const auto& make) { check_making(make, same_table<S>); };
  check([&] { return frequency_table<S>(f, 20); });
  check([&] { return frequency_table<S>(f, -3, 4); });
  check([&] { return frequency_table<S>(f, coordinates); });
  check([&] { return frequency_table<S>::with_float_angles(f, -3, 4); });
  check([&] { return fourier_table<S>(kept, mix, mix, 32, 0, 20); });
  if constexpr (std::is_same_v<S, float>) {
    check([&] { return table_of_angles(angles, table_form::half_width); });
    check([&] { return table_of_cos_sin(cos, sin, table_form::half_width); });
  }
  check_making([&] { return row_maker<S>(f); },
               [](const row_maker<S>& a, const row_maker<S>& b) {
                 S of_a[16], of_b[16];
                 a.write(9, of_a);
                 b.write(9, of_b);
                 return std::equal(of_a, of_a + 16, of_b);
               });
  check_making([&] { return xpos<S>(f, 20, {.center = 7}); },
               [](const auto& a, const auto& b) {
                 return same_table(a.queries(), b.queries()) && same_table(a.keys(), b.keys());
               });
}

TEST_CASE("heads rotated at an expression of positions do not change without memory", "[noalloc]") {
  operands x;
  const std::vector<float> before = x.q;
  const Eigen::ArrayXi ids = Eigen::ArrayXi::LinSpaced(tokens, 0, tokens - 1);
  const auto unchanged = [&] { return testing::same_bits(x.q, before); };
  CHECK(failures_of([&] { rotate<half_split>(operands::wide(x.q), x.table, ids + 1); }, unchanged) > 0);
}

TEST_CASE("attention without scratch memory leaks nothing, and is right once it has it", "[noalloc]") {
  operands x;
  const auto q = x.wide(x.q), out = x.wide(x.out), k = x.narrow(x.k), v = x.narrow(x.v);
  check_writing(x.out, [&] { attention(q, k, v, out); });
  check_writing(x.out, [&] { attention<half_split>(q, k, v, out, x.table); });
  check_writing(x.out, [&] { attention<half_split>(q, k, v, out, x.table, {.window = 9, .sinks = 2}); });
  const auto two_calls = [&] {
    attention(q.token_range(0, 1), k, v, out.token_range(0, 1));
    attention<half_split>(q.token_range(1, 3), k, v, out.token_range(1, 3), x.table);
  };
  check_writing(x.out, two_calls, true);
  kv_cache<Eigen::half> cache(batch, tokens, kv_heads, head_dim);
  cache.append<half_split>(k, v, x.table);
  check_writing(x.out, [&] { attention<half_split>(q, cache, out, x.table); });
  kv_cache<std::int8_t> integers(batch, tokens, kv_heads, head_dim);
  integers.append<half_split>(k, v, x.table);
  check_writing(x.out, [&] { attention<half_split>(q, integers, out, x.table); });
  std::vector<float> weights(batch * heads * tokens * tokens);
  check_writing(weights, [&] { attention_weights<half_split>(q, k, weights, x.table); });
  // Weights without a query or a key become 0 before the others are computed.
  check_writing(
      weights, [&] { attention_weights<half_split>(q, cache, weights, x.table); }, true);
  std::vector<float> sums(batch * heads * tokens);
  check_writing(sums, [&] { attention_weight_sums<half_split>(q, k, sums, x.table); });
  check_writing(sums, [&] { attention_weight_sums<half_split>(q, integers, sums, x.table); });
}

TEST_CASE("gradients without scratch memory leak nothing, and are right once they have it", "[noalloc]") {
  operands x;
  const auto q = x.wide(x.q), out = x.wide(x.out), k = x.narrow(x.k), v = x.narrow(x.v);
  attention<half_split>(q, k, v, out, x.table);
  std::vector<float> d_out = x.numbers(heads, 5), d_q(x.q.size()), d_k(x.k.size()), d_v(x.v.size()),
                     all(x.q.size() + 2 * x.k.size());
  const auto put = [&] {
    auto at = std::copy(d_q.begin(), d_q.end(), all.begin());
    std::copy(d_v.begin(), d_v.end(), std::copy(d_k.begin(), d_k.end(), at));
  };
  const auto tape = testing::tape(q, k, v, out, x.wide(d_out), x.wide(d_q), x.narrow(d_k), x.narrow(d_v));
  check_writing(all, [&] {
    attention_gradient<half_split>(tape, x.table);
    put();
  });
  check_writing(all, [&] {
    attention_gradient(tape, {.window = 9});
    put();
  });
  std::vector<double> d(head_dim / 2);
  check_making([&] { return inv_freq_gradient<half_split>(q, x.wide(d_out), x.table, 3); },
               [](const auto& a, const auto& b) { return (a == b).all(); });
  const std::vector<float> weight(head_dim, 2.0f);
  std::vector<float> d_x = d_out, d_weight(head_dim);
  check_writing(d_weight, [&] {
    d_x = d_out;
    normalize_heads_gradient(q, head_norm<float>{.weight = weight}, x.wide(d_x), d_weight);
  });
}

TEST_CASE("caches without memory leak nothing", "[noalloc]") {
  const auto same = [](const auto& a, const auto& b) { return same_cache(a, b); };
  check_making([] { return kv_cache<float>(batch, 9, kv_heads, head_dim); }, same);
  check_making([] { return kv_cache<std::int8_t>(batch, 9, kv_heads, head_dim, token_axes{3}); }, same);
  check_making([] { return ring_cache<float>(batch, {.sinks = 1, .window = 9}, kv_heads, head_dim); }, same);
  check_making(
      [] { return ring_cache<float>(batch, {.sinks = 1, .window = 9}, kv_heads, head_dim, token_axes{2}); },
      same);
  check_making(
      [] { return latent_cache<Eigen::half>(batch, 9, 16, 8); },
      [](const auto& a, const auto& b) { return a.size() == b.size() && a.capacity() == b.capacity(); });
}

TEST_CASE("a cache does not change if a call runs out of memory", "[noalloc]") {
  operands x;
  const frequency_table<float> other(frequencies(head_dim, 1e6), 3 * tokens);
  const auto k = x.narrow(x.k).token_range(0, 9), v = x.narrow(x.v).token_range(0, 9);
  std::vector<int> ids, counts = {9, 4}, parents = {1, 0};
  for (int n = 0; n < 18; ++n) ids.push_back(n * 5 % 37);
  const auto check_all = [&](const auto& cache) {
    check_changing(cache, [&](auto& to) { to.template append<half_split>(k, v, x.table); });
    check_changing(cache, [&](auto& to) { to.template append<half_split>(k, v, x.table, counts); });
    check_changing(cache, [&](auto& to) { to.clear(); });
    check_changing(cache, [&](auto& to) { to.truncate(5); });
  };
  const auto check_kv = [&](auto cache) {
    cache.template append<half_split>(k, v, x.table);
    check_all(cache);
    check_changing(cache, [&](auto& to) { to.template append_rotated<half_split>(k, v, x.table); });
    check_changing(cache, [&](auto& to) { to.remove(2, 3); });
    CHECK(check_changing(cache, [&](auto& to) { to.evict(parents); }) > 0);
    CHECK(check_changing(cache, [&](auto& to) { to.reserve(2 * tokens); }) > 0);
    check_changing(cache, [&](auto& to) { to.template shift<half_split>(2, 3, 4, x.table); });
    check_changing(cache, [&](auto& to) { to.template rebase<half_split>(x.table, other); });
    check_changing(cache, [&](auto& to) { to.reorder(parents); });
    check_changing(cache, [&](auto& to) { to.copy_row(0, 1); });
    cache.truncate(4, batch_row{0});
    check_changing(cache, [&](auto& to) { to.reorder(parents); });
  };
  check_kv(kv_cache<float>(batch, tokens, kv_heads, head_dim));
  check_kv(kv_cache<Eigen::half>(batch, tokens, kv_heads, head_dim));
  check_kv(kv_cache<std::int8_t>(batch, tokens, kv_heads, head_dim));
  kv_cache<float> placed(batch, tokens, kv_heads, head_dim);
  placed.append<half_split>(k, v, x.table);
  check_changing(placed, [&](auto& to) { to.template append_at<half_split>(k, v, x.table, ids); });

  ring_cache<float> ring(batch, {.sinks = 2, .window = 9, .chunk = 9}, kv_heads, head_dim);
  for (int n = 0; n < 3; ++n) ring.append<half_split>(k, v, x.table);
  check_changing(ring, [&](auto& to) { to.template append<half_split>(k, v, x.table); });
  check_changing(ring, [&](auto& to) { to.truncate(25); });
  ring_cache<Eigen::half> narrow(batch, {.sinks = 2, .window = 9, .chunk = 9}, kv_heads, head_dim);
  for (int n = 0; n < 3; ++n) narrow.append<half_split>(k, v, x.table);
  check_overwriting(narrow, [&](auto& to) { to.template append<half_split>(k, v, x.table); });
}

TEST_CASE("a ring is unchanged, or empty if tokens were overwritten, after a call without memory",
          "[noalloc]") {
  operands x;
  const std::vector<int> counts = {9, 4}, parents = {1, 0}, twice = {1, 1};
  const auto check = [&](auto ring) {
    const auto append = [&](auto& to, const std::vector<int>& of_rows) {
      const auto k = x.narrow(x.k).token_range(0, 9), v = x.narrow(x.v).token_range(0, 9);
      testing::append_tokens<half_split>(to, k, v, x.table, of_rows);
    };
    for (int n = 0; n < 3; ++n) {
      CAPTURE(n);
      check_overwriting(ring, [&](auto& to) { append(to, {}); });
      check_overwriting(ring, [&](auto& to) { append(to, counts); });
      CHECK(check_changing(ring, [&](auto& to) { to.reorder(parents); }) > 0);
      CHECK(check_changing(ring, [&](auto& to) { to.reorder(twice); }) > 0);
      check_changing(ring, [&](auto& to) { to.copy_row(0, 1); });
      check_changing(ring, [&](auto& to) { to.truncate(to.next_positions()[1], batch_row{1}); });
      check_changing(ring, [&](auto& to) { to.clear(); });
      append(ring, counts);
    }
  };
  const ring_policy policy = {.sinks = 2, .window = 9, .chunk = 9};
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    CAPTURE(storage == key_storage::raw);
    check(ring_cache<float>(batch, policy, kv_heads, head_dim, head_dim, storage));
    check(ring_cache<Eigen::half>(batch, policy, kv_heads, head_dim, head_dim, storage));
    check(ring_cache<std::int8_t>(batch, policy, kv_heads, head_dim, head_dim, storage));
  }
}

TEST_CASE("a ring that finds memory for a key, but not for its value, is empty", "[noalloc]") {
  constexpr Index key_dim = 8, value_dim = 512;  // values need more scratch memory than keys
  const auto numbers = testing::random_channels<Eigen::half>(2 * value_dim, 17);
  const auto tokens_at = [&](Index count, Index dim) { return bshd(numbers.data(), 1, count, 1, dim); };
  ring_cache<std::int8_t> ring(1, {.window = 2, .chunk = 1}, 1, key_dim, value_dim);
  ring.append(tokens_at(2, key_dim), tokens_at(2, value_dim));
  CHECK(check_overwriting(ring, [&](auto& to) {
          to.append(tokens_at(1, value_dim).channels(key_dim, key_dim), tokens_at(1, value_dim));
        }) > 1);
}

TEMPLATE_TEST_CASE("a latent_cache does not change if a call runs out of memory", "[noalloc]", float,
                   Eigen::half) {
  constexpr Index latent_dim = 24;
  std::vector<float> latent_memory = testing::random_channels<float>(batch * tokens * latent_dim, 8),
                     part_memory = testing::random_channels<float>(batch * tokens * head_dim, 9);
  const auto latents = bshd(latent_memory.data(), batch, tokens, 1, latent_dim).token_range(0, 9),
             parts = bshd(part_memory.data(), batch, tokens, 1, head_dim).token_range(0, 9);
  const frequency_table<float>&table = table_of_keys(), &other = other_table();
  std::vector<int> ids;
  for (int n = 0; n < 18; ++n) ids.push_back(n * 5 % 37);
  const std::vector<int> counts = {9, 4}, parents = {1, 0};
  using cache_type = latent_cache<TestType>;
  const auto check_rows = [&](const cache_type& cache) {
    CHECK(check_changing(cache, [&](cache_type& to) { to.reorder(parents); }) > 0);
    check_changing(cache, [&](cache_type& to) { to.copy_row(0, 1); });
    check_changing(cache, [&](cache_type& to) { to.truncate(3, batch_row{1}); });
    check_changing(cache, [&](cache_type& to) { to.remove(1, 2, batch_row{0}); });
    check_changing(cache, [&](cache_type& to) { to.clear(); });
  };
  cache_type rotated(batch, tokens, latent_dim, head_dim);
  rotated.template append<half_split>(latents, parts, table);
  check_rows(rotated);
  const auto append = [&](cache_type& to) { to.template append<half_split>(latents, parts, table); };
  const auto append_at = [&](cache_type& to) {
    to.template append_at<half_split>(latents, parts, table, ids);
  };
  check_changing(rotated, append);
  check_changing(rotated, append_at);
  check_changing(rotated,
                 [&](cache_type& to) { to.template append<half_split>(latents, parts, table, counts); });
  CHECK(check_changing(rotated, [&](cache_type& to) { to.template shift<half_split>(2, 3, 4, table); }) > 0);
  CHECK(check_changing(rotated, [&](cache_type& to) { to.template rebase<half_split>(table, other); }) > 0);
  check_changing(rotated, [&](cache_type& to) { to.truncate(5); });
  rotated.truncate(4, batch_row{0});
  check_rows(rotated);
  CHECK(check_changing(rotated, [&](cache_type& to) { to.template rebase<half_split>(table, other); }) > 0);

  cache_type raw(batch, tokens, latent_dim, head_dim, key_storage::raw);
  raw.append(latents, parts, counts);
  check_rows(raw);
  check_changing(raw, [&](cache_type& to) { to.append(latents, parts); });
  check_changing(raw, [&](cache_type& to) { to.append_at(latents, parts, ids, counts); });
  check_changing(raw, [&](cache_type& to) { to.shift(1, 3, 4, batch_row{1}); });
}

TEMPLATE_TEST_CASE("pages and keys of the caller do not change if a call runs out of memory", "[noalloc]",
                   float, Eigen::half, std::int8_t) {
  operands x;
  const auto k = x.narrow(x.k).token_range(0, 9), v = x.narrow(x.v).token_range(0, 9);
  const frequency_table<float>&table = table_of_keys(), &other = other_table();
  const std::vector<float> weight(head_dim, 2.0f);
  const auto normed = normed_table(head_norm<float>{.weight = weight}, table);
  using pages = paged<TestType>;
  const auto same = [](const pages& a, const pages& b) { return a == b; };
  pages empty;
  const Index newest = k.tokens;
  CHECK(check_page_writes(empty, newest,
                          [&](pages& to) { write_pages<half_split>(k, v, to.view(), table); }) > 0);
  CHECK(check_page_writes(empty, newest,
                          [&](pages& to) { write_pages<half_split>(k, v, to.view(), normed); }) > 0);
  pages raw = empty;
  raw.storage = key_storage::raw;
  CHECK(check_page_writes(raw, newest, [&](pages& to) { write_pages(k, v, to.view()); }) > 0);

  pages full = empty;
  write_pages<half_split>(k, v, full.view(), table);
  CHECK(check_changing(
            full,
            [&](pages& to) {
              shift_keys<half_split>(to.view(), {.sequence = 0, .first = 5, .count = 7}, -3, table);
            },
            same) > 0);
  CHECK(check_changing(
            full, [&](pages& to) { rebase_keys<half_split>(to.view(), table, other); }, same) > 0);

  if constexpr (!std::is_same_v<TestType, std::int8_t>) {
    using keys = std::vector<TestType>;
    const auto view = [](keys& of) { return bshd(of.data(), batch, tokens, kv_heads, head_dim); };
    const auto same_keys = [](const keys& a, const keys& b) { return testing::same_bits(a, b); };
    const keys before = testing::random_channels<TestType>(batch * tokens * kv_heads * head_dim, 10);
    const Eigen::ArrayXi ids = Eigen::ArrayXi::LinSpaced(tokens, 0, tokens - 1);
    CHECK(check_changing(
              before, [&](keys& to) { shift_keys<half_split>(view(to), 5, table); }, same_keys) > 0);
    CHECK(check_changing(
              before, [&](keys& to) { rebase_keys<half_split>(view(to), 3, table, other); }, same_keys) > 0);
    CHECK(check_changing(
              before, [&](keys& to) { rebase_keys<half_split>(view(to), ids + 1, table, other); },
              same_keys) > 0);
  }
}

TEST_CASE("a cache on axes does not change if a call runs out of memory", "[noalloc]") {
  operands x;
  const frequencies f(head_dim);
  const auto k = x.narrow(x.k).token_range(0, 9), v = x.narrow(x.v).token_range(0, 9);
  const frequency_table<float> text(f, 3 * tokens);
  const frequency_table<float> placed(on_axes(f, contiguous_sections({2, 3, 3})), grid_positions({1, 3, 3}));
  std::vector<int> parents = {1, 0};
  const auto check = [&](auto cache) {
    cache.template append<half_split>(k, v, text);
    check_changing(cache, [&](auto& to) { to.template append<half_split>(k, v, text); });
    check_changing(cache, [&](auto& to) { to.template append<half_split>(k, v, placed); });
    check_changing(cache, [&](auto& to) { to.truncate(8); });
    check_changing(cache, [&](auto& to) { to.reorder(parents); });
    if constexpr (requires { cache.remove(2, 3); }) {
      check_changing(cache, [&](auto& to) { to.remove(2, 3); });
      check_changing(cache, [&](auto& to) { to.template shift<half_split>(2, 3, 4, text); });
    }
  };
  check(kv_cache<float>(batch, tokens, kv_heads, head_dim, token_axes{3}));
  check(ring_cache<float>(batch, {.sinks = 2, .window = 9, .chunk = 9}, kv_heads, head_dim, token_axes{3}));
}

TEST_CASE("a block without memory leaks nothing, and is right once it has it", "[noalloc]") {
  using rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Index dim = 8 * 16;
  const std::vector<float> weights = testing::random_channels<float>(dim * dim, 6);
  const multi_head_attention<float, half_split> block({.q = {weights.data(), dim, dim},
                                                       .k = {weights.data(), 32, dim},
                                                       .v = {weights.data(), 32, dim},
                                                       .o = {weights.data(), dim, dim}},
                                                      {.heads = 8, .kv_heads = 2});
  const std::vector<float> memory = testing::random_channels<float>(20 * dim, 7);
  const rows x = Eigen::Map<const rows>(memory.data(), 20, dim);
  const frequency_table<float> table(frequencies(16), 60);
  std::vector<float> written(std::size_t(20 * dim));
  rows out(20, dim);
  check_writing(written, [&] {
    block.forward(x, 2, out, table);
    std::copy_n(out.data(), out.size(), written.begin());
  });
  check_writing(written, [&] {
    rows d_x(20, dim);
    multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = x},
                                  multi_head_gradients<float>{.x = {d_x.data(), 20, dim}}, table);
    std::copy_n(d_x.data(), d_x.size(), written.begin());
  });
  check_writing(written, [&] {
    const projected_context<float> context = block.project_context(x, 2);
    block.cross(x, context, out);
    std::copy_n(out.data(), out.size(), written.begin());
  });
  kv_cache<float> cache(2, 30, 2, 16);
  block.forward(x.topRows(6), cache, out.topRows(6), table);
  // The scratch memory of attention may be missing after the tokens are stored in the cache: then all of them
  // are.
  kv_cache<float> expected = cache, changed = cache;
  block.forward(x, expected, out, table);
  const rows whole = out;
  long none = 0, all = 0;
  failures_of(
      [&] {
        changed.truncate(3);
        block.forward(x, changed, out, table);
      },
      [&] {
        const bool appended = changed.size() != cache.size();
        ++(appended ? all : none);
        return same_cache(changed, appended ? expected : cache);
      });
  CHECK(none > 0);
  CHECK(all > 0);
  CHECK(same_cache(changed, expected));
  CHECK(out == whole);
}

namespace {

/// A GGUF file of a model whose layers have different bases.
struct gguf_values {
  std::map<std::string, double> numbers_of = {{"llama.context_length", 4096.0},
                                              {"llama.block_count", 2.0},
                                              {"llama.embedding_length", 32.0},
                                              {"llama.attention.head_count", 4.0},
                                              {"llama.rope.dimension_count", 8.0}};
  std::optional<double> number(const std::string& key) const {
    const auto found = numbers_of.find(key);
    return found == numbers_of.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::string> text(const std::string& key) const {
    return key == "general.architecture" ? std::optional<std::string>("llama") : std::nullopt;
  }
  std::optional<std::vector<double>> numbers(const std::string& key) const {
    return key == "llama.rope.freq_base_per_layer" ? std::optional(std::vector<double>{1e4, 1e6})
                                                   : std::nullopt;
  }
};

}  // namespace

TEST_CASE("models without memory leak nothing", "[noalloc]") {
  const auto same = [](const model_rope& a, const model_rope& b) {
    return describe(a) == describe(b) && compare_models(a, b).empty();
  };
  const gguf_values file;
  check_making([&] { return import_gguf(file); }, same);
  const model_rope model = import_gguf(file);
  check_making([&] { return describe(model); }, [](const auto& a, const auto& b) { return a == b; });
  check_making([&] { return model_tables<float>(model, 16); },
               [](const auto& a, const auto& b) {
                 return a.size() == b.size() && same_table(a.of_layer(0)->table(), b.of_layer(0)->table());
               },
               sizeof(std::string));  // a model has vectors of strings and of groups of layers
#ifdef ROPE_TEST_HAS_JSON
  for (const char* name : {"llama_3_1_8b", "gemma_3_4b"}) {
    CAPTURE(name);
    const testing::json config = testing::config(name);
    check_making([&] { return import_hugging_face(config); }, same);
  }
#endif
}
