// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_ROTATION_PASS_HPP
#define ROPE_ROTATION_DETAIL_ROTATION_PASS_HPP

#include <algorithm>  // std::copy, std::min, std::max
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>  // prefetch_after
#include <rope/config.hpp>
#include <rope/rotation/detail/converted_row.hpp>
#include <rope/rotation/detail/rotate_token.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// The order in which a checked call of rotate passes through memory.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What a rotation back does with the magnitude m: the inverse divides by it; the transpose, by which
/// gradients go back, multiplies by it.
enum class reverse_rotation { inverse, transpose };

/// A checked call. Its members are values, so that a compiler can keep them in registers. It does not depend
/// on the type of the positions, so that its loops are compiled once and not once per type.
template <class Layout, bool inverse, class T, class S>
class rotation {
  using A = arithmetic<T>;

 public:
  rotation(const head_view<const T>& x, const head_view<T>& out, const placed_table<S>& placed,
           reverse_rotation back = reverse_rotation::inverse)
      : x_(with_taken_strides(x)),
        out_(with_taken_strides(out)),
        table_(placed.table().view()),
        first_channel_(placed.first_channel()),
        in_place_(x.data == out.data) {
    const double m = placed.table().attention_factor();
    invert_rows_ = back == reverse_rotation::inverse && (table_.given || !has_inverse_square<S>(m));
    if (!invert_rows_ && !table_.given && back == reverse_rotation::inverse)
      scale_ = static_cast<S>(1 / (m * m));
    if (invert_rows_ && !table_.given) unit_ = std::ldexp(1.0, -std::ilogb(m));
    converts_rows_ = converts_rows<T>(table_, m);
    streams_ = bytes() > Index{1} << 18;  // a part of a core's own cache
    // Prefetching helps four heads side by side, or one and its table, where they come from memory (0.53 ->
    // 0.98 and 0.69 -> 1.0 of the speed of x *= a, Zen 5). Where the heads of a token are next to each other
    // processors find the two streams by themselves, and it made prefill slower (0.97 -> 0.76, Zen 4).
    if ((x_.heads == 1 || !is_token_major()) && bytes() >= Index{1} << 24)
      tokens_ahead_ = (std::max)(Index{1}, (x_.heads == 1 ? 4096 : 2048) / bytes_of_head());
  }

  /// Tokens of the batch, laid end to end.
  Index tokens() const { return x_.batch * x_.tokens; }
  /// Bytes that rotate.
  double bytes() const { return cost_of(tokens(), x_.heads, bytes_of_head()); }
  Index bytes_of_head() const { return 2 * table_.pairs * Index(sizeof(T)); }
  /// How many rows of the table fit a core's own cache beside the data.
  Index block() const {
    constexpr Index table_bytes = Index{1} << 16;
    return (std::max)(Index{1}, table_bytes / (2 * table_.pairs * Index(sizeof(S))));
  }

  /// Rotates every head of tokens [first, last) of the batch, token t of row b at positions(b, t).
  template <class Source>
  void run(const Source& positions, Index first, Index last) const {
    constexpr Index most = 256;
    std::int64_t found[most];
    while (first < last) {
      const Index b = first < x_.tokens ? 0 : first / x_.tokens, t = first - b * x_.tokens;
      const Index count = (std::min)({last - first, x_.tokens - t, most});
      for (Index i = 0; i < count; ++i) found[i] = positions(b, t + i);
      run_row(b, t, t + count, found);
      first += count;
    }
  }

 private:
  /// A view whose head_stride may be added to a pointer: that of one head alone may be anything, and becomes
  /// 0.
  template <class X>
  static head_view<X> with_taken_strides(head_view<X> x) {
    if (x.heads == 1) x.head_stride = 0;
    return x;
  }

  void run_row(Index b, Index first, Index last, const std::int64_t* positions) const;

  /// Whether the heads of a token are next to each other, not the tokens of a head.
  bool is_token_major() const { return x_.token_stride >= x_.head_stride || x_.tokens == 1; }

  /// Whether one head, or heads_per_table_read at a time, are the fastest way through rows of several blocks
  /// where the data is larger than L2. Where the heads of a token are next to each other, half_split is 1.03
  /// times as fast in rotate_in_order (AVX2, Zen 3).
  bool takes_groups(Index two_blocks) const {
    if (x_.heads == 1) return true;
    return heads_per_table_read > 1 && table_.pairs <= two_blocks &&
           (std::is_same_v<Layout, interleaved> || !is_token_major());
  }

  /// Tokens [first, last) of row b, `streams` heads at a time, where the rows of the table are whole blocks.
  /// The number of steps of a block is then found once for all tokens; found for each, it took as long as the
  /// rotation of a head.
  ///
  /// \return  false, and nothing is done, where rows are no whole blocks or another form is faster
  template <bool split_even_odd>
  bool run_whole_blocks(Index b, Index first, Index last, const std::int64_t* positions,
                        Index streams) const {
    using form = kernel_variant<Layout, T>;
    using P = packet<A>;
    constexpr bool again = split_even_odd == form::split_if_reloaded;
    if (invert_rows_ || (!std::is_same_v<S, A> && !converts_rows_)) return false;
    if (!is_whole_blocks<Layout, T, split_even_odd>(table_.pairs)) return false;
    if (streams_ && x_.heads > 1 && !in_place_ && !again && !form::resident_faster_out_of_place) return false;
    constexpr Index pairs = pairs_in_block<Layout, T, P, split_even_odd>,
                    group = again ? heads_per_table_read : 0;
    const bool in_groups = streams_ && table_.pairs > pairs;
    if (in_groups && !(again && takes_groups(2 * pairs))) return false;
    if (x_.heads > 1) {
      constexpr Index line = Index(sizeof(P) / sizeof(T));
      if (shifts_heads<P> &&
          (channels_to_line<P>(x_.at(b, first, 0) + first_channel_) != 0 || x_.token_stride % line != 0))
        return false;
    }
    const Index tokens = streams >= x_.heads ? last - first : block();
    with_steps_of_blocks<Layout, T, split_even_odd>(table_.pairs, [&](auto steps) {
      for (Index begin = first; begin < last; begin += tokens)
        for (Index h = 0; h < x_.heads; h += streams) {
          const Index end = (std::min)(begin + tokens, last), heads = (std::min)(streams, x_.heads - h);
          const auto rotate_some = [&](auto together) {
            rotate_tokens<split_even_odd, together>(steps, b, begin, end, positions + (begin - first), h,
                                                    heads);
          };
          if (in_groups)
            rotate_some(std::integral_constant<Index, group>{});
          else
            rotate_some(std::integral_constant<Index, 0>{});
        }
    });
    return true;
  }

  /// Prefetches the channels of heads, and for one head alone its row of the table, which may lie outside of
  /// the table. Inline: GCC 12 drops calls of a function that does nothing else.
  EIGEN_ALWAYS_INLINE void prefetch_heads(const T* in, Index heads, std::int64_t position) const {
    constexpr std::uintptr_t line = 64;
    const auto bytes = static_cast<std::uintptr_t>(bytes_of_head()), row = bytes / sizeof(T) * sizeof(S);
    for (Index h = 0; h < heads; ++h)
      for (std::uintptr_t at = 0; at < bytes; at += line) prefetch_after(in + h * x_.head_stride, at);
    for (std::uintptr_t at = 0; heads == 1 && at < row; at += line)
      prefetch_after(table_.entries, static_cast<std::uintptr_t>(position - table_.first) * row + at);
  }

  /// Heads [head, head + heads) of tokens [first, last) of row b. Not inline: in one function with the loops
  /// for all other numbers of steps, this one no longer held the strides of heads in registers.
  template <bool split_even_odd, Index together, class Steps>
  EIGEN_DONT_INLINE void rotate_tokens(Steps steps, Index b, Index first, Index last,
                                       const std::int64_t* positions, Index head, Index heads) const {
    // Local copies: a compiler has to assume that a store of channels changes members, and would read them
    // again.
    const table_view<S> table = table_;
    const S scale = scale_;
    const bool in_place = in_place_;
    const Index in_stride = x_.token_stride, out_stride = out_.token_stride;
    const T* const in = x_.at(b, first, head) + first_channel_;
    T* const out = out_.at(b, first, head) + first_channel_;
    const Index in_head_stride = x_.head_stride, out_head_stride = out_.head_stride;
    const Index ahead = tokens_ahead_ > 0 ? tokens_ahead_ : last - first;
    for (Index t = first; t < last; ++t) {
      if (t + ahead < last)
        prefetch_heads(in + (t + ahead - first) * in_stride, heads, positions[t + ahead - first]);
      const token_heads<T> token = {in + (t - first) * in_stride, out + (t - first) * out_stride, heads,
                                    in_head_stride, out_head_stride};
      const std::int64_t position = positions[t - first];
      const bool identity = table.is_identity(position);
      if (!in_place) copy(token, identity ? 0 : 2 * table.pairs);
      if (identity) continue;
      const S* cos = table.cos(position);
      const table_row<S, inverse> row = {cos, cos + table.pairs, table.pairs, scale};
      with_row<T>(row, converts_rows_, [&](const auto& entries) {
        if constexpr (std::is_same_v<decltype(entries.scale), A>)
          rotate_whole_blocks<Layout, packet<A>, split_even_odd, together>(steps, token, entries);
        else
          rotate_token<Layout>(token, entries, streams_);
      });
    }
  }

  /// Heads [first, first + heads) of token t of row b, which is at `position`.
  EIGEN_ALWAYS_INLINE void rotate_heads(Index b, Index t, std::int64_t position, Index first,
                                        Index heads) const {
    const token_heads<T> token = {x_.at(b, t, first) + first_channel_, out_.at(b, t, first) + first_channel_,
                                  heads, x_.head_stride, out_.head_stride};
    const bool identity = table_.is_identity(position);
    if (!in_place_) copy(token, identity ? 0 : 2 * table_.pairs);
    if (identity) return;
    const S* cos = table_.cos(position);
    if constexpr (inverse)
      if (invert_rows_) cos = inverted_row(cos, table_.pairs, unit_);
    const table_row<S, inverse> row = {cos, cos + table_.pairs, table_.pairs, scale_};
    with_row<T>(row, converts_rows_,
                [&](const auto& entries) { rotate_token<Layout>(token, entries, streams_); });
  }

  /// Copies the channels that do not rotate: all but `rotating` of them from first_channel_ on.
  void copy(token_heads<T> token, Index rotating) const {
    const auto copy_range = [&token](Index first, Index last) {
      for (Index h = 0; h < token.heads; ++h)
        std::copy(token.in + h * token.in_stride + first, token.in + h * token.in_stride + last,
                  token.out + h * token.out_stride + first);
    };
    if (first_channel_ > 0) copy_range(-first_channel_, 0);
    copy_range(rotating, x_.head_dim - first_channel_);
  }

  head_view<const T> x_;
  head_view<T> out_;
  table_view<S> table_;
  Index first_channel_;
  bool invert_rows_ = false;
  S scale_ = S(1);     // 1 / m^2 of an inverse that divides by it
  double unit_ = 1.0;  // of inverted_row
  bool in_place_;
  bool converts_rows_ = false;  // to the type that channels turn in, once for all heads
  bool streams_ = false;        // whether the data is larger than a core's own cache
  Index tokens_ahead_ = 0;      // how many tokens ahead memory is prefetched; 0: not at all
};

/// Tokens [first, last) of row b, at positions[0], positions[1], ..., in the order of memory. Where the heads
/// of a token are next to each other, these are taken together. Where the tokens of a head are, a few heads
/// are taken side by side and share the table row of a token: one alone would read as much of the table as of
/// its data, all would be too many streams. Not inline, so that programs can have it compiled once.
template <class Layout, bool inverse, class T, class S>
void rotation<Layout, inverse, T, S>::run_row(Index b, Index first, Index last,
                                              const std::int64_t* positions) const {
  const bool token_major = is_token_major();
  const Index streams = token_major ? x_.heads : Index{tokens_ahead_ > 0 ? 4 : 8},
              tokens = token_major ? last - first : block();
  if constexpr (turns_in_packets<Layout, T, A>) {
    using form = kernel_variant<Layout, T>;
    constexpr bool held = form::split_if_resident, again = form::split_if_reloaded;
    const bool several = x_.heads > 1, pays = !several || last - first > 1;
    if (pays && several && run_whole_blocks<held>(b, first, last, positions, streams)) return;
    if (pays && (!several || held != again) && run_whole_blocks<again>(b, first, last, positions, streams))
      return;
  }
  for (Index begin = first; begin < last; begin += tokens)
    for (Index h = 0; h < x_.heads; h += streams) {
      const Index end = (std::min)(begin + tokens, last), heads = (std::min)(streams, x_.heads - h);
      for (Index t = begin; t < end; ++t) {
        if (const Index later = t + tokens_ahead_; later > t && later < end)
          prefetch_heads(x_.at(b, later, h) + first_channel_, heads, positions[later - first]);
        rotate_heads(b, t, positions[t - first], h, heads);
      }
    }
}

/// Rotates every head of `x` into `out`, which may be `x`; nothing is checked any more.
template <class Layout, bool inverse, class T, class S, class Source, class Threads = this_thread>
void rotate_all(const head_view<const T>& x, const head_view<T>& out, const placed_table<S>& table,
                const Source& positions, const Threads& threads = {},
                reverse_rotation back = reverse_rotation::inverse) {
  const rotation<Layout, inverse, T, S> all(x, out, table, back);
  parallel_pieces(threads, all.tokens(), all.bytes(),
                  [&](Index first, Index last) { all.run(positions, first, last); });
}

/// Rotates `q` and `k`, which have the same tokens, in place and block by block, in one pass over the table;
/// nothing is checked any more.
template <class Layout, bool inverse, class T, class S, class Source, class Threads>
void rotate_both(const head_view<T>& q, const head_view<T>& k, const placed_table<S>& table,
                 const Source& positions, const Threads& threads,
                 reverse_rotation back = reverse_rotation::inverse) {
  const rotation<Layout, inverse, T, S> queries(q, q, table, back), keys(k, k, table, back);
  parallel_pieces(threads, queries.tokens(), queries.bytes() + keys.bytes(), [&](Index first, Index last) {
    const Index block = queries.block();
    for (Index begin = first; begin < last; begin += block) {
      const Index end = (std::min)(begin + block, last);
      queries.run(positions, begin, end);
      keys.run(positions, begin, end);
    }
  });
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_DETAIL_ROTATION_PASS_HPP
