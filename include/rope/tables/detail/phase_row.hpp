// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_PHASE_ROW_HPP
#define ROPE_TABLES_DETAIL_PHASE_ROW_HPP

#include <cstddef>
#include <cstdint>

#include <rope/base/number_array.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>
#include <rope/tables/phase.hpp>

/// The phases of all pairs of a row of a table.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// One phase per pair. The upper 128 bits, which are all that most float entries need, lie side by side, so
/// that compilers evaluate several pairs at once.
class phase_row {
 public:
  explicit phase_row(std::size_t pairs)
      : upper_(static_cast<Index>(pairs), 1, uint128{}), lower_(static_cast<Index>(pairs), 1, 0) {}

  std::size_t size() const { return static_cast<std::size_t>(upper_.size()); }
  const uint128* upper() const { return upper_.data(); }

  phase operator[](std::size_t i) const {
    const uint128 upper = upper_.data()[i];
    return {{upper.hi, upper.lo, lower_.data()[i]}};
  }
  void set(std::size_t i, phase p) {
    upper_.data()[i] = {p.turn.hi, p.turn.mid};
    lower_.data()[i] = p.turn.lo;
  }
  void clear() {
    for (uint128& upper : upper_) upper = {};
    for (std::uint64_t& lower : lower_) lower = 0;
  }

  void add(std::size_t i, phase p) { set(i, (*this)[i] + p); }
  /// Adds a phase to every pair's.  Requires: as many pairs
  void add(const phase_row& step) {
    const std::size_t pairs = size();
    uint128* upper = upper_.data();
    std::uint64_t* lower = lower_.data();
    const uint128* step_upper = step.upper_.data();
    const std::uint64_t* step_lower = step.lower_.data();
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::uint64_t low = lower[i] + step_lower[i], carry = low < step_lower[i] ? 1u : 0u;
      const std::uint64_t mid = upper[i].lo + step_upper[i].lo, sum = mid + carry;
      upper[i].hi += step_upper[i].hi + (mid < step_upper[i].lo ? 1u : 0u) + (sum < carry ? 1u : 0u);
      upper[i].lo = sum;
      lower[i] = low;
    }
  }

 private:
  number_array<uint128> upper_;
  number_array<std::uint64_t> lower_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_PHASE_ROW_HPP
