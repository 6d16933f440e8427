// SPDX-License-Identifier: MIT
// Keys and values in pages have the bits of contiguous caches: for any pages, and for any mix of prefill,
// chunks and decoding steps of many sequences.
#include <rope/cache/page_calls.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/page_weights.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

using namespace rope;

namespace {

/// A pool of pages of NaN, and the records of an engine: which sequence owns which pages.
template <class C, class Id>
struct engine {
  Index page_size, pages, blocks;
  bool heads_first;
  testing::owned_heads<C> keys, values;
  std::vector<Id> table;  // [sequences, blocks]; -1 for no page
  std::vector<int> lengths;
  std::vector<Id> free;

  engine(testing::random& dice, Index sequences, Index longest, Index heads, Index dim, Index value,
         Index size)
      : page_size(size),
        pages(sequences * ((longest + size - 1) / size) + 3),
        blocks((longest + size - 1) / size),
        heads_first(dice.integer(0, 1) != 0),
        keys(pages, size, heads, dim),
        values(pages, size, heads, value),
        table(static_cast<std::size_t>(sequences * blocks), Id(-1)),
        lengths(static_cast<std::size_t>(sequences), 0),
        free(static_cast<std::size_t>(pages)) {
    std::iota(free.begin(), free.end(), Id(0));
    for (std::size_t i = free.size(); i > 1; --i)
      std::swap(free[i - 1],
                free[static_cast<std::size_t>(dice.integer(0, static_cast<std::int64_t>(i) - 1))]);
  }

  /// Assigns sequence s pages for `count` more tokens.
  void grow(Index s, Index count) {
    int& length = lengths[static_cast<std::size_t>(s)];
    for (Index block = (length + page_size - 1) / page_size; block * page_size < length + count; ++block) {
      table[static_cast<std::size_t>(s * blocks + block)] = free.back();
      free.pop_back();
    }
    length += static_cast<int>(count);
  }
  page_view<C> view(key_storage storage) {
    return {{.keys = keys.view(heads_first), .values = values.view(heads_first)}, table, lengths, storage};
  }
};

using testing::same_heads;

/// Sequences that grow by different numbers of tokens, each in pages and in a cache.
template <class Layout, class T, class C, class Id>
void check_growing(std::uint64_t seed, key_storage storage,
                   product_precision products = product_precision::full) {
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  testing::random dice(seed);
  const Index sequences = dice.integer(1, 4), longest = dice.integer(1, 3) == 1 ? 1300 : 190;
  const Index kv_heads = dice.integer(1, 2), heads = kv_heads * dice.integer(1, 3);
  const Index head_dim = 2 * dice.integer(4, 12), value_dim = dice.integer(1, 20);
  const Index sizes[] = {1, 3, 16, 64, 100};
  engine<C, Id> memory(dice, sequences, longest, kv_heads, head_dim, value_dim,
                       sizes[static_cast<std::size_t>(dice.integer(0, 4))]);
  CAPTURE(seed, testing::name_of<Layout>, sequences, longest, kv_heads, heads, head_dim, value_dim,
          memory.page_size, memory.heads_first, storage == key_storage::raw);
  const frequency_table<S> all(frequencies(head_dim - 2, 100.0), longest);
  const auto table = all.at_channel(dice.integer(0, 2));
  std::vector<float> sink_logits;
  for (Index h = 0; h < heads; ++h) sink_logits.push_back(0.5f - 0.25f * static_cast<float>(h));
  attention_options options = {.window = static_cast<Index>(dice.integer(0, 1) * dice.integer(1, longest)),
                               .softcap = dice.integer(0, 1) != 0 ? 15.0 : 0.0,
                               .sinks = static_cast<Index>(dice.integer(0, 3))};
  if (dice.integer(0, 1) != 0) options.sink_logits = sink_logits;
  options.products = products;
  std::vector<kv_cache<C>> caches;
  for (Index s = 0; s < sequences; ++s)
    caches.emplace_back(1, longest, kv_heads, head_dim, value_dim, storage);

  for (int step = 0; step < 4; ++step) {
    // Some sequences have a prompt or a chunk of one, some have one new token, and some have none.
    std::vector<std::int64_t> offsets = {0};
    for (Index s = 0; s < sequences; ++s) {
      const Index free_slots = longest - memory.lengths[static_cast<std::size_t>(s)];
      const Index wish = dice.integer(0, 2) == 0 ? dice.integer(0, longest / 2) : dice.integer(0, 1);
      const Index count = std::min(free_slots, step == 0 ? std::max<Index>(wish, 1) : wish);
      memory.grow(s, count);
      offsets.push_back(offsets.back() + count);
    }
    const auto tokens = static_cast<Index>(offsets.back());
    auto q = testing::random_channels<T>(tokens * heads * head_dim, static_cast<std::uint32_t>(dice.bits()));
    auto k = testing::random_channels<T>(tokens * kv_heads * head_dim,
                                         static_cast<std::uint32_t>(dice.bits())),
         v = testing::random_channels<T>(tokens * kv_heads * value_dim,
                                         static_cast<std::uint32_t>(dice.bits()));
    const auto queries = thd(q.data(), tokens, heads, head_dim);
    const auto new_keys = thd(k.data(), tokens, kv_heads, head_dim);
    const auto new_values = thd(v.data(), tokens, kv_heads, value_dim);
    std::vector<T> out(static_cast<std::size_t>(tokens * heads * value_dim), T(-99)), expected = out;
    std::vector<double> sums(static_cast<std::size_t>(tokens * heads), -99), expected_sums = sums;

    const auto pages = memory.view(storage);
    attention_options ragged = options;
    ragged.query_offsets = offsets;
    ragged.log_sum_exp = sums;
    const testing::own_threads two(2);
    if (storage == key_storage::raw)
      write_pages(new_keys, new_values, pages, offsets, two);
    else
      write_pages<Layout>(new_keys, new_values, pages, table, offsets, two);
    attention<Layout>(queries, pages, thd(out.data(), tokens, heads, value_dim), table, ragged, two);

    for (Index s = 0; s < sequences; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const Index first = offsets[at], count = offsets[at + 1] - offsets[at];
      if (count == 0) continue;
      const auto part = [&](const auto& of) { return of.token_range(first, count); };
      testing::append_tokens<Layout>(caches[at], part(new_keys), part(new_values), table);
      attention_options own = options;
      own.log_sum_exp =
          std::span(expected_sums)
              .subspan(static_cast<std::size_t>(first * heads), static_cast<std::size_t>(count * heads));
      attention<Layout>(part(queries), caches[at], part(thd(expected.data(), tokens, heads, value_dim)),
                        table, own);
      // The stored type.
      for (Index t = first; t < first + count; ++t) {
        const Index place = memory.lengths[at] - count + (t - first);
        const auto page = pages.keys().batch_range(pages.page(s, place), 1).token_range(pages.slot(place), 1);
        CHECK(same_heads(page, caches[at].keys().token_range(place, 1)));
      }
    }
    CHECK(testing::same_bits(out, expected));
    CHECK(sums == expected_sums);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("sequences in pages attend as each would alone, with the same bits", "[cache]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  for (std::uint64_t seed = 900; seed < 912; ++seed) {
    check_growing<half_split, TestType, TestType, std::int32_t>(seed, key_storage::rotated);
    check_growing<interleaved, TestType, TestType, std::int64_t>(seed, key_storage::raw);
  }
}

TEST_CASE("bfloat16 products: sequences in pages attend as each would alone", "[cache]") {
  for (std::uint64_t seed = 930; seed < 950; ++seed) {
    check_growing<half_split, Eigen::bfloat16, Eigen::bfloat16, std::int32_t>(seed, key_storage::rotated,
                                                                              product_precision::bfloat16);
    check_growing<interleaved, Eigen::bfloat16, Eigen::bfloat16, std::int64_t>(seed, key_storage::raw,
                                                                               product_precision::bfloat16);
  }
}

TEST_CASE("bfloat16 products: the order of sums does not depend on pages", "[cache]") {
  // Values that nearly cancel, with equal weights: the small rest of their sum shows every rounding on the
  // way.
  const std::uint64_t seed = 955;
  testing::random dice(seed);
  for (const Index page_size : {1, 3, 16, 25})
    for (const Index queries : {1, 2, 30})
      for (const Index window : {0, 77, 64}) {
        CAPTURE(seed, page_size, queries, window);
        const Index tokens = 230, dim = 8, value_dim = 40;
        using T = Eigen::bfloat16;
        const std::vector<T> q(static_cast<std::size_t>(queries * dim), T(1)),
            k(static_cast<std::size_t>(tokens * dim), T(0));
        std::vector<T> v(static_cast<std::size_t>(tokens * value_dim));
        for (std::size_t i = 0; i < v.size(); ++i)
          switch (i / static_cast<std::size_t>(value_dim) % 4) {  // large, small, -large, small
            case 0:
              v[i] = T(0x1p27f);
              break;
            case 2:
              v[i] = T(-0x1p27f);
              break;
            default:
              v[i] = T(static_cast<float>(dice.integer(-255, 255)));
          }
        engine<T, int> memory(dice, 1, tokens, 1, dim, value_dim, page_size);
        memory.grow(0, tokens);
        const auto pages = memory.view(key_storage::rotated);
        const auto keys = bshd(k.data(), 1, tokens, 1, dim);
        const auto values = bshd<const T>(v.data(), 1, tokens, 1, value_dim);
        write_pages(keys, values, pages);
        const attention_options options = {.window = window, .products = product_precision::bfloat16};
        std::vector<T> out(static_cast<std::size_t>(queries * value_dim)), expected = out;
        attention(bshd(q.data(), 1, queries, 1, dim), pages, bshd(out.data(), 1, queries, 1, value_dim),
                  options);
        attention(bshd(q.data(), 1, queries, 1, dim), keys, values,
                  bshd(expected.data(), 1, queries, 1, value_dim), options);
        CHECK(testing::same_bits(out, expected));
      }
}

TEST_CASE("16-bit pages are read as 16-bit caches are", "[cache]") {
  for (std::uint64_t seed = 950; seed < 960; ++seed) {
    check_growing<interleaved, float, Eigen::bfloat16, std::uint16_t>(seed, key_storage::rotated);
    check_growing<half_split, float, Eigen::half, std::int32_t>(seed, key_storage::raw);
  }
}

TEST_CASE("pages of integers are read as caches of integers are", "[cache]") {
  for (std::uint64_t seed = 970; seed < 982; ++seed) {
    check_growing<half_split, float, std::int8_t, std::int32_t>(seed, key_storage::rotated);
    check_growing<interleaved, float, std::int8_t, std::uint16_t>(seed, key_storage::raw);
  }
}

TEST_CASE("a shared prefix is one page in two tables", "[cache]") {
  const Index page_size = 4, kv_heads = 2, heads = 4, dim = 8;
  std::vector<float> keys = testing::random_channels<float>(5 * page_size * kv_heads * dim, 3),
                     values = testing::random_channels<float>(5 * page_size * kv_heads * dim, 4);
  // Sequences 0 and 1 share page 2 as tokens 0 .. 3. Sequence 2 has the same tokens in its own pages.
  const int blocks[3][2] = {{2, 0}, {2, 4}, {3, 1}};
  const std::vector<std::size_t> lengths = {7, 6, 7};
  const auto copy = [&](std::vector<float>& memory, Index from, Index to) {
    std::copy_n(memory.begin() + from * page_size * kv_heads * dim, page_size * kv_heads * dim,
                memory.begin() + to * page_size * kv_heads * dim);
  };
  for (auto* memory : {&keys, &values}) {
    copy(*memory, 2, 3);
    copy(*memory, 0, 1);
  }
  const Eigen::Map<const Eigen::Array<int, 3, 2, Eigen::RowMajor>> table(&blocks[0][0]);
  const page_view<const float> pages(
      {.keys = bshd<const float>(keys.data(), 5, page_size, kv_heads, dim),
       .values = bshd<const float>(values.data(), 5, page_size, kv_heads, dim)},
      table, lengths);
  const auto one = testing::random_channels<float>(heads * dim, 5);
  std::vector<float> q, out(static_cast<std::size_t>(3 * heads * dim));
  for (int s = 0; s < 3; ++s) q.insert(q.end(), one.begin(), one.end());
  attention(bshd<const float>(q.data(), 3, 1, heads, dim), pages, bshd(out.data(), 3, 1, heads, dim));
  const auto row = [&](Index s) {
    return std::vector<float>(out.begin() + s * heads * dim, out.begin() + (s + 1) * heads * dim);
  };
  CHECK(testing::same_bits(row(0), row(2)));
  CHECK_FALSE(testing::same_bits(row(0), row(1)));
}

TEST_CASE("a mask with a row per sequence hides keys in pages, as a tree of drafts needs", "[cache]") {
  // Sequence 0: 5 tokens and a tree of 3 drafts after it. The last two are alternatives.
  const Index page_size = 3, dim = 8, length = 8;
  const auto keys = testing::random_channels<float>(3 * page_size * dim, 3),
             values = testing::random_channels<float>(3 * page_size * dim, 4),
             q = testing::random_channels<float>(3 * dim, 5);
  const std::vector<int> blocks = {0, 1, 2}, lengths = {length};
  const page_view<const float> pages(
      {.keys = bshd(keys.data(), 3, page_size, 1, dim), .values = bshd(values.data(), 3, page_size, 1, dim)},
      blocks, lengths);
  Eigen::Array<bool, 3, 8, Eigen::RowMajor> tree;
  tree.setConstant(true);
  tree(2, 6) = false;  // the second draft is hidden from the third
  std::vector<float> out(3 * dim, -9), expected(3 * dim, -9);
  attention(bshd(q.data(), 1, 3, 1, dim), pages, bshd(out.data(), 1, 3, 1, dim),
            {.mask = score_matrix(tree.data(), 1, 1, 3, length)});
  attention(bshd(q.data(), 1, 3, 1, dim), bshd(keys.data(), 1, length, 1, dim),
            bshd(values.data(), 1, length, 1, dim), bshd(expected.data(), 1, 3, 1, dim),
            {.mask = score_matrix(tree.data(), 1, 1, 3, length)});
  CHECK(testing::same_bits(out, expected));
}

// Invalid calls of attention to pages, and sequences without queries or keys.

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
  CHECK(rejects(attend, "leave query_positions empty in the options, got length 3"));
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
  CHECK(rejects(attend, "the stored keys are raw, give the layout and the table"));
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

TEST_CASE("heads that are not those of the pages throw although there is no sequence", "[cache]") {
  call x;
  x.lengths = {}, x.blocks = {}, x.offsets = {0};
  const auto q = x.queries().token_range(0, 0);
  const auto out = x.output().token_range(0, 0);
  const attention_options options = {.query_offsets = x.offsets};
  std::vector<float> none;
  CHECK_NOTHROW(attention(q, x.pages(), out, options));
  CHECK_NOTHROW(attention_weights(q, x.pages(), none, options));
  const auto rejects = [](const auto& run, const char* function) {
    return throws_saying<std::invalid_argument>(run, function, "head_dim");
  };
  CHECK(rejects([&] { attention(q, x.pages(), out.channels(0, value_dim - 1), options); }, "attention: "));
  const auto narrow = q.channels(0, dim - 1);
  CHECK(rejects([&] { attention(narrow, x.pages(), out, options); }, "attention: "));
  CHECK(rejects([&] { attention_weights(narrow, x.pages(), none, options); }, "attention_weights: "));
  CHECK(rejects([&] { attention_weight_sums(narrow, x.pages(), none, options); }, "attention_weight_sums: "));
}
