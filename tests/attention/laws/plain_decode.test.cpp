// SPDX-License-Identifier: MIT
// One query token that sees one range of keys has kernels of its own. A mask that hides no key selects the
// kernels of other calls, and so do short pages. All give the same bits.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <rope/rope.hpp>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

using namespace rope;

TEMPLATE_TEST_CASE("a mask that hides nothing, and pages, change no bit of decoding", "[attention]",
                   (std::pair<float, float>), (std::pair<double, double>),
                   (std::pair<Eigen::half, Eigen::half>), (std::pair<Eigen::bfloat16, Eigen::bfloat16>),
                   (std::pair<float, Eigen::half>), (std::pair<float, Eigen::bfloat16>)) {
  using T = typename TestType::first_type;   // of queries and outputs
  using C = typename TestType::second_type;  // of keys and values
  testing::random numbers(testing::seed());
  const auto any = [&](Index low, Index high) { return static_cast<Index>(numbers.integer(low, high)); };
  for (int n = 0; n < testing::draws(150); ++n) {
    // With one query head per key head and up to 16 keys, all heads take each step together.
    const Index batch = any(1, 3), group = any(0, 2) == 0 ? 1 : any(1, 20), kv_heads = any(1, 4),
                heads = group * kv_heads,
                keys = n % 5 == 0   ? any(1000, 2100)
                       : n % 2 == 0 ? any(1, 20)
                                    : any(21, 300),
                head_dim = any(1, 80), threads = any(1, 3);
    // The values of latents are the first channels of the keys. All heads of one_head have the same memory.
    const bool heads_first = any(0, 1) != 0, latents = any(0, 3) == 0, one_head = any(0, 3) == 0;
    const Index value_dim = latents ? any(1, head_dim) : any(1, 80);
    CAPTURE(n, batch, group, kv_heads, keys, head_dim, value_dim, threads, heads_first, latents, one_head);
    std::vector<T> q = testing::random_channels<T>(numbers, batch * heads * head_dim, -3, 1);
    std::vector<C> k = testing::random_channels<C>(numbers, batch * keys * kv_heads * head_dim, -3, 1),
                   v = testing::random_channels<C>(numbers, batch * keys * kv_heads * value_dim, -3, 1);
    const auto in_memory = [&](std::vector<C>& x, Index rows, Index tokens, Index channels) {
      head_view<C> view = heads_first ? bhsd(x.data(), rows, kv_heads, tokens, channels)
                                      : bshd(x.data(), rows, tokens, kv_heads, channels);
      if (one_head) view.head_stride = 0;
      return view;
    };
    const auto values_in = [&](const head_view<C>& of_keys, const head_view<C>& of_values) {
      return latents ? of_keys.channels(0, value_dim) : of_values;
    };
    const head_view<C> key_view = in_memory(k, batch, keys, head_dim),
                       value_view = values_in(key_view, in_memory(v, batch, keys, value_dim));
    std::vector<std::int64_t> counts;
    const bool in_ranges = n % 3 == 2;
    if (!in_ranges && any(0, 1) != 0)
      for (Index b = 0; b < batch; ++b) counts.push_back(any(0, keys));
    std::vector<std::int64_t> queries;  // of each row: 1, or 0 if its query is padding
    if (!counts.empty() && any(0, 2) == 0)
      for (Index b = 0; b < batch; ++b) queries.push_back(any(0, counts[std::size_t(b)] != 0));
    std::vector<float> sinks;
    if (any(0, 2) == 0) sinks = testing::random_channels<float>(numbers, heads, -2, 1);
    attention_options options = {.causal = any(0, 1) != 0,
                                 .window = any(0, 1) != 0 ? any(1, keys) : 0,
                                 .sink_logits = sinks,
                                 .query_counts = queries,
                                 .key_counts = counts};
    // The query is in one of three segments.
    std::vector<Index> query_offsets, key_offsets;
    const bool segments = batch == 1 && !in_ranges && counts.empty() && any(0, 2) == 0;
    if (segments) {
      const Index segment = any(0, 2), first = any(0, keys);
      key_offsets = {0, first, any(first, keys), keys};
      for (Index i = 0; i < 4; ++i) query_offsets.push_back(i > segment);
      options.query_offsets = query_offsets;
      options.key_offsets = key_offsets;
    }
    std::vector<key_range> ranges;
    if (in_ranges) {
      for (Index b = 0; b < batch; ++b) {
        const Index first = any(0, keys);
        ranges.push_back({first, any(0, keys - first)});
      }
      options.key_ranges = ranges;
      options.window = 0;
      options.causal = false;
    }
    const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(keys));
    std::fill_n(mask.get(), keys, true);
    std::vector<T> out[2];
    std::vector<double> sums[2];
    for (const int masked : {0, 1}) {
      out[masked].resize(static_cast<std::size_t>(batch * heads * value_dim));
      sums[masked].resize(static_cast<std::size_t>(batch * heads));
      options.log_sum_exp = sums[masked];
      if (masked != 0) options.mask = score_matrix(mask.get(), 1, 1, 1, keys);
      attention(bshd(q.data(), batch, 1, heads, head_dim), key_view, value_view,
                bshd(out[masked].data(), batch, 1, heads, value_dim), options, testing::own_threads(threads));
    }
    CHECK(testing::same_bits(out[0], out[1]));
    CHECK(sums[0] == sums[1]);
    // Pages have no segments, and each sequence has its new token.
    if (segments || !queries.empty() || std::count(counts.begin(), counts.end(), 0) != 0) continue;

    const Index page_size = any(0, 1) != 0 ? any(64, 130) : any(2, 63),
                blocks = (keys + page_size - 1) / page_size, pages = batch * blocks;
    CAPTURE(page_size);
    std::vector<C> key_pool(static_cast<std::size_t>(pages * page_size * kv_heads * head_dim)),
        value_pool(static_cast<std::size_t>(pages * page_size * kv_heads * value_dim));
    const head_view<C> key_pages = in_memory(key_pool, pages, page_size, head_dim),
                       value_pages = values_in(key_pages, in_memory(value_pool, pages, page_size, value_dim));
    std::vector<int> table(static_cast<std::size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    for (std::size_t i = table.size(); i > 1; --i)
      std::swap(table[i - 1], table[std::size_t(any(0, Index(i) - 1))]);
    const auto copy = [&](const head_view<C>& from, const head_view<C>& to) {
      for (Index b = 0; b < batch; ++b)
        for (Index t = 0; t < keys; ++t)
          for (Index h = 0; h < kv_heads; ++h)
            std::copy_n(from.at(b, t, h), from.head_dim,
                        to.at(table[std::size_t(b * blocks + t / page_size)], t % page_size, h));
    };
    copy(key_view, key_pages);
    copy(value_view, value_pages);
    if (counts.empty()) counts.assign(static_cast<std::size_t>(batch), keys);
    options.mask = {};
    options.key_counts = {};
    options.log_sum_exp = sums[1];
    const page_view<const C> view_of_pages{{.keys = key_pages, .values = value_pages}, table, counts};
    attention(bshd(q.data(), batch, 1, heads, head_dim), view_of_pages,
              bshd(out[1].data(), batch, 1, heads, value_dim), options, testing::own_threads(threads));
    CHECK(testing::same_bits(out[0], out[1]));
    CHECK(sums[0] == sums[1]);
  }
}
