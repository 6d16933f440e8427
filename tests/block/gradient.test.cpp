// SPDX-License-Identifier: MIT
#include <rope/block/gradient.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// Against central differences of the reference block in long double.

namespace {

using namespace rope;
using namespace block_parts;
using reference::number;
using testing::block_kind;
using testing::random_block;
using testing::rows_of;
using testing::throws_saying;

std::vector<reference::matrix> rows_per_batch(const rows_of<double>& x, Index batch) {
  std::vector<reference::matrix> result;
  const Index count = x.rows() / batch;
  for (Index b = 0; b < batch; ++b) result.push_back(part(x, b * count, count));
  return result;
}

/// The function that is differentiated: the sum of d_out times the output of the reference, over the batch.
struct loss {
  reference::block m;
  std::vector<reference::matrix> x, context, d_out;  // per row
  std::vector<std::vector<long long>> query_positions, key_positions;
  reference::sees_key sees;

  /// Without `keys`: self-attention.
  loss(const reference::block& of, const rows_of<double>& tokens, const rows_of<double>& keys,
       const rows_of<double>& upstream, Index batch, const reference::sees_key& visible)
      : m(of),
        x(rows_per_batch(tokens, batch)),
        d_out(rows_per_batch(upstream, batch)),
        query_positions(x.size()),
        key_positions(x.size()),
        sees(visible) {
    if (keys.rows() > 0) context = rows_per_batch(keys, batch);
  }

  number operator()() const {
    number sum = 0;
    for (std::size_t b = 0; b < x.size(); ++b) {
      const reference::matrix out = forward(m, x[b], context.empty() ? x[b] : context[b], query_positions[b],
                                            key_positions[b], sees, b);
      for (std::size_t i = 0; i < out.values.size(); ++i) sum += out.values[i] * d_out[b].values[i];
    }
    return sum;
  }

  /// The largest difference of `got` from the derivative with respect to `of`, relative to the largest
  /// derivative, as a multiple of the allowed error. The step balances its square (the cubic term of the
  /// difference) against the unit roundoff 2^-64 of the sum: 2^-20 gives an error of 2^-40, far above the
  /// rounding of the double that is tested.
  double worst(reference::list& of, const double* got) {
    number largest = 0, error = 0;
    for (std::size_t i = 0; i < of.size(); ++i) {
      const number h = 0x1p-20L, kept = of[i];
      of[i] = kept + h;
      const number above = (*this)();
      of[i] = kept - h;
      const number below = (*this)();
      of[i] = kept;
      const number slope = (above - below) / (2 * h);
      largest = (std::max)(largest, testing::abs(slope));
      const number difference = testing::abs(static_cast<number>(got[i]) - slope);
      error = difference <= error ? error : difference >= 0 ? difference : number(1e30);
    }
    return static_cast<double>(error / (0x1p-30L * (std::max)(largest, number(0.1L))));
  }
};

struct gradients_of_block : testing::memory_of_gradients<double> {
  using testing::memory_of_gradients<double>::memory_of_gradients;

  /// Compares every gradient with the finite differences of `of`.
  void check(loss& of) const {
    CHECK(of.worst(of.m.q.weight.values, q.data()) <= 1);
    CHECK(of.worst(of.m.k.weight.values, k.data()) <= 1);
    CHECK(of.worst(of.m.v.weight.values, v.data()) <= 1);
    CHECK(of.worst(of.m.o.weight.values, o.data()) <= 1);
    CHECK(of.worst(of.m.q.bias, q_bias.data()) <= 1);
    CHECK(of.worst(of.m.k.bias, k_bias.data()) <= 1);
    CHECK(of.worst(of.m.v.bias, v_bias.data()) <= 1);
    CHECK(of.worst(of.m.o.bias, o_bias.data()) <= 1);
    CHECK(of.worst(of.m.q_norm, q_norm.data()) <= 1);
    CHECK(of.worst(of.m.k_norm, k_norm.data()) <= 1);
    for (std::size_t b = 0; b < of.x.size(); ++b)
      CHECK(of.worst(of.x[b].values, x.data() + b * of.x[b].values.size()) <= 1);
    for (std::size_t b = 0; b < of.context.size(); ++b)
      CHECK(of.worst(of.context[b].values, context.data() + b * of.context[b].values.size()) <= 1);
  }
};

const block_kind small_kinds[] = {
    {.heads = 2,
     .kv_heads = 2,
     .head_dim = 4,
     .value_dim = 4,
     .model_dim = 5,
     .context_dim = 5,
     .out_dim = 5},
    {.heads = 4,
     .kv_heads = 2,
     .head_dim = 4,
     .value_dim = 3,
     .model_dim = 5,
     .context_dim = 5,
     .out_dim = 6,
     .bias = true},
    {.heads = 2,
     .kv_heads = 1,
     .head_dim = 6,
     .value_dim = 4,
     .model_dim = 4,
     .context_dim = 4,
     .out_dim = 4,
     .bias = true,
     .norm = true},
    {.heads = 2,
     .kv_heads = 1,
     .head_dim = 6,
     .value_dim = 4,
     .model_dim = 4,
     .context_dim = 4,
     .out_dim = 4,
     .norm = true,
     .norm_offset = 1},
};

}  // namespace

TEST_CASE("the gradients of a block are the derivatives of its definition", "[block]") {
  for (const block_kind& kind : small_kinds) {
    const random_block<double> memory(kind, 601);
    testing::random numbers(602);
    const rows_of<double> x = testing::random_rows<double>(numbers, 2 * 4, kind.model_dim, 2),
                          d_out = testing::random_rows<double>(numbers, 2 * 4, kind.out_dim, 1), none(0, 0);
    CAPTURE(kind.heads, kind.bias, kind.norm);
    multi_head_options options = memory.options();
    options.attention.softcap = 0.9;

    gradients_of_block plain(memory, x, none);
    multi_head_attention_gradient(multi_head_attention<double>(memory.weights(), options),
                                  {.x = x, .batch = 2, .d_out = d_out}, plain.all());
    loss of(memory.reference(), x, none, d_out, 2, causal);
    of.m.softcap = 0.9L;
    plain.check(of);

    const frequencies louder = frequencies::custom(narrow.inv_freq(), 1.25);
    const frequency_table<double> table(louder, -20, 60);
    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      gradients_of_block rotated(memory, x, none);
      const std::vector<int> starts = {-7, 30};
      multi_head_attention_gradient(multi_head_attention<double, Layout>(memory.weights(), options),
                                    {.x = x, .batch = 2, .d_out = d_out}, rotated.all(), table,
                                    row_starts{starts});
      of.m = memory.template reference<Layout>(louder);
      of.m.softcap = 0.9L;
      of.query_positions = of.key_positions = {counted(4, -7), counted(4, 30)};
      rotated.check(of);
    });
  }
}

TEST_CASE("the gradients of cross-attention include those of tokens and context", "[block]") {
  block_kind kind = small_kinds[2];
  kind.context_dim = 3;
  const random_block<double> memory(kind, 603);
  testing::random numbers(604);
  const rows_of<double> x = testing::random_rows<double>(numbers, 2 * 2, 4, 2),
                        context = testing::random_rows<double>(numbers, 2 * 5, 3, 2),
                        d_out = testing::random_rows<double>(numbers, 2 * 2, 4, 1);
  const frequency_table<double> table(narrow, 60);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  loss of(memory.reference(), x, context, d_out, 2, everything);
  gradients_of_block plain(memory, x, context), rotated(memory, x, context);
  cross_attention_gradient(block, {.x = x, .context = context, .batch = 2, .d_out = d_out}, plain.all());
  plain.check(of);
  cross_attention_gradient(block, {.x = x, .context = context, .batch = 2, .d_out = d_out}, rotated.all(),
                           table, 40, 3);
  of.m = memory.reference<half_split>(narrow);
  of.query_positions = {counted(2, 40), counted(2, 40)};
  of.key_positions = {counted(5, 3), counted(5, 3)};
  rotated.check(of);
}

TEST_CASE("the gradients of a block with dropout are the derivatives of its forward pass", "[block]") {
  const random_block<double> memory(small_kinds[3], 611);
  testing::random numbers(612);
  const rows_of<double> x = testing::random_rows<double>(numbers, 2 * 4, 4, 2),
                        d_out = testing::random_rows<double>(numbers, 2 * 4, 4, 1), none(0, 0);
  multi_head_options options = memory.options();
  options.attention.dropout = 0.4;
  options.attention.dropout_seed = 31;
  const frequency_table<double> table(narrow, 60);
  const multi_head_attention<double, interleaved> block(memory.weights(), options);
  gradients_of_block d(memory, x, none);
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, d.all(), table, 9);
  loss of(memory.reference<interleaved>(narrow), x, none, d_out, 2, causal);
  of.query_positions = of.key_positions = {counted(4, 9), counted(4, 9)};
  of.m.gain = dropout_gain(0.4, 31);
  d.check(of);
}

TEST_CASE("gradients of more tokens and channels than a tile of their products are derivatives too",
          "[block]") {
  // Weights in tiles of 128 by 1024, tokens in columns of 256, norms in sums of 64 tokens.
  const block_kind kind = {.heads = 5,
                           .kv_heads = 5,
                           .head_dim = 54,
                           .value_dim = 6,
                           .model_dim = 1030,
                           .context_dim = 1030,
                           .out_dim = 4,
                           .bias = true,
                           .norm = true};
  const random_block<double> memory(kind, 613);
  testing::random numbers(614);
  const rows_of<double> x = testing::random_rows<double>(numbers, 70, 1030, 0.1),
                        d_out = testing::random_rows<double>(numbers, 70, 4, 1), none(0, 0);
  gradients_of_block d(memory, x, none);
  multi_head_options options = memory.options();
  options.attention.window = 3;
  multi_head_attention_gradient(multi_head_attention<double>(memory.weights(), options),
                                {.x = x, .batch = 1, .d_out = d_out}, d.all());
  loss of(memory.reference(), x, none, d_out, 1,
          [](std::size_t i, std::size_t j) { return j <= i && i - j < 3; });
  // Too many for one difference each, so differences are taken along random directions in which all of them
  // change.
  const auto check = [&](std::initializer_list<std::pair<reference::list*, const double*>> parts) {
    reference::list kept, direction;
    number slope = 0, size = 0;
    for (const auto& [of_part, gradient] : parts)
      for (std::size_t i = 0; i < of_part->size(); ++i) {
        kept.push_back((*of_part)[i]);
        direction.push_back(2 * numbers.unit() - 1);
        slope += direction.back() * gradient[i];
        size += testing::abs(direction.back() * gradient[i]);
      }
    const auto moved_by = [&](number step) {
      std::size_t n = 0;
      for (const auto& [of_part, gradient] : parts)
        for (number& value : *of_part) value = kept[n] + step * direction[n], ++n;
      return of();
    };
    // The cubic term grows with the number of parts that change together, and its share of the sum with the
    // square root of that number.
    const number h = 0x1p-24L, difference = (moved_by(h) - moved_by(-h)) / (2 * h);
    moved_by(0);
    CHECK(static_cast<double>(testing::abs(difference - slope) / size) <= 0x1p-30);
  };
  check({{&of.m.q.weight.values, d.q.data()}, {&of.m.q.bias, d.q_bias.data()}});
  check({{&of.m.k.weight.values, d.k.data()}, {&of.m.k.bias, d.k_bias.data()}});
  check({{&of.m.v.weight.values, d.v.data()}, {&of.m.v.bias, d.v_bias.data()}});
  check({{&of.m.o.weight.values, d.o.data()}, {&of.m.o.bias, d.o_bias.data()}});
  check({{&of.m.q_norm, d.q_norm.data()}, {&of.m.k_norm, d.k_norm.data()}});
  check({{&of.x[0].values, d.x.data()}});
}

TEST_CASE("gradients do not cross from one segment to another", "[block]") {
  const random_block<double> memory(small_kinds[1], 605);
  testing::random numbers(606);
  const rows_of<double> x = testing::random_rows<double>(numbers, 6, 5, 2),
                        d_out = testing::random_rows<double>(numbers, 6, 6, 1), none(0, 0);
  const frequency_table<double> table(narrow, 60);
  const std::vector<int> offsets = {0, 2, 2, 6};
  const multi_head_attention<double, interleaved> block(memory.weights(), memory.options());
  gradients_of_block d(memory, x, none);
  multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, d.all(), table,
                                segments<int>{std::span<const int>(offsets)});
  const auto sees = [](std::size_t i, std::size_t j) { return j <= i && (i < 2) == (j < 2); };
  loss of(memory.reference<interleaved>(narrow), x, none, d_out, 1, sees);
  of.query_positions = of.key_positions = {{0, 1, 0, 1, 2, 3}};
  d.check(of);
}

TEST_CASE("gradients of a block evaluate an expression of positions once", "[block]") {
  const random_block<double> memory(small_kinds[1], 611);
  testing::random numbers(612);
  const rows_of<double> x = testing::random_rows<double>(numbers, 3, 5, 2),
                        d_out = testing::random_rows<double>(numbers, 3, 6, 1), none(0, 0);
  const frequency_table<double> table(narrow, 60);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  int next = 5;  // other positions at each evaluation
  const auto ids = Eigen::ArrayXi::NullaryExpr(3, [&next](Index) { return next++; });
  gradients_of_block d(memory, x, none), expected = d;
  multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, expected.all(), table, 5);
  multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, d.all(), table, ids);
  CHECK(next == 8);
  CHECK(d.x == expected.x);
  CHECK(d.q == expected.q);
  CHECK(d.k == expected.k);
}

TEST_CASE("gradients with respect to options are 0 without a segment", "[block]") {
  const random_block<double> memory(small_kinds[0], 613);
  multi_head_options options = memory.options();
  const std::vector<float> sinks = {0.5f, -1.0f};
  const float bias = 0.25f;
  options.attention.sink_logits = sinks;
  options.attention.bias = score_matrix(&bias, 1, 1, 1, 1);
  const multi_head_attention<double, half_split> block(memory.weights(), options);
  const frequency_table<double> table(narrow, 4);
  const rows_of<double> x(0, 5), d_out(0, 5);
  for (const std::vector<int>& offsets : {std::vector<int>{0}, {0, 0}}) {
    std::vector<double> d_sinks(2, 77), d_bias(1, 77);
    multi_head_gradients<double> d;
    d.options = {.sink_logits = d_sinks, .bias = d_bias};
    multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, d, table, segments{offsets});
    CHECK(d_sinks == std::vector<double>{0, 0});
    CHECK(d_bias == std::vector<double>{0});
    std::vector<double> seven(7, 77);
    d.options.sink_logits = seven;
    CHECK(throws_saying<std::invalid_argument>(
        [&] {
          multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, d, table,
                                        segments{offsets});
        },
        "rope::multi_head_attention_gradient: the gradient with respect to sink_logits must have their "
        "length, "
        "2, got 7"));
    CHECK(seven == std::vector<double>(7, 77));
  }
}

TEST_CASE("float gradients are close to those of double, and only gradients with memory are written",
          "[block]") {
  const block_kind kind = small_kinds[2];
  const random_block<double> wide(kind, 607);
  random_block<float> close(kind, 607);
  testing::random numbers(608);
  const rows_of<float> x = testing::random_rows<float>(numbers, 6, 4, 2),
                       d_out = testing::random_rows<float>(numbers, 6, 4, 1);
  const rows_of<double> none(0, 0), x_double = x.cast<double>();
  random_block<double> same = wide;  // the weights rounded to float
  for (const auto& [to, from] : {std::pair(&same.q, &close.q), std::pair(&same.k, &close.k),
                                 std::pair(&same.v, &close.v), std::pair(&same.o, &close.o)})
    *to = from->cast<double>();
  for (const auto& [to, from] :
       {std::pair(&same.q_bias, &close.q_bias), std::pair(&same.k_bias, &close.k_bias),
        std::pair(&same.v_bias, &close.v_bias), std::pair(&same.o_bias, &close.o_bias),
        std::pair(&same.q_norm, &close.q_norm), std::pair(&same.k_norm, &close.k_norm)})
    *to = from->cast<double>();
  gradients_of_block exact(same, x_double, none);
  const frequency_table<float> table(narrow, 20);
  const rows_of<double> d_out_double = d_out.cast<double>();
  multi_head_attention_gradient(multi_head_attention<double, half_split>(same.weights(), same.options()),
                                {.x = x_double, .batch = 2, .d_out = d_out_double}, exact.all(),
                                frequency_table<double>(narrow, 20), 3);
  rows_of<float> d_x(6, 4), d_k = rows_of<float>::Constant(close.k.rows(), close.k.cols(), -77);
  multi_head_attention_gradient(multi_head_attention<float, half_split>(close.weights(), close.options()),
                                {.x = x, .batch = 2, .d_out = d_out},
                                multi_head_gradients<float>{.x = {d_x.data(), 6, 4}}, table, 3);
  CHECK(testing::worst(d_x, 0, testing::exact(exact.x)) <= 1);
  CHECK((d_k.array() == -77).all());
  multi_head_attention_gradient(
      multi_head_attention<float, half_split>(close.weights(), close.options()),
      {.x = x, .batch = 2, .d_out = d_out},
      multi_head_gradients<float>{.weights = {.k = {d_k.data(), d_k.rows(), d_k.cols()}}}, table, 3);
  CHECK(testing::worst(d_k, 0, testing::exact(exact.k)) <= 1);
}

TEST_CASE("gradients that do not fit a block throw and nothing is written", "[block]") {
  const random_block<double> memory(small_kinds[2], 609);
  const rows_of<double> x = rows_of<double>::Ones(6, 4), d_out = rows_of<double>::Ones(6, 4), narrow_d(6, 3),
                        none(0, 0);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  const frequency_table<double> table(narrow, 4);
  const auto rejected = [&]<class E>(E, const std::string& text, const auto& change, const auto& call) {
    gradients_of_block d(memory, x, none), before = d;
    multi_head_gradients<double> all = d.all();
    change(all);
    CHECK(throws_saying<E>([&] { call(all); }, "rope::" + text));
    CHECK(d.x == before.x);
    CHECK(d.q == before.q);
    CHECK(d.k_norm == before.k_norm);
    CHECK(d.o_bias == before.o_bias);
  };
  const std::invalid_argument invalid("");
  const std::string g = "multi_head_attention_gradient: ", c = "cross_attention_gradient: ";
  const auto as_it_is = [](multi_head_gradients<double>&) {};
  std::vector<double> space(1000);
  const auto self = [&](const multi_head_gradients<double>& d) {
    multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, d, table);
  };
  rejected(invalid, g + "the columns of d_out and out_dim must be equal, got 3 and 4", as_it_is,
           [&](const auto& d) {
             multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = narrow_d}, d, table);
           });
  rejected(
      invalid, g + "the rows of tokens must be a multiple of batch, got 6 and 4", as_it_is,
      [&](const auto& d) { multi_head_attention_gradient(block, {.x = x, .batch = 4, .d_out = d_out}, d); });
  rejected(std::out_of_range(""), g + "position 4 is outside the table's [0, 4)", as_it_is,
           [&](const auto& d) {
             multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, d, table, 2);
           });
  const std::vector<int> halves = {0, 3, 6}, whole = {0, 6};
  rejected(invalid, c + "d_out and x must have the same rows, got 5 and 6", as_it_is, [&](const auto& d) {
    cross_attention_gradient(block, {.x = x, .context = x, .batch = 2, .d_out = d_out.topRows(5)}, d);
  });
  rejected(invalid, g + "d_out must have memory, got null for [6, 4]", as_it_is, [&](const auto& d) {
    multi_head_attention_gradient(
        block, {.x = x, .batch = 2, .d_out = Eigen::Map<const rows_of<double>>(nullptr, 6, 4)}, d);
  });
  rejected(invalid, c + "the columns of the keys' tokens and context_dim must be equal, got 0 and 4",
           as_it_is,
           [&](const auto& d) { cross_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, d); });
  rejected(invalid, c + "queries and keys must have the same number of segments, got 2 and 1", as_it_is,
           [&](const auto& d) {
             cross_attention_gradient(block, {.x = x, .context = x, .batch = 1, .d_out = d_out}, d,
                                      frequency_table<double>(narrow, 6), segments{halves}, segments{whole});
           });
  const auto with_options = [&](const attention_options& options, const auto&... positions) {
    multi_head_options all = memory.options();
    all.attention = options;
    return [=, &memory, &x, &d_out](const auto& d) {
      multi_head_attention_gradient(multi_head_attention<double, half_split>(memory.weights(), all),
                                    {.x = x, .batch = 1, .d_out = d_out}, d, positions...);
    };
  };
  const std::vector<std::int64_t> six = {0, 1, 2, 3, 4, 5}, three = {1, 2, 3};
  const std::vector<key_range> ranges(6, {0, 3});
  const frequency_table<double> longer(narrow, 6);
  rejected(invalid, g + "query_positions must be empty or have length 6, got 3", as_it_is,
           with_options({.query_positions = three}));
  rejected(invalid, g + "segments say where tokens are; leave query_positions", as_it_is,
           with_options({.query_positions = six}, longer, segments{whole}));
  rejected(invalid, g + "segments limit the keys of their queries; leave key_ranges", as_it_is,
           with_options({.key_ranges = ranges}, longer, segments{whole}));
  using map = multi_head_gradients<double>::token_map;
  using list = projection<double>::bias_map;
  rejected(
      invalid, g + "the gradient with respect to x must be empty or [6, 4], got [5, 4]",
      [&](auto& d) { d.x = map(space.data(), 5, 4); }, self);
  rejected(
      invalid, g + "the gradient with respect to the q weight must be empty or [12, 4], got [4, 12]",
      [&](auto& d) { d.weights.q.weight = map(space.data(), 4, 12); }, self);
  rejected(
      invalid, g + "the gradient with respect to the k weight must be empty or [6, 4], got [12, 4]",
      [&](auto& d) { d.weights.k.weight = map(space.data(), 12, 4); }, self);
  rejected(
      invalid, g + "the gradient with respect to the v weight must be empty or [4, 4], got [6, 4]",
      [&](auto& d) { d.weights.v.weight = map(space.data(), 6, 4); }, self);
  rejected(
      invalid, g + "the gradient with respect to the o weight must be empty or [4, 8], got [4, 4]",
      [&](auto& d) { d.weights.o.weight = map(space.data(), 4, 4); }, self);
  rejected(
      invalid, g + "the gradient with respect to the q bias must be empty or [1, 12], got [1, 6]",
      [&](auto& d) { d.weights.q.bias = list(space.data(), 6); }, self);
  rejected(
      invalid, g + "the gradient with respect to q_norm must be empty or [1, 6], got [1, 12]",
      [&](auto& d) { d.weights.q_norm = list(space.data(), 12); }, self);
  rejected(
      invalid, g + "the gradient with respect to x must have memory, got null for [6, 4]",
      [&](auto& d) { d.x = map(nullptr, 6, 4); }, self);
  rejected(
      invalid, g + "the gradient with respect to the o bias must have memory, got null for [1, 4]",
      [&](auto& d) { d.weights.o.bias = list(nullptr, 4); }, self);
  rejected(
      invalid, g + "self-attention has no context, got memory for 6 of its tokens",
      [&](auto& d) { d.context = map(space.data(), 6, 4); }, self);
  rejected(invalid, g + "self-attention has no context, got memory for 6 of its tokens", as_it_is,
           [&](const auto& d) {
             multi_head_attention_gradient(block, {.x = x, .context = x, .batch = 2, .d_out = d_out}, d,
                                           table);
           });
  rejected(
      invalid,
      "cross_attention_gradient: the gradient with respect to the context must be empty or [6, 4], got [5, "
      "4]",
      [&](auto& d) { d.context = map(space.data(), 5, 4); },
      [&](const auto& d) {
        cross_attention_gradient(block, {.x = x, .context = x, .batch = 2, .d_out = d_out}, d);
      });
  rejected(
      invalid, g + "gradients with respect to options are those of one segment, got 2",
      [&](auto& d) { d.options.sink_logits = std::span<double>(space).first(2); },
      [&](const auto& d) {
        multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = d_out}, d, table,
                                      segments{halves});
      });
  // A block without biases has no gradient with respect to them.
  const random_block<double> bare(small_kinds[0], 610);
  const rows_of<double> five = rows_of<double>::Ones(6, 5);
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        multi_head_gradients<double> d;
        d.weights.v.bias = {space.data(), 8};
        multi_head_attention_gradient(multi_head_attention<double>(bare.weights(), bare.options()),
                                      {.x = five, .batch = 2, .d_out = five}, d);
      },
      "rope::" + g + "the gradient with respect to the v bias must be empty, as the v bias is, got [1, 8]"));
}

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

TEST_CASE("gradients can be named one after another", "[block]") {
  const random_block<double> memory(small_kinds[2], 614);
  testing::random numbers(615);
  const rows_of<double> x = testing::random_rows<double>(numbers, 6, 4, 2),
                        d_out = testing::random_rows<double>(numbers, 6, 4, 1), none(0, 0);
  const multi_head_attention<double, half_split> block(memory.weights(), memory.options());
  gradients_of_block d(memory, x, none), expected = d;
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, expected.all());
  multi_head_gradients<double> named;
  named.x = multi_head_gradients<double>::token_map(d.x.data(), 6, 4);
  named.weights.q = {d.q.data(), d.q.rows(), d.q.cols(), d.q_bias.data()};
  named.weights.q_norm = {d.q_norm.data(), d.q_norm.size()};
  multi_head_attention_gradient(block, {.x = x, .batch = 2, .d_out = d_out}, named);
  CHECK(d.x == expected.x);
  CHECK(d.q == expected.q);
  CHECK(d.q_bias == expected.q_bias);
  CHECK(d.q_norm == expected.q_norm);
  CHECK((d.k.array() == -77).all());
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

// Sums over tokens lose a digit for every factor of ten in their number if they are added one by one. The
// exact results for equal tokens are closed forms.
TEST_CASE("gradients of weights and biases over many equal tokens keep their accuracy", "[block]") {
  testing::random numbers(testing::seed());
  const Index tokens = 65536, dim = 8, matrix = dim * dim;
  const auto size = [](Index n) { return static_cast<std::size_t>(n); };
  const auto random = [&](Index count) { return testing::random_channels<float>(numbers, count, -2, 0); };
  const auto repeated = [&](const std::vector<float>& row) {
    std::vector<float> x;
    for (Index t = 0; t < tokens; ++t) x.insert(x.end(), row.begin(), row.end());
    return x;
  };
  const std::vector<float> w_q = random(matrix), w_k = random(matrix), w_v = random(matrix),
                           w_o = random(matrix), b_v = random(dim), b_o = random(dim), x = random(dim),
                           d_out = random(dim);
  const multi_head_attention<float> block({.q = {w_q.data(), dim, dim},
                                           .k = {w_k.data(), dim, dim},
                                           .v = {w_v.data(), dim, dim, b_v.data()},
                                           .o = {w_o.data(), dim, dim, b_o.data()}},
                                          {.heads = 2});
  std::vector<float> d_w_v(size(matrix)), d_w_o(size(matrix)), d_b_v(size(dim)), d_b_o(size(dim));
  const std::vector<float> all_x = repeated(x), all_d = repeated(d_out);
  using rows = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  // Every token is a row of the batch, and attends to itself only: out = W_o (W_v x + b_v) + b_o.
  multi_head_attention_gradient(
      block,
      {.x = rows(all_x.data(), tokens, dim), .batch = tokens, .d_out = rows(all_d.data(), tokens, dim)},
      multi_head_gradients<float>{.weights = {.v = {d_w_v.data(), dim, dim, d_b_v.data()},
                                              .o = {d_w_o.data(), dim, dim, d_b_o.data()}}});

  // A sum over 256 tokens, a sum of 256 of these, and about 30 roundings of their terms, relative to the sum
  // of magnitudes.
  const double allowed = (256 + 256 + 30) * static_cast<double>(tolerance::unit_roundoff<float>());
  const auto n = static_cast<number>(tokens);
  const auto check = [&](float got, number term, number magnitude) {
    CHECK(static_cast<double>(testing::abs(static_cast<number>(got) / n - term) / magnitude) <= allowed);
  };
  for (Index r = 0; r < dim; ++r) {
    number value = static_cast<number>(b_v[size(r)]), value_size = testing::abs(value), back = 0,
           back_size = 0;
    for (Index c = 0; c < dim; ++c) {
      const number term = static_cast<number>(w_v[size(r * dim + c)]) * static_cast<number>(x[size(c)]),
                   back_term =
                       static_cast<number>(w_o[size(c * dim + r)]) * static_cast<number>(d_out[size(c)]);
      value += term;
      value_size += testing::abs(term);
      back += back_term;
      back_size += testing::abs(back_term);
    }
    check(d_b_o[size(r)], static_cast<number>(d_out[size(r)]),
          testing::abs(static_cast<number>(d_out[size(r)])));
    check(d_b_v[size(r)], back, back_size);
    for (Index c = 0; c < dim; ++c) {
      const auto of_x = static_cast<number>(x[size(c)]), of_d = static_cast<number>(d_out[size(c)]);
      check(d_w_v[size(r * dim + c)], back * of_x, testing::abs(back_size * of_x));
      check(d_w_o[size(c * dim + r)], of_d * value, testing::abs(of_d) * value_size);
    }
  }
}
