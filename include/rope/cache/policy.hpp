// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_POLICY_HPP
#define ROPE_CACHE_POLICY_HPP

#include <limits>

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// The choices that the caches of keys and values offer.

namespace rope::inline ROPE_ABI {

/// What a cache stores of a key.
enum class key_storage {
  /// The key rotated by its position: read as it is. A change of position or table turns it once more, which
  /// costs a rounding.
  rotated,
  /// The key before its rotation: rotated whenever it is read, by any table. Positions can change freely and
  /// exactly, and a schedule that depends on length (dynamic NTK, LongRoPE) can be read at every length.
  raw
};

/// Which position a key of a ring_cache is rotated by.
enum class ring_positions {
  /// The one it has in the sequence. The table must cover the whole sequence. This is attention with a
  /// sliding window and visible sinks, computed with less memory.
  sequence,
  /// Its rank among the keys a query sees: 0 .. sinks + window - 1, however long the sequence becomes. Sinks
  /// stay at the distance from the query they had when the window filled up. Needs raw keys. Source: Xiao et
  /// al. 2023, StreamingLLM, arXiv:2309.17453, section 3.2.
  cache
};

/// How many tokens a ring_cache keeps, and how it counts them.
///
///     ring_cache<float> cache(batch, {.sinks = 4, .window = 1024, .chunk = 512}, kv_heads, head_dim);
struct ring_policy {
  /// The first tokens of a sequence that are never overwritten (attention sinks).
  Index sinks = 0;
  /// A query sees the keys at most window - 1 positions before it, its own included, and the sinks.
  Index window = 0;
  /// The most tokens that are attended to in one call, or rolled back. Each beyond the first costs a slot.
  Index chunk = 1;
  /// Which position a key is rotated by.
  ring_positions positions = ring_positions::sequence;
};

namespace detail {

/// Slots of a row of a ring.
///
/// Throws:  std::invalid_argument if an extent is out of range, or positions in the cache are asked of
///          rotated keys
inline Index checked_slots(const ring_policy& policy, key_storage storage) {
  constexpr Index limit = (std::numeric_limits<Index>::max)() / 4;
  if (policy.sinks < 0 || policy.window <= 0 || policy.chunk <= 0 || policy.sinks > limit ||
      policy.window > limit || policy.chunk > limit)
    throw_invalid("ring_cache", "sinks must not be negative, window and chunk be positive, none above a ",
                  "quarter of the largest Index, got ", policy.sinks, ", ", policy.window, " and ",
                  policy.chunk);
  if (policy.positions == ring_positions::cache && storage != key_storage::raw)
    throw_invalid("ring_cache",
                  "positions in the cache change with every token and need raw keys, got rotated ones");
  return policy.sinks + policy.window + policy.chunk - 1;
}

[[noreturn]] inline void refuse_positions_on_axes(const char* function, Index axes) {
  throw_invalid(function, "tokens of this cache have ", axes, " axes, ask for their coordinates or order");
}

}  // namespace detail

/// How many coordinates a token of a kv_cache or ring_cache has, such as (time, height, width). A cache
/// without axes has one integer position per token.
///
///     kv_cache<float> cache(batch, capacity, kv_heads, head_dim, token_axes{3});
///     const auto prompt = qwen_vl_positions(runs, cache.next_positions()[0]);
///     const frequency_table<> table(on_axes(schedule, sections), prompt.coordinates);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// The rows of such a table are the new tokens: row t is token t of every row of the batch, or row b * tokens
/// + t that of row b. One table serves all layers; attention refuses it unless the newest tokens are at its
/// coordinates. row_maker::table makes the table of a step in memory of the caller's, without an allocation.
///
/// Text needs no table of coordinates: `append` with a table of positions, of the schedule itself, puts it on
/// next_positions() on all axes, and attention takes that table for queries which are text. Where a pair
/// turns along several axes, or coordinates are no integers, text too takes a table of coordinates, of
/// cache.next_coordinates(). Raw keys, which `append_at` takes with token_coordinates, are read by a table of
/// cache.coordinates().
///
///     next position of a row = 1 + the largest coordinate of its tokens on any axis, 0 in an empty row
///
/// which is what `rope_deltas` are for elsewhere. A model that goes on at another one (VideoRoPE), or keeps
/// an axis at 0 for text (the extra one of ggml), gives the coordinates of its text.
///
/// Tokens see each other by their order in the row, whatever their coordinates: `causal` admits those
/// appended before, `window` counts tokens. The cache belongs to the frequencies, the layout and the place
/// in the head, and refuses others. `shift` adds to all coordinates of tokens, which are rounded to doubles,
/// `rebase` goes by them, and of the tables that both take, only the frequencies matter. A ring keeps
/// rotated keys only, and goes on behind tokens that it has overwritten as well.
///
/// Source:  Wang et al. 2024, Qwen2-VL, arXiv:2409.12191, section 2.1; get_rope_index of Hugging Face
///          transformers
struct token_axes {
  Index count;  // at least 1

  /// Throws:  std::invalid_argument unless there is an axis
  explicit token_axes(Index axes) : count(axes) {
    if (axes <= 0) detail::throw_invalid("token_axes", "axes must be positive, got ", axes);
  }
};

/// One row of a batch, for the functions of a cache that otherwise change every row.
///
///     cache.truncate(5, batch_row{2});
struct batch_row {
  Index index;  // in [0, batch)
  /// Whether every row is meant; index is then not read. No index means every row, so a wrong one is refused.
  bool every = false;
};
/// Every row of a batch.
inline constexpr batch_row every_row = {0, true};

/// The extents of kv_cache and ring_cache, whose base it is.
///
///     const Index channels = cache.kv_heads() * (cache.head_dim() + cache.value_dim());  // of a token
///
/// \tparam Cache  the class that derives from this one
template <class Cache>
class cache_shape {
 public:
  /// Rows of the batch.
  Index batch() const { return memory().batch(); }
  /// Heads of keys and values.
  Index kv_heads() const { return memory().keys().heads; }
  /// Channels of a key head.
  Index head_dim() const { return memory().keys().head_dim; }
  /// Channels of a value head.
  Index value_dim() const { return memory().values().head_dim; }

 private:
  friend Cache;
  cache_shape() = default;
  const auto& memory() const { return static_cast<const Cache&>(*this).memory(); }
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_POLICY_HPP
