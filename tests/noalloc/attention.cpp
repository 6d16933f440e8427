// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"

using testing::allocations_in;

namespace {

/// One call of attention on buffers of its own, [1, queries, 8, head_dim] against [1, keys, 2, head_dim].
template <class T>
class layer {
 public:
  layer(rope::Index queries, rope::Index keys, rope::Index head_dim)
      : q_(static_cast<std::size_t>(queries * 8 * head_dim), T(1)),
        k_(static_cast<std::size_t>(keys * 2 * head_dim), T(1)),
        out_(q_.size()),
        q(rope::bshd(q_.data(), 1, queries, 8, head_dim)),
        k(rope::bshd(k_.data(), 1, keys, 2, head_dim)),
        out(rope::bshd(out_.data(), 1, queries, 8, head_dim)),
        table(rope::frequencies(head_dim), keys) {}

  long attend(const rope::attention_options& options = {}) {
    return allocations_in([&] { rope::attention(q, k, k, out, options); });
  }
  template <class Layout>
  long rotate_and_attend() {
    return allocations_in([&] { rope::attention<Layout>(q, k, k, out, table); });
  }

 private:
  std::vector<T> q_, k_, out_;

 public:
  rope::head_view<T> q, k, out;
  rope::frequency_table<float> table;
};

}  // namespace

TEMPLATE_TEST_CASE("attention allocates nothing after its first call", "[noalloc]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const rope::Index head_dim = GENERATE(64, 128);
  layer<TestType> prefill(130, 130, head_dim), chunk(17, 200, head_dim), decode(1, 200, head_dim);
  for (layer<TestType>* one : {&prefill, &chunk, &decode}) {
    one->attend();
    one->template rotate_and_attend<rope::half_split>();
    one->template rotate_and_attend<rope::interleaved>();
  }
  for (layer<TestType>* one : {&prefill, &chunk, &decode}) {
    CHECK(one->attend() == 0);
    CHECK(one->attend({.causal = false, .window = 30, .softcap = 20}) == 0);
    if constexpr (std::is_same_v<TestType, Eigen::bfloat16>) {
      one->attend({.products = rope::product_precision::bfloat16});
      CHECK(one->attend({.products = rope::product_precision::bfloat16}) == 0);
    }
    CHECK(one->template rotate_and_attend<rope::half_split>() == 0);
    CHECK(one->template rotate_and_attend<rope::interleaved>() == 0);
  }
}

TEMPLATE_TEST_CASE("heads of 256 channels and groups of 96 heads allocate nothing either", "[noalloc]", float,
                   double) {
  const auto [heads, head_dim] =
      GENERATE(std::pair<rope::Index, rope::Index>{4, 256}, std::pair<rope::Index, rope::Index>{96, 128});
  const auto count = static_cast<std::size_t>(70 * heads * head_dim);
  std::vector<TestType> q(count, TestType(1)), k(static_cast<std::size_t>(70 * head_dim), TestType(1)),
      out(count);
  const auto keys = rope::thd(k.data(), 70, 1, head_dim);
  const auto queries = rope::thd(q.data(), 70, heads, head_dim),
             result = rope::thd(out.data(), 70, heads, head_dim);
  const auto attend = [&] { rope::attention(queries, keys, keys, result); };
  attend();
  CHECK(allocations_in(attend) == 0);
}

TEST_CASE("no option makes attention allocate", "[noalloc]") {
  const rope::Index queries = GENERATE(1, 2, 150), keys = 150;
  layer<float> one(queries, keys, 64);
  std::vector<double> sums(static_cast<std::size_t>(queries * 8));
  const std::vector<float> bias(static_cast<std::size_t>(keys), 0.5f), logits(8, 1.0f);
  const bool mask[1] = {true};
  std::vector<std::int64_t> positions;
  for (rope::Index j = 0; j < keys; ++j) positions.push_back((j + 40) % keys);
  const rope::attention_options options = {.window = 60,
                                           .softcap = 20,
                                           .sinks = 4,
                                           .sink_logits = logits,
                                           .bias = rope::score_matrix(bias.data(), 1, 1, 1, keys),
                                           .mask = rope::score_matrix(mask, 1, 1, 1, 1),
                                           .key_positions = positions,
                                           .dropout = 0.5,
                                           .log_sum_exp = sums};
  one.attend(options);
  CHECK(one.attend(options) == 0);
  const auto ranges = rope::chunk_ranges(64, {.queries = queries, .keys = keys});
  one.attend({.key_ranges = ranges});
  CHECK(one.attend({.key_ranges = ranges}) == 0);
  std::vector<std::int32_t> lists;
  for (rope::Index n = 0; n < queries * 50; ++n) lists.push_back(static_cast<std::int32_t>(n % 50 * 3));
  rope::attention_options selected = options;
  selected.dropout = 0;
  selected.selected = {lists.data(), {.queries = queries, .keys = 50}};
  one.attend(selected);
  CHECK(one.attend(selected) == 0);
}

TEST_CASE("the first call on a thread allocates its scratch memory, and the counter detects it",
          "[noalloc]") {
  long first = 0, second = 0, smaller = 0;
  std::thread([&] {
    // Both have enough queries that every instruction set uses the prefill kernel.
    layer<float> large(70, 70, 64), small(40, 70, 32);
    first = large.rotate_and_attend<rope::half_split>();
    second = large.rotate_and_attend<rope::half_split>();
    smaller = small.rotate_and_attend<rope::half_split>();
  }).join();
  CHECK(first > 0);
  CHECK(second == 0);
  CHECK(smaller == 0);
}

TEMPLATE_TEST_CASE("a cache allocates only when it is made", "[noalloc]", float, Eigen::half) {
  std::vector<TestType> x(20 * 2 * 64, TestType(1)), q(8 * 64, TestType(1)), out(q.size());
  const auto tokens = rope::thd(x.data(), 20, 2, 64);
  std::vector<rope::kv_cache<TestType>> cache;
  cache.reserve(1);
  // Keys, values, and of the rows: the positions, their ends, the next positions, the records and the last
  // counts.
  CHECK(allocations_in([&] { cache.emplace_back(1, 40, 2, 64); }) == 7);
  const auto decode = [&] {
    cache[0].clear();
    cache[0].append(tokens, tokens);
    cache[0].truncate(11);
    cache[0].append(tokens.token_range(3, 1), tokens.token_range(3, 1));
    rope::attention(rope::thd(q.data(), 1, 8, 64), cache[0].keys(), cache[0].values(),
                    rope::thd(out.data(), 1, 8, 64));
  };
  decode();
  CHECK(allocations_in(decode) == 0);
}
