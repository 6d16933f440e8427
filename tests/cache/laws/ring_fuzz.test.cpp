// SPDX-License-Identifier: MIT
// A ring answers a call exactly if it still contains every key that is visible to a query of the call. The
// result is that of attention with a window and sinks over the whole history, or that of StreamingLLM.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

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
        added[b].push_back(
            reference::random_token(generator, m, static_cast<long long>(all[b].size()),
                                    [](double x) { return static_cast<double>(static_cast<C>(x)); }));
        all[b].push_back(added[b].back());
      }
    const step<T> now(m, added);
    if (raw)
      cache.append(now.keys(), now.values(), now.counts);
    else
      cache.template append<Layout>(now.keys(), now.values(), table, now.counts);
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
      CHECK(testing::throws_saying<std::invalid_argument>(call, "queries per call"));
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
                                                      "overwritten; attend with at most chunk = 1 queries "
                                                      "per call, got 7"));
  CHECK(out == std::vector<float>(out.size(), -77.0f));
  CHECK_FALSE(cache.holds_window(0, 4));
  CHECK_FALSE(cache.holds_window(0, 7));
  CHECK(cache.holds_window(0, 3));
  CHECK(cache.holds_window(0, 8));
  attend(1);
  CHECK(out[0] == (0 + 1 + 2 + 3 + 5 + 6 + 7 + 8) / 8.0f);
}
