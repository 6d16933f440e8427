// SPDX-License-Identifier: MIT
// Any sequence of the operations of a latent_cache, compared with lists of tokens. Every call that throws
// according to its comment is made too, and changes nothing.
#include <rope/cache/latent_cache.hpp>

#include <algorithm>
#include <limits>
#include <rope/cache/attention.hpp>
#include <vector>

#include "fuzz/support/drawn_lists.hpp"
#include "fuzz/support/moved_keys_target.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

struct shape {
  Index batch, capacity, latent_dim;
  key_storage storage;

  explicit shape(bytes& b)
      : batch(b.one_in(12) ? 0 : b.between(1, 3)),
        capacity(b.up_to(9)),
        latent_dim(b.up_to(4)),
        storage(b.coin() ? key_storage::raw : key_storage::rotated) {}
};

template <class T>
class decoder final : public moved_keys_target<latent_cache<T>> {
  using base = moved_keys_target<latent_cache<T>>;
  using base::b_, base::batch_, base::cache_, base::rejected, base::raw, base::rotation_, base::at,
      base::size;

 public:
  explicit decoder(bytes& b) : decoder(b, shape(b)) {}

 private:
  decoder(bytes& b, const shape& s)
      : base(b, stored_shape{1, 2 * pairs, s.latent_dim, s.latent_dim}, s.batch, s.capacity, s.latent_dim,
             2 * pairs, s.storage),
        extents_(s),
        dim_(s.latent_dim + 2 * pairs) {}

  void step() override {
    const long chosen = b_.up_to(255);  // one of the last nine values, so that the others keep their meaning
    this->take_step(chosen < 247 ? chosen % 13 : 13 + chosen % 3);
  }
  void misuse() override {
    this->ask_what_is_wrong();
    rejected(length_error, "channels that no Index counts throw", [] {
      latent_cache<T> bad(0, 0, std::numeric_limits<Index>::max(), std::numeric_limits<Index>::max());
    });
  }
  void check_all() override {
    check(cache_.batch() == batch_ && cache_.capacity() == this->capacity_ &&
              cache_.latent_dim() == extents_.latent_dim && cache_.rotary_dim() == 2 * pairs &&
              cache_.storage() == extents_.storage,
          "extents stay");
    this->check_rows();
  }

  /// The queries are absorbed queries of the newest tokens, with many heads. Keys in double or float are
  /// enough here.
  void attend() override {
    if constexpr (!tolerance::is_16_bit<T>) {
      if (batch_ == 0) return;
      auto a = this->draw_asking();
      const Index heads = b_.up_to(3);
      const Index window = b_.coin() ? 0 : b_.between(1, 4);
      asked_queries<T> asked(b_, batch_, a.queries, heads, dim_, extents_.latent_dim);
      asked.draw_all(b_);
      bool rotated = raw() || (rotation_.known && b_.coin()), interleaved_one = rotation_.interleaved;
      auto table = rotated ? raw() ? static_cast<std::size_t>(b_.up_to(2)) : rotation_.table : 0;
      const bool in_table = this->is_in_table(a, table);
      const bool unscaled = b_.one_in(12), other_table = rotated && b_.one_in(12);
      attention_options options = {.scale = 0.5, .window = window};
      if (unscaled) options.scale = 0;
      const long form = b_.up_to(1), other = b_.up_to(31);
      bool invalid = unscaled || other_table;
      wrong_option spoilt;
      if (other >= 29) {
        invalid = true;
        spoilt.put_into(options, b_, batch_, a.queries, heads);
      } else if (other == 28 && raw()) {  // raw parts have no angles yet
        invalid = true, rotated = false;
      } else if (other >= 26 && !raw() && !this->empty()) {
        invalid = rotated = true;
        if (!this->spoil_rotation(other == 26, table, interleaved_one)) return;
      } else if (other == 25) {
        invalid = true;
        a.counts.push_back(0);
      }
      drawn_lists lists;
      if (other < 10 && a.queries > 0) {
        Index longest = 0;
        for (Index r = 0; r < batch_; ++r) longest = std::max(longest, size(r));
        const auto size_for = [&](Index r, Index i) {
          return i < a.counts[static_cast<std::size_t>(r)] ? size(r) : Index{-1};
        };
        lists = drawn_lists(b_, batch_, a.queries, 1, size_for);
        options.selected = lists.view();
        if (b_.one_in(8)) {
          lists.spoil(b_, longest, options);
          invalid = true;
        }
      }
      options.queries_are_rotated = !rotated;
      const auto call = [&] {
        if (!rotated) return attention(asked.asking(), cache_, asked.out, options, a.counts);
        with_layout(interleaved_one, [&]<class Layout>(Layout) {
          this->with_table(table, other_table ? 2 : form, [&](const auto& by) {
            attention<Layout>(asked.asking(), cache_, asked.out, by, options, a.counts);
          });
        });
      };
      if (!this->attended_validly(invalid, a, rotated, in_table, asked, call)) return;
      asked.for_each(a.counts, [&](Index r, Index i) {
        key query = asked.query(r, i);
        const std::int64_t position = at(r, size(r) - a.counts[static_cast<std::size_t>(r)] + i).position;
        if (rotated) this->template rotate_key<T>(query, table, interleaved_one, position);
        std::vector<key> seen;
        this->for_seen(r, position, window, [&](Index t) {
          if (lists && !lists.has(r, i, a.queries, t)) return;
          seen.push_back(at(r, t).k);
          if (raw()) this->template rotate_key<T>(seen.back(), table, interleaved_one, at(r, t).position);
        });
        check_latents(asked.out, r, i, query, seen);
      });
    }
  }

  /// The heads of a query, of scale 1/2, against the keys that are visible to them and whose latents are the
  /// values.
  ///
  /// The error of a score from two errors e and the arithmetic is that of attention_bound. L is the largest
  /// sum of |q_d k_d|.
  void check_latents(const head_view<T>& out, Index r, Index i, const key& query,
                     const std::vector<key>& seen) const {
    wide error = query.error;
    std::vector<const wide*> keys;
    for (const key& one : seen) {
      error = std::max(error, one.error);
      keys.push_back(one.exact.data());
    }
    const wide u = tolerance::unit_roundoff<T>(), dim = static_cast<wide>(dim_),
               largest = 2.5L * 2.5L * dim / 2;
    const wide bound =
        2 * (2.02L * (0.5L * dim * error * (2.5L + 2.5L + error) + (dim + 8) * u * largest) + 80 * u);
    for (Index h = 0; h < out.heads; ++h) {
      const channels exact = fuzz::attend(query.exact.data() + h * dim_, static_cast<std::size_t>(dim_), keys,
                                          keys, static_cast<std::size_t>(extents_.latent_dim), 0.5L);
      check(near(out, r, i, h, exact.data(), bound), "attention to a cache is attention to its tokens");
    }
  }

  shape extents_;
  Index dim_;
};

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  fuzz::with_one_of<float, double, Eigen::half, Eigen::bfloat16>(
      b, [&]<class T>(T) { fuzz::decoder<T>(b).run(24); });
  return 0;
}
