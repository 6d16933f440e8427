// SPDX-License-Identifier: MIT
// A block gives the same bits on any number of the caller's threads, in every form and in the backward pass.
// Every step that is large enough uses all threads.
#include <rope/block/multi_head_attention.hpp>

#include <cstddef>
#include <rope/block/gradient.hpp>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/tape.hpp"
#include "support/threaded_block.hpp"

using namespace threaded_block;

TEST_CASE("a forward pass has the same bits on any number of threads", "[block]") {
  const long_rows of;
  const auto block = of.block();
  const auto check = [&](const auto& call) {
    check_same_bits([&](const auto& threads) {
      rows_of<float> out = rows_of<float>::Constant(batch * tokens, 300, -77);
      call(out, threads);
      return out;
    });
  };
  check([&](auto& out, const auto& threads) { block.forward(of.x, batch, out, threads); });
  check([&](auto& out, const auto& threads) { block.forward(of.x, batch, out, of.table, {}, threads); });
  check([&](auto& out, const auto& threads) { block.forward(of.x, batch, out, of.table, of.ids, threads); });
  check([&](auto& out, const auto& threads) {
    block.forward(of.x, 1, out, of.table, segments{of.offsets}, threads);
  });
  check([&](auto& out, const auto& threads) { block.cross(of.x, of.context, batch, out, threads); });
  check([&](auto& out, const auto& threads) {
    block.cross(of.x, of.context, batch, out, of.table, row_starts{of.starts}, 7, threads);
  });
  check([&](auto& out, const auto& threads) {
    block.cross(of.x, of.context, 1, out, of.table, segments{of.offsets}, segments{of.key_offsets}, threads);
  });
}

TEST_CASE("every step of a forward pass uses the threads", "[block]") {
  const long_rows of;
  std::vector<float> memory(batch * tokens * 16 * 16);
  const auto heads = [&](Index count, Index dim) { return bshd(memory.data(), batch, tokens, count, dim); };
  const int attends = loops_of([&](const auto& threads) {
    std::vector<float> out(memory.size());
    attention(heads(16, 16), heads(8, 16), heads(8, 8), bshd(out.data(), batch, tokens, 16, 8),
              of.options.attention, threads);
  });
  rows_of<float> out(batch * tokens, 300);
  const int loops =
      loops_of([&](const auto& threads) { of.block().forward(of.x, batch, out, of.table, {}, threads); });
  // Projections, the norm and rotation of q and of k, and the last projection.
  CHECK(loops == 4 + attends);
  CHECK(attends > 0);
}

namespace {

/// Prefill, then a few tokens, then one, with rows of different numbers of tokens.
template <class T, class Block, class Cache, class Threads>
rows_of<T> decoded(const Block& block, Cache cache, const rows_of<T>& x, const frequency_table<T>* table,
                   const Threads& threads) {
  rows_of<T> out = rows_of<T>::Constant(x.rows(), block.shape().out_dim, T(-77));
  Index first = 0;
  for (const Index count : {100, 3, 1, 12}) {
    const std::vector<Index> counts = {count, count / 2};
    const Index rows = batch * count;
    if (table == nullptr)
      block.forward(x.middleRows(first, rows), cache, out.middleRows(first, rows), counts, threads);
    else
      block.forward(x.middleRows(first, rows), cache, out.middleRows(first, rows), *table, counts, threads);
    first += rows;
  }
  return out;
}

}  // namespace

TEST_CASE("a cached forward pass has the same bits on any number of threads", "[block]") {
  using T = double;
  // Weights so large that one token is enough work for two threads.
  const block_kind wide_kind = {.heads = 8,
                                .kv_heads = 2,
                                .head_dim = 32,
                                .value_dim = 32,
                                .model_dim = 520,
                                .context_dim = 520,
                                .out_dim = 520};
  const random_block<T> memory(wide_kind, 703);
  testing::random numbers(704);
  const rows_of<T> x = testing::random_rows<T>(numbers, batch * 116, 520, 0.2);
  const frequency_table<T> table(frequencies(32), 200);
  const multi_head_attention<T, interleaved> block(memory.weights(), memory.options());
  const auto check = [&](const auto& cache, const frequency_table<T>* by) {
    check_same_bits([&](const auto& threads) { return decoded<T>(block, cache, x, by, threads); });
  };
  const ring_policy ring = {.sinks = 2, .window = 30, .chunk = 5};
  check(kv_cache<T>(batch, 116, 2, 32), nullptr);
  check(kv_cache<T>(batch, 116, 2, 32), &table);
  check(kv_cache<T>(batch, 116, 2, 32, 0, key_storage::raw), &table);
  check(ring_cache<T>(batch, ring, 2, 32), nullptr);
  check(ring_cache<T>(batch, ring, 2, 32), &table);
  check(ring_cache<T>(batch, ring, 2, 32, 0, key_storage::raw), &table);
}

TEST_CASE("one token uses every thread", "[block]") {
  const block_kind wide_kind = {.heads = 8,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .value_dim = 64,
                                .model_dim = 512,
                                .context_dim = 512,
                                .out_dim = 512};
  const random_block<float> memory(wide_kind, 705);
  testing::random numbers(706);
  const rows_of<float> x = testing::random_rows<float>(numbers, 1, 512, 0.2);
  rows_of<float> out(1, 512);
  kv_cache<float> cache(1, 4, 2, 64);
  const multi_head_attention<float> block(memory.weights(), memory.options());
  CHECK(loops_of([&](const auto& threads) { block.forward(x, cache, out, {}, threads); }) == 2);
}

TEST_CASE("without threads the calling thread runs the forward pass", "[block]") {
  const long_rows of;
  const own_threads one(1);
  rows_of<float> out(batch * tokens, 300), alone(batch * tokens, 300);
  of.block().forward(of.x, batch, out, of.table);
  of.block().forward(of.x, batch, alone, of.table, {}, one);
  CHECK(out == alone);
}

TEST_CASE("every step of a cached forward pass uses the threads", "[block]") {
  const block_kind wide_kind = {.heads = 8,
                                .kv_heads = 2,
                                .head_dim = 32,
                                .value_dim = 32,
                                .model_dim = 100,
                                .context_dim = 100,
                                .out_dim = 100};
  const Index count = 200;
  const random_block<float> memory(wide_kind, 707);
  testing::random numbers(708);
  const rows_of<float> x = testing::random_rows<float>(numbers, count, 100, 0.2);
  rows_of<float> out(count, 100);
  const frequency_table<float> table(frequencies(32), count);
  const multi_head_attention<float, half_split> block(memory.weights(), memory.options());
  const auto empty = [&] { return kv_cache<float>(1, count, 2, 32); };

  std::vector<float> q(static_cast<std::size_t>(count * 8 * 32)), attended = q;
  const auto queries = bshd(q.data(), 1, count, 8, 32), result = bshd(attended.data(), 1, count, 8, 32);
  const auto some = queries.head_range(0, 2);
  kv_cache<float> given = empty(), rotated = empty();
  given.append(some, some);
  rotated.append<half_split>(some, some, table);
  const int attends =
      loops_of([&](const auto& threads) { attention(queries, given, result, {}, {}, threads); });
  const int attends_rotated = loops_of(
      [&](const auto& threads) { attention<half_split>(queries, rotated, result, table, {}, {}, threads); });
  CHECK(attends > 0);
  // The projections before and after attention. The rotation of the queries is part of attention.
  CHECK(loops_of([&](const auto& threads) {
          kv_cache<float> cache = empty();
          block.forward(x, cache, out, {}, threads);
        }) == 2 + attends);
  CHECK(loops_of([&](const auto& threads) {
          kv_cache<float> cache = empty();
          block.forward(x, cache, out, table, {}, threads);
        }) == 2 + attends_rotated);
}

// The backward pass.

using all_gradients = testing::memory_of_gradients<float>;

TEST_CASE("gradients of a block have the same bits on any number of threads", "[block]") {
  const long_rows of;
  const auto block = of.block();
  const rows_of<float> none;
  const auto check = [&](bool self, const auto& call) {
    check_same_bits([&](const auto& threads) {
      all_gradients d(of.memory, of.x, self ? none : of.context);
      call(d.all(), threads);
      return d;
    });
  };
  check(true, [&](const auto& d, const auto& threads) {
    multi_head_attention_gradient(block, {.x = of.x, .batch = batch, .d_out = of.d_out}, d, threads);
  });
  check(true, [&](const auto& d, const auto& threads) {
    multi_head_attention_gradient(block, {.x = of.x, .batch = batch, .d_out = of.d_out}, d, of.table, of.ids,
                                  threads);
  });
  check(true, [&](const auto& d, const auto& threads) {
    multi_head_attention_gradient(block, {.x = of.x, .batch = 1, .d_out = of.d_out}, d, of.table,
                                  segments{of.offsets}, threads);
  });
  check(false, [&](const auto& d, const auto& threads) {
    cross_attention_gradient(block, {.x = of.x, .context = of.context, .batch = batch, .d_out = of.d_out}, d,
                             threads);
  });
  check(false, [&](const auto& d, const auto& threads) {
    cross_attention_gradient(block, {.x = of.x, .context = of.context, .batch = batch, .d_out = of.d_out}, d,
                             of.table, row_starts{of.starts}, 7, threads);
  });
}

TEST_CASE("every step of a backward pass uses the threads", "[block]") {
  const long_rows of;
  std::vector<float> memory(batch * tokens * 16 * 16);
  std::vector<double> sums(batch * tokens * 16);
  attention_options options = of.options.attention;
  options.log_sum_exp = sums;
  const auto heads = [](std::vector<float>& x, Index count, Index dim) {
    return bshd(x.data(), batch, tokens, count, dim);
  };
  const int attends = loops_of([&](const auto& threads) {
    std::vector<float> a(memory), b(memory), c(memory), d(memory), out(memory);
    attention(heads(a, 16, 16), heads(b, 8, 16), heads(c, 8, 8), heads(out, 16, 8), options, threads);
    attention_gradient(
        testing::tape(heads(memory, 16, 16), heads(memory, 8, 16), heads(memory, 8, 8), heads(out, 16, 8),
                      heads(memory, 16, 8), heads(a, 16, 16), heads(b, 8, 16), heads(c, 8, 8)),
        options, {}, threads);
  });
  all_gradients d(of.memory, of.x, {});
  const int loops = loops_of([&](const auto& threads) {
    multi_head_attention_gradient(of.block(), {.x = of.x, .batch = batch, .d_out = of.d_out}, d.all(),
                                  of.table, {}, threads);
  });
  // Projections, two norms, two rotations, the gradient with respect to heads, the gradients of two rotations
  // and of two norms, and the gradients with respect to weights and tokens.
  CHECK(loops == 12 + attends);
  CHECK(attends > 1);
}

TEST_CASE("without threads the calling thread runs the backward pass", "[block]") {
  const long_rows of;
  const own_threads one(1);
  all_gradients d(of.memory, of.x, {}), alone = d;
  multi_head_attention_gradient(of.block(), {.x = of.x, .batch = batch, .d_out = of.d_out}, d.all(),
                                of.table);
  multi_head_attention_gradient(of.block(), {.x = of.x, .batch = batch, .d_out = of.d_out}, alone.all(),
                                of.table, {}, one);
  const bool same = d == alone;
  CHECK(same);
}
