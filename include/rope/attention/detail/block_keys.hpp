// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_BLOCK_KEYS_HPP
#define ROPE_ATTENTION_DETAIL_BLOCK_KEYS_HPP

#include <algorithm>  // std::min, std::max, std::fill, std::fill_n
#include <cstddef>
#include <cstdint>

#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/dropout.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/score_view.hpp>
#include <rope/base/scratch.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>  // position_range

/// The keys that are visible to a block of queries, and those of the current tile that are visible to each
/// query.
///
/// A block is the query tokens and heads of one task. A strip is the query rows of a block that a kernel
/// processes together, a row being one head of one token. hidden_keys.hpp defines tile and hull.

namespace rope::inline ROPE_ABI::detail {

/// Query tokens [first_token, first_token + tokens) of row b, in `heads` query heads from first_head on. If
/// all of these heads use one key head, it is kv. Row r of a block is head head_of(r) of token token_of(r).
struct query_block {
  Index b, kv, first_head, heads, first_token, tokens;

  Index rows() const { return tokens * heads; }
  Index token_of(Index r) const { return first_token + r / heads; }
  Index head_of(Index r) const { return first_head + r % heads; }
};

/// A block of the `group` query heads of one key head. Key heads are numbered across the batch, row by row.
inline query_block block_of_key_head(Index head, Index kv_heads, Index group, Index first_token,
                                     Index tokens) {
  const Index kv = head % kv_heads;
  return {head / kv_heads, kv, kv * group, group, first_token, tokens};
}

/// Rows [first_row, first_row + count) of a block, numbered from 0.
struct strip_rows {
  query_block block;
  Index first_row, count;

  Index token_of(Index r) const { return block.token_of(first_row + r); }
  Index head_of(Index r) const { return block.head_of(first_row + r); }
};

/// Strip s of a block whose strips have `size` rows, except the last one, which may have fewer.
inline strip_rows strip_of(const query_block& block, Index s, Index size) {
  return {block, s * size, (std::min)(size, block.rows() - s * size)};
}

/// The visible keys of the queries of a block. For the current tile, the object has the visible keys of each
/// query: none, all or some. Positions, segments, window, sinks, mask and bias are evaluated once per tile. A
/// thread may use only one object of this class at a time, because all objects of a thread share its scratch
/// memory.
class block_keys {
 public:
  block_keys(const visibility& rules, const query_block& block)
      : rules_(rules),
        block_(block),
        heads_(differs_by_head(rules.options()) ? block.heads : (std::min)(block.heads, Index{1})),
        keys_(workspace<struct keys_of_tokens, key_set>(block.tokens)),
        range_{rules.shape().keys, 0},
        gap_end_(rules.shape().keys),
        seen_by_all_{0, rules.shape().keys},
        visible_(workspace<struct keys_of_rows, row_in_tile>(block.tokens * heads_)) {
    for (Index t = 0; t < block.tokens; ++t) {
      const key_set keys = keys_[t] = rules.keys_of(block.b, block.first_token + t);
      seen_by_all_ = {(std::max)(seen_by_all_.first, keys.hull_begin()),
                      (std::min)(seen_by_all_.last, keys.hull_end())};
      if (keys.gap_begin < keys.gap_end) gaps_.include({keys.gap_begin, keys.gap_end});
      if (keys.empty()) continue;
      range_.include({keys.hull_begin(), keys.hull_end()});
      gap_begin_ = (std::max)(gap_begin_, keys.gap_begin);
      gap_end_ = (std::min)(gap_end_, keys.gap_end);
    }
  }

  const visibility& rules() const { return rules_; }
  /// Whether visible keys may differ between heads.
  static bool differs_by_head(const attention_options& options) {
    return (options.mask && options.mask.heads != 1) || (options.bias && options.bias.heads != 1);
  }
  /// The first key that may be visible to some query.
  Index begin() const { return range_.first; }
  /// One past the last key that may be visible to some query.
  Index end() const { return range_.last; }
  /// The ranges of keys of a query token. A mask, a bias or unordered positions may hide some of these keys.
  const key_set& of(Index token) const { return keys_[token - block_.first_token]; }

  /// Enters every tile of `size` keys in which a key may be visible to some query, and calls tile(begin,
  /// count) for it. The last tile ends at end(). Tiles begin at multiples of their size, so results do not
  /// depend on how queries are split into blocks.
  void for_each_tile(Index size, const auto& tile) {
    for (Index n = begin() / size; n * size < end(); ++n) {
      // No key between the sinks and the window is visible.
      if (n * size >= gap_begin_ && n * size < gap_end_) n = gap_end_ / size;
      const Index count = (std::min)(size, end() - n * size);
      if (enter_tile(n * size, count)) tile(n * size, count);
    }
  }

  /// Makes keys [begin, begin + count) the current tile. Returns false if no key of the tile is visible to
  /// any query.
  bool enter_tile(Index begin, Index count) {
    begin_of_tile_ = begin;
    if (is_seen_by_all(begin, begin + count)) {
      if (!all_see_all_ || hull_.last != count)
        std::fill_n(visible_, block_.tokens * heads_, row_in_tile{{0, count}, false});
      hull_ = {0, count};
      all_see_all_ = true;
      return true;
    }
    hull_ = {0, 0};
    all_see_all_ = true;
    position_range held;  // of the tile's key positions if they are unordered
    if (!rules_.in_ranges()) {
      const std::int64_t* positions = rules_.listed_key_positions(block_.b) + begin;
      for_each_index(0, count, [&](Index j) { held.include(positions[j]); });
    }
    for (Index t = 0; t < block_.tokens; ++t)
      for (Index h = 0; h < heads_; ++h) {
        const row_in_tile visible = visible_[t * heads_ + h] = find_visible(t, h, count, held);
        all_see_all_ = all_see_all_ && visible.sees_all(count);
        hull_.include(visible.range);
      }
    return !hull_.empty();
  }

  Index begin_of_tile() const { return begin_of_tile_; }
  /// The keys of the tile that may be visible to some query.
  const tile_range& hull() const { return hull_; }
  bool all_see_all() const { return all_see_all_; }
  /// The keys of the tile visible to one query.
  const row_in_tile& visible_in_tile(Index token, Index head) const {
    return visible_[(token - block_.first_token) * heads_ + (heads_ == 1 ? 0 : head - block_.first_head)];
  }

 private:
  /// Whether the ranges of keys alone show that keys [begin, end) are visible to every query. If they do,
  /// queries are not checked one by one. This holds for most tiles of causal attention.
  bool is_seen_by_all(Index begin, Index end) const {
    const bool by_keys = rules_.in_ranges() && !rules_.options().mask && !rules_.options().bias;
    return by_keys && begin >= seen_by_all_.first && end <= seen_by_all_.last &&
           (gaps_.empty() || end <= gaps_.first || begin >= gaps_.last);
  }

  /// \param held  the range of the tile's key positions if they are unordered, otherwise empty
  row_in_tile find_visible(Index t, Index h, Index count, const position_range& held) const {
    row_in_tile visible = keys_in_tile(keys_[t], begin_of_tile_, count);
    const Index b = block_.b, head = block_.first_head + h, token = block_.first_token + t;
    if (!held.empty() && !visible.range.empty()) {
      const position_rule admits = rules_.rule_of(rules_.query_position(b, token));
      const std::int64_t* positions = rules_.listed_key_positions(b) + begin_of_tile_;
      if (!admits.overlaps(held.smallest, held.largest)) return {{0, 0}, false};
      if (!admits.covers(held.smallest, held.largest))
        hide(visible, [&](Index j) { return !admits(positions[j]); });
    }
    if (const auto& mask = rules_.options().mask; mask && !visible.range.empty()) {
      const bool* row = mask.at(b, head, token) + begin_of_tile_ * mask.key_step();
      if (mask.key_step() == 1)
        hide(visible, row);
      else
        hide(visible, [&](Index j) { return !row[j * mask.key_step()]; });
    }
    if (const auto& bias = rules_.options().bias; bias && !visible.range.empty()) {
      const float* row = bias.at(b, head, token) + begin_of_tile_ * bias.key_step();
      if (bias.key_step() == 1)
        hide(visible, [&](Index j) { return visibility::hides(row[j]); });
      else
        hide(visible, [&](Index j) { return visibility::hides(row[j * bias.key_step()]); });
    }
    return visible;
  }

  const visibility& rules_;
  query_block block_;
  Index heads_;                    // 1 if all heads see the same keys
  key_set* keys_;                  // [tokens]
  tile_range range_;               // contains the keys that may be visible to some query
  Index gap_begin_ = 0, gap_end_;  // keys [gap_begin, gap_end) are hidden from all queries
  tile_range seen_by_all_;         // visible to every query, except its gap
  tile_range gaps_ = {0, 0};       // contains the gaps of all queries

  // The current tile.
  Index begin_of_tile_ = 0;
  tile_range hull_ = {0, 0};
  bool all_see_all_ = false;
  row_in_tile* visible_;  // [tokens, heads]
};

/// A strip of at most `max_rows` queries of a block, and, for each query, the visible keys of the current
/// tile.
template <Index max_rows>
struct strip_in_tile {
  const visibility& rules;
  strip_rows rows;
  const block_keys& keys;
  Index begin;
  tile_range hull = {0, 0};  // keys of the tile that may be visible to some row
  row_in_tile visible[std::size_t(max_rows)];

  strip_in_tile(const block_keys& of, const strip_rows& strip)
      : rules(of.rules()), rows(strip), keys(of), begin(of.begin_of_tile()) {
    if (keys.all_see_all()) {
      std::fill_n(visible, rows.count, row_in_tile{keys.hull(), false});
      hull = keys.hull();
      return;
    }
    for (Index r = 0; r < rows.count; ++r) {
      visible[r] = keys.visible_in_tile(rows.token_of(r), rows.head_of(r));
      hull.include(visible[r].range);
    }
  }

  const attention_options& options() const { return rules.options(); }

  /// For each key j in the range of row r, sets hidden[j] to 1 if the key is hidden from the row, otherwise
  /// to 0. Returns the first visible key, or the end of the range.
  template <class Mark>
  Index mark_hidden(Index r, Mark* hidden) const {
    const Index token = rows.token_of(r);
    const tile_range range = visible[r].range;
    const key_set& of_query = keys.of(token);
    std::fill(hidden + range.first, hidden + range.last, Mark{0});
    const Index gap = (std::min)((std::max)(range.first, of_query.gap_begin - begin), range.last);
    std::fill(hidden + gap, hidden + (std::max)(gap, (std::min)(range.last, of_query.gap_end - begin)),
              Mark{1});
    if (!rules.in_ranges()) {
      const position_rule admits = rules.rule_of(rules.query_position(rows.block.b, token));
      const std::int64_t* positions = rules.listed_key_positions(rows.block.b) + begin;
      for_each_index(range.first, range.last, [&](Index j) { hidden[j] |= Mark{!admits(positions[j])}; });
    }
    if (const auto& mask = options().mask)
      for_each_entry(entries_of(mask, r), mask.key_step(), begin, range,
                     [&](Index j, bool seen) { hidden[j] |= Mark{!seen}; });
    for_each_bias(r, [&](Index j, float added) { hidden[j] |= Mark{visibility::hides(added)}; });
    Index first = range.first;
    while (first < range.last && hidden[first]) ++first;
    return first;
  }

  /// The entries of a mask or bias of row r, starting with key 0.
  template <class X>
  const X* entries_of(const score_view<X>& scores, Index r) const {
    return scores.at(rows.block.b, rows.head_of(r), rows.token_of(r));
  }

  /// If there is a bias, calls body(j, bias of key j) for the keys in the range of row r.
  void for_each_bias(Index r, const auto& body) const {
    if (const auto& bias = options().bias)
      for_each_entry(entries_of(bias, r), bias.key_step(), begin, visible[r].range, body);
  }

  /// Calls body(j, kept) for the keys in the range of row r. `kept` is false if dropout drops the weight of
  /// key j.
  void for_each_kept(Index r, const auto& body) const {
    const Index b = rows.block.b, token = rows.token_of(r);
    const tile_range range = visible[r].range;
    const auto mask = dropout_mask(options().dropout, options().dropout_seed)
                          .row_of(b, rows.head_of(r), rules.query_position(b, token));
    if (rules.in_order()) {
      const auto first = static_cast<std::uint64_t>(rules.key_position(b, begin + range.first));
      for_each_index(range.first, range.last, [&](Index j) {
        body(j, mask.keeps(static_cast<std::int64_t>(first + static_cast<std::uint64_t>(j - range.first))));
      });
    } else {
      const std::int64_t* positions = rules.listed_key_positions(b) + begin;
      for_each_index(range.first, range.last, [&](Index j) { body(j, mask.keeps(positions[j])); });
    }
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_BLOCK_KEYS_HPP
