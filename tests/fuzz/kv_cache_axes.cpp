// SPDX-License-Identifier: MIT
// Any sequence of the operations of a kv_cache whose tokens have coordinates, compared with lists of tokens.
// Every call that throws according to its comment is made too, and changes nothing.
#include <rope/cache/kv_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <rope/cache/policy.hpp>
#include <type_traits>
#include <vector>

#include "fuzz/support/asked_queries.hpp"
#include "fuzz/support/axes.hpp"
#include "fuzz/support/kept_target.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/text_on_axes.hpp"
#include "fuzz/support/types.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

struct shape {
  Index batch, capacity, heads, head_dim, value_dim, first_channel;
  key_storage storage;

  explicit shape(bytes& b)
      : batch(b.one_in(12) ? 0 : b.between(1, 3)),
        capacity(b.up_to(9)),
        heads(b.between(1, 2)),
        head_dim(rotated_channels + b.up_to(2)),
        value_dim(b.between(1, 3)),
        first_channel(b.up_to(long(head_dim) - rotated_channels)),
        storage(b.coin() ? key_storage::raw : key_storage::rotated) {}
};

template <class T>
class decoder final : public text_on_axes<kept_target<kv_cache<T>, token_on_axes>> {
  using base = text_on_axes<kept_target<kv_cache<T>, token_on_axes>>;
  using base::b_, base::batch_, base::cache_, base::rows_, base::rotation_, base::rejected, base::at,
      base::size, base::empty, base::largest, base::agrees_with;

 public:
  explicit decoder(bytes& b) : decoder(b, shape(b)) {}

 private:
  decoder(bytes& b, const shape& s)
      : base(b, s.first_channel, s.batch, s.capacity, s.heads, s.head_dim, token_axes(axes), s.value_dim,
             s.storage),
        shape_(s) {}

  bool raw() const { return shape_.storage == key_storage::raw; }
  axis_rotation draw_rotation(bool text) { return base::draw_rotation(text); }

  void step() override {
    const long chosen =
        b_.up_to(255);  // one of the last eighteen values, so that the others keep their meaning
    if (chosen >= 250) return chosen % 2 == 0 ? this->reserve() : this->take_row();
    if (chosen >= 238) return chosen % 2 == 0 ? evict() : append_rotated();
    switch (chosen % 14) {
      case 4:
        return this->truncate();
      case 5:
        return this->remove();
      case 6:
        return shift();
      case 7:
        return rebase();
      case 8:
        return this->copy_or_clear(b_.up_to(4), 8, [] { return false; });
      case 9:
        return misuse();
      case 10:
      case 11:
      case 12:
        return attend();
      default:
        return with_type_of_new<T>(b_, [&]<class K>(K) { append<K>(); });
    }
  }
  void check_all() override {
    check(cache_.axes() == axes && cache_.batch() == batch_ && cache_.capacity() == this->capacity_ &&
              cache_.storage() == shape_.storage,
          "extents stay");
    const auto all = cache_.coordinates();
    Index token_count = 0;
    for (Index r = 0; r < batch_; ++r) {
      check(cache_.size(r) == size(r), "a row has the tokens that it took and kept");
      const auto coordinates = cache_.coordinates(r);
      check(coordinates.rows() == size(r) && coordinates.cols() == axes, "the shape of coordinates");
      const auto order = cache_.order(r);
      for (Index t = 0; t < size(r); ++t, ++token_count) {
        check(order[static_cast<std::size_t>(t)] == t, "the order of tokens is 0, 1, 2, ...");
        for (Index a = 0; a < axes; ++a)
          check(coordinates(t, a) == at(r, t).at[static_cast<std::size_t>(a)] &&
                    all(token_count, a) == at(r, t).at[static_cast<std::size_t>(a)],
                "tokens are where they were put");
      }
      this->check_stored(r);
    }
    check(all.rows() == token_count && (token_count == 0 || all.cols() == axes),
          "all tokens have coordinates");
    this->check_text();
  }

  void evict() {
    base::evict([this](Index r) { return largest(r); });
  }
  void append_rotated() {
    with_type_of_new<T>(b_, [&]<class K>(K) { append<K>(true); });
  }

  enum form {
    text_after,
    rotated_text_after,
    by_rows,
    text_at,
    rotated_text_at,
    at_rows,
    rows_and_positions
  };

  /// \param earlier  whether the table has rotated the keys before
  template <class K>
  void append(bool earlier = false) {
    const Index tokens = b_.up_to(3);
    static constexpr form raw_forms[] = {text_after, at_rows, text_at, at_rows},
                          forms[] = {by_rows, rotated_text_after, rotated_text_at,
                                     by_rows, text_after,         at_rows,
                                     text_at, rows_and_positions},
                          earlier_forms[] = {by_rows, rotated_text_after, rotated_text_at, at_rows};
    const form in = earlier                  ? b_.one_of(earlier_forms)
                    : raw() && !b_.one_in(8) ? b_.one_of(raw_forms)
                                             : b_.one_of(forms);
    const bool rotated = earlier || in == by_rows || in == rotated_text_after || in == rotated_text_at ||
                         in == rows_and_positions,
               follows = in == text_after || in == rotated_text_after,
               by_coordinates = in == by_rows || in == at_rows || in == rows_and_positions;
    const bool either = earlier && (in == at_rows || in == rotated_text_at);
    const axis_rotation given =
        draw_rotation(either ? b_.coin() : in == rotated_text_after || in == rotated_text_at);
    const bool padded = b_.one_in(3);
    const new_counts<int> counts(b_, batch_, tokens, padded);
    given_places places(b_, batch_, tokens, by_coordinates);
    std::vector<std::int64_t> ids;
    for (Index i = 0; i < places.count(); ++i) {
      if (by_coordinates) places.rows.push_back(draw_coordinates(b_, !rotated || in == at_rows));
      if (in == text_at || in == rotated_text_at)
        ids.push_back(b_.one_in(12) ? b_.integer() : b_.between(-2, 60));
    }
    places.spoil_seldom(b_);
    std::vector<std::vector<token_on_axes>> added(rows_.size());
    new_heads<K> x(b_, batch_, tokens, shape_.heads, shape_.head_dim, shape_.value_dim);
    bool in_range = true, in_table = true, text = true;
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        token_on_axes one = draw_token<T>(b_, shape_.heads, shape_.head_dim, shape_.value_dim);
        x.put(r, t, one.k.exact.data(), one.v.data());
        if (t >= counts.of(r)) continue;
        if (by_coordinates) {
          one.at = places.of(r, t);
        } else {
          const std::int64_t id = follows ? 0 : ids[static_cast<std::size_t>(r * tokens + t)];
          const double position = follows ? largest(r) + static_cast<double>(t + 1) : static_cast<double>(id);
          one.at = {position, position};
          constexpr std::int64_t most = std::int64_t{1} << 53;
          in_range = in_range &&
                     (follows ? largest(r) <= limit - static_cast<double>(t + 1) : id >= -most && id <= most);
          in_table = in_table && is_in_text_tables(position);
        }
        text = text && is_text(one.at);
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const auto call = [&] {
      const detail::row_counts list = counts.given();
      if (in == text_after) return cache_.append(x.keys(), x.v, list);
      if (in == text_at) return cache_.append_at(x.keys(), x.v, ids, list);
      if (earlier)
        return with_table_and_layout(given, places.rows, [&]<class Layout>(Layout, const auto& table) {
          const auto call_at = [&](const auto& where) {
            cache_.template append_rotated<Layout>(x.keys(), x.v, table, where, list);
          };
          if (in == at_rows) return call_at(token_coordinates(rows_of(places.rows)));
          if (in == rotated_text_at) return call_at(ids);
          cache_.template append_rotated<Layout>(x.keys(), x.v, table, {}, list);
        });
      if (in == at_rows)
        return cache_.append_at(x.keys(), x.v, token_coordinates(rows_of(places.rows)), list);
      with_table_and_layout(given, places.rows, [&]<class Layout>(Layout, const auto& table) {
        if (in == rotated_text_at) return cache_.template append_at<Layout>(x.keys(), x.v, table, ids, list);
        if (in == rows_and_positions)
          return cache_.template append_at<Layout>(x.keys(), x.v, table, std::int64_t{0}, list);
        cache_.template append<Layout>(x.keys(), x.v, table, list);
      });
    };
    if (follows && !this->goes_on_whole())
      return rejected(invalid_argument, "text does not continue after a fraction of a cell", call);
    if (places.odd && in != rows_and_positions)
      return rejected(invalid_argument, "coordinates that are not of all tokens throw", call);
    if (b_.one_in(12)) {
      x.spoil(b_.up_to(7));
      return rejected(invalid_argument, "another shape throws", call);
    }
    if (counts.bad) return rejected(invalid_argument, "a count outside of the tokens throws", call);
    if (!this->has_room(added)) return rejected(length_error, "tokens that do not fit throw", call);
    if (!in_range) return rejected(out_of_range, "positions beyond 2^53 throw", call);
    if (rotated && raw()) return rejected(invalid_argument, "raw keys take no table", call);
    if (earlier && in == at_rows && given.by < 0 && !text)
      return rejected(invalid_argument, "keys that a table of positions rotated are text", call);
    if (!empty() && !(rotated ? agrees_with(given) : !this->known_))
      return rejected(invalid_argument, "keys of another rotation throw", call);
    if (in == rows_and_positions)
      return rejected(invalid_argument, "a table of coordinates sets the positions of tokens", call);
    if (rotated && !earlier && !in_table)
      return rejected(out_of_range, "positions outside the table throw", call);
    call();
    check(x.untouched_outside(), "what is appended stays as it is");
    this->remember(rotated, given);
    for (auto& of_row : added)
      for (token_on_axes& one : of_row) store<T>(one, shape_.head_dim, rotated && !earlier, given);
    this->add(added);
  }

  void shift() {
    const batch_row r = this->draw_row();
    const auto [first, count] = this->draw_range(r);
    const bool by_table = b_.one_in(8) ? raw() : !raw();
    const axis_rotation given = draw_rotation(b_.coin());
    const std::int64_t delta = b_.one_in(5) ? b_.integer() : b_.between(-4, 4);
    const auto call = [&, from = first, n = count] {
      if (!by_table) return cache_.shift(from, n, delta, r);
      with_table_and_layout(given, {{1, 2}}, [&]<class Layout>(Layout, const auto& table) {
        cache_.template shift<Layout>(from, n, delta, table, r);
      });
    };
    if (!by_table && !raw())
      return rejected(invalid_argument, "rotated keys are not shifted without their table", call);
    if (!raw() && !empty() && !agrees_with(given))
      return rejected(invalid_argument, "keys of another rotation are not shifted", call);
    if (this->rejected_rows(r, call)) return;
    if (!this->is_range(r, first, count))
      return rejected(out_of_range, "tokens that are not held throw", call);
    bool stays = true;
    const auto by = static_cast<wide>(delta);
    const auto move = [&](double x) { stays = stays && testing::abs(std::trunc(x) + by) <= limit; };
    this->for_tokens(r, first, count, [&](const token_on_axes& one) {
      for (const double x : one.at) move(x);
    });
    this->for_rows(r, [&, from = first, n = count](const auto& of) {
      if (this->moves_evicted(of, from, n)) move(of.evicted);
    });
    if (!stays) return rejected(out_of_range, "coordinates beyond 2^53 throw", call);
    if (!raw() && testing::abs(by) > 0x1p36) return;  // beyond the exact range of the model
    call();
    this->for_rows(r, [&, from = first, n = count](auto& of) {
      if (this->moves_evicted(of, from, n)) of.evicted = static_cast<double>(of.evicted + by);
    });
    this->for_tokens(r, first, count, [&](token_on_axes& one) {
      for (double& x : one.at) x = static_cast<double>(x + by);
      if (!raw() && delta != 0)
        rotate_on_axes<T>(one.k, shape_.head_dim, given, coordinates(2, static_cast<double>(delta)), 1);
    });
  }

  void rebase() {
    const axis_rotation from = draw_rotation(b_.coin());
    axis_rotation to = draw_rotation(b_.coin());
    to.interleaved = from.interleaved;
    if (b_.coin()) to.first_channel = from.first_channel;
    if (b_.coin())
      to = to.by < 0 ? axis_rotation::of_text(static_cast<int>(b_.up_to(2)), to.interleaved, to.first_channel)
                     : axis_rotation::of(static_cast<int>(b_.up_to(4)), to.interleaved, to.first_channel);
    const long other = b_.one_in(12) ? b_.up_to(3) : 4;
    const auto call = [&] {
      with_layout(from.interleaved, [&]<class Layout>(Layout) {
        with_table(from, {{3, 1}}, [&](const auto& of_keys) {
          if (other < 3)
            return cache_.template rebase<Layout>(
                of_keys, axis_tables::get().rejected[static_cast<std::size_t>(other)]);
          if (other == 3) return cache_.template rebase<Layout>(of_keys, axis_tables::get().of_more_pairs);
          with_table(to, {}, [&](const auto& wanted) { cache_.template rebase<Layout>(of_keys, wanted); });
        });
      });
    };
    const bool text_only = empty() || rotation_.by < 0;
    if (raw() || other < 4 || !(empty() || agrees_with(from)) || to.first_channel != from.first_channel ||
        (!text_only && (from.by < 0 || to.by < 0)))
      return rejected(invalid_argument, "keys are rebased from their own table to one of the same place",
                      call);
    if (!this->all_near()) return;
    call();
    if (!empty()) rotation_ = to;
    for (auto& of : rows_)
      for (token_on_axes& one : of) {
        const wide error = one.k.error;
        rotate_on_axes<T>(one.k, shape_.head_dim, from, one.at, 1, -1);
        one.k.error = error;  // the library rotates once, by the difference
        rotate_on_axes<T>(one.k, shape_.head_dim, to, one.at, to.factor() / from.factor());
        one.k.error = one.k.error * 1.25L + tolerance::unit_roundoff<float>() * 16;
      }
  }

  /// Calls that are invalid for any contents of the cache.
  void misuse() {
    using limits = std::numeric_limits<Index>;
    this->call_with_no_row();
    this->call_with_no_text();
    rejected(invalid_argument, "there is an axis", [&] { token_axes(b_.coin() ? 0 : limits::min()); });
    rejected(length_error, "more than the address space throws",
             [&] { kv_cache<T> bad(2, 2, 1, 1, token_axes(limits::max() / (b_.coin() ? 2 : 16))); });
    static const double nowhere[] = {0x1p53 + 2, -0x1p63, std::numeric_limits<double>::infinity(),
                                     std::numeric_limits<double>::quiet_NaN()};
    Eigen::Array22d bad_places = Eigen::Array22d::Zero();
    bad_places(b_.up_to(1), b_.up_to(1)) = b_.one_of(nowhere);
    rejected(invalid_argument, "a coordinate is finite and within 2^53",
             [&] { token_coordinates one(bad_places); });
    const Eigen::Array<std::int64_t, 1, 1> bad_integer(b_.coin() ? (std::int64_t{1} << 53) + 1
                                                                 : limits::min());
    rejected(invalid_argument, "an integer coordinate is within 2^53",
             [&] { token_coordinates one(bad_integer); });
    const head_view<float> nothing = {nullptr, batch_, 0, shape_.heads, shape_.head_dim, 1, 1, 1};
    const head_view<float> no_value = {nullptr, batch_, 0, shape_.heads, shape_.value_dim, 1, 1, 1};
    if constexpr (!std::is_same_v<T, double>) {
      rejected(invalid_argument, "coordinates are of as many axes", [&] {
        cache_.append_at(nothing, no_value, token_coordinates(Eigen::ArrayXXd::Zero(0, axes + 1)));
      });
      rejected(invalid_argument, "a cache of positions takes no coordinates", [&] {
        kv_cache<T> plain(batch_, 1, shape_.heads, shape_.head_dim, shape_.value_dim);
        plain.append_at(nothing, no_value, token_coordinates(Eigen::ArrayXXd::Zero(0, axes)));
      });
    }
    this->check_tables();
  }

  /// The queries are the newest tokens. See the targets of attention and of kv_cache for what this one leaves
  /// out.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = numbers<T>;
      if (batch_ == 0) return;
      std::vector<Index> counts;
      Index queries = 0;
      for (Index r = 0; r < batch_; ++r) {
        counts.push_back(b_.up_to(long(std::min(size(r), Index{3}))));
        queries = std::max(queries, counts.back());
      }
      const auto count_of = [&](Index r) { return counts[static_cast<std::size_t>(r)]; };
      const Index group = b_.between(1, 2), heads = shape_.heads * group;
      const Index window = b_.coin() ? 0 : b_.between(1, 4);
      asked_queries<T> asked(b_, batch_, queries, heads, shape_.head_dim, shape_.value_dim);
      asked.draw_all(b_);
      const bool rotated = raw() ? !b_.one_in(12) : b_.coin();
      const bool by_text = rotated && !raw() && b_.coin();
      const axis_rotation given = draw_rotation(rotated && (by_text || (raw() && b_.one_in(12))));
      // Rows of the table: all tokens for raw keys, otherwise the queries.
      std::vector<coordinates> places;
      const bool near_ones = this->all_near();
      bool text = true, in_table = true;
      for (Index r = 0; r < batch_; ++r) {
        for (Index t = 0; raw() && t < size(r); ++t) places.push_back(at(r, t).at);
        for (Index i = 0; i < queries; ++i) {
          if (i >= count_of(r)) {
            if (!raw()) places.push_back({0, 0});
            continue;
          }
          const coordinates& own = at(r, size(r) - count_of(r) + i).at;
          text = text && is_text(own);
          in_table = in_table && is_in_text_tables(own[0]);
          if (!raw()) places.push_back(own);
        }
      }
      bool wrong_rows = false;
      if (rotated && given.by >= 0 && !places.empty() && b_.one_in(8)) {
        if (b_.coin()) {
          places.push_back({0, 0});
          const auto n = static_cast<Index>(places.size());
          wrong_rows = raw() || (n != queries && n != batch_ * queries);
        } else {  // of a token within the counts
          Index spoilt = -1;
          for (Index r = 0; r < batch_; ++r)
            if (!raw() && count_of(r) > 0) spoilt = r * queries + count_of(r) - 1;
          if (raw()) spoilt = static_cast<Index>(places.size()) - 1;
          wrong_rows = spoilt >= 0;
          if (wrong_rows) places[static_cast<std::size_t>(spoilt)][b_.coin() ? 1 : 0] += 0.5;
        }
        if (!wrong_rows) return;
      }
      if (!near_ones && rotated) return;
      attention_options options = {.window = window};
      wrong_option spoilt;
      const bool wrong = b_.one_in(12);
      if (wrong) spoilt.put_into(options, b_, batch_, queries, heads);
      options.queries_are_rotated = !rotated;
      const auto call = [&] {
        if (!rotated) return attention(asked.asking(), cache_, asked.out, options, counts);
        with_table_and_layout(given, places, [&]<class Layout>(Layout, const auto& table) {
          attention<Layout>(asked.asking(), cache_, asked.out, table, options, counts);
        });
      };
      const bool invalid = wrong || wrong_rows || (raw() && (!rotated || given.by < 0)) ||
                           (rotated && !raw() && !empty() && !agrees_with(given)) ||
                           (rotated && !raw() && given.by < 0 && !text);
      if (invalid || (rotated && given.by < 0 && !in_table)) {
        const char* claim = "options or a table that do not go with the cache throw";
        invalid ? rejected(invalid_argument, claim, call) : rejected(out_of_range, claim, call);
        return asked.check_rejected();
      }
      this->attended(asked, call);
      asked.for_each(counts, [&](Index r, Index i) {
        const Index own = size(r) - count_of(r) + i;
        key query = asked.query(r, i);
        if (rotated) rotate_on_axes<Q>(query, shape_.head_dim, given, at(r, own).at, given.factor());
        std::vector<key> keys;
        std::vector<channels> values;
        for (Index t = window == 0 ? 0 : std::max(own - window + 1, Index{0}); t <= own; ++t) {
          token_on_axes one = this->shown(r, t);
          if (raw()) rotate_on_axes<Q>(one.k, shape_.head_dim, given, one.at, given.factor());
          keys.push_back(one.k), values.push_back(one.v);
        }
        check_attended("attention on axes uses the order of tokens, and rotates by their coordinates",
                       asked.out, r, i, group, query, keys, values);
      });
    }
  }

  shape shape_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  fuzz::with_stored_type(b, [&]<class T>(T) { fuzz::decoder<T>(b).run(20); });
  return 0;
}
