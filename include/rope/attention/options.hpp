// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_OPTIONS_HPP
#define ROPE_ATTENTION_OPTIONS_HPP

#include <algorithm>  // std::max
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include <rope/attention/score_view.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/positions.hpp>
#include <rope/positions/selected_keys.hpp>

/// Options of attention: which keys are visible, how scores are formed, the precision of products, and
/// optional outputs.

namespace rope::inline ROPE_ABI {

/// The precision in which attention multiplies queries by keys, and weights by values. Sums are in the
/// arithmetic type unless stated otherwise.
enum class product_precision {
  /// The arithmetic type: float, or double for double.
  full,
  /// Products in bfloat16, for queries, keys and values of bfloat16. With AVX512_BF16, a prefill is faster
  /// than with `full`; with AVX2, it is slower (bench/README.md). Scores are as exact as in `full`. Each
  /// weight is rounded, by at most 2^-8 of itself. This adds at most 2^-8 sum_j w_ij |v_j| to the error of an
  /// output. Numbers below 2^-126 may count as 0. The scale multiplies products q . k instead of queries, so
  /// the products without the scale must not overflow float. Gradients and probabilities are computed as in
  /// `full`.
  bfloat16,
  /// Queries and weights are rounded to 16 bits and multiply the stored 8-bit integers. Keys and values must
  /// be quantized, and keys must not be rotated while they are read. Faster than `full` for a decoding step
  /// with AVX512_VNNI, and for many queries with SSE2 and AVX2 (bench/README.md). The error of a query
  /// channel is at most 2^-15.9 of the largest channel of its head, or 2^-24.9 head_dim of it if head_dim
  /// exceeds 512. The error of a weight times the scale of its value is at most 2^-15.9 of the largest such
  /// product of 128 keys. Both errors are far smaller than those of the rounding to 8 bits. If the largest
  /// number is below 2^-110, all of them count as 0: the channels of a query times scale * log2(e) (with a
  /// softcap, times scale / softcap), and the weights times the scales of 128 values. Sums of products over
  /// 128 keys are exact. head_dim is at most 65536.
  integers,
};

namespace detail {

/// The largest head_dim for integer products. At this head_dim a query channel is rounded to one of about 256
/// steps of either sign. A smaller head_dim allows more steps.
inline constexpr Index max_integer_products = 65536;

/// \tparam T       channels of queries and outputs
/// \tparam C       channels of keys and values
/// \param rotates  whether keys are rotated while they are read
///
/// Throws:  std::invalid_argument if these channel types or this head_dim do not support the products
template <class T, class C>
void check_products(const char* function, product_precision products, Index head_dim, bool rotates) {
  if (products == product_precision::full) return;
  if (products == product_precision::integers) {
    if (!is_quantized<C>)
      throw_invalid(
          function,
          "integer products need quantized keys and values; set products to product_precision::full");
    if (rotates)
      throw_invalid(function,
                    "integer products need keys that were rotated before quantization; set "
                    "products to product_precision::full");
    if (head_dim > max_integer_products)
      throw_invalid(function, "integer products need a head_dim of at most ", max_integer_products, ", got ",
                    head_dim);
  } else if (!std::is_same_v<T, Eigen::bfloat16> || !std::is_same_v<C, Eigen::bfloat16>)
    throw_invalid(function,
                  "products in bfloat16 need queries, keys, values and outputs of bfloat16; set products to "
                  "product_precision::full");
}

/// A list of positions, which are std::int64_t. A list of another integer type gives a compile error that
/// names the fix.
struct int64_list : std::span<const std::int64_t> {
  using std::span<const std::int64_t>::span;
  int64_list() = default;
  int64_list(std::span<const std::int64_t> list) : std::span<const std::int64_t>(list) {}
  template <integers_in_memory X>
  requires(!std::is_convertible_v<const X&, std::span<const std::int64_t>>) int64_list(const X& /*list*/) {
    static_assert(
        std::is_convertible_v<const X&, std::span<const std::int64_t>>,
        "attention_options: positions are lists of std::int64_t, such as std::vector<std::int64_t>; copy a "
        "list of another integer type to one");
  }
};

}  // namespace detail

/// Options of `attention`. The defaults give plain causal decoder attention.
///
/// Key j of a row is at position j, and query i at position keys - queries + i. The last query is thus
/// aligned with the last key, in a prefill, in each chunk of a prefill, and in a decoding step against a
/// cache. If counts are given, `keys` is key_counts[b] and `queries` is query_counts[b]. Prompts padded on
/// the right need both counts (in self-attention, the same list twice). Prompts padded on the left need no
/// counts, because only distances matter, but a mask that is false at the padding. query_positions and
/// key_positions replace this rule and may be in any order, as in a ring buffer. attention<Layout> rotates by
/// these positions too. Positions are std::int64_t. Counts and offsets are any integers, at any stride.
///
/// Throws if a row or segment has at least one key but fewer keys than queries, positions matter (causal,
/// window, rotation) and query_positions is empty. The first query of that row or segment would be at a
/// negative position.
///
/// A key is visible to a query if every rule that is set admits it. The rules are: causal and window (with
/// sinks), or key_ranges in place of these; the selection; the mask; the bias; the segments; the count of
/// keys.
///
///     attention(q, k, v, out, {.window = 1024, .sinks = 4});
///
/// Lists, matrices and selected keys are views and must outlive the call. A vector that is made within the
/// braces of a call does, one that is made in the initializer of a variable of options does not.
///     attention<Layout>(q, k, v, out, table, {.causal = false, .softcap = 50});
struct attention_options {
  /// Multiplies q . k; 0 means 1 / sqrt(head_dim).
  double scale = 0;
  /// A key is visible if its position <= the position of the query.
  bool causal = true;
  /// A key is visible if it is less than `window` positions away from the query; 0: no limit.
  Index window = 0;
  /// A score s becomes softcap * tanh(s / softcap); 0: off. scale / softcap must be in [2^-63, 2^63], for
  /// double in [2^-511, 2^511], so that neither this quotient nor its products overflow. Source: Gemma 2,
  /// arXiv:2408.00118.
  double softcap = 0;
  /// Keys at positions 0 .. sinks - 1 stay visible outside the window. Source: StreamingLLM,
  /// arXiv:2309.17453.
  Index sinks = 0;
  /// [q.heads] or empty: one learned logit per query head. The logit takes part in every softmax of its head,
  /// with a value of zero. Source: gpt-oss, `sinks`, arXiv:2508.10925.
  detail::number_span<float> sink_logits = {};
  /// Added to the scaled and capped score (ALiBi, relative biases). An entry below -1e30, such as -infinity
  /// or the most negative float, hides the key. A bias that depends only on the distance j - i needs no
  /// matrix: store the numbers for distances 1 - n .. n - 1 per head, let `zero` point to the number for
  /// distance 0, and pass {.data = zero, .heads = heads, .queries = n, .keys = n, .head_stride = 2 * n - 1,
  /// .query_stride = -1, .key_stride = 1}.
  score_view<float> bias = {};
  /// A key is visible if the mask is true. Pass score_matrix(m) of an Eigen::Array<bool, ...> of any storage
  /// order, or score_matrix(data, batch, heads, queries, keys) of row-major memory. (std::vector<bool> does
  /// not store bools: use std::unique_ptr<bool[]>.)
  score_view<bool> mask = {};
  /// [queries] shared by the rows, or [batch * queries]; empty: the last query is aligned with the last key.
  detail::int64_list query_positions = {};
  /// [keys] shared by the rows, or [batch * keys]; empty: 0, 1, 2, ... Every call reads the whole list, even
  /// a decoding step with a window. A cache need not read its positions, because it stores the order of its
  /// tokens.
  detail::int64_list key_positions = {};
  /// [batch] or empty: row b has queries 0 .. query_counts[b] - 1. The other queries of the row are padding
  /// without visible keys: their outputs and gradients are zero, and their log-sum-exp is `no_keys`.
  /// query_counts need key_counts if positions matter and query_positions is empty.
  detail::any_integers query_counts = {};
  /// [batch] or empty: row b has keys 0 .. key_counts[b] - 1. Later keys of the row are not read.
  detail::any_integers key_counts = {};
  /// [segments + 1] or empty, for a batch of 1: packed sequences (`cu_seqlens`). Queries query_offsets[s] ..
  /// query_offsets[s + 1] - 1 attend only to keys key_offsets[s] .. key_offsets[s + 1] - 1. Positions start
  /// again in every segment. For several packed rows, and for padded segments, see segment_ranges.
  detail::any_integers query_offsets = {};
  /// [segments + 1], the offsets of the keys; empty: equal to query_offsets. Needs query_offsets.
  detail::any_integers key_offsets = {};
  /// The probability, in [0, 1), of dropping a weight. Kept weights are divided by 1 - dropout. Which weights
  /// are dropped depends only on dropout_seed, row, head and positions (dropout.hpp).
  double dropout = 0;
  /// The seed of dropout. Give every layer and step a different one. The gradient needs the seed of its
  /// forward pass.
  std::uint64_t dropout_seed = 0;
  /// The precision of the products queries * keys and weights * values. `bfloat16` needs channels of
  /// bfloat16, and `integers` needs quantized keys and values.
  product_precision products = product_precision::full;
  /// [batch, queries, q.heads] or empty: receives log sum_j exp(score_j) of every query, including the sink
  /// logit. For a query without a visible key this is the sink logit of its head, which merge_attention
  /// accepts, or `no_keys` if there are no sink logits. For padding it is `no_keys`.
  std::span<double> log_sum_exp = {};
  /// [queries] shared by the rows, or [batch * queries], or empty: the range of keys that each query may
  /// attend to. Keys are given by their index in the row, as in a mask, whatever their positions are. Ranges
  /// replace the causal rule, so `causal` is not read, and window and sinks must be 0. A range may be empty,
  /// and must end within the keys of the call. Ranges of padding are not read. Tiles of keys outside all
  /// ranges are skipped, so the cost is that of the keys in the ranges. positions/key_ranges.hpp makes the
  /// ranges of prefixes, chunks, blocks and documents.
  std::span<const key_range> key_ranges = {};
  /// Sparse attention: for each query, a list of the keys that it may attend to. There is one list per query
  /// [queries], shared by the rows, or per query of every row [batch * queries], and either one list for each
  /// key head or one for all of them. Keys are given by their index in the row, as in a mask. -1 ends a list.
  /// All other rules still apply, so a selected key may be hidden. Attention reads only selected keys, so the
  /// cost is that of these keys. Sums are in the order of the list. If a list has a key twice, debug builds
  /// (without NDEBUG) throw, and other builds count the key twice. Dropout must be 0, and there is no
  /// gradient.
  selected_keys selected = {};
  /// Whether queries are already rotated. A call on a cache without a table throws if this is false and the
  /// cache rotated its keys. A call with a table throws if this is true. rotate_layer sets it to true.
  bool queries_are_rotated = false;

  /// The log-sum-exp of a query without visible keys. It is less than any other, and finite, because
  /// infinities do not survive -ffast-math.
  static constexpr double no_keys = std::numeric_limits<double>::lowest();
};

namespace detail {

/// The extents of a call.
struct attention_shape {
  Index batch, queries, keys, heads, head_dim;
};

/// Rejects a list that is not empty and has neither `length` elements nor `rows` times as many.
inline void require_length(const char* function, const char* name, std::size_t got, Index length,
                           Index rows = 1) {
  if (got == 0 || static_cast<Index>(got) == length || static_cast<Index>(got) == rows * length) return;
  if (rows * length == length)
    throw_invalid(function, name, " must be empty or have length ", length, ", got ", got);
  throw_invalid(function, name, " must be empty or have length ", length, " or ", rows * length, ", got ",
                got);
}

/// Rejects a call with a table whose options say that q is rotated: it would be rotated twice.
inline void check_unrotated(const char* function, const attention_options& options) {
  if (options.queries_are_rotated)
    throw_invalid(function,
                  "the table rotates q, so queries_are_rotated must be false, got true; leave out the layout "
                  "and the table if q is rotated");
}

/// Checks the extents of a mask or a bias. Extents of 1 are shared.
EIGEN_DONT_INLINE inline void check_scores(const char* function, const char* name,
                                           const std::array<Index, 4>& extents,
                                           const attention_shape& shape) {
  const std::array<Index, 4> of_scores = {shape.batch, shape.heads, shape.queries, shape.keys};
  for (std::size_t axis = 0; axis < extents.size(); ++axis)
    if (extents[axis] != 1 && extents[axis] != of_scores[axis])
      throw_invalid(
          function, "the extents of ", name, " must be 1 or those of the scores, ",
          shape_text(of_scores.data(), of_scores.size()), ", got ",
          shape_text(extents.data(), extents.size()),
          axis == 2 && extents[2] == shape.batch
              ? "; a matrix is [queries, keys]; of [batch, keys] write score_matrix(m, batch, 1, 1, keys)"
              : "");
}

EIGEN_DONT_INLINE inline void check_counts_of_rows(const char* function, const char* name,
                                                   const any_integers& counts, Index batch, Index tokens) {
  require_length(function, name, counts.size(), batch);
  for (std::size_t b = 0; b < counts.size(); ++b)
    if (counts[b] < 0 || counts[b] > tokens)
      throw_invalid(function, name, " must be in [0, ", tokens, "], got ", counts[b]);
}

/// Count b of a list of counts, or `all` if there is no list.
inline Index count_of_row(const any_integers& counts, Index b, Index all) {
  return counts.empty() ? all : to_index(counts[static_cast<std::size_t>(b)]);
}

/// The offsets of the keys of segments.
inline const any_integers& key_offsets_of(const attention_options& options) {
  return options.key_offsets.empty() ? options.query_offsets : options.key_offsets;
}

/// Rejects a call in which query positions matter (causal rule, window or rotation) but do not follow from
/// query_positions or from the counts of queries and keys.
///
/// \param rotates  whether queries and keys are rotated by the positions of the options
///
/// Requires:  offsets were checked
/// Throws:    std::invalid_argument
inline void check_alignment(const char* function, const attention_options& options,
                            const attention_shape& shape, bool rotates) {
  const bool by_position = options.key_ranges.empty() && (options.causal || options.window != 0);
  if ((!by_position && !rotates) || !options.query_positions.empty()) return;
  if (!options.query_counts.empty() && options.key_counts.empty())
    throw_invalid(function,
                  "query_counts need key_counts, or query_positions: the last query of a row is "
                  "aligned with its last key, got ",
                  options.query_counts.size(), " counts of queries and none of keys");
  const auto check_row = [function](const char* name, std::size_t i, std::int64_t queries,
                                    std::int64_t keys) {
    if (keys > 0 && queries > keys)
      throw_invalid(
          function, name, " ", i, " has ", queries, " queries and ", keys,
          " keys, so its first query would be at position ", keys - queries,
          "; give query_counts or query_positions (padding on the left: a mask), or, for cross-attention "
          "without a window and a table, causal = false");
  };
  const any_integers &query_offsets = options.query_offsets, &key_offsets = key_offsets_of(options);
  for (std::size_t s = 0; s + 1 < query_offsets.size(); ++s)
    check_row("segment", s, query_offsets[s + 1] - query_offsets[s], key_offsets[s + 1] - key_offsets[s]);
  if (query_offsets.empty() && options.key_counts.empty() && shape.batch > 0)
    check_row("row", 0, shape.queries, shape.keys);  // the sizes of all rows
  for (std::size_t b = 0; b < options.key_counts.size(); ++b)
    check_row("row", b, count_of_row(options.query_counts, static_cast<Index>(b), shape.queries),
              options.key_counts[b]);
}

/// Checks that the magnitudes of scale and softcap are 0 or in [2^-n, 2^n], where 2^-n is the smallest normal
/// number of the arithmetic type A: 2^-126 for float, 2^-1022 for double. Then scale, softcap and 1 / softcap
/// neither underflow nor overflow in A. A capped score is softcap tanh((scale / softcap) q . k), so scale /
/// softcap must be in [2^(-n/2), 2^(n/2)]. This leaves range for its product with q . k.
///
/// Throws:  std::invalid_argument
template <class A>
void check_magnitudes(const char* function, const attention_options& options, Index head_dim) {
  constexpr auto smallest = static_cast<double>((std::numeric_limits<A>::min)());
  constexpr int n = 1 - std::numeric_limits<A>::min_exponent;
  for (const double option : {(std::abs)(options.scale), options.softcap})
    if (!detail::equal(option, 0) && (option < smallest || option > 1 / smallest))
      throw_invalid(function, "scale and softcap must be 0 or of a magnitude in [2^-", n, ", 2^", n,
                    "], got ", options.scale, " and ", options.softcap);
  const double scale = !detail::equal(options.scale, 0)
                           ? (std::abs)(options.scale)
                           : 1 / std::sqrt(static_cast<double>((std::max)(head_dim, Index{1}))),
               margin = std::sqrt(smallest);
  if (!detail::equal(options.softcap, 0) &&
      (scale < margin * options.softcap || scale > options.softcap / margin))
    throw_invalid(function, "scale / softcap must be of a magnitude in [2^-", n / 2, ", 2^", n / 2, "], got ",
                  scale, " / ", options.softcap);
}

/// Rejects numbers in the options that are out of range.
inline void check_numbers(const char* function, const attention_options& options) {
  if (!is_finite(options.scale) || !is_finite(options.softcap) || options.softcap < 0)
    throw_invalid(function, "scale must be finite and softcap finite and not negative, got ", options.scale,
                  " and ", options.softcap);
  if (options.window < 0) throw_invalid(function, "window must not be negative, got ", options.window);
  if (options.sinks < 0) throw_invalid(function, "sinks must not be negative, got ", options.sinks);
  if (!is_finite(options.dropout) || options.dropout < 0 || options.dropout >= 1)
    throw_invalid(function, "dropout must be in [0, 1), got ", options.dropout);
}

/// Checks the ranges of keys, and that window and sinks are 0 if there are ranges. Ranges of padding are not
/// checked.
///
/// \param query_counts  [batch]: the number of queries of each row; empty: all of them
///
/// Throws:  std::invalid_argument
inline void check_key_ranges(const char* function, const attention_options& options,
                             const attention_shape& shape, const any_integers& query_counts) {
  const auto ranges = static_cast<Index>(options.key_ranges.size());
  if (ranges == 0) return;
  require_length(function, "key_ranges", options.key_ranges.size(), shape.queries, shape.batch);
  if (options.window != 0 || options.sinks != 0)
    throw_invalid(function,
                  "key_ranges say which keys each query attends to, so window and sinks must be 0, got ",
                  options.window, " and ", options.sinks, "; shorten the ranges instead");
  const auto is_padding = [&](Index i) {  // in all rows that share the range
    for (Index b = i / shape.queries, end = ranges == shape.queries ? shape.batch : b + 1; b < end; ++b)
      if (i % shape.queries < count_of_row(query_counts, b, shape.queries)) return false;
    return true;
  };
  for (Index i = 0; i < ranges; ++i)
    if (const auto [first, count] = options.key_ranges[static_cast<std::size_t>(i)];
        (first < 0 || count < 0 || first > shape.keys || count > shape.keys - first) && !is_padding(i))
      throw_invalid(function, "key_ranges must lie within the ", shape.keys,
                    " keys of the call, got {first = ", first, ", count = ", count, "} for query ", i);
}

/// Rejects sink logits that are not finite, or not one for each head.
inline void check_sink_logits(const char* function, const attention_options& options, Index heads) {
  require_length(function, "sink_logits", options.sink_logits.size(), heads);
  for (const float logit : options.sink_logits)
    if (!is_finite(static_cast<double>(logit)))
      throw_invalid(function, "sink_logits must be finite, got ", static_cast<double>(logit));
}

/// Rejects lists and views in the options that do not fit the call.
///
/// \param query_counts  as in check_key_ranges
inline void check_lists(const char* function, const attention_options& options, const attention_shape& shape,
                        const any_integers& query_counts) {
  check_sink_logits(function, options, shape.heads);
  require_length(function, "query_positions", options.query_positions.size(), shape.queries, shape.batch);
  require_length(function, "key_positions", options.key_positions.size(), shape.keys, shape.batch);
  check_counts_of_rows(function, "query_counts", options.query_counts, shape.batch, shape.queries);
  check_counts_of_rows(function, "key_counts", options.key_counts, shape.batch, shape.keys);
  const Index sums = shape.batch * shape.queries * shape.heads;
  require_length(function, "log_sum_exp", options.log_sum_exp.size(), sums);
  const score_view<float>& bias = options.bias;
  const score_view<bool>& mask = options.mask;
  if (bias) check_scores(function, "bias", {bias.batch, bias.heads, bias.queries, bias.keys}, shape);
  if (mask) check_scores(function, "mask", {mask.batch, mask.heads, mask.queries, mask.keys}, shape);
  check_key_ranges(function, options, shape, query_counts);
}

/// Checks the offsets of packed sequences, and that no other option sets their positions or counts.
inline void check_segments(const char* function, const attention_options& options,
                           const attention_shape& shape) {
  if (options.query_offsets.empty()) {
    if (!options.key_offsets.empty())
      throw_invalid(function, "key_offsets need query_offsets of the same length, got ",
                    options.key_offsets.size(), " key_offsets and no query_offsets");
    return;
  }
  const any_integers& key_offsets = key_offsets_of(options);
  if (shape.batch > 1)
    throw_invalid(function, "query_offsets are for a batch of 1, got a batch of ", shape.batch,
                  "; where rows are packed, give key_ranges instead, with segment_ranges(offsets, causal) of "
                  "each row one after the other");
  if (!options.query_counts.empty() || !options.key_counts.empty())
    throw_invalid(function, "query_offsets are for segments without padding, got ",
                  options.query_counts.size(), " query_counts and ", options.key_counts.size(),
                  " key_counts; where segments are padded, give key_ranges = segment_ranges(offsets, causal, "
                  "lengths) instead of all of them");
  if (!options.query_positions.empty() || !options.key_positions.empty())
    throw_invalid(
        function, "query_offsets set the positions, which start again in every segment, got ",
        options.query_positions.size(), " query_positions and ", options.key_positions.size(),
        " key_positions; give key_ranges = segment_ranges(offsets, causal) instead of query_offsets "
        "where tokens have other positions");
  if (key_offsets.size() != options.query_offsets.size())
    throw_invalid(function, "query_offsets and key_offsets must have the same length, got ",
                  options.query_offsets.size(), " and ", key_offsets.size());
  const auto check_list = [&](const char* name, const any_integers& list, Index tokens) {
    check_offsets(function, name, static_cast<Index>(list.size()), tokens,
                  [&](Index s) { return list[static_cast<std::size_t>(s)]; });
  };
  check_list("query_offsets", options.query_offsets, shape.queries);
  check_list("key_offsets", key_offsets, shape.keys);
}

/// Checks every option, by itself and against the shape of the call.
inline void check_options(const char* function, const attention_options& options,
                          const attention_shape& shape, bool rotates = false) {
  check_numbers(function, options);
  check_segments(function, options, shape);  // before the lengths of counts: callers have one per segment
  check_lists(function, options, shape, options.query_counts);
  check_alignment(function, options, shape, rotates);
}

}  // namespace detail

}  // namespace rope::inline ROPE_ABI

/// Without a table nothing is rotated, so a named layout means that the table was forgotten.
#define ROPE_DETAIL_CHECK_NO_LAYOUT(name, Layout)               \
  static_assert(std::is_same_v<Layout, detail::unnamed_layout>, \
                name ": a layout needs a table: pass one, or remove the layout")

#endif  // ROPE_ATTENTION_OPTIONS_HPP
