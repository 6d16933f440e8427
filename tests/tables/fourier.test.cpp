// SPDX-License-Identifier: MIT
#include <rope/tables/fourier.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
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

/// The identity and noise, as the mixtures are initialised for training.
matrix random_mixture(Index kept, Index mixed, std::uint32_t seed) {
  testing::random numbers(seed);
  matrix mixture(kept, mixed);
  for (Index j = 0; j < kept; ++j)
    for (Index d = 0; d < mixed; ++d) mixture(j, d) = (j == d ? 1 : 0) + 0.6 * (numbers.unit() - 0.5);
  return mixture;
}

}  // namespace

TEST_CASE("frequencies that never complete a full turn are dropped", "[tables][fourier]") {
  const frequencies schedule(64, 1e4);
  for (const double length : {7.0, 512.0, 4096.0}) {
    const frequencies kept = fourier_frequencies(schedule, length);
    Index count = 0;
    while (count < 32 && testing::pow(1e4, -static_cast<double>(count) / 32) * length > 2 * std::numbers::pi)
      ++count;
    REQUIRE(kept.pairs() == count);
    CHECK((kept.inv_freq().col(0) == schedule.inv_freq().col(0).head(count)).all());
  }
  // Exactly one full turn is not enough, as in vLLM.
  CHECK(fourier_frequencies(frequencies::custom(Eigen::Array2d(2 * std::numbers::pi / 64, 1), 1.5), 64)
            .pairs() == 1);
  CHECK(fourier_frequencies(frequencies::custom(Eigen::Array2d(0.5, 1), 1.5), 64).attention_factor() == 1.5);
  CHECK(throws_saying<std::invalid_argument>([&] { fourier_frequencies(schedule, 6.0); }, "no pair", "= 6"));
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    CHECK(throws_saying<std::invalid_argument>([&] { fourier_frequencies(schedule, bad); }, "max_position"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { fourier_frequencies(frequencies::custom(matrix::Ones(2, 2)), 64); }, "one axis"));
}

TEST_CASE("the identity mixture is RoPE without the dropped frequencies", "[tables][fourier]") {
  const Index pairs = 32;
  const frequencies schedule(2 * pairs, 1e4), kept = fourier_frequencies(schedule, 256);
  REQUIRE(kept.pairs() < pairs);
  const Eigen::MatrixXf identity = Eigen::MatrixXf::Identity(kept.pairs(), kept.pairs());
  const auto table = fourier_table(kept, identity, identity, pairs, -3, 200);
  const frequency_table rope(schedule, -3, 200);
  testing::wide worst = 0;
  for (std::int64_t p = -3; p < 200; ++p)
    for (Index i = 0; i < pairs; ++i) {
      if (i < kept.pairs()) {
        worst = (std::max)(
            worst, tolerance::error_in_ulp(table.cos(p)[i], static_cast<testing::wide>(rope.cos(p)[i])));
        worst = (std::max)(
            worst, tolerance::error_in_ulp(table.sin(p)[i], static_cast<testing::wide>(rope.sin(p)[i])));
      } else {
        REQUIRE(table.cos(p)[i] == 1);
        REQUIRE(table.sin(p)[i] == 0);
      }
    }
  CHECK(worst <= 1);  // both are roundings of nearly the same double
  CHECK(table.is_identity(0));
  CHECK(!table.is_identity(1));

  // vLLM's own test: the channels of the dropped frequencies pass through.
  std::vector<float> x = testing::random_channels<float>(4 * 2 * 2 * pairs, testing::seed());
  const std::vector<float> before = x;
  rotate<half_split>(thd(x.data(), 4, 2, 2 * pairs), table);
  bool same = true, rotated = false;
  for (std::size_t d = 0; d < x.size(); ++d) {
    const auto pair = static_cast<Index>(d) % pairs;
    if (pair >= kept.pairs())
      same = same && testing::same_bits(&x[d], &before[d], 1);
    else
      rotated = rotated || x[d] != before[d];
  }
  CHECK(same);
  CHECK(rotated);
}

TEST_CASE("an entry is the mixture of its cosines or sines", "[tables][fourier]") {
  const Index kept = 5, mixed = 7, pairs = 9;
  const frequencies schedule = frequencies::custom(Eigen::ArrayXd::LinSpaced(kept, 1.3, 0.01), 1.25);
  const matrix cos_mix = random_mixture(kept, mixed, testing::seed()),
               sin_mix = random_mixture(kept, mixed, testing::seed() + 1);
  const auto check = [&](auto number) {
    using S = decltype(number);
    const std::int64_t first = -20, last = 3000;
    const auto table = fourier_table<S>(schedule, cos_mix, sin_mix, pairs, first, last);
    REQUIRE(table.first() == first);
    REQUIRE(table.rows() == last - first);
    CHECK(table.attention_factor() == 1.25);
    testing::wide worst = 0;
    for (std::int64_t p = first; p < last; p += 37)
      for (Index d = 0; d < pairs; ++d) {
        testing::wide c = d < mixed ? 0 : 1, s = 0, size = 1;
        for (Index j = 0; d < mixed && j < kept; ++j) {
          const testing::wide angle = static_cast<testing::wide>(p) * schedule.inv_freq()(j, 0);
          c += testing::cos(angle) * cos_mix(j, d);
          s += testing::sin(angle) * sin_mix(j, d);
          size += testing::abs(cos_mix(j, d)) + testing::abs(sin_mix(j, d));
        }
        const testing::wide sums = static_cast<testing::wide>(kept + 2) * 0x1p-53L * size * 1.25L;
        const auto part = [&](S got, testing::wide exact) {
          return testing::abs(static_cast<testing::wide>(got) - 1.25L * exact) /
                 (sums + tolerance::unit_roundoff<S>() * 1.25L * testing::abs(exact));
        };
        testing::raise_to(worst, part(table.cos(p)[d], c));
        testing::raise_to(worst, part(table.sin(p)[d], s));
      }
    CHECK(worst <= 1);
  };
  check(float{});
  check(double{});
}

// FourierRotaryEmbedding of vLLM: query head h rotates by the mixture of key head h / group.
TEST_CASE("each group of query heads rotates by the mixture of its key head", "[tables][fourier]") {
  const Index tokens = 6, kv_heads = 2, group = 3, kept = 3, pairs = 4;
  const frequencies schedule = frequencies::custom(Eigen::Array3d(1, 0.3, 0.05));
  std::vector<matrix> cos_mix, sin_mix;
  std::vector<double> x =
      testing::random_channels<double>(tokens * kv_heads * group * 2 * pairs, testing::seed());
  const std::vector<double> before = x;
  const auto q = thd(x.data(), tokens, kv_heads * group, 2 * pairs);
  for (Index h = 0; h < kv_heads; ++h) {
    const auto seed = testing::seed() + static_cast<std::uint32_t>(10 * h);
    cos_mix.push_back(random_mixture(kept, kept, seed));
    sin_mix.push_back(random_mixture(kept, kept, seed + 1));
    rotate<half_split>(q.head_range(h * group, group),
                       fourier_table<double>(schedule, cos_mix.back(), sin_mix.back(), pairs, 0, tokens));
  }
  double worst = 0;
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < kv_heads * group; ++h)
      for (Index d = 0; d < pairs; ++d) {
        const auto mix = static_cast<std::size_t>(h / group);
        double c = d < kept ? 0 : 1, s = 0;
        for (Index j = 0; d < kept && j < kept; ++j) {
          const double angle = static_cast<double>(t) * schedule.inv_freq()(j, 0);
          c += testing::cos(angle) * cos_mix[mix](j, d);
          s += testing::sin(angle) * sin_mix[mix](j, d);
        }
        const auto u = static_cast<std::size_t>((t * kv_heads * group + h) * 2 * pairs + d),
                   v = u + static_cast<std::size_t>(pairs);
        testing::raise_to(worst, testing::abs(x[u] - (before[u] * c - before[v] * s)));
        testing::raise_to(worst, testing::abs(x[v] - (before[v] * c + before[u] * s)));
      }
  CHECK(worst <= 4 * 2 * 16 * 0x1p-53);  // channels below 4, entries below 2, about ten roundings
  for (Index h = 0; h < kv_heads; ++h)
    unrotate<half_split>(q.head_range(h * group, group),
                         fourier_table<double>(schedule, cos_mix[static_cast<std::size_t>(h)],
                                               sin_mix[static_cast<std::size_t>(h)], pairs, 0, tokens));
  // A mixture may shrink a pair. Every radius here is far above 2^-10.
  double off = 0;
  for (std::size_t d = 0; d < x.size(); ++d) testing::raise_to(off, testing::abs(x[d] - before[d]));
  CHECK(off <= 0x1p10 * 4 * 16 * 0x1p-53);
}

TEST_CASE("mixtures that do not fit throw", "[tables][fourier]") {
  const frequencies schedule = frequencies::custom(Eigen::Array3d(1, 0.3, 0.05));
  const matrix mix = Eigen::MatrixXd::Identity(3, 3).array();
  const auto rejected = [&](const matrix& c, const matrix& s, Index pairs, auto... parts) {
    return throws_saying<std::invalid_argument>([&] { fourier_table(schedule, c, s, pairs, 0, 4); },
                                                "fourier_table: ", parts...);
  };
  CHECK(rejected(mix, mix, 2, "[3, 3]", "2 pairs"));
  CHECK(rejected(matrix::Ones(2, 3), matrix::Ones(2, 3), 4, "[2, 3]"));
  CHECK(rejected(mix, matrix::Ones(3, 2), 4, "one shape"));
  CHECK(rejected(matrix(3, 0), matrix(3, 0), 4, "[3, 0]"));
  matrix bad = mix;
  bad(1, 1) = std::numeric_limits<double>::quiet_NaN();
  CHECK(rejected(bad, mix, 4, "cos_mix must be finite, got nan at row 1, column 1"));
  CHECK(throws_saying<std::invalid_argument>([&] { fourier_table(schedule, mix, bad, 4, 7, 7); },
                                             "sin_mix must be finite, got nan at row 1, column 1"));
  bad(1, 1) = 0;
  CHECK(rejected(bad, bad, 4, "row 0, pair 1"));
  CHECK(throws_saying<std::invalid_argument>([&] { fourier_table(schedule, mix, mix, 4, 3, 2); }, "[3, 2)"));
  CHECK(throws_saying<std::length_error>(
      [&] {
        fourier_table(schedule, mix, mix, 4, std::numeric_limits<std::int64_t>::min(),
                      std::numeric_limits<std::int64_t>::max());
      },
      "fourier_table"));
  constexpr std::int64_t many = std::int64_t{1} << 61;
  CHECK(throws_saying<std::length_error>([&] { fourier_table(schedule, mix, mix, 4, 0, many); },
                                         "rope::fourier_table: "));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { fourier_table(frequencies::custom(matrix::Ones(3, 1), 1e-40), mix, mix, 4, 0, 1); },
      "rope::fourier_table: attention_factor must be"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { fourier_table(frequencies::custom(matrix::Ones(3, 2)), mix, mix, 4, 0, 1); }, "2 axes"));
}
