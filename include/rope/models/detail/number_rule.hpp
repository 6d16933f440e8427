// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_NUMBER_RULE_HPP
#define ROPE_MODELS_DETAIL_NUMBER_RULE_HPP

#include <cmath>  // std::floor
#include <string>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>

/// The ranges of the numbers in model files, and the error for a number outside of its range.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What a number must satisfy, as a test and in words. Every number must be finite beside that.
struct number_rule {
  bool (*holds)(double);
  const char* words;
};

namespace range {

inline constexpr number_rule any_number{[](double) { return true; }, "must be finite"};
inline constexpr number_rule not_negative{[](double x) { return x >= 0; }, "must not be negative"};
inline constexpr number_rule positive{[](double x) { return x > 0; }, "must be positive"};
inline constexpr number_rule above_one{[](double x) { return x > 1; }, "must be greater than 1"};
inline constexpr number_rule zero_or_above_one{[](double x) { return equal(x, 0) || x > 1; },
                                               "must be 0 or greater than 1"};
inline constexpr number_rule fraction{[](double x) { return x > 0 && x <= 1; }, "must be in (0, 1]"};
inline constexpr number_rule zero_or_one{[](double x) { return equal(x, 0) || equal(x, 1); },
                                         "must be 0 or 1"};
/// Layers, heads, channels: the bound keeps a spoilt file from asking for all the memory there is.
inline constexpr double most = 0x1p20;
inline constexpr number_rule count{[](double x) { return x > 0 && x <= most && equal(std::floor(x), x); },
                                   "must be a positive whole number up to 1048576"};
inline constexpr number_rule whole{[](double x) { return x >= 0 && x <= most && equal(std::floor(x), x); },
                                   "must be a whole number, not negative and up to 1048576"};
/// Tokens that a window spans: some files write a large number where they mean none.
inline constexpr number_rule window{[](double x) { return x >= 0 && x <= 0x1p53 && equal(std::floor(x), x); },
                                    "must be a whole number, not negative and up to 2^53"};

}  // namespace range

/// The value if it is finite and satisfies the rule; otherwise throws with the name of the function and of
/// the key.
inline double checked(double value, const number_rule& rule, const char* function, const std::string& key) {
  if (!is_finite(value) || !rule.holds(value))
    ROPE_THROW(std::invalid_argument, message(function, ": ", key.c_str(), " ", rule.words, ", got ", value));
  return value;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_NUMBER_RULE_HPP
