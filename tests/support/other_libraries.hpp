// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_OTHER_LIBRARIES_HPP
#define ROPE_TESTS_OTHER_LIBRARIES_HPP

/// Results of other libraries, from their formulas in long double loops, on tensors in their order of axes.
/// Shares no code with the library.

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/attention_reference.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace other {

using Index = Eigen::Index;

/// A row-major tensor of rank 4 or 3, accepted wherever the library accepts an Eigen::Tensor.
template <std::size_t rank>
struct tensor {
  static constexpr int NumIndices = int(rank);
  static constexpr int Layout = Eigen::RowMajor;
  std::array<Index, rank> extents;
  std::vector<float> values;

  /// Channels between 2^-7 and 4 in magnitude, from a seed.
  tensor(std::array<Index, rank> shape, std::uint64_t seed) : extents(shape) {
    Index count = 1;
    for (const Index extent : shape) count *= extent;
    values = testing::random_channels<float>(count, seed);
  }
  float* data() { return values.data(); }
  const float* data() const { return values.data(); }
  Index dimension(std::size_t axis) const { return extents[axis]; }
  /// Rows of channels: the product of all axes but the last.
  Index rows() const { return static_cast<Index>(values.size()) / channels(); }
  Index channels() const { return extents[rank - 1]; }
  /// Channel d of row r, where rows count through all axes but the last.
  float& operator()(Index r, Index d) { return values[static_cast<std::size_t>(r * channels() + d)]; }
  float operator()(Index r, Index d) const { return values[static_cast<std::size_t>(r * channels() + d)]; }
};
using tensor4 = tensor<4>;

/// The tensor (batch, heads, tokens, channels) as heads [batch, tokens, heads, channels] of the reference.
inline reference::tensor by_token(const tensor4& x) {
  return testing::loaded(x.values, reference::tensor(x.extents[0], x.extents[2], x.extents[1], x.extents[3]),
                         testing::axes::bhsd);
}
/// The error of `out`, attention of q to k and v, in units of its bound.
inline double attention_error(const tensor4& q, const tensor4& k, const tensor4& v, const tensor4& out,
                              const reference::attention_rule& rule) {
  const reference::tensor a = by_token(q), b = by_token(k), c = by_token(v);
  return reference::worst_error<float>(by_token(out), reference::attention(a, b, c, rule),
                                       reference::attention_bound<float>(a, b, c, rule));
}

/// The index of row r of a [a, b, c, channels] tensor on axis b or c.
template <std::size_t rank>
Index on_axis(const tensor<rank>& x, Index r, std::size_t axis) {
  Index after = 1;
  for (std::size_t a = axis + 1; a + 1 < rank; ++a) after *= x.extents[a];
  return r / after % x.extents[axis];
}

/// [rows, columns] in [-5, 5), from a seed.
inline Eigen::ArrayXXd random_array(Index rows, Index columns, std::uint64_t seed) {
  testing::random numbers(seed);
  Eigen::ArrayXXd values(rows, columns);
  for (double& value : values.reshaped()) value = 10 * numbers.unit() - 5;
  return values;
}

/// base^(-2 i / d)
inline testing::wide inv_freq(testing::wide base, Index i, Index d) {
  return testing::pow(base, -2 * static_cast<testing::wide>(i) / static_cast<testing::wide>(d));
}

/// Whether a schedule has the frequencies `expected(i)`: an error of 2 ulp of double, and as much for the
/// formula here.
template <class Frequencies, class Expected>
bool has_frequencies(const Frequencies& f, Index pairs, Expected expected) {
  bool same = f.pairs() == pairs && f.axes() == 1;
  for (Index i = 0; same && i < pairs; ++i)
    same = testing::abs(static_cast<testing::wide>(f.inv_freq()(i, 0)) - expected(i)) <=
           4 * 0x1p-52L * expected(i);
  return same;
}

/// YaRN: the frequency of pair i, after Peng et al. 2023, arXiv:2309.00071, with bounds rounded outwards.
inline testing::wide yarn(testing::wide base, Index i, Index d, testing::wide s,
                          testing::wide original_length) {
  const auto pair_of = [&](testing::wide rotations) {
    return static_cast<testing::wide>(d) * testing::log(original_length / (rotations * (2 * testing::pi))) /
           (2 * testing::log(base));
  };
  const testing::wide low = testing::floor(pair_of(32)), high = testing::ceil(pair_of(1));
  const testing::wide ramp =
      std::clamp<testing::wide>((static_cast<testing::wide>(i) - low) / (high - low), 0, 1);
  return inv_freq(base, i, d) * (1 - ramp + ramp / s);
}

enum class layout_kind { neighbours, halves };

/// The largest difference of `after` from `before` with every pair of channels [first, first + 2 pairs)
/// rotated by angle(row, pair) and scaled by factor(row, pair), as a multiple of the allowed error. Infinite
/// if a channel outside them changed.
template <std::size_t rank, class Angle, class Factor>
testing::wide scaled_rotation_error(const tensor<rank>& before, const tensor<rank>& after, layout_kind layout,
                                    Index pairs, const Angle& angle, const Factor& factor, Index first = 0) {
  testing::wide worst = 0;
  for (Index r = 0; r < before.rows(); ++r) {
    for (Index d = 0; d < before.channels(); ++d)
      if ((d < first || d >= first + 2 * pairs) && before(r, d) != after(r, d))
        return std::numeric_limits<testing::wide>::infinity();
    for (Index i = 0; i < pairs; ++i) {
      const Index u = first + (layout == layout_kind::neighbours ? 2 * i : i),
                  v = first + (layout == layout_kind::neighbours ? 2 * i + 1 : i + pairs);
      const testing::wide a = before(r, u), b = before(r, v), m = factor(r, i);
      const testing::wide c = m * testing::cos(static_cast<testing::wide>(angle(r, i))),
                          s = m * testing::sin(static_cast<testing::wide>(angle(r, i)));
      // One more u for the product of m with an entry, and for an inv_freq with an error of 2 ulp of double.
      const testing::wide norm = m * testing::hypot(a, b), bound = tolerance::rotation_bound<float>(norm) +
                                                                   tolerance::unit_roundoff<float>() * norm;
      for (const testing::wide error : {after(r, u) - (a * c - b * s), after(r, v) - (b * c + a * s)})
        worst = testing::abs(error) <= worst * bound ? worst : testing::abs(error) / bound;
    }
  }
  return worst;
}
template <std::size_t rank, class Angle>
testing::wide rotation_error(const tensor<rank>& before, const tensor<rank>& after, layout_kind layout,
                             Index pairs, const Angle& angle, Index first = 0) {
  return scaled_rotation_error(
      before, after, layout, pairs, angle, [](Index, Index) { return 1.0L; }, first);
}

}  // namespace other

#endif  // ROPE_TESTS_OTHER_LIBRARIES_HPP
