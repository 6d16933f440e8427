// SPDX-License-Identifier: MIT
#include <rope/positions/position_maps.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/attention/attention.hpp>
#include <rope/rotation/rotate.hpp>
#include <vector>

#include "support/attention_reference.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

/// Many queries under a rule of distances, as position_maps.hpp describes: one attention for each kind of
/// key, merged by their log-sum-exp.

namespace {

using namespace rope;

constexpr Index tokens = 60, heads = 4, kv_heads = 2, head_dim = 8;

struct part {
  std::vector<double> out = std::vector<double>(tokens * heads * head_dim);
  std::vector<double> log_sum_exp = std::vector<double>(tokens * heads, attention_options::no_keys);
};

struct fixture {
  frequencies schedule{head_dim, 50.0};
  frequency_table<double> table{schedule, 2 * tokens};
  std::vector<double> q = testing::random_channels<double>(tokens * heads * head_dim, testing::seed());
  std::vector<double> k = testing::random_channels<double>(tokens * kv_heads * head_dim, testing::seed() + 1);
  std::vector<double> v = testing::random_channels<double>(tokens * kv_heads * head_dim, testing::seed() + 2);

  /// Attention of queries [first, first + count), rotated at query(p), to keys [begin, end), rotated at
  /// key(k).
  template <class Query, class Key>
  void attend(part& to, Index first, Index count, Index begin, Index end, const Query& query, const Key& key,
              attention_options options = {}) const {
    if (count <= 0 || end <= begin) return;
    std::vector<double> rotated_q(static_cast<std::size_t>(count * heads * head_dim));
    std::vector<double> rotated_k(static_cast<std::size_t>((end - begin) * kv_heads * head_dim));
    const auto queries = thd(rotated_q.data(), count, heads, head_dim);
    const auto keys = thd(rotated_k.data(), end - begin, kv_heads, head_dim);
    rotate_to<interleaved>(thd(q.data(), tokens, heads, head_dim).token_range(first, count), queries, table,
                           mapped_positions(first, count, query));
    rotate_to<interleaved>(thd(k.data(), tokens, kv_heads, head_dim).token_range(begin, end - begin), keys,
                           table, mapped_positions(begin, end - begin, key));
    options.log_sum_exp = {to.log_sum_exp.data() + first * heads, static_cast<std::size_t>(count * heads)};
    attention(queries, keys, thd(v.data(), tokens, kv_heads, head_dim).token_range(begin, end - begin),
              thd(to.out.data(), tokens, heads, head_dim).token_range(first, count), options);
  }

  /// The largest difference from double loops that apply the rule.
  template <class Rule>
  double error(const std::vector<part>& parts, const Rule& rule) const {
    double worst = 0;
    for (Index p = 0; p < tokens; ++p)
      for (Index h = 0; h < heads; ++h) {
        std::vector<testing::wide> expected(head_dim), merged(head_dim);
        testing::wide sum = 0, merged_sum = 0;
        for (Index j = 0; j <= p; ++j) {
          const double *a = q.data() + (p * heads + h) * head_dim,
                       *b = k.data() + (j * kv_heads + h / 2) * head_dim;
          testing::wide score = 0;
          for (Index i = 0; i < head_dim / 2; ++i) {
            const testing::wide angle =
                static_cast<testing::wide>(rule.distance(p, j)) * schedule.inv_freq()(i, 0);
            const testing::wide c = a[2 * i], d = a[2 * i + 1], e = b[2 * i], f = b[2 * i + 1];
            score += (c * e + d * f) * testing::cos(angle) - (d * e - c * f) * testing::sin(angle);
          }
          const testing::wide weight =
              testing::exp(score / testing::sqrt(static_cast<testing::wide>(head_dim)));
          sum += weight;
          for (std::size_t d = 0; d < expected.size(); ++d)
            expected[d] += weight * v[static_cast<std::size_t>((j * kv_heads + h / 2) * head_dim) + d];
        }
        for (const part& one : parts) {
          const double lse = one.log_sum_exp[static_cast<std::size_t>(p * heads + h)];
          if (lse == attention_options::no_keys) continue;
          const testing::wide weight = testing::exp(static_cast<testing::wide>(lse));
          merged_sum += weight;
          for (std::size_t d = 0; d < merged.size(); ++d)
            merged[d] += weight * one.out[static_cast<std::size_t>((p * heads + h) * head_dim) + d];
        }
        for (std::size_t d = 0; d < merged.size(); ++d)
          testing::raise_to(worst,
                            testing::abs(static_cast<double>(merged[d] / merged_sum - expected[d] / sum)));
      }
    return worst;
  }
};

/// Channels are below 4, so scores are below 46. The bound of attention counts twice, for a part and its
/// log-sum-exp, and the rotations add 10 u of a score.
double bound() {
  const reference::tensor extent(1, tokens, heads, head_dim, 4.0);
  return 2 * reference::attention_bound<double>(extent, extent, extent, {}) + 4 * 4 * 46 * 10 * 0x1p-53;
}

constexpr auto same = [](std::int64_t p) { return p; };

}  // namespace

TEST_CASE(
    "a prefill under Self-Extend or ReRoPE is attention to a window merged with attention to the keys before "
    "it",
    "[attention][position_maps]") {
  const fixture x;
  const auto check = [&](const auto& rule) {
    std::vector<part> parts(2);
    const Index window = static_cast<Index>(rule.window);
    x.attend(parts[0], 0, tokens, 0, tokens, same, same, {.window = window});
    // A query attends to the keys before its window as if it were that many positions earlier.
    std::vector<std::int64_t> earlier;
    for (Index p = 0; p < tokens; ++p) earlier.push_back(p - window);
    x.attend(
        parts[1], 0, tokens, 0, tokens - window, [&](std::int64_t p) { return rule.query(p); },
        [&](std::int64_t k) { return rule.key(k); }, {.query_positions = earlier});
    CHECK(x.error(parts, rule) <= bound());
  };
  check(self_extend{.group = 4, .window = 12});
  check(self_extend{.group = 3, .window = 1});
  check(rerope{.window = 7});
}

TEST_CASE("a prefill under dual chunk attention is three merged attentions per chunk",
          "[attention][position_maps]") {
  const fixture x;
  const dual_chunk rule{.chunk_size = 16, .local_size = 4};
  const Index length = static_cast<Index>(rule.length());
  std::vector<part> parts(3);
  const auto key = [&](std::int64_t k) { return rule.key(k); };
  for (Index begin = 0; begin < tokens; begin += length) {
    const Index count = (std::min)(length, tokens - begin), before = (std::max)(Index{0}, begin - length);
    x.attend(parts[0], begin, count, begin, begin + count, key, key);
    x.attend(parts[1], begin, count, before, begin, [&](std::int64_t p) { return rule.successive(p); }, key,
             {.causal = false});
    x.attend(parts[2], begin, count, 0, before, [&](std::int64_t) { return rule.earlier(); }, key,
             {.causal = false});
  }
  CHECK(x.error(parts, rule) <= bound());
}
