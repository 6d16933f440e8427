// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_PARALLEL_TASKS_HPP
#define ROPE_BASE_PARALLEL_TASKS_HPP

#include <algorithm>  // std::min
#include <atomic>

#include <rope/base/parallel.hpp>
#include <rope/config.hpp>

/// Tasks of unequal size on the caller's threads, for attention, projections and gradients.

namespace rope::inline ROPE_ABI::detail {

/// Calls body(task) for tasks of unequal size, which have on average at least `work` operations each. A
/// thread takes the next task when it is free. Small calls use the calling thread only.
template <class Threads, class Body>
void parallel_tasks(const Threads& threads, Index tasks, double work, const Body& body) {
  constexpr Index smallest = Index{1} << 19;  // operations, which take about as long as waking a thread
  const Index pieces = (std::min)(available_threads(threads), tasks);
  const Index least = tasks > 0 ? smallest / tasks : smallest;
  if (pieces <= 1 || work < static_cast<double>(least)) {
    for (Index task = 0; task < tasks; ++task) body(task);
    return;
  }
  std::atomic<Index> next{0};
  run_pieces(threads, pieces, work, [&](Index /*piece*/) {
    for (Index task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
         task = next.fetch_add(1, std::memory_order_relaxed))
      body(task);
  });
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_PARALLEL_TASKS_HPP
