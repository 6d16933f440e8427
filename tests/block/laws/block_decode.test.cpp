// SPDX-License-Identifier: MIT
// A block with a cache: prefill in one call == any chunking == token by token.
#include <rope/block/multi_head_attention.hpp>

#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

using namespace rope;
using namespace block_parts;
using testing::block_kind;
using testing::random_block;
using testing::rows_of;

namespace {

/// Calls a block on `tokens` of each row with a cache, in chunks, and returns the outputs.
template <class T, class Block, class Cache, class S>
rows_of<T> decoded(const Block& block, Cache cache, const rows_of<T>& x, const frequency_table<S>& table,
                   const std::vector<Index>& chunks) {
  const Index batch = cache.batch(), count = x.rows() / batch;
  rows_of<T> out = rows_of<T>::Constant(x.rows(), block.shape().out_dim, T(-77));
  Index first = 0;
  for (const Index chunk : chunks) {
    rows_of<T> now(batch * chunk, x.cols()), result(batch * chunk, out.cols());
    for (Index b = 0; b < batch; ++b)
      now.middleRows(b * chunk, chunk) = x.middleRows(b * count + first, chunk);
    block.forward(now, cache, result, table);
    for (Index b = 0; b < batch; ++b)
      out.middleRows(b * count + first, chunk) = result.middleRows(b * chunk, chunk);
    first += chunk;
  }
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("prefill, chunks and single tokens through a cache give the outputs of one call",
                   "[block]", float, double) {
  using T = TestType;
  for (const block_kind& kind : kinds) {
    const random_block<T> memory(kind, 509);
    testing::random numbers(510);
    const Index count = 13;
    const rows_of<T> x = testing::random_rows<T>(numbers, 2 * count, kind.model_dim, 2);
    const frequency_table<T> table(narrow, count);
    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      const auto m = memory.template reference<Layout>(narrow);
      const auto cache = [&](key_storage storage) {
        return kv_cache<T>(2, count, kind.kv_heads, kind.head_dim, kind.value_dim, storage);
      };
      const auto ring = [&](key_storage storage, ring_positions positions) {
        return ring_cache<T>(2, {.sinks = 2, .window = 4, .chunk = 3, .positions = positions}, kind.kv_heads,
                             kind.head_dim, kind.value_dim, storage);
      };
      const auto check = [&](const rows_of<T>& out, bool windowed) {
        for (Index b = 0; b < 2; ++b) {
          const reference::matrix row = part(x, b * count, count);
          const auto sees = [&](std::size_t i, std::size_t j) {
            return j <= i && (!windowed || i - j < 4 || j < 2);
          };
          CHECK(testing::worst(out, b * count, forward(m, row, row, counted(13), counted(13), sees)) <= 1);
        }
      };
      const multi_head_attention<T, Layout> block(memory.weights(), memory.options());
      for (const std::vector<Index>& chunks :
           {std::vector<Index>{13}, {5, 1, 7}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 12, 0, 1}}) {
        CAPTURE(kind.heads, kind.kv_heads, chunks);
        for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
          check(decoded(block, cache(storage), x, table, chunks), false);
          check(decoded(block, ring(storage, ring_positions::sequence), x, table, chunks), true);
        }
        // Positions from the cache, compared with the first of these chunkings.
        const auto relative = [&](const std::vector<Index>& pieces) {
          return decoded(block, ring(key_storage::raw, ring_positions::cache), x,
                         frequency_table<T>(narrow, 6), pieces);
        };
        const reference::matrix whole = testing::exact(relative({13}));
        CHECK(testing::worst(relative(chunks), 0, whole) <= 1);
      }
    });
  }
}

TEST_CASE("a block of floats keeps its keys and values in 16 bits", "[block]") {
  const random_block<float> memory({}, 511);
  testing::random numbers(512);
  const rows_of<float> x = testing::random_rows<float>(numbers, 12, 10, 2);
  const frequency_table<> table(narrow, 12);
  const multi_head_attention<float, half_split> block(memory.weights(), memory.options());
  const rows_of<float> exact = decoded(block, kv_cache<float>(1, 12, 2, 6), x, table, {5, 7});
  const rows_of<float> close = decoded(block, kv_cache<Eigen::bfloat16>(1, 12, 2, 6), x, table, {5, 7});
  const rows_of<float> same = decoded(block, kv_cache<Eigen::bfloat16>(1, 12, 2, 6), x, table, {1, 1, 1, 9});
  // The relative error of keys and values is 2^-8. Scores below 4 change by at most 2^-6, and so do their
  // weights.
  const float largest = exact.cwiseAbs().maxCoeff();
  CHECK((exact - close).cwiseAbs().maxCoeff() < 0x1p-4f * largest);
  CHECK((exact - close).cwiseAbs().maxCoeff() > 0x1p-12f * largest);
  CHECK(testing::worst(same, 0, testing::exact(close)) <= 1);
}

TEST_CASE("rows of a batch may have different numbers of tokens", "[block]") {
  const random_block<double> memory({.bias = true}, 513);
  testing::random numbers(514);
  const frequency_table<double> table(narrow, 20);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  kv_cache<double> cache(2, 10, 2, 6);
  const rows_of<double> first = testing::random_rows<double>(numbers, 2 * 4, 10, 2),
                        second = testing::random_rows<double>(numbers, 2 * 3, 10, 2);
  rows_of<double> out(8, 10), more(6, 10);
  block.forward(first, cache, out, table, std::vector<Index>{4, 2});
  block.forward(second, cache, more, table, std::vector<Index>{1, 3});
  CHECK(cache.size(0) == 5);
  CHECK(cache.size(1) == 5);
  const Index taken[2][2] = {{4, 1}, {2, 3}};
  for (Index b = 0; b < 2; ++b) {
    rows_of<double> row(5, 10);
    row << first.middleRows(4 * b, taken[b][0]), second.middleRows(3 * b, taken[b][1]);
    const reference::matrix x = testing::exact(row);
    const reference::matrix expected =
        forward(memory.reference<half_split>(narrow), x, x, counted(5), counted(5), causal);
    rows_of<double> got(5, 10);
    got << out.middleRows(4 * b, taken[b][0]), more.middleRows(3 * b, taken[b][1]);
    CHECK(testing::worst(got, 0, expected) <= 1);
  }
  // The other tokens of the row attend to nothing, so the output is the bias.
  CHECK((out.row(7) - memory.o_bias).cwiseAbs().maxCoeff() == 0);
  CHECK((more.row(1) - memory.o_bias).cwiseAbs().maxCoeff() == 0);
}
