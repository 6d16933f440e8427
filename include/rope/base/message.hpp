// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_MESSAGE_HPP
#define ROPE_BASE_MESSAGE_HPP

#include <concepts>  // std::signed_integral, std::unsigned_integral, std::convertible_to
#include <cstddef>
#include <cstdio>   // std::snprintf
#include <cstdlib>  // std::strtod
#include <initializer_list>
#include <string>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// Error texts: "rope::function: the rule, the value".

namespace rope::inline ROPE_ABI::detail {

/// The number with the fewest digits that read back exactly, but at least ten, so that 10000.25 does not
/// become 1.000025e+04.
inline std::string exact_digits(double value) {
  char digits[32];
  for (int count = 10; count <= 17; ++count) {
    std::snprintf(digits, sizeof digits, "%.*g", count, value);
    if (equal(std::strtod(digits, nullptr), value)) break;
  }
  return digits;
}

/// A part of a message: a text or a number. Messages have parts of many types. With this class, one function
/// that is not a template joins all of them.
class message_part {
 public:
  message_part(const char* text) : kind_(kind::text), text_(text) {}
  /// \param text  must outlive the part
  message_part(const std::string& text) : message_part(text.c_str()) {}
  message_part(double value) : kind_(kind::real), real_(value) {}
  template <std::signed_integral Integer>
  message_part(Integer value) : kind_(kind::integer), integer_(value) {}
  template <std::unsigned_integral Integer>
  message_part(Integer value) : kind_(kind::natural), natural_(value) {}
  /// A class that converts to an Index, such as moved_index.
  template <class Number>
  requires(std::is_class_v<Number>&& std::convertible_to<Number, Index>) message_part(const Number& value)
      : kind_(kind::integer), integer_(static_cast<Index>(value)) {}

  /// Appends the part. A double gets 17 digits, which read back exactly.
  void append_to(std::string& text) const {
    char digits[32];
    switch (kind_) {
      case kind::text:
        break;
      case kind::integer:
        std::snprintf(digits, sizeof digits, "%lld", integer_);
        break;
      case kind::natural:
        std::snprintf(digits, sizeof digits, "%llu", natural_);
        break;
      case kind::real:
        std::snprintf(digits, sizeof digits, "%.17g", real_);
    }
    text += kind_ == kind::text ? text_ : digits;
  }

 private:
  enum class kind { text, real, integer, natural } kind_;
  union {
    const char* text_;
    double real_;
    long long integer_;
    unsigned long long natural_;
  };
};

EIGEN_DONT_INLINE inline void append(std::string& text, std::initializer_list<message_part> parts) {
  for (const message_part& part : parts) part.append_to(text);
}

inline std::string joined(std::initializer_list<message_part> parts) {
  std::string text = "rope::";
  append(text, parts);
  return text;
}

template <class... Parts>
std::string message(Parts... parts) {
  return joined({message_part(parts)...});
}

/// Extents as messages show them: "[2, 16, 8, 128]".
EIGEN_DONT_INLINE inline std::string shape_text(const Index* extents, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += i == 0 ? "[" : ", ";
    message_part(extents[i]).append_to(text);
  }
  text += "]";
  return text;
}
inline std::string shape_text(std::initializer_list<Index> extents) {
  return shape_text(extents.begin(), extents.size());
}
/// The extents of a view.
template <class View>
requires requires(const View& x) { x.head_dim; }
std::string shape_text(const View& x) { return shape_text({x.batch, x.tokens, x.heads, x.head_dim}); }

// Not inline and not templates, so that a call site only makes the parts.
[[noreturn]] EIGEN_DONT_INLINE inline void throw_invalid(std::initializer_list<message_part> parts) {
  ROPE_THROW(std::invalid_argument, joined(parts));
}
[[noreturn]] EIGEN_DONT_INLINE inline void throw_out_of_range(std::initializer_list<message_part> parts) {
  ROPE_THROW(std::out_of_range, joined(parts));
}
[[noreturn]] EIGEN_DONT_INLINE inline void throw_length(std::initializer_list<message_part> parts) {
  ROPE_THROW(std::length_error, joined(parts));
}

/// Reports an invalid argument of `function`. The parts are the rule and the value.
///
/// Throws:  std::invalid_argument
template <class... Parts>
[[noreturn]] void throw_invalid(const char* function, Parts... parts) {
  throw_invalid({function, ": ", message_part(parts)...});
}
/// Throws:  std::out_of_range
template <class... Parts>
[[noreturn]] void throw_out_of_range(const char* function, Parts... parts) {
  throw_out_of_range({function, ": ", message_part(parts)...});
}
/// Throws:  std::length_error
template <class... Parts>
[[noreturn]] void throw_length(const char* function, Parts... parts) {
  throw_length({function, ": ", message_part(parts)...});
}

/// Throws unless the rule holds. The text of the rule names both numbers in this order.
///
/// Throws:  std::invalid_argument
inline void check_rule(const char* function, bool holds, const char* rule, Index first, Index second) {
  if (!holds) throw_invalid(function, rule, ", got ", first, " and ", second);
}

/// Throws unless the number is finite and the rule holds.
///
/// Throws:  std::invalid_argument
inline void check_finite(const char* function, bool holds, const char* rule, double value) {
  if (!holds || !is_finite(value)) throw_invalid(function, rule, ", got ", value);
}

/// Throws unless both extents are equal. `names` lists the objects in the order of the numbers.
///
/// Throws:  std::invalid_argument
inline void check_equal(const char* function, const char* names, const char* extent, Index first,
                        Index second) {
  if (first != second)
    throw_invalid(function, names, " must have the same ", extent, ", got ", first, " and ", second);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_MESSAGE_HPP
