// SPDX-License-Identifier: MIT
// A block with a table placed in the head has the bits of a block with a table for the whole head whose other
// pairs have frequency 0: cos 1 and sin 0 change no bit.
#include <rope/block/gradient.hpp>
#include <rope/block/multi_head_attention.hpp>

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::random_block;
using testing::random_rows;
using testing::rows_of;

namespace {

constexpr Index head_dim = 12, rotary_dim = 4;
const testing::block_kind kind = {
    .heads = 4, .kv_heads = 2, .head_dim = head_dim, .value_dim = 6, .norm = true};
const frequencies narrow(rotary_dim, 50.0);

/// The rotated pairs begin at channel `place`. The other channels form pairs of neighbours.
template <class Layout>
struct whole_head {
  static inline Index place = 0;  // one type for all channels, or each would compile the block again

  static Index outside(Index channel) { return channel < place ? channel : channel + rotary_dim; }
  static Index first(Index i, Index /*pairs*/) {
    constexpr Index pairs = rotary_dim / 2;
    return i < pairs ? place + Layout::first(i, pairs) : outside(2 * (i - pairs));
  }
  static Index second(Index i, Index /*pairs*/) {
    constexpr Index pairs = rotary_dim / 2;
    return i < pairs ? place + Layout::second(i, pairs) : outside(2 * (i - pairs) + 1);
  }
};

frequencies of_whole_head() {
  Eigen::ArrayXd inv_freq = Eigen::ArrayXd::Zero(head_dim / 2);
  inv_freq.head(rotary_dim / 2) = narrow.inv_freq();
  return frequencies::custom(inv_freq);
}

template <class T>
bool same(const rows_of<T>& a, const rows_of<T>& b) {
  return a.size() == b.size() && (a.array() == b.array()).all() && a.allFinite();
}

template <class T, class Layout>
void check_place(Index place) {
  CAPTURE(testing::name_of<Layout>, place);
  using Whole = whole_head<Layout>;
  Whole::place = place;
  const random_block<T> memory(kind, 811);
  testing::random numbers(812);
  const Index count = 9;
  const rows_of<T> x = random_rows<T>(numbers, 2 * count, kind.model_dim),
                   context = random_rows<T>(numbers, 2 * 5, kind.context_dim);
  const frequency_table<T> narrow_table(narrow, count), whole(of_whole_head(), count);
  const auto placed = narrow_table.at_channel(place);
  const auto block = multi_head_attention<T, Layout>(memory.weights(), memory.options());
  const auto block_of_whole = multi_head_attention<T, Whole>(memory.weights(), memory.options());
  const auto fresh = [&] { return rows_of<T>::Constant(2 * count, kind.out_dim, T(-77)).eval(); };

  rows_of<T> got = fresh(), expected = fresh();
  block.forward(x, 2, got, placed);
  block_of_whole.forward(x, 2, expected, whole);
  CHECK(same<T>(got, expected));
  const std::vector<int> offsets = {0, 3, 18};
  const frequency_table<T> longer(narrow, 18), longer_whole(of_whole_head(), 18);
  got = expected = fresh();
  block.forward(x, 1, got, longer.at_channel(place), segments{offsets});
  block_of_whole.forward(x, 1, expected, longer_whole, segments{offsets});
  CHECK(same<T>(got, expected));
  got = expected = fresh();
  block.cross(x, context, 2, got, placed, 0, 2);
  block_of_whole.cross(x, context, 2, expected, whole, 0, 2);
  CHECK(same<T>(got, expected));

  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    kv_cache<T> cache(2, count, kind.kv_heads, head_dim, kind.value_dim, storage), other = cache;
    ring_cache<T> ring(2, {.sinks = 1, .window = 3, .chunk = 2}, kind.kv_heads, head_dim, kind.value_dim,
                       storage),
        other_ring = ring;
    got = expected = fresh();
    block.forward(x, cache, got, placed);
    block_of_whole.forward(x, other, expected, whole);
    CHECK(same<T>(got, expected));
    CHECK(testing::same_heads(cache.keys(), other.keys()));
    got = expected = fresh();
    block.forward(x, ring, got, placed);
    block_of_whole.forward(x, other_ring, expected, whole);
    CHECK(same<T>(got, expected));
  }

  const rows_of<T> d_out = random_rows<T>(numbers, 2 * count, kind.out_dim);
  rows_of<T> d_x(x.rows(), x.cols()), d_x_of_whole = d_x, d_k(memory.k.rows(), memory.k.cols()),
                                      d_k_of_whole = d_k;
  const auto into = [](rows_of<T>& by_x, rows_of<T>& by_k) {
    return multi_head_gradients<T>{.x = {by_x.data(), by_x.rows(), by_x.cols()},
                                   .weights = {.k = {by_k.data(), by_k.rows(), by_k.cols()}}};
  };
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, into(d_x, d_k), placed);
  multi_head_attention_gradient(block_of_whole, {.x = x, .batch = 2, .d_out = d_out},
                                into(d_x_of_whole, d_k_of_whole), whole);
  CHECK(same<T>(d_x, d_x_of_whole));
  CHECK(same<T>(d_k, d_k_of_whole));
  rows_of<T> d_context(context.rows(), context.cols()), d_context_of_whole = d_context;
  const auto with_context = [&](rows_of<T>& by_x, rows_of<T>& by_context) {
    return multi_head_gradients<T>{.x = {by_x.data(), by_x.rows(), by_x.cols()},
                                   .context = {by_context.data(), by_context.rows(), by_context.cols()}};
  };
  cross_attention_gradient(block, {.x = x, .context = context, .batch = 2, .d_out = d_out},
                           with_context(d_x, d_context), placed, 0, 2);
  cross_attention_gradient(block_of_whole, {.x = x, .context = context, .batch = 2, .d_out = d_out},
                           with_context(d_x_of_whole, d_context_of_whole), whole, 0, 2);
  CHECK(same<T>(d_x, d_x_of_whole));
  CHECK(same<T>(d_context, d_context_of_whole));
}

}  // namespace

TEMPLATE_TEST_CASE("a block rotates the channels of a placed table: forward, with a cache and backward",
                   "[block]", float, double) {
  testing::for_each_layout([](auto layout) {
    using Layout = decltype(layout);
    for (const Index place : {Index{0}, Index{3}, head_dim - rotary_dim})
      check_place<TestType, Layout>(place);
  });
}

TEST_CASE("a block throws if the rotated channels exceed the head, and changes nothing", "[block]") {
  const random_block<float> memory(kind, 811);
  testing::random numbers(812);
  const rows_of<float> x = random_rows<float>(numbers, 6, kind.model_dim);
  rows_of<float> out = rows_of<float>::Constant(6, kind.out_dim, -77);
  const frequency_table<float> table(narrow, 9);
  kv_cache<float> cache(2, 9, kind.kv_heads, head_dim, kind.value_dim);
  const auto block = multi_head_attention<float, half_split>(memory.weights(), memory.options());
  const auto rejects = [](const auto& call) {
    return testing::throws_saying<std::invalid_argument>(
        call,
        "multi_head_attention: the rotated channels must lie in the head of 12 channels, got 4 channels from "
        "channel 9 on");
  };
  CHECK(rejects([&] { block.forward(x, 2, out, table.at_channel(9)); }));
  CHECK(rejects([&] { block.forward(x, cache, out, table.at_channel(9)); }));
  CHECK(cache.size() == 0);
  CHECK((out.array() == -77).all());
}
