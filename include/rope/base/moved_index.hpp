// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_MOVED_INDEX_HPP
#define ROPE_BASE_MOVED_INDEX_HPP

#include <utility>  // std::exchange

#include <rope/config.hpp>

/// An extent that is 0 once the memory it counts was moved elsewhere.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// An Index that is moved together with the memory it counts, and is 0 in an object that was moved from.
class moved_index {
 public:
  moved_index(Index value) noexcept : value_(value) {}
  moved_index(const moved_index&) = default;
  moved_index(moved_index&& other) noexcept : value_(std::exchange(other.value_, Index{0})) {}
  moved_index& operator=(const moved_index&) = default;
  moved_index& operator=(moved_index&& other) noexcept {
    const Index value = std::exchange(other.value_, Index{0});
    value_ = value;
    return *this;
  }
  ~moved_index() = default;

  operator Index() const noexcept { return value_; }

 private:
  Index value_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_MOVED_INDEX_HPP
