// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_TOKEN_SOURCE_HPP
#define ROPE_ATTENTION_DETAIL_TOKEN_SOURCE_HPP

#include <algorithm>  // std::min
#include <bit>        // std::has_single_bit, std::countr_zero
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>  // std::in_range

#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/view.hpp>

/// The memory of the tokens of keys or values: one view, the pages of a pool, or listed tokens of a view or
/// of pages. Kernels are the same for all three.

namespace rope::inline ROPE_ABI::detail {

/// The block table of a paged pool, [sequences, blocks]: the page of each block of tokens of each sequence.
/// It may have any integer type, and is read in place.
class block_table {
 public:
  block_table() = default;
  /// \param blocks  blocks of a sequence; a vector contains the sequences one after another
  template <whole_number Integer>
  block_table(const integer_list<Integer>& list, Index blocks)
      : data_(list.data),
        row_stride_(list.rows > 1 ? list.row_stride : blocks * list.column_stride),
        column_stride_(list.column_stride),
        read_(&read<Integer>) {
    if constexpr (std::is_same_v<Integer, std::int32_t>) words_ = list.data;
  }

  /// The page as stored in the table, or -1 if it does not fit in an Index.
  Index page(Index sequence, Index block) const {
    const Index place = sequence * row_stride_ + block * column_stride_;
    return words_ != nullptr ? Index{words_[place]} : read_(data_, place);
  }

 private:
  template <class Integer>
  static Index read(const void* data, Index offset) {
    const std::int64_t page = as_position(static_cast<const Integer*>(data)[offset]);
    return std::in_range<Index>(page) ? static_cast<Index>(page) : Index{-1};
  }

  const void* data_ = nullptr;
  const std::int32_t* words_ = nullptr;  // set if pages are int32, to read them without a call
  Index row_stride_ = 0, column_stride_ = 1;
  Index (*read_)(const void*, Index) = nullptr;
};

/// Tokens [first, first + count) of head `head` of row b, which are at regular strides from `rows` on.
template <class C>
struct token_run {
  Index b, head, first, count;
  const C* rows;  // [head_dim], of the first one
};

/// Tokens [0, tokens) of every row of a call. In a view, tokens are at regular strides. In pages, this is so
/// only within a page. The stride of an axis of extent 1 is 0 here, because in the view it may be arbitrary
/// and must not be added to a pointer.
template <class C>
struct token_source {
  Index tokens = 0, heads = 0, head_dim = 0, token_stride = 0, head_stride = 0;

  token_source() = default;
  token_source(const head_view<C>& view) : token_source(head_view<const C>(view)) {}
  token_source(const head_view<const C>& view)
      : tokens(view.tokens),
        heads(view.heads),
        head_dim(view.head_dim),
        token_stride(view.tokens == 1 ? 0 : view.token_stride),
        head_stride(view.heads == 1 ? 0 : view.head_stride),
        view_(view) {}
  /// \param pool    [pages, page_size, heads, head_dim]
  /// \param first   the sequence that is row 0 of the call
  /// \param length  tokens of the longest row
  token_source(const head_view<const C>& pool, const block_table& blocks, Index first, Index length)
      : token_source(pool) {
    tokens = length;
    page_size_ = pool.tokens;
    if (is_listed()) token_stride = head_dim;
    const auto size = static_cast<std::uint64_t>(page_size_);
    if (std::has_single_bit(size)) page_shift_ = std::countr_zero(size);
    blocks_ = blocks;
    first_ = first;
  }

  /// Whether row 0 of `next` is row n of this source, at the same strides, so that one call can read both.
  bool is_followed_by(const token_source& next, Index n) const {
    if (page_size_ > 0)
      return next.page_size_ == page_size_ && next.view_.data == view_.data && next.first_ == first_ + n;
    bool follows = next.page_size_ == 0 && are_apart(view_, next.view_, n);
    if constexpr (is_quantized<C>) follows = follows && are_apart(view_.scales, next.view_.scales, n);
    return follows;
  }
  /// This source with `longest` tokens in its longest row.
  token_source of_length(Index longest) const {
    token_source all = *this;
    all.tokens = longest;
    if (page_size_ > 0) return all;
    all.view_.tokens = longest;
    all.token_stride = longest == 1 ? 0 : view_.token_stride;
    return all;
  }

  /// A source with one row and one head. Token n of it is token list[n] of head `head` of row b, for n in [0,
  /// count). The strides are those that contiguous copies of these tokens would have.
  token_source listed(Index b, Index head, const Index* list, Index count) const {
    token_source one = *this;
    one.tokens = count;
    one.heads = 1;
    one.token_stride = head_dim;
    one.head_stride = 0;
    one.list_ = list;
    one.row_of_list_ = b;
    one.head_of_list_ = head;
    return one;
  }
  /// Whether each token has an address of its own, as listed tokens and tokens of pages of one token do. The
  /// strides are then those that contiguous copies of the tokens would have.
  bool is_listed() const { return list_ != nullptr || page_size_ == 1; }

  /// The channels of head h of token t of row b, [head_dim].
  const C* at(Index b, Index t, Index h) const {
    const place x = place_of(b, t, h);
    return view_.at(x.row, x.token, x.head);
  }
  /// The scale of head h of token t of row b, if channels are quantized.
  const float* scale_at(Index b, Index t, Index h) const {
    const place x = place_of(b, t, h);
    return view_.scale_at(x.row, x.token, x.head);
  }
  /// The distance between the scales of two adjacent tokens.
  Index scale_stride() const { return view_.tokens == 1 ? 0 : view_.scales.token_stride; }
  /// The number of tokens of a page, or 0 for a view and if is_listed().
  Index page_size() const { return is_listed() ? 0 : page_size_; }
  /// How many tokens from t on are at regular strides, at least 1.
  Index run_from(Index t) const {
    if (list_ != nullptr) return 1;
    return page_size_ == 0 ? (std::numeric_limits<Index>::max)() : (block_of(t) + 1) * page_size_ - t;
  }

 private:
  /// Where a token is in the view or in the pool.
  struct place {
    Index row, token, head;
  };
  EIGEN_ALWAYS_INLINE place place_of(Index b, Index t, Index h) const {
    const place x = list_ == nullptr ? place{b, t, h} : place{row_of_list_, list_[t], head_of_list_};
    if (page_size_ == 0) return x;
    const Index block = block_of(x.token);
    return {blocks_.page(first_ + x.row, block), x.token - block * page_size_, x.head};
  }

  /// Whether `next` is row n of `first`. Addresses are compared as integers, because a pointer to row n would
  /// be invalid if `first` has no such row.
  template <class View>
  static bool are_apart(const View& first, const View& next, Index n) {
    const auto address = [](const View& x) { return reinterpret_cast<std::uintptr_t>(x.data); };
    const auto step = static_cast<std::uintptr_t>(n) * static_cast<std::uintptr_t>(first.batch_stride) *
                      sizeof(*first.data);
    return next.batch_stride == first.batch_stride && next.token_stride == first.token_stride &&
           next.head_stride == first.head_stride && address(next) - address(first) == step;
  }

  /// The block of token t. If page_size is a power of two, a shift replaces the slower division, because each
  /// decoding step looks up every run of keys several times.
  Index block_of(Index t) const { return page_shift_ >= 0 ? t >> page_shift_ : t / page_size_; }

  head_view<const C> view_ = {};  // or the pool
  Index page_size_ = 0;           // 0: no pages
  int page_shift_ = -1;           // log2 of page_size if that is an integer
  block_table blocks_ = {};
  Index first_ = 0;
  const Index* list_ = nullptr;  // [tokens], or null
  Index row_of_list_ = 0, head_of_list_ = 0;
};

// Scales of 8-bit keys and values. If keys and values are read in place, or multiplied as integers, a scale
// multiplies one number per token instead of every channel. Scores are multiplied by the scales of keys. The
// sum of the weights (the denominator of the softmax) is formed first. Then each weight is multiplied by the
// scale of its value.

/// Calls visit(j, scale) for the keys j of a tile that begins with token `begin`.
template <class C, class Visit>
void for_each_scale(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys,
                    const Visit& visit) {
  const Index stride = x.scale_stride();
  for (Index j = keys.first, count; j < keys.last; j += count) {
    count = (std::min)(keys.last - j, x.run_from(begin + j));
    const float* const scales = x.scale_at(b, begin + j, head);
    for (Index n = 0; n < count; ++n) visit(j + n, scales[n * stride]);
  }
}

/// to[j] = the scale that the integers of key j are multiplied by, for keys of a tile that begins with token
/// `begin`.
template <class A, class C>
void read_scales(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys, A* to) {
  for_each_scale(x, b, head, begin, keys,
                 [&](Index j, float scale) { to[j] = static_cast<A>(usable_scale(scale)); });
}

/// rows[r * tile + j] *= scale of key j for keys of a tile that begins with token `begin`.
template <class A, class C>
void multiply_by_scales(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys, A* rows,
                        Index row_count) {
  constexpr Index tile = panel_shape<A>::tile;
  A factors[std::size_t(tile)];
  read_scales(x, b, head, begin, keys, factors);
  for (Index r = 0; r < row_count; ++r)
    channels_map<A>(rows + r * tile + keys.first, keys.last - keys.first) *=
        const_channels_map<A>(factors + keys.first, keys.last - keys.first);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_TOKEN_SOURCE_HPP
