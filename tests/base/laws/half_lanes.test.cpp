// SPDX-License-Identifier: MIT
// Packets of half: every half, and every float near one, converts as Eigen's scalar conversions do.
#include <rope/base/simd/packet.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

using namespace rope::detail;

Eigen::half half_of(std::uint32_t bits) {
  return Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(bits));
}
std::uint32_t bits_of(Eigen::half x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }
std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Whether packets P convert every half as scalars do. The payload of a NaN differs between processors.
template <class P>
void check_widening() {
  constexpr std::uint32_t count = 1u << 16;
  std::vector<Eigen::half> x;
  for (std::uint32_t bits = 0; bits < count; ++bits) x.push_back(half_of(bits));
  std::vector<float> wide(count);
  for (std::size_t i = 0; i < count; i += std::size_t(lanes<P>))
    store(wide.data() + i, load<P>(x.data() + i));
  int different = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto expected = static_cast<float>(x[i]);
    different += std::isnan(expected) ? !std::isnan(wide[i]) : bits_of(wide[i]) != bits_of(expected);
  }
  CHECK(different == 0);
}

/// Whether packets P round `x` as scalars do, in every lane.
template <class P>
void check_rounding(const std::vector<float>& x) {
  constexpr auto L = std::size_t(lanes<P>);
  std::vector<Eigen::half> narrow(x.size() + 2, half_of(0xabcd));
  for (std::size_t i = 0; i + L <= x.size(); i += L) store(narrow.data() + 1 + i, load<P>(x.data() + i));
  int different = 0;
  for (std::size_t i = 0; i < x.size() / L * L; ++i) {
    const std::uint32_t seen = bits_of(narrow[i + 1]), expected = bits_of(static_cast<Eigen::half>(x[i]));
    different += std::isnan(x[i]) ? (seen & 0x7fff) <= 0x7c00 : seen != expected;
  }
  CHECK(different == 0);
  CHECK(bits_of(narrow.front()) == 0xabcd);
  CHECK(bits_of(narrow[x.size() / L * L + 1]) == 0xabcd);
}

template <class P>
void check_halfs() {
  if constexpr (has_packets<Eigen::half, P>) {
    const std::uint64_t seed = 1811;
    CAPTURE(seed, lanes<P>);
    check_widening<P>();
    testing::random random(seed);
    std::vector<float> x = {0.0f, -0.0f, 65504.0f, 65519.9f, 65520.0f, -65520.0f, 65536.0f, 1e30f};
    for (const float extreme :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
          std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()})
      x.insert(x.end(), {extreme, -extreme});
    // Each half, and the floats next to it and next to the midpoint between it and the next half.
    for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
      const auto low = static_cast<float>(half_of(bits)), high = static_cast<float>(half_of(bits + 1)),
                 end = bits + 1 == 0x7c00 ? 65536.0f : high, middle = low + (end - low) / 2;
      for (const float near : {low, middle}) {
        const float sign = random.integer(0, 1) == 0 ? 1.0f : -1.0f;
        x.push_back(sign * std::nextafterf(near, 0.0f));
        x.push_back(sign * near);
        x.push_back(sign * std::nextafterf(near, 1e30f));
      }
    }
    for (int i = 0; i < 100000; ++i) {
      const auto bits =
          static_cast<std::uint32_t>(random.integer(0, std::numeric_limits<std::uint32_t>::max()));
      x.push_back(std::bit_cast<float>(bits));
    }
    check_rounding<P>(x);
  }
}

}  // namespace

TEST_CASE("packets of half convert as scalars do", "[base]") {
  check_halfs<packet<float>>();
  check_halfs<half_packet<packet<float>>>();
}
