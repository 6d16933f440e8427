// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_RANGE_PHASES_HPP
#define ROPE_TABLES_DETAIL_RANGE_PHASES_HPP

#include <cstddef>
#include <cstdint>

#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/phase_row.hpp>
#include <rope/tables/phase.hpp>

/// The phases of consecutive positions.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// phase_at(phase_of(inv_freq(i)), inv_freq(i), p) for every pair i and p = first, first + 1, ... Where
/// positions are counted in steps, a phase is the one before it plus the same integer, an exact addition.
class range_phases {
 public:
  /// \param of  on one axis; outlives this object
  range_phases(const frequencies& of, std::int64_t first)
      : position_(first),
        frequencies_(of),
        step_(static_cast<std::size_t>(of.pairs())),
        now_(static_cast<std::size_t>(of.pairs())),
        slow_(of.pairs()) {
    for (std::size_t i = 0; i < step_.size(); ++i) {
      const double speed = of.inv_freq(static_cast<Index>(i), 0);
      step_.set(i, phase_of(speed));
      if (slower_than_steps(speed)) slow_(slow_count_++) = i;
    }
  }

  /// The phases of the next position, valid until the next call.
  const phase_row& next() {
    const std::int64_t position = position_++;
    const auto find = [this, position](std::size_t i) {
      now_.set(i, phase_at(step_[i], frequencies_.inv_freq(static_cast<Index>(i), 0), position));
    };
    if (in_steps_ && !beyond_steps(position)) {
      now_.add(step_);
      for (Index k = 0; k < slow_count_; ++k) find(slow_(k));
    } else {
      for (std::size_t i = 0; i < now_.size(); ++i) find(i);
      in_steps_ = !beyond_steps(position);
    }
    return now_;
  }

 private:
  std::int64_t position_;
  bool in_steps_ = false;  // whether now_ was counted in steps, so that the next phase may be
  const frequencies& frequencies_;
  phase_row step_, now_;
  number_array<std::size_t> slow_;  // [pairs], the first slow_count_: those that are never counted in steps
  Index slow_count_ = 0;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_RANGE_PHASES_HPP
