// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_TOKENS_HPP
#define ROPE_TESTS_FUZZ_TOKENS_HPP

/// The parts of the plain models of caches: tokens as lists of wide numbers, rotated and attended to by their
/// definitions, each with a bound of the error of rope.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <rope/rotation/quantized_view.hpp>
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

/// The type of new tokens and queries for a cache of T: integers have a scale, and are given as float
/// elsewhere.
template <class T>
inline constexpr bool is_quantized = std::is_same_v<T, std::int8_t>;
template <class T>
using numbers = std::conditional_t<is_quantized<T>, float, T>;

/// cos and sin of count * inv_freq. The product is taken in two parts that are exact up to |count| = 2^37, or
/// if the count has no more bits.
inline std::pair<wide, wide> rotation_at(wide count, double inv_freq) {
  const auto high = static_cast<double>(static_cast<float>(inv_freq));
  const wide a = count * static_cast<wide>(high), b = count * static_cast<wide>(inv_freq - high);
  const wide ca = testing::cos(a), sa = testing::sin(a), cb = testing::cos(b), sb = testing::sin(b);
  return {ca * cb - sa * sb, sa * cb + ca * sb};
}

/// Frequencies of one axis, the magnitude of a table, and its first rotated channel.
struct rotation_rule {
  std::vector<double> inv_freq;
  wide factor = 1;
  bool interleaved = false;
  std::size_t first_channel = 0;
};

/// A key and the error bound of the stored one, in every channel.
struct key {
  channels exact;
  wide error = 0;
};

/// The error of integers and their scale, largest / 127, for channels up to `largest`: half a scale, and
/// 2^-15 of it, as documented for `quantize`. Other types represent the channels of draw_channels.
template <class T>
wide storing_error(wide largest) {
  return is_quantized<T> ? largest / 127 * (0.5L + 0x1p-15L) : wide(0);
}
template <class T>
wide storing_error(const channels& x) {
  wide largest = 0;
  for (const wide value : x) largest = std::max(largest, testing::abs(value));
  return storing_error<T>(largest);
}

/// Rotates the heads of a key, as one more rotation that is stored in T.
///
/// \param rotation  {cos, sin} of pair i
/// \param m         their factor
template <class T, class Rotation>
void rotate_pairs(key& k, std::size_t head_dim, const rotation_rule& rule, wide m, const Rotation& rotation) {
  const std::size_t pairs = rule.inv_freq.size();
  wide longest = 0;
  for (std::size_t head = rule.first_channel; head < k.exact.size(); head += head_dim)
    for (std::size_t i = 0; i < pairs; ++i) {
      wide& a = k.exact[head + (rule.interleaved ? 2 * i : i)];
      wide& b = k.exact[head + (rule.interleaved ? 2 * i + 1 : i + pairs)];
      const auto [cos, sin] = rotation(i);
      const wide x = m * (a * cos - b * sin), y = m * (b * cos + a * sin);
      a = x, b = y;
      longest = std::max(longest, testing::hypot(a, b));
    }
  // The error so far is rotated too, and grows by at most sqrt(2) in a channel. m times an entry adds 0.5
  // ulp.
  k.error = k.error * 1.415L * m;
  k.error += tolerance::rotation_bound<numbers<T>, float>(longest + 2 * k.error) +
             (m == 1 ? wide(0) : tolerance::unit_roundoff<float>() * longest);
  // A head is quantized as a whole, including the channels that do not rotate.
  k.error += storing_error<T>(k.exact) + storing_error<T>(k.error);
}
template <class T>
void rotate_key(key& k, std::size_t head_dim, const rotation_rule& rule, std::int64_t count,
                bool with_factor) {
  rotate_pairs<T>(k, head_dim, rule, with_factor ? rule.factor : wide(1),
                  [&](std::size_t i) { return rotation_at(static_cast<wide>(count), rule.inv_freq[i]); });
}

/// Rotates a key back from its position by one rule and there again by another. The library rotates once, by
/// the difference, so the result is stored once.
template <class T>
void rebase_key(key& k, Index head_dim, const rotation_rule& back, const rotation_rule& there,
                std::int64_t position) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const wide error = k.error;
  rotate_key<arithmetic<T>>(k, dim, back, -position, false);
  k.error = error;
  rotation_rule quotient = there;
  quotient.factor = there.factor / back.factor;
  rotate_key<T>(k, dim, quotient, position, true);
}

/// Numbers that float, the 16-bit types and T represent, so that one list serves views of each. Integers
/// represent them nearly.
template <class T>
channels draw_channels(bytes& b, std::size_t count) {
  channels x(count);
  std::uint64_t state = b.bits(1) + 1;
  for (wide& value : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<wide>(
        static_cast<numbers<T>>(static_cast<float>(static_cast<int>(state >> 57) - 64) / 32));
  }
  return x;
}

/// One channel of stored heads.
template <class T>
wide channel(const rope::head_view<T>& x, Index b, Index t, Index h, Index d) {
  const auto number = static_cast<wide>(x.at(b, t, h)[d]);
  if constexpr (std::is_same_v<std::remove_const_t<T>, std::int8_t>)
    return static_cast<wide>(*x.scale_at(b, t, h)) * number;
  else
    return number;
}

/// Whether a head has the expected channels.
template <class View>
bool near(const View& x, Index b, Index t, Index h, const wide* exact, wide error) {
  for (Index d = 0; d < x.head_dim; ++d)
    if (!(testing::abs(channel(x, b, t, h, d) - exact[d]) <= error)) return false;
  return true;
}

/// Whether a head in a slot of a row is that of a token of the model: keys have their error, and values that
/// of storing them in T.
template <class T, class View>
bool has_head(const View& x, Index slot, Index h, const key& heads) {
  return near(x, 0, slot, h, heads.exact.data() + h * x.head_dim, heads.error);
}
template <class T, class View>
bool has_head(const View& x, Index slot, Index h, const channels& heads) {
  return near(x, 0, slot, h, heads.data() + h * x.head_dim, storing_error<T>(heads));
}

/// The heads of a token, as they are stored.
template <class View>
channels stored_channels(const View& x, Index b, Index t) {
  channels heads;
  for (Index h = 0; h < x.heads; ++h)
    for (Index d = 0; d < x.head_dim; ++d) heads.push_back(channel(x, b, t, h, d));
  return heads;
}

/// One query head against keys and values, [value_dim].
///
/// \param scale  of a score; 0: 1 / sqrt(head_dim)
inline channels attend(const wide* query, std::size_t head_dim, const std::vector<const wide*>& keys,
                       const std::vector<const wide*>& values, std::size_t value_dim, wide scale = 0) {
  channels out(value_dim, 0), scores;
  wide largest = 0, sum = 0;
  for (const wide* k : keys) {
    wide score = 0;
    for (std::size_t d = 0; d < head_dim; ++d) score += query[d] * k[d];
    scores.push_back(scale == 0 ? score / testing::sqrt(static_cast<wide>(head_dim)) : score * scale);
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

/// The largest error of a score of head h of a query. A score is a sum of products of channels with an error
/// of `error` each. With L the sum of the magnitudes of dim products, its error is (dim + 8) u L plus the
/// effect of the errors. The relative error of a weight is twice that.
template <class Q>
wide score_error(const key& query, const std::vector<key>& keys, Index h, Index heads, Index group) {
  const std::size_t head_dim = query.exact.size() / static_cast<std::size_t>(heads);
  const wide *q = query.exact.data() + static_cast<std::size_t>(h) * head_dim,
             dim = static_cast<wide>(head_dim);
  wide off = 0;
  for (const key& one : keys) {
    const wide* k = one.exact.data() + static_cast<std::size_t>(h / group) * head_dim;
    wide score = 0;
    for (std::size_t d = 0; d < head_dim; ++d) {
      const wide a = testing::abs(q[d]), b = testing::abs(k[d]);
      score += (dim + 8) * tolerance::unit_roundoff<Q>() * a * b + query.error * b + one.error * a +
               query.error * one.error;
    }
    off = std::max(off, score / testing::sqrt(dim));
  }
  return off;
}

/// The heads of a query against the keys and values that are visible to it, compared with the output of a
/// call.
template <class Q>
void check_attended(const char* claim, const rope::head_view<Q>& out, Index r, Index i, Index group,
                    const key& query, const std::vector<key>& keys, const std::vector<channels>& values) {
  const auto value_dim = static_cast<std::size_t>(out.head_dim);
  for (Index h = 0; h < out.heads; ++h) {
    const std::size_t head_dim = query.exact.size() / static_cast<std::size_t>(out.heads);
    const auto head = static_cast<std::size_t>(h), kv_head = static_cast<std::size_t>(h / group);
    std::vector<const wide*> seen_keys, seen_values;
    wide largest_value = 0;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      seen_keys.push_back(keys[j].exact.data() + kv_head * head_dim);
      seen_values.push_back(values[j].data() + kv_head * value_dim);
      for (std::size_t d = 0; d < value_dim; ++d)
        largest_value = std::max(largest_value, testing::abs(seen_values.back()[d]));
    }
    const wide bound =
        largest_value * (2.02L * score_error<Q>(query, keys, h, out.heads, group) +
                         (60 + static_cast<wide>(keys.size())) * tolerance::unit_roundoff<Q>());
    const channels exact =
        attend(query.exact.data() + head * head_dim, head_dim, seen_keys, seen_values, value_dim);
    check(near(out, r, i, h, exact.data(), bound), claim);
  }
}
/// Calls add(j, weight, bound) for the weight of every key that is visible to head h of a query, and the
/// bound of its error. The weights are the output if the value of key j is 1 in channel j.
template <class Q, class Add>
void add_weights(const key& query, const std::vector<key>& keys, Index h, Index heads, Index group,
                 const Add& add) {
  const std::size_t head_dim = query.exact.size() / static_cast<std::size_t>(heads);
  const wide bound = 2.02L * score_error<Q>(query, keys, h, heads, group) +
                     (60 + static_cast<wide>(keys.size())) * tolerance::unit_roundoff<Q>();
  std::vector<const wide*> seen, values;
  std::vector<channels> one(keys.size(), channels(keys.size()));
  for (std::size_t j = 0; j < keys.size(); ++j) {
    seen.push_back(keys[j].exact.data() + static_cast<std::size_t>(h / group) * head_dim);
    one[j][j] = 1;
    values.push_back(one[j].data());
  }
  const channels weights = attend(query.exact.data() + static_cast<std::size_t>(h) * head_dim, head_dim, seen,
                                  values, keys.size());
  for (std::size_t j = 0; j < keys.size(); ++j) add(j, weights[j], bound);
}
/// Padding of a call is zero.
template <class Q>
void check_padding(const rope::head_view<Q>& out, Index r, Index i) {
  for (Index h = 0; h < out.heads; ++h)
    for (Index d = 0; d < out.head_dim; ++d) check(out.at(r, i, h)[d] == Q(0), "padding gives zeros");
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_TOKENS_HPP
