// SPDX-License-Identifier: MIT
// Ranges of keys for queries to caches and pages: a range refers to the tokens of the row in the order in
// which they were appended, whatever their positions. Compared with plain loops in double.
#include <rope/cache/attention.hpp>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/attention/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/page_calls.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace rope;

namespace {

constexpr Index kv_heads = 2, heads = 4, head_dim = 8, value_dim = 6, rows = 3;

template <class T>
std::vector<T> random_numbers(testing::random& dice, Index count) {
  std::vector<T> x(static_cast<std::size_t>(count));
  for (T& value : x) value = static_cast<T>(2 * dice.unit() - 1);
  return x;
}

template <class C>
double number(const head_view<C>& x, Index b, Index t, Index h, Index d) {
  const auto channel = static_cast<double>(x.at(b, t, h)[d]);
  if constexpr (std::is_same_v<std::remove_const_t<C>, std::int8_t>)
    return channel * static_cast<double>(*x.scale_at(b, t, h));
  else
    return channel;
}

/// The largest difference of the output of one query from sum_j w_j v_j over the keys of its range, in
/// double.
template <class T, class Keys, class Values>
double error_of(const head_view<const T>& q, const Keys& k, const Values& v, const head_view<T>& out, Index b,
                Index i, Index length, const key_range& range) {
  double worst = 0;
  const Index end = std::min(range.first + range.count, length);
  for (Index h = 0; h < heads; ++h) {
    double sum = 0, sums[value_dim] = {};
    for (Index j = range.first; j < end; ++j) {
      double score = 0;
      for (Index d = 0; d < head_dim; ++d)
        score += static_cast<double>(q.at(b, i, h)[d]) * number(k, 0, j, h / 2, d);
      const double weight = std::exp(score / std::sqrt(8.0));
      sum += weight;
      for (Index d = 0; d < value_dim; ++d) sums[d] += weight * number(v, 0, j, h / 2, d);
    }
    for (Index d = 0; d < value_dim; ++d) {
      const double exact = sum > 0 ? sums[d] / sum : 0;
      worst = std::max(worst, std::abs(static_cast<double>(out.at(b, i, h)[d]) - exact));
    }
  }
  return worst;
}

/// Channels below 1 in magnitude: a score below 8 / sqrt(8) has 11 roundings, so a weight has an error of
/// less than 70 u times itself and 20 u of the sum. The error of an output is twice that and one rounding to
/// its type.
template <class T>
double bound() {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return 200 * static_cast<double>(tolerance::unit_roundoff<A>()) +
         static_cast<double>(tolerance::unit_roundoff<T>());
}

/// Ranges for `queries` queries. Some of them are empty, and some exceed the tokens of shorter rows.
std::vector<key_range> random_ranges(testing::random& dice, Index queries, Index keys) {
  std::vector<key_range> ranges;
  for (; queries > 0; --queries) {
    const Index first = dice.integer(0, keys);
    ranges.push_back({first, dice.integer(0, 4) == 0 ? 0 : dice.integer(0, keys - first)});
  }
  return ranges;
}

template <class T, class C>
void check_caches(std::uint64_t seed, const std::vector<Index>& lengths, const std::vector<Index>& counts,
                  bool positions_ascend) {
  CAPTURE(seed, positions_ascend, lengths[0], counts[0]);
  testing::random dice(seed);
  const Index longest = *std::max_element(lengths.begin(), lengths.end()),
              queries = *std::max_element(counts.begin(), counts.end());
  const auto k = random_numbers<T>(dice, rows * longest * kv_heads * head_dim),
             v = random_numbers<T>(dice, rows * longest * kv_heads * value_dim),
             q = random_numbers<T>(dice, rows * queries * heads * head_dim);
  kv_cache<C> cache(rows, longest, kv_heads, head_dim, value_dim);
  const auto keys = bshd(k.data(), rows, longest, kv_heads, head_dim);
  const auto values = bshd(v.data(), rows, longest, kv_heads, value_dim);
  std::vector<std::int64_t> positions;
  for (Index n = 0; n < rows * longest; ++n)
    positions.push_back(positions_ascend ? n % longest : dice.integer(0, 999));
  if (positions_ascend)
    cache.append(keys, values, lengths);
  else
    cache.append_at(keys, values, positions, lengths);
  const auto asked = bshd<const T>(q.data(), rows, queries, heads, head_dim);
  for (const bool shared : {true, false}) {
    const auto ranges = random_ranges(dice, (shared ? 1 : rows) * queries, longest);
    std::vector<T> out(static_cast<std::size_t>(rows * queries * heads * value_dim), T(-9));
    const auto written = bshd(out.data(), rows, queries, heads, value_dim);
    attention(asked, cache, written, {.key_ranges = ranges}, counts);
    double worst = 0;
    for (Index b = 0; b < rows; ++b)
      for (Index i = 0; i < queries; ++i) {
        key_range range = ranges[static_cast<std::size_t>(shared ? i : b * queries + i)];
        if (i >= counts[static_cast<std::size_t>(b)]) range = {0, 0};
        worst = std::max(worst, error_of(asked, cache.keys(b), cache.values(b), written, b, i,
                                         lengths[static_cast<std::size_t>(b)], range));
      }
    CHECK(worst <= bound<T>());
  }
}

template <class T, class C>
void check_pages(std::uint64_t seed, const std::vector<Index>& counts) {
  CAPTURE(seed, counts[0]);
  testing::random dice(seed);
  const Index page_size = 7, blocks = 30, lengths[] = {200, 61, 199};
  std::vector<int> table;
  for (int n = 0; n < rows * blocks; ++n) table.push_back((n * 37) % int(rows * blocks));
  std::vector<C> key_pool(static_cast<std::size_t>(rows * blocks * page_size * kv_heads * head_dim)),
      value_pool(static_cast<std::size_t>(rows * blocks * page_size * kv_heads * value_dim));
  const page_view<C> pages(
      {.keys = bshd(key_pool.data(), rows * blocks, page_size, kv_heads, head_dim),
       .values = bshd(value_pool.data(), rows * blocks, page_size, kv_heads, value_dim)},
      Eigen::Map<const Eigen::Array<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(table.data(), rows,
                                                                                           blocks),
      lengths);
  const Index all = lengths[0] + lengths[1] + lengths[2];
  const auto k = random_numbers<C>(dice, all * kv_heads * head_dim),
             v = random_numbers<C>(dice, all * kv_heads * value_dim);
  const std::vector<std::int64_t> written_at = {0, lengths[0], lengths[0] + lengths[1], all};
  const auto keys = thd(k.data(), all, kv_heads, head_dim);
  const auto values = thd(v.data(), all, kv_heads, value_dim);
  write_pages(keys, values, pages, written_at);
  std::vector<std::int64_t> offsets = {0};
  for (const Index count : counts) offsets.push_back(offsets.back() + count);
  const auto tokens = static_cast<Index>(offsets.back());
  const auto q = random_numbers<T>(dice, tokens * heads * head_dim);
  const auto ranges = random_ranges(dice, tokens, 200);
  std::vector<T> out(static_cast<std::size_t>(tokens * heads * value_dim), T(-9));
  const auto asked = thd<const T>(q.data(), tokens, heads, head_dim);
  const auto written = thd(out.data(), tokens, heads, value_dim);
  attention(asked, pages, written, {.query_offsets = offsets, .key_ranges = ranges});
  double worst = 0;
  for (Index s = 0; s < rows; ++s) {
    const auto at = static_cast<std::size_t>(s);
    for (Index i = static_cast<Index>(offsets[at]); i < static_cast<Index>(offsets[at + 1]); ++i)
      worst = std::max(worst, error_of(asked, keys.token_range(written_at[at], lengths[s]),
                                       values.token_range(written_at[at], lengths[s]), written, 0, i,
                                       lengths[s], ranges[static_cast<std::size_t>(i)]));
  }
  CHECK(worst <= bound<T>());
}

}  // namespace

TEMPLATE_TEST_CASE("ranges of keys in caches refer to tokens in the order of the row", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<Eigen::half, Eigen::half>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>), (testing::types<float, Eigen::half>),
                   (testing::types<float, std::int8_t>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  for (std::uint64_t seed = 800; seed < 804; ++seed)
    for (const bool positions_ascend : {true, false}) {
      check_caches<T, C>(seed, {300, 300, 300}, {1, 1, 1}, positions_ascend);  // joined into one call
      check_caches<T, C>(seed, {40, 1100, 7}, {2, 2, 2}, positions_ascend);
      check_caches<T, C>(seed, {150, 90, 150}, {70, 3, 70}, positions_ascend);  // padded, and rows of prefill
      check_caches<T, C>(seed, {60, 90, 150}, {5, 5, 60}, positions_ascend);    // alike, and both padded
    }
}

TEMPLATE_TEST_CASE("ranges of keys in pages refer to tokens of the sequence", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<Eigen::half, Eigen::half>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>)) {
  using T = typename TestType::channel;
  for (std::uint64_t seed = 810; seed < 814; ++seed) {
    check_pages<T, T>(seed, {1, 1, 1});
    check_pages<T, T>(seed, {2, 0, 150});
    check_pages<T, T>(seed, {61, 61, 61});
  }
}

TEST_CASE("a cache that rotates keys attends within ranges to its rotated keys", "[cache]") {
  testing::random dice(820);
  const Index tokens = 90;
  const frequency_table<> table(frequencies(head_dim), tokens);
  const auto k = random_numbers<float>(dice, tokens * kv_heads * head_dim),
             v = random_numbers<float>(dice, tokens * kv_heads * value_dim),
             q = random_numbers<float>(dice, tokens * heads * head_dim);
  const auto keys = bshd(k.data(), 1, tokens, kv_heads, head_dim);
  const auto values = bshd(v.data(), 1, tokens, kv_heads, value_dim);
  const auto ranges = chunk_ranges(32, {.queries = tokens, .keys = tokens});
  std::vector<float> expected(static_cast<std::size_t>(tokens * heads * value_dim)), out = expected;
  attention<half_split>(bshd<const float>(q.data(), 1, tokens, heads, head_dim), keys, values,
                        bshd(expected.data(), 1, tokens, heads, value_dim), table, {.key_ranges = ranges});
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    kv_cache<float> cache(1, tokens, kv_heads, head_dim, value_dim, storage);
    for (Index t = 0; t < tokens; ++t) {
      if (storage == key_storage::raw)
        cache.append(keys.token_range(t, 1), values.token_range(t, 1));
      else
        cache.append<half_split>(keys.token_range(t, 1), values.token_range(t, 1), table);
      const auto own = chunk_ranges(32, {.queries = 1, .keys = cache.size()});
      attention<half_split>(bshd<const float>(q.data(), 1, tokens, heads, head_dim).token_range(t, 1), cache,
                            bshd(out.data(), 1, tokens, heads, value_dim).token_range(t, 1), table,
                            {.key_ranges = own});
    }
    double worst = 0;
    for (std::size_t n = 0; n < out.size(); ++n)
      worst = std::max(worst, std::abs(static_cast<double>(out[n] - expected[n])));
    CHECK(worst <= 2 * bound<float>());
  }
}

TEST_CASE("a batch padded on the left generates the tokens of each row alone", "[cache]") {
  testing::random dice(830);
  const Index tokens = 50, steps = 3, all = tokens + steps;
  const frequency_table<> table(frequencies(head_dim), all);
  const auto k = random_numbers<float>(dice, rows * all * kv_heads * head_dim),
             v = random_numbers<float>(dice, rows * all * kv_heads * value_dim),
             q = random_numbers<float>(dice, rows * all * heads * head_dim);
  const auto keys = bshd(k.data(), rows, all, kv_heads, head_dim);
  const auto values = bshd(v.data(), rows, all, kv_heads, value_dim);
  const auto queries = bshd(q.data(), rows, all, heads, head_dim);
  Eigen::Matrix<int, 3, Eigen::Dynamic, Eigen::RowMajor> mask(rows, tokens);
  mask.setOnes();
  mask.row(0).head(13).setZero();
  mask.row(2).head(49).setZero();
  const padded_rows prompt = positions_of_mask(mask);
  std::vector<float> out(static_cast<std::size_t>(rows * all * heads * value_dim), -9), expected = out;
  const auto written = bshd(out.data(), rows, all, heads, value_dim),
             alone = bshd(expected.data(), rows, all, heads, value_dim);
  kv_cache<float> cache(rows, all, kv_heads, head_dim, value_dim);
  cache.append_at<half_split>(keys.token_range(0, tokens), values.token_range(0, tokens), table,
                              prompt.positions);
  attention<half_split>(queries.token_range(0, tokens), cache, written.token_range(0, tokens), table,
                        {.key_ranges = prompt.key_ranges});
  for (Index t = tokens; t < all; ++t) {
    cache.append<half_split>(keys.token_range(t, 1), values.token_range(t, 1), table);
    std::vector<key_range> step;
    for (Index b = 0; b < rows; ++b) {
      const Index padding = tokens - static_cast<Index>(prompt.counts[static_cast<std::size_t>(b)]);
      step.push_back({padding, cache.size() - padding});
    }
    attention<half_split>(queries.token_range(t, 1), cache, written.token_range(t, 1), table,
                          {.key_ranges = step});
  }
  double worst = 0;
  for (Index b = 0; b < rows; ++b) {
    const auto real = static_cast<Index>(prompt.counts[static_cast<std::size_t>(b)]), padding = tokens - real;
    const auto row = [&](const auto& x) { return x.batch_range(b, 1).token_range(padding, all - padding); };
    attention<half_split>(row(queries), row(keys), row(values), row(alone), table);
    for (Index t = 0; t < all; ++t)
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < value_dim; ++d)
          worst = std::max(worst, std::abs(static_cast<double>(written.at(b, t, h)[d]) -
                                           (t < padding ? 0.0 : static_cast<double>(alone.at(b, t, h)[d]))));
  }
  // Both have an error within their bound, and a rotated channel has an error of 2.75 u times a pair below
  // sqrt(2) on either side.
  CHECK(worst <= 4 * bound<float>());
}

TEST_CASE("a ring throws if it gets ranges of keys", "[cache]") {
  const std::vector<float> x(heads * head_dim, 0.5f);
  std::vector<float> out(x.size(), -9);
  ring_cache<float> ring(1, {.window = 4}, heads, head_dim);
  const auto token = bshd(x.data(), 1, 1, heads, head_dim);
  ring.append(token, token);
  const key_range ranges[] = {{0, 1}};
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention(token, ring, bshd(out.data(), 1, 1, heads, head_dim), {.key_ranges = ranges}); },
      "a ring_cache overwrites old keys, so key_ranges cannot be matched to keys; use a kv_cache, or leave "
      "them empty, got 1"));
  CHECK(std::count(out.begin(), out.end(), -9.0f) == heads * head_dim);
}
