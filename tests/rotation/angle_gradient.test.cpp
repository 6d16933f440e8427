// SPDX-License-Identifier: MIT
#include <rope/rotation/angle_gradient.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/given_table.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

// Published values, then every gradient against the derivative in long double, once in closed form and once
// by finite differences of the rotation, and then the laws that relate the gradients.

using rope::half_split;
using rope::head_view;
using rope::Index;
using rope::interleaved;
using testing::guarded_memory;
using testing::throws_saying;

namespace {

bool same_bits(const Eigen::ArrayXXd& a, const Eigen::ArrayXXd& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() && testing::same_bits(a.data(), b.data(), a.size());
}

/// Half an ulp of a number printed with 9 digits.
double printed(double value) {
  return 0.5 * testing::pow(10.0, testing::floor(testing::log10(testing::abs(value))) - 8);
}

/// The loss sum of w * rotate(x) over every channel, for tokens whose row of coordinates is ids[b * tokens +
/// t], in long double and without a table, a view or a layout type.
struct problem {
  Index batch = 2, tokens = 3, heads = 3, head_dim = 10, pairs = 4;
  bool halves = false;
  double m = 1.25;
  std::vector<double> x, w;       // [batch, tokens, heads, head_dim]
  Eigen::ArrayXXd inv_freq;       // [pairs, axes]
  Eigen::ArrayXXd coordinates;    // [rows, axes]
  std::vector<std::int64_t> ids;  // [batch * tokens]

  std::size_t first(Index i) const { return static_cast<std::size_t>(halves ? i : 2 * i); }
  std::size_t second(Index i) const { return static_cast<std::size_t>(halves ? i + pairs : 2 * i + 1); }

  template <class Visit>
  void for_each_pair(Visit visit) const {
    for (Index token = 0; token < batch * tokens; ++token)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < pairs; ++i) {
          const auto head = static_cast<std::size_t>((token * heads + h) * head_dim);
          visit(static_cast<Index>(ids[static_cast<std::size_t>(token)]), h, i, head + first(i),
                head + second(i));
        }
  }

  testing::wide angle(Index row, Index i) const {
    testing::wide sum = 0;
    for (Index a = 0; a < inv_freq.cols(); ++a)
      sum += static_cast<testing::wide>(coordinates(row, a)) * inv_freq(i, a);
    return sum;
  }

  /// The loss with `added(row, h, i)` added to every angle. Channels that do not rotate add a constant.
  testing::wide loss(const std::function<testing::wide(Index, Index, Index)>& added) const {
    testing::wide sum = 0;
    for_each_pair([&](Index row, Index h, Index i, std::size_t u, std::size_t v) {
      const testing::wide a = angle(row, i) + added(row, h, i), c = m * testing::cos(a),
                          s = m * testing::sin(a);
      sum += w[u] * (c * x[u] - s * x[v]) + w[v] * (c * x[v] + s * x[u]);
    });
    return sum;
  }

  /// The derivative of the loss along a direction in which angle (row, h, i) grows by `rate`: the difference
  /// of five points, with an error of step^4 / 30 times the fifth derivative.
  testing::wide difference(const std::function<testing::wide(Index, Index, Index)>& rate) const {
    const testing::wide step = 1e-4L;
    const auto at = [&](testing::wide x_) {
      return loss([&](Index row, Index h, Index i) { return x_ * rate(row, h, i); });
    };
    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
  }

  /// The closed form of this derivative: the sum of rate * dy/dangle * w.
  testing::wide derivative(const std::function<testing::wide(Index, Index, Index)>& rate) const {
    testing::wide sum = 0;
    for_each_pair([&](Index row, Index h, Index i, std::size_t u, std::size_t v) {
      const testing::wide a = angle(row, i), c = m * testing::cos(a), s = m * testing::sin(a);
      sum += rate(row, h, i) * (w[u] * (-s * x[u] - c * x[v]) + w[v] * (-s * x[v] + c * x[u]));
    });
    return sum;
  }

  /// The sum of the magnitudes of the terms in `derivative`.
  testing::wide size(const std::function<testing::wide(Index, Index, Index)>& rate) const {
    testing::wide sum = 0;
    for_each_pair([&](Index row, Index h, Index i, std::size_t u, std::size_t v) {
      sum += testing::abs(rate(row, h, i)) * m * testing::hypot(x[u], x[v]) * testing::hypot(w[u], w[v]);
    });
    return sum;
  }
};

/// The table of a problem, and its heads and gradients as arguments of the library.
template <class T, class S>
struct call {
  std::vector<T> x, d_y, y, d_x;
  rope::frequency_table<S> table;
  head_view<T> before, d_before, after, d_after;

  explicit call(const problem& p) : table(rope::frequencies::custom(p.inv_freq, p.m), p.coordinates) {
    for (const double value : p.x) x.push_back(static_cast<T>(value));
    for (const double value : p.w) d_y.push_back(static_cast<T>(value));
    y = x;
    d_x = d_y;
    const auto view = [&](std::vector<T>& memory) {
      return rope::bshd(memory.data(), p.batch, p.tokens, p.heads, p.head_dim);
    };
    before = view(x);
    d_before = view(d_x);
    after = view(y);
    d_after = view(d_y);
    if (p.halves) {
      rope::rotate<half_split>(after, table, p.ids);
      rope::rotate_gradient<half_split>(d_before, table, p.ids);
    } else {
      rope::rotate<interleaved>(after, table, p.ids);
      rope::rotate_gradient<interleaved>(d_before, table, p.ids);
    }
  }
};

/// Channels that T represents exactly.
template <class T>
problem random_problem(std::uint32_t seed, bool halves, Index axes) {
  problem p;
  p.halves = halves;
  testing::random numbers(seed);
  for (Index n = 0; n < p.batch * p.tokens * p.heads * p.head_dim; ++n) {
    p.x.push_back(static_cast<double>(static_cast<T>(numbers.scaled(-3, 1))));
    p.w.push_back(static_cast<double>(static_cast<T>(numbers.scaled(-3, 1))));
  }
  p.inv_freq.resize(p.pairs, axes);
  p.coordinates.resize(5, axes);
  for (Index a = 0; a < axes; ++a) {
    for (Index i = 0; i < p.pairs; ++i) p.inv_freq(i, a) = numbers.scaled(-4, 0);
    for (Index r = 0; r < 5; ++r) p.coordinates(r, a) = numbers.scaled(-1, 2);
  }
  p.ids = {4, 0, 2, 2, 1, 4};  // row 3 is not used, rows 2 and 4 are shared
  return p;
}

/// The error of a derivative by finite differences in long double: step^4 / 30 = 4e-18 times the fifth
/// derivative along rates up to 32, and rounding errors of 2^-64 of the loss divided by the step.
constexpr testing::wide difference_bound = 4e-18L * 32 * 32 * 32 * 32 * 32;

/// The largest error of a gradient, as a share of the sum of the magnitudes of its terms. A rotated pair has
/// an error of 3.2 u times its norm, half an ulp of a 16-bit type (tolerance.hpp), and half a unit for the
/// attention_factor in the entries. Its products and sums are in double.
template <class T>
testing::wide gradient_bound() {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return 4 * tolerance::unit_roundoff<A>() +
         (tolerance::is_16_bit<T> ? 1.5L * tolerance::unit_roundoff<T>() : 0) +
         64 * tolerance::unit_roundoff<double>();
}

template <class Check>
void for_each_problem(Check check) {
  for (const bool halves : {false, true})
    for (const Index axes : {1, 2, 3}) {
      CAPTURE(halves, axes);
      check(halves, axes);
    }
}

}  // namespace

// Golden vector G27: half_split, x = 1..8, base 10000, position 3, gradient 0.1 .. 0.8, evaluated in double
// by a script that shares no code with this library, and printed with 9 digits.
TEST_CASE("the gradients of a head of 8 have the published values", "[rotation]") {
  const rope::frequency_table<double> table(rope::frequencies(8), 5);
  std::vector<double> x = {1, 2, 3, 4, 5, 6, 7, 8}, g = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8};
  const auto heads = rope::thd(x.data(), 1, 1, 8), gradient = rope::thd(g.data(), 1, 1, 8);
  rope::rotate_gradient<half_split>(gradient, table, 3);
  const std::vector<double> d_x = {-0.0284392456, 0.368379422, 0.32086186,  0.402398196,
                                   -0.509108249,  0.514097852, 0.690686374, 0.798796402};
  for (std::size_t d = 0; d < 8; ++d) CHECK_THAT(g[d], testing::WithinAbs(d_x[d], printed(d_x[d])));

  const Eigen::ArrayXXd d_angle = rope::angle_gradient<half_split>(heads, gradient, table, 3),
                        d_inv_freq = rope::inv_freq_gradient<half_split>(heads, gradient, table, 3),
                        d_position = rope::coordinate_gradient<half_split>(heads, gradient, table, 3);
  REQUIRE(d_angle.rows() == 5);
  REQUIRE(d_angle.cols() == 4);
  REQUIRE(d_inv_freq.rows() == 4);
  REQUIRE(d_inv_freq.cols() == 1);
  REQUIRE(d_position.rows() == 5);
  REQUIRE(d_position.cols() == 1);
  const std::vector<double> angle = {-0.366912021, -1.18208083, -0.173973901, -0.023999964};
  const std::vector<double> inv_freq = {-1.10073606, -3.54624248, -0.521921704, -0.071999892};
  for (Index i = 0; i < 4; ++i) {
    const auto n = static_cast<std::size_t>(i);
    CHECK_THAT(d_angle(3, i), testing::WithinAbs(angle[n], printed(angle[n])));
    CHECK_THAT(d_inv_freq(i, 0), testing::WithinAbs(inv_freq[n], printed(inv_freq[n])));
  }
  CHECK_THAT(d_position(3, 0), testing::WithinAbs(-0.486883843, printed(0.486883843)));
  for (const Index row : {0, 1, 2, 4}) {
    CHECK((d_angle.row(row) == 0).all());
    CHECK(d_position(row, 0) == 0);
  }
}

TEST_CASE("the gradient with respect to the heads is the derivative of the rotation", "[rotation]") {
  const std::uint32_t seed = testing::seed();
  CAPTURE(seed);
  for_each_problem([&](bool halves, Index axes) {
    const problem p = random_problem<double>(seed, halves, axes);
    const call<double, double> c(p);
    // The loss is linear in x: its derivative with respect to a channel is its value at the unit vector of
    // the channel.
    problem unit = p;
    unit.x.assign(p.x.size(), 0);
    unit.for_each_pair([&](Index, Index, Index, std::size_t u, std::size_t v) {
      for (const std::size_t channel : {u, v}) {
        unit.x[channel] = 1;
        const testing::wide expected = unit.loss([](Index, Index, Index) { return 0.0L; });
        unit.x[channel] = 0;
        const testing::wide size = p.m * testing::hypot(p.w[u], p.w[v]);
        CHECK(testing::abs(c.d_x[channel] - expected) <= gradient_bound<double>() * size);
      }
    });
  });
}

TEMPLATE_TEST_CASE(
    "gradients with respect to angles, frequencies and coordinates are derivatives, for q and k",
    "[rotation]", float, double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  using S = rope::detail::arithmetic<T>;
  const std::uint32_t seed = testing::seed();
  CAPTURE(seed);
  for_each_problem([&](bool halves, Index axes) {
    const problem p = random_problem<T>(seed, halves, axes);
    const call<T, S> c(p);
    const auto agrees = [&](double got, const std::function<testing::wide(Index, Index, Index)>& rate) {
      const testing::wide exact = p.derivative(rate), size = p.size(rate);
      CAPTURE(got, double(exact), double(size));
      CHECK(testing::abs(got - exact) <= gradient_bound<T>() * size);
      CHECK(testing::abs(p.difference(rate) - exact) <= difference_bound * (1 + size));
    };
    const auto gradients = [&](auto layout, auto x, auto d_x) {
      using L = decltype(layout);
      const Eigen::ArrayXXd d_angle = rope::angle_gradient<L>(x, d_x, c.table, p.ids);
      REQUIRE(d_angle.rows() == 5);
      REQUIRE(d_angle.cols() == p.pairs);
      for (Index r = 0; r < 5; ++r)
        for (Index i = 0; i < p.pairs; ++i)
          agrees(d_angle(r, i), [&](Index row, Index, Index pair) { return row == r && pair == i ? 1 : 0; });
      const Eigen::ArrayXXd d_inv_freq = rope::inv_freq_gradient<L>(x, d_x, c.table, p.ids);
      REQUIRE(d_inv_freq.rows() == p.pairs);
      REQUIRE(d_inv_freq.cols() == axes);
      const Eigen::ArrayXXd d_coordinates = rope::coordinate_gradient<L>(x, d_x, c.table, p.ids);
      REQUIRE(d_coordinates.rows() == 5);
      REQUIRE(d_coordinates.cols() == axes);
      for (Index a = 0; a < axes; ++a) {
        for (Index i = 0; i < p.pairs; ++i)
          agrees(d_inv_freq(i, a),
                 [&](Index row, Index, Index pair) { return pair == i ? p.coordinates(row, a) : 0.0; });
        for (Index r = 0; r < 5; ++r)
          agrees(d_coordinates(r, a),
                 [&](Index row, Index, Index pair) { return row == r ? p.inv_freq(pair, a) : 0.0; });
      }
      // Each head has its own frequencies.
      for (Index h = 0; h < p.heads; ++h) {
        const Eigen::ArrayXXd of_head =
            rope::inv_freq_gradient<L>(x.head_range(h, 1), d_x.head_range(h, 1), c.table, p.ids);
        for (Index a = 0; a < axes; ++a)
          for (Index i = 0; i < p.pairs; ++i)
            agrees(of_head(i, a), [&](Index row, Index head, Index pair) {
              return pair == i && head == h ? p.coordinates(row, a) : 0.0;
            });
      }
    };
    const auto both_sides = [&](auto layout) {
      gradients(layout, c.before, c.d_before);
      gradients(layout, head_view<const T>(c.after), head_view<const T>(c.d_after));
    };
    if (halves)
      both_sides(half_split{});
    else
      both_sides(interleaved{});
  });
}

TEMPLATE_TEST_CASE("the gradient with respect to the entries of a table is a derivative", "[rotation]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const std::uint32_t seed = testing::seed();
  CAPTURE(seed);
  for_each_problem([&](bool halves, Index axes) {
    const problem p = random_problem<T>(seed, halves, axes);
    const call<T, double> c(p);
    const rope::cos_sin_gradient d =
        halves ? rope::table_gradient<half_split>(c.before, c.d_after, c.table, p.ids)
               : rope::table_gradient<interleaved>(c.before, c.d_after, c.table, p.ids);
    REQUIRE(d.cos.rows() == 5);
    REQUIRE(d.sin.cols() == p.pairs);
    // The loss is linear in every entry: cos has the coefficient w_u x_u + w_v x_v, sin w_v x_u - w_u x_v.
    Eigen::Array<testing::wide, -1, -1> cos(5, p.pairs), sin(5, p.pairs), size(5, p.pairs);
    cos.setZero();
    sin.setZero();
    size.setZero();
    p.for_each_pair([&](Index row, Index, Index i, std::size_t u, std::size_t v) {
      cos(row, i) +=
          static_cast<testing::wide>(p.w[u]) * p.x[u] + static_cast<testing::wide>(p.w[v]) * p.x[v];
      sin(row, i) +=
          static_cast<testing::wide>(p.w[v]) * p.x[u] - static_cast<testing::wide>(p.w[u]) * p.x[v];
      size(row, i) += testing::hypot(p.x[u], p.x[v]) * testing::hypot(p.w[u], p.w[v]);
    });
    // The gradient contains no rotation, so only the sums in double are rounded.
    const testing::wide part = 16 * tolerance::unit_roundoff<double>();
    CHECK(((d.cos.template cast<testing::wide>() - cos).abs() <= part * size).all());
    CHECK(((d.sin.template cast<testing::wide>() - sin).abs() <= part * size).all());
  });
}

TEST_CASE("positions of every form weight the frequencies", "[rotation]") {
  testing::random numbers(testing::seed());
  const Index batch = 2, tokens = 3, heads = 2, head_dim = 6;
  const rope::frequency_table<double> table(rope::frequencies(6), -5, 40);
  std::vector<double> x(static_cast<std::size_t>(batch * tokens * heads * head_dim)), d_x(x.size());
  for (double& value : x) value = numbers.scaled(-3, 1);
  for (double& value : d_x) value = numbers.scaled(-3, 1);
  const auto heads_of = rope::bshd(x.data(), batch, tokens, heads, head_dim),
             gradient = rope::bshd(d_x.data(), batch, tokens, heads, head_dim);
  const auto by_ids = [&](const std::vector<int>& ids) {
    return rope::inv_freq_gradient<interleaved>(heads_of, gradient, table, ids);
  };
  const auto angles_by_ids = [&](const std::vector<int>& ids) {
    return rope::angle_gradient<interleaved>(heads_of, gradient, table, ids);
  };
  const std::vector<std::int64_t> starts = {7, -5};
  const std::vector<int> offsets = {0, 1, 3};
  CHECK(same_bits(rope::inv_freq_gradient<interleaved>(heads_of, gradient, table, -2), by_ids({-2, -1, 0})));
  CHECK(
      same_bits(rope::inv_freq_gradient<interleaved>(heads_of, gradient, table), by_ids({0, 1, 2, 0, 1, 2})));
  CHECK(same_bits(rope::inv_freq_gradient<interleaved>(heads_of, gradient, table, rope::row_starts(starts)),
                  by_ids({7, 8, 9, -5, -4, -3})));
  CHECK(same_bits(rope::angle_gradient<interleaved>(heads_of, gradient, table, rope::row_starts(starts)),
                  angles_by_ids({7, 8, 9, -5, -4, -3})));
  CHECK(same_bits(rope::inv_freq_gradient<interleaved>(heads_of, gradient, table, rope::segments(offsets)),
                  by_ids({0, 0, 1})));
  CHECK_FALSE(same_bits(by_ids({0, 0, 1}), by_ids({0, 1, 1})));
  CHECK(same_bits(rope::inv_freq_gradient<interleaved>(heads_of, gradient, table, {3, 0, 7}),
                  by_ids({3, 0, 7})));
  CHECK(same_bits(rope::angle_gradient<interleaved>(heads_of, gradient, table, {3, 0, 7}),
                  angles_by_ids({3, 0, 7})));

  // One token at a time, and its weight.
  const Eigen::ArrayXXd d_angle = angles_by_ids({7, 8, 9, -5, -4, -3});
  Eigen::ArrayXd expected = Eigen::ArrayXd::Zero(3);
  for (const int position : {7, 8, 9, -5, -4, -3})
    expected += position * d_angle.row(position + 5).transpose();
  const Eigen::ArrayXXd got = by_ids({7, 8, 9, -5, -4, -3});
  for (Index i = 0; i < 3; ++i) CHECK_THAT(got(i, 0), testing::WithinRel(expected(i), 64 * 0x1p-53));
}

TEST_CASE("gradients have the same bits on any number of threads", "[rotation]") {
  const Index batch = 3, tokens = 137, heads = 8, head_dim = 64;
  const auto x = testing::random_channels<float>(batch * tokens * heads * head_dim, testing::seed()),
             d_x = testing::random_channels<float>(batch * tokens * heads * head_dim, testing::seed() + 1);
  const auto heads_of = rope::bshd(x.data(), batch, tokens, heads, head_dim),
             gradient = rope::bshd(d_x.data(), batch, tokens, heads, head_dim);
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 200);
  const auto all = [&](const auto& threads) {
    const auto entries = rope::table_gradient<half_split>(heads_of, gradient, table, 9, threads);
    return std::vector<Eigen::ArrayXXd>{
        rope::angle_gradient<half_split>(heads_of, gradient, table, 9, threads),
        rope::inv_freq_gradient<half_split>(heads_of, gradient, table, 9, threads),
        rope::coordinate_gradient<half_split>(heads_of, gradient, table, 9, threads), entries.cos,
        entries.sin};
  };
  const auto alone = all(rope::this_thread{});
  for (const Index threads : {2, 3, 7}) {
    const auto together = all(testing::own_threads{threads});
    for (std::size_t n = 0; n < alone.size(); ++n) {
      CAPTURE(threads, n);
      CHECK(same_bits(alone[n], together[n]));
      CHECK((alone[n] != 0).any());
    }
  }
}

TEST_CASE("given entries have a gradient, their frequencies and positions do not", "[rotation]") {
  testing::random numbers(testing::seed());
  Eigen::ArrayXXd angles(3, 4);
  for (Index n = 0; n < angles.size(); ++n) angles(n) = numbers.scaled(-2, 1);
  const auto table = rope::table_of_angles<double>(angles, rope::table_form::half_width, 5, 1.5);
  std::vector<double> x(24), g(24);
  for (double& value : x) value = numbers.scaled(-3, 1);
  for (double& value : g) value = numbers.scaled(-3, 1);
  auto y = x;
  const auto heads = rope::thd(x.data(), 3, 1, 8), gradient = rope::thd(g.data(), 3, 1, 8),
             rotated = rope::thd(y.data(), 3, 1, 8);
  rope::rotate<half_split>(rotated, table, 5);
  const Eigen::ArrayXXd d = rope::angle_gradient<half_split>(rotated, gradient, table, 5);
  const auto d_y = g;
  rope::rotate_gradient<half_split>(gradient, table, 5);
  for (Index r = 0; r < 3; ++r)
    for (Index i = 0; i < 4; ++i) {
      const auto u = static_cast<std::size_t>(8 * r + i), v = u + 4;
      const double c = 1.5 * testing::cos(angles(r, i)), s = 1.5 * testing::sin(angles(r, i));
      const double bound = 16 * 0x1p-53 * testing::hypot(d_y[u], d_y[v]);
      CHECK_THAT(d(r, i), testing::WithinAbs(d_y[u] * (-s * x[u] - c * x[v]) + d_y[v] * (c * x[u] - s * x[v]),
                                             1.5 * testing::hypot(x[u], x[v]) * bound));
      CHECK_THAT(g[u], testing::WithinAbs(c * d_y[u] + s * d_y[v], bound));
      CHECK_THAT(g[v], testing::WithinAbs(c * d_y[v] - s * d_y[u], bound));
    }
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::inv_freq_gradient<half_split>(heads, gradient, table, 5); },
      "rope::inv_freq_gradient: ", "given entries", "use angle_gradient"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::coordinate_gradient<half_split>(heads, gradient, table, 5); },
      "rope::coordinate_gradient: ", "given entries"));
}

TEST_CASE("without tokens the gradients are zero", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(8), 5);
  float* none = nullptr;
  for (const auto& x :
       {rope::bshd(none, 0, 3, 2, 8), rope::bshd(none, 2, 0, 2, 8), rope::bshd(none, 2, 3, 0, 8)}) {
    CHECK((rope::inv_freq_gradient<interleaved>(x, x, table) == Eigen::ArrayXXd::Zero(4, 1)).all());
    CHECK((rope::angle_gradient<interleaved>(x, x, table) == Eigen::ArrayXXd::Zero(5, 4)).all());
    CHECK((rope::coordinate_gradient<interleaved>(x, x, table) == Eigen::ArrayXXd::Zero(5, 1)).all());
    CHECK((rope::table_gradient<interleaved>(x, x, table).cos == Eigen::ArrayXXd::Zero(5, 4)).all());
    rope::rotate_gradient<interleaved>(x, table);
  }
}

TEST_CASE("arguments of a gradient that do not fit throw by name, before anything is written", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(8), 5);
  guarded_memory<float> a(200), b(200);
  const auto x = rope::bshd(a.data(), 1, 2, 3, 8), longer = rope::bshd(a.data(), 1, 6, 3, 8),
             narrow = rope::bshd(a.data(), 1, 2, 3, 7);
  const auto all_reject = [&](auto heads, auto gradient, const char* text, auto error) {
    using E = decltype(error);
    CHECK(throws_saying<E>([&] { rope::angle_gradient<half_split>(heads, gradient, table); },
                           "rope::angle_gradient: ", text));
    CHECK(throws_saying<E>([&] { rope::inv_freq_gradient<half_split>(heads, gradient, table); },
                           "rope::inv_freq_gradient: ", text));
    CHECK(throws_saying<E>([&] { rope::coordinate_gradient<interleaved>(heads, gradient, table); },
                           "rope::coordinate_gradient: ", text));
    CHECK(throws_saying<E>([&] { rope::table_gradient<interleaved>(heads, gradient, table); },
                           "rope::table_gradient: ", text));
    CHECK(throws_saying<E>(
        [&] { rope::rotate_gradient_to<half_split>(gradient, rope::bshd(b.data(), 1, 2, 3, 8), table); },
        "rope::rotate_gradient_to: "));
  };
  const auto other = rope::bshd(b.data(), 1, 3, 2, 8);
  all_reject(x, other, " must have the shape of x, [1, 2, 3, 8], got [1, 3, 2, 8]",
             std::invalid_argument(""));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::angle_gradient<half_split>(x, other, table); },
                                             "rope::angle_gradient: d_x must have"));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::table_gradient<half_split>(x, other, table); },
                                             "rope::table_gradient: d_y must have"));
  all_reject(x, rope::bshd(b.data(), 1, 2, 3, 9), "got [1, 2, 3, 9]", std::invalid_argument(""));
  all_reject(longer, longer, "position 5 is outside the table's [0, 5)", std::out_of_range(""));
  all_reject(narrow, narrow, "rotary_dim must not exceed head_dim, got 8 of 7", std::invalid_argument(""));
  const std::vector<int> ids = {1, 2, 3};
  CHECK(throws_saying<std::invalid_argument>([&] { rope::rotate_gradient<half_split>(x, table, ids); },
                                             "rope::rotate_gradient: ids must be [tokens] = 2", "got 3"));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::inv_freq_gradient<half_split>(x, x, table, ids); },
                                             "rope::inv_freq_gradient: ids must be [tokens] = 2", "got 3"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::rotate_gradient<half_split>(x, rope::bshd(b.data(), 1, 3, 2, 8), table); },
      "rope::rotate_gradient: "));
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEMPLATE_TEST_CASE("the gradient with respect to the rates is the derivative, for queries and for keys",
                   "[rotation]", float, double) {
  using T = TestType;
  testing::random numbers(testing::seed());
  const Index batch = 2, tokens = 4, heads = 3, pairs = 5, dim = 12;
  const double center = 6.5, scale_base = 9;
  const rope::frequencies frequencies =
      rope::frequencies::custom(rope::frequencies(2 * pairs).inv_freq(), 1.5);
  Eigen::ArrayXd rates(pairs);
  for (Index i = 0; i < pairs; ++i) rates(i) = numbers.scaled(-2, 0);
  const rope::xpos<T> tables(frequencies, -5, 20,
                             {.center = center, .scale_base = scale_base, .rates = rates});
  const std::vector<int> ids = {3, -5, 19, 7, 0, 1, 1, 12};
  const Index count = batch * tokens * heads * dim;
  auto x = testing::random_channels<T>(numbers, count, -3, 1),
       g = testing::random_channels<T>(numbers, count, -3, 1);
  const auto view = [&](std::vector<T>& memory) {
    return rope::bshd(memory.data(), batch, tokens, heads, dim);
  };

  for (const auto side : {rope::xpos_side::queries, rope::xpos_side::keys}) {
    const int sign = side == rope::xpos_side::queries ? 1 : -1;
    const auto& table = sign > 0 ? tables.queries() : tables.keys();
    // The loss sum g * rotate(x) with rate + dr and inv_freq + df of pair `which`, and the size of its terms.
    const auto loss = [&](Index which, testing::wide dr, testing::wide df) {
      testing::wide sum = 0, size = 0;
      for (Index token = 0; token < batch * tokens; ++token)
        for (Index h = 0; h < heads; ++h) {
          const auto head = static_cast<std::size_t>((token * heads + h) * dim);
          const auto u = head + static_cast<std::size_t>(which), v = u + static_cast<std::size_t>(pairs);
          const testing::wide p = ids[static_cast<std::size_t>(token)];
          const testing::wide a = p * (frequencies.inv_freq()(which, 0) + df);
          const testing::wide m =
              1.5L * testing::exp(sign * (rates(which) + dr) * ((p - center) / scale_base));
          const auto xu = static_cast<testing::wide>(x[u]), xv = static_cast<testing::wide>(x[v]);
          sum += m * (static_cast<testing::wide>(g[u]) * (xu * testing::cos(a) - xv * testing::sin(a)) +
                      static_cast<testing::wide>(g[v]) * (xv * testing::cos(a) + xu * testing::sin(a)));
          size += m * testing::hypot(xu, xv) *
                  testing::hypot(static_cast<testing::wide>(g[u]), static_cast<testing::wide>(g[v])) *
                  std::max(testing::abs(p), testing::abs((p - center) / scale_base));
        }
      return std::pair(sum, size);
    };
    auto y = x, d_x = g;
    rope::rotate<half_split>(view(y), table, ids);
    rope::rotate_gradient<half_split>(view(d_x), table, ids);
    const Eigen::ArrayXd before = rope::rate_gradient<half_split>(side, view(x), view(d_x), tables, ids),
                         after = rope::rate_gradient<half_split>(side, view(y), view(g), tables, ids);
    const Eigen::ArrayXXd rotated = rope::inv_freq_gradient<half_split>(view(y), view(g), tables, ids),
                          rotated_before =
                              rope::inv_freq_gradient<half_split>(view(x), view(d_x), tables, ids);
    REQUIRE(before.size() == pairs);
    REQUIRE(rotated.rows() == pairs);
    REQUIRE(rotated.cols() == 1);
    for (Index i = 0; i < pairs; ++i) {
      const testing::wide h = 1e-5L, size = loss(i, 0, 0).second;
      // The difference of five points: step^4 / 30 of a fifth derivative of at most 19^5 times the terms, and
      // rounding.
      const auto slope = [&](auto at) {
        return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      };
      const auto by_rate = slope([&](testing::wide s) { return loss(i, s, 0).first; }),
                 by_frequency = slope([&](testing::wide s) { return loss(i, 0, s).first; });
      const testing::wide bound = (5 * tolerance::unit_roundoff<T>() + 64 * 0x1p-53L + 1e-13L) * size;
      CHECK(testing::abs(before(i) - by_rate) <= bound);
      CHECK(testing::abs(after(i) - by_rate) <= bound);
      CHECK(testing::abs(rotated(i, 0) - by_frequency) <= bound);
      CHECK(testing::abs(rotated_before(i, 0) - by_frequency) <= bound);
    }
  }
}

TEST_CASE("gradients of xPos throw if positions or shapes do not fit", "[rotation]") {
  const rope::xpos<float> tables(rope::frequencies(8), 3, {.center = 1});
  std::vector<float> y(8 * 3);
  const auto heads = rope::thd(y.data(), 3, 1, 8);
  CHECK(throws_saying<std::out_of_range>(
      [&] { rope::rate_gradient<half_split>(rope::xpos_side::keys, heads, heads, tables, 1); },
      "rope::rate_gradient: position 3 is outside"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::rate_gradient<half_split>(rope::xpos_side::keys, heads, heads.token_range(0, 2), tables); },
      "rope::rate_gradient: d_x must have the shape of x"));
}
