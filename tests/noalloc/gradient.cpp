// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"
#include "support/tape.hpp"

using testing::allocations_in;

TEMPLATE_TEST_CASE("the backward passes allocate nothing after their first call", "[noalloc]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const rope::Index queries = 130, keys = 150, head_dim = GENERATE(64, 128);
  std::vector<T> a(static_cast<std::size_t>(queries * 8 * head_dim), T(1)), b(a), c(a), d(a),
      e(static_cast<std::size_t>(keys * 2 * head_dim), T(1)), f(e), g(e), h(e);
  const auto many = [&](std::vector<T>& x) { return rope::bshd(x.data(), 1, queries, 8, head_dim); };
  const auto few = [&](std::vector<T>& x) { return rope::bshd(x.data(), 1, keys, 2, head_dim); };
  const rope::frequency_table<float> table(rope::frequencies(head_dim), keys);
  const auto plain = [&] {
    rope::attention_gradient(
        testing::tape(many(a), few(e), few(f), many(b), many(c), many(d), few(g), few(h)),
        {.window = 40, .softcap = 9});
  };
  const auto rotated = [&] {
    rope::attention_gradient<rope::half_split>(
        testing::tape(many(a), few(e), few(f), many(b), many(c), many(d), few(g), few(h)), table);
  };
  // A bias shared by heads and queries, and the gradients with respect to options.
  std::vector<double> sums(static_cast<std::size_t>(queries * 8), 3), d_bias(static_cast<std::size_t>(keys)),
      d_sink_logits(8);
  const std::vector<float> numbers(static_cast<std::size_t>(keys)), sink_logits(8);
  const auto by_options = [&] {
    rope::attention_options options = {.sink_logits = sink_logits, .dropout = 0.1, .log_sum_exp = sums};
    options.bias = rope::score_matrix(numbers.data(), 1, 1, 1, keys);
    rope::attention_gradient(
        testing::tape(many(a), few(e), few(f), many(b), many(c), many(d), few(g), few(h)), options,
        {.sink_logits = d_sink_logits, .bias = d_bias});
  };
  plain();
  rotated();
  by_options();
  CHECK(allocations_in(plain) == 0);
  CHECK(allocations_in(rotated) == 0);
  CHECK(allocations_in(by_options) == 0);
  CHECK(allocations_in([&] { rope::rotate_gradient<rope::interleaved>(many(d), table); }) == 0);
}
