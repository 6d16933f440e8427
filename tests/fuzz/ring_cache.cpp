// SPDX-License-Identifier: MIT
// Any sequence of the operations of a ring_cache against whole histories and the published rule of slots; every call that its
// comments say throws is made too, and changes nothing.
#include <rope/cache/ring_cache.hpp>

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

const std::vector<frequency_table<float>>& tables() {
  static const std::vector<frequency_table<float>> all = {
      frequency_table<float>(frequencies(2 * pairs, 50.0), 400),
      frequency_table<float>(frequencies(2 * pairs, 9.0), 400),
      frequency_table<float>(frequencies(2 * pairs, 50.0), 9)};
  return all;
}

struct token {
  fuzz::key k;
  channels v;
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
        dim_(2 * pairs + b.up_to(1)),
        value_dim_(b.between(1, 3)),
        storage_(b.coin() ? key_storage::raw : key_storage::rotated),
        relative_(raw() && b.coin()),
        cache_(batch_, policy(), heads_, dim_, value_dim_, storage_),
        rows_(static_cast<std::size_t>(batch_)) {
    clear_model();
  }

  void run() {
    check_all();
    for (int steps = 0; steps < 20 && !b_.empty(); ++steps) {
      switch (b_.up_to(9)) {
        case 0:
        case 1:
        case 2:
        case 3:
          append();
          break;
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
        default:
          attend();
      }
      check_all();
    }
  }

 private:
  bool raw() const { return storage_ == key_storage::raw; }
  const ring_policy& policy() {
    policy_.positions = relative_ ? ring_positions::cache : ring_positions::sequence;
    return policy_;
  }
  Index slots() const { return policy_.sinks + policy_.window + policy_.chunk - 1; }
  std::size_t slot_of(std::int64_t i) const {
    return static_cast<std::size_t>(
        i < policy_.sinks ? i : policy_.sinks + (i - policy_.sinks) % (slots() - policy_.sinks));
  }
  history& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }
  const history& row(Index r) const { return rows_[static_cast<std::size_t>(r)]; }
  std::int64_t seen(Index r) const { return static_cast<std::int64_t>(row(r).tokens.size()); }
  bool empty() const {
    return std::all_of(rows_.begin(), rows_.end(), [](const history& one) { return one.tokens.empty(); });
  }
  void clear_model() {
    for (history& one : rows_)
      one = {{}, std::vector<std::int64_t>(static_cast<std::size_t>(slots()), -1), 0};
  }
  /// Whether every token that a query at `position` sees, of those seen so far, is in its slot.
  bool holds(Index r, std::int64_t position) const {
    for (std::int64_t i = 0; i < seen(r) && i <= position; ++i)
      if ((i < policy_.sinks || position - i < policy_.window) && row(r).owner[slot_of(i)] != i) return false;
    return true;
  }

  std::vector<unsigned char> state() const {
    std::vector<unsigned char> bits;
    for (Index r = 0; r < batch_; ++r) {
      fuzz::add_number(bits, cache_.size(r));
      for (const std::int64_t position : cache_.positions(r)) fuzz::add_number(bits, position);
      fuzz::add_bits(bits, cache_.keys(r));
      fuzz::add_bits(bits, cache_.values(r));
      fuzz::add_number(bits, cache_.next_positions()[static_cast<std::size_t>(r)]);
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
    fuzz::add_number(bits, meets<half_split>(tables()[0]) + 2 * meets<interleaved>(tables()[0]) +
                               4 * meets<half_split>(tables()[1]));
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
    check(cache_.batch() == batch_ && cache_.capacity() == slots() && cache_.kv_heads() == heads_ &&
              cache_.head_dim() == dim_ && cache_.value_dim() == value_dim_ && cache_.storage() == storage_ &&
              cache_.policy().window == policy_.window,
          "extents stay");
    for (Index r = 0; r < batch_; ++r) {
      const history& one = row(r);
      check(cache_.next_positions()[static_cast<std::size_t>(r)] == seen(r),
            "a row counts the tokens it has seen");
      const auto positions = cache_.positions(r);
      const auto keys = cache_.keys(r), values = cache_.values(r);
      check(static_cast<Index>(positions.size()) == one.used && keys.tokens == one.used &&
                values.tokens == one.used,
            "a row shows the slots that were ever used");
      Index held = 0;
      for (Index s = 0; s < one.used; ++s) {
        const std::int64_t i = one.owner[static_cast<std::size_t>(s)];
        check(positions[static_cast<std::size_t>(s)] == (i < 0 ? ring_cache<T>::no_position : i),
              "a slot has the token of the rule");
        if (i < 0) continue;
        ++held;
        const token& t = one.tokens[static_cast<std::size_t>(i)];
        for (Index h = 0; h < heads_; ++h)
          check(fuzz::near(keys, 0, s, h, t.k.exact.data() + h * dim_, t.k.error) &&
                    fuzz::near(values, 0, s, h, t.v.data() + h * value_dim_, fuzz::storing_error<T>(t.v)),
                "a slot has the key and the value of its token");
      }
      check(cache_.size(r) <= held, "what a row counts as held is in its slots");
      for (std::int64_t p = 0; p < seen(r) + 4; ++p) {
        check(cache_.holds_window(r, p) == holds(r, p), "a window is held when every key of it is");
        check(cache_.slot(p) == static_cast<Index>(slot_of(p)), "a token has the slot of the rule");
      }
      check(holds(r, seen(r)), "what the next query sees is held");
    }
  }

  template <class Call>
  void with_layout(bool interleaved_one, const Call& call) {
    interleaved_one ? call(interleaved{}) : call(half_split{});
  }
  fuzz::rotation_rule rule_of(std::size_t table, bool interleaved_one) const {
    const auto inv_freq = tables()[table].inv_freq();
    return {{inv_freq(0, 0), inv_freq(1, 0)}, 1, interleaved_one};
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

  template <class K>
  void append_of() {
    const Index tokens = b_.one_in(5) ? b_.up_to(20) : b_.up_to(4);
    const bool by_table = raw() ? b_.one_in(8) : b_.coin(), padded = b_.coin(),
               interleaved_one = b_.one_in(4);
    const auto table = static_cast<std::size_t>(b_.one_in(3) ? b_.up_to(2) : 0);
    std::vector<int> counts;
    if (padded)
      for (Index r = 0; r < batch_; ++r) counts.push_back(static_cast<int>(b_.up_to(long(tokens))));
    const bool bad_count = padded && batch_ > 0 && b_.one_in(12);
    if (bad_count) counts.back() = b_.coin() ? -1 : static_cast<int>(tokens) + 1;
    guarded_memory<K> k_memory(0), v_memory(0);
    head_view<K> k = fuzz::draw_view(b_, k_memory, batch_, tokens, heads_, dim_);
    head_view<K> v = fuzz::draw_view(b_, v_memory, batch_, tokens, heads_, value_dim_);
    std::vector<std::vector<token>> added(rows_.size());
    bool in_table = true;
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        token one{{fuzz::draw_channels<T>(b_, static_cast<std::size_t>(heads_ * dim_))},
                  fuzz::draw_channels<T>(b_, static_cast<std::size_t>(heads_ * value_dim_))};
        for (Index h = 0; h < heads_; ++h) {
          for (Index d = 0; d < dim_; ++d)
            k.at(r, t, h)[d] = static_cast<K>(one.k.exact[static_cast<std::size_t>(h * dim_ + d)]);
          for (Index d = 0; d < value_dim_; ++d)
            v.at(r, t, h)[d] = static_cast<K>(one.v[static_cast<std::size_t>(h * value_dim_ + d)]);
        }
        if (padded && t >= counts[static_cast<std::size_t>(r)]) continue;
        in_table = in_table && tables()[table].contains(seen(r) + t);
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const auto call = [&] {
      const detail::row_counts list = padded ? detail::row_counts(counts) : detail::row_counts();
      if (!by_table) return cache_.append(k, v, list);
      with_layout(interleaved_one,
                  [&]<class Layout>(Layout) { cache_.template append<Layout>(k, v, tables()[table], list); });
    };
    if (b_.one_in(10)) {
      switch (b_.up_to(5)) {
        case 0:
          k.batch += 1;
          break;
        case 1:
          v.heads += 1;
          break;
        case 2:
          v.head_dim += 1;
          break;
        case 3:
          k.tokens += 1;
          break;
        case 4:
          v.tokens = -1;
          break;
        default:
          if (v.size() == 0) return;
          v.data = nullptr;
      }
      return refused<std::invalid_argument>("another shape is refused", call);
    }
    if (bad_count) return refused<std::invalid_argument>("a count outside of the tokens is refused", call);
    if (by_table && raw()) return refused<std::invalid_argument>("raw keys take no table", call);
    const bool fits = empty() || (by_table ? known_ && known_table_ == tables()[table].fingerprint() &&
                                                 known_interleaved_ == interleaved_one
                                           : !known_);
    if (!fits) return refused<std::invalid_argument>("keys of another rotation are refused", call);
    if (by_table && !in_table)
      return refused<std::out_of_range>("positions outside the table are refused", call);
    call();
    check(k_memory.untouched_outside(k) && v_memory.untouched_outside(v), "what is appended stays as it is");
    known_ = by_table;
    if (by_table)
      known_table_ = tables()[table].fingerprint(), known_interleaved_ = interleaved_one, table_ = table;
    for (Index r = 0; r < batch_; ++r)
      for (token& one : added[static_cast<std::size_t>(r)]) {
        const std::int64_t i = seen(r);
        if (by_table)
          fuzz::turn<T>(one.k, static_cast<std::size_t>(dim_), rule_of(table, interleaved_one), i, true);
        else
          one.k.error = fuzz::storing_error<T>(one.k.exact);
        row(r).owner[slot_of(i)] = i;
        row(r).used = std::max(row(r).used, static_cast<Index>(slot_of(i)) + 1);
        row(r).tokens.push_back(one);
      }
  }

  void truncate() {
    const bool every = b_.coin();
    const Index index =
        b_.one_in(8) ? static_cast<Index>(b_.integer()) : static_cast<Index>(b_.up_to(long(batch_) - 1));
    const batch_row r = every ? every_row : batch_row{index};
    const std::int64_t newest = batch_ == 0 ? 0 : seen(every || index < 0 || index >= batch_ ? 0 : index);
    const std::int64_t size =
        b_.one_in(8) ? b_.integer() : newest - b_.up_to(static_cast<long>(std::min<std::int64_t>(newest, 9)));
    const auto call = [&] { cache_.truncate(size, r); };
    if (!every && (index < 0 || index >= batch_))
      return refused<std::out_of_range>("a row that there is not is refused", call);
    for (Index i = 0; i < batch_; ++i) {
      if (!every && i != index) continue;
      if (size < 0 || size > seen(i))
        return refused<std::out_of_range>("a size that was not seen is refused", call);
      if (!next_is_held(i, size))
        return refused<std::out_of_range>("what the next query sees is overwritten", call);
    }
    call();
    for (Index i = 0; i < batch_; ++i) {
      if (!every && i != index) continue;
      row(i).tokens.resize(static_cast<std::size_t>(size));
      for (std::int64_t& owner : row(i).owner)
        if (owner >= size) owner = -1;
    }
  }
  bool next_is_held(Index r, std::int64_t position) const {
    for (std::int64_t i = 0; i < position; ++i)
      if ((i < policy_.sinks || position - i < policy_.window) && row(r).owner[slot_of(i)] != i) return false;
    return true;
  }

  void copy_or_clear() {
    switch (b_.up_to(5)) {
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
        check(cache_.batch() == 0 && cache_.next_positions().empty(),
              "a cache is empty once it was moved from");
        cache_ = std::move(moved);
        break;
      }
      case 3:
        copy_row();
        break;
      case 4:
        reorder();
        break;
      default: {
        const ring_cache<T>& self = cache_;
        cache_ = self;
      }
    }
  }
  /// One of the rows, or sometimes none.
  Index some_row() {
    return b_.one_in(12) ? static_cast<Index>(b_.integer()) : static_cast<Index>(b_.up_to(long(batch_) - 1));
  }
  bool is_row(Index r) const { return r >= 0 && r < batch_; }
  void copy_row() {
    const Index from = some_row(), to = some_row();
    const auto call = [&] { cache_.copy_row(from, to); };
    if (!is_row(from) || !is_row(to))
      return refused<std::out_of_range>("a row that there is not is refused", call);
    call();
    row(to) = history(row(from));
  }
  void reorder() {
    std::vector<Index> from;
    for (Index r = 0; r < batch_; ++r) from.push_back(some_row());
    const auto call = [&] { cache_.reorder(from); };
    if (b_.one_in(16)) {
      from.push_back(0);
      return refused<std::invalid_argument>("a list that is not of every row is refused", call);
    }
    if (!std::all_of(from.begin(), from.end(), [&](Index r) { return is_row(r); }))
      return refused<std::out_of_range>("a row that there is not is refused", call);
    call();
    const std::vector<history> before = rows_;
    for (std::size_t r = 0; r < rows_.size(); ++r) rows_[r] = before[static_cast<std::size_t>(from[r])];
  }

  void misuse() {
    using limits = std::numeric_limits<Index>;
    static const Index outside[] = {-1, limits::min(), limits::max()};
    const Index none = b_.coin() ? batch_ : b_.one_of(outside);
    refused<std::out_of_range>("no row has that size", [&] { static_cast<void>(cache_.size(none)); });
    refused<std::out_of_range>("no row has these positions",
                               [&] { static_cast<void>(cache_.positions(none)); });
    refused<std::out_of_range>("no row has these keys", [&] { static_cast<void>(cache_.keys(none)); });
    refused<std::out_of_range>("no row has these values", [&] { static_cast<void>(cache_.values(none)); });
    refused<std::out_of_range>("no row has that order", [&] { static_cast<void>(cache_.order(none)); });
    refused<std::out_of_range>("no row has these coordinates",
                               [&] { static_cast<void>(cache_.coordinates(none)); });
    refused<std::out_of_range>("no row has that window",
                               [&] { static_cast<void>(cache_.holds_window(none, 0)); });
    const std::int64_t before = b_.coin() ? -1 : limits::min();
    refused<std::out_of_range>("no slot is before the first",
                               [&] { static_cast<void>(cache_.slot(before)); });
    if (batch_ > 0)
      refused<std::out_of_range>("no window is before the first",
                                 [&] { static_cast<void>(cache_.holds_window(0, before)); });
    refused<std::invalid_argument>("a policy or an extent that is none is refused", [&] {
      ring_policy bad = {.sinks = 1, .window = 2, .chunk = 1};
      Index extents[] = {1, 1, 2, 0};
      switch (b_.up_to(4)) {
        case 0:
          bad.sinks = -1;
          break;
        case 1:
          bad.window = b_.coin() ? 0 : -3;
          break;
        case 2:
          bad.chunk = b_.coin() ? 0 : limits::min();
          break;
        case 3:
          bad.positions = ring_positions::cache;  // of rotated keys
          break;
        default:
          extents[b_.up_to(3)] = -1;
      }
      ring_cache<T> none_such(extents[0], bad, extents[1], extents[2], extents[3]);
    });
    refused<std::length_error>("more than the address space is refused",
                               [&] { ring_cache<T> none_such(8, {.window = limits::max() / 8}, 2, 2); });
  }

  /// The newest tokens ask, with a sliding window and sinks over the whole history, or by rank among what is seen.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = fuzz::numbers<T>;
      if (batch_ == 0) return;
      std::vector<Index> counts;
      Index queries = 0;
      bool enough = true, held = true, in_table = true;
      bool turned = raw() || (known_ && b_.coin()), interleaved_one = known_interleaved_;
      auto table = turned ? raw() ? static_cast<std::size_t>(b_.up_to(2)) : table_ : 0;
      const std::int64_t most_rank = std::int64_t{policy_.sinks} + policy_.window - 1;
      for (Index r = 0; r < batch_; ++r) {
        const auto most =
            static_cast<long>(std::min<std::int64_t>(seen(r), b_.one_in(4) ? 12 : long(policy_.chunk)));
        counts.push_back(b_.one_in(16) ? static_cast<Index>(seen(r)) + 1 : b_.up_to(most));
        const Index count = counts.back();
        queries = std::max(queries, count);
        enough = enough && count <= seen(r);
        for (std::int64_t p = seen(r) - count; enough && p < seen(r); ++p) {
          held = held && holds(r, p);
          if (turned) in_table = in_table && tables()[table].contains(relative_ ? std::min(p, most_rank) : p);
        }
        if (raw() && !relative_ && count > 0 && enough)
          for (const std::int64_t i : row(r).owner)
            in_table = in_table && (i < 0 || tables()[table].contains(i));
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
      attention_options options;
      fuzz::wrong_option spoilt;
      const float entry = 0;
      const bool visible = true;
      const bool wrong = b_.one_in(10);
      if (wrong) switch (b_.up_to(8)) {
          case 0:
            options.causal = false;
            break;
          case 1:
            options.window = policy_.window + 1;
            break;
          case 2:
            options.sinks = policy_.sinks + 1;
            break;
          case 3:  // keys have no order that a matrix could follow
            options.bias = {.data = &entry};
            break;
          case 4:
            options.mask = {.data = &visible};
            break;
          case 5:  // raw keys have no angles, and counts are those of all rows
            if (raw())
              turned = false;
            else
              counts.push_back(0);
            break;
          case 6:  // keys of another layout or table, or of none that is known
            if (raw() || empty()) {
              counts.push_back(0);
              break;
            }
            if (turned && b_.coin())
              interleaved_one = !interleaved_one;
            else if (known_)
              table = table_ == 1 ? 0 : 1;
            turned = true;
            break;
          default:
            spoilt.put_into(options, b_, batch_, queries, heads);
        }
      const auto call = [&] {
        const head_view<const Q> asking = q;
        if (!turned) return attention(asking, cache_, out, options, counts);
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          attention<Layout>(asking, cache_, out, tables()[table], options, counts);
        });
      };
      const auto before = state();
      if (wrong || !enough || !held || !in_table) {
        const char* claim = "options, queries, windows or positions that do not go with the ring are refused";
        if (wrong || (enough && in_table))
          refused<std::invalid_argument>(claim, call);
        else if (enough && held)
          refused<std::out_of_range>(claim, call);
        else  // rows are looked at one after the other
          refused<std::logic_error>(claim, call);
        return check(out_memory.untouched(), "a refused call writes nothing");
      }
      call();
      check(out_memory.untouched_outside(out), "only the channels of the output are written");
      check(state() == before, "attention does not change a cache");
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < queries; ++i) {
          const Index count = counts[static_cast<std::size_t>(r)];
          if (i >= count) {
            fuzz::check_padding(out, r, i);
            continue;
          }
          const std::int64_t position = seen(r) - count + i;
          std::vector<fuzz::key> keys_seen;
          std::vector<channels> seen_values;
          for (std::int64_t p = 0; p <= position; ++p) {
            if (p >= policy_.sinks && position - p >= policy_.window) continue;
            const token& one = row(r).tokens[static_cast<std::size_t>(p)];
            seen_values.push_back(one.v);
            fuzz::key k = one.k;
            if constexpr (fuzz::is_quantized<T>) {  // what the cache shows, which check_all has compared
              const auto slot = static_cast<Index>(slot_of(p));
              seen_values.back() = fuzz::stored_channels(cache_.values(r), 0, slot);
              k = {fuzz::stored_channels(cache_.keys(r), 0, slot)};
            }
            if (raw())
              fuzz::turn<Q>(k, static_cast<std::size_t>(dim_), rule_of(table, interleaved_one),
                            relative_ ? static_cast<std::int64_t>(keys_seen.size()) : p, true);
            keys_seen.push_back(k);
          }
          fuzz::key query{asked[static_cast<std::size_t>(r * queries + i)]};
          if (turned)
            fuzz::turn<Q>(query, static_cast<std::size_t>(dim_), rule_of(table, interleaved_one),
                          relative_ ? static_cast<std::int64_t>(keys_seen.size()) - 1 : position, true);
          fuzz::check_attended(
              "attention to a ring is attention with its window and sinks to the whole history", out, r, i,
              group, query, keys_seen, seen_values);
        }
    }
  }

  bytes& b_;
  Index batch_;
  ring_policy policy_;
  Index heads_, dim_, value_dim_;
  key_storage storage_;
  bool relative_;
  ring_cache<T> cache_;
  std::vector<history> rows_;
  bool known_ = false, known_interleaved_ = false;
  std::uint64_t known_table_ = 0;
  std::size_t table_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  switch (b.up_to(4)) {
    case 0:
      decoder<float>(b).run();
      break;
    case 1:
      decoder<double>(b).run();
      break;
    case 2:
      decoder<Eigen::half>(b).run();
      break;
    case 3:
      decoder<Eigen::bfloat16>(b).run();
      break;
    default:
      decoder<std::int8_t>(b).run();
  }
  return 0;
}
