// SPDX-License-Identifier: MIT
// The exponential of the softmax against long double.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/base/simd/packet_math.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

/// exp2 of one number, through packets P.
template <class P, class A>
A exp2_of(A x) {
  A lanes[64];
  std::fill(lanes, lanes + 64, x);
  rope::detail::store(lanes, rope::detail::exp2(rope::detail::load<P>(lanes)));
  return lanes[rope::detail::lanes<P> - 1];
}

template <class P, class A>
testing::wide worst_ulp(testing::wide lowest, testing::wide highest, int draws) {
  testing::random generator(71);
  testing::wide worst = 0;
  for (int i = 0; i < draws; ++i) {
    // volatile: -ffast-math would keep the digits that the conversion to A drops.
    const volatile A rounded =
        static_cast<A>(lowest + (highest - lowest) * static_cast<testing::wide>(generator.unit()));
    const A x = rounded;
    testing::raise_to(worst,
                      tolerance::error_in_ulp(exp2_of<P>(x), testing::exp2(static_cast<testing::wide>(x))));
  }
  return worst;
}

template <class P, class A>
void check() {
  const testing::wide lowest = std::is_same_v<A, float> ? -125 : -1021;
  for (const testing::wide from : {testing::wide(-1), testing::wide(-20), lowest}) {
    const testing::wide worst = worst_ulp<P, A>(from, 0, 200000);
    UNSCOPED_INFO(from << ": " << worst << " ulp");
    CHECK(worst <= 1.2L);
  }
  CHECK(exp2_of<P>(A(0)) == A(1));
  for (int n = 0; n >= static_cast<int>(lowest); --n)
    CHECK(exp2_of<P>(static_cast<A>(n)) == testing::ldexp(A(1), n));
  // No result is subnormal: numbers below these become zero.
  const A last = static_cast<A>(lowest - 0.5L);
  CHECK(exp2_of<P>(std::nextafter(last, A(0))) >= std::numeric_limits<A>::min());
  for (const A far : {last, static_cast<A>(lowest - 1), static_cast<A>(lowest * 9), A(-1e10), A(-1e30),
                      std::numeric_limits<A>::lowest(), -std::numeric_limits<A>::infinity()})
    CHECK(exp2_of<P>(far) == A(0));
}

}  // namespace

TEST_CASE("exp2 is as accurate as documented, in packets and scalars", "[base]") {
  check<rope::detail::packet<float>, float>();
  check<float, float>();
  check<rope::detail::packet<double>, double>();
  check<double, double>();
}
