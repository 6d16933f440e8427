// SPDX-License-Identifier: MIT
#include <rope/rotation/hadamard.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::Index;

namespace {

using testing::wide;

template <class T>
wide length(const T* x, Index dim) {
  wide sum = 0;
  for (Index d = 0; d < dim; ++d) sum += static_cast<wide>(x[d]) * static_cast<wide>(x[d]);
  return testing::sqrt(sum);
}

/// The largest error of `got` against the matrix times `x`, in units of the documented bound.
template <class T>
wide worst(const T* x, const T* got, Index dim) {
  const wide u = tolerance::unit_roundoff<std::conditional_t<std::is_same_v<T, double>, double, float>>();
  const wide allowed = (std::log2(static_cast<wide>(dim)) + 2) * u * length(x, dim);
  wide result = 0;
  for (Index i = 0; i < dim; ++i) {
    wide exact = 0;
    for (Index j = 0; j < dim; ++j)
      exact += std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? static_cast<wide>(x[j])
                                                                    : -static_cast<wide>(x[j]);
    exact /= testing::sqrt(static_cast<wide>(dim));
    const wide stored = tolerance::is_16_bit<T> ? tolerance::ulp<T>(testing::abs(exact) + allowed) / 2 : 0;
    const wide part = testing::abs(static_cast<wide>(got[i]) - exact) / (allowed + stored);
    result = part <= result ? result : part;
  }
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("heads are multiplied by the normalised Hadamard matrix", "[rotation]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const std::uint64_t seed = 5401;
  testing::random numbers(seed);
  for (Index dim = 1; dim <= 512; dim *= 2) {
    CAPTURE(seed, dim);
    const auto before = testing::random_channels<TestType>(numbers, 6 * dim, -7, 1);
    auto x = before;
    rope::hadamard_transform(rope::thd(x.data(), 3, 2, dim));
    for (Index h = 0; h < 6; ++h) CHECK(worst(before.data() + h * dim, x.data() + h * dim, dim) <= 1);
    // In another order of axes, with gaps, and on threads: the same bits.
    std::vector<TestType> frame(static_cast<std::size_t>(2 * 5 * (dim + 3)), TestType(7));
    const auto window = rope::bhsd(frame.data(), 1, 2, 5, dim + 3).token_range(1, 3).channels(2, dim);
    testing::copy_heads(rope::thd(before.data(), 3, 2, dim), window);
    rope::hadamard_transform(window, testing::own_threads(2));
    CHECK(testing::same_heads(window, rope::thd(x.data(), 3, 2, dim)));
    CHECK(std::count(frame.begin(), frame.end(), TestType(7)) >= 2 * 5 * (dim + 3) - 6 * dim);
  }
}

TEST_CASE("the matrix is its own inverse and preserves scores", "[rotation]") {
  const std::uint64_t seed = 5402;
  CAPTURE(seed);
  testing::random numbers(seed);
  const Index dim = 128, tokens = 20;
  const auto q_before = testing::random_channels<float>(numbers, tokens * dim, -7, 1),
             k_before = testing::random_channels<float>(numbers, tokens * dim, -7, 1);
  auto q = q_before, k = k_before;
  rope::hadamard_transform(rope::thd(q.data(), tokens, 1, dim));
  rope::hadamard_transform(rope::thd(k.data(), tokens, 1, dim));
  const auto dot = [&](const std::vector<float>& a, const std::vector<float>& b, Index i, Index j) {
    wide sum = 0;
    for (Index d = 0; d < dim; ++d)
      sum += static_cast<wide>(a[static_cast<std::size_t>(i * dim + d)]) *
             static_cast<wide>(b[static_cast<std::size_t>(j * dim + d)]);
    return sum;
  };
  const wide u = tolerance::unit_roundoff<float>();
  wide scores = 0, back = 0;
  for (Index i = 0; i < tokens; ++i)
    for (Index j = 0; j < tokens; ++j) {
      // Each operand has an error of 9 u times its length in every channel: sqrt(dim) times that in the
      // 2-norm.
      const wide allowed = 2.01L * 9 * u * testing::sqrt(static_cast<wide>(dim)) *
                           length(q_before.data() + i * dim, dim) * length(k_before.data() + j * dim, dim);
      testing::raise_to(scores, testing::abs(dot(q, k, i, j) - dot(q_before, k_before, i, j)) / allowed);
    }
  rope::hadamard_transform(rope::thd(q.data(), tokens, 1, dim));
  for (Index i = 0; i < tokens * dim; ++i) {
    const auto n = static_cast<std::size_t>(i);
    const wide allowed = 10 * 9 * u * length(q_before.data() + i / dim * dim, dim);
    testing::raise_to(back, testing::abs(static_cast<wide>(q[n]) - static_cast<wide>(q_before[n])) / allowed);
  }
  CHECK(scores <= 1);
  CHECK(back <= 1);
}

TEST_CASE("an outlier no longer determines the rounding of the other channels", "[rotation]") {
  const std::uint64_t seed = 5403;
  CAPTURE(seed);
  testing::random numbers(seed);
  const Index dim = 128, tokens = 16;
  auto k = testing::random_channels<float>(numbers, tokens * dim, -3, 0);
  for (Index t = 0; t < tokens; ++t) k[static_cast<std::size_t>(t * dim + 17)] = 60;
  const auto largest_scale = [&] {
    std::vector<std::int8_t> integers(k.size());
    std::vector<float> scales(static_cast<std::size_t>(tokens));
    rope::quantize(rope::thd(k.data(), tokens, 1, dim),
                   rope::thd(integers.data(), scales.data(), tokens, 1, dim));
    return *std::max_element(scales.begin(), scales.end());
  };
  const float before = largest_scale();
  rope::hadamard_transform(rope::thd(k.data(), tokens, 1, dim));
  CHECK(largest_scale() < before / 5);
}

TEST_CASE("a head_dim that is not a power of two throws", "[rotation]") {
  std::vector<float> x(96, 1);
  CHECK_THROWS_WITH(
      rope::hadamard_transform(rope::thd(x.data(), 1, 1, 96)),
      testing::ContainsSubstring("hadamard_transform: head_dim must be a power of two, got 96"));
  CHECK_THROWS_AS(rope::hadamard_transform(rope::thd(x.data(), 1, 1, 0)), std::invalid_argument);
  auto null = rope::thd(x.data(), 1, 1, 64);
  null.data = nullptr;
  CHECK_THROWS_AS(rope::hadamard_transform(null), std::invalid_argument);
  CHECK(x == std::vector<float>(96, 1));
  rope::hadamard_transform(rope::thd(x.data(), 1, 1, 96).channels(0, 64));
  CHECK((x[0] == 8 && x[1] == 0 && x[63] == 0 && x[64] == 1));
}
