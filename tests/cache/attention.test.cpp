// SPDX-License-Identifier: MIT
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/cache_history.hpp"
#include "support/catch.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

/// Caches after random calls, compared with lists of tokens.

namespace {

using namespace rope;
using namespace decoder_step;
using testing::throws_saying;

/// A decoder that appends, rolls back, drops and shifts tokens at random.
template <class Layout, class T, class C>
void check_history(std::uint32_t seed) {
  const std::size_t heads = seed % 2 == 0 ? 2 : 6;
  const key_storage storage = seed % 3 == 0 ? key_storage::raw : key_storage::rotated;
  const double softcap = seed % 4 == 3 ? 1.5 : 0;
  const frequencies louder = frequencies::custom(plain.inv_freq(), 1.25);
  cache_history<Layout, T, C> decoder(seed, heads, storage, seed % 5 == 1 ? louder : plain, softcap);
  const Index window = seed % 2 == 0 ? 0 : 6;
  CAPTURE(seed, testing::name_of<Layout>, heads, window, storage == key_storage::raw);
  decoder.append({5, 9}, window);
  for (int i = 0; i < 14; ++i) {
    const std::size_t b = decoder.below(2), size = decoder.size(b);
    const std::size_t first = decoder.below(size + 1), last = first + decoder.below(size - first + 1);
    switch (decoder.below(5)) {
      case 0:
        decoder.truncate(b, size - decoder.below((std::min)(size, std::size_t{4}) + 1));
        break;
      case 1:
        decoder.remove(b, first, last);
        break;
      case 2:
        decoder.shift(b, first, last, static_cast<long long>(decoder.below(13)) - 6);
        break;
      default:
        const auto more = [&](std::size_t row) {
          return decoder.below(
              1 + (std::min)(std::size_t{4}, static_cast<std::size_t>(decoder.capacity) - decoder.size(row)));
        };
        const std::size_t zero = more(0), one = more(1);
        decoder.append({zero, one}, window);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("attention to a cache follows the definition after any calls", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<float, Eigen::half>), (testing::types<float, Eigen::bfloat16>),
                   (testing::types<Eigen::bfloat16, Eigen::bfloat16>)) {
  const std::uint32_t seed = GENERATE(range(0u, 30u));
  check_history<half_split, typename TestType::channel, typename TestType::entry>(seed);
  check_history<interleaved, typename TestType::channel, typename TestType::entry>(seed + 1000);
}

namespace {

/// Memory for calls whose numbers do not matter.
struct tokens_of_ones {
  std::vector<float> memory = std::vector<float>(4096, 1.0f), result = std::vector<float>(4096, -77.0f);
  head_view<const float> q(Index batch, Index tokens, Index heads = 4, Index dim = 8) const {
    return bshd(memory.data(), batch, tokens, heads, dim);
  }
  head_view<float> out(Index batch, Index tokens, Index heads = 4, Index dim = 5) {
    return bshd(result.data(), batch, tokens, heads, dim);
  }
  bool untouched() const { return result == std::vector<float>(result.size(), -77.0f); }
};

}  // namespace

TEST_CASE("an invalid call of attention to a cache throws and nothing is written", "[cache]") {
  tokens_of_ones x;
  const frequency_table<> table(plain, 40), other(frequencies(6, 50.0), 40), small(plain, 3),
      wide(frequencies(10), 40);
  kv_cache<float> rotated(2, 10, 2, 8, 5), given(2, 10, 2, 8, 5), raw(2, 10, 2, 8, 5, key_storage::raw);
  rotated.append<half_split>(x.q(2, 4, 2), x.q(2, 4, 2, 5), table);
  given.append(x.q(2, 4, 2), x.q(2, 4, 2, 5));
  raw.append(x.q(2, 4, 2), x.q(2, 4, 2, 5));
  const auto rejected = [&]<class E>(E, const char* text, const auto& call) {
    CHECK(throws_saying<E>(call, std::string("rope::") + text));
    CHECK(x.untouched());
  };
  const std::invalid_argument invalid("");
  const std::out_of_range range("");
  const attention_options none;
  const auto counts = [](Index a, Index b) { return std::vector<Index>{a, b}; };

  rejected(invalid, "attention: q must have at most as many rows as the cache, got 3 and 2",
           [&] { attention<half_split>(x.q(3, 1), rotated, x.out(3, 1), table); });
  rejected(invalid, "attention: counts must be [batch] = 1, got 2",
           [&] { attention<half_split>(x.q(1, 1), rotated, x.out(1, 1), table, none, counts(1, 1)); });
  rejected(invalid, "attention: q and out must have the same tokens, got 1 and 2",
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 2), table); });
  rejected(invalid, "attention: q.heads must be a multiple of k.heads, got 3 and 2",
           [&] { attention<half_split>(x.q(2, 1, 3), rotated, x.out(2, 1, 3), table); });
  rejected(invalid, "attention: q and k must have the same head_dim, got 6 and 8",
           [&] { attention<half_split>(x.q(2, 1, 4, 6), rotated, x.out(2, 1), table); });
  rejected(invalid, "attention: v and out must have the same head_dim, got 5 and 8",
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 1, 4, 8), table); });
  rejected(invalid,
           "attention: append the keys of the queries before they attend: 5 queries, 4 cached tokens",
           [&] { attention<half_split>(x.q(2, 5), rotated, x.out(2, 5), table); });
  rejected(invalid, "attention: counts must be [batch] = 2, got 1", [&] {
    attention<half_split>(x.q(2, 1), rotated, x.out(2, 1), table, none, std::vector<Index>{1});
  });
  rejected(invalid, "attention: counts must be in [0, tokens] = [0, 1], got 2",
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 1), table, none, counts(1, 2)); });
  rejected(invalid, "attention: counts must be in [0, tokens] = [0, 1], got -1",
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 1), table, none, counts(-1, 1)); });
  rejected(invalid, "attention: window must not be negative, got -1",
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 1), table, {.window = -1}); });

  // Tables and layouts.
  const std::string mixed = "kv_cache: give the layout and the table that the keys were rotated by, got ";
  rejected(invalid, (mixed + "a table with different angles").c_str(),
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 1), other); });
  rejected(invalid, (mixed + "the right table in another layout").c_str(),
           [&] { attention<interleaved>(x.q(2, 1), rotated, x.out(2, 1), table); });
  rejected(invalid,
           "attention: the keys of the 4 tokens in row 0 were rotated before they were appended; rotate q "
           "yourself and leave out the layout and the table",
           [&] { attention<half_split>(x.q(2, 1), given, x.out(2, 1), table); });
  rejected(invalid, "attention: the stored keys are raw, give the layout and the table",
           [&] { attention(x.q(2, 1), raw, x.out(2, 1)); });
  rejected(range, "attention: position 3 is outside the table's [0, 3)",
           [&] { attention<half_split>(x.q(2, 1), rotated, x.out(2, 1), small); });
  rejected(range, "attention: position 0 is outside the table's [2, 9)",
           [&] { attention<half_split>(x.q(2, 1), raw, x.out(2, 1), frequency_table<>(plain, 2, 9)); });
  rejected(invalid, "attention: rotary_dim must not exceed head_dim, got 10 of 8",
           [&] { attention<half_split>(x.q(2, 1), raw, x.out(2, 1), wide); });

  // A scale too small for float throws before a row is written, whichever row it is.
  kv_cache<float> uneven(2, 10, 2, 8, 5), uneven_raw(2, 10, 2, 8, 5, key_storage::raw);
  uneven.append<half_split>(x.q(2, 4, 2), x.q(2, 4, 2, 5), table, counts(2, 4));
  uneven_raw.append(x.q(2, 4, 2), x.q(2, 4, 2, 5), counts(2, 4));
  for (const auto* cache : {&uneven, &uneven_raw})
    rejected(invalid, "attention: scale and softcap must be 0 or of a magnitude in [", [&] {
      attention<half_split>(x.q(2, 4), *cache, x.out(2, 4), table, {.softcap = 1e-300}, counts(2, 4));
    });

  // Rings.
  ring_cache<float> ring(2, {.sinks = 1, .window = 3, .chunk = 2}, 2, 8, 5);
  ring.append<half_split>(x.q(2, 7, 2), x.q(2, 7, 2, 5), table);
  rejected(
      invalid,
      "attention: the query at 4 needs keys that were overwritten; append and attend to at most chunk = 2 "
      "tokens per call, got 3",
      [&] { attention<half_split>(x.q(2, 3), ring, x.out(2, 3), table); });
  // A call without the ring would leave out its earlier keys.
  CHECK_FALSE(throws_saying<std::invalid_argument>(
      [&] { attention<half_split>(x.q(2, 3), ring, x.out(2, 3), table); }, "attention(q, k, v"));
  rejected(
      invalid,
      "attention: the query at 1 needs keys that were overwritten; append and attend to at most chunk = 2 "
      "tokens per call, got 7; for the prompt of an empty ring, call attention(q, k, v, out, table, {.window "
      "= 3, .sinks = 1}), then append(k, v, table)",
      [&] { attention<half_split>(x.q(2, 7), ring, x.out(2, 7), table); });
  rejected(invalid,
           "attention: leave causal, window and sinks at their defaults, the ring_cache has its own, causal "
           "with window = 3 and sinks = 1, got causal = false",
           [&] { attention<half_split>(x.q(2, 1), ring, x.out(2, 1), table, {.causal = false}); });
  rejected(invalid,
           "attention: leave causal, window and sinks at their defaults, the ring_cache has its own, causal "
           "with window = 3 and sinks = 1, got window = 2",
           [&] { attention<half_split>(x.q(2, 1), ring, x.out(2, 1), table, {.window = 2}); });
  rejected(invalid,
           "ring_cache: give the layout and the table that the keys were rotated by, got a table with "
           "different angles",
           [&] { attention<half_split>(x.q(2, 1), ring, x.out(2, 1), other); });
  ring_cache<float> relative(2, {.sinks = 1, .window = 3, .positions = ring_positions::cache}, 2, 8, 5,
                             key_storage::raw);
  relative.append(x.q(2, 7, 2), x.q(2, 7, 2, 5));
  rejected(range, "attention: position 3 is outside the table's [0, 3)",
           [&] { attention<half_split>(x.q(2, 1), relative, x.out(2, 1), small); });

  // Each of the calls above, without its mistake.
  attention<half_split>(x.q(2, 4), rotated, x.out(2, 4), table);
  attention(x.q(2, 1), given, x.out(2, 1));
  attention<half_split>(x.q(2, 1), ring, x.out(2, 1), table);
  attention<half_split>(x.q(2, 1), relative, x.out(2, 1), frequency_table<>(plain, 4));
  CHECK(!x.untouched());
}

TEST_CASE("a call without a table to a cache of keys it rotated needs queries_are_rotated", "[cache]") {
  const frequency_table<> table(plain, 40);
  const std::string rule =
      "rope::attention: this cache rotated its keys, and a call without a table does not rotate q; call "
      "attention<Layout>(q, cache, out, table), or rotate q yourself and set queries_are_rotated, got false";
  const auto k = testing::random_channels<float>(2 * 4 * 2 * 8, 7),
             q = testing::random_channels<float>(2 * 4 * 4 * 8, 8);
  const auto keys = bshd(k.data(), 2, 4, 2, 8);
  const auto check = [&](auto cache, const auto& append) {
    tokens_of_ones x;
    std::vector<float> rotated = q, expected(q.size());
    const auto queries = bshd(q.data(), 2, 4, 4, 8);
    const auto by_hand = bshd(rotated.data(), 2, 4, 4, 8), out = x.out(2, 4, 4, 8);
    rotate<half_split>(by_hand, table);
    attention(queries.token_range(0, 0), cache, out.token_range(0, 0));  // an empty cache has not rotated any
    append(cache);
    CHECK(cache.rotates_keys());
    for (const Index tokens : {Index{4}, Index{0}})
      CHECK(throws_saying<std::invalid_argument>(
          [&] { attention(queries.token_range(0, tokens), cache, out.token_range(0, tokens)); }, rule));
    CHECK(x.untouched());
    attention(by_hand, cache, out, {.queries_are_rotated = true});
    attention<half_split>(queries, cache, bshd(expected.data(), 2, 4, 4, 8), table);
    CHECK(std::equal(expected.begin(), expected.end(), x.result.begin()));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { attention<half_split>(queries, cache, out, table, {.queries_are_rotated = true}); },
        "rope::attention: the table rotates q, so queries_are_rotated must be false, got true"));
    cache.clear();
    CHECK_FALSE(cache.rotates_keys());
  };
  check(kv_cache<float>(2, 10, 2, 8), [&](auto& to) { to.template append<half_split>(keys, keys, table); });
  check(kv_cache<float>(2, 10, 2, 8),
        [&](auto& to) { to.template append_at<half_split>(keys, keys, table, 0); });
  check(kv_cache<float>(2, 10, 2, 8, token_axes{1}),
        [&](auto& to) { to.template append<half_split>(keys, keys, table); });
  check(kv_cache<std::int8_t>(2, 10, 2, 8),
        [&](auto& to) { to.template append<half_split>(keys, keys, table); });
  check(ring_cache<float>(2, {.window = 9}, 2, 8),
        [&](auto& to) { to.template append<half_split>(keys, keys, table); });
}

TEST_CASE("a cache of rotated keys and its views give the same bits", "[cache]") {
  const std::vector<float> k = testing::random_channels<float>(2 * 9 * 2 * 8, 5),
                           q = testing::random_channels<float>(2 * 4 * 6 * 8, 6);
  kv_cache<float> cache(2, 12, 2, 8);
  cache.append(bshd(k.data(), 2, 9, 2, 8), bshd(k.data(), 2, 9, 2, 8));
  std::vector<float> by_cache(q.size()), by_views(q.size());
  const attention_options options{.window = GENERATE(0, 3), .softcap = GENERATE(0.0, 2.0)};
  attention(bshd(q.data(), 2, 4, 6, 8), cache, bshd(by_cache.data(), 2, 4, 6, 8), options);
  attention(bshd(q.data(), 2, 4, 6, 8), cache.keys(), cache.values(), bshd(by_views.data(), 2, 4, 6, 8),
            options);
  CHECK(by_cache == by_views);
}

namespace {

/// Runs every piece on the calling thread, last first.
struct backwards {
  Index threads() const { return 2; }
  void parallel_for(Index count, const auto& body) const {
    for (Index i = count; i > 0; --i) body(i - 1);
  }
};

}  // namespace

TEST_CASE("biases, masks, sink logits and log-sum-exps are those of the views, for every storage",
          "[cache]") {
  const Index batch = 2, keys = 11, queries = 3, heads = 6;
  testing::random numbers(700);
  const auto some = [&](Index count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x)
      value = static_cast<float>(static_cast<Eigen::bfloat16>(static_cast<float>(numbers.unit() - 0.5)));
    return x;
  };
  const std::vector<float> k = some(batch * keys * 2 * 8), v = some(batch * keys * 2 * 5),
                           q = some(batch * queries * heads * 8), bias = some(batch * heads * queries * keys),
                           logits = some(heads);
  std::vector<char> mask(static_cast<std::size_t>(batch * queries * keys));
  for (char& visible : mask) visible = numbers.unit() < 0.7 ? 1 : 0;
  const frequency_table<> table(plain, 20);
  attention_options options{.sinks = 1};
  options.window = GENERATE(0, 4);
  options.bias = score_matrix(bias.data(), batch, heads, queries, keys);
  options.mask = score_matrix(reinterpret_cast<const bool*>(mask.data()), batch, 1, queries, keys);
  options.sink_logits = logits;

  const auto key_view = bshd(k.data(), batch, keys, 2, 8);
  const auto value_view = bshd(v.data(), batch, keys, 2, 5);
  const auto query_view = bshd(q.data(), batch, queries, heads, 8);
  struct result {
    std::vector<float> out = std::vector<float>(2 * 3 * 6 * 5, -77.0f);
    std::vector<double> sums = std::vector<double>(2 * 3 * 6, -77.0);
    head_view<float> view() { return bshd(out.data(), 2, 3, 6, 5); }
  };
  result expected;
  options.log_sum_exp = expected.sums;
  attention<half_split>(query_view, key_view, value_view, expected.view(), table, options);

  const auto check = [&](auto cache, const auto& threads) {
    testing::append_tokens<half_split>(cache, key_view, value_view, table);
    result got;
    options.log_sum_exp = got.sums;
    attention<half_split>(query_view, cache, got.view(), table, options, {}, threads);
    double sum_error = 0;
    for (std::size_t i = 0; i < got.sums.size(); ++i)
      sum_error = (std::max)(
          sum_error, got.sums[i] == expected.sums[i] ? 0.0 : std::abs(got.sums[i] - expected.sums[i]));
    // Channels below 0.5 and at most 11 keys: sums with a few roundings of numbers below 1.
    CHECK(testing::largest_difference(got.out, expected.out) <= 200 * 0x1p-24);
    CHECK(sum_error <= 200 * 0x1p-24);
    // Without a buffer for sums, those of ring_positions::cache are copied head by head. The others are not
    // copied.
    options.log_sum_exp = {};
    result alone;
    attention<half_split>(query_view, cache, alone.view(), table, options, {}, threads);
    for (std::size_t i = 0; i < got.out.size(); ++i)
      CHECK(std::abs(alone.out[i] - expected.out[i]) <= 200 * 0x1p-24f);
  };
  check(kv_cache<float>(batch, 20, 2, 8, 5), this_thread{});
  check(kv_cache<float>(batch, 20, 2, 8, 5), backwards{});
  check(kv_cache<float>(batch, 20, 2, 8, 5, key_storage::raw), this_thread{});
  check(kv_cache<Eigen::bfloat16>(batch, 20, 2, 8, 5, key_storage::raw), backwards{});
}

TEST_CASE("each head has its sink logit, for rows of any count", "[cache]") {
  const Index heads = 4;
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 0.0f};
  const std::vector<float> memory = testing::random_channels<float>(2 * 5 * heads * 8, 11);
  const auto q = bshd(memory.data(), 2, 5, heads, 8);
  const auto k = q.head_range(0, 2);
  const frequency_table<> table(plain, 20);
  for (const bool raw : {false, true}) {
    CAPTURE(raw);
    const auto storage = raw ? key_storage::raw : key_storage::rotated;
    const auto append = [&](kv_cache<float>& to, const auto& x, const std::vector<Index>& counts) {
      testing::append_tokens<half_split>(to, x, x, table, counts);
    };
    kv_cache<float> both(2, 10, 2, 8, 8, storage);
    const std::vector<Index> counts = {5, 3};
    append(both, k, counts);
    std::vector<float> got(2 * 5 * heads * 8), alone = got;
    attention<half_split>(q, both, bshd(got.data(), 2, 5, heads, 8), table, {.sink_logits = logits}, counts);
    for (Index b = 0; b < 2; ++b) {
      const Index count = counts[static_cast<std::size_t>(b)];
      kv_cache<float> one(1, 10, 2, 8, 8, storage);
      append(one, k.batch_range(b, 1).token_range(0, count), {});
      attention<half_split>(q.batch_range(b, 1).token_range(0, count), one,
                            bshd(alone.data(), 2, 5, heads, 8).batch_range(b, 1).token_range(0, count), table,
                            {.sink_logits = logits});
    }
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - alone[i]) <= 200 * 0x1p-24f);
  }
}

TEST_CASE("queries beyond the count of a row have no keys", "[cache]") {
  tokens_of_ones x;
  kv_cache<float> cache(2, 10, 2, 8, 5);
  cache.append(x.q(2, 3, 2), x.q(2, 3, 2, 5), std::vector<Index>{3, 1});
  std::vector<double> sums(2 * 3 * 4, -77);
  attention_options options;
  options.log_sum_exp = sums;
  attention(x.q(2, 3), cache, x.out(2, 3), options, std::vector<Index>{3, 1});
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t t = 0; t < 3; ++t)
      for (std::size_t h = 0; h < 4; ++h)
        CHECK((sums[(b * 3 + t) * 4 + h] == attention_options::no_keys) == (b == 1 && t > 0));
}

TEST_CASE("rows of equal length with different histories are rolled back together", "[cache]") {
  tokens_of_ones x;
  kv_cache<float> cache(2, 10, 2, 8, 5);
  cache.append(x.q(2, 1, 2), x.q(2, 1, 2, 5), std::vector<Index>{0, 1});
  cache.append(x.q(2, 3, 2), x.q(2, 3, 2, 5), std::vector<Index>{3, 2});
  cache.truncate(2);  // one token of each: 2 and 1 are left of the last append, which had 3 columns
  std::vector<double> sums(2 * 3 * 4, -77);
  attention_options options;
  options.log_sum_exp = sums;
  attention(x.q(2, 3), cache, x.out(2, 3), options);
  const std::size_t left[] = {2, 1};
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t t = 0; t < 3; ++t)
      for (std::size_t h = 0; h < 4; ++h)
        CHECK((sums[(b * 3 + t) * 4 + h] == attention_options::no_keys) == (t >= left[b]));
}

TEST_CASE("options that a cache sets itself throw", "[cache]") {
  tokens_of_ones x;
  kv_cache<float> cache(1, 10, 2, 8, 5);
  cache.append(x.q(1, 4, 2), x.q(1, 4, 2, 5));
  ring_cache<float> ring(1, {.window = 3}, 2, 8, 5);
  ring.append(x.q(1, 4, 2), x.q(1, 4, 2, 5));
  const std::vector<std::int64_t> list = {0, 1, 2, 3};
  const std::vector<float> bias(16);
  const auto rejected = [&](const char* text, const auto& with, const auto& change) {
    attention_options options;
    change(options);
    CHECK(throws_saying<std::invalid_argument>([&] { attention(x.q(1, 1), with, x.out(1, 1), options); },
                                               std::string("rope::attention: ") + text));
    CHECK(x.untouched());
  };
  const std::string lists = "a cache knows the positions and counts of its tokens; leave ";
  rejected((lists + "query_positions empty in the options, got length 1").c_str(), cache, [&](auto& o) {
    o.query_positions = {list.data(), 1};
  });
  rejected((lists + "key_positions empty").c_str(), cache, [&](auto& o) { o.key_positions = list; });
  rejected((lists + "query_counts empty").c_str(), cache, [&](auto& o) {
    o.query_counts = {list.data() + 1, 1};
  });
  rejected((lists + "key_counts empty").c_str(), cache, [&](auto& o) {
    o.key_counts = {list.data() + 1, 1};
  });
  rejected((lists + "query_offsets empty in the options, got length 2").c_str(), ring, [&](auto& o) {
    o.query_offsets = {list.data(), 2};
  });
  rejected((lists + "key_offsets empty").c_str(), ring, [&](auto& o) { o.key_offsets = {list.data(), 2}; });
  rejected("dropout is for training; set it to 0 for attention to a cache, got 0.5", cache,
           [](auto& o) { o.dropout = 0.5; });
  rejected(
      "a ring_cache overwrites old keys, so a bias or a mask cannot be matched to keys; use a kv_cache, or "
      "leave it empty, got a bias",
      ring, [&](auto& o) { o.bias = score_matrix(bias.data(), 1, 1, 1, 3); });
  rejected(
      "leave causal, window and sinks at their defaults, the ring_cache has its own, causal with window = 3 "
      "and sinks = 0, got sinks = 2",
      ring, [](auto& o) { o.sinks = 2; });
  rejected(
      "leave causal, window and sinks at their defaults, the ring_cache has its own, causal with window = 3 "
      "and sinks = 0, got causal = false, window = 4, sinks = 2",
      ring, [](auto& o) {
        o.causal = false;
        o.window = 4;
        o.sinks = 2;
      });
  rejected("the extents of bias must be 1 or those of the scores, [1, 4, 1, 4], got [1, 1, 1, 3]", cache,
           [&](auto& o) { o.bias = score_matrix(bias.data(), 1, 1, 1, 3); });
  rejected("sink_logits must be empty or have length 4, got 3", cache, [&](auto& o) {
    o.sink_logits = {bias.data(), 3};
  });
  rejected("products in bfloat16 need queries, keys, values and outputs of bfloat16", cache,
           [](auto& o) { o.products = product_precision::bfloat16; });
}

TEST_CASE("unsupported product types throw before a row without queries is set to zeros", "[cache]") {
  tokens_of_ones x;
  kv_cache<float> cache(2, 10, 2, 8, 5);
  cache.append(x.q(2, 4, 2), x.q(2, 4, 2, 5));
  for (const int last : {1, 0}) {
    const int counts[] = {0, last};
    CHECK(throws_saying<std::invalid_argument>(
        [&] { attention(x.q(2, 1), cache, x.out(2, 1), {.products = product_precision::integers}, counts); },
        "rope::attention: integer products need quantized keys and values"));
    CHECK(x.untouched());
  }
}

TEST_CASE("log-sum-exps of a ring that has not overwritten anything are those of its views", "[cache]") {
  const std::vector<float> k = testing::random_channels<float>(2 * 7 * 2 * 8, 31),
                           q = testing::random_channels<float>(2 * 3 * 4 * 8, 32);
  const frequency_table<> table(plain, 20);
  const auto keys = bshd(k.data(), 2, 7, 2, 8), queries = bshd(q.data(), 2, 3, 4, 8);
  std::vector<float> out(q.size()), expected_out(q.size());
  std::vector<double> sums(2 * 3 * 4, -77), expected(sums);
  attention_options options;
  options.log_sum_exp = expected;
  attention<half_split>(queries, keys, keys, bshd(expected_out.data(), 2, 3, 4, 8), table, options);
  options.log_sum_exp = sums;
  const double largest = 4 * 4 * std::sqrt(8.0);  // the largest score of channels below 4 is 128 / sqrt(8)
  for (const ring_positions positions : {ring_positions::sequence, ring_positions::cache}) {
    ring_cache<float> ring(2, {.sinks = 1, .window = 8, .chunk = 3, .positions = positions}, 2, 8, 0,
                           key_storage::raw);
    ring.append(keys, keys);
    attention<half_split>(queries, ring, bshd(out.data(), 2, 3, 4, 8), table, options);
    for (std::size_t i = 0; i < sums.size(); ++i)
      CHECK(std::abs(sums[i] - expected[i]) <= 20 * 0x1p-24 * largest);
    std::fill(sums.begin(), sums.end(), -77);
  }
}

TEST_CASE("queries of the first rows of a cache have the results of queries of all rows", "[cache]") {
  constexpr Index rows = 3, tokens = 4;
  const frequency_table<> table(plain, 40);
  const std::vector<float> k = testing::random_channels<float>(rows * tokens * 2 * 8, 41),
                           q = testing::random_channels<float>(rows * tokens * 4 * 8, 42);
  const auto keys = bshd(k.data(), rows, tokens, 2, 8), queries = bshd(q.data(), rows, tokens, 4, 8);
  const auto check = [&](auto cache, const std::vector<Index>& counts, const auto& append) {
    append(cache, counts);
    std::vector<float> all(q.size(), -77);
    attention<half_split>(queries, cache, bshd(all.data(), rows, tokens, 4, 8), table);
    for (Index first = 0; first <= rows; ++first) {
      CAPTURE(first);
      std::vector<float> part(q.size(), -77), expected = part;
      std::copy_n(all.begin(), first * tokens * 4 * 8, expected.begin());
      std::vector<double> sums(static_cast<std::size_t>(first * tokens * 4), -1);
      const auto out = bshd(part.data(), rows, tokens, 4, 8).batch_range(0, first);
      attention<half_split>(queries.batch_range(0, first), cache, out, table, {.log_sum_exp = sums});
      CHECK(part == expected);
      CHECK(std::count(sums.begin(), sums.end(), -1.0) == 0);
    }
  };
  const auto rotated = [&](auto& to, const std::vector<Index>& counts) {
    to.template append<half_split>(keys, keys, table, counts);
  };
  const auto raw = [&](auto& to, const std::vector<Index>& counts) { to.append(keys, keys, counts); };
  for (const auto& counts :
       {std::vector<Index>{}, std::vector<Index>{4, 2, 0}, std::vector<Index>{0, 1, 4}}) {
    check(kv_cache<float>(rows, 9, 2, 8), counts, rotated);
    check(kv_cache<float>(rows, 9, 2, 8, 0, key_storage::raw), counts, raw);
    check(kv_cache<std::int8_t>(rows, 9, 2, 8), counts, rotated);
    check(kv_cache<float>(rows, 9, 2, 8, token_axes{1}), counts, rotated);
    check(ring_cache<float>(rows, {.sinks = 1, .window = 3, .chunk = 4}, 2, 8), counts, rotated);
    check(ring_cache<float>(rows, {.sinks = 1, .window = 3, .chunk = 4, .positions = ring_positions::cache},
                            2, 8, 0, key_storage::raw),
          counts, raw);
  }
}
