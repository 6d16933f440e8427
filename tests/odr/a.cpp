// SPDX-License-Identifier: MIT
#include "odr.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>

odr::outcome odr::from_a() { return run_here(); }

namespace {

bool agree(const char* what, const std::vector<float>& a, const std::vector<float>& b, float bound) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= bound)) {
      std::printf("%s channel %zu: %a and %a\n", what, i, double(a[i]), double(b[i]));
      return false;
    }
  return true;
}

}  // namespace

/// The library in two files of one program. Built with ODR_MIXED, the two files are for different instruction
/// sets: their types must then differ and their results agree to rounding; otherwise both must be the same.
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
  // With and without contraction: u |pair| for the product that is not rounded and u |pair| for each final
  // rounding, where |pair| <= sqrt(2).
  constexpr float u = 0x1p-24f, rotation = mixed ? 3 * u * 1.42f : 0;
  // |q| |k| <= head_dim, so a score, summed in any order, is off by head_dim^2 u / sqrt(head_dim); a weight
  // moves by twice what the scores do; exp and the sum over tokens round on their own; and all this happens
  // in both files.
  constexpr float d = odr::head_dim, score = d * d * u / 8;
  constexpr float attention = mixed ? 2 * 1.42f * (2 * score + 2 * odr::tokens * u) : 0;

  const bool good = agree("rotate: first and second run,", a.rotated, a_again.rotated, 0) &&
                    agree("attention: first and second run,", a.attended, a_again.attended, 0) &&
                    agree("rotate: two files,", a.rotated, b.rotated, rotation) &&
                    agree("attention: two files,", a.attended, b.attended, attention);
  return good ? 0 : 1;
}
