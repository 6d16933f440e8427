// SPDX-License-Identifier: MIT
#include <rope/rotation/head_norm.hpp>

#include <rope/rotation/gradient.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::half_split;
using rope::head_norm;
using rope::Index;
using testing::same_bits;
using testing::throws_saying;
using testing::wide;

namespace {

template <class T>
using arithmetic = rope::detail::arithmetic<T>;

/// Heads, their weights and the gradient with respect to the output of the norm.
template <class T>
struct problem {
  Index B = 2, L = 3, H = 4, D = 10;
  bool across = false, per_head = false;
  std::vector<T> x, d, weight;
  double epsilon = 0.25, offset = 0.5;

  problem(bool is_across, bool is_per_head) : across(is_across), per_head(is_per_head) {
    x = testing::random_channels<T>(B * L * H * D, 81);
    d = testing::random_channels<T>(B * L * H * D, 82);
    weight = testing::random_channels<T>(per_head ? H * D : D, 83);
  }
  head_norm<T> norm() const {
    return {.weight = weight,
            .epsilon = epsilon,
            .offset = offset,
            .mean_over = across ? rope::norm_mean::token : rope::norm_mean::head};
  }

  /// The loss sum d y in long double, with `x_step` added to one channel and `w_step` to one weight.
  wide loss(std::size_t x_place, wide x_step, std::size_t w_place, wide w_step) const {
    const auto group = static_cast<std::size_t>(across ? H * D : D);
    wide sum = 0;
    for (std::size_t first = 0; first < x.size(); first += group) {
      std::vector<wide> channels;
      wide mean = 0;
      for (std::size_t i = first; i < first + group; ++i) {
        channels.push_back(static_cast<wide>(x[i]) + (i == x_place ? x_step : wide(0)));
        mean += channels.back() * channels.back() / static_cast<wide>(group);
      }
      for (std::size_t i = first; i < first + group; ++i) {
        const std::size_t w = i % weight.size();
        const wide gain = static_cast<wide>(weight[w]) + offset + (w == w_place ? w_step : wide(0));
        sum += static_cast<wide>(d[i]) * gain * channels[i - first] / testing::sqrt(mean + epsilon);
      }
    }
    return sum;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("the gradients of a norm are the derivatives of its formula", "[rotation][head_norm]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  // Central differences of long double with this step have an error of about 1e-12 of the loss, which is of
  // order 100. That is below the rounding of every type except double.
  const wide step = 1e-5;
  const double differences = 1e-8;
  for (const bool across : {false, true})
    for (const bool per_head : {false, true}) {
      const problem<T> p(across, per_head);
      std::vector<T> d_x = p.d;
      std::vector<arithmetic<T>> d_weight(p.weight.size());
      rope::normalize_heads_gradient(rope::bshd(p.x.data(), p.B, p.L, p.H, p.D), p.norm(),
                                     rope::bshd(d_x.data(), p.B, p.L, p.H, p.D), d_weight);
      const std::size_t none = p.x.size();
      // Each result is rounded once to the arithmetic type after sums in double of terms of this size.
      const wide u = 4 * tolerance::unit_roundoff<arithmetic<T>>();
      for (std::size_t i = 0; i < p.x.size(); i += 7) {
        const wide exact = (p.loss(i, step, none, 0) - p.loss(i, -step, none, 0)) / (2 * step);
        const wide rounding = tolerance::is_16_bit<T> ? tolerance::ulp<T>(exact) : wide(0);
        CHECK(testing::abs(static_cast<wide>(d_x[i]) - exact) <= differences + 30 * u + rounding);
      }
      for (std::size_t w = 0; w < p.weight.size(); w += 3) {
        const wide exact = (p.loss(none, 0, w, step) - p.loss(none, 0, w, -step)) / (2 * step);
        CHECK(testing::abs(static_cast<wide>(d_weight[w]) - exact) <= differences + 100 * u);
      }
      // Without memory for it the gradient with respect to the weights is not written, and the other is the
      // same.
      std::vector<T> alone = p.d;
      rope::normalize_heads_gradient(rope::bshd(p.x.data(), p.B, p.L, p.H, p.D), p.norm(),
                                     rope::bshd(alone.data(), p.B, p.L, p.H, p.D));
      CHECK(same_bits(alone, d_x));
    }
}

TEST_CASE("the gradient of norm and rotation is that of the rotation followed by that of the norm",
          "[rotation][head_norm]") {
  const problem<double> p(false, false);
  const rope::frequency_table<double> table(rope::frequencies(8), 20);
  std::vector<double> d_x = p.d;
  const auto view = rope::bshd(d_x.data(), p.B, p.L, p.H, p.D);
  rope::rotate_gradient<half_split>(view, table.at_channel(2), 4);
  rope::normalize_heads_gradient(rope::bshd(p.x.data(), p.B, p.L, p.H, p.D), p.norm(), view);
  const double step = 1e-6;
  const auto loss = [&](std::size_t i, double by) {
    std::vector<double> y = p.x;
    y[i] += by;
    rope::normalize_and_rotate<half_split>(rope::bshd(y.data(), p.B, p.L, p.H, p.D), p.norm(),
                                           table.at_channel(2), 4);
    double sum = 0;
    for (std::size_t n = 0; n < y.size(); ++n) sum += p.d[n] * y[n];
    return sum;
  };
  for (std::size_t i = 0; i < p.x.size(); i += 5)
    CHECK(d_x[i] ==
          testing::Approx((loss(i, step) - loss(i, -step)) / (2 * step)).epsilon(1e-6).margin(1e-6));
}

TEST_CASE("the gradients of a norm do not depend on threads or strides", "[rotation][head_norm]") {
  const Index B = 2, L = 500, H = 8, D = 20;
  const std::vector<float> x = testing::random_channels<float>(B * L * H * D, 84),
                           d = testing::random_channels<float>(B * L * H * D, 85),
                           weight = testing::random_channels<float>(D, 86);
  const head_norm<float> norm = {.weight = weight};
  std::vector<float> one = d, d_weight(weight.size()), others(weight.size());
  rope::normalize_heads_gradient(rope::bshd(x.data(), B, L, H, D), norm, rope::bshd(one.data(), B, L, H, D),
                                 d_weight);
  const testing::own_threads threads(3);
  std::vector<float> many = d;
  rope::normalize_heads_gradient(rope::bshd(x.data(), B, L, H, D), norm, rope::bshd(many.data(), B, L, H, D),
                                 others, threads);
  CHECK(same_bits(one, many));
  CHECK(same_bits(d_weight, others));
  CHECK(threads.runs() == 1);

  std::vector<float> placed(d.size());
  const auto view = rope::bhsd(placed.data(), B, H, L, D);
  testing::copy_heads(rope::bshd(d.data(), B, L, H, D), view);
  rope::normalize_heads_gradient(rope::bshd(x.data(), B, L, H, D), norm, view, others);
  CHECK(testing::same_heads(view, rope::bshd(one.data(), B, L, H, D)));
  CHECK(same_bits(d_weight, others));
}

TEST_CASE("an invalid gradient of the norm throws before anything is written", "[rotation][head_norm]") {
  const problem<float> p(false, false);
  testing::guarded_memory<float> memory(p.B * p.L * p.H * p.D);
  const auto x = rope::bshd(p.x.data(), p.B, p.L, p.H, p.D);
  const auto d = rope::bshd(memory.data(), p.B, p.L, p.H, p.D);
  std::vector<float> d_weight(11, 3.0f);
  const auto rejected = [&](const auto& of, const head_norm<float>& norm, std::span<float> by,
                            const char* text) {
    CHECK(throws_saying<std::invalid_argument>([&] { rope::normalize_heads_gradient(x, norm, of, by); },
                                               "rope::normalize_heads_gradient: ", text));
  };
  rejected(d, p.norm(), std::span(d_weight).first(9), "d_weight must be empty or have length 10, got 9");
  rejected(d, p.norm(), d_weight, "d_weight must be empty or have length 10, got 11");
  rejected(d.token_range(0, 2), p.norm(), {}, "d must have the shape of x, [2, 3, 4, 10], got [2, 2, 4, 10]");
  rejected(d, {.weight = std::span(p.weight).first(9)}, {}, "must have length head_dim or heads * head_dim");
  rejected(d, {.weight = p.weight, .epsilon = -1}, {}, "epsilon of the norm must be finite and not negative");
  CHECK(memory.untouched());
  CHECK(d_weight == std::vector<float>(11, 3.0f));
}
