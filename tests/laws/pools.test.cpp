// SPDX-License-Identifier: MIT
// Every call that takes threads, on pools that run pieces in any order, at any time and on any thread: the
// bits are those of one thread. Also on pools that fail: the exception arrives, and the next call gives the
// right result.
#include <rope/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/pools.hpp"
#include "support/tape.hpp"
#include "support/tensor.hpp"
#include "support/threaded_block.hpp"

using rope::half_split;
using rope::Index;
using testing::pool;

namespace {

// Queries of 1.2 MB, keys of 0.6 MB: at least two pieces of 256 KiB.
constexpr Index batch = 2, tokens = 301, heads = 8, kv_heads = 4, head_dim = 64;
constexpr Index size = batch * tokens * heads * head_dim, kv_size = size * kv_heads / heads;

std::vector<float> numbers(Index count, std::uint64_t seed) {
  return testing::random_channels<float>(count, seed);
}

/// The operands of calls. Some calls write some of them.
struct operands {
  std::vector<float> q = numbers(size, 901), out = numbers(size, 902), d_out = numbers(size, 903),
                     k = numbers(kv_size, 904), v = numbers(kv_size, 905), weight = numbers(head_dim, 906);
  std::vector<int> ids;
  rope::frequency_table<float> table{rope::frequencies(head_dim), 2 * tokens};

  operands() {
    for (Index n = 0; n < batch * tokens; ++n) ids.push_back(static_cast<int>((n * 37 + 5) % (2 * tokens)));
  }
  static rope::head_view<float> queries(std::vector<float>& x) {
    return rope::bshd(x.data(), batch, tokens, heads, head_dim);
  }
  static rope::head_view<float> keys(std::vector<float>& x) {
    return rope::bshd(x.data(), batch, tokens, kv_heads, head_dim);
  }
};

/// All numbers that a call has written, unchanged.
using answer = std::vector<double>;

template <class X>
void put(answer& to, const X& numbers) {
  std::size_t at = to.size();
  to.resize(at + static_cast<std::size_t>(numbers.size()));
  for (const auto& x : numbers) to.data()[at++] = static_cast<double>(x);
}
template <class T>
void put(answer& to, const rope::head_view<T>& x) {
  testing::for_each_head(
      x, [&](Index b, Index t, Index h) { put(to, std::span(x.at(b, t, h), std::size_t(x.head_dim))); });
}
template <class... X>
answer of(const X&... written) {
  answer all;
  (put(all, written), ...);
  return all;
}

/// The contents of a cache in every row.
template <class Cache>
answer held(const Cache& cache) {
  answer all = of(cache.next_positions());
  for (Index b = 0; b < cache.batch(); ++b) {
    put(all, cache.order(b));
    put(all, cache.keys(b));
    put(all, cache.values(b));
  }
  return all;
}

struct call {
  const char* name;
  std::function<answer(operands, const pool&)> run;  // on its own operands
};

const std::vector<call>& rotations() {
  static const std::vector<call> calls = {
      {"rotate",
       [](operands x, const pool& threads) {
         rope::rotate<half_split>(x.queries(x.q), x.keys(x.k), x.table, x.ids, threads);
         return of(x.q, x.k);
       }},
      {"normalize_and_rotate",
       [](operands x, const pool& threads) {
         rope::normalize_and_rotate<half_split>(x.queries(x.q), rope::head_norm<float>{.weight = x.weight},
                                                x.table, 5, threads);
         return of(x.q);
       }},
      {"normalize_heads_gradient",
       [](operands x, const pool& threads) {
         std::vector<float> d_weight(x.weight.size());
         rope::normalize_heads_gradient(x.queries(x.q), rope::head_norm<float>{.weight = x.weight},
                                        x.queries(x.d_out), d_weight, threads);
         return of(x.d_out, d_weight);
       }},
      {"inv_freq_gradient",
       [](operands x, const pool& threads) {
         const auto d =
             rope::inv_freq_gradient<half_split>(x.queries(x.q), x.queries(x.d_out), x.table, 9, threads);
         return of(d.reshaped());
       }},
      {"quantize",
       [](operands x, const pool& threads) {
         std::vector<std::int8_t> integers(x.q.size());
         std::vector<float> scales(x.q.size() / head_dim);
         const auto narrow = rope::bshd(integers.data(), scales.data(), batch, tokens, heads, head_dim);
         rope::quantize(x.queries(x.q), narrow, threads);
         rope::dequantize(narrow, x.queries(x.out), threads);
         return of(integers, scales, x.out);
       }},
      {"hadamard_transform",
       [](operands x, const pool& threads) {
         rope::hadamard_transform(x.queries(x.q), threads);
         return of(x.q);
       }},
      {"pope",
       [](operands x, const pool& threads) {
         const rope::frequency_table<float> table(rope::pope_frequencies(head_dim), tokens);
         std::vector<float> wide(2 * x.q.size());
         rope::pope<half_split>(x.queries(x.q), rope::bshd(wide.data(), batch, tokens, heads, 2 * head_dim),
                                table, 0, threads);
         return of(wide);
       }},
      {"permute_channels",
       [](operands x, const pool& threads) {
         rope::permute_channels<rope::interleaved, half_split>(x.queries(x.q), 48, threads);
         return of(x.q);
       }},
      {"permute_rows",
       [](operands x, const pool& threads) {
         Eigen::Map<Eigen::MatrixXf> rows(x.q.data(), heads * head_dim, batch * tokens);
         rope::permute_rows<half_split, rope::interleaved>(rows, heads, 0, 0, threads);
         return of(x.q);
       }},
      {"scale_queries",
       [](operands x, const pool& threads) {
         const auto rule = [](std::int64_t p) { return 1 + 0.125 * static_cast<double>(p); };
         rope::scale_queries(x.queries(x.q), rule, 7, threads);
         return of(x.q);
       }},
  };
  return calls;
}

const std::vector<call>& attentions() {
  static const std::vector<call> calls = {
      {"attention of a prompt",
       [](operands x, const pool& threads) {
         std::vector<double> sums(std::size_t(batch * tokens * heads));
         rope::attention<half_split>(x.queries(x.q), x.keys(x.k), x.keys(x.v), x.queries(x.out), x.table,
                                     {.log_sum_exp = sums}, threads);
         return of(x.out, sums);
       }},
      {"attention of one query",
       [](operands x, const pool& threads) {
         const auto q = rope::bshd(x.q.data(), 1, 1, heads, head_dim),
                    k = rope::bshd(x.k.data(), 1, batch * tokens, kv_heads, head_dim),
                    v = rope::bshd(x.v.data(), 1, batch * tokens, kv_heads, head_dim);
         std::vector<float> out(heads * head_dim);
         rope::attention(q, k, v, rope::bshd(out.data(), 1, 1, heads, head_dim), {}, threads);
         return of(out);
       }},
      {"attention_weights",
       [](operands x, const pool& threads) {
         std::vector<float> weights(std::size_t(batch * heads * 40 * tokens));
         rope::attention_weights<half_split>(x.queries(x.q).token_range(0, 40), x.keys(x.k),
                                             std::span(weights), x.table, {.window = 20}, threads);
         return of(weights);
       }},
      {"attention_weights of heads that are rotated",
       [](operands x, const pool& threads) {
         std::vector<float> weights(std::size_t(batch * heads * 40 * tokens));
         rope::attention_weights(x.queries(x.q).token_range(0, 40), x.keys(x.k), std::span(weights), {},
                                 threads);
         return of(weights);
       }},
      {"merge_attention",
       [](operands x, const pool& threads) {
         const auto rows = std::ptrdiff_t(batch * tokens * heads);
         std::vector<double> sums(x.k.begin(), x.k.begin() + rows), others(x.v.begin(), x.v.begin() + rows);
         others[5] = sums[9] = rope::attention_options::no_keys;
         rope::merge_attention(x.queries(x.q), std::span<double>(sums), x.queries(x.out),
                               std::span<const double>(others), threads);
         return of(x.q, sums);
       }},
      {"attention_gradient",
       [](operands x, const pool& threads) {
         rope::attention(x.queries(x.q), x.keys(x.k), x.keys(x.v), x.queries(x.out));
         std::vector<float> d_q(x.q.size()), d_k(x.k.size()), d_v(x.v.size());
         rope::attention_gradient(testing::tape(x.queries(x.q), x.keys(x.k), x.keys(x.v), x.queries(x.out),
                                                x.queries(x.d_out), x.queries(d_q), x.keys(d_k), x.keys(d_v)),
                                  {}, {}, threads);
         return of(d_q, d_k, d_v);
       }},
      {"a block and its gradient",
       [](const operands&, const pool& threads) {
         static const threaded_block::long_rows rows;
         const auto block = rows.block();
         testing::rows_of<float> out(threaded_block::batch * threaded_block::tokens, 300), d_x = rows.x;
         block.forward(rows.x, threaded_block::batch, out, rows.table, {}, threads);
         const rope::multi_head_gradients<float> gradients = {.x = {d_x.data(), d_x.rows(), d_x.cols()}};
         rope::multi_head_attention_gradient(
             block, {.x = rows.x, .batch = threaded_block::batch, .d_out = rows.d_out}, gradients, rows.table,
             {}, threads);
         return of(out.reshaped(), d_x.reshaped());
       }},
  };
  return calls;
}

/// Appends to a cache that already has some tokens, and attends to it.
template <class Cache>
answer cached(operands x, Cache cache, const pool& threads) {
  cache.template append<half_split>(x.keys(x.v).token_range(0, 7), x.keys(x.k).token_range(0, 7), x.table);
  cache.template append<half_split>(x.keys(x.k), x.keys(x.v), x.table, {}, threads);
  rope::attention<half_split>(x.queries(x.q).token_range(0, 9), cache, x.queries(x.out).token_range(0, 9),
                              x.table, {}, {}, threads);
  answer all = held(cache);
  put(all, x.out);
  return all;
}

/// Adds every form of append to caches of C. Most have fewer new tokens in the second row.
template <class C>
void add_appends(std::vector<call>& calls) {
  const auto add = [&](const char* name, const auto& empty, const auto& append) {
    calls.push_back({name, [empty, append](operands x, const pool& threads) {
                       auto cache = empty;
                       append(cache, x, x.queries(x.q), x.queries(x.out), threads);
                       return held(cache);
                     }});
  };
  const std::vector<Index> counts = {tokens, 130};
  const rope::kv_cache<C> cache(batch, 2 * tokens, heads, head_dim);
  add("append", cache,
      [=](auto& to, auto&, auto k, auto v, const pool& threads) { to.append(k, v, counts, threads); });
  add("append with a table", cache, [=](auto& to, auto& x, auto k, auto v, const pool& threads) {
    to.template append<half_split>(k, v, x.table, counts, threads);
  });
  add("append_at with a table", cache, [=](auto& to, auto& x, auto k, auto v, const pool& threads) {
    to.template append_at<half_split>(k, v, x.table, x.ids, counts, threads);
  });
  add("append_at", cache, [=](auto& to, auto& x, auto k, auto v, const pool& threads) {
    to.append_at(k, v, x.ids, {}, threads);
  });
  // 301 tokens for 41 slots: most are overwritten by later ones of the same call.
  const rope::ring_cache<C> ring(batch, {.sinks = 3, .window = 30, .chunk = 9}, heads, head_dim);
  add("append to a ring", ring, [=](auto& to, auto&, auto k, auto v, const pool& threads) {
    to.append(k.token_range(0, 7), v.token_range(0, 7));
    to.append(k, v, counts, threads);
  });
  add("append to a ring with a table", ring, [=](auto& to, auto& x, auto k, auto v, const pool& threads) {
    to.template append<rope::interleaved>(k.token_range(0, 7), v.token_range(0, 7), x.table);
    to.template append<rope::interleaved>(k, v, x.table, counts, threads);
  });
}

const std::vector<call>& appends() {
  static const std::vector<call> calls = [] {
    std::vector<call> all;
    add_appends<float>(all);
    add_appends<Eigen::half>(all);
    return all;
  }();
  return calls;
}

const std::vector<call>& caches() {
  static const std::vector<call> calls = {
      {"kv_cache",
       [](operands x, const pool& threads) {
         return cached(std::move(x), rope::kv_cache<float>(batch, 2 * tokens, kv_heads, head_dim), threads);
       }},
      {"kv_cache of raw keys",
       [](operands x, const pool& threads) {
         rope::kv_cache<float> cache(batch, 2 * tokens, kv_heads, head_dim, 0, rope::key_storage::raw);
         cache.append(x.keys(x.v).token_range(0, 7), x.keys(x.k).token_range(0, 7));
         cache.append_at(x.keys(x.k), x.keys(x.v), x.ids, {}, threads);
         return held(cache);
       }},
      {"ring_cache",
       [](operands x, const pool& threads) {
         return cached(
             std::move(x),
             rope::ring_cache<float>(batch, {.sinks = 3, .window = 250, .chunk = 9}, kv_heads, head_dim),
             threads);
       }},
      {"latent_cache",
       [](operands x, const pool& threads) {
         rope::latent_cache<float> cache(batch, 2 * tokens, 192, 64);
         const auto rows = rope::bshd(x.k.data(), batch, tokens, 1, kv_heads * head_dim);
         cache.append<half_split>(rows.channels(0, 192), rows.channels(192, 64), x.table, {}, threads);
         answer all;
         put(all, cache.keys());
         return all;
       }},
      {"pages",
       [](operands x, const pool& threads) {
         const std::vector<std::int64_t> lengths = {tokens, tokens}, offsets = {0, tokens, 2 * tokens};
         std::vector<Index> blocks;
         constexpr Index page_size = 16, pages = (tokens + page_size - 1) / page_size;
         for (Index n = 0; n < batch * pages; ++n) blocks.push_back((n * 7 + 3) % (batch * pages));
         std::vector<float> keys(batch * pages * page_size * kv_heads * head_dim, 1), values = keys;
         const auto view = [&](std::vector<float>& of) {
           return rope::bshd(of.data(), batch * pages, page_size, kv_heads, head_dim);
         };
         const rope::page_view<float> memory({.keys = view(keys), .values = view(values)}, blocks, lengths);
         const auto flat = [](std::vector<float>& of, Index count) {
           return rope::thd(of.data(), batch * tokens, count, head_dim);
         };
         rope::write_pages<half_split>(flat(x.k, kv_heads), flat(x.v, kv_heads), memory, x.table, offsets,
                                       threads);
         rope::attention<half_split>(flat(x.q, heads), memory, flat(x.out, heads), x.table,
                                     {.query_offsets = offsets}, threads);
         return of(keys, values, x.out);
       }},
  };
  return calls;
}

/// The result of a call on the calling thread.
answer alone(const call& one, const operands& x) {
  const pool none("none", 1, [](Index count, const pool::piece& body) {
    for (Index i = 0; i < count; ++i) body(i);
  });
  const answer expected = one.run(x, none);
  REQUIRE(none.loops() == 0);
  return expected;
}

void check_every_pool(const std::vector<call>& calls) {
  const operands x;
  for (const call& one : calls) {
    const answer expected = alone(one, x);
    REQUIRE(!expected.empty());
    for (const pool& threads : testing::pools_of_every_kind()) {
      CAPTURE(one.name, threads.name());
      const bool same = one.run(x, threads) == expected;
      CHECK(same);
      CHECK(threads.loops() > 0);
    }
  }
}

void check_failing_pools(const std::vector<call>& calls) {
  const operands x;
  for (const call& one : calls) {
    const answer expected = alone(one, x);
    for (const pool& threads : testing::failing_pools()) {
      CAPTURE(one.name, threads.name());
      CHECK_THROWS_AS(one.run(x, threads), testing::pool_failure);
      const bool same = alone(one, x) == expected;
      CHECK(same);
    }
  }
}

}  // namespace

TEST_CASE("rotations give one result on pools of every kind", "[library]") { check_every_pool(rotations()); }
TEST_CASE("attention gives one result on pools of every kind", "[library]") {
  check_every_pool(attentions());
}
TEST_CASE("caches give one result on pools of every kind", "[library]") {
  check_every_pool(appends());
  check_every_pool(caches());
}

// 512 queries times 32768 keys times 128 channels are 2^31 operations to a task, more than a 32-bit Index
// counts. The window hides nearly all of them.
TEST_CASE("threads share a prompt of more operations than 32 bits count", "[library]") {
  constexpr Index queries = 4096, keys = 32768, dim = 64;
  std::vector<float> q = numbers(queries * dim, 907), k = numbers(keys * dim, 908),
                     v = numbers(keys * dim, 909);
  const auto attended = [&](const pool& threads) {
    std::vector<float> out(q.size());
    rope::attention(rope::bshd(q.data(), 1, queries, 1, dim), rope::bshd(k.data(), 1, keys, 1, dim),
                    rope::bshd(v.data(), 1, keys, 1, dim), rope::bshd(out.data(), 1, queries, 1, dim),
                    {.window = 2}, threads);
    return out;
  };
  const auto in_order = [](Index count, const pool::piece& body) {
    for (Index i = 0; i < count; ++i) body(i);
  };
  const pool one("one", 1, in_order), two("two", 2, in_order);
  const bool same = attended(two) == attended(one);
  CHECK(same);
  CHECK(two.loops() == 1);
  CHECK(one.loops() == 0);
}

TEST_CASE("the exception of a pool arrives, and the next call gives the right result", "[library]") {
  check_failing_pools(rotations());
  check_failing_pools(attentions());
  check_failing_pools(caches());
}

TEST_CASE("two calls within a loop of one pool have the bits of two calls in sequence", "[library]") {
  const operands x;
  const pool outer = testing::pools_of_every_kind().back();
  for (const std::vector<call>* calls : {&rotations(), &attentions(), &caches()})
    for (const call& one : *calls) {
      CAPTURE(one.name);
      const answer expected = alone(one, x);
      std::vector<answer> found(2);
      outer.parallel_for(2, [&](Index i) {
        found[std::size_t(i)] = one.run(x, testing::pools_of_every_kind()[i == 0 ? 4 : 5]);
      });
      const bool same = found[0] == expected && found[1] == expected;
      CHECK(same);
    }
}

namespace {

/// Appends on a pool that fails: the cache does not change, and accepts the same tokens on a pool that does
/// not.
template <class Cache, class Append>
void check_failed_append(const Cache& before, const Append& append) {
  Cache expected = before;
  append(expected, testing::pools_of_every_kind()[0]);
  for (const pool& threads : testing::failing_pools()) {
    CAPTURE(threads.name());
    Cache cache = before;
    CHECK_THROWS_AS(append(cache, threads), testing::pool_failure);
    const bool as_it_was = held(cache) == held(before);
    CHECK(as_it_was);
    append(cache, testing::pools_of_every_kind()[0]);
    const bool same = held(cache) == held(expected);
    CHECK(same);
  }
}

}  // namespace

TEST_CASE("a failing pool does not change a cache that it appends to", "[library]") {
  operands x;
  const auto k = operands::keys(x.k), v = operands::keys(x.v);
  rope::kv_cache<float> cache(batch, 2 * tokens, kv_heads, head_dim);
  cache.append<half_split>(v.token_range(0, 7), k.token_range(0, 7), x.table);
  check_failed_append(cache, [&](auto& to, const pool& threads) {
    to.template append<half_split>(k, v, x.table, {}, threads);
  });
  check_failed_append(cache, [&](auto& to, const pool& threads) {
    to.template append_at<half_split>(k, v, x.table, x.ids, {}, threads);
  });
  rope::kv_cache<float> given(batch, 2 * tokens, kv_heads, head_dim);
  given.append(v.token_range(0, 7), k.token_range(0, 7));
  check_failed_append(given, [&](auto& to, const pool& threads) { to.append(k, v, {}, threads); });
  // A ring with free slots: none of its tokens is overwritten.
  rope::ring_cache<float> ring(batch, {.sinks = 3, .window = 2 * tokens}, kv_heads, head_dim);
  ring.append<half_split>(v.token_range(0, 7), k.token_range(0, 7), x.table);
  check_failed_append(ring, [&](auto& to, const pool& threads) {
    to.template append<half_split>(k, v, x.table, {}, threads);
  });
}

TEST_CASE("a ring whose tokens a failing pool has overwritten is empty", "[library]") {
  operands x;
  const auto k = operands::keys(x.k), v = operands::keys(x.v);
  const auto check = [&](auto ring, const auto& append) {
    append(ring, v, k, testing::pools_of_every_kind()[0]);
    const answer before = held(ring);
    auto expected = ring;
    expected.clear();
    append(expected, k, v, testing::pools_of_every_kind()[0]);
    for (const pool& threads : testing::failing_pools()) {
      CAPTURE(threads.name());
      auto cache = ring;
      CHECK_THROWS_AS(append(cache, k, v, threads), testing::pool_failure);
      if (threads.name() == std::string("fails at once")) {
        const bool as_it_was = held(cache) == before;
        CHECK(as_it_was);
        continue;
      }
      for (Index b = 0; b < batch; ++b) CHECK(cache.size(b) == 0);
      CHECK(cache.next_positions()[0] == 0);
      append(cache, k, v, testing::pools_of_every_kind()[0]);
      const bool same = held(cache) == held(expected);
      CHECK(same);
    }
  };
  const rope::ring_policy policy = {.sinks = 3, .window = 250, .chunk = 9};
  check(rope::ring_cache<float>(batch, policy, kv_heads, head_dim),
        [](auto& to, const auto& keys, const auto& values, const pool& threads) {
          to.append(keys, values, {}, threads);
        });
  check(rope::ring_cache<float>(batch, policy, kv_heads, head_dim, rope::token_axes{2}),
        [](auto& to, const auto& keys, const auto& values, const pool& threads) {
          to.append(keys, values, {}, threads);
        });
  check(rope::ring_cache<float>(batch, policy, kv_heads, head_dim),
        [&](auto& to, const auto& keys, const auto& values, const pool& threads) {
          to.template append<half_split>(keys, values, x.table, {}, threads);
        });
}
