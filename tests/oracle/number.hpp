// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ORACLE_NUMBER_HPP
#define ROPE_TESTS_ORACLE_NUMBER_HPP

/// Numbers of MPFR, with which the library is compared. Files that are also compiled with -Ofast include this:
/// MPFR decides whether a value is a number.

#include <mpfr.h>

#include <cmath>
#include <concepts>

#include "support/tolerance.hpp"

namespace oracle {

/// A number of 512 bits: a product of two doubles is exact.
class number {
 public:
  number(double x = 0) {
    mpfr_init2(value_, 512);
    mpfr_set_d(value_, x, MPFR_RNDN);
  }
  explicit number(std::integral auto x) : number() { mpfr_set_si(value_, x, MPFR_RNDN); }
  number(const number& other) : number() { mpfr_set(value_, other.value_, MPFR_RNDN); }
  number& operator=(const number& other) {
    mpfr_set(value_, other.value_, MPFR_RNDN);
    return *this;
  }
  ~number() { mpfr_clear(value_); }

  mpfr_ptr get() { return value_; }
  mpfr_srcptr get() const { return value_; }
  double rounded() const { return mpfr_get_d(value_, MPFR_RNDN); }
  bool is_zero() const { return mpfr_zero_p(value_) != 0; }

  friend bool operator<(const number& a, const number& b) { return mpfr_less_p(a.value_, b.value_) != 0; }
  friend bool operator==(const number& a, const number& b) { return mpfr_equal_p(a.value_, b.value_) != 0; }

 private:
  mpfr_t value_;
};

inline number of(int (*function)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t), const number& a) {
  number result;
  function(result.get(), a.get(), MPFR_RNDN);
  return result;
}
inline number of(int (*function)(mpfr_ptr, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t), const number& a,
                 const number& b) {
  number result;
  function(result.get(), a.get(), b.get(), MPFR_RNDN);
  return result;
}
inline number operator+(const number& a, const number& b) { return of(mpfr_add, a, b); }
inline number operator-(const number& a, const number& b) { return of(mpfr_sub, a, b); }
inline number operator*(const number& a, const number& b) { return of(mpfr_mul, a, b); }
inline number operator/(const number& a, const number& b) { return of(mpfr_div, a, b); }
inline number pow(const number& a, const number& b) { return of(mpfr_pow, a, b); }
inline number pi() {
  number result;
  mpfr_const_pi(result.get(), MPFR_RNDN);
  return result;
}

/// |got - exact| in units of the last place of the exact value in S. Far above any bound if got is NaN.
template <class S>
double error_in_ulp(double got, const number& exact) {
  constexpr double unbounded = 1e30;
  number difference = number(got) - exact;
  if (mpfr_number_p(difference.get()) == 0) return unbounded;
  if (exact.is_zero()) return difference.is_zero() ? 0 : unbounded;
  mpfr_mul_2si(difference.get(), difference.get(), tolerance::format<S>::digits - mpfr_get_exp(exact.get()),
               MPFR_RNDN);
  return std::abs(difference.rounded());
}

}  // namespace oracle

#endif  // ROPE_TESTS_ORACLE_NUMBER_HPP
