// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_RANDOM_HPP
#define ROPE_TESTS_RANDOM_HPP

/// Numbers from a seed that are the same with every standard library. Those of std::uniform_*_distribution
/// are not.

#include <cmath>
#include <cstdint>
#include <random>

namespace testing {

/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
class seeded_numbers {
 public:
  explicit seeded_numbers(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }

  /// In [low, high]. The bias of the remainder does not matter to a test.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    const std::uint64_t count = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) + 1;
    const std::uint64_t offset = count == 0 ? bits() : bits() % count;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + offset);
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  double unit() { return std::ldexp(static_cast<double>(bits() >> 11), -53); }

  /// A number of either sign, with a magnitude in [2^lowest, 2^(highest + 1)), the exponent uniform.
  double scaled(int lowest, int highest) {
    const double magnitude = std::ldexp(1 + unit(), static_cast<int>(integer(lowest, highest)));
    return (bits() & 1) != 0 ? -magnitude : magnitude;
  }

 private:
  std::mt19937_64 engine_;
};
using random = seeded_numbers<>;

/// Whether the processor is emulated, which takes 10 to 30 times as long.
#ifdef ROPE_TEST_EMULATED
inline constexpr bool is_emulated = true;
#else
inline constexpr bool is_emulated = false;
#endif
/// How often a test draws: `count` times, or a sixth of that on an emulated processor.
constexpr int draws(int count) { return is_emulated ? (count + 5) / 6 : count; }

}  // namespace testing

#endif  // ROPE_TESTS_RANDOM_HPP
