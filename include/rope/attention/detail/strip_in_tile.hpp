// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_STRIP_IN_TILE_HPP
#define ROPE_ATTENTION_DETAIL_STRIP_IN_TILE_HPP

#include <cstddef>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/config.hpp>

/// Where the rows of a strip of queries meet a tile of keys, forwards and backwards.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The queries of a strip: row r is head head_of(r) of token token_of(r).
struct strip_rows {
  Index batch_row, first_token, first_head, group, first_row, count;

  Index token_of(Index r) const { return first_token + (first_row + r) / group; }
  Index head_of(Index r) const { return first_head + (first_row + r) % group; }
};

/// A strip of at most `most_rows` queries of a block, and its present tile of keys.
template <Index most_rows>
struct strip_in_tile {
  const visibility& rules;
  strip_rows rows;
  const block_keys& keys;
  Index begin;
  tile_range hull = {0, 0};  // keys of the tile that any row may see
  row_in_tile met[std::size_t(most_rows)];

  strip_in_tile(const block_keys& of, const strip_rows& strip)
      : rules(of.rules()), rows(strip), keys(of), begin(of.begin_of_tile()) {
    for (Index r = 0; r < rows.count; ++r) {
      met[r] = keys.met(rows.token_of(r), rows.head_of(r));
      hull.include(met[r].range);
    }
  }

  /// Marks what row r does not see of its part of the tile, and returns the first key that it sees, or the
  /// end of that part.
  template <class Mark>
  Index mark_hidden(Index r, Mark* hidden) const {
    return find_holes(rules, keys.of(rows.token_of(r)), rows.batch_row, rows.head_of(r), rows.token_of(r),
                      begin, met[r].range, hidden);
  }

  /// The entries of the bias of row r, from that of key 0 on.
  const float* bias_of(Index r) const {
    return rules.options().bias.at(rows.batch_row, rows.head_of(r), rows.token_of(r));
  }

  /// Calls body(j, added) for the keys of the part of row r, where there is a bias.
  void for_each_bias(Index r, const auto& body) const {
    if (const auto& bias = rules.options().bias)
      for_each_entry(bias_of(r), bias.key_step(), begin, met[r].range, body);
  }

  /// Calls body(j, kept) for the keys of the part of row r.
  void for_each_kept(Index r, const auto& body) const {
    for_each_dropout(rules, rows.batch_row, rows.head_of(r), rows.token_of(r), begin, met[r].range, body);
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_STRIP_IN_TILE_HPP
