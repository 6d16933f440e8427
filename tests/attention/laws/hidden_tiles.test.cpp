// SPDX-License-Identifier: MIT
// The visibility of a tile of keys is decided once. However a rule is given (by an option, positions, a mask
// or a bias), the same tiles are skipped and the bits are the same.
#include <rope/attention/attention.hpp>
#include <rope/attention/detail/block_keys.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"

using namespace rope;

namespace {

/// Options and the lists that they refer to.
struct drawn_rule {
  attention_options options;
  std::vector<std::int64_t> queries, keys, query_counts, key_counts, offsets;
  std::unique_ptr<bool[]> mask;
  std::vector<float> bias;
  detail::attention_shape shape;
  bool listed = false;

  drawn_rule(std::mt19937& generator, Index keys_of_row) {
    const auto up_to = [&](Index most) {
      return static_cast<Index>(generator() % static_cast<unsigned>(most + 1));
    };
    shape = {1 + up_to(1), 1 + up_to(8), keys_of_row, 4, 8};
    options.causal = up_to(1) == 0;
    if (up_to(1) == 0) options.window = 1 + up_to(keys_of_row);
    if (up_to(1) == 0) options.sinks = up_to(9);
    const Index all_keys = shape.batch * shape.keys, all_queries = shape.batch * shape.queries;
    listed = up_to(2) > 0;
    if (listed) {
      // Runs of consecutive positions with gaps, repeated positions or, one time in two, steps back.
      const Index back = up_to(1);
      for (Index j = 0; j < all_keys; ++j) {
        const std::int64_t before = j % shape.keys == 0 ? up_to(5) - 3 : keys.back();
        keys.push_back(before + (up_to(40) == 0 ? up_to(30) - 20 * back : up_to(20) == 0 ? 0 : 1));
      }
      for (Index i = 0; i < all_queries; ++i)
        queries.push_back(keys[static_cast<std::size_t>(up_to(all_keys - 1))]);
      options.key_positions = keys;
      options.query_positions = queries;
    } else if (up_to(2) == 0) {
      shape.batch = 1;
      offsets = {0, up_to(shape.queries), shape.queries};
      options.query_offsets = offsets;
      keys = {0, up_to(shape.keys), shape.keys};
      options.key_offsets = keys;
    }
    if (options.query_offsets.empty() && up_to(1) == 0) {
      for (Index b = 0; b < shape.batch; ++b)
        key_counts.push_back(shape.queries + up_to(shape.keys - shape.queries));
      options.key_counts = key_counts;
    }
    const Index extents[] = {up_to(1) ? shape.batch : 1, up_to(1) ? shape.heads : 1,
                             up_to(1) ? shape.queries : 1, up_to(4) ? shape.keys : 1};
    const auto size = static_cast<std::size_t>(extents[0] * extents[1] * extents[2] * extents[3]);
    // Entries come in long or short runs, so that some tiles are hidden completely, some in part, and some
    // not at all.
    bool now = up_to(1) == 0;
    const Index run = up_to(2) == 0 ? 4 : 90;
    const auto next = [&] { return now = up_to(run) == 0 ? !now : now; };
    if (up_to(2) == 0) {
      mask.reset(new bool[size]);
      for (std::size_t i = 0; i < size; ++i) mask[i] = next();
      options.mask =
          score_matrix(static_cast<const bool*>(mask.get()), extents[0], extents[1], extents[2], extents[3]);
    }
    if (up_to(2) == 0) {
      for (std::size_t i = 0; i < size; ++i)
        bias.push_back(next() ? static_cast<float>(i % 3) : -std::numeric_limits<float>::max());
      options.bias = score_matrix(static_cast<const float*>(bias.data()), extents[0], extents[1], extents[2],
                                  extents[3]);
    }
  }
  /// Whether ranges are as short as possible. If several rules hide keys inside a range, its ends or all of it
  /// may still be hidden from every query: each rule looks at the whole range, including the keys between the
  /// sinks and the window.
  bool exact(const detail::visibility& rules) const {
    const bool gap = rules.in_ranges() && options.window > 0 && options.sinks > 0;
    return (gap || !rules.in_ranges() ? 1 : 0) + (options.mask ? 1 : 0) + (options.bias ? 1 : 0) <= 1;
  }
};

/// Compares the summary of tile [begin, begin + count) with every pair of a query of the block and a key.
void check_tile(const drawn_rule& drawn, const detail::visibility& rules, Index b, Index first, Index tokens,
                Index head, Index heads, Index begin, Index count) {
  detail::block_keys keys(rules, {b, 0, head, heads, first, tokens});
  const bool any = keys.enter_tile(begin, count);
  bool all = true, some = false;
  detail::tile_range hull = {0, 0};
  for (Index i = first; i < first + tokens; ++i)
    for (Index h = head; h < head + heads; ++h) {
      const detail::row_in_tile visible = keys.visible_in_tile(i, h);
      Index seen = 0, outside = 0, left_open = 0;
      for (Index j = 0; j < count; ++j) {
        const bool inside = j >= visible.range.first && j < visible.range.last,
                   sees = rules.sees(b, h, i, begin + j);
        seen += sees ? 1 : 0;
        outside += sees && !inside ? 1 : 0;
        left_open += inside && !sees ? 1 : 0;
      }
      CHECK(outside == 0);
      if (!visible.has_holes) CHECK(left_open == 0);
      if (drawn.exact(rules)) {
        CHECK((seen > 0) == !visible.range.empty());
        CHECK(visible.has_holes == (left_open > 0));
      }
      if (!visible.range.empty()) hull.include(visible.range);
      all = all && seen == count;
      some = some || seen > 0;
    }
  if (some) CHECK(any);
  if (drawn.exact(rules)) CHECK(some == any);
  if (keys.all_see_all()) CHECK(all);
  CHECK(keys.hull().first == hull.first);
  CHECK(keys.hull().last == hull.last);
}

using heads = testing::tensor<float>;

/// Outputs and log-sum-exps.
struct answer {
  std::vector<float> out;
  std::vector<double> sums;
  bool operator==(const answer& other) const { return out == other.out && sums == other.sums; }
};

answer ask(const heads& q, const heads& k, const heads& v, attention_options options) {
  heads out(q.batch, q.tokens, q.heads, v.dim);
  answer result = {{}, std::vector<double>(static_cast<std::size_t>(q.batch * q.tokens * q.heads))};
  options.log_sum_exp = result.sums;
  attention(view(q), view(k), view(v), view(out), options);
  result.out = out.values;
  return result;
}

}  // namespace

TEST_CASE("the summary of a tile agrees with every query of a block", "[attention]") {
  std::mt19937 generator(7);
  for (int round = 0; round < 400; ++round) {
    const drawn_rule drawn(generator, 20 + static_cast<Index>(generator() % 380));
    const detail::visibility rules(drawn.options, drawn.shape);
    const Index first = static_cast<Index>(generator() % static_cast<unsigned>(drawn.shape.queries)),
                head = static_cast<Index>(generator() % 4);
    const Index tokens = 1 + static_cast<Index>(generator() % 100) % (drawn.shape.queries - first),
                heads = 1 + static_cast<Index>(generator() % 4) % (4 - head);
    CAPTURE(round, drawn.options.causal, drawn.options.window, drawn.options.sinks, drawn.listed, first,
            tokens, head, heads);
    for (Index b = 0; b < drawn.shape.batch; ++b)
      for (Index begin = 0; begin < drawn.shape.keys; begin += 128)
        check_tile(drawn, rules, b, first, tokens, head, heads, begin,
                   (std::min)(Index{128}, drawn.shape.keys - begin));
  }
}

TEST_CASE("tiles that are hidden from all queries are skipped, whichever rule hides them", "[attention]") {
  const Index tokens = 1024;
  std::unique_ptr<bool[]> mask(new bool[tokens * tokens]);
  std::vector<float> bias(tokens * tokens);
  for (Index i = 0; i < tokens; ++i)
    for (Index j = 0; j < tokens; ++j) {
      const auto at = static_cast<std::size_t>(i * tokens + j);
      mask[at] = j <= i && j / 256 == i / 256;
      bias[at] = mask[at] ? 0.f : -std::numeric_limits<float>::infinity();
    }
  const std::vector<std::int64_t> offsets = {0, 256, 512, 768, 1024};
  const attention_options equal_options[] = {
      {.query_offsets = offsets},
      {.causal = false, .mask = score_matrix(static_cast<const bool*>(mask.get()), 1, 1, tokens, tokens)},
      {.causal = false, .bias = score_matrix(static_cast<const float*>(bias.data()), 1, 1, tokens, tokens)}};
  for (const attention_options& options : equal_options) {
    const detail::visibility rules(options, {1, tokens, tokens, 1, 8});
    for (Index first = 0; first < tokens; first += 128) {
      std::vector<Index> visible;
      detail::block_keys(rules, {0, 0, 0, 1, first, 128}).for_each_tile(128, [&](Index begin, Index) {
        visible.push_back(begin);
      });
      std::vector<Index> expected;
      for (Index begin = first / 256 * 256; begin <= first; begin += 128) expected.push_back(begin);
      CHECK(visible == expected);
    }
  }
}

TEST_CASE("equal visibility gives equal bits, whichever options describe it", "[attention]") {
  for (const Index queries : {Index{1}, Index{3}, Index{150}}) {
    const Index keys = 2500, query_heads = 4, kv_heads = 2;
    const heads q = testing::random_tensor<float>(2, queries, query_heads, 40, 1),
                k = testing::random_tensor<float>(2, keys, kv_heads, 40, 2),
                v = testing::random_tensor<float>(2, keys, kv_heads, 24, 3);
    std::vector<std::int64_t> gap, late;  // positions with a gap, and the positions of the last queries
    for (Index j = 0; j < keys; ++j) gap.push_back(j + (j >= 1300 ? 400 : 0) - (j >= 2000 ? 1 : 0));
    for (Index i = 0; i < queries; ++i) late.push_back(gap[static_cast<std::size_t>(keys - queries + i)]);
    const std::vector<float> logits = {0.5f, -1.f, 2.f, 0.f};
    const attention_options equal_options[] = {
        {},
        {.window = 700, .sink_logits = logits},
        {.window = 1100, .sinks = 5},
        {.causal = false, .window = 130},
        {.query_positions = late, .key_positions = gap},
        {.window = 900, .sinks = 3, .sink_logits = logits, .query_positions = late, .key_positions = gap}};
    for (const attention_options& options : equal_options) {
      const detail::visibility rules(options, {2, queries, keys, query_heads, 40});
      std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(queries * keys)]);
      std::vector<float> bias;
      for (Index i = 0; i < queries; ++i)
        for (Index j = 0; j < keys; ++j) {
          mask[static_cast<std::size_t>(i * keys + j)] = rules.sees(0, 0, i, j);
          bias.push_back(rules.sees(0, 0, i, j) ? 0.f : -std::numeric_limits<float>::infinity());
        }
      CAPTURE(queries, options.causal, options.window, options.sinks, options.key_positions.size());
      const answer expected = ask(q, k, v, options);
      CHECK(ask(q, k, v,
                {.causal = false,
                 .sink_logits = options.sink_logits,
                 .mask = score_matrix(static_cast<const bool*>(mask.get()), 1, 1, queries, keys)}) ==
            expected);
      CHECK(ask(q, k, v,
                {.causal = false,
                 .sink_logits = options.sink_logits,
                 .bias = score_matrix(static_cast<const float*>(bias.data()), 1, 1, queries, keys)}) ==
            expected);
      // The learned sink belongs to the first split of the keys, even if none of these keys is visible.
      if (!options.sink_logits.empty()) {
        attention_options without = options;
        without.sink_logits = {};
        const answer plain = ask(q, k, v, without);
        double worst = 0;
        for (std::size_t i = 0; i < plain.sums.size(); ++i)
          worst = (std::max)(
              worst, std::abs(expected.sums[i] -
                              std::log(std::exp(plain.sums[i]) + std::exp(logits[i % logits.size()]))));
        // In both sums each weight has a relative error of at most 10 epsilon, and each addition adds one.
        const double terms = static_cast<double>(options.window + options.sinks + 10);
        CHECK(worst < 2 * terms * static_cast<double>(std::numeric_limits<float>::epsilon()));
      }
      // The rule applied to one key after another, not to ranges.
      if (!options.key_positions.empty()) {
        std::vector<std::int64_t> rotated = gap;
        std::rotate(rotated.begin(), rotated.begin() + 1, rotated.end());
        attention_options by_key = options;
        by_key.key_positions = rotated;
        const detail::visibility scattered(by_key, {2, queries, keys, query_heads, 40});
        CHECK_FALSE(scattered.in_ranges());
        Index differ = 0;
        for (Index i = 0; i < queries; ++i)
          for (Index j = 0; j < keys; ++j)
            differ += scattered.sees(0, 0, i, j) != rules.sees(0, 0, i, (j + 1) % keys) ? 1 : 0;
        CHECK(differ == 0);
      }
    }
  }
}

TEST_CASE("the order of listed positions follows from every two neighbours", "[attention]") {
  using limits = std::numeric_limits<std::int64_t>;
  const Index keys = 1100, rows = 2;
  // A step other than +1, at every index of both rows.
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{2}, std::int64_t{1000}, std::int64_t{-1}})
    for (Index place = 1; place < rows * keys; ++place) {
      std::vector<std::int64_t> positions;
      for (Index j = 0; j < rows * keys; ++j)
        positions.push_back(j % keys == 0 ? -7 : positions.back() + (j == place ? step : 1));
      const detail::visibility rules({.key_positions = positions}, {rows, 1, keys, 1, 8});
      CAPTURE(step, place);
      const bool begins_row = place % keys == 0;
      CHECK(rules.in_order() == begins_row);
      CHECK(rules.in_ranges() == (begins_row || step >= 0));
    }
  // Positions with the largest distance that 64-bit integers allow.
  for (const bool falls : {false, true}) {
    std::vector<std::int64_t> ends = {(limits::min)(), (limits::max)()};
    if (falls) std::swap(ends[0], ends[1]);
    const detail::visibility rules({.key_positions = ends}, {1, 1, 2, 1, 8});
    CHECK_FALSE(rules.in_order());
    CHECK(rules.in_ranges() == !falls);
  }
}
