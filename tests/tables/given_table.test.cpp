// SPDX-License-Identifier: MIT
#include <rope/tables/given_table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/cache/kv_cache.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using testing::throws_saying;

using matrix = Eigen::ArrayXXd;
using float_matrix = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Angles of either sign and every magnitude from 2^lowest to 2^highest.
matrix random_angles(Index rows, Index columns, int lowest, int highest) {
  testing::random numbers(testing::seed());
  matrix angles(rows, columns);
  for (double& angle : angles.reshaped()) angle = numbers.scaled(lowest, highest);
  return angles;
}

/// The largest error of an entry against cos and sin of `angle(r, i)` in long double, in ulp.
template <class S, class Angle>
testing::wide worst_error(const frequency_table<S>& table, Angle angle) {
  testing::wide worst = 0;
  for (Index r = 0; r < table.rows(); ++r)
    for (Index i = 0; i < table.pairs(); ++i) {
      const testing::wide exact = angle(r, i);
      const std::int64_t position = table.first() + r;
      testing::raise_to(worst, tolerance::error_in_ulp(table.cos(position)[i], testing::cos(exact)));
      testing::raise_to(worst, tolerance::error_in_ulp(table.sin(position)[i], testing::sin(exact)));
    }
  return worst;
}

template <class S>
bool same_entries(const frequency_table<S>& a, const frequency_table<S>& b) {
  bool same = a.rows() == b.rows() && a.pairs() == b.pairs() && a.first() == b.first();
  for (std::int64_t p = a.first(); same && p < a.last(); ++p)
    same = (a.cos(p) == b.cos(p)).all() && (a.sin(p) == b.sin(p)).all();
  return same;
}

/// What unrotate may be off by, for an exact result of length `pair`. An entry of the inverse is formed in
/// double from four roundings, 4 * 2^-53 relative to itself, and rounded to S; the rotation adds a product
/// and a sum:
///
///     double    sqrt(2) (4 u + u) + u = 8.1 u,     float    sqrt(2) (u + u) + u = 3.9 u
template <class T, class S>
testing::wide inverse_of_any_entries(testing::wide pair) {
  return tolerance::detail::bound<T, S>(std::is_same_v<S, double> ? 8.2L : 4.0L, pair);
}

/// The columns of a half-width matrix in one of the wide forms.
template <class Matrix>
Matrix widened(const Matrix& x, table_form form) {
  Matrix wide(x.rows(), form == table_form::half_width ? x.cols() : 2 * x.cols());
  for (Index i = 0; i < x.cols(); ++i) {
    if (form == table_form::half_width) wide.col(i) = x.col(i);
    if (form == table_form::concatenated) wide.col(i) = wide.col(i + x.cols()) = x.col(i);
    if (form == table_form::repeated) wide.col(2 * i) = wide.col(2 * i + 1) = x.col(i);
  }
  return wide;
}

constexpr table_form forms[] = {table_form::half_width, table_form::concatenated, table_form::repeated};

/// cos and sin tables as a float32 pipeline makes them: std::cos of a float angle, times a float m.
struct float_tables {
  float_matrix cos, sin;

  float_tables(Index rows, Index pairs, float m) : cos(rows, pairs), sin(rows, pairs) {
    for (Index r = 0; r < rows; ++r)
      for (Index i = 0; i < pairs; ++i) {
        const float angle =
            static_cast<float>(r) * testing::pow(1e4f, -static_cast<float>(i) / static_cast<float>(pairs));
        cos(r, i) = testing::cos(angle) * m;
        sin(r, i) = testing::sin(angle) * m;
      }
  }
};

}  // namespace

TEST_CASE("a table of angles has their cos and sin within the bound of every table",
          "[tables][given_table]") {
  // A double is exact as a long double, and the C library reduces long double angles exactly.
  const matrix angles = random_angles(40, 24, -30, testing::angle_exponent);
  const auto angle = [&](Index r, Index i) { return static_cast<testing::wide>(angles(r, i)); };
  // The reference has 64 bits: an ulp of double is 2^11 of its units.
  CHECK(worst_error(table_of_angles(angles, table_form::half_width), angle) <=
        tolerance::table_entry<float>());
  CHECK(worst_error(table_of_angles<double>(angles, table_form::half_width, -7), angle) <=
        tolerance::table_entry<double>() + 0.01L);
}

TEST_CASE("angles of positions give the table of the positions", "[tables][given_table]") {
  const frequencies schedule(8, 1e4);
  const std::int64_t first = -3, last = 6;
  matrix angles(last - first, 1);
  for (std::int64_t p = first; p < last; ++p) angles(p - first, 0) = static_cast<double>(p);
  // With inv_freq = 1 the angle is the position, exactly.
  const auto given = table_of_angles<double>(angles, table_form::half_width, first);
  CHECK(same_entries(given, frequency_table<double>(frequencies::constant(), first, last)));
  CHECK(given.rotary_dim() == 2);
  CHECK((given.inv_freq() == 0).all());
}

// rotations [rows, 2], ranges [3]: einsum('..., f -> ... f') and rearrange('... r f -> ... (r f)').
TEST_CASE("learned rotations rotate every pair of their range", "[tables][given_table]") {
  const matrix rotations = random_angles(20, 2, -8, 8);
  const Eigen::Array3d ranges(1.0, 3.7, -1e-3);
  const auto table = table_of_angles<double>(rotations, ranges);
  REQUIRE(table.pairs() == 6);
  const auto angle = [&](Index r, Index pair) {
    return static_cast<testing::wide>(rotations(r, pair / 3)) * static_cast<testing::wide>(ranges(pair % 3));
  };
  // The product is rounded to 64 bits: |angle| <= 2^11, so 2^-53 rad.
  testing::wide worst = 0;
  for (Index r = 0; r < 20; ++r)
    for (Index i = 0; i < 6; ++i) {
      worst = (std::max)(
          worst, testing::abs(static_cast<testing::wide>(table.cos(r)[i]) - testing::cos(angle(r, i))));
      worst = (std::max)(
          worst, testing::abs(static_cast<testing::wide>(table.sin(r)[i]) - testing::sin(angle(r, i))));
    }
  CHECK(worst <= 0x1p-53L + tolerance::table_entry<double>() * 0x1p-53L);
  // A range of one is the angle itself.
  CHECK(same_entries(table_of_angles<double>(rotations, Eigen::Array<double, 1, 1>(1.0)),
                     table_of_angles<double>(rotations, table_form::half_width)));
}

TEST_CASE("row_starts addresses the rows of a batch of learned rotations", "[tables][given_table]") {
  const Index batch = 2, tokens = 3, heads = 2, head_dim = 6;
  const matrix angles = random_angles(batch * tokens, 3, -3, 3);
  const auto table = table_of_angles<double>(angles, table_form::half_width);
  std::vector<double> x =
      testing::random_channels<double>(batch * tokens * heads * head_dim, testing::seed());
  const std::vector<double> before = x;
  const std::vector<int> starts = {0, 3};
  rotate<interleaved>(bshd(x.data(), batch, tokens, heads, head_dim), table, row_starts{starts});
  testing::wide worst = 0;
  for (Index t = 0; t < batch * tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < 3; ++i) {
        const auto at = static_cast<std::size_t>((t * heads + h) * head_dim + 2 * i);
        const testing::wide c = testing::cos(static_cast<testing::wide>(angles(t, i))),
                            s = testing::sin(static_cast<testing::wide>(angles(t, i)));
        const testing::wide u = before[at], v = before[at + 1],
                            bound = tolerance::rotation_bound<double>(testing::hypot(u, v));
        testing::raise_to(worst, testing::abs(x[at] - (u * c - v * s)) / bound);
        testing::raise_to(worst, testing::abs(x[at + 1] - (v * c + u * s)) / bound);
      }
  CHECK(worst <= 1);
}

TEST_CASE("every form of one table gives the same table", "[tables][given_table]") {
  const matrix angles = random_angles(9, 5, -10, 10);
  const auto table = table_of_angles(angles, table_form::half_width);
  const float_tables entries(9, 5, 1);
  const auto imported = table_of_cos_sin(entries.cos, entries.sin, table_form::half_width);
  for (const table_form form : forms) {
    CHECK(same_entries(table_of_angles(widened(angles, form), form), table));
    const auto other = table_of_cos_sin(widened(entries.cos, form), widened(entries.sin, form), form);
    CHECK(same_entries(other, imported));
    CHECK(other.fingerprint() == imported.fingerprint());
  }
  for (Index r = 0; r < 9; ++r)
    for (Index i = 0; i < 5; ++i) {
      REQUIRE(imported.cos(r)[i] == entries.cos(r, i));
      REQUIRE(imported.sin(r)[i] == entries.sin(r, i));
    }
}

TEST_CASE("a form that does not match the matrix throws", "[tables][given_table]") {
  const float_tables x(4, 6, 1);
  const auto read = [&](table_form is, table_form as) {
    table_of_cos_sin(widened(x.cos, is), widened(x.sin, is), as);
  };
  CHECK(throws_saying<std::invalid_argument>([&] { read(table_form::repeated, table_form::concatenated); },
                                             "the two copies of cos must agree", "concatenated",
                                             "row 1, pair 0"));
  CHECK(throws_saying<std::invalid_argument>([&] { read(table_form::concatenated, table_form::repeated); },
                                             "repeated", "row 1, pair 0"));
  float_matrix sin = widened(x.sin, table_form::concatenated);
  sin(3, 8) = -sin(3, 8);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(widened(x.cos, table_form::concatenated), sin, table_form::concatenated); },
      "table_of_cos_sin: the two copies of sin", "row 3, pair 2"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(matrix::Ones(2, 5), matrix::Zero(2, 5), table_form::repeated); },
      "[rows, 2 * pairs]", "[2, 5]"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(matrix::Ones(2, 0), matrix::Zero(2, 0), table_form::half_width); },
      "pairs > 0"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(matrix::Ones(2, 4), matrix::Zero(3, 4), table_form::half_width); }, "one shape",
      "[2, 4] and [3, 4]"));
}

TEST_CASE("the m of a table is measured, and every pair must have it", "[tables][given_table]") {
  for (const float m : {1.0f, 1.1386294f, 0.5f}) {
    float_tables x(64, 8, m);
    const auto read = [&] { return table_of_cos_sin(x.cos, x.sin, table_form::half_width); };
    CHECK(testing::abs(read().attention_factor() - static_cast<double>(m)) <=
          8 * 0x1p-24 * static_cast<double>(m));
    if (m == 1) CHECK(read().attention_factor() == 1);
    x.sin(40, 3) *= 1.0001f;
    CHECK(throws_saying<std::invalid_argument>(read, "cos^2 + sin^2 must be one m^2", "row 40, pair 3"));
    x.cos(0, 3) *= 1.0001f;  // the first that is wrong
    CHECK(throws_saying<std::invalid_argument>(read, "cos^2 + sin^2 must be one m^2", "row 0, pair 3"));
  }
  float_tables swapped(8, 4, 1);
  swapped.sin.row(5) = swapped.sin.row(4).eval();
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(swapped.cos, swapped.sin, table_form::half_width); }, "row 5, pair 0"));
  // cos in place of sin.
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(swapped.cos, swapped.cos, table_form::half_width); }, "cos^2 + sin^2"));
}

TEST_CASE("16-bit entries are verified to their own precision", "[tables][given_table]") {
  const float_tables x(256, 16, 1.2f);
  const auto check = [&](auto zero, float wrong) {
    using entry = decltype(zero);
    auto cos = x.cos.cast<entry>().eval(), sin = x.sin.cast<entry>().eval();
    const auto table = table_of_cos_sin(cos, sin, table_form::half_width);
    CHECK(table.cos(200)[3] == static_cast<float>(cos(200, 3)));
    cos(17, 0) = static_cast<entry>(static_cast<float>(cos(17, 0)) * wrong);
    sin(17, 0) = static_cast<entry>(static_cast<float>(sin(17, 0)) * wrong);
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_cos_sin(cos, sin, table_form::half_width); },
                                               "row 17, pair 0"));
  };
  check(Eigen::half{}, 1.004f);
  check(Eigen::bfloat16{}, 1.03f);
}

TEST_CASE("a pair is verified to the documented units of its type and no more", "[tables][given_table]") {
  const auto check = [](auto one, double limit) {
    using entry = decltype(one);
    Eigen::Array<entry, Eigen::Dynamic, Eigen::Dynamic> cos(40, 3), sin(40, 3);
    cos.setConstant(one);
    sin.setConstant(entry(0));
    const auto table_of = [&](double excess) {
      sin(7, 1) = static_cast<entry>(static_cast<float>(std::sqrt(excess)));
      return table_of_cos_sin(cos, sin, table_form::half_width);
    };
    CHECK(table_of(0.97 * limit).rows() == 40);
    CHECK(throws_saying<std::invalid_argument>([&] { table_of(1.03 * limit); }, "row 7, pair 1"));
  };
  // In 8 bits the relative rounding error of an entry is up to 2^-9, and that of its square twice as much:
  // less than 3 % on each side.
  check(1.0f, 16 * 0x1p-24);
  check(Eigen::half(1), 8 * 0x1p-11);
  check(Eigen::bfloat16(1), 8 * 0x1p-8);
  // The sum of squares is computed in double, whose neighbours below 1 differ by u = 2^-53: 1 - 16 u and 1 -
  // 17 u.
  matrix cos = matrix::Ones(40, 3), sin = matrix::Zero(40, 3);
  cos(7, 1) = 1 - 8 * 0x1p-53;
  CHECK(table_of_cos_sin(cos, sin, table_form::half_width).rows() == 40);
  cos(7, 1) = 1 - 9 * 0x1p-53;
  sin(7, 1) = std::sqrt(0x1p-53);
  CHECK(throws_saying<std::invalid_argument>([&] { table_of_cos_sin(cos, sin, table_form::half_width); },
                                             "row 7, pair 1"));
}

TEST_CASE("an invalid entry throws with its row and column", "[tables][given_table]") {
  for (const double bad : {not_a_number, infinity, -infinity, 0x1p64}) {
    matrix angles = matrix::Constant(3, 4, 0.5);
    angles(2, 1) = bad;
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_angles(angles, table_form::half_width); },
                                               "table_of_angles: ", "row 2, column 1"));
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_angles(angles, Eigen::Array2d(1, 2)); },
                                               "an angle must be finite", "row 2, column 1"));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { table_of_angles(matrix::Ones(3, 4), Eigen::Array2d(1, bad)); },
        "table_of_angles: a range must be finite and below 2^64", "at index 1"));
    matrix wide = matrix::Constant(3, 8, 0.5);
    wide(2, 2) = wide(2, 3) = bad;
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_angles(wide, table_form::repeated); },
                                               "table_of_angles: ", "row 2, column 2"));
    if (bad == 0x1p64) continue;
    CHECK(throws_saying<std::invalid_argument>(
        [&] { table_of_cos_sin(angles, angles, table_form::half_width); }, "cos must be finite"));
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_entries(angles, matrix::Ones(3, 4)); },
                                               "row 2, "));
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_entries(matrix::Ones(3, 4), angles); },
                                               "table_of_entries: ", "row 2, pair 1"));
  }
  for (const double bad : {0.0, -1.0, 1e-40, 0x1p127, not_a_number, infinity}) {
    const std::string text = "rope::table_of_angles: attention_factor must be in [2^-126, 2^126], got ";
    CHECK(throws_saying<std::invalid_argument>(
        [&] { table_of_angles(matrix::Ones(1, 1), table_form::half_width, 0, bad); }, text));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { table_of_angles(matrix::Ones(1, 1), Eigen::Array2d(1, 2), 0, bad); }, text));
  }
  CHECK(throws_saying<std::invalid_argument>(
      [] { table_of_angles<double>(matrix::Ones(1, 1), table_form::half_width, 0, 1e200); },
      "attention_factor must be in [2^-500, 2^500], got 9.99"));
  for (const double m : {0x1p126, 0x1p-126})
    CHECK(table_of_angles(matrix::Zero(1, 1), table_form::half_width, 0, m).cos(0)[0] == float(m));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_angles(matrix::Ones(2, 0), Eigen::Array2d(1, 2)); }, "must not be empty"));
  CHECK(throws_saying<std::length_error>(
      [&] {
        table_of_angles(matrix::Ones(2, 1), table_form::half_width,
                        std::numeric_limits<std::int64_t>::max() - 1);
      },
      "exceed int64"));
}

TEST_CASE("entries without an inverse throw", "[tables][given_table]") {
  matrix cos = matrix::Ones(2, 3), sin = matrix::Zero(2, 3);
  for (const double bad : {0.0, 1e-39, 1e38, 1e300}) {
    cos(1, 2) = bad;
    CHECK(throws_saying<std::invalid_argument>([&] { table_of_entries(cos, sin); }, "row 1, pair 2",
                                               "sqrt(cos^2 + sin^2) within [2^-126, 2^126], "));
  }
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_entries(cos, sin); },
      "got cos = 3.4028234663852886e+38 and sin = 0, rounded to float, at row 1, pair 2"));  // of 1e300
  const auto rejects_m = [](double radius, double other, const char* got) {
    matrix both = matrix::Constant(1, 2, radius);
    both(0, 1) = other;
    return throws_saying<std::invalid_argument>(
        [&] { table_of_cos_sin<double>(both, matrix::Zero(1, 2), table_form::half_width); },
        std::string("rope::table_of_cos_sin: sqrt(cos^2 + sin^2) must be in [2^-500, 2^500], got ") + got);
  };
  CHECK(rejects_m(0, 0, "0"));
  CHECK(rejects_m(1e200, 1e200, "inf"));
  CHECK(rejects_m(1e160, 2e160, "inf"));
  CHECK(rejects_m(1e152, 1e152, "1e+152"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { table_of_cos_sin(matrix::Constant(1, 2, 1e38), matrix::Zero(1, 2), table_form::half_width); },
      "rope::table_of_cos_sin: sqrt(cos^2 + sin^2) must be in [2^-126, 2^126], got "));
  cos(1, 2) = sin(1, 2) = 7e37;  // each alone is small enough
  CHECK(throws_saying<std::invalid_argument>([&] { table_of_entries(cos, sin); }, "row 1, pair 2"));
  sin(1, 2) = 0;
  CHECK(table_of_entries(cos, sin).cos(1)[2] == 7e37f);
  cos(1, 2) = 1e-39;
  CHECK(table_of_entries<double>(cos, sin).cos(1)[2] == 1e-39);
  cos(1, 2) = 1e-200;
  CHECK(throws_saying<std::invalid_argument>([&] { table_of_entries<double>(cos, sin); }, "row 1, pair 2",
                                             "sqrt(cos^2 + sin^2) within [2^-500, 2^500], "));
}

TEST_CASE("vLLM's cache is two half-width tables next to each other", "[tables][given_table]") {
  const float_tables x(40, 8, 1);
  float_matrix cos_sin_cache(40, 16);
  cos_sin_cache << x.cos, x.sin;
  CHECK(same_entries(
      table_of_cos_sin(cos_sin_cache.leftCols(8), cos_sin_cache.rightCols(8), table_form::half_width),
      table_of_cos_sin(x.cos, x.sin, table_form::half_width)));
}

// Golden vector G22: the MRotaryEmbedding cases of onnxruntime/test/contrib_ops. Its tables are not
// rotations: cos rows {1, 1.01, 1.02}, {1.1, 1.11, 1.12}, ... Pair i reads the row of the token's position on
// axis i (time 0, 1; height 1, 2; width 2, 3). The values are exact in decimals.
TEST_CASE("ONNX Runtime's MRotaryEmbedding gives its values", "[tables][given_table]") {
  matrix cos(2, 3), sin(2, 3);
  for (Index t = 0; t < 2; ++t)
    for (Index i = 0; i < 3; ++i) {
      const auto row = static_cast<double>(t + i), column = static_cast<double>(i);
      cos(t, i) = 1 + 0.1 * row + 0.01 * column;
      sin(t, i) = 0.1 + 0.05 * row + 0.01 * column;
    }
  std::vector<float> x(24);
  for (std::size_t d = 0; d < x.size(); ++d) x[d] = static_cast<float>(d + 1);
  const auto agrees = [&](const std::vector<double>& printed) {
    for (std::size_t d = 0; d < x.size(); ++d)
      CHECK_THAT(static_cast<double>(x[d]), testing::WithinAbs(printed[d], 4 * 0x1p-24 * 40));
  };
  SECTION("sections [1, 1, 1], half_split, [batch, tokens, heads * head_dim]") {
    rotate<half_split>(bshd(x.data(), 1, 2, 2, 6), table_of_entries(cos, sin));
    agrees({0.60,  1.42,  2.34,  4.10,  5.87,  7.98,  6.00,  7.12,  8.34,  10.70, 13.49, 16.62,
            11.90, 13.37, 14.94, 19.55, 23.51, 27.81, 17.60, 19.37, 21.24, 27.05, 32.03, 37.35});
  }
  SECTION("interleaved, scale 0.5, [batch, heads, tokens, head_dim]") {
    rotate<interleaved>(bhsd(x.data(), 1, 2, 2, 6), table_of_entries(cos * 0.5, sin * 0.5));
    agrees({0.40, 1.05, 1.345, 2.46,  2.39, 4.21,  3.25, 4.925,  4.395,  6.995,  5.64,  9.405,
            5.80, 7.65, 7.045, 10.08, 8.39, 12.85, 8.95, 12.425, 10.395, 15.515, 11.94, 18.945});
  }
  SECTION("cos 0 and sin 1, head_dim 8") {
    rotate<half_split>(bshd(x.data(), 1, 1, 1, 8), table_of_entries(matrix::Zero(1, 3), matrix::Ones(1, 3)));
    CHECK(std::vector<float>(x.begin(), x.begin() + 8) == std::vector<float>{-4, -5, -6, 1, 2, 3, 7, 8});
  }
}

// Each pair of such a table has its own c^2 + s^2, as in xPos.
TEST_CASE("unrotate inverts every pair of any entries", "[tables][given_table]") {
  const auto check = [](auto number, auto layout) {
    using T = decltype(number);
    using S = tolerance::detail::wide<T>;
    using Layout = decltype(layout);
    const Index tokens = 7, heads = 10, pairs = 21, head_dim = 2 * pairs + 3;
    const matrix cos = random_angles(tokens, pairs, -6, 6), sin = cos.colwise().reverse() * 0.75;
    const auto table = table_of_entries<S>(cos, sin, 100);
    std::vector<T> rotated = testing::random_channels<T>(tokens * heads * head_dim, testing::seed());
    const std::vector<T> before = rotated;
    // Both orders of axes, each with its own order in memory.
    for (const auto& view : {bshd(rotated.data(), 1, tokens, heads, head_dim),
                             bhsd(rotated.data(), 1, heads, tokens, head_dim)}) {
      rotate<Layout>(view, table, 100);
      const std::vector<T> image_memory = rotated;
      unrotate<Layout>(view, table, 100);
      head_view<const T> source = view, image = view;
      source.data = before.data();
      image.data = image_memory.data();
      double worst = 0;
      for (Index t = 0; t < tokens; ++t)
        for (Index h = 0; h < heads; ++h)
          for (Index i = 0; i < pairs; ++i) {
            const Index u = Layout::first(i, pairs), v = Layout::second(i, pairs);
            const auto c = static_cast<double>(table.cos(100 + t)[i]),
                       s = static_cast<double>(table.sin(100 + t)[i]);
            const auto a = static_cast<double>(image.at(0, t, h)[u]),
                       b = static_cast<double>(image.at(0, t, h)[v]);
            const double square = c * c + s * s;
            const double inverse[2] = {(a * c + b * s) / square, (b * c - a * s) / square};
            const double got[2] = {static_cast<double>(view.at(0, t, h)[u]),
                                   static_cast<double>(view.at(0, t, h)[v])};
            const auto bound = static_cast<double>(inverse_of_any_entries<T, S>(
                static_cast<testing::wide>(testing::hypot(a, b) / testing::sqrt(square))));
            testing::raise_to(worst, testing::abs(got[0] - inverse[0]) / bound);
            testing::raise_to(worst, testing::abs(got[1] - inverse[1]) / bound);
            if (!tolerance::is_16_bit<T>)
              for (const Index d : {u, v})
                worst = (std::max)(
                    worst, testing::abs(static_cast<double>(view.at(0, t, h)[d] - source.at(0, t, h)[d])) /
                               (2 * bound));
          }
      CHECK(worst <= 1);
      std::copy(before.begin(), before.end(), rotated.begin());
    }
  };
  testing::for_each_layout([&](auto layout) {
    check(float{}, layout);
    check(double{}, layout);
    check(Eigen::bfloat16{}, layout);
  });
}

TEST_CASE("a row of given entries is the identity only if its entries are", "[tables][given_table]") {
  matrix angles = matrix::Constant(4, 3, 0.25);
  angles.row(2) = 0;
  const auto table = table_of_angles(angles, table_form::half_width, -2);
  CHECK(table.is_identity(0));
  CHECK(!table.is_identity(-2));
  CHECK(!table.is_identity(-1));
  CHECK(!table.is_identity(1));
  std::vector<float> x(4 * 6);
  testing::fill_with_nan(x);
  const std::vector<float> before = x;
  rotate<half_split>(thd(x.data() + 12, 1, 1, 6), table, 0);
  CHECK(testing::same_bits(x, before));
  // Position 0 rotates if the given row rotates.
  const auto one_radian = table_of_angles(matrix::Constant(1, 1, 1.0), table_form::half_width);
  std::vector<double> y = {1, 0};
  rotate<half_split>(thd(y.data(), 1, 1, 2), one_radian);
  CHECK(y[0] < 0.6);
  // With an m, no angle is the identity.
  CHECK(!table_of_angles(matrix::Zero(1, 1), table_form::half_width, 0, 1.5).is_identity(0));
}

TEST_CASE("a given table is recognised, and a cache cannot rebase it", "[tables][given_table]") {
  const matrix angles = random_angles(6, 4, -4, 4);
  const auto table = table_of_angles(angles, table_form::half_width);
  CHECK(table.source() == table_source::entries);
  matrix other = angles;
  other(5, 3) += 1e-3;
  CHECK(table.fingerprint() == table_of_angles(angles, table_form::half_width).fingerprint());
  CHECK(table.fingerprint() != table_of_angles(other, table_form::half_width).fingerprint());
  CHECK(table.fingerprint() != table_of_angles(angles, table_form::half_width, 1).fingerprint());

  const frequency_table ranged(frequencies(8), 6);
  CHECK(ranged.source() == table_source::positions);
  kv_cache<float> cache(1, 6, 1, 8);
  const std::vector<float> k = testing::random_channels<float>(2 * 8, testing::seed());
  cache.append<half_split>(thd(k.data(), 2, 1, 8), thd(k.data(), 2, 1, 8), table);
  CHECK(throws_saying<std::invalid_argument>([&] { cache.rebase<half_split>(table, ranged); }, "rebase"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { cache.append<half_split>(thd(k.data(), 2, 1, 8), thd(k.data(), 2, 1, 8), ranged); }, "kv_cache"));
}
