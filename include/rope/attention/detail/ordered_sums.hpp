// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ORDERED_SUMS_HPP
#define ROPE_ATTENTION_DETAIL_ORDERED_SUMS_HPP

#include <atomic>
#include <limits>

#include <rope/config.hpp>

/// Tasks that add to shared sums in one order, so that rounding does not depend on the threads. Every sum
/// belongs to one tile, and every task visits its tiles in ascending order: while a task works on tile n, the
/// ones after it may add to tiles below n, so they follow each other through the tiles as a wave.
///
/// Tasks must be started in ascending order. The first one that is not finished never waits, so somebody
/// always proceeds, however few threads there are.

namespace rope::inline ROPE_ABI::detail {

/// The place of one task among those that share sums with it.
class sum_order {
 public:
  static constexpr Index finished = (std::numeric_limits<Index>::max)();

  /// \param tiles  per task, the tile that it works on; 0 at first
  sum_order(std::atomic<Index>* tiles, Index task) : tiles_(tiles), task_(task) {}
  sum_order(const sum_order&) = delete;
  sum_order& operator=(const sum_order&) = delete;
  /// Also when the task ends by an exception: nobody waits for it any more.
  ~sum_order() { publish(finished); }

  /// Everything below `tile` is added to, or left alone.
  void begin(Index tile) { publish(tile); }

  /// Returns when every task before this one is finished.
  void wait_for_the_end() { wait(finished - 1); }

  /// Returns when every task before this one has left `tile` behind.
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
