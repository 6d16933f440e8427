// SPDX-License-Identifier: MIT
#include <rope/cache/shift_keys.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/page_calls.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index tokens = 10, heads = 2, head_dim = 12, page_size = 4;

/// Keys of a cache of one sequence, also in a view of the caller and in pages 2, 0 and 3 of a pool.
template <class T>
struct memories {
  std::vector<T> fresh = testing::random_channels<T>(tokens * heads * head_dim, 41);
  kv_cache<T> cache{1, tokens, heads, head_dim};
  std::vector<T> view_memory = fresh,
                 pool = std::vector<T>(std::size_t(5 * page_size * heads * head_dim), T(7)), values = pool;
  std::vector<int> blocks = {2, 0, 3}, lengths = {tokens};
  page_view<T> pages{{.keys = bhsd(pool.data(), 5, heads, page_size, head_dim),
                      .values = bhsd(values.data(), 5, heads, page_size, head_dim)},
                     blocks,
                     lengths};

  memories(const memories&) = delete;
  template <class Layout, class S>
  memories(Layout, const placed_table<S>& table) {
    const auto k = thd(fresh.data(), tokens, heads, head_dim);
    cache.template append<Layout>(k, k, table);
    rotate<Layout>(view(), table);
    write_pages<Layout>(k, k, pages, table);
  }
  head_view<T> view() { return thd(view_memory.data(), tokens, heads, head_dim); }
  bool all_are_those_of_the_cache() {
    bool same = testing::same_heads<const T>(view(), cache.keys());
    for (Index t = 0; t < tokens; ++t)
      same = same && testing::same_heads<const T>(
                         pages.keys().batch_range(pages.page(0, t), 1).token_range(pages.slot(t), 1),
                         cache.keys().token_range(t, 1));
    return same;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("shift_keys and rebase_keys give the bits of kv_cache", "[cache]", float, double,
                   Eigen::half) {
  using S = std::conditional_t<std::is_same_v<TestType, double>, double, float>;
  testing::for_each_layout([](auto layout) {
    using Layout = decltype(layout);
    const frequency_table<S> table(frequencies(8, 50.0), tokens), other(frequencies(8, 90.0), tokens);
    for (const Index first : {0, 3}) {
      CAPTURE(testing::name_of<Layout>, first);
      memories<TestType> x(layout, table.at_channel(first));
      REQUIRE(x.all_are_those_of_the_cache());
      x.cache.template shift<Layout>(3, 6, -2, table.at_channel(first));
      CHECK_FALSE(x.all_are_those_of_the_cache());
      shift_keys<Layout>(x.view().token_range(3, 6), -2, table.at_channel(first));
      shift_keys<Layout>(x.pages, {.sequence = 0, .first = 3, .count = 6}, -2, table.at_channel(first));
      CHECK(x.all_are_those_of_the_cache());

      memories<TestType> y(layout, table.at_channel(first));
      y.cache.template rebase<Layout>(table.at_channel(first), other.at_channel(first));
      rebase_keys<Layout>(y.view(), 0, table.at_channel(first), other.at_channel(first));
      rebase_keys<Layout>(y.pages, table.at_channel(first), other.at_channel(first));
      CHECK(y.all_are_those_of_the_cache());
      // Pages without tokens do not change.
      CHECK(y.pool.front() != TestType(7));
      CHECK(std::count(y.pool.begin(), y.pool.end(), TestType(7)) == (2 * page_size + 2) * heads * head_dim);
    }
  });
}

TEST_CASE("keys rotate from a table of floats to one of doubles as to one of floats", "[cache]") {
  const frequency_table<float> table(frequencies(8, 50.0), tokens), other(frequencies(8, 90.0), tokens);
  const frequency_table<double> doubles(frequencies(8, 90.0), tokens);
  memories<float> x(half_split{}, placed_table(table)), y(half_split{}, placed_table(table));
  x.cache.rebase<half_split>(table, doubles);
  rebase_keys<half_split>(x.view(), 0, table, doubles);
  rebase_keys<half_split>(x.pages, table, doubles);
  CHECK(x.all_are_those_of_the_cache());
  rebase_keys<half_split>(y.view(), 0, table, other);
  CHECK(x.view_memory == y.view_memory);
  rebase_keys<half_split>(y.view(), 0, doubles, table);
  rebase_keys<half_split>(x.view(), 0, other, table);
  CHECK(x.view_memory == y.view_memory);
}

TEST_CASE("a page shared by two sequences rotates once, and only if its keys have one position", "[cache]") {
  const frequency_table<float> table(frequencies(8, 50.0), 20), other(frequencies(8, 90.0), 20);
  memories<float> x(half_split{}, placed_table(table)), once(half_split{}, placed_table(table));
  const std::vector<int> blocks = {2, 0, 3, 2, 0, -1}, lengths = {tokens, 6};
  const page_view<float> shared({.keys = x.pages.keys(), .values = x.pages.values()}, blocks, lengths);
  rebase_keys<half_split>(shared, table, other);
  rebase_keys<half_split>(once.pages, table, other);
  CHECK(x.pool == once.pool);

  const std::vector<float> before = x.pool;
  CHECK(throws_saying<std::invalid_argument>(
      [&] { shift_keys<half_split>(shared, {.sequence = 0, .first = 5, .count = 1}, 1, other); },
      "a page that is written must belong to one sequence; page 0"));
  CHECK_NOTHROW(shift_keys<half_split>(shared, {.sequence = 0, .first = 8, .count = 2}, 0, other));
  const std::vector<int> reversed = {2, 0, 3, 0, 2, -1};
  const page_view<float> mixed({.keys = x.pages.keys(), .values = x.pages.values()}, reversed, lengths);
  CHECK(throws_saying<std::invalid_argument>([&] { rebase_keys<half_split>(mixed, table, other); },
                                             "page 0 is block ", "so its keys would need two positions"));
  CHECK(x.pool == before);
}

TEST_CASE("invalid calls of shift_keys and rebase_keys change nothing", "[cache]") {
  const frequency_table<float> table(frequencies(8, 50.0), 20), narrow(frequencies(6, 50.0), 20);
  const auto float_angles = frequency_table<float>::with_float_angles(frequencies(8, 50.0), 0, 20);
  memories<float> x(half_split{}, placed_table(table));
  const std::vector<float> pool = x.pool, view = x.view_memory;
  const auto some = tokens_in_pages{.sequence = 0, .first = 0, .count = 2};
  const auto rejects = [](const auto& call, const char* text) {
    return throws_saying<std::invalid_argument>(call, text);
  };
  CHECK(rejects([&] { shift_keys<half_split>(x.view(), 1, table.at_channel(5)); },
                "shift_keys: the rotated channels"));
  CHECK(rejects([&] { shift_keys<half_split>(x.pages, some, 1, table.at_channel(5)); }, "got 8 channels"));
  CHECK(rejects([&] { shift_keys<half_split>(x.view(), 1, float_angles); }, "position * inv_freq"));
  CHECK(rejects([&] { shift_keys<half_split>(x.pages, some, 1, float_angles); }, "position * inv_freq"));
  CHECK(rejects([&] { rebase_keys<half_split>(x.view(), 0, table, narrow); }, "the same pairs, got 4 and 3"));
  CHECK(rejects([&] { rebase_keys<half_split>(x.view(), 0, table, table.at_channel(2)); }, "same channel"));
  CHECK(rejects([&] { rebase_keys<half_split>(x.pages, table, float_angles); }, "not in the second"));
  const std::vector<int> few = {1, 2};
  CHECK(rejects([&] { rebase_keys<half_split>(x.view(), few, table, table); }, "ids must be [tokens] = 10"));
  const page_view<float> raw({.keys = x.pages.keys(), .values = x.pages.values()}, x.blocks, x.lengths,
                             key_storage::raw);
  CHECK(rejects([&] { shift_keys<half_split>(raw, some, 1, table); }, "raw keys are stored unrotated"));
  CHECK(rejects([&] { rebase_keys<half_split>(raw, table, table); }, "raw keys are stored unrotated"));
  head_view<float> expanded = x.view(), same_pages = x.pages.keys();
  expanded.token_stride = same_pages.batch_stride = 0;
  const page_view<float> overlapping({.keys = same_pages, .values = x.pages.values()}, x.blocks, x.lengths);
  const char* overlap = "the channels of a view that is written must not overlap, got a stride of 0";
  CHECK(rejects([&] { shift_keys<half_split>(expanded, 1, table); }, overlap));
  CHECK(rejects([&] { shift_keys<half_split>(overlapping, some, 1, table); }, overlap));
  CHECK(rejects([&] { rebase_keys<half_split>(expanded, 0, table, table); }, overlap));
  CHECK(rejects([&] { rebase_keys<half_split>(overlapping, table, table); }, overlap));
  for (const auto& [wrong, text] :
       {std::pair(tokens_in_pages{1, 0, 1}, "sequence must be in [0, 1), got 1"),
        {tokens_in_pages{-1, 0, 1}, "sequence must be in [0, 1), got -1"},
        {tokens_in_pages{0, 9, 2}, "tokens must be in [0, 10), got 2 from token 9"},
        {tokens_in_pages{0, -1, 2}, "from token -1"},
        {tokens_in_pages{0, 3, -1}, "got -1 from"}})
    CHECK(throws_saying<std::out_of_range>([&, w = wrong] { shift_keys<half_split>(x.pages, w, 1, table); },
                                           text));
  CHECK(x.pool == pool);
  CHECK(x.view_memory == view);
}

TEST_CASE("a single key head may have any stride", "[cache]") {
  // The undefined-behaviour sanitizer reports a pointer that such a stride is added to.
  constexpr Index distant = std::numeric_limits<Index>::min() / 8;
  const frequency_table<float> table(frequencies(64), tokens);
  const std::vector<float> fresh = testing::random_channels<float>(tokens * 64, 43);
  std::vector<float> odd = fresh, expected = fresh;
  shift_keys<half_split>(head_view<float>{odd.data(), 1, tokens, 1, 64, distant, 64, distant}, 3, table);
  shift_keys<half_split>(thd(expected.data(), tokens, 1, 64), 3, table);
  CHECK(testing::same_bits(odd, expected));
  CHECK_FALSE(testing::same_bits(odd, fresh));
}

TEST_CASE("the caller's keys rotate by any number of positions, and by none", "[cache]") {
  const frequency_table<> table(frequencies(head_dim, 50.0), tokens);
  for (const std::int64_t delta : {-7, -1, 0, 1, 2, 1000}) {
    CAPTURE(delta);
    memories<float> x(half_split{}, table.at_channel(0));
    x.cache.shift<half_split>(0, tokens, delta, table);
    shift_keys<half_split>(x.view(), delta, table);
    CHECK(testing::same_heads<const float>(x.view(), x.cache.keys()));
    memories<float> before(half_split{}, table.at_channel(0));
    CHECK(testing::same_heads<const float>(x.view(), before.view()) == (delta == 0));
  }
}
