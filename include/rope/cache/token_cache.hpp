// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_TOKEN_CACHE_HPP
#define ROPE_CACHE_TOKEN_CACHE_HPP

#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention/options.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/newest_tokens.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/stored_tokens.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The functions that kv_cache, latent_cache and ring_cache have in common.

namespace rope::inline ROPE_ABI::detail {

/// The names of a cache and its functions in error messages.
struct cache_names {
  const char *cache, *size, *positions, *order, *ordered, *seen, *next_positions, *coordinates,
      *next_coordinates, *rotation_by, *append, *append_at, *append_rotated, *truncate, *copy_row, *reorder,
      *keys, *values, *rebase, *remove, *evict, *shift, *reserve;
};

}  // namespace rope::inline ROPE_ABI::detail

/// A macro, because only string literals are concatenated.
#define ROPE_DETAIL_CACHE_NAMES(name)                                                                       \
  {                                                                                                         \
    name, name "::size", name "::positions", name "::order", name "::ordered", name "::seen",               \
        name "::next_positions", name "::coordinates", name "::next_coordinates", name "::rotation_by",     \
        name "::append", name "::append_at", name "::append_rotated", name "::truncate", name "::copy_row", \
        name "::reorder", name "::keys", name "::values", name "::rebase", name "::remove", name "::evict", \
        name "::shift", name "::reserve"                                                                    \
  }

namespace rope::inline ROPE_ABI {

/// The base class of kv_cache, latent_cache and ring_cache: one sequence per row of the batch.
///
///     cache.truncate(5, batch_row{2});
///
/// A token of a latent_cache is a latent and its rotated part, [batch, tokens, 1, latent_dim] and [batch,
/// tokens, 1, rotary_dim], in place of k and v. Only the rotated part is rotated; latents keep their bits.
///
/// \tparam Cache        the derived class
/// \tparam T            a channel type, as in kv_cache and latent_cache
/// \tparam place        where values are stored
/// \tparam Rows         assigns slots to tokens
///
/// Invariant: a function that throws leaves the cache unchanged, except as ring_cache says. A moved-from
///            cache is empty.
template <class Cache, class T, detail::value_place place, class Rows>
class token_cache {
  static constexpr bool of_heads = place == detail::value_place::own;

 public:
  using value_type = T;  // a stored channel

  /// The number of rows of the batch.
  Index batch() const { return memory().batch(); }
  /// The number of heads of keys, which is also that of values.
  Index kv_heads() const requires(of_heads) { return memory().keys().heads; }
  /// The number of channels of a key head.
  Index head_dim() const requires(of_heads) { return memory().keys().head_dim; }
  /// The number of channels of a value head.
  Index value_dim() const requires(of_heads) { return memory().values().head_dim; }
  /// The number of tokens that can be stored per row. For a ring: sinks + window + chunk - 1.
  Index capacity() const { return memory().slot_count(); }
  /// Whether keys are stored rotated or raw.
  key_storage storage() const { return tokens_.storage(); }
  /// Whether the rotation of the stored keys is known: by a table of `append` or append_rotated. False for
  /// raw keys and in an empty cache.
  bool rotates_keys() const { return rotation().known(); }
  /// The rotation of the stored keys, to store next to them. It is unknown if rotates_keys() is false.
  key_rotation rotation() const { return tokens_.rotation(); }
  /// The rotation() of a cache whose keys were appended with this table and layout.
  ///
  /// Throws:  std::invalid_argument if tokens have coordinates and the table is of another number of axes,
  ///          given entries or float angles; in a latent_cache, unless the table rotates exactly the rotated
  ///          part
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  key_rotation rotation_by(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("rotation_by", Layout);
    if constexpr (pair_layout<Layout>)
      return tokens_.template rotation_of<Layout>(Cache::names.rotation_by,
                                                  cache().placed(Cache::names.rotation_by, table));
    else
      return {};
  }

  /// Tokens stored in row b.  Throws: std::out_of_range if there is no such row, like all functions of b
  /// below
  Index size(Index b) const { return rows().size(rows().checked(Cache::names.size, b)); }
  /// Positions of the tokens of row b, in the order of keys(b) and values(b); valid until the cache changes.
  /// In a ring, of the token in each slot that was ever used.  Throws: std::out_of_range;
  /// std::invalid_argument if tokens have coordinates
  std::span<const std::int64_t> positions(Index b) const {
    if (tokens_.on_axes())
      detail::throw_invalid(Cache::names.positions, "tokens of this cache have ",
                            tokens_.coordinates().axes(), " axes, ask for their coordinates or order");
    return rows().positions(rows().checked(Cache::names.positions, b));
  }
  /// The positions that decide visibility in attention, in the same order: those of the tokens, or 0, 1, 2,
  /// ... if tokens have coordinates; valid until the cache changes.  Throws: std::out_of_range
  std::span<const std::int64_t> order(Index b) const {
    return rows().positions(rows().checked(Cache::names.order, b));
  }
  /// order(b) of one token, even if a ring has overwritten it.  Throws: std::out_of_range if there is no such
  /// row. Requires: token < seen(b)
  std::int64_t order_of(Index b, std::int64_t token) const {
    return rows().order_of(rows().checked(Cache::names.order, b), token);
  }
  /// Number of tokens appended to row b and not removed since, with those that a ring has overwritten and the
  /// positions that its append_at skipped.  Throws: std::out_of_range
  std::int64_t seen(Index b) const { return rows().seen(rows().checked(Cache::names.seen, b)); }
  /// Returns `options` unchanged, because this cache adds no rules.
  attention_options rules(const char* /*function*/, const attention_options& options) const {
    return options;
  }
  /// The position of the next token of each row, [batch]; valid until the cache changes. New queries are at
  /// `row_starts{cache.next_positions()}`.  Throws: std::invalid_argument if the largest coordinate of a row
  /// is not an integer
  std::span<const std::int64_t> next_positions() const {
    return tokens_.next_positions(Cache::names.next_positions);
  }
  /// The number of the `queries` queries in each row for a call of attention without counts, [batch]. Empty:
  /// all. Valid until the cache changes.  Throws: std::invalid_argument, see attention in attention.hpp
  std::span<const Index> query_counts(Index queries) const { return newest().counts("attention", queries); }
  /// The record from which query_counts is computed.
  const detail::newest_tokens& newest() const { return rows().newest(); }

  /// Number of coordinates of a token, or 0 if it has one position instead.
  Index axes() const requires(of_heads) { return tokens_.coordinates().axes(); }
  /// Coordinates of the tokens of row b, [size(b), axes]; in a ring slot by slot; valid until the cache
  /// changes.  Throws: std::out_of_range
  auto coordinates(Index b) const requires(of_heads) {
    const Index row = rows().checked(Cache::names.coordinates, b);  // before any access to the row
    return detail::coordinate_map<T>(tokens_.coordinates().row(row), rows().used(row), axes());
  }
  /// Coordinates of one token, [axes].  Requires: there is such a row, and it stores the token
  const double* coordinates_of(Index b, std::int64_t token) const requires(of_heads) {
    return tokens_.coordinates().token(b, rows().slot(token));
  }
  /// Coordinates of the next `tokens` tokens of each row if they are text, [batch * tokens, axes].
  ///
  /// Throws:  std::invalid_argument if tokens is negative, std::out_of_range if one would be above 2^53,
  ///          std::length_error if they exceed the address space
  detail::owned_doubles<T> next_coordinates(Index tokens = 1) const requires(of_heads) {
    return tokens_.coordinates().next_coordinates(Cache::names.next_coordinates, tokens);
  }

  /// Appends copies of new tokens.
  ///
  /// \param k        [batch, tokens, kv_heads, head_dim]; unrotated for raw storage, otherwise already
  ///                 rotated. A cache of std::int8_t also takes quantized views: integers and scales are
  ///                 copied without another rounding. In a latent_cache the latent
  /// \param v        [batch, tokens, kv_heads, value_dim]; in a latent_cache the rotated part
  /// \param counts   any integers, [batch]: row b takes its first counts[b] tokens; empty: all of them
  /// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds keys that it rotated itself; std::length_error if the tokens do not fit
  /// Cost:    one copy of k and v
  template <int no_layout = 0, class K, class V, class Threads = this_thread>  // append<Layout> is another
  void append(head_view<K> k, head_view<V> v, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("append", Threads);
    store(Cache::names.append, k, v, detail::unknown_table{}, detail::next_tokens{}, counts, threads);
  }
  /// Rotates copies of new keys by their positions, and appends them. Unless it is empty, the cache rejects
  /// other layouts and tables that rotate differently, in `attention` too. `rebase` changes the table if a
  /// schedule depends on length (dynamic NTK, LongRoPE). A ring has no `rebase`.
  ///
  /// \param k      as above, not rotated
  /// \param table  the table that rotates k, or a normed_table, which normalises the heads first
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, or keys of another, or an
  ///          unknown, table or layout, or the rotated channels exceed the head; std::out_of_range if a
  ///          position is outside the table
  /// Cost:    one rotation of k and one copy of v
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table,
            class Threads = this_thread>
  requires(of_heads || rotation_table<Table>) void append(head_view<K> k, head_view<V> v, const Table& table,
                                                          const detail::row_counts& counts = {},
                                                          const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("append", Layout);
    ROPE_DETAIL_CHECK_THREADS("append", Threads);
    store<Layout>(Cache::names.append, k, v, transform_of(Cache::names.append, table), detail::next_tokens{},
                  counts, threads);
  }

  /// Appends new tokens at the given positions, in any order: prefix reuse, left padding, restarting
  /// positions. Attention uses these positions (with axes: the order of appending): `causal` admits keys at
  /// positions up to and including that of the query, and `window` limits the difference. Left padding and
  /// other sequences in the same row are visible unless a mask hides them. For right padding pass `counts`.
  /// Positions of a ring ascend, see ring_cache.
  ///
  ///     cache.append_at<Layout>(k, v, table, ids);
  ///     attention<Layout>(q, cache, out, table);
  ///
  /// \param positions  as in `rotate`; or token_coordinates for a cache with axes
  ///
  /// Throws:  as above; std::out_of_range unless positions are within 2^53 in magnitude;
  ///          std::invalid_argument unless there is a row of axes() coordinates for every token
  template <int no_layout = 0, class K, class V, detail::place_form P, class Threads = this_thread>
  requires(position_form<P> || (of_heads && std::is_same_v<P, token_coordinates>)) void append_at(
      head_view<K> k, head_view<V> v, const P& positions, const detail::row_counts& counts = {},
      const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("append_at", Threads);
    store(Cache::names.append_at, k, v, detail::unknown_table{}, positions, counts, threads);
  }
  /// Rotates copies of new keys by the given positions, and appends them.  Throws: as above, and as `append`
  /// with a table; std::invalid_argument if positions equal the coordinates that the table was made of
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table, position_form P,
            class Threads = this_thread>
  requires(of_heads || rotation_table<Table>) void append_at(head_view<K> k, head_view<V> v,
                                                             const Table& table, const P& positions,
                                                             const detail::row_counts& counts = {},
                                                             const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("append_at", Layout);
    ROPE_DETAIL_CHECK_THREADS("append_at", Threads);
    store<Layout>(Cache::names.append_at, k, v, transform_of(Cache::names.append_at, table), positions,
                  counts, threads);
  }

  /// Appends copies of keys that `table` rotated before: saved to disk, in another cache or on another
  /// machine. The cache then treats them as keys that it rotated: `append`, `attention`, `shift` and `rebase`
  /// work. Save the tokens of a ring in the order of their positions, not of their slots.
  ///
  ///     restored.append_rotated<Layout>(keys, values, table, positions);
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
  template <class Layout = detail::unnamed_layout, class K, class V, rotation_table Table,
            detail::place_form P = detail::next_tokens, class Threads = this_thread>
  requires(of_heads || !std::is_same_v<P, token_coordinates>) void append_rotated(
      head_view<K> k, head_view<V> v, const Table& table, const P& positions = {},
      const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("append_rotated", Layout);
    ROPE_DETAIL_CHECK_THREADS("append_rotated", Threads);
    const auto rotation = cache().placed(Cache::names.append_rotated, table);
    store<Layout>(Cache::names.append_rotated, k, v,
                  detail::key_transform<typename Table::scalar, detail::copied_keys>{rotation, {}}, positions,
                  counts, threads);
  }
  ROPE_DETAIL_ASK_FOR_TOKENS(append, (detail::misplaced_in_append<place, Arguments...>()),
                             "after both views pass the table if the cache rotates keys, then counts (any "
                             "integers, [batch], or {}), then the threads");
  ROPE_DETAIL_ASK_FOR_TOKENS(append_at, (detail::misplaced_in_append_at<place, Arguments...>()),
                             "after both views pass the table if the cache rotates keys, then positions "
                             "(a start, a list of ids, row_starts, segments or, for heads without a table, "
                             "token_coordinates), then counts (any integers, [batch], or {}), then the "
                             "threads");
  ROPE_DETAIL_ASK_FOR_LAYOUT_TYPE(append_rotated, "append_rotated");
  ROPE_DETAIL_REFUSE(append_rotated, , (detail::lacks_view<2, Arguments...>()),
                     ROPE_DETAIL_VIEW_SENTENCE("append_rotated"));
  ROPE_DETAIL_REFUSE(
      append_rotated, ,
      (!detail::lacks_view<2, Arguments...>() && detail::misplaced_in_append_rotated<Arguments...>()),
      "append_rotated: after both views pass the table that rotated the keys, then positions or {}, then "
      "counts (any integers, [batch], or {}), then the threads");
  ROPE_DETAIL_REFUSE(check_table, const, (detail::lacks_tables<Arguments...>(1)),
                     ROPE_DETAIL_TABLE_SENTENCE("check_table"));

  /// Checks that the stored keys, unless they are raw, were rotated in this layout by a table that rotates
  /// like this one.  Throws: std::invalid_argument if not
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  void check_table(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("check_table", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template check_table<Layout>(cache().placed(Cache::names.cache, table));
  }
  /// The table at the channel at which it rotates a stored key: unchanged.
  template <class Table>
  auto placed(const char* /*function*/, const Table& table) const {
    return detail::placed(table);
  }

  /// Removes every token from `size` on: the rollback of speculative decoding. If a token goes, the next
  /// position is one more than the largest that remains. truncate(0) starts at 0 again, also in a row whose
  /// tokens were all evicted. In a ring, `size` is a position, see ring_cache.
  ///
  /// Throws:  in a ring, see ring_cache; otherwise std::out_of_range unless 0 <= size <= size(), and
  ///          std::invalid_argument if row is every_row and rows differ in size, as do all functions with a
  ///          batch_row
  void truncate(std::int64_t size, batch_row row = every_row) {
    tokens_.truncate(Cache::names.truncate, size, row);
  }

  /// Makes row `to` a copy of row `from`, including positions, for several continuations of one prompt.
  ///
  ///     cache.copy_row(0, 2);
  ///
  /// Throws:  std::out_of_range if there is no such row
  void copy_row(Index from, Index to) { copy_row(*this, from, to); }
  /// Makes row `to` a copy of row `from` of another cache, including positions, so that a prompt which was
  /// processed alone joins a batch. int8 keys and values are copied with their scales, without another
  /// rounding.
  ///
  ///     cache.copy_row(prefilled, 0, 2);
  ///
  /// If rows then have tokens of different calls, the next attention before another `append` needs counts.
  ///
  /// Throws:  std::out_of_range if there is no such row, std::invalid_argument if the caches differ in the
  ///          shape of heads, storage(), axes or policy, or other rows store keys of another rotation;
  ///          std::length_error if the tokens do not fit
  /// Cost:    one copy of the tokens of the row
  void copy_row(const token_cache& other, Index from, Index to) {
    tokens_.copy_row(Cache::names.copy_row, other.tokens_, from, to);
  }
  /// Makes every row b a copy of row rows[b] before the call, including positions, for beam search: some
  /// beams continue more than once and others end.
  ///
  ///     const int parents[] = {1, 1, 0};
  ///     cache.reorder(parents);
  ///
  /// \param rows  any integers, [batch]
  ///
  /// Throws:  std::invalid_argument unless `rows` has an entry for every row, std::out_of_range if an entry
  ///          is not a row
  /// Cost:    one copy, or one swap, of every row that changes
  void reorder(const detail::row_list& rows) { tokens_.reorder(Cache::names.reorder, rows); }
  /// Removes every token. The capacity does not change.
  void clear() { tokens_.clear(); }

  /// Stored keys of row b, [1, size(b), kv_heads, head_dim]; valid until the cache changes. In a ring, the
  /// slots that were ever used. For a latent_cache, each key is a latent followed by its rotated part, [1,
  /// size(b), 1, latent_dim + rotary_dim].  Throws: std::out_of_range
  head_view<const T> keys(Index b) const {
    const Index row = rows().checked(Cache::names.keys, b);
    return memory().keys().batch_range(row, 1).token_range(0, rows().used(row));
  }
  /// Stored values of the same tokens, [1, size(b), kv_heads, value_dim]. For a latent_cache, the latents, in
  /// the memory of the keys.  Throws: std::out_of_range
  head_view<const T> values(Index b) const {
    const Index row = rows().checked(Cache::names.values, b);
    return memory().values().batch_range(row, 1).token_range(0, rows().used(row));
  }

 protected:
  /// A cache for `batch` rows of the given shape.
  template <class... Shape>
  explicit token_cache(Index batch, const Shape&... shape) : tokens_(Cache::names.cache, batch, shape...) {}
  token_cache(const token_cache&) = default;
  token_cache(token_cache&&) = default;
  token_cache& operator=(const token_cache& other) { return *this = token_cache(other); }  // all or nothing
  token_cache& operator=(token_cache&&) = default;

  /// The memory of keys and values.
  const auto& memory() const { return tokens_.memory(); }
  /// The slots and positions of the tokens.
  const Rows& rows() const { return tokens_.rows(); }
  /// The derived class.
  const Cache& cache() const { return static_cast<const Cache&>(*this); }

  detail::stored_tokens<T, place, Rows> tokens_;  // keys, values, and the positions and slots of tokens

 private:
  /// Stores new tokens. Caches of heads take keys, then values. A latent_cache takes latents, which are its
  /// values, then the rotated parts of keys.
  template <class Layout = detail::unnamed_layout, class A, class B, class Keys, class P, class Threads>
  void store(const char* function, const head_view<A>& first, const head_view<B>& second, const Keys& keys,
             const P& positions, const detail::row_counts& counts, const Threads& threads) {
    const head_view<const std::remove_const_t<A>> a = first;
    const head_view<const std::remove_const_t<B>> b = second;
    const auto& at = [&]() -> decltype(auto) {
      if constexpr (position_form<P>)
        return detail::position_source(positions, first.tokens);
      else
        return (positions);
    }();
    if constexpr (!pair_layout<Layout> && !std::is_same_v<Keys, detail::unknown_table>)
      return;  // the caller reports the missing layout
    else if constexpr (of_heads)
      tokens_.template store<Layout>(function, a, b, keys, at, counts, threads);
    else
      tokens_.template store<Layout>(function, b, a, keys, at, counts, threads);
  }
  template <class Table>
  auto transform_of(const char* function, const Table& table) const {
    if constexpr (rotation_table<Table>)
      return detail::key_transform_of(cache().placed(function, table));
    else
      return detail::key_transform_of(table);
  }
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_TOKEN_CACHE_HPP
