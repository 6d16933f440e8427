// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_ROTATION_PLAN_HPP
#define ROPE_ROTATION_DETAIL_ROTATION_PLAN_HPP

#include <algorithm>  // std::copy, std::min, std::max
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>  // prefetch_after, multiply_add
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/table.hpp>

/// The order in which a checked call of rotate reads and writes memory.
///
/// Some table rows are converted before use, once for all heads of a token: rows whose entries differ in type
/// from the arithmetic, and rows of an inverse that are not a constant times those of the table.

namespace rope::inline ROPE_ABI::detail {

/// Whether 1 / m^2 is a normal number of S, far from the range where products with it lose bits.
template <class S>
bool has_inverse_square(double m) {
  constexpr double largest = std::is_same_v<S, float> ? 0x1p50 : 0x1p400;
  return m <= largest && m >= 1 / largest;
}

/// Whether table entries are converted to the arithmetic type of channels T before they are used. A double
/// entry rounded to float is the entry of a float table. But an entry beyond the range of float would become
/// infinite, and its product with a channel of 0 NaN. For float channels, a table that may have such entries
/// is therefore not converted, and products are computed in double. For 16-bit channels, only rows with such
/// entries are not converted.
///
/// \param m  the table's attention_factor
template <class T, class S>
bool converts_rows(const table_view<S>& table, double m) {
  using A = arithmetic<T>;
  return sizeof(S) < sizeof(A) || sizeof(T) == 2 || (!table.given && has_inverse_square<A>(m));
}

/// A row converted to A, multiplied by the scale and sign of an inverse. Rows of up to 256 pairs are on the
/// stack, longer rows in scratch of the calling thread.
template <class A>
class converted_row {
 public:
  template <class S, bool inverse>
  explicit converted_row(table_row<S, inverse> row)
      : entries_(row.pairs <= few ? few_ : workspace<converted_row, A>(2 * row.pairs)), pairs_(row.pairs) {
    convert<inverse>(row.cos, row.scale, entries_);
    convert<inverse>(row.sin, -row.scale, entries_ + pairs_);
  }
  converted_row(const converted_row&) = delete;
  converted_row& operator=(const converted_row&) = delete;

  /// Whether every entry is finite in A.
  bool is_finite() const { return all_finite(entries_, 2 * pairs_); }

  table_row<A, false> row() const { return {entries_, entries_ + pairs_, pairs_, A(1)}; }

 private:
  static constexpr Index few = 256;

  /// A loop over cos or sin alone is vectorized. In a loop over both the outputs might overlap the inputs.
  template <bool inverse, class S>
  void convert(const S* from, S scale, A* to) const {
    const Index pairs = pairs_;
    for (Index i = 0; i < pairs; ++i) to[i] = static_cast<A>(inverse ? from[i] * scale : from[i]);
  }

  A few_[2 * few];
  A* entries_;
  Index pairs_;
};

/// Calls rotate(row) with the row that rotates channels T: converted if `converts` is true and no entry
/// exceeds the range of float, otherwise unchanged.
template <class T, class S, bool inverse, class Rotate>
EIGEN_ALWAYS_INLINE void with_row(table_row<S, inverse> row, bool converts, const Rotate& rotate) {
  using A = arithmetic<T>;
  if constexpr (!std::is_same_v<S, A>)
    if (converts)
      if (const converted_row<A> converted(row); sizeof(T) > 2 || converted.is_finite())
        return rotate(converted.row());
  rotate(row);
}

/// The row of the inverse rotations of a token. The inverse of [[c, -s], [s, c]] is its transpose divided by
/// c^2 + s^2. In a table made from angles, this sum is m^2 for every pair. The row is divided before it is
/// used in two cases: in a table of given entries, where the sum differs from pair to pair, and for extreme
/// m, where the sum may leave the range of S.
///
/// \param unit  a power of two near 1 / m, so that (unit m)^2 is near 1
/// \return  c / (c^2 + s^2), then s / (c^2 + s^2), [2 * pairs], in scratch of the calling thread
template <class S>
const S* inverted_row(const S* cos, Index pairs, double unit) {
  S* row = workspace<struct inverted_rows, S>(2 * pairs);
  for (Index i = 0; i < pairs; ++i) {
    const double c = unit * static_cast<double>(cos[i]), s = unit * static_cast<double>(cos[i + pairs]);
    const double scale = unit / multiply_add(c, c, s * s);
    row[i] = static_cast<S>(c * scale);
    row[i + pairs] = static_cast<S>(s * scale);
  }
  return row;
}

/// How a reverse rotation treats the magnitude m: the inverse divides by it, the transpose (for gradients)
/// multiplies by it.
enum class reverse_rotation { inverse, transpose };

/// The order of the heads of a token. together: all heads use a packet of table entries before the next
/// packet is read. of_memory: one or two heads are rotated completely before the next. one: there is one
/// head.
enum class head_order { together, of_memory, one };

/// Whether the heads of a token are adjacent in memory, rather than the tokens of a head.
template <class T>
bool is_token_major(const head_view<T>& x) {
  return x.token_stride >= x.head_stride || x.tokens == 1;
}

/// Runs plans for the same tokens on the caller's threads: all plans process `block` tokens before the next
/// block, while the table rows of the block are in the cache. A plan has tokens(), bytes() and run(first,
/// last).
template <class Threads, class Plan, class... More>
void run_plans(const Threads& threads, Index block, const Plan& plan, const More&... more) {
  parallel_pieces(threads, plan.tokens(), (plan.bytes() + ... + more.bytes()), [&](Index first, Index last) {
    const Index step = sizeof...(More) == 0 ? last - first : block;
    for (; first < last; first += step) {
      const Index end = (std::min)(first + step, last);
      plan.run(first, end);
      (more.run(first, end), ...);
    }
  });
}

/// A checked call. Positions are not part of the type, so its loops are compiled only once for all kinds of
/// positions.
///
/// For few tokens, structs that were just written are not copied, and views are referred to: compilers copy
/// 16 or 32 bytes at once, and such a load waits until the stores of the single fields are complete.
///
/// \tparam in_place  whether x and out are the same view, which leaves the loops more registers. If it is
///                   false they may be the same too
template <class Layout, bool inverse, class T, class S, bool in_place>
class rotation_plan {
  using A = arithmetic<T>;

 public:
  using input = head_view<std::conditional_t<in_place, T, const T>>;

  EIGEN_ALWAYS_INLINE rotation_plan(const input& x ROPE_DETAIL_LIFETIMEBOUND,
                                    const head_view<T>& out ROPE_DETAIL_LIFETIMEBOUND,
                                    const placed_table<S>& placed,
                                    reverse_rotation back = reverse_rotation::inverse)
      : x_(x), out_(out), table_(placed.table().view()), first_channel_(placed.first_channel()) {
    const double m = placed.table().attention_factor();
    if (inverse && back == reverse_rotation::inverse) {
      invert_rows_ = table_.given || !has_inverse_square<S>(m);
      if (!invert_rows_)
        scale_ = static_cast<S>(1 / (m * m));
      else if (!table_.given)
        unit_ = std::ldexp(1.0, -std::ilogb(m));
    }
    converts_rows_ = converts_rows<T>(table_, m);
    if (tokens() != 1) choose_order();
  }

  /// The number of tokens of all rows of the batch.
  Index tokens() const { return x_.batch * x_.tokens; }
  /// The size of the rotated channels in bytes.
  double bytes() const { return cost_of(tokens(), x_.heads, bytes_of_head()); }
  Index bytes_of_head() const { return 2 * table_.pairs * Index(sizeof(T)); }
  /// The number of table rows that fit L2 next to the data.
  Index block() const {
    constexpr Index table_bytes = Index{1} << 16;
    // A table that was moved from has no pairs.
    return (std::max)(Index{1}, table_bytes / (2 * (std::max)(Index{1}, table_.pairs) * Index(sizeof(S))));
  }

  /// Rotates every head of tokens [first, last) of the batch, token t of row b at positions(b, t).
  template <class Source>
  void run(const Source& positions, Index first, Index last) const {
    constexpr Index most = 256;
    std::int64_t found[most];
    for_each_piece(x_, first, last, is_token_major(x_) ? most : (std::min)(most, block()),
                   [&](Index b, Index t, Index count) {
                     ROPE_DETAIL_NOT_UNROLLED
                     for (Index i = 0; i < count; ++i) found[i] = positions(b, t + i);
                     rotate_piece(b, t, count, found);
                   });
  }

  void rotate_few(const std::int64_t* positions) const;
  /// Rotates the only token of the call. Skips what run needs for pieces and threads, which takes as long as
  /// the rotation of a few heads.
  void rotate_one(std::int64_t position) const {
    if (x_.heads > 0) rotate_few(&position);
  }

 private:
  /// The stride between tokens or heads. That of a single one is arbitrary and must not be added to a
  /// pointer.
  static Index step(Index extent, Index stride) { return extent == 1 ? 0 : stride; }

  void rotate_piece(Index b, Index t, Index count, const std::int64_t* positions) const;

  /// Chooses the head order, and the prefetches that are faster if channels are not in a cache. A single
  /// token needs neither. Data of 16 MiB exceeds L2 but fits most shared L3 caches.
  void choose_order() {
    constexpr bool halves = std::is_same_v<Layout, half_split>;
    const bool from_memory = bytes() >= Index{1} << 24;
    in_cache_ = !from_memory;
    // If a row is one block, interleaved heads are read in memory order even if they are rotated together.
    // So, nearly, are half_split heads of at most four cache lines.
    const bool once =
        table_.pairs <= pairs_in_block<Layout, T> && (!halves || bytes_of_head() <= 4 * line_of_cache);
    if (x_.heads == 1)
      order_ = head_order::one;
    else if (from_memory && !once)
      order_ = head_order::of_memory;
    // Prefetching helps if several heads are read in parallel (head-major memory), and for one head and its
    // table row. In token-major memory the hardware prefetches well enough, and prefetching makes prefill
    // slower.
    if ((x_.heads == 1 || !is_token_major(x_)) && from_memory)
      tokens_ahead_ = (std::max)(Index{1}, (x_.heads == 1 ? 4096 : 2048) / bytes_of_head());
    // In head-major memory, two heads at a time are faster for rows of up to two blocks.
    in_twos_ = tokens_ahead_ > 0 && table_.pairs <= 2 * pairs_in_block<Layout, T>;
    reads_ahead_ = halves && from_memory && tokens_ahead_ == 0;
  }

  /// Prefetches the channels of heads and, if there is one head, its table row, to L2 (attention's
  /// prefetch.hpp says why not to L1). The position may be outside the table. Inline because GCC 12 drops
  /// calls of a function that only prefetches.
  EIGEN_ALWAYS_INLINE void prefetch_heads(const T* in, Index heads, std::int64_t position) const {
    constexpr auto line = static_cast<std::uintptr_t>(line_of_cache);
    const auto bytes = static_cast<std::uintptr_t>(bytes_of_head()), row = bytes / sizeof(T) * sizeof(S);
    for (Index h = 0; h < heads; ++h)
      for (std::uintptr_t at = 0; at < bytes; at += line) prefetch_after<2>(in + h * x_.head_stride, at);
    for (std::uintptr_t at = 0; heads == 1 && at < row; at += line)
      prefetch_after<2>(table_.entries, static_cast<std::uintptr_t>(position - table_.first) * row + at);
  }

  /// Rotates the heads of `count` tokens at positions[0], positions[1], ...; x is the first token. Not inline
  /// and with few variables, because its loops need the registers.
  template <head_order order>
  EIGEN_DONT_INLINE void rotate_tokens(const token_heads<T>& first, Index count,
                                       const std::int64_t* positions) const {
    token_heads<T> x = {first.in, first.out, first.heads, first.in_stride, first.out_stride};
    const table_view<S> table = table_;
    const S scale = scale_;
    const Index in_step = step(count, x_.token_stride), out_step = step(count, out_.token_stride);
    const Index ahead = tokens_ahead_ > 0 ? tokens_ahead_ : count;
    for (Index t = 0; t < count; ++t, x.in += in_step, x.out += out_step) {
      if constexpr (order == head_order::together) ROPE_DETAIL_NO_VECTOR_KEPT;
      const token_heads<T> token = {in_place ? x.out : x.in, x.out, x.heads,
                                    in_place ? x.out_stride : x.in_stride, x.out_stride};
      if (t + ahead < count) prefetch_heads(token.in + ahead * in_step, x.heads, positions[t + ahead]);
      if (table.is_identity(positions[t])) {
        if constexpr (!in_place) copy(token, 1, 0);
        continue;
      }
      const S* cos = table.cos(positions[t]);
      if constexpr (inverse)
        if (invert_rows_) cos = inverted_row(cos, table.pairs, unit_);
      const table_row<S, inverse> row = {cos, cos + table.pairs, table.pairs, scale};
      if constexpr (std::is_same_v<S, arithmetic<T>>)  // a lambda would be a call per token
        rotate_heads<order>(token, row);
      else
        with_row<T>(row, converts_rows_, [&](const auto& entries) { rotate_heads<order>(token, entries); });
    }
  }

  template <head_order order, class Row>
  EIGEN_ALWAYS_INLINE void rotate_heads(const token_heads<T>& token, const Row& row) const {
    if constexpr (order == head_order::one)
      rotate_token<Layout, true>(token.range(0, 1), row);
    else if constexpr (order == head_order::of_memory)
      rotate_token_in_order<Layout>(token, row, in_twos_, reads_ahead_);
    else
      rotate_token<Layout>(token, row, in_cache_);
  }

  /// Copies the channels of `count` tokens that are not rotated: all except `rotating` channels from
  /// first_channel_ on.
  EIGEN_DONT_INLINE void copy(const token_heads<T>& x, Index count, Index rotating) const {
    if (x.in == x.out || rotating == x_.head_dim) return;
    const Index first = -first_channel_, last = first + x_.head_dim;
    for (Index t = 0; t < count; ++t)
      for (Index h = 0; h < x.heads; ++h) {
        const T* in = x.in + t * x_.token_stride + h * x.in_stride;
        T* out = x.out + t * out_.token_stride + h * x.out_stride;
        std::copy(in + first, in, out + first);
        std::copy(in + rotating, in + last, out + rotating);
      }
  }

  const input& x_;
  const head_view<T>& out_;
  table_view<S> table_;
  Index first_channel_;
  bool invert_rows_ = false;
  S scale_ = S(1);              // 1 / m^2 of an inverse that divides by it
  double unit_ = 1.0;           // argument of inverted_row
  bool converts_rows_ = false;  // whether rows are converted to the arithmetic type
  head_order order_ = head_order::together;
  bool in_cache_ = true;                        // argument of rotate_token
  bool in_twos_ = false, reads_ahead_ = false;  // arguments of rotate_token_in_order
  Index tokens_ahead_ = 0;                      // prefetch distance in tokens; 0: no prefetching
};

/// Rotates `count` tokens of row b, from token t on, at positions[0], positions[1], ..., in memory order. If
/// the heads of a token are adjacent in memory, rotate_tokens gets all of them. If the tokens of a head are
/// adjacent, a few heads are rotated together and share the table row of a token. One head at a time would
/// read as many bytes of the table as of the head, and all heads together would be too many streams. Not
/// inline, so that programs can compile it once.
template <class Layout, bool inverse, class T, class S, bool in_place>
void rotation_plan<Layout, inverse, T, S, in_place>::rotate_piece(Index b, Index t, Index count,
                                                                  const std::int64_t* positions) const {
  const Index together = is_token_major(x_) ? x_.heads : Index{tokens_ahead_ > 0 ? 4 : 8};
  for (Index h = 0; h < x_.heads; h += together) {
    const token_heads<T> x = {x_.at(b, t, h) + first_channel_, out_.at(b, t, h) + first_channel_,
                              (std::min)(together, x_.heads - h), step(x_.heads, x_.head_stride),
                              step(x_.heads, out_.head_stride)};
    if (x.in != x.out && 2 * table_.pairs != x_.head_dim) copy(x, count, 2 * table_.pairs);
    if (order_ == head_order::of_memory)
      rotate_tokens<head_order::of_memory>(x, count, positions);
    else if (order_ == head_order::one)
      rotate_tokens<head_order::one>(x, count, positions);
    else
      rotate_tokens<head_order::together>(x, count, positions);
  }
}

/// Rotates the tokens of row 0 at positions[0], positions[1], ..., as rotate_piece does.
/// head_order::of_memory is for more tokens than a cache holds, so only the other orders are compiled here.
template <class Layout, bool inverse, class T, class S, bool in_place>
void rotation_plan<Layout, inverse, T, S, in_place>::rotate_few(const std::int64_t* positions) const {
  const token_heads<T> x = {x_.data + first_channel_, out_.data + first_channel_, x_.heads,
                            step(x_.heads, x_.head_stride), step(x_.heads, out_.head_stride)};
  if constexpr (!in_place) copy(x, x_.tokens, 2 * table_.pairs);
  x_.heads == 1 ? rotate_tokens<head_order::one>(x, x_.tokens, positions)
                : rotate_tokens<head_order::together>(x, x_.tokens, positions);
}

/// A rotation_plan together with its positions.
template <class Plan, class Source>
struct plan_at {
  const Plan& plan;
  const Source& positions;

  Index tokens() const { return plan.tokens(); }
  double bytes() const { return plan.bytes(); }
  void run(Index first, Index last) const { plan.run(positions, first, last); }
};
template <class Plan, class Source>
plan_at(const Plan&, const Source&) -> plan_at<Plan, Source>;

/// Rotates every head of `x` into `out`, which is `x` if `in_place`. The arguments must be checked.
template <class Layout, bool inverse, bool in_place = false, class T, class S, class Source,
          class Threads = this_thread>
void rotate_into(const typename rotation_plan<Layout, inverse, T, S, in_place>::input& x,
                 const head_view<T>& out, const placed_table<S>& table, const Source& positions,
                 const Threads& threads = {}, reverse_rotation back = reverse_rotation::inverse) {
  const rotation_plan<Layout, inverse, T, S, in_place> all(x, out, table, back);
  if (all.tokens() == 1) return all.rotate_one(positions(0, 0));
  run_plans(threads, all.block(), plan_at{all, positions});
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_ROTATION_PLAN_HPP
