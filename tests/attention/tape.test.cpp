// SPDX-License-Identifier: MIT
#include <rope/attention/tape.hpp>

#include <rope/attention/attention.hpp>
#include <rope/attention/gradient.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

using rope::bshd;
using rope::Index;

TEST_CASE("the backward pass takes its views by name, in any order", "[attention]") {
  testing::random numbers(testing::seed());
  const Index tokens = 5, dim = 4;
  std::vector<double> q(tokens * dim), k(q.size()), v(q.size()), d_out(q.size()), out(q.size()),
      d_q(q.size()), d_k(q.size()), d_v(q.size()), expected(q.size());
  for (auto* x : {&q, &k, &v, &d_out})
    for (double& number : *x) number = numbers.scaled(-3, 0);
  const auto view = [&](std::vector<double>& x) { return bshd(x.data(), 1, tokens, 1, dim); };
  const rope::attention_options options = {.causal = false};
  rope::attention(view(q), view(k), view(v), view(out), options);
  rope::attention_tape<double> tape;
  tape.d_v = view(d_v);
  tape.d_k = view(d_k);
  tape.d_q = view(d_q);
  tape.d_out = view(d_out);
  tape.out = view(out);
  tape.v = view(v);
  tape.k = view(k);
  tape.q = view(q);
  CHECK(tape.group() == 1);
  rope::attention_gradient(tape, options);
  // A step of 2^-20 along one number of k, and of v. The loss is linear in v, and its third derivative in k
  // is below 1.
  const double step = 0x1p-20;
  const auto loss = [&] {
    std::vector<double> y(q.size());
    rope::attention(view(q), view(k), view(v), view(y), options);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * d_out[i];
    return sum;
  };
  const auto slope = [&](double& number) {
    const double before = number;
    number = before + step;
    const double above = loss();
    number = before - step;
    const double below = loss();
    number = before;
    return (above - below) / (2 * step);
  };
  // Twenty sums of at most 4 |v| |d_out| <= 4, each rounded about 100 times, divided by a step of 2^-19.
  const double allowed = step * step + 20 * 4 * 100 * 0x1p-53 / (2 * step);
  for (std::size_t i = 0; i < q.size(); ++i) {
    CHECK_THAT(d_q[i], testing::WithinAbs(slope(q[i]), allowed));
    CHECK_THAT(d_k[i], testing::WithinAbs(slope(k[i]), allowed));
    CHECK_THAT(d_v[i], testing::WithinAbs(slope(v[i]), allowed));
  }
}

TEST_CASE("gradients that share memory with another view of the tape throw, and nothing is written",
          "[attention]") {
  const Index tokens = 5, dim = 4;
  enum place { d_q, d_k, d_v, q, k, v, out, d_out };
  const char* names[] = {"d_q", "d_k", "d_v", "q", "k", "v", "out", "d_out"};
  for (const place first : {d_q, d_k, d_v})
    for (int second = first + 1; second <= d_out; ++second) {
      CAPTURE(names[first], names[second]);
      std::vector<float> memory(8 * tokens * dim, 1.0f);
      const std::vector<float> before = memory;
      // Views of 5 tokens in one array, of which the two have the last token of one and the first of the
      // other in common.
      const auto view = [&](int of) {
        const Index begin = of == second ? (first + 1) * tokens - 1 : of * tokens;
        return bshd(memory.data() + begin * dim, 1, tokens, 1, dim);
      };
      std::vector<float> apart(8 * tokens * dim);
      const auto place_of = [&](int of) {
        return of == first || of == second ? view(of)
                                           : bshd(apart.data() + of * tokens * dim, 1, tokens, 1, dim);
      };
      const rope::attention_tape<float> tape{.q = place_of(q),
                                             .k = place_of(k),
                                             .v = place_of(v),
                                             .out = place_of(out),
                                             .d_out = place_of(d_out),
                                             .d_q = place_of(d_q),
                                             .d_k = place_of(d_k),
                                             .d_v = place_of(d_v)};
      CHECK_THROWS_WITH(
          rope::attention_gradient(tape),
          testing::ContainsSubstring(std::string("each gradient must have memory of its own, got ") +
                                     names[first] + " and " + names[second]));
      CHECK(memory == before);
      CHECK(apart == std::vector<float>(apart.size()));
    }
}

TEST_CASE("gradients in one array with q, k and v side by side have the bits of separate arrays",
          "[attention]") {
  testing::random numbers(testing::seed());
  const Index batch = 2, tokens = 5, heads = 4, kv_heads = 2, dim = 3, all = heads + 2 * kv_heads;
  std::vector<double> x(batch * tokens * all * dim), packed(x.size(), -77), separate(x.size(), -77),
      out(batch * tokens * heads * dim), d_out(out.size());
  for (auto* of : {&x, &d_out})
    for (double& number : *of) number = numbers.scaled(-3, 0);
  const auto in = [&](std::vector<double>& of) { return bshd(of.data(), batch, tokens, all, dim); };
  const auto heads_of = [&](std::vector<double>& of) { return bshd(of.data(), batch, tokens, heads, dim); };
  const auto q = in(x).head_range(0, heads), k = in(x).head_range(heads, kv_heads),
             v = in(x).head_range(heads + kv_heads, kv_heads);
  rope::attention(q, k, v, heads_of(out));
  rope::attention_tape<double> tape{.q = q,
                                    .k = k,
                                    .v = v,
                                    .out = heads_of(out),
                                    .d_out = heads_of(d_out),
                                    .d_q = in(packed).head_range(0, heads),
                                    .d_k = in(packed).head_range(heads, kv_heads),
                                    .d_v = in(packed).head_range(heads + kv_heads, kv_heads)};
  rope::attention_gradient(tape);
  const Index size = batch * tokens * kv_heads * dim;
  tape.d_q = heads_of(separate);
  tape.d_k = bshd(separate.data() + 2 * size, batch, tokens, kv_heads, dim);
  tape.d_v = bshd(separate.data() + 3 * size, batch, tokens, kv_heads, dim);
  const auto apart_q = tape.d_q, apart_k = tape.d_k, apart_v = tape.d_v;
  rope::attention_gradient(tape);
  CHECK(testing::same_heads(in(packed).head_range(0, heads), apart_q));
  CHECK(testing::same_heads(in(packed).head_range(heads, kv_heads), apart_k));
  CHECK(testing::same_heads(in(packed).head_range(heads + kv_heads, kv_heads), apart_v));
}
