// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_NUMBER_ARRAY_HPP
#define ROPE_BASE_NUMBER_ARRAY_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <limits>
#include <new>  // std::align_val_t
#include <type_traits>
#include <utility>  // std::exchange

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// Arrays of numbers that the library keeps. They are not Eigen arrays, for two reasons.
///
/// First, Eigen's allocation functions have the same names for every instruction set but differ: some call
/// malloc, others align a block by hand. If two translation units have different instruction sets, the linker
/// keeps the functions of only one. These may then free memory that was allocated by the functions of the
/// other. So no Eigen array is a member, a result or a local variable of this library.
///
/// Second, an Eigen class that a non-template function uses is compiled by every program. With these arrays,
/// only programs that call map() compile Eigen's map.
///
/// Memory of tables, caches and scratch: uninitialised, aligned to a cache line under all compiler flags.

namespace rope::inline ROPE_ABI::detail {

inline constexpr std::size_t cache_line = 64;

/// Whether an Eigen expression has numbers of float or double.
template <class Derived>
inline constexpr bool is_real =
    std::is_same_v<typename Derived::Scalar, float> || std::is_same_v<typename Derived::Scalar, double>;

/// Rejects a block that exceeds the address space.
///
/// Throws:  std::length_error
inline void check_block(const char* name, std::size_t count, std::size_t size) {
  if (count > static_cast<std::size_t>(-1) / size)
    throw_length(name, count, " elements of ", size, " bytes exceed the address space");
}

inline void* allocate_block(std::size_t bytes) {
  return ::operator new (bytes, std::align_val_t{cache_line});
}

/// An array [rows, columns] of elements of `size` bytes each, or null if it has no element.
///
/// Throws:  std::length_error if it has a negative extent or exceeds the address space
inline void* allocate_array(Index rows, Index columns, std::size_t size) {
  const Index most = (std::numeric_limits<Index>::max)() / static_cast<Index>(size);
  if (rows < 0 || columns < 0 || (columns > 0 && rows > most / columns))
    throw_length("number_array", shape_text({rows, columns}),
                 " must not be negative nor exceed the address space");
  if (rows == 0 || columns == 0) return nullptr;
  return allocate_block(static_cast<std::size_t>(rows * columns) * size);
}

/// Frees a block of allocate_block. Does nothing if `block` is null.
inline void free_block(void* block) noexcept { ::operator delete (block, std::align_val_t{cache_line}); }

}  // namespace rope::inline ROPE_ABI::detail

namespace rope::inline ROPE_ABI {

/// Numbers [rows, columns], column-major, in their own memory unless made by over(). map() makes an
/// Eigen::Map of them.
///
///     schedule axis = {.rotary_dim = 64, .base = 10000, .inv_freq = {}};
///     axis.restart(10000);
///     axis.inv_freq /= 2;
///     axis.inv_freq(0) = 1;
///     axis.inv_freq.map().bottomRows(8).setZero();  // any expression of Eigen
///
/// Invariant: an array without numbers has no memory, and its data() is null. An array that was moved from is
///            empty. An assignment that throws changes nothing.
template <class Scalar>
class number_array {
  static_assert(std::is_trivially_copyable_v<Scalar>,
                "number_array: the numbers are copied as they lie in memory");

 public:
  /// The numbers as an Eigen array [rows, columns], to read and write.
  using map_type = Eigen::Map<Eigen::Array<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>>;
  /// The numbers as a read-only Eigen array.
  using const_map_type =
      Eigen::Map<const Eigen::Array<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>>;

  /// No numbers, [0, 0].
  number_array() = default;

  /// Numbers that are indeterminate until written.
  ///
  /// Throws:  std::length_error if they exceed the address space
  explicit number_array(Index rows, Index columns = 1)
      : numbers_{static_cast<Scalar*>(detail::allocate_array(rows, columns, sizeof(Scalar))), rows, columns} {
  }

  /// Numbers that are all `value`.
  ///
  /// Throws:  std::length_error if they exceed the address space
  number_array(Index rows, Index columns, Scalar value) : number_array(rows, columns) {
    for (Scalar& number : *this) number = value;
  }

  /// A copy of an Eigen expression with the same scalar.
  template <class Derived>
  number_array(const Eigen::DenseBase<Derived>& values) : number_array(values.rows(), values.cols()) {
    // Copies one number at a time. For a small constant size, the compiler would warn about packet copies
    // that are never executed.
    Eigen::Map<Eigen::Array<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>, Eigen::Unaligned,
               Eigen::InnerStride<>>
        to(data(), rows(), cols(), Eigen::InnerStride<>(1));
    to = values.derived().array();
  }

  /// An array in the caller's memory, which must outlive the array and every array that it is moved to. A
  /// copy of the array has its own memory.
  static number_array over(Scalar* data, Index rows, Index columns) noexcept {
    number_array array;
    array.numbers_ = {data, rows, columns, false};
    return array;
  }

  /// A copy of the shape and the numbers.
  number_array(const number_array& other) : number_array(other.rows(), other.cols()) {
    std::copy_n(other.data(), size(), data());
  }
  /// Takes over the memory of `other`, which is then empty.
  number_array(number_array&& other) noexcept : numbers_(std::exchange(other.numbers_, {})) {}
  /// Copies the shape and the numbers. If it throws, nothing changes.
  number_array& operator=(const number_array& other) { return *this = number_array(other); }
  /// Takes over the memory of `other`, which is then empty.
  number_array& operator=(number_array&& other) noexcept {
    const memory taken = std::exchange(other.numbers_, {});
    release();
    numbers_ = taken;
    return *this;
  }
  ~number_array() { release(); }

  /// Gives the array another shape and new memory. The numbers are then indeterminate.
  ///
  /// Throws:  std::length_error if they exceed the address space; the array is then unchanged
  void resize(Index rows, Index columns = 1) { *this = number_array(rows, columns); }

  /// Number of rows.
  Index rows() const { return numbers_.rows; }
  /// Number of columns.
  Index cols() const { return numbers_.columns; }
  /// Number of elements: rows() * cols().
  Index size() const { return rows() * cols(); }
  /// Whether size() is 0.
  bool empty() const { return size() == 0; }
  /// The first number; number (r, c) is data()[r + c * rows()].
  Scalar* data() { return numbers_.data; }
  /// The first number, read-only.
  const Scalar* data() const { return numbers_.data; }
  /// Begin of the numbers in the order of memory.
  Scalar* begin() { return data(); }
  /// End of the numbers in the order of memory.
  Scalar* end() { return data() + size(); }
  /// Begin of the numbers in the order of memory, to read.
  const Scalar* begin() const { return data(); }
  /// End of the numbers in the order of memory, to read.
  const Scalar* end() const { return data() + size(); }

  /// Number i in the order of memory.  Requires: i in [0, size())
  Scalar& operator()(Index i) { return data()[i]; }
  /// Number i in the order of memory, read-only.
  const Scalar& operator()(Index i) const { return data()[i]; }
  /// One number.  Requires: row in [0, rows()), column in [0, cols())
  Scalar& operator()(Index row, Index column) { return data()[row + column * rows()]; }
  /// One number, read-only.
  const Scalar& operator()(Index row, Index column) const { return data()[row + column * rows()]; }

  /// Multiplies every number by `factor`.
  number_array& operator*=(Scalar factor) {
    for (Scalar& number : *this) number *= factor;
    return *this;
  }
  /// Divides every number by `divisor`.
  number_array& operator/=(Scalar divisor) {
    for (Scalar& number : *this) number /= divisor;
    return *this;
  }

  /// The numbers as an Eigen array, valid until the next resize(), assignment or move.
  map_type map() { return {data(), rows(), cols()}; }
  /// The numbers as a read-only Eigen array.
  const_map_type map() const { return {data(), rows(), cols()}; }

 private:
  struct memory {
    Scalar* data = nullptr;  // [rows, columns]
    Index rows = 0;          // extent of data
    Index columns = 0;       // extent of data
    bool owned = true;       // whether the destructor frees data
  };

  void release() noexcept {
    if (numbers_.owned) detail::free_block(numbers_.data);
  }

  memory numbers_;
};

namespace detail {

/// An Index that is moved with the memory it counts. It is 0 in an object that was moved from.
class moved_index {
 public:
  moved_index(Index value) noexcept : value_(value) {}
  moved_index(const moved_index&) = default;
  moved_index(moved_index&& other) noexcept : value_(std::exchange(other.value_, 0)) {}
  moved_index& operator=(const moved_index&) = default;
  moved_index& operator=(moved_index&& other) noexcept {
    value_ = std::exchange(other.value_, 0);
    return *this;
  }
  ~moved_index() = default;

  operator Index() const noexcept { return value_; }

 private:
  Index value_;
};

}  // namespace detail

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BASE_NUMBER_ARRAY_HPP
