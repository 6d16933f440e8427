// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_BLOCK_KEYS_HPP
#define ROPE_ATTENTION_DETAIL_BLOCK_KEYS_HPP

#include <algorithm>  // std::min, std::max, std::minmax_element
#include <cstdint>

#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>  // position_range

/// Which keys a block of queries sees, and in which tiles they are.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The keys of query tokens [first, first + tokens) of row b.
class block_keys {
 public:
  /// \param of_token  [tokens], receives the keys of each; outlives this
  block_keys(const visibility& rules, Index b, Index first, Index tokens, key_set* of_token)
      : rules_(rules),
        b_(b),
        tokens_(tokens),
        of_token_(of_token),
        begin_(rules.shape().keys),
        gap_end_(rules.shape().keys) {
    for (Index t = 0; t < tokens; ++t) {
      const key_set keys = of_token[t] = rules.keys_of(b, first + t);
      if (keys.empty()) continue;
      positions_.include(rules.query_position(b, first + t));
      begin_ = (std::min)(begin_, keys.hull_begin());
      end_ = (std::max)(end_, keys.hull_end());
      gap_begin_ = (std::max)(gap_begin_, keys.gap_begin);
      gap_end_ = (std::min)(gap_end_, keys.gap_end);
    }
  }

  /// All that any query may see lies in [begin, end).
  Index begin() const { return begin_; }
  Index end() const { return end_; }

  /// Calls tile(begin, count) for every tile of `size` keys of which a query may see one; the last tile ends
  /// with the keys. Tiles begin at multiples of their size, so that how queries are cut into blocks never
  /// shows.
  void for_each_tile(Index size, const auto& tile) const {
    for (Index n = begin_ / size; n * size < end_; ++n) {
      // Nothing is seen between the sinks and the window.
      if (n * size >= gap_begin_ && n * size < gap_end_) n = gap_end_ / size;
      const Index count = (std::min)(size, end_ - n * size);
      if (any_sees(n * size, count)) tile(n * size, count);
    }
  }

 private:
  /// Whether ranges of keys, and listed positions, leave a key of the tile to some query.
  bool any_sees(Index begin, Index count) const {
    bool met = false;
    for (Index t = 0; t < tokens_ && !met; ++t) met = !meet(of_token_[t], begin, count, false).range.empty();
    if (!met || rules_.in_order()) return met;
    const std::int64_t* keys = rules_.listed_key_positions(b_) + begin;
    const auto [low, high] = std::minmax_element(keys, keys + count);
    return rules_.rule_of(positions_.smallest, positions_.largest).meets(*low, *high);
  }

  const visibility& rules_;
  Index b_, tokens_;
  const key_set* of_token_;
  Index begin_, end_ = 0;
  Index gap_begin_ = 0, gap_end_;  // no query sees keys [gap_begin, gap_end)
  position_range positions_;       // of queries that may see a key
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_BLOCK_KEYS_HPP
