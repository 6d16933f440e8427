// SPDX-License-Identifier: MIT
// attention_gradient is the derivative of attention: finite differences of the forward pass agree with the
// backward pass, including the rotation and the learned frequencies.
#include <rope/attention/gradient.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <rope/attention/attention.hpp>
#include <rope/rotation/angle_gradient.hpp>
#include <rope/rotation/gradient.hpp>
#include <rope/tables/xpos.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tape.hpp"

using rope::half_split;
using rope::Index;

namespace {

constexpr Index batch = 2, queries = 5, keys = 9, heads = 4, kv_heads = 2, head_dim = 8, value_dim = 6;

/// One loss, sum upstream * attention(q, k, v), and its gradients.
struct model {
  std::vector<double> q, k, v, upstream;
  std::vector<float> sink_logits, bias;  // [heads], [heads, queries, keys]
  rope::attention_options options;

  static rope::head_view<double> of_queries(std::vector<double>& x, Index dim) {
    return rope::bshd(x.data(), batch, queries, heads, dim);
  }
  static rope::head_view<double> of_keys(std::vector<double>& x, Index dim) {
    return rope::bhsd(x.data(), batch, kv_heads, keys, dim);
  }

  explicit model(testing::random& numbers) {
    const auto fill = [&]<class T>(std::vector<T>& x, Index count) {
      for (Index n = 0; n < count; ++n) x.push_back(static_cast<T>(2 * numbers.unit() - 1));
    };
    fill(q, batch * queries * heads * head_dim);
    fill(k, batch * keys * kv_heads * head_dim);
    fill(v, batch * keys * kv_heads * value_dim);
    fill(upstream, batch * queries * heads * value_dim);
    fill(sink_logits, heads);
    fill(bias, heads * queries * keys);
  }

  std::vector<rope::attention_options> all_options() const {
    rope::attention_options everything = {
        .window = 5, .softcap = 1.2, .sinks = 1, .sink_logits = sink_logits};
    everything.bias = rope::score_matrix(bias.data(), 1, heads, queries, keys);
    everything.dropout = 0.3;
    everything.dropout_seed = 11;
    return {{},
            {.causal = false},
            {.scale = 1.3, .softcap = 0.9},
            {.window = 3},
            {.causal = false, .window = 2, .softcap = 2},
            everything};
  }

  /// `rotation` is empty, a table, or the tables of xPos.
  template <class... Rotation>
  std::vector<double> output(const Rotation&... rotation) {
    std::vector<double> out(upstream.size());
    const auto a = of_queries(q, head_dim), b = of_keys(k, head_dim), c = of_keys(v, value_dim),
               d = of_queries(out, value_dim);
    if constexpr (sizeof...(Rotation) == 0)
      rope::attention(a, b, c, d, options);
    else
      rope::attention<half_split>(a, b, c, d, rotation..., options);
    return out;
  }
  template <class... Rotation>
  double loss(const Rotation&... rotation) {
    const auto out = output(rotation...);
    double sum = 0;
    for (std::size_t n = 0; n < out.size(); ++n) sum += upstream[n] * out[n];
    return sum;
  }
};

/// Central differences of four values: the error is step^4 / 30 of a fifth derivative, below 1e4 for scores
/// and softcaps of order 1, plus 2^-52 of a loss of order 100, divided by the step.
constexpr double step = 1e-3, allowed = 1e-12 * 1e4 / 30 + 100 * 0x1p-52 / step;

double difference(double& value, const std::function<double()>& loss) {
  const double was = value;
  const auto at = [&](double by) {
    value = was + by;
    const double result = loss();
    value = was;
    return result;
  };
  return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
}

void check(std::vector<double>& values, const std::vector<double>& gradient,
           const std::function<double()>& loss) {
  for (std::size_t n = 0; n < values.size(); n += 7)
    CHECK_THAT(gradient[n], testing::WithinAbs(difference(values[n], loss), allowed));
}

/// Gradients with respect to the queries, keys and values of a model.
struct head_gradients {
  std::vector<double> q, k, v;
  explicit head_gradients(const model& m) : q(m.q.size()), k(m.k.size()), v(m.v.size()) {}
};

/// Computes these gradients, and compares them with differences of the loss.
template <class... Rotation>
void check_heads(model& m, head_gradients& d, const Rotation&... rotation) {
  auto out = m.output(rotation...);
  const auto tape =
      testing::tape(m.of_queries(m.q, head_dim), m.of_keys(m.k, head_dim), m.of_keys(m.v, value_dim),
                    m.of_queries(out, value_dim), m.of_queries(m.upstream, value_dim),
                    m.of_queries(d.q, head_dim), m.of_keys(d.k, head_dim), m.of_keys(d.v, value_dim));
  if constexpr (sizeof...(rotation) == 0)
    rope::attention_gradient(tape, m.options);
  else
    rope::attention_gradient<half_split>(tape, rotation..., m.options);
  const auto loss = [&] { return m.loss(rotation...); };
  check(m.q, d.q, loss);
  check(m.k, d.k, loss);
  check(m.v, d.v, loss);
}

}  // namespace

TEST_CASE("the backward pass is the derivative of the forward pass", "[attention]") {
  testing::random numbers(testing::seed());
  model m(numbers);
  head_gradients d(m);
  for (const rope::attention_options& options : m.all_options()) {
    m.options = options;
    check_heads(m, d);

    // Repeats this with the log-sum-exp that the forward pass writes.
    std::vector<double> sums(static_cast<std::size_t>(batch * queries * heads));
    m.options.log_sum_exp = sums;
    check_heads(m, d);
  }
}

TEST_CASE("the backward pass with a table gives gradients of unrotated heads and of the frequencies",
          "[attention]") {
  testing::random numbers(testing::seed());
  model m(numbers);
  head_gradients d(m);
  Eigen::ArrayXXd inv_freq(3, 1);  // rotary_dim 6 of 8
  inv_freq << 1.1, 0.4, 0.05;
  const auto table = [&] {
    return rope::frequency_table<double>(rope::frequencies::custom(inv_freq, 1.2), -10, 20);
  };
  for (const rope::attention_options& options : m.all_options()) {
    m.options = options;
    const auto rotation = table();
    check_heads(m, d, rotation);
    const auto q = m.of_queries(m.q, head_dim), k = m.of_keys(m.k, head_dim),
               by_q = m.of_queries(d.q, head_dim), by_k = m.of_keys(d.k, head_dim);
    const Eigen::ArrayXXd d_inv_freq =
        rope::inv_freq_gradient<half_split>(q, by_q, rotation, keys - queries) +
        rope::inv_freq_gradient<half_split>(k, by_k, rotation);
    // At distances up to 8 an angle changes by eight times the change of the frequency, so the step error
    // grows by 8^5.
    for (Index i = 0; i < 3; ++i)
      CHECK_THAT(
          d_inv_freq(i, 0),
          testing::WithinAbs(difference(inv_freq(i, 0), [&] { return m.loss(table()); }), 32768 * allowed));
  }
}

TEST_CASE("the backward pass with xPos gives gradients of the rates", "[attention]") {
  testing::random numbers(testing::seed());
  model m(numbers);
  head_gradients d(m);
  rope::xpos_growth growth = {.center = 4, .scale_base = 8, .rates = rope::xpos_rates(head_dim)};
  const auto tables = [&] { return rope::xpos<double>(rope::frequencies(head_dim), 12, growth); };
  for (const rope::attention_options& options : m.all_options()) {
    if (!options.causal) continue;
    m.options = options;
    const auto rotation = tables();
    check_heads(m, d, rotation);
    const auto q = m.of_queries(m.q, head_dim), k = m.of_keys(m.k, head_dim),
               by_q = m.of_queries(d.q, head_dim), by_k = m.of_keys(d.k, head_dim);
    const Eigen::ArrayXd d_rates =
        rope::rate_gradient<half_split>(rope::xpos_side::queries, q, by_q, rotation, keys - queries) +
        rope::rate_gradient<half_split>(rope::xpos_side::keys, k, by_k, rotation);
    for (Index i = 0; i < head_dim / 2; ++i)
      CHECK_THAT(d_rates(i),
                 testing::WithinAbs(difference(growth.rates(i), [&] { return m.loss(tables()); }), allowed));
  }
}
