// SPDX-License-Identifier: MIT
#include "../../examples/tiny_transformer.hpp"

#include <algorithm>
#include <cmath>
#include <rope/rope.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using rope::Index;
using model_type = tiny_transformer<double>;

const std::vector<int> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2};

tiny_shape small(encoding positions) {
  return {.positions = positions,
          .vocabulary = 10,
          .width = 8,
          .heads = 2,
          .layers = 2,
          .hidden = 6,
          .context = 18,
          .longest = 24};
}

/// The gradient with respect to every parameter is the derivative of the loss, to 1e-8 of the largest in its
/// tensor.
void check_gradient(model_type model) {
  // A bias is a float: parameters and steps are multiples of 2^-12 below 2^11, which a float represents
  // exactly.
  model.parameters() = (4096 * model.parameters()).round() / 4096;
  model_type::vector d = model_type::vector::Zero(model.parameters().size());
  const double loss = model.add_gradient(ids, 1, d);
  CHECK(std::abs(loss - model.loss(ids)) <= 1e-12 * loss);
  for (const auto& tensor : model.tensors()) {
    double error = 0, largest = 0;
    for (Index i = tensor.first; i < tensor.first + tensor.rows * tensor.cols; ++i) {
      double& x = model.parameters()(i);
      const double at = x, step = 1.0 / 4096;
      const auto difference = [&](double h) {
        x = at + h;
        const double above = model.loss(ids);
        x = at - h;
        const double below = model.loss(ids);
        x = at;
        return (above - below) / (2 * h);
      };
      // The error is of the order of step^6 divided by that of an embedding, which is 1e-15.
      const double slope =
          (45 * difference(step) - 9 * 2 * difference(2 * step) + 3 * difference(3 * step)) / 30;
      error = std::max(error, std::abs(slope - d(i)));
      largest = std::max(largest, std::abs(d(i)));
    }
    INFO(tensor.name << ": " << error << " of " << largest);
    CHECK(error <= 1e-8 * largest);
  }
}

}  // namespace

TEST_CASE("the gradient of a small transformer is that of its loss", "[examples][tiny_transformer]") {
  for (const encoding positions : {encoding::none, encoding::learned, encoding::sinusoidal, encoding::alibi,
                                   encoding::t5, encoding::rope}) {
    INFO("encoding " << static_cast<int>(positions));
    check_gradient(model_type(small(positions), 1));
  }
}

TEST_CASE("the gradient goes through scaled rotations and xPos", "[examples][tiny_transformer]") {
  model_type model(small(encoding::rope), 2);
  const Index dim = model.shape().head_dim(), longest = model.shape().longest;
  model.rotate_by(
      rope::frequencies(dim, 100.0, rope::yarn_scaling{.factor = 4, .original_max_position = 18}));
  check_gradient(model);
  model.rotate_by(
      rope::xpos<double>(rope::frequencies(dim, 100.0), longest, {.center = 12, .scale_base = 16}));
  check_gradient(model);
}

TEST_CASE("a token's logits depend on those before it, and on their order if positions are encoded",
          "[examples][tiny_transformer]") {
  for (const encoding positions : {encoding::none, encoding::learned, encoding::sinusoidal, encoding::alibi,
                                   encoding::t5, encoding::rope}) {
    INFO("encoding " << static_cast<int>(positions));
    tiny_shape shape = small(positions);
    shape.layers = 1;  // with two tokens, the causal mask alone distinguishes orders
    model_type model(shape, 3);
    for (Index i = 0; i < model.parameters().size(); ++i)  // the relative bias starts at zero
      model.parameters()(i) += 0.1 * std::sin(static_cast<double>(i));
    std::vector<int> other = ids;
    other.back() = (other.back() + 1) % 10;
    const auto before = model.logits(ids), after = model.logits(other);
    const Index last = before.rows() - 1;
    CHECK(before.topRows(last) == after.topRows(last));
    CHECK((before.row(last) - after.row(last)).cwiseAbs().maxCoeff() > 1e-3);
    other = ids;
    std::swap(other[2], other[7]);
    const double moved = (before.row(last) - model.logits(other).row(last)).cwiseAbs().maxCoeff();
    CHECK((moved > 1e-6) == (positions != encoding::none));
  }
}

TEST_CASE("a sequence longer than the maximum throws", "[examples][tiny_transformer]") {
  const model_type model(small(encoding::learned), 1);
  const std::vector<int> long_one(25, 1);
  CHECK(testing::throws_saying<std::out_of_range>([&] { model.logits(long_one); },
                                                  "a sequence must have at most 24 tokens, got 25"));
}

TEST_CASE("equal seeds give equal weights to models of every encoding", "[examples][tiny_transformer]") {
  const model_type one(small(encoding::learned), 4), other(small(encoding::rope), 4);
  const Index shared = other.parameters().size();
  CHECK((one.parameters().head(shared) == other.parameters()).all());
  CHECK(one.parameters().size() == shared + 24 * 8);
}
