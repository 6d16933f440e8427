// SPDX-License-Identifier: MIT
// Tables of any frequencies and positions: every entry is the rounded cosine or sine of the exact angle, or
// the numbers throw. Also the descriptions of a table, which no other table shares.
#include <rope/tables.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using namespace rope;
using fuzz::bytes;
using fuzz::check;
using testing::wide;

namespace {

/// A unit vector of the plane.
struct direction {
  wide cos = 1, sin = 0;
  void rotate(wide angle) {
    const wide c = testing::cos(angle), s = testing::sin(angle);
    *this = {cos * c - sin * s, sin * c + cos * s};
  }
};

/// x in halves of 26 bits, whose products with one another are exact in a wide number.
std::pair<double, double> halves(double x) {
  const double high = static_cast<double>(static_cast<float>(x));
  return {high, x - high};
}

/// Rotates by position * inv_freq. The four products are exact, and a C library reduces each exactly up to
/// 2^62.
void rotate_by(direction& d, double position, double inv_freq) {
  const auto [p1, p2] = halves(position);
  const auto [f1, f2] = halves(inv_freq);
  for (const double p : {p1, p2})
    for (const double f : {f1, f2})
      if (p != 0 && f != 0) d.rotate(static_cast<wide>(p) * static_cast<wide>(f));
}
bool comparable(double position, double inv_freq) {
  return testing::abs(static_cast<wide>(position) * static_cast<wide>(inv_freq)) < 0x1p45L;
}

/// \param oracle  the error of `exact` for the cosine or sine
template <class S>
void check_entry(S got, wide exact, wide m, wide oracle) {
  const wide value = exact * m;
  // A magnitude adds a rounding.
  const wide bound = (tolerance::table_entry<S>() + (m == 1 ? 0 : 1)) * tolerance::ulp<S>(value) + oracle * m;
  if (testing::abs(static_cast<wide>(got) - value) <= bound) return;
  std::fprintf(stderr, "an entry is %.17g for %.21Lg, %.4Lg ulp off\n", static_cast<double>(got),
               static_cast<long double>(value),
               static_cast<long double>(tolerance::error_in_ulp(got, value)));
  check(false, "an entry is the rounded cosine or sine");
}

/// cos and sin of sum_a coordinates(a) inv_freq(a), each with its error bound. A small angle keeps its
/// digits, and so does its sine, except for terms that cancel.
struct expected_entry {
  direction exact;
  wide angle = 0, sum = 0;  // of the products, and of their magnitudes
  int products = 0;

  void add(double position, double inv_freq) {
    const wide product = static_cast<wide>(position) * static_cast<wide>(inv_freq);
    angle += product, sum += testing::abs(product), ++products;
    rotate_by(exact, position, inv_freq);
  }
  template <class S>
  void check_entries(S cos, S sin, wide m) const {
    const wide cancelled =
        products > 1 ? testing::ldexp(wide(products), -159) : wide(0);  // as documented for the table
    if (sum > 0 && sum < testing::ldexp(wide(1), -1074))
      return;  // angles below every double have no documented bound
    if (sum < 0.5L) {
      check_entry(cos, testing::cos(angle), m, testing::ldexp(wide(1), -62));
      check_entry(sin, testing::sin(angle), m, testing::ldexp(sum, -62) + cancelled);
    } else {  // two roundings of 64 bits and the C library's, four times for every product
      const wide oracle = testing::ldexp(wide(products), -59);
      check_entry(cos, exact.cos, m, oracle);
      check_entry(sin, exact.sin, m, oracle);
    }
  }
};

/// The promises of both constructions of an exact table, for coordinates(r, a).
template <class S, class Coordinate>
void check_exact(const frequency_table<S>& table, const frequencies& f, Index rows, std::int64_t first,
                 const Coordinate& coordinate) {
  check(table.rows() == rows && table.first() == first && table.last() == first + rows,
        "a table has the requested rows");
  check(table.pairs() == f.pairs() && table.rotary_dim() == 2 * f.pairs() &&
            table.attention_factor() == f.attention_factor(),
        "a table has the pairs of its frequencies");
  check(!table.contains(first - 1) && !table.contains(first + rows), "a table ends at its documented row");
  const auto m = static_cast<wide>(f.attention_factor());
  for (Index r = 0; r < rows; ++r) {
    const auto cos = table.cos(first + r), sin = table.sin(first + r);
    bool at_origin = true;
    for (Index a = 0; a < f.axes(); ++a) at_origin = at_origin && coordinate(r, a) == 0;
    check(table.is_identity(first + r) == (at_origin && f.attention_factor() == 1),
          "the origin is the identity, and nothing else");
    for (Index i = 0; i < f.pairs(); ++i) {
      expected_entry entry;
      bool compare = true;
      for (Index a = 0; a < f.axes(); ++a) {
        compare = compare && comparable(coordinate(r, a), f.inv_freq()(i, a));
        if (compare) entry.add(coordinate(r, a), f.inv_freq()(i, a));
      }
      if (!compare) {
        const wide radius = testing::hypot(static_cast<wide>(cos(i)), static_cast<wide>(sin(i)));
        check(testing::abs(radius / m - 1) <= 4 * tolerance::unit_roundoff<S>(),
              "an entry is on the circle at every position");
        continue;
      }
      entry.check_entries(cos(i), sin(i), m);
    }
  }
  for (const std::int64_t outside : {first - 1, first + rows}) {
    fuzz::rejects<std::out_of_range>("there is no row outside",
                                     [&] { static_cast<void>(table.cos(outside)); });
    fuzz::rejects<std::out_of_range>("there is no row outside",
                                     [&] { static_cast<void>(table.sin(outside)); });
    fuzz::rejects<std::out_of_range>("there is no row outside",
                                     [&] { static_cast<void>(table.is_identity(outside)); });
  }
}

std::int64_t draw_position(bytes& b) {
  static const std::int64_t known[] = {
      0, 1, -1, 4095, 131071, (1LL << 24) - 1, (1LL << 31) - 3, -(1LL << 31), 1LL << 40, -(1LL << 52)};
  return b.coin()   ? b.one_of(known)
         : b.coin() ? b.between(-70000, 70000)
                    : static_cast<std::int64_t>(b.bits()) >> b.up_to(60);
}

double draw_speed(bytes& b) {
  switch (b.up_to(6)) {
    case 0:
      return b.real();
    case 1:
      return std::ldexp(b.moderate(), -static_cast<int>(b.up_to(60)));
    case 2:  // next to a fraction of a full turn, so that cosines and sines nearly vanish
      return std::nextafter(
          6.283185307179586 * static_cast<double>(b.between(-8, 8)) / static_cast<double>(b.between(1, 16)),
          b.coin() ? 100 : -100);
    case 3:  // so low that only the largest positions rotate at all
      return std::ldexp(1 + b.moderate(), -100 - static_cast<int>(b.up_to(90)));
    default:
      return std::pow(10000.0, -b.moderate() / 256);
  }
}

template <class S>
void run(bytes& b) {
  const Index pairs = b.one_in(10) ? 0 : b.between(1, 6), axes = b.one_in(3) ? b.between(1, 3) : 1;
  Eigen::ArrayXXd inv_freq(pairs, axes);
  bool valid = pairs > 0;
  for (Index i = 0; i < inv_freq.size(); ++i) {
    inv_freq(i) = draw_speed(b);
    valid = valid && std::abs(inv_freq(i)) < 0x1p64;
  }
  static const double factors[] = {1, 1, 1, 1.25, 0.1, 1e-40, 1e39, 0, -1};
  const double m = b.one_in(5) ? b.real() : b.coin() ? 1.0 : b.one_of(factors);
  valid = valid && m > 0 && m <= std::numeric_limits<double>::max();
  std::optional<frequencies> drawn;
  const auto make = [&] { drawn = frequencies::custom(inv_freq, m); };
  if (!valid) return fuzz::rejects<std::invalid_argument>("frequencies that are none throw", make);
  make();
  const frequencies& f = *drawn;
  const bool m_fits = m >= static_cast<double>((std::numeric_limits<S>::min)()) &&
                      m <= static_cast<double>((std::numeric_limits<S>::max)());
  const Index rows = b.up_to(5);
  switch (b.up_to(5)) {
    case 0:
    case 1: {
      const std::int64_t first = draw_position(b);
      const auto table = [&] { return frequency_table<S>(f, first, first + rows); };
      if (axes > 1 || !m_fits)
        return fuzz::rejects<std::invalid_argument>("a range is of one axis, with a magnitude of its type",
                                                    table);
      if (b.one_in(8)) {
        using limits = std::numeric_limits<std::int64_t>;
        fuzz::rejects<std::invalid_argument>("a range does not end before it begins",
                                             [&] { frequency_table<S>(f, first, first - 1); });
        fuzz::rejects<std::invalid_argument>("a count is not negative",
                                             [&] { frequency_table<S>(f, -1 - rows); });
        fuzz::rejects<std::length_error>("a table does not exceed memory",
                                         [&] { frequency_table<S>(f, limits::min(), limits::max()); });
        fuzz::rejects<std::length_error>("a table does not exceed memory",
                                         [&] { frequency_table<S>(f, limits::max()); });
        fuzz::rejects<std::length_error>("a position is below 2^63", [&] {
          frequency_table<S>(f, std::uint64_t{1} << 63, ~std::uint64_t{0});
        });
      }
      const frequency_table<S> got = table();
      check(got.coordinates().size() == 0 && got.source() == table_source::positions,
            "a table reports its source");
      check(got.fingerprint() == frequency_table<S>(f, 0).fingerprint(),
            "a range does not change what a table is");
      // Positions beyond 2^53 are not doubles.
      if (std::abs(static_cast<double>(first)) < 0x1p53)
        check_exact(got, f, rows, first, [&](Index r, Index) { return static_cast<double>(first + r); });
      return;
    }
    case 2:
    case 3: {
      Eigen::ArrayXXd at(rows, b.one_in(12) ? axes + 1 : axes);
      bool fits = at.cols() == axes;
      const bool whole = b.coin();
      for (Index i = 0; i < at.size(); ++i) {
        at(i) = whole ? static_cast<double>(draw_position(b)) : b.one_in(3) ? b.real() : b.moderate() - 128;
        fits = fits && std::abs(at(i)) <= 0x1p53;
      }
      const auto table = [&] { return frequency_table<S>(f, at); };
      if (!fits || !m_fits)
        return fuzz::rejects<std::invalid_argument>("coordinates that are none throw", table);
      const frequency_table<S> got = table();
      check(got.source() == table_source::coordinates && got.coordinates().rows() == rows,
            "a table reports its source");
      return check_exact(got, f, rows, 0, [&](Index r, Index a) { return at(r, a); });
    }
    case 4: {
      const std::int64_t first = draw_position(b) % (1 << 24);
      const auto table = [&] { return frequency_table<S>::with_float_angles(f, first, first + rows); };
      const bool fits_float = m >= static_cast<double>((std::numeric_limits<float>::min)()) &&
                              m <= static_cast<double>((std::numeric_limits<float>::max)());
      if (axes > 1 || !m_fits || !fits_float)
        return fuzz::rejects<std::invalid_argument>("a range is of one axis, with a magnitude of its type",
                                                    table);
      const frequency_table<S> got = table();
      check(got.fingerprint() != frequency_table<S>(f, 0).fingerprint() &&
                got.source() == table_source::float_angles,
            "angles in float are another table");
      for (Index r = 0; r < rows; ++r)
        for (Index i = 0; i < pairs; ++i) {
          const float angle = static_cast<float>(first + r) * static_cast<float>(f.inv_freq()(i, 0));
          if (!(std::abs(angle) < 1e30f)) continue;
          const wide u = tolerance::unit_roundoff<float>(), size = static_cast<wide>(m);
          const wide least = 2 * tolerance::ulp<float>(0);
          check(testing::abs(static_cast<wide>(got.cos(first + r)(i)) -
                             size * testing::cos(static_cast<wide>(angle))) <= 4 * u * size + least &&
                    testing::abs(static_cast<wide>(got.sin(first + r)(i)) -
                                 size * testing::sin(static_cast<wide>(angle))) <= 4 * u * size + least,
                "an entry is the cosine or sine of the angle in float");
        }
      return;
    }
    default: {
      // xPos: growth and rotation of queries, and for keys one over the growth.
      xpos_growth growth{.center = b.one_in(8) ? b.real() : b.moderate() * 16,
                         .scale_base = b.one_in(8) ? b.real() : b.moderate() + 1};
      if (b.coin()) {
        growth.rates = owned_array<double, 1>(b.one_in(8) ? pairs + 1 : pairs);
        for (Index i = 0; i < growth.rates.size(); ++i)
          growth.rates(i) = b.one_in(12) ? b.real() : b.moderate() / 128 - 1;
      }
      const auto center = static_cast<std::int64_t>(b.up_to(4000));
      const auto make_tables = [&] { return xpos<S>(f, center, center + rows, growth); };
      std::optional<xpos<S>> got;
      try {
        got = make_tables();
      } catch (const std::invalid_argument& error) {
        check(std::string(error.what()).find("rope::") == 0, "a text begins with the library's name");
        return;
      }
      check(axes == 1 && m_fits && growth.scale_base > 0 &&
                std::abs(growth.center) <= std::numeric_limits<double>::max(),
            "xPos takes one axis, a center and a scale_base");
      for (Index r = 0; r < rows; ++r)
        for (Index i = 0; i < pairs; ++i) {
          const std::int64_t position = center + r;
          const wide distance = (static_cast<wide>(position) - static_cast<wide>(growth.center)) /
                                static_cast<wide>(growth.scale_base);
          const wide size = testing::exp(static_cast<wide>(got->rates()(i)) * distance);
          if (!comparable(static_cast<double>(position), f.inv_freq()(i, 0))) continue;
          direction d;
          rotate_by(d, static_cast<double>(position), f.inv_freq()(i, 0));
          const auto near = [&](S entry, wide exact) {
            return testing::abs(static_cast<wide>(entry) - exact) <=
                   3 * tolerance::ulp<S>(exact) +
                       testing::ldexp(wide(64), -60) * testing::abs(static_cast<wide>(m)) * (size + 1 / size);
          };
          const auto n = static_cast<wide>(m);
          check(near(got->queries().cos(position)(i), n * size * d.cos) &&
                    near(got->queries().sin(position)(i), n * size * d.sin),
                "queries grow and rotate");
          check(near(got->keys().cos(position)(i), n / size * d.cos) &&
                    near(got->keys().sin(position)(i), n / size * d.sin),
                "keys shrink as queries grow, and rotate equally");
        }
    }
  }
}

/// Tables of given angles, and of given cos and sin: entries stay unchanged if they are rotations of one
/// magnitude, and throw otherwise.
template <class S>
void run_given(bytes& b) {
  const Index rows = b.up_to(4), pairs = b.up_to(4);
  const auto form = static_cast<table_form>(b.up_to(2));
  const bool twice = form != table_form::half_width;
  Eigen::Array<S, Eigen::Dynamic, Eigen::Dynamic> angles(rows, twice ? 2 * pairs : pairs);
  const auto column = [&](Index i, int copy) {
    return form == table_form::concatenated ? i + copy * pairs : twice ? 2 * i + copy : i;
  };
  bool finite = true;
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < pairs; ++i) {
      const auto angle = static_cast<S>(b.one_in(12) ? b.real() : b.moderate() - 128);
      finite = finite && std::abs(angle) < S(0x1p64);
      for (int copy = 0; copy < (twice ? 2 : 1); ++copy) angles(r, column(i, copy)) = angle;
    }
  const bool unequal = twice && rows > 0 && pairs > 0 && finite && b.one_in(8);
  if (unequal) angles(rows - 1, column(pairs - 1, 1)) += 1 + std::abs(angles(rows - 1, column(pairs - 1, 1)));
  const auto make_angles = [&] { return table_of_angles<S>(angles, form); };
  if (pairs == 0 || !finite || unequal)
    return fuzz::rejects<std::invalid_argument>("angles that are none throw", make_angles);
  const auto table = make_angles();
  check(table.rows() == rows && table.pairs() == pairs && table.source() == table_source::entries,
        "a row for every row of angles");
  const Eigen::Array<S, Eigen::Dynamic, Eigen::Dynamic> cosines =
                                                            angles.unaryExpr([](S x) { return std::cos(x); }),
                                                        sines =
                                                            angles.unaryExpr([](S x) { return std::sin(x); });
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < pairs; ++i) {
      const wide angle = static_cast<wide>(angles(r, column(i, 0)));
      if (!(testing::abs(angle) < 0x1p62L)) continue;
      check_entry(table.cos(r)(i), testing::cos(angle), 1, testing::ldexp(wide(1), -62));
      check_entry(table.sin(r)(i), testing::sin(angle), 1,
                  testing::ldexp(testing::abs(testing::sin(angle)), -62));
    }
  const auto again = table_of_cos_sin<S>(cosines, sines, form);
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < pairs; ++i)
      check(again.cos(r)(i) == cosines(r, column(i, 0)) && again.sin(r)(i) == sines(r, column(i, 0)),
            "entries are kept as they are");
  if (rows == 0) return;
  auto spoilt = cosines;
  spoilt(b.up_to(long(rows) - 1), b.up_to(long(spoilt.cols()) - 1)) += S(2.5);
  if (rows * pairs > 2)
    fuzz::rejects<std::invalid_argument>("entries of different magnitudes throw",
                                         [&] { table_of_cos_sin<S>(spoilt, sines, form); });
}

/// FoPE: every pair of the table a mixture of all frequencies, each computed from its definition.
template <class S>
void run_fourier(bytes& b) {
  const Index kept = b.between(1, 4), pairs = b.between(1, 4), axes = b.one_in(16) ? 2 : 1;
  const Index mixed = b.one_in(12) ? b.up_to(6) : b.between(1, long(pairs));
  Eigen::ArrayXXd inv_freq(kept, axes);
  for (Index i = 0; i < inv_freq.size(); ++i) inv_freq(i) = b.moderate() / 64;
  static const double factors[] = {1, 1, 1.25, 0.5};
  const double m = b.one_of(factors);
  const auto f = frequencies::custom(inv_freq, m);
  if (axes == 1) {
    const double longest = b.one_in(4) ? b.real() : b.moderate() * 8;
    const auto keep = [&] { return fourier_frequencies(f, longest); };
    std::vector<double> completing;
    bool close = false;
    for (Index i = 0; i < kept; ++i) {
      const wide rotations =
          static_cast<wide>(inv_freq(i, 0)) * static_cast<wide>(longest) / (2 * testing::pi);
      close = close || testing::abs(rotations - 1) < 1e-12L;
      if (rotations > 1) completing.push_back(inv_freq(i, 0));
    }
    if (!(longest > 0 && longest <= std::numeric_limits<double>::max())) {
      fuzz::rejects<std::invalid_argument>("a length is positive", keep);
    } else if (!close && completing.empty()) {
      fuzz::rejects<std::invalid_argument>("a frequency completes a full turn", keep);
    } else if (!close) {
      const frequencies got = keep();
      check(got.pairs() == static_cast<Index>(completing.size()) && got.attention_factor() == m,
            "frequencies that complete a full turn are kept");
      for (std::size_t i = 0; i < completing.size(); ++i)
        check(got.inv_freq()(static_cast<Index>(i), 0) == completing[i],
              "frequencies that complete a full turn are kept");
    }
  } else {
    fuzz::rejects<std::invalid_argument>("frequencies have one axis",
                                         [&] { static_cast<void>(fourier_frequencies(f, 100.0)); });
  }
  Eigen::ArrayXXd to_cos(kept, mixed), to_sin(kept, mixed);
  for (auto* mix : {&to_cos, &to_sin})
    for (Index i = 0; i < mix->size(); ++i) (*mix)(i) = b.moderate() / 64 - 2;
  bool finite = true;
  if (b.one_in(12) && mixed > 0) {
    to_sin(b.up_to(long(kept) - 1), b.up_to(long(mixed) - 1)) = std::numeric_limits<double>::quiet_NaN();
    finite = false;
  }
  const long shape = b.up_to(31);
  if (shape == 31) to_sin.conservativeResize(kept, mixed + 1);
  if (shape == 30) to_cos.conservativeResize(kept + 1, mixed), to_sin.conservativeResize(kept + 1, mixed);
  const bool fits = axes == 1 && mixed >= 1 && mixed <= pairs && shape < 30;
  const std::int64_t first = draw_position(b) % (std::int64_t{1} << 40);
  const Index rows = b.up_to(4);
  const bool backwards = b.one_in(16);
  const auto make = [&] {
    return fourier_table<S>(f, to_cos, to_sin, pairs, first, backwards ? first - 1 : first + rows);
  };
  if (backwards || !fits || !finite)
    return fuzz::rejects<std::invalid_argument>("mixtures that do not fit, or are not finite, throw", make);
  std::optional<frequency_table<S>> got;
  try {
    got = make();
  } catch (const std::invalid_argument& error) {  // a pair that is mixed to almost nothing
    check(std::string(error.what()).find("sqrt(cos^2 + sin^2)") != std::string::npos,
          "the text names the error");
  }
  if (got)
    check(got->rows() == rows && got->first() == first && got->pairs() == pairs &&
              got->attention_factor() == m && got->source() == table_source::entries,
          "a table has the requested rows");
  bool nothing = false;
  for (Index r = 0; r < rows; ++r)
    for (Index d = 0; d < pairs; ++d) {
      wide cos = 0, sin = 0, size = 0;
      for (Index j = 0; j < kept && d < mixed; ++j) {
        direction rotated;
        rotate_by(rotated, static_cast<double>(first + r), inv_freq(j, 0));
        cos += rotated.cos * static_cast<wide>(to_cos(j, d)),
            sin += rotated.sin * static_cast<wide>(to_sin(j, d));
        size += testing::abs(static_cast<wide>(to_cos(j, d))) + testing::abs(static_cast<wide>(to_sin(j, d)));
      }
      if (d >= mixed) cos = 1;
      nothing = nothing || testing::hypot(cos, sin) < 1e-12L;
      if (!got) continue;
      const auto magnitude = static_cast<wide>(m);
      const auto near = [&](S entry, wide exact) {
        return testing::abs(static_cast<wide>(entry) - exact * magnitude) <=
               tolerance::ulp<S>(exact * magnitude) +
                   static_cast<wide>(kept + 3) * 0x1p-53L * size * magnitude;
      };
      check(near(got->cos(first + r)(d), cos) && near(got->sin(first + r)(d), sin),
            "an entry is the mixture of all frequencies");
    }
  check(got || nothing, "mixtures that have an inverse are taken");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  const long kind = b.up_to(255);  // one of the last thirty-two values, so that the others keep their meaning
  const bool wide_entries = kind % 2 == 1;
  if (kind >= 224)
    wide_entries ? run_fourier<double>(b) : run_fourier<float>(b);
  else if (b.one_in(6))
    wide_entries ? run_given<double>(b) : run_given<float>(b);
  else
    wide_entries ? run<double>(b) : run<float>(b);
  return 0;
}
