// SPDX-License-Identifier: MIT
// Any sequence of the operations of a latent_cache against lists of tokens; every call that its comments say throws is made
// too, and changes nothing.
#include <rope/cache/latent_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/views.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;
using fuzz::bytes;
using fuzz::channels;
using fuzz::check;
using fuzz::refuses;
using fuzz::wide;
using testing::guarded_memory;

namespace {

constexpr Index pairs = 2;
constexpr std::int64_t limit = std::int64_t{1} << 53;

/// Tables that keys meet: two schedules, a magnitude, another range of the first, and angles that are not exact.
struct tables {
  frequencies slow = frequencies(2 * pairs, 50.0), fast = frequencies::custom(Eigen::Array2d(1.5, 0.25)),
              scaled = frequencies::custom(Eigen::Array2d(1.5, 0.25), 1.25),
              wide_one = frequencies(2 * pairs + 2, 50.0);
  std::vector<frequency_table<float>> all = {
      frequency_table<float>(slow, -40, 90),
      frequency_table<float>(fast, -40, 90),
      frequency_table<float>(scaled, -40, 90),
      frequency_table<float>(slow, 0, 12),
      frequency_table<float>::with_float_angles(slow, -40, 90),
      frequency_table<float>(slow, Eigen::ArrayXd::LinSpaced(90, 0, 89))};
  frequency_table<float> of_more_pairs = frequency_table<float>(wide_one, -40, 90);
  static const tables& get() {
    static const tables one;
    return one;
  }
  static bool exact(std::size_t i) { return i < 4; }
};

/// A latent and, behind it, the part that turns: the key of every head.
struct token {
  fuzz::key k;
  std::int64_t position;
  long append, column;  // where it came from
};

/// The cache beside lists that say what it should hold.
template <class T>
class decoder {
 public:
  explicit decoder(bytes& b)
      : b_(b),
        batch_(b.one_in(12) ? 0 : b.between(1, 3)),
        capacity_(b.up_to(9)),
        latent_dim_(b.up_to(4)),
        dim_(latent_dim_ + 2 * pairs),
        storage_(b.coin() ? key_storage::raw : key_storage::rotated),
        cache_(batch_, capacity_, latent_dim_, 2 * pairs, storage_),
        rows_(static_cast<std::size_t>(batch_)),
        ghost_(0) {}

  void run() {
    check_all();
    for (int steps = 0; steps < 24 && !b_.empty(); ++steps) {
      step();
      check_all();
    }
  }

 private:
  using rows = std::vector<std::vector<token>>;

  bool raw() const { return storage_ == key_storage::raw; }
  bool even() const {
    return std::all_of(rows_.begin(), rows_.end(),
                       [&](const auto& row) { return row.size() == rows_[0].size(); });
  }
  std::vector<token>& row(Index b) { return rows_[static_cast<std::size_t>(b)]; }
  const std::vector<token>& row(Index b) const { return rows_[static_cast<std::size_t>(b)]; }
  Index size(Index b) const { return static_cast<Index>(row(b).size()); }
  /// A batch without rows has a size all the same.
  Index common_size() const { return batch_ == 0 ? ghost_ : size(0); }
  std::int64_t next(Index b) const {
    std::int64_t largest = -1;
    bool any = false;
    for (const token& t : row(b)) largest = any ? std::max(largest, t.position) : t.position, any = true;
    return any ? largest + 1 : 0;
  }
  bool empty() const {
    return batch_ == 0 ? ghost_ == 0
                       : std::all_of(rows_.begin(), rows_.end(), [](const auto& row) { return row.empty(); });
  }

  /// Everything that the cache shows, as bits.
  std::vector<unsigned char> state() const {
    std::vector<unsigned char> bits;
    for (Index r = 0; r < batch_; ++r) {
      fuzz::add_number(bits, cache_.size(r));
      for (const std::int64_t position : cache_.positions(r)) fuzz::add_number(bits, position);
      fuzz::add_bits(bits, cache_.keys(r));
      fuzz::add_bits(bits, cache_.values(r));
      fuzz::add_number(bits, cache_.next_positions()[static_cast<std::size_t>(r)]);
    }
    for (Index queries = 0; queries < 7; ++queries) {
      try {
        const auto counts = cache_.query_counts(queries);
        fuzz::add_number(bits, counts.size());
        for (const Index count : counts) fuzz::add_number(bits, count);
      } catch (const std::invalid_argument&) {
        fuzz::add_number(bits, 'x');
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& table = tables::get().all[i];
      fuzz::add_number(bits, 'a' + meets<half_split>(table) + 2 * meets<interleaved>(table));
    }
    return bits;
  }
  template <class Layout>
  int meets(const frequency_table<float>& table) const {
    try {
      cache_.template check_table<Layout>(table);
      return 1;
    } catch (const std::invalid_argument&) {
      return 0;
    }
  }
  template <class Exception, class Call>
  void refused(const char* claim, const Call& call) {
    const auto before = state();
    refuses<Exception>(claim, call);
    check(state() == before, "a call that throws changes nothing");
  }

  void check_all() {
    check(cache_.batch() == batch_ && cache_.capacity() == capacity_ && cache_.latent_dim() == latent_dim_ &&
              cache_.rotary_dim() == 2 * pairs && cache_.storage() == storage_,
          "extents stay");
    for (Index r = 0; r < batch_; ++r) {
      check(cache_.size(r) == size(r), "a row has the tokens that it took and kept");
      check(cache_.next_positions()[static_cast<std::size_t>(r)] == next(r),
            "the next position follows the largest");
      const auto positions = cache_.positions(r);
      const auto keys = cache_.keys(r), values = cache_.values(r);
      check(keys.batch == 1 && keys.tokens == size(r) && keys.heads == 1 && keys.head_dim == dim_,
            "the shape of keys");
      check(values.batch == 1 && values.tokens == size(r) && values.heads == 1 &&
                values.head_dim == latent_dim_,
            "the shape of values");
      for (Index t = 0; t < size(r); ++t) {
        const token& one = row(r)[static_cast<std::size_t>(t)];
        check(positions[static_cast<std::size_t>(t)] == one.position, "tokens keep their positions");
        check(fuzz::near(keys, 0, t, 0, one.k.exact.data(), one.k.error),
              "keys are those that were stored, turned as was asked");
        check(fuzz::near(values, 0, t, 0, one.k.exact.data(), 0), "latents keep their bits");
      }
    }
    if (even()) {
      check(cache_.size() == common_size() && cache_.keys().tokens == common_size() &&
                cache_.values().tokens == common_size(),
            "even rows have one size");
    } else {
      refused<std::invalid_argument>("rows that differ have no common size",
                                     [&] { static_cast<void>(cache_.size()); });
      refused<std::invalid_argument>("rows that differ have no common keys",
                                     [&] { static_cast<void>(cache_.keys()); });
      refused<std::invalid_argument>("rows that differ have no common values",
                                     [&] { static_cast<void>(cache_.values()); });
    }
    check_counts();
  }

  /// The tokens that a call without counts asks for are the same columns of what was appended.
  void check_counts() {
    for (Index queries = 0; queries <= last_width_ + 2; ++queries) {
      bool same_columns = true, enough = true;
      for (Index r = 0; r < batch_; ++r) {
        enough = enough && size(r) >= queries;
        for (Index i = 1; enough && i <= queries; ++i) {
          const token &a = row(r)[row(r).size() - static_cast<std::size_t>(i)],
                      &first = row(0)[row(0).size() - static_cast<std::size_t>(i)];
          same_columns = same_columns && a.append == first.append && a.column == first.column;
        }
      }
      std::span<const Index> counts;
      try {
        counts = cache_.query_counts(queries);
      } catch (const std::invalid_argument&) {
        check(forgot_ || queries != last_width_, "a call for the tokens of the last append needs no counts");
        continue;
      }
      if (counts.empty()) {
        check(batch_ == 0 || !enough || same_columns,
              "queries without counts are the same columns of every row");
        continue;
      }
      check(queries <= last_width_ && static_cast<Index>(counts.size()) == batch_,
            "counts are those of the last append");
      std::vector<long> columns(static_cast<std::size_t>(queries), -1);
      for (Index r = 0; r < batch_; ++r) {
        Index of_last = 0;
        for (const token& t : row(r)) of_last += t.append == appends_;
        check(counts[static_cast<std::size_t>(r)] == of_last && of_last <= queries,
              "a row has the queries that it kept of the last append");
        for (Index i = 0; i < of_last; ++i) {
          long& column = columns[static_cast<std::size_t>(i)];
          const long own = row(r)[static_cast<std::size_t>(size(r) - of_last + i)].column;
          check(column < 0 || column == own,
                "a query is the same column of the last append in every row that has it");
          column = own;
        }
      }
    }
  }

  void step() {
    switch (b_.up_to(12)) {
      case 12:
        return b_.coin() ? copy_row() : reorder();
      case 0:
      case 1:
      case 2:
      case 3:
        return append();
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
      default:
        return attend();
    }
  }

  template <class Call>
  void with_layout(bool interleaved_one, const Call& call) {
    interleaved_one ? call(interleaved{}) : call(half_split{});
  }
  fuzz::rotation_rule rule_of(std::size_t table, bool interleaved_one) const {
    const auto inv_freq = tables::get().all[table].inv_freq();
    return {{inv_freq(0, 0), inv_freq(1, 0)},
            static_cast<wide>(tables::get().all[table].attention_factor()),
            interleaved_one,
            static_cast<std::size_t>(latent_dim_)};
  }

  void append() {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
      append_of<T>();
    } else {
      b_.coin() ? append_of<T>() : append_of<float>();
    }
  }

  /// Latents and parts in views of type K: with a table, placed or not, or without one, at positions or behind, of all rows or
  /// with counts, or something of that wrong.
  template <class K>
  void append_of() {
    const Index tokens = b_.up_to(3);
    const bool by_table = raw() ? b_.one_in(8) : b_.coin(), at = b_.one_in(3), padded = b_.coin();
    const bool interleaved_one = b_.one_in(4);
    const auto table = static_cast<std::size_t>(b_.one_in(3) ? b_.up_to(5) : 0);
    std::vector<std::int64_t> counts, ids;
    if (padded)
      for (Index r = 0; r < batch_; ++r) counts.push_back(b_.up_to(long(tokens)));
    const bool bad_count = padded && batch_ > 0 && b_.one_in(12);
    if (bad_count) counts.back() = b_.coin() ? -1 : tokens + 1;
    const auto count_of = [&](Index r) {
      return padded ? static_cast<Index>(counts[static_cast<std::size_t>(r)]) : tokens;
    };
    const long form = b_.up_to(2);
    std::int64_t start = at ? (b_.one_in(6) ? b_.integer() : b_.between(-2, 60)) : 0;
    if (at && form > 0)
      for (Index i = 0; i < batch_ * tokens; ++i)
        ids.push_back(b_.one_in(12) ? b_.integer() : b_.between(-2, 60));
    const auto position_of = [&](Index r, Index t) {
      if (!at) return next(r) + t;
      if (form > 0) return ids[static_cast<std::size_t>(r * tokens + t)];
      std::int64_t result = 0;  // held at the ends of the range
      return __builtin_add_overflow(start, std::int64_t{t}, &result)
                 ? std::numeric_limits<std::int64_t>::max()
                 : result;
    };

    rows added(rows_.size());
    guarded_memory<K> k_memory(0), v_memory(0);
    head_view<K> k = fuzz::draw_view(b_, k_memory, batch_, tokens, 1, 2 * pairs);
    head_view<K> v = fuzz::draw_view(b_, v_memory, batch_, tokens, 1, latent_dim_);
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        token one{{fuzz::draw_channels<T>(b_, static_cast<std::size_t>(dim_))}, 0, appends_ + 1, t};
        for (Index d = 0; d < latent_dim_; ++d)
          v.at(r, t, 0)[d] = static_cast<K>(one.k.exact[static_cast<std::size_t>(d)]);
        for (Index d = 0; d < 2 * pairs; ++d)
          k.at(r, t, 0)[d] = static_cast<K>(one.k.exact[static_cast<std::size_t>(latent_dim_ + d)]);
        if (t < count_of(r))
          one.position = position_of(r, t), added[static_cast<std::size_t>(r)].push_back(one);
      }
    const long form_of_table = b_.one_in(12) ? 2 : b_.up_to(1);  // as it is, placed, or placed elsewhere
    const bool other_place = by_table && form_of_table == 2;
    const auto call = [&] {
      const detail::row_counts list = padded ? detail::row_counts(counts) : detail::row_counts();
      const head_view<const K> keys = k;
      if (by_table)
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          with_table(table, form_of_table, [&](const auto& by) {
            if (!at) return cache_.template append<Layout>(v, keys, by, list);
            if (form > 0) return cache_.template append_at<Layout>(v, keys, by, ids, list);
            cache_.template append_at<Layout>(v, keys, by, start, list);
          });
        });
      else if (!at)
        cache_.append(v, keys, list);
      else if (form > 0)
        cache_.append_at(v, keys, ids, list);
      else
        cache_.append_at(v, keys, start, list);
    };

    // What is wrong, in the order in which the calls look.
    if (other_place)
      return refused<std::invalid_argument>("a table that does not turn the part is refused", call);
    if (b_.one_in(10)) {
      switch (b_.up_to(7)) {
        case 0:
          k.batch += 1;
          break;
        case 1:
          v.heads += 1;
          break;
        case 2:
          k.head_dim -= 1;
          break;
        case 3:
          v.head_dim += 1;
          break;
        case 4:
          v.tokens += 1;
          break;
        case 5:
          k.tokens = -1;
          break;
        case 6:
          counts.assign(static_cast<std::size_t>(batch_ + 1), 0);
          return refused<std::invalid_argument>("counts of another length are refused",
                                                [&] { cache_.append(v, k, counts); });
        default:
          if (k.size() == 0) return;
          k.data = nullptr;
      }
      return refused<std::invalid_argument>("another shape is refused", call);
    }
    if (bad_count) return refused<std::invalid_argument>("a count outside of the tokens is refused", call);
    bool fits = batch_ > 0 || tokens <= capacity_ - ghost_, in_range = true, in_table = true;
    for (Index r = 0; r < batch_; ++r) fits = fits && count_of(r) <= capacity_ - size(r);
    for (const auto& of_row : added)
      for (const token& one : of_row) {
        in_range = in_range && one.position >= -limit && one.position <= limit;
        in_table = in_table && tables::get().all[table].contains(one.position);
      }
    if (!fits) return refused<std::length_error>("tokens that do not fit are refused", call);
    const bool rotation_fits = empty() || (by_table ? known_ && known_table_ == fingerprint(table) &&
                                                          known_interleaved_ == interleaved_one
                                                    : !known_);
    if (!in_range) return refused<std::out_of_range>("positions beyond 2^53 are refused", call);
    if (by_table && raw()) return refused<std::invalid_argument>("raw keys take no table", call);
    if (!rotation_fits) return refused<std::invalid_argument>("keys of another rotation are refused", call);
    if (by_table && !in_table)
      return refused<std::out_of_range>("positions outside the table are refused", call);
    call();
    check(k_memory.untouched_outside(k) && v_memory.untouched_outside(v), "what is appended stays as it is");

    known_ = by_table;
    if (by_table) known_table_ = fingerprint(table), known_interleaved_ = interleaved_one, table_ = table;
    if (batch_ == 0) ghost_ += tokens;
    for (std::size_t r = 0; r < rows_.size(); ++r)
      for (token& one : added[r]) {
        if (by_table) turn_by_table<T>(one.k, table, interleaved_one, one.position);
        rows_[r].push_back(one);
      }
    ++appends_;
    last_width_ = tokens;
    forgot_ = false;
  }
  /// The table as it is, placed where the part is, or placed or wide as it must not be.
  template <class Call>
  void with_table(std::size_t table, long form, const Call& call) {
    const auto& one = tables::get().all[table];
    if (form == 0) return call(one);
    if (form == 1) return call(one.at_channel(latent_dim_));
    if (b_.coin()) return call(tables::get().of_more_pairs);
    call(one.at_channel(b_.coin() || latent_dim_ == 0 ? latent_dim_ + 1 : 0));
  }
  static std::uint64_t fingerprint(std::size_t table) { return tables::get().all[table].fingerprint(); }

  /// \tparam S  what the turned key is stored in
  template <class S>
  void turn_by_table(fuzz::key& k, std::size_t table, bool interleaved_one, std::int64_t position) const {
    fuzz::turn<S>(k, static_cast<std::size_t>(dim_), rule_of(table, interleaved_one), position, true);
    if (!tables::exact(table))
      k.error += 1e-4L;  // an angle in float is off by 2^-24 of itself, at most 90 rad
  }

  batch_row draw_row() {
    if (b_.coin()) return every_row;
    return batch_row{draw_index()};
  }
  bool is_row(batch_row r) const { return r.every || (r.index >= 0 && r.index < batch_); }
  /// What a call for rows that cannot be says of them; false if it can.
  template <class Call>
  bool refused_rows(batch_row r, const Call& call) {
    if (r.every && !even())
      return refused<std::invalid_argument>("every row is asked for, and rows differ", call), true;
    if (!is_row(r)) return refused<std::out_of_range>("a row that there is not is refused", call), true;
    return false;
  }
  Index held(batch_row r) const { return r.every ? common_size() : size(r.index); }
  template <class Change>
  void for_rows(batch_row r, const Change& change) {
    for (Index i = 0; i < batch_; ++i)
      if (r.every || r.index == i) change(row(i));
  }

  void truncate() {
    const batch_row r = draw_row();
    const Index left = static_cast<Index>(
        b_.one_in(5) ? b_.integer() : b_.up_to(long(is_row(r) && (!r.every || even()) ? held(r) : 3)));
    const auto call = [&] { cache_.truncate(left, r); };
    if (refused_rows(r, call)) return;
    if (left < 0 || left > held(r))
      return refused<std::out_of_range>("a size outside of what is held is refused", call);
    call();
    forgot_ = forgot_ || left < held(r);
    for_rows(r, [&](auto& of) { of.resize(static_cast<std::size_t>(left), {{}, 0, 0, 0}); });
    if (batch_ == 0) ghost_ = left;
  }

  std::pair<Index, Index> draw_range(batch_row r) {
    const Index most = is_row(r) && (!r.every || even()) ? held(r) : 3;
    const auto first = static_cast<Index>(b_.one_in(8) ? b_.integer() : b_.up_to(long(most)));
    const auto count = static_cast<Index>(
        b_.one_in(8) ? b_.integer() : b_.up_to(long(most - std::clamp(first, Index{0}, most))));
    return {first, count};
  }
  bool is_range(batch_row r, Index first, Index count) const {
    return first >= 0 && count >= 0 && first <= held(r) && count <= held(r) - first;
  }

  void remove() {
    const batch_row r = draw_row();
    const auto [first, count] = draw_range(r);
    const auto call = [&, from = first, n = count] { cache_.remove(from, n, r); };
    if (refused_rows(r, call)) return;
    if (!is_range(r, first, count))
      return refused<std::out_of_range>("tokens that are not held are refused", call);
    call();
    forgot_ = forgot_ || count > 0;
    for_rows(r,
             [&, from = first, n = count](auto& of) { of.erase(of.begin() + from, of.begin() + from + n); });
    if (batch_ == 0) ghost_ -= count;
  }

  void shift() {
    const batch_row r = draw_row();
    const auto [first, count] = draw_range(r);
    const bool by_table = b_.one_in(8) ? raw() : !raw(),
               interleaved_one = b_.one_in(8) ? b_.coin() : known_interleaved_;
    std::int64_t delta = b_.one_in(5) ? b_.integer() : b_.between(-4, 4);
    const auto table = b_.one_in(8) ? static_cast<std::size_t>(b_.up_to(5)) : table_;
    const long form = b_.one_in(12) ? 2 : b_.up_to(1);
    const auto call = [&, from = first, n = count] {
      if (!by_table) return cache_.shift(from, n, delta, r);
      with_layout(interleaved_one, [&]<class Layout>(Layout) {
        with_table(table, form,
                   [&](const auto& by) { cache_.template shift<Layout>(from, n, delta, by, r); });
      });
    };
    if (by_table && form == 2)
      return refused<std::invalid_argument>("a table that does not turn the part is refused", call);
    if (!by_table && !raw())
      return refused<std::invalid_argument>("rotated keys are not shifted without their table", call);
    if (!raw() && !empty() &&
        !(known_ && known_table_ == fingerprint(table) && known_interleaved_ == interleaved_one))
      return refused<std::invalid_argument>("keys of another rotation are not shifted", call);
    if (!raw() && !tables::exact(table))
      return refused<std::invalid_argument>("angles that are not exact are not shifted", call);
    if (refused_rows(r, call)) return;
    if (!is_range(r, first, count))
      return refused<std::out_of_range>("tokens that are not held are refused", call);
    bool stays = true;
    for_rows(r, [&, from = first, n = count](auto& of) {
      for (Index t = from; t < from + n; ++t) {
        const std::int64_t position = of[static_cast<std::size_t>(t)].position;
        stays = stays && delta >= -limit - position && delta <= limit - position;
      }
    });
    if (!stays) return refused<std::out_of_range>("positions beyond 2^53 are refused", call);
    if (!raw() && std::abs(delta) > std::int64_t{1} << 36) return;  // beyond what the model computes exactly
    call();
    for_rows(r, [&, from = first, n = count](auto& of) {
      for (Index t = from; t < from + n; ++t) {
        token& one = of[static_cast<std::size_t>(t)];
        one.position += delta;
        if (!raw() && delta != 0)
          fuzz::turn<T>(one.k, static_cast<std::size_t>(dim_), rule_of(table, interleaved_one), delta, false);
      }
    });
  }

  void rebase() {
    const auto from = b_.one_in(6) ? static_cast<std::size_t>(b_.up_to(5)) : table_;
    const auto to = static_cast<std::size_t>(b_.one_in(6) ? b_.up_to(5) : b_.up_to(2));
    const bool interleaved_one = b_.one_in(8) ? b_.coin() : known_interleaved_;
    const bool other_pairs = b_.one_in(16);
    const auto call = [&] {
      with_layout(interleaved_one, [&]<class Layout>(Layout) {
        const auto& all = tables::get();
        cache_.template rebase<Layout>(all.all[from], other_pairs ? all.of_more_pairs : all.all[to]);
      });
    };
    const bool known =
        empty() || (known_ && known_table_ == fingerprint(from) && known_interleaved_ == interleaved_one);
    if (raw() || !known || other_pairs || !tables::exact(from) || !tables::exact(to))
      return refused<std::invalid_argument>("keys are rebased from their own table to one of exact angles",
                                            call);
    for (const auto& of : rows_)
      for (const token& one : of)
        if (std::abs(one.position) > std::int64_t{1} << 36) return;
    call();
    fuzz::rotation_rule back = rule_of(from, interleaved_one), there = rule_of(to, interleaved_one);
    for (auto& of : rows_)
      for (token& one : of) {
        const wide error = one.k.error;
        fuzz::key turned = one.k;
        turned.error = 0;
        fuzz::turn<T>(turned, static_cast<std::size_t>(dim_), back, -one.position, false);
        const wide scale = there.factor / back.factor;
        for (std::size_t d = 0; d < 2 * pairs; ++d)
          turned.exact[static_cast<std::size_t>(latent_dim_) + d] *= scale;
        turned.error = error;  // the library turns once, by the difference
        fuzz::turn<T>(turned, static_cast<std::size_t>(dim_), there, one.position, false);
        turned.error = turned.error * 1.25L + tolerance::unit_roundoff<float>() * 16;
        one.k = turned;
      }
    table_ = to;
    known_table_ = fingerprint(to);
    known_interleaved_ = interleaved_one;
  }

  Index draw_index() {
    return b_.one_in(8) ? static_cast<Index>(b_.integer()) : static_cast<Index>(b_.up_to(long(batch_) - 1));
  }
  void copy_row() {
    const Index from = draw_index(), to = draw_index();
    const auto call = [&] { cache_.copy_row(from, to); };
    if (!is_row({from}) || !is_row({to}))
      return refused<std::out_of_range>("a row that there is not is refused", call);
    call();
    if (from != to) row(to) = row(from);
  }
  void reorder() {
    std::vector<int> from;
    bool rows_exist = true;
    for (Index r = 0; r < batch_; ++r) {
      from.push_back(b_.one_in(16) ? static_cast<int>(b_.between(-2, 5))
                                   : static_cast<int>(b_.up_to(long(batch_) - 1)));
      rows_exist = rows_exist && is_row({from.back()});
    }
    const bool bad_length = b_.one_in(12);
    if (bad_length) from.push_back(0);
    const auto call = [&] { cache_.reorder(from); };
    if (bad_length) return refused<std::invalid_argument>("every row is a copy of one row", call);
    if (!rows_exist) return refused<std::out_of_range>("a row that there is not is refused", call);
    call();
    const rows before = rows_;
    for (Index r = 0; r < batch_; ++r)
      row(r) = before[static_cast<std::size_t>(from[static_cast<std::size_t>(r)])];
  }

  void copy_or_clear() {
    switch (b_.up_to(4)) {
      case 0: {
        cache_.clear();
        for (auto& of : rows_) of.clear();
        ghost_ = 0;
        last_width_ = 0;
        forgot_ = false;
        break;
      }
      case 1: {
        const latent_cache<T> copy = cache_;
        cache_ = copy;
        break;
      }
      case 2: {
        latent_cache<T> moved = std::move(cache_);
        check(cache_.batch() == 0 && cache_.capacity() == 0 && cache_.keys().size() == 0,
              "a cache is empty once it was moved from");
        cache_ = std::move(moved);
        break;
      }
      case 3: {
        latent_cache<T> other(1, 2, 3, 4);
        other = cache_;
        cache_.clear();
        cache_ = other;
        break;
      }
      default: {
        const latent_cache<T>& self = cache_;
        cache_ = self;
      }
    }
  }

  /// Calls that are wrong whatever the cache holds.
  void misuse() {
    static const Index outside[] = {-1, std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max()};
    const Index none = b_.coin() ? batch_ : b_.one_of(outside);
    refused<std::out_of_range>("no row has that size", [&] { static_cast<void>(cache_.size(none)); });
    refused<std::out_of_range>("no row has these positions",
                               [&] { static_cast<void>(cache_.positions(none)); });
    refused<std::out_of_range>("no row has these keys", [&] { static_cast<void>(cache_.keys(none)); });
    refused<std::out_of_range>("no row has these values", [&] { static_cast<void>(cache_.values(none)); });
    const Index negative[] = {-1, -1000};
    refused<std::invalid_argument>("a negative extent is refused", [&] {
      Index extents[] = {1, 1, 1, 1};
      extents[b_.up_to(3)] = b_.one_of(negative);
      latent_cache<T> bad(extents[0], extents[1], extents[2], extents[3]);
    });
    refused<std::length_error>("channels that no Index counts are refused", [&] {
      latent_cache<T> bad(0, 0, std::numeric_limits<Index>::max(), std::numeric_limits<Index>::max());
    });
    refused<std::length_error>("more than the address space is refused", [&] {
      Index extents[] = {2, 2, 2, 2};
      extents[b_.up_to(3)] = std::numeric_limits<Index>::max() / 4;  // of a byte too
      latent_cache<T> bad(extents[0], extents[1], extents[2], extents[3]);
    });
    if (!raw()) {
      for (std::size_t i = 0; i < tables::get().all.size(); ++i) {
        const bool fits = empty() || (known_ && known_table_ == fingerprint(i));
        check(meets<half_split>(tables::get().all[i]) == (fits && (empty() || !known_interleaved_)) &&
                  meets<interleaved>(tables::get().all[i]) == (fits && (empty() || known_interleaved_)),
              "a cache knows the table and the layout of its keys");
      }
    }
  }

  /// The newest tokens ask with absorbed queries, of many heads; keys in double or float are enough here.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      if (batch_ == 0) return;
      std::vector<Index> counts;
      Index queries = 0;
      bool enough = true;
      for (Index r = 0; r < batch_; ++r) {
        counts.push_back(b_.one_in(12) ? size(r) + 1 : b_.up_to(long(std::min(size(r), Index{3}))));
        queries = std::max(queries, counts.back());
        enough = enough && counts.back() <= size(r);
      }
      const Index heads = b_.up_to(3);
      const bool interleaved_one = known_interleaved_;
      const Index window = b_.coin() ? 0 : b_.between(1, 4);
      guarded_memory<T> q_memory(0), out_memory(0);
      const head_view<T> q = fuzz::draw_view(b_, q_memory, batch_, queries, heads, dim_),
                         out = fuzz::draw_view(b_, out_memory, batch_, queries, heads, latent_dim_);
      std::vector<channels> asked;
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < queries; ++i) {
          asked.push_back(fuzz::draw_channels<T>(b_, static_cast<std::size_t>(heads * dim_)));
          for (Index h = 0; h < heads; ++h)
            for (Index d = 0; d < dim_; ++d)
              q.at(r, i, h)[d] = static_cast<T>(asked.back()[static_cast<std::size_t>(h * dim_ + d)]);
        }
      out_memory.before = out_memory.now;
      bool turned = raw() || (known_ && b_.coin());
      auto table = turned ? raw() ? static_cast<std::size_t>(b_.up_to(2)) : table_ : 0;
      bool in_table = true;
      for (Index r = 0; r < batch_; ++r)
        for (Index t = 0; t < size(r); ++t)
          if (counts[static_cast<std::size_t>(r)] > 0 &&
              (raw() || t >= size(r) - counts[static_cast<std::size_t>(r)]))
            in_table =
                in_table && tables::get().all[table].contains(row(r)[static_cast<std::size_t>(t)].position);
      const bool unscaled = b_.one_in(12), other_table = turned && b_.one_in(12);
      attention_options options = {.scale = 0.5, .window = window};
      if (unscaled) options.scale = 0;
      const long form = b_.up_to(1), other = b_.up_to(31);
      bool invalid = unscaled || other_table, by_interleaved = interleaved_one;
      fuzz::wrong_option spoilt;
      if (other >= 29) {
        invalid = true;
        spoilt.put_into(options, b_, batch_, queries, heads);
      } else if (other == 28 && raw()) {  // raw parts have no angles yet
        invalid = true, turned = false;
      } else if (other >= 26 && !raw() &&
                 !empty()) {  // parts of another table or layout, or of none that is known
        invalid = turned = true;
        if (known_ && other == 26)
          by_interleaved = !by_interleaved;
        else if (known_)
          table = table_ == 0 ? 1 : 0;
        if (known_ && by_interleaved == known_interleaved_ && fingerprint(table) == known_table_) return;
      } else if (other == 25) {
        invalid = true;
        counts.push_back(0);
      }
      const auto call = [&] {
        if (!turned) return attention(head_view<const T>(q), cache_, out, options, counts);
        with_layout(by_interleaved, [&]<class Layout>(Layout) {
          with_table(table, other_table ? 2 : form, [&](const auto& by) {
            attention<Layout>(head_view<const T>(q), cache_, out, by, options, counts);
          });
        });
      };
      const auto before = state();
      if (invalid) {
        refused<std::invalid_argument>(
            "a scale, a table, a layout, counts or options that do not go with the cache", call);
        return check(out_memory.untouched(), "a refused call writes nothing");
      }
      if (!enough) {
        // Rows are looked at one after the other, and one before may be outside of the table.
        turned ? refused<std::logic_error>("a row has fewer tokens than queries", call)
               : refused<std::invalid_argument>("a row has fewer tokens than queries", call);
        return check(out_memory.untouched(), "a refused call writes nothing");
      }
      if (turned && !in_table) {
        refused<std::out_of_range>("a position outside the table is refused", call);
        return check(out_memory.untouched(), "a refused call writes nothing");
      }
      call();
      check(out_memory.untouched_outside(out), "only the channels of the output are written");
      check(state() == before, "attention does not change a cache");
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < queries; ++i) {
          const Index count = counts[static_cast<std::size_t>(r)];
          if (i >= count) {
            for (Index h = 0; h < heads; ++h)
              for (Index d = 0; d < latent_dim_; ++d)
                check(out.at(r, i, h)[d] == T(0), "padding gives zeros");
            continue;
          }
          fuzz::key query{asked[static_cast<std::size_t>(r * queries + i)]};
          const std::int64_t position = row(r)[static_cast<std::size_t>(size(r) - count + i)].position;
          if (turned) turn_by_table<T>(query, table, interleaved_one, position);
          wide key_error = query.error;
          std::vector<fuzz::key> seen_keys;
          for (Index t = 0; t < size(r); ++t) {
            const token& one = row(r)[static_cast<std::size_t>(t)];
            // Distances beyond any window are not formed where they leave the range.
            if (one.position > position || (window > 0 && position - one.position >= window)) continue;
            seen_keys.push_back(one.k);
            if (raw()) turn_by_table<T>(seen_keys.back(), table, interleaved_one, one.position);
            key_error = std::max(key_error, seen_keys.back().error);
          }
          // A score of two errors e and the arithmetic, as attention_bound has it; L is the largest sum of |q_d k_d|.
          const wide u = tolerance::unit_roundoff<T>(), dim = static_cast<wide>(dim_),
                     largest = 2.5L * 2.5L * dim / 2;
          const wide bound =
              2 * (2.02L * (0.5L * dim * key_error * (2.5L + 2.5L + key_error) + (dim + 8) * u * largest) +
                   80 * u);
          for (Index h = 0; h < heads; ++h) {
            std::vector<const wide*> keys, values;
            for (const fuzz::key& one : seen_keys) {
              keys.push_back(one.exact.data());
              values.push_back(one.exact.data());
            }
            const channels exact = fuzz::attend(query.exact.data() + h * dim_, static_cast<std::size_t>(dim_),
                                                keys, values, static_cast<std::size_t>(latent_dim_), 0.5L);
            check(fuzz::near(out, r, i, h, exact.data(), bound),
                  "attention to a cache is attention to its tokens");
          }
        }
    }
  }

  bytes& b_;
  Index batch_, capacity_, latent_dim_, dim_;
  key_storage storage_;
  latent_cache<T> cache_;
  rows rows_;
  Index ghost_;
  long appends_ = 0;
  Index last_width_ = 0;
  bool forgot_ = false;
  bool known_ = false, known_interleaved_ = false;
  std::uint64_t known_table_ = 0;
  std::size_t table_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  switch (b.up_to(3)) {
    case 0:
      decoder<float>(b).run();
      break;
    case 1:
      decoder<double>(b).run();
      break;
    case 2:
      decoder<Eigen::half>(b).run();
      break;
    default:
      decoder<Eigen::bfloat16>(b).run();
  }
  return 0;
}
