// SPDX-License-Identifier: MIT
// tests/cache/laws/pages.test.cpp has the results.
#include <rope/cache/page_calls.hpp>

#include <algorithm>
#include <cstdint>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index page_size = 4, kv_heads = 2, heads = 4, dim = 8, value_dim = 5;

struct call {
  std::vector<float> keys = testing::random_channels<float>(6 * page_size * kv_heads * dim, 1),
                     values = testing::random_channels<float>(6 * page_size * kv_heads * value_dim, 2),
                     q = testing::random_channels<float>(3 * heads * dim, 3),
                     out = std::vector<float>(3 * heads * value_dim, -9);
  std::vector<std::int64_t> lengths = {6, 5}, blocks = {3, 1, 0, 2}, offsets = {0, 2, 3};
  key_storage storage = key_storage::rotated;

  page_view<const float> pages() const {
    return {{.keys = bshd(keys.data(), 6, page_size, kv_heads, dim),
             .values = bshd(values.data(), 6, page_size, kv_heads, value_dim)},
            blocks,
            lengths,
            storage};
  }
  head_view<const float> queries() const { return thd(q.data(), 3, heads, dim); }
  head_view<float> output() { return thd(out.data(), 3, heads, value_dim); }
  bool untouched() const { return out == std::vector<float>(out.size(), -9); }
};

}  // namespace

TEST_CASE("invalid calls of attention to pages throw and write nothing", "[cache]") {
  call x;
  const frequency_table<float> table(frequencies(dim), 6), wide(frequencies(dim + 2), 9),
      short_table(frequencies(dim), 5);
  attention_options options = {.query_offsets = x.offsets};
  const auto attend = [&] { attention(x.queries(), x.pages(), x.output(), options); };
  const auto rejects = [&](const auto& run, const char* text) {
    return throws_saying<std::invalid_argument>(run, "attention: ", text) && x.untouched();
  };
  options.query_offsets = {};
  CHECK(rejects(attend, "without query_offsets there is a row for each of the 2 sequences, got 1"));
  std::vector<std::int64_t> offsets = {0, 3};
  options.query_offsets = offsets;
  CHECK(rejects(attend, "query_offsets are sequences + 1 = 3 numbers for a batch of 1, got 2"));
  offsets = {0, 2, 2};
  options.query_offsets = offsets;
  CHECK(rejects(attend, "must begin with 0 and end with 3, got 0 and 2"));
  offsets = {0, 4, 3};
  options.query_offsets = offsets;
  CHECK(rejects(attend, "must not decrease, got 3 after 4"));
  options.query_offsets = x.offsets;
  x.lengths = {1, 5};
  CHECK(rejects(attend, "sequence 0 has a length of 1 and 2 new tokens"));
  x.lengths = {6, 9};
  CHECK(rejects(attend, "a sequence of 2 blocks has 0 to 2 * 4 tokens, got 9"));
  x.lengths = {6, 5};
  x.blocks[3] = 6;
  CHECK(throws_saying<std::out_of_range>(attend, "block 1 of sequence 1 must be a page in [0, 6), got 6"));
  x.blocks[3] = 2;
  const std::vector<std::int64_t> list = {0, 1, 2};
  options.query_positions = list;
  CHECK(rejects(attend, "must list nothing but query_offsets"));
  options.query_positions = {};
  options.dropout = 0.5;
  CHECK(rejects(attend, "dropout is for training"));
  options.dropout = 0;
  const std::vector<float> bias(6, 0.0f);
  options.bias = score_matrix(bias.data(), 1, 1, 1, 6);
  CHECK(rejects(attend, "a bias or a mask has a row for each sequence"));
  options.bias = {};
  std::vector<double> sums(11);
  options.log_sum_exp = sums;
  CHECK(rejects(attend, "log_sum_exp must be empty or have length 12"));
  options.log_sum_exp = {};
  options.window = -1;
  CHECK(rejects(attend, "window must not be negative"));
  options.window = 0;
  options.products = product_precision::integers;
  CHECK(rejects(attend, "integer products need quantized keys and values"));
  offsets = {0, 0, 0};
  options.query_offsets = offsets;
  CHECK(rejects(
      [&] { attention(x.queries().token_range(0, 0), x.pages(), x.output().token_range(0, 0), options); },
      "integer products need quantized keys and values"));
  options.query_offsets = x.offsets;
  options.products = product_precision::full;
  CHECK(rejects(
      [&] { attention(thd(x.q.data(), 3, 3, dim), x.pages(), thd(x.out.data(), 3, 3, value_dim), options); },
      "q.heads must be a multiple of k.heads"));
  CHECK(rejects([&] { attention(x.queries().channels(0, 6), x.pages(), x.output(), options); },
                "q and k must have the same head_dim"));
  CHECK(rejects([&] { attention(x.queries(), x.pages(), x.output().channels(0, 3), options); },
                "v and out must have the same head_dim"));
  CHECK(rejects([&] { attention(x.queries(), x.pages(), x.output().token_range(0, 2), options); },
                "q and out must have the same tokens"));
  CHECK(rejects([&] { attention<half_split>(x.queries(), x.pages(), x.output(), wide, options); },
                "rotary_dim must not exceed head_dim"));
  CHECK(throws_saying<std::out_of_range>(
      [&] { attention<half_split>(x.queries(), x.pages(), x.output(), short_table, options); },
      "position 5 is outside the table's [0, 5)"));
  x.storage = key_storage::raw;
  CHECK(rejects(attend, "these pages hold raw keys, give the layout and the table"));
  const frequency_table<float> late(frequencies(dim), 3, 9);
  CHECK(throws_saying<std::out_of_range>(
      [&] { attention<half_split>(x.queries(), x.pages(), x.output(), late, options); },
      "position 0 is outside"));
  CHECK_NOTHROW(attention<half_split>(x.queries(), x.pages(), x.output(), table, options));
  CHECK_FALSE(x.untouched());
}

TEST_CASE("sequences without queries or keys write nothing", "[cache]") {
  call x;
  x.lengths = {0, 5};
  x.blocks = {-1, -1, 0, 2};
  x.offsets = {0, 0, 3};
  attention(x.queries(), x.pages(), x.output(), {.query_offsets = x.offsets});
  CHECK(std::count(x.out.begin(), x.out.end(), -9.0f) == 0);
  x.offsets = {0, 0, 0};
  CHECK_NOTHROW(attention(x.queries().token_range(0, 0), x.pages(), x.output().token_range(0, 0),
                          {.query_offsets = x.offsets}));
}
