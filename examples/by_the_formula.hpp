// Rotary embeddings by their formulas, in long double and plain loops. Examples compare rope with this code,
// which shares nothing with it.

#ifndef ROPE_EXAMPLES_BY_THE_FORMULA_HPP
#define ROPE_EXAMPLES_BY_THE_FORMULA_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <string>
#include <vector>

namespace formula {

using channels = std::vector<float>;
using speeds = std::vector<long double>;  // radians per position, one for each pair

constexpr double unit = 0x1p-24;  // half an ulp of 1 in float
// The error of a rotated channel is at most 2.75 units of the length of its pair. The error of the score of
// two rotated vectors is twice that times their lengths. Products of two errors are much smaller than the
// spare quarter.
constexpr double rotation_bound = 2.75 * unit, score_bound = 5.75 * unit;

template <class X>
constexpr double real(X x) {
  return static_cast<double>(x);
}

/// Raises `worst` to the difference of two numbers. A NaN counts as infinite.
inline void compare(double& worst, double got, double expected) {
  const double off = std::abs(got - expected);
  if (!(off <= worst)) worst = off >= 0 ? off : INFINITY;
}

/// The difference of a float from a number, in units in the last place of the float.
inline double ulps(float got, long double expected) {
  const float size = std::abs(got), ulp = std::nextafter(size, 2 * size) - size;
  return real(std::abs(got - expected) / ulp);
}

/// The frequencies of d channels: base^(-2i/d).
inline speeds speeds_of(std::size_t d, long double base) {
  speeds all;
  for (std::size_t i = 0; i < d / 2; ++i)
    all.push_back(std::pow(base, -2 * static_cast<long double>(i) / static_cast<long double>(d)));
  return all;
}

/// NTK-aware scaling (bloc97 2023): frequencies of a larger base, which makes the slowest pair `factor` times
/// slower.
inline speeds ntk_speeds(std::size_t d, long double base, long double factor) {
  return speeds_of(d, base * std::pow(factor, static_cast<long double>(d) / static_cast<long double>(d - 2)));
}

/// YaRN (arXiv:2309.00071). Pairs with more than 32 full turns over the `trained` positions keep their
/// frequency, pairs with less than one are divided by `factor`, and pairs between are blended.
inline speeds yarn_speeds(std::size_t d, long double base, long double trained, long double factor) {
  const auto pair_of = [&](long double rotations) {
    return static_cast<long double>(d) *
           std::log(trained / (2 * std::numbers::pi_v<long double> * rotations)) / (2 * std::log(base));
  };
  const long double low = std::max(std::floor(pair_of(32)), 0.0L),
                    high = std::min(std::ceil(pair_of(1)), static_cast<long double>(d - 1));
  speeds all = speeds_of(d, base);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const long double slowed = std::clamp((static_cast<long double>(i) - low) / (high - low), 0.0L, 1.0L);
    all[i] *= 1 - slowed + slowed / factor;
  }
  return all;
}
/// The factor by which YaRN multiplies queries and keys.
inline long double yarn_factor(long double factor) { return std::log(factor) / 10 + 1; }

/// The score q . k of a query that is `distance` positions after its key. Its pairs are channels i and i +
/// d/2.
inline double score(const float* q, const float* k, const speeds& speed, long double distance) {
  long double sum = 0;
  for (std::size_t u = 0; u < speed.size(); ++u) {
    const std::size_t v = u + speed.size();
    const long double q_u = q[u], q_v = q[v], k_u = k[u], k_v = k[v], angle = distance * speed[u];
    sum += (q_u * k_u + q_v * k_v) * std::cos(angle) + (q_u * k_v - q_v * k_u) * std::sin(angle);
  }
  return static_cast<double>(sum);
}
inline double score(const channels& q, const channels& k, const speeds& speed, long double distance) {
  return score(q.data(), k.data(), speed, distance);
}

/// The softmax: e^score over its sum.
inline std::vector<double> softmax(std::vector<double> scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - largest);
  for (double& s : scores) s /= sum;
  return scores;
}

/// cos and sin of position * speed, even if a long double cannot represent the product: its leading 30 bits
/// are exact, and the rest is small.
struct cos_sin {
  long double cos, sin;
};
inline cos_sin cos_sin_of(std::int64_t position, double speed) {
  const double leading = std::ldexp(std::trunc(std::ldexp(speed, 30)), -30);
  const auto p = static_cast<long double>(position);
  const long double large = p * static_cast<long double>(leading),
                    small = p * static_cast<long double>(speed - leading);
  const long double c = std::cos(large), s = std::sin(large), dc = std::cos(small), ds = std::sin(small);
  return {c * dc - s * ds, s * dc + c * ds};
}

/// q . k in double.
inline double dot(const channels& q, const channels& k) {
  double sum = 0;
  for (std::size_t c = 0; c < q.size(); ++c) sum += real(q[c]) * real(k[c]);
  return sum;
}
inline double length(const channels& x) { return std::sqrt(dot(x, x)); }

/// Uniform in [-1, 1), the same on every machine.
inline channels random_channels(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  channels x(count);
  for (float& channel : x) channel = static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-31f;
  return x;
}
/// A vector for each word, equal wherever the word occurs, with channels 1 and -1: without positions, scores
/// are then whole numbers.
inline channels vector_of(const std::string& word, std::size_t count, std::uint32_t seed) {
  for (const char letter : word) seed = seed * 31 + static_cast<unsigned char>(letter);
  channels x = random_channels(count, seed);
  for (float& channel : x) channel = channel < 0 ? -1.0f : 1.0f;
  return x;
}

}  // namespace formula

#endif  // ROPE_EXAMPLES_BY_THE_FORMULA_HPP
