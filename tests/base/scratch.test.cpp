// SPDX-License-Identifier: MIT
#include <rope/base/scratch.hpp>

#include <cstddef>

#include "support/catch.hpp"

namespace {

struct first_user {};
struct second_user {};

double* doubles(rope::Index count) { return rope::detail::workspace<first_user, double>(count); }
int* integers(rope::Index count) { return rope::detail::workspace<second_user, int>(count); }

}  // namespace

TEST_CASE("a thread without scratch releases none, and scratch is there again after a release", "[base]") {
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
