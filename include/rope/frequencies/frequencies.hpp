// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_FREQUENCIES_HPP
#define ROPE_FREQUENCIES_FREQUENCIES_HPP

#include <cmath>
#include <concepts>  // std::convertible_to
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>

/// The frequency of each pair of channels: inv_freq [pairs, axes] in radians per unit of position. Text has
/// one axis, the position of the token. An image has two axes, and a video has three.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The function of i that returns base^(-i / denominator).
inline auto inverse_powers(wide_real base, Index denominator) {
  return [step = -log(base) / denominator](Index i) { return exp(i * step); };
}

}  // namespace detail

/// The schedule on one axis that a scaling changes. It is the original schedule, or the result of earlier
/// scalings. Formulas are computed in wide_real and rounded to double once, at the end.
///
///     struct half_speed {  // a rule of your own
///       void apply(schedule& axis) const { axis.inv_freq /= 2; }
///     };
///     const frequencies f(128, 10000.0, half_speed{});
struct schedule {
  Index rotary_dim;                  // channels that rotate, even and positive
  wide_real base;                    // above 1, as changed by the rules so far
  number_array<wide_real> inv_freq;  // [rotary_dim / 2], rad per unit of position
  double attention_factor = 1;       // m, the magnitude of the rotation

  /// The original schedule with this base: inv_freq(i) = base^(-2 i / rotary_dim).
  void restart(wide_real new_base) {
    base = new_base;
    inv_freq.resize(rotary_dim / 2);
    const auto powers = detail::inverse_powers(base, inv_freq.size());
    for (Index i = 0; i < inv_freq.size(); ++i) inv_freq(i) = powers(i);
  }

  /// Multiplies the base by factor and keeps the changes of other rules:
  /// inv_freq(i) *= factor^(-2 i / rotary_dim).
  void multiply_base(wide_real factor) {
    base *= factor;
    const auto powers = detail::inverse_powers(factor, inv_freq.size());
    for (Index i = 0; i < inv_freq.size(); ++i) inv_freq(i) *= powers(i);
  }
};

/// A rule that changes a schedule: one of scaling.hpp, or your own type. It throws std::invalid_argument if
/// its fields or the schedule are invalid.
template <class X>
concept frequency_scaling = requires(const X& scaling, schedule& axis) {
  scaling.apply(axis);
};

/// The frequency of every pair, and the factor by which YaRN and LongRoPE multiply the rotation.
///
/// The angle of pair i at position p (one coordinate p_a per axis a) is sum_a p_a * inv_freq(i, a)  [rad].
///
///     const frequencies f(128, 500000.0, llama3_scaling{.factor = 8});
///     const frequency_table table(f, 8192);
///
/// Invariant: at least one pair and one axis; every inv_freq is finite and below 2^64 in magnitude;
///            attention_factor is finite and positive. Immutable; empty once it was moved from.
class frequencies {
 public:
  /// The frequencies, doubles [pairs, axes].
  using inv_freq_map = number_array<double>::const_map_type;

  /// The original schedule, on one axis.
  ///
  ///     inv_freq(i) = base^(-2 i / rotary_dim),   i = 0 .. rotary_dim / 2 - 1
  ///
  /// \param rotary_dim  number of channels that rotate, an even integer in [2, 65536]
  /// \param base        wavelength growth over the channels (`rope_theta`), finite and greater than 1
  ///
  /// Throws:    std::invalid_argument unless rotary_dim and base are as above
  /// Accuracy:  the nearest double, except for values within 2^-50 ulp of the middle between two doubles. The
  ///            same bits everywhere (tests/oracle/scaling.test.cpp)
  /// Source:    Su et al. 2021, RoFormer, arXiv:2104.09864v5, section 3.2.2
  template <std::convertible_to<Index> Integer>
  explicit frequencies(Integer rotary_dim, double base = 10000.0)
      : frequencies(schedule_of(rotary_dim, base)) {}

  /// The original schedule after one scaling, or several in the given order.
  ///
  ///     const frequencies f(128, 1e6, yarn_scaling{.factor = 4, .original_max_position = 32768});
  ///
  /// Throws:    as above; std::invalid_argument if a rule rejects its fields, or `custom` the result
  /// Accuracy:  0.51 ulp of the formula, with the same bits everywhere
  template <std::convertible_to<Index> Integer, frequency_scaling First, frequency_scaling... Rest>
  frequencies(Integer rotary_dim, double base, const First& first, const Rest&... rest)
      : frequencies(schedule_of(rotary_dim, base, first, rest...)) {}

  /// Frequencies for pixel coordinates in [-1, 1], evenly spaced, on one axis.
  ///
  ///     inv_freq(i) = pi * (1 + i (max_freq / 2 - 1) / (pairs - 1))
  ///
  /// \param rotary_dim  even and positive
  /// \param max_freq    finite and at least 2
  ///
  /// Throws:    std::invalid_argument unless rotary_dim is even and positive, max_freq finite and at least 2,
  ///            and every inv_freq below 2^64; std::length_error if the pairs exceed the address space
  /// Accuracy:  relative error below 5.4 * 2^-53, with the same bits in every build
  /// Source:    lucidrains/rotary-embedding-torch, `freqs_for = 'pixel'`
  static frequencies pixel(Index rotary_dim, double max_freq = 10.0) {
    detail::check_finite("frequencies::pixel", max_freq >= 2, "max_freq must be finite and at least 2",
                         max_freq);
    require_even(rotary_dim);
    const Index pairs = rotary_dim / 2;
    require_addressable(pairs);
    const double step = pairs > 1 ? (max_freq / 2 - 1) / static_cast<double>(pairs - 1) : 0;
    number_array<double> inv_freq(pairs, 1);
    for (Index i = 0; i < pairs; ++i) {
      // volatile, so that every build rounds three times, even if it contracts or regroups (-ffast-math)
      const volatile double added = static_cast<double>(i) * step, half_turns = 1.0 + added;
      inv_freq(i, 0) = std::numbers::pi * half_turns;
    }
    return frequencies(std::move(inv_freq), 1.0);
  }

  /// Every pair rotates by one radian per unit of position, on one axis.
  ///
  /// Throws:  std::invalid_argument unless pairs > 0, std::length_error if they exceed the address space
  /// Source:  lucidrains/rotary-embedding-torch, `freqs_for = 'constant'`
  static frequencies constant(Index pairs = 1) {
    if (pairs <= 0) detail::throw_invalid("frequencies::constant", "pairs must be positive, got ", pairs);
    require_addressable(pairs);
    return frequencies(number_array<double>(pairs, 1, 1.0), 1.0);
  }

  /// Your own frequencies: learned ones, another schedule, or more than one axis.
  ///
  /// \param inv_freq          [pairs] vector or [pairs, axes] matrix, float or double, rad per unit of
  ///                          position; zero and negative values are allowed
  /// \param attention_factor  finite and positive; multiplies every cos and sin of a table
  ///
  /// Throws:  std::invalid_argument if inv_freq is empty, one of its values is infinite, NaN or at least 2^64
  ///          in magnitude, or attention_factor is not finite and positive
  template <class Derived>
  static frequencies custom(const Eigen::DenseBase<Derived>& inv_freq, double attention_factor = 1.0) {
    static_assert(detail::is_real<Derived>,
                  "frequencies::custom: inv_freq is float or double; 16-bit types lose the angle");
    if constexpr (Derived::RowsAtCompileTime == 1)
      return frequencies(number_array<double>(inv_freq.derived().transpose().template cast<double>()),
                         attention_factor);
    else
      return frequencies(number_array<double>(inv_freq.derived().template cast<double>()), attention_factor);
  }

  /// As above, but takes over the memory of the array.
  static frequencies custom(number_array<double>&& inv_freq, double attention_factor = 1.0) {
    return frequencies(std::move(inv_freq), attention_factor);
  }

  /// inv_freq [pairs, axes], rad per unit of position; column-major, valid while this object lives.
  template <class Map = inv_freq_map>  // programs that do not call it do not compile Eigen's map
  Map inv_freq() const {
    return Map(inv_freq_.data(), pairs(), axes());
  }
  /// inv_freq of one pair along one axis.  Requires: pair in [0, pairs), axis in [0, axes)
  double inv_freq(Index pair, Index axis) const { return inv_freq_(pair, axis); }
  /// inv_freq of one pair.  Requires: pair in [0, pairs)
  ///
  /// Throws:  std::invalid_argument unless there is one axis
  double inv_freq(Index pair) const {
    if (axes() != 1)
      detail::throw_invalid("inv_freq", "name the axis, inv_freq(pair, axis), one of ", axes(), ", got pair ",
                            pair, " alone");
    return inv_freq(pair, 0);
  }
  /// Number of channel pairs that rotate.
  Index pairs() const { return inv_freq_.rows(); }
  /// Number of channels that rotate: 2 * pairs.
  Index rotary_dim() const { return 2 * pairs(); }
  /// Number of coordinates of a position.
  Index axes() const { return inv_freq_.cols(); }
  /// The factor m of cos and sin in a table. Scores of rotated queries and keys have the factor m^2. It is
  /// never part of the softmax scale.
  double attention_factor() const { return attention_factor_; }

 private:
  frequencies(number_array<double> inv_freq, double attention_factor)
      : inv_freq_(std::move(inv_freq)), attention_factor_(attention_factor) {
    if (pairs() == 0 || axes() == 0)
      detail::throw_invalid("frequencies", "inv_freq must be [pairs, axes] and not empty, got [", pairs(),
                            ", ", axes(), "]");
    for (Index a = 0; a < axes(); ++a)
      for (Index i = 0; i < pairs(); ++i)
        if (!detail::is_finite(inv_freq_(i, a)) || (std::abs)(inv_freq_(i, a)) >= 0x1p64)
          detail::throw_invalid("frequencies", "inv_freq must be finite and below 2^64 in magnitude, got ",
                                inv_freq_(i, a), " at pair ", i, ", axis ", a);
    detail::check_finite("frequencies", attention_factor > 0, "attention_factor must be finite and positive",
                         attention_factor);
  }

  explicit frequencies(const schedule& axis) : frequencies(rounded(axis), axis.attention_factor) {}

  static number_array<double> rounded(const schedule& axis) {
    number_array<double> inv_freq(axis.inv_freq.size(), 1);
    for (Index i = 0; i < inv_freq.size(); ++i) inv_freq(i, 0) = static_cast<double>(axis.inv_freq(i));
    return inv_freq;
  }

  template <class Integer, class... Rules>
  static schedule schedule_of(Integer rotary_dim, double base, const Rules&... rules) {
    static_assert(!std::is_floating_point_v<Integer>,
                  "frequencies: rotary_dim is an integer and comes first, then the base: frequencies(128, "
                  "500000.0)");
    // Integers are checked before they become an Index, which may have too few bits.
    const std::conditional_t<std::is_integral_v<Integer>, Integer, Index> given = rotary_dim;
    require_even(given);
    detail::check_finite("frequencies", base > 1, "base must be finite and greater than 1", base);
    if (std::cmp_greater(+given, 65536))  // + promotes bool and characters
      detail::throw_invalid("frequencies",
                            "rotary_dim must be at most 65536 and comes first, then the base: "
                            "frequencies(128, 500000.0), got rotary_dim ",
                            given, " and base ", base);
    schedule axis{.rotary_dim = detail::to_index(given), .base = base, .inv_freq = {}};
    axis.restart(base);
    (rules.apply(axis), ...);
    return axis;
  }

  template <class Integer>
  static void require_even(Integer rotary_dim) {
    if (rotary_dim <= 0 || rotary_dim % 2 != 0)
      detail::throw_invalid("frequencies", "rotary_dim must be even and positive, got ", rotary_dim);
  }

  static void require_addressable(Index pairs) {
    if (pairs > (std::numeric_limits<Index>::max)() / static_cast<Index>(sizeof(wide_real)))
      detail::throw_length("frequencies", "", pairs, " pairs exceed the address space");
  }

  number_array<double> inv_freq_;
  double attention_factor_ = 1.0;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_FREQUENCIES_HPP
