// SPDX-License-Identifier: MIT
// Self-attention of a block to a cache: prompts, single tokens and rows of different lengths, between
// truncated and copied rows, compared with the formula with every product written out. Every call that throws
// according to its comment is made too: it changes neither the cache nor its output.
#include <rope/block/multi_head_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>

#include "fuzz/support/axes.hpp"
#include "fuzz/support/block_weights.hpp"
#include "fuzz/support/kept_target.hpp"
#include "fuzz/support/new_positions.hpp"
#include "fuzz/support/new_tokens.hpp"
#include "fuzz/support/position_tables.hpp"
#include "fuzz/support/ring_target.hpp"
#include "fuzz/support/types.hpp"
#include "fuzz/support/wrong_option.hpp"

using namespace rope;

// Names of this file are not global, because names of the library would shadow them.
namespace fuzz {
namespace {

/// The last one is another range of the first: a cache accepts both.
const position_tables& tables() {
  using table = frequency_table<float>;
  static const position_tables all = {
      {table(slow_pairs(), -4, 40), table(fast_pairs(1.25), 0, 90), table(slow_pairs(), 0, 9)},
      3,
      table(frequencies(2 * pairs + 8, 50.0), -20, 90)};
  return all;
}

/// The values of a token carry an error like its keys: a cache may round them to 16 bits.
struct token {
  key k, v;
  std::int64_t position = 0;
};

/// A block, and its cache.
template <class T>
struct setup {
  Index kv_heads, heads, head_dim, value_dim;
  block_weights<T> own;
  Index batch, capacity;
  ring_policy policy;
  key_storage storage;
  Index first_channel;
  bool rotated;  // whether calls are given a table, which raw keys need

  explicit setup(bytes& b)
      : kv_heads(b.between(1, 2)),
        heads(kv_heads * b.between(1, 2)),
        head_dim(2 * pairs + b.up_to(2)),
        value_dim(b.between(1, 3)),
        own(b, heads, kv_heads, head_dim, value_dim, true),
        batch(b.one_in(12) ? 0 : b.between(1, 3)),
        capacity(b.up_to(12)),
        policy(draw_policy(b)),
        storage(b.coin() ? key_storage::raw : key_storage::rotated),
        first_channel(b.up_to(long(head_dim) - 2 * pairs)),
        rotated(storage == key_storage::raw || b.coin()) {
    if (storage == key_storage::raw && b.coin()) policy.positions = ring_positions::cache;
  }
};

template <class T, class Layout, class Base>
class stepper final : public Base {
  using Base::b_, Base::batch_, Base::cache_, Base::rows_, Base::rejected, Base::tokens_of;
  using C = typename Base::stored;
  static constexpr bool is_interleaved = std::is_same_v<Layout, interleaved>;
  static constexpr bool is_ring = std::is_base_of_v<ring_target<C, token>, Base>;

 public:
  /// \param shape  of the cache, after its batch
  template <class... Shape>
  stepper(bytes& b, const setup<T>& of, const Shape&... shape) : Base(b, of.batch, shape...), s_(of) {}

 private:
  const multi_head_shape& shape() const { return s_.own.shape; }
  bool raw() const { return s_.storage == key_storage::raw; }
  bool relative() const { return is_ring && s_.policy.positions == ring_positions::cache; }
  placed_table<float> placed(std::size_t table) const { return tables()[table].at_channel(s_.first_channel); }
  multi_head_attention<T, Layout> block(const attention_options& attention) const {
    multi_head_options options = s_.own.options();
    options.attention = attention;
    return {s_.own.weights(), options};
  }

  void step() override {
    switch (b_.up_to(11)) {
      case 7:
        return truncate();
      case 8:
        if constexpr (is_ring)
          return truncate();
        else
          return this->remove();
      case 9:
        return this->copy_or_clear(b_.up_to(5), 12, [] { return false; });
      case 10:
        return misuse();
      case 11:
        return b_.coin() ? append_elsewhere() : misuse_axes();
      default:
        return forward();
    }
  }
  void truncate() {
    if constexpr (is_ring) {
      const bool every = b_.coin();
      Base::truncate(this->draw_index(8), every, false);
    } else {
      Base::truncate();
    }
  }
  void check_all() override {
    if constexpr (is_ring) {
      this->check_slots();
    } else {
      for (Index r = 0; r < batch_; ++r) {
        check(cache_.size(r) == this->size(r), "a row has the tokens that it took and kept");
        this->check_stored(r);
        for (Index t = 0; t < this->size(r); ++t)
          check(cache_.positions(r)[static_cast<std::size_t>(t)] == this->at(r, t).position,
                "tokens keep their positions");
      }
    }
    for (Index r = 0; r < batch_; ++r)
      check(cache_.next_positions()[static_cast<std::size_t>(r)] == next(r),
            "the next token comes after those of a row");
  }
  bits state() const override {
    bits all = shown_by(cache_);
    for (std::size_t i = 0; i < 2; ++i)
      for (const Index channel : {Index{0}, s_.first_channel}) {
        add_number(all, takes<half_split>(cache_, tables()[i].at_channel(channel)));
        add_number(all, takes<interleaved>(cache_, tables()[i].at_channel(channel)));
      }
    return all;
  }
  std::int64_t next(Index r) const {
    const std::vector<token>& row = tokens_of(r);
    std::int64_t largest = row.empty() ? -1 : row[0].position;
    for (const token& one : row) largest = std::max(largest, one.position);
    return largest + 1;
  }

  /// Whether a table covers the positions of `count` new tokens of a row, and of its raw keys.
  bool is_in_table(Index r, Index count, std::size_t table) const {
    const auto reached = [&](std::int64_t position) { return tables()[table].contains(position); };
    if (count == 0) return true;
    const std::int64_t last = next(r) + count - 1;
    if (relative())
      return reached(0) && reached(std::min(last, std::int64_t{s_.policy.sinks} + s_.policy.window - 1));
    bool result = reached(next(r)) && reached(last);
    if (raw()) {
      for (std::size_t i = 0; i < tokens_of(r).size(); ++i)
        result = result && (!is_held(r, static_cast<std::int64_t>(i)) || reached(tokens_of(r)[i].position));
    }
    return result;
  }
  bool is_held(Index r, std::int64_t i) const {
    if constexpr (is_ring)
      return Base::is_held(r, i);
    else
      return r >= 0 && i >= 0;
  }
  /// Whether a row has free slots for new tokens, and there are positions for them.
  bool has_free_slots(Index r, Index count) const {
    return is_ring || count <= s_.capacity - static_cast<Index>(tokens_of(r).size());
  }
  bool is_in_range(Index r, Index count) const { return count == 0 || next(r) + count - 1 <= furthest; }

  /// Heads of row i of x through a projection, followed by the steps of the block and the cache for keys.
  key head(const token_matrix<T>& x, Index i, const token_matrix<T>& weight, const token_matrix<T>& bias,
           const token_matrix<T>& norm) const {
    key one{project(x, i, weight, bias, s_.own.bias)};
    if (s_.own.norm) normalize(one, shape().head_dim, norm);
    return one;
  }
  template <class S>
  void rotate_key(key& k, std::size_t table, std::int64_t position) const {
    tables().rotate_key<S>(k, shape().head_dim, table, is_interleaved, position, s_.first_channel);
  }
  /// Rounds channels to those of the cache. 2^-25 is half of the smallest one of half.
  static void store(key& x) {
    if constexpr (!std::is_same_v<C, T>) {
      wide largest = 0;
      for (const wide value : x.exact) largest = std::max(largest, testing::abs(value));
      x.error += tolerance::unit_roundoff<C>() * (largest + x.error) + 0x1p-25L;
    }
  }

  /// New tokens of every row: all of them, or as many as the counts.
  void forward() {
    const Index tokens = b_.up_to(is_ring ? 9 : 4);
    const bool padded = b_.one_in(3);
    const new_counts<int> counts(b_, batch_, tokens, padded);
    const auto x = draw_rows<T>(b_, batch_ * tokens, shape().model_dim);
    const auto table = b_.one_in(4) ? static_cast<std::size_t>(b_.up_to(2)) : rotation_.table;
    attention_options options;
    if (!is_ring && b_.coin()) options.window = b_.between(1, 4);
    std::vector<double> sums;
    if (b_.coin()) sums.assign(static_cast<std::size_t>(batch_ * tokens * shape().heads), -77);
    options.log_sum_exp = sums;
    token_matrix<T> out = token_matrix<T>::Constant(x.rows(), shape().out_dim, T(-77));
    const auto call = [&] { step_of(block(options), x, out, s_.rotated, table, counts.given()); };

    bool in_table = true, room = true, in_range = true;
    for (Index r = 0; r < batch_; ++r) {
      in_table = in_table && (counts.bad || !s_.rotated || is_in_table(r, counts.of(r), table));
      room = room && (counts.bad || has_free_slots(r, counts.of(r)));
      in_range = in_range && (counts.bad || is_in_range(r, counts.of(r)));
    }
    if (counts.bad) return fails(invalid_argument, "a count outside of the tokens throws", call, out);
    if (s_.rotated && !raw() && !is_empty() && !is_by(table))
      return fails(invalid_argument, "keys of another rotation throw", call, out);
    if (!in_table) return fails(out_of_range, "positions outside the table throw", call, out);
    if (!room) return fails(length_error, "tokens that do not fit throw", call, out);
    if (!in_range) return fails(out_of_range, "positions beyond 2^53 throw", call, out);
    call();
    if (s_.rotated && !raw())
      rotation_.append(true, table, is_interleaved);
    else
      rotation_.known = false;

    std::vector<std::int64_t> first;
    for (Index r = 0; r < batch_; ++r) {
      first.push_back(next(r));
      for (Index t = 0; t < counts.of(r); ++t) add(r, new_token(x, r * tokens + t, first.back() + t, table));
    }
    check_all();
    // The formula uses keys and values as the cache stores them, if they are still in it.
    for (Index r = 0; r < batch_; ++r) remember_stored(r);
    for (Index r = 0; r < batch_; ++r)
      for (Index t = 0; t < tokens; ++t) {
        const Index i = r * tokens + t;
        if (t >= counts.of(r)) {
          check_output("what pads sees nothing", out, i, s_.own, {}, 0);
          continue;
        }
        check_query(out, i, x, r, first[static_cast<std::size_t>(r)] + t, options.window, table, sums);
      }
  }
  template <class To, class Counts>
  void step_of(const multi_head_attention<T, Layout>& by, const token_matrix<T>& x, To& out, bool rotated,
               std::size_t table, const Counts& counts) {
    if (rotated)
      by.forward(x, cache_, out, placed(table), counts);
    else
      by.forward(x, cache_, out, counts);
  }
  template <class Exception, class Call>
  void fails(thrown<Exception> error, const char* claim, const Call& call, const token_matrix<T>& out) {
    const token_matrix<T> before = out;
    rejected(error, claim, call);
    check(out == before, "a call that throws writes nothing");
  }

  bool is_by(std::size_t table) const { return rotation_.is(tables(), table, is_interleaved); }
  bool is_empty() const { return this->empty(); }
  void add(Index r, const token& one) {
    if constexpr (is_ring)
      Base::add(r, one);
    else
      this->row(r).push_back(one);
  }
  token new_token(const token_matrix<T>& x, Index i, std::int64_t position, std::size_t table) const {
    token one{head(x, i, s_.own.k, s_.own.k_bias, s_.own.k_norm),
              {project(x, i, s_.own.v, s_.own.v_bias, s_.own.bias)},
              position};
    if (s_.rotated && !raw()) rotate_key<C>(one.k, table, position);
    store(one.k), store(one.v);  // channels that do not rotate are rounded, too
    return one;
  }
  void remember_stored(Index r) {
    const auto keys = cache_.keys(r), values = cache_.values(r);
    auto& all = [&]() -> std::vector<token>& {
      if constexpr (is_ring)
        return this->row(r).tokens;
      else
        return this->row(r);
    }();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (!is_held(r, at)) continue;
      Index slot = static_cast<Index>(at);
      if constexpr (is_ring) slot = static_cast<Index>(this->slot_of(at));
      all[i].k = {stored_channels(keys, 0, slot)};
      all[i].v = {stored_channels(values, 0, slot)};
    }
  }

  /// Compares one output with the formula.
  void check_query(const token_matrix<T>& out, Index i, const token_matrix<T>& x, Index r,
                   std::int64_t position, Index window, std::size_t table, const std::vector<double>& sums) {
    std::vector<key> keys;
    std::vector<channels> values;
    wide error = 0, value_error = 0;
    for (const token& one : tokens_of(r)) {
      if (one.position > position || !sees(position, one.position, window)) continue;
      keys.push_back(one.k), values.push_back(one.v.exact);
      if (raw())
        rotate_key<T>(keys.back(), table,
                      relative() ? static_cast<std::int64_t>(keys.size()) - 1 : one.position);
      error = std::max(error, keys.back().error), value_error = std::max(value_error, one.v.error);
    }
    key query = head(x, i, s_.own.q, s_.own.q_bias, s_.own.q_norm);
    if (s_.rotated)
      rotate_key<T>(query, table, relative() ? static_cast<std::int64_t>(keys.size()) - 1 : position);
    error = std::max(error, query.error);
    const channels attended = attend_heads(query, keys, values, shape().heads, shape().kv_heads,
                                           static_cast<std::size_t>(shape().value_dim));
    // Channels are below 3 and values below 1.5: the error of a score is 2 * 6 * 3 errors over a root of 4,
    // that of a weight twice as much, and the product has at most 12 rows of |o| <= 1/2.
    const wide u = tolerance::unit_roundoff<T>(), score = 18 * error + 40 * u;
    check_output("a step is the formula over what the cache has", out, i, s_.own, attended,
                 6 * (1.5L * 2.02L * score + value_error + 40 * u));
    check_sums(i, query, keys, sums, score);
  }
  bool sees(std::int64_t position, std::int64_t other, Index window) const {
    if constexpr (is_ring)
      return Base::sees(position, other);
    else
      return window == 0 || position - other < window;
  }
  /// log_sum_exp of the heads of query i, [heads].
  void check_sums(Index i, const key& query, const std::vector<key>& keys, const std::vector<double>& sums,
                  wide bound) const {
    const auto dim = static_cast<std::size_t>(shape().head_dim);
    for (Index h = 0; h < shape().heads && !sums.empty(); ++h) {
      const auto own = static_cast<std::size_t>(h / (shape().heads / shape().kv_heads));
      wide sum = 0;
      for (const key& k : keys) {
        wide score = 0;
        for (std::size_t d = 0; d < dim; ++d)
          score += query.exact[static_cast<std::size_t>(h) * dim + d] * k.exact[own * dim + d];
        sum += testing::exp(score / testing::sqrt(static_cast<wide>(dim)));
      }
      const auto exact = static_cast<wide>(std::log(static_cast<double>(sum)));
      check(testing::abs(static_cast<wide>(sums[static_cast<std::size_t>(i * shape().heads + h)]) - exact) <=
                bound + 40 * tolerance::unit_roundoff<T>(),
            "a step reports the logarithm of the sum of its exponentials");
    }
  }

  /// A token that the caller puts at a distant position, or before others: keys whose rotation the cache does
  /// not know.
  void append_elsewhere() {
    if constexpr (!is_ring) {
      if (!raw() && (s_.rotated || rotation_.known)) return;
      const std::int64_t start = b_.one_in(4) ? furthest - b_.up_to(3) : b_.between(-4, 30);
      for (Index r = 0; r < batch_; ++r)
        if (!has_free_slots(r, 1)) return;
      if (batch_ == 0) return;
      new_heads<C> x(b_, batch_, 1, shape().kv_heads, shape().head_dim, shape().value_dim);
      for (Index r = 0; r < batch_; ++r) {
        const token one{{draw_channels<C>(b_, static_cast<std::size_t>(x.k.heads * x.k.head_dim))},
                        {draw_channels<C>(b_, static_cast<std::size_t>(x.v.heads * x.v.head_dim))},
                        start};
        x.put(r, 0, one.k.exact.data(), one.v.exact.data());
        this->row(r).push_back(one);
      }
      cache_.append_at(x.keys(), x.v, start);
    }
  }

  /// One more token for every row in a call that is invalid in one way. A missing slot or table row may be
  /// reported first.
  void misuse() {
    if (batch_ == 0) return misuse_no_rows();
    const std::size_t table = rotation_.table;
    bool natural = false;
    for (Index r = 0; r < batch_; ++r)
      natural =
          natural || !has_free_slots(r, 1) || !is_in_range(r, 1) || (s_.rotated && !is_in_table(r, 1, table));
    natural = natural || (s_.rotated && !raw() && !is_empty() && !is_by(table));
    auto x = draw_rows<T>(b_, batch_, shape().model_dim);
    token_matrix<T> out = token_matrix<T>::Constant(x.rows(), shape().out_dim, T(-77));
    attention_options options;
    std::vector<Index> counts;
    bool rotated = s_.rotated;
    wrong_option spoilt;
    wrong_ring_option of_ring;
    const auto wrong = [&](const char* claim, const auto& call) {
      natural ? fails(logic_error, claim, call, out) : fails(invalid_argument, claim, call, out);
    };
    const auto call = [&] { step_of(block(options), x, out, rotated, table, detail::row_counts(counts)); };
    switch (b_.up_to(14)) {
      case 0:
        x = token_matrix<T>::Zero(x.rows(), x.cols() + 1);
        return wrong("x has the columns of its weight", call);
      case 1:
        out = token_matrix<T>::Constant(out.rows() + 1, out.cols(), T(-77));
        return wrong("the output has the rows of x", call);
      case 2:
        out = token_matrix<T>::Constant(out.rows(), out.cols() + 1, T(-77));
        return wrong("the output has the rows of its weight as columns", call);
      case 3:
        if (batch_ == 1) return;
        x = token_matrix<T>::Zero(x.rows() + 1, x.cols());
        out = token_matrix<T>::Constant(x.rows(), out.cols(), T(-77));
        return wrong("rows of a batch are equally long", call);
      case 4:
        counts.assign(static_cast<std::size_t>(batch_ + 1), 1);
        return wrong("counts are of every row", call);
      case 5:
        counts.assign(static_cast<std::size_t>(batch_), 1);
        counts.back() = b_.coin() ? 2 : -1;
        return wrong("counts are within the tokens", call);
      case 6:
        if constexpr (is_ring) {
          of_ring.put_into(options, b_.up_to(4), s_.policy);
          return wrong("options that do not go with a ring throw", call);
        }
        [[fallthrough]];
      case 7:
        spoilt.put_into(options, b_, batch_, 1, shape().heads);
        return wrong("options that do not go with a cache throw", call);
      case 8:
        return wrong_shape(x, out);
      case 9:  // raw keys have no angles, and keys of a table need one
        if (!raw() && (is_empty() || !rotation_.known)) return;
        rotated = false;
        return wrong("a cache needs the table that rotates its keys", call);
      case 10: {
        const std::size_t other = table == 1 ? 0 : 1;
        return other_rotation(
            raw() || is_empty(),
            [&] { block({}).forward(x, cache_, out, tables()[other].at_channel(s_.first_channel)); }, out);
      }
      case 11:
        if (shape().head_dim == 2 * pairs) return;
        return other_rotation(
            raw() || is_empty(),
            [&] {
              block({}).forward(x, cache_, out, tables()[table].at_channel(s_.first_channel == 0 ? 1 : 0));
            },
            out);
      case 12: {
        using other_layout = std::conditional_t<is_interleaved, half_split, interleaved>;
        const multi_head_attention<T, other_layout> other(s_.own.weights(), s_.own.options());
        return other_rotation(
            raw() || is_empty(), [&] { other.forward(x, cache_, out, placed(table)); }, out);
      }
      case 13:
        return wrong("a window beyond the head throws",
                     [&] { block({}).forward(x, cache_, out, tables().of_more_pairs); });
      default: {
        std::vector<T> probabilities(3, T(-77));
        wrong("a step cannot report probabilities", [&] {
          step_of(block({}).reporting({.probabilities = probabilities}), x, out, rotated, table,
                  detail::row_counts(counts));
        });
        check(probabilities == std::vector<T>(3, T(-77)), "a call that throws writes nothing");
      }
    }
  }
  void misuse_no_rows() {
    const auto x = draw_rows<T>(b_, 1, shape().model_dim);
    token_matrix<T> out = token_matrix<T>::Constant(1, shape().out_dim, T(-77));
    fails(
        invalid_argument, "a batch without rows has no tokens",
        [&] { step_of(block({}), x, out, s_.rotated, 0, detail::row_counts()); }, out);
  }
  /// Keys of another rotation than those of the cache. Raw keys, or no keys, accept any rotation.
  template <class Call>
  void other_rotation(bool any, const Call& call, const token_matrix<T>& out) {
    if (!any) fails(invalid_argument, "keys of another rotation throw", call, out);
  }
  /// A cache with other heads than the block.
  void wrong_shape(const token_matrix<T>& x, token_matrix<T>& out) {
    Index extents[] = {shape().kv_heads, shape().head_dim, shape().value_dim};
    extents[b_.up_to(2)] += b_.coin() ? 1 : -1;
    auto other = [&] {
      if constexpr (is_ring)
        return ring_cache<C>(batch_, ring_policy{.window = 4}, extents[0], extents[1], extents[2]);
      else
        return kv_cache<C>(batch_, 4, extents[0], extents[1], extents[2]);
    }();
    // A kv_cache whose values are as wide as its keys may have value_dim 0 in its shape.
    if (other.value_dim() == shape().value_dim && other.head_dim() == shape().head_dim &&
        other.kv_heads() == shape().kv_heads)
      return;
    const token_matrix<T> before = out;
    const bits shown_before = shown_by(other);
    rejects<std::invalid_argument>("a cache has the heads of the block",
                                   [&] { block({}).forward(x, other, out); });
    check(out == before && shown_by(other) == shown_before, "a call that throws changes nothing");
  }

  /// Caches on axes that do not fit a step: it reads one table, whose rows are the new tokens.
  void misuse_axes() {
    const multi_head_shape& heads = shape();
    const Index batch = std::max(batch_, Index{1});
    const auto reject = [&](const char* claim, auto cache, Index tokens, Index rows) {
      const auto x = draw_rows<T>(b_, batch * tokens, heads.model_dim);
      token_matrix<T> out = token_matrix<T>::Constant(x.rows(), heads.out_dim, T(-77));
      const frequency_table<float> table(axis_tables::get().on_axes[0], Eigen::ArrayXXd::Zero(rows, axes));
      const bits before = shown_by(cache);
      rejects<std::invalid_argument>(claim, [&] { block({}).forward(x, cache, out, table); });
      check(out == token_matrix<T>::Constant(x.rows(), heads.out_dim, T(-77)) && shown_by(cache) == before,
            "a call that throws changes nothing");
    };
    const Index tokens = b_.between(2, 4);
    const auto kv = [&](key_storage storage) {
      return kv_cache<C>(batch, 9, heads.kv_heads, heads.head_dim, token_axes(axes), heads.value_dim,
                         storage);
    };
    switch (b_.up_to(2)) {
      case 0:
        return reject("raw keys on axes need a table of all tokens", kv(key_storage::raw), tokens,
                      batch * tokens);
      case 1:
        return reject("a table has a row for every new token", kv(key_storage::rotated), tokens,
                      batch * tokens + 1);
      default:
        return reject("a ring on axes takes a chunk at a time",
                      ring_cache<C>(batch, {.window = 4, .chunk = tokens - 1}, heads.kv_heads, heads.head_dim,
                                    token_axes(axes), heads.value_dim),
                      tokens, batch * tokens);
    }
  }

  setup<T> s_;
  known_rotation rotation_;
};

template <class T, class Layout, class C>
void run(bytes& b) {
  const setup<T> s(b);
  if (b.coin())
    stepper<T, Layout, ring_target<C, token>>(b, s, s.policy, s.kv_heads, s.head_dim, s.value_dim, s.storage)
        .run(16);
  else
    stepper<T, Layout, kept_target<kv_cache<C>, token>>(b, s, s.capacity, s.kv_heads, s.head_dim, s.value_dim,
                                                        s.storage)
        .run(16);
}

}  // namespace
}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fuzz::bytes b(data, size);
  const long kind = b.up_to(7);
  fuzz::with_layout(kind % 2 == 1, [&]<class Layout>(Layout) {
    switch (kind / 2) {
      case 0:
        return fuzz::run<float, Layout, float>(b);
      case 1:
        return fuzz::run<double, Layout, double>(b);
      case 2:
        return fuzz::run<float, Layout, Eigen::half>(b);
      default:
        return fuzz::run<float, Layout, Eigen::bfloat16>(b);
    }
  });
  return 0;
}
