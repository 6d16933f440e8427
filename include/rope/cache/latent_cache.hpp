// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_LATENT_CACHE_HPP
#define ROPE_CACHE_LATENT_CACHE_HPP

#include <limits>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/cache/detail/call_checks.hpp>  // value_place
#include <rope/cache/growing_cache.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/token_cache.hpp>
#include <rope/config.hpp>
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

}  // namespace detail

/// A fixed-capacity cache for multi-head latent attention, one growing sequence per row of the batch. A token
/// is stored as one latent c of `latent_dim` channels and one part of `rotary_dim` channels, which is rotated
/// by the position of the token. Every head computes its keys and values from these two. Memory is [batch, 1,
/// capacity, latent_dim + rotary_dim]. Attention reads it as one key head, whose values are the first
/// channels of its keys.
///
/// In decoding, the projections from latents to keys and values are absorbed into queries and outputs. Head h
/// has the projections U_h and V_h, and all heads share the rotated part r. With k_h = [U_h c ; r] and v_h =
/// V_h c,
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
/// A table passed to its functions rotates the rotated part. It is unplaced, or placed at latent_dim.
/// token_cache.hpp has the functions of all caches: append, append_at, size, keys, truncate, ...;
/// growing_cache.hpp those of a cache that grows: remove, evict, shift, rebase, ... Their k is the latent and
/// their v the rotated part.
///
/// \tparam T  a channel type. 16-bit caches also take float latents and parts, and round them once
///
/// Invariant: tokens [0, size(b)) of row b are written. The rest of the row is indeterminate and never
///            visible. A function that throws leaves the cache unchanged. A moved-from cache is empty.
/// Source:    DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1
template <class T>
class latent_cache : public growing_cache<latent_cache<T>, T, detail::value_place::in_keys> {
  using base = growing_cache<latent_cache<T>, T, detail::value_place::in_keys>;

 public:
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if memory cannot hold it
  latent_cache(Index batch, Index capacity, Index latent_dim, Index rotary_dim,
               key_storage storage = key_storage::rotated)
      : base(batch, capacity, 1, detail::latent_width(latent_dim, rotary_dim), latent_dim, storage) {}

  /// The number of channels of a latent.
  Index latent_dim() const { return base::memory().first_new_channel(); }
  /// The number of channels of a rotated part.
  Index rotary_dim() const { return base::memory().keys().head_dim - latent_dim(); }
  /// The table, placed at the first channel after the latent, where the rotated part begins. A table that is
  /// already placed must be placed at this channel.
  ///
  /// Throws:  std::invalid_argument unless the table rotates exactly the channels of the rotated part
  template <class S>
  placed_table<S> placed(const char* function, const placed_table<S>& table) const {
    if (table.first_channel() != latent_dim() || table.table().rotary_dim() != rotary_dim())
      detail::throw_invalid(function, "the table must rotate the ", rotary_dim(), " channels from channel ",
                            latent_dim(), " on, which are the rotated part, got one of ",
                            table.table().rotary_dim(), " channels from channel ", table.first_channel(),
                            " on");
    return table;
  }
  template <class S>
  placed_table<S> placed(const char* function, const frequency_table<S>& table) const {
    return placed(function, table.at_channel(latent_dim()));
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

  static constexpr detail::cache_names names = ROPE_DETAIL_CACHE_NAMES("latent_cache");  // in messages
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_LATENT_CACHE_HPP
