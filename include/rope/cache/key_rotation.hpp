// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_KEY_ROTATION_HPP
#define ROPE_CACHE_KEY_ROTATION_HPP

#include <cstdint>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>  // mix
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>

/// A value that describes the rotation of stored keys, the function that computes it for a table, and the
/// errors of calls that would rotate the keys of a cache differently.
///
/// Text is a token with the same integer coordinate on every axis.

namespace rope::inline ROPE_ABI {

/// The rotation of the keys in a cache. Store it with saved keys, and compare it before you append those keys
/// to a cache.
///
///     const key_rotation saved = cache.rotation();
///     const bool same = saved == restored.rotation_by<Layout>(table);
///     if (same) restored.append_rotated<Layout>(keys, values, table, positions);
///
/// The value is four 64-bit integers without padding. Their bits are the same on every machine, with every
/// compiler, and for float and double tables. Two different rotations are equal with a probability of 2^-64.
///
/// In a cache with axes, the value does not depend on the coordinates of tokens. For a table of positions,
/// `frequencies` is 0, because such a table determines only the rotation of text. A table of coordinates sets
/// both `frequencies` and `text`. Once the cache has taken a table of coordinates, it keeps the value of that
/// table.
struct key_rotation {
  /// A hash of inv_freq, the attention_factor and how angles are computed. Without axes, this is the
  /// fingerprint of the table. With axes, coordinates are not part of the hash, and it is 0 for a table of
  /// positions.
  std::uint64_t frequencies = 0;
  /// With axes, a hash of the rotation of text. It is 0 if a pair is rotated along several axes. Without
  /// axes, it is 0.
  std::uint64_t text = 0;
  /// 1 for half_split, 2 for interleaved, a hash of the pairs for other layouts.
  std::uint64_t layout = 0;
  /// The first rotated channel of a stored key.
  std::int64_t first_channel = 0;

  /// True if the rotation is known. It is unknown for raw keys, for keys that were rotated before `append`
  /// without a table, and in an empty cache. All members are then 0.
  bool known() const { return frequencies != 0 || text != 0; }

  /// Whether all members are equal.
  friend bool operator==(const key_rotation&, const key_rotation&) = default;
};

}  // namespace rope::inline ROPE_ABI

namespace rope::inline ROPE_ABI::detail {

/// Whether two layouts pair the same channels in the same order.
template <class Layout, class Other>
bool same_layout(Index pairs) {
  for (Index i = 0; i < pairs; ++i)
    if (Layout::first(i, pairs) != Other::first(i, pairs) ||
        Layout::second(i, pairs) != Other::second(i, pairs))
      return false;
  return true;
}

/// A number that is equal for layouts that pair the same channels in the same order: 1 for half_split, 2 for
/// interleaved, a hash of the channels for others. Types and addresses cannot be compared, because they
/// differ in a shared library to which a cache may be passed.
template <class Layout>
std::uint64_t layout_fingerprint(Index pairs) {
  if (same_layout<Layout, half_split>(pairs)) return 1;
  if (same_layout<Layout, interleaved>(pairs)) return 2;
  std::uint64_t hash = 2;
  for (Index i = 0; i < pairs; ++i)
    hash = mix(mix(hash, static_cast<std::uint64_t>(Layout::first(i, pairs))),
               static_cast<std::uint64_t>(Layout::second(i, pairs)));
  return hash;
}

/// The rotation of keys by a table, in a cache without axes.
template <class Layout, class S>
key_rotation rotation_by(const placed_table<S>& placed) {
  const frequency_table<S>& table = placed.table();
  return {table.fingerprint(), 0, layout_fingerprint<Layout>(table.pairs()), placed.first_channel()};
}

/// Throws:  std::invalid_argument unless `stored` and `given` rotate keys in the same way. On axes every
///          append has its own table, so the frequencies must be equal, not the coordinates
inline void require_rotation(const char* owner, const key_rotation& stored, const key_rotation& given,
                             bool on_axes) {
  if (stored == given) return;
  const bool both = stored.frequencies != 0 && given.frequencies != 0;
  const char *got = on_axes ? "the right ones" : "the right table", *rest = "";
  if (!stored.known())
    got = "a table, but they were rotated before they were appended; append such keys with append_rotated";
  else if (!both && (stored.text == 0 || given.text == 0))
    got = "a table of positions and one of coordinates, for pairs that rotate along several axes";
  else if (both ? stored.frequencies != given.frequencies : stored.text != given.text)
    got = on_axes ? "other frequencies"
                  : "a table with different angles; tokens with coordinates need a cache with token_axes";
  else if (stored.layout != given.layout)
    rest = " in another layout";
  else if (stored.first_channel != given.first_channel)
    rest = " at another channel";
  else
    return;
  throw_invalid(owner, "give the layout and the ", on_axes ? "frequencies" : "table",
                " that the keys were rotated by, got ", got, rest);
}

/// Throws:  std::invalid_argument, because a cache of raw keys was given a table
[[noreturn]] inline void refuse_raw_keys(const char* function) {
  throw_invalid(function, "raw keys are rotated when they are read; append them without a layout and table");
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_KEY_ROTATION_HPP
