// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RING_AXES_HPP
#define ROPE_CACHE_DETAIL_RING_AXES_HPP

#include <algorithm>  // std::copy_n, std::max, std::swap_ranges
#include <cstddef>
#include <cstdint>

#include <rope/base/number_array.hpp>
#include <rope/base/storage.hpp>
#include <rope/cache/detail/axes_rows.hpp>
#include <rope/cache/detail/cache_rows.hpp>  // row_range
#include <rope/cache/detail/ring_rows.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// The coordinates of the tokens of a ring with axes.

namespace rope::inline ROPE_ABI::detail {

/// Coordinates in the slots of their tokens. Each slot also stores the largest coordinate of its row up to
/// that token. After a rollback, text then continues at the right position, even if other tokens were
/// overwritten.
class ring_axes : public axes_rows {
 public:
  ring_axes() = default;
  ring_axes(const char* owner, Index batch, Index slot_count, token_axes axes)
      : axes_rows(owner, batch, slot_count, axes), slots_(slot_count), largest_(batch * slot_count) {}

  /// Throws:  std::out_of_range if `tokens` more tokens of text would exceed 2^53
  void check_next(const char* function, Index tokens) const { check_text(function, tokens); }

  /// Records new tokens at coordinate(b, t, a), before ring_rows records them. The next position of text
  /// depends on all of them, including those that later tokens of the same append overwrite.
  template <class CoordinateOf>
  void append(const ring_rows& ring, Index tokens, const row_counts& counts, const CoordinateOf& coordinate) {
    for (Index b = 0; b < batch(); ++b) {
      const std::int64_t seen = ring.seen(b);
      double most = largest(b);
      const Index count = count_of(b, tokens, counts);
      for (Index t = 0; t < count; ++t) {
        auto own = static_cast<double>(coordinate(b, t, Index{0}));
        for (Index a = 1; a < axes(); ++a) own = (std::max)(own, static_cast<double>(coordinate(b, t, a)));
        most = seen + t == 0 ? own : (std::max)(most, own);
        const Index slot = ring.slot(seen + t);
        put(b, slot, [&](Index a) { return coordinate(b, t, a); });
        largest_(at(b, slot)) = most;
      }
      go_on_behind(b, most);
    }
  }
  /// Rolls rows back to `size` tokens.
  ///
  /// Requires:  size is 0, or token size - 1 is held
  void keep(const ring_rows& ring, row_range rows, std::int64_t size) {
    if (slots_ == 0) return;
    for (Index b = rows.first; b < rows.last; ++b)
      go_on_behind(b, size == 0 ? -1.0 : largest_(at(b, ring.slot(size - 1))));
  }
  void copy_row(Index from, Index to, Index count) {
    axes_rows::copy_row(from, to, count);
    if (slots_ > 0) std::copy_n(&largest_(at(from, 0)), count, &largest_(at(to, 0)));
  }
  void copy_row(const ring_axes& other, Index from, Index to, Index count) {
    axes_rows::copy_row(other, from, to, count);
    if (slots_ > 0) std::copy_n(&other.largest_(other.at(from, 0)), count, &largest_(at(to, 0)));
  }
  void swap_rows(Index a, Index b, Index count) {
    axes_rows::swap_rows(a, b, count);
    if (slots_ > 0) std::swap_ranges(&largest_(at(a, 0)), &largest_(at(a, 0)) + count, &largest_(at(b, 0)));
  }

 private:
  Index at(Index b, Index slot) const { return b * slots_ + slot; }

  moved_index slots_ = 0;
  number_array<double> largest_;  // [batch, slots]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_RING_AXES_HPP
