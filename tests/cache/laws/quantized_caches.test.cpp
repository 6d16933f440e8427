// SPDX-License-Identifier: MIT
// A cache of integers is a cache of the numbers that `quantize` makes of its keys and values, after any
// calls. Keys that are rotated again are rounded again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/cache/attention.hpp>
#include <rope/cache/describe.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/page_calls.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/cache/shift_keys.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/quantized.hpp"
#include "support/tensor.hpp"
#include "support/wide.hpp"

using rope::half_split;
using rope::head_view;
using rope::Index;
using rope::key_storage;
using rope::kv_cache;
using rope::quantized_view;
using rope::ring_cache;

namespace {

constexpr Index batch = 2, kv_heads = 2, heads = 6, head_dim = 20, value_dim = 12, capacity = 200;
const rope::frequency_table<float> table(rope::frequencies(16, 50.0), -300, 300);

/// Heads [batch, tokens, count, dim] of X.
template <class X>
struct owned {
  std::vector<X> memory;
  Index tokens, count, dim;

  owned(Index of_tokens, Index of_heads, Index of_dim)
      : memory(static_cast<std::size_t>(batch * of_tokens * of_heads * of_dim)),
        tokens(of_tokens),
        count(of_heads),
        dim(of_dim) {}
  owned(testing::random& numbers, Index of_tokens, Index of_heads, Index of_dim)
      : owned(of_tokens, of_heads, of_dim) {
    for (X& x : memory) x = static_cast<X>(numbers.scaled(-5, 0));
  }
  head_view<X> view() { return rope::bshd(memory.data(), batch, tokens, count, dim); }
  /// Its quantized values.
  owned<float> numbers() {
    std::vector<std::int8_t> integers(memory.size());
    std::vector<float> scales(memory.size() / static_cast<std::size_t>(dim));
    const auto narrow = rope::bshd(integers.data(), scales.data(), batch, tokens, count, dim);
    rope::quantize(view(), narrow);
    owned<float> result(tokens, count, dim);
    rope::dequantize(narrow, result.view());
    return result;
  }
  owned<float> rotated(Index start) {
    owned<float> result(tokens, count, dim);
    std::transform(memory.begin(), memory.end(), result.memory.begin(),
                   [](X x) { return static_cast<float>(x); });
    rope::rotate<half_split>(result.view(), table, start);
    return result;
  }
};

/// Whether row b of two caches contains the same numbers.
template <class Cache>
bool same_numbers(const Cache& narrow, const kv_cache<float>& wide, Index b) {
  const auto same = [](const quantized_view<const std::int8_t>& x, const head_view<const float>& y) {
    std::vector<float> memory(static_cast<std::size_t>(x.size()));
    const auto numbers = rope::bshd(memory.data(), 1, x.tokens, x.heads, x.head_dim);
    rope::dequantize(x, numbers);
    bool all = x.tokens == y.tokens && x.heads == y.heads && x.head_dim == y.head_dim;
    for (Index t = 0; t < x.tokens && all; ++t)
      for (Index h = 0; h < x.heads; ++h)
        all = all && testing::same_bits(numbers.at(0, t, h), y.at(0, t, h), x.head_dim);
    return all;
  };
  return same(narrow.keys(b), wide.keys(b)) && same(narrow.values(b), wide.values(b));
}
bool same_numbers(const kv_cache<std::int8_t>& narrow, const kv_cache<float>& wide) {
  return same_numbers(narrow, wide, 0) && same_numbers(narrow, wide, 1);
}

/// The bound of the difference between attention to integers and attention to their dequantized values:
/// queries and keys are below 2.
double bound(Index keys) {
  features::setting s;
  s.e = {batch, 1, keys, heads, kv_heads, head_dim, value_dim};
  const attention_call::operands largest = {attention_call::tensor(1, 1, 1, 1, 2),
                                            attention_call::tensor(1, 1, 1, 1, 2),
                                            attention_call::tensor(1, 1, 1, 1, 2)};
  return 2 * quantized::bound(s, largest);
}
double distance(const owned<float>& a, const owned<float>& b) {
  return testing::largest_difference(a.memory, b.memory);
}

/// Attention of `queries` queries to a cache, which reads raw keys through the table.
template <class Cache>
owned<float> attended(const Cache& cache, owned<float>& q, const rope::attention_options& options = {}) {
  owned<float> out(q.tokens, heads, value_dim);
  rope::attention<half_split>(q.view(), cache, out.view(), table, options, {}, testing::own_threads(2));
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("a cache of integers contains the quantized keys and values", "[cache]", float,
                   Eigen::half, Eigen::bfloat16) {
  const std::uint64_t seed = 5301;
  CAPTURE(seed);
  testing::random numbers(seed);
  const bool raw = GENERATE(false, true);
  const auto storage = raw ? key_storage::raw : key_storage::rotated;
  kv_cache<std::int8_t> narrow(batch, capacity, kv_heads, head_dim, value_dim, storage);
  kv_cache<float> wide(batch, capacity, kv_heads, head_dim, value_dim, storage);
  for (const Index tokens : {70, 1, 3, 1}) {
    owned<TestType> k(numbers, tokens, kv_heads, head_dim), v(numbers, tokens, kv_heads, value_dim);
    const Index start = narrow.size();
    if (raw)
      narrow.append(k.view(), v.view());
    else
      narrow.append<half_split>(k.view(), v.view(), table, {}, testing::own_threads(2));
    // 16-bit keys are rotated as floats and rounded once.
    auto stored_keys = raw ? k.numbers() : k.rotated(start).numbers(), stored_values = v.numbers();
    wide.append(stored_keys.view(), stored_values.view());
    CHECK(same_numbers(narrow, wide));
    owned<float> q(numbers, tokens, heads, head_dim);
    if (raw) {
      CHECK(distance(attended(narrow, q, {.window = 50}), attended(wide, q, {.window = 50})) <= bound(75));
    } else {
      owned<float> rotated_heads = q.rotated(start), out(tokens, heads, value_dim);
      rope::attention(rotated_heads.view(), wide, out.view(), {.softcap = 3});
      CHECK(distance(attended(narrow, q, {.softcap = 3}), out) <= bound(75));
    }
  }
  CHECK(rope::describe(narrow).find(raw ? "; raw keys of 8 bits\n" : "; rotated keys of 8 bits\n") !=
        std::string::npos);
}

TEST_CASE("a cache of integers changes as one of floats does", "[cache]") {
  const std::uint64_t seed = 5302;
  testing::random numbers(seed);
  kv_cache<std::int8_t> narrow(batch, capacity, kv_heads, head_dim, value_dim, key_storage::raw);
  kv_cache<float> wide(batch, capacity, kv_heads, head_dim, value_dim, key_storage::raw);
  long compared = 0;
  for (int step = 0; step < 120; ++step) {
    CAPTURE(seed, step);
    const Index row = numbers.integer(0, 1), size = narrow.size(row);
    const auto both = [&](const auto& change) {
      change(narrow);
      change(wide);
    };
    switch (numbers.integer(0, 6)) {
      case 0: {
        const Index keep = numbers.integer(0, size);
        both([&](auto& cache) { cache.truncate(keep, rope::batch_row{row}); });
        break;
      }
      case 1: {
        const Index first = numbers.integer(0, size), count = numbers.integer(0, size - first);
        both([&](auto& cache) { cache.remove(first, count, rope::batch_row{row}); });
        break;
      }
      case 2:
        both([&](auto& cache) { cache.copy_row(row, 1 - row); });
        break;
      case 3: {
        const int rows[] = {1, static_cast<int>(row)};
        both([&](auto& cache) { cache.reorder(rows); });
        break;
      }
      case 4:
        both([&](auto& cache) { cache.shift(0, size, 2, rope::batch_row{row}); });
        break;
      default: {
        const Index tokens = numbers.integer(1, 9);
        if ((std::max)(narrow.size(0), narrow.size(1)) + tokens > capacity) break;
        owned<float> k(numbers, tokens, kv_heads, head_dim), v(numbers, tokens, kv_heads, value_dim);
        const Index counts[] = {tokens, static_cast<Index>(numbers.integer(0, tokens))};
        narrow.append(k.view(), v.view(), counts);
        auto stored_keys = k.numbers(), stored_values = v.numbers();
        wide.append(stored_keys.view(), stored_values.view(), counts);
        owned<float> q(numbers, tokens, heads, head_dim);
        if (narrow.next_positions()[0] < 290 && narrow.next_positions()[1] < 290) {
          CHECK(distance(attended(narrow, q), attended(wide, q)) <= bound(capacity));
          ++compared;
        }
      }
    }
    CHECK(same_numbers(narrow, wide));
    CHECK(narrow.next_positions()[0] == wide.next_positions()[0]);
  }
  CHECK(compared > 10);
}

TEST_CASE("quantized keys that are rotated again are rounded again", "[cache]") {
  const std::uint64_t seed = 5303;
  CAPTURE(seed);
  testing::random numbers(seed);
  kv_cache<std::int8_t> narrow(batch, 40, kv_heads, head_dim, value_dim);
  kv_cache<float> wide(batch, 40, kv_heads, head_dim, value_dim);
  owned<float> k(numbers, 30, kv_heads, head_dim), v(numbers, 30, kv_heads, value_dim);
  narrow.append<half_split>(k.view(), v.view(), table);
  // Numbers rotated back by this table, and appended.
  owned<float> before(30, kv_heads, head_dim);
  rope::dequantize(narrow.keys(), before.view());
  rope::unrotate<half_split>(before.view(), table);
  auto values = v.numbers();
  wide.append<half_split>(before.view(), values.view(), table);
  const auto check = [&] {
    const auto x = narrow.keys();
    const auto y = wide.keys();
    double worst = 0;
    for (Index b = 0; b < batch; ++b)
      for (Index t = 0; t < x.tokens; ++t)
        for (Index h = 0; h < kv_heads; ++h) {
          const double scale = static_cast<double>(*x.scale_at(b, t, h));
          for (Index d = 0; d < head_dim; ++d) {
            const double number = scale * x.at(b, t, h)[d], exact = static_cast<double>(y.at(b, t, h)[d]);
            // The first rotation, there and back, is of floats: its error is far below 2^-10 of a scale.
            testing::raise_to(worst, std::abs(number - exact) / (scale * (0.5 + 0x1p-10)));
          }
        }
    return worst;
  };
  CHECK(check() < 0.01);
  SECTION("by a shift") {
    narrow.shift<half_split>(0, 30, -7, table);
    wide.shift<half_split>(0, 30, -7, table);
    const double worst = check();
    CHECK(worst <= 1);
    CHECK(worst > 0.5);  // the keys did rotate
  }
  SECTION("by another table") {
    const rope::frequency_table<float> other(rope::frequencies(16, 500.0), -300, 300);
    narrow.rebase<half_split>(table, other);
    wide.rebase<half_split>(table, other);
    const double worst = check();
    CHECK(worst <= 1);
    CHECK(worst > 0.5);
  }
  CHECK(narrow.positions(1)[3] == wide.positions(1)[3]);
}

TEST_CASE("quantized keys in pages rotate as those of a cache", "[cache]") {
  const std::uint64_t seed = 5307;
  CAPTURE(seed);
  testing::random numbers(seed);
  const Index tokens = 10, page_size = 4;
  owned<float> k(numbers, tokens, kv_heads, head_dim), v(numbers, tokens, kv_heads, value_dim);
  const auto one = [](const owned<float>& x) {
    return rope::bshd(x.memory.data(), 1, x.tokens, x.count, x.dim);
  };
  kv_cache<std::int8_t> cache(1, tokens, kv_heads, head_dim, value_dim);
  cache.append<half_split>(one(k), one(v), table);
  testing::owned_heads<std::int8_t> keys(4, page_size, kv_heads, head_dim),
      values(4, page_size, kv_heads, value_dim);
  const int blocks[] = {2, 0, 3}, lengths[] = {static_cast<int>(tokens)};
  const rope::page_view<std::int8_t> pages({.keys = keys.view(true), .values = values.view(true)}, blocks,
                                           lengths);
  rope::write_pages<half_split>(one(k), one(v), pages, table);
  const rope::frequency_table<float> other(rope::frequencies(16, 500.0), -300, 300);
  const auto same = [&] {
    bool all = true;
    for (Index t = 0; t < tokens; ++t)
      all = all &&
            testing::same_heads(pages.keys().batch_range(pages.page(0, t), 1).token_range(pages.slot(t), 1),
                                cache.keys().token_range(t, 1));
    return all;
  };
  CHECK(same());
  cache.rebase<half_split>(table, other);
  rope::rebase_keys<half_split>(pages, table, other);
  CHECK(same());
  cache.shift<half_split>(3, 6, -2, other);
  CHECK_FALSE(same());
  rope::shift_keys<half_split>(pages, {.sequence = 0, .first = 3, .count = 6}, -2, other);
  CHECK(same());
  auto few_scales = pages.keys();
  few_scales.scales.heads = 1;
  CHECK_THROWS_AS(
      rope::page_view<std::int8_t>({.keys = few_scales, .values = pages.values()}, blocks, lengths),
      std::invalid_argument);
}

TEST_CASE("integer products have the same bits for every source of keys", "[cache]") {
  const std::uint64_t seed = 5310;
  testing::random numbers(seed);
  // Few enough queries that they are not multiplied in full precision. The limit depends on the number of
  // registers.
  const Index most = rope::detail::max_decode_rows<float, std::int8_t>({}) / (heads / kv_heads);
  const Index tokens = 300, queries = (std::min)(Index{2}, most), page_size = GENERATE(1, 3, 16, 130);
  CAPTURE(seed, page_size, queries);
  owned<float> k(numbers, tokens, kv_heads, head_dim), v(numbers, tokens, kv_heads, value_dim),
      q(numbers, queries, heads, head_dim);
  const auto one = [](owned<float>& x) { return rope::bshd(x.memory.data(), 1, x.tokens, x.count, x.dim); };
  kv_cache<std::int8_t> cache(1, tokens, kv_heads, head_dim, value_dim);
  ring_cache<std::int8_t> ring(1, {.sinks = 4, .window = tokens}, kv_heads, head_dim, value_dim);
  cache.append<half_split>(one(k), one(v), table);
  ring.append<half_split>(one(k), one(v), table);
  const Index pages = (tokens + page_size - 1) / page_size;
  testing::owned_heads<std::int8_t> keys(pages, page_size, kv_heads, head_dim),
      values(pages, page_size, kv_heads, value_dim);
  std::vector<int> blocks(static_cast<std::size_t>(pages));
  for (Index i = 0; i < pages; ++i) blocks[static_cast<std::size_t>(i)] = static_cast<int>(pages - 1 - i);
  const int lengths[] = {static_cast<int>(tokens)};
  const rope::page_view<std::int8_t> view({.keys = keys.view(true), .values = values.view(true)}, blocks,
                                          lengths);
  rope::write_pages<half_split>(one(k), one(v), view, table);

  for (const Index window : {0, 77, 128}) {
    rope::attention_options options = {.window = window};
    const auto attended_to = [&](const auto& keys_of) {
      owned<float> out(q.tokens, heads, value_dim);
      rope::attention<half_split>(one(q), keys_of, one(out), table, options);
      return out.memory;
    };
    const auto full = attended_to(cache);
    options.products = rope::product_precision::integers;
    const auto got = attended_to(cache);
    CHECK(got != full);
    if (window == 0) CHECK(attended_to(ring) == got);  // the window of the ring contains every token
    const std::int64_t offsets[] = {0, q.tokens};
    options.query_offsets = offsets;
    owned<float> out(q.tokens, heads, value_dim);
    rope::attention<half_split>(rope::thd(q.memory.data(), q.tokens, heads, head_dim), view,
                                rope::thd(out.memory.data(), q.tokens, heads, value_dim), table, options,
                                testing::own_threads(2));
    CHECK(out.memory == got);
  }
}

TEST_CASE("a ring of integers is a ring of their dequantized values", "[cache]") {
  const std::uint64_t seed = 5304;
  CAPTURE(seed);
  testing::random numbers(seed);
  const bool by_rank = GENERATE(false, true);
  const rope::ring_policy policy = {
      .sinks = 2,
      .window = 20,
      .positions = by_rank ? rope::ring_positions::cache : rope::ring_positions::sequence};
  ring_cache<std::int8_t> narrow(batch, policy, kv_heads, head_dim, value_dim, key_storage::raw);
  ring_cache<float> wide(batch, policy, kv_heads, head_dim, value_dim, key_storage::raw);
  for (int step = 0; step < 60; ++step) {
    owned<float> k(numbers, 1, kv_heads, head_dim), v(numbers, 1, kv_heads, value_dim),
        q(numbers, 1, heads, head_dim);
    narrow.append(k.view(), v.view());
    auto stored_keys = k.numbers(), stored_values = v.numbers();
    wide.append(stored_keys.view(), stored_values.view());
    const double off = distance(attended(narrow, q), attended(wide, q));
    CHECK(off <= (by_rank ? 0.0 : bound(22)));
  }
}

TEST_CASE("quantized tokens have coordinates", "[cache]") {
  const std::uint64_t seed = 5305;
  CAPTURE(seed);
  testing::random numbers(seed);
  kv_cache<std::int8_t> narrow(batch, 9, kv_heads, head_dim, rope::token_axes{2}, value_dim,
                               key_storage::raw);
  kv_cache<float> wide(batch, 9, kv_heads, head_dim, rope::token_axes{2}, value_dim, key_storage::raw);
  owned<float> k(numbers, 4, kv_heads, head_dim), v(numbers, 4, kv_heads, value_dim),
      q(numbers, 4, heads, head_dim);
  const double at[] = {0, 0, 1, 0, 0, 1, 1, 1};
  const Eigen::Map<const Eigen::Array<double, 4, 2, Eigen::RowMajor>> coordinates(at);
  narrow.append_at(k.view(), v.view(), rope::token_coordinates(coordinates));
  auto stored_keys = k.numbers(), stored_values = v.numbers();
  wide.append_at(stored_keys.view(), stored_values.view(), rope::token_coordinates(coordinates));
  const rope::frequency_table<float> of_all(rope::axial(rope::frequencies(8), 2), narrow.coordinates());
  owned<float> a(4, heads, value_dim), b(4, heads, value_dim);
  rope::attention<half_split>(q.view(), narrow, a.view(), of_all);
  rope::attention<half_split>(q.view(), wide, b.view(), of_all);
  CHECK(distance(a, b) <= bound(4));
}

TEST_CASE("a cache of integers throws if an argument does not fit, and does not change", "[cache]") {
  const std::uint64_t seed = 5306;
  testing::random numbers(seed);
  kv_cache<std::int8_t> cache(batch, 5, kv_heads, head_dim, value_dim);
  owned<float> k(numbers, 3, kv_heads, head_dim), v(numbers, 3, kv_heads, value_dim), q(numbers, 3, heads, 7);
  cache.append<half_split>(k.view(), v.view(), table);
  const std::vector<std::int8_t> before(cache.keys().at(0, 0, 0), cache.keys().at(0, 0, 0) + 3 * head_dim);
  CHECK_THROWS_AS(cache.append<half_split>(k.view(), v.view(), table), std::length_error);
  CHECK_THROWS_AS(cache.append<half_split>(v.view(), v.view(), table), std::invalid_argument);
  CHECK_THROWS_AS(cache.append(k.view().token_range(0, 1), v.view().token_range(0, 1)),
                  std::invalid_argument);
  CHECK_THROWS_AS(attended(cache, q), std::invalid_argument);
  CHECK(cache.size() == 3);
  CHECK(std::equal(before.begin(), before.end(), cache.keys().at(0, 0, 0)));
  // Caches without channels or heads have nothing to round.
  kv_cache<std::int8_t> nothing(batch, 5, 0, head_dim);
  CHECK(nothing.keys().size() == 0);
  kv_cache<std::int8_t> moved = std::move(cache);
  CHECK(moved.size() == 3);
  kv_cache<std::int8_t> copy = moved;
  moved.clear();
  CHECK(std::equal(before.begin(), before.end(), copy.keys().at(0, 0, 0)));
}

TEMPLATE_TEST_CASE("keys normalised during an append are quantized once", "[cache]", float, Eigen::half,
                   Eigen::bfloat16) {
  const std::uint64_t seed = 97;
  CAPTURE(seed);
  testing::random numbers(seed);
  owned<TestType> k(numbers, 7, kv_heads, head_dim), v(numbers, 7, kv_heads, value_dim);
  const std::vector<float> weight = testing::random_channels<float>(kv_heads * head_dim, 98);
  const rope::head_norm<float> norm = {.weight = weight, .epsilon = 0.25, .offset = 1};
  kv_cache<std::int8_t> cache(batch, capacity, kv_heads, head_dim, value_dim), by_hand = cache;
  cache.append<half_split>(k.view(), v.view(), rope::normed_table(norm, table));
  owned<float> rotated_heads(7, kv_heads, head_dim);
  std::transform(k.memory.begin(), k.memory.end(), rotated_heads.memory.begin(),
                 [](TestType x) { return static_cast<float>(x); });
  rope::normalize_and_rotate<half_split>(rotated_heads.view(), norm, table);
  by_hand.append(rotated_heads.view(), v.view());
  kv_cache<float> expected(batch, capacity, kv_heads, head_dim, value_dim);
  expected.append(rotated_heads.numbers().view(), v.numbers().view());
  for (Index b = 0; b < batch; ++b) {
    CHECK(same_numbers(cache, expected, b));
    CHECK(same_numbers(by_hand, expected, b));
  }
}
