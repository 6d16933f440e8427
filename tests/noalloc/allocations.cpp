// SPDX-License-Identifier: MIT
#include "allocations.hpp"

#include <malloc.h>  // malloc_usable_size

#include <atomic>
#include <cerrno>
#include <cstddef>

// Definitions in the program replace those of the C library, for the C++ library's calls as well.

// NOLINTBEGIN(bugprone-reserved-identifier): glibc exports its allocator under these names
extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);
extern "C" void __libc_free(void*);
// NOLINTEND(bugprone-reserved-identifier)

namespace {

std::atomic<long> count{0}, held{0};
thread_local long allowed = -1;

/// Counts an allocation and returns whether it should succeed.
bool allow() {
  ++count;
  if (allowed == 0) return false;
  if (allowed > 0) --allowed;
  return true;
}

void* taken(void* memory) {
  if (memory != nullptr) held += static_cast<long>(malloc_usable_size(memory));
  return memory;
}

}  // namespace

long testing::allocations() { return count.load(); }
long testing::held_bytes() { return held.load(); }
void testing::allow_allocations(long limit) { allowed = limit; }

extern "C" {

void* malloc(std::size_t size) { return allow() ? taken(__libc_malloc(size)) : nullptr; }

void* calloc(std::size_t items, std::size_t size) {
  return allow() ? taken(__libc_calloc(items, size)) : nullptr;
}

void* realloc(void* data, std::size_t size) {
  if (!allow()) return nullptr;
  const long before = data == nullptr ? 0 : static_cast<long>(malloc_usable_size(data));
  void* memory = __libc_realloc(data, size);
  if (memory != nullptr || size == 0) held -= before;
  return taken(memory);
}

void free(void* data) {
  if (data != nullptr) held -= static_cast<long>(malloc_usable_size(data));
  __libc_free(data);
}

void* memalign(std::size_t alignment, std::size_t size) {
  return allow() ? taken(__libc_memalign(alignment, size)) : nullptr;
}

void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return allow() ? taken(__libc_memalign(alignment, size)) : nullptr;
}

int posix_memalign(void** data, std::size_t alignment, std::size_t size) {
  *data = allow() ? taken(__libc_memalign(alignment, size)) : nullptr;
  return *data ? 0 : ENOMEM;
}
}
