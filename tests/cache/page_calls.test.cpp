// SPDX-License-Identifier: MIT
// tests/cache/laws/pages.test.cpp has the results.
#include <rope/cache/page_calls.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

TEST_CASE("invalid writes to pages throw and write nothing", "[cache]") {
  constexpr Index page_size = 4, heads = 2, dim = 8, value_dim = 5;
  std::vector<float> keys(6 * page_size * heads * dim, 7), values(6 * page_size * heads * value_dim, 7);
  const auto k = testing::random_channels<float>(3 * heads * dim, 1),
             v = testing::random_channels<float>(3 * heads * value_dim, 2);
  std::vector<std::int64_t> lengths = {6, 5}, blocks = {3, 1, 0, 2}, offsets = {0, 2, 3};
  const auto pages_of = [&](key_storage storage) {
    return page_view<float>({.keys = bshd(keys.data(), 6, page_size, heads, dim),
                             .values = bshd(values.data(), 6, page_size, heads, value_dim)},
                            blocks, lengths, storage);
  };
  const auto pages = pages_of(key_storage::rotated);
  const frequency_table<float> table(frequencies(dim), 6), short_table(frequencies(dim), 5);
  const auto new_keys = thd(k.data(), 3, heads, dim);
  const auto new_values = thd(v.data(), 3, heads, value_dim);
  const auto write = [&] { write_pages(new_keys, new_values, pages, offsets); };
  const auto write_rotated = [&] { write_pages<half_split>(new_keys, new_values, pages, table, offsets); };
  const auto untouched = [&] {
    return keys == std::vector<float>(keys.size(), 7) && values == std::vector<float>(values.size(), 7);
  };
  const auto rejects = [&](const auto& call, const char* text) {
    return throws_saying<std::invalid_argument>(call, "write_pages: ", text) && untouched();
  };
  CHECK(
      rejects([&] { write_pages(new_keys, new_values, pages); }, "a row for each of the 2 sequences, got 1"));
  CHECK(rejects([&] { write_pages(new_keys.channels(0, 7), new_values, pages, offsets); },
                "k must be [1, 3, 2, 8], got [1, 3, 2, 7]"));
  CHECK(rejects([&] { write_pages(new_keys, new_values.token_range(0, 2), pages, offsets); },
                "v must be [1, 3, 2, 5], got [1, 2, 2, 5]"));
  auto same_keys = pages.keys(), same_values = pages.values();
  same_keys.batch_stride = same_values.batch_stride = 0;
  for (const auto& pool : {page_view<float>::pool{same_keys, pages.values()}, {pages.keys(), same_values}})
    CHECK(
        rejects([&] { write_pages(new_keys, new_values, page_view<float>(pool, blocks, lengths), offsets); },
                "the channels of a view that is written must not overlap, got a stride of 0"));
  for (const auto& call : {std::function<void()>(write), std::function<void()>(write_rotated)}) {
    lengths = {1, 5};
    CHECK(rejects(call, "lengths include the new tokens: sequence 0 has a length of 1 and 2 new tokens"));
    lengths = {6, 9};
    CHECK(rejects(call, "0 to 2 * 4 tokens, got 9"));
    lengths = {6, 5};
    blocks[1] = -1;
    CHECK(throws_saying<std::out_of_range>(call, "block 1 of sequence 0 must be a page in [0, 6), got -1"));
    blocks = {3, 1, 0, 1};  // the page of the newest tokens of both
    CHECK(rejects(call, "a page that is written must belong to one sequence; page 1"));
    blocks = {3, 1, 1, 2};  // that of sequence 0, and old tokens of sequence 1
    CHECK(rejects(call, "page 1 is in blocks twice"));
    blocks = {1, 1, 0, 2};  // twice in one sequence
    CHECK(rejects(call, "page 1 is in blocks twice"));
    blocks = {3, 1, 0, 2};
  }
  CHECK(throws_saying<std::out_of_range>(
      [&] { write_pages<half_split>(new_keys, new_values, pages, short_table, offsets); },
      "write_pages: position 5 is outside the table's [0, 5)"));
  CHECK(rejects([&] { write_pages<half_split>(new_keys, new_values, pages, table.at_channel(1), offsets); },
                "got 8 channels from channel 1"));
  CHECK(rejects(
      [&] { write_pages<half_split>(new_keys, new_values, pages_of(key_storage::raw), table, offsets); },
      "raw keys are rotated when they are read"));
  CHECK(untouched());
  blocks = {3, 1, 3, 2};  // a shared prefix is allowed
  write_rotated();
  CHECK_FALSE(untouched());
}

TEST_CASE("sequences that write nothing may share the page in which they end", "[cache]") {
  constexpr Index page_size = 4, dim = 8;
  std::vector<float> keys(3 * page_size * dim, 7), values = keys;
  const std::vector<float> fresh = testing::random_channels<float>(2 * dim, 1);
  const std::vector<std::int64_t> lengths = {3, 3, 3}, blocks = {1, 1, 0}, offsets = {0, 0, 0, 2};
  const page_view<float> pages(
      {.keys = bshd(keys.data(), 3, page_size, 1, dim), .values = bshd(values.data(), 3, page_size, 1, dim)},
      blocks, lengths);
  write_pages(thd(fresh.data(), 2, 1, dim), thd(fresh.data(), 2, 1, dim), pages, offsets);
  std::vector<float> expected(keys.size(), 7);
  std::copy(fresh.begin(), fresh.end(), expected.begin() + dim);
  CHECK(keys == expected);
  CHECK(values == expected);
}
