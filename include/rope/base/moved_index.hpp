// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_MOVED_INDEX_HPP
#define ROPE_BASE_MOVED_INDEX_HPP

#include <rope/config.hpp>

/// Counts that move together with the memory they count.

namespace rope::inline ROPE_ABI::detail {

/// An Index that is moved with the memory it counts. It is 0 in an object that was moved from.
class moved_index {
 public:
  moved_index(Index value) noexcept : value_(value) {}
  moved_index(const moved_index&) = default;
  moved_index(moved_index&& other) noexcept : value_(other.value_) { other.value_ = 0; }
  moved_index& operator=(const moved_index&) = default;
  moved_index& operator=(moved_index&& other) noexcept {
    const Index value = other.value_;
    other.value_ = 0;
    value_ = value;
    return *this;
  }
  ~moved_index() = default;

  operator Index() const noexcept { return value_; }

 private:
  Index value_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_MOVED_INDEX_HPP
