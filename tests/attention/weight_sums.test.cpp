// SPDX-License-Identifier: MIT
// tests/cache/weights.test.cpp has every storage and every cache.
#include <rope/attention/weight_sums.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/weight_reference.hpp"

using namespace rope;

namespace {

/// Queries [batch, queries, heads, dim] and keys [batch, keys, kv_heads, dim].
struct summed_call {
  weight_reference::extents of;
  Index dim;
  std::vector<float> q, k;

  summed_call(const weight_reference::extents& extents, Index channels, unsigned seed)
      : of(extents),
        dim(channels),
        q(testing::random_channels<float>(of.batch * of.queries * of.heads * dim, seed)),
        k(testing::random_channels<float>(of.batch * of.keys * of.kv_heads * dim, seed + 1)) {}
  head_view<const float> queries() const { return bshd(q.data(), of.batch, of.queries, of.heads, dim); }
  head_view<const float> keys() const { return bshd(k.data(), of.batch, of.keys, of.kv_heads, dim); }

  std::vector<double> head(const head_view<const float>& x, Index b, Index t, Index h) const {
    return {x.at(b, t, h), x.at(b, t, h) + dim};
  }
  weight_reference::weights expected(const auto& sees) const {
    return weight_reference::expected(
        of, {.scale = 1 / std::sqrt(double(dim)), .unit = 0x1p-24},
        [&](Index b, Index i, Index h) { return head(queries(), b, i, h); },
        [&](Index b, Index, Index j, Index h) { return head(keys(), b, j, h); }, sees,
        [](Index, Index, Index, Index) { return 0.0; });
  }
  std::vector<float> sums(Index heads, const attention_options& options, Index threads = 1) const {
    std::vector<float> to(std::size_t(of.batch * heads * of.keys), -7.0f);
    attention_weight_sums(queries(), keys(), to, options, testing::own_threads(threads));
    return to;
  }
};

}  // namespace

TEST_CASE("sums over queries follow the definition, for each head and each key head", "[attention]") {
  // Several blocks of queries and of keys, many tasks, and a group that is longer than a strip.
  for (const weight_reference::extents& of :
       {weight_reference::extents{2, 300, 330, 4, 2}, weight_reference::extents{1, 2, 70000, 2, 1},
        weight_reference::extents{1, 3, 5, 26, 2}}) {
    const summed_call x(of, 6, 31);
    CAPTURE(of.queries, of.keys);
    const auto reference = x.expected([&](Index, Index, Index i, Index j) {
      return j <= of.keys - of.queries + i && (j > of.keys - of.queries + i - 900 || j < 7);
    });
    for (const Index heads : {of.heads, of.kv_heads}) {
      const auto sums = x.sums(heads, {.window = 900, .sinks = 7});
      CHECK(weight_reference::distance_of_sums(reference, sums) == 0);
      CHECK(x.sums(heads, {.window = 900, .sinks = 7}, 3) == sums);
    }
  }
}

TEST_CASE("sums of segments, counted rows and with dropout are those of attention_weights", "[attention]") {
  const frequency_table<> table(frequencies(6), 40);
  const std::vector<std::int64_t> offsets = {0, 9, 9, 30}, key_offsets = {0, 12, 15, 40}, counts = {30, 3},
                                  key_counts = {40, 17};
  for (const int kind : {0, 1, 2}) {
    CAPTURE(kind);
    const summed_call x({kind == 1 ? Index{2} : Index{1}, 30, 40, 4, 2}, 6, 33);
    attention_options options;
    if (kind == 0) options = {.query_offsets = offsets, .key_offsets = key_offsets};
    if (kind == 1) options = {.query_counts = counts, .key_counts = key_counts};
    if (kind == 2) options = {.dropout = 0.5, .dropout_seed = 5};
    std::vector<float> weights(x.of.all()), sums(std::size_t(x.of.batch * x.of.heads * x.of.keys), -7.0f);
    attention_weights<interleaved>(x.queries(), x.keys(), weights, table, options);
    attention_weight_sums<interleaved>(x.queries(), x.keys(), sums, table, options, testing::own_threads(1));
    weight_reference::weights reference = {x.of, {weights.begin(), weights.end()}, {}};
    for (const float w : weights)  // the scores of two kernels may differ in every rounding
      reference.error.push_back(static_cast<double>(w) * 100 * 0x1p-24);
    CHECK(weight_reference::distance_of_sums(reference, sums) == 0);
  }
}

TEST_CASE("a NaN of a query or key reaches exactly the sums of the keys that its queries see",
          "[attention]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const weight_reference::extents of = {1, 5, 150, 2, 1};  // more than one tile of keys
  const bool hidden_key = GENERATE(false, true);           // key 149 is masked for every query
  const Index bad_query = GENERATE(-1, 0, 3, 4), bad_key = bad_query < 0 ? GENERATE(1, 147) : -1;
  CAPTURE(hidden_key, bad_query, bad_key);
  summed_call x(of, 6, 37);
  const auto mask = std::make_unique<bool[]>(std::size_t(of.queries * of.keys));
  const auto sees = [&](Index i, Index j) {
    return j <= of.keys - of.queries + i && (!hidden_key || j != 149);
  };
  for (Index i = 0; i < of.queries; ++i)
    for (Index j = 0; j < of.keys; ++j) mask[std::size_t(i * of.keys + j)] = sees(i, j);
  const attention_options options = {.causal = false,
                                     .mask = score_matrix(mask.get(), 1, 1, of.queries, of.keys)};
  const std::vector<float> clean = x.sums(of.heads, options);
  if (bad_query >= 0) x.q[std::size_t(bad_query * of.heads * x.dim)] = nan;  // head 0
  if (bad_key >= 0) x.k[std::size_t(bad_key * x.dim)] = nan;
  const std::vector<float> sums = x.sums(of.heads, options);
  for (Index h = 0; h < of.heads; ++h)
    for (Index j = 0; j < of.keys; ++j) {
      bool reached = false;
      for (Index i = 0; i < of.queries; ++i)
        reached =
            reached || (sees(i, j) && ((i == bad_query && h == 0) || (bad_key >= 0 && sees(i, bad_key))));
      const float got = sums[std::size_t(h * of.keys + j)];
      CAPTURE(h, j);
      CHECK((reached ? std::isnan(got) : got == clean[std::size_t(h * of.keys + j)]));
    }
}

TEST_CASE("queries and keys without channels have equal weights", "[attention]") {
  const std::vector<float> none(1);
  std::vector<float> sums(2, -7);
  const auto two = bshd(none.data(), 1, 2, 1, 0);
  attention_weight_sums(two, two, sums, {}, testing::own_threads(1));
  CHECK(sums == std::vector<float>{1.5f, 0.5f});
}

TEST_CASE("sums of the wrong length throw before anything is written", "[attention]") {
  const summed_call x({2, 3, 5, 4, 2}, 6, 35);
  std::vector<float> sums(39, -1);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weight_sums(x.queries(), x.keys(), sums, {}, testing::own_threads(1)); },
      "attention_weight_sums: sums must have length batch * heads * keys = 40, or batch * key heads * keys = "
      "20, "
      "got 39"));
  sums.push_back(-1);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { attention_weight_sums(x.queries(), x.keys(), sums, {.softcap = -1}, testing::own_threads(1)); },
      "rope::attention_weight_sums: scale must be finite and softcap finite and not negative, got 0 and -1"));
  CHECK(sums == std::vector<float>(40, -1));
  // Nothing to add.
  attention_weight_sums(x.queries().token_range(0, 0), x.keys(), sums, {}, testing::own_threads(1));
  CHECK(sums == std::vector<float>(40, 0));
}
