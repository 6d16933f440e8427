// SPDX-License-Identifier: MIT
// Any sequence of the operations of a kv_cache whose tokens have coordinates, against lists of tokens; every call that its
// comments say throws is made too, and changes nothing.
#include <rope/cache/kv_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <rope/cache/describe.hpp>
#include <rope/cache/token_coordinates.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/support/axes.hpp"
#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/views.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;

// Names of this file stay out of the global namespace, where those of the library would shadow them.
namespace fuzz {
namespace {

using testing::guarded_memory;

constexpr double limit = 0x1p53;

struct token {
  fuzz::key k;
  channels v;
  coordinates at;
};

template <class T>
class decoder {
 public:
  explicit decoder(bytes& b)
      : b_(b),
        batch_(b.one_in(12) ? 0 : b.between(1, 3)),
        capacity_(b.up_to(9)),
        heads_(b.between(1, 2)),
        dim_(fuzz::turned_channels + b.up_to(2)),
        value_dim_(b.between(1, 3)),
        first_channel_(b.up_to(long(dim_) - fuzz::turned_channels)),
        storage_(b.coin() ? key_storage::raw : key_storage::rotated),
        cache_(batch_, capacity_, heads_, dim_, token_axes(axes), value_dim_, storage_),
        rows_(static_cast<std::size_t>(batch_)) {}

  void run() {
    check_all();
    for (int steps = 0; steps < 20 && !b_.empty(); ++steps) {
      step();
      check_all();
    }
  }

 private:
  using rows = std::vector<std::vector<token>>;

  bool raw() const { return storage_ == key_storage::raw; }
  std::vector<token>& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }
  const std::vector<token>& row(Index r) const { return rows_[static_cast<std::size_t>(r)]; }
  const token& at(Index r, Index t) const { return row(r)[static_cast<std::size_t>(t)]; }
  Index size(Index r) const { return static_cast<Index>(row(r).size()); }
  bool even() const {
    return std::all_of(rows_.begin(), rows_.end(),
                       [&](const auto& of) { return of.size() == rows_[0].size(); });
  }
  /// A batch without rows has a size all the same.
  Index common_size() const { return batch_ == 0 ? ghost_ : size(0); }
  bool empty() const {
    return batch_ == 0 ? ghost_ == 0
                       : std::all_of(rows_.begin(), rows_.end(), [](const auto& of) { return of.empty(); });
  }
  double largest(Index r) const {
    double result = row(r).empty() ? -1 : -limit;
    for (const token& one : row(r)) result = std::max(result, fuzz::largest_of(one.at));
    return result;
  }
  bool goes_on_whole() const {
    bool whole = true;
    for (Index r = 0; r < batch_; ++r) whole = whole && fuzz::is_whole(largest(r));
    return whole;
  }
  bool all_near() const {
    bool result = true;
    for (const auto& of : rows_)
      for (const token& one : of) result = result && fuzz::is_near(one.at);
    return result;
  }

  std::vector<unsigned char> state() const {
    std::vector<unsigned char> bits;
    for (Index r = 0; r < batch_; ++r) {
      fuzz::add_number(bits, cache_.size(r));
      for (const std::int64_t place : cache_.order(r)) fuzz::add_number(bits, place);
      const auto coordinates = cache_.coordinates(r);
      for (Index i = 0; i < coordinates.size(); ++i) fuzz::add_number(bits, coordinates.data()[i]);
      fuzz::add_bits(bits, cache_.keys(r));
      fuzz::add_bits(bits, cache_.values(r));
    }
    const auto next = cache_.next_coordinates(0);
    fuzz::add_number(bits, next.rows());
    for (Index queries = 0; queries < 5; ++queries) {
      try {
        for (const Index count : cache_.query_counts(queries)) fuzz::add_number(bits, count);
        fuzz::add_number(bits, 'c');
      } catch (const std::invalid_argument&) {
        fuzz::add_number(bits, 'x');
      }
    }
    for (int text = 0; text < 2; ++text)
      fuzz::add_number(bits, 'a' + fuzz::meets(cache_, axis_rotation::of_text(text, false, first_channel_)) +
                                 2 * fuzz::meets(cache_, axis_rotation::of_text(text, true, first_channel_)));
    return bits;
  }
  template <class Exception, class Call>
  void refused(const char* claim, const Call& call) {
    const auto before = state();
    refuses<Exception>(claim, call);
    check(state() == before, "a call that throws changes nothing");
  }

  void check_all() {
    check(cache_.axes() == axes && cache_.batch() == batch_ && cache_.capacity() == capacity_ &&
              cache_.storage() == storage_,
          "extents stay");
    const auto all = cache_.coordinates();
    Index token_count = 0;
    for (Index r = 0; r < batch_; ++r) {
      check(cache_.size(r) == size(r), "a row has the tokens that it took and kept");
      const auto coordinates = cache_.coordinates(r);
      check(coordinates.rows() == size(r) && coordinates.cols() == axes, "the shape of coordinates");
      const auto order = cache_.order(r);
      const auto keys = cache_.keys(r), values = cache_.values(r);
      for (Index t = 0; t < size(r); ++t, ++token_count) {
        const token& one = at(r, t);
        check(order[static_cast<std::size_t>(t)] == t, "the order of tokens is 0, 1, 2, ...");
        for (Index a = 0; a < axes; ++a)
          check(coordinates(t, a) == one.at[static_cast<std::size_t>(a)] &&
                    all(token_count, a) == one.at[static_cast<std::size_t>(a)],
                "tokens are where they were put");
        for (Index h = 0; h < heads_; ++h)
          check(fuzz::near(keys, 0, t, h, one.k.exact.data() + h * dim_, one.k.error) &&
                    fuzz::near(values, 0, t, h, one.v.data() + h * value_dim_, fuzz::storing_error<T>(one.v)),
                "keys and values are those that were stored, turned as was asked");
      }
      refused<std::invalid_argument>("tokens with coordinates have no positions",
                                     [&] { static_cast<void>(cache_.positions(r)); });
    }
    check(all.rows() == token_count && (token_count == 0 || all.cols() == axes),
          "all tokens have coordinates");
    check_next();
  }

  /// Where text goes on.
  void check_next() {
    const auto ask = [&] { static_cast<void>(cache_.next_positions()); };
    if (goes_on_whole()) {
      const auto next = cache_.next_positions();
      for (Index r = 0; r < batch_; ++r)
        check(static_cast<double>(next[static_cast<std::size_t>(r)]) == largest(r) + 1,
              "text goes on behind the largest coordinate");
    } else {
      refused<std::invalid_argument>("a position is an integer", ask);
    }
    const Index tokens = b_.up_to(2);
    bool fits = true;
    for (Index r = 0; r < batch_; ++r) fits = fits && largest(r) <= limit - static_cast<double>(tokens);
    if (!fits)
      return refused<std::out_of_range>("text stays within 2^53",
                                        [&] { static_cast<void>(cache_.next_coordinates(tokens)); });
    const auto text = cache_.next_coordinates(tokens);
    check(text.rows() == batch_ * tokens, "text has a row for every token");
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t)
        for (Index a = 0; a < axes; ++a)
          check(text(r * tokens + t, a) == largest(r) + static_cast<double>(t + 1),
                "text to come is at one place on all axes");
  }

  void step() {
    switch (b_.up_to(13)) {
      case 4:
        return truncate();
      case 5:
        return remove();
      case 6:
        return shift();
      case 7:
        return rebase();
      case 8:
        return copy_or_clear();
      case 9:
        return misuse();
      case 10:
      case 11:
      case 12:
        return attend();
      default:
        return append();
    }
  }

  void append() {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      append_of<T>();
    } else if constexpr (fuzz::is_quantized<T>) {
      b_.coin() ? append_of<Eigen::bfloat16>() : append_of<float>();
    } else {
      b_.coin() ? append_of<T>() : append_of<float>();
    }
  }

  axis_rotation draw_rotation(bool text) {
    return fuzz::draw_rotation(b_, text, empty(), rotation_, first_channel_, dim_);
  }

  enum form {
    text_behind,
    turned_text_behind,
    by_rows,
    text_at,
    turned_text_at,
    at_rows,
    rows_and_positions
  };

  template <class K>
  void append_of() {
    const Index tokens = b_.up_to(3);
    static constexpr form raw_forms[] = {text_behind, at_rows, text_at, at_rows},
                          forms[] = {by_rows, turned_text_behind, turned_text_at,
                                     by_rows, text_behind,        at_rows,
                                     text_at, rows_and_positions};
    const form in = raw() && !b_.one_in(8) ? b_.one_of(raw_forms) : b_.one_of(forms);
    const bool turned = in == by_rows || in == turned_text_behind || in == turned_text_at ||
                        in == rows_and_positions,
               behind = in == text_behind || in == turned_text_behind,
               by_coordinates = in == by_rows || in == at_rows || in == rows_and_positions;
    const axis_rotation given = draw_rotation(in == turned_text_behind || in == turned_text_at);
    std::vector<int> counts;
    const bool padded = b_.one_in(3);
    if (padded)
      for (Index r = 0; r < batch_; ++r) counts.push_back(static_cast<int>(b_.up_to(long(tokens))));
    const bool bad_count = padded && batch_ > 0 && b_.one_in(12);
    if (bad_count) counts.back() = b_.coin() ? -1 : static_cast<int>(tokens) + 1;
    const bool shared = by_coordinates && b_.one_in(4);
    std::vector<coordinates> places;
    std::vector<std::int64_t> ids;
    for (Index i = 0; i < (shared ? tokens : batch_ * tokens); ++i) {
      if (by_coordinates) places.push_back(fuzz::draw_coordinates(b_, !turned));
      if (in == text_at || in == turned_text_at)
        ids.push_back(b_.one_in(12) ? b_.integer() : b_.between(-2, 60));
    }
    const bool other_rows = by_coordinates && b_.one_in(16);
    if (other_rows) {
      places.push_back({0, 0});
      if (static_cast<Index>(places.size()) == tokens || static_cast<Index>(places.size()) == batch_ * tokens)
        places.push_back({0, 0});
    }
    rows added(rows_.size());
    guarded_memory<K> k_memory(0), v_memory(0);
    head_view<K> k = fuzz::draw_view(b_, k_memory, batch_, tokens, heads_, dim_);
    head_view<K> v = fuzz::draw_view(b_, v_memory, batch_, tokens, heads_, value_dim_);
    bool in_range = true, in_table = true;
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        token one{{fuzz::draw_channels<T>(b_, static_cast<std::size_t>(heads_ * dim_))},
                  fuzz::draw_channels<T>(b_, static_cast<std::size_t>(heads_ * value_dim_)),
                  {}};
        for (Index h = 0; h < heads_; ++h) {
          for (Index d = 0; d < dim_; ++d)
            k.at(r, t, h)[d] = static_cast<K>(one.k.exact[static_cast<std::size_t>(h * dim_ + d)]);
          for (Index d = 0; d < value_dim_; ++d)
            v.at(r, t, h)[d] = static_cast<K>(one.v[static_cast<std::size_t>(h * value_dim_ + d)]);
        }
        if (padded && t >= counts[static_cast<std::size_t>(r)]) continue;
        const auto i = static_cast<std::size_t>(shared ? t : r * tokens + t);
        if (by_coordinates) {
          one.at = places[i];
        } else {
          const double position =
              behind ? largest(r) + static_cast<double>(t + 1) : static_cast<double>(ids[i]);
          one.at = {position, position};
          constexpr std::int64_t most = std::int64_t{1} << 53;
          in_range = in_range && (behind ? largest(r) <= limit - static_cast<double>(t + 1)
                                         : ids[i] >= -most && ids[i] <= most);
          in_table = in_table && position >= -40 && position < 90;
        }
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const auto call = [&] {
      const detail::row_counts list = padded ? detail::row_counts(counts) : detail::row_counts();
      const head_view<const K> keys = k;
      if (in == text_behind) return cache_.append(keys, v, list);
      if (in == text_at) return cache_.append_at(keys, v, ids, list);
      if (in == at_rows) return cache_.append_at(keys, v, token_coordinates(fuzz::rows_of(places)), list);
      fuzz::with_table(given, places, [&](const auto& table) {
        fuzz::with_layout(given.interleaved, [&]<class Layout>(Layout) {
          if (in == turned_text_at) return cache_.template append_at<Layout>(keys, v, table, ids, list);
          if (in == rows_and_positions)
            return cache_.template append_at<Layout>(keys, v, table, std::int64_t{0}, list);
          cache_.template append<Layout>(keys, v, table, list);
        });
      });
    };
    if (behind && !goes_on_whole())
      return refused<std::invalid_argument>("text does not go on behind a part of a cell", call);
    if (other_rows && in != rows_and_positions)
      return refused<std::invalid_argument>("coordinates that are not of all tokens are refused", call);
    if (b_.one_in(12)) {
      if (b_.coin())
        k.batch += 1;
      else
        v.tokens += 1;
      return refused<std::invalid_argument>("another shape is refused", call);
    }
    if (bad_count) return refused<std::invalid_argument>("a count outside of the tokens is refused", call);
    bool fits = batch_ > 0 || tokens <= capacity_ - ghost_;
    for (Index r = 0; r < batch_; ++r)
      fits = fits && static_cast<Index>(added[static_cast<std::size_t>(r)].size()) <= capacity_ - size(r);
    if (!fits) return refused<std::length_error>("tokens that do not fit are refused", call);
    if (!in_range) return refused<std::out_of_range>("positions beyond 2^53 are refused", call);
    if (turned && raw()) return refused<std::invalid_argument>("raw keys take no table", call);
    if (!empty() && !(turned ? known_ && rotation_.meets(given) : !known_))
      return refused<std::invalid_argument>("keys of another rotation are refused", call);
    if (in == rows_and_positions)
      return refused<std::invalid_argument>("a table of coordinates says where tokens are", call);
    if (turned && !in_table)
      return refused<std::out_of_range>("positions outside the table are refused", call);
    call();
    check(k_memory.untouched_outside(k) && v_memory.untouched_outside(v), "what is appended stays as it is");
    if (turned) rotation_ = empty() ? given : rotation_.joined(given);
    known_ = turned;
    if (batch_ == 0) ghost_ += tokens;
    for (std::size_t r = 0; r < rows_.size(); ++r)
      for (token& one : added[r]) {
        if (turned)
          fuzz::turn_on_axes<T>(one.k, dim_, given, one.at, given.factor());
        else
          one.k.error = fuzz::storing_error<T>(one.k.exact);
        rows_[r].push_back(one);
      }
  }

  batch_row draw_row() {
    if (b_.coin()) return every_row;
    return batch_row{b_.one_in(8) ? static_cast<Index>(b_.integer())
                                  : static_cast<Index>(b_.up_to(long(batch_) - 1))};
  }
  bool is_row(batch_row r) const { return r.every || (r.index >= 0 && r.index < batch_); }
  template <class Call>
  bool refused_rows(batch_row r, const Call& call) {
    if (r.every && !even())
      return refused<std::invalid_argument>("every row is asked for, and rows differ", call), true;
    if (!is_row(r)) return refused<std::out_of_range>("a row that there is not is refused", call), true;
    return false;
  }
  Index held(batch_row r) const { return r.every ? common_size() : size(r.index); }
  Index most(batch_row r) const { return is_row(r) && (!r.every || even()) ? held(r) : 3; }
  template <class Change>
  void for_rows(batch_row r, const Change& change) {
    for (Index i = 0; i < batch_; ++i)
      if (r.every || r.index == i) change(row(i));
  }
  std::pair<Index, Index> draw_range(batch_row r) {
    const auto first = static_cast<Index>(b_.one_in(8) ? b_.integer() : b_.up_to(long(most(r))));
    const auto count = static_cast<Index>(
        b_.one_in(8) ? b_.integer() : b_.up_to(long(most(r) - std::clamp(first, Index{0}, most(r)))));
    return {first, count};
  }
  bool is_range(batch_row r, Index first, Index count) const {
    return first >= 0 && count >= 0 && first <= held(r) && count <= held(r) - first;
  }

  void truncate() {
    const batch_row r = draw_row();
    const auto left = static_cast<Index>(b_.one_in(5) ? b_.integer() : b_.up_to(long(most(r))));
    const auto call = [&] { cache_.truncate(left, r); };
    if (refused_rows(r, call)) return;
    if (left < 0 || left > held(r))
      return refused<std::out_of_range>("a size outside of what is held is refused", call);
    call();
    for_rows(r, [&](auto& of) { of.resize(static_cast<std::size_t>(left)); });
    if (batch_ == 0) ghost_ = left;
  }

  void remove() {
    const batch_row r = draw_row();
    const auto [first, count] = draw_range(r);
    const auto call = [&, from = first, n = count] { cache_.remove(from, n, r); };
    if (refused_rows(r, call)) return;
    if (!is_range(r, first, count))
      return refused<std::out_of_range>("tokens that are not held are refused", call);
    call();
    for_rows(r,
             [&, from = first, n = count](auto& of) { of.erase(of.begin() + from, of.begin() + from + n); });
    if (batch_ == 0) ghost_ -= count;
  }

  void shift() {
    const batch_row r = draw_row();
    const auto [first, count] = draw_range(r);
    const bool by_table = b_.one_in(8) ? raw() : !raw();
    const axis_rotation given = draw_rotation(b_.coin());
    const std::int64_t delta = b_.one_in(5) ? b_.integer() : b_.between(-4, 4);
    const auto call = [&, from = first, n = count] {
      if (!by_table) return cache_.shift(from, n, delta, r);
      fuzz::with_table(given, {{1, 2}}, [&](const auto& table) {
        fuzz::with_layout(given.interleaved, [&]<class Layout>(Layout) {
          cache_.template shift<Layout>(from, n, delta, table, r);
        });
      });
    };
    if (!by_table && !raw())
      return refused<std::invalid_argument>("rotated keys are not shifted without their table", call);
    if (!raw() && !empty() && !(known_ && rotation_.meets(given)))
      return refused<std::invalid_argument>("keys of another rotation are not shifted", call);
    if (refused_rows(r, call)) return;
    if (!is_range(r, first, count))
      return refused<std::out_of_range>("tokens that are not held are refused", call);
    bool stays = true;
    const auto by = static_cast<double>(delta);
    for_rows(r, [&, from = first, n = count](auto& of) {
      for (Index t = from; t < from + n; ++t)
        for (const double x : of[static_cast<std::size_t>(t)].at)
          stays = stays && std::abs(by) <= limit && x <= limit - by && x >= -limit - by;
    });
    if (!stays) return refused<std::out_of_range>("coordinates beyond 2^53 are refused", call);
    if (!raw() && std::abs(by) > 0x1p36) return;  // beyond what the model computes exactly
    call();
    for_rows(r, [&, from = first, n = count](auto& of) {
      for (Index t = from; t < from + n; ++t) {
        token& one = of[static_cast<std::size_t>(t)];
        for (double& x : one.at) x += by;
        if (!raw() && delta != 0) fuzz::turn_on_axes<T>(one.k, dim_, given, {by, by}, 1);
      }
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
      fuzz::with_layout(from.interleaved, [&]<class Layout>(Layout) {
        fuzz::with_table(from, {{3, 1}}, [&](const auto& of_keys) {
          if (other < 3)
            return cache_.template rebase<Layout>(
                of_keys, axis_tables::get().refused[static_cast<std::size_t>(other)]);
          if (other == 3) return cache_.template rebase<Layout>(of_keys, axis_tables::get().of_more_pairs);
          fuzz::with_table(to, {},
                           [&](const auto& wanted) { cache_.template rebase<Layout>(of_keys, wanted); });
        });
      });
    };
    const bool text_only = empty() || rotation_.by < 0;
    if (raw() || other < 4 || !(empty() || (known_ && rotation_.meets(from))) ||
        to.first_channel != from.first_channel || (!text_only && (from.by < 0 || to.by < 0)))
      return refused<std::invalid_argument>("keys are rebased from their own table to one of the same place",
                                            call);
    if (!all_near()) return;
    call();
    if (!empty()) rotation_ = to;
    for (auto& of : rows_)
      for (token& one : of) {
        const wide error = one.k.error;
        fuzz::turn_on_axes<T>(one.k, dim_, from, one.at, 1, -1);
        one.k.error = error;  // the library turns once, by the difference
        fuzz::turn_on_axes<T>(one.k, dim_, to, one.at, to.factor() / from.factor());
        one.k.error = one.k.error * 1.25L + tolerance::unit_roundoff<float>() * 16;
      }
  }

  Index draw_index() {
    return b_.one_in(8) ? static_cast<Index>(b_.integer()) : static_cast<Index>(b_.up_to(long(batch_) - 1));
  }
  void copy_or_clear() {
    switch (b_.up_to(4)) {
      case 0:
        cache_.clear();
        for (auto& of : rows_) of.clear();
        ghost_ = 0;
        break;
      case 1: {
        const kv_cache<T> copy = cache_;
        cache_.clear();
        cache_ = copy;
        break;
      }
      case 2: {
        kv_cache<T> moved = std::move(cache_);
        check(cache_.batch() == 0 && cache_.axes() == 0 && cache_.coordinates().size() == 0,
              "a cache is empty once it was moved from");
        cache_ = std::move(moved);
        break;
      }
      case 3: {
        const Index from = draw_index(), to = draw_index();
        const auto call = [&] { cache_.copy_row(from, to); };
        if (!is_row({from}) || !is_row({to}))
          return refused<std::out_of_range>("a row that there is not is refused", call);
        call();
        if (from != to) row(to) = row(from);
        break;
      }
      default: {
        std::vector<Index> from;
        bool exist = true;
        for (Index r = 0; r < batch_; ++r) {
          from.push_back(draw_index());
          exist = exist && is_row({from.back()});
        }
        const auto call = [&] { cache_.reorder(from); };
        if (!exist) return refused<std::out_of_range>("a row that there is not is refused", call);
        call();
        const rows before = rows_;
        for (std::size_t r = 0; r < rows_.size(); ++r) rows_[r] = before[static_cast<std::size_t>(from[r])];
      }
    }
  }

  /// Calls that are wrong whatever the cache holds.
  void misuse() {
    using limits = std::numeric_limits<Index>;
    static const Index outside[] = {-1, limits::min(), limits::max()};
    const Index none = b_.coin() ? batch_ : b_.one_of(outside);
    refused<std::out_of_range>("no row has coordinates",
                               [&] { static_cast<void>(cache_.coordinates(none)); });
    refused<std::out_of_range>("no row has an order", [&] { static_cast<void>(cache_.order(none)); });
    refused<std::invalid_argument>("a count of text is not negative", [&] {
      static_cast<void>(cache_.next_coordinates(b_.coin() ? -1 : limits::min()));
    });
    if (batch_ > 0)
      refused<std::out_of_range>("text stays within 2^53",
                                 [&] { static_cast<void>(cache_.next_coordinates(limits::max())); });
    refused<std::invalid_argument>("there is an axis", [&] { token_axes(b_.coin() ? 0 : limits::min()); });
    refused<std::length_error>("more than the address space is refused", [&] {
      kv_cache<T> bad(2, 2, 1, 1, token_axes(limits::max() / (b_.coin() ? 2 : 16)));
    });
    static const double nowhere[] = {0x1p53 + 2, -0x1p63, std::numeric_limits<double>::infinity(),
                                     std::numeric_limits<double>::quiet_NaN()};
    Eigen::Array22d bad_places = Eigen::Array22d::Zero();
    bad_places(b_.up_to(1), b_.up_to(1)) = b_.one_of(nowhere);
    refused<std::invalid_argument>("a coordinate is finite and within 2^53",
                                   [&] { token_coordinates one(bad_places); });
    const Eigen::Array<std::int64_t, 1, 1> bad_integer(b_.coin() ? (std::int64_t{1} << 53) + 1
                                                                 : limits::min());
    refused<std::invalid_argument>("an integer coordinate is within 2^53",
                                   [&] { token_coordinates one(bad_integer); });
    const head_view<float> nothing = {nullptr, batch_, 0, heads_, dim_, 1, 1, 1};
    const head_view<float> no_value = {nullptr, batch_, 0, heads_, value_dim_, 1, 1, 1};
    if constexpr (!std::is_same_v<T, double>) {
      refused<std::invalid_argument>("coordinates are of as many axes", [&] {
        cache_.append_at(nothing, no_value, token_coordinates(Eigen::ArrayXXd::Zero(0, axes + 1)));
      });
      refused<std::invalid_argument>("a cache of positions takes no coordinates", [&] {
        kv_cache<T> plain(batch_, 1, heads_, dim_, value_dim_);
        plain.append_at(nothing, no_value, token_coordinates(Eigen::ArrayXXd::Zero(0, axes)));
      });
    }
    for (const auto& table : axis_tables::get().refused)
      refused<std::invalid_argument>("a table of other angles or axes is refused",
                                     [&] { cache_.template check_table<half_split>(table); });
    if (!raw()) fuzz::check_rotations(cache_, empty(), known_ ? &rotation_ : nullptr, first_channel_);
    check_text();
  }
  void check_text() {
    bool fits = true;
    for (Index r = 0; r < batch_; ++r) fits = fits && largest(r) <= limit - 1;
    if (!fits)
      return refused<std::out_of_range>("no text goes on beyond 2^53",
                                        [&] { static_cast<void>(describe(cache_)); });
    const std::string text = describe(cache_);
    check(std::count(text.begin(), text.end(), '\n') == batch_, "a cache has a line of text for every row");
  }

  /// The newest tokens ask; see the targets of attention and of kv_cache for what this one leaves out.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = fuzz::numbers<T>;
      if (batch_ == 0) return;
      std::vector<Index> counts;
      Index queries = 0;
      for (Index r = 0; r < batch_; ++r) {
        counts.push_back(b_.up_to(long(std::min(size(r), Index{3}))));
        queries = std::max(queries, counts.back());
      }
      const auto count_of = [&](Index r) { return counts[static_cast<std::size_t>(r)]; };
      const Index group = b_.between(1, 2), heads = heads_ * group;
      const Index window = b_.coin() ? 0 : b_.between(1, 4);
      guarded_memory<Q> q_memory(0), out_memory(0);
      const head_view<Q> q = fuzz::draw_view(b_, q_memory, batch_, queries, heads, dim_),
                         out = fuzz::draw_view(b_, out_memory, batch_, queries, heads, value_dim_);
      std::vector<channels> asked;
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < queries; ++i) {
          asked.push_back(fuzz::draw_channels<T>(b_, static_cast<std::size_t>(heads * dim_)));
          for (Index h = 0; h < heads; ++h)
            for (Index d = 0; d < dim_; ++d)
              q.at(r, i, h)[d] = static_cast<Q>(asked.back()[static_cast<std::size_t>(h * dim_ + d)]);
        }
      out_memory.before = out_memory.now;
      const bool turned = raw() ? !b_.one_in(12) : b_.coin();
      const bool by_text = turned && !raw() && b_.coin();
      const axis_rotation given = draw_rotation(turned && (by_text || (raw() && b_.one_in(12))));
      // Rows of the table: all tokens for raw keys, else the queries.
      std::vector<coordinates> places;
      bool text = true, in_table = true, near_ones = true;
      for (Index r = 0; r < batch_; ++r) {
        for (Index t = 0; t < size(r); ++t) {
          near_ones = near_ones && fuzz::is_near(at(r, t).at);
          if (raw()) places.push_back(at(r, t).at);
        }
        for (Index i = 0; i < queries; ++i) {
          if (i >= count_of(r)) {
            if (!raw()) places.push_back({0, 0});
            continue;
          }
          const coordinates& own = at(r, size(r) - count_of(r) + i).at;
          text = text && fuzz::is_text(own);
          in_table = in_table && own[0] >= -40 && own[0] < 90;
          if (!raw()) places.push_back(own);
        }
      }
      bool wrong_rows = false;
      if (turned && given.by >= 0 && !places.empty() && b_.one_in(8)) {
        if (b_.coin()) {
          places.push_back({0, 0});
          const auto n = static_cast<Index>(places.size());
          wrong_rows = raw() || (n != queries && n != batch_ * queries);
        } else {  // of a token that counts
          Index spoilt = -1;
          for (Index r = 0; r < batch_; ++r)
            if (!raw() && count_of(r) > 0) spoilt = r * queries + count_of(r) - 1;
          if (raw()) spoilt = static_cast<Index>(places.size()) - 1;
          wrong_rows = spoilt >= 0;
          if (wrong_rows) places[static_cast<std::size_t>(spoilt)][b_.coin() ? 1 : 0] += 0.5;
        }
        if (!wrong_rows) return;
      }
      if (!near_ones && turned) return;
      attention_options options = {.window = window};
      fuzz::wrong_option spoilt;
      const bool wrong = b_.one_in(12);
      if (wrong) spoilt.put_into(options, b_, batch_, queries, heads);
      const auto call = [&] {
        const head_view<const Q> asking = q;
        if (!turned) return attention(asking, cache_, out, options, counts);
        fuzz::with_table(given, places, [&](const auto& table) {
          fuzz::with_layout(given.interleaved, [&]<class Layout>(Layout) {
            attention<Layout>(asking, cache_, out, table, options, counts);
          });
        });
      };
      const auto before = state();
      const bool invalid = wrong || wrong_rows || (raw() && (!turned || given.by < 0)) ||
                           (turned && !raw() && !empty() && !(known_ && rotation_.meets(given))) ||
                           (turned && !raw() && given.by < 0 && !text);
      if (invalid || (turned && given.by < 0 && !in_table)) {
        const char* claim = "options or a table that do not go with the cache are refused";
        invalid ? refused<std::invalid_argument>(claim, call) : refused<std::out_of_range>(claim, call);
        return check(out_memory.untouched(), "a refused call writes nothing");
      }
      call();
      check(out_memory.untouched_outside(out), "only the channels of the output are written");
      check(state() == before, "attention does not change a cache");
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < queries; ++i) {
          if (i >= count_of(r)) {
            fuzz::check_padding(out, r, i);
            continue;
          }
          const Index own = size(r) - count_of(r) + i;
          fuzz::key query{asked[static_cast<std::size_t>(r * queries + i)]};
          if (turned) fuzz::turn_on_axes<Q>(query, dim_, given, at(r, own).at, given.factor());
          std::vector<fuzz::key> keys;
          std::vector<channels> values;
          for (Index t = window == 0 ? 0 : std::max(own - window + 1, Index{0}); t <= own; ++t) {
            keys.push_back(at(r, t).k);
            values.push_back(at(r, t).v);
            if constexpr (fuzz::is_quantized<T>) {
              values.back() = fuzz::stored_channels(cache_.values(r), 0, t);
              keys.back() = {fuzz::stored_channels(cache_.keys(r), 0, t)};
            }
            if (raw()) fuzz::turn_on_axes<Q>(keys.back(), dim_, given, at(r, t).at, given.factor());
          }
          fuzz::check_attended(
              "attention on axes goes by the order of tokens, and turns by their coordinates", out, r, i,
              group, query, keys, values);
        }
    }
  }

  bytes& b_;
  Index batch_, capacity_, heads_, dim_, value_dim_, first_channel_;
  key_storage storage_;
  kv_cache<T> cache_;
  rows rows_;
  Index ghost_ = 0;
  bool known_ = false;
  axis_rotation rotation_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  switch (b.up_to(4)) {
    case 0:
      fuzz::decoder<float>(b).run();
      break;
    case 1:
      fuzz::decoder<double>(b).run();
      break;
    case 2:
      fuzz::decoder<Eigen::half>(b).run();
      break;
    case 3:
      fuzz::decoder<Eigen::bfloat16>(b).run();
      break;
    default:
      fuzz::decoder<std::int8_t>(b).run();
  }
  return 0;
}
