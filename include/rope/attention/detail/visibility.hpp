// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_VISIBILITY_HPP
#define ROPE_ATTENTION_DETAIL_VISIBILITY_HPP

#include <algorithm>  // std::min, std::max, std::lower_bound
#include <cmath>
#include <cstdint>
#include <limits>

#include <rope/attention/options.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet_math.hpp>  // for_each_index
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>  // advance

/// Finds the keys that are visible to a query. They are index ranges if the caller gives ranges or key
/// positions do not decrease. Otherwise each key is tested. If there is a mask or a bias, each key is tested
/// too.

namespace rope::inline ROPE_ABI::detail {

/// Keys [begin, gap_begin) and [gap_end, end) of a row, with begin <= gap_begin <= gap_end <= end. The two
/// ranges are the sinks and the window. If there is only one range, the gap is empty and at its end.
struct key_set {
  Index begin, gap_begin, gap_end, end;

  bool empty() const { return begin == gap_begin && gap_end == end; }
  /// The first key.
  Index hull_begin() const { return begin == gap_begin ? gap_end : begin; }
  /// One past the last key.
  Index hull_end() const { return gap_end == end ? gap_begin : end; }
  bool contains(Index j) const { return (j >= begin && j < gap_begin) || (j >= gap_end && j < end); }
};

/// The union of two ranges of keys. Either may be empty.
inline key_set union_of(Index a_begin, Index a_end, Index b_begin, Index b_end) {
  if (a_begin >= a_end)
    return {b_begin, (std::max)(b_begin, b_end), (std::max)(b_begin, b_end), (std::max)(b_begin, b_end)};
  if (b_begin >= b_end) return {a_begin, a_end, a_end, a_end};
  if (b_begin < a_begin) return union_of(b_begin, b_end, a_begin, a_end);
  const Index end = (std::max)(a_end, b_end);
  if (b_begin <= a_end) return {a_begin, end, end, end};
  return {a_begin, a_end, b_begin, end};
}

/// The key positions that causality, window and sinks allow for a query: [near_first, near_last], and the
/// sinks [0, sinks_end).
struct position_rule {
  std::int64_t near_first, near_last, sinks_end;

  bool operator()(std::int64_t key) const {
    // There are no branches, so that compilers vectorise a loop over keys.
    return bool(((key >= near_first) & (key <= near_last)) | ((key >= 0) & (key < sinks_end)));
  }
  /// Whether a position in [low, high] may be allowed.
  bool overlaps(std::int64_t low, std::int64_t high) const {
    return (high >= near_first && low <= near_last) || (high >= 0 && low < sinks_end);
  }
  /// Whether all positions in [low, high] are in [near_first, near_last], or all are sinks.
  bool covers(std::int64_t low, std::int64_t high) const {
    return (low >= near_first && high <= near_last) || (low >= 0 && high < sinks_end);
  }
};

/// The order of the key positions of a row. Each position is one more than the previous one (contiguous), or
/// not less (ascending), or arbitrary (any).
enum class key_order { contiguous, ascending, any };

/// The visibility rules of a checked call. Key j is visible to a query if keys_of() contains j and unordered
/// positions, the mask and the bias do not hide it.
class visibility {
 public:
  visibility(const attention_options& options, const attention_shape& shape)
      : visibility(options, shape, order_of_lists(options.key_positions, shape.keys)) {}
  /// \param order  order of the key positions of every row, if known without reading every position
  visibility(const attention_options& options, const attention_shape& shape, key_order order)
      : options_(options), shape_(shape), order_(order) {}

  const attention_options& options() const { return options_; }
  const attention_shape& shape() const { return shape_; }

  double scale() const {
    return !equal(options_.scale, 0) || shape_.head_dim == 0
               ? options_.scale
               : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
  }

  /// The position of query i of row b.
  std::int64_t query_position(Index b, Index i) const {
    if (!options_.query_positions.empty()) return listed(options_.query_positions, shape_.queries, b, i);
    const segment s = segment_of(b, i);
    return s.keys - s.queries + (i - s.first_query);
  }
  /// The position of key j of row b.
  std::int64_t key_position(Index b, Index j) const {
    if (!options_.key_positions.empty()) return listed(options_.key_positions, shape_.keys, b, j);
    if (options_.query_offsets.empty()) return j;
    return j - key_offsets_of(options_).around(j).first;
  }

  /// The range of the positions of all queries that have keys in range.
  position_range query_position_range() const {
    position_range range;
    for (Index b = 0; b < shape_.batch; ++b)
      for (Index i = 0; i < shape_.queries; ++i)
        if (!keys_of(b, i).empty()) range.include(query_position(b, i));
    return range;
  }
  /// The range of the positions of all keys.
  position_range key_position_range() const {
    position_range range;
    for (Index b = 0; b < shape_.batch; ++b) {
      const Index count = key_count(b);
      const bool ends_suffice = order_ != key_order::any && options_.query_offsets.empty();
      for (Index j = 0; j < count; j += ends_suffice ? (std::max)(Index{1}, count - 1) : 1)
        range.include(key_position(b, j));
    }
    return range;
  }

  /// The number of keys of row b. Later keys are not read.
  Index key_count(Index b) const { return count_of_row(options_.key_counts, b, shape_.keys); }
  /// Whether query i is after the last query of row b.
  bool is_padding(Index b, Index i) const { return i >= query_count(b); }

  /// The keys in the ranges of query i of row b.
  key_set keys_of(Index b, Index i) const {
    if (is_padding(b, i)) return {0, 0, 0, 0};
    const segment s = segment_of(b, i);
    const Index end = s.first_key + static_cast<Index>(s.keys);
    if (has_key_ranges()) return given_range(b, i, s.first_key, end);
    if (!in_ranges()) return {s.first_key, end, end, end};
    const position_rule admits = rule_of(query_position(b, i));
    const Index after = sum_is_position(admits.near_last, 1) ? key_from(b, s, admits.near_last + 1) : end;
    if (options_.window == 0) return {s.first_key, after, after, after};
    return union_of(key_from(b, s, admits.near_first), after, key_from(b, s, 0),
                    key_from(b, s, admits.sinks_end));
  }

  /// Whether unordered positions make key j of keys_of(b, i) visible to query i.
  bool sees_position(Index b, Index i, Index j) const {
    return in_ranges() || rule_of(query_position(b, i))(key_position(b, j));
  }

  /// The key positions that a query at position `query` may see.
  position_rule rule_of(std::int64_t query) const {
    using limits = std::numeric_limits<std::int64_t>;
    const std::int64_t end = options_.causal ? query : (limits::max)();
    if (options_.window == 0) return {(limits::min)(), end, 0};
    const std::int64_t sinks = options_.sinks;
    return {advance(query, 1 - options_.window), (std::min)(end, advance(query, options_.window - 1)),
            sinks <= end ? sinks : advance(end, 1)};
  }

  /// Whether key j is visible to query i of row b in head h, by all rules.
  bool sees(Index b, Index h, Index i, Index j) const {
    const score_view<bool>& mask = options_.mask;
    const score_view<float>& bias = options_.bias;
    return keys_of(b, i).contains(j) && sees_position(b, i, j) &&
           (!mask || mask.at(b, h, i)[j * mask.key_step()]) &&
           (!bias || !hides(bias.at(b, h, i)[j * bias.key_step()]));
  }

  /// The log-sum-exp of query i of row b in head h. Requires that the options have memory for it.
  double& log_sum_exp(Index b, Index i, Index h) const {
    return options_.log_sum_exp[static_cast<std::size_t>((b * shape_.queries + i) * shape_.heads + h)];
  }

  /// Whether keys are at contiguous positions.
  bool in_order() const { return order_ == key_order::contiguous; }
  /// Whether keys_of() alone decides which keys are visible, except for a mask or a bias. This is so if
  /// ranges are given or key positions do not decrease.
  bool in_ranges() const { return order_ != key_order::any || has_key_ranges(); }

  /// The positions of the keys of row b. Requires that key_positions are given.
  const std::int64_t* listed_key_positions(Index b) const {
    const auto list = options_.key_positions;
    return list.data() + (static_cast<Index>(list.size()) == shape_.keys ? 0 : b * shape_.keys);
  }

  static bool hides(float bias) { return bias < -1e30f; }

 private:
  Index query_count(Index b) const { return count_of_row(options_.query_counts, b, shape_.queries); }

  /// The sequence of a query. If there are query_offsets it is a segment, otherwise a row up to the counts of
  /// this row.
  struct segment {
    Index first_query, queries, first_key;
    std::int64_t keys;
  };

  segment segment_of(Index b, Index i) const {
    if (options_.query_offsets.empty()) return {0, query_count(b), 0, key_count(b)};
    const auto [s, first_query, next_query] = options_.query_offsets.around(i);
    const any_integers& key_offsets = key_offsets_of(options_);
    const std::int64_t first_key = key_offsets[s], next_key = key_offsets[s + 1];
    return {to_index(first_query), to_index(next_query - first_query), to_index(first_key),
            next_key - first_key};
  }

  bool has_key_ranges() const { return !options_.key_ranges.empty(); }
  /// The keys of the given range of query i of row b that are in [begin, end).
  key_set given_range(Index b, Index i, Index begin, Index end) const {
    const auto [first, count] = listed(options_.key_ranges, shape_.queries, b, i);
    const Index from = (std::max)(first, begin), to = (std::max)(from, (std::min)(first + count, end));
    return {from, to, to, to};
  }

  /// The entry of token t of row b in a list that the rows share, or that has entries for each row.
  static auto listed(const auto& list, Index tokens, Index b, Index t) -> decltype(list[0]) {
    const bool shared = static_cast<Index>(list.size()) == tokens;
    return list[static_cast<std::size_t>(shared ? t : b * tokens + t)];
  }

  /// The first key of segment `s` of row b at `position` or later, or the end of the segment. Requires
  /// in_ranges(). Not inline, because keys_of() calls it four times.
  EIGEN_DONT_INLINE Index key_from(Index b, const segment& s, std::int64_t position) const {
    const auto keys = static_cast<Index>(s.keys);
    if (order_ == key_order::ascending) {
      const std::int64_t* list = listed_key_positions(b);
      return to_index(std::lower_bound(list, list + keys, position) - list);
    }
    const std::int64_t start = keys == 0 ? 0 : key_position(b, s.first_key);
    if (position <= start) return s.first_key;
    const auto ahead = static_cast<std::uint64_t>(position) - static_cast<std::uint64_t>(start);
    return s.first_key + (ahead >= static_cast<std::uint64_t>(keys) ? keys : static_cast<Index>(ahead));
  }

  /// The order that the listed positions have in every row. A row has `keys` positions. Positions are read
  /// without branches, 512 at a time, so that compilers vectorise the loop.
  static key_order order_of_lists(const int64_list& list, Index keys) {
    constexpr Index piece = 512;
    key_order order = key_order::contiguous;
    const std::int64_t* const end = list.data() + list.size();
    for (const std::int64_t* row = list.data(); row != end; row += keys)
      for (Index first = 1; first < keys; first += piece) {
        std::uint64_t falls = 0, other_than_one = 0;
        for_each_index(first, (std::min)(first + piece, keys), [&](Index j) {
          const std::uint64_t step =
              static_cast<std::uint64_t>(row[j]) - static_cast<std::uint64_t>(row[j - 1]);
          falls |= std::uint64_t{row[j] < row[j - 1]};
          other_than_one |= step ^ 1u;
        });
        if (falls != 0) return key_order::any;
        if (other_than_one != 0) order = key_order::ascending;
      }
    return order;
  }

  attention_options options_;
  attention_shape shape_;
  key_order order_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_VISIBILITY_HPP
