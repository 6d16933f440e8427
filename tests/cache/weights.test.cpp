// SPDX-License-Identifier: MIT
#include <rope/cache/weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/weight_reference.hpp"

using namespace rope;

namespace {

constexpr double base_of_weights = 50;
constexpr Index dim_of_weights = 16;

using weight_reference::check_sums;
using weight_reference::check_weights;
using weight_reference::head_of;
using weight_reference::no_bias;
using weight_reference::random_heads;
using weight_reference::scoring_of;

}  // namespace

TEMPLATE_TEST_CASE("weights and their sums for a cache follow the definition", "[cache]",
                   (testing::types<float, Eigen::half>), (testing::types<float, std::int8_t>),
                   (testing::types<double, double>), (testing::types<Eigen::bfloat16, Eigen::bfloat16>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  using A = weight_reference::weight_type<T>;
  const Index batch = 2, tokens = 150, asking = 9, heads = 4, kv_heads = 2, D = dim_of_weights;
  const std::uint64_t seed = 71;
  CAPTURE(seed);
  const auto keys = random_heads<T>(batch * tokens * kv_heads * D, seed),
             q = random_heads<T>(batch * asking * heads * D, seed + 1);
  const auto queries = bshd(q.data(), batch, asking, heads, D);
  const auto k = bshd(keys.data(), batch, tokens, kv_heads, D);
  const frequency_table<A> table(frequencies(D, base_of_weights), tokens);
  const std::vector<int> counts = {int(tokens), int(tokens) - 11}, asked = {int(asking), 5};
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    const bool raw = storage == key_storage::raw;
    CAPTURE(raw);
    kv_cache<C> cache(batch, tokens, kv_heads, D, 0, storage);
    testing::append_tokens<half_split>(cache, k, k, table, counts);
    const weight_reference::extents of = {batch, asking, tokens, heads, kv_heads};
    const auto position = [&](Index b, Index i) { return cache.size(b) - asked[std::size_t(b)] + i; };
    // The number of heads that rotation rounds to the type of q: the query, and a key that is stored
    // unrotated.
    const auto reference = weight_reference::expected(
        of, scoring_of<T>(D, true, raw ? 2 : 1),
        [&](Index b, Index i, Index h) {
          return weight_reference::rotated(head_of(queries, b, i, h), double(position(b, i)),
                                           base_of_weights);
        },
        [&](Index b, Index, Index j, Index kv) {
          const auto head = head_of(cache.keys(b), 0, j, kv);
          return raw ? weight_reference::rotated(head, double(j), base_of_weights) : head;
        },
        [&](Index b, Index, Index i, Index j) {
          return i < asked[std::size_t(b)] && j <= position(b, i) && (j > position(b, i) - 40 || j < 3);
        },
        no_bias);
    const attention_options options = {.window = 40, .sinks = 3};
    check_weights<A>(reference, [&](std::vector<A>& w, const auto& threads) {
      attention_weights<half_split>(queries, cache, w, table, options, asked, threads);
    });
    check_sums<A>(reference, [&](std::vector<A>& sums, const auto& threads) {
      attention_weight_sums<half_split>(queries, cache, sums, table, options, asked, threads);
    });
  }
}

TEST_CASE("weights of rotated queries, with every option of scores", "[cache]") {
  const Index batch = 2, tokens = 40, asking = 6, heads = 4, kv_heads = 1, D = dim_of_weights;
  const auto keys = random_heads<float>(batch * tokens * kv_heads * D, 73),
             q = random_heads<float>(batch * asking * heads * D, 74),
             added = random_heads<float>(heads * asking * tokens, 75);
  const auto queries = bshd(q.data(), batch, asking, heads, D);
  const auto k = bshd(keys.data(), batch, tokens, kv_heads, D);
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> mask(asking, tokens);
  for (Index i = 0; i < asking; ++i)
    for (Index j = 0; j < tokens; ++j) mask(i, j) = (3 * i + j) % 4 != 0;
  const std::vector<float> sinks(static_cast<std::size_t>(heads), 0.75f);
  std::vector<double> log_sum_exp(std::size_t(batch * asking * heads), -3);
  kv_cache<float> cache(batch, tokens, kv_heads, D);
  cache.append(k, k);
  auto how = scoring_of<float>(D, false);
  how.scale = 0.5;
  how.softcap = 2;
  how.sink = 0.75;
  how.has_sink = true;
  const auto bias = [&](Index, Index h, Index i, Index j) {
    return static_cast<double>(added[std::size_t((h * asking + i) * tokens + j)]);
  };
  const auto reference = weight_reference::expected(
      {batch, asking, tokens, heads, kv_heads}, how,
      [&](Index b, Index i, Index h) { return head_of(queries, b, i, h); },
      [&](Index b, Index, Index j, Index kv) { return head_of(k, b, j, kv); },
      [&](Index, Index, Index i, Index j) { return mask(i, j) && j <= tokens - asking + i; }, bias);
  const attention_options options = {.scale = 0.5,
                                     .softcap = 2,
                                     .sink_logits = sinks,
                                     .bias = score_matrix(added.data(), 1, heads, asking, tokens),
                                     .mask = score_matrix(mask),
                                     .log_sum_exp = log_sum_exp};
  check_weights<float>(reference, [&](std::vector<float>& w, const auto& threads) {
    attention_weights(queries, cache, w, options, {}, threads);
  });
  check_sums<float>(reference, [&](std::vector<float>& sums, const auto& threads) {
    attention_weight_sums(queries, cache, sums, options, {}, threads);
  });
  CHECK(log_sum_exp == std::vector<double>(log_sum_exp.size(), -3));

  // A tensor of any storage order has the weights by its indices.
  weight_reference::check_tensor(reference.of,
                                 [&](auto& w) { attention_weights(queries, cache, w, options); });
}

TEMPLATE_TEST_CASE("weights of a ring are those of the tokens in its slots", "[cache]", float, std::int8_t) {
  using C = TestType;
  const Index batch = 2, heads = 4, kv_heads = 2, D = dim_of_weights, window = 10, sinks = 3;
  const frequency_table<> table(frequencies(D, base_of_weights), 64);
  for (const auto positions : {ring_positions::sequence, ring_positions::cache}) {
    const bool by_rank = positions == ring_positions::cache;
    for (const bool raw : {false, true}) {
      if (by_rank && !raw) continue;
      ring_cache<C> cache(batch, {.sinks = sinks, .window = window, .chunk = 4, .positions = positions},
                          kv_heads, D, 0, raw ? key_storage::raw : key_storage::rotated);
      for (Index step = 0; step < 9; ++step) {  // 27 tokens, so the 16 slots have wrapped around
        const Index asking = 1 + step % 4;
        CAPTURE(by_rank, raw, step);
        const auto keys = random_heads<float>(batch * asking * kv_heads * D, std::uint64_t(80 + step)),
                   q = random_heads<float>(batch * asking * heads * D, std::uint64_t(180 + step));
        const auto queries = bshd(q.data(), batch, asking, heads, D);
        const auto k = bshd(keys.data(), batch, asking, kv_heads, D);
        testing::append_tokens<half_split>(cache, k, k, table);
        const auto sees = [&](Index b, Index, Index i, Index j) {
          const std::int64_t at = cache.seen(b) - asking + i, key = cache.order(b)[std::size_t(j)];
          return key <= at && (key > at - window || key < sinks);
        };
        const auto rank = [&](Index b, Index i, Index j) {  // among the visible keys
          Index smaller = 0;
          for (Index n = 0; n < cache.size(b); ++n)
            smaller += sees(b, 0, i, n) && cache.order(b)[std::size_t(n)] < cache.order(b)[std::size_t(j)];
          return smaller;
        };
        const auto reference = weight_reference::expected(
            {batch, asking, cache.keys(0).tokens, heads, kv_heads}, scoring_of<float>(D, true),
            [&](Index b, Index i, Index h) {
              const std::int64_t at = cache.seen(b) - asking + i;
              return weight_reference::rotated(
                  head_of(queries, b, i, h),
                  double(by_rank ? (std::min)(at, std::int64_t(window + sinks - 1)) : at), base_of_weights);
            },
            [&](Index b, Index i, Index j, Index kv) {
              const auto head = head_of(cache.keys(b), 0, j, kv);
              const auto at = by_rank ? std::int64_t(rank(b, i, j)) : cache.order(b)[std::size_t(j)];
              return raw ? weight_reference::rotated(head, double(at), base_of_weights) : head;
            },
            sees, no_bias);
        check_weights<float>(reference, [&](std::vector<float>& w, const auto& threads) {
          attention_weights<half_split>(queries, cache, w, table, {}, {}, threads);
        });
        check_sums<float>(reference, [&](std::vector<float>& sums, const auto& threads) {
          attention_weight_sums<half_split>(queries, cache, sums, table, {}, {}, threads);
        });
      }
    }
  }
}

TEST_CASE("weights of a latent_cache compare queries with latents and their rotated parts", "[cache]") {
  const Index batch = 1, tokens = 20, asking = 3, heads = 4, latent = 6, part = 4;
  const auto latents = random_heads<float>(tokens * latent, 90),
             parts = random_heads<float>(tokens * part, 91),
             q = random_heads<float>(asking * heads * (latent + part), 92);
  const frequency_table<> table(frequencies(part, base_of_weights), tokens);
  latent_cache<float> cache(batch, tokens, latent, part);
  cache.append<half_split>(bshd(latents.data(), batch, tokens, 1, latent),
                           bshd(parts.data(), batch, tokens, 1, part), table);
  const auto queries = bshd(q.data(), batch, asking, heads, latent + part);
  auto how = scoring_of<float>(latent + part, true);
  how.scale = 0.4;
  const auto reference = weight_reference::expected(
      {batch, asking, tokens, heads, 1}, how,
      [&](Index b, Index i, Index h) {
        auto head = head_of(queries, b, i, h);
        const auto rotated_part = weight_reference::rotated({head.begin() + latent, head.end()},
                                                            double(tokens - asking + i), base_of_weights);
        std::copy(rotated_part.begin(), rotated_part.end(), head.begin() + latent);
        return head;
      },
      [&](Index b, Index, Index j, Index kv) { return head_of(cache.keys(b), 0, j, kv); },
      [&](Index, Index, Index i, Index j) { return j <= tokens - asking + i; }, no_bias);
  check_weights<float>(reference, [&](std::vector<float>& w, const auto& threads) {
    attention_weights<half_split>(queries, cache, w, table, {.scale = 0.4}, {}, threads);
  });
  check_sums<float>(reference, [&](std::vector<float>& sums, const auto& threads) {
    attention_weight_sums<half_split>(queries, cache, sums, table, {.scale = 0.4}, {}, threads);
  });
}

TEST_CASE("invalid calls of weights of a cache throw and write nothing", "[cache]") {
  const Index D = 4;
  const auto x = random_heads<float>(2 * 3 * 2 * D, 95);
  kv_cache<float> cache(2, 8, 1, D);
  const auto k = bshd(x.data(), 2, 3, 1, D);
  cache.append(k, k);
  const auto q = bshd(x.data(), 2, 3, 2, D);
  std::vector<float> w(2 * 2 * 3 * 3, -1), sums(2 * 2 * 3, -1);
  const auto untouched = [&] {
    return std::all_of(w.begin(), w.end(), [](float y) { return y == -1; }) &&
           std::all_of(sums.begin(), sums.end(), [](float y) { return y == -1; });
  };
  w.pop_back();
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weights(q, cache, w); },
      "attention_weights: weights must have length batch * heads * queries * keys = 36, got 35"));
  w.push_back(-1);
  sums.pop_back();
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weight_sums(q, cache, sums); },
      "attention_weight_sums: sums must have length batch * heads "
      "* keys = 12, or batch * key heads * keys = 6, got 11"));
  sums.push_back(-1);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weights(q, cache, w, {.dropout = 0.5}); }, "dropout is for training"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weight_sums(q, cache, sums, {.window = -1}); }, "window must not be negative, got -1"));
  const frequency_table<> table(frequencies(D), 8);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weight_sums<half_split>(q, cache, sums, table); },
      "were rotated before they were appended"));
  kv_cache<float> rotating(2, 8, 1, D);
  rotating.append<half_split>(k, k, table);
  CHECK(testing::throws_saying<std::invalid_argument>([&] { attention_weights(q, rotating, w); },
                                                      "this cache rotated its keys"));
  CHECK(testing::throws_saying<std::invalid_argument>([&] { attention_weight_sums(q, rotating, sums); },
                                                      "this cache rotated its keys"));
  CHECK(untouched());
  attention_weight_sums(q, rotating, sums, {.queries_are_rotated = true});
  CHECK(!untouched());
}

TEST_CASE("keys hidden from all queries do not change sums, not even NaN", "[cache]") {
  const Index D = 8, tokens = 12, asking = 4;
  const auto keys = random_heads<float>(tokens * D, 96), q = random_heads<float>(2 * asking * D, 97);
  kv_cache<float> cache(1, tokens, 1, D);
  std::vector<float> changed = keys, changed_q = q;
  std::vector<float> sums(static_cast<std::size_t>(tokens)), again = sums;
  const std::vector<int> counts = {3};
  for (int run = 0; run < 2; ++run) {
    cache.clear();
    cache.append(thd(changed.data(), tokens, 1, D), thd(changed.data(), tokens, 1, D));
    attention_weight_sums(thd(changed_q.data(), asking, 2, D), cache, run == 0 ? sums : again, {.window = 5},
                          counts);
    std::fill_n(changed.begin(), 5 * D, std::numeric_limits<float>::quiet_NaN());  // tokens 0 to 4
    std::fill(changed_q.begin() + 3 * 2 * D, changed_q.end(), std::numeric_limits<float>::quiet_NaN());
  }
  CHECK(sums == again);
  CHECK(std::count(sums.begin(), sums.end(), 0.0f) == 5);
}
