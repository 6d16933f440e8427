// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_POLICY_HPP
#define ROPE_CACHE_POLICY_HPP

#include <limits>

#include <rope/base/coordinates.hpp>
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// Options of the caches: storage of keys, ring sizes, axes of coordinates.
///
/// Coordinates of new tokens of a cache with axes, for keys that are raw or already rotated.

namespace rope::inline ROPE_ABI {

/// Whether a cache stores keys rotated or raw.
enum class key_storage {
  /// The key is rotated by its position before it is stored. A change of position or table rotates it again,
  /// with one more rounding.
  rotated,
  /// The key is stored unrotated and rotated whenever it is read, by any table. Positions can change freely
  /// and exactly, and a schedule that depends on length (dynamic NTK, LongRoPE) works at every length.
  raw
};

/// The kind of position by which a ring_cache rotates a key.
enum class ring_positions {
  /// The position of its token in the sequence. The table must cover the whole sequence. The result is that
  /// of attention with a sliding window and visible sinks, in less memory.
  sequence,
  /// Its rank among the keys visible to a query, 0 .. sinks + window - 1. Ranks do not grow with the
  /// sequence. Once the window is full, the distance between query and sinks stays constant. Requires raw
  /// keys. Source: Xiao et al. 2023, StreamingLLM, arXiv:2309.17453, section 3.2.
  cache
};

/// The number of tokens that a ring_cache keeps, and their positions.
///
///     ring_cache<float> cache(batch, {.sinks = 4, .window = 1024, .chunk = 512}, kv_heads, head_dim);
struct ring_policy {
  /// The number of tokens at the start of a sequence that are never overwritten (attention sinks).
  Index sinks = 0;
  /// A query sees its own key, the keys at most window - 1 positions before it, and the sinks.
  Index window = 0;
  /// The maximum number of queries in one call of attention, and of tokens that can be rolled back. A row has
  /// chunk - 1 additional slots for them.
  Index chunk = 1;
  /// The kind of position by which keys are rotated.
  ring_positions positions = ring_positions::sequence;
};

namespace detail {

/// The number of slots of a row of a ring.
///
/// Throws:  std::invalid_argument if an extent is out of range, or ring_positions::cache is combined with
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

}  // namespace detail

/// The number of coordinates of a token in a kv_cache or ring_cache, such as 3 for (time, height, width). A
/// cache without axes has one integer position per token. Text is a token with the same integer coordinate on
/// every axis.
///
///     kv_cache<float> cache(batch, capacity, kv_heads, head_dim, token_axes{3});
///     const auto prompt = qwen_vl_positions(runs, cache.next_positions()[0]);
///     const frequency_table<> table(on_axes(schedule, sections), prompt.coordinates);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// Such a table of coordinates has one row per new token. Row t is for token t of every row of the batch, or
/// row b * tokens + t is for token t of row b. One table serves all layers. Attention throws unless the
/// newest tokens are at the coordinates of the table. row_maker::table makes the table of a step in your
/// memory, without an allocation.
///
/// Text needs no table of coordinates. `append` with a table of positions, made from the schedule itself,
/// puts text at next_positions() on all axes. Attention takes the same table if all queries are text. If a
/// pair is rotated along several axes, or coordinates are not integers, text too needs a table of
/// coordinates, made from cache.next_coordinates(). Raw keys are appended by `append_at` with
/// token_coordinates, and attention rotates them by a table of cache.coordinates().
///
///     next position of a row = 1 + the largest coordinate of its tokens on any axis, 0 if there are none
///
/// Evicted tokens count until a rollback (`truncate`, or `remove` of the newest tokens). Other libraries
/// compute this with `rope_deltas`. If a model continues text at another position (VideoRoPE), or keeps an
/// axis at 0 for text (the extra axis of ggml), pass the coordinates of its text.
///
/// Visibility depends on the order of tokens in the row, not on their coordinates: `causal` admits tokens
/// appended before, and `window` counts tokens. The cache remembers the frequencies, the layout and the first
/// channel of its keys, and rejects others. `shift` adds its delta to all coordinates of tokens, and rounds
/// the sums to double. `rebase` rotates each key by the coordinates of its token. Both use only the
/// frequencies of the tables passed to them. A ring with axes stores only rotated keys. The next position in
/// a ring also depends on overwritten tokens.
///
/// Source:  Wang et al. 2024, Qwen2-VL, arXiv:2409.12191, section 2.1; get_rope_index of Hugging Face
///          transformers
struct token_axes {
  Index count;  // at least 1

  /// Throws:  std::invalid_argument unless axes is positive
  explicit token_axes(Index axes) : count(axes) {
    if (axes <= 0) detail::throw_invalid("token_axes", "axes must be positive, got ", axes);
  }
};

/// One row of a batch, for the functions of a cache that change every row by default.
///
///     cache.truncate(5, batch_row{2});
struct batch_row {
  Index index;  // in [0, batch)
  /// Whether to change every row. index is then not read. This is a separate flag so that an invalid index
  /// throws.
  bool every = false;
};
/// Every row of a batch.
inline constexpr batch_row every_row = {0, true};

/// Coordinates of new tokens, one row per token, for keys that are stored raw or are already rotated.
///
///     cache.append_at(k, v, token_coordinates(prompt.coordinates));
///
/// If the cache rotates the keys, pass a table of coordinates instead.
class token_coordinates {
 public:
  /// \param coordinates  an Eigen expression of integers or reals: [tokens, axes] for all rows of the batch,
  ///                     or [batch * tokens, axes] with token t of row b in row b * tokens + t
  ///
  /// Throws:  std::invalid_argument if a coordinate is infinite, NaN or above 2^53 in magnitude
  template <class Derived>
  explicit token_coordinates(const Eigen::DenseBase<Derived>& coordinates)
      : coordinates_(detail::checked_coordinates("token_coordinates", coordinates.cols(), coordinates)) {}

  /// Tokens, or batch * tokens.
  Index rows() const { return coordinates_.rows(); }
  /// Coordinates of a token.
  Index axes() const { return coordinates_.cols(); }
  /// All coordinates, [rows, axes]; valid while this object lives.
  template <class Map = number_array<double>::const_map_type>
  Map coordinates() const {
    return Map(coordinates_.data(), rows(), axes());
  }
  /// One coordinate.  Requires: row in [0, rows), axis in [0, axes)
  double coordinate(Index row, Index axis) const { return coordinates_(row, axis); }

 private:
  number_array<double> coordinates_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_POLICY_HPP
