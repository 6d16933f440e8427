// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_STORED_TOKENS_HPP
#define ROPE_CACHE_DETAIL_STORED_TOKENS_HPP

#include <algorithm>  // std::max
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>  // std::exchange, std::move

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/cache/detail/axes_tables.hpp>
#include <rope/cache/detail/cache_memory.hpp>
#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/call_checks.hpp>  // next_tokens
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/row_places.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/key_rotator.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The token store of all caches: memory, the tokens in its slots, their coordinates, and the rotation of the
/// keys.

namespace rope::inline ROPE_ABI::detail {

/// Whether new tokens have a list of coordinates: token_coordinates, or a table of coordinates.
template <class At>
inline constexpr bool are_coordinates = requires(const At& at) {
  at.coordinate(Index{}, Index{});
};

/// Memory, rows and the rotation of the keys, which change together. Tables are placed in the head of a
/// stored key. `function` is the name of the public function in messages.
///
/// Invariant: the slots of row b that rows().positions(b) lists are written. A function that throws changes
///            nothing, except if threads fail or memory runs out while a ring overwrites tokens: the store is
///            then empty. With axes, tokens are at coordinates(), and rows() numbers them 0, 1, 2, ...
///
/// \tparam Rows         assigns slots to tokens: cache_rows or ring_rows
template <class T, value_place place, class Rows = cache_rows>
class stored_tokens {
 public:
  /// \param policy  the ring_policy of a ring, otherwise nothing
  template <class... Policy>
  stored_tokens(const char* owner, Index batch, Index capacity, Index kv_heads, Index head_dim,
                Index value_dim, key_storage storage, const Policy&... policy)
      : owner_(owner),
        memory_(owner, batch, capacity, kv_heads, head_dim, value_dim),
        rows_(owner, batch, policy..., capacity),
        storage_(storage) {}
  /// Gives tokens coordinates.  Requires: no token is stored
  void put_on_axes(token_axes axes) {
    coordinates_ = row_places<double>(owner_, memory_.batch(), memory_.slot_count(), axes.count);
  }

  const cache_memory<T, place>& memory() const { return memory_; }
  const Rows& rows() const { return rows_; }
  key_storage storage() const { return storage_; }
  const row_places<double>& coordinates() const { return coordinates_; }
  bool on_axes() const { return coordinates_.axes() > 0; }
  /// The position of the next token of each row; with axes, if that token is text.
  ///
  /// Throws:  std::invalid_argument if the largest coordinate of a row is not an integer
  std::span<const std::int64_t> next_positions(const char* function) const {
    return on_axes() ? coordinates_.next_positions(function) : rows_.next();
  }

  key_rotation rotation() const { return empty() ? key_rotation{} : rotation_; }
  /// The rotation of keys that are appended by this table.
  ///
  /// Throws:  std::invalid_argument if tokens have coordinates, and the table has another number of axes or
  ///          was made from given entries or float angles
  template <class Layout, class S>
  key_rotation rotation_of(const char* function, const placed_table<S>& table) const {
    return on_axes() ? rotation_on_axes<Layout>(function, coordinates_.axes(), table)
                     : rotation_by<Layout>(table);
  }
  /// Stores copies of new keys and values.
  ///
  /// \param keys  a key_transform that rotates the keys or whose table rotated them before, or unknown_table
  ///              if the keys are raw, or rotated in a way that the cache does not know
  /// \param at    a source of positions, token_coordinates, or next_tokens: the rows of a table of
  ///              coordinates, or the next positions
  ///
  /// Throws:  std::invalid_argument also if the cache stores keys of another rotation than the new ones
  template <class Layout, class K, class V, class Keys, class At, class Threads>
  void store(const char* function, const head_view<K>& k, const head_view<V>& v, const Keys& keys,
             const At& at, const row_counts& counts, const Threads& threads);

  template <class Layout, class S>
  void check_table(const placed_table<S>& table) const {
    const key_rotation given = rotation_of<Layout>(owner_, table);
    if (!empty() && storage_ == key_storage::rotated) require_rotation(owner_, rotation_, given, on_axes());
  }

  template <class Layout, class From, class To>
  void rebase(const char* function, const placed_table<From>& from, const placed_table<To>& to) {
    if (storage_ == key_storage::raw)
      throw_invalid(function, "raw keys are stored unrotated; pass the new table to attention instead");
    check_table<Layout>(from);
    auto rotator = rebase_rotator<Layout, numbers_of<T>>(function, from, to, on_axes());
    if (on_axes()) {
      const bool from_axes = is_coordinate_table(function, coordinates_.axes(), from.table()),
                 to_axes = is_coordinate_table(function, coordinates_.axes(), to.table());
      if (!empty() && rotation_.frequencies != 0 && !(from_axes && to_axes))
        throw_invalid(function, "keys on ", coordinates_.axes(), " axes need two tables of coordinates, the ",
                      from_axes ? "second" : "first", " is one of positions");
    }
    for (Index t = 0; t < memory_.slot_count(); ++t)
      for (Index b = 0; b < memory_.batch(); ++b) {
        if (t >= rows_.size(b)) continue;
        if (on_axes())
          rotate_stored(rotator, memory_.keys(), b, t, [&, at = coordinates_.token(b, t)](Index i) {
            return phase_at(to.table(), i, at) + -phase_at(from.table(), i, at);
          });
        else
          rotate_stored(rotator, memory_.keys(), b, t, rows_.positions(b)[static_cast<std::size_t>(t)]);
      }
    rotation_ = rotation_of<Layout>(function, to);
  }

  void truncate(const char* function, std::int64_t size, batch_row row) {
    const row_range rows = rows_.rows(function, row);
    rows_.check_truncate(function, rows, size, on_axes());
    coordinates_.keep(rows_, rows, size);
    rows_.truncate(rows, size);
  }
  void remove(const char* function, Index first, Index count, batch_row row) {
    const row_range rows = rows_.rows(function, row);
    rows_.check_tokens(function, rows, first, count);
    remove(rows, token_list(first, first + count), false);
  }
  void evict(const char* function, const token_indices& indices, batch_row row) {
    const row_range rows = rows_.rows(function, row);
    remove(rows, token_list(function, indices, rows_.size(rows.first)), true);
  }
  /// Throws:  std::invalid_argument if capacity is negative, std::length_error if memory cannot hold it
  void reserve(const char* function, Index capacity) {
    if (capacity < 0) throw_invalid(function, "capacity must not be negative, got ", capacity);
    if (capacity <= memory_.slot_count()) return;
    stored_tokens larger(owner_, memory_.batch(), capacity, memory_.keys().heads, memory_.keys().head_dim,
                         memory_.values().head_dim, storage_);
    larger.rotation_ = rotation_;
    if (on_axes()) larger.put_on_axes(token_axes(coordinates_.axes()));
    for (Index b = 0; b < memory_.batch(); ++b) larger.copy_tokens(*this, b, b);
    larger.rows_.remember(rows_.newest());
    *this = std::move(larger);
  }
  /// For raw keys, whose positions change without a rotation.
  void shift(const char* function, Index first, Index count, std::int64_t delta, batch_row row) {
    if (storage_ != key_storage::raw)
      throw_invalid(function,
                    "pass the layout and the table to shift rotated keys, got only delta = ", delta);
    shift_places(function, first, count, delta, row, [](Index /*b*/, Index /*t*/) {});
  }
  template <class Layout, class S>
  void shift(const char* function, Index first, Index count, std::int64_t delta, const placed_table<S>& table,
             batch_row row) {
    if (storage_ == key_storage::raw) return shift(function, first, count, delta, row);
    check_table<Layout>(table);
    auto rotator = shift_rotator<Layout, numbers_of<T>>(function, table, on_axes());
    shift_places(function, first, count, delta, row,
                 [&](Index b, Index t) { rotate_stored(rotator, memory_.keys(), b, t, delta); });
  }
  /// Makes row `to` a copy of row `from` of this or another store.
  void copy_row(const char* function, const stored_tokens& other, Index from, Index to) {
    other.rows_.checked(function, from);
    rows_.checked(function, to);
    if (&other == this && from == to) return;
    check_copy(function, other, from, to);
    const bool other_rotation = empty_but(to) || (on_axes() && other.rotation_.frequencies != 0);
    copy_tokens(other, from, to);
    if (!other.rows_.empty(from) && other_rotation) rotation_ = other.rotation_;
  }
  /// Makes every row b a copy of row from[b] before the call.
  ///
  /// Throws:  std::invalid_argument unless `from` has an entry for every row, std::out_of_range if an entry
  ///          is not a row
  void reorder(const char* function, const row_list& from) {
    const Index batch = memory_.batch();
    if (static_cast<Index>(from.size()) != batch)
      throw_invalid(function, "rows must be [batch] = ", batch, ", got ", from.size());
    number_array<Index> source(batch), readers(batch, 1, 0);
    for (Index b = 0; b < batch; ++b) source(b) = rows_.checked(function, from[static_cast<std::size_t>(b)]);
    const auto stays = [&](Index b) { return source(b) == b; };
    for (Index b = 0; b < batch; ++b)
      if (!stays(b)) ++readers(source(b));
    // A row that no other row copies can be overwritten. After this copy, the same may be true of the row
    // that was its source.
    for (Index first = 0; first < batch; ++first)
      for (Index b = first; !stays(b) && readers(b) == 0; --readers(b)) {
        const Index made_of = std::exchange(source(b), b);
        copy_tokens(*this, made_of, b);
        b = made_of;
      }
    // The remaining rows form cycles. Each swap completes one row and moves the first row of the cycle to the
    // next row.
    for (Index b = 0; b < batch; ++b) {
      Index to = b;
      while (source(to) != b) {
        const Index next = std::exchange(source(to), to);
        const Index count = (std::max)(rows_.used(to), rows_.used(next));
        memory_.swap_rows(to, next, count);
        coordinates_.swap_rows(to, next, count);
        rows_.swap_rows(to, next);
        to = next;
      }
      source(to) = to;
    }
  }
  void clear() {
    rows_.clear();
    coordinates_.clear();
  }

 private:
  /// Whether no row stores a token, or no row except `row`.
  bool empty() const { return empty_but(-1); }
  bool empty_but(Index row) const {
    for (Index b = 0; b < memory_.batch(); ++b)
      if (b != row && !rows_.empty(b)) return false;
    return true;
  }
  void check_needs_no_table(const char* function) const {
    if (rotation().known())
      throw_invalid(function,
                    "this cache rotates its keys, give the layout and the table, got none; append keys that "
                    "the table rotated before with append_rotated");
  }

  void copy_tokens(const stored_tokens& other, Index from, Index to) {
    memory_.copy_row(other.memory_, from, to, other.rows_.used(from));
    coordinates_.copy_row(other.coordinates_, from, to, other.rows_.used(from));
    rows_.copy_row(other.rows_, from, to);
  }
  void remove(row_range rows, const token_list& tokens, bool evicts) {
    if (tokens.size() == 0) return;
    for (Index b = rows.first; b < rows.last; ++b) memory_.remove(b, tokens, rows_.size(b));
    coordinates_.remove(rows, rows_, tokens, evicts);
    rows_.remove(rows, tokens, evicts, on_axes());
  }

  /// The table, with a first channel that counts from the first channel of new keys.
  template <class S>
  placed_table<S> in_new_keys(const placed_table<S>& table) const {
    return {table.table(), table.first_channel() - memory_.first_new_channel()};
  }
  /// Throws:  std::invalid_argument unless new keys at `at` can be stored rotated by their table;
  ///          std::out_of_range if a position is outside the table
  template <class Layout, class K, class Keys, class At, class Positions>
  void check_keys(const char* function, const head_view<K>& k, const Keys& keys, const At& at,
                  const Positions& positions, const row_tokens& added) const {
    const auto& table = keys.table.table();
    if (storage_ == key_storage::raw) {
      if (are_copied<Keys>)
        throw_invalid(function,
                      "this cache stores raw keys; unrotate the keys and append them without a table, or "
                      "store rotated keys (key_storage::rotated)");
      refuse_raw_keys(function);
    }
    check_table<Layout>(keys.table);
    if constexpr (std::is_same_v<At, token_coordinates>)
      if (!is_coordinate_table(function, at.axes(), table))
        for (Index b = 0; b < memory_.batch(); ++b)
          for (Index t = 0; t < added.count(b); ++t)
            text_position(function, "a token", at.axes(),
                          [&](Index a) { return at.coordinate(positions(b, t), a); });
    if constexpr (are_copied<Keys>) {
      check_rotation<Layout>(function, k.batch, k.tokens, k.head_dim, in_new_keys(keys.table), known_range{});
    } else {
      if (!are_coordinates<At> && on_axes() && is_coordinate_table(function, coordinates_.axes(), table))
        throw_invalid(function,
                      "a table of coordinates has the positions of its tokens; leave out positions");
      check_ids(function, k.tokens, table, positions);
      for (Index b = 0; b < k.batch; ++b)
        check_rotation<Layout>(function, k.batch_range(b, 1).token_range(0, added.count(b)),
                               in_new_keys(keys.table), positions_of_row(positions, b));
    }
  }

  /// Throws:  std::invalid_argument unless row `from` of `other` can be row `to` of this store;
  ///          std::length_error unless its tokens fit
  void check_copy(const char* function, const stored_tokens& other, Index from, Index to) const {
    const auto shape = [](const stored_tokens& x) {
      return std::array<Index, 3>{x.memory_.keys().heads, x.memory_.keys().head_dim,
                                  x.memory_.values().head_dim};
    };
    const auto own = shape(*this), theirs = shape(other);
    if (own != theirs)
      throw_invalid(function, "both caches must have the same [kv_heads, head_dim, value_dim], got ",
                    shape_text(own.data(), own.size()), " and ", shape_text(theirs.data(), theirs.size()));
    if (storage_ != other.storage_)
      throw_invalid(function, "both caches must store keys alike, got rotated and raw keys");
    check_equal(function, "both caches", "axes", coordinates_.axes(), other.coordinates_.axes());
    rows_.check_copy(function, other.rows_, from);
    if (other.rows_.empty(from) || empty_but(to) || storage_ == key_storage::raw) return;
    if (on_axes() && rotation_.known() && other.rotation_.known())
      require_rotation(function, rotation_, other.rotation_, true);
    else if (rotation_ != other.rotation_)
      throw_invalid(function, "the keys of both caches must be rotated by one table and layout, got ",
                    !rotation_.known() || !other.rotation_.known() ? "keys of an unknown rotation in one"
                                                                   : "keys of different rotations");
  }
  /// Adds `delta` to the positions, or all coordinates, of tokens. If it is not 0, first calls rotate_key(b,
  /// t) for each token.
  template <class RotateKey>
  void shift_places(const char* function, Index first, Index count, std::int64_t delta, batch_row row,
                    const RotateKey& rotate_key) {
    const row_range rows = rows_.rows(function, row);
    rows_.check_tokens(function, rows, first, count);
    const Index last = first + count;
    if (on_axes())
      coordinates_.check_shift(function, rows, rows_, first, last, delta);
    else
      rows_.order().check_shift(function, rows, rows_, first, last, delta);
    for (Index b = rows.first; b < rows.last && delta != 0; ++b)
      for (Index t = first; t < last; ++t) rotate_key(b, t);
    if (on_axes())
      coordinates_.shift(rows, rows_, first, last, delta);
    else
      rows_.shift(rows, first, last, delta);
  }

  const char* owner_;  // the name of the cache in messages
  cache_memory<T, place> memory_;
  Rows rows_;
  row_places<double> coordinates_;
  key_storage storage_;
  key_rotation rotation_;
};

// Not inline, so that programs can compile it once.
template <class T, value_place place, class Rows>
template <class Layout, class K, class V, class Keys, class At, class Threads>
void stored_tokens<T, place, Rows>::store(const char* function, const head_view<K>& k, const head_view<V>& v,
                                          const Keys& keys, const At& at, const row_counts& counts,
                                          const Threads& threads) {
  constexpr bool has_table = !std::is_same_v<Keys, unknown_table>;
  if constexpr (std::is_same_v<At, next_tokens>) {
    if constexpr (has_table)
      if (on_axes() && is_coordinate_table(function, coordinates_.axes(), keys.table.table()))
        return store<Layout>(function, k, v, keys, keys.table.table(), counts, threads);
    if (!has_table && !coordinates_.end_at_integers()) check_needs_no_table(function);
    store<Layout>(function, k, v, keys, started_rows<std::int64_t>{next_positions(function)}, counts,
                  threads);
  } else {
    memory_.check_new(function, k, v, counts);
    const row_tokens added(memory_.batch(), k.tokens, counts);
    if constexpr (are_coordinates<At>) {
      if (!on_axes())
        throw_invalid(function, "a cache of positions takes no coordinates, make it with token_axes{",
                      at.axes(), "}");
      check_axes(function, coordinates_.axes(), at.axes());
    }
    // The positions of the new tokens in a table, or the rows of their coordinates.
    const auto positions = [&] {
      if constexpr (are_coordinates<At>)
        return checked_token_rows(function, at.rows(), memory_.batch(), k.tokens);
      else
        return at;
    }();
    rows_.check_room(function, added);
    if constexpr (!are_coordinates<At>) {
      check_new_positions(function, memory_.batch(), k.tokens, at, counts);
      if (!on_axes()) rows_.check_order(function, added, at);
    }
    if constexpr (has_table)
      check_keys<Layout>(function, k, keys, at, positions, added);
    else
      check_needs_no_table(function);
    const auto norm = checked_norm(function, keys.norm, k);
    const auto position = [&](Index b, Index t) -> std::int64_t {
      if constexpr (!are_coordinates<At>)
        if (!on_axes()) return at(b, t);
      return rows_.next()[static_cast<std::size_t>(b)] + t;  // with axes, rows_ numbers the tokens
    };
    rows_.for_each_new(
        added, threads, memory_.bytes_of(memory_.batch() * k.tokens), position,
        [&](Index b, Index first, Index count, Index slot) {
          memory_.write(k, v, b, first, count, slot, [&](const auto& from, const auto& to) {
            if constexpr (are_copied<Keys>)
              copy_channels(from, to);
            else
              rotate_channels<Layout>(from, to, in_new_keys(keys.table),
                                      positions_of_row(positions, b, first), norm);
          });
        },
        [&] { clear(); });
    // Of two equivalent rotations, keeps the one with the frequencies on all axes.
    key_rotation given;
    if constexpr (has_table) given = rotation_of<Layout>(function, keys.table);
    if (!has_table || !on_axes() || empty() || given.frequencies != 0) rotation_ = given;
    // With axes, a position is the coordinate on all axes.
    if (on_axes())
      for (Index b = 0; b < memory_.batch(); ++b)
        coordinates_.append(rows_, b, added.count(b), [&](Index t, Index a) {
          if constexpr (are_coordinates<At>)
            return at.coordinate(positions(b, t), a);
          else
            return static_cast<double>(at(b, t));
        });
    rows_.append(added, position, [&](Index b, Index slot) { memory_.clear_slot(b, slot); });
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_STORED_TOKENS_HPP
