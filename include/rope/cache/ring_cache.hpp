// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_RING_CACHE_HPP
#define ROPE_CACHE_RING_CACHE_HPP

#include <algorithm>  // std::max
#include <cstdint>
#include <span>
#include <string>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/cache/detail/axes_tables.hpp>
#include <rope/cache/detail/cache_memory.hpp>
#include <rope/cache/detail/cache_rows.hpp>  // row_range
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/key_rotation.hpp>
#include <rope/cache/detail/reordered_rows.hpp>
#include <rope/cache/detail/ring_axes.hpp>
#include <rope/cache/detail/ring_rows.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The keys and values that a sliding window still sees, in memory that does not grow.

namespace rope {
inline namespace ROPE_ABI {

/// A cache in which the oldest token that is not a sink is overwritten by the newest. Token i of a sequence
/// is in slot
///
///     i                                   for i < sinks
///     sinks + (i - sinks) mod (slots - sinks)    otherwise,       slots = sinks + window + chunk - 1
///
/// so keys lie in memory out of order; attention (attention.hpp) goes by their positions.
///
///     ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// \tparam T  a channel type, or std::int8_t, as in kv_cache. 16-bit caches also take float keys and values,
///            rounded once
///
/// Invariant: of the n tokens that row b has seen, the sinks and tokens [max(oldest, sinks), n) are held,
///            with oldest <= max(0, n + 1 - window): what the next query sees. Every function that throws
///            leaves the cache as it was, but where the caller's threads fail when tokens are overwritten: it
///            is empty then.
template <class T>
class ring_cache : public cache_shape<ring_cache<T>> {
 public:
  using value_type = T;  // a channel as it is stored
  /// What `positions` shows for a slot whose token was rolled back: after every query.
  static constexpr std::int64_t no_position = detail::ring_rows::no_position;
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, the window or the chunk is not positive, or
  ///          positions in the cache are asked of rotated keys; std::length_error if the cache exceeds the
  ///          address space
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, Index value_dim = 0,
             key_storage storage = key_storage::rotated)
      : memory_("ring_cache", batch, detail::checked_slots(policy, storage), kv_heads, head_dim,
                value_dim == 0 ? head_dim : value_dim),
        storage_(storage),
        rows_(batch, policy, memory_.slot_count()) {}
  /// A cache of tokens with several coordinates, whose keys are stored rotated.  Throws: as above
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, token_axes axes,
             Index value_dim = 0)
      : ring_cache(batch, policy, kv_heads, head_dim, value_dim) {
    coordinates_ = detail::ring_axes(batch, capacity(), axes);
  }

  ring_cache(const ring_cache&) = default;
  ring_cache(ring_cache&&) = default;
  ring_cache& operator=(const ring_cache& other) { return *this = ring_cache(other); }  // all or nothing
  ring_cache& operator=(ring_cache&&) = default;
  /// Slots per row: sinks + window + chunk - 1.
  Index capacity() const { return memory_.slot_count(); }
  /// What it was made with.
  const ring_policy& policy() const { return rows_.policy(); }
  /// Whether keys are stored rotated or raw.
  key_storage storage() const { return storage_; }
  /// Tokens held in row b.  Throws: std::out_of_range if there is no such row. The same holds below
  Index size(Index b) const { return rows_.size(rows_.checked(b)); }
  /// Position of the token in each slot of row b that was ever used, in the order of keys(b) and values(b);
  /// valid until the cache changes.  Throws: std::out_of_range; std::invalid_argument if tokens have
  /// coordinates
  std::span<const std::int64_t> positions(Index b) const {
    if (on_axes()) detail::refuse_positions_on_axes("ring_cache::positions", axes());
    return rows_.positions(rows_.checked(b));
  }
  /// Which token of the sequence is in each of these slots: attention goes by it.  Throws: std::out_of_range
  std::span<const std::int64_t> order(Index b) const { return rows_.positions(rows_.checked(b)); }
  /// Tokens that each row has seen, [batch].
  std::span<const std::int64_t> seen() const { return rows_.seen(); }
  /// Tokens that row b has seen.  Throws: std::out_of_range
  std::int64_t seen(Index b) const { return rows_.seen(rows_.checked(b)); }
  /// order(b) of one token, also of one that was overwritten.
  std::int64_t order_of(Index /*b*/, std::int64_t token) const { return token; }
  /// The position in its sequence that the next token of each row gets, [batch]: the tokens it has seen, or,
  /// with axes, as in kv_cache.
  std::span<const std::int64_t> next_positions() const {
    return on_axes() ? coordinates_.rows().next_positions("ring_cache::next_positions") : rows_.seen();
  }
  /// Coordinates of a token; 0: it has a position.
  Index axes() const { return coordinates_.rows().axes(); }
  /// Coordinates slot by slot, [slots, axes]; valid until the cache changes.  Throws: std::out_of_range
  auto coordinates(Index b) const {
    const Index row = rows_.checked(b);  // before anything is read of it
    return coordinates_.rows().template of<detail::coordinate_map<T>>(row, rows_.used(row));
  }
  /// Coordinates of one token, [axes].  Requires: there are such a row and token, which is held
  const double* coordinates_of(Index b, std::int64_t token) const {
    return coordinates_.rows().token(b, rows_.slot(token));
  }
  /// As in kv_cache, coordinates of text behind each row, [batch * tokens, axes].
  detail::owned_doubles<T> next_coordinates(Index tokens = 1) const {
    return coordinates_.rows().next_coordinates("ring_cache::next_coordinates", tokens);
  }
  /// As in kv_cache: how many of `queries` queries each row has in a call of attention without counts.
  std::span<const Index> query_counts(Index queries) const {
    return rows_.newest().counts("attention", queries);
  }
  /// The slot of the token at `position` of a sequence.  Throws: std::out_of_range if it is negative
  Index slot(std::int64_t position) const {
    rows_.check_position("ring_cache::slot", position);
    return rows_.slot(position);
  }

  /// Copies new tokens, over the oldest ones where slots have run out. Of more tokens than slots only those
  /// that remain are copied: a prompt longer than `chunk` attends by `attention(q, k, v, out, table,
  /// {.window, .sinks})`, and is then appended at once.
  ///
  /// \param k        [batch, tokens, kv_heads, head_dim]; not rotated for raw storage, else rotated already
  /// \param v        [batch, tokens, kv_heads, value_dim]
  /// \param counts   as in kv_cache
  /// \param threads  the caller's threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds keys that it rotated itself
  /// Cost:    one copy of the keys and values that stay
  template <int no_layout = 0, class K, class V, class Threads = this_thread>  // append<Layout> is another
  void append(head_view<K> k, head_view<V> v, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append", Threads);
    memory_.check_new("ring_cache::append", k, v, counts);
    if (!rows_.empty()) detail::require_given_keys("ring_cache::append", rotation_);
    const auto text = next_source(k.tokens);
    rotation_ = {};
    rows_.for_each_new(
        k.tokens, counts, threads, memory_.bytes_of(memory_.batch() * k.tokens),
        [&](Index b, Index t, Index slot, std::int64_t /*token*/) { memory_.write(k, v, b, t, 1, slot); },
        [&] { clear(); });
    note(k.tokens, counts, [&](Index b, Index t, Index /*a*/) { return text(b, t); });
  }

  /// Rotates copies of new keys by their positions in the sequence, or with axes as a kv_cache does, and
  /// appends them.
  ///
  /// \param k      [batch, tokens, kv_heads, head_dim], not rotated
  /// \param table  what k rotates by; or a normed_table, which normalises its heads before
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, holds keys of another table or
  ///          layout, or keys whose table is not known; std::out_of_range if a position is outside the table
  /// Cost:    as above, with one rotation of the keys that stay
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table,
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const Table& table, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append", Threads);
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::append", Layout);
    if constexpr (pair_layout<Layout>)
      store_next<Layout>(k, v, detail::key_transform_of(table), counts, threads);
  }
  ROPE_DETAIL_ASK_FOR_APPEND("ring_cache", heads);

  /// Checks that the stored keys, unless they are raw, were rotated in this layout by a table that rotates
  /// like this one.  Throws: std::invalid_argument if not
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  void check_table(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::check_table", Layout);
    const auto placed = detail::placed(table);
    if (on_axes()) detail::is_coordinate_table("ring_cache", axes(), placed.table());
    if (rows_.empty() || storage_ == key_storage::raw) return;
    if (on_axes())
      detail::require_rotation_on_axes("ring_cache", rotation_, detail::rotation_on_axes<Layout>(placed));
    else
      detail::require_rotation<Layout>("ring_cache", rotation_, placed);
  }

  /// Forgets the tokens at positions `size` and later: the rollback of speculative decoding. Tokens that were
  /// overwritten do not come back, so no more than `chunk` can be forgotten once slots have run out.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= seen() and every token that the next query sees is still
  ///          held, and with axes the one before it
  void truncate(std::int64_t size, batch_row row = every_row) {
    const Index first = row.every ? 0 : rows_.checked(row.index);
    const detail::row_range those = {first, row.every ? memory_.batch() : first + 1};
    rows_.check_truncate(those, size, on_axes());
    if (on_axes()) coordinates_.truncate(rows_, those, size);
    rows_.truncate(those, size);
  }

  /// Makes row `to` what row `from` is, as in kv_cache.  Throws: std::out_of_range if there is no such row
  void copy_row(Index from, Index to) {
    detail::copy_row("ring_cache::copy_row", from, to, rows_, memory_, coordinates_);
  }
  /// Makes every row b what row rows[b] was.  Throws: as in kv_cache
  void reorder(const detail::row_list& rows) {
    detail::reorder("ring_cache::reorder", rows, memory_.batch(), rows_, memory_, coordinates_);
  }

  /// Forgets every token.
  void clear() {
    rows_.clear();
    coordinates_.clear();
  }

  /// Keys of row b in the order of memory, [1, slots in use, kv_heads, head_dim].  Throws: std::out_of_range
  detail::stored_view<const T> keys(Index b) const {
    return memory_.keys().batch_range(rows_.checked(b), 1).token_range(0, rows_.used(b));
  }
  /// The values of the same slots, [1, slots in use, kv_heads, value_dim].  Throws: std::out_of_range
  detail::stored_view<const T> values(Index b) const {
    return memory_.values().batch_range(rows_.checked(b), 1).token_range(0, rows_.used(b));
  }

  /// Whether every key that a query at `position` of row b sees is still held, its own included unless it is
  /// yet to come.  Throws: std::out_of_range if there is no such row or position
  bool holds_window(Index b, std::int64_t position) const {
    rows_.checked(b);
    rows_.check_position("ring_cache::holds_window", position);
    const std::int64_t end = detail::advance(position, 1);
    return rows_.holds(b, end - policy().window, end);
  }

  /// The options of a call of attention to the cache: `options`, with the window and the sinks of the ring.
  ///
  /// Throws:  std::invalid_argument if they say otherwise, or have a bias or a mask
  attention_options rules(const char* function, const attention_options& options) const {
    std::string got = options.causal ? "" : "causal = false";
    const auto compare = [&got](const char* name, Index given, Index own) {
      if (given != 0 && given != own)
        got += (got.empty() ? "" : ", ") + std::string(name) + " = " + std::to_string(given);
    };
    compare("window", options.window, policy().window);
    compare("sinks", options.sinks, policy().sinks);
    if (!got.empty())
      ROPE_THROW(
          std::invalid_argument,
          detail::message(function,
                          ": leave causal, window and sinks at their defaults, the ring_cache has its own, "
                          "causal with window = ",
                          policy().window, " and sinks = ", policy().sinks, ", got ", got.c_str()));
    if (options.bias || options.mask)
      ROPE_THROW(std::invalid_argument,
                 detail::message(
                     function,
                     ": a ring_cache overwrites old keys, so a bias or a mask cannot tell which are which; "
                     "use a kv_cache, or leave it empty, got a ",
                     options.bias ? "bias" : "mask"));
    attention_options completed = options;
    completed.window = policy().window;
    completed.sinks = policy().sinks;
    return completed;
  }
  /// Throws:  std::invalid_argument if a key that one of the newest `queries` tokens of row b sees was
  ///          overwritten; std::out_of_range if there is no such row
  void check_queries(const char* function, Index b, Index queries) const {
    // Sinks are never overwritten, and of the other queries the first one sees the oldest keys.
    const std::int64_t first = seen(b) - queries, oldest = (std::max)(first, std::int64_t{policy().sinks});
    if (oldest - first < queries && !holds_window(b, oldest))
      ROPE_THROW(std::invalid_argument,
                 detail::message(function, ": keys that the query at ", oldest, ", one of ", queries,
                                 ", sees were overwritten, the cache takes at most chunk = ", policy().chunk,
                                 " queries at a time"));
  }

 private:
  friend class cache_shape<ring_cache<T>>;
  const detail::cache_memory<T>& memory() const { return memory_; }
  bool on_axes() const { return axes() > 0; }
  template <class Layout, class S>
  detail::key_rotation rotation_of(const placed_table<S>& table) const {
    return on_axes() ? detail::rotation_on_axes<Layout>(table) : detail::rotation_by<Layout>(table);
  }

  template <class Layout, class K, class V, class S, class Norm, class Threads>
  void store_next(const head_view<K>& k, const head_view<V>& v,
                  const detail::key_transform<S, Norm>& transform, const detail::row_counts& counts,
                  const Threads& threads) {
    const frequency_table<S>& table = transform.table.table();
    if (on_axes() && detail::is_coordinate_table("ring_cache::append", axes(), table)) {
      const detail::token_rows rows =
          detail::checked_token_rows("ring_cache::append", table.rows(), memory_.batch(), k.tokens);
      store_rotated<Layout>(k, v, transform, rows, counts, threads,
                            [&](Index b, Index t, Index a) { return table.coordinate(rows(b, t), a); });
    } else {
      const auto text = next_source(k.tokens);
      store_rotated<Layout>(k, v, transform, text, counts, threads,
                            [&](Index b, Index t, Index /*a*/) { return text(b, t); });
    }
  }
  /// \param coordinate  coordinate(b, t, a) of a new token
  template <class Layout, class K, class V, class S, class Norm, class Source, class Threads,
            class CoordinateOf>
  void store_rotated(const head_view<K>& k, const head_view<V>& v,
                     const detail::key_transform<S, Norm>& transform, const Source& positions,
                     const detail::row_counts& counts, const Threads& threads,
                     const CoordinateOf& coordinate) {
    const placed_table<S>& table = transform.table;
    memory_.check_new("ring_cache::append", k, v, counts);
    if (storage_ == key_storage::raw) detail::refuse_raw_keys("ring_cache::append");
    check_table<Layout>(table);
    detail::check_new_rotation<Layout>("ring_cache::append", k, counts, table, positions);
    const auto norm = detail::checked_norm("ring_cache::append", transform.norm, k);
    rows_.for_each_new(
        k.tokens, counts, threads, memory_.bytes_of(memory_.batch() * k.tokens),
        [&](Index b, Index t, Index slot, std::int64_t /*token*/) {
          memory_.template write_rotated<Layout>(k, v, b, t, 1, slot, table,
                                                 detail::contiguous_positions{positions(b, t)}, norm);
        },
        [&] { clear(); });
    const detail::key_rotation rotation = rotation_of<Layout>(table);
    rotation_ = on_axes() && !rows_.empty() ? detail::both_on_axes(rotation_, rotation) : rotation;
    note(k.tokens, counts, coordinate);
  }
  detail::started_rows<std::int64_t> next_source(Index tokens) const {
    if (!on_axes()) return {rows_.seen()};
    coordinates_.rows().check_text("ring_cache::append", tokens);
    return {coordinates_.rows().next_positions("ring_cache::append")};
  }
  template <class CoordinateOf>
  void note(Index tokens, const detail::row_counts& counts, const CoordinateOf& coordinate) {
    if (on_axes()) coordinates_.append(rows_, memory_.batch(), tokens, counts, coordinate);
    rows_.append(tokens, counts);
  }

  detail::cache_memory<T> memory_;
  key_storage storage_;
  detail::key_rotation rotation_;
  detail::ring_rows rows_;
  detail::ring_axes coordinates_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_RING_CACHE_HPP
