// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_CACHE_HISTORY_HPP
#define ROPE_TESTS_CACHE_HISTORY_HPP

/// A kv_cache with two rows. After any calls it is compared with lists of tokens, and with attention by its
/// definition.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"

namespace decoder_step {

using positions = std::vector<std::int64_t>;

template <class Layout, class T, class C>
class cache_history {
 public:
  cache_history(std::uint32_t seed, std::size_t heads, key_storage storage, const frequencies& f,
                double softcap = 0)
      : generator_(seed),
        m_(model_of<Layout>(heads, f, softcap)),
        table_(f, -400, 400),
        cache_(2, capacity, 2, 8, 5, storage),
        rows_(2) {}

  /// Appends some tokens to every row and attends to all of them.
  void append(const std::vector<std::size_t>& counts, Index window = 0) {
    std::vector<positions> at(2);
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t i = 0; i < counts[b]; ++i) at[b].push_back(next_of(b) + static_cast<std::int64_t>(i));
    take(at, window, [&](const step<T>& now) {
      const std::vector<Index> none, &given = counts[0] == counts[1] ? none : now.counts;
      testing::append_tokens<Layout>(cache_, now.keys(), now.values(), table_, given);
    });
  }
  /// Appends tokens[b] of row b at the positions that `given` describes, in one of its forms.
  template <class P>
  void append_at(const P& given, const std::vector<positions>& tokens, Index window = 0) {
    take(tokens, window, [&](const step<T>& now) {
      if (raw())
        cache_.append_at(now.keys(), now.values(), given, now.counts);
      else
        cache_.template append_at<Layout>(now.keys(), now.values(), table_, given, now.counts);
    });
  }
  void shift(std::size_t b, std::size_t first, std::size_t last, std::int64_t delta) {
    for (std::size_t t = first; t < last; ++t) rows_[b][t].position += delta;
    cache_.template shift<Layout>(index(first), index(last - first), delta, table_, batch_row{index(b)});
    ++rotations_;
    check_contents();
  }
  void remove(std::size_t b, std::size_t first, std::size_t last) {
    rows_[b].erase(rows_[b].begin() + static_cast<long>(first), rows_[b].begin() + static_cast<long>(last));
    cache_.remove(index(first), index(last - first), batch_row{index(b)});
    check_contents();
  }
  void truncate(std::size_t b, std::size_t size) {
    rows_[b].resize(size);
    cache_.truncate(index(size), batch_row{index(b)});
    check_contents();
  }
  std::size_t size(std::size_t b) const { return rows_[b].size(); }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(generator_() % n); }

  static constexpr Index capacity = 40;

 private:
  static Index index(std::size_t i) { return static_cast<Index>(i); }
  bool raw() const { return cache_.storage() == key_storage::raw; }
  std::int64_t next_of(std::size_t b) const {
    std::int64_t next = rows_[b].empty() ? 0 : rows_[b][0].position + 1;
    for (const auto& token : rows_[b]) next = (std::max)(next, std::int64_t{token.position} + 1);
    return next;
  }
  template <class Append>
  void take(const std::vector<positions>& tokens, Index window, const Append& append_to_cache) {
    rows added(2);
    for (std::size_t b = 0; b < 2; ++b)
      for (const std::int64_t position : tokens[b]) {
        added[b].push_back(reference::random_token<C>(generator_, m_, position));
        rows_[b].push_back(added[b].back());
      }
    step<T> now(m_, added);
    append_to_cache(now);
    check_contents();
    attention<Layout>(now.queries(), cache_, now.output(), table_, {.window = window, .softcap = m_.softcap},
                      now.counts);
    const double bound = reference::decoder_bound<T, C>(m_, capacity, rotations_, !raw());
    CHECK(now.worst_by_position(bound, added, rows_, window) <= 1);
  }
  void check_contents() const {
    for (std::size_t b = 0; b < 2; ++b) {
      CHECK(cache_.size(index(b)) == index(size(b)));
      CHECK(cache_.next_positions()[b] == next_of(b));
      const auto held = cache_.positions(index(b));
      const auto values = cache_.values(index(b));
      bool same = held.size() == size(b);
      for (std::size_t t = 0; same && t < size(b); ++t) {
        same = same && held[t] == rows_[b][t].position;
        for (std::size_t d = 0; d < m_.kv_heads * m_.value_dim; ++d)
          same = same && static_cast<double>(values.at(
                             0, index(t), index(d / m_.value_dim))[d % m_.value_dim]) == rows_[b][t].v[d];
      }
      CHECK(same);
    }
  }

  std::mt19937 generator_;
  reference::model m_;
  frequency_table<entry<T>> table_;
  kv_cache<C> cache_;
  rows rows_;
  long rotations_ = 0;
};

}  // namespace decoder_step

#endif  // ROPE_TESTS_CACHE_HISTORY_HPP
