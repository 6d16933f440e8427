// SPDX-License-Identifier: MIT
#include "allocations.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>

// Definitions in the program take the place of those of the C library, for the C++ library's calls as well.

// NOLINTBEGIN(bugprone-reserved-identifier): glibc exports its allocator under these names
extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);
// NOLINTEND(bugprone-reserved-identifier)

namespace {
std::atomic<long> count{0};
}

long testing::allocations() { return count.load(); }

extern "C" {

void* malloc(std::size_t size) {
  ++count;
  return __libc_malloc(size);
}

void* calloc(std::size_t items, std::size_t size) {
  ++count;
  return __libc_calloc(items, size);
}

void* realloc(void* data, std::size_t size) {
  ++count;
  return __libc_realloc(data, size);
}

void* memalign(std::size_t alignment, std::size_t size) {
  ++count;
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++count;
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** data, std::size_t alignment, std::size_t size) {
  ++count;
  *data = __libc_memalign(alignment, size);
  return *data ? 0 : ENOMEM;
}
}
