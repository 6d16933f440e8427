// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_LISTS_HPP
#define ROPE_BASE_LISTS_HPP

#include <algorithm>  // std::find, std::sort, std::unique
#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcpy
#include <span>
#include <type_traits>
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/tensor_shape.hpp>  // vector_in_memory
#include <rope/config.hpp>

/// Small operations on lists. They are templates to save compile time: the algorithms of the standard library
/// are constexpr, and compilers instantiate constexpr functions wherever they are named, even in an unused
/// template. The templates here are instantiated only if they are called.
///
/// Lists of integers of any type, and spans of numbers.

namespace rope::inline ROPE_ABI::detail {

/// Whether an element of the list equals x.
template <class T, class X>
bool contains(const std::vector<T>& list, const X& x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

/// Adds an element at the end of the list.
template <class T>
void append(std::vector<T>& list, const T& x) {
  list.push_back(x);
}

/// Sorts [first, last) in increasing order.
template <class T>
void sort(T* first, T* last) {
  std::sort(first, last);
}

/// Sorts a list in increasing order and keeps one of equal elements.
template <class T>
void sort_distinct(std::vector<T>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

/// Elements [first, first + count).
template <class T>
std::span<T> part_of(std::span<T> list, Index first, Index count) {
  return list.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

/// A span of numbers that are read. An Eigen vector converts to it as a std::vector does.
template <class T>
class number_span : public std::span<const T> {
  using base = std::span<const T>;

 public:
  using base::base;
  number_span(base list) : base(list) {}
  template <vector_in_memory X>
  requires std::is_same_v<typename X::Scalar, T> number_span(const X& x ROPE_DETAIL_LIFETIMEBOUND)
      : base(x.data(), static_cast<std::size_t>(x.size())) {}
};

/// A vector of integers of any type in memory, each read as std::int64_t. The type of the list does not
/// depend on the type of the integers, so code that reads a list is compiled once.
///
/// Requires:  the integers outlive the list
class any_integers {
 public:
  any_integers() = default;
  /// Throws:  std::invalid_argument if the list is a matrix
  template <integers_in_memory X>
  any_integers(const X& list) : any_integers("counts and offsets", list) {}
  template <integers_in_memory X>
  requires owns_memory<X> any_integers(const X& list ROPE_DETAIL_LIFETIMEBOUND)
      : any_integers("counts and offsets", list) {}
  template <whole_number Integer>
  any_integers(const Integer* data, std::size_t size)
      : data_(data), size_(size), step_(sizeof(Integer)), read_(as<Integer>) {
    static_assert(sizeof(Integer) <= sizeof(std::int64_t),
                  "counts and offsets: integers have at most 64 bits");
  }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  /// Integer i, or the largest std::int64_t if the integer is larger. Not inline, because most calls of
  /// attention have no list, and callers stay small.
  EIGEN_DONT_INLINE std::int64_t operator[](std::size_t i) const { return read(i); }

  /// Integers `index` and index + 1 of a list.
  struct neighbours {
    std::size_t index;
    std::int64_t first, next;
  };
  /// The last integer that is at most `value`, and the next integer.
  ///
  /// Requires:  the integers do not decrease, the first is at most `value`, and the last is larger
  EIGEN_DONT_INLINE neighbours around(std::int64_t value) const {
    if (read_ == as<std::int64_t>)  // the usual type
      return search(value, [this](std::size_t i) { return as<std::int64_t>(address(i)); });
    return search(value, [this](std::size_t i) { return read(i); });
  }

 protected:
  /// \param name  the name of the list in errors
  template <integers_in_memory X>
  any_integers(const char* name, const X& list) {
    const auto vector = list_of(list).as_vector(name);
    *this = any_integers(vector.data, static_cast<std::size_t>(vector.size()));
    step_ *= vector.column_stride;
  }

 private:
  template <class Integer>
  static std::int64_t as(const char* at) {
    Integer value;
    std::memcpy(&value, at, sizeof(value));
    return as_position(value);
  }
  template <class Read>
  neighbours search(std::int64_t value, const Read& read_at) const {
    std::size_t first = 0, count = size_ - 1;  // the last integer is larger
    while (count > 1) {
      const std::size_t half = count / 2;
      first = read_at(first + half) <= value ? first + half : first;
      count -= half;
    }
    return {first, read_at(first), read_at(first + 1)};
  }

  const char* address(std::size_t i) const {
    return static_cast<const char*>(data_) + static_cast<std::int64_t>(i) * step_;
  }
  std::int64_t read(std::size_t i) const { return read_(address(i)); }

  const void* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t step_ = 0;                        // bytes from one integer to the next
  std::int64_t (*read_)(const char*) = nullptr;  // reads an integer of the type of the list
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_LISTS_HPP
