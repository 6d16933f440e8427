// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_POSITIONED_TARGET_HPP
#define ROPE_TESTS_FUZZ_POSITIONED_TARGET_HPP

/// A kv_cache or latent_cache of tokens at positions: how its tokens are appended. For a latent_cache the
/// latents are passed as values here, and the part of a key after them rotates.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <rope/cache/policy.hpp>
#include <rope/rotation/quantized_view.hpp>

#include "fuzz/support/check.hpp"
#include "fuzz/support/kept_target.hpp"
#include "fuzz/support/new_positions.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/position_tables.hpp"
#include "fuzz/support/types.hpp"

namespace fuzz {

template <class Cache>
inline constexpr bool is_latent = requires(const Cache& cache) {
  cache.latent_dim();
};

struct positioned_token {
  key k;
  channels v;
  std::int64_t position = 0;
  long append = 0, column = 0;  // where it came from
};

/// Heads of new tokens. A latent_cache has one, whose key is the rotated part and whose value is the latent.
struct stored_shape {
  Index heads, key_dim, value_dim,
      first_channel;  // first_channel of a stored key: the rotated part begins there
  Index head_dim() const { return first_channel + key_dim; }
};

/// The appends to a cache so far.
struct append_record {
  long count = 0;
  Index last_width = 0;  // tokens per row of the last one, counted or not
};

/// The tokens to which a call of attention without counts refers: the same columns of the last append, in
/// every row.
///
/// \tparam Row      a list of tokens, each with the number of its append and its column in it
/// \param forgot   whether rows have lost tokens since the last append
template <class Cache, class Row>
void check_query_counts(const Cache& cache, const std::vector<Row>& rows, const append_record& appends,
                        bool forgot) {
  using Token = typename Row::value_type;
  const auto from_end = [](const Row& row, Index i) -> const Token& {
    return row[row.size() - static_cast<std::size_t>(i)];
  };
  for (Index queries = 0; queries <= appends.last_width + 2; ++queries) {
    bool same_columns = true, enough = true;
    for (const auto& row : rows) {
      enough = enough && static_cast<Index>(row.size()) >= queries;
      for (Index i = 1; enough && i <= queries; ++i) {
        const Token &a = from_end(row, i), &first = from_end(rows[0], i);
        same_columns = same_columns && a.append == first.append && a.column == first.column;
      }
    }
    std::span<const Index> counts;
    try {
      counts = cache.query_counts(queries);
    } catch (const std::invalid_argument&) {
      check(forgot || queries != appends.last_width,
            "a call for the tokens of the last append needs no counts");
      continue;
    }
    if (counts.empty()) {
      check(rows.empty() || !enough || same_columns,
            "queries without counts are the same columns of every row");
      continue;
    }
    check(queries <= appends.last_width && counts.size() == rows.size(),
          "counts are those of the last append");
    std::vector<long> columns(static_cast<std::size_t>(queries), -1);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      Index of_last = 0;
      for (const Token& t : rows[r]) of_last += t.append == appends.count;
      check(counts[r] == of_last && of_last <= queries,
            "a row has the queries that it kept of the last append");
      for (Index i = 0; i < of_last; ++i) {
        long& column = columns[static_cast<std::size_t>(i)];
        const long own = from_end(rows[r], of_last - i).column;
        check(column < 0 || column == own,
              "a query is the same column of the last append in every row that has it");
        column = own;
      }
    }
  }
}

template <class Cache>
class positioned_target : public kept_target<Cache, positioned_token> {
  using base = kept_target<Cache, positioned_token>;

 protected:
  using base::b_, base::batch_, base::cache_, base::rows_, base::row, base::rejected, base::at, base::size,
      base::empty, base::forgot_;
  using T = typename base::stored;

  template <class... Shape>
  positioned_target(bytes& b, const stored_shape& heads, const Shape&... shape)
      : base(b, shape...), shape_(heads) {}

  bool raw() const { return cache_.storage() == rope::key_storage::raw; }
  std::int64_t next(Index r) const {
    const bool none = row(r).empty() && row(r).evicted == row(r).none;
    auto largest = none ? -1 : static_cast<std::int64_t>(row(r).evicted);
    for (const positioned_token& t : row(r)) largest = std::max(largest, t.position);
    return largest + 1;
  }
  bool is_by(std::size_t table, bool interleaved_one) const {
    return rotation_.is(cache_tables(), table, interleaved_one);
  }
  /// \tparam S  the type of the stored rotated key
  template <class S>
  void rotate_key(key& k, std::size_t table, bool interleaved_one, std::int64_t position) const {
    cache_tables().template rotate_key<S>(k, shape_.head_dim(), table, interleaved_one, position,
                                          shape_.first_channel);
  }

  bits state() const override {
    bits all = shown_by(cache_);
    for (std::size_t i = 0; i < 3; ++i) {
      add_number(all, takes<rope::half_split>(cache_, cache_tables()[i]));
      add_number(all, takes<rope::interleaved>(cache_, cache_tables()[i]));
    }
    return all;
  }

  void check_rows() {
    for (Index r = 0; r < batch_; ++r) {
      check(cache_.size(r) == size(r), "a row has the tokens that it took and kept");
      check(cache_.next_positions()[static_cast<std::size_t>(r)] == next(r),
            "the next position follows the largest");
      const auto positions = cache_.positions(r);
      for (Index t = 0; t < size(r); ++t)
        check(positions[static_cast<std::size_t>(t)] == at(r, t).position, "tokens keep their positions");
      check(cache_.keys(r).heads == shape_.heads && cache_.keys(r).head_dim == shape_.head_dim() &&
                cache_.values(r).heads == shape_.heads && cache_.values(r).head_dim == shape_.value_dim,
            "the shape of heads");
      this->check_stored(r);
    }
    if (this->even()) {
      const Index common = this->common_size();
      check(cache_.size() == common && cache_.keys().tokens == common && cache_.values().tokens == common,
            "even rows have one size");
    } else {
      const char* claim = "rows that differ have no common size, keys or values";
      rejected(invalid_argument, claim, [&] { static_cast<void>(cache_.size()); });
      rejected(invalid_argument, claim, [&] { static_cast<void>(cache_.keys()); });
      rejected(invalid_argument, claim, [&] { static_cast<void>(cache_.values()); });
    }
    check_query_counts(cache_, rows_, appends_, forgot_);
    const bool known = rotation_.known && !raw() && !this->empty();
    check(cache_.rotates_keys() == known && cache_.rotation().known() == known,
          "the rotation of keys is known if a table rotated all of them");
    if (!known) return;
    const std::size_t other = rotation_.table == 0 ? 1 : 0;
    rope::key_rotation same, of_other;
    with_layout(rotation_.interleaved, [&]<class Layout>(Layout) {
      same = cache_.template rotation_by<Layout>(cache_tables()[rotation_.table]);
      of_other = cache_.template rotation_by<Layout>(cache_tables()[other]);
    });
    check(cache_.rotation() == same, "the rotation of keys is that of their table");
    check((cache_.rotation() == of_other) == is_by(other, rotation_.interleaved),
          "the rotation of keys is not that of another table");
  }

  /// Calls f with a table that fits the cache or, in form 2, with one that does not. A latent_cache accepts a
  /// table without a first channel, 0, or placed after the latent, 1.
  template <class Call>
  void with_table(std::size_t table, long form, const Call& f) {
    const auto& one = cache_tables()[table];
    if (form == 0) return f(one);
    if (form == 1) return f(one.at_channel(shape_.first_channel));
    if (b_.coin()) return f(cache_tables().of_more_pairs);
    f(one.at_channel(b_.coin() || shape_.first_channel == 0 ? shape_.first_channel + 1 : 0));
  }
  long draw_form() {
    if constexpr (is_latent<Cache>) return b_.one_in(12) ? 2 : b_.up_to(1);
    return 0;
  }

  positioned_token draw_token(Index column) {
    positioned_token one;
    one.append = appends_.count + 1, one.column = column;
    one.k.exact = draw_channels<T>(b_, static_cast<std::size_t>(shape_.heads * shape_.head_dim()));
    if constexpr (is_latent<Cache>)
      one.v.assign(one.k.exact.begin(), one.k.exact.begin() + shape_.first_channel);
    else
      one.v = draw_channels<T>(b_, static_cast<std::size_t>(shape_.heads * shape_.value_dim));
    return one;
  }

  /// Tokens in views of type K: with a table or without, at positions or after the last ones, for all rows or
  /// with counts, or with one of these wrong.
  ///
  /// \param earlier  whether the table has rotated the keys before
  template <class K>
  void append(bool earlier = false) {
    const Index tokens = b_.up_to(3);
    const bool by_table = (raw() ? b_.one_in(8) : b_.coin()) || earlier, placed = b_.one_in(3),
               padded = b_.coin();
    const bool interleaved_one = b_.one_in(4);
    const auto table = static_cast<std::size_t>(b_.one_in(3) ? b_.up_to(5) : 0);
    const new_counts<std::int64_t> counts(b_, batch_, tokens, padded);
    const new_positions positions(b_, placed, batch_, tokens);
    std::vector<std::vector<positioned_token>> added(rows_.size());
    new_heads<K> x(b_, batch_, tokens, shape_.heads, shape_.key_dim, shape_.value_dim);
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        positioned_token one = draw_token(t);
        x.put(r, t, one.k.exact.data() + shape_.first_channel, one.v.data());
        if (t >= counts.of(r)) continue;
        one.position = positions.of(r, t, next(r));
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const long form = draw_form();
    bool as_integers = earlier && is_quantized<T> && b_.coin();
    Cache& to = cache_;
    // Views are made when a call is made, because they may have been changed until then.
    const auto with_heads = [&](const auto& f) {
      if constexpr (is_latent<Cache>)
        f(x.v, x.keys());
      else
        f(x.keys(), x.v);
    };
    const auto call = [&] {
      with_heads([&](const auto& first, const auto& second) {
        positions.with([&](const auto&... where) {
          if (!by_table) {
            if constexpr (sizeof...(where) == 0)
              to.append(first, second, counts.given());
            else
              to.append_at(first, second, where..., counts.given());
            return;
          }
          with_layout(interleaved_one, [&]<class Layout>(Layout) {
            with_table(table, form, [&](const auto& by) {
              if (earlier)
                return append_rotated<Layout>(first, second, by, counts.given(), as_integers, where...);
              if constexpr (sizeof...(where) == 0)
                to.template append<Layout>(first, second, by, counts.given());
              else
                to.template append_at<Layout>(first, second, by, where..., counts.given());
            });
          });
        });
      });
    };

    // The errors, in the order in which the calls check them.
    if (by_table && form == 2)
      return rejected(invalid_argument, "a table that does not rotate the part is rejected", call);
    if (b_.one_in(10)) {
      const long kind = b_.up_to(7);
      as_integers = false;
      if (kind == 6) {
        const std::vector<Index> longer(static_cast<std::size_t>(batch_ + 1), 0);
        return rejected(invalid_argument, "counts of another length throw", [&] {
          with_heads([&](const auto& first, const auto& second) { cache_.append(first, second, longer); });
        });
      }
      if (kind == 7 && x.k.size() == 0) return;
      x.spoil(kind == 7 ? 8 : kind);
      return rejected(invalid_argument, "another shape throws", call);
    }
    if (counts.bad) return rejected(invalid_argument, "a count outside of the tokens throws", call);
    bool in_range = true, in_table = true;
    for (const auto& of_row : added)
      for (const positioned_token& one : of_row) {
        in_range = in_range && one.position >= -furthest && one.position <= furthest;
        in_table = in_table && cache_tables()[table].contains(one.position);
      }
    if (!this->has_room(added)) return rejected(length_error, "tokens that do not fit throw", call);
    if (!in_range) return rejected(out_of_range, "positions beyond 2^53 throw", call);
    if (by_table && raw()) return rejected(invalid_argument, "raw keys take no table", call);
    if (!empty() && !(by_table ? is_by(table, interleaved_one) : !rotation_.known))
      return rejected(invalid_argument, "keys of another rotation throw", call);
    if (by_table && !earlier && !in_table)
      return rejected(out_of_range, "positions outside the table throw", call);
    call();
    check(x.untouched_outside(), "what is appended stays as it is");

    rotation_.append(by_table, table, interleaved_one);
    for (auto& of_row : added)
      for (positioned_token& one : of_row)
        if (by_table && !earlier)
          rotate_key<T>(one.k, table, interleaved_one, one.position);
        else
          one.k.error = storing_error<T>(one.k.exact);
    this->add(added);
    appends_ = {appends_.count + 1, tokens};
  }

  /// Appends keys that `by` has rotated before, unchanged or, if the cache stores integers, quantized.
  template <class Layout, class First, class Second, class Table, class... Where>
  void append_rotated(const First& first, const Second& second, const Table& by,
                      const rope::detail::row_counts& counts, bool as_integers, const Where&... where) {
    const auto call = [&](const auto& a, const auto& b) {
      if constexpr (sizeof...(where) == 0)
        cache_.template append_rotated<Layout>(a, b, by, {}, counts);
      else
        cache_.template append_rotated<Layout>(a, b, by, where..., counts);
    };
    if constexpr (is_quantized<T>) {
      if (as_integers) {
        const integers_of a(first), b(second);
        return call(a.view, b.view);
      }
    }
    call(first, second);
  }
  /// The quantized heads.
  struct integers_of {
    std::vector<std::int8_t> integers;
    std::vector<float> scales;
    rope::quantized_view<std::int8_t> view;

    template <class K>
    explicit integers_of(const rope::head_view<K>& x)
        : integers(static_cast<std::size_t>(x.size())),
          scales(static_cast<std::size_t>(x.batch * x.tokens * x.heads)),
          view(rope::bshd(integers.data(), scales.data(), x.batch, x.tokens, x.heads, x.head_dim)) {
      rope::quantize(x, view);
    }
  };

  stored_shape shape_;
  known_rotation rotation_;
  append_record appends_;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_POSITIONED_TARGET_HPP
