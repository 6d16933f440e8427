// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_HEAD_NORM_PASS_HPP
#define ROPE_ROTATION_DETAIL_HEAD_NORM_PASS_HPP

#include <algorithm>  // std::min
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/table.hpp>

/// The order in which a checked call of normalize_heads or normalize_and_rotate reads and writes memory: a
/// few heads of a token are completely processed while they are in L1.

namespace rope::inline ROPE_ABI::detail {

/// out[d] = x[d] r g[d] for d in [0, count). out may be x. Channels are processed in steps of
/// channels_per_step from the first one, for any address. An Eigen expression of the whole row would process
/// the channels before the first aligned one as scalars, and -ffast-math may round scalars differently.
template <class A>
void scale_channels(const A* x, A r, const A* g, Index count, A* out) {
  using step = Eigen::Array<A, channels_per_step, 1>;
  Index d = 0;
  for (; d + channels_per_step <= count; d += channels_per_step)
    Eigen::Map<step>(out + d) = Eigen::Map<const step>(x + d) * r * Eigen::Map<const step>(g + d);
  for (; d < count; ++d) out[d] = x[d] * r * g[d];
}

/// A checked norm. Its mean is over the squares of `group` consecutive heads, and weight[h * head_stride + d]
/// is the weight of channel d of head h.
template <class W>
struct norm_rule {
  std::span<const W> weight;
  Index group, head_stride;
  double epsilon, offset;

  /// offset + weight[i] for every weight, in scratch of the calling thread. The lower bits of a NaN are 0,
  /// as `rounded` requires. Tests the bits, to be correct under -ffast-math too.
  template <class A>
  const A* gains() const {
    A* const list = workspace<struct norm_gains, A>(to_index(weight.size()));
    constexpr std::uint64_t infinity = 0x7ff0000000000000u, sign = std::uint64_t{1} << 63;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double gain = static_cast<double>(static_cast<arithmetic<W>>(weight[i])) + offset;
      const bool is_nan = (bit_cast<std::uint64_t>(gain) & ~sign) > infinity;
      list[i] = is_nan ? std::numeric_limits<A>::quiet_NaN() : static_cast<A>(gain);
    }
    return list;
  }
  /// 1 / rms of a group of heads of `head_dim` channels each, from the sum of their squares.
  template <class A>
  A inverse_rms(double squares, Index head_dim) const {
    return static_cast<A>(1 / std::sqrt(squares / static_cast<double>(group * head_dim) + epsilon));
  }
};

/// Used after the norm if heads are not rotated.
struct without_rotation {
  void operator()(Index /*b*/, Index /*t*/, const auto& /*heads*/) const {}
};

/// Rotates the heads of a token by the table row of a position. Not inline, so that all types of positions
/// share it and programs can compile it once (`extern template`).
template <class Layout, class S, class A>
void rotate_normed_heads(const table_view<S>& table, double m, std::int64_t position, token_heads<A> heads) {
  const S* cos = table.cos(position);
  const table_row<S, false> row = {cos, cos + table.pairs, table.pairs, S(1)};
  with_row<A>(row, converts_rows<A>(table, m), [&](const auto& used) { rotate_token<Layout>(heads, used); });
}

/// Used after the norm if heads are rotated: rotates them by the row of their token's position.
template <class Layout, class S, class Source>
auto row_rotation(const placed_table<S>& placed, const Source& positions) {
  return [positions, table = placed.table().view(), first_channel = placed.first_channel(),
          m = placed.table().attention_factor()](Index b, Index t, auto heads) {
    const std::int64_t position = positions(b, t);
    if (table.is_identity(position)) return;
    heads.in += first_channel;
    heads.out += first_channel;
    rotate_normed_heads<Layout>(table, m, position, heads);
  };
}

/// A checked call: normalises and rotates every head of `x` and writes it to `out`, which may be `x`.
template <class T, class W, class Rotation>
struct norm_pass {
  using A = arithmetic<T>;

  head_view<const T> x;
  head_view<T> out;
  norm_rule<W> norm;
  Rotation rotation;

  Index tokens() const { return x.batch * x.tokens; }
  double bytes() const { return cost_of(x.size(), sizeof(T)); }

  /// Processes every head of tokens [first, last) of the batch.
  void run(Index first, Index last) const {
    const A* const gains = norm.template gains<A>();
    // If the tokens of a head are adjacent in memory, eight heads are processed together for each token,
    // which reads eight streams in parallel.
    const bool all_heads = is_token_major(x) || norm.group > 1;
    const Index together = all_heads ? x.heads : Index{8};
    for_each_piece(x, first, last, all_heads ? last - first : Index{64}, [&](Index b, Index t, Index count) {
      for (Index h = 0; h < x.heads; h += together)
        for (Index i = t; i < t + count; ++i) run_heads(b, i, h, (std::min)(together, x.heads - h), gains);
    });
  }

 private:
  /// Processes heads [first, first + heads) of token t of row b.
  void run_heads(Index b, Index t, Index first, Index heads, const A* gains) const {
    const Index head_dim = x.head_dim;
    A* rows;
    Index stride = head_dim;
    if constexpr (std::is_same_v<T, A>) {
      rows = out.at(b, t, first);
      stride = out.heads == 1 ? 0 : out.head_stride;  // the stride of a single head is arbitrary
    } else {
      rows = workspace<struct wide_heads, A>(heads * head_dim);
      for (Index h = 0; h < heads; ++h) widen(x.at(b, t, first + h), head_dim, rows + h * stride);
    }
    const auto channels = [&](Index h) -> const A* {
      if constexpr (std::is_same_v<T, A>)
        return x.at(b, t, first + h);
      else
        return rows + h * stride;
    };
    for (Index g = 0; g < heads; g += norm.group) {
      double squares = 0;
      for (Index h = g; h < g + norm.group; ++h) squares += sum_of_squares(channels(h), head_dim);
      const A inverse = norm.template inverse_rms<A>(squares, head_dim);
      for (Index h = g; h < g + norm.group; ++h)
        scale_channels(channels(h), inverse, gains + (first + h) * norm.head_stride, head_dim,
                       rows + h * stride);
    }
    rotation(b, t, token_heads<A>{rows, rows, heads, stride, stride});
    if constexpr (!std::is_same_v<T, A>)
      for (Index h = 0; h < heads; ++h)
        round_channels<T>(rows + h * stride, head_dim, out.at(b, t, first + h));
  }
};
template <class X, class T, class W, class Rotation>
norm_pass(X, head_view<T>, norm_rule<W>, Rotation) -> norm_pass<T, W, Rotation>;

/// The number of tokens whose queries and keys are both normalised before the next tokens.
inline constexpr Index tokens_of_norm = 32;

/// Normalises every head of `x` and rotates it into `out`, which may be `x`. The arguments must be checked.
template <class Layout, class T, class W, class S, class Source, class Threads = this_thread>
void normalize_and_rotate_all(const head_view<const T>& x, const head_view<T>& out, const norm_rule<W>& norm,
                              const placed_table<S>& table, const Source& positions,
                              const Threads& threads = {}) {
  run_plans(threads, tokens_of_norm, norm_pass{x, out, norm, row_rotation<Layout>(table, positions)});
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_HEAD_NORM_PASS_HPP
