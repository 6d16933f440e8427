// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFETCH_HPP
#define ROPE_ATTENTION_DETAIL_PREFETCH_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>

#include <rope/attention/detail/rows.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// Prefetching of keys and values while decoding.
///
/// The keys of a block are read side by side, and the tokens of one head may be far from each other: neither
/// is an order in which a processor prefetches by itself. So the order of memory is separate from the order
/// of work. While one part is processed, the next one is prefetched line by line in the order of memory. A
/// processor may drop a prefetch, so if the tokens of a head are contiguous each line is prefetched again a
/// few tokens before its use.
///
/// Rows of bench/ that need it, time without over time with it, g++ 12 and clang 14 (Zen 5, AVX-512): one
/// query, bhsd/1x1024x32+8x128 with keys of many layers in turn, 2.0 and 1.4. The second prefetch: decoding
/// from pages of 16 keys, 1x16384x32+8x128, 1.19 and 1.12; if the heads of a token are contiguous it costs
/// more than it saves, a sixth of a step over bfloat16. Real loads instead took twice the time on Zen 4.

namespace rope::inline ROPE_ABI::detail {

inline constexpr Index line_bytes = 64;

/// Asks for the line at an address, which need not be inside an allocation.
EIGEN_ALWAYS_INLINE void prefetch_line(std::uintptr_t address) {
  prefetch_after(static_cast<const char*>(nullptr), address);
}

/// The address of x[channels], which need not be inside an allocation.
template <class X>
EIGEN_ALWAYS_INLINE std::uintptr_t address_after(const X* x, Index channels) {
  return reinterpret_cast<std::uintptr_t>(x) + static_cast<std::uintptr_t>(channels * Index(sizeof(X)));
}

/// The addresses to ask for again, one token after the other: those of the present rows, then those of what
/// is read after them.
struct repeated_prefetch {
  std::uintptr_t address;  // 0: nothing is asked for again
  Index stride;            // bytes from token to token
  Index left;              // tokens until `next`; 0 where there is none
  std::uintptr_t next;
  Index next_stride;

  /// The same for what is `bytes` behind in every token.
  EIGEN_ALWAYS_INLINE repeated_prefetch behind(Index bytes) const {
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

/// What is read after the present part of a stream, in the order of memory: rows of `row` channels, `stride`
/// channels apart. It need not begin where the present part ends: pages may be anywhere.
class stream_ahead {
 public:
  stream_ahead() = default;  // not set
  /// \param tokens  before its use that a line is asked for again; 0: it is not
  template <class X>
  stream_ahead(const X* first, Index row, Index stride, Index tokens)
      : next_(reinterpret_cast<std::uintptr_t>(first)),
        left_(row * Index(sizeof(X))),
        row_(left_),
        gap_((stride - row) * Index(sizeof(X))),
        tokens_(tokens) {
    continues_with(first);
  }

  /// The head that is worked on goes on at `first` in what is read after.
  template <class X>
  void continues_with(const X* first) {
    first_ = reinterpret_cast<std::uintptr_t>(first);
  }
  /// What to ask for again while the `count` present `rows` are worked on.
  template <class X>
  EIGEN_ALWAYS_INLINE repeated_prefetch again(const row_block<X>& rows, Index count) const {
    if (tokens_ == 0) return {};
    const Index stride = row_ + gap_, left = count - tokens_;
    if (left <= 0) return {first_ - static_cast<std::uintptr_t>(left * stride), stride, 0, 0, 0};
    return {address_after(rows.rows, tokens_ * rows.stride), rows.stride * Index(sizeof(X)), left, first_,
            stride};
  }

  /// The address of the next `bytes`, which are taken to be contiguous.
  EIGEN_ALWAYS_INLINE std::uintptr_t take(Index bytes) {
    const std::uintptr_t here = next_;
    next_ += static_cast<std::uintptr_t>(bytes);
    left_ -= bytes;
    for (; left_ <= 0 && row_ > 0; left_ += row_) next_ += static_cast<std::uintptr_t>(gap_);
    return here;
  }

 private:
  std::uintptr_t next_, first_;
  Index left_, row_, gap_, tokens_;
};

/// Of how many tokens, whose channels take `bytes`, the requests are made together: one by one they take as
/// many instructions as the products of four rows with a line of values. (Zen 3: decoding took 1.25 times as
/// long.)
constexpr Index tokens_per_prefetch(Index bytes) {
  return (std::max)(Index{1}, (std::min)(Index{8}, 4 * line_bytes / bytes));
}

/// Asks for the share of `tokens` present tokens, of `bytes` each, in what is read after them, and again for
/// what is used soon.
template <Index tokens, Index bytes>
EIGEN_ALWAYS_INLINE void prefetch_batch(stream_ahead& ahead, repeated_prefetch& again) {
  const std::uintptr_t next = ahead.take(tokens * bytes);
  for (Index byte = 0; byte < tokens * bytes; byte += line_bytes)
    prefetch_line(next + static_cast<std::uintptr_t>(byte));
  if (again.address == 0) return;
  for (Index token = 0; token < tokens; ++token)
    for (Index byte = 0; byte < bytes; byte += line_bytes)
      prefetch_line(again.address + static_cast<std::uintptr_t>(token * again.stride + byte));
  again.advance(tokens);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PREFETCH_HPP
