// SPDX-License-Identifier: MIT
#include <rope/rotation/angle_gradient.hpp>

#include <rope/rotation/gradient.hpp>
#include <rope/rotation/rotate.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::half_split;
using rope::Index;
using testing::throws_saying;

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
