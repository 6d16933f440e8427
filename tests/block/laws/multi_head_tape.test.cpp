// SPDX-License-Identifier: MIT
#include <rope/block/gradient.hpp>

#include "support/block.hpp"
#include "support/catch.hpp"

using rope::half_split;
using rope::multi_head_gradients;
using rope::multi_head_tape;
using testing::rows_of;

TEST_CASE("a tape has no context, and gradients no memory, by default", "[block]") {
  const rows_of<double> x = rows_of<double>::Constant(6, 4, 2);
  const multi_head_tape<double> tape{.x = x, .batch = 2, .d_out = x};
  CHECK(tape.x.rows() == 6);
  CHECK(tape.d_out.cols() == 4);
  CHECK(tape.context.size() == 0);
  const multi_head_gradients<double> none;
  CHECK(none.x.size() == 0);
  CHECK(none.context.size() == 0);
  CHECK(none.weights.q.weight.size() == 0);
  CHECK(none.weights.o.bias.size() == 0);
  CHECK(none.weights.k_norm.size() == 0);
  CHECK(none.options.sink_logits.empty());
  CHECK(none.options.bias.empty());
}

TEST_CASE("gradients are written to the memory that the tape and the gradients name, with any row stride",
          "[block]") {
  const testing::random_block<double> memory({.model_dim = 4, .context_dim = 4, .out_dim = 4}, 1207);
  const rope::multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  rows_of<double> wide = rows_of<double>::Constant(6, 9, -77), x(6, 4), d_out(6, 4);
  for (rope::Index i = 0; i < x.size(); ++i) {
    x.data()[i] = static_cast<double>(i * 7 % 11) - 5;
    d_out.data()[i] = static_cast<double>(i * 5 % 13) - 6;
  }
  wide.leftCols(4) = x;
  wide.rightCols(4) = d_out;
  rows_of<double> d_x = rows_of<double>::Zero(6, 4), same = d_x;
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out},
                                multi_head_gradients<double>{.x = {d_x.data(), 6, 4}});
  multi_head_attention_gradient(block, {.x = wide.leftCols(4), .batch = 2, .d_out = wide.rightCols(4)},
                                multi_head_gradients<double>{.x = {same.data(), 6, 4}});
  CHECK(d_x == same);
  CHECK(d_x.cwiseAbs().maxCoeff() > 0);
  CHECK((wide.col(4).array() == -77).all());
}
