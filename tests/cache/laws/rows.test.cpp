// SPDX-License-Identifier: MIT
// Rows of caches that are copied and reordered, compared with lists of tokens. Trees of guessed tokens.
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

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
void append(kv_cache<float>& cache, const std::vector<float>& ids, Index n,
            const std::vector<Index>& counts) {
  std::vector<float> k, v;
  for (const float id : ids) {
    for (int i = 0; i < 6; ++i) k.push_back(id + static_cast<float>(i) / 8);
    for (int i = 0; i < 4; ++i) v.push_back(-id - static_cast<float>(i) / 8);
  }
  cache.append(bshd(k.data(), cache.batch(), n, 2, 3), bshd(v.data(), cache.batch(), n, 2, 2), counts);
}
void append(latent_cache<float>& cache, const std::vector<float>& ids, Index n,
            const std::vector<Index>& counts) {
  std::vector<float> c, r;
  for (const float id : ids) {
    for (int i = 0; i < 3; ++i) c.push_back(id + static_cast<float>(i) / 8);
    for (int i = 0; i < 2; ++i) r.push_back(-id - static_cast<float>(i) / 8);
  }
  cache.append(bshd(c.data(), cache.batch(), n, 1, 3), bshd(r.data(), cache.batch(), n, 1, 2), counts);
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
    for (Index h = 0; h < heads; ++h)
      for (Index d = 0; d < head_dim; ++d)
        worst = std::max(worst, std::abs(static_cast<double>(out.at(0, last, h)[d]) -
                                         static_cast<double>(branch.at(0, last, h)[d])));
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
