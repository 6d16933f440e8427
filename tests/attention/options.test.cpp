// SPDX-License-Identifier: MIT
#include <rope/attention/options.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

const rope::detail::attention_shape shape = {2, 3, 5, 4, 8};

bool rejected(const rope::attention_options& options, const std::string& rule,
              const rope::detail::attention_shape& of = shape) {
  return testing::throws_saying<std::invalid_argument>(
      [&] { rope::detail::check_options("attention", options, of); }, "attention: " + rule);
}

}  // namespace

TEST_CASE("the default options are valid for every call", "[attention]") {
  CHECK_NOTHROW(rope::detail::check_options("attention", {}, shape));
  CHECK_NOTHROW(rope::detail::check_options("attention", {}, {0, 0, 0, 0, 0}));
}

TEST_CASE("numbers out of range throw with the rule and the value", "[attention]") {
  CHECK(rejected({.window = -1}, "window must not be negative, got -1"));
  CHECK(rejected({.sinks = -2}, "sinks must not be negative, got -2"));
  CHECK(rejected({.softcap = -2}, "scale must be finite and softcap finite and not negative, got 0 and -2"));
  CHECK(rejected({.dropout = 1}, "dropout must be in [0, 1), got 1"));
  CHECK(rejected({.dropout = -0.5}, "dropout must be in [0, 1), got -0.5"));
  CHECK(rejected({.scale = std::numeric_limits<double>::infinity()}, "scale must be finite"));
  CHECK(rejected({.dropout = std::numeric_limits<double>::quiet_NaN()}, "dropout must be in [0, 1)"));
}

TEST_CASE("lists of the wrong length throw with the right one", "[attention]") {
  const std::vector<std::int64_t> list(10, 0);
  const auto some = [&](std::size_t n) { return std::span<const std::int64_t>(list.data(), n); };
  const std::vector<float> logits(4, 0), endless(4, std::numeric_limits<float>::infinity());
  std::vector<double> sums(24);
  CHECK(rejected({.query_positions = some(5)}, "query_positions must be empty or have length 3 or 6, got 5"));
  CHECK(rejected({.key_positions = some(3)}, "key_positions must be empty or have length 5 or 10, got 3"));
  CHECK(rejected({.query_counts = some(3)}, "query_counts must be empty or have length 2"));
  CHECK(rejected({.key_counts = some(3)}, "key_counts must be empty or have length 2"));
  CHECK(rejected({.sink_logits = std::span(logits).first(3)}, "sink_logits must be empty or have length 4"));
  CHECK(rejected({.sink_logits = endless}, "sink_logits must be finite"));
  CHECK(rejected({.log_sum_exp = std::span(sums).first(23)}, "log_sum_exp must be empty or have length 24"));
  CHECK_NOTHROW(rope::detail::check_options("attention",
                                            {.sink_logits = logits,
                                             .query_positions = some(6),
                                             .key_positions = some(10),
                                             .key_counts = some(2),
                                             .log_sum_exp = sums},
                                            shape));
  CHECK_NOTHROW(rope::detail::check_options("attention",
                                            {.query_positions = some(3), .key_positions = some(5)}, shape));

  const std::vector<std::int64_t> too_many = {5, 6}, negative = {-1, 0};
  CHECK(rejected({.query_counts = too_many}, "query_counts must be in [0, 3], got 5"));
  CHECK(rejected({.query_counts = negative}, "query_counts must be in [0, 3], got -1"));
  CHECK(rejected({.key_counts = too_many}, "key_counts must be in [0, 5], got 6"));
  CHECK(rejected({.key_counts = negative}, "key_counts must be in [0, 5], got -1"));
}

TEST_CASE("ranges of keys are one per query, within the keys, and without a window", "[attention]") {
  const std::vector<rope::key_range> shared(3, {1, 4}), own(6, {5, 0}), four(4), beyond(3, {3, 3});
  CHECK_NOTHROW(rope::detail::check_options("attention", {.key_ranges = shared}, shape));
  CHECK_NOTHROW(rope::detail::check_options("attention", {.key_ranges = own}, shape));
  CHECK(rejected({.key_ranges = four}, "key_ranges must be empty or have length 3 or 6, got 4"));
  CHECK(rejected({.key_ranges = beyond},
                 "key_ranges must lie within the 5 keys of the call, got {first = 3, "
                 "count = 3} for query 0"));
  CHECK(rejected({.window = 3, .key_ranges = shared},
                 "key_ranges say which keys each query attends to, so window and sinks must be 0, got 3 "
                 "and 0"));
  // Ranges of padding are not read.
  const std::vector<rope::key_range> last = {{0, 1}, {0, 1}, {4, 9}, {0, 1}, {4, 9}, {4, 9}};
  const std::vector<int> one_of_three = {2, 1}, all_of_one = {1, 3};
  const auto with = [&](std::span<const rope::key_range> ranges, const std::vector<int>& counts) {
    return rope::attention_options{.causal = false, .query_counts = counts, .key_ranges = ranges};
  };
  CHECK_NOTHROW(rope::detail::check_options("attention", with(last, one_of_three), shape));
  CHECK(
      rejected(with(last, all_of_one),
               "key_ranges must lie within the 5 keys of the call, got {first = 4, count = 9} for query 4"));
  CHECK_NOTHROW(
      rope::detail::check_options("attention", with(std::span(last).first(3), one_of_three), shape));
  CHECK(
      rejected(with(std::span(last).first(3), all_of_one),
               "key_ranges must lie within the 5 keys of the call, got {first = 4, count = 9} for query 2"));
  // Without rotation positions do not matter, so there may be more queries than keys.
  const rope::detail::attention_shape wide = {1, 3, 2, 4, 8};
  const std::vector<rope::key_range> both(3, {0, 2});
  CHECK_NOTHROW(rope::detail::check_options("attention", {.key_ranges = both}, wide));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::detail::check_options("attention", {.key_ranges = both}, wide, true); },
      "3 queries and 2 keys"));
}

TEST_CASE("a bias or mask has the extents of the scores or 1", "[attention]") {
  const std::vector<float> bias(2 * 4 * 3 * 5, 0);
  CHECK_NOTHROW(
      rope::detail::check_options("attention", {.bias = rope::score_matrix(bias.data(), 2, 4, 3, 5)}, shape));
  CHECK_NOTHROW(
      rope::detail::check_options("attention", {.bias = rope::score_matrix(bias.data(), 1, 4, 1, 5)}, shape));
  CHECK(rejected({.bias = rope::score_matrix(bias.data(), 2, 4, 5, 3)},
                 "the extents of bias must be 1 or those of the scores, [2, 4, 3, 5], got [2, 4, 5, 3]"));
  CHECK(rejected(
      {.bias = rope::score_matrix(bias.data(), 1, 1, 2, 5)},
      "the extents of bias must be 1 or those of the scores, [2, 4, 3, 5], got [1, 1, 2, 5]; a matrix "
      "is [queries, keys]; of [batch, keys] write score_matrix(m, batch, 1, 1, keys)"));
  const bool mask[8] = {};
  CHECK(rejected({.mask = rope::score_matrix(mask, 1, 1, 1, 8)}, "the extents of mask must be 1"));
}

TEST_CASE("segments must cover the tokens in order", "[attention]") {
  using list = std::vector<std::int64_t>;
  const rope::detail::attention_shape one = {1, 3, 5, 4, 8};
  const list queries = {0, 1, 3}, keys = {0, 2, 5}, short_keys = {0, 5}, wrong_end = {0, 1, 4},
             falling = {0, 4, 3}, position(3, 0);
  const auto reports = [&](const rope::attention_options& options, const std::string& rule) {
    return rejected(options, rule, one);
  };
  CHECK_NOTHROW(
      rope::detail::check_options("attention", {.query_offsets = queries, .key_offsets = keys}, one));
  CHECK(reports({.query_offsets = queries}, "key_offsets must begin with 0 and end with 5, got 0 and 3"));
  CHECK(reports({.key_offsets = keys},
                "key_offsets need query_offsets of the same length, got 3 key_offsets and no query_offsets"));
  CHECK(reports({.query_offsets = queries, .key_offsets = short_keys},
                "query_offsets and key_offsets must have the same"));
  CHECK(reports({.query_offsets = wrong_end, .key_offsets = keys},
                "query_offsets must begin with 0 and end with 3, got 0 and 4"));
  CHECK(reports({.query_offsets = falling, .key_offsets = keys},
                "query_offsets must not decrease, got 3 after 4"));
  const list counts = {3};
  CHECK(reports(
      {.query_positions = position, .query_offsets = queries, .key_offsets = keys},
      "query_offsets set the positions, which start again in every segment, got 3 query_positions and 0 "
      "key_positions; give key_ranges = segment_ranges(offsets, causal) instead of query_offsets"));
  const std::vector<int> lengths = {1, 1};  // one for each segment
  CHECK(reports({.query_counts = lengths, .key_counts = lengths, .query_offsets = queries},
                "query_offsets are for segments without padding, got 2 query_counts and 2 key_counts; where "
                "segments are padded, give key_ranges = segment_ranges(offsets, causal, lengths) instead"));
  CHECK(reports({.key_counts = counts, .query_offsets = queries, .key_offsets = keys},
                "query_offsets are for segments without padding, got 0 query_counts and 1 key_counts; where "
                "segments are padded, give key_ranges = segment_ranges(offsets, causal, lengths) instead"));
  CHECK(
      rejected({.query_offsets = queries, .key_offsets = keys},
               "query_offsets are for a batch of 1, got a batch of 2; where rows are packed, give key_ranges "
               "instead, with segment_ranges(offsets, causal) of each row one after the other"));
}
