// SPDX-License-Identifier: MIT
// Listed tokens are removed from a cache, compared with lists of tokens: the others keep their positions, the
// next position does not change, and attention is that to the remaining tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

using indices = std::vector<int>;

/// A kv_cache whose token t of row b has channels made of 100 b + t, and the list of these numbers.
template <class T>
struct numbered {
  using given = std::conditional_t<std::is_same_v<T, std::int8_t>, float, T>;
  kv_cache<T> cache{2, 16, 2, 4, 3};
  std::vector<std::vector<std::pair<int, std::int64_t>>> rows{2};  // number and position
  int appended = 0;

  void append(Index tokens, const std::vector<Index>& counts = {2}) {
    std::vector<given> k, v;
    for (Index b = 0; b < 2; ++b)
      for (Index t = 0; t < tokens; ++t) {
        const int number = appended + static_cast<int>(10 * b + t);
        for (int i = 0; i < 8; ++i) k.push_back(static_cast<given>(number + i));
        for (int i = 0; i < 6; ++i) v.push_back(static_cast<given>(-number - i));
        if (counts.size() == 2 && t >= counts[static_cast<std::size_t>(b)]) continue;
        rows[static_cast<std::size_t>(b)].emplace_back(
            number, cache.next_positions()[static_cast<std::size_t>(b)] + t);
      }
    const auto keys = bshd(k.data(), 2, tokens, 2, 4), values = bshd(v.data(), 2, tokens, 2, 3);
    counts.size() == 2 ? cache.append(keys, values, counts) : cache.append(keys, values);
    appended += 20;
  }
  void forget(std::size_t b, indices list) {
    std::sort(list.rbegin(), list.rend());
    for (const int i : list) rows[b].erase(rows[b].begin() + i);
  }
  bool holds_its_rows() const {
    bool same = true;
    for (Index b = 0; b < 2; ++b) {
      const auto& row = rows[static_cast<std::size_t>(b)];
      same = same && cache.size(b) == static_cast<Index>(row.size());
      const auto k = cache.keys(b), v = cache.values(b);
      for (std::size_t t = 0; same && t < row.size(); ++t) {
        const auto slot = static_cast<Index>(t);
        same = cache.positions(b)[t] == row[t].second;
        for (Index h = 0; h < 2; ++h)
          for (Index d = 0; d < 4; ++d) {
            // 8-bit channels have an error of half a scale of the largest channel.
            const double off = std::is_same_v<T, std::int8_t> ? (row[t].first + 8) / 250.0 : 0;
            same =
                same && std::abs(of(k, slot, h, d) - (row[t].first + static_cast<double>(4 * h + d))) <= off;
            if (d < 3)
              same = same &&
                     std::abs(of(v, slot, h, d) + (row[t].first + static_cast<double>(3 * h + d))) <= off;
          }
      }
    }
    return same;
  }
  template <class View>
  static double of(const View& x, Index t, Index h, Index d) {
    if constexpr (std::is_same_v<T, std::int8_t>)
      return static_cast<double>(*x.scale_at(0, t, h)) * x.at(0, t, h)[d];
    else
      return static_cast<double>(x.at(0, t, h)[d]);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("the listed tokens are evicted, in any order of the list", "[cache]", float, double,
                   Eigen::half, Eigen::bfloat16, std::int8_t) {
  for (const indices& list :
       {indices{0}, {9}, {3, 4, 5}, {8, 1, 9, 0, 4}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {}}) {
    numbered<TestType> x;
    x.append(10);
    REQUIRE(x.holds_its_rows());
    x.cache.evict(list, batch_row{1});
    x.forget(1, list);
    CHECK(x.holds_its_rows());
    CHECK(x.cache.next_positions()[1] == 10);
    x.append(2);
    CHECK(x.holds_its_rows());
    CHECK(x.cache.positions(1).back() == 11);
    x.cache.evict(std::vector<std::int64_t>{0}, batch_row{0});
    x.forget(0, {0});
    CHECK(x.holds_its_rows());
  }
  numbered<TestType> both;
  both.append(7);
  both.cache.evict(Eigen::Array3i(5, 2, 6));
  both.forget(0, {5, 2, 6});
  both.forget(1, {5, 2, 6});
  CHECK(both.holds_its_rows());
}

TEST_CASE("an eviction does not change the next position, and a rollback does", "[cache]") {
  const auto next = [](const numbered<float>& x) { return x.cache.next_positions()[0]; };
  numbered<float> x;
  x.append(10);
  x.cache.evict(indices{9, 8});
  CHECK(next(x) == 10);
  x.cache.remove(0, 1);  // not the newest
  CHECK(next(x) == 10);
  x.cache.truncate(7);  // changes nothing
  CHECK(next(x) == 10);
  kv_cache<float> copy = x.cache;
  copy.copy_row(0, 1);
  CHECK(copy.next_positions()[1] == 10);
  copy.truncate(5);  // tokens 1 to 5
  CHECK(copy.next_positions()[0] == 6);
  copy = x.cache;
  copy.remove(5, 2);  // the newest: a rollback, as before
  CHECK(copy.next_positions()[0] == 6);
  copy = x.cache;
  copy.evict(indices{0, 1, 2, 3, 4, 5, 6});
  CHECK(copy.size() == 0);
  CHECK(copy.next_positions()[0] == 10);
  CHECK(copy.next_positions()[1] == 10);
  copy.truncate(0, batch_row{1});
  CHECK(copy.next_positions()[0] == 10);
  CHECK(copy.next_positions()[1] == 0);
  copy.clear();
  CHECK(copy.next_positions()[0] == 0);
}

TEST_CASE("the next position counts evicted tokens, but no removed ones", "[cache]") {
  const std::vector<float> ones(3 * 4, 1.0f);
  const auto x = bshd(ones.data(), 1, 3, 1, 4);
  const int ids[] = {10, 2, 3};
  kv_cache<float> cache(1, 8, 1, 4);
  cache.append_at(x, x, ids);
  cache.evict(indices{1});
  CHECK(cache.next_positions()[0] == 11);
  cache.remove(0, 1);  // position 10, and no rollback, because position 3 is the newest
  CHECK(cache.next_positions()[0] == 4);

  kv_cache<float> on_axes(1, 8, 1, 4, token_axes{2});
  Eigen::Array<double, 3, 2> coordinates;
  coordinates << 10, 0, 1, 2, 3, 3;
  on_axes.append_at(x, x, token_coordinates(coordinates));
  on_axes.evict(indices{1});
  on_axes.remove(0, 1);
  CHECK(on_axes.next_positions()[0] == 4);

  cache.clear();
  cache.append_at(x, x, ids);
  cache.evict(indices{0});
  cache.evict(indices{0});
  CHECK(cache.next_positions()[0] == 11);
}

TEST_CASE("a shift cannot move the next position of evicted tokens out of range", "[cache]") {
  const std::int64_t reach = std::int64_t{1} << 53;
  const std::vector<float> ones(2 * 4, 1.0f);
  const auto x = bshd(ones.data(), 1, 2, 1, 4);
  const auto last_token_evicted = [&](kv_cache<float> cache) {
    cache.append(x, x);
    cache.evict(indices{1});
    return cache;
  };
  kv_cache<float> plain = last_token_evicted(kv_cache<float>(1, 4, 1, 4, 0, key_storage::raw)),
                  axes = last_token_evicted(kv_cache<float>(1, 4, 1, 4, token_axes{2}, 0, key_storage::raw));
  for (kv_cache<float>* cache : {&plain, &axes}) {
    const auto shift = [cache](std::int64_t delta) { return [=] { cache->shift(0, 1, delta); }; };
    // The remaining token is at 0, the evicted one at 1.
    CHECK(throws_saying<std::out_of_range>(shift(reach), "2^53", "got 1 and a delta of 9007199254740992"));
    CHECK(cache->next_positions()[0] == 2);
    shift(reach - 1)();
    CHECK(cache->next_positions()[0] == reach + 1);
    shift(-2 * reach + 1)();
    CHECK(cache->next_positions()[0] == 2 - reach);
    CHECK(throws_saying<std::out_of_range>(shift(2 * reach), "2^53"));
    shift(2 * reach - 1)();
    CHECK(cache->next_positions()[0] == reach + 1);
    shift(1 - reach)();
    cache->append(x.token_range(0, 1), x.token_range(0, 1));
    CHECK(cache->next_positions()[0] == 3);
  }
}

TEST_CASE("coordinates shift from one end of their range to the other", "[cache]") {
  const std::int64_t reach = std::int64_t{1} << 53;
  kv_cache<float> cache(1, 4, 1, 4, token_axes{2}, 0, key_storage::raw);
  const std::vector<float> ones(4, 1.0f);
  const auto x = bshd(ones.data(), 1, 1, 1, 4);
  Eigen::ArrayXXd at(1, 2);
  at << -0x1p53, 0.5 - 0x1p51;
  cache.append_at(x, x, token_coordinates(at));
  const auto shift = [&](std::int64_t delta) { return [&cache, delta] { cache.shift(0, 1, delta); }; };
  for (const std::int64_t delta : {2 * reach, reach + (reach >> 2) + 1, -1 - 3 * reach}) {
    CHECK(throws_saying<std::out_of_range>(shift(delta), "2^53"));
    CHECK((cache.coordinates(0) == at).all());
  }
  shift(reach + 1)();  // not representable as double
  CHECK(cache.coordinates(0)(0, 0) == 1);
  CHECK(cache.coordinates(0)(0, 1) == 0x1p53 - 0x1p51 + 2);  // rounded to even, as 1.5 would be
  shift(-1)();
  cache.truncate(0);
  at << -0x1p53, 3 - 0x1p53;
  cache.append_at(x, x, token_coordinates(at));
  shift(2 * reach - 3)();
  CHECK(cache.coordinates(0)(0, 0) == 0x1p53 - 3);
  CHECK(cache.coordinates(0)(0, 1) == 0x1p53);
}

TEST_CASE("a context shift moves the next position of evicted tokens too", "[cache]") {
  kv_cache<float> cache(1, 16, 1, 4, 0, key_storage::raw);
  const std::vector<float> ones(16 * 4, 1.0f);
  const auto x = bshd(ones.data(), 1, 16, 1, 4);
  cache.append(x.token_range(0, 10), x.token_range(0, 10));
  cache.evict(indices{9});
  cache.remove(1, 3);
  cache.shift(1, cache.size() - 1, -3);
  CHECK(cache.next_positions()[0] == 7);
  cache.shift(0, 2, 1);  // not the newest
  CHECK(cache.next_positions()[0] == 7);
}

TEMPLATE_TEST_CASE("attention after an eviction is attention to the remaining tokens, by their positions",
                   "[cache]", float, double, Eigen::half) {
  using namespace decoder_step;
  using C = TestType;
  using T = std::conditional_t<std::is_same_v<C, double>, double, float>;
  std::mt19937 generator(5);
  CAPTURE(5);
  const reference::model m = model_of<half_split>(4, plain);
  const frequency_table<entry<T>> table(plain, 0, 90);
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    kv_cache<C> cache(2, 40, 2, 8, 5, storage);
    rows all(2);
    const auto append = [&](long long count) {
      rows added(2);
      for (std::size_t b = 0; b < 2; ++b)
        for (long long t = 0; t < count; ++t)
          added[b].push_back(reference::random_token<C>(generator, m, cache.next_positions()[b] + t));
      for (std::size_t b = 0; b < 2; ++b) all[b].insert(all[b].end(), added[b].begin(), added[b].end());
      const step<T> now(m, added);
      testing::append_tokens<half_split>(cache, now.keys(), now.values(), table);
      return added;
    };
    append(14);
    const indices lists[] = {{13, 2, 3, 7}, {0, 12}};
    for (std::size_t b = 0; b < 2; ++b) {
      cache.evict(lists[b], batch_row{static_cast<Index>(b)});
      indices list = lists[b];
      std::sort(list.rbegin(), list.rend());
      for (const int i : list) all[b].erase(all[b].begin() + i);
    }
    for (const Index window : {0, 5}) {
      const rows added = append(2);
      CHECK(added[0][0].position == added[1][0].position);  // both rows lost other tokens
      step<T> now(m, added);
      attention<half_split>(now.queries(), cache, now.output(), table, {.window = window});
      CHECK(now.worst_by_position(reference::decoder_bound<T, C>(m, 20, 1, storage == key_storage::rotated),
                                  added, all, window) <= 1);
    }
  }
}

TEST_CASE("an eviction does not change the coordinates of other tokens", "[cache]") {
  kv_cache<float> cache(1, 16, 1, 4, token_axes{2});
  const std::vector<float> ones(6 * 4, 1.0f);
  const auto x = bshd(ones.data(), 1, 6, 1, 4);
  Eigen::ArrayXXi at(6, 2);
  at << 0, 0, 1, 1, 2, 3, 2, 9, 4, 4, 5, 6;
  cache.append_at(x, x, token_coordinates(at));
  CHECK(cache.next_positions()[0] == 10);
  cache.evict(indices{3, 1});
  CHECK(cache.size() == 4);
  CHECK(cache.next_positions()[0] == 10);
  Eigen::ArrayXXd left(4, 2);
  left << 0, 0, 2, 3, 4, 4, 5, 6;
  CHECK((cache.coordinates(0) == left).all());
  CHECK(cache.order(0)[3] == 3);
  cache.append(x.token_range(0, 1), x.token_range(0, 1));
  CHECK(cache.coordinates(0)(4, 0) == 10);
  cache.evict(indices{4});
  CHECK(cache.next_positions()[0] == 11);
  kv_cache<float> copy = cache;
  copy.truncate(2);
  CHECK(copy.next_positions()[0] == 4);
  cache.evict(indices{0, 1, 2, 3});
  CHECK(cache.next_positions()[0] == 11);
  copy = cache;
  copy.truncate(0);
  CHECK(copy.next_positions()[0] == 0);
  cache.clear();
  CHECK(cache.next_positions()[0] == 0);
}

TEST_CASE("latents are evicted with their rotated parts", "[cache]") {
  latent_cache<float> cache(1, 8, 3, 2);
  std::vector<float> c(6 * 3), r(6 * 2);
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < r.size(); ++i) r[i] = -static_cast<float>(i);
  cache.append(bshd(c.data(), 1, 6, 1, 3), bshd(r.data(), 1, 6, 1, 2));
  cache.evict(indices{4, 0});
  const int left[] = {1, 2, 3, 5};
  for (Index t = 0; t < 4; ++t) {
    CHECK(cache.positions(0)[static_cast<std::size_t>(t)] == left[t]);
    CHECK(cache.keys(0).at(0, t, 0)[2] == static_cast<float>(3 * left[t] + 2));
    CHECK(cache.keys(0).at(0, t, 0)[4] == -static_cast<float>(2 * left[t] + 1));
  }
}

TEST_CASE("a list with a repeated or missing token throws and evicts nothing", "[cache]") {
  numbered<float> x;
  x.append(5);
  const auto evict = [&](const std::vector<std::int64_t>& list, batch_row row = every_row) {
    return [&, list, row] { x.cache.evict(list, row); };
  };
  CHECK(throws_saying<std::out_of_range>(evict({0, 5}), "kv_cache::evict", "[0, 5)", "got 5"));
  CHECK(throws_saying<std::out_of_range>(evict({-1}), "kv_cache::evict", "got -1"));
  CHECK(throws_saying<std::out_of_range>(evict({std::numeric_limits<std::int64_t>::max()}), "[0, 5)"));
  CHECK(throws_saying<std::invalid_argument>(evict({3, 1, 3}), "kv_cache::evict", "got 3 twice"));
  CHECK(throws_saying<std::out_of_range>(evict({0}, batch_row{2}), "row must be in [0, 2)", "got 2"));
  CHECK(x.holds_its_rows());
  x.cache.evict(indices{0}, batch_row{0});
  x.forget(0, {0});
  CHECK(throws_saying<std::invalid_argument>(evict({0}), "every row"));
  CHECK(x.holds_its_rows());
}

TEST_CASE("queries without counts are the newest tokens that were not evicted", "[cache]") {
  numbered<float> x;
  x.append(6);
  x.append(3);
  x.cache.evict(indices{0, 1});  // of an earlier append, in every row
  CHECK(x.cache.query_counts(3).empty());
  x.cache.evict(indices{6}, batch_row{0});  // the newest of one row
  REQUIRE(x.cache.query_counts(3).size() == 2);
  CHECK(x.cache.query_counts(3)[0] == 2);
  CHECK(x.cache.query_counts(3)[1] == 3);
  x.cache.evict(indices{5}, batch_row{1});  // between the newest of the other
  CHECK(throws_saying<std::invalid_argument>([&] { static_cast<void>(x.cache.query_counts(3)); }, "counts"));
}
