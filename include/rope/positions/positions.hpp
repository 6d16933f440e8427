// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_POSITIONS_HPP
#define ROPE_POSITIONS_POSITIONS_HPP

#include <algorithm>  // std::min, std::max
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>  // std::move

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>

/// The position of each token of a batch. Positions are integers: a 16-bit float is exact only up to 256
/// (bfloat16) or 2048 (half), and a float only up to 2^24.

namespace rope::inline ROPE_ABI {

/// Every integral type except bool.
template <class Integer>
concept position_integer = detail::whole_number<Integer>;

/// A list of integers: a contiguous range (std::vector, std::span, std::array); an Eigen vector, matrix,
/// array, map, block or expression of any order and strides; or an Eigen::Tensor or std::mdspan of rank 1 or
/// 2.
template <class X>
concept position_list = detail::integers_in_memory<X> || detail::dense_integers<X>;

namespace detail {

/// A parameter for a list of integers that an object refers to without copying it. Constructors take it by
/// value, so that compilers with lifetimebound warn if the list is a temporary object.
template <position_integer Integer>
struct kept_integers : integer_list<Integer> {
  kept_integers() = default;
  template <position_list X>
  kept_integers(const X& list) : integer_list<Integer>(list_in_memory(list)) {}
  template <position_list X>
  requires owns_memory<X> kept_integers(const X& list ROPE_DETAIL_LIFETIMEBOUND)
      : integer_list<Integer>(list_in_memory(list)) {}
};

}  // namespace detail

/// Row b of the batch starts at position starts[b], and its token t is at starts[b] + t. Use it to decode
/// sequences of different lengths.
///
///     rotate<half_split>(q, table, row_starts{std::vector{17, 4, 250}});  // three sequences in a batch
///
/// Requires:  starts [batch], a position_list in memory, outlives the call that uses it
/// Throws:    std::invalid_argument if starts is a matrix
template <position_integer Integer>
struct row_starts {
  detail::integer_list<Integer> starts;  // [batch]

  /// Refers to the starts of the rows without copying them.
  explicit row_starts(detail::kept_integers<Integer> list ROPE_DETAIL_LIFETIMEBOUND)
      : starts(list.as_vector("row_starts")) {}
};
template <position_list X>
row_starts(const X&) -> row_starts<detail::integer_of<X>>;

/// A ragged batch of concatenated sequences. Segment s has tokens offsets[s] .. offsets[s + 1] - 1
/// (`cu_seqlens`). The position of a token is its distance from the start of its segment, plus starts[s] if
/// starts are given.
///
///     rotate<half_split>(q, table, segments{cu_seqlens});  // std::vector{0, 17, 21, 271}: three sequences
///
/// Requires:  offsets [segments + 1] and starts ([segments] or empty) are position_lists of one integer type.
///            Their memory outlives the call that uses them
/// Throws:    std::invalid_argument if a list is a matrix
template <position_integer Integer>
struct segments {
  detail::integer_list<Integer> offsets;      // [segments + 1], from 0 to the number of tokens
  detail::integer_list<Integer> starts = {};  // [segments], or empty: all 0

  /// Segments that start at position 0. Refers to the list without copying it.
  explicit segments(detail::kept_integers<Integer> offset_list ROPE_DETAIL_LIFETIMEBOUND)
      : segments(offset_list, {}) {}
  /// Segments that start at the given positions. Refers to the lists without copying them.
  segments(detail::kept_integers<Integer> offset_list ROPE_DETAIL_LIFETIMEBOUND,
           detail::kept_integers<Integer> start_list ROPE_DETAIL_LIFETIMEBOUND)
      : offsets(offset_list.as_vector("segments")), starts(start_list.as_vector("segments")) {}
};
template <position_list X>
segments(const X&) -> segments<detail::integer_of<X>>;
template <position_list X, position_list Y>
segments(const X&, const Y&) -> segments<detail::integer_of<X>>;

namespace detail {

/// start + steps, clamped to the int64 range: a sum that wraps around could be inside a table.
inline std::int64_t advance(std::int64_t start, std::int64_t steps) {
  using limits = std::numeric_limits<std::int64_t>;
  if (sum_is_position(start, steps)) return start + steps;
  return steps > 0 ? (limits::max)() : (limits::min)();
}

/// The smallest and the largest position of a call. The range of a call without tokens is empty.
struct position_range {
  std::int64_t smallest = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t largest = (std::numeric_limits<std::int64_t>::min)();

  void include(std::int64_t position) {
    smallest = (std::min)(smallest, position);
    largest = (std::max)(largest, position);
  }
  /// Includes positions start to start + tokens - 1.
  void include(std::int64_t start, std::int64_t tokens) {
    if (tokens <= 0) return;
    include(start);
    include(advance(start, tokens - 1));
  }
  bool empty() const { return largest < smallest; }
};

// The forms of positions. Each has operator()(b, t), the position of token t of row b, and range(), which
// checks lengths and returns the smallest and the largest position. Both functions clamp to the int64 range:
// calls without a table accept every position and must not overflow.

/// Token t of every row is at start + t.
struct contiguous_positions {
  std::int64_t start;

  std::int64_t operator()(Index /*b*/, Index t) const { return advance(start, t); }
  position_range range(const char* /*function*/, Index batch, Index tokens) const {
    position_range range;
    if (batch > 0) range.include(start, tokens);
    return range;
  }
};

/// ids [tokens], shared by the rows; or [batch * tokens], or a matrix [batch, tokens].
///
/// \tparam List  an integer_list, or an evaluated_list
template <class List>
struct listed_positions {
  List ids;
  Index row_stride;

  listed_positions(List list, Index tokens)
      : ids(std::move(list)),
        row_stride(ids.rows > 1 ? ids.row_stride
                   : tokens > 0 && ids.columns > tokens && ids.columns % tokens == 0
                       ? tokens * ids.column_stride
                       : 0) {}

  std::int64_t operator()(Index b, Index t) const {
    return as_position(ids.data[b * row_stride + t * ids.column_stride]);
  }
  position_range range(const char* function, Index batch, Index tokens) const {
    const Index count = ids.size();
    if (ids.rows > 1 && (ids.rows != batch || ids.columns != tokens))
      throw_invalid(function, "a matrix of ids must be [batch, tokens] = ", shape_text({batch, tokens}),
                    ", got ", shape_text({ids.rows, ids.columns}));
    if (count != tokens && count != batch * tokens) {
      if (batch == 1) throw_invalid(function, "ids must be [tokens] = ", tokens, ", got ", count);
      throw_invalid(function, "ids must be [tokens] = ", tokens, " or [batch * tokens] = ", batch * tokens,
                    ", got ", count);
    }
    if (count > 0 && ids.data == nullptr) throw_invalid(function, "ids must have data, got null for ", count);
    position_range range;
    for (Index r = 0; r < ids.rows; ++r)
      for (Index c = 0; c < ids.columns; ++c) range.include(as_position(ids(r, c)));
    return batch > 0 ? range : position_range{};
  }
};

/// Token t of row b is at starts[b] + t.
template <class Integer>
struct started_rows {
  integer_list<Integer> starts;

  std::int64_t operator()(Index b, Index t) const { return advance(as_position(starts[b]), t); }
  position_range range(const char* function, Index batch, Index tokens) const {
    if (starts.size() != batch)
      throw_invalid(function, "row_starts must be [batch] = ", batch, ", got ", starts.size());
    position_range range;
    for (Index b = 0; b < batch; ++b) range.include(as_position(starts[b]), tokens);
    return range;
  }
};

/// Checks the offsets of concatenated sequences: the first of the `count` numbers offset(s) must be 0, the
/// last `tokens`, and they must not decrease.
///
/// Throws:  std::invalid_argument; the message calls the list `name`
template <class Offset>
void check_offsets(const char* function, const char* name, Index count, Index tokens, const Offset& offset) {
  if (count == 0) throw_invalid(function, name, " must begin with 0 and end with ", tokens, ", got none");
  if (offset(Index{0}) != 0 || offset(count - 1) != tokens)
    throw_invalid(function, name, " must begin with 0 and end with ", tokens, ", got ", offset(Index{0}),
                  " and ", offset(count - 1));
  for (Index s = 1; s < count; ++s)
    if (offset(s) < offset(s - 1))
      throw_invalid(function, name, " must not decrease, got ", offset(s), " after ", offset(s - 1));
}

/// Token t is at its distance from the start of its segment, plus the segment's start position.
template <class Integer>
struct segmented_positions {
  integer_list<Integer> offsets;
  integer_list<Integer> starts;

  std::int64_t operator()(Index /*b*/, Index t) const {
    // The last segment with offset <= t is in [segment, last).
    Index segment = 0, last = offsets.size();
    while (last - segment > 1) {
      const Index middle = segment + (last - segment) / 2;
      (as_position(offsets[middle]) <= t ? segment : last) = middle;
    }
    return advance(start_of(segment), t - as_position(offsets[segment]));
  }
  position_range range(const char* function, Index batch, Index tokens) const {
    check_offsets(function, "segment offsets", offsets.size(), tokens,
                  [&](Index s) { return as_position(offsets[s]); });
    if (!starts.empty() && starts.size() + 1 != offsets.size())
      throw_invalid(function, "segment starts must be empty or one per segment, got ", starts.size(), " for ",
                    offsets.size() - 1, " segments");
    position_range range;
    for (Index s = 0; s + 1 < offsets.size(); ++s)  // no overflow: offsets start at 0 and do not decrease
      range.include(start_of(s), as_position(offsets[s + 1]) - as_position(offsets[s]));
    return batch > 0 ? range : position_range{};
  }
  std::int64_t start_of(Index segment) const { return starts.empty() ? 0 : as_position(starts[segment]); }
};

/// Ids in braces. Without ids, positions start at 0.
struct braced_ids : integer_list<std::int64_t> {
  braced_ids() = default;
  braced_ids(std::initializer_list<std::int64_t> list)
      : integer_list<std::int64_t>(list.begin(), static_cast<Index>(list.size()), 1) {}
};
struct braced_positions : listed_positions<integer_list<std::int64_t>> {
  std::int64_t operator()(Index b, Index t) const {
    return ids.data ? listed_positions::operator()(b, t) : t;
  }
  position_range range(const char* function, Index batch, Index tokens) const {
    return ids.data ? listed_positions::range(function, batch, tokens)
                    : contiguous_positions{0}.range(function, batch, tokens);
  }
};

/// Converts the caller's positions to one of the forms above.
template <position_integer Integer>
contiguous_positions position_source(Integer start, Index /*tokens*/) {
  return {as_position(start)};
}
template <position_list X>
auto position_source(const X& ids, Index tokens) {
  return listed_positions<decltype(list_of(ids))>(list_of(ids), tokens);
}
template <class Integer>
listed_positions<integer_list<Integer>> position_source(const evaluated_list<Integer>& ids, Index tokens) {
  return {ids, tokens};
}
inline braced_positions position_source(const braced_ids& ids, Index tokens) { return {{ids, tokens}}; }
template <class Integer>
started_rows<Integer> position_source(const row_starts<Integer>& rows, Index /*tokens*/) {
  return {rows.starts};
}
template <class Integer>
segmented_positions<Integer> position_source(const segments<Integer>& ragged, Index /*tokens*/) {
  return {ragged.offsets, ragged.starts};
}

/// The positions of tokens of one row of `all` from `first` on, as positions of a batch with one row.
template <class Source>
struct row_positions {
  const Source& all;
  Index row, first;

  std::int64_t operator()(Index /*b*/, Index t) const { return all(row, first + t); }
  position_range range(const char* /*function*/, Index /*batch*/, Index tokens) const {
    position_range range;
    for (Index t = 0; t < tokens; ++t) range.include(all(row, first + t));
    return range;
  }
};
template <class Source>
row_positions<Source> positions_of_row(const Source& all, Index b, Index first = 0) {
  return {all, b, first};
}
template <class Integer>
contiguous_positions positions_of_row(const started_rows<Integer>& all, Index b, Index first = 0) {
  return {all(b, first)};
}

}  // namespace detail

/// The forms of positions that `rotate` accepts: an integer start; ids [tokens], [batch * tokens] or a matrix
/// [batch, tokens], or ids in braces; `row_starts`; `segments`. An expression is evaluated once and copied.
template <class P>
concept position_form = requires(const P& positions) {
  detail::position_source(positions, Index{});
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_POSITIONS_HPP
