// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_TENSOR_HPP
#define ROPE_TESTS_TENSOR_HPP

/// Queries, keys, values and gradients of tests and references: made from seeds, copied to memory in any
/// order of axes, read back and compared. Shares no code with the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcmp
#include <limits>
#include <random>
#include <vector>

#include "support/random.hpp"
#include "support/wide.hpp"

namespace testing {

/// Numbers [batch, tokens, heads, dim].
template <class T>
struct tensor {
  long batch, tokens, heads, dim;
  std::vector<T> values;

  tensor(long b, long t, long h, long d, T value = T(0))
      : batch(b), tokens(t), heads(h), dim(d), values(static_cast<std::size_t>(b * t * h * d), value) {}
  template <class U>
  explicit tensor(const tensor<U>& x)
      : batch(x.batch),
        tokens(x.tokens),
        heads(x.heads),
        dim(x.dim),
        values(x.values.begin(), x.values.end()) {}

  // The test command compiles tests without optimisation, and calls of these took up to 40 % of the time.
  [[gnu::always_inline]] T& operator()(long b, long t, long h, long d) {
    return values.data()[index(b, t, h, d)];
  }
  [[gnu::always_inline]] T operator()(long b, long t, long h, long d) const {
    return values.data()[index(b, t, h, d)];
  }

  T largest() const {
    T result = 0;
    for (const T value : values) result = (std::max)(result, testing::abs(value));
    return result;
  }

 private:
  [[gnu::always_inline]] std::size_t index(long b, long t, long h, long d) const {
    return static_cast<std::size_t>(((b * tokens + t) * heads + h) * dim + d);
  }
};

template <class T, class Visit>
void for_each_element(const tensor<T>& x, Visit visit) {
  for (long b = 0; b < x.batch; ++b)
    for (long t = 0; t < x.tokens; ++t)
      for (long h = 0; h < x.heads; ++h)
        for (long d = 0; d < x.dim; ++d) visit(b, t, h, d);
}

/// The axes of a tensor in memory, from slowest to fastest.
enum class axes { bshd, bhsd, sbhd };

/// The offset of an element in memory of that order, written out so that a wrong stride of a view is
/// detected.
template <class T>
std::size_t place(const tensor<T>& x, axes order, long b, long t, long h, long d) {
  switch (order) {
    case axes::bshd:
      return static_cast<std::size_t>(((b * x.tokens + t) * x.heads + h) * x.dim + d);
    case axes::bhsd:
      return static_cast<std::size_t>(((b * x.heads + h) * x.tokens + t) * x.dim + d);
    case axes::sbhd:
      return static_cast<std::size_t>(((t * x.batch + b) * x.heads + h) * x.dim + d);
  }
  return 0;
}

/// `x` in memory of channels.
template <class T, class U>
std::vector<T> stored(const tensor<U>& x, axes order = axes::bshd) {
  std::vector<T> memory(x.values.size());
  for_each_element(x, [&](long b, long t, long h, long d) {
    memory[place(x, order, b, t, h, d)] = static_cast<T>(x(b, t, h, d));
  });
  return memory;
}

/// `memory` as a tensor of the shape of `shape`.
template <class T, class U>
tensor<U> loaded(const std::vector<T>& memory, tensor<U> shape, axes order = axes::bshd) {
  for_each_element(shape, [&](long b, long t, long h, long d) {
    shape(b, t, h, d) = static_cast<U>(memory[place(shape, order, b, t, h, d)]);
  });
  return shape;
}

/// A number in [-1, 1).
inline double uniform(std::mt19937& generator) { return static_cast<double>(generator()) * 0x1p-31 - 1; }

/// Channels of either sign with a magnitude in [2^lowest, 2^(highest + 1)).
template <class T>
std::vector<T> random_channels(random& numbers, std::ptrdiff_t count, int lowest, int highest) {
  std::vector<T> x(static_cast<std::size_t>(count));
  for (T& value : x) value = static_cast<T>(numbers.scaled(lowest, highest));
  return x;
}
/// Channels between 2^-7 and 4 in magnitude.
template <class T>
std::vector<T> random_channels(std::ptrdiff_t count, std::uint64_t seed) {
  random numbers(seed);
  return random_channels<T>(numbers, count, -7, 1);
}

template <class T>
tensor<T> random_tensor(long b, long t, long h, long d, std::uint64_t seed) {
  tensor<T> x(b, t, h, d);
  x.values = random_channels<T>(b * t * h * d, seed);
  return x;
}

template <class T>
bool same_bits(const T* a, const T* b, std::ptrdiff_t count) {
  return count == 0 || std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(T)) == 0;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), static_cast<std::ptrdiff_t>(a.size()));
}
template <class T>
bool same_bits(const tensor<T>& a, const tensor<T>& b) {
  return same_bits(a.values, b.values);
}

/// The largest difference of two lists, infinite if one number is NaN or the lengths differ.
template <class T, class U>
double largest_difference(const std::vector<T>& a, const std::vector<U>& b) {
  double worst = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < (std::min)(a.size(), b.size()); ++i)
    raise_to(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return worst;
}
template <class T>
double largest_difference(const tensor<T>& a, const tensor<T>& b) {
  return largest_difference(a.values, b.values);
}

}  // namespace testing

#endif  // ROPE_TESTS_TENSOR_HPP
