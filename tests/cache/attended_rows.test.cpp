// SPDX-License-Identifier: MIT
// A user-defined class is accepted by attention once it has the functions that attention needs of stored
// tokens.
#include <rope/cache/attended_rows.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/block/multi_head_attention.hpp>
#include <rope/cache/attention.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/table.hpp>
#include <span>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/pools.hpp"
#include "support/reference.hpp"
#include "support/wide.hpp"

using namespace rope;
using testing::throws_saying;
using testing::wide;

namespace {

constexpr Index rows = 2, heads = 2, dim = 8, capacity = 16;
constexpr double base = 100;

/// Stores unrotated keys of every second token: token 2 n of a row is in slot n.
class sparse_cache {
 public:
  using value_type = float;

  void append(const head_view<const float>& k, const head_view<const float>& v) {
    for (Index t = 0; t < k.tokens; ++t, ++seen_) {
      if (seen_ % 2 != 0) continue;
      order_.push_back(seen_);
      for (Index b = 0; b < rows; ++b) {
        std::copy_n(k.at(b, t, 0), dim, slot(keys_, b, seen_ / 2));
        std::copy_n(v.at(b, t, 0), dim, slot(values_, b, seen_ / 2));
      }
    }
  }

  Index batch() const { return rows; }
  key_storage storage() const { return key_storage::raw; }
  head_view<const float> keys(Index b) const { return row(keys_, b); }
  head_view<const float> values(Index b) const { return row(values_, b); }
  std::span<const std::int64_t> order(Index /*b*/) const { return order_; }
  std::int64_t seen(Index /*b*/) const { return seen_; }
  std::int64_t order_of(Index /*b*/, std::int64_t token) const { return token; }
  std::span<const Index> query_counts(Index /*queries*/) const { return {}; }
  attention_options rules(const char* /*function*/, const attention_options& options) const {
    return options;
  }
  template <class Layout, class Table>
  void check_table(const Table& /*table*/) const {}

  std::vector<std::int64_t> order_;

 private:
  using memory = std::vector<float>;
  static float* slot(memory& x, Index b, Index n) { return x.data() + (b * capacity + n) * dim; }
  head_view<const float> row(const memory& x, Index b) const {
    const Index slots = (seen_ + 1) / 2;
    return bshd(x.data() + b * capacity * dim, 1, slots, 1, dim);
  }

  memory keys_ = memory(size), values_ = memory(size);
  Index seen_ = 0;
  static constexpr std::size_t size = rows * capacity * dim;
};

static_assert(attended_rows<sparse_cache> && !rows_on_axes<sparse_cache> && !rows_by_rank<sparse_cache>);
static_assert(attended_rows<kv_cache<std::int8_t>> && rows_on_axes<kv_cache<float>> &&
              !rows_by_rank<kv_cache<float>>);
static_assert(attended_rows<ring_cache<Eigen::half>> && rows_on_axes<ring_cache<float>> &&
              rows_by_rank<ring_cache<float>>);
static_assert(attended_rows<latent_cache<double>> && !rows_on_axes<latent_cache<double>>);
static_assert(!attended_rows<head_view<float>> && !attended_rows<std::vector<float>>);

struct sequence {
  static constexpr Index tokens = 14;
  std::vector<float> q = testing::random_channels<float>(rows * tokens * heads * dim, 1),
                     k = testing::random_channels<float>(rows * tokens * dim, 2),
                     v = testing::random_channels<float>(rows * tokens * dim, 3);
  std::vector<float> out = std::vector<float>(q.size(), -7.0f);

  head_view<const float> queries() const { return bshd(q.data(), rows, tokens, heads, dim); }
  head_view<const float> keys() const { return bshd(k.data(), rows, tokens, Index{1}, dim); }
  head_view<const float> values() const { return bshd(v.data(), rows, tokens, Index{1}, dim); }
  head_view<float> outputs() { return bshd(out.data(), rows, tokens, heads, dim); }
};

/// Attention of query i of a row to the even tokens up to it, by its definition, [heads * dim].
std::vector<wide> expected(const sequence& x, Index b, Index i) {
  const auto channels = [](const float* head, Index count) {
    return std::vector<double>(head, head + count);
  };
  reference::model m = {heads, 1, dim, dim, {}, reference::half_split};
  for (long pair = 0; pair < dim / 2; ++pair)
    m.inv_freq.push_back(static_cast<double>(reference::inv_freq(base, pair, dim)));
  std::vector<reference::token> row;
  for (Index j = 0; j <= i; j += 2)
    row.push_back({{}, channels(x.keys().at(b, j, 0), dim), channels(x.values().at(b, j, 0), dim), j});
  std::vector<reference::visible> keys;
  for (const reference::token& token : row) keys.push_back({&token, token.position});
  return reference::attend(m, channels(x.queries().at(b, i, 0), heads * dim), i, keys);
}

}  // namespace

TEST_CASE("attention to a cache that drops every second token follows the definition", "[cache]") {
  sequence x;
  sparse_cache cache;
  const frequency_table<> table(frequencies(dim, base), sequence::tokens);
  Index first = 0;
  for (const Index count : {5, 1, 1, 3, 4}) {
    cache.append(x.keys().token_range(first, count), x.values().token_range(first, count));
    attention<half_split>(x.queries().token_range(first, count), cache, x.outputs().token_range(first, count),
                          table);
    first += count;
  }
  REQUIRE(first == sequence::tokens);
  // Channels are below 1, so a score is below 8 / sqrt(8) < 3 and has an error of at most 3 (8 + 2 * 3 + 2)
  // u: rotation, products and their sum. The error of a weight is twice that. An output, below 1, has the
  // same error plus that of a sum of 7 terms.
  const double bound = (2 * 3 * 16 + 2 * 7) * 0x1p-24;
  for (Index b = 0; b < rows; ++b)
    for (Index i = 0; i < sequence::tokens; ++i) {
      const std::vector<wide> exact = expected(x, b, i);
      for (std::size_t c = 0; c < exact.size(); ++c) {
        CAPTURE(b, i, c);
        CHECK(std::abs(static_cast<double>(wide(x.outputs().at(b, i, 0)[c]) - exact[c])) <= bound);
      }
    }
}

TEST_CASE("inconsistent rows throw", "[cache]") {
  sequence x;
  sparse_cache cache;
  cache.append(x.keys(), x.values());
  const frequency_table<> table(frequencies(dim, base), sequence::tokens);
  const auto attend = [&] { attention<half_split>(x.queries(), cache, x.outputs(), table); };
  const auto untouched = [&] {
    return std::all_of(x.out.begin(), x.out.end(), [](float channel) { return channel == -7.0f; });
  };
  const char* rule = "attention: the order of a row must have a position for each slot";
  cache.order_.pop_back();
  CHECK(throws_saying<std::invalid_argument>(attend, rule, "got 6 and 7"));
  cache.order_.clear();
  CHECK(throws_saying<std::invalid_argument>(attend, rule, "got 0 and 7"));
  CHECK(untouched());
}

TEST_CASE("rows of different lengths share the threads of one call, with the bits of each row alone",
          "[cache]") {
  constexpr Index channels = 128, long_row = 2500;  // enough work for threads
  const std::vector<float> k = testing::random_channels<float>(rows * long_row * channels, 4);
  const std::vector<float> q = testing::random_channels<float>(rows * heads * channels, 5);
  const head_view<const float> keys = bshd(k.data(), rows, long_row, Index{1}, channels),
                               queries = bshd(q.data(), rows, Index{1}, heads, channels);
  const auto counts = GENERATE(std::vector<Index>{long_row, 1100}, std::vector<Index>{1, long_row});
  kv_cache<float> cache(rows, long_row, 1, channels);
  cache.append(keys, keys, counts);
  std::vector<float> out(q.size()), alone(q.size());
  std::vector<double> sums(rows * heads), sums_alone(rows * heads);
  const testing::pool pool("inline", 4, [](Index count, const testing::pool::piece& body) {
    for (Index i = 0; i < count; ++i) body(i);
  });
  const std::vector<Index> one_each = {1, 1};
  attention(queries, cache, bshd(out.data(), rows, Index{1}, heads, channels), {.log_sum_exp = sums},
            one_each, pool);
  CHECK(pool.loops() == 1);
  for (Index b = 0; b < rows; ++b) {
    const Index of_row = heads * channels, size = counts[std::size_t(b)];
    const head_view<const float> row = keys.batch_range(b, 1).token_range(0, size);
    attention(queries.batch_range(b, 1), row, row,
              bshd(alone.data() + b * of_row, Index{1}, Index{1}, heads, channels),
              {.log_sum_exp = std::span(sums_alone).subspan(std::size_t(b * heads), std::size_t(heads))});
  }
  CHECK(out == alone);
  CHECK(sums == sums_alone);
}
