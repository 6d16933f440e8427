// Shared by the programs of the guide: checked claims, tensors of random numbers, and attention by its
// formula in plain loops of double, which shares no code with rope.

#ifndef ROPE_EXAMPLES_GUIDE_GUIDE_HPP
#define ROPE_EXAMPLES_GUIDE_GUIDE_HPP

#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "../by_the_formula.hpp"

namespace guide {

using rope::half_split;
using rope::Index;
using tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;  // [batch, tokens, heads, head_dim]

inline bool all_hold = true;

/// Prints a claim and whether it holds.
inline void check(bool holds, const char* claim) {
  std::printf("%s  %s\n", holds ? "ok    " : "FAILED", claim);
  all_hold = all_hold && holds;
}

/// Uniform in [-1, 1), the same on every machine.
inline tensor random_tensor(Index batch, Index tokens, Index heads, Index head_dim, std::uint32_t seed) {
  tensor x(batch, tokens, heads, head_dim);
  std::mt19937 random(seed);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random()) * 0x1p-31f - 1;
  return x;
}

/// The largest difference of two tensors of equal extents, also if a channel is not a number.
inline double difference(const tensor& a, const tensor& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (Index i = 0; i < a.size() && i < b.size(); ++i) {
    const double off = std::abs(double(a.data()[i]) - double(b.data()[i]));
    worst = off <= worst ? worst : off;
  }
  return worst;
}

/// The largest error of `out` as attention of q to k and v with half_split RoPE at these frequencies [rad per
/// position]. The last query is at the position of the last key, and visible(b, i, j) returns whether query i
/// of row b attends to key j.
template <class Visible>
double attention_error(const tensor& q, const tensor& k, const tensor& v, const tensor& out,
                       const formula::speeds& inv_freq, const Visible& visible) {
  const Index batch = q.dimension(0), queries = q.dimension(1), heads = q.dimension(2),
              head_dim = q.dimension(3);
  const Index keys = k.dimension(1), group = heads / k.dimension(2);
  double worst = 0;
  for (Index b = 0; b < batch; ++b)
    for (Index i = 0; i < queries; ++i)
      for (Index h = 0; h < heads; ++h) {
        std::vector<double> scores;
        std::vector<Index> seen;
        for (Index j = 0; j < keys; ++j)
          if (visible(b, i, j)) {
            const auto distance = static_cast<long double>(keys - queries + i - j);
            scores.push_back(formula::score(&q(b, i, h, 0), &k(b, j, h / group, 0), inv_freq, distance) /
                             std::sqrt(double(head_dim)));
            seen.push_back(j);
          }
        if (seen.empty()) continue;
        const std::vector<double> weights = formula::softmax(scores);
        for (Index d = 0; d < head_dim; ++d) {
          double sum = 0;
          for (std::size_t n = 0; n < seen.size(); ++n)
            sum += weights[n] * double(v(b, seen[n], h / group, d));
          const double off = std::abs(sum - double(out(b, i, h, d)));
          worst = off <= worst ? worst : off;
        }
      }
  return worst;
}
/// The largest error for causal attention, in which the last query is aligned with the last key.
inline double attention_error(const tensor& q, const tensor& k, const tensor& v, const tensor& out,
                              const formula::speeds& inv_freq) {
  const Index before = k.dimension(1) - q.dimension(1);
  return attention_error(q, k, v, out, inv_freq, [&](Index, Index i, Index j) { return j <= before + i; });
}

// Scores of 64 channels in [-1, 1) have 64 roundings and two rotations, and the relative error of a weight is
// twice the error of its score. A channel stored in bfloat16 has an error of up to 2^-9 of its magnitude, in
// keys and in values.
constexpr double float_bound = 2 * (64 + 6) * formula::unit, bfloat16_bound = 0x1p-6;

}  // namespace guide

#endif  // ROPE_EXAMPLES_GUIDE_GUIDE_HPP
