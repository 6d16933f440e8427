// SPDX-License-Identifier: MIT
// Schedules of any numbers: each rule gives the result of its published formula, in frequencies that are
// finite and do not increase, or throws.
#include <rope/frequencies.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using fuzz::bytes;
using fuzz::check;
using rope::frequencies;
using rope::Index;
using testing::wide;

namespace {

using list = std::vector<wide>;

/// A schedule by its formulas. Empty frequencies: the numbers must throw.
struct expected {
  list inv_freq;
  wide factor = 1;
};

bool is_finite(double x) { return std::abs(x) <= std::numeric_limits<double>::max(); }
bool at_least(double x, double least) { return is_finite(x) && x >= least; }
bool positive(double x) { return is_finite(x) && x > 0; }

/// base^(-2 i / d)
list original(Index dim, wide base) {
  list f;
  for (Index i = 0; i < dim / 2; ++i)
    f.push_back(testing::pow(base, -static_cast<wide>(2 * i) / static_cast<wide>(dim)));
  return f;
}

/// The schedule of the base b s^(d / (d - 2)), written by its pairs: frequencies multiplied by s^(-2 i / (d -
/// 2)).
list stretched(list f, wide s) {
  const auto d = static_cast<wide>(2 * f.size());
  for (std::size_t i = 0; i < f.size(); ++i) f[i] *= testing::pow(s, -static_cast<wide>(2 * i) / (d - 2));
  return f;
}

struct bounds {
  wide low, high;
};
/// The pairs that make fast and slow rotations over the context.
bounds blend(double fast, double slow, bool truncate, std::size_t pairs, wide base, double context) {
  const auto d = static_cast<wide>(2 * pairs);
  const auto pair = [&](double rotations) {
    return d * testing::log(static_cast<wide>(context) / (2 * testing::pi * static_cast<wide>(rotations))) /
           (2 * testing::log(base));
  };
  wide low = pair(fast), high = pair(slow);
  if (truncate) low = testing::floor(low), high = testing::ceil(high);
  low = std::max(low, wide(0)), high = std::min(high, d - 1);
  if (low == high) high += 0.001L;
  return {low, high};
}
wide ramp(std::size_t i, const bounds& b) {
  return std::clamp((static_cast<wide>(i) - b.low) / (b.high - b.low), wide(0), wide(1));
}

/// One rule with drawn numbers: the library's result, and the expected one.
struct drawn {
  bool valid = true;       // the numbers are in the ranges that the rule documents
  bool comparable = true;  // and far enough from a jump of the formula that one rounding cannot decide
  bool monotone = true;
  expected exact;
};

/// Whether the base multiplied by s stays well above 1. Otherwise the rule may throw.
bool keeps_a_base(Index dim, double base, double s) {
  return dim > 2 &&
         testing::log(base) + testing::log(s) * static_cast<double>(dim) / static_cast<double>(dim - 2) >
             1e-4;
}

bool sane(double x) { return x == 0 || (std::abs(x) < 1e12 && std::abs(x) > 1e-12); }

template <class Rule>
void compare(Index dim, double base, const Rule& rule, const drawn& d) {
  const auto make = [&] { return frequencies(dim, base, rule); };
  const bool valid = dim > 0 && dim % 2 == 0 && is_finite(base) && base > 1 && d.valid;
  if (!valid)
    return fuzz::rejects<std::invalid_argument>("numbers outside of the ranges of a rule throw", make);
  const auto lowest = [&](const frequencies& f) {
    const auto values = f.inv_freq();
    for (Index i = 0; i < f.pairs(); ++i) {
      check(values(i, 0) >= 0 && values(i, 0) < 0x1p64, "a frequency is finite and not negative");
      if (d.monotone && i > 0)
        check(values(i, 0) <= values(i - 1, 0) * (1 + 4 * 0x1p-52),
              "a pair rotates no faster than the one before it");
    }
    check(f.attention_factor() > 0 && is_finite(f.attention_factor()),
          "an attention_factor is positive and finite");
    check(f.pairs() == dim / 2 && f.axes() == 1, "a schedule has a frequency for every pair");
  };
  std::optional<frequencies> got;
  try {
    got = make();
  } catch (const std::invalid_argument& error) {
    // Numbers in range may still lead out of the range of frequencies, or leave nothing to blend.
    const std::string text = error.what();
    if (text.find("rope::") != 0) fuzz::fail("the text is " + text);
    if (d.comparable && !d.exact.inv_freq.empty()) fuzz::fail("numbers that a rule takes throw: " + text);
    return;
  }
  lowest(*got);
  if (!d.comparable) return;
  check(!d.exact.inv_freq.empty(), "a rule without a pair to blend throws");
  for (Index i = 0; i < dim / 2; ++i) {
    const wide exact = d.exact.inv_freq[static_cast<std::size_t>(i)];
    const double value = got->inv_freq()(i, 0);
    if (!(tolerance::error_in_ulp(value, exact) <= tolerance::inv_freq())) {
      std::fprintf(stderr, "pair %ld of %ld, base %.17g: %.17g for %.21Lg, %.3Lg ulp off\n", long(i),
                   long(dim / 2), base, value, static_cast<long double>(exact),
                   static_cast<long double>(tolerance::error_in_ulp(value, exact)));
      check(false, "a frequency agrees with the formula");
    }
  }
  check(testing::abs(static_cast<wide>(got->attention_factor()) - d.exact.factor) <=
            16 * 0x1p-53 * d.exact.factor,
        "an attention_factor agrees with the formula");
}

std::optional<double> maybe(bytes& b) { return b.coin() ? std::optional<double>(b.real()) : std::nullopt; }

/// Factors for every pair, or one too many or too few.
std::vector<double> pair_factors(bytes& b, std::size_t pairs) {
  const std::size_t count = b.one_in(9) ? pairs + static_cast<std::size_t>(b.up_to(2)) - 1 : pairs;
  std::vector<double> factors(std::min<std::size_t>(count, 4096), 1.0);
  for (std::size_t i = 0; i < std::min<std::size_t>(factors.size(), 12); ++i)
    factors[i] = b.one_in(8) ? b.real() : 1 + b.moderate();
  return factors;
}
bool all_positive(const std::vector<double>& x) { return std::all_of(x.begin(), x.end(), positive); }

void run(bytes& b) {
  static const long dims[] = {2, 4, 6, 8, 16, 64, 24, 12, 0, -2, 7, 128};
  const Index dim = b.coin() ? b.one_of(dims) : 2 * b.up_to(12);
  const double base = b.one_in(4) ? b.real() : b.coin() ? 1e4 : std::exp2(b.between(1, 40));
  const bool schedule_exists = dim > 0 && dim % 2 == 0 && is_finite(base) && base > 1;
  const auto pairs = static_cast<std::size_t>(schedule_exists ? dim / 2 : 1);
  const list f = schedule_exists ? original(dim, static_cast<wide>(base)) : list(1, 1);
  drawn d;
  d.exact.inv_freq = f;
  // For a base next to 1 or at the end of the range only the promises of every schedule are tested.
  d.comparable = base > 1.0001 && base < 1e30;
  const auto wider = [](double x) { return static_cast<wide>(x); };
  switch (b.up_to(12)) {
    case 0: {
      const rope::linear_scaling rule{b.real()};
      d.valid = positive(rule.factor);
      d.comparable = d.comparable && sane(rule.factor);
      for (wide& x : d.exact.inv_freq) x /= wider(rule.factor);
      return compare(dim, base, rule, d);
    }
    case 1: {
      const rope::ntk_scaling rule{b.real()};
      d.valid = positive(rule.factor) && dim > 2;
      d.comparable = d.comparable && keeps_a_base(dim, base, rule.factor);
      d.comparable = d.comparable && sane(rule.factor);
      if (d.valid) d.exact.inv_freq = stretched(f, wider(rule.factor));
      return compare(dim, base, rule, d);
    }
    case 2: {
      const rope::dynamic_ntk_scaling rule{b.real(), b.real(), b.real()};
      const bool longer = rule.length > rule.max_position;
      d.valid = positive(rule.factor) && positive(rule.max_position) && at_least(rule.length, 0) &&
                (dim > 2 || !longer);
      d.comparable = d.comparable && sane(rule.factor) && sane(rule.max_position) && sane(rule.length);
      if (d.valid && longer)
        d.exact.inv_freq = stretched(
            f, wider(rule.factor) * wider(rule.length) / wider(rule.max_position) - (wider(rule.factor) - 1));
      return compare(dim, base, rule, d);
    }
    case 3:
    case 4: {
      rope::yarn_scaling rule{.factor = b.real(), .original_max_position = b.real()};
      d.monotone = rule.factor >= 1;
      if (b.coin()) rule.beta_fast = b.real();
      if (b.coin()) rule.beta_slow = b.real();
      rule.truncate = b.coin();
      if (b.coin()) rule.attention_factor = maybe(b), rule.mscale = maybe(b), rule.mscale_all_dim = maybe(b);
      d.valid = positive(rule.factor) && positive(rule.original_max_position) && positive(rule.beta_slow) &&
                at_least(rule.beta_fast, rule.beta_slow);
      for (const auto& field : {rule.attention_factor, rule.mscale, rule.mscale_all_dim})
        d.valid = d.valid && at_least(field.value_or(0), 0),
        d.comparable = d.comparable && sane(field.value_or(0));
      d.valid = d.valid && rule.attention_factor.value_or(1) > 0;
      d.comparable = d.comparable && sane(rule.factor) && sane(rule.original_max_position) &&
                     sane(rule.beta_fast) && sane(rule.beta_slow);
      if (d.valid && d.comparable && schedule_exists) {
        // Rounding decides if a bound is next to an integer, or if both are next to each other.
        const bounds exact =
            blend(rule.beta_fast, rule.beta_slow, false, pairs, wider(base), rule.original_max_position);
        const auto d2 = static_cast<wide>(dim);
        const auto unclear = [&](wide x) {
          return testing::abs(x - testing::round(x)) < 1e-9L || testing::abs(x) > 1e6L + d2;
        };
        if (rule.truncate && (unclear(exact.low) || unclear(exact.high))) {
          // The ends of the range are integers themselves.
          const auto at_end = [&](wide x) { return x == 0 || x == d2 - 1; };
          d.comparable =
              (!unclear(exact.low) || at_end(exact.low)) && (!unclear(exact.high) || at_end(exact.high));
        }
        const bounds between = blend(rule.beta_fast, rule.beta_slow, rule.truncate, pairs, wider(base),
                                     rule.original_max_position);
        if (testing::abs(between.high - between.low) < 1e-3L * (1 - 1e-9L) ||
            testing::abs(exact.high - exact.low) < 1e-6L)
          d.comparable = false;
        if (!rule.truncate && between.high - between.low < 0.1L) d.comparable = false;
        if (between.low > between.high) d.exact.inv_freq.clear();
        for (std::size_t i = 0; i < d.exact.inv_freq.size(); ++i)
          d.exact.inv_freq[i] *= (1 - ramp(i, between)) + ramp(i, between) / wider(rule.factor);
        const auto g = [&](double k) {
          return rule.factor < 1 ? wide(1) : 0.1L * wider(k) * testing::log(wider(rule.factor)) + 1;
        };
        d.exact.factor = rule.attention_factor ? wider(*rule.attention_factor)
                         : rule.mscale.value_or(0) != 0 && rule.mscale_all_dim.value_or(0) != 0
                             ? g(*rule.mscale) / g(*rule.mscale_all_dim)
                             : g(1);
      }
      return compare(dim, base, rule, d);
    }
    case 5:
    case 6: {
      rope::llama3_scaling rule{.factor = b.real()};
      d.monotone = rule.factor >= 1;
      if (b.coin()) rule.low_freq_factor = b.real();
      if (b.coin()) rule.high_freq_factor = b.real();
      if (b.coin()) rule.original_max_position = b.real();
      d.valid = positive(rule.factor) && positive(rule.low_freq_factor) &&
                at_least(rule.high_freq_factor, rule.low_freq_factor) && positive(rule.original_max_position);
      d.comparable = d.comparable && sane(rule.factor) && sane(rule.low_freq_factor) &&
                     sane(rule.high_freq_factor) && sane(rule.original_max_position) &&
                     (rule.high_freq_factor - rule.low_freq_factor) > 0.01 * rule.low_freq_factor;
      for (wide& x : d.exact.inv_freq) {
        const wide rotations = wider(rule.original_max_position) * x / (2 * testing::pi);
        const wide z = std::clamp((rotations - wider(rule.low_freq_factor)) /
                                      (wider(rule.high_freq_factor) - wider(rule.low_freq_factor)),
                                  wide(0), wide(1));
        x = (1 - z) * x / wider(rule.factor) + z * x;
      }
      return compare(dim, base, rule, d);
    }
    case 7: {
      const rope::proportional_scaling rule{b.real(), b.coin() ? 1 : b.real()};
      d.valid =
          positive(rule.partial_rotary_factor) && rule.partial_rotary_factor <= 1 && positive(rule.factor);
      d.comparable = d.comparable && sane(rule.factor);
      if (d.valid && schedule_exists)
        for (std::size_t i = 0; i < pairs; ++i)
          d.exact.inv_freq[i] = static_cast<wide>(i) < testing::floor(wider(rule.partial_rotary_factor) *
                                                                      static_cast<wide>(pairs))
                                    ? f[i] / wider(rule.factor)
                                    : wide(0);
      const wide count = wider(rule.partial_rotary_factor) * static_cast<wide>(pairs);
      if (testing::abs(count - testing::round(count)) < 1e-12L && count != testing::round(count))
        d.comparable = false;
      return compare(dim, base, rule, d);
    }
    case 8: {
      rope::longrope_scaling rule{pair_factors(b, pairs), pair_factors(b, pairs), b.real(), b.real(),
                                  b.real()};
      if (b.coin()) rule.factor = maybe(b), rule.attention_factor = maybe(b);
      d.monotone = false;
      d.valid = is_finite(rule.original_max_position) && rule.original_max_position > 1 &&
                positive(rule.max_position) && at_least(rule.length, 0) &&
                positive(rule.factor.value_or(1)) && positive(rule.attention_factor.value_or(1)) &&
                rule.short_factor.size() == pairs && rule.long_factor.size() == pairs &&
                all_positive(rule.short_factor) && all_positive(rule.long_factor);
      d.comparable = d.comparable && sane(rule.factor.value_or(1)) &&
                     sane(rule.attention_factor.value_or(1)) && sane(rule.max_position) &&
                     sane(rule.original_max_position) && rule.original_max_position > 1.01;
      if (d.valid) {
        const auto& factors = rule.length > rule.original_max_position ? rule.long_factor : rule.short_factor;
        for (std::size_t i = 0; i < pairs; ++i) {
          d.comparable = d.comparable && sane(factors[i]);
          d.exact.inv_freq[i] = f[i] / wider(factors[i]);
        }
        const wide s =
            rule.factor ? wider(*rule.factor) : wider(rule.max_position) / wider(rule.original_max_position);
        d.exact.factor =
            rule.attention_factor ? wider(*rule.attention_factor)
            : s <= 1              ? wide(1)
                     : testing::sqrt(1 + testing::log(s) / testing::log(wider(rule.original_max_position)));
      }
      return compare(dim, base, rule, d);
    }
    case 9: {
      const rope::pair_factor_scaling rule{pair_factors(b, pairs)};
      d.monotone = false;
      d.valid = rule.factors.size() == pairs && all_positive(rule.factors);
      for (std::size_t i = 0; i < pairs && d.valid; ++i) {
        d.comparable = d.comparable && sane(rule.factors[i]);
        d.exact.inv_freq[i] = f[i] / wider(rule.factors[i]);
      }
      return compare(dim, base, rule, d);
    }
    case 10: {
      const rope::alpha_scaling rule{b.real()};
      d.valid = positive(rule.alpha) && dim > 2;
      d.comparable = d.comparable && keeps_a_base(dim, base, rule.alpha);
      d.comparable = d.comparable && sane(rule.alpha);
      if (d.valid) d.exact.inv_freq = stretched(f, wider(rule.alpha));
      return compare(dim, base, rule, d);
    }
    case 11: {
      rope::mixed_ntk_scaling rule{.factor = b.real()};
      rule.mixed_b = maybe(b);
      d.monotone = rule.factor >= 1;
      if (!rule.mixed_b && testing::log(base) + testing::log(rule.factor) < 1e-4) d.comparable = false;
      d.valid = positive(rule.factor) && positive(rule.mixed_b.value_or(1));
      d.comparable = d.comparable && sane(rule.factor) && sane(rule.mixed_b.value_or(1));
      if (d.valid && d.comparable && schedule_exists) {
        const auto half = static_cast<wide>(pairs);
        for (std::size_t i = 0; i < pairs; ++i) {
          const auto n = static_cast<wide>(i);
          const wide exponent =
              rule.mixed_b ? testing::pow((n + 1) / half, wider(*rule.mixed_b)) : (n + 1) / half;
          d.exact.inv_freq[i] *= testing::pow(wider(rule.factor), -exponent);
        }
      }
      return compare(dim, base, rule, d);
    }
    default: {
      rope::clipped_scaling rule{.low_count = static_cast<Index>(b.coin() ? b.up_to(40) : b.integer()),
                                 .form = b.coin() ? rope::clipping::hard : rope::clipping::soft};
      d.valid = rule.low_count >= 0;
      const auto n = std::min(rule.low_count, static_cast<Index>(pairs));
      for (Index j = 0; j < n; ++j) {
        const auto left = n > 1 ? static_cast<wide>(n - 1 - j) / static_cast<wide>(n - 1) : wide(0);
        const wide sine = testing::sin(testing::pi * left / 2);
        d.exact.inv_freq[pairs - static_cast<std::size_t>(n - j)] *=
            rule.form == rope::clipping::hard ? wide(0) : sine * sine;
      }
      return compare(dim, base, rule, d);
    }
  }
}

/// Rules in sequence, and the constructions without a rule.
void run_any(bytes& b) {
  const auto holds = [](const frequencies& f) {
    check(f.pairs() > 0 && f.axes() > 0, "there is a pair and an axis");
    for (Index i = 0; i < f.pairs(); ++i)
      for (Index a = 0; a < f.axes(); ++a)
        check(std::abs(f.inv_freq()(i, a)) < 0x1p64, "a frequency is finite and below 2^64");
    check(f.attention_factor() > 0 && is_finite(f.attention_factor()),
          "an attention_factor is positive and finite");
  };
  const auto sections = [&] {
    std::vector<Index> result;
    for (long n = b.up_to(5); n > 0; --n)
      result.push_back(static_cast<Index>(b.one_in(12) ? b.integer() : b.up_to(12)));
    return result;
  };
  const Index dim = 2 * b.up_to(32);
  try {
    switch (b.up_to(8)) {
      case 0:
        return holds(
            frequencies(dim, b.real(), rope::ntk_by_parts_scaling{b.real(), b.real(), b.real(), b.real()}));
      case 1:
        return holds(frequencies(dim, b.real(),
                                 rope::yarn_scaling{.factor = b.real(), .original_max_position = b.real()},
                                 rope::resonance_scaling{}));
      case 2:
        return holds(frequencies(dim, b.real(), rope::llama3_scaling{b.real()},
                                 rope::clipped_scaling{b.up_to(40)}, rope::linear_scaling{b.real()}));
      case 3:
        return holds(frequencies::pixel(dim, b.real()));
      case 4: {
        const long rows = b.up_to(4), columns = b.up_to(3);
        Eigen::ArrayXXd given(rows, columns);
        for (long i = 0; i < given.size(); ++i) given(i) = b.real();
        return holds(frequencies::custom(given, b.real()));
      }
      case 5: {
        const auto given = sections();
        const auto widths = [&] {
          std::vector<Index> result = given;
          for (Index& width : result) width = std::min<Index>(width, 1 << 12);
          return result;
        };
        return holds(rope::axial_blocks(widths(), b.real()));
      }
      default: {
        std::vector<Index> given = sections();
        Index sum = 0;
        for (Index& pairs : given) {
          if (pairs > 1 << 16 && pairs < Index{1} << 31) pairs %= 1 << 16;  // would only use memory
          sum += std::clamp<Index>(pairs, 0, 1 << 16);
        }
        const frequencies schedule(b.one_in(4) ? dim : 2 * sum, b.one_in(4) ? b.real() : 1e4);
        const long kind = b.up_to(4);
        return holds(rope::on_axes(
            schedule, kind == 0   ? rope::contiguous_sections(given)
                      : kind == 1 ? rope::interleaved_sections(given)
                      : kind == 2 ? rope::ggml_interleaved_sections(given)
                      : kind == 3 ? rope::spread_sections(given)
                                  : rope::height_width_then_time(given.empty() ? 0 : given[0], sum)));
      }
    }
  } catch (const std::invalid_argument& error) {
    check(std::string(error.what()).find("rope::") == 0, "a text begins with the library's name");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  b.one_in(5) ? run_any(b) : run(b);
  return 0;
}
