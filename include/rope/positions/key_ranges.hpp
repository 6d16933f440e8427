// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_KEY_RANGES_HPP
#define ROPE_POSITIONS_KEY_RANGES_HPP

#include <algorithm>  // std::min, std::max
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>

/// Masks by rule: the range of keys that each query attends to, for attention_options::key_ranges. A list of
/// ranges has two numbers per query where a mask has one per query and key, and attention skips the keys
/// outside.
///
///     const auto ranges = prefix_ranges(prefix, {.queries = tokens, .keys = tokens});
///     attention(q, k, v, out, {.key_ranges = ranges});
///
/// Rows of a batch whose ranges differ have their lists one after the other, [batch * queries].

namespace rope::inline ROPE_ABI {

/// Keys [first, first + count) of a row, by their index in the row, not by their position.
///
///     const key_range ranges[] = {{0, 2}, {0, 2}, {1, 2}};  // of three queries
///     attention(q, k, v, out, {.key_ranges = ranges});
struct key_range {
  Index first, count;
};

/// The queries of a row are its newest tokens: query i is token keys - queries + i. A prompt has as many
/// queries as keys, and a step of decoding has one.
///
///     const auto ranges = chunk_ranges(chunk, {.queries = 1, .keys = cache.size()});
struct row_tokens {
  Index queries, keys;
};

namespace detail {

/// One range per query: range_of(token) for the tokens keys - queries .. keys - 1 of a row.
///
/// Throws:  std::invalid_argument
template <class RangeOf>
std::vector<key_range> ranges_of_row(const char* function, const row_tokens& row, const RangeOf& range_of) {
  if (row.queries < 0 || row.queries > row.keys)
    throw_invalid(function,
                  "queries are the newest tokens of a row, so they must be in [0, keys = ", row.keys,
                  "], got ", row.queries);
  std::vector<key_range> ranges;
  ranges.reserve(static_cast<std::size_t>(row.queries));
  for (Index token = row.keys - row.queries; token < row.keys; ++token) ranges.push_back(range_of(token));
  return ranges;
}

}  // namespace detail

/// The ranges of a prefix language model: every query attends to the whole prefix, and to the tokens up to
/// its own (PaliGemma, T5 prefix decoders).
///
///     token t attends to [0, max(prefix, t + 1))
///
/// \param prefix  tokens at the start of the row that attend to each other both ways
///
/// \return  [queries]
///
/// Throws:  std::invalid_argument if prefix is not in [0, keys], or queries not in [0, keys]
/// Cost:    O(queries)
/// Source:  Raffel et al. 2019, arXiv:1910.10683, figure 4
inline std::vector<key_range> prefix_ranges(Index prefix, const row_tokens& row) {
  if (prefix < 0 || prefix > row.keys)
    detail::throw_invalid("prefix_ranges", "prefix must be in [0, keys = ", row.keys, "], got ", prefix);
  return detail::ranges_of_row("prefix_ranges", row, [&](Index token) {
    return key_range{0, (std::max)(prefix, token + 1)};
  });
}

/// The ranges of block diffusion: every query attends to its whole block and to all blocks before.
///
///     token t attends to [0, min(keys, (t / block + 1) * block))
///
/// \param block  tokens of a block; blocks begin at token 0 of the row
///
/// \return  [queries]
///
/// Throws:  std::invalid_argument if block is not positive, or queries not in [0, keys]
/// Cost:    O(queries)
/// Source:  Arriola et al. 2025, Block Diffusion, arXiv:2503.09573
inline std::vector<key_range> block_causal_ranges(Index block, const row_tokens& row) {
  if (block <= 0) detail::throw_invalid("block_causal_ranges", "block must be positive, got ", block);
  return detail::ranges_of_row("block_causal_ranges", row, [&](Index token) {
    const Index first = token - token % block;  // first + block may overflow
    return key_range{0, first + (std::min)(block, row.keys - first)};
  });
}

/// The ranges of chunked attention: every query attends to the tokens of its chunk up to its own (the layers
/// of Llama 4 that rotate).
///
///     token t attends to [t / chunk * chunk, t + 1)
///
/// \param chunk  tokens of a chunk (`attention_chunk_size`); chunks begin at token 0 of the row
///
/// \return  [queries]
///
/// Throws:  std::invalid_argument if chunk is not positive, or queries not in [0, keys]
/// Cost:    O(queries)
inline std::vector<key_range> chunk_ranges(Index chunk, const row_tokens& row) {
  if (chunk <= 0) detail::throw_invalid("chunk_ranges", "chunk must be positive, got ", chunk);
  return detail::ranges_of_row("chunk_ranges", row, [&](Index token) {
    return key_range{token - token % chunk, token % chunk + 1};
  });
}

/// The ranges of packed sequences (`cu_seqlens`): every token attends to its own segment, if causal only up
/// to itself. With lengths, the rest of a segment is padding: it attends to no key, and no token to it.
///
///     const std::vector offsets = {0, 16, 32}, lengths = {13, 9};
///     attention(q, k, v, out, {.key_ranges = segment_ranges(offsets, true, lengths)});
///
/// For a batch of packed rows, put the list of each row after that of the row before, [batch * tokens].
/// Attention that rotates inside needs the positions too, which start again in every segment. Or rotate
/// first: `rotate<Layout>(q, k, table, segments{offsets})`.
///
/// \param offsets  [segments + 1], from 0 to the tokens of the row: a position_list in memory
/// \param causal   false: tokens of a segment attend to each other both ways
/// \param lengths  [segments] or empty: tokens of each segment that are not padding
///
/// \return  [tokens]
///
/// Throws:  std::invalid_argument unless offsets begin with 0 and do not decrease, and lengths, if given, are
///          one per segment in [0, tokens of the segment]
/// Cost:    O(tokens)
template <position_list X, position_list Y = std::vector<std::int64_t>>
std::vector<key_range> segment_ranges(const X& offsets, bool causal, const Y& lengths = Y{}) {
  constexpr const char* function = "segment_ranges";
  const auto bounds = detail::vector_of(function, offsets);
  const auto counts = detail::vector_of(function, lengths);
  const auto bound = [&](Index s) { return detail::as_position(bounds[s]); };
  const Index segment_count = bounds.size() - 1;
  detail::check_offsets(function, "offsets", bounds.size(),
                        bounds.size() == 0 ? 0 : static_cast<Index>(bound(segment_count)), bound);
  if (counts.size() != 0 && counts.size() != segment_count)
    detail::throw_invalid(function, "lengths must be empty or one per segment, ", segment_count, ", got ",
                          counts.size());
  for (Index s = 0; s < counts.size(); ++s)
    if (const auto length = detail::as_position(counts[s]); length < 0 || length > bound(s + 1) - bound(s))
      detail::throw_invalid(function, "the length of segment ", s, " must be in [0, ",
                            bound(s + 1) - bound(s), "], got ", length);
  std::vector<key_range> ranges;
  for (Index s = 0; s < segment_count; ++s) {
    const auto first = static_cast<Index>(bound(s)), tokens = static_cast<Index>(bound(s + 1)) - first,
               length = counts.size() == 0 ? tokens : static_cast<Index>(detail::as_position(counts[s]));
    for (Index t = 0; t < tokens; ++t) ranges.push_back({first, t >= length ? 0 : causal ? t + 1 : length});
  }
  return ranges;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_KEY_RANGES_HPP
