// SPDX-License-Identifier: MIT
// Keys in caches and pages that are chosen for each query, as a range or as a list. Both number the tokens of
// a row in the order of appending, not by position. Compared with plain loops in double.
#include <rope/cache/attention.hpp>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <rope/attention/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/page_calls.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/cache/weights.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/selected_keys.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using namespace rope;

namespace {

constexpr Index kv_heads = 2, heads = 4, head_dim = 8, value_dim = 6, rows = 3, listed = 20;

template <class T>
std::vector<T> random_numbers(testing::random& dice, Index count) {
  std::vector<T> x(static_cast<std::size_t>(count));
  for (T& value : x) value = static_cast<T>(2 * dice.unit() - 1);
  return x;
}

template <class C>
double number(const head_view<C>& x, Index t, Index h, Index d) {
  const auto channel = static_cast<double>(x.at(0, t, h)[d]);
  if constexpr (std::is_same_v<std::remove_const_t<C>, std::int8_t>)
    return channel * static_cast<double>(*x.scale_at(0, t, h));
  else
    return channel;
}

/// The largest difference of the output of one query head from sum_j w_j v_j over these keys, in double.
template <class T, class Keys, class Values>
double error_of(const head_view<const T>& q, const Keys& k, const Values& v, const head_view<T>& out, Index b,
                Index i, Index h, const std::vector<Index>& keys) {
  double sum = 0, sums[value_dim] = {}, worst = 0;
  for (const Index j : keys) {
    double score = 0;
    for (Index d = 0; d < head_dim; ++d)
      score += static_cast<double>(q.at(b, i, h)[d]) * number(k, j, h / 2, d);
    const double weight = std::exp(score / std::sqrt(8.0));
    sum += weight;
    for (Index d = 0; d < value_dim; ++d) sums[d] += weight * number(v, j, h / 2, d);
  }
  for (Index d = 0; d < value_dim; ++d)
    testing::raise_to(worst,
                      std::abs(static_cast<double>(out.at(b, i, h)[d]) - (sum > 0 ? sums[d] / sum : 0)));
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

/// A cache of C with random tokens of T in rows of the given lengths. Positions ascend or are random.
template <class T, class C>
struct random_cache {
  Index longest;
  std::vector<std::int64_t> positions;
  kv_cache<C> cache;

  random_cache(testing::random& dice, const std::vector<Index>& lengths, bool positions_ascend)
      : longest(*std::max_element(lengths.begin(), lengths.end())),
        cache(rows, longest, kv_heads, head_dim, value_dim) {
    const auto k = random_numbers<T>(dice, rows * longest * kv_heads * head_dim),
               v = random_numbers<T>(dice, rows * longest * kv_heads * value_dim);
    const auto keys = bshd(k.data(), rows, longest, kv_heads, head_dim);
    const auto values = bshd(v.data(), rows, longest, kv_heads, value_dim);
    for (Index n = 0; n < rows * longest; ++n)
      positions.push_back(positions_ascend ? n % longest : dice.integer(0, 999));
    if (positions_ascend)
      cache.append(keys, values, lengths);
    else
      cache.append_at(keys, values, positions, lengths);
  }
  std::int64_t position(Index b, Index t) const {
    return positions[static_cast<std::size_t>(b * longest + t)];
  }
};

/// Three sequences of random tokens in pages that are not in order.
template <class C>
struct random_pages {
  static constexpr Index page_size = 7, blocks = 30, lengths[] = {200, 61, 199}, all = 460,
                         first[] = {0, 200, 261};
  std::vector<int> table;
  std::vector<C> k, v, key_pool, value_pool;

  explicit random_pages(testing::random& dice)
      : k(random_numbers<C>(dice, all * kv_heads * head_dim)),
        v(random_numbers<C>(dice, all * kv_heads * value_dim)),
        key_pool(static_cast<std::size_t>(rows * blocks * page_size * kv_heads * head_dim)),
        value_pool(static_cast<std::size_t>(rows * blocks * page_size * kv_heads * value_dim)) {
    for (int n = 0; n < rows * blocks; ++n) table.push_back((n * 37) % int(rows * blocks));
    const std::vector<std::int64_t> written_at = {first[0], first[1], first[2], all};
    write_pages(thd<const C>(k.data(), all, kv_heads, head_dim),
                thd<const C>(v.data(), all, kv_heads, value_dim), pages(), written_at);
  }
  page_view<C> pages() {
    return {{.keys = bshd(key_pool.data(), rows * blocks, page_size, kv_heads, head_dim),
             .values = bshd(value_pool.data(), rows * blocks, page_size, kv_heads, value_dim)},
            Eigen::Map<const Eigen::Array<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
                table.data(), rows, blocks),
            lengths};
  }
  head_view<const C> keys(std::size_t s) const {
    return thd(k.data(), all, kv_heads, head_dim).token_range(first[s], lengths[s]);
  }
  head_view<const C> values(std::size_t s) const {
    return thd(v.data(), all, kv_heads, value_dim).token_range(first[s], lengths[s]);
  }
};

std::vector<std::int64_t> offsets_of(const std::vector<Index>& counts) {
  std::vector<std::int64_t> offsets = {0};
  for (const Index count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

/// Ranges of keys for the queries of some rows.
class ranges_of_keys {
 public:
  /// Adds `queries` queries. Some ranges are empty, and some exceed the tokens of shorter rows.
  void add(testing::random& dice, Index queries, Index /*keys*/, Index longest) {
    for (; queries > 0; --queries) {
      const Index first = dice.integer(0, longest);
      all_.push_back(
          {first, dice.integer(0, 4) == 0 ? 0 : static_cast<Index>(dice.integer(0, longest - first))});
    }
  }
  void put_into(attention_options& options) const { options.key_ranges = all_; }
  /// The keys of query `n` of these, in a row of this length.
  std::vector<Index> keys(Index n, Index /*head*/, Index length, Index /*newest*/,
                          const auto& /*position_of*/) const {
    const key_range range = all_[static_cast<std::size_t>(n)];
    std::vector<Index> keys;
    for (Index j = range.first; j < std::min(range.first + range.count, length); ++j) keys.push_back(j);
    return keys;
  }

 private:
  std::vector<key_range> all_;
};

/// Lists [queries, kv_heads, listed] of different keys. Some of them are empty.
class lists_of_keys {
 public:
  void add(testing::random& dice, Index queries, Index keys, Index /*longest*/) {
    for (Index n = queries * kv_heads; n > 0; --n) {
      const auto count = dice.integer(0, 4) == 0 ? 0 : std::min<std::int64_t>(keys, dice.integer(0, listed));
      std::vector<int> chosen;
      while (static_cast<std::int64_t>(chosen.size()) < count) {
        const auto key = static_cast<int>(dice.integer(0, keys - 1));
        if (std::find(chosen.begin(), chosen.end(), key) == chosen.end()) chosen.push_back(key);
      }
      for (Index i = 0; i < listed; ++i)
        all_.push_back(i < count ? chosen[static_cast<std::size_t>(i)] : i == count ? -1 : 1 << 20);
    }
  }
  void put_into(attention_options& options) const {
    options.selected = {all_.data(),
                        {.queries = static_cast<Index>(all_.size()) / (kv_heads * listed),
                         .key_heads = kv_heads,
                         .keys = listed}};
  }
  /// The keys in the list of query `n` of these that are not after its own token `newest`.
  std::vector<Index> keys(Index n, Index head, Index /*length*/, Index newest,
                          const auto& position_of) const {
    const int* list = all_.data() + (n * kv_heads + head / 2) * listed;
    std::vector<Index> keys;
    for (Index i = 0; i < listed && list[i] >= 0; ++i)
      if (position_of(list[i]) <= position_of(newest)) keys.push_back(list[i]);
    return keys;
  }

 private:
  std::vector<int> all_;
};

template <class Chosen, class T, class C>
void check_cache(std::uint64_t seed, const std::vector<Index>& lengths, const std::vector<Index>& counts,
                 bool positions_ascend) {
  CAPTURE(seed, positions_ascend, lengths[0], counts[0]);
  testing::random dice(seed);
  const Index shortest = *std::min_element(lengths.begin(), lengths.end()),
              queries = *std::max_element(counts.begin(), counts.end());
  const random_cache<T, C> of(dice, lengths, positions_ascend);
  const auto q = random_numbers<T>(dice, rows * queries * heads * head_dim);
  const auto asked = bshd<const T>(q.data(), rows, queries, heads, head_dim);
  for (const bool shared : {true, false}) {
    Chosen chosen;
    for (Index b = 0; b < (shared ? 1 : rows); ++b)
      chosen.add(dice, queries, shared ? shortest : lengths[static_cast<std::size_t>(b)], of.longest);
    std::vector<T> out(static_cast<std::size_t>(rows * queries * heads * value_dim), T(-9));
    const auto written = bshd(out.data(), rows, queries, heads, value_dim);
    attention_options options;
    chosen.put_into(options);
    attention(asked, of.cache, written, options, counts);
    double worst = 0;
    for (Index b = 0; b < rows; ++b)
      for (Index i = 0; i < queries; ++i)
        for (Index h = 0; h < heads; ++h) {
          const Index length = lengths[static_cast<std::size_t>(b)],
                      count = counts[static_cast<std::size_t>(b)];
          std::vector<Index> seen;
          if (i < count)
            seen = chosen.keys((shared ? 0 : b) * queries + i, h, length, length - count + i,
                               [&](Index j) { return of.position(b, j); });
          testing::raise_to(worst,
                            error_of(asked, of.cache.keys(b), of.cache.values(b), written, b, i, h, seen));
        }
    CHECK(worst <= bound<T>());
  }
}

template <class Chosen, class T, class C>
void check_caches(std::uint64_t first_seed) {
  for (std::uint64_t seed = first_seed; seed < first_seed + 4; ++seed)
    for (const bool positions_ascend : {true, false}) {
      // Joined into one call, padded, with rows of prefill, and rows alike of which all are padded.
      check_cache<Chosen, T, C>(seed, {300, 300, 300}, {1, 1, 1}, positions_ascend);
      check_cache<Chosen, T, C>(seed, {40, 1100, 7}, {2, 2, 2}, positions_ascend);
      check_cache<Chosen, T, C>(seed, {150, 90, 150}, {70, 3, 70}, positions_ascend);
      check_cache<Chosen, T, C>(seed, {60, 90, 150}, {5, 5, 60}, positions_ascend);
    }
}

template <class Chosen, class T>
void check_pages(std::uint64_t first_seed) {
  for (std::uint64_t seed = first_seed; seed < first_seed + 4; ++seed)
    for (const std::vector<Index>& counts :
         {std::vector<Index>{1, 1, 1}, {2, 0, 150}, {2, 0, 50}, {61, 61, 61}}) {
      CAPTURE(seed, counts);
      testing::random dice(seed);
      random_pages<T> of(dice);
      const std::vector<std::int64_t> offsets = offsets_of(counts);
      const auto tokens = static_cast<Index>(offsets.back());
      const auto q = random_numbers<T>(dice, tokens * heads * head_dim);
      Chosen chosen;
      for (std::size_t s = 0; s < counts.size(); ++s)
        chosen.add(dice, counts[s], of.lengths[s], of.lengths[0]);
      std::vector<T> out(static_cast<std::size_t>(tokens * heads * value_dim), T(-9));
      const auto asked = thd<const T>(q.data(), tokens, heads, head_dim);
      const auto written = thd(out.data(), tokens, heads, value_dim);
      attention_options options = {.query_offsets = offsets};
      chosen.put_into(options);
      attention(asked, of.pages(), written, options);
      double worst = 0;
      for (std::size_t s = 0; s < counts.size(); ++s)
        for (Index i = 0; i < counts[s]; ++i)
          for (Index h = 0; h < heads; ++h) {
            const Index token = static_cast<Index>(offsets[s]) + i;
            const auto seen = chosen.keys(token, h, of.lengths[s], of.lengths[s] - counts[s] + i,
                                          [](Index j) { return j; });
            testing::raise_to(worst, error_of(asked, of.keys(s), of.values(s), written, 0, token, h, seen));
          }
      CHECK(worst <= bound<T>());
    }
}

}  // namespace

TEMPLATE_TEST_CASE("ranges of keys in caches refer to tokens in the order of the row", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<Eigen::half, Eigen::half>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>), (testing::types<float, Eigen::half>),
                   (testing::types<float, std::int8_t>)) {
  check_caches<ranges_of_keys, typename TestType::channel, typename TestType::entry>(800);
}

TEMPLATE_TEST_CASE("ranges of keys in pages refer to tokens of the sequence", "[cache]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  check_pages<ranges_of_keys, TestType>(810);
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
      testing::append_tokens<half_split>(cache, keys.token_range(t, 1), values.token_range(t, 1), table);
      const auto own = chunk_ranges(32, {.queries = 1, .keys = cache.size()});
      attention<half_split>(bshd<const float>(q.data(), 1, tokens, heads, head_dim).token_range(t, 1), cache,
                            bshd(out.data(), 1, tokens, heads, value_dim).token_range(t, 1), table,
                            {.key_ranges = own});
    }
    CHECK(testing::largest_difference(out, expected) <= 2 * bound<float>());
  }
}

TEST_CASE("ranges of the padding of a step may exceed the tokens of the longest row", "[cache]") {
  testing::random dice(825);
  const Index batch = 2, tokens = 4, before[] = {5, 12};
  const std::vector<Index> counts = {4, 1}, prompts = {5, 12};
  const frequency_table<> table(frequencies(head_dim), 20);
  const auto k = random_numbers<float>(dice, batch * 12 * kv_heads * head_dim),
             v = random_numbers<float>(dice, batch * 12 * kv_heads * value_dim),
             q = random_numbers<float>(dice, batch * tokens * heads * head_dim);
  const auto keys = bshd(k.data(), batch, 12, kv_heads, head_dim);
  const auto values = bshd(v.data(), batch, 12, kv_heads, value_dim);
  const auto queries = bshd(q.data(), batch, tokens, heads, head_dim);
  kv_cache<float> cache(batch, 20, kv_heads, head_dim, value_dim);
  cache.append<half_split>(keys, values, table, prompts);
  cache.append<half_split>(keys.token_range(0, tokens), values.token_range(0, tokens), table, counts);
  std::vector<key_range> ranges;  // chunks of 8 tokens: those of row 1 reach token 15, and it has 13 tokens
  for (Index b = 0; b < batch; ++b)
    for (Index p = before[b]; p < before[b] + tokens; ++p) ranges.push_back({p / 8 * 8, p % 8 + 1});
  const auto attended = [&](const std::vector<key_range>& list) {
    std::vector<float> out(static_cast<std::size_t>(batch * tokens * heads * value_dim), -9);
    attention<half_split>(queries, cache, bshd(out.data(), batch, tokens, heads, value_dim), table,
                          {.key_ranges = list}, counts);
    return out;
  };
  const std::vector<float> out = attended(ranges);
  std::fill(ranges.end() - 3, ranges.end(), key_range{0, 0});
  CHECK(testing::same_bits(out, attended(ranges)));
  ranges[4] = {8, 6};  // of a query
  CHECK(testing::throws_saying<std::invalid_argument>([&] { attended(ranges); },
                                                      "{first = 8, count = 6} for query 4"));
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
  std::fill(expected.begin(), expected.end(), 0.0f);  // of padding
  for (Index b = 0; b < rows; ++b) {
    const auto real = static_cast<Index>(prompt.counts[static_cast<std::size_t>(b)]), padding = tokens - real;
    const auto row = [&](const auto& x) { return x.batch_range(b, 1).token_range(padding, all - padding); };
    attention<half_split>(row(queries), row(keys), row(values), row(alone), table);
  }
  // Both have an error within their bound, and a rotated channel has an error of 2.75 u times a pair below
  // sqrt(2) on either side.
  CHECK(testing::largest_difference(out, expected) <= 4 * bound<float>());
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

TEMPLATE_TEST_CASE("selected keys in caches refer to tokens in the order of the row", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<Eigen::half, Eigen::half>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>), (testing::types<float, Eigen::half>),
                   (testing::types<float, std::int8_t>)) {
  check_caches<lists_of_keys, typename TestType::channel, typename TestType::entry>(900);
}

TEMPLATE_TEST_CASE("selected keys in pages refer to tokens of the sequence", "[cache]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  check_pages<lists_of_keys, TestType>(910);
}

TEST_CASE(
    "a cache attends to selected keys as with a mask of them, rotated or raw, and its weights are those of "
    "the mask",
    "[cache]") {
  testing::random dice(920);
  const Index tokens = 90, queries = 3;
  const frequency_table<> table(frequencies(head_dim), tokens);
  const auto k = random_numbers<float>(dice, tokens * kv_heads * head_dim),
             v = random_numbers<float>(dice, tokens * kv_heads * value_dim),
             q = random_numbers<float>(dice, queries * heads * head_dim);
  const auto asked = bshd<const float>(q.data(), 1, queries, heads, head_dim);
  lists_of_keys lists;
  lists.add(dice, queries, tokens, tokens);
  attention_options selected;
  lists.put_into(selected);
  const std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(heads * queries * tokens)]());
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < queries; ++i)
      for (const Index j : lists.keys(i, h, tokens, tokens - 1, [](Index at) { return at; }))
        mask[static_cast<std::size_t>((h * queries + i) * tokens + j)] = true;
  const attention_options masked = {
      .mask = score_matrix(static_cast<const bool*>(mask.get()), 1, heads, queries, tokens)};
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    kv_cache<float> cache(1, tokens, kv_heads, head_dim, value_dim, storage);
    const auto keys = bshd(k.data(), 1, tokens, kv_heads, head_dim);
    const auto values = bshd(v.data(), 1, tokens, kv_heads, value_dim);
    storage == key_storage::raw ? cache.append(keys, values) : cache.append<half_split>(keys, values, table);
    const auto differ = [&](std::size_t size, const auto& call) {
      std::vector<float> a(size, -9), b(size, -8);
      call(a, selected), call(b, masked);
      return testing::largest_difference(a, b);
    };
    const auto extent = static_cast<std::size_t>(heads * queries);
    CHECK(differ(extent * value_dim, [&](std::vector<float>& out, const attention_options& options) {
            attention<half_split>(asked, cache, bshd(out.data(), 1, queries, heads, value_dim), table,
                                  options);
          }) <= 2 * bound<float>());
    CHECK(differ(extent * tokens, [&](std::vector<float>& weights, const attention_options& options) {
            attention_weights<half_split>(asked, cache, weights, table, options);
          }) <= 2 * bound<float>());
    for (const Index of_heads : {heads, kv_heads})
      CHECK(differ(static_cast<std::size_t>(of_heads * tokens),
                   [&](std::vector<float>& sums, const attention_options& options) {
                     attention_weight_sums<half_split>(asked, cache, std::span<float>(sums), table, options);
                   }) <= 2 * double(queries * 2) * bound<float>());
  }
}

TEMPLATE_TEST_CASE("many query heads share the selected keys of their key head", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>), (testing::types<float, Eigen::half>),
                   (testing::types<float, std::int8_t>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  testing::random dice(940);
  const Index tokens = 300, many = 60;  // the prefill kernel
  const auto k = random_numbers<T>(dice, tokens * head_dim), v = random_numbers<T>(dice, tokens * value_dim),
             q = random_numbers<T>(dice, many * head_dim);
  kv_cache<C> cache(1, tokens, 1, head_dim, value_dim);
  cache.append(bshd(k.data(), 1, tokens, 1, head_dim), bshd(v.data(), 1, tokens, 1, value_dim));
  std::vector<std::int64_t> list;
  for (Index j = 0; j < 150; ++j) list.push_back((j * 77 + 5) % tokens);
  const std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(tokens)]());
  for (const std::int64_t j : list) mask[static_cast<std::size_t>(j)] = true;
  const auto asked = bshd<const T>(q.data(), 1, 1, many, head_dim);
  const auto differ = [&](product_precision products) {
    std::vector<T> a(static_cast<std::size_t>(many * value_dim), T(-9)), b(a.size(), T(-8));
    attention(asked, cache, bshd(a.data(), 1, 1, many, value_dim), {.products = products, .selected = list});
    attention(
        asked, cache, bshd(b.data(), 1, 1, many, value_dim),
        {.mask = score_matrix(static_cast<const bool*>(mask.get()), 1, 1, 1, tokens), .products = products});
    return testing::largest_difference(a, b);
  };
  CHECK(differ(product_precision::full) <= 2 * bound<T>());
  // The rounding error of a weight is 2^-8 of itself, or 2^-15.9 of the largest one of 128 keys.
  if constexpr (std::is_same_v<C, Eigen::bfloat16>) CHECK(differ(product_precision::bfloat16) <= 0x1p-6);
  if constexpr (std::is_same_v<C, std::int8_t>) CHECK(differ(product_precision::integers) <= 128 * 0x1p-15);
}

TEST_CASE("latents are selected for all query heads at once", "[cache]") {
  testing::random dice(930);
  const Index tokens = 400, latent_dim = 24, rotary_dim = 8, many = 70;
  const auto latents = random_numbers<float>(dice, tokens * (latent_dim + rotary_dim)),
             q = random_numbers<float>(dice, many * (latent_dim + rotary_dim));
  latent_cache<float> cache(1, tokens, latent_dim, rotary_dim);
  const auto all = bshd(latents.data(), 1, tokens, 1, latent_dim + rotary_dim);
  cache.append(all.channels(0, latent_dim), all.channels(latent_dim, rotary_dim));
  std::vector<std::int64_t> list;
  for (Index j = 0; j < tokens; j += 3) list.push_back(tokens - 1 - j);
  const std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(tokens)]());
  for (const std::int64_t j : list) mask[static_cast<std::size_t>(j)] = true;
  for (const Index query_heads : {Index{4}, many}) {
    std::vector<float> a(static_cast<std::size_t>(query_heads * latent_dim), -9), b = a;
    const auto asked = bshd<const float>(q.data(), 1, 1, query_heads, latent_dim + rotary_dim);
    attention(asked, cache, bshd(a.data(), 1, 1, query_heads, latent_dim), {.scale = 0.2, .selected = list});
    attention(asked, cache, bshd(b.data(), 1, 1, query_heads, latent_dim),
              {.scale = 0.2, .mask = score_matrix(static_cast<const bool*>(mask.get()), 1, 1, 1, tokens)});
    CHECK(testing::largest_difference(a, b) <= 2 * bound<float>());
  }
}

TEST_CASE("a row of a cache rejects a key that only a longer row has, and a ring rejects all lists",
          "[cache]") {
  const std::vector<float> x(2 * 4 * heads * head_dim, 0.5f);
  std::vector<float> out(2 * heads * head_dim, -9);
  const auto tokens = bshd(x.data(), 2, 4, heads, head_dim);
  const auto written = bshd(out.data(), 2, 1, heads, head_dim);
  kv_cache<float> cache(2, 4, heads, head_dim);
  cache.append(tokens, tokens, std::vector<int>{4, 2});
  const std::vector<int> lists = {0, 3, 1, 2};
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        attention(tokens.token_range(0, 1), cache, written,
                  {.selected = {lists.data(), {.queries = 2, .keys = 2}}}, std::vector<int>{1, 1});
      },
      "selected keys must be in [0, 2)", "got 2 for query 0 of row 1"));
  ring_cache<float> ring(2, {.window = 4}, heads, head_dim);
  ring.append(tokens.token_range(0, 1), tokens.token_range(0, 1));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        attention(tokens.token_range(0, 1), ring, written,
                  {.selected = {lists.data(), {.queries = 2, .keys = 1}}});
      },
      "a ring_cache overwrites old keys, so selected cannot be matched to keys; use a kv_cache, or leave it "
      "empty, got lists of 2 queries"));
  CHECK(std::count(out.begin(), out.end(), -9.0f) == 2 * heads * head_dim);
}
