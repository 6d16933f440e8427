// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_STORED_TOKENS_HPP
#define ROPE_CACHE_DETAIL_STORED_TOKENS_HPP

#include <algorithm>  // std::max, std::min
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/cache/detail/cache_memory.hpp>
#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/key_rotation.hpp>
#include <rope/cache/detail/new_tokens.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/key_turn.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// What kv_cache and latent_cache have in common: tokens in memory, one growing sequence per row.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Memory, rows and the rotation of the keys, changed together. Tables are placed in the head of a stored
/// key. Functions are told the name under which the user called them.
///
/// Invariant: tokens [0, rows().size(b)) of row b are written. Every function that throws leaves all as it
///            was.
template <class T, value_place place>
class stored_tokens {
 public:
  stored_tokens(const char* owner, Index batch, Index capacity, Index kv_heads, Index head_dim,
                Index value_dim, key_storage storage)
      : memory_(owner, batch, capacity, kv_heads, head_dim, value_dim),
        rows_(batch, capacity),
        storage_(storage) {}

  const cache_memory<T, place>& memory() const { return memory_; }
  const cache_rows& rows() const { return rows_; }
  key_storage storage() const { return storage_; }
  /// Where the next tokens are.
  auto next_source() const { return started_rows<std::int64_t>{rows_.next()}; }

  template <class K, class V, class Source, class Threads>
  void store(const char* function, const head_view<K>& k, const head_view<V>& v, const Source& positions,
             const row_counts& counts, const Threads& threads) {
    memory_.check_new(function, k, v, counts);
    rows_.check_new(function, k.tokens, positions, counts);
    if (!rows_.empty()) require_given_keys(function, rotation_);
    rotation_ = {};
    memory_.write_behind(rows_, k, v, counts, threads);
    rows_.append(k.tokens, counts, positions);
  }
  template <class Layout, class K, class V, class S, class Source, class Threads>
  void store_rotated(const char* owner, const char* function, const head_view<K>& k, const head_view<V>& v,
                     const placed_table<S>& table, const Source& positions, const row_counts& counts,
                     const Threads& threads) {
    const placed_table<S> in_new(table.table(), table.first_channel() - memory_.first_new_channel());
    memory_.check_new(function, k, v, counts);
    rows_.check_new(function, k.tokens, positions, counts);
    if (storage_ == key_storage::raw) refuse_raw_keys(function);
    check_table<Layout>(owner, table);
    check_new_rotation<Layout>(function, k, counts, in_new, positions);
    memory_.template write_rotated_behind<Layout>(rows_, k, v, counts, in_new, positions, threads);
    rows_.append(k.tokens, counts, positions);
    rotation_ = rotation_by<Layout>(table);
  }

  template <class Layout, class S>
  void check_table(const char* owner, const placed_table<S>& table) const {
    if (!rows_.empty() && storage_ == key_storage::rotated) require_rotation<Layout>(owner, rotation_, table);
  }

  template <class Layout, class From, class To>
  void rebase(const char* owner, const char* function, const placed_table<From>& from,
              const placed_table<To>& to) {
    if (storage_ == key_storage::raw) refuse_rebase_of_raw_keys(function);
    check_table<Layout>(owner, from);
    auto turn = turn_between<Layout, T>(function, from, to);
    for (Index t = 0; t < memory_.slot_count(); ++t)
      for (Index b = 0; b < memory_.batch(); ++b)
        if (t < rows_.size(b))
          turn.turn(memory_.keys(), b, t, rows_.positions(b)[static_cast<std::size_t>(t)]);
    rotation_ = rotation_by<Layout>(to);
  }

  void truncate(const char* function, Index size, batch_row row) {
    rows_.truncate(function, rows_.rows(function, row), size);
  }
  void remove(const char* function, Index first, Index count, batch_row row) {
    const row_range rows = rows_.rows(function, row);
    rows_.check_tokens(function, rows, first, count);
    const Index last = first + count;
    for (Index b = rows.first; b < (std::min)(rows.last, memory_.batch()); ++b)
      memory_.move_down(b, last, first, rows_.size(b) - last);
    rows_.remove(rows, first, last);
  }
  /// Raw keys have no angle to turn by.
  void shift(const char* function, Index first, Index count, std::int64_t delta, batch_row row) {
    check_shift_without_table(function, storage_, delta);
    rows_.shift(rows_.checked_shift(function, first, count, delta, row), first, first + count, delta);
  }
  template <class Layout, class S>
  void shift(const char* owner, const char* function, Index first, Index count, std::int64_t delta,
             const placed_table<S>& table, batch_row row) {
    if (storage_ == key_storage::raw) return shift(function, first, count, delta, row);
    check_table<Layout>(owner, table);
    auto turn = turn_by<Layout, T>(function, table);
    const row_range rows = rows_.checked_shift(function, first, count, delta, row);
    const Index last = first + count;
    if (delta != 0)
      for (Index b = rows.first; b < (std::min)(rows.last, memory_.batch()); ++b)
        for (Index t = first; t < last; ++t) turn.turn(memory_.keys(), b, t, delta);
    rows_.shift(rows, first, last, delta);
  }
  void copy_row(const char* function, Index from, Index to) {
    rows_.checked(function, from);
    if (rows_.checked(function, to) != from) overwrite(from, to);
  }
  /// \param from  row b becomes what row from[b] is
  void reorder(const char* function, const row_list& from) {
    const auto batch = static_cast<std::size_t>(Index{memory_.batch()});
    if (from.size() != batch)
      ROPE_THROW(std::invalid_argument,
                 message(function, ": rows must be [batch] = ", batch, ", got ", from.size()));
    std::vector<Index> source(batch), readers(batch);
    for (std::size_t b = 0; b < batch; ++b) {
      source[b] = rows_.checked(function, from[b]);
      if (source[b] != static_cast<Index>(b)) ++readers[static_cast<std::size_t>(source[b])];
    }
    // A row that no other one is made of can be overwritten, which may free the row that it is made of.
    const auto stays = [&](std::size_t b) { return source[b] == static_cast<Index>(b); };
    for (std::size_t first = 0; first < batch; ++first)
      for (std::size_t b = first; !stays(b) && readers[b] == 0;) {
        const Index made_of = source[b];
        overwrite(made_of, static_cast<Index>(b));
        source[b] = static_cast<Index>(b);
        b = static_cast<std::size_t>(made_of);
        --readers[b];
      }
    // The others are circles. Each swap puts one row in its place and passes the first one on to the next.
    for (std::size_t b = 0; b < batch; ++b) {
      std::size_t to = b;
      while (source[to] != static_cast<Index>(b)) {
        const Index next = source[to];
        exchange(static_cast<Index>(to), next);
        source[to] = static_cast<Index>(to);
        to = static_cast<std::size_t>(next);
      }
      source[to] = static_cast<Index>(to);
    }
  }
  void clear() { rows_.clear(); }

  /// Keys and values of every row.  Throws: std::invalid_argument if rows differ in size
  head_view<const T> keys(const char* function) const {
    return memory_.keys().token_range(0, rows_.common_size(function));
  }
  head_view<const T> values(const char* function) const {
    return memory_.values().token_range(0, rows_.common_size(function));
  }
  /// Those of row b.  Throws: std::out_of_range
  head_view<const T> keys(const char* function, Index b) const {
    return memory_.keys().batch_range(rows_.checked(function, b), 1).token_range(0, rows_.size(b));
  }
  head_view<const T> values(const char* function, Index b) const {
    return memory_.values().batch_range(rows_.checked(function, b), 1).token_range(0, rows_.size(b));
  }

 private:
  void overwrite(Index from, Index to) {
    memory_.copy_row(from, to, rows_.size(from));
    rows_.copy_row(from, to);
  }
  void exchange(Index a, Index b) {
    memory_.swap_rows(a, b, (std::max)(rows_.size(a), rows_.size(b)));
    rows_.swap_rows(a, b);
  }

  cache_memory<T, place> memory_;
  cache_rows rows_;
  key_storage storage_;
  key_rotation rotation_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_STORED_TOKENS_HPP
