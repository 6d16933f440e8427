// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFETCH_HPP
#define ROPE_ATTENTION_DETAIL_PREFETCH_HPP

#include <algorithm>  // std::max, std::min
#include <cstddef>
#include <cstdint>
#include <utility>  // std::index_sequence

#include <rope/attention/detail/rows.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// Prefetching of keys and values while decoding.
///
/// Processors do not prefetch the reads of decoding by themselves, because several keys are read at the same
/// time and the tokens of one head may be far apart. So while one batch of tokens is processed, the next
/// batch is prefetched to L2 by cache lines, in memory order. A core can wait for a few lines of L1 at a
/// time. On Zen 4, where this was measured, these are too few for the bandwidth of memory, so prefetching to
/// L1 is slower. A processor may drop a prefetch. If the tokens of a head are contiguous, each line is
/// therefore prefetched a second time, to L1, a few tokens before its use. If the heads of a token are
/// contiguous, the second prefetch costs more time than it saves.
///
/// Decoding with keys of many layers needs prefetching: one query, 1024 keys, 32 query heads and 8 key heads
/// of 128 channels (benchmark row bhsd/1x1024x32+8x128). Decoding from pages of 16 keys needs the second
/// prefetch (1x16384x32+8x128). Loads instead of prefetches are slower.

namespace rope::inline ROPE_ABI::detail {

inline constexpr Index line_bytes = 64;

/// Prefetches the cache line at `address`, which need not be inside an allocation, to L1 or L2.
template <int level>
EIGEN_ALWAYS_INLINE void prefetch_line(std::uintptr_t address) {
  prefetch_after<level>(static_cast<const char*>(nullptr), address);
}

/// The address of x[channels], which need not be inside an allocation.
template <class X>
EIGEN_ALWAYS_INLINE std::uintptr_t address_after(const X* x, std::ptrdiff_t channels) {
  constexpr std::ptrdiff_t bytes = sizeof(X);
  return reinterpret_cast<std::uintptr_t>(x) + static_cast<std::uintptr_t>(channels * bytes);
}

/// The addresses of the second prefetch, token by token: first the addresses of the current rows, then those
/// of the rows that are read next.
struct repeated_prefetch {
  std::uintptr_t address;  // 0: no second prefetch
  std::ptrdiff_t stride;   // bytes from token to token, which need not fit an Index
  Index left;              // tokens until `next`; 0 or less once it is reached
  std::uintptr_t next;
  std::ptrdiff_t next_stride;

  /// Adds `bytes` to all addresses, which gives those of a later channel of every token.
  EIGEN_ALWAYS_INLINE repeated_prefetch after(Index bytes) const {
    if (address == 0) return {};
    const auto distance = static_cast<std::uintptr_t>(bytes);
    return {address + distance, stride, left, next + distance, next_stride};
  }
  EIGEN_ALWAYS_INLINE void advance(Index tokens) {
    address += static_cast<std::uintptr_t>(tokens * stride);
    if (left <= 0) return;
    left -= tokens;
    if (left > 0) return;
    address = next - static_cast<std::uintptr_t>(left * next_stride);
    stride = next_stride;
  }
};

/// Addresses to prefetch while some tokens are processed. From token to token they grow by the same number of
/// bytes.
struct lines_ahead {
  std::uintptr_t next;    // the next bytes in memory order
  std::uintptr_t again;   // of the second prefetch; 0: there is none
  std::ptrdiff_t stride;  // bytes from token to token of the second prefetch

  /// Prefetches `bytes` bytes for each of `tokens` tokens, and the second time for as many.
  template <Index bytes, Index tokens>
  EIGEN_ALWAYS_INLINE void prefetch() {
    for (Index byte = 0; byte < bytes * tokens; byte += line_bytes)
      prefetch_line<2>(next + static_cast<std::uintptr_t>(byte));
    next += static_cast<std::uintptr_t>(bytes * tokens);
    if (again == 0) return;
    for (Index token = 0; token < tokens; ++token, again += static_cast<std::uintptr_t>(stride))
      for (Index byte = 0; byte < bytes; byte += line_bytes)
        prefetch_line<1>(again + static_cast<std::uintptr_t>(byte));
  }
};

/// The memory to prefetch while other tokens are processed: rows of `row` channels, `stride` channels apart,
/// in memory order. The first row may be anywhere, for example in another page.
class stream_ahead {
 public:
  stream_ahead() = default;  // not set
  /// \param tokens  the second prefetch of a line is this many tokens before its use; 0: there is none
  template <class X>
  stream_ahead(const X* first, Index row, Index stride, Index tokens)
      : next_(reinterpret_cast<std::uintptr_t>(first)),
        left_(row * std::ptrdiff_t{sizeof(X)}),
        row_(left_),
        stride_(stride * std::ptrdiff_t{sizeof(X)}),
        tokens_(tokens) {
    continues_with(first);
  }

  /// Sets the row that the current head reads after its current rows.
  template <class X>
  void continues_with(const X* first) {
    first_ = reinterpret_cast<std::uintptr_t>(first);
  }
  /// The second prefetches to issue while the `count` current `rows` are processed.
  template <class X>
  EIGEN_ALWAYS_INLINE repeated_prefetch again(const row_block<X>& rows, Index count) const {
    const Index left = count - tokens_;
    if (tokens_ == 0 || left <= 0) return {};  // the lines were first prefetched a moment ago
    return {address_after(rows.rows, std::ptrdiff_t(tokens_) * rows.stride),
            rows.stride * std::ptrdiff_t{sizeof(X)}, left, first_, stride_};
  }
  /// The address of the next `bytes`, assumed to be contiguous. Advances past them.
  EIGEN_ALWAYS_INLINE std::uintptr_t take(Index bytes) {
    const std::uintptr_t here = next_;
    next_ += static_cast<std::uintptr_t>(bytes);
    if (stride_ == row_) return here;
    left_ -= bytes;
    for (; left_ <= 0 && row_ > 0; left_ += row_) next_ += static_cast<std::uintptr_t>(stride_ - row_);
    return here;
  }
  /// The addresses to prefetch while the next `tokens` tokens are processed, `bytes` bytes for each. Reduces
  /// `tokens` to those before the next jump of an address, rounded to a multiple of `step` that is not 0.
  EIGEN_ALWAYS_INLINE lines_ahead next_tokens(Index bytes, Index step, repeated_prefetch& again,
                                              Index& tokens) {
    if (stride_ != row_ && row_ > 0 && left_ < bytes * tokens) tokens = pieces_of(to_index(left_), bytes);
    if (again.left > 0) tokens = (std::min)(tokens, again.left);
    tokens = (std::max)(step, tokens / step * step);
    const lines_ahead lines = {take(bytes * tokens), again.address, again.stride};
    if (again.address != 0) again.advance(tokens);
    return lines;
  }

 private:
  std::uintptr_t next_, first_;
  std::ptrdiff_t left_, row_, stride_;  // bytes
  Index tokens_;
};

/// Calls body(j) for every `step`-th token j of [first, last). A call processes `step` tokens and reads
/// `bytes` bytes of each. If `prefetches` is true, as many bytes of `ahead` are prefetched before each call.
/// Finding their addresses takes longer than multiplying a token, so it is done once for many tokens.
template <Index bytes, Index step, class Prefetches, class Body>
EIGEN_ALWAYS_INLINE void for_tokens(Index first, Index last, Prefetches prefetches, stream_ahead* ahead,
                                    repeated_prefetch& again, const Body& body) {
  for (Index j = first, end; j < last; j = end) {
    Index count = last - j;
    lines_ahead lines = {};
    if (prefetches) lines = ahead->next_tokens(bytes, step, again, count);
    for (end = j + count; j < end; j += step) {
      if (prefetches) lines.prefetch<bytes, step>();
      body(j);
    }
  }
}

/// Prefetches one cache line per row: the next lines in memory order from `next` on, and the second time the
/// line at `again` and those at the same channels of the following `rows`, unless `again` is 0. Advances both
/// addresses.
template <class X, std::size_t... n>
EIGEN_ALWAYS_INLINE void prefetch_lines(std::uintptr_t& next, std::uintptr_t& again, const row_block<X>& rows,
                                        std::index_sequence<n...>) {
  (prefetch_line<2>(next + n * line_bytes), ...);
  next += sizeof...(n) * line_bytes;
  if (again == 0) return;
  (prefetch_line<1>(again + static_cast<std::uintptr_t>(std::ptrdiff_t{sizeof(X)} * Index(n) * rows.stride)),
   ...);
  again += line_bytes;
}

/// Prefetches `bytes` from channel c on of each of `tokens` rows anywhere in memory.
template <Index bytes, class X>
EIGEN_ALWAYS_INLINE void prefetch_rows(const X* const* rows, Index tokens, Index c) {
  for (Index token = 0; token < tokens; ++token)
    for (Index byte = 0; byte < bytes; byte += line_bytes)
      prefetch_line<2>(address_after(rows[token], c) + static_cast<std::uintptr_t>(byte));
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PREFETCH_HPP
