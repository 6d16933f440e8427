// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_OWNED_ARRAY_HPP
#define ROPE_BASE_OWNED_ARRAY_HPP

#include <algorithm>  // std::fill_n
#include <limits>
#include <memory>       // std::destroy_at, std::construct_at
#include <type_traits>  // std::type_identity_t
#include <utility>      // std::move

#include <rope/base/message.hpp>
#include <rope/base/storage.hpp>
#include <rope/config.hpp>

/// Arrays of numbers that the library keeps or returns. Eigen's own arrays have their memory from functions
/// that two translation units of different instruction sets share by name and not by meaning: one takes it
/// from malloc, the other from a block that it aligns by hand, and whichever the linker keeps meets memory of
/// the other. No array of Eigen that owns memory is therefore a member, a result or a local of this library.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The memory of an array, constructed before the map of it.
template <class Scalar>
struct array_memory {
  storage<Scalar> numbers;
};

template <class Scalar, int Columns>
using array_map =
    Eigen::Map<Eigen::Array<std::remove_const_t<Scalar>, Eigen::Dynamic, Columns, Eigen::ColMajor>>;
template <class Scalar, int Columns>
using const_array_map = Eigen::Map<const Eigen::Array<Scalar, Eigen::Dynamic, Columns, Eigen::ColMajor>>;

}  // namespace detail

/// An Eigen array, column-major whatever Eigen's defaults are, in memory of its own: every expression of an
/// Eigen::Map is one of it. Assignment takes the shape of what is assigned, as that of an Eigen::Array does.
///
///     owned_array<double> coordinates = grid_coordinates(evenly_spaced(8), evenly_spaced(8));
///     coordinates.col(1) += shift;
///     Eigen::ArrayXXd copy = coordinates;
///
/// \tparam Columns  Eigen::Dynamic, or 1: a vector
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
  using const_map = detail::const_array_map<Scalar, Columns>;

  owned_array() noexcept : memory{}, map_type(nullptr, 0, no_columns) {}

  /// Numbers that are indeterminate until written.
  ///
  /// Throws:  std::length_error if they exceed the address space
  owned_array(Index rows, Index columns)
      : memory{detail::storage<Scalar>(checked_size(rows, columns))},
        map_type(memory::numbers.data(), rows, columns) {}
  explicit owned_array(Index rows) requires(Columns == 1) : owned_array(rows, 1) {}

  /// Numbers that all have one value.
  ///
  /// Throws:  as above
  owned_array(Index rows, Index columns, Scalar value) : owned_array(rows, columns) {
    std::fill_n(this->data(), this->size(), value);
  }

  /// A copy of an Eigen expression of the same scalar.
  template <class Derived>
  owned_array(const Eigen::DenseBase<Derived>& values)
      : owned_array(is_row<Derived> ? values.size() : values.rows(), is_row<Derived> ? 1 : values.cols()) {
    // Number by number: where the compiler sees a size of a few numbers, it warns of the packets of a copy
    // that is never made in packets then.
    Eigen::Map<typename map_type::PlainObject, Eigen::Unaligned, Eigen::InnerStride<>> to(
        this->data(), this->rows(), this->cols(), Eigen::InnerStride<>(1));
    if constexpr (is_row<Derived>)
      to = values.derived().transpose().array();
    else
      to = values.derived().array();
  }

  owned_array(const owned_array& other)
      : memory(other), map_type(memory::numbers.data(), other.rows(), other.cols()) {}
  owned_array(owned_array&& other) noexcept
      : memory{std::move(other.numbers)}, map_type(memory::numbers.data(), other.rows(), other.cols()) {
    std::destroy_at(&other);
    std::construct_at(&other);
  }
  ~owned_array() = default;

  /// A map cannot be pointed elsewhere, so the object is replaced as a whole.
  owned_array& operator=(owned_array&& other) noexcept {
    if (this == &other) return *this;
    std::destroy_at(this);
    return *std::construct_at(this, std::move(other));
  }
  owned_array& operator=(const owned_array& other) { return *this = owned_array(other); }
  template <class Derived>
  owned_array& operator=(const Eigen::DenseBase<Derived>& values) {
    return *this = owned_array(values);
  }

  /// Another shape; the numbers are then indeterminate.
  void resize(Index rows, Index columns) { *this = owned_array(rows, columns); }
  void resize(Index rows) requires(Columns == 1) { *this = owned_array(rows); }

  const_map map() const { return {this->data(), this->rows(), this->cols()}; }

 private:
  template <class Derived>
  static constexpr bool is_row = Columns == 1 && int(Derived::RowsAtCompileTime) == 1 &&
                                 int(Derived::ColsAtCompileTime) != 1;

  static std::size_t checked_size(Index rows, Index columns) {
    constexpr Index most = (std::numeric_limits<Index>::max)() / static_cast<Index>(sizeof(Scalar));
    if (rows < 0 || columns < 0 || (columns > 0 && rows > most / columns))
      ROPE_THROW(std::length_error, detail::message("owned_array: [", rows, ", ", columns,
                                                    "] must not be negative nor exceed the address space"));
    return static_cast<std::size_t>(rows * columns);
  }
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_OWNED_ARRAY_HPP
