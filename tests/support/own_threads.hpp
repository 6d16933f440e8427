// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_OWN_THREADS_HPP
#define ROPE_TESTS_OWN_THREADS_HPP

/// Threads of a test, which count how often they were called.

#include <rope/config.hpp>
#include <thread>
#include <vector>

namespace testing {

/// Runs every piece of a loop on its own thread, the last one first.
class own_threads {
 public:
  explicit own_threads(rope::Index count) : count_(count) {}

  rope::Index threads() const { return count_; }
  template <class Body>
  void parallel_for(rope::Index pieces, const Body& body) const {
    run(pieces, &body, [](const void* b, rope::Index i) { (*static_cast<const Body*>(b))(i); });
  }

  /// Loops since the last call of this function.
  int runs() const {
    const int runs = runs_;
    runs_ = 0;
    return runs;
  }

 private:
  /// Not a template: threads are slow to compile, and every loop of the library has its own body.
  void run(rope::Index pieces, const void* body, void (*call)(const void*, rope::Index)) const {
    ++runs_;
#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__)
    for (rope::Index i = pieces; i-- > 0;) call(body, i);  // a build without threads
#else
    std::vector<std::thread> running;
    for (rope::Index i = pieces; i-- > 0;) running.emplace_back(call, body, i);
    for (std::thread& thread : running) thread.join();
#endif
  }

  rope::Index count_;
  mutable int runs_ = 0;
};

}  // namespace testing

#endif  // ROPE_TESTS_OWN_THREADS_HPP
