// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_BLOCK_ROTATION_HPP
#define ROPE_BLOCK_DETAIL_BLOCK_ROTATION_HPP

#include <cstdint>
#include <type_traits>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/gradient.hpp>  // rotate_gradient
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Norm and rotation of the heads of queries and keys, between projection and attention.

namespace rope::inline ROPE_ABI::detail {

/// Whether positions are `segments`, which must not attend to each other.
template <class P>
inline constexpr bool is_segmented = false;
template <class Integer>
inline constexpr bool is_segmented<segments<Integer>> = true;

/// The table of a block that does not rotate queries and keys.
struct no_table {};

/// The norm, rotation and segments of the tokens of queries, or of the tokens of keys.
template <class Layout, class Table, class P>
struct token_rotation {
  Table table;
  kept_positions<P> positions;

  static constexpr bool rotates = !std::is_same_v<Table, no_table>;
  static_assert(pair_layout<Layout> || !rotates,
                "multi_head_attention: name the layout of the channel pairs to rotate, "
                "multi_head_attention<T, interleaved> or multi_head_attention<T, half_split>");
  ROPE_DETAIL_CHECK_POSITIONS("multi_head_attention", P);

  /// Throws:  as check_rotation, unless Table is no_table
  void check_positions(const char* function, Index batch, Index tokens, Index head_dim) const {
    if constexpr (rotates)
      check_rotation<Layout>(function, batch, tokens, head_dim, table, position_source(positions, tokens));
  }
  /// Normalises the heads if the norm has weights, and rotates them unless Table is no_table.
  template <class T, class Threads>
  void apply(const head_view<T>& x, const head_norm<T>& norm, const Threads& threads) const {
    if constexpr (rotates) {
      if (norm.weight.empty())
        rotate_into<Layout, false, true>(x, x, table, position_source(positions, x.tokens), threads);
      else
        normalize_and_rotate<Layout>(x, norm, table, positions, threads);
    } else if (!norm.weight.empty()) {
      normalize_heads_to(x, x, norm, threads);
    }
  }
  template <class T, class Threads>
  void apply_transpose(const head_view<T>& d, const Threads& threads) const {
    if constexpr (rotates) rotate_gradient<Layout>(d, table, positions, threads);
  }

  /// The first token of a segment. Segment segment_count() would begin at the end.
  Index first_of(Index segment) const { return static_cast<Index>(positions.offsets[segment]); }
  /// The tokens of a segment, or all tokens if positions are not `segments`.
  template <class T>
  head_view<T> tokens_of(const head_view<T>& x, Index segment) const {
    if constexpr (is_segmented<P>)
      return x.token_range(first_of(segment), first_of(segment + 1) - first_of(segment));
    else
      return x;
  }
};

/// Normalises queries and keys if the block has norms, and rotates both by one placed_table, unless Table is
/// no_table. Positions of queries and of keys may differ.
template <class Layout, class Table, class PQ, class PK>
struct block_rotation {
  token_rotation<Layout, Table, PQ> queries;
  token_rotation<Layout, Table, PK> keys;

  static_assert(is_segmented<PQ> == is_segmented<PK>,
                "multi_head_attention: queries and keys are both in segments or neither is");

  void check_call(const char* function, Index batch, Index query_tokens, Index key_tokens,
                  Index head_dim) const {
    queries.check_positions(function, batch, query_tokens, head_dim);
    keys.check_positions(function, batch, key_tokens, head_dim);
    if constexpr (is_segmented<PQ>)
      check_equal(function, "queries and keys", "number of segments", queries.positions.offsets.size() - 1,
                  keys.positions.offsets.size() - 1);
  }
  /// Throws:  std::invalid_argument if there are segments and the options also give positions, counts,
  ///          offsets or key_ranges
  void check_options(const char* function, const attention_options& options) const {
    if constexpr (is_segmented<PQ>) {
      if (!options.query_positions.empty() || !options.key_positions.empty() ||
          !options.query_counts.empty() || !options.key_counts.empty() || !options.query_offsets.empty())
        throw_invalid(function,
                      "segments say where tokens are; leave query_positions, key_positions, query_counts, "
                      "key_counts and query_offsets empty in the options, got lengths ",
                      options.query_positions.size(), ", ", options.key_positions.size(), ", ",
                      options.query_counts.size(), ", ", options.key_counts.size(), " and ",
                      options.query_offsets.size());
      if (!options.key_ranges.empty())
        throw_invalid(function,
                      "segments limit the keys of their queries; leave key_ranges empty in the options, got ",
                      options.key_ranges.size());
    }
  }

  /// The number of segments of the queries; 0 if positions are not `segments`.
  Index segments() const { return is_segmented<PQ> ? segment_count() : 0; }
  /// Segments are sequences that must not attend to each other. A call without segments counts as one.
  Index segment_count() const {
    if constexpr (is_segmented<PQ>)
      return queries.positions.offsets.size() - 1;
    else
      return 1;
  }
  /// The options of attention within one segment. Bias and mask are the parts for this segment of the bias
  /// and mask of the whole call. The caller sets log_sum_exp.
  attention_options options_of(attention_options options, Index segment) const {
    if constexpr (is_segmented<PQ>) {
      options.bias = scores_of(options.bias, segment);
      options.mask = scores_of(options.mask, segment);
    }
    return options;
  }

 private:
  template <class X>
  score_view<X> scores_of(score_view<X> x, Index segment) const {
    const auto cut = [&x, segment](Index& extent, Index stride, const auto& tokens) {
      if (!x || extent == 1) return;
      x.data += tokens.first_of(segment) * stride;
      extent = tokens.first_of(segment + 1) - tokens.first_of(segment);
    };
    cut(x.queries, x.query_stride, queries);
    cut(x.keys, x.key_stride, keys);
    return x;
  }
};

template <class Layout, rotation_table Table, class PQ, class PK>
auto rotation_of_block(const Table& table, const PQ& query_positions, const PK& key_positions) {
  return block_rotation<Layout, placed_table<typename Table::scalar>, PQ, PK>{
      {placed(table), query_positions}, {placed(table), key_positions}};
}

/// The rotation of queries and keys at the same positions. If these are an expression, it is evaluated once.
template <class Layout, rotation_table Table, class P>
auto rotation_of_block(const Table& table, const P& positions) {
  const kept_positions<P> kept = positions;
  return block_rotation<Layout, placed_table<typename Table::scalar>, P, P>{{placed(table), kept},
                                                                            {placed(table), kept}};
}

inline constexpr std::int64_t no_positions = 0;
inline constexpr block_rotation<unnamed_layout, no_table, std::int64_t, std::int64_t> block_without_rotation =
    {{{}, no_positions}, {{}, no_positions}};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BLOCK_DETAIL_BLOCK_ROTATION_HPP
