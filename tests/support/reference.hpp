// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_REFERENCE_HPP
#define ROPE_TESTS_REFERENCE_HPP

/// Rotary embeddings from the paper (Su et al. 2021, arXiv:2104.09864v5) in long double: no table, no layout
/// type and no other code of the library.

#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/wide.hpp"

namespace reference {

/// base^(-2 i / rotary_dim)
inline testing::wide inv_freq(testing::wide base, long i, long rotary_dim) {
  return testing::pow(base, -2.0L * static_cast<testing::wide>(i) / static_cast<testing::wide>(rotary_dim));
}

/// position * inv_freq [rad], for the double that the library reports. The product is rounded to 64 bits, so
/// up to |angle| = 2^20 the error of the angle is at most 2^-45 rad: 2^-21 of the unit roundoff of float. Not
/// an oracle for double tables.
inline testing::wide angle(testing::wide position, double inv_freq) { return position * inv_freq; }
inline testing::wide cos(testing::wide position, double inv_freq) {
  return testing::cos(angle(position, inv_freq));
}
inline testing::wide sin(testing::wide position, double inv_freq) {
  return testing::sin(angle(position, inv_freq));
}

/// Two channels of a head.
using channels = std::array<std::size_t, 2>;

/// Equation 34 of the paper: (x1, x2), (x3, x4), ...
inline channels interleaved(std::size_t i, std::size_t /*pairs*/) { return {2 * i, 2 * i + 1}; }
/// `rotate_half` of Hugging Face transformers: channel i forms a pair with channel i + rotary_dim / 2.
inline channels half_split(std::size_t i, std::size_t pairs) { return {i, i + pairs}; }

/// One head rotated to `position` and scaled by `factor`. Channels from 2 * inv_freq.size() on are copied.
/// `pair_map(i, pairs)` names the two channels of pair i.
template <class PairMap>
std::vector<testing::wide> rotate(std::vector<testing::wide> head, const std::vector<double>& inv_freq,
                                  testing::wide position, PairMap pair_map, testing::wide factor = 1) {
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const channels pair = pair_map(i, inv_freq.size());
    const testing::wide c = factor * cos(position, inv_freq[i]), s = factor * sin(position, inv_freq[i]);
    const testing::wide a = head.at(pair[0]), b = head.at(pair[1]);
    head.at(pair[0]) = a * c - b * s;
    head.at(pair[1]) = b * c + a * s;
  }
  return head;
}

}  // namespace reference

#endif  // ROPE_TESTS_REFERENCE_HPP
