// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_MESSAGE_HPP
#define ROPE_DETAIL_MESSAGE_HPP

#include <concepts>  // std::integral
#include <cstdio>    // std::snprintf
#include <cstdlib>   // std::strtod
#include <string>

#include <rope/config.hpp>
#include <rope/detail/exact.hpp>

/// Error texts: "rope::function: the rule, the value".

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

inline void append(std::string& text, const char* part) { text += part; }
inline void append(std::string& text, double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  text += digits;
}
/// As few digits as read back exactly, but no fewer than ten: 10000 and 10000.25, not 1.000025e+04.
inline std::string exact_digits(double value) {
  char digits[32];
  for (int count = 10; count <= 17; ++count) {
    std::snprintf(digits, sizeof digits, "%.*g", count, value);
    if (equal(std::strtod(digits, nullptr), value)) break;
  }
  return digits;
}
template <std::integral Integer>
void append(std::string& text, Integer value) {
  text += std::to_string(value);
}

/// The parts joined; numbers are written so that they read back exactly.
template <class... Parts>
std::string message(const Parts&... parts) {
  std::string text = "rope::";
  (append(text, parts), ...);
  return text;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_MESSAGE_HPP
