// SPDX-License-Identifier: MIT
// A call without counts refers to the tokens of the last append, as far as each row took and kept them,
// whatever other calls changed the cache. If the rows changed so differently that the tokens are ambiguous,
// it throws.
#include <rope/block/multi_head_attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

using namespace rope;
using namespace decoder_step;

namespace {

constexpr Index capacity = 60, window = 6;

/// A cache and, per row, its tokens, each with the column of `append` from which it came.
template <class Cache>
class decoder {
 public:
  static constexpr bool is_ring = std::is_same_v<Cache, ring_cache<float>>;

  decoder(std::uint64_t seed, Cache cache)
      : numbers_(seed),
        generator_(static_cast<std::uint32_t>(seed)),
        m_(model_of<half_split>(2, plain)),
        cache_(std::move(cache)),
        rows_(static_cast<std::size_t>(cache_.batch())),
        columns_(rows_.size()) {}

  std::size_t up_to(std::size_t largest) {
    return static_cast<std::size_t>(numbers_.integer(0, static_cast<std::int64_t>(largest)));
  }

  void append() {
    const std::size_t tokens = up_to(4);
    const bool padded = up_to(1) == 0, at = !is_ring && up_to(3) == 0;
    if (std::any_of(rows_.begin(), rows_.end(),
                    [&](const auto& row) { return row.size() + tokens > std::size_t(capacity); }))
      return;
    rows added(rows_.size());
    bool full = true;
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      const std::size_t count = padded ? up_to(tokens) : tokens;
      full = full && count == tokens;
      for (std::size_t i = 0; i < count; ++i) {
        const long long position = (at ? 300 : cache_.next_positions()[b]) + static_cast<long long>(i);
        added[b].push_back(reference::random_token<float>(generator_, m_, position));
        rows_[b].push_back(added[b].back());
        columns_[b].push_back(next_column_ + i);
      }
    }
    next_column_ += tokens;
    last_ = tokens;
    forgot_ = false;
    even_ = full ? even_ + tokens : 0;
    step<float> now(m_, added, static_cast<Index>(tokens));
    const detail::row_counts counts = padded ? detail::row_counts(now.counts) : detail::row_counts();
    const bool raw = cache_.storage() == key_storage::raw;
    if constexpr (!is_ring) {
      if (at && raw) return cache_.append_at(now.keys(), now.values(), 300, counts);
      if (at) return cache_.template append_at<half_split>(now.keys(), now.values(), table_, 300, counts);
    }
    testing::append_tokens<half_split>(cache_, now.keys(), now.values(), table_, counts);
  }

  /// Drops tokens of one row, or of all rows if they are equally long.
  void forget() {
    const std::size_t one = up_to(rows_.size() - 1);
    const bool all = up_to(1) == 0 && std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) {
                       return row.size() == rows_[0].size();
                     });
    const std::size_t size = rows_[one].size();
    std::size_t last = size, first = size - up_to((std::min)(size, std::size_t(3)));
    if (!is_ring && up_to(2) == 0) {
      first = up_to(size);
      last = first + up_to(size - first);
    }
    const batch_row row = all ? every_row : batch_row{static_cast<Index>(one)};
    if constexpr (is_ring) {
      try {
        cache_.truncate(static_cast<std::int64_t>(first), row);
      } catch (const std::out_of_range&) {
        return;  // the window of the next query is overwritten
      }
    } else if (last == size) {
      cache_.truncate(static_cast<Index>(first), row);
    } else {
      cache_.remove(static_cast<Index>(first), static_cast<Index>(last - first), row);
    }
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      if (!all && b != one) continue;
      const auto erase = [&](auto& list) {
        list.erase(list.begin() + static_cast<long>(first), list.begin() + static_cast<long>(last));
      };
      erase(rows_[b]);
      erase(columns_[b]);
    }
    even_ = 0;
    forgot_ = true;
  }

  void shift() {
    if constexpr (!is_ring) {
      const std::size_t b = up_to(rows_.size() - 1), first = up_to(rows_[b].size()),
                        last = first + up_to(rows_[b].size() - first);
      const auto delta = static_cast<long long>(up_to(5)) - 2;
      for (std::size_t t = first; t < last; ++t) rows_[b][t].position += delta;
      cache_.template shift<half_split>(static_cast<Index>(first), static_cast<Index>(last - first), delta,
                                        table_, batch_row{static_cast<Index>(b)});
      ++rotations_;
    }
  }

  void clear() {
    cache_.clear();
    for (auto& row : rows_) row.clear();
    for (auto& row : columns_) row.clear();
    even_ = last_ = 0;
    forgot_ = false;
  }

  void attend() {
    const std::size_t queries = up_to(2) == 0 ? up_to(6) : last_;
    // Either the newest tokens of all rows came from the same columns, or the tokens that each row has of the
    // last append are the beginning of its columns.
    rows newest(rows_.size()), kept(rows_.size());
    bool aligned = true, begins = queries == last_;
    for (std::size_t b = 0; b < rows_.size(); ++b) {
      const std::size_t size = rows_[b].size();
      aligned = aligned && size >= queries;
      if (aligned) newest[b].assign(rows_[b].end() - static_cast<long>(queries), rows_[b].end());
      for (std::size_t i = 0; aligned && i < queries; ++i)
        aligned = columns_[b][size - queries + i] == columns_[0][rows_[0].size() - queries + i];
      std::size_t of_last = 0;
      while (of_last < size && columns_[b][size - 1 - of_last] + last_ >= next_column_) ++of_last;
      kept[b].assign(rows_[b].end() - static_cast<long>(of_last), rows_[b].end());
      for (std::size_t i = 0; i < of_last; ++i)
        begins = begins && columns_[b][size - of_last + i] == next_column_ - last_ + i;
    }
    const bool same = aligned && begins && sizes(newest) == sizes(kept);
    if (aligned && begins && !same) return;  // rows lost the same tokens, one by one or together
    const rows& asking = begins ? kept : newest;
    step<float> now(m_, asking, static_cast<Index>(queries));
    CAPTURE(queries, last_, even_, aligned, begins, now.counts);
    try {
      attention<half_split>(now.queries(), cache_, now.output(), table_);
    } catch (const std::invalid_argument& error) {
      const std::string text = error.what();
      CAPTURE(text);
      if (text.find("tokens per call") != std::string::npos) return;
      if (text.find("append the keys of the queries before") != std::string::npos) {
        CHECK(!aligned);
        return;
      }
      CHECK(text.find("rope::attention: the rows differ in the tokens that they took or lost; give counts") ==
            0);
      CHECK(!(begins && !forgot_));
      CHECK(!(aligned && queries <= even_ && !forgot_));
      ++rejected;
      return;
    }
    ++answered;
    CHECK((aligned || begins));
    if (!aligned && !begins) return;
    const bool rotated = cache_.storage() == key_storage::rotated;
    const double bound = reference::decoder_bound<float, float>(m_, capacity, rotations_, rotated);
    CHECK(now.worst_by_position(bound, asking, rows_, is_ring ? window : 0) <= 1);
  }

  int answered = 0, rejected = 0;

 private:
  static std::vector<std::size_t> sizes(const rows& of) {
    std::vector<std::size_t> result;
    for (const auto& row : of) result.push_back(row.size());
    return result;
  }

  testing::random numbers_;
  std::mt19937 generator_;
  reference::model m_;
  frequency_table<float> table_{plain, -100, 500};
  Cache cache_;
  rows rows_;
  std::vector<std::vector<std::size_t>> columns_;
  std::size_t next_column_ = 0, last_ = 0, even_ = 0;
  long rotations_ = 0;
  bool forgot_ = false;
};

template <class Cache>
void check_decoder(std::uint64_t seed, const Cache& cache, int& answered, int& rejected) {
  decoder<Cache> d(seed, cache);
  CAPTURE(seed, cache.batch(), cache.storage() == key_storage::raw);
  for (int i = 0; i < 25; ++i) {
    d.append();
    for (std::size_t more = d.up_to(2); more > 0; --more) d.attend();
    if (d.up_to(3) == 0) d.forget();
    if (d.up_to(5) == 0) d.shift();
    if (d.up_to(30) == 0) d.clear();
    d.attend();
  }
  answered += d.answered;
  rejected += d.rejected;
}

}  // namespace

TEST_CASE("a call without counts refers to the tokens of the last append, or throws", "[cache]") {
  int answered = 0, rejected = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const key_storage storage = seed % 2 == 0 ? key_storage::raw : key_storage::rotated;
    const auto batch = static_cast<Index>(1 + seed % 3);
    check_decoder(seed, kv_cache<float>(batch, capacity, 2, 8, 5, storage), answered, rejected);
    check_decoder(seed + 1000, ring_cache<float>(batch, {.window = window, .chunk = 12}, 2, 8, 5, storage),
                  answered, rejected);
  }
  // Both cases occur, so that the test covers both.
  CHECK(answered > 1000);
  CHECK(rejected > 50);
}

TEST_CASE("cached attention needs no counts after padded chunks", "[cache]") {
  // Row 0 has 5 tokens and row 1 has 8, in chunks of 4.
  const reference::model m = model_of<half_split>(2, plain);
  const frequency_table<> table(plain, 20);
  std::mt19937 generator(7);
  rows all(2);
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t i = 0; i < (b == 0 ? 5 : 8); ++i)
      all[b].push_back(reference::random_token<float>(generator, m, static_cast<long long>(i)));
  kv_cache<float> cache(2, 8, 2, 8, 5);
  for (const std::size_t first : {std::size_t(0), std::size_t(4)}) {
    rows added(2);
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t i = first; i < (std::min)(first + 4, all[b].size()); ++i)
        added[b].push_back(all[b][i]);
    step<float> now(m, added);
    cache.append<half_split>(now.keys(), now.values(), table, now.counts);
    attention<half_split>(now.queries(), cache, now.output(), table);
    const double bound = reference::decoder_bound<float, float>(m, 8, 0, true);
    CAPTURE(first);
    CHECK(now.worst_by_position(bound, added, all) <= 1);
  }
}

TEST_CASE("a block passes its counts to the cache", "[cache]") {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const std::vector<float> channels = testing::random_channels<float>(2 * 4 * 16, 3);
  const matrix w = matrix::Identity(16, 16);
  const projection<const float> weight = {w.data(), 16, 16};
  const multi_head_attention<float, half_split> block({.q = weight, .k = weight, .v = weight, .o = weight},
                                                      {.heads = 2, .kv_heads = 2});
  const Eigen::Map<const matrix> x(channels.data(), 8, 16);
  const frequency_table<> table(frequencies(8), 20);
  const std::vector<Index> counts = {1, 4};
  kv_cache<float> cache(2, 20, 2, 8);
  matrix expected(8, 16), out(8, 16);
  block.forward(x, cache, expected, table);
  CHECK(cache.query_counts(4).empty());
  block.forward(x, cache, expected, table, counts);
  const std::span<const Index> known = cache.query_counts(4);
  CHECK(std::vector<Index>(known.begin(), known.end()) == counts);
  // The weights are the identity, so the block is its attention.
  attention<half_split>(bshd(channels.data(), 2, 4, 2, 8), cache, bshd(out.data(), 2, 4, 2, 8), table);
  CHECK(testing::same_bits(out.data(), expected.data(), out.size()));
  // With fewer or more queries it is ambiguous which tokens they are.
  const auto rejected = [&](Index queries) {
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { (void)cache.query_counts(queries); },
        "rope::attention: the rows differ in the tokens that they took or lost; give counts, how many "
        "queries each row has, or q.tokens of 4, got " +
            std::to_string(queries)));
  };
  rejected(1);
  rejected(5);
  block.forward(x.topRows(2), cache, out.topRows(2), table);
  CHECK(cache.query_counts(1).empty());
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { (void)cache.query_counts(4); },
      "how many queries each row has, or q.tokens of at most 1, got 4"));
  const auto none = bshd(channels.data(), 2, 0, 2, 8);
  cache.append<half_split>(none, none, table);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { (void)cache.query_counts(4); },
      "how many queries each row has, or q.tokens of at most 1, got 4"));
  cache.clear();
  CHECK(cache.query_counts(9).empty());
}
