// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_HEADS_HPP
#define ROPE_TESTS_HEADS_HPP

/// Views of heads to rotate: visited, compared bit by bit, guarded, and the error of a whole view against the
/// reference.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>
#include <tuple>
#include <type_traits>
#include <vector>

#include "support/reference.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace testing {

using rope::Index;

/// A channel type with a table type.
template <class T, class S>
struct types {
  using channel = T;
  using entry = S;
};

/// Every channel type with the table type of its arithmetic, for which packets are used.
using native_types = std::tuple<types<float, float>, types<double, double>, types<Eigen::half, float>,
                                types<Eigen::bfloat16, float>>;
using all_types = std::tuple<types<float, float>, types<double, double>, types<Eigen::half, float>,
                             types<Eigen::bfloat16, float>, types<float, double>, types<double, float>,
                             types<Eigen::half, double>, types<Eigen::bfloat16, double>>;

/// Calls `check` with each of the two layouts of the library.
template <class Check>
void for_each_layout(Check check) {
  check(rope::interleaved{});
  check(rope::half_split{});
}

template <class Layout>
inline constexpr const char* name_of =
    std::is_same_v<Layout, rope::interleaved> ? "interleaved" : "half_split";

/// The pairs of a layout under a name that the library does not know, so that it rotates them one at a time.
template <class Layout>
struct scalar_twin {
  static constexpr Index first(Index i, Index pairs) { return Layout::first(i, pairs); }
  static constexpr Index second(Index i, Index pairs) { return Layout::second(i, pairs); }
};

/// Fills with NaN of both signs and many payloads, most of them signalling: arithmetic and conversions change
/// their bits, copies do not.
template <class T>
void fill_with_nan(std::vector<T>& x) {
  constexpr bool big_endian = std::endian::native == std::endian::big;
  constexpr std::size_t end_of_significand = big_endian ? sizeof(T) - 1 : 0,
                        sign = sizeof(T) - 1 - end_of_significand;
  const T infinity = Eigen::NumTraits<T>::infinity();
  for (std::size_t i = 0; i < x.size(); ++i) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &infinity, sizeof(T));
    bytes[end_of_significand] = static_cast<unsigned char>(bytes[end_of_significand] | (1 + i % 63));
    bytes[sign] = static_cast<unsigned char>(bytes[sign] | (i % 2 << 7));
    std::memcpy(static_cast<void*>(&x[i]), bytes, sizeof(T));
  }
}

/// Calls `visit(b, t, h)` for every head.
template <class T, class Visit>
void for_each_head(const rope::head_view<T>& x, Visit visit) {
  for (Index b = 0; b < x.batch; ++b)
    for (Index t = 0; t < x.tokens; ++t)
      for (Index h = 0; h < x.heads; ++h) visit(b, t, h);
}

/// A view of a tensor for the library.
template <class T>
rope::head_view<T> view(tensor<T>& x) {
  return rope::bshd(x.values.data(), x.batch, x.tokens, x.heads, x.dim);
}
template <class T>
rope::head_view<const T> view(const tensor<T>& x) {
  return rope::bshd(x.values.data(), x.batch, x.tokens, x.heads, x.dim);
}

/// Whether two views of one shape hold the same bits, wherever they are.
template <class T, class U>
bool same_heads(const rope::head_view<T>& a, const rope::head_view<U>& b) {
  bool same = a.batch == b.batch && a.tokens == b.tokens && a.heads == b.heads && a.head_dim == b.head_dim;
  if (same)
    for_each_head(a, [&](Index i, Index t, Index h) {
      same = same && same_bits<std::remove_const_t<T>>(a.at(i, t, h), b.at(i, t, h), a.head_dim);
      if constexpr (std::is_same_v<std::remove_const_t<T>, std::int8_t>)
        same = same && same_bits<float>(a.scale_at(i, t, h), b.scale_at(i, t, h), 1);
    });
  return same;
}

/// The largest difference of two views of one shape, infinite if a channel is NaN.
template <class T, class U>
double largest_difference(const rope::head_view<T>& a, const rope::head_view<U>& b) {
  double worst = 0;
  for_each_head(a, [&](Index i, Index t, Index h) {
    for (Index d = 0; d < a.head_dim; ++d)
      raise_to(worst,
               std::abs(static_cast<double>(a.at(i, t, h)[d]) - static_cast<double>(b.at(i, t, h)[d])));
  });
  return worst;
}

/// Copies the heads of `from` to `to`, of the same shape.
template <class T, class U>
void copy_heads(const rope::head_view<T>& from, const rope::head_view<U>& to) {
  for_each_head(
      from, [&](Index b, Index t, Index h) { std::copy_n(from.at(b, t, h), from.head_dim, to.at(b, t, h)); });
}

/// Heads [batch, tokens, heads, dim] of any type in memory. They are NaN until they are written, integers by
/// their scale.
template <class C>
struct owned_heads {
  Index batch, tokens, heads, dim;
  std::vector<C> channels;
  std::vector<float> scales;  // of integers

  owned_heads(Index rows, Index tokens_of_row, Index heads_of_token, Index channels_of_head)
      : batch(rows),
        tokens(tokens_of_row),
        heads(heads_of_token),
        dim(channels_of_head),
        channels(static_cast<std::size_t>(batch * tokens * heads * dim), nan()),
        scales(static_cast<std::size_t>(batch * tokens * heads), std::numeric_limits<float>::quiet_NaN()) {}

  /// \param by_heads  whether the tokens of a head are contiguous
  auto view(bool by_heads = false) { return view_of(*this, by_heads); }
  auto view(bool by_heads = false) const { return view_of(*this, by_heads); }

 private:
  static constexpr bool is_integer = std::is_same_v<C, std::int8_t>;
  static C nan() {
    if constexpr (is_integer)
      return 99;
    else
      return static_cast<C>(std::numeric_limits<float>::quiet_NaN());
  }
  template <class Self>
  static auto view_of(Self& x, bool by_heads) {
    auto* const data = x.channels.data();
    if constexpr (is_integer)
      return by_heads ? rope::bhsd(data, x.scales.data(), x.batch, x.heads, x.tokens, x.dim)
                      : rope::bshd(data, x.scales.data(), x.batch, x.tokens, x.heads, x.dim);
    else
      return by_heads ? rope::bhsd(data, x.batch, x.heads, x.tokens, x.dim)
                      : rope::bshd(data, x.batch, x.tokens, x.heads, x.dim);
  }
};

/// A block of memory full of NaN in which a test places heads. Elements that a call must not touch, or must
/// not read, are detected.
template <class T>
struct guarded_memory {
  std::vector<T> now, before;

  explicit guarded_memory(Index count) : now(static_cast<std::size_t>(count)) {
    fill_with_nan(now);
    before = now;
  }
  T* data() { return now.data(); }

  /// Fills the heads of `x`, a view of this memory, with random channels, and stores a copy.
  void fill(const rope::head_view<T>& x, std::uint32_t seed) {
    const std::vector<T> source = random_channels<T>(x.size(), seed);
    copy_heads(rope::bshd(source.data(), x.batch, x.tokens, x.heads, x.head_dim), x);
    before = now;
  }

  /// Whether all memory outside the heads of `x` has its original bits.
  bool untouched_outside(const rope::head_view<T>& x) const {
    std::vector<T> expected = before;
    for_each_head(x, [&](Index b, Index t, Index h) {
      const auto at = x.at(b, t, h) - now.data();
      std::memcpy(static_cast<void*>(expected.data() + at), now.data() + at,
                  static_cast<std::size_t>(x.head_dim) * sizeof(T));
    });
    return same_bits(now, expected);
  }
  bool untouched() const { return same_bits(now, before); }

  /// The stored copy of the heads of `x`, a view of this memory.
  rope::head_view<const T> remembered(rope::head_view<T> x) const {
    rope::head_view<const T> view = x;
    view.data = before.data() + (x.data - now.data());
    return view;
  }
};

/// The bound of the error of a rotated channel: 16-bit channels are the float result, with an error of at
/// most 3 u, rounded once.
template <class T, class S>
testing::wide channel_bound(testing::wide pair, testing::wide exact) {
  if constexpr (tolerance::is_16_bit<T>)
    return 3 * tolerance::unit_roundoff<float>() * pair + tolerance::ulp<T>(exact) / 2;
  else
    return tolerance::rotation_bound<T, S>(pair) + 0 * exact;
}

/// The largest error of the rotated channels of `after` against the reference, in units of the bound.
/// Infinite if one is NaN. `position_of(b, t)` is the position of a token.
template <class Layout, class S, class T, class PositionOf>
testing::wide worst_error(const rope::head_view<const T>& before, const rope::head_view<const T>& after,
                          const rope::frequencies& frequencies, PositionOf position_of) {
  std::vector<double> inv_freq;
  for (Index i = 0; i < frequencies.pairs(); ++i) inv_freq.push_back(frequencies.inv_freq()(i, 0));
  const auto channels_of = [](std::size_t i, std::size_t pairs) {
    return std::is_same_v<Layout, rope::interleaved> || std::is_same_v<Layout, scalar_twin<rope::interleaved>>
               ? reference::interleaved(i, pairs)
               : reference::half_split(i, pairs);
  };
  const auto m = static_cast<testing::wide>(frequencies.attention_factor());
  // An attention_factor adds one rounding to each entry, so u m to the norm of (cos, sin).
  const testing::wide scaling =
      m == 1 ? 0 : tolerance::unit_roundoff<std::conditional_t<std::is_same_v<T, double>, S, float>>();
  testing::wide worst = 0;
  for_each_head(before, [&](Index b, Index t, Index h) {
    const T *in = before.at(b, t, h), *out = after.at(b, t, h);
    std::vector<testing::wide> head;
    for (Index d = 0; d < before.head_dim; ++d) head.push_back(static_cast<testing::wide>(in[d]));
    const auto exact =
        reference::rotate(head, inv_freq, static_cast<testing::wide>(position_of(b, t)), channels_of, m);
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      const reference::channels pair = channels_of(i, inv_freq.size());
      const testing::wide norm = m * testing::hypot(head[pair[0]], head[pair[1]]);
      for (const std::size_t d : pair) {
        const testing::wide error = testing::abs(static_cast<testing::wide>(out[d]) - exact[d]);
        const testing::wide part = error / (channel_bound<T, S>(norm, exact[d]) + scaling * norm);
        worst = part >= 0 ? (std::max)(worst, part) : std::numeric_limits<testing::wide>::infinity();
      }
    }
  });
  return worst;
}

}  // namespace testing

#endif  // ROPE_TESTS_HEADS_HPP
