// SPDX-License-Identifier: MIT
// Any sequence of the operations of a kv_cache, compared with lists of tokens. Every call that throws
// according to its comment is made too, and changes nothing.
#include <rope/cache/kv_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <rope/cache/attention.hpp>
#include <rope/cache/weights.hpp>
#include <stdexcept>
#include <vector>

#include "fuzz/support/drawn_lists.hpp"
#include "fuzz/support/drawn_ranges.hpp"
#include "fuzz/support/moved_keys_target.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

struct shape {
  Index batch, capacity, heads, head_dim, value_dim;
  key_storage storage;

  explicit shape(bytes& b)
      : batch(b.one_in(12) ? 0 : b.between(1, 3)),
        capacity(b.up_to(9)),
        heads(b.one_in(12) ? 0 : b.between(1, 2)),
        head_dim(2 * pairs + b.up_to(2)),
        value_dim(b.one_in(4) ? head_dim : b.between(1, 4)),
        storage(b.coin() ? key_storage::raw : key_storage::rotated) {}
};

template <class T>
class decoder final : public moved_keys_target<kv_cache<T>> {
  using base = moved_keys_target<kv_cache<T>>;
  using base::b_, base::batch_, base::cache_, base::rejected, base::raw, base::rotation_, base::at,
      base::size;

 public:
  explicit decoder(bytes& b) : decoder(b, shape(b)) {}

 private:
  decoder(bytes& b, const shape& s)
      : base(b, stored_shape{s.heads, s.head_dim, s.value_dim, 0}, s.batch, s.capacity, s.heads, s.head_dim,
             s.value_dim == s.head_dim ? 0 : s.value_dim, s.storage),
        extents_(s) {}

  void step() override {
    const long chosen =
        b_.up_to(255);  // one of the last sixteen values, so that the others keep their meaning
    this->take_step(chosen < 240 ? chosen % 12 : 12 + chosen % 4);
  }
  void misuse() override {
    this->ask_what_is_wrong();
    rejected(invalid_argument, "a negative value_dim throws", [] { kv_cache<T> bad(1, 1, 1, 1, -2); });
  }
  void check_all() override {
    check(cache_.batch() == batch_ && cache_.capacity() == this->capacity_ &&
              cache_.kv_heads() == extents_.heads && cache_.head_dim() == extents_.head_dim &&
              cache_.value_dim() == extents_.value_dim && cache_.storage() == extents_.storage,
          "extents stay");
    this->check_rows();
  }

  /// The queries are the newest tokens. For integers the model uses the contents of the cache, which
  /// check_stored has compared, so the error of an output is that of the arithmetic alone. 16-bit types are
  /// left to the target of attention.
  void attend() override {
    if constexpr (!tolerance::is_16_bit<T>) {
      using Q = numbers<T>;
      if (batch_ == 0 || extents_.heads == 0) return;
      auto a = this->draw_asking();
      const Index group = b_.between(1, 2), heads = extents_.heads * group;
      const Index window = b_.coin() ? 0 : b_.between(1, 4);
      asked_queries<T> asked(b_, batch_, a.queries, heads, extents_.head_dim, extents_.value_dim);
      asked.draw_all(b_);
      bool rotated = raw() || (rotation_.known && b_.coin()), interleaved_one = rotation_.interleaved;
      auto table = rotated ? raw() ? static_cast<std::size_t>(b_.up_to(2)) : rotation_.table : 0;
      const bool in_table = this->is_in_table(a, table);
      attention_options options = {.window = window};
      const long other = b_.up_to(47);  // most calls are valid
      bool invalid = false;
      wrong_option spoilt;
      if (other >= 44) {
        invalid = true;
        spoilt.put_into(options, b_, batch_, a.queries, heads);
      } else if (other == 43 && raw()) {  // raw keys have no angles yet
        invalid = true, rotated = false;
      } else if (other >= 41 && !raw() && !this->empty()) {
        invalid = rotated = true;
        if (!this->spoil_rotation(other == 41, table, interleaved_one)) return;
      } else if (other >= 39) {
        invalid = true;
        if (other == 40)
          a.counts.push_back(0);
        else
          a.counts.back() = a.queries + 1;
      }
      // check_counts compares which tokens a call without counts refers to.
      const bool uncounted = other < 8 && a.enough && counts_are_known(a.counts, a.queries);
      std::vector<char> seen_by_mask;
      const bool masked = other >= 8 && other < 18, ranged = other >= 16 && other < 22 && a.queries > 0;
      Index longest = 0;
      for (Index r = 0; r < batch_; ++r) longest = std::max(longest, size(r));
      drawn_ranges ranges;
      if (ranged) {
        ranges = drawn_ranges(b_, batch_, a.queries, longest);
        for (std::size_t n = 0; n < ranges.list.size(); ++n)
          if (!ranges.is_read(n, a.counts)) ranges.list[n] = {-1, longest + 2};
        options.key_ranges = ranges.list;
        if (!b_.one_in(8)) options.window = 0;
        const bool spoilt_one = b_.one_in(8);
        if (spoilt_one) spoil_ranges(b_, longest, ranges, options, a.counts);
        invalid = spoilt_one || options.window != 0;
      }
      if (masked) {
        std::uint64_t bits = b_.bits(4);
        for (Index i = 0; i < batch_ * a.queries * longest; ++i) {
          bits = bits * 6364136223846793005u + 1442695040888963407u;
          seen_by_mask.push_back(bits >> 62 != 0);
        }
        options.mask =
            score_matrix(reinterpret_cast<const bool*>(seen_by_mask.data()), batch_, 1, a.queries, longest);
      }
      drawn_lists lists;
      if (other >= 14 && other < 28 && a.queries > 0) {
        const auto size_for = [&](Index r, Index i) {
          return i < a.counts[static_cast<std::size_t>(r)] ? size(r) : Index{-1};
        };
        lists = drawn_lists(b_, batch_, a.queries, extents_.heads, size_for);
        options.selected = lists.view();
        if (b_.one_in(8)) {
          lists.spoil(b_, longest, options);
          invalid = true;
        }
      }
      std::vector<double> sums;
      if (masked && a.queries > 0) {
        sums.assign(static_cast<std::size_t>(batch_ * a.queries * heads), -77);
        options.log_sum_exp = sums;
      }
      options.queries_are_rotated = !rotated;
      const auto call = [&] {
        const detail::row_counts list = uncounted ? detail::row_counts() : detail::row_counts(a.counts);
        if (!rotated) return attention(asked.asking(), cache_, asked.out, options, list);
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          attention<Layout>(asked.asking(), cache_, asked.out, cache_tables()[table], options, list);
        });
      };
      if (!this->attended_validly(invalid, a, rotated, in_table, asked, call)) return;
      std::vector<wide> received(static_cast<std::size_t>(batch_ * heads * longest)), bounds = received;
      asked.for_each(a.counts, [&](Index r, Index i) {
        key query = asked.query(r, i);
        const std::int64_t position = at(r, size(r) - a.counts[static_cast<std::size_t>(r)] + i).position;
        if (rotated) this->template rotate_key<Q>(query, table, interleaved_one, position);
        std::vector<key> keys;
        std::vector<channels> values;
        std::vector<Index> tokens;
        const auto for_visible = [&](const auto& f) {
          if (ranged)
            ranges.for_seen(r, i, size(r), f);
          else
            this->for_seen(r, position, window, f);
        };
        for_visible([&](Index t) {
          if (masked && !seen_by_mask[static_cast<std::size_t>((r * a.queries + i) * longest + t)]) return;
          if (lists && !lists.has(r, i, a.queries, t)) return;
          positioned_token one = this->shown(r, t);
          if (raw()) this->template rotate_key<Q>(one.k, table, interleaved_one, one.position);
          keys.push_back(one.k), values.push_back(one.v), tokens.push_back(t);
        });
        check_attended("attention to a cache is attention to its tokens", asked.out, r, i, group, query, keys,
                       values);
        for (Index h = 0; h < heads && !sums.empty(); ++h)
          check((sums[static_cast<std::size_t>((r * a.queries + i) * heads + h)] ==
                 attention_options::no_keys) == values.empty(),
                "a query that sees nothing has the sum of no keys");
        for (Index h = 0; h < heads; ++h)
          add_weights<Q>(query, keys, h, heads, group, [&](std::size_t j, wide weight, wide bound) {
            const auto place = static_cast<std::size_t>((r * heads + h) * longest + tokens[j]);
            received[place] += weight;
            bounds[place] += bound;
          });
      });
      std::vector<arithmetic<Q>> written(received.size(), arithmetic<Q>(-77));
      const detail::row_counts list(a.counts);
      if (!rotated)
        attention_weight_sums(asked.asking(), cache_, written, options, list);
      else
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          attention_weight_sums<Layout>(asked.asking(), cache_, written, cache_tables()[table], options,
                                        list);
        });
      for (std::size_t n = 0; n < written.size(); ++n)
        check(testing::abs(static_cast<wide>(written[n]) - received[n]) <= bounds[n],
              "a token receives the sum of its weights");
    }
  }
  /// Whether a call without counts has these.
  bool counts_are_known(const std::vector<Index>& counts, Index queries) const {
    try {
      const auto known = cache_.query_counts(queries);
      return known.empty() ? std::all_of(counts.begin(), counts.end(), [&](Index n) { return n == queries; })
                           : std::equal(known.begin(), known.end(), counts.begin(), counts.end());
    } catch (const std::invalid_argument&) {
      return false;
    }
  }

  shape extents_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  fuzz::with_stored_type(b, [&]<class T>(T) { fuzz::decoder<T>(b).run(24); });
  return 0;
}
