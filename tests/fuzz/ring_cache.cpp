// SPDX-License-Identifier: MIT
// Any sequence of the operations of a ring_cache, compared with whole histories and the published rule of
// slots. Every call that throws according to its comment is made too, and changes nothing.
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <vector>

#include "fuzz/support/asked_queries.hpp"
#include "fuzz/support/new_positions.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/position_tables.hpp"
#include "fuzz/support/ring_target.hpp"
#include "fuzz/support/types.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

const position_tables& tables() {
  static const position_tables all = {
      {frequency_table<float>(slow_pairs(), 400), frequency_table<float>(frequencies(2 * pairs, 9.0), 400),
       frequency_table<float>(slow_pairs(), 9)},
      3,
      frequency_table<float>(frequencies(2 * pairs + 2, 50.0), 9)};
  return all;
}

struct token {
  key k;
  channels v;
};

struct shape {
  Index batch;
  ring_policy policy;
  Index heads, head_dim, value_dim;
  key_storage storage;

  explicit shape(bytes& b)
      : batch(b.one_in(12) ? 0 : b.between(1, 3)),
        policy(draw_policy(b)),
        heads(b.between(1, 2)),
        head_dim(2 * pairs + b.up_to(1)),
        value_dim(b.between(1, 3)),
        storage(b.coin() ? key_storage::raw : key_storage::rotated) {
    if (storage == key_storage::raw && b.coin()) policy.positions = ring_positions::cache;
  }
};

template <class T>
class ring final : public ring_target<T, token> {
  using base = ring_target<T, token>;
  using base::b_, base::batch_, base::cache_, base::rows_, base::policy_, base::rejected, base::seen;

 public:
  explicit ring(bytes& b) : ring(b, shape(b)) {}

 private:
  ring(bytes& b, const shape& s)
      : base(b, s.batch, s.policy, s.heads, s.head_dim, s.value_dim, s.storage), shape_(s) {}

  bool raw() const { return shape_.storage == key_storage::raw; }
  bool relative() const { return policy_.positions == ring_positions::cache; }

  void step() override {
    const long chosen =
        b_.up_to(255);  // one of the last sixteen values, so that the others keep their meaning
    if (chosen >= 240) return with_type_of_new<T>(b_, [&]<class K>(K) { append<K>(true, chosen % 2 == 0); });
    switch (chosen % 10) {
      case 0:
      case 1:
      case 2:
      case 3:
        return with_type_of_new<T>(b_, [&]<class K>(K) { append<K>(); });
      case 4:
      case 5: {
        const bool every = b_.coin();
        return this->truncate(this->draw_index(8), every, false);
      }
      case 6:
        return this->copy_or_clear(b_.up_to(5), 12, [&] { return b_.one_in(16); });
      case 7:
        return misuse();
      default:
        return attend();
    }
  }
  void check_all() override {
    check(cache_.batch() == batch_ && cache_.capacity() == this->slots() &&
              cache_.kv_heads() == shape_.heads && cache_.head_dim() == shape_.head_dim &&
              cache_.value_dim() == shape_.value_dim && cache_.storage() == shape_.storage &&
              cache_.policy().window == policy_.window,
          "extents stay");
    this->check_slots();
    for (Index r = 0; r < batch_; ++r) {
      const auto order = cache_.order(r), positions = cache_.positions(r);
      check(std::equal(order.begin(), order.end(), positions.begin(), positions.end()),
            "positions without coordinates are the order of tokens");
      check(cache_.next_positions()[static_cast<std::size_t>(r)] == seen(r),
            "the next token comes after those that a row took");
    }
  }
  bits state() const override {
    bits all = shown_by(cache_);
    for (std::size_t i = 0; i < 2; ++i) {
      add_number(all, takes<half_split>(cache_, tables()[i]));
      add_number(all, takes<interleaved>(cache_, tables()[i]));
    }
    return all;
  }

  /// Positions of new tokens [batch, tokens]: the next ones, or after gaps, rarely anywhere.
  std::vector<std::int64_t> draw_positions(bool placed, Index tokens) {
    std::vector<std::int64_t> ids;
    for (Index r = 0; r < batch_; ++r) {
      std::int64_t next = seen(r);
      for (Index t = 0; t < tokens; ++t, ++next) {
        if (placed && b_.one_in(4)) next += b_.up_to(b_.coin() ? 3 : 40);
        ids.push_back(placed && b_.one_in(16) ? b_.integer() : next);
        if (placed && b_.one_in(24)) next = std::max(next, ids.back() & (furthest - 1));
      }
    }
    return ids;
  }
  enum class sorted { right, descending, outside };
  /// The result of a ring for the first position that it does not accept.
  sorted order_of(const std::vector<std::int64_t>& ids, Index tokens, const new_counts<int>& counts) const {
    const auto at = [&](Index r, Index t) { return ids[static_cast<std::size_t>(r * tokens + t)]; };
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < counts.of(r); ++t)
        if (at(r, t) < -furthest || at(r, t) > furthest) return sorted::outside;
    for (Index r = 0; r < batch_; ++r) {
      std::int64_t next = seen(r);
      for (Index t = 0; t < counts.of(r); ++t) {
        if (at(r, t) < 0) return sorted::outside;
        if (at(r, t) < next) return sorted::descending;
        next = at(r, t) + 1;
      }
    }
    return sorted::right;
  }

  /// \param placed   whether positions are given, which may skip some
  /// \param earlier  whether the table has rotated the keys before
  template <class K>
  void append(bool placed = false, bool earlier = false) {
    const Index tokens = b_.one_in(5) ? b_.up_to(20) : b_.up_to(4);
    const bool by_table = (raw() ? b_.one_in(8) : b_.coin()) || earlier, padded = b_.coin(),
               interleaved_one = b_.one_in(4);
    const auto table = static_cast<std::size_t>(b_.one_in(3) ? b_.up_to(2) : 0);
    const new_counts<int> counts(b_, batch_, tokens, padded);
    new_heads<K> x(b_, batch_, tokens, shape_.heads, shape_.head_dim, shape_.value_dim);
    const std::vector<std::int64_t> ids = draw_positions(placed, tokens);
    std::vector<std::vector<token>> added(rows_.size());
    bool in_table = true;
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        const token one{{draw_channels<T>(b_, static_cast<std::size_t>(shape_.heads * shape_.head_dim))},
                        draw_channels<T>(b_, static_cast<std::size_t>(shape_.heads * shape_.value_dim))};
        x.put(r, t, one.k.exact.data(), one.v.data());
        if (t >= counts.of(r)) continue;
        in_table = in_table && tables()[table].contains(ids[static_cast<std::size_t>(r * tokens + t)]);
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const auto call = [&] {
      if (!by_table && placed) return cache_.append_at(x.k, x.v, ids, counts.given());
      if (!by_table) return cache_.append(x.k, x.v, counts.given());
      with_layout(interleaved_one, [&]<class Layout>(Layout) {
        const auto& by = tables()[table];
        if (earlier) return cache_.template append_rotated<Layout>(x.k, x.v, by, ids, counts.given());
        if (placed) return cache_.template append_at<Layout>(x.k, x.v, by, ids, counts.given());
        cache_.template append<Layout>(x.k, x.v, by, counts.given());
      });
    };
    if (b_.one_in(10)) {
      x.spoil(b_.up_to(x.v.size() == 0 ? 7 : 9));
      return rejected(invalid_argument, "another shape throws", call);
    }
    if (counts.bad) return rejected(invalid_argument, "a count outside of the tokens throws", call);
    const sorted given = order_of(ids, tokens, counts);
    if (given == sorted::outside) return rejected(out_of_range, "positions outside the range throw", call);
    if (given == sorted::descending)
      return rejected(invalid_argument, "positions before those of a row throw", call);
    if (by_table && raw()) return rejected(invalid_argument, "raw keys take no table", call);
    if (!this->empty() && !(by_table ? rotation_.is(tables(), table, interleaved_one) : !rotation_.known))
      return rejected(invalid_argument, "keys of another rotation throw", call);
    if (by_table && !earlier && !in_table)
      return rejected(out_of_range, "positions outside the table throw", call);
    call();
    check(x.untouched_outside(), "what is appended stays as it is");
    rotation_.append(by_table, table, interleaved_one);
    for (Index r = 0; r < batch_; ++r) {
      std::size_t id = static_cast<std::size_t>(r * tokens);
      for (token& one : added[static_cast<std::size_t>(r)]) {
        if (by_table && !earlier)
          tables().rotate_key<T>(one.k, shape_.head_dim, table, interleaved_one, ids[id]);
        else
          one.k.error = storing_error<T>(one.k.exact);
        this->add(r, one, ids[id++]);
      }
    }
  }

  /// Calls that are invalid for any contents of the cache.
  void misuse() {
    using limits = std::numeric_limits<Index>;
    this->call_with_no_row();
    const std::int64_t before = b_.coin() ? -1 : limits::min();
    rejected(out_of_range, "no slot is before the first", [&] { static_cast<void>(cache_.slot(before)); });
    if (batch_ > 0)
      rejected(out_of_range, "no window is before the first",
               [&] { static_cast<void>(cache_.holds_window(0, before)); });
    rejected(invalid_argument, "a policy or an extent that is none throws", [&] {
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
    rejected(length_error, "more than the address space throws",
             [&] { ring_cache<T> none_such(8, {.window = limits::max() / 8}, 2, 2); });
  }

  /// The queries are the newest tokens, with a sliding window and sinks over the whole history, or by rank
  /// among the visible keys.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = numbers<T>;
      if (batch_ == 0) return;
      bool rotated = raw() || (rotation_.known && b_.coin()), interleaved_one = rotation_.interleaved;
      auto table = rotated ? raw() ? static_cast<std::size_t>(b_.up_to(2)) : rotation_.table : 0;
      auto a = this->draw_asking();
      const bool in_table = !rotated || is_in_table(a, table);
      const Index group = b_.between(1, 2), heads = shape_.heads * group;
      asked_queries<T> asked(b_, batch_, a.queries, heads, shape_.head_dim, shape_.value_dim);
      asked.draw_all(b_);
      attention_options options;
      wrong_option spoilt;
      wrong_ring_option of_ring;
      const bool wrong = b_.one_in(10);
      if (wrong) {
        const long kind = b_.up_to(8);
        if (kind <= 4) {
          of_ring.put_into(options, kind, policy_);
        } else if (kind == 5) {  // raw keys have no angles, and counts are those of all rows
          if (raw())
            rotated = false;
          else
            a.counts.push_back(0);
        } else if (kind == 6) {  // keys of another layout or table, or of an unknown one
          if (raw() || this->empty()) {
            a.counts.push_back(0);
          } else {
            if (rotated && b_.coin())
              interleaved_one = !interleaved_one;
            else if (rotation_.known)
              table = rotation_.table == 1 ? 0 : 1;
            rotated = true;
          }
        } else {
          spoilt.put_into(options, b_, batch_, a.queries, heads);
        }
      }
      options.queries_are_rotated = !rotated;
      const auto call = [&] {
        if (!rotated) return attention(asked.asking(), cache_, asked.out, options, a.counts);
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          attention<Layout>(asked.asking(), cache_, asked.out, tables()[table], options, a.counts);
        });
      };
      if (wrong || !a.enough || !a.held || !in_table) {
        const char* claim = "options, queries, windows or positions that do not go with the ring throw";
        if (wrong || (a.enough && in_table))
          rejected(invalid_argument, claim, call);
        else if (a.enough && a.held)
          rejected(out_of_range, claim, call);
        else  // rows are checked one after another
          rejected(logic_error, claim, call);
        return asked.check_rejected();
      }
      this->attended(asked, call);
      asked.for_each(a.counts, [&](Index r, Index i) {
        const std::int64_t position = seen(r) - a.counts[static_cast<std::size_t>(r)] + i;
        std::vector<key> keys;
        std::vector<channels> values;
        this->for_seen(r, position, [&](std::int64_t p) {
          token one = this->shown(r, p);
          if (raw())
            tables().rotate_key<Q>(one.k, shape_.head_dim, table, interleaved_one,
                                   relative() ? static_cast<std::int64_t>(keys.size()) : p);
          keys.push_back(one.k), values.push_back(one.v);
        });
        key query = asked.query(r, i);
        if (rotated)
          tables().rotate_key<Q>(query, shape_.head_dim, table, interleaved_one,
                                 relative() ? static_cast<std::int64_t>(keys.size()) - 1 : position);
        check_attended("attention to a ring is attention with its window and sinks to the whole history",
                       asked.out, r, i, group, query, keys, values);
      });
    }
  }
  /// Whether the table covers the positions of the queries and of the raw keys in rows with queries, counted
  /// from the oldest visible key if the ring numbers by rank.
  bool is_in_table(const typename base::asking& a, std::size_t table) const {
    bool result = true;
    const std::int64_t max_rank = std::int64_t{policy_.sinks} + policy_.window - 1;
    for (Index r = 0; r < batch_; ++r) {
      const Index count = a.counts[static_cast<std::size_t>(r)];
      for (std::int64_t p = seen(r) - count; p >= 0 && p < seen(r); ++p)
        result = result && tables()[table].contains(relative() ? std::min(p, max_rank) : p);
      if (raw() && !relative() && count > 0)
        for (const std::int64_t i : this->row(r).owner)
          result = result && (i < 0 || tables()[table].contains(i));
    }
    return result;
  }

  shape shape_;
  known_rotation rotation_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  fuzz::with_stored_type(b, [&]<class T>(T) { fuzz::ring<T>(b).run(20); });
  return 0;
}
