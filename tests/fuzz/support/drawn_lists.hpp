// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_DRAWN_LISTS_HPP
#define ROPE_TESTS_FUZZ_DRAWN_LISTS_HPP

/// Selected keys for the queries of a call to stored tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <rope/attention/options.hpp>
#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"

namespace fuzz {

using rope::Index;

/// A list for every query of a row, shared by the rows of a batch or not. Key heads share it or have it in
/// orders of their own. Lists of padding, and entries after the end of a list, hold anything.
class drawn_lists {
 public:
  drawn_lists() = default;
  /// \param size_for  size_for(r, i): tokens of row r if i is one of its queries, otherwise -1
  template <class Size>
  drawn_lists(bytes& b, Index batch, Index queries, Index kv_heads, const Size& size_for)
      : is_shared_(b.one_in(3)),
        shape_{(is_shared_ ? 1 : batch) * queries, b.coin() ? kv_heads : 1, 1 + b.up_to(10)} {
    std::uint64_t bits = b.bits(4);
    const auto below = [&](Index n) {
      bits = bits * 6364136223846793005u + 1442695040888963407u;
      return static_cast<Index>((bits >> 33) % static_cast<std::uint64_t>(n));
    };
    for (Index n = 0; n < shape_.queries; ++n) {
      Index size = -1;
      for (Index r = is_shared_ ? 0 : n / queries; r < (is_shared_ ? batch : n / queries + 1); ++r)
        if (const Index of_row = size_for(r, n % queries); of_row >= 0)
          size = size < 0 ? of_row : std::min(size, of_row);
      if (size >= 0 && read_ < 0) read_ = n * shape_.key_heads * shape_.keys;
      std::vector<int> order;
      for (Index t = 0; t < size; ++t) order.push_back(static_cast<int>(t));
      const auto shuffle = [&](Index count) {
        for (Index t = 0; t < count; ++t)
          std::swap(order[static_cast<std::size_t>(t)],
                    order[static_cast<std::size_t>(t + below(static_cast<Index>(order.size()) - t))]);
      };
      shuffle(size);
      order.resize(static_cast<std::size_t>(below(std::min(shape_.keys, std::max(size, Index{0})) + 1)));
      chosen_.push_back(order);
      for (Index kv = 0; kv < shape_.key_heads; ++kv) {
        shuffle(static_cast<Index>(order.size()));
        for (Index j = 0; j < shape_.keys; ++j)
          entries_.push_back(size < 0                                ? 1 << 20
                             : j < static_cast<Index>(order.size())  ? order[static_cast<std::size_t>(j)]
                             : j == static_cast<Index>(order.size()) ? -1
                                                                     : -7);
      }
    }
  }

  explicit operator bool() const { return !entries_.empty(); }
  rope::selected_keys view() const { return {entries_.data(), shape_}; }
  /// Whether query i of row r may attend to token t of the row.
  bool has(Index r, Index i, Index queries, Index t) const {
    const std::vector<int>& list = chosen_[static_cast<std::size_t>((is_shared_ ? 0 : r * queries) + i)];
    return std::find(list.begin(), list.end(), static_cast<int>(t)) != list.end();
  }
  /// Makes one thing wrong, to which the options refer then.
  ///
  /// \param keys  no row has more
  void spoil(bytes& b, Index keys, rope::attention_options& options) {
    switch (b.up_to(read_ < 0 ? 2 : 4)) {
      case 0:
        options.dropout = 0.25;
        break;
      case 1:
        shape_.queries = 3 * shape_.queries + 1;
        break;
      case 2:
        shape_.key_heads += 5;
        break;
      case 3:
        entries_[static_cast<std::size_t>(read_)] = static_cast<int>(keys + b.up_to(2));
        break;
      default:
        entries_[static_cast<std::size_t>(read_)] = static_cast<int>(-2 - b.up_to(2));
    }
    entries_.resize(static_cast<std::size_t>(shape_.queries * shape_.key_heads * shape_.keys));
    options.selected = view();
  }

 private:
  bool is_shared_ = false;
  rope::selected_shape shape_ = {};
  std::vector<int> entries_;              // [queries, key_heads, keys]
  std::vector<std::vector<int>> chosen_;  // of each query
  Index read_ = -1;                       // the first entry that a call reads
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_DRAWN_LISTS_HPP
