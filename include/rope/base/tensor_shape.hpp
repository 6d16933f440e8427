// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_TENSOR_SHAPE_HPP
#define ROPE_BASE_TENSOR_SHAPE_HPP

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>  // std::in_range, std::integer_sequence

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// Rank, extents, strides and memory order of Eigen::Tensor, TensorMap and std::mdspan, without including
/// their headers. Dense objects of Eigen in memory.

namespace rope::inline ROPE_ABI::detail {

/// A contiguous tensor of this rank.
template <class X, int rank>
concept tensor = requires(X& x) {
  x.data();
  { x.dimension(0) } -> std::convertible_to<Index>;
  requires int(std::remove_cvref_t<X>::NumIndices) == rank;
  { int(std::remove_cvref_t<X>::Layout) } -> std::same_as<int>;
};

/// An Eigen object in memory with an inner stride of 1. A row vector is row-major, a column vector
/// column-major.
template <class X>
concept dense_in_memory = requires(X& x) {
  x.data();
  requires bool(unsigned(std::remove_cvref_t<X>::Flags) & Eigen::DirectAccessBit);
  requires int(std::remove_cvref_t<X>::InnerStrideAtCompileTime) == 1;
};
template <class X>
concept vector_in_memory = dense_in_memory<X> && bool(std::remove_cvref_t<X>::IsVectorAtCompileTime);

template <class X>
inline constexpr bool is_row_major_tensor = int(X::Layout) == int(Eigen::RowMajor);

/// An mdspan of this rank, of the standard library or of its reference implementation: numbers in memory at
/// any strides. Accessors that return values instead of references are rejected.
template <class X, int rank>
concept strided_span = requires(const std::remove_cvref_t<X>& x) {
  requires int(std::remove_cvref_t<X>::rank()) == rank;
  requires std::is_pointer_v<std::remove_cvref_t<decltype(x.data_handle())>>;
  requires std::is_same_v < typename std::remove_cvref_t<X>::reference,
  typename std::remove_cvref_t<X>::element_type& > ;
  { x.data_handle() } -> std::convertible_to<const typename std::remove_cvref_t<X>::element_type*>;
  { x.extent(std::size_t{0}) } -> std::convertible_to<Index>;
  { x.stride(std::size_t{0}) } -> std::convertible_to<Index>;
};

/// Extent or stride number `axis` of a tensor or mdspan, whose own type of indices may have more bits than
/// Index.
///
/// Throws:  std::length_error if it is no Index
template <class Number>
Index checked_index(const char* name, Number number, int axis) {
  if (!std::in_range<Index>(number))
    throw_length("tensor or mdspan", name, " must be below 2^", 8 * sizeof(Index) - 1, ", got ", number,
                 " on index ", axis);
  return to_index(number);
}

/// A tensor or an mdspan of any strides, with as many indices as `rank`.
template <class X, int rank>
concept numbers_by_index = tensor<X, rank> || strided_span<X, rank>;

/// Where a tensor or an mdspan has its numbers: extents and strides by index.
template <class T, std::size_t rank>
struct indexed_memory {
  T* data = nullptr;
  std::array<Index, rank> extents = {}, strides = {};
  std::array<std::size_t, rank> from_fastest = {};  // the indices in the order of their strides
};

template <class X, int... axis>
auto indexed_memory_of(X& x, std::integer_sequence<int, axis...>) {
  constexpr std::size_t rank = sizeof...(axis);
  if constexpr (tensor<X, int(rank)>) {
    indexed_memory<std::remove_pointer_t<decltype(x.data())>, rank> memory = {.data = x.data()};
    // `axis` is a constant: Eigen takes it as a signed integer in some classes and as an unsigned in others.
    memory.extents = {checked_index("an extent", x.dimension(axis), axis)...};
    std::size_t stride = 1;  // may wrap before the caller has checked the extents
    for (std::size_t i = 0; i < rank; ++i) {
      const std::size_t index = is_row_major_tensor<std::remove_cvref_t<X>> ? rank - 1 - i : i;
      memory.from_fastest[i] = index;
      memory.strides[index] = static_cast<Index>(stride);
      stride *= static_cast<std::size_t>(memory.extents[index]);
    }
    return memory;
  } else {
    indexed_memory<typename std::remove_cvref_t<X>::element_type, rank> memory = {.data = x.data_handle()};
    memory.extents = {checked_index("an extent", x.extent(std::size_t(axis)), axis)...};
    memory.strides = {checked_index("a stride", x.stride(std::size_t(axis)), axis)...};
    for (std::size_t i = 0; i < rank; ++i) {
      std::size_t place = i;  // the last index is the faster one of two with equal strides
      for (; place > 0 && memory.strides[memory.from_fastest[place - 1]] >= memory.strides[i]; --place)
        memory.from_fastest[place] = memory.from_fastest[place - 1];
      memory.from_fastest[place] = i;
    }
    return memory;
  }
}
template <int rank, class X>
auto indexed_memory_of(X& x) {
  return indexed_memory_of(x, std::make_integer_sequence<int, rank>{});
}

/// Whether an X owns its numbers: a container, or an Eigen object except maps, blocks and expressions.
/// Compilers warn if the address of a temporary X is kept (ROPE_DETAIL_LIFETIMEBOUND).
template <class X>
concept owns_memory = !std::is_reference_v<X> && (
                                                     std::is_base_of_v<Eigen::PlainObjectBase<X>, X> ||
                                                     requires(X & x) { typename X::allocator_type; } ||
                                                     requires(X & x) { x.resize(x.dimensions()); });

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_TENSOR_SHAPE_HPP
