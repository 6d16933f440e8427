// SPDX-License-Identifier: MIT
// Memory that begins at a cache line, and sizes beyond the address space.
#include <rope/base/scratch.hpp>
#include <rope/base/storage.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>  // std::allocator_traits
#include <stdexcept>
#include <string>
#include <utility>

#include "support/catch.hpp"
#include "support/errors.hpp"

using rope::Index;
using rope::detail::storage;
using testing::throws_saying;

namespace {

template <class T>
void check_sizes() {
  rope::detail::cache_line_allocator<T> allocator;
  const std::size_t most = static_cast<std::size_t>(-1) / sizeof(T);
  for (const std::size_t count : {most + 1, most + 2, most + most / 2}) {
    CAPTURE(count, sizeof(T));
    CHECK(throws_saying<std::length_error>([&] { allocator.allocate(count); }, "rope::storage: ",
                                           std::to_string(count) + " elements of " +
                                               std::to_string(sizeof(T)) +
                                               " bytes exceed the address space"));
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

TEST_CASE("a container takes over the memory of another", "[base]") {
  // libc++ compiles a copy of every element if an allocator does not declare that its memory may be taken
  // over.
  using traits = std::allocator_traits<storage<float>::allocator_type>;
  CHECK(traits::propagate_on_container_copy_assignment::value);
  CHECK(traits::propagate_on_container_move_assignment::value);
  CHECK(traits::propagate_on_container_swap::value);
  storage<float> from(7, 3.0f), to(9, 4.0f);
  const float* const place = from.data();
  to = std::move(from);
  CHECK(to.data() == place);
}

TEST_CASE("storage begins at a cache line, and sizes beyond the address space throw", "[base]") {
  check_sizes<float>();
  check_sizes<double>();
  check_sizes<std::uint16_t>();
  struct tag {};
  constexpr Index most = (std::numeric_limits<Index>::max)();
  CHECK(throws_saying<std::length_error>(
      [] { rope::detail::workspace<tag, double>(most); },
      "rope::scratch: ", std::to_string(most) + " elements of 8 bytes exceed the address space"));
}
