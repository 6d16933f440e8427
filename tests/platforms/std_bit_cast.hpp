// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_PLATFORMS_STD_BIT_CAST_HPP
#define ROPE_TESTS_PLATFORMS_STD_BIT_CAST_HPP

/// std::bit_cast for tests if the library, libc++ 13, has none. rope's headers do not need it.
#include <bit>
#if !defined(__cpp_lib_bit_cast)
namespace std {
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}
}  // namespace std
#endif

#endif  // ROPE_TESTS_PLATFORMS_STD_BIT_CAST_HPP
