// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHE_ROWS_HPP
#define ROPE_CACHE_DETAIL_CACHE_ROWS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>  // std::swap

#include <rope/attention/options.hpp>  // count_of_row
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/cache/detail/newest_tokens.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/row_places.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/cache/detail/token_list.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>

/// The number of tokens in each row of a cache, and their positions.

namespace rope::inline ROPE_ABI::detail {

/// The number of tokens at the start of a row that are at positions 0, 1, 2, ... (`counted`), and the number
/// at positions that do not decrease (`ascending`).
struct ordered_tokens {
  Index counted = 0, ascending = 0;

  /// Counts again after tokens from `first` on have changed. The row has `size` positions.
  void update(const std::int64_t* positions, Index first, Index size) {
    counted = (std::min)(counted, first);
    ascending = (std::min)(ascending, first);
    while (counted < size && positions[counted] == counted) ++counted;
    while (ascending < size && (ascending == 0 || positions[ascending] >= positions[ascending - 1]))
      ++ascending;
  }
};

/// Throws:  std::out_of_range unless the positions of new tokens are within [-2^53, 2^53], and as range() of
///          `positions`
template <class Source>
void check_new_positions(const char* function, Index batch, Index tokens, const Source& positions,
                         const row_counts& counts) {
  position_range range = positions.range(function, batch, tokens);
  if (!counts.empty()) range = {};
  for (Index b = 0; b < batch && !counts.empty(); ++b)
    for (Index t = 0; t < count_of_row(counts, b, tokens); ++t) range.include(positions(b, t));
  if (!range.empty() && (range.smallest < -position_limit || range.largest > position_limit))
    throw_out_of_range(function, "positions must stay within 2^53 in magnitude, got ",
                       range.smallest < -position_limit ? range.smallest : range.largest);
}

/// The slots of each row of a cache: how many are in use, the position of the token in each, the next
/// position of the row, and which tokens are the newest.
///
/// Invariant: a moved-from object has no rows.
///
/// \tparam Record  more about one row, with the number of its slots in `used`
template <class Record>
class slot_rows {
 public:
  /// The number of slots of row b in use. positions(b) has the token of each.
  Index used(Index b) const { return b < batch() ? records_(b).used : 0; }
  std::span<const std::int64_t> positions(Index b) const { return {order_.row(b), at(used(b))}; }
  std::span<const std::int64_t> next() const { return order_.next(); }
  const newest_tokens& newest() const { return newest_; }
  /// The positions that decide visibility.
  const row_places<std::int64_t>& order() const { return order_; }
  /// Throws:  std::out_of_range unless b is in [0, batch)
  Index checked(const char* function, std::int64_t b) const {
    if (b < 0 || b >= batch()) throw_out_of_range(function, "row must be in [0, ", batch(), "), got ", b);
    return to_index(b);
  }

  /// Throws:  std::out_of_range unless `row` is a row or every_row
  row_range rows(const char* function, batch_row row) const {
    if (row.every) return {0, batch()};
    return {checked(function, row.index), row.index + 1};
  }

  /// Makes row `to` a copy of row `from` of this or another object.
  ///
  /// Requires:  its tokens fit; from != to in this object
  void copy_row(const slot_rows& other, Index from, Index to) {
    order_.copy_row(other.order_, from, to, other.used(from));
    records_(to) = other.records_(from);
    newest_.copy_row(other.newest_, from, to);
  }
  /// Sets newest() after all rows of another object were copied. copy_row does not know that they are all
  /// rows.
  void remember(const newest_tokens& newest) { newest_ = newest; }
  void swap_rows(Index a, Index b) {
    order_.swap_rows(a, b, (std::max)(used(a), used(b)));
    std::swap(records_(a), records_(b));
    newest_.swap_rows(a, b);
  }
  void clear() {
    order_.clear();
    for (Record& record : records_) record = {};
    newest_.clear();
  }

 protected:
  slot_rows(const char* owner, Index batch, Index slot_count)
      : records_(batch, 1, Record{}), order_(owner, batch, slot_count, 1), newest_(batch) {}

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Index batch() const { return records_.rows(); }
  /// The number of slots of a row.
  Index slot_count() const { return order_.capacity(); }

  number_array<Record> records_;    // [batch]
  row_places<std::int64_t> order_;  // the positions that decide visibility
  newest_tokens newest_;
};

/// More about a row of cache_rows.
struct growing_row {
  Index used = 0;
  ordered_tokens order;
};

/// The sizes and positions of the rows of a cache that grows.
///
/// Invariant: next()[b] is one more than the largest position of the tokens that row b holds or has evicted
///            since its last rollback, 0 if there are none.
class cache_rows : public slot_rows<growing_row> {
 public:
  cache_rows(const char* owner, Index batch, Index capacity) : slot_rows(owner, batch, capacity) {}

  Index size(Index b) const { return used(b); }
  std::int64_t seen(Index b) const { return size(b); }
  std::int64_t order_of(Index b, std::int64_t token) const { return order_.row(b)[token]; }
  Index slot(std::int64_t token) const { return to_index(token); }
  /// The numbers of positions(b) that are counted and ascending.
  const ordered_tokens& ordered(Index b) const { return records_(b).order; }
  bool empty(Index b) const { return size(b) == 0; }

  /// Throws:  std::invalid_argument if rows differ in size
  Index common_size(const char* function) const {
    for (Index b = 1; b < batch(); ++b) check_equal(function, "every row", "size", size(0), size(b));
    return size(0);
  }

  /// Throws:  std::out_of_range unless `row` is a row or every_row; std::invalid_argument for every_row if
  ///          rows differ in size
  row_range rows(const char* function, batch_row row) const {
    if (row.every) common_size(function);
    return slot_rows::rows(function, row);
  }

  /// Throws:  std::length_error unless the new tokens fit
  void check_room(const char* function, const row_tokens& added) const {
    for (Index b = 0; b < batch(); ++b)
      if (const Index count = added.count(b); count > slot_count() - size(b))
        throw_length(function, count, " tokens do not fit into row ", b, ", which holds ", size(b), " of ",
                     slot_count(), "; call reserve");
  }
  /// New tokens may be at any positions.
  template <class Source>
  void check_order(const char* /*function*/, const row_tokens& /*added*/, const Source& /*positions*/) const {
  }
  /// Calls write(b, first, count, slot) for runs of new tokens to be stored from `slot` on.
  template <class Threads, class Positions, class Write, class Forget>
  void for_each_new(const row_tokens& added, const Threads& threads, double bytes,
                    const Positions& /*positions*/, const Write& write, const Forget& /*forget*/) const {
    added.for_each_run(threads, bytes,
                       [&](Index b, Index first, Index count) { write(b, first, count, size(b) + first); });
  }
  /// Records new tokens. Token t of row b is at positions(b, t). `positions` may call next().
  template <class Source, class Skipped>
  void append(const row_tokens& added, const Source& positions, const Skipped& /*skipped*/) {
    for (Index b = 0; b < batch(); ++b) {
      const Index before = size(b);
      order_.append(*this, b, added.count(b), [&](Index t, Index /*axis*/) { return positions(b, t); });
      records_(b).used += added.count(b);
      update_order(b, before);
    }
    newest_.append(added);
  }

  /// Throws:  std::out_of_range unless tokens [first, first + count) are stored
  void check_tokens(const char* function, row_range rows, Index first, Index count) const {
    const Index held = size(rows.first);
    if (first < 0 || count < 0 || first > held || count > held - first)
      throw_out_of_range(function, "first ", first, " and count ", count, " must stay inside the ", held,
                         " tokens that are held");
  }
  /// Throws:  std::out_of_range unless size is in [0, size(b)] of the rows
  void check_truncate(const char* function, row_range rows, std::int64_t size, bool /*last_token*/) const {
    const Index held = this->size(rows.first);
    if (size < 0 || size > held) throw_out_of_range(function, "size must be in [0, ", held, "], got ", size);
  }
  void truncate(row_range rows, std::int64_t first_lost) {
    const auto size = to_index(first_lost);
    newest_.forget(rows.first, rows.last, [&](Index b) { return lost_tokens{0, this->size(b) - size}; });
    order_.keep(*this, rows, size);
    for (Index b = rows.first; b < rows.last; ++b) {
      records_(b).used = size;
      update_order(b, size);
    }
  }
  /// Removes tokens. With `evicts`, next(b) does not change. With `on_axes` the remaining tokens are
  /// renumbered 0, 1, 2, ...
  ///
  /// Requires:  rows of one size, at least one token in the list
  void remove(row_range rows, const token_list& tokens, bool evicts, bool on_axes) {
    tokens.for_each_run([&](Index first, Index last) {
      newest_.forget(rows.first, rows.last, [&](Index b) {
        return lost_tokens{size(b) - last, last - first};
      });
    });
    order_.remove(rows, *this, tokens, evicts);
    for (Index b = rows.first; b < rows.last; ++b) {
      records_(b).used -= tokens.size();
      if (on_axes) order_.number(b, size(b));
      update_order(b, tokens.first());
    }
  }

  void shift(row_range rows, Index first, Index last, std::int64_t delta) {
    order_.shift(rows, *this, first, last, delta);
    for (Index b = rows.first; b < rows.last; ++b) update_order(b, first);
  }
  /// Throws:  std::length_error unless row `from` of another object fits into a row of this one
  void check_copy(const char* function, const cache_rows& other, Index from) const {
    if (other.size(from) > slot_count())
      throw_length(function, other.size(from), " tokens do not fit into a row, which holds ", slot_count(),
                   "; call reserve");
  }

 private:
  /// Updates ordered(b) after a change of tokens from `first` on.
  void update_order(Index b, Index first) { records_(b).order.update(order_.row(b), first, size(b)); }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_CACHE_ROWS_HPP
