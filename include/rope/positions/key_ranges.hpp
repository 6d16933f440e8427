// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_KEY_RANGES_HPP
#define ROPE_POSITIONS_KEY_RANGES_HPP

#include <algorithm>  // std::min, std::max
#include <concepts>   // std::same_as
#include <cstddef>
#include <cstdint>
#include <utility>  // std::in_range
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>

/// Masks that follow a rule: the range of keys that each query attends to, for attention_options::key_ranges.
/// Attention skips the keys outside the ranges. Ranges take two numbers per query, whereas a mask takes one
/// per query and key.
///
///     const auto ranges = prefix_ranges(prefix, {.queries = tokens, .keys = tokens});
///     attention(q, k, v, out, {.key_ranges = ranges});
///
/// If the rows of a batch have different ranges, concatenate their lists: [batch * queries].
///
/// positions_of_mask makes positions, token counts and ranges from the attention mask of a padded batch.

namespace rope::inline ROPE_ABI {

/// Keys [first, first + count) of a row. `first` is an index in the row, which may differ from the position.
///
///     const key_range ranges[] = {{0, 2}, {0, 2}, {1, 2}};  // of three queries
///     attention(q, k, v, out, {.key_ranges = ranges});
struct key_range {
  Index first;  // the index of the first key in its row
  Index count;  // the number of keys
};

/// The queries of a row are its newest tokens: query i is token keys - queries + i. A prompt has as many
/// queries as keys, and a step of decoding has one.
///
///     const auto ranges = chunk_ranges(chunk, {.queries = 1, .keys = cache.size()});
struct row_tokens {
  Index queries;  // the number of newest tokens, which attend
  Index keys;     // the number of tokens of the row
};

namespace detail {

/// Returns one range per query: range_of(token) for the tokens keys - queries .. keys - 1 of a row.
///
/// Throws:  std::invalid_argument unless 0 <= queries <= keys
template <class Range, class RangeOf>
std::vector<Range> ranges_of_row(const char* function, const row_tokens& row, const RangeOf& range_of) {
  if (row.queries < 0 || row.queries > row.keys)
    throw_invalid(function,
                  "queries are the newest tokens of a row, so they must be in [0, keys = ", row.keys,
                  "], got ", row.queries);
  std::vector<Range> ranges;
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
template <class Range = key_range>
std::vector<Range> prefix_ranges(Index prefix, const row_tokens& row) {
  if (prefix < 0 || prefix > row.keys)
    detail::throw_invalid("prefix_ranges", "prefix must be in [0, keys = ", row.keys, "], got ", prefix);
  return detail::ranges_of_row<Range>("prefix_ranges", row, [&](Index token) {
    return Range{0, (std::max)(prefix, token + 1)};
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
template <class Range = key_range>
std::vector<Range> block_causal_ranges(Index block, const row_tokens& row) {
  if (block <= 0) detail::throw_invalid("block_causal_ranges", "block must be positive, got ", block);
  return detail::ranges_of_row<Range>("block_causal_ranges", row, [&](Index token) {
    const Index first = token - token % block;  // first + block may overflow
    return Range{0, first + (std::min)(block, row.keys - first)};
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
template <class Range = key_range>
std::vector<Range> chunk_ranges(Index chunk, const row_tokens& row) {
  if (chunk <= 0) detail::throw_invalid("chunk_ranges", "chunk must be positive, got ", chunk);
  return detail::ranges_of_row<Range>("chunk_ranges", row, [&](Index token) {
    return Range{token - token % chunk, token % chunk + 1};
  });
}

/// The ranges of packed sequences (`cu_seqlens`): every token attends to its own segment, or to the tokens of
/// the segment up to itself if causal. If lengths are given, tokens of a segment beyond its length are
/// padding. Padding attends to no key, and no token attends to padding.
///
///     const std::vector offsets = {0, 16, 32}, lengths = {13, 9};
///     attention(q, k, v, out, {.key_ranges = segment_ranges(offsets, true, lengths)});
///
/// For a batch of packed rows, concatenate the lists of the rows, [batch * tokens]. If `attention` also
/// rotates, pass the positions too: they start again in every segment. Or rotate before: `rotate<Layout>(q,
/// k, table, segments{offsets})`.
///
/// \param offsets  [segments + 1], from 0 to the number of tokens of the row: a position_list in memory
/// \param causal   false: tokens of a segment attend to each other both ways
/// \param lengths  [segments] or empty: tokens of each segment that are not padding
///
/// \return  [tokens]
///
/// Throws:  std::invalid_argument unless offsets begin with 0 and do not decrease, and lengths, if given,
///          have one entry per segment, in [0, tokens of the segment]; std::length_error if an Index does not
///          hold the last offset
/// Cost:    O(tokens)
template <position_list X, position_list Y = std::vector<std::int64_t>, class Range = key_range>
std::vector<Range> segment_ranges(const X& offsets, bool causal, const Y& lengths = Y{}) {
  constexpr const char* function = "segment_ranges";
  const auto bounds = detail::list_in_memory(offsets).as_vector(function);
  const auto counts = detail::list_in_memory(lengths).as_vector(function);
  const auto bound = [&](Index s) { return detail::as_position(bounds[s]); };
  const Index segment_count = bounds.size() - 1;
  const std::int64_t end = bounds.size() == 0 ? 0 : bound(segment_count);
  if (!std::in_range<Index>(end))
    detail::throw_length(function, "offsets must be in [0, 2^", 8 * sizeof(Index) - 1, "), got ", end);
  detail::check_offsets(function, "offsets", bounds.size(), detail::to_index(end), bound);
  if (counts.size() != 0 && counts.size() != segment_count)
    detail::throw_invalid(function, "lengths must be empty or one per segment, ", segment_count, ", got ",
                          counts.size());
  for (Index s = 0; s < counts.size(); ++s)
    if (const auto length = detail::as_position(counts[s]); length < 0 || length > bound(s + 1) - bound(s))
      detail::throw_invalid(function, "the length of segment ", s, " must be in [0, ",
                            bound(s + 1) - bound(s), "], got ", length);
  std::vector<Range> ranges;
  for (Index s = 0; s < segment_count; ++s) {
    const auto first = static_cast<Index>(bound(s)), tokens = static_cast<Index>(bound(s + 1)) - first,
               length = counts.size() == 0 ? tokens : static_cast<Index>(detail::as_position(counts[s]));
    for (Index t = 0; t < tokens; ++t)
      detail::append(ranges, {first, t >= length ? 0 : causal ? t + 1 : length});
  }
  return ranges;
}

/// The tokens of a padded batch.
///
///     const padded_rows rows = positions_of_mask(mask);
///     rotate<Layout>(q, k, table, rows.positions);
///     attention(q, k, v, out, {.key_ranges = rows.key_ranges});
struct padded_rows {
  std::vector<std::int64_t> positions;  // [batch * tokens]: 0, 1, 2, ... in each row; 0 for padding
  std::vector<std::int64_t> counts;     // [batch]: tokens that are not padding
  std::vector<key_range> key_ranges;    // [batch * tokens]: empty for padding
};

namespace detail {

/// The first token of a row that is not padding, and the number of such tokens.
///
/// \param entry  entry(t) is the mask of token t
///
/// Throws:  std::invalid_argument unless entries are 0 or 1 and the ones are adjacent
template <class Entry>
key_range unpadded_tokens(Index row, Index tokens, const Entry& entry) {
  key_range real = {tokens, 0};
  for (Index t = 0; t < tokens; ++t) {
    const auto value = as_position(entry(t));
    if (value != 0 && value != 1)
      throw_invalid("positions_of_mask", "a mask is 1 for tokens and 0 for padding, got ", value,
                    " for token ", t, " of row ", row);
    if (value == 0) continue;
    if (real.count == 0) real.first = t;
    if (real.first + real.count != t)
      throw_invalid("positions_of_mask",
                    "padding must be on the left or the right of the tokens of a row; give a mask with holes "
                    "as attention_options::mask, got padding before token ",
                    t, " of row ", row);
    ++real.count;
  }
  return real;
}

}  // namespace detail

/// Positions, counts and ranges of keys from an attention mask of ones for tokens and zeros for padding, on
/// the left or on the right of each row (`attention_mask` of tokenizers).
///
/// Tokens of a row are at positions 0, 1, 2, ..., wherever its padding is. Queries at padding attend to no
/// key, so their outputs are zero. For a prompt that is padded on the left, append it to a cache and attend:
///
///     cache.append_at<Layout>(k, v, table, rows.positions);
///     attention<Layout>(q, cache, out, table, {.key_ranges = rows.key_ranges});
///
/// `tokens` is the length of the padded prompt. When a later step has appended one token to each row, row b
/// attends to the range {tokens - counts[b], cache.size() - tokens + counts[b]}. If padding is on the right,
/// `cache.append<Layout>(k, v, table, rows.counts)` stores no padding, so attention needs no ranges.
///
/// \param mask    [batch, tokens], any integers in any order of memory: an Eigen matrix, map or expression,
///                an Eigen::Tensor or mdspan of rank 2; or an Eigen expression of bools. A list is one row
/// \param causal  false: tokens of a row attend to each other both ways, as in encoders
///
/// Throws:  std::invalid_argument unless entries are 0 or 1 and the ones of each row are adjacent;
///          std::length_error if an Index does not hold batch * tokens
/// Cost:    O(batch * tokens)
template <position_list X, class Rows = padded_rows>
Rows positions_of_mask(const X& mask, bool causal = true) {
  const auto list = detail::list_of(mask);
  const Index batch = list.given_rows, tokens = list.given_columns;
  Rows rows;
  for (Index b = 0; b < batch; ++b) {
    // A matrix of one column is stored as a list.
    const key_range real = detail::unpadded_tokens(
        b, tokens, [&](Index t) { return list.rows > 1 ? list(b, t) : list[b * tokens + t]; });
    detail::append(rows.counts, std::int64_t{real.count});
    for (Index t = 0; t < tokens; ++t) {
      const bool is_token = t >= real.first && t < real.first + real.count;
      detail::append(rows.positions, std::int64_t{is_token ? t - real.first : 0});
      detail::append(rows.key_ranges, {real.first, is_token ? causal ? t - real.first + 1 : real.count : 0});
    }
  }
  return rows;
}
template <class Derived, class Rows = padded_rows>
requires std::same_as<typename Derived::Scalar, bool> Rows
positions_of_mask(const Eigen::DenseBase<Derived>& mask, bool causal = true) {
  return positions_of_mask(mask.derived().template cast<int>(), causal);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_KEY_RANGES_HPP
