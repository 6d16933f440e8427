// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ROUNDING_HPP
#define ROPE_TESTS_ROUNDING_HPP

/// How far attention in arithmetic of unit roundoff u is expected to be from exact arithmetic. A bound for
/// the worst operands is hundreds of times the error of those that a test draws, and sees no mistake below
/// that. So roundings are taken as they behave: independent of each other, with mean 0, each between -u and u
/// of what is rounded (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", SIAM
/// J. Sci. Comput. 41). Errors then add up as variances, for the very operands of a call. Shares no code with
/// the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace reference {

/// A sum of n terms is rounded at each partial sum. In an order that the terms do not choose, the square of
/// the k-th is k / n of the sum of squares of the terms and (k / n)^2 of that of the sum, on average; an
/// error that is uniform in [-u, u] has variance u^2 / 3. In units of u^2:
inline double variance_of_sum(double n, double squares, double sum) {
  return n / 3 * (squares / 2 + sum * sum / 3);
}

/// How often a sum over n keys is rounded, and how many factors of a running maximum a term of it meets: sums
/// start at zero in every tile (96 or 128 keys, 240 queries in a gradient), and are added up in runs of at
/// most 32 tiles (or splits of 1024 keys), which are added up in turn.
inline double tiles_of_sum(double n) { return (std::min)(std::ceil(n / 96), 32.0) + std::ceil(n / 1024) + 1; }
inline double roundings_of_sum(double n) { return (std::min)(n, 240.0) + tiles_of_sum(n); }

/// What is known of a score: its products with their scale.
struct exact_score {
  double squares = 0;   // of scale * q_d * k_d, added up over d
  double products = 0;  // their sum
  double capped = 0;    // softcap * tanh(products / softcap), or the products
  double bias = 0;
};

/// The variance of a score, in units of u^2:
///
/// - each product: the scaled query and the product itself, 2 / 3 of its square; the sum of `dim` of them
/// - softcap: a division, a product and tanh, where Eigen's is off by up to 14 u (measured: 6.2 ulp SSE, 4.9
///   AVX, 7.0 with -Ofast), a third of that being usual
/// - bias: its product with log2(e), and the sum
inline double variance_of_score(const exact_score& x, double dim, double softcap) {
  double variance = 2.0 / 3 * x.squares + variance_of_sum(dim, x.squares, x.products);
  if (softcap > 0) variance += 25 * x.capped * x.capped;
  if (x.bias != 0) variance += (x.bias * x.bias + (x.capped + x.bias) * (x.capped + x.bias)) / 3;
  return variance;
}

/// The variance of the relative error of exp(-distance) beside that of its argument, for one of n keys, in
/// units of u^2: the difference to the maximum, the range reduction, the exp (measured over [-87, 0]: 2.3 u
/// SSE and AVX, 2 u + u |x| / 30 AVX-512, 2 u + u |x| with -Ofast), and as many more, each with a product, as
/// a running maximum changes: some log(n) times, if the data does not choose the order.
inline double variance_of_exp(double distance, double n) {
  return distance * distance + 4 * (2 + std::log(n + 1));
}

/// Standard deviations are exceeded sixfold by one output of 500 million.
inline constexpr double deviations = 6;

/// What one query is expected to be off by, in units of u. With weights w_j that add up to 1, values x_j (0
/// where dropout takes one away, divided by what it keeps elsewhere) and e_j the relative error of a weight,
/// an output sum_j w_j x_j is off by
///
///     sum_j w_j e_j (x_j - out),   sum_j w_j e_j  being what the logarithm of the sum is off by,
///
/// and by the roundings of both sums and of their quotient.
class query_errors {
 public:
  /// \param count  channels of an output
  explicit query_errors(std::size_t count) : first_(count), second_(count), squares_(count) {}

  void start() {
    both_ = weights_ = 0;
    std::fill(first_.begin(), first_.end(), 0.0);
    std::fill(second_.begin(), second_.end(), 0.0);
    std::fill(squares_.begin(), squares_.end(), 0.0);
  }
  /// A key, or a sink, of that weight.
  ///
  /// \param variance  of e_j
  /// \param value     value(c): x_j
  template <class Value>
  void add(double weight, double variance, const Value& value) {
    const double share = weight * weight * variance;
    add_without_value(weight, variance);
    for (std::size_t c = 0; c < first_.size(); ++c) {
      const double x = value(c);
      first_[c] += share * x;
      second_[c] += share * x * x;
      squares_[c] += weight * weight * x * x;
    }
  }
  void add_without_value(double weight, double variance) {
    both_ += weight * weight * variance;
    weights_ += weight * weight;
  }

  /// The standard deviation of channel c of the output.
  double output(std::size_t c, double out, double keys) const {
    const double shifted = second_[c] - 2 * out * first_[c] + out * out * both_;
    const double roundings = roundings_of_sum(keys);
    return std::sqrt((std::max)(shifted, 0.0) + variance_of_sum(roundings, squares_[c], out) +
                     out * out * (variance_of_sum(roundings, weights_, 1) + 4));
  }
  /// That of the logarithm of the sum: of its weights, of the sum, and of the logarithm with what is added to
  /// it; and what is common to all keys of a tile, the factor of a maximum that grew: an exp (2 u) and a product
  /// for each of some log(tiles) times.
  double log_sum(double keys) const {
    const double growths = 1 + std::log(tiles_of_sum(keys));
    return std::sqrt(both_ + variance_of_sum(roundings_of_sum(keys), weights_, 1) + 4 + 5.0 / 3 * growths);
  }

 private:
  double both_ = 0, weights_ = 0;
  std::vector<double> first_, second_, squares_;
};

/// The largest |got - exact| as a multiple of what is allowed: `deviations` standard deviations in units of
/// u of A, a smallest normal number for each weight of `keys` keys and a sink, and half an ulp of T for the
/// last rounding. Infinite where got is not a number.
template <class T, class A>
double worst_deviation(const std::vector<double>& got, const std::vector<double>& exact,
                       const std::vector<double>& deviation, double keys) {
  const auto u = static_cast<double>(tolerance::unit_roundoff<A>());
  const double underflow = 2 * (keys + 1) * static_cast<double>((std::numeric_limits<A>::min)());
  double worst = got.size() == exact.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (got[i] == exact[i]) continue;
    const double bound = deviations * u * deviation[i] + underflow;
    const auto rounding = static_cast<double>(tolerance::ulp<T>(testing::abs(exact[i]) + bound) / 2);
    const double relative = testing::abs(got[i] - exact[i]) / (bound + rounding);
    worst = relative <= worst ? worst : relative >= 0 ? relative : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace reference

#endif  // ROPE_TESTS_ROUNDING_HPP
