// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "support/append_tokens.hpp"
#include "support/catch.hpp"

using testing::allocations_in;

namespace {

using rope::half_split;
using rope::Index;

/// A decoding step of 8 heads on 2 key heads of 64 channels, [1, 1, heads, 64].
template <class T>
struct step {
  std::vector<T> memory = std::vector<T>(8 * 64, T(0.5)), result = memory;
  rope::head_view<T> q() { return rope::bshd(memory.data(), 1, 1, 8, 64); }
  rope::head_view<T> k() { return rope::bshd(memory.data(), 1, 1, 2, 64); }
  rope::head_view<T> out() { return rope::bshd(result.data(), 1, 1, 8, 64); }
};

/// Appends and attends until the cache has 300 tokens, then counts one more step that is as large as the
/// largest before it.
template <class T, class Cache>
long allocations_of_a_step(Cache cache, const rope::attention_options& options = {}) {
  step<T> token;
  const rope::frequency_table<float> table(rope::frequencies(64), 400);
  const auto decode = [&] {
    testing::append_tokens<half_split>(cache, token.k(), token.k(), table);
    rope::attention<half_split>(token.q(), cache, token.out(), table, options);
  };
  for (int i = 0; i < 300; ++i) decode();
  cache.truncate(299);
  return allocations_in(decode);
}

}  // namespace

TEST_CASE("a decoding step with a used cache allocates nothing", "[noalloc]") {
  using rope::key_storage;
  for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
    CHECK(allocations_of_a_step<float>(rope::kv_cache<float>(1, 300, 2, 64, 0, storage)) == 0);
    CHECK(allocations_of_a_step<double>(rope::kv_cache<double>(1, 300, 2, 64, 0, storage)) == 0);
    CHECK(allocations_of_a_step<float>(rope::kv_cache<Eigen::bfloat16>(1, 300, 2, 64, 0, storage)) == 0);
    CHECK(allocations_of_a_step<Eigen::half>(rope::kv_cache<Eigen::half>(1, 300, 2, 64, 0, storage)) == 0);
    CHECK(allocations_of_a_step<float>(rope::kv_cache<std::int8_t>(1, 300, 2, 64, 0, storage)) == 0);
    CHECK(allocations_of_a_step<float>(
              rope::ring_cache<float>(1, {.sinks = 4, .window = 100}, 2, 64, 0, storage)) == 0);
  }
  CHECK(allocations_of_a_step<float>(rope::kv_cache<std::int8_t>(1, 300, 2, 64),
                                     {.products = rope::product_precision::integers}) == 0);
  CHECK(allocations_of_a_step<float>(rope::ring_cache<Eigen::bfloat16>(
            1, {.sinks = 4, .window = 100, .positions = rope::ring_positions::cache}, 2, 64, 0,
            key_storage::raw)) == 0);
}

TEST_CASE("a decoding step with a used latent_cache allocates nothing", "[noalloc]") {
  for (const rope::key_storage storage : {rope::key_storage::rotated, rope::key_storage::raw}) {
    step<float> token;
    const rope::frequency_table<float> table(rope::frequencies(16), 400);
    rope::latent_cache<float> cache(1, 300, 48, 16, storage);
    const auto decode = [&] {
      const auto latent = token.k().head_range(0, 1).channels(0, 48),
                 part = token.k().head_range(0, 1).channels(48, 16);
      testing::append_tokens<half_split>(cache, latent, part, table);
      rope::attention<half_split>(token.q(), cache, token.out().channels(0, 48), table, {.scale = 0.1});
    };
    for (int i = 0; i < 300; ++i) decode();
    cache.truncate(299);
    CHECK(allocations_in(decode) == 0);
  }
}

TEST_CASE("a decoding step of a used block allocates nothing", "[noalloc]") {
  const Index dim = 8 * 64;
  const std::vector<float> weights(static_cast<std::size_t>(dim * dim), 0.01f);
  using tokens = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const tokens x = tokens::Ones(1, dim), few = tokens::Ones(8, dim);
  tokens out(1, dim), few_out(8, dim);
  const rope::multi_head_attention<float, half_split> block({.q = {weights.data(), dim, dim, weights.data()},
                                                             .k = {weights.data(), 128, dim},
                                                             .v = {weights.data(), 128, dim},
                                                             .o = {weights.data(), dim, dim},
                                                             .q_norm = {weights.data(), 64},
                                                             .k_norm = {weights.data(), 64}},
                                                            {.heads = 8, .kv_heads = 2});
  const rope::frequency_table<float> table(rope::frequencies(64), 40);
  rope::kv_cache<float> cache(1, 40, 2, 64);
  rope::ring_cache<float> ring(1, {.sinks = 2, .window = 10}, 2, 64);
  rope::kv_cache<float> on_axes(1, 40, 2, 64, rope::token_axes{3});
  const rope::row_maker<float> maker(
      rope::on_axes(rope::frequencies(64), rope::contiguous_sections({8, 12, 12})));
  std::vector<std::byte> memory(maker.memory_size(1));
  Eigen::Array<std::int64_t, 1, 3> at(0, 0, 0);
  const auto decode = [&] {
    block.forward(x, cache, out, table);
    block.forward(x, ring, out, table);
    block.forward(x, 1, out, table, 7);
    block.forward(few, 2, few_out, table, 7);  // as many as are still multiplied one by one
    const rope::frequency_table<float> of_token = maker.table(at, memory);
    block.forward(x, on_axes, out, of_token);
    at.setConstant(on_axes.next_positions()[0]);
  };
  for (int i = 0; i < 30; ++i) decode();
  CHECK(allocations_in(decode) == 0);
}

TEST_CASE("a used block of many tokens allocates nothing, forward or backward", "[noalloc]") {
  const Index dim = 8 * 64, count = 200;
  const std::vector<float> weights(static_cast<std::size_t>(dim * dim), 0.01f);
  using tokens = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const tokens x = tokens::Ones(count, dim), d_out = x;
  tokens out(count, dim), d_x(count, dim), d_weight(dim, dim);
  const rope::multi_head_attention<float, half_split> block({.q = {weights.data(), dim, dim},
                                                             .k = {weights.data(), 128, dim},
                                                             .v = {weights.data(), 128, dim},
                                                             .o = {weights.data(), dim, dim}},
                                                            {.heads = 8, .kv_heads = 2});
  const rope::frequency_table<float> table(rope::frequencies(64), count);
  const rope::multi_head_gradients<float> gradients = {.x = {d_x.data(), count, dim},
                                                       .weights = {.q = {d_weight.data(), dim, dim}}};
  const auto train = [&] {
    block.forward(x, 1, out, table);
    rope::multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, gradients, table);
  };
  train();
  CHECK(allocations_in(train) == 0);
}

TEST_CASE("a step at positions of the caller allocates nothing either", "[noalloc]") {
  for (const rope::key_storage storage : {rope::key_storage::rotated, rope::key_storage::raw}) {
    step<float> token;
    const rope::frequency_table<float> table(rope::frequencies(64), 400);
    rope::kv_cache<float> cache(1, 300, 2, 64, 0, storage);
    std::int64_t position = 399;
    const auto decode = [&] {
      const std::span<const std::int64_t> ids(&position, 1);
      if (storage == rope::key_storage::raw)
        cache.append_at(token.k(), token.k(), ids);
      else
        cache.append_at<half_split>(token.k(), token.k(), table, ids);
      rope::attention<half_split>(token.q(), cache, token.out(), table);
      --position;
    };
    for (int i = 0; i < 290; ++i) decode();
    position = 399;  // attends to all of them
    CHECK(allocations_in(decode) == 0);
  }
}

TEMPLATE_TEST_CASE("restoring, evicting and weights of a used cache allocate nothing", "[noalloc]", float,
                   Eigen::half, std::int8_t) {
  const rope::frequency_table<float> table(rope::frequencies(64), 400);
  const std::vector<float> memory(100 * 2 * 64, 0.5f);
  const auto saved = rope::bshd(memory.data(), 1, 100, 2, 64);
  std::vector<float> query(8 * 8 * 64, 0.5f), sums(2 * 200);
  const auto q = rope::bshd(query.data(), 1, 8, 8, 64);
  rope::kv_cache<TestType> cache(1, 200, 2, 64);
  std::vector<int> list;
  for (int t = 150; t > 0; t -= 3) list.push_back(t);
  const auto serve = [&] {
    cache.clear();
    cache.template append_rotated<half_split>(saved, saved, table);
    cache.template append_rotated<half_split>(saved, saved, table, 250);
    rope::attention_weight_sums<half_split>(q, cache, sums, table);
    cache.evict(list);
    CHECK(cache.size() == 150);
  };
  serve();
  CHECK(allocations_in(serve) == 0);
}

TEST_CASE("a decoding step with a used cache of coordinates allocates nothing", "[noalloc]") {
  const rope::frequencies schedule(64);
  const rope::frequencies on_axes = rope::on_axes(schedule, rope::contiguous_sections({8, 12, 12}));
  const rope::frequency_table<float> text(schedule, 400);
  const auto check = [&](auto cache) {
    step<float> token;
    const auto decode = [&](const rope::frequency_table<float>& table) {
      cache.template append<half_split>(token.k(), token.k(), table);
      rope::attention<half_split>(token.q(), cache, token.out(), table);
    };
    for (int i = 0; i < 299; ++i) decode(text);
    const rope::frequency_table<float> table(on_axes, cache.next_coordinates());
    decode(table);
    cache.truncate(299);
    CHECK(allocations_in([&] { decode(table); }) == 0);
    cache.truncate(299);
    CHECK(allocations_in([&] { decode(text); }) == 0);
  };
  check(rope::kv_cache<float>(1, 300, 2, 64, rope::token_axes{3}));
  check(rope::kv_cache<Eigen::bfloat16>(1, 300, 2, 64, rope::token_axes{3}));
  check(rope::ring_cache<float>(1, {.sinks = 4, .window = 100, .chunk = 2}, 2, 64, rope::token_axes{3}));

  // A table of every step, by a row_maker.
  const rope::row_maker<float> maker(on_axes);
  std::vector<std::byte> memory(maker.memory_size(1));
  const auto check_steps = [&](auto cache) {
    step<float> token;
    const auto decode = [&] {
      const Eigen::Array<std::int64_t, 1, 3> at =
          Eigen::Array<std::int64_t, 1, 3>::Constant(cache.next_positions()[0]);
      const rope::frequency_table<float> table = maker.table(at, memory);
      cache.template append<half_split>(token.k(), token.k(), table);
      rope::attention<half_split>(token.q(), cache, token.out(), table);
    };
    for (int i = 0; i < 299; ++i) decode();
    CHECK(allocations_in(decode) == 0);
    CHECK(cache.next_positions()[0] == 300);
  };
  check_steps(rope::kv_cache<float>(1, 300, 2, 64, rope::token_axes{3}));
  check_steps(
      rope::ring_cache<float>(1, {.sinks = 4, .window = 100, .chunk = 2}, 2, 64, rope::token_axes{3}));

  rope::kv_cache<float> raw(1, 300, 2, 64, rope::token_axes{3}, 0, rope::key_storage::raw);
  step<float> token;
  for (int i = 0; i < 300; ++i) raw.append(token.k(), token.k());
  const rope::frequency_table<float> all(on_axes, raw.coordinates());
  const auto decode = [&] {
    raw.append(token.k(), token.k());
    rope::attention<half_split>(token.q(), raw, token.out(), all);
  };
  for (int i = 0; i < 2; ++i) {
    raw.truncate(299);
    const long allocations = allocations_in(decode);
    if (i > 0) CHECK(allocations == 0);
  }
}
