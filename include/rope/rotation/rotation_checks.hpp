// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_ROTATION_CHECKS_HPP
#define ROPE_ROTATION_ROTATION_CHECKS_HPP

#include <cstdint>
#include <limits>
#include <string>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/layout_check.hpp>
#include <rope/rotation/view.hpp>
#include <rope/rotation/view_checks.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// What can be wrong with a call that rotates, found before anything is written.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Stands for positions whose smallest and largest are known, in a call of check_rotation.
struct known_range {
  position_range known;
  position_range range(const char* /*function*/, Index /*batch*/, Index /*tokens*/) const { return known; }
};

/// The end of a message about a position: where several follow from a start, the start and the last of them.
template <class Source>
std::string as_given(const Source& /*positions*/, Index /*tokens*/) {
  return {};
}
inline std::string as_given(const contiguous_positions& positions, Index tokens) {
  if (tokens == 1) return {};
  std::string text = ", got positions ";
  append(text, positions.start);
  append(text, " to ");
  append(text, advance(positions.start, tokens - 1));
  append(text, " (start ");
  append(text, positions.start);
  append(text, ", ");
  append(text, tokens);
  append(text, " tokens)");
  return text;
}

/// Refuses a window of channels that does not lie in the head.
///
/// Throws:  std::invalid_argument
inline void check_window(const char* function, Index first_channel, Index rotary_dim, Index head_dim) {
  if (rotary_dim > head_dim)
    ROPE_THROW(std::invalid_argument, message(function, ": rotary_dim must not exceed head_dim, got ",
                                              rotary_dim, " of ", head_dim));
  if (first_channel > head_dim - rotary_dim)
    ROPE_THROW(std::invalid_argument,
               message(function, ": the ", rotary_dim, " channels from channel ", first_channel,
                       " on that turn must lie in the head of ", head_dim, " channels"));
}

/// Refuses a rotation of [batch, tokens, heads, head_dim]: window, positions and layout; not its memory.
///
/// Throws:  std::invalid_argument; std::out_of_range if a position is outside the table
template <class Layout, class S, class Source>
void check_rotation(const char* function, Index batch, Index tokens, Index head_dim,
                    const placed_table<S>& placed, const Source& positions) {
  const frequency_table<S>& table = placed.table();
  check_window(function, placed.first_channel(), table.rotary_dim(), head_dim);
  const position_range range = positions.range(function, batch, tokens);
  if (!range.empty() && !(table.contains(range.smallest) && table.contains(range.largest)))
    ROPE_THROW(std::out_of_range, message(function, ": position ",
                                          table.contains(range.smallest) ? range.largest : range.smallest,
                                          " is outside the table's [", table.first(), ", ", table.last(), ")",
                                          as_given(positions, tokens).c_str()));
  check_layout<Layout>(function, table.pairs());
}

/// The same and what can be wrong with the view, found before anything is written.
template <class Layout, class T, class S, class Source>
void check_rotation(const char* function, const head_view<T>& x, const placed_table<S>& table,
                    const Source& positions) {
  check_view(function, x);
  check_memory(function, x);
  check_rotation<Layout>(function, x.batch, x.tokens, x.head_dim, table, positions);
}

/// Refuses an m by which the way back cannot divide: 1 / m has to be a normal number of the table's type too,
/// so m is at most 2^126 for float and 2^1022 for double.
///
/// Throws:  std::invalid_argument
template <class S>
void check_inverse(const char* function, const placed_table<S>& placed) {
  const frequency_table<S>& table = placed.table();
  using limits = std::numeric_limits<S>;
  if (table.attention_factor() > 1 / static_cast<double>((limits::min)()))
    ROPE_THROW(
        std::invalid_argument,
        message(function, ": the attention_factor must be at most 2^", 1 - limits::min_exponent,
                " for its inverse to be a number of the table's type, got ", table.attention_factor()));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_ROTATION_CHECKS_HPP
