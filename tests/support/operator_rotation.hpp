// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_OPERATOR_ROTATION_HPP
#define ROPE_TESTS_OPERATOR_ROTATION_HPP

/// The rotation that operators of other libraries define, from the cos and sin of every token and pair, and
/// the error of a result against it. It uses only head_view of the library.

#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <rope/rotation/view.hpp>
#include <type_traits>
#include <vector>

#include "support/tolerance.hpp"

namespace testing {

/// The two channels of pair i: (2i, 2i + 1), or (i, i + pairs).
enum class pairing { neighbours, halves };

/// cos and sin, [tokens, pairs], computed in `testing::wide` and rounded to double: 2^-29 of the allowed
/// error of a float.
struct operator_entries {
  Eigen::Index pairs;
  std::vector<double> cos, sin;

  operator_entries(Eigen::Index tokens, Eigen::Index n)
      : pairs(n), cos(static_cast<std::size_t>(tokens * n)), sin(cos.size()) {}
};

/// How the entries apply: to the channels from `first` on, and `transposed` in the backward pass.
struct operator_call {
  pairing layout = pairing::halves;
  Eigen::Index first = 0;
  bool transposed = false;
  double extra_u = 0;  ///< roundoff units that channels lost before they rotate
};

/// The largest error of `y` against the rotation of `x`, in units of the bound below. NaN if a channel is
/// NaN, infinite if a channel that does not rotate changed. `token_of(b, t)` is the row of the entries.
///
/// 2.75 u |pair| of a rotation by the nearest entries, u |pair| of the product of m with an entry, and half
/// an ulp of a 16-bit channel, whose ulp is at most 2^-10 of it
template <class X, class Y, class TokenOf>
double operator_error(const rope::head_view<const X>& x, const rope::head_view<const Y>& y,
                      const operator_entries& entries, const operator_call& call, const TokenOf& token_of) {
  using Eigen::Index;
  constexpr double u = 0x1p-24;
  constexpr bool rounds = tolerance::is_16_bit<Y>;
  const Index pairs = entries.pairs;
  double worst = 0;
  const auto see = [&](double error, double bound) {
    const double ratio = std::abs(error) / bound;
    if (!(ratio <= worst) && !std::isnan(worst)) worst = ratio;
  };
  for (Index b = 0; b < x.batch; ++b)
    for (Index t = 0; t < x.tokens; ++t) {
      const auto row = static_cast<std::size_t>(token_of(b, t) * pairs);
      const double *cos = entries.cos.data() + row, *sin = entries.sin.data() + row;
      for (Index h = 0; h < x.heads; ++h) {
        const X* in = x.at(b, t, h);
        const Y* out = y.at(b, t, h);
        for (Index d = 0; d < x.head_dim; ++d)
          if ((d < call.first || d >= call.first + 2 * pairs) &&
              static_cast<float>(static_cast<Y>(in[d])) != static_cast<float>(out[d]))
            worst = HUGE_VAL;
        for (Index i = 0; i < pairs; ++i) {
          const bool halves = call.layout == pairing::halves;
          const Index p = call.first + (halves ? i : 2 * i), q = halves ? p + pairs : p + 1;
          const double a = static_cast<double>(in[p]), b_ = static_cast<double>(in[q]);
          const double c = cos[i], s = call.transposed ? -sin[i] : sin[i];
          const double norm = std::sqrt((a * a + b_ * b_) * (c * c + s * s));
          const double exact[] = {a * c - b_ * s, b_ * c + a * s};
          const double got[] = {static_cast<double>(out[p]), static_cast<double>(out[q])};
          for (int k = 0; k < 2; ++k)
            see(got[k] - exact[k], (3.75 + (rounds ? 0.25 : 0) + call.extra_u) * u * norm + 0x1p-149 +
                                       (rounds ? std::abs(exact[k]) * 0x1p-11 + 0x1p-25 : 0));
        }
      }
    }
  return worst;
}

}  // namespace testing

#endif  // ROPE_TESTS_OPERATOR_ROTATION_HPP
