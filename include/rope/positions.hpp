// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_HPP
#define ROPE_POSITIONS_HPP

#include <algorithm>  // std::min, std::max
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/message.hpp>

/// Which position each token of a batch has. Positions are integers by concept: a 16-bit float cannot hold
/// them past 256, and a float not past 2^24.

namespace rope {
inline namespace ROPE_ABI {

/// An integer that counts: every integral type but bool.
template <class I>
concept position_integer = std::integral<I> && !std::same_as<I, bool>;

/// Contiguous integers: std::vector, std::span, std::array, an Eigen vector.
template <class X>
concept position_list = requires(const X& x) {
  x.size();
  requires position_integer<std::remove_cvref_t<decltype(*x.data())>>;
};

/// Row b of the batch starts at position starts[b]; its token t is at starts[b] + t: decoding with sequences
/// of different length.
///
/// Requires:  starts [batch] outlives the call it is given to
template <position_integer I>
struct row_starts {
  std::span<const I> starts;
};
template <position_list X>
row_starts(const X&) -> row_starts<std::remove_cvref_t<decltype(*std::declval<const X&>().data())>>;

/// Sequences laid end to end: segment s holds tokens offsets[s] .. offsets[s + 1] - 1 (`cu_seqlens`), and the
/// position of a token is its distance from the start of its segment, plus starts[s] where starts are given.
///
/// Requires:  offsets [segments + 1] and starts [segments] or empty outlive the call they are given to
template <position_integer I>
struct segments {
  std::span<const I> offsets;
  std::span<const I> starts = {};
};
template <position_list X>
segments(const X&) -> segments<std::remove_cvref_t<decltype(*std::declval<const X&>().data())>>;

namespace detail {

/// The smallest and the largest position of a call; empty when it has no token.
struct position_range {
  std::int64_t smallest = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t largest = (std::numeric_limits<std::int64_t>::min)();

  void include(std::int64_t position) {
    smallest = (std::min)(smallest, position);
    largest = (std::max)(largest, position);
  }
  bool empty() const { return largest < smallest; }
};

/// An integer of the caller as a position; a value above the range of int64 is as far outside any table as
/// the largest one.
template <position_integer I>
std::int64_t as_position(I value) {
  if constexpr (std::is_unsigned_v<I> && sizeof(I) >= sizeof(std::int64_t))
    return static_cast<std::int64_t>(
        (std::min)(value, static_cast<I>((std::numeric_limits<std::int64_t>::max)())));
  else
    return static_cast<std::int64_t>(value);
}

/// start + steps, held at the ends of the int64 range instead of wrapping back into a table.
inline std::int64_t advance(std::int64_t start, Index steps) {
  const std::int64_t room = (std::numeric_limits<std::int64_t>::max)() - steps;
  return start > room ? (std::numeric_limits<std::int64_t>::max)() : start + steps;
}

// The forms a caller can give positions in, each as: operator()(b, t), the position of token t of row b; and
// range(), which checks lengths and returns the extremes.

/// Token t of every row is at start + t.
struct contiguous_positions {
  std::int64_t start;

  std::int64_t operator()(Index /*b*/, Index t) const { return start + t; }
  position_range range(const char* /*function*/, Index batch, Index tokens) const {
    position_range range;
    if (batch > 0 && tokens > 0) {
      range.include(start);
      range.include(advance(start, tokens - 1));
    }
    return range;
  }
};

/// ids [tokens], shared by the rows, or [batch * tokens].
template <class I>
struct listed_positions {
  std::span<const I> ids;
  Index row_stride;

  listed_positions(std::span<const I> list, Index tokens)
      : ids(list), row_stride(static_cast<Index>(list.size()) == tokens ? 0 : tokens) {}

  std::int64_t operator()(Index b, Index t) const {
    return static_cast<std::int64_t>(ids[static_cast<std::size_t>(b * row_stride + t)]);
  }
  position_range range(const char* function, Index batch, Index tokens) const {
    const auto count = static_cast<Index>(ids.size());
    if (count != tokens && count != batch * tokens) {
      if (batch == 1)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": ids must be [tokens] = ", tokens, ", got ", count));
      ROPE_THROW(std::invalid_argument, message(function, ": ids must be [tokens] = ", tokens,
                                                " or [batch * tokens] = ", batch * tokens, ", got ", count));
    }
    position_range range;
    for (const I id : ids) range.include(as_position(id));
    return batch > 0 ? range : position_range{};
  }
};

template <class I>
struct started_rows {
  std::span<const I> starts;

  std::int64_t operator()(Index b, Index t) const {
    return static_cast<std::int64_t>(starts[static_cast<std::size_t>(b)]) + t;
  }
  position_range range(const char* function, Index batch, Index tokens) const {
    if (static_cast<Index>(starts.size()) != batch)
      ROPE_THROW(std::invalid_argument,
                 message(function, ": row_starts must be [batch] = ", batch, ", got ", starts.size()));
    position_range range;
    if (tokens == 0) return range;
    for (const I start : starts) {
      range.include(as_position(start));
      range.include(advance(as_position(start), tokens - 1));
    }
    return range;
  }
};

template <class I>
struct segmented_positions {
  std::span<const I> offsets;
  std::span<const I> starts;

  std::int64_t operator()(Index /*b*/, Index t) const {
    const auto after = std::upper_bound(offsets.begin(), offsets.end(), t,
                                        [](Index token, I offset) { return token < as_position(offset); });
    const auto segment = static_cast<std::size_t>(after - offsets.begin() - 1);
    return t - static_cast<std::int64_t>(offsets[segment]) + start_of(segment);
  }
  position_range range(const char* function, Index /*batch*/, Index tokens) const {
    if (offsets.empty() || as_position(offsets.front()) != 0 || as_position(offsets.back()) != tokens)
      ROPE_THROW(std::invalid_argument,
                 message(function, ": segment offsets must begin with 0 and end with tokens = ", tokens));
    if (!starts.empty() && starts.size() + 1 != offsets.size())
      ROPE_THROW(std::invalid_argument,
                 message(function, ": segment starts must be empty or one per segment, got ", starts.size(),
                         " for ", offsets.size() - 1, " segments"));
    position_range range;
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      const std::int64_t length = as_position(offsets[s + 1]) - as_position(offsets[s]);
      if (length < 0)
        ROPE_THROW(std::invalid_argument, message(function, ": segment offsets must not decrease, got ",
                                                  offsets[s], " before ", offsets[s + 1]));
      if (length == 0) continue;
      range.include(start_of(s));
      range.include(advance(start_of(s), length - 1));
    }
    return range;
  }
  std::int64_t start_of(std::size_t segment) const {
    return starts.empty() ? 0 : as_position(starts[segment]);
  }
};

/// The caller's positions in one of the forms above.
template <position_integer I>
contiguous_positions position_source(I start, Index /*tokens*/) {
  return {as_position(start)};
}
template <position_list X>
auto position_source(const X& ids, Index tokens) {
  using integer = std::remove_cvref_t<decltype(*ids.data())>;
  return listed_positions<integer>({ids.data(), static_cast<std::size_t>(ids.size())}, tokens);
}
template <class I>
started_rows<I> position_source(const row_starts<I>& rows, Index /*tokens*/) {
  return {rows.starts};
}
template <class I>
segmented_positions<I> position_source(const segments<I>& ragged, Index /*tokens*/) {
  return {ragged.offsets, ragged.starts};
}

}  // namespace detail

/// Every form `rotate` takes positions in: an integer start, a list of ids [tokens] or [batch * tokens],
/// `row_starts`, `segments`.
template <class P>
concept position_form = requires(const P& positions) {
  detail::position_source(positions, Index{});
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_POSITIONS_HPP
