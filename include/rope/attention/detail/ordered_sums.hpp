// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ORDERED_SUMS_HPP
#define ROPE_ATTENTION_DETAIL_ORDERED_SUMS_HPP

#include <atomic>
#include <limits>

#include <rope/config.hpp>

/// Tasks that add to shared sums in a fixed order, so that rounding does not depend on the threads. Every sum
/// belongs to one tile, and every task visits its tiles in ascending order. While a task works on tile n,
/// later tasks may add to tiles below n.
///
/// Tasks must be started in ascending order. The first unfinished task never waits, so one task always
/// proceeds, even with one thread.

namespace rope::inline ROPE_ABI::detail {

/// The position of one task in the order of the tasks that share its sums.
class sum_order {
 public:
  static constexpr Index finished = (std::numeric_limits<Index>::max)();

  /// \param tiles  the current tile of each task, initially 0
  sum_order(std::atomic<Index>* tiles, Index task) : tiles_(tiles), task_(task) {}
  sum_order(const sum_order&) = delete;
  sum_order& operator=(const sum_order&) = delete;
  /// Also runs if the task ends by an exception, so that no task waits for it forever.
  ~sum_order() { publish(finished); }

  /// Announces that this task adds nothing more to tiles below `tile`.
  void begin(Index tile) { publish(tile); }

  /// Returns when every task before this one is finished.
  void wait_for_the_end() { wait(finished - 1); }

  /// Returns when every task before this one is past `tile`.
  void wait(Index tile) {
    while (oldest_ < task_ && tiles_[oldest_].load(std::memory_order_acquire) == finished) ++oldest_;
    for (Index before = oldest_; before < task_; ++before)
      for (Index at = tiles_[before].load(std::memory_order_acquire); at <= tile;
           at = tiles_[before].load(std::memory_order_acquire))
        tiles_[before].wait(at, std::memory_order_acquire);
  }

 private:
  void publish(Index tile) {
    tiles_[task_].store(tile, std::memory_order_release);
    tiles_[task_].notify_all();
  }

  std::atomic<Index>* tiles_;
  Index task_, oldest_ = 0;  // every task before oldest_ is finished
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_ORDERED_SUMS_HPP
