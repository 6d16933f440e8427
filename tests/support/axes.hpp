// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_AXES_HPP
#define ROPE_TESTS_AXES_HPP

/// Frequencies of several axes compared with published numbers: angles, and the channels 1, 2, 3, ...
/// rotated.

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <rope/frequencies/axes.hpp>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"

namespace testing {

using rope::Index;

/// Half a unit of the last of `digits` significant decimal digits of `value`, and the roundings of a double.
inline double printed(double value, int digits) {
  if (value == 0) return 1e-15;
  const double magnitude = std::abs(value);
  return 0.5 * std::pow(10, std::floor(std::log10(magnitude)) + 1 - digits) + 1e-13 * magnitude;
}

/// Whether `got` contains the numbers of a list that was printed with `digits` significant digits.
template <class Derived>
bool agrees_with(const Eigen::DenseBase<Derived>& got, const std::vector<double>& list, int digits) {
  const auto values = got.derived().eval();
  if (values.size() != static_cast<Index>(list.size())) {
    UNSCOPED_INFO("got " << values.size() << " numbers for " << list.size());
    return false;
  }
  for (Index i = 0; i < values.size(); ++i) {
    const double value = list[static_cast<std::size_t>(i)];
    if (!(std::abs(static_cast<double>(values(i)) - value) <= printed(value, digits))) {
      UNSCOPED_INFO("number " << i << " is " << values(i) << " instead of " << value);
      return false;
    }
  }
  return true;
}

/// The angle of every pair [rad], [rows, pairs], by the definition.
template <class Derived>
Eigen::ArrayXXd angles(const rope::frequencies& f, const Eigen::DenseBase<Derived>& coordinates) {
  Eigen::ArrayXXd result = Eigen::ArrayXXd::Zero(coordinates.rows(), f.pairs());
  for (Index r = 0; r < coordinates.rows(); ++r)
    for (Index i = 0; i < f.pairs(); ++i)
      for (Index a = 0; a < f.axes(); ++a)
        result(r, i) += static_cast<double>(coordinates.derived().coeff(r, a)) * f.inv_freq()(i, a);
  return result;
}

/// One row of coordinates.
inline Eigen::ArrayXXd at(std::initializer_list<double> coordinates) {
  Eigen::ArrayXXd row(1, static_cast<Index>(coordinates.size()));
  Index axis = 0;
  for (const double c : coordinates) row(0, axis++) = c;
  return row;
}

/// "T H W E" of every pair: the assignment as one string.
inline std::string letters(const rope::axis_assignment& assignment) {
  std::string text;
  for (const Index axis : assignment.axis_of_pair) text += "THWE"[axis];
  return text;
}
inline std::string repeated(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

/// A number as text, without zeros at the end of its fraction.
template <class Scalar>
std::string spelled(const Scalar& x) requires std::is_arithmetic_v<Scalar> {
  std::string text = std::to_string(x);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}
/// Coordinates of tokens as text, such as "(0,0,0)(1,1,1)".
template <class Derived>
std::string spelled(const Eigen::DenseBase<Derived>& coordinates) {
  std::string text;
  for (Index r = 0; r < coordinates.rows(); ++r) {
    for (Index a = 0; a < coordinates.cols(); ++a)
      text += (a > 0 ? "," : "(") + spelled(coordinates.derived().coeff(r, a));
    text += ")";
  }
  return text;
}

/// A head of channels 1, 2, ..., head_dim, rotated to `coordinates` in double.
template <class Layout>
Eigen::ArrayXd counted_channels(const rope::frequencies& f, const Eigen::ArrayXXd& coordinates,
                                Index head_dim) {
  Eigen::ArrayXd x = Eigen::ArrayXd::LinSpaced(head_dim, 1, static_cast<double>(head_dim));
  rope::rotate<Layout>(rope::thd(x.data(), 1, 1, head_dim), rope::frequency_table<double>(f, coordinates));
  return x;
}

}  // namespace testing

#endif  // ROPE_TESTS_AXES_HPP
