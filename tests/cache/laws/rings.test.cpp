// SPDX-License-Identifier: MIT
// A ring answers a call exactly if it still contains every key that is visible to a query of the call. The
// result is that of attention with a window and sinks over the whole history, or that of StreamingLLM.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/cache/ring_cache.hpp>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

using namespace rope;
using namespace decoder_step;

namespace {

/// The token in each slot of one row, by the published rule of slots.
class slots {
 public:
  explicit slots(const ring_policy& policy)
      : sinks_(policy.sinks),
        window_(policy.window),
        owner_(static_cast<std::size_t>(policy.sinks + policy.window + policy.chunk - 1), -1) {}

  void write(long long token) { owner_[slot_of(token)] = token; }
  /// Whether every key that is visible to the token's query is stored.
  bool hold_keys_of(long long token) const {
    for (long long key = 0; key <= token; ++key)
      if ((key < sinks_ || token - key < window_) && owner_[slot_of(key)] != key) return false;
    return true;
  }

 private:
  std::size_t slot_of(long long token) const {
    const auto ring = static_cast<long long>(owner_.size()) - sinks_;
    return static_cast<std::size_t>(token < sinks_ ? token : sinks_ + (token - sinks_) % ring);
  }

  long long sinks_, window_;
  std::vector<long long> owner_;
};

/// Rows of random length, appended in random pieces to a ring of C. The queries, of T, are any number of the
/// newest tokens.
template <class Layout, class T, class C>
void check_ring(std::uint64_t seed) {
  testing::random numbers(seed);
  const auto up_to = [&](Index largest) { return static_cast<Index>(numbers.integer(0, largest)); };
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  const bool raw = up_to(2) > 0, relative = raw && up_to(1) == 0;
  const ring_policy policy{.sinks = up_to(5),
                           .window = 1 + up_to(8),
                           .chunk = 1 + up_to(4),
                           .positions = relative ? ring_positions::cache : ring_positions::sequence};
  const auto batch = static_cast<std::size_t>(1 + up_to(2));
  const reference::model m = model_of<Layout>(2, plain);
  // Positions in the cache need a table with as many rows as the cache, for a stream of any length.
  const frequency_table<entry<T>> table(plain, relative ? policy.sinks + policy.window : 500);
  ring_cache<C> cache(static_cast<Index>(batch), policy, 2, 8, 5,
                      raw ? key_storage::raw : key_storage::rotated);
  CAPTURE(seed, testing::name_of<Layout>, policy.sinks, policy.window, policy.chunk, raw, relative, batch);
  const double bound =
      reference::decoder_bound<T, C>(m, static_cast<std::size_t>(policy.sinks + policy.window), 0, !raw);
  rows all(batch);
  std::vector<slots> held(batch, slots(policy));

  const auto append = [&](Index longest) {
    rows added(batch);
    for (std::size_t b = 0; b < batch; ++b)
      for (Index i = up_to(longest); i > 0; --i) {
        held[b].write(static_cast<long long>(all[b].size()));
        added[b].push_back(reference::random_token<C>(generator, m, static_cast<long long>(all[b].size())));
        all[b].push_back(added[b].back());
      }
    const step<T> now(m, added);
    testing::append_tokens<Layout>(cache, now.keys(), now.values(), table, now.counts);
    for (std::size_t b = 0; b < batch; ++b)
      CHECK(cache.next_positions()[b] == static_cast<std::int64_t>(all[b].size()));
  };
  const auto attend = [&](Index longest) {
    rows asking(batch);
    bool answered = true;
    for (std::size_t b = 0; b < batch; ++b) {
      const auto seen = static_cast<Index>(all[b].size());
      const Index count = (std::min)(seen, up_to(longest));
      asking[b].assign(all[b].end() - count, all[b].end());
      for (Index i = seen - count; i < seen; ++i) answered = answered && held[b].hold_keys_of(i);
    }
    step<T> now(m, asking);
    CAPTURE(now.counts, cache.next_positions()[0]);
    const auto call = [&] { attention<Layout>(now.queries(), cache, now.output(), table, {}, now.counts); };
    if (!answered) {
      CHECK(testing::throws_saying<std::invalid_argument>(call, "tokens per call"));
      return;
    }
    call();
    const auto seen = [&](std::size_t b, std::size_t i) {
      auto keys = seen_by(all[b], asking[b][i].position, policy.window, policy.sinks);
      if (relative)
        for (std::size_t r = 0; r < keys.size(); ++r) keys[r].position = static_cast<long long>(r);
      return keys;
    };
    const auto position = [&](std::size_t b, std::size_t i) {
      return relative ? static_cast<long long>(seen(b, i).size()) - 1 : asking[b][i].position;
    };
    CHECK(now.worst(bound, asking, seen, position) <= 1);
  };
  const auto roll_back = [&] {
    const std::size_t b = static_cast<std::size_t>(up_to(static_cast<Index>(batch) - 1));
    const auto size = static_cast<std::size_t>(up_to(static_cast<Index>(all[b].size())));
    // The keys to which the next query attends besides itself must be stored.
    slots after = held[b];
    after.write(static_cast<long long>(size));
    const auto call = [&] {
      cache.truncate(static_cast<std::int64_t>(size), batch_row{static_cast<Index>(b)});
    };
    if (!after.hold_keys_of(static_cast<long long>(size))) {
      CHECK(testing::throws_saying<std::out_of_range>(call, "were overwritten and the window of token"));
      return;
    }
    call();
    all[b].resize(size);
  };

  const Index capacity = cache.capacity();
  for (int i = 0; i < 12; ++i) {
    append(numbers.integer(0, 3) == 0 ? 2 * capacity : policy.chunk);
    attend(numbers.integer(0, 1) == 0 ? capacity + 3 : policy.chunk);
    if (numbers.integer(0, 2) == 0) roll_back();
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a ring gives the result of the whole history, or throws that keys are lost", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<float, Eigen::bfloat16>), (testing::types<Eigen::half, Eigen::half>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    check_ring<half_split, T, C>(seed);
    check_ring<interleaved, T, C>(seed + 1000);
  }
}

TEST_CASE("queries that begin among the sinks do not attend to keys that overwrote theirs", "[cache]") {
  const std::vector<float> ones(9 * 4, 1);
  std::vector<float> values(9 * 4), out(7 * 4, -77);
  for (std::size_t t = 0; t < 9; ++t) std::fill_n(values.begin() + static_cast<long>(4 * t), 4, float(t));
  ring_cache<float> cache(1, {.sinks = 4, .window = 4, .chunk = 1}, 1, 4);
  const auto tokens = [](const std::vector<float>& x, Index first, Index count) {
    return bshd(x.data(), 1, 9, 1, 4).token_range(first, count);
  };
  const auto attend = [&](Index count) {
    attention(tokens(ones, 0, count), cache, bshd(out.data(), 1, count, 1, 4));
  };
  cache.append(tokens(ones, 0, 2), tokens(values, 0, 2));
  attend(2);
  CHECK(out[4] == 0.5f);
  cache.append(tokens(ones, 2, 7), tokens(values, 2, 7));
  std::fill(out.begin(), out.end(), -77.0f);
  // Token 8 has the slot of token 4, to which its own query and those of 5 to 7 would attend.
  CHECK(testing::throws_saying<std::invalid_argument>([&] { attend(7); },
                                                      "rope::attention: the query at 4 needs keys that were "
                                                      "overwritten; append and attend to at most chunk "
                                                      "= 1 tokens per call, got 7"));
  CHECK(out == std::vector<float>(out.size(), -77.0f));
  CHECK_FALSE(cache.holds_window(0, 4));
  CHECK_FALSE(cache.holds_window(0, 7));
  CHECK(cache.holds_window(0, 3));
  CHECK(cache.holds_window(0, 8));
  attend(1);
  CHECK(out[0] == (0 + 1 + 2 + 3 + 5 + 6 + 7 + 8) / 8.0f);
}

// A ring whose tokens are at positions that the caller gives: one that starts at token n, or that skips
// positions. Compared with lists of tokens that are never overwritten.

using testing::throws_saying;

namespace {

/// A ring of two rows, and every token that was appended to them.
template <class C, key_storage storage>
class skipping_ring {
 public:
  using T = std::conditional_t<std::is_same_v<C, double>, double, float>;
  static constexpr ring_policy policy = {.sinks = 2, .window = 5, .chunk = 3};

  /// Appends a token to each row at each of these positions, with attention of the newest `queries`.
  void append_at(const std::vector<std::int64_t>& positions, std::size_t queries) {
    decoder_step::rows added(2), asking(2);
    for (std::size_t b = 0; b < 2; ++b)
      for (const std::int64_t position : positions) {
        added[b].push_back(reference::random_token<C>(generator_, m_, position));
        all_[b].push_back(added[b].back());
      }
    decoder_step::step<T> now(m_, added);
    if constexpr (storage == key_storage::raw)
      ring.append_at(now.keys(), now.values(), positions);
    else
      ring.template append_at<half_split>(now.keys(), now.values(), table_, positions);
    CHECK(ring.next_positions()[0] == positions.back() + 1);
    for (std::size_t b = 0; b < 2; ++b)
      asking[b].assign(added[b].end() - static_cast<std::ptrdiff_t>(queries), added[b].end());
    decoder_step::step<T> asked(m_, asking);
    attention<half_split>(asked.queries(), ring, asked.output(), table_);
    CHECK(asked.worst_by_position(reference::decoder_bound<T, C>(m_, 12, 1, storage == key_storage::rotated),
                                  asking, all_, policy.window, policy.sinks) <= 1);
  }
  void truncate(std::int64_t size) {
    ring.truncate(size);
    for (auto& row : all_)
      row.erase(std::remove_if(row.begin(), row.end(), [&](const auto& t) { return t.position >= size; }),
                row.end());
  }

  ring_cache<C> ring{2, policy, 2, 8, 5, storage};

 private:
  std::mt19937 generator_{19};
  reference::model m_ = decoder_step::model_of<half_split>(4, decoder_step::plain);
  frequency_table<decoder_step::entry<T>> table_{decoder_step::plain, 0, 200};
  decoder_step::rows all_{2};
};

template <class C, key_storage storage>
void skip_positions() {
  using positions = std::vector<std::int64_t>;
  for (const std::int64_t start : {1, 2, 3, 11, 50}) {
    CAPTURE(start);
    skipping_ring<C, storage> x;
    x.append_at({start, start + 1}, 2);
    CHECK(x.ring.size(0) == 2);
    for (std::int64_t i = 2; i < 17; ++i) x.append_at({start + i}, 1);
    x.append_at({start + 17, start + 18, start + 19}, 3);
    x.truncate(start + 18);
    x.append_at({start + 18}, 1);
  }
  // Sinks and then a window, as in a restored ring.
  skipping_ring<C, storage> x;
  x.append_at({0, 1, 41, 42, 43, 44, 45, 46, 47}, 2);
  CHECK(x.ring.size(0) == 9);
  for (std::int64_t i = 48; i < 60; ++i) x.append_at({i}, 1);
  CHECK(x.ring.size(0) == 9);
  // Gaps of one and of many positions, shorter and longer than the ring, and after them more tokens than
  // slots.
  x.append_at({61}, 1);
  x.append_at({64, 65}, 2);
  x.append_at({70}, 1);
  x.append_at({90, 91, 92, 93}, 3);
  positions many;
  for (std::int64_t i = 95; i < 110; ++i) many.push_back(i);
  x.append_at(many, 3);
  x.append_at({110}, 1);
  x.truncate(0);
  x.append_at({0, 1, 2}, 3);
}

}  // namespace

TEMPLATE_TEST_CASE("a ring that starts at token n or skips positions attends to the tokens it took",
                   "[cache]", float, double, Eigen::half, Eigen::bfloat16) {
  skip_positions<TestType, key_storage::rotated>();
  skip_positions<TestType, key_storage::raw>();
}

TEST_CASE("the slots that a ring skips contain zeros and no token", "[cache]") {
  for (int i = 0; i < 3; ++i) {
    ring_cache<std::int8_t> narrow(1, {.sinks = 2, .window = 5, .chunk = 3}, 1, 4);
    ring_cache<float> wide(1, {.sinks = 2, .window = 5, .chunk = 3}, 1, 4);
    const std::vector<float> ones(4, 1.0f);
    const auto x = bshd(ones.data(), 1, 1, 1, 4);
    narrow.append_at(x, x, 100 + i);
    wide.append_at(x, x, 100 + i);
    const Index slot = wide.slot(100 + i);
    REQUIRE(wide.keys(0).tokens == slot + 1);
    for (Index s = 0; s <= slot; ++s) {
      CHECK(wide.positions(0)[static_cast<std::size_t>(s)] ==
            (s == slot ? 100 + i : ring_cache<float>::no_position));
      CHECK(wide.keys(0).at(0, s, 0)[3] == static_cast<float>(s == slot));
      CHECK(wide.values(0).at(0, s, 0)[0] == static_cast<float>(s == slot));
      CHECK((narrow.keys(0).at(0, s, 0)[3] == 0) == (s != slot));
      CHECK((*narrow.values(0).scale_at(0, s, 0) > 0) == (s == slot));
    }
  }
}

TEST_CASE("a ring that skips positions drops the tokens that the skipped ones would overwrite", "[cache]") {
  ring_cache<float> ring(1, {.sinks = 0, .window = 3, .chunk = 3}, 1, 4);
  const std::vector<float> ones(5 * 4, 1.0f);
  const auto x = bshd(ones.data(), 1, 5, 1, 4);
  ring.append(x, x);
  ring.append_at(x.token_range(0, 1), x.token_range(0, 1), 8);
  // Five slots are those of positions 4 to 8. Two of them have tokens. Token 8 has the slot of token 3.
  CHECK(ring.size(0) == 2);
  CHECK(ring.positions(0)[3] == 8);
  CHECK(ring.positions(0)[4] == 4);
  CHECK(ring.positions(0)[2] == ring_cache<float>::no_position);
  CHECK(ring.holds_window(0, 6));
  CHECK_FALSE(ring.holds_window(0, 5));
}

TEST_CASE("a ring with random gaps and rollbacks contains the tokens of a plain set", "[cache]") {
  std::mt19937 generator(3);
  CAPTURE(3);
  const auto below = [&](int n) { return static_cast<int>(generator() % static_cast<unsigned>(n)); };
  const std::vector<float> ones(5 * 2, 1.0f);
  const auto x = bshd(ones.data(), 1, 5, 1, 2);
  bool same_sets = true, same_windows = true, same_rollbacks = true;
  for (int sequence = 0; sequence < 3000; ++sequence) {
    const ring_policy policy = {.sinks = below(5), .window = 1 + below(5), .chunk = 1 + below(4)};
    ring_cache<float> ring(1, policy, 1, 2);
    std::set<std::int64_t> taken, held;
    std::int64_t seen = 0, run = 0;
    const auto lost_before = [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = (std::max)(first, std::int64_t{policy.sinks}); i < end; ++i)
        if (taken.count(i) != held.count(i)) return true;
      return false;
    };
    for (int step = 0; step < 8; ++step) {
      if (below(4) < 3) {
        std::vector<std::int64_t> positions;
        const bool skips = below(2) == 0;
        for (int t = 1 + below(5); t > 0; --t) {
          const std::int64_t next = positions.empty() ? seen : positions.back() + 1;
          positions.push_back(next + (skips && below(3) == 0 ? 1 + below(9) : 0));
        }
        const auto tokens = x.token_range(0, static_cast<Index>(positions.size()));
        ring.append_at(tokens, tokens, positions);
        for (const std::int64_t position : positions) {
          if (position != seen) run = position;
          seen = position + 1;
          taken.insert(position);
          held.insert(position);
        }
        for (const std::int64_t position : taken)
          if (position >= policy.sinks && position < seen - (policy.window + policy.chunk - 1))
            held.erase(position);
      } else {
        const std::int64_t size = seen - below(static_cast<int>((std::min)(seen, std::int64_t{9})) + 1);
        const bool valid = (size == 0 || size >= run) && !lost_before(size + 1 - policy.window, size);
        bool truncated = true;
        try {
          ring.truncate(size);
        } catch (const std::out_of_range&) {
          truncated = false;
        }
        same_rollbacks = same_rollbacks && (truncated == valid || (valid && size == run));
        if (!truncated) continue;
        for (auto* set : {&taken, &held}) set->erase(set->lower_bound(size), set->end());
        seen = size;
        if (size == 0) run = 0;
      }
      std::set<std::int64_t> shown;
      for (const std::int64_t position : ring.positions(0))
        if (position != ring_cache<float>::no_position) shown.insert(position);
      same_sets = same_sets && shown == held && ring.size(0) == static_cast<Index>(held.size()) &&
                  ring.seen(0) == seen;
      for (std::int64_t p = run; p < seen + 4; ++p)
        same_windows = same_windows && ring.holds_window(0, p) ==
                                           !lost_before(p + 1 - policy.window, (std::min)(p + 1, seen));
    }
  }
  CHECK(same_sets);
  CHECK(same_windows);
  CHECK(same_rollbacks);
}

TEST_CASE("a ring takes positions in ascending order, and reports tokens that it does not contain",
          "[cache]") {
  const std::vector<float> ones(16 * 4, 1.0f);
  const auto x = bshd(ones.data(), 1, 16, 1, 4);
  const frequency_table<> table(frequencies(4), 200);
  ring_cache<float> ring(1, {.sinks = 2, .window = 5, .chunk = 3}, 1, 4);
  const auto append = [&](Index count, const auto& at) {
    return [&, count, at] {
      ring.append_at<half_split>(x.token_range(0, count), x.token_range(0, count), table, at);
    };
  };
  CHECK(throws_saying<std::out_of_range>(append(1, -1), "ring_cache::append_at", "negative", "-1"));
  CHECK(throws_saying<std::invalid_argument>(append(2, std::vector{4, 4}), "ring_cache::append_at",
                                             "position 5 or a later one, got 4"));
  CHECK(throws_saying<std::invalid_argument>(append(2, std::vector{4, 3}), "got 3"));
  CHECK(throws_saying<std::invalid_argument>(append(2, std::vector{4, 5, 6}), "ids must be"));
  CHECK(throws_saying<std::out_of_range>(append(1, 200), "outside the table"));
  CHECK(ring.seen(0) == 0);
  CHECK_FALSE(ring.rotates_keys());
  append(4, 50)();
  CHECK(throws_saying<std::invalid_argument>(append(1, 53), "row 0 position 54 or a later one, got 53"));
  CHECK(ring.seen(0) == 54);
  std::vector<float> out(5 * 4);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attention<half_split>(x.token_range(0, 5), ring, bshd(out.data(), 1, 5, 1, 4), table); },
      "row 0 has 4 tokens since positions were skipped", "got 5"));
  CHECK(throws_saying<std::out_of_range>([&] { ring.truncate(49); }, "ring_cache::truncate",
                                         "positions before 50", "got 49"));
  ring.truncate(50);
  CHECK(ring.size(0) == 0);
  append(1, 50)();
  CHECK(ring.size(0) == 1);
  CHECK(ring.holds_window(0, 52));

  // Ranks count from the first key of the whole window.
  ring_cache<float> ranked(1, {.sinks = 1, .window = 3, .positions = ring_positions::cache}, 1, 4, 0,
                           key_storage::raw);
  ranked.append_at(x.token_range(0, 2), x.token_range(0, 2), std::vector{20, 21});
  const auto ask = [&] {
    attention<half_split>(x.token_range(0, 1), ranked, bshd(out.data(), 1, 1, 1, 4), table);
  };
  CHECK(throws_saying<std::invalid_argument>(ask, "ring_positions::cache", "no token at position 0"));
  ranked.clear();
  ranked.append_at(x.token_range(0, 3), x.token_range(0, 3), std::vector{0, 20, 21});
  CHECK(throws_saying<std::invalid_argument>(ask, "no token at position 19"));
  ranked.append(x.token_range(0, 1), x.token_range(0, 1));
  ask();
  CHECK(std::abs(out[0] - 1) < 1e-6f);

  ring_cache<float> without_sinks(1, {.sinks = 0, .window = 2, .positions = ring_positions::cache}, 1, 4, 0,
                                  key_storage::raw);
  without_sinks.append_at(x.token_range(0, 2), x.token_range(0, 2), 20);
  out[0] = 0;
  attention<half_split>(x.token_range(0, 1), without_sinks, bshd(out.data(), 1, 1, 1, 4), table);
  CHECK(std::abs(out[0] - 1) < 1e-6f);
}
