// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ROUNDING_HPP
#define ROPE_TESTS_ROUNDING_HPP

/// The expected error of attention in arithmetic of unit roundoff u. A bound for the worst operands is
/// hundreds of times the error of randomly drawn ones, and does not detect a mistake below that. So roundings
/// are modelled as they behave: independent of each other, with mean 0, each between -u and u of the rounded
/// value (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", SIAM J. Sci.
/// Comput. 41). Errors then add up as variances, for the operands of the call. Shares no code with the
/// library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace reference {

/// A sum of n terms is rounded at each partial sum. In an order that does not depend on the terms, the square
/// of the k-th is k / n of the sum of squares of the terms plus (k / n)^2 of the squared sum, on average. An
/// error that is uniform in [-u, u] has variance u^2 / 3. In units of u^2:
inline double variance_of_sum(double n, double squares, double sum) {
  return n / 3 * (squares / 2 + sum * sum / 3);
}

/// How often a sum over n keys is rounded, and by how many factors of a running maximum a term is multiplied:
/// sums start at zero in every tile (96 or 128 keys, 240 queries in a gradient), are added in runs of at most
/// 32 tiles (or splits of 1024 keys), and the runs are added last.
inline double tiles_of_sum(double n) { return (std::min)(std::ceil(n / 96), 32.0) + std::ceil(n / 1024) + 1; }
inline double roundings_of_sum(double n) { return (std::min)(n, 240.0) + tiles_of_sum(n); }

/// The exact parts of a score: its products with their scale.
struct exact_score {
  double squares = 0;   // of scale * q_d * k_d, summed over d
  double products = 0;  // their sum
  double capped = 0;    // softcap * tanh(products / softcap), or the products
  double bias = 0;
};

/// The variance of a score, in units of u^2:
///
/// - each product: the scaled query and the product itself, 2 / 3 of its square, and the sum of `dim` of them
/// - softcap: a division, a product and tanh, whose error in Eigen is up to 14 u (measured: 6.2 ulp SSE, 4.9
///   AVX, 7.0 with -Ofast), and usually a third of that
/// - bias: its product with log2(e), and the sum
inline double variance_of_score(const exact_score& x, double dim, double softcap) {
  double variance = 2.0 / 3 * x.squares + variance_of_sum(dim, x.squares, x.products);
  if (softcap > 0) variance += 25 * x.capped * x.capped;
  if (x.bias != 0) variance += (x.bias * x.bias + (x.capped + x.bias) * (x.capped + x.bias)) / 3;
  return variance;
}

/// The variance of the relative error of exp(-distance), without that of its argument, for one of n keys, in
/// units of u^2: the difference to the maximum, the range reduction, the exp (measured over [-87, 0]: 2.3 u
/// SSE and AVX, 2 u + u |x| / 30 AVX-512, 2 u + u |x| with -Ofast), and one more exp and product for each
/// change of a running maximum: about log(n) times, if the data does not determine the order.
inline double variance_of_exp(double distance, double n) {
  return distance * distance + 4 * (2 + std::log(n + 1));
}

/// Six standard deviations are exceeded by one output of 500 million.
inline constexpr double deviations = 6;

/// The expected error of one query, in units of u. With weights w_j that add up to 1, values x_j (0 if
/// dropout drops one, otherwise divided by the kept share) and e_j the relative error of a weight, the error
/// of an output sum_j w_j x_j is
///
///     sum_j w_j e_j (x_j - out),   where  sum_j w_j e_j  is the error of the logarithm of the sum,
///
/// plus the roundings of both sums and of their quotient.
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
  /// Adds a key, or a sink, of that weight.
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
  /// The standard deviation of the logarithm of the sum: of its weights, of the sum, and of the logarithm and
  /// the number added to it. All keys of a tile share the factor of a maximum that grew: an exp (2 u) and a
  /// product, about log(tiles) times.
  double log_sum(double keys) const {
    const double growths = 1 + std::log(tiles_of_sum(keys));
    return std::sqrt(both_ + variance_of_sum(roundings_of_sum(keys), weights_, 1) + 4 + 5.0 / 3 * growths);
  }

 private:
  double both_ = 0, weights_ = 0;
  std::vector<double> first_, second_, squares_;
};

/// The largest |got - exact| as a multiple of the allowed error: `deviations` standard deviations in units of
/// u of A, a smallest normal number for each weight of `keys` keys and a sink, and half an ulp of T for the
/// last rounding. Infinite if got is NaN.
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
