// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_OWN_THREADS_HPP
#define ROPE_TESTS_OWN_THREADS_HPP

/// Threads of a test's own, which count how often they were asked to run.

#include <rope/config.hpp>
#include <thread>
#include <vector>

namespace testing {

/// Runs every piece of a loop on a thread of its own, the last one first.
class own_threads {
 public:
  explicit own_threads(rope::Index count) : count_(count) {}

  rope::Index threads() const { return count_; }
  void parallel_for(rope::Index pieces, const auto& body) const {
    ++runs_;
    std::vector<std::thread> running;
    for (rope::Index i = pieces; i-- > 0;) running.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : running) thread.join();
  }

  /// Loops since the last time this was asked.
  int runs() const {
    const int runs = runs_;
    runs_ = 0;
    return runs;
  }

 private:
  rope::Index count_;
  mutable int runs_ = 0;
};

}  // namespace testing

#endif  // ROPE_TESTS_OWN_THREADS_HPP
