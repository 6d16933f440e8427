// SPDX-License-Identifier: MIT
// A stream through a ring is attention with a window and sinks, or StreamingLLM, for any length.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/heads.hpp"

using namespace rope;
using namespace decoder_step;

namespace {

/// A stream through a ring: chunks, rollbacks, and a prefill of more tokens than slots.
template <class Layout, class T, class C>
void check_stream(std::uint32_t seed, const ring_policy& policy, key_storage storage) {
  std::mt19937 generator(seed);
  const reference::model m = model_of<Layout>(6, plain);
  const bool relative = policy.positions == ring_positions::cache;
  // Positions in the cache need a table with as many rows as the cache, for a stream of any length.
  const frequency_table<entry<T>> table(plain, relative ? policy.sinks + policy.window : 200);
  ring_cache<C> cache(2, policy, 2, 8, 5, storage);
  CAPTURE(seed, testing::name_of<Layout>, policy.sinks, policy.window, policy.chunk, relative,
          storage == key_storage::raw);
  rows all(2);
  const auto append = [&](std::size_t zero, std::size_t one, bool attend) {
    const std::size_t counts[] = {zero, one};
    rows added(2);
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t i = 0; i < counts[b]; ++i) {
        added[b].push_back(
            reference::random_token(generator, m, static_cast<long long>(all[b].size()),
                                    [](double x) { return static_cast<double>(static_cast<C>(x)); }));
        all[b].push_back(added[b].back());
      }
    step<T> now(m, added);
    if (storage == key_storage::raw)
      cache.append(now.keys(), now.values(), now.counts);
    else
      cache.template append<Layout>(now.keys(), now.values(), table, now.counts);
    for (std::size_t b = 0; b < 2; ++b)
      CHECK(cache.next_positions()[b] == static_cast<std::int64_t>(all[b].size()));
    if (!attend) return;
    attention<Layout>(now.queries(), cache, now.output(), table, {}, now.counts);
    const auto seen = [&](std::size_t b, std::size_t i) {
      auto keys = seen_by(all[b], added[b][i].position, policy.window, policy.sinks);
      if (relative)
        for (std::size_t r = 0; r < keys.size(); ++r) keys[r].position = static_cast<long long>(r);
      return keys;
    };
    const auto position = [&](std::size_t b, std::size_t i) {
      return relative ? static_cast<long long>(seen(b, i).size()) - 1 : added[b][i].position;
    };
    const double bound = reference::decoder_bound<T, C>(
        m, static_cast<std::size_t>(policy.sinks + policy.window), 0, storage == key_storage::rotated);
    CHECK(now.worst(bound, added, seen, position) <= 1);
  };
  const auto chunk = static_cast<std::size_t>(policy.chunk);
  append(generator() % 40, 0, false);
  for (int i = 0; i < 40; ++i) {
    append(generator() % (chunk + 1), generator() % (chunk + 1), true);
    if (generator() % 4 == 0) {
      const std::size_t b = generator() % 2, back = (std::min)(all[b].size(), generator() % chunk);
      // After a rollback the window of the next query must be complete again, so the row gets as many new
      // tokens.
      all[b].resize(all[b].size() - back);
      cache.truncate(static_cast<std::int64_t>(all[b].size()), batch_row{static_cast<Index>(b)});
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("attention to a ring follows the definition for a stream of any length", "[cache]",
                   (testing::types<float, float>), (testing::types<double, double>),
                   (testing::types<float, Eigen::bfloat16>), (testing::types<Eigen::half, Eigen::half>)) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  const Index sinks = GENERATE(0, 1, 4), window = GENERATE(1, 2, 9), chunk = GENERATE(1, 3);
  std::uint32_t seed = 300;
  for (const auto& [positions, storage] : {std::pair(ring_positions::sequence, key_storage::rotated),
                                           std::pair(ring_positions::sequence, key_storage::raw),
                                           std::pair(ring_positions::cache, key_storage::raw)}) {
    const ring_policy policy{.sinks = sinks, .window = window, .chunk = chunk, .positions = positions};
    check_stream<half_split, T, C>(++seed, policy, storage);
    check_stream<interleaved, T, C>(++seed, policy, storage);
  }
}
