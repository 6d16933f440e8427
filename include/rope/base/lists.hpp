// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_LISTS_HPP
#define ROPE_BASE_LISTS_HPP

#include <algorithm>  // std::find, std::sort, std::unique
#include <cstddef>
#include <span>
#include <vector>

#include <rope/config.hpp>

/// Small operations on lists. They are templates to save compile time: the algorithms of the standard library
/// are constexpr, and a compiler instantiates those wherever they are named, even in an unused template. It
/// instantiates these templates only if they are called.

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

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_LISTS_HPP
