// SPDX-License-Identifier: MIT
// Any sequence of the operations of a ring_cache whose tokens have coordinates, compared with whole histories
// and the published rule of slots. Every call that throws according to its comment is made too, and changes
// nothing.
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <vector>

#include "fuzz/support/asked_queries.hpp"
#include "fuzz/support/axes.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/ring_target.hpp"
#include "fuzz/support/text_on_axes.hpp"
#include "fuzz/support/types.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

struct shape {
  Index batch;
  ring_policy policy;
  Index heads, head_dim, value_dim, first_channel;

  explicit shape(bytes& b)
      : batch(b.one_in(12) ? 0 : b.between(1, 3)),
        policy(draw_policy(b)),
        heads(b.between(1, 2)),
        head_dim(rotated_channels + b.up_to(2)),
        value_dim(b.between(1, 3)),
        first_channel(b.up_to(long(head_dim) - rotated_channels)) {}
};

template <class T>
class ring final : public text_on_axes<ring_target<T, token_on_axes>> {
  using base = text_on_axes<ring_target<T, token_on_axes>>;
  using base::b_, base::batch_, base::cache_, base::rows_, base::policy_, base::rejected, base::seen,
      base::at;

 public:
  explicit ring(bytes& b) : ring(b, shape(b)) {}

 private:
  ring(bytes& b, const shape& s)
      : base(b, s.first_channel, s.batch, s.policy, s.heads, s.head_dim, token_axes(axes), s.value_dim),
        shape_(s) {}

  void step() override {
    const long chosen =
        b_.up_to(255);  // one of the last sixteen values, so that the others keep their meaning
    if (chosen >= 240) return with_type_of_new<T>(b_, [&]<class K>(K) { append<K>(true); });
    switch (chosen % 10) {
      case 4:
      case 5: {
        const bool every = b_.coin();
        return this->truncate(this->draw_index(12), every, true);
      }
      case 6:
        return this->copy_or_clear(b_.up_to(4), 12, [] { return false; });
      case 7:
        return misuse();
      case 8:
      case 9:
        return attend();
      default:
        return with_type_of_new<T>(b_, [&]<class K>(K) { append<K>(); });
    }
  }
  void check_all() override {
    check(cache_.axes() == axes && cache_.batch() == batch_ && cache_.capacity() == this->slots() &&
              cache_.storage() == key_storage::rotated,
          "extents stay");
    this->check_slots();
    for (Index r = 0; r < batch_; ++r) {
      const auto order = cache_.order(r);
      const auto coordinates = cache_.coordinates(r);
      check(coordinates.rows() == static_cast<Index>(order.size()) && coordinates.cols() == axes,
            "the shape of coordinates");
      for (Index s = 0; s < coordinates.rows(); ++s)
        if (const std::int64_t i = order[static_cast<std::size_t>(s)]; i != ring_cache<T>::no_position)
          check(coordinates(s, 0) == at(r, i).at[0] && coordinates(s, 1) == at(r, i).at[1],
                "tokens are where they were put");
    }
    this->check_text();
  }

  /// \param earlier  whether the table has rotated the keys before
  template <class K>
  void append(bool earlier = false) {
    const Index tokens = b_.one_in(5) ? b_.up_to(16) : b_.up_to(4);
    const long form = b_.up_to(earlier ? 4 : 5);
    const bool rotated = form != 5, by_rows = rotated && form < 3;
    const axis_rotation given = this->draw_rotation(rotated && !by_rows);
    const bool padded = b_.one_in(3);
    const new_counts<int> counts(b_, batch_, tokens, padded);
    given_places places(b_, batch_, tokens, by_rows);
    const bool far = b_.one_in(12);
    for (Index i = 0; by_rows && i < places.count(); ++i) places.rows.push_back(draw_coordinates(b_, far));
    places.spoil_seldom(b_);
    new_heads<K> x(b_, batch_, tokens, shape_.heads, shape_.head_dim, shape_.value_dim);
    std::vector<std::vector<token_on_axes>> added(rows_.size());
    bool in_table = true, in_range = true;
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        token_on_axes one = draw_token<T>(b_, shape_.heads, shape_.head_dim, shape_.value_dim);
        x.put(r, t, one.k.exact.data(), one.v.data());
        if (t >= counts.of(r)) continue;
        if (by_rows) {
          one.at = places.of(r, t);
        } else {
          const double position = this->largest(r) + static_cast<double>(t + 1);
          one.at = {position, position};
          in_range = in_range && this->largest(r) <= limit - static_cast<double>(t + 1);
          in_table = in_table && is_in_text_tables(position);
        }
        added[static_cast<std::size_t>(r)].push_back(one);
      }
    const auto call = [&] {
      if (!rotated) return cache_.append(x.k, x.v, counts.given());
      with_table_and_layout(given, places.rows, [&]<class Layout>(Layout, const auto& table) {
        if (earlier) return cache_.template append_rotated<Layout>(x.k, x.v, table, {}, counts.given());
        cache_.template append<Layout>(x.k, x.v, table, counts.given());
      });
    };
    const bool other_shape = b_.one_in(12);
    if (other_shape) x.spoil(b_.up_to(7));
    const bool invalid = other_shape || counts.bad || places.odd ||
                         !(this->empty() || (rotated ? this->agrees_with(given) : !this->known_));
    if (!by_rows && !this->has_slots_for(tokens)) {
      // All tokens of a call must fit, counted or not. Other errors may be reported first.
      if (!in_range)
        invalid ? rejected(logic_error, "text stays within 2^53", call)
                : rejected(out_of_range, "text stays within 2^53", call);
      return;
    }
    if (invalid || (!by_rows && !this->goes_on_whole()))
      return rejected(invalid_argument, "another shape, count, table or place throws", call);
    if (rotated && !earlier && !in_table)
      return rejected(out_of_range, "positions outside the table throw", call);
    call();
    check(x.untouched_outside(), "what is appended stays as it is");
    this->remember(rotated, given);
    for (Index r = 0; r < batch_; ++r)
      for (token_on_axes& one : added[static_cast<std::size_t>(r)]) {
        store<T>(one, shape_.head_dim, rotated && !earlier, given);
        this->add(r, one);
      }
  }

  /// Calls that are invalid for any contents of the cache.
  void misuse() {
    using limits = std::numeric_limits<Index>;
    this->call_with_no_row();
    this->call_with_no_text();
    rejected(length_error, "more than the address space throws", [&] {
      ring_cache<T> bad(2, {.window = 2}, 1, 1, token_axes(limits::max() / (b_.coin() ? 2 : 16)));
    });
    rejected(invalid_argument, "a policy that is none throws", [&] {
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
      ring_cache<T> none_such(1, bad, 1, rotated_channels, token_axes(axes));
    });
    this->check_tables();
  }

  /// The queries are the newest tokens, with the window and the sinks of the ring over the whole history.
  void attend() {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = numbers<T>;
      if (batch_ == 0) return;
      const auto a = this->draw_asking();
      const bool near_ones = this->all_near();
      bool text = true, in_table = true;
      std::vector<coordinates> places;
      for (Index r = 0; r < batch_; ++r)
        for (Index i = 0; i < a.queries; ++i) {
          const Index count = a.counts[static_cast<std::size_t>(r)];
          if (i >= count || count > seen(r)) {
            places.push_back({0, 0});
            continue;
          }
          const coordinates& own = at(r, seen(r) - count + i).at;
          text = text && is_text(own);
          in_table = in_table && is_in_text_tables(own[0]);
          places.push_back(own);
        }
      const Index group = b_.between(1, 2), heads = shape_.heads * group;
      asked_queries<T> asked(b_, batch_, a.queries, heads, shape_.head_dim, shape_.value_dim);
      asked.draw_all(b_);
      const bool rotated = b_.coin(), by_text = rotated && b_.coin();
      const axis_rotation given = this->draw_rotation(by_text);
      bool invalid = !a.enough || !a.held;
      if (rotated && !by_text && a.enough && b_.one_in(8))
        for (Index r = 0; r < batch_; ++r)
          if (const Index count = a.counts[static_cast<std::size_t>(r)]; count > 0) {
            places[static_cast<std::size_t>(r * a.queries + count - 1)][b_.coin() ? 1 : 0] += 0.5;
            if (!near_ones) return;
            invalid = true;
            break;
          }
      attention_options options;
      wrong_option spoilt;
      wrong_ring_option of_ring;
      if (b_.one_in(10)) {
        invalid = true;
        if (const long kind = b_.up_to(7); kind <= 4)
          of_ring.put_into(options, kind, policy_);
        else
          spoilt.put_into(options, b_, batch_, a.queries, heads);
      }
      invalid = invalid || (rotated && !this->empty() && !this->agrees_with(given)) || (by_text && !text);
      options.queries_are_rotated = !rotated;
      const auto call = [&] {
        if (!rotated) return attention(asked.asking(), cache_, asked.out, options, a.counts);
        with_table_and_layout(given, places, [&]<class Layout>(Layout, const auto& table) {
          attention<Layout>(asked.asking(), cache_, asked.out, table, options, a.counts);
        });
      };
      if (invalid || (by_text && !in_table)) {
        const char* claim = "options, windows or a table that do not go with the ring throw";
        invalid ? rejected(invalid_argument, claim, call) : rejected(out_of_range, claim, call);
        return asked.check_rejected();
      }
      this->attended(asked, call);
      if (!near_ones) return;
      asked.for_each(a.counts, [&](Index r, Index i) {
        const std::int64_t own = seen(r) - a.counts[static_cast<std::size_t>(r)] + i;
        key query = asked.query(r, i);
        if (rotated) rotate_on_axes<Q>(query, shape_.head_dim, given, at(r, own).at, given.factor());
        std::vector<key> keys;
        std::vector<channels> values;
        this->for_seen(r, own, [&](std::int64_t p) {
          const token_on_axes one = this->shown(r, p);
          keys.push_back(one.k), values.push_back(one.v);
        });
        check_attended("attention to a ring on axes goes by the order of tokens", asked.out, r, i, group,
                       query, keys, values);
      });
    }
  }

  shape shape_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  fuzz::with_stored_type(b, [&]<class T>(T) { fuzz::ring<T>(b).run(20); });
  return 0;
}
