// SPDX-License-Identifier: MIT
// Rows of caches that are copied and reordered, compared with lists of tokens. Trees of guessed tokens.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <rope/block/multi_head_attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/tables/table.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "fuzz/support/shown.hpp"
#include "support/append_tokens.hpp"
#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index capacity = 12;

/// A token of a row: a number from which all its channels are made, and its position.
struct token {
  float id;
  std::int64_t position;
};
using model = std::vector<std::vector<token>>;

/// Appends tokens [batch, n] to a cache, row b its first counts[b].
template <class Cache>
void append(Cache& cache, const std::vector<float>& ids, Index n, const std::vector<Index>& counts) {
  constexpr bool is_latent = std::is_same_v<Cache, latent_cache<float>>;
  constexpr Index heads_of_token = is_latent ? 1 : 2;
  std::vector<float> first, second;  // keys and values, or latents and rotated parts
  for (const float id : ids) {
    for (Index i = 0; i < 3 * heads_of_token; ++i) first.push_back(id + static_cast<float>(i) / 8);
    for (Index i = 0; i < 2 * heads_of_token; ++i) second.push_back(-id - static_cast<float>(i) / 8);
  }
  cache.append(bshd(first.data(), cache.batch(), n, heads_of_token, 3),
               bshd(second.data(), cache.batch(), n, heads_of_token, 2), counts);
}

/// Channel i of a head of a token.
float key_of(const kv_cache<float>&, float id, Index h, Index i) {
  return id + static_cast<float>(3 * h + i) / 8;
}
float value_of(const kv_cache<float>&, float id, Index h, Index i) {
  return -id - static_cast<float>(2 * h + i) / 8;
}
float key_of(const latent_cache<float>&, float id, Index, Index i) {
  return i < 3 ? id + static_cast<float>(i) / 8 : -id - static_cast<float>(i - 3) / 8;
}
float value_of(const latent_cache<float>& cache, float id, Index h, Index i) {
  return key_of(cache, id, h, i);
}

template <class Cache>
bool is(const Cache& cache, const model& rows) {
  bool same = true;
  for (Index b = 0; b < cache.batch(); ++b) {
    const auto& row = rows[static_cast<std::size_t>(b)];
    const auto k = cache.keys(b), v = cache.values(b);
    same = same && cache.size(b) == static_cast<Index>(row.size());
    std::int64_t next = 0;
    for (std::size_t t = 0; same && t < row.size(); ++t) {
      same = cache.positions(b)[t] == row[t].position;
      next = std::max(next, row[t].position + 1);
      for (Index h = 0; h < k.heads; ++h) {
        for (Index i = 0; i < k.head_dim; ++i)
          same = same && k.at(0, static_cast<Index>(t), h)[i] == key_of(cache, row[t].id, h, i);
        for (Index i = 0; i < v.head_dim; ++i)
          same = same && v.at(0, static_cast<Index>(t), h)[i] == value_of(cache, row[t].id, h, i);
      }
    }
    same = same && cache.next_positions()[static_cast<std::size_t>(b)] == next;
  }
  return same;
}

/// Random appends, rollbacks, copies and orders of a cache and of lists.
template <class Cache>
void walk(Cache cache, std::uint32_t seed) {
  std::mt19937 numbers(seed);
  const auto up_to = [&](Index n) {
    return static_cast<Index>(numbers() % static_cast<std::uint32_t>(n + 1));
  };
  const Index batch = cache.batch();
  model rows(static_cast<std::size_t>(batch));
  float next_id = 1;
  for (int step = 0; step < 120; ++step) {
    const Index kind = up_to(3), some = up_to(batch - 1), other = up_to(batch - 1);
    auto& row = rows[static_cast<std::size_t>(some)];
    if (kind == 0) {
      const Index n = 3;
      std::vector<float> ids;
      std::vector<Index> counts;
      for (Index b = 0; b < batch; ++b) {
        auto& to = rows[static_cast<std::size_t>(b)];
        counts.push_back(std::min(up_to(n), capacity - static_cast<Index>(to.size())));
        for (Index t = 0; t < n; ++t) {
          ids.push_back(next_id);
          std::int64_t position = 0;
          for (const token& held : to) position = std::max(position, held.position + 1);
          if (t < counts.back()) to.push_back({next_id, position});
          ++next_id;
        }
      }
      append(cache, ids, n, counts);
    } else if (kind == 1) {
      const Index size = up_to(static_cast<Index>(row.size()));
      row.resize(static_cast<std::size_t>(size));
      cache.truncate(size, batch_row{some});
    } else if (kind == 2) {
      rows[static_cast<std::size_t>(other)] = std::vector<token>(row);
      cache.copy_row(some, other);
    } else {
      std::vector<int> from;
      for (Index b = 0; b < batch; ++b) from.push_back(static_cast<int>(up_to(batch - 1)));
      if (up_to(1) == 0) {  // a permutation
        for (std::size_t b = 0; b < from.size(); ++b) from[b] = static_cast<int>(b);
        std::shuffle(from.begin(), from.end(), numbers);
      }
      const model before = rows;
      for (std::size_t b = 0; b < rows.size(); ++b) rows[b] = before[static_cast<std::size_t>(from[b])];
      cache.reorder(from);
    }
    REQUIRE(is(cache, rows));
  }
}

}  // namespace

TEST_CASE("rows of caches are copied and reordered as lists are", "[cache]") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const Index batch = 1 + seed % 7;
    walk(kv_cache<float>(batch, capacity, 2, 3, 2), seed);
    walk(latent_cache<float>(batch, capacity, 3, 2), seed);
  }
}

TEST_CASE("rows of rings are copied and reordered as histories are", "[cache]") {
  const ring_policy policy = {.sinks = 2, .window = 4, .chunk = 3};
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 numbers(seed);
    const auto up_to = [&](Index n) {
      return static_cast<Index>(numbers() % static_cast<std::uint32_t>(n + 1));
    };
    const Index batch = 1 + seed % 7;
    const bool on_axes = seed % 2 == 0;
    CAPTURE(seed, batch, on_axes);
    ring_cache<float> cache = on_axes ? ring_cache<float>(batch, policy, 1, 2, token_axes{3})
                                      : ring_cache<float>(batch, policy, 1, 2);
    std::vector<std::vector<float>> rows(static_cast<std::size_t>(batch));  // all tokens that each row took
    float next_id = 1;
    for (int step = 0; step < 60; ++step) {
      if (up_to(2) > 0) {
        std::vector<float> k, v;
        std::vector<Index> counts;
        for (auto& row : rows) {
          counts.push_back(up_to(3));
          for (Index t = 0; t < 3; ++t, ++next_id) {
            k.insert(k.end(), {next_id, -next_id});
            v.insert(v.end(), {next_id + 0.5f, next_id + 0.25f});
            if (t < counts.back()) row.push_back(next_id);
          }
        }
        cache.append(bshd(k.data(), batch, 3, 1, 2), bshd(v.data(), batch, 3, 1, 2), counts);
      } else if (up_to(1) == 0) {
        const Index from = up_to(batch - 1), to = up_to(batch - 1);
        rows[static_cast<std::size_t>(to)] = std::vector<float>(rows[static_cast<std::size_t>(from)]);
        cache.copy_row(from, to);
      } else {
        std::vector<Index> from;
        const auto before = rows;
        for (auto& row : rows) row = before[static_cast<std::size_t>(from.emplace_back(up_to(batch - 1)))];
        cache.reorder(from);
      }
      bool same = true;
      for (Index b = 0; b < batch; ++b) {
        const auto& row = rows[static_cast<std::size_t>(b)];
        const auto seen = static_cast<Index>(row.size());
        const auto order = cache.order(b);
        const auto keys = cache.keys(b), values = cache.values(b);
        same = same && cache.seen()[static_cast<std::size_t>(b)] == seen &&
               cache.next_positions()[static_cast<std::size_t>(b)] == seen && cache.holds_window(b, seen) &&
               order.size() == static_cast<std::size_t>(std::min(seen, cache.capacity()));
        for (std::size_t slot = 0; same && slot < order.size(); ++slot) {
          const float id = row[static_cast<std::size_t>(order[slot])];
          const auto at = static_cast<Index>(slot);
          same = cache.slot(order[slot]) == at && keys.at(0, at, 0)[0] == id && keys.at(0, at, 0)[1] == -id &&
                 values.at(0, at, 0)[0] == id + 0.5f && values.at(0, at, 0)[1] == id + 0.25f;
          for (Index axis = 0; on_axes && axis < 3; ++axis)
            same = same && cache.coordinates(b)(at, axis) == static_cast<double>(order[slot]);
        }
      }
      REQUIRE(same);
    }
    // The tokens that a row needs after it drops its newest one were copied too.
    for (Index b = 0; b < batch; ++b) {
      const auto seen = static_cast<std::int64_t>(rows[static_cast<std::size_t>(b)].size());
      if (seen == 0) continue;
      cache.truncate(seen - 1, batch_row{b});
      CHECK(cache.next_positions()[static_cast<std::size_t>(b)] == seen - 1);
    }
  }
}

TEST_CASE("the queries of reordered rows are those of the original rows", "[cache]") {
  kv_cache<float> cache(3, capacity, 2, 3, 2);
  append(cache, {1, 2, 3, 4, 5, 6}, 2, {2, 1, 0});
  cache.reorder(std::vector<int>{1, 2, 0});
  const auto counts = cache.query_counts(2);
  CHECK(std::vector<Index>(counts.begin(), counts.end()) == std::vector<Index>{1, 0, 2});
  cache.copy_row(2, 1);
  CHECK(cache.query_counts(2)[1] == 2);
}

TEST_CASE("invalid orders of rows throw and no row moves", "[cache]") {
  kv_cache<float> cache(3, capacity, 2, 3, 2);
  latent_cache<float> latents(3, capacity, 3, 2);
  append(cache, {1, 2, 3}, 1, {1, 1, 0});
  append(latents, {1, 2, 3}, 1, {1, 1, 0});
  const model rows = {{{1, 0}}, {{2, 0}}, {}};
  const auto rejected = [&](const auto& call, const char* rule) {
    CHECK(throws_saying<std::out_of_range>([&] { call(cache); }, "kv_cache::", rule));
    CHECK(throws_saying<std::out_of_range>([&] { call(latents); }, "latent_cache::", rule));
    CHECK(is(cache, rows));
    CHECK(is(latents, rows));
  };
  rejected([](auto& c) { c.copy_row(3, 0); }, "copy_row: row must be in [0, 3), got 3");
  rejected([](auto& c) { c.copy_row(0, -1); }, "copy_row: row must be in [0, 3), got -1");
  rejected([](auto& c) { c.reorder(std::vector<int>{1, 0, 3}); }, "reorder: row must be in [0, 3), got 3");
  rejected([](auto& c) { c.reorder(std::vector<int>{1, -1, 0}); }, "reorder: row must be in [0, 3), got -1");
  const std::vector<std::int64_t> far = {1, std::int64_t{1} << 40, 0};  // more than 32 bits can represent
  rejected([&far](auto& c) { c.reorder(far); }, "reorder: row must be in [0, 3), got 1099511627776");
  for (const std::vector<int>& from :
       {std::vector<int>{}, std::vector<int>{1, 0}, std::vector<int>{1, 0, 0, 0}}) {
    CHECK(throws_saying<std::invalid_argument>([&] { cache.reorder(from); },
                                               "kv_cache::reorder: rows must be [batch] = 3, got"));
    CHECK(is(cache, rows));
  }
  const Eigen::MatrixXi table = Eigen::MatrixXi::Zero(2, 2);
  CHECK(throws_saying<std::invalid_argument>([&] { cache.reorder(table); }, "rows: give a vector"));
  CHECK_FALSE(throws_saying<std::invalid_argument>([&] { cache.reorder(table); }, "counts"));
  kv_cache<float> none(0, capacity, 2, 3, 2);
  CHECK_NOTHROW(none.reorder(std::vector<int>{}));
}

TEMPLATE_TEST_CASE("every branch of a tree of guesses attends as if it were alone", "[cache]", float,
                   double) {
  using T = TestType;
  constexpr Index heads = 4, kv_heads = 2, head_dim = 8, prompt = 5, tree = 8;
  // Parents of the guesses, -1 for the prompt. The first four are a chain.
  const std::vector<int> parents = {-1, 0, 1, 2, -1, 4, 0, 4};
  std::vector<int> depths;
  for (const int parent : parents)
    depths.push_back(parent < 0 ? static_cast<int>(prompt) : depths[static_cast<std::size_t>(parent)] + 1);
  const Index all = prompt + tree;
  const std::unique_ptr<bool[]> seen(new bool[static_cast<std::size_t>(tree * all)]());
  for (Index i = 0; i < tree; ++i) {
    for (Index j = 0; j < prompt; ++j) seen[static_cast<std::size_t>(i * all + j)] = true;
    for (int j = static_cast<int>(i); j >= 0; j = parents[static_cast<std::size_t>(j)])
      seen[static_cast<std::size_t>(i * all + prompt + j)] = true;
  }
  std::mt19937 numbers(81);
  const attention_call::operands x =
      attention_call::random_operands<T>(numbers, {1, all, all, heads, kv_heads, head_dim, head_dim});
  const std::vector<T> q = testing::stored<T>(x.q), k = testing::stored<T>(x.k), v = testing::stored<T>(x.v);
  const auto queries = bshd(q.data(), 1, all, heads, head_dim),
             keys = bshd(k.data(), 1, all, kv_heads, head_dim),
             values = bshd(v.data(), 1, all, kv_heads, head_dim);
  std::vector<T> memory(q.size(), T(-99)), alone(q.size());
  const auto out = bshd(memory.data(), 1, all, heads, head_dim),
             branch = bshd(alone.data(), 1, all, heads, head_dim);
  const frequency_table<T> table(frequencies(head_dim, 50.0), 40);

  kv_cache<T> cache(1, all, kv_heads, head_dim);
  cache.template append<half_split>(keys.token_range(0, prompt), values.token_range(0, prompt), table);
  const kv_cache<T> prompted = cache;
  cache.template append_at<half_split>(keys.token_range(prompt, tree), values.token_range(prompt, tree),
                                       table, depths);
  attention<half_split>(queries.token_range(prompt, tree), cache, out.token_range(prompt, tree), table,
                        {.mask = score_matrix(seen.get(), 1, 1, tree, all)});

  // Each output is within the bound of the exact result. Rotated channels are at most sqrt(2) times the
  // largest, with an error of 3 u of it, which counts as 6 u of the largest score.
  using reference::tensor;
  tensor rotated_q = x.q, rotated_k = x.k;
  for (double& value : rotated_q.values) value *= std::sqrt(2.0);
  for (double& value : rotated_k.values) value *= std::sqrt(2.0);
  const auto u = static_cast<double>(tolerance::unit_roundoff<T>());
  const double score = std::sqrt(static_cast<double>(head_dim)) * rotated_q.largest() * rotated_k.largest(),
               bound = reference::attention_bound<T>(rotated_q, rotated_k, x.v, {}) +
                       2.02 * 6 * u * score * x.v.largest() + u * x.v.largest();
  double worst = 0;
  for (int leaf = 0; leaf < tree; ++leaf) {
    std::vector<Index> path;
    for (int j = leaf; j >= 0; j = parents[static_cast<std::size_t>(j)])
      path.insert(path.begin(), prompt + j);
    kv_cache<T> one = prompted;
    for (const Index j : path)
      one.template append<half_split>(keys.token_range(j, 1), values.token_range(j, 1), table);
    const Index last = path.back();
    attention<half_split>(queries.token_range(last, 1), one, branch.token_range(last, 1), table);
    testing::raise_to(worst,
                      testing::largest_difference(out.token_range(last, 1), branch.token_range(last, 1)));
  }
  CHECK(worst <= 2 * bound);
  CHECK(bound < 1e3 * u);

  // Without forks it is a chunk of a prompt, with the same bits.
  kv_cache<T> chain = prompted, chunk = prompted;
  const auto part = [&](const auto& of) { return of.token_range(prompt, 4); };
  const std::unique_ptr<bool[]> chained(new bool[4 * 9]());
  for (Index i = 0; i < 4; ++i) std::copy_n(seen.get() + i * all, 9, chained.get() + i * 9);
  chain.template append_at<half_split>(part(keys), part(values), table,
                                       std::vector<int>(depths.begin(), depths.begin() + 4));
  chunk.template append<half_split>(part(keys), part(values), table);
  attention<half_split>(part(queries), chain, part(out), table,
                        {.mask = score_matrix(chained.get(), 1, 1, 4, 9)});
  attention<half_split>(part(queries), chunk, part(branch), table);
  CHECK(testing::same_heads(part(out), part(branch)));
}

// Rows that move to another cache, and caches that grow, have the bits of a cache to which the tokens were
// appended.

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
  testing::append_tokens<half_split>(cache, k, v, moved_table, counts);
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
    CHECK(throws_saying<std::length_error>([&] { cache.reserve((std::numeric_limits<Index>::max)() / 8); },
                                           "address space"));
    CHECK(fuzz::shown_by(cache) == before);
  }
  latent_cache<float> latents(1, 0, 4, 2);
  latents.reserve(3);
  const std::vector<float> ones(12, 1.0f);
  latents.append(bshd(ones.data(), 1, 3, 1, 4), bshd(ones.data(), 1, 3, 1, 2));
  CHECK(latents.size() == 3);
}

// Every call that takes counts of the rows of a batch accepts a list of any integer type.

namespace {

constexpr Index batch = 3, tokens = 4, heads = 2, dim = 8;

struct channels {
  std::vector<float> x = testing::random_channels<float>(batch * tokens * heads * dim, 21);
  head_view<const float> view() const { return bshd(x.data(), batch, tokens, heads, dim); }
};

/// All functions that take counts, with one list, for every cache. The outputs are written one after another.
template <class Counts>
std::vector<float> outputs(const Counts& counts) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const channels of;
  const frequency_table<> table(frequencies(dim), 20);
  std::vector<float> all, out(of.x.size());
  const head_view<float> result = bshd(out.data(), batch, tokens, heads, dim);
  const auto keep = [&] { all.insert(all.end(), out.begin(), out.end()); };
  const head_view<const float> x = of.view();

  kv_cache<float> rotated(batch, 20, heads, dim), raw(batch, 20, heads, dim, 0, key_storage::raw);
  ring_cache<float> ring(batch, {.window = 9}, heads, dim), given(batch, {.window = 9}, heads, dim);
  rotated.append<half_split>(x, x, table, counts);
  rotated.append_at<half_split>(x, x, table, 7, counts);
  raw.append(x, x, counts);
  raw.append_at(x, x, 7, counts);
  ring.append<half_split>(x, x, table, counts);
  given.append(x, x, counts);
  attention<half_split>(x, rotated, result, table, {}, counts);
  keep();
  attention<half_split>(x, raw, result, table, {}, counts);
  keep();
  attention<half_split>(x, ring, result, table, {}, counts);
  keep();
  attention(x, given, result, {}, counts);
  keep();

  const matrix w = matrix::Identity(heads * dim, heads * dim);
  const auto weight = projection<const float>{w.data(), w.rows(), w.cols()};
  const multi_head_weights<float> weights{.q = weight, .k = weight, .v = weight, .o = weight};
  const multi_head_attention<float, half_split> block(weights, {.heads = heads, .kv_heads = heads});
  const Eigen::Map<const matrix> in(of.x.data(), batch * tokens, heads * dim);
  Eigen::Map<matrix> to(out.data(), batch * tokens, heads * dim);
  block.forward(in, rotated, to, table, counts);
  keep();
  block.forward(in, given, to, counts);
  keep();
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("counts are a list of any integer type", "[cache]", int, signed char, std::uint8_t, short,
                   std::uint32_t, long, long long, std::uint64_t) {
  using I = TestType;
  const std::vector<Index> plain = {3, 0, 4};
  const std::vector<float> expected = outputs(plain);
  const std::vector<I> list = {3, 0, 4};
  CHECK(testing::same_bits(outputs(list), expected));
  CHECK(testing::same_bits(outputs(std::array<I, 3>{3, 0, 4}), expected));
  CHECK(testing::same_bits(outputs(std::span<const I>(list)), expected));
  const I of_the_language[] = {3, 0, 4};
  CHECK(testing::same_bits(outputs(of_the_language), expected));
  std::vector<I> writable = list;
  CHECK(testing::same_bits(outputs(std::span<I>(writable)), expected));
  Eigen::Array<I, Eigen::Dynamic, 1> array(3);
  array << I(3), I(0), I(4);
  CHECK(testing::same_bits(outputs(array), expected));
  Eigen::Array<I, Eigen::Dynamic, Eigen::Dynamic> matrix(2, 3);
  matrix << I(1), I(1), I(1), I(3), I(0), I(4);
  CHECK(testing::same_bits(outputs(matrix.row(1)), expected));
  CHECK(testing::same_bits(outputs(std::vector<I>{}), outputs(std::vector<Index>{4, 4, 4})));
}

TEST_CASE("an invalid count throws with its value", "[cache]") {
  const channels of;
  kv_cache<float> cache(batch, 20, heads, dim);
  const auto rejected = [&](const auto& counts, const char* got) {
    CHECK(testing::throws_saying<std::invalid_argument>([&] { cache.append(of.view(), of.view(), counts); },
                                                        "rope::kv_cache::append: counts must be ", got));
    CHECK(cache.size() == 0);
  };
  rejected(std::vector<int>{1, -1, 2}, "in [0, tokens] = [0, 4], got -1");
  rejected(std::vector<unsigned>{1, 5, 2}, "in [0, tokens] = [0, 4], got 5");
  rejected(std::vector<std::uint64_t>{1, (std::numeric_limits<std::uint64_t>::max)(), 2},
           "in [0, tokens] = [0, 4], got 9223372036854775807");
  rejected(std::vector<short>{1, 2}, "[batch] = 3, got 2");
  const Eigen::MatrixXi matrix = Eigen::MatrixXi::Ones(3, 2);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { cache.append(of.view(), of.view(), matrix); },
      "counts: give a vector of integers, got a matrix [3, 2]"));
}

TEST_CASE("a list of counts must contain integers", "[cache]") {
  CHECK(std::is_convertible_v<std::vector<int>, detail::row_counts>);
  CHECK(std::is_convertible_v<Eigen::VectorXi, detail::row_counts>);
  CHECK_FALSE(std::is_convertible_v<std::vector<double>, detail::row_counts>);
  CHECK_FALSE(std::is_convertible_v<std::array<bool, 3>, detail::row_counts>);
  CHECK_FALSE(std::is_convertible_v<int, detail::row_counts>);
}
