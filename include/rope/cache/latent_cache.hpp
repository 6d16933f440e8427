// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_LATENT_CACHE_HPP
#define ROPE_CACHE_LATENT_CACHE_HPP

#include <limits>
#include <type_traits>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/cache/detail/cache_memory.hpp>  // value_place
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/growing_cache.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// A cache for multi-head latent attention (MLA): one latent and one rotated part per token.

namespace rope::inline ROPE_ABI {

namespace detail {

/// Throws:  std::invalid_argument if a width is negative, std::length_error if their sum overflows an Index
inline Index latent_width(Index latent_dim, Index rotary_dim) {
  if (latent_dim < 0 || rotary_dim < 0)
    throw_invalid("latent_cache", "latent_dim and rotary_dim must not be negative, got ", latent_dim, " and ",
                  rotary_dim);
  if (latent_dim > (std::numeric_limits<Index>::max)() - rotary_dim)
    throw_length("latent_cache", "", latent_dim, " + ", rotary_dim, " channels exceed the address space");
  return latent_dim + rotary_dim;
}

/// The table at the first channel after the latent, where the rotated part begins. A table that is already
/// placed must be placed there.
///
/// Throws:  std::invalid_argument unless it rotates exactly the rotated part
template <class S>
placed_table<S> behind_latent(const char* function, const placed_table<S>& table, Index latent_dim,
                              Index rotary_dim) {
  if (table.first_channel() != latent_dim || table.table().rotary_dim() != rotary_dim)
    throw_invalid(function, "the table must rotate the ", rotary_dim, " channels from channel ", latent_dim,
                  " on, which are the rotated part, got one of ", table.table().rotary_dim(),
                  " channels from channel ", table.first_channel(), " on");
  return table;
}
template <class S>
placed_table<S> behind_latent(const char* function, const frequency_table<S>& table, Index latent_dim,
                              Index rotary_dim) {
  return behind_latent(function, table.at_channel(latent_dim), latent_dim, rotary_dim);
}

}  // namespace detail

/// A fixed-capacity cache for multi-head latent attention, one growing sequence per row of the batch. A token
/// is stored as one latent c of `latent_dim` channels and one part of `rotary_dim` channels that is rotated
/// by its position. Every head computes its keys and values from these two. Memory is [batch, 1, capacity,
/// latent_dim + rotary_dim]: to attention, one key head whose values are the first channels of its keys.
///
/// In decoding, the projections from latents to keys and values are absorbed into queries and outputs. With
/// k_h = [U_h c ; r] and v_h = V_h c for head h and the shared rotated part r,
///
///     q_absorbed_h = [U_h^T q_h ; the rotated part of q_h],         output of head h = V_h out_h
///
/// You compute these two products, and attention (attention.hpp) does the rest:
///
///     latent_cache<float> cache(batch, capacity, latent_dim, rotary_dim);
///     cache.append<Layout>(latent, rotated_part, table);
///     attention<Layout>(q_absorbed, cache, out, table, {.scale = 1 / std::sqrt(expanded_dim)});
///
/// A prompt is cheaper with expanded keys: head_dim + value_dim products per query head and key, instead of 2
/// latent_dim + rotary_dim. Compute k_h and v_h yourself, [batch, tokens, heads, ...], with r after U_h c in
/// every head of k, and place the table at the first channel of r:
///
///     attention<Layout>(q, k, v, expanded_out, table.at_channel(unrotated_dim));
///
/// A table passed to its functions rotates the rotated part, whether or not it is placed at latent_dim.
/// growing_cache.hpp has the functions on stored tokens: size, keys, truncate, remove, shift, ...
///
/// \tparam T  a channel type. 16-bit caches also take float latents and parts, rounded once
///
/// Invariant: tokens [0, size(b)) of row b are written, the rest is indeterminate and never visible. A
///            function that throws leaves the cache unchanged. A moved-from cache is empty.
/// Source:    DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1
template <class T>
class latent_cache : public growing_cache<latent_cache<T>, T, detail::value_place::in_keys> {
  using base = growing_cache<latent_cache<T>, T, detail::value_place::in_keys>;

 public:
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if memory cannot hold it
  latent_cache(Index batch, Index capacity, Index latent_dim, Index rotary_dim,
               key_storage storage = key_storage::rotated)
      : base(batch, capacity, 1, detail::latent_width(latent_dim, rotary_dim), latent_dim, storage) {}

  /// Rows of the batch.
  Index batch() const { return tokens_.memory().batch(); }
  /// Channels of a latent.
  Index latent_dim() const { return tokens_.memory().first_new_channel(); }
  /// Channels of a rotated part.
  Index rotary_dim() const { return tokens_.memory().keys().head_dim - latent_dim(); }
  /// Appends copies of new tokens. As in kv_cache, a cache that rotated its parts rejects parts that were
  /// rotated elsewhere.
  ///
  /// \param latent        [batch, tokens, 1, latent_dim]
  /// \param rotated_part  [batch, tokens, 1, rotary_dim]; unrotated for raw storage, otherwise already
  ///                      rotated
  /// \param counts        as in kv_cache
  /// \param threads       your threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds parts that it rotated itself; std::length_error if the tokens do not fit
  /// Cost:    one copy of latents and parts
  template <int no_layout = 0, class L, class R, class Threads = this_thread>
  void append(head_view<L> latent, head_view<R> rotated_part, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("latent_cache::append", Threads);
    tokens_.store("latent_cache::append", rotated_part, latent,
                  tokens_.next_source("latent_cache::append", latent.tokens), counts, threads);
  }

  /// Appends copies of latents, and of parts rotated by their positions. Until it is empty again, the cache
  /// rejects other layouts and tables that rotate differently.
  ///
  /// \param rotated_part  [batch, tokens, 1, rotary_dim], not rotated
  ///
  /// Throws:  as above; std::invalid_argument unless the table rotates exactly the rotated part, or if the
  ///          cache stores raw parts, or parts of another, or an unknown, table or layout; std::out_of_range
  ///          if a position is outside the table
  /// Cost:    one copy of latents and one rotation of parts
  template <class Layout = detail::unnamed_layout, class L, class R, rotation_table Table,
            class Threads = this_thread>
  void append(head_view<L> latent, head_view<R> rotated_part, const Table& table,
              const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("latent_cache::append", Layout);
    ROPE_DETAIL_CHECK_THREADS("latent_cache::append", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_rotated<Layout>("latent_cache", "latent_cache::append", rotated_part, latent,
                                             detail::key_transform_of(placed("latent_cache::append", table)),
                                             tokens_.next_source("latent_cache::append", latent.tokens),
                                             counts, threads);
  }

  /// Appends new tokens at the given positions, in any order, as in kv_cache.
  ///
  /// Throws:  as above; std::out_of_range unless positions are within 2^53 in magnitude
  template <int no_layout = 0, class L, class R, position_form P, class Threads = this_thread>
  void append_at(head_view<L> latent, head_view<R> rotated_part, const P& positions,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("latent_cache::append_at", Threads);
    tokens_.store("latent_cache::append_at", rotated_part, latent,
                  detail::position_source(positions, latent.tokens), counts, threads);
  }
  /// Rotates copies of the parts by the given positions, and appends.  Throws: as above, and as `append` with
  /// a table
  template <class Layout = detail::unnamed_layout, class L, class R, rotation_table Table, position_form P,
            class Threads = this_thread>
  void append_at(head_view<L> latent, head_view<R> rotated_part, const Table& table, const P& positions,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("latent_cache::append_at", Layout);
    ROPE_DETAIL_CHECK_THREADS("latent_cache::append_at", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_rotated<Layout>(
          "latent_cache", "latent_cache::append_at", rotated_part, latent,
          detail::key_transform_of(placed("latent_cache::append_at", table)),
          detail::position_source(positions, latent.tokens), counts, threads);
  }

  /// Appends copies of latents, and of parts that `table` rotated before: saved to disk, in another cache or
  /// on another machine. The cache then treats them as parts that it rotated, as in kv_cache.
  ///
  /// \param rotated_part  [batch, tokens, 1, rotary_dim]
  /// \param table         the table that rotated them; it is not applied again
  /// \param positions     as in append_at; `{}`: the next positions
  ///
  /// Throws:  as append_at; std::invalid_argument unless the table rotates exactly the rotated part, or if
  ///          the cache stores raw parts, or parts of another, or an unknown, table or layout
  /// Cost:    one copy of latents and parts
  template <class Layout = detail::unnamed_layout, class L, class R, rotation_table Table,
            detail::place_form P = detail::next_tokens, class Threads = this_thread>
  requires(!std::is_same_v<P, token_coordinates>) void append_rotated(
      head_view<L> latent, head_view<R> rotated_part, const Table& table, const P& positions = {},
      const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("latent_cache::append_rotated", Layout);
    ROPE_DETAIL_CHECK_THREADS("latent_cache::append_rotated", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_as_rotated<Layout>("latent_cache", "latent_cache::append_rotated", rotated_part,
                                                latent, placed("latent_cache::append_rotated", table),
                                                detail::place_source(positions, latent.tokens), counts,
                                                threads);
  }
  /// The table at the channel at which it rotates a stored key: the first after the latent.
  ///
  /// Throws:  std::invalid_argument unless it rotates exactly the rotated part
  template <class Table>
  auto placed(const char* function, const Table& table) const {
    return detail::behind_latent(function, table, latent_dim(), rotary_dim());
  }
  /// Returns `options` for attention, after a check of the scale.
  ///
  /// Throws:  std::invalid_argument if scale is 0
  attention_options rules(const char* function, const attention_options& options) const {
    if (detail::equal(options.scale, 0))
      detail::throw_invalid(function,
                            "a latent_cache needs a scale, 1 / sqrt(head_dim) of the expanded heads, which "
                            "it does not know, got 0");
    return options;
  }
  ROPE_DETAIL_ASK_FOR_APPEND("latent_cache", latents);
  ROPE_DETAIL_ASK_FOR_APPEND_AT("latent_cache", latents);
  ROPE_DETAIL_ASK_FOR_APPEND_ROTATED("latent_cache");

 private:
  friend base;
  static constexpr detail::cache_names names = ROPE_DETAIL_CACHE_NAMES("latent_cache");
  using base::tokens_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_LATENT_CACHE_HPP
