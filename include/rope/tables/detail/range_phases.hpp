// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_RANGE_PHASES_HPP
#define ROPE_TABLES_DETAIL_RANGE_PHASES_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/phase_row.hpp>
#include <rope/tables/phase.hpp>

/// The phases of positions in a row.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// phase_at(phase_of(inv_freq(i)), inv_freq(i), p) for every pair i and p = first, first + 1, ...: in steps,
/// the phase of a pair grows by the same integer from one position to the next, so it is one exact addition
/// away from the one before it.
class range_phases {
 public:
  /// \param inv_freq  [pairs, 1]
  range_phases(const frequencies::inv_freq_map& inv_freq, std::int64_t first)
      : position_(first),
        step_(static_cast<std::size_t>(inv_freq.rows())),
        now_(static_cast<std::size_t>(inv_freq.rows())) {
    for (std::size_t i = 0; i < step_.size(); ++i) {
      const double speed = inv_freq(static_cast<Index>(i), 0);
      inv_freq_.push_back(speed);
      step_.set(i, phase_of(speed));
      if (slower_than_steps(speed)) slow_.push_back(i);
    }
  }

  /// The phases of the next position, valid until the next call.
  const phase_row& next() {
    const std::int64_t position = position_++;
    const auto find = [this, position](std::size_t i) {
      now_.set(i, phase_at(step_[i], inv_freq_[i], position));
    };
    if (in_steps_ && !beyond_steps(position)) {
      now_.add(step_);
      for (const std::size_t i : slow_) find(i);
    } else {
      for (std::size_t i = 0; i < now_.size(); ++i) find(i);
      in_steps_ = !beyond_steps(position);
    }
    return now_;
  }

 private:
  std::int64_t position_;
  bool in_steps_ = false;  // whether now_ is where steps lead
  std::vector<double> inv_freq_;
  phase_row step_, now_;
  std::vector<std::size_t> slow_;  // the pairs that are never counted in steps
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_RANGE_PHASES_HPP
