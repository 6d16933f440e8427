// SPDX-License-Identifier: MIT
#include <rope/frequencies/scaling.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "oracle/number.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// Every scaling against its published formula in 512-bit arithmetic. Only inv_freq and attention_factor come
/// from the library.
/// This file is also compiled with -Ofast, so it uses no NaN and no infinity.

namespace {

using oracle::error_in_ulp;
using oracle::number;
using oracle::of;
using oracle::pi;
using rope::frequencies;
using rope::Index;

number ln(const number& a) { return of(mpfr_log, a); }
number count(Index i) { return number(static_cast<double>(i)); }
number clamped(const number& x, const number& low, const number& high) {
  return x < low ? low : high < x ? high : x;
}

/// The largest error in ulp of double of pairs [0, pairs) against `formula(i)`. An exact zero must be zero.
double worst_error(const frequencies& got, const std::function<number(Index)>& formula) {
  double worst = 0;
  for (Index i = 0; i < got.pairs(); ++i)
    testing::raise_to(worst, error_in_ulp<double>(got.inv_freq()(i, 0), formula(i)));
  return worst;
}

const auto one_rounding = static_cast<double>(tolerance::scheduled());

constexpr std::uint64_t parameter_seed = 21;

/// b^(-2 i / d)
number power(const number& base, Index i, Index dim) {
  return pow(base, number(0) - count(2 * i) / count(dim));
}

struct parameters {
  Index dim;
  double base;
  std::vector<number> plain;  // of every pair, without a scaling

  parameters(Index of_dim, double of_base) : dim(of_dim), base(of_base) {
    for (Index i = 0; i < dim / 2; ++i) plain.push_back(power(base, i, dim));
  }
  const number& operator[](Index i) const { return plain[static_cast<std::size_t>(i)]; }
};

/// The dimensions and bases of released models, and some in between.
const std::vector<parameters>& all_parameters() {
  static const std::vector<parameters> all = [] {
    std::vector<parameters> result;
    for (const Index dim : {6, 64, 80, 96, 128, 192, 256})
      for (const double base : {1e4, 1.5e5, 5e5, 1e6, 1e7}) result.emplace_back(dim, base);
    testing::random random(parameter_seed);
    for (int sample = 0; sample < 20; ++sample) {
      const Index dim = 2 * random.integer(2, 200);
      result.emplace_back(dim, 1e4 * (1 + 1000 * random.unit()));
    }
    return result;
  }();
  return all;
}
/// b s^(d / (d - 2))
number stretched(const number& base, const number& s, Index dim) {
  return base * pow(s, count(dim) / count(dim - 2));
}
/// c(r) = d ln(L0 / (2 pi r)) / (2 ln b)
number pair_of(double rotations, const parameters& p, double length) {
  return count(p.dim) * ln(number(length) / (number(2) * pi() * number(rotations))) /
         (number(2) * ln(number(p.base)));
}
/// clamp((i - low) / (high - low), 0, 1) between the pairs of two rotations, kept in [0, d - 1], +0.001 if
/// equal.
class ramp {
 public:
  ramp(double fast, double slow, const parameters& p, double length, bool truncate)
      : low_(pair_of(fast, p, length)), high_(pair_of(slow, p, length)) {
    if (truncate) low_ = of(mpfr_rint_floor, low_), high_ = of(mpfr_rint_ceil, high_);
    low_ = low_ < number(0) ? number(0) : low_;
    high_ = count(p.dim - 1) < high_ ? count(p.dim - 1) : high_;
    if (low_ == high_) high_ = high_ + number(1) / number(1000);
  }
  number at(Index i) const { return clamped((count(i) - low_) / (high_ - low_), number(0), number(1)); }

 private:
  number low_, high_;
};
number g(double s, double k) {
  return s <= 1 ? number(1) : number(k) * ln(number(s)) / number(10) + number(1);
}

}  // namespace

TEST_CASE("linear, NTK and dynamic NTK schedules follow their formulas", "[oracle]") {
  for (const parameters& p : all_parameters())
    for (const double s : {1.0, 1.1, 2.0, 7.5, 40.0, 1000.0}) {
      CAPTURE(parameter_seed, p.dim, p.base, s);
      CHECK(worst_error({p.dim, p.base, rope::linear_scaling{s}}, [&](Index i) { return p[i] / s; }) <=
            one_rounding);
      const number longer_base = stretched(p.base, s, p.dim);
      const auto ntk = [&](Index i) { return power(longer_base, i, p.dim); };
      CHECK(worst_error({p.dim, p.base, rope::ntk_scaling{s}}, ntk) <= one_rounding);
      CHECK(worst_error({p.dim, p.base, rope::alpha_scaling{s}}, ntk) <= one_rounding);
      for (const double length : {0.0, 2048.0, 2049.0, 16384.0, 1e6}) {
        const number longer = (std::max)(length, 2048.0),
                     bracket = number(s) * longer / number(2048) - (number(s) - number(1)),
                     dynamic_base = stretched(p.base, bracket, p.dim);
        CHECK(worst_error({p.dim, p.base, rope::dynamic_ntk_scaling{s, 2048, length}},
                          [&](Index i) { return power(dynamic_base, i, p.dim); }) <= one_rounding);
      }
    }
}

TEST_CASE("the ntk rule of vLLM follows its formula", "[oracle]") {
  for (const parameters& p : all_parameters())
    for (const double s : {1.0, 1.1, 4.0, 40.0, 1000.0}) {
      CAPTURE(parameter_seed, p.dim, p.base, s);
      CHECK(worst_error({p.dim, p.base, rope::mixed_ntk_scaling{s}}, [&](Index i) {
              return power(number(p.base) * number(s), i, p.dim) / pow(s, number(2) / count(p.dim));
            }) <= one_rounding);
      for (const double mixed : {0.1, 0.625, 1.0, 3.0})
        CHECK(worst_error({p.dim, p.base, rope::mixed_ntk_scaling{s, mixed}}, [&](Index i) {
                const number a = ln(s) / pow(count(p.dim / 2), mixed);
                return p[i] / of(mpfr_exp, a * pow(count(i + 1), mixed));
              }) <= one_rounding);
    }
}

TEST_CASE("YaRN schedules and magnitudes follow their formulas", "[oracle]") {
  for (const parameters& p : all_parameters())
    for (const double length : {2048.0, 4096.0, 32768.0})
      for (const auto& [s, fast, slow, truncate] :
           {std::tuple(1.0, 32.0, 1.0, true), std::tuple(4.0, 32.0, 1.0, true),
            std::tuple(4.0, 32.0, 1.0, false), std::tuple(40.0, 16.0, 0.5, true),
            std::tuple(32.0, 3.7, 3.7, false), std::tuple(1.3, 24.0, 1.25, false)}) {
        CAPTURE(parameter_seed, p.dim, p.base, length, s, fast, slow, truncate);
        const frequencies f(p.dim, p.base,
                            rope::yarn_scaling{.factor = s,
                                               .original_max_position = length,
                                               .beta_fast = fast,
                                               .beta_slow = slow,
                                               .truncate = truncate});
        const ramp blend(fast, slow, p, length, truncate);
        CHECK(worst_error(f, [&, factor = s](Index i) {
                const number share = blend.at(i);
                return p[i] * (number(1) - share + share / factor);
              }) <= one_rounding);
        CHECK(error_in_ulp<double>(f.attention_factor(), g(s, 1)) <= one_rounding);
      }
  for (const double s : {1.5, 4.0, 40.0, 1000.0})
    for (const double k : {0.1, 0.707, 1.0, 2.5})
      for (const double all : {0.25, 0.707, 1.0}) {
        const rope::yarn_scaling rule = {
            .factor = s, .original_max_position = 4096, .mscale = k, .mscale_all_dim = all};
        CHECK(error_in_ulp<double>(frequencies(64, 1e4, rule).attention_factor(), g(s, k) / g(s, all)) <=
              one_rounding);
        CHECK(error_in_ulp<double>(rope::yarn_softmax_multiplier(rule), g(s, all) * g(s, all)) <=
              2 * one_rounding + 0.5);  // a double, squared
      }
}

TEST_CASE("NTK-by-parts schedules follow their formula", "[oracle]") {
  for (const parameters& p : all_parameters())
    for (const double s : {1.0, 1.7, 4.0, 32.0})
      for (const auto& [ntk, extrapolation] :
           {std::pair(1.0, 1.0), std::pair(0.0, 1.0), std::pair(1.0, 0.0), std::pair(0.3, 0.7)}) {
        CAPTURE(parameter_seed, p.dim, p.base, s, ntk, extrapolation);
        const ramp slow(1.25, 0.75, p, 2048, true), fast(16, 2, p, 2048, true);
        const number longer_base = stretched(p.base, s, p.dim);
        CHECK(worst_error({p.dim, p.base, rope::ntk_by_parts_scaling{s, 2048, ntk, extrapolation}},
                          [&, of_ntk = ntk, of_extrapolation = extrapolation](Index i) {
                            const number one(1), original = p[i];
                            const number m1 = (one - slow.at(i)) * number(of_ntk);
                            const number m2 = (one - fast.at(i)) * number(of_extrapolation);
                            const number f =
                                original / number(s) * (one - m1) + power(longer_base, i, p.dim) * m1;
                            return f * (one - m2) + original * m2;
                          }) <= one_rounding);
      }
}

TEST_CASE("Llama 3 schedules follow their formula", "[oracle]") {
  for (const parameters& p : all_parameters())
    for (const auto& [s, low, high, length] :
         {std::tuple(8.0, 1.0, 4.0, 8192.0), std::tuple(32.0, 1.0, 4.0, 8192.0),
          std::tuple(1.0, 1.0, 4.0, 8192.0), std::tuple(10.0, 0.3, 17.0, 2048.0),
          std::tuple(16.0, 1.0, 1.0, 8192.0)}) {
      CAPTURE(parameter_seed, p.dim, p.base, s, low, high, length);
      const rope::llama3_scaling scaling{s, low, high, length};
      CHECK(worst_error({p.dim, p.base, scaling}, [&](Index i) {
              const number f = p[i], wavelength = number(2) * pi() / f, factor(scaling.factor),
                           slow(scaling.low_freq_factor), fast(scaling.high_freq_factor),
                           before(scaling.original_max_position);
              if (before / slow < wavelength) return f / factor;
              if (wavelength < before / fast || scaling.low_freq_factor == scaling.high_freq_factor) return f;
              const number z = (before / wavelength - slow) / (fast - slow);
              return (number(1) - z) * f / factor + z * f;
            }) <= one_rounding);
    }
}

TEST_CASE("LongRoPE and per-pair divisors follow their formula", "[oracle]") {
  const std::uint64_t seed = 22;
  testing::random random(seed);
  for (const parameters& p : all_parameters()) {
    CAPTURE(parameter_seed, seed, p.dim, p.base);
    std::vector<double> a, b;
    for (Index i = 0; i < p.dim / 2; ++i)
      a.push_back(1 + 3 * random.unit()), b.push_back(1 + 63 * random.unit());
    const auto divided = [&](const std::vector<double>& list) {
      return [&](Index i) { return p[i] / number(list[static_cast<std::size_t>(i)]); };
    };
    for (const double length : {4096.0, 4097.0}) {
      const frequencies f(p.dim, p.base, rope::longrope_scaling{a, b, 4096, 131072, length, {}, {}});
      CHECK(worst_error(f, divided(length > 4096 ? b : a)) <= one_rounding);
      CHECK(error_in_ulp<double>(f.attention_factor(), of(mpfr_sqrt, number(1) + ln(32) / ln(4096))) <=
            one_rounding);
    }
    CHECK(worst_error({p.dim, p.base, rope::pair_factor_scaling{b}}, divided(b)) <= one_rounding);
  }
}

TEST_CASE("proportional, resonance and clipped schedules follow their formulas", "[oracle]") {
  for (const parameters& p : all_parameters()) {
    CAPTURE(parameter_seed, p.dim, p.base);
    for (const double part : {0.25, 0.3, 0.5, 1.0})
      CHECK(worst_error({p.dim, p.base, rope::proportional_scaling{part, 3}}, [&](Index i) {
              return static_cast<double>(i) < std::floor(part * static_cast<double>(p.dim) / 2)
                         ? p[i] / number(3)
                         : number(0);
            }) <= one_rounding);
    CHECK(worst_error({p.dim, p.base, rope::resonance_scaling{}}, [&](Index i) {
            const number full_turn = number(2) * pi();
            return full_turn / of(mpfr_rint, full_turn / p[i]);
          }) <= one_rounding);
    for (const Index low_count : {2, 3, 20, 100}) {
      const Index pairs = p.dim / 2, n = (std::min)(low_count, pairs);
      CHECK(worst_error({p.dim, p.base, rope::clipped_scaling{low_count}}, [&](Index i) {
              const Index j = i - (pairs - n);
              const number f = p[i];
              if (j < 0) return f;
              return j == n - 1 ? number(0)
                                : f * (number(1) + of(mpfr_cos, pi() * count(j) / count(n - 1))) / number(2);
            }) <= one_rounding);
    }
  }
}
