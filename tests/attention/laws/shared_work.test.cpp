// SPDX-License-Identifier: MIT
// With threads to spare, work is cut finer: between key heads, and between query heads that share one. No cut
// changes a bit of outputs or log-sum-exp, and a call with enough work always uses several threads.
#include <rope/attention/attention.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <rope/attention/detail/gradient_kernel.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>
#include <rope/rope.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

using namespace rope;

namespace {

struct shape {
  const char* name;
  Index batch, queries, heads, kv_heads, keys, head_dim, value_dim;
};

constexpr shape shapes[] = {
    {"one query, many key heads", 1, 1, 32, 8, 1000, 64, 64},
    {"one query, key heads that no number of pieces divides", 1, 1, 14, 7, 1100, 40, 24},
    {"one query of one key head, of few query heads", 1, 1, 12, 1, 5000, 64, 64},
    {"one query of one key head, of many query heads", 1, 1, 128, 1, 700, 72, 64},
    {"two rows of many query heads", 2, 1, 50, 1, 1300, 48, 33},
    {"a few queries", 1, 16, 8, 8, 900, 64, 64},
    {"a few queries of few key heads", 2, 7, 24, 2, 600, 32, 32},
    {"a prompt of one head", 1, 300, 1, 1, 400, 64, 64},
};

template <class T>
struct results {
  std::vector<T> out;
  std::vector<double> sums;
};

}  // namespace

TEMPLATE_TEST_CASE("attention gives the same bits for every number of threads", "[attention]", float, double,
                   Eigen::bfloat16) {
  using T = TestType;
  testing::random numbers(testing::seed());
  for (const shape& s : shapes) {
    CAPTURE(s.name);
    std::vector<T> q = testing::random_channels<T>(numbers, s.batch * s.queries * s.heads * s.head_dim, -2,
                                                   1),
                   k = testing::random_channels<T>(numbers, s.batch * s.keys * s.kv_heads * s.head_dim, -2,
                                                   1),
                   v = testing::random_channels<T>(numbers, s.batch * s.keys * s.kv_heads * s.value_dim, -2,
                                                   1);
    const frequency_table<float> table(frequencies(s.head_dim / 8 * 8), s.keys);
    const std::vector<float> bias = testing::random_channels<float>(numbers, s.heads * s.keys, -2, 1);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(s.batch), s.keys);
    counts.back() -= 3;
    for (const bool heads_first : {false, true}) {
      const auto view = [&](std::vector<T>& x, Index tokens, Index heads, Index channels) {
        return heads_first ? bhsd(x.data(), s.batch, heads, tokens, channels)
                           : bshd(x.data(), s.batch, tokens, heads, channels);
      };
      const auto attend = [&](bool rotated, const auto& threads) {
        const auto rows = static_cast<std::size_t>(s.batch * s.queries * s.heads);
        results<T> r = {std::vector<T>(rows * static_cast<std::size_t>(s.value_dim)),
                        std::vector<double>(rows)};
        attention_options options = {.window = 800, .key_counts = counts, .log_sum_exp = r.sums};
        options.bias = score_matrix(bias.data(), 1, s.heads, 1, s.keys);
        const auto a = view(q, s.queries, s.heads, s.head_dim), b = view(k, s.keys, s.kv_heads, s.head_dim),
                   c = view(v, s.keys, s.kv_heads, s.value_dim);
        const auto out = view(r.out, s.queries, s.heads, s.value_dim);
        if (rotated)
          attention<half_split>(a, b, c, out, table, options, threads);
        else
          attention(a, b, c, out, options, threads);
        return r;
      };
      for (const bool rotated : {false, true}) {
        const results<T> alone = attend(rotated, this_thread{});
        for (const Index count : {2, 3, 16}) {
          CAPTURE(heads_first, rotated, count);
          const testing::own_threads threads(count);
          const results<T> shared = attend(rotated, threads);
          CHECK(threads.runs() == 1);
          CHECK(testing::same_bits(shared.out, alone.out));
          CHECK(shared.sums == alone.sums);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("a hidden NaN changes no bit, on any number of threads and in any order of the axes",
                   "[attention]", float, double, Eigen::bfloat16) {
  // Head 0 does not see the last keys of a tile, and head 1 sees all. A thread may have both heads or one.
  using T = TestType;
  const Index keys = 512, channels = 32;
  testing::random numbers(testing::seed());
  std::vector<T> q = testing::random_channels<T>(numbers, 2 * channels, -5, -2),
                 k = testing::random_channels<T>(numbers, keys * 2 * channels, -5, -2),
                 v = testing::random_channels<T>(numbers, keys * 2 * channels, -2, 1);
  const auto mask = std::make_unique<bool[]>(2 * keys);
  std::vector<T> dirty = v;
  for (Index j = 0; j < keys; ++j) {
    mask[std::size_t(j)] = j % 128 < 96;
    mask[std::size_t(keys + j)] = true;
    if (!mask[std::size_t(j)])
      dirty[std::size_t(j * 2 * channels + 3)] = std::numeric_limits<T>::quiet_NaN();  // of head 0
    // The maximum grows in every tile, so earlier sums shrink.
    for (Index h = 0; h < 2; ++h) k[std::size_t((j * 2 + h) * channels)] = T(static_cast<float>(j) / 64);
  }
  q[0] = q[channels] = T(1);
  const attention_options options = {.mask = score_matrix(mask.get(), 1, 2, 1, keys)};
  const auto attend = [&](std::vector<T> values, bool heads_first, Index threads) {
    std::vector<T> ordered_k = k, out(2 * channels);
    const auto view = [&](std::vector<T>& x) {
      if (!heads_first) return bshd(x.data(), 1, keys, 2, channels);
      const std::vector<T> from = x;
      for (Index n = 0; n < keys * 2 * channels; ++n)
        x[std::size_t((n / channels % 2 * keys + n / channels / 2) * channels + n % channels)] =
            from[std::size_t(n)];
      return bhsd(x.data(), 1, 2, keys, channels);
    };
    attention(bshd(q.data(), 1, 1, 2, channels), view(ordered_k), view(values),
              bshd(out.data(), 1, 1, 2, channels), options, testing::own_threads(threads));
    return out;
  };
  const std::vector<T> clean = attend(v, false, 1);
  for (const bool heads_first : {false, true})
    for (const Index threads : {1, 2, 8}) {
      CAPTURE(heads_first, threads);
      CHECK(testing::same_bits(attend(v, heads_first, threads), clean));
      CHECK(testing::same_bits(attend(dirty, heads_first, threads), clean));
    }
}

// Tasks that share the sums of a tile add to it one at a time, in ascending order, on any number of threads.

using rope::Index;
using rope::detail::sum_order;

namespace {

constexpr Index tasks = 60, tiles = 9;

struct places {
  std::vector<std::atomic<Index>> tiles = std::vector<std::atomic<Index>>(std::size_t(4 * tasks));
};

/// Large enough for parallel_tasks to use every thread.
constexpr double work = 0x1p30;

}  // namespace

TEST_CASE("tasks that share a tile add to it in ascending order", "[attention]") {
  testing::random numbers(testing::seed());
  // A task skips some tiles, at both ends and in between, and spends a long time on others.
  std::vector<std::vector<bool>> visits{std::size_t(tasks), std::vector<bool>(std::size_t(tiles))};
  for (auto& task : visits)
    for (std::size_t tile = 0; tile < task.size(); ++tile) task[tile] = numbers.unit() < 0.6;
  for (const Index step : {1, 4})
    for (const Index threads : {1, 2, 3, 8}) {
      CAPTURE(step, threads);
      places at;
      // Tasks with the same remainder share sums.
      std::vector<std::vector<Index>> visitors(std::size_t(step * tiles));
      std::atomic<Index> meetings = 0;
      std::vector<std::atomic<int>> inside(std::size_t(step * tiles));
      rope::detail::parallel_tasks(testing::own_threads{threads}, tasks, work, [&](Index task) {
        sum_order order(at.tiles.data() + task % step * tasks, task / step);
        for (Index tile = 0; tile < tiles; ++tile) {
          if (!visits[std::size_t(task)][std::size_t(tile)]) continue;
          order.begin(tile);
          if ((task + tile) % 3 == 0) std::this_thread::yield();
          order.wait(tile);
          const auto sum = std::size_t(task % step * tiles + tile);
          if (++inside[sum] != 1) ++meetings;
          if ((task + tile) % 5 == 0) std::this_thread::yield();
          visitors[sum].push_back(task);
          --inside[sum];
        }
      });
      CHECK(meetings == 0);
      for (Index chain = 0; chain < step; ++chain)
        for (Index tile = 0; tile < tiles; ++tile) {
          std::vector<Index> expected;
          for (Index task = chain; task < tasks; task += step)
            if (visits[std::size_t(task)][std::size_t(tile)]) expected.push_back(task);
          CHECK(visitors[std::size_t(chain * tiles + tile)] == expected);
        }
    }
}

TEST_CASE("no task waits for one that ended early", "[attention]") {
  places at;
  const auto leave = [&](Index task) {
    sum_order order(at.tiles.data(), task);
    order.begin(2);
    throw std::runtime_error("out of memory, say");
  };
  CHECK_THROWS_AS(leave(0), std::runtime_error);
  sum_order order(at.tiles.data(), 1);
  order.begin(0);
  order.wait(8);  // returns
  CHECK(at.tiles[0] == sum_order::finished);
  CHECK(at.tiles[1] == 0);
}
