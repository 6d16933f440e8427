// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_RING_CACHE_HPP
#define ROPE_CACHE_RING_CACHE_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>
#include <span>
#include <string>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/cache/detail/cache_memory.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/ring_rows.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/stored_tokens.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// A cache for attention with a sliding window, in memory that does not grow.

namespace rope::inline ROPE_ABI {

/// A cache in which the newest token overwrites the oldest token that is not a sink. Token i of a sequence is
/// in slot
///
///     i                                   for i < sinks
///     sinks + (i - sinks) mod (slots - sinks)    otherwise,       slots = sinks + window + chunk - 1
///
/// so keys are out of order in memory. Attention (attention.hpp) uses their positions.
///
///     ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// \tparam T  a channel type, or std::int8_t, as in kv_cache. 16-bit caches also take float keys and values,
///            rounded once
///
/// Invariant: of the n tokens appended to row b, the sinks and tokens [max(oldest, sinks), n) are stored,
///            with oldest <= max(0, n + 1 - window), so all keys visible to the next query are stored.
///            Positions that append_at skipped have no token. A function that throws leaves the cache
///            unchanged, except if your threads fail while tokens are overwritten: the cache is then empty.
template <class T>
class ring_cache : public cache_shape<ring_cache<T>> {
 public:
  using value_type = T;  // a stored channel
  /// The value in `positions` for a slot without a token, because it was rolled back or skipped: greater than
  /// every position.
  static constexpr std::int64_t no_position = detail::ring_rows::no_position;
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, the window or the chunk is not positive, or
  ///          ring_positions::cache is combined with rotated keys; std::length_error if the cache exceeds the
  ///          address space
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, Index value_dim = 0,
             key_storage storage = key_storage::rotated)
      : tokens_("ring_cache", batch, detail::checked_slots(policy, storage), kv_heads, head_dim,
                value_dim == 0 ? head_dim : value_dim, storage, policy) {}
  /// A cache of tokens with several coordinates, whose keys are stored rotated.  Throws: as above
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, token_axes axes,
             Index value_dim = 0)
      : ring_cache(batch, policy, kv_heads, head_dim, value_dim) {
    tokens_.put_on_axes("ring_cache", axes);
  }

  ring_cache(const ring_cache&) = default;
  ring_cache(ring_cache&&) = default;
  ring_cache& operator=(const ring_cache& other) { return *this = ring_cache(other); }  // all or nothing
  ring_cache& operator=(ring_cache&&) = default;
  /// Slots per row: sinks + window + chunk - 1.
  Index capacity() const { return memory().slot_count(); }
  /// The policy passed to the constructor.
  const ring_policy& policy() const { return rows().policy(); }
  /// Whether keys are stored rotated or raw.
  key_storage storage() const { return tokens_.storage(); }
  /// Whether the rotation of the stored keys is known, as in kv_cache.
  bool rotates_keys() const { return tokens_.rotates_keys(); }
  /// The rotation of the stored keys, as in kv_cache.
  key_rotation rotation() const { return tokens_.rotation(); }
  /// The rotation() of a ring whose keys were appended with this table and layout.  Throws: as in kv_cache
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  key_rotation rotation_by(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::rotation_by", Layout);
    if constexpr (pair_layout<Layout>)
      return tokens_.template rotation_of<Layout>("ring_cache::rotation_by", detail::placed(table));
    else
      return {};
  }
  /// Tokens stored in row b.  Throws: std::out_of_range if there is no such row, like all functions of b
  /// below
  Index size(Index b) const { return rows().size(rows().checked(b)); }
  /// Position of the token in each slot of row b that was ever used, in the order of keys(b) and values(b);
  /// valid until the cache changes.  Throws: std::out_of_range; std::invalid_argument if tokens have
  /// coordinates
  std::span<const std::int64_t> positions(Index b) const {
    if (axes() > 0) detail::refuse_positions_on_axes("ring_cache::positions", axes());
    return rows().positions(rows().checked(b));
  }
  /// The token of the sequence in each of these slots, which decides visibility in attention.  Throws:
  /// std::out_of_range
  std::span<const std::int64_t> order(Index b) const { return rows().positions(rows().checked(b)); }
  /// One more than the position of the newest token of each row, [batch]: the number of tokens appended and
  /// not rolled back, and of positions that append_at skipped.
  std::span<const std::int64_t> seen() const { return rows().seen(); }
  /// seen() of row b.  Throws: std::out_of_range
  std::int64_t seen(Index b) const { return rows().seen(rows().checked(b)); }
  /// The position in order(b) of one token, even if it was overwritten.
  std::int64_t order_of(Index /*b*/, std::int64_t token) const { return token; }
  /// The position of the next token of each row, [batch]: seen(), or, with axes, as in kv_cache.
  std::span<const std::int64_t> next_positions() const {
    return tokens_.next_positions("ring_cache::next_positions");
  }
  /// Number of coordinates of a token, or 0 if it has one position instead.
  Index axes() const { return tokens_.coordinates().axes(); }
  /// Coordinates slot by slot, [slots, axes]; valid until the cache changes.  Throws: std::out_of_range
  auto coordinates(Index b) const {
    const Index row = rows().checked(b);  // before any access to the row
    return tokens_.coordinates().template of<detail::coordinate_map<T>>(row, rows().used(row));
  }
  /// Coordinates of one token, [axes].  Requires: there is such a row, and it stores the token
  const double* coordinates_of(Index b, std::int64_t token) const {
    return tokens_.coordinates().token(b, rows().slot(token));
  }
  /// Coordinates of the next `tokens` tokens of each row if they are text, [batch * tokens, axes], as in
  /// kv_cache.
  detail::owned_doubles<T> next_coordinates(Index tokens = 1) const {
    return tokens_.coordinates().next_coordinates("ring_cache::next_coordinates", tokens);
  }
  /// The number of the `queries` queries in each row for a call of attention without counts, as in kv_cache.
  std::span<const Index> query_counts(Index queries) const {
    return rows().newest().counts("attention", queries);
  }
  /// The record from which query_counts is computed.
  const detail::newest_tokens& newest() const { return rows().newest(); }
  /// The slot of the token at `position` of a sequence.  Throws: std::out_of_range if it is negative
  Index slot(std::int64_t position) const {
    rows().check_position("ring_cache::slot", position);
    return rows().slot(position);
  }

  /// Copies new tokens. Once all slots are used, they overwrite the oldest tokens that are not sinks. Tokens
  /// that the same call would overwrite are not copied. A prompt longer than `chunk` takes two calls:
  ///
  ///     attention<Layout>(q, k, v, out, table, {.window = 1024, .sinks = 4});  // those of the ring
  ///     cache.append<Layout>(k, v, table);
  ///
  /// \param k        [batch, tokens, kv_heads, head_dim]; unrotated for raw storage, otherwise already
  ///                 rotated. A ring of std::int8_t also takes quantized views, as a kv_cache
  /// \param v        [batch, tokens, kv_heads, value_dim]
  /// \param counts   as in kv_cache
  /// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds keys that it rotated itself
  /// Cost:    one copy of the keys and values that stay
  template <int no_layout = 0, detail::new_heads K, detail::new_heads V,
            class Threads = this_thread>  // append<Layout> is another
  void append(const K& k, const V& v, const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append", Threads);
    tokens_.check_given("ring_cache::append");
    tokens_.store("ring_cache::append", k, v, tokens_.next_source("ring_cache::append", k.tokens), counts,
                  threads);
  }

  /// Rotates copies of new keys by their positions in the sequence, or with axes as in kv_cache, and appends
  /// them.
  ///
  /// \param k      [batch, tokens, kv_heads, head_dim], not rotated
  /// \param table  the table that rotates k, or a normed_table, which normalises the heads first
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, or keys of another, or an
  ///          unknown, table or layout; std::out_of_range if a position is outside the table
  /// Cost:    as above, with one rotation of the keys that stay
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table,
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const Table& table, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append", Threads);
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::append", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_next<Layout>("ring_cache", "ring_cache::append", k, v,
                                          detail::key_transform_of(table), counts, threads);
  }

  /// Copies new tokens at the given positions, for a ring that is restored or that starts at token n.
  /// Positions of a row ascend, from next_positions() or a later position on. Skipped positions have no
  /// token: attention works without them, and `truncate` returns to none of them. A row that starts at or
  /// after `sinks` has no sinks.
  ///
  ///     ring.append_at<Layout>(k, v, table, 1000);
  ///
  /// With axes, positions are coordinates on all axes, as in kv_cache, and tokens follow the earlier ones.
  ///
  /// \param positions  as in `rotate`
  ///
  /// Throws:  as `append`; std::invalid_argument if a position is before the next one of its row;
  ///          std::out_of_range if one is negative or above 2^53
  template <int no_layout = 0, detail::new_heads K, detail::new_heads V, position_form P,
            class Threads = this_thread>
  void append_at(const K& k, const V& v, const P& positions, const detail::row_counts& counts = {},
                 const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append_at", Threads);
    tokens_.store("ring_cache::append_at", k, v, detail::position_source(positions, k.tokens), counts,
                  threads);
  }
  /// Rotates copies of new keys by the given positions, and appends them.  Throws: as above, and as `append`
  /// with a table
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table, position_form P,
            class Threads = this_thread>
  void append_at(head_view<K> k, head_view<V> v, const Table& table, const P& positions,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::append_at", Layout);
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append_at", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_rotated<Layout>("ring_cache", "ring_cache::append_at", k, v,
                                             detail::key_transform_of(table),
                                             detail::position_source(positions, k.tokens), counts, threads);
  }
  /// Appends new tokens at the given coordinates to a ring with axes, as in kv_cache.
  template <int no_layout = 0, detail::new_heads K, detail::new_heads V, class Threads = this_thread>
  void append_at(const K& k, const V& v, const token_coordinates& coordinates,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append_at", Threads);
    tokens_.store("ring_cache::append_at", k, v, coordinates, counts, threads);
  }

  /// Appends copies of keys that `table` rotated before: saved to disk, in another cache or on another
  /// machine. The ring then treats them as keys that it rotated: `append` and `attention` work. Positions
  /// ascend, as in append_at, so save the tokens of a ring in the order of their positions, not of their
  /// slots.
  ///
  /// \param k          as in `append` without a table
  /// \param table      the table that rotated k. It is not applied again, and no position has to be in it;
  ///                   compare rotation_by<Layout>(table) with the rotation() that was stored with k
  /// \param positions  as in append_at, or token_coordinates; `{}`: the next positions, or the coordinates of
  ///                   a table of coordinates
  ///
  /// Throws:  as append_at; std::invalid_argument if the cache stores raw keys, or keys of another, or an
  ///          unknown, table or layout
  /// Cost:    one copy of k and v
  template <class Layout = detail::unnamed_layout, detail::new_heads K, detail::new_heads V,
            rotation_table Table, detail::place_form P = detail::next_tokens, class Threads = this_thread>
  void append_rotated(const K& k, const V& v, const Table& table, const P& positions = {},
                      const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::append_rotated", Layout);
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append_rotated", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_as_rotated<Layout>("ring_cache", "ring_cache::append_rotated", k, v,
                                                detail::placed(table),
                                                detail::place_source(positions, k.tokens), counts, threads);
  }
  ROPE_DETAIL_ASK_FOR_APPEND("ring_cache", heads);
  ROPE_DETAIL_ASK_FOR_APPEND_AT("ring_cache", heads);
  ROPE_DETAIL_ASK_FOR_APPEND_ROTATED("ring_cache");

  /// Checks that the stored keys, unless they are raw, were rotated in this layout by a table that rotates
  /// like this one.  Throws: std::invalid_argument if not
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  void check_table(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::check_table", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template check_table<Layout>("ring_cache", detail::placed(table));
  }

  /// Removes the tokens at positions `size` and later: the rollback of speculative decoding. Overwritten
  /// tokens do not come back, so at most `chunk` tokens can be removed once all slots are used.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= seen() and every token visible to the next query is still
  ///          held, and with axes also token size - 1; after skipped positions, if size is before the token
  ///          that follows them, and not 0, or at that token once it was overwritten
  void truncate(std::int64_t size, batch_row row = every_row) {
    tokens_.truncate("ring_cache::truncate", size, row);
  }

  /// Makes row `to` a copy of row `from`, as in kv_cache.  Throws: std::out_of_range if there is no such row
  void copy_row(Index from, Index to) { copy_row(*this, from, to); }
  /// Makes row `to` a copy of row `from` of another ring of the same policy.  Throws: as in kv_cache
  void copy_row(const ring_cache& other, Index from, Index to) {
    tokens_.copy_row("ring_cache", "ring_cache::copy_row", other.tokens_, from, to);
  }
  /// Makes every row b a copy of row rows[b] before the call.  Throws: as in kv_cache
  void reorder(const detail::row_list& rows) { tokens_.reorder("ring_cache::reorder", rows); }

  /// Removes every token.
  void clear() { tokens_.clear(); }

  /// Keys of row b in memory order, [1, slots in use, kv_heads, head_dim].  Throws: std::out_of_range
  head_view<const T> keys(Index b) const { return tokens_.keys("ring_cache", b); }
  /// The values of the same slots, [1, slots in use, kv_heads, value_dim].  Throws: std::out_of_range
  head_view<const T> values(Index b) const { return tokens_.values("ring_cache", b); }

  /// Whether every key visible to a query at `position` of row b is still stored, including its own if
  /// already appended. False for positions before skipped ones once a later token was overwritten.  Throws:
  /// std::out_of_range if there is no such row or position
  bool holds_window(Index b, std::int64_t position) const {
    rows().checked(b);
    rows().check_position("ring_cache::holds_window", position);
    const std::int64_t end = detail::advance(position, 1);
    return rows().holds(b, end - policy().window, end);
  }

  /// Returns `options` for attention, with the window and the sinks of the ring.
  ///
  /// Throws:  std::invalid_argument if `options` set other values, or have a bias, a mask, key_ranges or
  ///          selected keys
  attention_options rules(const char* function, const attention_options& options) const {
    std::string got = options.causal ? "" : "causal = false";
    const auto compare = [&got](const char* name, Index given, Index own) {
      if (given != 0 && given != own)
        got += (got.empty() ? "" : ", ") + std::string(name) + " = " + std::to_string(given);
    };
    compare("window", options.window, policy().window);
    compare("sinks", options.sinks, policy().sinks);
    if (!got.empty())
      detail::throw_invalid(function,
                            "leave causal, window and sinks at their defaults, the ring_cache has its own, "
                            "causal with window = ",
                            policy().window, " and sinks = ", policy().sinks, ", got ", got);
    if (options.bias || options.mask)
      detail::throw_invalid(function,
                            "a ring_cache overwrites old keys, so a bias or a mask cannot be matched to "
                            "keys; use a kv_cache, or leave it empty, got a ",
                            options.bias ? "bias" : "mask");
    if (!options.key_ranges.empty())
      detail::throw_invalid(function,
                            "a ring_cache overwrites old keys, so key_ranges cannot be matched to keys; use "
                            "a kv_cache, or leave them empty, got ",
                            options.key_ranges.size());
    if (options.selected)
      detail::throw_invalid(function,
                            "a ring_cache overwrites old keys, so selected cannot be matched to keys; use a "
                            "kv_cache, or leave it empty, got lists of ",
                            options.selected.queries(), " queries");
    attention_options completed = options;
    completed.window = policy().window;
    completed.sinks = policy().sinks;
    return completed;
  }
  /// Throws:  std::invalid_argument if a key visible to one of the newest `queries` tokens of row b was
  ///          overwritten, or one of these tokens was skipped, or, with ring_positions::cache, a key visible
  ///          to them; std::out_of_range if there is no such row
  void check_queries(const char* function, Index b, Index queries) const {
    if (const std::int64_t start = rows().run_start(rows().checked(b)); start > 0)
      check_run(function, b, queries, start);
    // Sinks are never overwritten. Of the other keys, the first query needs the oldest ones.
    const std::int64_t first = seen(b) - queries, oldest = (std::max)(first, std::int64_t{policy().sinks});
    if (oldest - first < queries && !holds_window(b, oldest))
      detail::throw_invalid(function, "the query at ", oldest,
                            " needs keys that were overwritten; attend with at most chunk = ", policy().chunk,
                            " queries per call, got ", queries,
                            ", or before its tokens are appended: attention(q, k, v, out, table, {.window = ",
                            policy().window, ", .sinks = ", policy().sinks, "}), then append(k, v, table)");
  }

 private:
  friend class cache_shape<ring_cache<T>>;
  /// check_queries for a row in which positions before `start` were skipped.
  void check_run(const char* function, Index b, Index queries, std::int64_t start) const {
    if (queries > seen(b) - start)
      detail::throw_invalid(function, "row ", b, " has ", seen(b) - start,
                            " tokens since positions were skipped; attend with at most as many queries, got ",
                            queries);
    if (policy().positions != ring_positions::cache) return;
    const auto check_tokens = [&](std::int64_t token, std::int64_t end) {
      for (; token < end; ++token)
        if (!rows().holds_token(b, token))
          detail::throw_invalid(function,
                                "ring_positions::cache needs every key of the window and the sinks, but row ",
                                b, " has no token at position ", token);
    };
    check_tokens(0, (std::min)(seen(b), std::int64_t{policy().sinks}));
    check_tokens((std::max)(std::int64_t{0}, seen(b) - queries + 1 - policy().window), seen(b));
  }
  const detail::cache_memory<T>& memory() const { return tokens_.memory(); }
  const detail::ring_rows& rows() const { return tokens_.rows(); }

  detail::stored_tokens<T, detail::value_place::own, detail::ring_rows, detail::ring_axes> tokens_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_RING_CACHE_HPP
