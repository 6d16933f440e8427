// SPDX-License-Identifier: MIT
#include <rope/cache/page_weights.hpp>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/cache/kv_cache.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/selected_keys.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/weight_reference.hpp"

using namespace rope;

namespace {

constexpr Index heads = 4, kv_heads = 2, dim = 16, page_size = 7, blocks = 23;
constexpr double base = 50;

using weight_reference::check_sums;
using weight_reference::check_weights;
using weight_reference::head_of;
using weight_reference::no_bias;
using weight_reference::random_heads;
using weight_reference::scoring_of;

/// Sequences of random tokens in pages that are not in order. Slots without a token are NaN. The first two
/// sequences share their first page.
template <class T, class C>
struct random_pages {
  std::vector<Index> lengths;
  std::vector<int> table;
  testing::owned_heads<C> keys, values;
  std::vector<T> new_keys;  // [sequences, longest, kv_heads, dim]
  key_storage storage;

  random_pages(const std::vector<Index>& length_of_each, key_storage stored, std::uint64_t seed)
      : lengths(length_of_each),
        keys(count(), page_size, kv_heads, dim),
        values(count(), page_size, kv_heads, 1),
        new_keys(random_heads<T>(sequences() * longest() * kv_heads * dim, seed)),
        storage(stored) {
    for (Index n = 0; n < count(); ++n) table.push_back(static_cast<int>((n * 37) % count()));
    for (Index s = 0; s < sequences(); ++s) {
      const auto page = table.begin() + s * blocks;
      const std::vector<Index> one = {lengths[static_cast<std::size_t>(s)]};
      const std::vector<int> own(page, page + blocks);
      const page_view<C> pages(pool(), own, one, storage);
      const auto k = bshd(new_keys.data(), sequences(), longest(), kv_heads, dim)
                         .batch_range(s, 1)
                         .token_range(0, one[0]);
      if (storage == key_storage::raw)
        write_pages(k, k.channels(0, 1), pages);
      else
        write_pages<half_split>(k, k.channels(0, 1), pages, rows());
    }
    table[static_cast<std::size_t>(blocks)] = table[0];
  }
  Index sequences() const { return static_cast<Index>(lengths.size()); }
  Index count() const { return sequences() * blocks; }
  Index longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  static const auto& rows() {
    using S = weight_reference::weight_type<T>;
    static const frequency_table<S> all(frequencies(dim, base), blocks * page_size);
    return all;
  }
  typename page_view<C>::pool pool() { return {keys.view(), values.view()}; }
  page_view<C> view() { return {pool(), table, lengths, storage}; }
  /// Key head kv of token j of a sequence, as it is stored, and rotated where attention does that.
  std::vector<double> key(Index s, Index j, Index kv, bool rotates) {
    const auto head =
        head_of(keys.view(), table[static_cast<std::size_t>(s * blocks + j / page_size)], j % page_size, kv);
    return rotates ? weight_reference::rotated(head, double(j), base) : head;
  }
};

std::vector<int> offsets_of(const std::vector<Index>& counts) {
  std::vector<int> offsets = {0};
  for (const Index count : counts) offsets.push_back(offsets.back() + static_cast<int>(count));
  return offsets;
}

/// Weights [sequences, heads, queries, keys] of which sequence s has counts[s] queries, concatenated:
/// [1, heads, all queries, keys].
weight_reference::weights concatenated(const weight_reference::weights& padded,
                                       const std::vector<Index>& counts) {
  const auto& of = padded.of;
  weight_reference::weights result = {{1, offsets_of(counts).back(), of.keys, of.heads, of.kv_heads}, {}, {}};
  for (Index h = 0; h < of.heads; ++h)
    for (Index s = 0; s < of.batch; ++s)
      for (Index i = 0; i < counts[static_cast<std::size_t>(s)]; ++i)
        for (Index j = 0; j < of.keys; ++j) {
          result.weight.push_back(padded.weight[of.weight(s, h, i, j)]);
          result.error.push_back(padded.error[of.weight(s, h, i, j)]);
        }
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("weights and their sums for pages follow the definition", "[cache]",
                   (testing::types<float, float>), (testing::types<float, Eigen::half>),
                   (testing::types<float, std::int8_t>), (testing::types<double, double>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  using A = weight_reference::weight_type<T>;
  // Adjacent sequences with equal counts share a kernel call.
  for (const std::vector<Index>& counts :
       {std::vector<Index>{9, 9, 1, 0, 4}, std::vector<Index>{5, 5, 5, 5, 5}})
    for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
      const bool raw = storage == key_storage::raw;
      CAPTURE(counts, raw);
      random_pages<T, C> of({150, 61, 5, 8, 149}, storage, 71);
      const auto offsets = offsets_of(counts);
      const Index tokens = offsets.back(), asking = *std::max_element(counts.begin(), counts.end());
      const auto q = random_heads<T>(tokens * heads * dim, 72);
      const auto queries = thd(q.data(), tokens, heads, dim);
      const auto position = [&](Index s, Index i) {
        return of.lengths[std::size_t(s)] - counts[std::size_t(s)] + i;
      };
      const auto reference = weight_reference::expected(
          {of.sequences(), asking, of.longest(), heads, kv_heads}, scoring_of<T>(dim, true, raw ? 2 : 1),
          [&](Index s, Index i, Index h) {
            if (i >= counts[std::size_t(s)]) return std::vector<double>(std::size_t(dim));
            return weight_reference::rotated(head_of(queries, 0, offsets[std::size_t(s)] + i, h),
                                             double(position(s, i)), base);
          },
          [&](Index s, Index, Index j, Index kv) { return of.key(s, j, kv, raw); },
          [&](Index s, Index, Index i, Index j) {
            const Index at = position(s, i);
            return i < counts[std::size_t(s)] && j <= at && (j > at - 40 || j < 3);
          },
          no_bias);
      const attention_options options = {.window = 40, .sinks = 3};
      attention_options packed = options;
      packed.query_offsets = offsets;
      const auto table = of.rows();
      check_weights<A>(concatenated(reference, counts), [&](std::vector<A>& w, const auto& threads) {
        attention_weights<half_split>(queries, of.view(), w, table, packed, threads);
      });
      check_sums<A>(reference, [&](std::vector<A>& sums, const auto& threads) {
        attention_weight_sums<half_split>(queries, of.view(), sums, table, packed, threads);
      });
      if (counts[2] != asking) continue;
      const auto rows = bshd(q.data(), of.sequences(), asking, heads, dim);
      check_weights<A>(reference, [&](std::vector<A>& w, const auto& threads) {
        attention_weights<half_split>(rows, of.view(), w, table, options, threads);
      });
      check_sums<A>(reference, [&](std::vector<A>& sums, const auto& threads) {
        attention_weight_sums<half_split>(rows, of.view(), sums, table, options, threads);
      });
    }
}

TEST_CASE("weights of rotated queries for pages, with every option of scores", "[cache]") {
  random_pages<float, float> of({40, 33}, key_storage::rotated, 73);
  const Index asking = 6, longest = 40;
  const auto q = random_heads<float>(2 * asking * heads * dim, 74),
             added = random_heads<float>(2 * heads * asking * longest, 75);
  const auto queries = bshd(q.data(), 2, asking, heads, dim);
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> mask(asking, longest);
  for (Index i = 0; i < asking; ++i)
    for (Index j = 0; j < longest; ++j) mask(i, j) = (3 * i + j) % 4 != 0;
  const std::vector<float> sinks(std::size_t(heads), 0.75f);
  std::vector<double> log_sum_exp(std::size_t(2 * asking * heads), -3);
  auto how = scoring_of<float>(dim, false);
  how.scale = 0.5;
  how.softcap = 2;
  how.sink = 0.75;
  how.has_sink = true;
  const auto reference = weight_reference::expected(
      {2, asking, longest, heads, kv_heads}, how,
      [&](Index s, Index i, Index h) { return head_of(queries, s, i, h); },
      [&](Index s, Index, Index j, Index kv) { return of.key(s, j, kv, false); },
      [&](Index s, Index, Index i, Index j) {
        return mask(i, j) && j <= of.lengths[std::size_t(s)] - asking + i;
      },
      [&](Index s, Index h, Index i, Index j) {
        return static_cast<double>(added[std::size_t(((s * heads + h) * asking + i) * longest + j)]);
      });
  const attention_options options = {.scale = 0.5,
                                     .softcap = 2,
                                     .sink_logits = sinks,
                                     .bias = score_matrix(added.data(), 2, heads, asking, longest),
                                     .mask = score_matrix(mask),
                                     .log_sum_exp = log_sum_exp};
  check_weights<float>(reference, [&](std::vector<float>& w, const auto& threads) {
    attention_weights(queries, of.view(), w, options, threads);
  });
  check_sums<float>(reference, [&](std::vector<float>& sums, const auto& threads) {
    attention_weight_sums(queries, of.view(), sums, options, threads);
  });
  CHECK(log_sum_exp == std::vector<double>(log_sum_exp.size(), -3));

  // A tensor of any storage order has the weights by its indices.
  weight_reference::check_tensor(reference.of,
                                 [&](auto& w) { attention_weights(queries, of.view(), w, options); });
}

TEMPLATE_TEST_CASE("weights for pages of key ranges and selected keys follow the definition", "[cache]",
                   Eigen::half, std::int8_t) {
  random_pages<float, TestType> of({60, 22, 31}, key_storage::rotated, 76);
  const std::vector<Index> counts = {4, 4, 2};
  const auto offsets = offsets_of(counts);
  const Index tokens = offsets.back(), listed = 9;
  const auto q = random_heads<float>(tokens * heads * dim, 77);
  const auto queries = thd(q.data(), tokens, heads, dim);
  std::vector<key_range> ranges;
  std::vector<int> lists;  // [tokens, kv_heads, listed]
  for (Index s = 0; s < 3; ++s)
    for (Index i = 0; i < counts[std::size_t(s)]; ++i) {
      ranges.push_back({5 * i, 4 + 7 * s});
      for (Index kv = 0; kv < kv_heads; ++kv)
        for (Index n = 0; n < listed; ++n)
          lists.push_back(n == listed - i ? -1 : int((5 * n + 3 * i + kv) % of.lengths[std::size_t(s)]));
    }
  const auto place = [&](Index s, Index i) { return offsets[std::size_t(s)] + i; };
  for (const bool selects : {false, true}) {
    CAPTURE(selects);
    const auto reference = weight_reference::expected(
        {3, 4, 60, heads, kv_heads}, scoring_of<float>(dim, false),
        [&](Index s, Index i, Index h) {
          return head_of(queries, 0, i < counts[std::size_t(s)] ? place(s, i) : 0, h);
        },
        [&](Index s, Index, Index j, Index kv) { return of.key(s, j, kv, false); },
        [&](Index s, Index h, Index i, Index j) {
          const Index length = of.lengths[std::size_t(s)], count = counts[std::size_t(s)];
          if (i >= count || j >= length) return false;
          const auto at = std::size_t(place(s, i));
          if (!selects) return j >= ranges[at].first && j < ranges[at].first + ranges[at].count;
          const int* list = lists.data() + (place(s, i) * kv_heads + h / (heads / kv_heads)) * listed;
          for (Index n = 0; n < listed && list[n] >= 0; ++n)
            if (list[n] == j) return j <= length - count + i;
          return false;
        },
        no_bias);
    attention_options options = {.query_offsets = offsets};
    if (selects)
      options.selected = {lists.data(), {.queries = tokens, .key_heads = kv_heads, .keys = listed}};
    else
      options.key_ranges = ranges;
    check_weights<float>(concatenated(reference, counts), [&](std::vector<float>& w, const auto& threads) {
      attention_weights(queries, of.view(), w, options, threads);
    });
    check_sums<float>(reference, [&](std::vector<float>& sums, const auto& threads) {
      attention_weight_sums(queries, of.view(), sums, options, threads);
    });
  }
}

TEMPLATE_TEST_CASE("weights for pages have the bits of those for a cache of each sequence", "[cache]", float,
                   Eigen::bfloat16) {
  using C = TestType;
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    random_pages<float, C> of({150, 20, 77}, storage, 78);
    of.table[std::size_t(blocks)] = int(37 * blocks % of.count());  // the sequences share no page
    const std::vector<Index> counts = {3, 3, 40};
    const auto offsets = offsets_of(counts);
    const Index tokens = offsets.back(), longest = of.longest();
    const auto q = random_heads<float>(tokens * heads * dim, 79);
    std::vector<float> w(std::size_t(heads * tokens * longest)), sums(std::size_t(3 * kv_heads * longest));
    const auto queries = thd(q.data(), tokens, heads, dim);
    const attention_options packed = {.query_offsets = offsets};
    attention_weights<half_split>(queries, of.view(), w, of.rows(), packed);
    attention_weight_sums<half_split>(queries, of.view(), sums, of.rows(), packed);
    const auto keys = bshd(of.new_keys.data(), of.sequences(), longest, kv_heads, dim);
    for (Index s = 0; s < 3; ++s) {
      const Index length = of.lengths[std::size_t(s)], count = counts[std::size_t(s)];
      kv_cache<C> cache(1, length, kv_heads, dim, 0, storage);
      const auto k = keys.batch_range(s, 1).token_range(0, length);
      testing::append_tokens<half_split>(cache, k, k, of.rows());
      std::vector<float> alone(std::size_t(heads * count * length)), summed(std::size_t(kv_heads * length));
      const auto asked = queries.token_range(offsets[std::size_t(s)], count);
      attention_weights<half_split>(asked, cache, alone, of.rows(), {}, std::vector<Index>{count});
      attention_weight_sums<half_split>(asked, cache, summed, of.rows(), {}, std::vector<Index>{count});
      for (Index j = 0; j < length; ++j) {
        for (Index h = 0; h < heads; ++h)
          for (Index i = 0; i < count; ++i)
            CHECK(w[std::size_t((h * tokens + offsets[std::size_t(s)] + i) * longest + j)] ==
                  alone[std::size_t((h * count + i) * length + j)]);
        for (Index kv = 0; kv < kv_heads; ++kv)
          CHECK(sums[std::size_t((s * kv_heads + kv) * longest + j)] == summed[std::size_t(kv * length + j)]);
      }
    }
  }
}

TEST_CASE("invalid calls of weights for pages throw and write nothing", "[cache]") {
  random_pages<float, float> of({9, 5}, key_storage::rotated, 80), raw({9, 5}, key_storage::raw, 80);
  const auto x = random_heads<float>(3 * heads * dim, 81);
  const auto q = thd(x.data(), 3, heads, dim);
  std::vector<int> offsets = {0, 1, 3};
  std::vector<float> w(std::size_t(heads * 3 * 9), -1), sums(std::size_t(2 * kv_heads * 9), -1);
  const std::vector<float> w_before = w, sums_before = sums;
  const frequency_table<float> small(frequencies(dim, base), 8);
  const auto both_reject = [&](random_pages<float, float>& in, const attention_options& options,
                               const char* text) {
    return testing::throws_saying<std::invalid_argument>([&] { attention_weights(q, in.view(), w, options); },
                                                         text) &&
           testing::throws_saying<std::invalid_argument>(
               [&] { attention_weight_sums(q, in.view(), sums, options); }, text) &&
           w == w_before && sums == sums_before;
  };
  w.pop_back();
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weights(q, of.view(), w, {.query_offsets = offsets}); },
      "attention_weights: weights must have length batch * heads * queries * keys = 108, got 107"));
  w.push_back(-1);
  sums.pop_back();
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weight_sums(q, of.view(), sums, {.query_offsets = offsets}); },
      "attention_weight_sums: sums must have length batch * heads * keys = 72, or batch * key heads * keys = "
      "36, got 35"));
  sums.push_back(-1);
  CHECK(both_reject(of, {}, "without query_offsets there is a row for each of the 2 sequences, got 1"));
  CHECK(both_reject(of, {.window = -1, .query_offsets = offsets}, "window must not be negative, got -1"));
  const bool mask[27] = {};
  CHECK(both_reject(of, {.mask = score_matrix(mask, 1, 1, 3, 9), .query_offsets = offsets},
                    "a bias or a mask has a row for each sequence"));
  CHECK(
      both_reject(raw, {.query_offsets = offsets}, "the stored keys are raw, give the layout and the table"));
  offsets = {0, 1, 2};
  CHECK(both_reject(of, {.query_offsets = offsets}, "query_offsets"));
  offsets = {0, 1, 3};
  of.lengths = {9, 1};
  CHECK(both_reject(of, {.query_offsets = offsets},
                    "lengths include the new tokens: sequence 1 has a length of 1 and 2 new tokens"));
  of.lengths = {9, 5};
  CHECK(testing::throws_saying<std::out_of_range>(
      [&] { attention_weights<half_split>(q, of.view(), w, small, {.query_offsets = offsets}); },
      "position 8 is outside the table's [0, 8)"));
  of.table[1] = -1;
  CHECK(testing::throws_saying<std::out_of_range>(
      [&] { attention_weight_sums(q, of.view(), sums, {.query_offsets = offsets}); },
      "attention_weight_sums: block 1 of sequence 0 must be a page in [0, 46), got -1"));
  CHECK((w == w_before && sums == sums_before));
  of.table[1] = 37;
  attention_weights(q, of.view(), w, {.query_offsets = offsets});
  attention_weight_sums(q, of.view(), sums, {.query_offsets = offsets});
  CHECK(std::count(w.begin(), w.end(), -1.0f) + std::count(sums.begin(), sums.end(), -1.0f) == 0);
}
