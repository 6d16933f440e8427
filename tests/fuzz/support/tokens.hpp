// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_TOKENS_HPP
#define ROPE_TESTS_FUZZ_TOKENS_HPP

/// What the plain models of caches are made of: tokens as lists of wide numbers, turned and attended to by their
/// definitions, each with how far the library's may be from them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace fuzz {

using testing::wide;
using channels = std::vector<wide>;

template <class T>
using arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// cos and sin of count * inv_freq. The product is taken in two parts that are exact up to |count| = 2^37.
inline std::pair<wide, wide> turn_of(std::int64_t count, double inv_freq) {
  const auto high = static_cast<double>(static_cast<float>(inv_freq));
  const wide a = static_cast<wide>(count) * static_cast<wide>(high),
             b = static_cast<wide>(count) * static_cast<wide>(inv_freq - high);
  const wide ca = testing::cos(a), sa = testing::sin(a), cb = testing::cos(b), sb = testing::sin(b);
  return {ca * cb - sa * sb, sa * cb + ca * sb};
}

/// Frequencies of one axis, and the magnitude of a table.
struct rotation_rule {
  std::vector<double> inv_freq;
  wide factor = 1;
  bool interleaved = false;
};

/// A key and how far the stored one may be from it, in every channel.
struct key {
  channels exact;
  wide error = 0;
};

/// Turns the heads of a key, as one more rotation that is stored in T.
template <class T>
void turn(key& k, std::size_t head_dim, const rotation_rule& rule, std::int64_t count, bool with_factor) {
  const std::size_t pairs = rule.inv_freq.size();
  wide longest = 0;
  const wide m = with_factor ? rule.factor : wide(1);
  for (std::size_t head = 0; head < k.exact.size(); head += head_dim)
    for (std::size_t i = 0; i < pairs; ++i) {
      wide& a = k.exact[head + (rule.interleaved ? 2 * i : i)];
      wide& b = k.exact[head + (rule.interleaved ? 2 * i + 1 : i + pairs)];
      const auto [cos, sin] = turn_of(count, rule.inv_freq[i]);
      const wide x = m * (a * cos - b * sin), y = m * (b * cos + a * sin);
      a = x, b = y;
      longest = std::max(longest, testing::hypot(a, b));
    }
  // The error so far is turned too, and grows by sqrt(2) at most in a channel; 0.5 ulp more of m times an entry.
  k.error = k.error * 1.415L * m;
  k.error += tolerance::rotation_bound<T, float>(longest + 2 * k.error) +
             (m == 1 ? wide(0) : tolerance::unit_roundoff<float>() * longest);
}

/// Numbers that both float and T have, so that one list serves views of either.
template <class T>
channels draw_channels(bytes& b, std::size_t count) {
  channels x(count);
  std::uint64_t state = b.bits(1) + 1;
  for (wide& value : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<wide>(static_cast<T>(static_cast<float>(static_cast<int>(state >> 57) - 64) / 32));
  }
  return x;
}

/// Whether stored channels are those expected.
template <class T>
bool near(const T* got, const wide* exact, std::size_t count, wide error) {
  for (std::size_t d = 0; d < count; ++d)
    if (!(testing::abs(static_cast<wide>(got[d]) - exact[d]) <= error)) return false;
  return true;
}

/// Bits of every element of a view.
template <class T>
void add_bits(std::vector<unsigned char>& bits, const rope::head_view<const T>& x) {
  testing::for_each_head(x, [&](Index b, Index t, Index h) {
    const auto* first = reinterpret_cast<const unsigned char*>(x.at(b, t, h));
    bits.insert(bits.end(), first, first + static_cast<std::size_t>(x.head_dim) * sizeof(T));
  });
}
template <class X>
void add_number(std::vector<unsigned char>& bits, X number) {
  const auto* first = reinterpret_cast<const unsigned char*>(&number);
  bits.insert(bits.end(), first, first + sizeof number);
}

/// One query head against keys and values, [value_dim].
inline channels attend(const wide* query, std::size_t head_dim, const std::vector<const wide*>& keys,
                       const std::vector<const wide*>& values, std::size_t value_dim) {
  channels out(value_dim, 0), scores;
  wide largest = 0, sum = 0;
  for (const wide* k : keys) {
    wide score = 0;
    for (std::size_t d = 0; d < head_dim; ++d) score += query[d] * k[d];
    scores.push_back(score / testing::sqrt(static_cast<wide>(head_dim)));
    largest = scores.size() == 1 ? scores.back() : std::max(largest, scores.back());
  }
  for (std::size_t j = 0; j < keys.size(); ++j) {
    const wide weight = testing::exp(scores[j] - largest);
    sum += weight;
    for (std::size_t d = 0; d < value_dim; ++d) out[d] += weight * values[j][d];
  }
  if (sum > 0)
    for (wide& x : out) x /= sum;
  return out;
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_TOKENS_HPP
