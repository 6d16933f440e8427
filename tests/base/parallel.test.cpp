// SPDX-License-Identifier: MIT
#include <rope/base/parallel.hpp>

#include <rope/rotation/rotate.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#define EIGEN_USE_THREADS
#include <unsupported/Eigen/CXX11/Tensor>

#include "support/catch.hpp"
#include "support/tensor.hpp"

using rope::half_split;
using rope::Index;
using rope::interleaved;
using testing::same_bits;

namespace {

/// Counts how often it is called, and runs every piece on its own thread.
struct counting_threads {
  Index available;
  std::atomic<int>& runs;

  Index threads() const { return available; }
  void parallel_for(Index count, const auto& body) const {
    ++runs;
    std::vector<std::thread> threads;
    for (Index i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }
};

std::vector<float> numbers(Index count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i % 9973) - 40.0f;
  return x;
}

// 3 x 211 tokens of 8 heads: 2.5 MiB, cut into pieces that end within a row of the batch.
constexpr Index batch = 3, tokens = 211, heads = 8, head_dim = 128;

}  // namespace

TEST_CASE("the pieces of a parallel loop cover every index once", "[base]") {
  for (const Index count : {1, 2, 7, 1000})
    for (const Index threads : {1, 2, 3, 16}) {
      CAPTURE(count, threads);
      std::atomic<int> runs{0};
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      rope::detail::parallel_pieces(counting_threads{threads, runs}, count, 0x1p30,
                                    [&](Index first, Index last) {
                                      for (Index i = first; i < last; ++i)
                                        ++seen[static_cast<std::size_t>(i)];
                                    });
      for (const auto& times : seen) CHECK(times == 1);
      CHECK(runs == (threads > 1 && count > 1 ? 1 : 0));
    }
}

TEST_CASE("the calling thread alone processes a loop in order", "[base]") {
  const rope::this_thread alone;
  CHECK(alone.threads() == 1);
  std::vector<Index> seen;
  alone.parallel_for(3, [&](Index i) { seen.push_back(i); });
  CHECK(seen == std::vector<Index>{0, 1, 2});
}

TEST_CASE("a piece of a parallel loop has at least 256 KiB", "[base]") {
  constexpr double least = 0x1p18;
  for (const int pieces : {1, 2, 3})
    for (const double bytes : {pieces * least, (pieces + 1) * least - 1}) {
      CAPTURE(pieces, bytes);
      std::atomic<int> runs{0}, calls{0};
      rope::detail::parallel_pieces(counting_threads{16, runs}, 100, bytes, [&](Index, Index) { ++calls; });
      CHECK(calls == pieces);
      CHECK(runs == (pieces > 1 ? 1 : 0));
    }
}

TEST_CASE("pieces of as many elements as an Index counts are equal and cover it", "[base]") {
  constexpr Index all = (std::numeric_limits<Index>::max)(), pieces = 7;
  std::atomic<int> runs{0};
  std::vector<Index> first(pieces, -1), last(pieces, -1);
  std::atomic<std::size_t> calls{0};
  rope::detail::parallel_pieces(counting_threads{pieces, runs}, all, rope::detail::cost_of(all, all),
                                [&](Index from, Index to) {
                                  const std::size_t call = calls++;
                                  first[call] = from;
                                  last[call] = to;
                                });
  std::sort(first.begin(), first.end());
  std::sort(last.begin(), last.end());
  CHECK(runs == 1);
  CHECK(first.front() == 0);
  CHECK(last.back() == all);
  for (std::size_t i = 0; i < std::size_t(pieces); ++i) {
    if (i > 0) CHECK(first[i] == last[i - 1]);
    CHECK(last[i] - first[i] >= all / pieces);
    CHECK(last[i] - first[i] <= all / pieces + 1);
  }
}

TEST_CASE("the beginnings of pieces are rounded down", "[base]") {
  for (Index count = 0; count < 40; ++count)
    for (Index pieces = 1; pieces < 12; ++pieces)
      for (Index i = 0; i <= pieces; ++i) {
        CAPTURE(count, pieces, i);
        CHECK(rope::detail::begin_of_piece(count, i, pieces) == count * i / pieces);
      }
}

TEST_CASE("an empty loop calls nothing", "[base]") {
  std::atomic<int> runs{0};
  rope::detail::parallel_pieces(counting_threads{4, runs}, 0, 0x1p30, [](Index, Index) { FAIL(); });
  CHECK(runs == 0);
}

TEST_CASE("a rotation on several threads has the bits of one thread", "[base]") {
  const rope::frequency_table<float> table(rope::frequencies(head_dim), tokens + 5);
  const auto x = numbers(batch * tokens * heads * head_dim);
  std::atomic<int> runs{0};
  for (const bool head_major : {false, true}) {
    CAPTURE(head_major);
    const auto view = [&](std::vector<float>& data) {
      return head_major ? rope::bhsd(data.data(), batch, heads, tokens, head_dim)
                        : rope::bshd(data.data(), batch, tokens, heads, head_dim);
    };
    auto alone = x, together = x, on_eigen = x, out = x;
    rope::rotate<half_split>(view(alone), table, 5);
    rope::rotate<half_split>(view(together), table, 5, counting_threads{3, runs});
    CHECK(same_bits(alone, together));

    Eigen::ThreadPool pool(2);
    const Eigen::ThreadPoolDevice device(&pool, 2);
    rope::rotate<half_split>(view(on_eigen), table, 5, device);
    CHECK(same_bits(alone, on_eigen));

    auto in = x;
    rope::rotate_to<half_split>(view(in), view(out), table, 5, counting_threads{2, runs});
    CHECK(same_bits(alone, out));

    rope::unrotate<half_split>(view(alone), table, 5);
    rope::unrotate<half_split>(view(together), table, 5, counting_threads{3, runs});
    CHECK(same_bits(alone, together));
  }
  CHECK(runs == 6);
}

TEST_CASE("a call too small to gain from threads uses the calling thread only", "[base]") {
  const rope::frequency_table<float> table(rope::frequencies(128), 8);
  auto x = numbers(32 * 128);
  std::atomic<int> runs{0};
  rope::rotate<interleaved>(rope::thd(x.data(), 1, 32, 128), table, 3, counting_threads{2, runs});
  CHECK(runs == 0);
}

TEMPLATE_TEST_CASE("queries and keys rotated as a pair have the bits of two calls", "[base]", half_split,
                   interleaved) {
  const rope::frequency_table<float> table(rope::frequencies(64), 400);
  const auto q = numbers(2 * 300 * 12 * 64), k = numbers(2 * 300 * 4 * 96);
  auto q_alone = q, k_alone = k, q_pair = q, k_pair = k;
  const auto queries = [](std::vector<float>& data) { return rope::bshd(data.data(), 2, 300, 12, 64); };
  const auto keys = [](std::vector<float>& data) { return rope::bhsd(data.data(), 2, 4, 300, 96); };
  const std::vector<int> ids = [] {
    std::vector<int> list(300);
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<int>(i * 7 % 400);
    return list;
  }();
  rope::rotate<TestType>(queries(q_alone), table, ids);
  rope::rotate<TestType>(keys(k_alone), table, ids);
  rope::rotate<TestType>(queries(q_pair), keys(k_pair), table, ids);
  CHECK(same_bits(q_alone, q_pair));
  CHECK(same_bits(k_alone, k_pair));
  CHECK_FALSE(same_bits(q, q_pair));

  std::atomic<int> runs{0};
  rope::unrotate<TestType>(queries(q_alone), table, ids);
  rope::unrotate<TestType>(keys(k_alone), table, ids);
  rope::unrotate<TestType>(queries(q_pair), keys(k_pair), table, ids, counting_threads{2, runs});
  CHECK(runs == 1);
  CHECK(same_bits(q_alone, q_pair));
  CHECK(same_bits(k_alone, k_pair));
}

TEST_CASE("a pair of different tokens throws and is not changed", "[base]") {
  const rope::frequency_table<float> table(rope::frequencies(64), 10);
  const auto q = numbers(4 * 64), k = numbers(5 * 64);
  auto q_after = q, k_after = k;
  CHECK_THROWS_AS(rope::rotate<half_split>(rope::thd(q_after.data(), 4, 1, 64),
                                           rope::thd(k_after.data(), 5, 1, 64), table, 1),
                  std::invalid_argument);
  CHECK_THROWS_AS(rope::rotate<half_split>(rope::thd(q_after.data(), 4, 1, 64),
                                           rope::thd(k_after.data(), 4, 1, 64), table, 7),
                  std::out_of_range);
  CHECK(same_bits(q, q_after));
  CHECK(same_bits(k, k_after));
}
