// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_STAGED_HPP
#define ROPE_ROTATION_STAGED_HPP

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>  // std::integer_sequence

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// Tensors of any rank and order of indices: a view if channels are contiguous, otherwise a copy.

namespace rope::inline ROPE_ABI {

namespace detail {

/// Whether the letters are b, s, h and d, include an s and a d, and equal letters are adjacent.
template <std::size_t size>
constexpr bool name_a_view(const index_letters<size>& letters) {
  bool has_tokens = false, has_channels = false;
  for (std::size_t i = 0; i + 1 < size; ++i) {
    const char c = letters.letter[i];
    if (c != 'b' && c != 's' && c != 'h' && c != 'd') return false;
    for (std::size_t j = 0; j + 1 < i; ++j)
      if (letters.letter[j] == c && letters.letter[i - 1] != c) return false;
    has_tokens = has_tokens || c == 's';
    has_channels = has_channels || c == 'd';
  }
  return has_tokens && has_channels;
}

}  // namespace detail

/// The view of an Eigen::Tensor or TensorMap of any rank and order of indices. Give one letter per index, in
/// the tensor's own order: b (batch), s or t (tokens), h (heads) or d (channels of a head).
///
///     view_as<"bsssd">(row_major_video);     // (batch, frames, height, width, channels)
///     view_as<"dsssb">(column_major_video);  // (channels, width, height, frames, batch): the same tokens
///
/// Without h or b the view has one head or one sequence. Adjacent equal letters form one axis, numbered in
/// memory order, as `grid_positions({frames, height, width})` numbers tokens. Channels must be the fastest
/// index: the last of a row-major tensor, the first of a column-major one. `staged` copies other tensors.
/// Also takes a std::mdspan of any strides. Throws std::invalid_argument if its channels are not contiguous.
///
/// Requires:  the tensor outlives the view. The letters must be right: extents do not reveal that a tensor
///            (batch, heads, tokens, head_dim) was called "bshd"
/// Throws:    std::length_error if the extents, an extent of 0 counted as 1, exceed the address space
template <detail::index_letters letters, class X>
auto view_as(X&& x) {
  static_assert(detail::name_a_view(letters),
                "view_as: letters are b, s or t, h and d, one for each index of the tensor, with a d and an "
                "s or t; equal letters stand side by side");
  constexpr int rank = static_cast<int>(sizeof(letters)) - 1;
  static_assert(detail::tensor<X, rank>,
                "view_as: x is an Eigen::Tensor or TensorMap with as many indices as letters; evaluate a "
                "slice, chip, reshape or expression into a tensor first");
  if constexpr (detail::tensor<X, rank>)
    static_assert(
        letters.letter[detail::is_row_major_tensor<std::remove_cvref_t<X>> ? rank - 1 : 0] == 'd',
        "view_as: channels must be the fastest index, the last letter for a row-major tensor and the "
        "first for a column-major one; copy the tensor with staged<letters>(x)");
  return detail::view_of_tensor<letters>("view_as", x);
}
template <detail::index_letters letters, class X>
requires detail::strided_span < X, static_cast<int>(sizeof(letters))
- 1 > auto view_as(X&& x) {
  constexpr std::size_t rank = sizeof(letters) - 1;
  static_assert(
      detail::name_a_view(letters) && (letters.letter[0] == 'd' || letters.letter[rank - 1] == 'd'),
      "view_as: letters are b, s or t, h and d, one for each index of the mdspan, with a d first or "
      "last and an s or t; equal letters stand side by side");
  return detail::view_of_span<letters>("view_as", x);
}
template <detail::index_letters letters, detail::owns_memory X>
auto view_as(X&& x ROPE_DETAIL_LIFETIMEBOUND) {
  return view_as<letters>(x);
}

/// A copy of an Eigen::Tensor or TensorMap in the order [batch, tokens, heads, head_dim], made by `staged`.
///
///     auto s = staged<"bshd">(x);  // x: column-major (batch, tokens, heads, head_dim)
///     rotate<half_split>(s.view(), table);
///     s.store(x);
///
/// \tparam letters  a letter for each index of the tensor as for view_as, but in any order
/// \tparam T        the channel type
template <detail::index_letters letters, class T>
class staged_tensor {
  static constexpr int rank = static_cast<int>(sizeof(letters)) - 1;
  using indices = std::array<Index, static_cast<std::size_t>(rank)>;

 public:
  /// Copies `x`.
  template <class X>
  explicit staged_tensor(const X& x) : extents_(extents_of(x)) {
    // The memory order of the copy, from the fastest axis. Equal letters are numbered in the memory order of
    // x.
    Index stride = 1;
    Index* extents[] = {&head_dim_, &heads_, &tokens_, &batch_};
    for (int axis = 0; axis < 4; ++axis)
      for (int i = 0; i < rank; ++i) {
        const auto index = fastest<X>(i);
        if (letters.letter[index] != "dhsb"[axis]) continue;
        strides_[index] = stride;
        stride *= extents_[index];
        *extents[axis] *= extents_[index];
      }
    numbers_.resize(stride);
    for_each_number<X>([&](Index here, Index there) { numbers_.data()[here] = x.data()[there]; });
  }

  /// The copy, valid as long as this object.
  head_view<T> view() & ROPE_DETAIL_LIFETIMEBOUND {
    return bshd(numbers_.data(), batch_, tokens_, heads_, head_dim_);
  }
  /// A read-only view of the copy, valid as long as this object. A temporary copy has only this view: what
  /// was written to it would be lost.
  head_view<const T> view() const& ROPE_DETAIL_LIFETIMEBOUND {
    return bshd(numbers_.data(), batch_, tokens_, heads_, head_dim_);
  }

  /// Copies the numbers to a tensor with the extents of the original, in any storage order.
  ///
  /// Throws:  std::invalid_argument if an extent differs; nothing is then written
  template <class X>
  void store(X&& x) const {
    static_assert(detail::tensor<X, rank>,
                  "staged: store(x) takes an Eigen::Tensor or TensorMap with as many indices as letters");
    const indices extents = extents_of(x);
    for (std::size_t i = 0; i < extents.size(); ++i)
      if (extents[i] != extents_[i])
        detail::throw_invalid("staged", "store(x) takes the extents of the tensor that was copied, got ",
                              extents[i], " for ", extents_[i], " on index ", i);
    for_each_number<X>([&](Index here, Index there) { x.data()[there] = numbers_.data()[here]; });
  }

 private:
  /// Index number i of a tensor, counted from the fastest.
  template <class X>
  static constexpr std::size_t fastest(int i) {
    return static_cast<std::size_t>(detail::is_row_major_tensor<std::remove_cvref_t<X>> ? rank - 1 - i : i);
  }
  template <class X>
  static indices extents_of(const X& x) {
    const indices slowest_first = detail::extents_in_memory(x, std::make_integer_sequence<int, rank>{});
    indices extents;
    for (int i = 0; i < rank; ++i)
      extents[fastest<X>(i)] = slowest_first[static_cast<std::size_t>(rank - 1 - i)];
    return extents;
  }

  /// Calls body(index in the copy, index in a tensor X) for every number.
  template <class X, class Body>
  void for_each_number(const Body& body) const {
    indices at = {};
    Index here = 0;
    for (Index there = 0; there < numbers_.size(); ++there) {
      body(here, there);
      for (int i = 0; i < rank; ++i) {
        const auto index = fastest<X>(i);
        here += strides_[index];
        if (++at[index] < extents_[index]) break;
        here -= strides_[index] * extents_[index];
        at[index] = 0;
      }
    }
  }

  indices extents_, strides_ = {};  // of the indices of the tensor, in its own order
  Index batch_ = 1, tokens_ = 1, heads_ = 1, head_dim_ = 1;
  number_array<T> numbers_;
};

/// Copies an Eigen::Tensor or TensorMap of any rank and order of indices into memory owned by the result,
/// with contiguous channels. `.view()` is the copy, `.store(x)` copies it back.
///
///     auto s = staged<"bhds">(x);  // channels between heads and tokens
///
/// Throws:  std::length_error if the numbers exceed the address space
/// Cost:    one allocation and one copy of the tensor, and another copy for store(). Both copies are strided
///          and cost more than a rotation. If you rotate a tensor often, declare it with channels as the
///          fastest index
template <detail::index_letters letters, class X>
auto staged(X&& x) {
  static_assert(detail::name_a_view(letters),
                "staged: letters are b, s or t, h and d, one for each index of the tensor, with a d and an s "
                "or t; equal letters stand side by side");
  constexpr int rank = static_cast<int>(sizeof(letters)) - 1;
  static_assert(detail::tensor<X, rank>,
                "staged: x is an Eigen::Tensor or TensorMap with as many indices as letters; evaluate a "
                "slice, chip, reshape or expression into a tensor first");
  if constexpr (detail::tensor<X, rank>)
    return staged_tensor<letters, std::remove_cvref_t<decltype(*x.data())>>(x);
}
/// Catches calls without letters. Returns int, so that the first error is not about `void`.
template <class X>
int staged(X&& /*x*/) {
  static_assert(
      std::is_void_v<X>,
      "staged: name the indices of the tensor in its own order, staged<\"bshd\">(x): b for batch, s or "
      "t for tokens, h for heads, d for head_dim");
  return 0;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_STAGED_HPP
