// SPDX-License-Identifier: MIT
// Any sequence of the operations of a ring_cache whose tokens have coordinates, against whole histories and the published rule
// of slots; every call that its comments say throws is made too, and changes nothing.
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <rope/cache/describe.hpp>
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

/// One row: every token it has seen, and which of them each slot holds by the rule of the comment.
struct history {
  std::vector<token> tokens;
  std::vector<std::int64_t> owner;  // of each slot; -1: none, or one that was rolled back
  Index used = 0;                   // slots that were ever written
};

template <class T>
class decoder {
 public:
  explicit decoder(bytes& b)
      : b_(b),
        batch_(b.one_in(12) ? 0 : b.between(1, 3)),
        policy_{.sinks = b.up_to(4), .window = b.between(1, 5), .chunk = b.between(1, 4)},
        heads_(b.between(1, 2)),
        dim_(fuzz::turned_channels + b.up_to(2)),
        value_dim_(b.between(1, 3)),
        first_channel_(b.up_to(long(dim_) - fuzz::turned_channels)),
        cache_(batch_, policy_, heads_, dim_, token_axes(axes), value_dim_),
        rows_(static_cast<std::size_t>(batch_)) {
    clear_model();
  }

  void run() {
    check_all();
    for (int steps = 0; steps < 20 && !b_.empty(); ++steps) {
      switch (b_.up_to(9)) {
        case 4:
        case 5:
          truncate();
          break;
        case 6:
          copy_or_clear();
          break;
        case 7:
          misuse();
          break;
        case 8:
        case 9:
          attend();
          break;
        default:
          append();
      }
      check_all();
    }
  }

 private:
  Index slots() const { return policy_.sinks + policy_.window + policy_.chunk - 1; }
  std::size_t slot_of(std::int64_t i) const {
    return static_cast<std::size_t>(
        i < policy_.sinks ? i : policy_.sinks + (i - policy_.sinks) % (slots() - policy_.sinks));
  }
  history& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }
  const history& row(Index r) const { return rows_[static_cast<std::size_t>(r)]; }
  std::int64_t seen(Index r) const { return static_cast<std::int64_t>(row(r).tokens.size()); }
  const token& at(Index r, std::int64_t i) const { return row(r).tokens[static_cast<std::size_t>(i)]; }
  bool is_held(Index r, std::int64_t i) const { return row(r).owner[slot_of(i)] == i; }
  bool empty() const {
    return std::all_of(rows_.begin(), rows_.end(), [](const history& one) { return one.tokens.empty(); });
  }
  void clear_model() {
    for (history& one : rows_)
      one = {{}, std::vector<std::int64_t>(static_cast<std::size_t>(slots()), -1), 0};
  }
  /// Whether every token before `end` that a query at `position` sees is in its slot.
  bool holds(Index r, std::int64_t position, std::int64_t end) const {
    for (std::int64_t i = 0; i < end && i <= position; ++i)
      if ((i < policy_.sinks || position - i < policy_.window) && !is_held(r, i)) return false;
    return true;
  }
  /// Of every token that the row has seen, whether it is held or not.
  double largest(Index r) const {
    double result = seen(r) == 0 ? -1 : -limit;
    for (const token& one : row(r).tokens) result = std::max(result, fuzz::largest_of(one.at));
    return result;
  }
  bool goes_on_whole() const {
    bool whole = true;
    for (Index r = 0; r < batch_; ++r) whole = whole && fuzz::is_whole(largest(r));
    return whole;
  }
  bool has_room_for(Index tokens) const {
    bool fits = true;
    for (Index r = 0; r < batch_; ++r) fits = fits && largest(r) <= limit - static_cast<double>(tokens);
    return fits;
  }

  std::vector<unsigned char> state() const {
    std::vector<unsigned char> bits;
    for (Index r = 0; r < batch_; ++r) {
      fuzz::add_number(bits, cache_.size(r));
      fuzz::add_number(bits, cache_.seen()[static_cast<std::size_t>(r)]);
      for (const std::int64_t place : cache_.order(r)) fuzz::add_number(bits, place);
      const auto coordinates = cache_.coordinates(r);
      for (Index i = 0; i < coordinates.size(); ++i) fuzz::add_number(bits, coordinates.data()[i]);
      fuzz::add_bits(bits, cache_.keys(r));
      fuzz::add_bits(bits, cache_.values(r));
      for (std::int64_t p = 0; p < seen(r) + 3; ++p) fuzz::add_number(bits, cache_.holds_window(r, p));
    }
    for (Index queries = 0; queries < 6; ++queries) {
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
    check(cache_.axes() == axes && cache_.batch() == batch_ && cache_.capacity() == slots() &&
              cache_.storage() == key_storage::rotated,
          "extents stay");
    for (Index r = 0; r < batch_; ++r) {
      const history& one = row(r);
      check(cache_.seen()[static_cast<std::size_t>(r)] == seen(r), "a row counts the tokens it has seen");
      const auto order = cache_.order(r);
      const auto coordinates = cache_.coordinates(r);
      const auto keys = cache_.keys(r), values = cache_.values(r);
      check(static_cast<Index>(order.size()) == one.used && coordinates.rows() == one.used &&
                coordinates.cols() == axes && keys.tokens == one.used && values.tokens == one.used,
            "a row shows the slots that were ever used");
      for (Index s = 0; s < one.used; ++s) {
        const std::int64_t i = one.owner[static_cast<std::size_t>(s)];
        check(order[static_cast<std::size_t>(s)] == (i < 0 ? ring_cache<T>::no_position : i),
              "a slot has the token of the rule");
        if (i < 0) continue;
        const token& t = at(r, i);
        check(coordinates(s, 0) == t.at[0] && coordinates(s, 1) == t.at[1], "tokens are where they were put");
        for (Index h = 0; h < heads_; ++h)
          check(fuzz::near(keys, 0, s, h, t.k.exact.data() + h * dim_, t.k.error) &&
                    fuzz::near(values, 0, s, h, t.v.data() + h * value_dim_, fuzz::storing_error<T>(t.v)),
                "a slot has the key and the value of its token");
      }
      for (std::int64_t p = 0; p < seen(r) + 4; ++p)
        check(cache_.holds_window(r, p) == holds(r, p, seen(r)), "a window is held when every key of it is");
      refused<std::invalid_argument>("tokens with coordinates have no positions",
                                     [&] { static_cast<void>(cache_.positions(r)); });
    }
    const auto ask = [&] { static_cast<void>(cache_.next_positions()); };
    if (!goes_on_whole()) {
      refused<std::invalid_argument>("a position is an integer", ask);
    } else {
      const auto next = cache_.next_positions();
      for (Index r = 0; r < batch_; ++r)
        check(static_cast<double>(next[static_cast<std::size_t>(r)]) == largest(r) + 1,
              "text goes on behind the largest coordinate that a row has seen");
    }
    const Index tokens = b_.up_to(2);
    if (!has_room_for(tokens))
      return refused<std::out_of_range>("text stays within 2^53",
                                        [&] { static_cast<void>(cache_.next_coordinates(tokens)); });
    const auto text = cache_.next_coordinates(tokens);
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t)
        for (Index a = 0; a < axes; ++a)
          check(text(r * tokens + t, a) == largest(r) + static_cast<double>(t + 1),
                "text to come is at one place on all axes");
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

  template <class K>
  void append_of() {
    const Index tokens = b_.one_in(5) ? b_.up_to(16) : b_.up_to(4);
    const long form = b_.up_to(5);
    const bool turned = form != 5, by_rows = turned && form < 3;
    const axis_rotation given = draw_rotation(turned && !by_rows);
    std::vector<int> counts;
    const bool padded = b_.one_in(3);
    if (padded)
      for (Index r = 0; r < batch_; ++r) counts.push_back(static_cast<int>(b_.up_to(long(tokens))));
    const bool bad_count = padded && batch_ > 0 && b_.one_in(12);
    if (bad_count) counts.back() = b_.coin() ? -1 : static_cast<int>(tokens) + 1;
    const bool shared = by_rows && b_.one_in(4), far = b_.one_in(12);
    std::vector<coordinates> places;
    for (Index i = 0; by_rows && i < (shared ? tokens : batch_ * tokens); ++i)
      places.push_back(fuzz::draw_coordinates(b_, far));
    const bool other_rows = by_rows && b_.one_in(16);
    if (other_rows) {
      places.push_back({0, 0});
      const auto n = static_cast<Index>(places.size());
      if (n == tokens || n == batch_ * tokens) places.push_back({0, 0});
    }
    guarded_memory<K> k_memory(0), v_memory(0);
    head_view<K> k = fuzz::draw_view(b_, k_memory, batch_, tokens, heads_, dim_);
    head_view<K> v = fuzz::draw_view(b_, v_memory, batch_, tokens, heads_, value_dim_);
    std::vector<std::vector<token>> added(rows_.size());
    bool in_table = true, in_range = true;
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
        if (by_rows) {
          one.at = places[static_cast<std::size_t>(shared ? t : r * tokens + t)];
        } else {
          const double position = largest(r) + static_cast<double>(t + 1);
          one.at = {position, position};
          in_range = in_range && largest(r) <= limit - static_cast<double>(t + 1);
          in_table = in_table && position >= -40 && position < 90;
        }
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const auto call = [&] {
      const detail::row_counts list = padded ? detail::row_counts(counts) : detail::row_counts();
      if (!turned) return cache_.append(k, v, list);
      fuzz::with_table(given, places, [&](const auto& table) {
        fuzz::with_layout(given.interleaved,
                          [&]<class Layout>(Layout) { cache_.template append<Layout>(k, v, table, list); });
      });
    };
    const bool spoilt = b_.one_in(12);
    if (spoilt) {
      if (b_.coin())
        k.batch += 1;
      else
        v.heads += 1;
    }
    const bool fits = empty() || (turned ? known_ && rotation_.meets(given) : !known_);
    const bool invalid = spoilt || bad_count || other_rows || !fits,
               goes_on = by_rows || has_room_for(tokens);
    if (!goes_on) {
      // All tokens of a call have to have room, counted or not; what else is wrong may be found before.
      if (!in_range)
        invalid ? refused<std::logic_error>("text stays within 2^53", call)
                : refused<std::out_of_range>("text stays within 2^53", call);
      return;
    }
    if (invalid || (!by_rows && !goes_on_whole()))
      return refused<std::invalid_argument>("another shape, count, table or place is refused", call);
    if (turned && !in_table)
      return refused<std::out_of_range>("positions outside the table are refused", call);
    call();
    check(k_memory.untouched_outside(k) && v_memory.untouched_outside(v), "what is appended stays as it is");
    if (turned) rotation_ = empty() ? given : rotation_.joined(given);
    known_ = turned;
    for (Index r = 0; r < batch_; ++r)
      for (token& one : added[static_cast<std::size_t>(r)]) {
        if (!turned)
          one.k.error = fuzz::storing_error<T>(one.k.exact);
        else if (fuzz::is_near(one.at))
          fuzz::turn_on_axes<T>(one.k, dim_, given, one.at, given.factor());
        else
          one.k.error = 8;  // beyond what the model computes exactly
        const std::int64_t i = seen(r);
        row(r).owner[slot_of(i)] = i;
        row(r).used = std::max(row(r).used, static_cast<Index>(slot_of(i)) + 1);
        row(r).tokens.push_back(one);
      }
  }

  Index some_row() {
    return b_.one_in(12) ? static_cast<Index>(b_.integer()) : static_cast<Index>(b_.up_to(long(batch_) - 1));
  }
  bool is_row(Index r) const { return r >= 0 && r < batch_; }

  void truncate() {
    const bool every = b_.coin();
    const Index index = some_row();
    const batch_row r = every ? every_row : batch_row{index};
    const std::int64_t newest = batch_ == 0 ? 0 : seen(every || !is_row(index) ? 0 : index);
    const std::int64_t size =
        b_.one_in(8) ? b_.integer() : newest - b_.up_to(static_cast<long>(std::min<std::int64_t>(newest, 9)));
    const auto call = [&] { cache_.truncate(size, r); };
    if (!every && !is_row(index))
      return refused<std::out_of_range>("a row that there is not is refused", call);
    for (Index i = 0; i < batch_; ++i) {
      if (!every && i != index) continue;
      if (size < 0 || size > seen(i))
        return refused<std::out_of_range>("a size that was not seen is refused", call);
      if (!holds(i, size, size) || (size > 0 && !is_held(i, size - 1)))
        return refused<std::out_of_range>("what the next query sees, or the last token, is overwritten",
                                          call);
    }
    call();
    for (Index i = 0; i < batch_; ++i) {
      if (!every && i != index) continue;
      row(i).tokens.resize(static_cast<std::size_t>(size));
      for (std::int64_t& owner : row(i).owner)
        if (owner >= size) owner = -1;
    }
  }

  void copy_or_clear() {
    switch (b_.up_to(4)) {
      case 0:
        cache_.clear();
        clear_model();
        break;
      case 1: {
        const ring_cache<T> copy = cache_;
        cache_.clear();
        cache_ = copy;
        break;
      }
      case 2: {
        ring_cache<T> moved = std::move(cache_);
        check(cache_.batch() == 0 && cache_.axes() == 0 && cache_.next_positions().empty(),
              "a cache is empty once it was moved from");
        cache_ = std::move(moved);
        break;
      }
      case 3: {
        const Index from = some_row(), to = some_row();
        const auto call = [&] { cache_.copy_row(from, to); };
        if (!is_row(from) || !is_row(to))
          return refused<std::out_of_range>("a row that there is not is refused", call);
        call();
        row(to) = history(row(from));
        break;
      }
      default: {
        std::vector<Index> from;
        for (Index r = 0; r < batch_; ++r) from.push_back(some_row());
        const auto call = [&] { cache_.reorder(from); };
        if (!std::all_of(from.begin(), from.end(), [&](Index r) { return is_row(r); }))
          return refused<std::out_of_range>("a row that there is not is refused", call);
        call();
        const std::vector<history> before = rows_;
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
    refused<std::length_error>("more than the address space is refused", [&] {
      ring_cache<T> bad(2, {.window = 2}, 1, 1, token_axes(limits::max() / (b_.coin() ? 2 : 16)));
    });
    refused<std::invalid_argument>("a policy that is none is refused", [&] {
      ring_policy bad = {.window = 2};
      switch (b_.up_to(2)) {
        case 0:
          bad.window = 0;
          break;
        case 1:
          bad.chunk = -1;
          break;
        default:
          bad.positions = ring_positions::cache;  // of keys that are rotated, as all on axes are
      }
      ring_cache<T> none_such(1, bad, 1, fuzz::turned_channels, token_axes(axes));
    });
    for (const auto& table : axis_tables::get().refused)
      refused<std::invalid_argument>("a table of other angles or axes is refused",
                                     [&] { cache_.template check_table<half_split>(table); });
    fuzz::check_rotations(cache_, empty(), known_ ? &rotation_ : nullptr, first_channel_);
    if (!has_room_for(1))
      return refused<std::out_of_range>("no text goes on beyond 2^53",
                                        [&] { static_cast<void>(describe(cache_)); });
    const std::string text = describe(cache_);
    check(std::count(text.begin(), text.end(), '\n') == batch_, "a cache has a line of text for every row");
  }

  /// The newest tokens ask, with the window and the sinks of the ring over the whole history.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = fuzz::numbers<T>;
      if (batch_ == 0) return;
      std::vector<Index> counts;
      Index queries = 0;
      bool enough = true, held = true, text = true, in_table = true, near_ones = true;
      for (Index r = 0; r < batch_; ++r) {
        const auto most =
            static_cast<long>(std::min<std::int64_t>(seen(r), b_.one_in(4) ? 12 : long(policy_.chunk)));
        counts.push_back(b_.one_in(16) ? static_cast<Index>(seen(r)) + 1 : b_.up_to(most));
        const Index count = counts.back();
        queries = std::max(queries, count);
        enough = enough && count <= seen(r);
        for (std::int64_t p = std::max<std::int64_t>(seen(r) - count, 0); p < seen(r); ++p)
          held = held && holds(r, p, p + 1);
      }
      std::vector<coordinates> places;
      for (Index r = 0; r < batch_; ++r) {
        for (const token& one : row(r).tokens) near_ones = near_ones && fuzz::is_near(one.at);
        for (Index i = 0; i < queries; ++i) {
          const Index count = counts[static_cast<std::size_t>(r)];
          if (i >= count || count > seen(r)) {
            places.push_back({0, 0});
            continue;
          }
          const coordinates& own = at(r, seen(r) - count + i).at;
          text = text && fuzz::is_text(own);
          in_table = in_table && own[0] >= -40 && own[0] < 90;
          places.push_back(own);
        }
      }
      const Index group = b_.between(1, 2), heads = heads_ * group;
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
      const bool turned = b_.coin(), by_text = turned && b_.coin();
      const axis_rotation given = draw_rotation(by_text);
      bool invalid = !enough || !held;
      if (turned && !by_text && enough && b_.one_in(8))
        for (Index r = 0; r < batch_; ++r)
          if (const Index count = counts[static_cast<std::size_t>(r)]; count > 0) {
            places[static_cast<std::size_t>(r * queries + count - 1)][b_.coin() ? 1 : 0] += 0.5;
            if (!near_ones) return;
            invalid = true;
            break;
          }
      attention_options options;
      fuzz::wrong_option spoilt;
      const float entry = 0;
      const bool visible = true;
      if (b_.one_in(10)) {
        invalid = true;
        switch (b_.up_to(7)) {
          case 0:
            options.causal = false;
            break;
          case 1:
            options.window = policy_.window + 1;
            break;
          case 2:
            options.sinks = policy_.sinks + 1;
            break;
          case 3:
            options.bias = {.data = &entry};
            break;
          case 4:
            options.mask = {.data = &visible};
            break;
          default:
            spoilt.put_into(options, b_, batch_, queries, heads);
        }
      }
      invalid = invalid || (turned && !empty() && !(known_ && rotation_.meets(given))) || (by_text && !text);
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
      if (invalid || (by_text && !in_table)) {
        const char* claim = "options, windows or a table that do not go with the ring are refused";
        invalid ? refused<std::invalid_argument>(claim, call) : refused<std::out_of_range>(claim, call);
        return check(out_memory.untouched(), "a refused call writes nothing");
      }
      call();
      check(out_memory.untouched_outside(out), "only the channels of the output are written");
      check(state() == before, "attention does not change a cache");
      if (!near_ones) return;
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < queries; ++i) {
          const Index count = counts[static_cast<std::size_t>(r)];
          if (i >= count) {
            fuzz::check_padding(out, r, i);
            continue;
          }
          const std::int64_t own = seen(r) - count + i;
          fuzz::key query{asked[static_cast<std::size_t>(r * queries + i)]};
          if (turned) fuzz::turn_on_axes<Q>(query, dim_, given, at(r, own).at, given.factor());
          std::vector<fuzz::key> keys;
          std::vector<channels> values;
          for (std::int64_t p = 0; p <= own; ++p) {
            if (p >= policy_.sinks && own - p >= policy_.window) continue;
            keys.push_back(at(r, p).k);
            values.push_back(at(r, p).v);
            if constexpr (fuzz::is_quantized<T>) {  // what the cache shows, which check_all has compared
              const auto slot = static_cast<Index>(slot_of(p));
              values.back() = fuzz::stored_channels(cache_.values(r), 0, slot);
              keys.back() = {fuzz::stored_channels(cache_.keys(r), 0, slot)};
            }
          }
          fuzz::check_attended("attention to a ring on axes goes by the order of tokens", out, r, i, group,
                               query, keys, values);
        }
    }
  }

  bytes& b_;
  Index batch_;
  ring_policy policy_;
  Index heads_, dim_, value_dim_, first_channel_;
  ring_cache<T> cache_;
  std::vector<history> rows_;
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
