// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_NEW_POSITIONS_HPP
#define ROPE_TESTS_FUZZ_NEW_POSITIONS_HPP

/// Positions of new tokens: after those of their row, consecutive from a start on, or each anywhere.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"

namespace fuzz {

using rope::Index;

/// The largest position, in magnitude, and the largest with which the plain models compute exactly.
inline constexpr std::int64_t furthest = std::int64_t{1} << 53, exact_position = std::int64_t{1} << 36;

class new_positions {
 public:
  new_positions(bytes& b, bool placed, Index batch, Index tokens)
      : placed_(placed), each_(b.up_to(2) > 0), tokens_(tokens) {
    if (placed) start_ = b.one_in(6) ? b.integer() : b.between(-2, 60);
    if (placed && each_)
      for (Index i = 0; i < batch * tokens; ++i)
        ids_.push_back(b.one_in(12) ? b.integer() : b.between(-2, 60));
  }
  /// \param next  the position after the row
  std::int64_t of(Index r, Index t, std::int64_t next) const {
    if (!placed_) return next + t;
    if (each_) return ids_[static_cast<std::size_t>(r * tokens_ + t)];
    constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
    return start_ > last - t ? last : start_ + t;
  }
  /// Calls f with the corresponding argument: nothing, the start, or the list.
  template <class Call>
  void with(const Call& f) const {
    if (!placed_) return f();
    each_ ? f(ids_) : f(start_);
  }

 private:
  bool placed_, each_;
  Index tokens_;
  std::int64_t start_ = 0;
  std::vector<std::int64_t> ids_;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_NEW_POSITIONS_HPP
