// SPDX-License-Identifier: MIT
#include "odr.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>

odr::outcome odr::from_a() { return rotate_here(); }

/// The library in two files of one program. Built with ODR_MIXED, the two files are for different instruction sets:
/// their types must then differ and their results agree to the rounding of a fused multiply-add; otherwise both are
/// the same.
int main() {
#ifdef ODR_MIXED
  constexpr bool mixed = true;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::puts("skipped: this processor has no AVX2");
    return 0;
  }
#else
  constexpr bool mixed = false;
#endif
  const odr::outcome a = odr::from_a(), b = odr::from_b(), a_again = odr::from_a();

  if ((std::strcmp(a.table_type, b.table_type) != 0) != mixed) {
    std::printf("the two files see the tables %s and %s\n", a.table_type, b.table_type);
    return 1;
  }
  if (a.q != a_again.q) {
    std::puts("the same call gave two results");
    return 1;
  }
  for (std::size_t i = 0; i < a.q.size(); i += 2) {
    // With and without contraction: u |pair| for the product that is not rounded, u |pair| for each final rounding.
    const float bound = mixed ? 3 * 0x1p-24f * std::hypot(a.q[i], a.q[i + 1]) : 0.0f;
    if (std::abs(a.q[i] - b.q[i]) > bound || std::abs(a.q[i + 1] - b.q[i + 1]) > bound) {
      std::printf("channel %zu: (%a, %a) and (%a, %a)\n", i, double(a.q[i]), double(a.q[i + 1]), double(b.q[i]),
                  double(b.q[i + 1]));
      return 1;
    }
  }
  return 0;
}
