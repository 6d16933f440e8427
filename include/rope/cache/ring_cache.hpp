// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_RING_CACHE_HPP
#define ROPE_CACHE_RING_CACHE_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>
#include <span>
#include <string>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/cache/attended_rows.hpp>       // no_token
#include <rope/cache/detail/call_checks.hpp>  // value_place
#include <rope/cache/detail/ring_rows.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/token_cache.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>

/// A cache for attention with a sliding window, in memory that does not grow.

namespace rope::inline ROPE_ABI {

/// A cache in which the newest token overwrites the oldest token that is not a sink. Token i of a sequence is
/// in slot
///
///     i                                   for i < sinks
///     sinks + (i - sinks) mod (slots - sinks)    otherwise,       slots = sinks + window + chunk - 1
///
/// so keys are out of order in memory. Attention (attention.hpp) uses their positions. token_cache.hpp has
/// the functions of all caches: append, append_at, size, keys, truncate, ...
///
///     ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// `append` copies no token that the same call would overwrite. A prompt longer than `chunk` takes two calls
/// and an empty ring, because the first call reads no key of the ring:
///
///     attention<Layout>(q, k, v, out, table, {.window = 1024, .sinks = 4});  // those of the ring
///     cache.append<Layout>(k, v, table);
///
/// If the ring has tokens, append and attend in pieces of at most `chunk` tokens.
///
/// `append_at` is for a ring that is restored or that starts at token n. Positions of a row ascend, from
/// next_positions() or a later position on. Earlier ones throw std::invalid_argument. Skipped positions have
/// no token: attention works without them, and `truncate` returns to none of them. A row that starts at or
/// after `sinks` has no sinks. With axes, positions are coordinates on all axes, and tokens follow the
/// earlier ones.
///
///     ring.append_at<Layout>(k, v, table, 1000);
///
/// `truncate(size)` removes the tokens at positions `size` and later. Overwritten tokens do not come back, so
/// at most `chunk` tokens can be removed once all slots are used. It throws std::out_of_range unless 0 <=
/// size <= seen() and every token visible to the next query is still held, and with axes also token size - 1;
/// after skipped positions, if size is before the token that follows them, and not 0, or at that token once
/// it was overwritten.
///
/// \tparam T  a channel type, or std::int8_t, as in kv_cache. 16-bit caches also take float keys and values,
///            rounded once
///
/// Invariant: of the n tokens appended to row b, the sinks and tokens [oldest, n) are stored, with sinks <=
///            oldest <= max(sinks, n + 1 - window), so all keys visible to the next query are stored.
///            Positions that append_at skipped have no token. A function that throws leaves the cache
///            unchanged, except if your threads fail or memory runs out while tokens are overwritten: the
///            cache is then empty.
template <class T>
class ring_cache : public token_cache<ring_cache<T>, T, detail::value_place::own, detail::ring_rows> {
  using base = token_cache<ring_cache<T>, T, detail::value_place::own, detail::ring_rows>;

 public:
  /// The value in `positions` for a slot without a token, because it was rolled back or skipped: greater than
  /// every position.
  static constexpr std::int64_t no_position = no_token;
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, the window or the chunk is not positive, or
  ///          ring_positions::cache is combined with rotated keys; std::length_error if the cache exceeds the
  ///          address space
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, Index value_dim = 0,
             key_storage storage = key_storage::rotated)
      : base(batch, detail::checked_slots(policy, storage), kv_heads, head_dim,
             value_dim == 0 ? head_dim : value_dim, storage, policy) {}
  /// A cache of tokens with several coordinates, whose keys are stored rotated.  Throws: as above
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, token_axes axes,
             Index value_dim = 0)
      : ring_cache(batch, policy, kv_heads, head_dim, value_dim) {
    base::tokens_.put_on_axes(axes);
  }

  /// The policy passed to the constructor.
  const ring_policy& policy() const { return rows().policy(); }
  /// One more than the position of the newest token of each row, [batch]: the number of tokens appended and
  /// not rolled back, and of positions that append_at skipped.
  std::span<const std::int64_t> seen() const { return rows().next(); }
  using base::seen;
  /// The slot of the token at `position` of a sequence.  Throws: std::out_of_range if it is negative
  Index slot(std::int64_t position) const {
    rows().check_position("ring_cache::slot", position);
    return rows().slot(position);
  }

  /// Whether every key visible to a query at `position` of row b is still stored, including its own if
  /// already appended. False for positions before skipped ones once a later token was overwritten.  Throws:
  /// std::out_of_range if there is no such row, or position is negative
  bool holds_window(Index b, std::int64_t position) const {
    rows().checked("ring_cache::holds_window", b);
    rows().check_position("ring_cache::holds_window", position);
    const std::int64_t end = detail::advance(position, 1);
    return rows().holds(b, end - policy().window, end);
  }

  /// Returns `options` for attention, with the window and the sinks of the ring.
  ///
  /// Throws:  std::invalid_argument if causal is false, window or sinks differ from the ring's, or there is a
  ///          bias, a mask, key_ranges or selected keys
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
    const auto refuse = [function](const char* what, const char* pronoun, const auto&... given) {
      detail::throw_invalid(function, "a ring_cache overwrites old keys, so ", what,
                            " cannot be matched to keys; use a kv_cache, or leave ", pronoun, " empty, got ",
                            given...);
    };
    if (options.bias || options.mask) refuse("a bias or a mask", "it", "a ", options.bias ? "bias" : "mask");
    if (!options.key_ranges.empty()) refuse("key_ranges", "them", options.key_ranges.size());
    if (options.selected) refuse("selected", "it", "lists of ", options.selected.queries(), " queries");
    attention_options completed = options;
    completed.window = policy().window;
    completed.sinks = policy().sinks;
    return completed;
  }
  /// Throws:  std::invalid_argument if a key visible to one of the newest `queries` tokens of row b was
  ///          overwritten, if the position of one of these tokens was skipped or, with ring_positions::cache,
  ///          if a position visible to them was skipped; std::out_of_range if there is no such row
  void check_queries(const char* function, Index b, Index queries) const {
    const std::int64_t start = rows().run_start(rows().checked(function, b));  // after skipped positions
    if (start > 0 && queries > seen(b) - start)
      detail::throw_invalid(function, "row ", b, " has ", seen(b) - start,
                            " tokens since positions were skipped; attend with at most as many queries, got ",
                            queries);
    const auto check_tokens = [&](std::int64_t token, std::int64_t end) {
      for (; token < end; ++token)
        if (!rows().holds_token(b, token))
          detail::throw_invalid(function,
                                "ring_positions::cache needs every key of the window and the sinks, but row ",
                                b, " has no token at position ", token);
    };
    if (start > 0 && policy().positions == ring_positions::cache) {
      check_tokens(0, (std::min)(seen(b), std::int64_t{policy().sinks}));
      check_tokens((std::max)(std::int64_t{0}, seen(b) - queries + 1 - policy().window), seen(b));
    }
    // Sinks are never overwritten. Of the other keys, the first query needs the oldest ones.
    const std::int64_t first = seen(b) - queries, oldest = (std::max)(first, std::int64_t{policy().sinks});
    if (oldest - first >= queries || holds_window(b, oldest)) return;
    std::string for_prompts;
    if (first == 0)
      for_prompts =
          "; for the prompt of an empty ring, call attention(q, k, v, out, table, "
          "{.window = " +
          std::to_string(policy().window) + ", .sinks = " + std::to_string(policy().sinks) +
          "}), then append(k, v, table)";
    detail::throw_invalid(function, "the query at ", oldest,
                          " needs keys that were overwritten; append and attend to at most chunk = ",
                          policy().chunk, " tokens per call, got ", queries, for_prompts);
  }

  static constexpr detail::cache_names names = ROPE_DETAIL_CACHE_NAMES("ring_cache");  // in messages

 private:
  using base::rows;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_RING_CACHE_HPP
