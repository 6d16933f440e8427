// SPDX-License-Identifier: MIT
// A ring whose tokens are at positions that the caller gives: one that starts at token n, or that skips
// positions. Compared with lists of tokens that are never overwritten.
#include <rope/cache/ring_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/cache/attention.hpp>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
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
        added[b].push_back(reference::random_token(
            generator_, m_, position, [](double x) { return static_cast<double>(static_cast<C>(x)); }));
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
    CHECK(asked.worst(
              reference::decoder_bound<T, C>(m_, 12, 1, storage == key_storage::rotated), asking,
              [&](std::size_t b, std::size_t i) {
                return decoder_step::seen_by(all_[b], asking[b][i].position, policy.window, policy.sinks);
              },
              [&](std::size_t b, std::size_t i) { return asking[b][i].position; }) <= 1);
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
