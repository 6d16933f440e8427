// SPDX-License-Identifier: MIT
#include <rope/base/scratch.hpp>

#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

struct first_user {};
struct second_user {};
struct third_user {};

double* doubles(rope::Index count) { return rope::detail::workspace<first_user, double>(count); }
int* integers(rope::Index count) { return rope::detail::workspace<second_user, int>(count); }

/// Releases scratch when its thread ends.
struct late_release {
  bool& released;
  ~late_release() {
    rope::release_scratch();
    released = true;
  }
};

}  // namespace

TEST_CASE("a thread without scratch memory releases none, and can allocate it again after a release",
          "[base]") {
  rope::release_scratch();
  double* const few = doubles(10);
  CHECK(doubles(10) == few);
  CHECK(doubles(3) == few);
  int* const others = integers(5);
  CHECK(static_cast<void*>(others) != static_cast<void*>(few));
  rope::release_scratch();
  rope::release_scratch();
  double* const again = doubles(100);
  for (std::ptrdiff_t i = 0; i < 100; ++i) again[i] = 1;
  CHECK(doubles(100) == again);
  CHECK(integers(1) != nullptr);
}

TEST_CASE("each thread has its own scratch memory and ends after using it", "[base]") {
  double* const mine = doubles(10);
  for (int i = 0; i < 20; ++i) {
    bool shared = false;
    std::thread([&] {
      double* const theirs = doubles(10);
      theirs[9] = integers(5)[4] = i;
      shared = theirs == mine || doubles(10) != theirs;
    }).join();
    CHECK_FALSE(shared);
  }
  CHECK(doubles(10) == mine);
}

// GCC for MinGW frees the memory of `last` before it destroys it.
#if !(defined(__MINGW32__) && !defined(__clang__))
TEST_CASE("a destructor that runs after the scratch memory is gone may still release it", "[base]") {
  for (const int pieces : {1, 2, 3}) {
    CAPTURE(pieces);
    bool released = false;
    std::thread([&] {
      thread_local const late_release last{released};  // made before the scratch, so destroyed after it
      doubles(10)[9] = last.released ? 2 : 1;
      if (pieces > 1) integers(5)[4] = 1;
      if (pieces > 2) rope::detail::workspace<third_user, float>(7)[6] = 1;
    }).join();
    CHECK(released);
  }
}
#endif

TEST_CASE("scratch beyond the address space throws", "[base]") {
  constexpr rope::Index most = (std::numeric_limits<rope::Index>::max)();
  CHECK(testing::throws_saying<std::length_error>(
      [] { doubles(most); },
      "rope::scratch: ", std::to_string(most) + " elements of 8 bytes exceed the address space"));
}
