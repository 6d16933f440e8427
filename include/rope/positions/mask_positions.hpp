// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_MASK_POSITIONS_HPP
#define ROPE_POSITIONS_MASK_POSITIONS_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/positions.hpp>

/// Positions, counts and ranges of keys from the attention mask of a padded batch, as tokenizers return it.

namespace rope::inline ROPE_ABI {

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

/// The extent [batch, tokens] of a mask. A vector is one row.
template <class X>
Index rows_of_mask(const X& mask) {
  if constexpr (dense_integers<X>)
    return bool(std::remove_cvref_t<decltype(dense_of(mask))>::IsVectorAtCompileTime) ? 1 : mask.rows();
  else if constexpr (tensor<const X, 2>)
    return static_cast<Index>(mask.dimension(0));
  else
    return 1;
}

/// The mask as it is in memory, or a copy of an expression.
template <class X>
auto mask_list(const X& mask) {
  if constexpr (integers_in_memory<X>)
    return list_of(mask);
  else
    return evaluated_list<integer_of<X>>(mask);
}
template <class Integer>
const integer_list<Integer>& as_list(const integer_list<Integer>& list) {
  return list;
}
template <class Integer>
const integer_list<Integer>& as_list(const evaluated_list<Integer>& copy) {
  return copy.list;
}

/// The first token of a row that is not padding, and how many there are.
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
/// Tokens of a row are at positions 0, 1, 2, ..., wherever its padding is. Queries of padding attend to no
/// key, so that their outputs are zero. A prompt padded on the left and its steps of decoding, in a cache:
///
///     cache.append_at<Layout>(k, v, table, rows.positions);
///     attention<Layout>(q, cache, out, table, {.key_ranges = rows.key_ranges});
///
/// In the next step, row b attends to keys `tokens - counts[b]` and later. If padding is on the right,
/// `cache.append<Layout>(k, v, table, rows.counts)` stores no padding, and needs no ranges.
///
/// \param mask    [batch, tokens], any integers in any order of memory: an Eigen matrix, map or expression,
///                or an Eigen::Tensor of rank 2; a list is one row. For bools, `mask.cast<int>()`
/// \param causal  false: tokens of a row attend to each other both ways, as in encoders
///
/// Throws:  std::invalid_argument unless entries are 0 or 1 and the ones of each row are adjacent
/// Cost:    O(batch * tokens)
template <position_list X>
padded_rows positions_of_mask(const X& mask, bool causal = true) {
  const auto kept = detail::mask_list(mask);
  const auto& list = detail::as_list(kept);
  const Index batch = detail::rows_of_mask(mask), tokens = batch == 0 ? 0 : list.size() / batch;
  padded_rows rows;
  for (Index b = 0; b < batch; ++b) {
    // A matrix of one column is stored as a list.
    const key_range real = detail::unpadded_tokens(
        b, tokens, [&](Index t) { return list.rows > 1 ? list(b, t) : list[b * tokens + t]; });
    rows.counts.push_back(real.count);
    for (Index t = 0; t < tokens; ++t) {
      const bool is_token = t >= real.first && t < real.first + real.count;
      rows.positions.push_back(is_token ? t - real.first : 0);
      rows.key_ranges.push_back({real.first, is_token ? causal ? t - real.first + 1 : real.count : 0});
    }
  }
  return rows;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_MASK_POSITIONS_HPP
