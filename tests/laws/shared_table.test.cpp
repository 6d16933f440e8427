// SPDX-License-Identifier: MIT
// Objects that threads may share: one table, one block and one set of model tables in eight threads at once,
// each with its own tokens and caches, give each the bits of a thread alone.
#include <rope/rope.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/tape.hpp"
#include "support/tensor.hpp"

using rope::half_split;
using rope::Index;

namespace {

constexpr Index users = 8, rounds = 6, tokens = 48, heads = 4, kv_heads = 2, head_dim = 32;

/// Heads of one user, different from those of all others.
testing::tensor<float> numbers(Index of_heads, Index user, std::uint64_t seed) {
  return testing::random_tensor<float>(1, tokens, of_heads, head_dim, seed * 100 + std::uint64_t(user));
}

/// All functions of a table, for one user.
std::vector<float> all_calls(const rope::frequency_table<float>& table, Index user) {
  auto q = numbers(heads, user, 1), k = numbers(kv_heads, user, 2), v = numbers(kv_heads, user, 3),
       out = numbers(heads, user, 4), d_out = out, d_q = q, d_k = k, d_v = v;
  const rope::frequency_table<float> copy = table;  // copied while others read it
  rope::kv_cache<float> cache(1, tokens, kv_heads, head_dim);
  cache.append<half_split>(view(k), view(v), table);
  rope::attention<half_split>(view(q), cache, view(out), copy);
  rope::attention_gradient<half_split>(
      testing::tape(view(q), view(k), view(v), view(out), view(d_out), view(d_q), view(d_k), view(d_v)),
      table);
  rope::rotate<half_split>(view(q), view(k), table.at_channel(0), user);
  rope::unrotate<rope::interleaved>(view(v), copy, 2 * user);
  std::vector<float> all = {table.cos(user)[3]};
  for (const auto* more : {&out, &q, &k, &v, &d_q, &d_k, &d_v})
    all.insert(all.end(), more->values.begin(), more->values.end());
  return all;
}

/// Runs call(user) for every user at the same time, round after round.
template <class Call>
void together(const Call& call) {
  std::atomic<Index> waiting = users;
  std::vector<std::thread> threads;
  for (Index user = 0; user < users; ++user)
    threads.emplace_back([&, user] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      for (Index round = 0; round < rounds; ++round) call(user, round);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("eight threads share one table", "[library]") {
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 3 * tokens);
  std::vector<std::vector<float>> alone;
  for (Index user = 0; user < users; ++user) alone.push_back(all_calls(table, user));
  CHECK(alone[0] != alone[1]);
  std::vector<int> same(std::size_t(users), 0);
  together([&](Index user, Index) {
    const auto n = std::size_t(user);
    same[n] += testing::same_bits(all_calls(table, user), alone[n]);
  });
  for (const int rounds_of_user : same) CHECK(rounds_of_user == rounds);
}

TEST_CASE("a table does not grow while threads share it", "[library]") {
  // Half of the threads read. The others request positions beyond the end, which throw, and make longer
  // tables of their own, which have the rows of the shared one.
  const rope::frequencies schedule(head_dim);
  const rope::frequency_table<float> table(schedule, 3 * tokens);
  const float* const row = table.cos(5).data();
  std::vector<std::vector<float>> alone;
  for (Index user = 0; user < users; ++user) alone.push_back(all_calls(table, user));
  std::vector<int> same(std::size_t(users), 0), rejected(std::size_t(users), 0);
  together([&](Index user, Index round) {
    const auto n = std::size_t(user);
    if (user % 2 == 0) {
      same[n] += testing::same_bits(all_calls(table, user), alone[n]);
      return;
    }
    auto q = numbers(heads, user, 1);
    try {
      rope::rotate<half_split>(view(q), table, 2 * tokens + 1 + round);
    } catch (const std::out_of_range&) {
      rejected[n] += testing::same_bits(q, numbers(heads, user, 1));
    }
    const rope::frequency_table<float> longer(schedule, 3 * tokens + 1 + round);
    same[n] +=
        longer.fingerprint() == table.fingerprint() && testing::same_bits(all_calls(longer, user), alone[n]);
  });
  for (Index user = 0; user < users; ++user) {
    CHECK(same[std::size_t(user)] == rounds);
    CHECK(rejected[std::size_t(user)] == (user % 2 == 0 ? 0 : rounds));
  }
  CHECK(table.rows() == 3 * tokens);
  CHECK(table.cos(5).data() == row);
}

TEST_CASE("eight threads make tables, and use each other's", "[library]") {
  const rope::frequencies schedule(head_dim, 1e4,
                                   rope::yarn_scaling{.factor = 4, .original_max_position = 64});
  const rope::frequency_table<float> table(schedule, 3 * tokens);
  std::vector<std::vector<float>> alone;
  for (Index user = 0; user < users; ++user) alone.push_back(all_calls(table, user));
  std::vector<int> same(std::size_t(users), 0);
  together([&](Index user, Index round) {
    const rope::frequency_table<float> own(schedule, 3 * tokens);
    const auto n = std::size_t(user);
    same[n] += own.fingerprint() == table.fingerprint() &&
               testing::same_bits(all_calls(round % 2 == 0 ? own : table, user), alone[n]);
    rope::release_scratch();
  });
  for (const int rounds_of_user : same) CHECK(rounds_of_user == rounds);
}

TEST_CASE("eight threads share one row_maker, each with its own memory", "[library]") {
  const rope::row_maker<float> maker(rope::frequencies(head_dim, 1e4));
  const auto positions_of = [](Index user) {
    return Eigen::Array<Index, tokens, 1>::LinSpaced(tokens, user, user + tokens - 1);
  };
  const auto rotated = [&](const rope::frequency_table<float>& table, Index user) {
    auto q = numbers(heads, user, 1);
    rope::rotate<half_split>(view(q), table);
    return q.values;
  };
  std::vector<int> same(std::size_t(users), 0);
  together([&](Index user, Index) {
    const auto positions = positions_of(user);
    std::vector<std::byte> memory(maker.memory_size(tokens));
    const rope::frequency_table<float> expected(rope::frequencies(head_dim, 1e4), positions);
    same[std::size_t(user)] +=
        testing::same_bits(rotated(maker.table(positions, memory), user), rotated(expected, user));
  });
  for (const int rounds_of_user : same) CHECK(rounds_of_user == rounds);
}

TEST_CASE("eight threads share one block, and append to their own caches", "[library]") {
  const testing::random_block<float> memory({.heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 8,
                                             .model_dim = 24,
                                             .context_dim = 24,
                                             .out_dim = 24,
                                             .norm = true},
                                            77);
  const rope::multi_head_attention<float, half_split> block(memory.weights(), memory.options());
  const rope::frequency_table<float> table(rope::frequencies(8), 60);
  const auto decode = [&](Index user) {
    testing::random dice(900 + std::uint64_t(user));
    const testing::rows_of<float> x = testing::random_rows<float>(dice, 40, 24, 2);
    testing::rows_of<float> out(40, block.shape().out_dim);
    rope::kv_cache<float> cache(1, 60, 2, block.shape().head_dim, block.shape().value_dim);
    block.forward(x.topRows(30), cache, out.topRows(30), table);
    for (Index row = 30; row < 40; ++row)
      block.forward(x.middleRows(row, 1), cache, out.middleRows(row, 1), table);
    return std::vector<float>(out.data(), out.data() + out.size());
  };
  std::vector<std::vector<float>> alone;
  for (Index user = 0; user < users; ++user) alone.push_back(decode(user));
  CHECK(alone[0] != alone[1]);
  std::vector<int> same(std::size_t(users), 0);
  together([&](Index user, Index) {
    same[std::size_t(user)] += testing::same_bits(decode(user), alone[std::size_t(user)]);
  });
  for (const int rounds_of_user : same) CHECK(rounds_of_user == rounds);
}
