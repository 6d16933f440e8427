// SPDX-License-Identifier: MIT
#include <rope/block.hpp>

#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

constexpr Index heads = 32, kv_heads = 8, head_dim = 4, model_dim = 16, batch = 2, capacity = 8;

struct model {
  testing::rows_of<float> wq, wk, wv, wo;
  model() {
    testing::random numbers(11);
    wq = testing::random_rows<float>(numbers, heads * head_dim, model_dim);
    wk = testing::random_rows<float>(numbers, kv_heads * head_dim, model_dim);
    wv = testing::random_rows<float>(numbers, kv_heads * head_dim, model_dim);
    wo = testing::random_rows<float>(numbers, model_dim, heads * head_dim);
  }
  multi_head_attention<float> block() const {
    return {{.q = {wq.data(), heads * head_dim, model_dim},
             .k = {wk.data(), kv_heads * head_dim, model_dim},
             .v = {wv.data(), kv_heads * head_dim, model_dim},
             .o = {wo.data(), model_dim, heads * head_dim}},
            {.heads = heads, .kv_heads = kv_heads}};
  }
};

}  // namespace

TEST_CASE("the examples in the comments of a block work", "[block]") {
  const model memory;
  const auto& [wq, wk, wv, wo] = memory;
  const auto& q_proj = wq;
  const projection<const float> q(q_proj.data(), heads * head_dim, model_dim);
  const multi_head_weights<float> weights = {.q = {wq.data(), heads * head_dim, model_dim},
                                             .k = {wk.data(), kv_heads * head_dim, model_dim},
                                             .v = {wv.data(), kv_heads * head_dim, model_dim},
                                             .o = {wo.data(), model_dim, heads * head_dim}};
  CHECK(q.weight == weights.q.weight);
  const multi_head_options options = {.heads = 32, .kv_heads = 8, .norm_epsilon = 1e-5};
  CHECK(multi_head_attention<float>(weights, options).shape().head_dim == head_dim);

  testing::random numbers(12);
  const testing::rows_of<float> prompt = testing::random_rows<float>(numbers, batch, model_dim),
                                token = testing::random_rows<float>(numbers, batch, model_dim);
  const frequency_table table(frequencies(head_dim), 20);
  testing::rows_of<float> out(batch, model_dim);
  kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
  multi_head_attention<float, half_split> block(weights, {.heads = 32, .kv_heads = 8});
  block.forward(prompt, cache, out, table);
  block.forward(token, cache, out, table);
  const testing::own_threads pool(2);
  block.forward(token, cache, out, table, {}, pool);
  CHECK(cache.size() == 3);
}

TEST_CASE("the example in the comment of multi_head_shape works", "[block]") {
  const model memory;
  const multi_head_attention<float> block = memory.block();
  const multi_head_shape& shape = block.shape();
  kv_cache<float> cache(batch, capacity, shape.kv_heads, shape.head_dim, shape.value_dim);
  CHECK(cache.capacity() == capacity);
}

TEST_CASE("the examples in the comments of reports and tapes work", "[block]") {
  const model memory;
  const multi_head_attention<float> plain = memory.block();
  const multi_head_attention<float, half_split> block(plain.weights(), plain.options());
  testing::random numbers(14);
  const Index queries = 3, keys = 3;
  const testing::rows_of<float> x = testing::random_rows<float>(numbers, batch * queries, model_dim),
                                context = testing::random_rows<float>(numbers, batch * keys, model_dim),
                                token = testing::random_rows<float>(numbers, batch, model_dim);
  const frequency_table table(frequencies(head_dim), 20);
  testing::rows_of<float> out(batch * queries, model_dim);
  std::vector<float> probabilities(batch * heads * queries * keys);
  block.reporting({.probabilities = probabilities}).forward(x, batch, out, table);
  CHECK(probabilities[0] == 1);
  std::vector<double> sums(batch * queries * heads);
  block.reporting({.log_sum_exp = sums}).forward(x, batch, out, table);
  CHECK(sums[0] != 0);
  out.resize(batch, model_dim);
  const projected_context<float> encoded = block.project_context(context, batch);
  block.cross(token, encoded, out);
  CHECK(encoded.tokens() == keys);
}

TEST_CASE("the examples in the comments of the gradient of a block work", "[block]") {
  const model memory;
  const multi_head_attention<float> block = memory.block();
  testing::random numbers(13);
  const testing::rows_of<float> x = testing::random_rows<float>(numbers, batch * 3, model_dim),
                                context = testing::random_rows<float>(numbers, batch * 2, model_dim),
                                d_out = testing::random_rows<float>(numbers, batch * 3, model_dim);
  testing::rows_of<float> d_x(x.rows(), x.cols()), d_wq(heads * head_dim, model_dim);
  multi_head_gradients<float> gradients = {.x = {d_x.data(), d_x.rows(), d_x.cols()}};
  multi_head_attention_gradient(block, {.x = x, .batch = batch, .d_out = d_out}, gradients);
  const testing::rows_of<float> before = d_x;
  multi_head_attention_gradient(block, {.x = x, .batch = batch, .d_out = d_out}, gradients);
  cross_attention_gradient(block, {.x = x, .context = context, .batch = batch, .d_out = d_out}, gradients);
  multi_head_attention_gradient(
      block, {.x = x, .batch = batch, .d_out = d_out},
      multi_head_gradients<float>{.x = {d_x.data(), d_x.rows(), d_x.cols()},
                                  .weights = {.q = {d_wq.data(), d_wq.rows(), d_wq.cols()}}});
  CHECK(d_x == before);
}
