// SPDX-License-Identifier: MIT
// Memory that begins at a cache line, and sizes that no memory has.
#include <rope/base/storage.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "support/catch.hpp"

using rope::detail::storage;

namespace {

template <class T>
void check_sizes() {
  rope::detail::cache_line_allocator<T> allocator;
  const std::size_t most = static_cast<std::size_t>(-1) / sizeof(T);
  for (const std::size_t count : {most + 1, most + 2, most + most / 2}) {
    CAPTURE(count, sizeof(T));
    CHECK_THROWS_AS(allocator.allocate(count), std::length_error);
  }
  for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
    storage<T> numbers(count);
    CHECK(reinterpret_cast<std::uintptr_t>(numbers.data()) % 64 == 0);
    numbers.assign(count, T(3));
    const T* const place = numbers.data();
    storage<T> taken = std::move(numbers);
    CHECK(taken.data() == place);
    taken.resize(count + 1, T(4));
    CHECK(taken.front() == T(3));
    CHECK(taken.back() == T(4));
  }
}

}  // namespace

TEST_CASE("storage begins at a cache line, and what no address space holds is refused", "[base]") {
  check_sizes<float>();
  check_sizes<double>();
  check_sizes<std::uint16_t>();
}
