// SPDX-License-Identifier: MIT
#include <rope/cache/page_view.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index page_size = 4, heads = 2;

struct memory {
  std::vector<float> keys = std::vector<float>(6 * page_size * heads * 8), values = keys;
  page_view<float>::pool pool() {
    return {.keys = bshd(keys.data(), 6, page_size, heads, 8),
            .values = bhsd(values.data(), 6, heads, page_size, 5)};
  }
};

}  // namespace

TEST_CASE("a page_view finds every token", "[cache]") {
  memory x;
  const std::vector<std::int64_t> lengths = {6, 0, 9};
  Eigen::Array<std::uint8_t, 3, 3, Eigen::ColMajor> blocks;
  blocks << 5, 0, 77, 99, 99, 99, 1, 2, 4;
  const page_view<float> pages(x.pool(), blocks, lengths);
  CHECK(pages.sequences() == 3);
  CHECK(pages.page_size() == page_size);
  CHECK(pages.blocks_of_a_sequence() == 3);
  CHECK(pages.storage() == key_storage::rotated);
  CHECK(pages.length(2) == 9);
  CHECK(pages.page(0, 3) == 5);
  CHECK(pages.page(0, 4) == 0);
  CHECK(pages.page(2, 8) == 4);
  CHECK(pages.slot(8) == 0);
  CHECK(pages.slot(7) == 3);
  CHECK(pages.values().head_dim == 5);
  CHECK_NOTHROW(pages.check_blocks("test"));  // entries after the last token are not read
}

TEST_CASE("blocks may be one list, sequence after sequence, and lists are read in every call", "[cache]") {
  memory x;
  std::vector<int> lengths = {4, 5}, blocks = {0, 1, 2, 3};
  const page_view<float> pages(x.pool(), blocks, lengths, key_storage::raw);
  CHECK(pages.page(1, 4) == 3);
  blocks[3] = 5;
  lengths[1] = 8;
  CHECK(pages.page(1, 4) == 5);
  CHECK(pages.length(1) == 8);
  CHECK(pages.storage() == key_storage::raw);
  const std::vector<int> none;
  CHECK(page_view<float>(x.pool(), none, none).sequences() == 0);
}

TEST_CASE("invalid views of pages throw", "[cache]") {
  memory x;
  const std::vector<int> lengths = {4, 5}, blocks = {0, 1, 2, 3}, odd = {0, 1, 2};
  const auto rejects = [](const auto& call, const char* text) {
    return throws_saying<std::invalid_argument>(call, text);
  };
  auto pool = x.pool();
  pool.values.batch = 5;
  CHECK(rejects([&] { page_view<float>(pool, blocks, lengths); },
                "the same pages, page_size and heads, got [6, 4, 2] and [5, 4, 2]"));
  pool = x.pool();
  pool.values.heads = 1;
  CHECK(rejects([&] { page_view<float>(pool, blocks, lengths); }, "and [6, 4, 1]"));
  pool = x.pool();
  pool.keys.tokens = pool.values.tokens = 0;
  CHECK(rejects([&] { page_view<float>(pool, blocks, lengths); }, "a page must hold a token"));
  pool = x.pool();
  pool.keys.data = nullptr;
  CHECK(rejects([&] { page_view<float>(pool, blocks, lengths); }, "must have data"));
  CHECK(rejects([&] { page_view<float>(x.pool(), odd, lengths); },
                "blocks must be [sequences, blocks] for the 2 sequences"));
  const Eigen::ArrayXXi three = Eigen::ArrayXXi::Zero(3, 2);
  CHECK(rejects([&] { page_view<float>(x.pool(), three, lengths); }, "got [3, 2]"));
  CHECK(rejects([&] { page_view<float>(x.pool(), blocks, std::vector<int>()); }, "for the 0 sequences"));
}

TEST_CASE("lengths beyond the table and blocks beyond the pool throw", "[cache]") {
  memory x;
  std::vector<std::int64_t> lengths = {4, 5}, blocks = {0, 1, 2, 3};
  const page_view<float> pages(x.pool(), blocks, lengths);
  for (const std::int64_t length : {std::int64_t{9}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
    lengths[1] = length;
    CHECK(throws_saying<std::invalid_argument>([&] { pages.check_blocks("test"); },
                                               "test: a sequence of 2 blocks has 0 to 2 * 4 tokens, got " +
                                                   std::to_string(length) + " for sequence 1"));
  }
  lengths[1] = 5;
  for (const std::int64_t page : {std::int64_t{6}, std::int64_t{-1}, INT64_MAX}) {
    blocks[3] = page;
    CHECK(throws_saying<std::out_of_range>([&] { pages.check_blocks("test"); },
                                           "test: block 1 of sequence 1 must be a page in [0, 6), got "));
  }
  blocks[3] = -5;
  CHECK(throws_saying<std::out_of_range>([&] { pages.check_blocks("test"); }, "[0, 6), got -5"));
  lengths[1] = 4;
  CHECK_NOTHROW(pages.check_blocks("test"));
}
