// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_TENSOR_SHAPE_HPP
#define ROPE_BASE_TENSOR_SHAPE_HPP

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>  // std::integer_sequence

#include <rope/config.hpp>

/// Rank, extents, strides and memory order of Eigen::Tensor, TensorMap and std::mdspan, without including
/// their headers.

namespace rope::inline ROPE_ABI::detail {

/// A contiguous tensor of this rank.
template <class X, int rank>
concept tensor = requires(X& x) {
  x.data();
  { x.dimension(0) } -> std::convertible_to<Index>;
  requires int(std::remove_cvref_t<X>::NumIndices) == rank;
  { int(std::remove_cvref_t<X>::Layout) } -> std::same_as<int>;
};

template <class X>
inline constexpr bool is_row_major_tensor = int(X::Layout) == int(Eigen::RowMajor);

/// Extent number `axis`, counted from the slowest axis in memory, for row-major and column-major tensors.
/// `axis` is a constant, because Eigen takes it as a signed integer in some classes and an unsigned one in
/// others.
template <int axis, class X>
Index extent(const X& x) {
  constexpr int number = is_row_major_tensor<X> ? axis : int(X::NumIndices) - 1 - axis;
  return static_cast<Index>(x.dimension(number));
}

/// The extents of a tensor from the slowest index in memory to the fastest.
template <class X, int... axis>
std::array<Index, sizeof...(axis)> extents_in_memory(const X& x, std::integer_sequence<int, axis...>) {
  return {extent<axis>(x)...};
}

/// An mdspan of this rank, of the standard library or of its reference implementation: numbers in memory at
/// any strides. An accessor that changes numbers as they are read returns values, not references.
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

/// Extent and stride number `axis` of an mdspan.
template <class X>
Index span_extent(const X& x, int axis) {
  return static_cast<Index>(x.extent(static_cast<std::size_t>(axis)));
}
template <class X>
Index span_stride(const X& x, int axis) {
  return static_cast<Index>(x.stride(static_cast<std::size_t>(axis)));
}

/// Whether an X owns its numbers: a container, or an Eigen object except maps, blocks and expressions.
/// Compilers warn about a kept address of a temporary X (ROPE_DETAIL_LIFETIMEBOUND).
template <class X>
concept owns_memory = !std::is_reference_v<X> && (
                                                     std::is_base_of_v<Eigen::PlainObjectBase<X>, X> ||
                                                     requires(X & x) { typename X::allocator_type; } ||
                                                     requires(X & x) { x.resize(x.dimensions()); });

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_TENSOR_SHAPE_HPP
