// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_DECODER_STEP_HPP
#define ROPE_TESTS_DECODER_STEP_HPP

/// Tokens of the reference as the arguments of a call with a cache, and the error of its output.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <type_traits>
#include <vector>

#include "support/decoder_reference.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace decoder_step {

using namespace rope;

/// Frequencies of 6 of the 8 channels of a head.
inline const frequencies plain(6, 100.0);

template <class Layout>
reference::model model_of(std::size_t heads, const frequencies& f, double softcap = 0) {
  reference::model m{heads, 2, 8, 5, {}, {}, static_cast<testing::wide>(f.attention_factor()), softcap};
  for (Index i = 0; i < f.pairs(); ++i) m.inv_freq.push_back(f.inv_freq()(i, 0));
  m.pair_map = std::is_same_v<Layout, interleaved> ? reference::interleaved : reference::half_split;
  return m;
}

using rows = std::vector<std::vector<reference::token>>;

/// The visible part of a row, by position.
inline std::vector<reference::visible> seen_by(const std::vector<reference::token>& row, long long position,
                                               long long window, long long sinks) {
  std::vector<reference::visible> keys;
  for (const auto& token : row)
    if (token.position <= position && (window == 0 || position - token.position < window ||
                                       (token.position >= 0 && token.position < sinks)))
      keys.push_back({&token, token.position});
  return keys;
}

/// Tokens of some rows as the arguments of a call. Shorter rows are filled with numbers that must not be
/// read.
template <class T>
struct step {
  Index batch, tokens;
  std::vector<T> q, k, v, out;
  std::vector<Index> counts;
  const reference::model& m;

  step(const reference::model& model, const std::vector<std::vector<reference::token>>& rows,
       Index at_least = 0)
      : batch(static_cast<Index>(rows.size())), tokens(at_least), m(model) {
    for (const auto& row : rows) {
      counts.push_back(static_cast<Index>(row.size()));
      tokens = (std::max)(tokens, counts.back());
    }
    for (const auto& row : rows)
      for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
        const auto put = [&](std::vector<T>& memory, const std::vector<double> reference::token::*channels,
                             std::size_t width) {
          for (std::size_t d = 0; d < width; ++d)
            memory.push_back(static_cast<T>(t < row.size() ? (row[t].*channels)[d] : 1e3));
        };
        put(q, &reference::token::q, m.heads * m.dim);
        put(k, &reference::token::k, m.kv_heads * m.dim);
        put(v, &reference::token::v, m.kv_heads * m.value_dim);
      }
    out.assign(static_cast<std::size_t>(batch * tokens) * m.heads * m.value_dim, T(-77));
  }
  Index of(std::size_t x) const { return static_cast<Index>(x); }
  head_view<const T> queries() const { return bshd(q.data(), batch, tokens, of(m.heads), of(m.dim)); }
  head_view<const T> keys() const { return bshd(k.data(), batch, tokens, of(m.kv_heads), of(m.dim)); }
  head_view<const T> values() const { return bshd(v.data(), batch, tokens, of(m.kv_heads), of(m.value_dim)); }
  head_view<T> output() { return bshd(out.data(), batch, tokens, of(m.heads), of(m.value_dim)); }

  /// The largest error of the output in units of `bound` and the rounding of T. `visible(b, i)` are the keys
  /// visible to query i of row b, and `position(b, i)` is its own position.
  template <class Visible, class Position>
  double worst(double bound, const std::vector<std::vector<reference::token>>& rows, Visible visible,
               Position position) {
    double result = 0;
    for (std::size_t b = 0; b < rows.size(); ++b)
      for (std::size_t i = 0; i < static_cast<std::size_t>(tokens); ++i) {
        const T* got = output().at(of(b), of(i), 0);
        const std::size_t width = m.heads * m.value_dim;
        std::vector<testing::wide> expected(width);
        if (i < rows[b].size()) expected = reference::attend(m, rows[b][i].q, position(b, i), visible(b, i));
        for (std::size_t d = 0; d < width; ++d) {
          const auto error =
              static_cast<double>(testing::abs(static_cast<testing::wide>(got[d]) - expected[d]));
          const auto rounding = static_cast<double>(
              tolerance::ulp<T>(testing::abs(expected[d]) + static_cast<testing::wide>(bound)) / 2);
          const double part = i < rows[b].size() ? error / (bound + rounding) : (error == 0 ? 0 : 1e9);
          result = part <= result ? result : part >= 0 ? part : 1e9;
        }
      }
    return result;
  }
  /// The same, where queries of `asking` attend to the tokens of `all` by their positions.
  double worst_by_position(double bound, const std::vector<std::vector<reference::token>>& asking,
                           const std::vector<std::vector<reference::token>>& all, long long window = 0,
                           long long sinks = 0) {
    return worst(
        bound, asking,
        [&](std::size_t b, std::size_t i) { return seen_by(all[b], asking[b][i].position, window, sinks); },
        [&](std::size_t b, std::size_t i) { return asking[b][i].position; });
  }
};

/// The table type for a channel type.
template <class T>
using entry = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace decoder_step

#endif  // ROPE_TESTS_DECODER_STEP_HPP
