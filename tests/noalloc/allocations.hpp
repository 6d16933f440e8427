// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ALLOCATIONS_HPP
#define ROPE_TESTS_ALLOCATIONS_HPP

namespace testing {

/// How often this process has requested heap memory: malloc, calloc, realloc, aligned_alloc, posix_memalign
/// and memalign, and so every operator new. The counter itself allocates nothing.
long allocations();

/// Bytes of heap memory that this process holds at present.
long held_bytes();

/// Lets that many more allocations of this thread succeed. Every later one fails, so that operator new
/// throws. Negative: none fails.
void allow_allocations(long count);

/// How many allocations `call` makes.
template <class Call>
long allocations_in(Call call) {
  const long before = allocations();
  call();
  return allocations() - before;
}

}  // namespace testing

#endif  // ROPE_TESTS_ALLOCATIONS_HPP
