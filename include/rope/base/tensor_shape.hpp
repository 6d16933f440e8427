// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_TENSOR_SHAPE_HPP
#define ROPE_BASE_TENSOR_SHAPE_HPP

#include <array>
#include <concepts>
#include <type_traits>
#include <utility>  // std::integer_sequence

#include <rope/config.hpp>

/// What Eigen::Tensor and TensorMap show of themselves, without including them.

namespace rope::inline ROPE_ABI::detail {

/// A tensor of that rank, whose elements lie next to each other.
template <class X, int rank>
concept tensor = requires(X& x) {
  x.data();
  { x.dimension(0) } -> std::convertible_to<Index>;
  requires int(std::remove_cvref_t<X>::NumIndices) == rank;
  { int(std::remove_cvref_t<X>::Layout) } -> std::same_as<int>;
};

template <class X>
inline constexpr bool is_row_major_tensor = int(X::Layout) == int(Eigen::RowMajor);

/// Extent number `axis`, counted from the slowest axis in memory, for row-major and column-major tensors
/// alike. The number is a constant, because Eigen takes it as a signed integer here and an unsigned one
/// there.
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

/// Whether the numbers of an X end with it: a container, or an object of Eigen that is no map, block or
/// expression. A temporary X is warned of where its address is kept (ROPE_DETAIL_LIFETIMEBOUND).
template <class X>
concept owns_memory = !std::is_reference_v<X> && (
                                                     std::is_base_of_v<Eigen::PlainObjectBase<X>, X> ||
                                                     requires(X & x) { typename X::allocator_type; } ||
                                                     requires(X & x) { x.resize(x.dimensions()); });

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_TENSOR_SHAPE_HPP
