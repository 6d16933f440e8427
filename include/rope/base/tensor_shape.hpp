// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_TENSOR_SHAPE_HPP
#define ROPE_BASE_TENSOR_SHAPE_HPP

#include <array>
#include <concepts>
#include <type_traits>
#include <utility>  // std::integer_sequence

#include <rope/config.hpp>

/// Rank, extents and memory order of Eigen::Tensor and TensorMap, without including their headers.

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

/// Whether an X owns its numbers: a container, or an Eigen object except maps, blocks and expressions.
/// Compilers warn if the address of a temporary X is kept (ROPE_DETAIL_LIFETIMEBOUND).
template <class X>
concept owns_memory = !std::is_reference_v<X> && (
                                                     std::is_base_of_v<Eigen::PlainObjectBase<X>, X> ||
                                                     requires(X & x) { typename X::allocator_type; } ||
                                                     requires(X & x) { x.resize(x.dimensions()); });

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_TENSOR_SHAPE_HPP
