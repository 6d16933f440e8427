// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ROW_COUNTS_HPP
#define ROPE_DETAIL_ROW_COUNTS_HPP

#include <cstddef>
#include <span>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/message.hpp>
#include <rope/positions.hpp>

/// How many tokens each row of a batch has.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class X>
concept spannable = requires(const X& x) {
  requires std::is_convertible_v<const X&, std::span<const std::remove_cvref_t<decltype(*x.data())>>>;
};
template <class X>
concept vector_without_stride = requires {
  requires bool(X::IsVectorAtCompileTime);
  requires int(X::InnerStrideAtCompileTime) == 1;
};
/// Integers one behind the other: what a span can be made of, and Eigen vectors.
template <class X>
concept contiguous_integers = position_list<X> && (spannable<X> || vector_without_stride<X>);

/// A list of any integers, [batch], or none: every row then has as many as there are.
///
/// Requires:  the list outlives the call it is given to
class row_counts {
 public:
  row_counts() = default;
  template <contiguous_integers X>
  row_counts(const X& list)
      : data_(list.data()),
        size_(static_cast<std::size_t>(list.size())),
        read_(&read<std::remove_cvref_t<decltype(*list.data())>>) {}

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Index operator[](std::size_t b) const { return read_(data_, b); }

 private:
  template <class I>
  static Index read(const void* data, std::size_t b) {
    return static_cast<Index>(as_position(static_cast<const I*>(data)[b]));
  }

  const void* data_ = nullptr;
  std::size_t size_ = 0;
  Index (*read_)(const void*, std::size_t) = nullptr;
};

/// counts [batch] or empty, each in [0, tokens].
///
/// Throws:  std::invalid_argument
inline void check_counts(const char* function, const row_counts& counts, Index batch, Index tokens) {
  if (counts.empty()) return;
  if (static_cast<Index>(counts.size()) != batch)
    ROPE_THROW(std::invalid_argument,
               message(function, ": counts must be [batch] = ", batch, ", got ", counts.size()));
  for (std::size_t b = 0; b < counts.size(); ++b)
    if (counts[b] < 0 || counts[b] > tokens)
      ROPE_THROW(std::invalid_argument, message(function, ": counts must be in [0, tokens] = [0, ", tokens,
                                                "], got ", counts[b]));
}

/// How many of `tokens` new tokens row b takes: all of them where no counts are given.
inline Index count_of(Index b, Index tokens, const row_counts& counts) {
  return counts.empty() ? tokens : counts[static_cast<std::size_t>(b)];
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ROW_COUNTS_HPP
