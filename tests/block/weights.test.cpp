// SPDX-License-Identifier: MIT
#include <rope/block/weights.hpp>

#include <limits>
#include <rope/block/multi_head_attention.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

const std::vector<double> memory(1000, 0.5);

projection<const double> linear(Index out, Index in, Index bias = 0) {
  return {projection<const double>::weight_map(memory.data(), out, in), {memory.data(), bias}};
}

/// 4 query heads and 2 key heads of 6 channels. Values have 3.
multi_head_weights<double> fitting() {
  return {.q = linear(24, 10), .k = linear(12, 8), .v = linear(6, 8), .o = linear(9, 12)};
}
const multi_head_options four_on_two = {.heads = 4, .kv_heads = 2};

}  // namespace

TEST_CASE("the sizes of a block are those of its weights", "[block]") {
  const multi_head_attention<double> block(fitting(), four_on_two);
  const multi_head_shape& shape = block.shape();
  CHECK(shape.model_dim == 10);
  CHECK(shape.context_dim == 8);
  CHECK(shape.out_dim == 9);
  CHECK(shape.heads == 4);
  CHECK(shape.kv_heads == 2);
  CHECK(shape.head_dim == 6);
  CHECK(shape.value_dim == 3);
  CHECK(multi_head_attention<double>(
            {.q = linear(8, 4), .k = linear(8, 4), .v = linear(8, 4), .o = linear(4, 8)}, {.heads = 4})
            .shape()
            .kv_heads == 4);
  // Values of one channel, and a norm without an epsilon.
  const multi_head_shape smallest =
      multi_head_attention<double>(
          {.q = linear(2, 4), .k = linear(2, 4), .v = linear(1, 4), .o = linear(4, 1)},
          {.heads = 1, .norm_epsilon = 0})
          .shape();
  CHECK(smallest.head_dim == 2);
  CHECK(smallest.value_dim == 1);
}

TEST_CASE("a projection maps the memory it is given", "[block]") {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6}, bias = {7, 8};
  const projection<const float> with(weight.data(), 2, 3, bias.data()), without(weight.data(), 2, 3);
  CHECK(with.weight.data() == weight.data());
  CHECK(with.weight(1, 0) == 4);
  CHECK(with.bias(1) == 8);
  CHECK(without.bias.size() == 0);
  CHECK(projection<const float>().weight.rows() == 0);
  CHECK(projection<const float>().weight.cols() == 0);
}

TEST_CASE("weights that do not fit each other throw", "[block]") {
  const auto rejected = [](const std::string& rule, const auto& change) {
    multi_head_weights<double> weights = fitting();
    multi_head_options options = four_on_two;
    const auto build = [&](const multi_head_weights<double>& w) {
      multi_head_attention<double> block(w, options);
    };
    CHECK_NOTHROW(build(weights));
    CHECK(throws_saying<std::invalid_argument>([&] { build(change(options)); }, "rope::" + rule));
  };
  using options_type = multi_head_options;
  const auto with = [](const auto& q, const auto& k, const auto& v, const auto& o) {
    return multi_head_weights<double>{.q = q, .k = k, .v = v, .o = o};
  };
  const auto q = linear(24, 10), k = linear(12, 8), v = linear(6, 8), o = linear(9, 12);
  const std::string block = "multi_head_attention: ";
  rejected(block + "the rows of the q weight must be a positive multiple of heads, got 25 and 4",
           [&](options_type&) { return with(linear(25, 10), k, v, o); });
  rejected(block + "the rows of the q weight must be a positive multiple of heads, got 0 and 4",
           [&](options_type&) { return with(linear(0, 10), k, v, o); });
  rejected(block + "the rows of the k weight and kv_heads * head_dim must be equal, got 24 and 12",
           [&](options_type&) { return with(q, linear(24, 8), v, o); });
  rejected(block + "the rows of the v weight must be a positive multiple of kv_heads, got 7 and 2",
           [&](options_type&) { return with(q, k, linear(7, 8), o); });
  rejected(block + "the k and v weights must have the same columns, got 8 and 9",
           [&](options_type&) { return with(q, k, linear(6, 9), o); });
  rejected(block + "the columns of the o weight and heads * value_dim must be equal, got 24 and 12",
           [&](options_type&) { return with(q, k, v, linear(9, 24)); });
  rejected(block + "the length of the q bias must be 0 or the rows of its weight, got 23 and 24",
           [&](options_type&) { return with(linear(24, 10, 23), k, v, o); });
  rejected(block + "the length of the k bias must be 0 or the rows of its weight, got 24 and 12",
           [&](options_type&) { return with(q, linear(12, 8, 24), v, o); });
  rejected(block + "the length of the v bias must be 0 or the rows of its weight, got 1 and 6",
           [&](options_type&) { return with(q, k, linear(6, 8, 1), o); });
  rejected(block + "the length of the o bias must be 0 or the rows of its weight, got 12 and 9",
           [&](options_type&) { return with(q, k, v, linear(9, 12, 12)); });
  rejected(block + "the length of q_norm must be 0 or head_dim, got 24 and 6", [&](options_type&) {
    return multi_head_weights<double>{.q = q, .k = k, .v = v, .o = o, .q_norm = {memory.data(), 24}};
  });
  rejected(block + "the length of k_norm must be 0 or head_dim, got 12 and 6", [&](options_type&) {
    return multi_head_weights<double>{.q = q, .k = k, .v = v, .o = o, .k_norm = {memory.data(), 12}};
  });

  const auto options_rejected = [&](const std::string& rule, const auto& change) {
    rejected(rule, [&](options_type& options) {
      change(options);
      return fitting();
    });
  };
  options_rejected(block + "heads must be a positive multiple of kv_heads, got 4 and 3",
                   [](options_type& x) { x.kv_heads = 3; });
  options_rejected(block + "heads must be given in the options, got 0 for ",
                   [](options_type& x) { x.heads = 0; });
  options_rejected(block + "heads must be a positive multiple of kv_heads, got 4 and -2",
                   [](options_type& x) { x.kv_heads = -2; });
  options_rejected(block + "norm_epsilon must be finite and not negative, norm_offset finite, got -1",
                   [](options_type& x) { x.norm_epsilon = -1; });
  options_rejected(block + "norm_epsilon must be finite and not negative, norm_offset finite, got ",
                   [](options_type& x) { x.norm_offset = std::numeric_limits<double>::infinity(); });
  options_rejected(block + "window must not be negative, got -1",
                   [](options_type& x) { x.attention.window = -1; });
  options_rejected(block + "scale must be finite and softcap finite and not negative, got 0 and -2",
                   [](options_type& x) { x.attention.softcap = -2; });
  options_rejected(block + "scale and softcap must be 0 or of a magnitude in [",
                   [](options_type& x) { x.attention.softcap = 1e-310; });
}

TEST_CASE("a weight is a row-major matrix in memory, and a bias a vector", "[block]") {
  using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  row_major w = row_major::Random(3, 4);
  const Eigen::MatrixXf columns = Eigen::MatrixXf::Random(4, 3);
  const Eigen::VectorXf b = Eigen::VectorXf::Random(3);
  const auto is = [](const auto& weight, Index rows, Index cols, const auto& address_of) {
    bool same = weight.rows() == rows && weight.cols() == cols;
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c) same = same && weight.data() + r * cols + c == address_of(r, c);
    return same;
  };
  const auto in_w = [&](Index r, Index c) { return &w(r, c); };
  CHECK(is(projection<const float>(w).weight, 3, 4, in_w));
  CHECK(is(projection<float>(w).weight, 3, 4, in_w));
  CHECK(is(projection<const float>(w.topRows(2)).weight, 2, 4, in_w));
  CHECK(is(projection<const float>(Eigen::Map<const row_major>(w.data(), 3, 4)).weight, 3, 4, in_w));
  CHECK(is(projection<const float>(columns.transpose()).weight, 3, 4,
           [&](Index r, Index c) { return &columns(c, r); }));
  const multi_head_weights<float> weights = {.q = w, .k = {w, b}};
  CHECK(is(weights.q.weight, 3, 4, in_w));
  CHECK(weights.q.bias.size() == 0);
  CHECK(weights.k.bias.size() == 3);
  CHECK(weights.k.bias.data() == b.data());
  Eigen::VectorXf written = b;
  CHECK(projection<float>(w, written).bias.data() == written.data());
  CHECK(throws_saying<std::invalid_argument>(
      [&] { projection<const float> gaps(w.leftCols(2)); },
      "rope::projection: the rows of a weight must lie next to each other, got a stride of 4 for 2 columns"));
}

TEST_CASE("heads of values that exceed the address space throw", "[block]") {
  const Index heads = Index{1} << 4 * sizeof(Index);  // its square is 0 as an Index
  const auto no_columns = [](Index rows) { return linear(rows, 0); };
  const multi_head_weights<double> weights = {
      .q = no_columns(heads), .k = no_columns(1), .v = no_columns(heads), .o = no_columns(1)};
  CHECK(throws_saying<std::length_error>(
      [&] { multi_head_attention<double>(weights, {.heads = heads, .kv_heads = 1}); },
      "rope::multi_head_attention: heads * value_dim must not exceed the address space, got " +
          std::to_string(heads) + " * " + std::to_string(heads)));
}

TEST_CASE("assigning a weight maps other memory and copies no number", "[block]") {
  std::vector<float> first(6, 1), second(6, 2), norm(3, 3);
  projection<float> a(first.data(), 2, 3), b(second.data(), 3, 2, second.data());
  a = b;
  CHECK(a.weight.data() == second.data());
  CHECK(a.weight.rows() == 3);
  CHECK(a.bias.size() == 3);
  CHECK(first == std::vector<float>(6, 1));
  a.weight = {first.data(), 1, 6};
  a.weight = *&a.weight;
  a.bias = projection<float>::bias_map(first.data(), 1);
  CHECK(a.weight.data() == first.data());
  CHECK(a.weight.cols() == 6);
  CHECK(a.bias.data() == first.data());
  a.weight = Eigen::Map<projection<float>::matrix>(second.data(), 2, 2);
  CHECK(a.weight.data() == second.data());
  multi_head_weights<float> weights;
  weights.q = {first.data(), 2, 3};
  weights.k_norm = {norm.data(), 3};
  const multi_head_weights<float> others = weights;
  weights = {};
  CHECK(weights.q.weight.size() == 0);
  weights = others;
  CHECK(weights.q.weight.data() == first.data());
  CHECK(weights.k_norm.data() == norm.data());
  // A map computes, and is written by name.
  a.weight.array() = 5;
  CHECK((a.weight * a.weight.transpose()).eval()(0, 0) == 50);
  CHECK(second == std::vector<float>{5, 5, 5, 5, 2, 2});
  CHECK(!std::is_assignable_v<projection<float>::weight_map&, const projection<float>::matrix&>);
}

TEST_CASE("a weight without memory throws", "[block]") {
  using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const row_major w = row_major::Random(4, 4);
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::multi_head_attention<float>(
            {.q = {static_cast<const float*>(nullptr), 4, 4}, .k = w, .v = w, .o = w}, {.heads = 2});
      },
      "rope::multi_head_attention: a weight must have memory, got null for [4, 4]"));
  const projection<const float>::bias_map null(nullptr, 4), two(nullptr, 2);
  const auto rejects = [](const multi_head_weights<float>& weights, const char* text) {
    return throws_saying<std::invalid_argument>([&] { multi_head_attention<float>(weights, {.heads = 2}); },
                                                "rope::multi_head_attention: ", text);
  };
  for (int i = 0; i < 4; ++i) {
    multi_head_weights<float> weights = {.q = w, .k = w, .v = w, .o = w};
    (i == 0 ? weights.q : i == 1 ? weights.k : i == 2 ? weights.v : weights.o).bias = null;
    CHECK(rejects(weights, "a bias must have memory, got null for [1, 4]"));
  }
  CHECK(rejects({.q = w, .k = w, .v = w, .o = w, .q_norm = two},
                "q_norm must have memory, got null for [1, 2]"));
  CHECK(rejects({.q = w, .k = w, .v = w, .o = w, .k_norm = two},
                "k_norm must have memory, got null for [1, 2]"));
}

TEST_CASE("an Eigen::Map of const numbers is a weight without braces", "[block]") {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const std::vector<float> numbers(6 * 4, 1.0f);
  const Eigen::Map<const matrix> map(numbers.data(), 6, 4);
  const Eigen::Map<const Eigen::RowVectorXf> bias(numbers.data(), 6);
  const rope::multi_head_weights<float> weights = {
      .q = map, .k = {map}, .v = {map, bias}, .o = Eigen::Map<const matrix>(numbers.data(), 4, 6)};
  for (const auto* projection : {&weights.q, &weights.k, &weights.v}) {
    CHECK(projection->weight.data() == numbers.data());
    CHECK(projection->weight.rows() == 6);
  }
  CHECK(weights.v.bias.size() == 6);
  CHECK(weights.o.weight.rows() == 4);
  float written[] = {1, 2, 3, 4};
  const rope::projection<float> gradient = Eigen::Map<matrix>(written, 2, 2);
  CHECK(gradient.weight.data() == written);
}
