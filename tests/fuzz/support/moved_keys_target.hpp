// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_MOVED_KEYS_TARGET_HPP
#define ROPE_TESTS_FUZZ_MOVED_KEYS_TARGET_HPP

/// Changes of the tokens of a kv_cache or latent_cache: their keys rotate to other positions or another
/// table, rows and caches are copied, and the newest tokens are the queries.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <rope/cache/policy.hpp>

#include "fuzz/support/asked_queries.hpp"
#include "fuzz/support/positioned_target.hpp"

namespace fuzz {

template <class Cache>
class moved_keys_target : public positioned_target<Cache> {
  using base = positioned_target<Cache>;

 protected:
  using base::b_, base::batch_, base::cache_, base::rows_, base::rejected, base::at, base::size, base::empty,
      base::is_by, base::raw, base::rotation_, base::shape_;
  using base::base;
  using typename base::T;

  /// Errors of a cache for any contents.
  virtual void misuse() = 0;
  virtual void attend() = 0;

  /// \param kind  0 to 15
  void take_step(long kind) {
    switch (kind) {
      case 0:
      case 1:
      case 2:
      case 3:
        return with_type_of_new<T>(b_, [&]<class K>(K) { this->template append<K>(); });
      case 4:
        return this->truncate();
      case 5:
        return this->remove();
      case 6:
        return shift();
      case 7:
        return rebase();
      case 8:
        return copy_or_clear();
      case 9:
        return misuse();
      case 12:
        return copy_rows();
      case 13:
        return this->evict([this](Index r) { return static_cast<double>(this->next(r) - 1); });
      case 14:
        return b_.coin() ? this->reserve() : this->take_row();
      case 15:
        return with_type_of_new<T>(b_, [&]<class K>(K) { this->template append<K>(true); });
      default:
        return attend();
    }
  }

  void shift() {
    const rope::batch_row r = this->draw_row();
    const auto [first, count] = this->draw_range(r);
    const bool by_table = b_.one_in(8) ? raw() : !raw(),
               interleaved_one = b_.one_in(8) ? b_.coin() : rotation_.interleaved;
    const std::int64_t delta = b_.one_in(5) ? b_.integer() : b_.between(-4, 4);
    const auto table = b_.one_in(8) ? static_cast<std::size_t>(b_.up_to(5)) : rotation_.table;
    const long form = this->draw_form();
    const auto call = [&, from = first, n = count] {
      if (!by_table) return cache_.shift(from, n, delta, r);
      with_layout(interleaved_one, [&]<class Layout>(Layout) {
        this->with_table(table, form,
                         [&](const auto& by) { cache_.template shift<Layout>(from, n, delta, by, r); });
      });
    };
    if (by_table && form == 2)
      return rejected(invalid_argument, "a table that does not rotate the part is rejected", call);
    if (!by_table && !raw())
      return rejected(invalid_argument, "rotated keys are not shifted without their table", call);
    if (!raw() && !empty() && !is_by(table, interleaved_one))
      return rejected(invalid_argument, "keys of another rotation are not shifted", call);
    if (!raw() && !cache_tables().exact(table))
      return rejected(invalid_argument, "angles that are not exact are not shifted", call);
    if (this->rejected_rows(r, call)) return;
    if (!this->is_range(r, first, count))
      return rejected(out_of_range, "tokens that are not held throw", call);
    bool stays = true;
    const auto move = [&](std::int64_t position) {
      stays = stays && delta >= -furthest - position && delta <= furthest - position;
    };
    this->for_tokens(r, first, count, [&](const positioned_token& one) { move(one.position); });
    this->for_rows(r, [&, from = first, n = count](const auto& of) {
      if (this->moves_evicted(of, from, n)) move(static_cast<std::int64_t>(of.evicted));
    });
    if (!stays) return rejected(out_of_range, "positions beyond 2^53 throw", call);
    if (!raw() && std::abs(delta) > exact_position) return;
    call();
    this->for_rows(r, [&, from = first, n = count](auto& of) {
      if (this->moves_evicted(of, from, n))
        of.evicted = static_cast<double>(static_cast<std::int64_t>(of.evicted) + delta);
    });
    this->for_tokens(r, first, count, [&](positioned_token& one) {
      one.position += delta;
      if (!raw() && delta != 0)
        fuzz::rotate_key<T>(one.k, static_cast<std::size_t>(shape_.head_dim()), rule(table, interleaved_one),
                            delta, false);
    });
  }

  void rebase() {
    const auto from = b_.one_in(6) ? static_cast<std::size_t>(b_.up_to(5)) : rotation_.table;
    const auto to = static_cast<std::size_t>(b_.one_in(6) ? b_.up_to(5) : b_.up_to(2));
    const bool interleaved_one = b_.one_in(8) ? b_.coin() : rotation_.interleaved;
    const bool other_pairs = b_.one_in(16);
    const position_tables& all = cache_tables();
    const auto call = [&] {
      with_layout(interleaved_one, [&]<class Layout>(Layout) {
        cache_.template rebase<Layout>(all[from], other_pairs ? all.of_more_pairs : all[to]);
      });
    };
    if (raw() || !(empty() || is_by(from, interleaved_one)) || other_pairs || !all.exact(from) ||
        !all.exact(to))
      return rejected(invalid_argument, "keys are rebased from their own table to one of exact angles", call);
    for (const auto& of : rows_)
      for (const positioned_token& one : of)
        if (std::abs(one.position) > exact_position) return;
    call();
    const rotation_rule back = rule(from, interleaved_one), there = rule(to, interleaved_one);
    for (auto& of : rows_)
      for (positioned_token& one : of) rebase_key<T>(one.k, shape_.head_dim(), back, there, one.position);
    rotation_.table = to;
    rotation_.interleaved = interleaved_one;
  }
  rotation_rule rule(std::size_t table, bool interleaved_one) const {
    return cache_tables().rule(table, interleaved_one, shape_.first_channel);
  }

  void copy_or_clear() {
    switch (b_.up_to(4)) {
      case 0:
        this->appends_.last_width = 0;
        return this->clear();
      case 1:
        return this->copy_and_clear();
      case 2:
        return this->move_and_back();
      case 3: {
        Cache other(1, 2, 1, 4);
        other = cache_;
        cache_.clear();
        cache_ = other;
        return;
      }
      default:
        return this->assign_to_itself();
    }
  }
  void copy_rows() {
    if (b_.coin()) {
      const Index from = this->draw_index(8), to = this->draw_index(8);
      return this->copy_row(from, to);
    }
    std::vector<int> from;
    for (Index r = 0; r < batch_; ++r)
      from.push_back(static_cast<int>(b_.one_in(16) ? b_.between(-2, 5) : b_.up_to(long(batch_) - 1)));
    this->reorder(from, b_.one_in(12));
  }

  /// Calls that are invalid for any contents of the cache, with tables that fit it.
  void ask_what_is_wrong() {
    this->call_with_no_row();
    static const Index negative[] = {-1, -1000};
    rejected(invalid_argument, "a negative extent throws", [&] {
      Index extents[] = {1, 1, 1, 1};
      extents[b_.up_to(3)] = b_.one_of(negative);
      Cache bad(extents[0], extents[1], extents[2], extents[3]);
    });
    rejected(length_error, "more than the address space throws", [&] {
      Index extents[] = {2, 2, 2, 2};
      extents[b_.up_to(3)] = std::numeric_limits<Index>::max() / 4;  // of a byte too
      Cache bad(extents[0], extents[1], extents[2], extents[3]);
    });
    for (std::size_t i = 0; i < cache_tables().all.size() && !raw(); ++i)
      check(takes<rope::half_split>(cache_, cache_tables()[i]) == (empty() || is_by(i, false)) &&
                takes<rope::interleaved>(cache_, cache_tables()[i]) == (empty() || is_by(i, true)),
            "a cache knows the table and the layout of its keys");
  }

  /// How many of the newest tokens of each row are queries, rarely more than there are.
  struct asking {
    std::vector<Index> counts;
    Index queries = 0;
    bool enough = true;
  };
  asking draw_asking() {
    asking a;
    for (Index r = 0; r < batch_; ++r) {
      const Index count = b_.one_in(12) ? size(r) + 1 : b_.up_to(long(std::min(size(r), Index{3})));
      a.counts.push_back(count);
      a.queries = std::max(a.queries, count);
      a.enough = a.enough && count <= size(r);
    }
    return a;
  }
  /// Whether a table covers the positions of a call: those of the queries and, in rows with queries, of raw
  /// keys.
  bool is_in_table(const asking& a, std::size_t table) const {
    bool result = true;
    for (Index r = 0; r < batch_; ++r) {
      const Index count = a.counts[static_cast<std::size_t>(r)];
      for (Index t = raw() && count > 0 ? 0 : std::max(size(r) - count, Index{0}); t < size(r); ++t)
        result = result && cache_tables()[table].contains(at(r, t).position);
    }
    return result;
  }
  /// Another layout or another table than that of the keys, or any if that is unknown.
  ///
  /// \return  whether the cache rejects them
  bool spoil_rotation(bool by_layout, std::size_t& table, bool& interleaved_one) const {
    if (rotation_.known && by_layout)
      interleaved_one = !interleaved_one;
    else if (rotation_.known)
      table = rotation_.table == 0 ? 1 : 0;
    return !is_by(table, interleaved_one);
  }
  /// Makes a call of attention.
  ///
  /// \param invalid  whether an argument unrelated to the tokens is invalid
  /// \return         whether it was valid, and has written only its output
  template <class Q, class Call>
  bool attended_validly(bool invalid, const asking& a, bool rotated, bool in_table,
                        const asked_queries<T, Q>& asked, const Call& call) {
    if (invalid)
      rejected(invalid_argument, "options, counts, a table or a layout that do not go with the cache", call);
    else if (!a.enough && rotated)  // rows are checked one after another: one before may be outside the table
      rejected(logic_error, "a row has fewer tokens than queries", call);
    else if (!a.enough)
      rejected(invalid_argument, "a row has fewer tokens than queries", call);
    else if (rotated && !in_table)
      rejected(out_of_range, "a position outside the table throws", call);
    else
      return this->attended(asked, call), true;
    asked.check_rejected();
    return false;
  }
  /// Calls f with every token that is visible to a query at `position`.
  template <class Call>
  void for_seen(Index r, std::int64_t position, Index window, const Call& f) const {
    for (Index t = 0; t < size(r); ++t) {
      const std::int64_t other = at(r, t).position;
      // Distances beyond any window are not computed if they overflow.
      if (other <= position && (window == 0 || position - other < window)) f(t);
    }
  }
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_MOVED_KEYS_TARGET_HPP
