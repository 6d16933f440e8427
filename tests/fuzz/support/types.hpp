// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_TYPES_HPP
#define ROPE_TESTS_FUZZ_TYPES_HPP

/// Types of channels and layouts of pairs, chosen by the bytes of a test.

#include <cstdint>
#include <type_traits>

#include <Eigen/Core>
#include <rope/rotation/layout.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/tokens.hpp"

namespace fuzz {

/// Calls `f` with a value of one of the types.
template <class... T, class Call>
void with_one_of(bytes& b, const Call& f) {
  const long chosen = b.up_to(long(sizeof...(T)) - 1);
  long i = 0;
  ((chosen == i++ ? f(T{}) : void()), ...);
}
/// Calls `f` with a value of a type that heads are stored in.
template <class Call>
void with_stored_type(bytes& b, const Call& f) {
  with_one_of<float, double, Eigen::half, Eigen::bfloat16, std::int8_t>(b, f);
}
/// Calls `f` with a value of a type of tokens that can be stored as T.
template <class T, class Call>
void with_type_of_new(bytes& b, const Call& f) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>)
    f(T{});
  else if constexpr (is_quantized<T>)
    b.coin() ? f(Eigen::bfloat16{}) : f(float{});
  else
    b.coin() ? f(T{}) : f(float{});
}

/// Calls `f` with a layout.
template <class Call>
void with_layout(bool interleaved_one, const Call& f) {
  interleaved_one ? f(rope::interleaved{}) : f(rope::half_split{});
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_TYPES_HPP
