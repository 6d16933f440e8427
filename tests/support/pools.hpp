// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_POOLS_HPP
#define ROPE_TESTS_POOLS_HPP

/// Threads as programs may have them: pools that run the pieces of a loop in any order, at any time, on any
/// thread, nested, or that fail.

#include <rope/config.hpp>

#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace testing {

/// A pool of one type for all of them, so that every call is compiled once.
class pool {
 public:
  using piece = std::function<void(rope::Index)>;
  using loop = std::function<void(rope::Index, const piece&)>;

  pool(const char* name, rope::Index threads, loop run)
      : name_(name), threads_(threads), run_(std::move(run)) {}

  const char* name() const { return name_; }
  rope::Index threads() const { return threads_; }
  void parallel_for(rope::Index count, const auto& body) const {
    ++loops_;
    run_(count, [&body](rope::Index i) { body(i); });
  }
  /// Loops since the last call of this function.
  int loops() const { return std::exchange(loops_, 0); }

 private:
  const char* name_;
  rope::Index threads_;
  loop run_;
  mutable int loops_ = 0;
};

inline void on_a_thread_of_its_own(const pool::piece& body, rope::Index i) {
  std::thread(std::cref(body), i).join();
}

/// Pools that run all pieces, each in its own order.
inline std::vector<pool> pools_of_every_kind() {
  std::vector<pool> pools;
  pools.emplace_back("inline", 3, [](rope::Index count, const pool::piece& body) {
    for (rope::Index i = 0; i < count; ++i) body(i);
  });
  pools.emplace_back("in reverse", 3, [](rope::Index count, const pool::piece& body) {
    for (rope::Index i = count; i-- > 0;) body(i);
  });
  pools.emplace_back("on another thread", 4, [](rope::Index count, const pool::piece& body) {
    std::thread([&] {
      for (rope::Index i = 0; i < count; ++i) body(i);
    }).join();
  });
  // The pieces run one after another, and piece 0 runs last.
  pools.emplace_back("late", 3, [](rope::Index count, const pool::piece& body) {
    for (rope::Index i = 1; i < count; ++i) on_a_thread_of_its_own(body, i);
    on_a_thread_of_its_own(body, 0);
  });
  // The caller works next to its threads, as in most pools.
  pools.emplace_back("with the caller", 8, [](rope::Index count, const pool::piece& body) {
    std::vector<std::thread> running;
    for (rope::Index i = 1; i < count; ++i) running.emplace_back(std::cref(body), i);
    if (count > 0) body(0);
    for (std::thread& thread : running) thread.join();
  });
  // Every piece is a loop of one piece within a loop of the same pool.
  pools.emplace_back("nested", 3, [](rope::Index count, const pool::piece& body) {
    std::vector<std::thread> running;
    for (rope::Index i = 0; i < count; ++i)
      running.emplace_back([&body, i] { on_a_thread_of_its_own(body, i); });
    for (std::thread& thread : running) thread.join();
  });
  return pools;
}

struct pool_failure : std::runtime_error {
  pool_failure() : std::runtime_error("the pool has no thread left") {}
};

/// Pools that fail: before any piece, after some pieces, and after all of them.
inline std::vector<pool> failing_pools() {
  std::vector<pool> pools;
  pools.emplace_back("fails at once", 3, [](rope::Index, const pool::piece&) { throw pool_failure(); });
  pools.emplace_back("fails after one piece", 3, [](rope::Index, const pool::piece& body) {
    body(0);
    throw pool_failure();
  });
  pools.emplace_back("fails after the last piece", 3, [](rope::Index count, const pool::piece& body) {
    on_a_thread_of_its_own(body, count - 1);
    throw pool_failure();
  });
  pools.emplace_back("fails in the end", 3, [](rope::Index count, const pool::piece& body) {
    for (rope::Index i = 0; i < count; ++i) on_a_thread_of_its_own(body, i);
    throw pool_failure();
  });
  return pools;
}

}  // namespace testing

#endif  // ROPE_TESTS_POOLS_HPP
