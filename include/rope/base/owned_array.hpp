// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_OWNED_ARRAY_HPP
#define ROPE_BASE_OWNED_ARRAY_HPP

#include <new>
#include <type_traits>  // std::remove_const_t
#include <utility>      // std::move

#include <rope/base/number_array.hpp>
#include <rope/config.hpp>

/// Arrays of numbers that the library returns, for callers that use Eigen. Their memory is a number_array.
/// number_array.hpp explains why it is not an Eigen array. Functions that return an owned_array are
/// templates, so that only programs that call them compile Eigen's map.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The memory of an array, constructed before its map.
template <class Scalar>
struct array_memory {
  number_array<Scalar> numbers;
};

template <class Scalar, int Columns>
using array_map =
    Eigen::Map<Eigen::Array<std::remove_const_t<Scalar>, Eigen::Dynamic, Columns, Eigen::ColMajor>>;

}  // namespace detail

/// An Eigen array [rows, columns] with its own memory, column-major even if Eigen's default is row-major. It
/// derives from Eigen::Map, but assignment changes its shape to that of the expression, as for an
/// Eigen::Array.
///
///     owned_array<double> coordinates = grid_coordinates(evenly_spaced(8), evenly_spaced(8));
///     coordinates.col(1) += shift;
///     Eigen::ArrayXXd copy = coordinates;
///
/// \tparam Columns  Eigen::Dynamic, or 1 for a vector
///
/// Invariant: an array that was moved from is empty. An assignment that throws changes nothing.
template <class Scalar, int Columns = Eigen::Dynamic>
class owned_array final : detail::array_memory<Scalar>, public detail::array_map<Scalar, Columns> {
  static_assert(Columns == Eigen::Dynamic || Columns == 1,
                "owned_array: Columns is Eigen::Dynamic, or 1 for a vector");

  using memory = detail::array_memory<Scalar>;
  using map_type = detail::array_map<Scalar, Columns>;
  static constexpr Index no_columns = Columns == 1 ? 1 : 0;

 public:
  /// The numbers as an Eigen array, to read.
  using const_map = Eigen::Map<const Eigen::Array<Scalar, Eigen::Dynamic, Columns, Eigen::ColMajor>>;

  /// No numbers.
  owned_array() noexcept : memory{}, map_type(nullptr, 0, no_columns) {}

  /// Numbers that are indeterminate until written.
  ///
  /// Throws:  std::length_error if they exceed the address space
  owned_array(Index rows, Index columns)
      : memory{number_array<Scalar>(rows, columns)}, map_type(memory::numbers.data(), rows, columns) {}
  /// A vector of indeterminate numbers.
  explicit owned_array(Index rows) requires(Columns == 1) : owned_array(rows, 1) {}

  /// Numbers that are all `value`.
  ///
  /// Throws:  std::length_error if they exceed the address space
  owned_array(Index rows, Index columns, Scalar value)
      : owned_array(number_array<Scalar>(rows, columns, value)) {}

  /// Takes over the memory of `values`.
  owned_array(number_array<Scalar>&& values)
      : memory{std::move(values)},
        map_type(memory::numbers.data(),
                 is_row(memory::numbers) ? memory::numbers.size() : memory::numbers.rows(),
                 is_row(memory::numbers) ? 1 : memory::numbers.cols()) {}

  /// A copy of an Eigen expression with the same scalar.
  template <class Derived>
  owned_array(const Eigen::DenseBase<Derived>& values) : owned_array(number_array<Scalar>(values)) {}

  /// A copy of the shape and the numbers.
  owned_array(const owned_array& other)
      : memory(other), map_type(memory::numbers.data(), other.rows(), other.cols()) {}
  /// Takes over the memory of `other`, which is then empty.
  owned_array(owned_array&& other) noexcept
      : memory{std::move(other.numbers)}, map_type(memory::numbers.data(), other.rows(), other.cols()) {
    other.~owned_array();
    ::new (static_cast<void*>(&other)) owned_array();
  }
  ~owned_array() = default;

  /// Destroys and reconstructs the object, because the pointer of an Eigen::Map cannot change.
  owned_array& operator=(owned_array&& other) noexcept {
    if (this == &other) return *this;
    this->~owned_array();
    return *::new (static_cast<void*>(this)) owned_array(std::move(other));
  }
  owned_array& operator=(const owned_array& other) { return *this = owned_array(other); }  // all or nothing
  /// Takes the shape and the numbers of an expression.
  template <class Derived>
  owned_array& operator=(const Eigen::DenseBase<Derived>& values) {
    return *this = owned_array(values);
  }

  /// Gives the array another shape and new memory. The numbers are then indeterminate.
  ///
  /// Throws:  std::length_error if they exceed the address space; the array is then unchanged
  void resize(Index rows, Index columns) { *this = owned_array(rows, columns); }
  /// Gives the vector another length and new memory.
  void resize(Index rows) requires(Columns == 1) { *this = owned_array(rows); }

  /// The numbers as a read-only Eigen array, valid until the next resize(), assignment or move.
  const_map map() const { return {this->data(), this->rows(), this->cols()}; }

 private:
  static bool is_row(const number_array<Scalar>& values) { return Columns == 1 && values.rows() == 1; }
};

namespace detail {

template <class T>
struct doubles {
  using type = double;
};
/// owned_array<double> as a type that depends on T, for results of templates.
template <class T, int Columns = Eigen::Dynamic>
using owned_doubles = owned_array<typename doubles<T>::type, Columns>;

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BASE_OWNED_ARRAY_HPP
