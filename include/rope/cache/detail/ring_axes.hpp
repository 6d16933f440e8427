// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RING_AXES_HPP
#define ROPE_CACHE_DETAIL_RING_AXES_HPP

#include <algorithm>  // std::copy_n, std::max, std::swap_ranges
#include <cstddef>
#include <cstdint>

#include <rope/base/number_array.hpp>
#include <rope/cache/detail/axes_rows.hpp>
#include <rope/cache/detail/cache_rows.hpp>  // row_range
#include <rope/cache/detail/ring_rows.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// Where the tokens of a ring are on several axes.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Coordinates in the slots of their tokens, and with each the largest coordinate that its row had up to it,
/// so that a row which forgets its newest tokens goes on as it did before them, whatever was overwritten.
class ring_axes {
 public:
  ring_axes() = default;
  ring_axes(Index batch, Index slot_count, token_axes axes)
      : slots_(slot_count), rows_("ring_cache", batch, slot_count, axes), largest_(batch * slot_count) {}

  const axes_rows& rows() const { return rows_; }

  /// Notes new tokens, of which ring_rows does not know yet, at coordinate(b, t, a). Where text goes on
  /// depends on all of them, those included that later ones of the same append overwrite.
  template <class CoordinateOf>
  void append(const ring_rows& ring, Index batch, Index tokens, const row_counts& counts,
              const CoordinateOf& coordinate) {
    for (Index b = 0; b < batch; ++b) {
      const std::int64_t seen = ring.seen(b);
      double largest = rows_.largest(b);
      const Index count = count_of(b, tokens, counts);
      for (Index t = 0; t < count; ++t) {
        auto own = static_cast<double>(coordinate(b, t, Index{0}));
        for (Index a = 1; a < rows_.axes(); ++a)
          own = (std::max)(own, static_cast<double>(coordinate(b, t, a)));
        largest = seen + t == 0 ? own : (std::max)(largest, own);
        const Index slot = ring.slot(seen + t);
        rows_.put(b, slot, [&](Index a) { return coordinate(b, t, a); });
        largest_(at(b, slot)) = largest;
      }
      rows_.go_on_behind(b, largest);
    }
  }
  /// Rows go back to `size` seen tokens.
  ///
  /// Requires:  the last of these is held
  void truncate(const ring_rows& ring, row_range rows, std::int64_t size) {
    for (Index b = rows.first; b < rows.last; ++b)
      rows_.go_on_behind(b, size == 0 ? -1.0 : largest_(at(b, ring.slot(size - 1))));
  }
  void copy_row(Index from, Index to, Index count) {
    rows_.copy_row(from, to, count);
    if (slots_ > 0) std::copy_n(&largest_(at(from, 0)), count, &largest_(at(to, 0)));
  }
  void swap_rows(Index a, Index b, Index count) {
    rows_.swap_rows(a, b, count);
    if (slots_ > 0) std::swap_ranges(&largest_(at(a, 0)), &largest_(at(a, 0)) + count, &largest_(at(b, 0)));
  }
  void clear() { rows_.clear(); }

 private:
  Index at(Index b, Index slot) const { return b * slots_ + slot; }

  Index slots_ = 0;
  axes_rows rows_;
  number_array<double> largest_;  // [batch, slots]
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_RING_AXES_HPP
