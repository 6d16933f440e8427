// SPDX-License-Identifier: MIT
// Tasks add to every tile in their own order, on any number of threads.
#include <rope/attention/detail/gradient_kernel.hpp>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>

#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

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

TEST_CASE("tasks process a tile in their order", "[attention]") {
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
