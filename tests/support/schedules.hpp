// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_SCHEDULES_HPP
#define ROPE_TESTS_SCHEDULES_HPP

/// Frequency schedules compared with published lists and with each other.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <rope/frequencies/frequencies.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace testing {

using rope::frequencies;
using rope::Index;
using list = std::vector<double>;

/// Whether `value` is `printed` when it is written with as many significant digits: an error of at most half
/// of the last place. A thousandth more is for a list that was printed from doubles next to a tie.
inline bool rounds_to(double value, double printed, int digits) {
  if (printed == 0) return value == 0;
  const double last_place =
      testing::pow(10, testing::floor(testing::log10(testing::abs(printed))) + 1 - digits);
  const bool same = testing::abs(value - printed) <= 0.5005 * last_place;
  if (!same) UNSCOPED_INFO("got " << value << " for " << printed);
  return same;
}

/// Compares pairs first, first + 1, ... with a published list of numbers separated by spaces.
inline bool lists(const frequencies& schedule, Index first, const char* printed, int digits) {
  bool same = true;
  std::istringstream numbers(printed);
  Index i = first;
  for (double number = 0; numbers >> number; ++i)
    same = rounds_to(schedule.inv_freq()(i, 0), number, digits) && same;
  return same && numbers.eof() && i > first;
}

/// Whether pairs [first, last) are those of `original` divided by `divisor`, to the one rounding of each
/// side.
inline bool divided(const frequencies& schedule, const frequencies& original, Index first, Index last,
                    double divisor) {
  testing::wide worst = 0;
  for (Index i = first; i < last; ++i) {
    const testing::wide exact = static_cast<testing::wide>(original.inv_freq()(i, 0)) / divisor;
    testing::raise_to(worst, tolerance::error_in_ulp(schedule.inv_freq()(i, 0), exact));
  }
  UNSCOPED_INFO("at most " << worst << " ulp off");
  return worst <=
         1.5;  // half an ulp of the original, twice as much after a division, and half an ulp of the rule
}

inline bool same_pairs(const frequencies& a, const frequencies& b, Index first, Index count) {
  return (a.inv_freq().middleRows(first, count) == b.inv_freq().middleRows(first, count)).all();
}

/// Whether two schedules are equal in every bit.
inline bool same_schedule(const frequencies& a, const frequencies& b) {
  return a.pairs() == b.pairs() && same_pairs(a, b, 0, a.pairs()) &&
         a.attention_factor() == b.attention_factor();
}

/// Whether a rule does not change any bit of the schedule.
template <class Rule>
bool is_identity(Index rotary_dim, double base, const Rule& rule) {
  return same_schedule(frequencies(rotary_dim, base, rule), frequencies(rotary_dim, base));
}

/// Invalid numbers for a rule that requires one above zero, and how a message prints them.
inline const std::vector<std::pair<double, const char*>> not_positive = {
    {0.0, "got 0"},
    {-2.0, "got -2"},
    {std::numeric_limits<double>::quiet_NaN(), "nan"},
    {std::numeric_limits<double>::infinity(), "got inf"},
    {-std::numeric_limits<double>::infinity(), "got -inf"}};

/// Whether a schedule of four pairs with this rule throws, with the rule's name and text and the value.
template <class Rule>
bool rejected(const Rule& rule, const std::string& text, const std::string& value) {
  return throws_saying<std::invalid_argument>([&] { frequencies f(8, 1e4, rule); }, "rope::" + text, value);
}

}  // namespace testing

#endif  // ROPE_TESTS_SCHEDULES_HPP
