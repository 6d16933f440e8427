// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_STAGED_HPP
#define ROPE_ROTATION_STAGED_HPP

#include <algorithm>  // std::max
#include <array>
#include <cstddef>
#include <limits>
#include <string_view>
#include <type_traits>

#include <rope/base/integer_list.hpp>  // product_fits
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// Tensors and mdspans of any rank and order of indices. If channels are the fastest index, view_as makes a
/// view. Otherwise `staged` makes a copy.

namespace rope::inline ROPE_ABI {

namespace detail {

/// Whether the letters are b, s, h and d, include an s and a d, and equal letters are adjacent.
template <std::size_t size>
constexpr bool name_a_view(const index_letters<size>& letters) {
  const std::string_view text(letters.letter, size - 1);
  for (std::size_t i = 1; i < text.size(); ++i)
    if (text[i] != text[i - 1] && text.find(text[i]) < i) return false;
  return text.find_first_not_of("bshd") == text.npos && text.find('s') != text.npos &&
         text.find('d') != text.npos;
}

}  // namespace detail

/// Checks the letters and the tensor of a call of `name`.
#define ROPE_DETAIL_CHECK_LETTERS(name)                                                             \
  static_assert(detail::name_a_view(letters), name                                                  \
                ": letters are b, s or t, h and d, one for each index of the tensor, with a d and " \
                "an s or t; equal letters stand side by side");                                     \
  static_assert(detail::numbers_by_index<X, detail::rank_of<letters>>, name                         \
                ": x is an Eigen::Tensor, TensorMap or mdspan with as many indices as letters; "    \
                "evaluate a slice, chip, reshape or expression into a tensor first")

/// The view of an Eigen::Tensor or TensorMap of any rank and order of indices. Give one letter per index, in
/// the tensor's own order: b (batch), s or t (tokens), h (heads) or d (channels of a head).
///
///     view_as<"bsssd">(row_major_video);     // (batch, frames, height, width, channels)
///     view_as<"dsssb">(column_major_video);  // (channels, width, height, frames, batch): the same tokens
///
/// Without h the view has one head, and without b one sequence. Adjacent equal letters form one axis,
/// numbered in memory order, as `grid_positions({frames, height, width})` numbers tokens. Channels must be
/// the fastest index: the last of a row-major tensor, the first of a column-major one. `staged` copies other
/// tensors. Also takes a std::mdspan of any strides. Throws std::invalid_argument if its channels are not
/// contiguous.
///
/// Requires:  the tensor outlives the view. The letters must be right: nothing in a tensor
///            (batch, heads, tokens, head_dim) shows that "bshd" is wrong
/// Throws:    std::length_error if the extents, an extent of 0 counted as 1, exceed the address space
template <detail::index_letters letters, class X>
auto view_as(X&& x) {
  constexpr int rank = detail::rank_of<letters>;
  ROPE_DETAIL_CHECK_LETTERS("view_as");
  if constexpr (detail::tensor<X, rank>)
    static_assert(
        letters.letter[detail::is_row_major_tensor<std::remove_cvref_t<X>> ? rank - 1 : 0] == 'd',
        "view_as: channels must be the fastest index, the last letter for a row-major tensor and the "
        "first for a column-major one; copy the tensor with staged<letters>(x)");
  return detail::view_of_indices<letters>("view_as", x);
}
template <detail::index_letters letters, detail::owns_memory X>
auto view_as(X&& x ROPE_DETAIL_LIFETIMEBOUND) {
  return view_as<letters>(x);
}

/// A copy of an Eigen::Tensor, TensorMap or std::mdspan in the order [batch, tokens, heads, head_dim], made
/// by `staged`.
///
///     auto s = staged<"bshd">(x);  // x: column-major (batch, tokens, heads, head_dim)
///     rotate<half_split>(s.view(), table);
///     s.store(x);
///
/// An object that was moved from has no numbers and can only be assigned.
///
/// \tparam letters  a letter for each index of the tensor as for view_as, but in any order
/// \tparam T        the channel type
template <detail::index_letters letters, class T>
class staged_tensor {
  static constexpr int rank = detail::rank_of<letters>;
  using indices = std::array<Index, static_cast<std::size_t>(rank)>;

 public:
  /// Copies `x`.
  template <class X>
  explicit staged_tensor(const X& x) {
    const auto memory = detail::indexed_memory_of<rank>(x);
    extents_ = memory.extents;
    // The memory order of the copy, from the fastest axis. Equal letters are numbered in the memory order of
    // x.
    constexpr Index most = (std::numeric_limits<Index>::max)() / Index(sizeof(T));
    Index size = 1, stride = 1;
    Index* extents[] = {&head_dim_, &heads_, &tokens_, &batch_};
    for (int axis = 0; axis < 4; ++axis)
      for (const std::size_t index : memory.from_fastest) {
        if (letters.letter[index] != "dhsb"[axis]) continue;
        const Index extent = extents_[index];
        if (extent < 0) detail::throw_invalid("staged", "extents must not be negative, got ", extent);
        if (!detail::product_fits({stride, (std::max)(extent, Index{1})}, most))
          detail::throw_length("staged", "the numbers must not exceed the address space, got an extent of ",
                               extent, " after ", stride, " numbers");
        strides_[index] = stride;
        stride *= (std::max)(extent, Index{1});
        size *= extent;
        *extents[axis] *= extent;
      }
    numbers_.resize(size);
    for_each_number(memory, [&](Index here, Index there) { numbers_.data()[here] = memory.data[there]; });
  }

  /// The copy, valid as long as this object.
  head_view<T> view() & ROPE_DETAIL_LIFETIMEBOUND {
    return bshd(numbers_.data(), batch_, tokens_, heads_, head_dim_);
  }
  /// A read-only view of the copy, valid as long as this object. A temporary has only this view, because
  /// numbers written to it would be lost.
  head_view<const T> view() const& ROPE_DETAIL_LIFETIMEBOUND {
    return bshd(numbers_.data(), batch_, tokens_, heads_, head_dim_);
  }

  /// Copies the numbers to a tensor or mdspan with the extents of the original, in any storage order.
  ///
  /// Throws:  std::invalid_argument if an extent differs, or an mdspan repeats its numbers (a stride of 0);
  ///          nothing is then written
  template <class X>
  void store(X&& x) const {
    static_assert(
        detail::numbers_by_index<X, rank>,
        "staged: store(x) takes an Eigen::Tensor, TensorMap or mdspan with as many indices as letters");
    const auto memory = detail::indexed_memory_of<rank>(x);
    for (std::size_t i = 0; i < extents_.size(); ++i) {
      if (memory.extents[i] != extents_[i])
        detail::throw_invalid("staged", "store(x) takes the extents of the tensor that was copied, got ",
                              memory.extents[i], " for ", extents_[i], " on index ", i);
      if (extents_[i] > 1 && memory.strides[i] == 0 && numbers_.size() > 0)
        detail::throw_invalid("staged", "store(x) needs memory for every number, got a stride of 0 on index ",
                              i);
    }
    for_each_number(memory, [&](Index here, Index there) { memory.data[there] = numbers_.data()[here]; });
  }

 private:
  /// Calls body(index in the copy, index in the memory) for every number.
  template <class Memory, class Body>
  void for_each_number(const Memory& memory, const Body& body) const {
    indices at = {};
    Index here = 0, there = 0;
    for (Index n = 0; n < numbers_.size(); ++n) {
      body(here, there);
      for (const std::size_t index : memory.from_fastest) {
        here += strides_[index];
        there += memory.strides[index];
        if (++at[index] < extents_[index]) break;
        here -= strides_[index] * extents_[index];
        there -= memory.strides[index] * extents_[index];
        at[index] = 0;
      }
    }
  }

  number_array<T> numbers_;              // the first member, because only its assignment may throw
  indices extents_ = {}, strides_ = {};  // of the indices of the tensor, in its own order
  Index batch_ = 1, tokens_ = 1, heads_ = 1, head_dim_ = 1;
};

/// Copies an Eigen::Tensor or TensorMap of any rank and order of indices, or a std::mdspan of any strides,
/// into memory owned by the result, with contiguous channels. `.view()` is a view of the copy, and
/// `.store(x)` copies it back.
///
///     auto s = staged<"bhds">(x);  // channels between heads and tokens
///
/// Equal letters form one axis, numbered in memory order as for view_as.
///
/// Throws:  std::length_error if the numbers exceed the address space
/// Cost:    one allocation and one copy of the tensor, and another copy for store(). Both copies are strided
///          and cost more than a rotation. If you rotate a tensor often, declare it with channels as the
///          fastest index
template <detail::index_letters letters, class X>
auto staged(X&& x) {
  constexpr int rank = detail::rank_of<letters>;
  ROPE_DETAIL_CHECK_LETTERS("staged");
  if constexpr (detail::numbers_by_index<X, rank>) {
    using memory = decltype(detail::indexed_memory_of<rank>(x));
    return staged_tensor<letters, std::remove_cvref_t<decltype(*memory::data)>>(x);
  }
}
/// Catches calls without letters. The deduced return type makes its message the first one.
template <class X>
auto staged(X&& /*x*/) {
  static_assert(
      std::is_void_v<X>,
      "staged: name the indices of the tensor in its own order, staged<\"bshd\">(x): b for batch, s or "
      "t for tokens, h for heads, d for head_dim");
  return 0;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_STAGED_HPP
