// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_INTEGER_LIST_HPP
#define ROPE_BASE_INTEGER_LIST_HPP

#include <algorithm>  // std::min
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>  // std::declval

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>

/// All integer lists enter the library here. Shape, memory order and strides come from the caller's type.
/// Types that do not expose them are rejected.
///
/// Checks of sums of positions and products of extents before the operation, whose overflow is undefined.

namespace rope::inline ROPE_ABI::detail {

/// Whether a + b is a position.
constexpr bool sum_is_position(std::int64_t a, std::int64_t b) {
  using limits = std::numeric_limits<std::int64_t>;
  return b > 0 ? a <= (limits::max)() - b : a >= (limits::min)() - b;
}

/// Whether a - b is a position.
constexpr bool difference_is_position(std::int64_t a, std::int64_t b) {
  using limits = std::numeric_limits<std::int64_t>;
  return b < 0 ? a <= (limits::max)() + b : a >= (limits::min)() + b;
}

/// a + b.
///
/// Throws:  std::out_of_range unless the sum is a position
inline std::int64_t position_sum(const char* function, std::int64_t a, std::int64_t b) {
  if (!sum_is_position(a, b))
    throw_out_of_range(function, "positions must fit a signed integer of 64 bits, got ", a, " + ", b);
  return a + b;
}

/// a - b.
///
/// Throws:  std::out_of_range unless the difference is a position
inline std::int64_t position_difference(const char* function, std::int64_t a, std::int64_t b) {
  if (!difference_is_position(a, b))
    throw_out_of_range(function, "positions must fit a signed integer of 64 bits, got ", a, " - ", b);
  return a - b;
}

/// Whether the product of non-negative extents is at most `most`.
constexpr bool product_fits(std::initializer_list<Index> extents,
                            Index most = (std::numeric_limits<Index>::max)()) {
  // Divisions are slow: decide with doubles, whose product is off by far less than a factor of 2.
  double rounded = 1;
  for (const Index extent : extents) rounded *= static_cast<double>(extent);
  if (rounded <= static_cast<double>(most) / 2) return true;  // also if an extent is 0
  for (const Index extent : extents) most /= extent;          // most / product, in the end
  return most > 0;
}

/// Every integral type except bool.
template <class Integer>
concept whole_number = std::integral<Integer> && !std::same_as<Integer, bool>;

/// A vector or a matrix of integers in memory. Element (r, c) is data[r * row_stride + c * column_stride].
///
/// Invariant:  a row or a column is stored as one row, so rows > 1 only if columns > 1
template <whole_number Integer>
struct integer_list {
  const Integer* data = nullptr;
  Index rows = 1, columns = 0;
  Index row_stride = 0, column_stride = 1;
  Index given_rows = 1, given_columns = 0;  // the shape as given; a vector is one row

  integer_list() = default;
  integer_list(std::span<const Integer> list)
      : integer_list(list.data(), static_cast<Index>(list.size()), 1) {}
  integer_list(const Integer* first, Index length, Index stride)
      : data(first), columns(length), column_stride(stride), given_columns(length) {}
  /// Throws:  std::length_error if an Index does not hold row_count * column_count
  integer_list(const Integer* first, Index row_count, Index column_count, Index to_next_row,
               Index to_next_column)
      : data(first), given_rows(row_count), given_columns(column_count) {
    if (!product_fits({row_count, column_count}))
      throw_length("list of integers", "the matrix exceeds the address space, got ",
                   shape_text({row_count, column_count}));
    const bool is_matrix = row_count > 1 && column_count > 1;
    rows = is_matrix ? row_count : 1;
    columns = is_matrix ? column_count : row_count * column_count;
    row_stride = is_matrix ? to_next_row : 0;
    column_stride = column_count == 1 ? to_next_row : to_next_column;
  }

  Index size() const { return rows * columns; }
  bool empty() const { return columns == 0; }
  Integer operator()(Index r, Index c) const { return data[r * row_stride + c * column_stride]; }
  /// Element i of a vector.
  Integer operator[](Index i) const { return data[i * column_stride]; }

  /// Returns this list. Throws unless it is a vector.
  const integer_list& as_vector(const char* name) const {
    if (rows > 1)
      throw_invalid(name, "give a vector of integers, got a matrix ", shape_text({rows, columns}));
    return *this;
  }
};

template <class Derived>
const Derived& dense_of(const Eigen::DenseBase<Derived>& x) {
  return x.derived();
}

/// An Eigen matrix, array, map, block or expression of integers.
template <class X>
concept dense_integers = requires(const X& x) {
  requires whole_number<typename std::remove_cvref_t<decltype(dense_of(x))>::Scalar>;
};

/// An Eigen object of integers whose coefficients are in memory, at strides that its type exposes.
template <class X>
concept dense_integers_in_memory = dense_integers<X> && requires(const X& x) {
  dense_of(x).data();
  dense_of(x).innerStride();
  requires bool(unsigned(std::remove_cvref_t<decltype(dense_of(x))>::Flags) & Eigen::DirectAccessBit);
};

/// The element type of an array, or of the memory at data() of a container.
template <class X>
using element_of = std::remove_cvref_t<decltype(*std::data(std::declval<const X&>()))>;

/// An Eigen::Tensor or TensorMap of integers, [n] or [rows, columns].
template <class X>
concept tensor_of_integers =
    !dense_integers<X> && whole_number<element_of<X>> && (tensor<const X, 1> || tensor<const X, 2>);

/// A contiguous range of integers: std::vector, std::array, std::span, a C array. A type that has only data()
/// and size() is rejected, because it may be a strided view. The span of libc++ 14 would accept it.
template <class X>
concept contiguous_integers =
    !dense_integers<X> && whole_number<element_of<X>> &&
    std::is_constructible_v<std::span<const element_of<X>>, const X&> && requires(const X& x) {
  std::end(x);
};

/// An mdspan of integers, [n] or [rows, columns], of any strides.
template <class X>
concept span_of_integers = (strided_span<X, 1> ||
                            strided_span<X, 2>)&&whole_number<std::remove_cv_t<typename X::element_type>>;

/// Integers that can be read in place.
template <class X>
concept integers_in_memory =
    dense_integers_in_memory<X> || tensor_of_integers<X> || contiguous_integers<X> || span_of_integers<X>;

/// The coefficients of an expression, each evaluated once. A second evaluation, after the check, could give
/// other values, for example if the expression makes random numbers.
template <class Integer>
struct evaluated_list : integer_list<Integer> {
  number_array<Integer> memory;

  evaluated_list(evaluated_list&&) = default;  // the memory keeps its address
  evaluated_list(const evaluated_list& other) : integer_list<Integer>(other), memory(other.memory) {
    this->data = memory.data();
  }
  evaluated_list& operator=(const evaluated_list&) = delete;

  template <class Derived>
  evaluated_list(const Eigen::DenseBase<Derived>& expression) {
    using row_major = Eigen::Array<Integer, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    memory.resize(expression.rows(), expression.cols());
    Eigen::Map<row_major>(memory.data(), memory.rows(), memory.cols()) = expression.derived().array();
    if constexpr (bool(Derived::IsVectorAtCompileTime))
      integer_list<Integer>::operator=({memory.data(), memory.size(), 1});
    else
      integer_list<Integer>::operator=({memory.data(), memory.rows(), memory.cols(), memory.cols(), 1});
  }
};

/// An integer_list that refers to the caller's memory. If x is an expression, an evaluated_list.
template <class X>
requires dense_integers<X> || integers_in_memory<X>
auto list_of(const X& x) {
  if constexpr (dense_integers<X>) {
    const auto& list = dense_of(x);
    using dense = std::remove_cvref_t<decltype(list)>;
    using integer = typename dense::Scalar;
    if constexpr (!dense_integers_in_memory<X>)
      return evaluated_list<integer>(list);
    else if constexpr (bool(dense::IsVectorAtCompileTime))
      return integer_list<integer>(list.data(), list.size(), list.innerStride());
    else
      return integer_list<integer>(list.data(), list.rows(), list.cols(), list.rowStride(), list.colStride());
  } else if constexpr (numbers_by_index<const X, 1> || numbers_by_index<const X, 2>) {
    constexpr int rank = numbers_by_index<const X, 1> ? 1 : 2;
    const auto memory = indexed_memory_of<rank>(x);
    using integer = std::remove_cvref_t<decltype(*memory.data)>;
    const auto &extents = memory.extents, &strides = memory.strides;
    if constexpr (rank == 1)
      return integer_list<integer>(memory.data, extents[0], strides[0]);
    else
      return integer_list<integer>(memory.data, extents[0], extents[1], strides[0], strides[1]);
  } else {
    return integer_list<element_of<X>>(std::span<const element_of<X>>(x));
  }
}

/// An integer_list that refers to the caller's memory, which must outlive it.
template <class X>
auto list_in_memory(const X& x) {
  static_assert(integers_in_memory<X>,
                "row_starts, segments and segment_ranges: the integers must be in memory that outlives the "
                "call; evaluate an expression first");
  if constexpr (integers_in_memory<X>) return list_of(x);
}

/// The type of the integers in a list, which may be in memory or an expression.
template <class X>
using integer_of = decltype(list_of(std::declval<const X&>())[0]);

/// The caller's integer as a position. A value above the range of int64 becomes the largest int64, which is
/// also outside every table.
template <whole_number Integer>
std::int64_t as_position(Integer value) {
  if constexpr (std::is_unsigned_v<Integer> && sizeof(Integer) >= sizeof(std::int64_t))
    return static_cast<std::int64_t>(
        (std::min)(value, static_cast<Integer>((std::numeric_limits<std::int64_t>::max)())));
  else
    return static_cast<std::int64_t>(value);
}

/// The type in which a call keeps positions that it reads more than once.
template <class P>
struct kept {
  using type = const P&;
};
template <dense_integers P>
requires(!integers_in_memory<P>) struct kept<P> {
  using type = evaluated_list<integer_of<P>>;
};
template <class P>
using kept_positions = typename kept<P>::type;

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_INTEGER_LIST_HPP
