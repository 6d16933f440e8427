// SPDX-License-Identifier: MIT
// Weights of attention under flags that let a compiler rearrange sums: two keys with scores 0 and -3.
#include <rope/attention.hpp>

#include <cmath>
#include <cstdio>
#include <limits>

namespace {

template <class T>
bool is_right(const char* name) {
  const T q[] = {T(3)}, k[] = {T(0), T(-1)}, v[] = {T(0), T(1)};
  T out[1];
  rope::attention(rope::thd(q, 1, 1, 1), rope::thd(k, 2, 1, 1), rope::thd(v, 2, 1, 1),
                  rope::thd(out, 1, 1, 1), {.scale = 1});
  const double expected = 1 / (1 + std::exp(3.0));
  // In epsilons: 2.2 for the score 3 log2(e), whose absolute error counts (0.8 of the rounded factor, 1.4 of the
  // product), 1.2 for exp2 without fused products, and 0.5 each for the sum, the quotient and the product
  // with the value.
  constexpr double bound = 2.2 + 1.2 + 3 * 0.5;
  const bool right =
      std::abs(double(out[0]) / expected - 1) <= bound * double(std::numeric_limits<T>::epsilon());
  std::printf("%s %.9g, expected %.9g\n", name, double(out[0]), expected);
  return right;
}

}  // namespace

int main() { return is_right<float>("float") && is_right<double>("double") ? 0 : 1; }
