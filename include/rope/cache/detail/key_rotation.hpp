// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_KEY_ROTATION_HPP
#define ROPE_CACHE_DETAIL_KEY_ROTATION_HPP

#include <rope/base/message.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>

/// The rotation by a table, and the error messages for calls that would rotate them differently.

namespace rope::inline ROPE_ABI::detail {

/// The rotation of keys by a table, in a cache without axes.
template <class Layout, class S>
key_rotation rotation_by(const placed_table<S>& placed) {
  const frequency_table<S>& table = placed.table();
  return {table.fingerprint(), 0, layout_fingerprint<Layout>(table.pairs()), placed.first_channel()};
}

/// Throws:  std::invalid_argument unless `stored` is the rotation by this layout and table
template <class Layout, class S>
void require_rotation(const char* owner, const key_rotation& stored, const placed_table<S>& table) {
  const key_rotation given = rotation_by<Layout>(table);
  if (stored == given) return;
  const char* got = !stored.known() ? "a table, but they were rotated before they were appended"
                    : stored.frequencies != given.frequencies ? "a table with different angles"
                    : stored.layout != given.layout           ? "the right table in another layout"
                                                              : "the right table at another channel";
  throw_invalid(owner, "give the layout and the table that the keys were rotated by, got ", got);
}

/// Throws:  std::invalid_argument, because a cache of raw keys was given a table
[[noreturn]] inline void refuse_raw_keys(const char* function) {
  throw_invalid(function, "raw keys are rotated when they are read; append them without a layout and table");
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_KEY_ROTATION_HPP
