// SPDX-License-Identifier: MIT
#include <rope/attention/dropout.hpp>

#include <cmath>
#include <cstdint>

#include "support/catch.hpp"

namespace {

/// The number of kept entries among the first 64 x 64 of one head.
long kept(const rope::dropout_mask& mask, long batch_row, long head) {
  long count = 0;
  for (long i = 0; i < 64; ++i)
    for (long j = 0; j < 64; ++j) count += mask.keeps(batch_row, head, i, j) ? 1 : 0;
  return count;
}

/// The number of entries, of 64 x 64, in which two masks agree.
template <class A, class B>
long agreements(A a, B b) {
  long count = 0;
  for (long i = 0; i < 64; ++i)
    for (long j = 0; j < 64; ++j) count += a(i, j) == b(i, j) ? 1 : 0;
  return count;
}

/// Five standard deviations of a count of n independent entries, each true with probability p.
double five_sigma(double n, double p) { return 5 * std::sqrt(n * p * (1 - p)); }

}  // namespace

TEST_CASE("a dropout mask drops the requested share in every head and row", "[attention]") {
  for (const double probability : {0.1, 0.5, 0.9})
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}})
      for (const long place : {0L, 1L, 7L}) {
        CAPTURE(probability, seed, place);
        const rope::dropout_mask mask(probability, seed);
        const double expected = 64 * 64 * (1 - probability);
        CHECK(std::abs(static_cast<double>(kept(mask, place, 0)) - expected) <=
              five_sigma(4096, probability));
        CHECK(std::abs(static_cast<double>(kept(mask, 0, place)) - expected) <=
              five_sigma(4096, probability));
      }
  CHECK(kept(rope::dropout_mask(0, 5), 0, 0) == 64 * 64);
}

TEST_CASE("masks of different seeds, rows, heads or positions are independent", "[attention]") {
  const rope::dropout_mask mask(0.5, 3), other(0.5, 4);
  const auto base = [&](long i, long j) { return mask.keeps(0, 0, i, j); };
  const double half = 64 * 64 / 2.0, sigma = five_sigma(4096, 0.5);
  const auto independent = [&](auto view) {
    return std::abs(static_cast<double>(agreements(base, view)) - half) <= sigma;
  };
  CHECK(independent([&](long i, long j) { return other.keeps(0, 0, i, j); }));
  CHECK(independent([&](long i, long j) { return mask.keeps(1, 0, i, j); }));
  CHECK(independent([&](long i, long j) { return mask.keeps(0, 1, i, j); }));
  CHECK(independent([&](long i, long j) { return mask.keeps(0, 0, i + 1, j); }));
  CHECK(independent([&](long i, long j) { return mask.keeps(0, 0, i, j + 1); }));
  CHECK(independent([&](long i, long j) { return mask.keeps(0, 0, i + 1, j + 1); }));
  CHECK(independent([&](long i, long j) { return mask.keeps(0, 0, -1 - i, j); }));
  CHECK_FALSE(independent(base));
}

TEST_CASE("a dropout mask is a function of its arguments and a row is a view of it", "[attention]") {
  constexpr rope::dropout_mask mask(0.25, 42), again(0.25, 42);
  static_assert(mask.keeps(1, 2, 3, 4) == again.keeps(1, 2, 3, 4));
  for (long i = -3; i < 20; ++i)
    for (long j = -3; j < 20; ++j) CHECK(mask.row_of(1, 2, i).keeps(j) == mask.keeps(1, 2, i, j));
  // Dropped with the smaller probability, dropped with the larger one.
  const rope::dropout_mask more(0.5, 42);
  for (long i = 0; i < 20; ++i)
    for (long j = 0; j < 20; ++j) CHECK((mask.keeps(0, 0, i, j) || !more.keeps(0, 0, i, j)));
}

// A backward pass on another machine, or in a later version, must drop the same weights as its forward pass.
// Computed from the formula of the class with integers of any size.
TEST_CASE("a dropout mask never changes between versions", "[attention]") {
  const auto first_64 = [](const rope::dropout_mask::row& row, std::int64_t key) {
    std::uint64_t kept = 0;
    for (int j = 0; j < 64; ++j) kept |= static_cast<std::uint64_t>(row.keeps(key + j)) << j;
    return kept;
  };
  CHECK(first_64(rope::dropout_mask(0.5, 0).row_of(0, 0, 0), 0) == 0xd339b1b187d869e8u);
  CHECK(first_64(rope::dropout_mask(0.5, 7).row_of(2, 3, 5), 0) == 0x42a1d81d8734944eu);
  CHECK(first_64(rope::dropout_mask(0.5, 7).row_of(2, 3, 5), std::int64_t{1} << 40) == 0x8e6f1b5635cc144du);
  CHECK(first_64(rope::dropout_mask(0.25, ~std::uint64_t{0}).row_of(1, 31, 100000), 99937) ==
        0xe6dd77faf97eeefcu);
}
