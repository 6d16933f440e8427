// SPDX-License-Identifier: MIT
// Attention with a table placed in the head has the bits of attention to heads whose channels were rotated
// before.
#include <rope/attention/attention.hpp>
#include <rope/attention/gradient.hpp>
#include <rope/attention/weights.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/xpos.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index batch = 2, heads = 4, kv_heads = 2, head_dim = 20, value_dim = 12, rotary_dim = 8;

template <class T, class C = T>
struct operands {
  Index queries, keys;
  std::vector<T> q;
  std::vector<C> k, v;
  operands(Index n, Index m)
      : queries(n),
        keys(m),
        q(testing::random_channels<T>(batch * n * heads * head_dim, 5)),
        k(testing::random_channels<C>(batch * m * kv_heads * head_dim, 6)),
        v(testing::random_channels<C>(batch * m * kv_heads * value_dim, 7)) {}
  head_view<T> queries_view() { return bshd(q.data(), batch, queries, heads, head_dim); }
  head_view<C> keys_view() { return bhsd(k.data(), batch, kv_heads, keys, head_dim); }
  head_view<C> values_view() { return bshd(v.data(), batch, keys, kv_heads, value_dim); }
};

template <class T>
struct output {
  std::vector<T> memory;
  Index queries;
  explicit output(Index n)
      : memory(static_cast<std::size_t>(batch * n * heads * value_dim), static_cast<T>(-99)), queries(n) {}
  head_view<T> view() { return bshd(memory.data(), batch, queries, heads, value_dim); }
};

/// The operands with the rotated channels already rotated. Keys have the type of the queries.
template <class Layout, class T, class C, class S>
operands<T, T> rotated(const operands<T, C>& x, const placed_table<S>& queries, const placed_table<S>& keys) {
  operands<T, T> y(x.queries, x.keys);
  y.q = x.q;
  for (std::size_t i = 0; i < x.k.size(); ++i) y.k[i] = static_cast<T>(x.k[i]);
  for (std::size_t i = 0; i < x.v.size(); ++i) y.v[i] = static_cast<T>(x.v[i]);
  rotate<Layout>(y.queries_view().channels(queries.first_channel(), queries.table().rotary_dim()),
                 queries.table(), x.keys - x.queries);
  rotate<Layout>(y.keys_view().channels(keys.first_channel(), keys.table().rotary_dim()), keys.table());
  return y;
}

template <class Layout, class T, class C = T>
void check_attention(Index queries, Index keys) {
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const frequency_table<S> table(frequencies(rotary_dim, 50.0), keys), faster(frequencies(6, 10.0), keys);
  const placed_table<S> pairs[][2] = {{table.at_channel(0), table.at_channel(0)},
                                      {table.at_channel(5), table.at_channel(5)},
                                      {table.at_channel(12), table.at_channel(12)},
                                      {faster.at_channel(3), table.at_channel(9)}};
  const attention_options options = {.window = keys / 2 + 1, .softcap = 20, .sinks = 1};
  for (const auto& [of_queries, of_keys] : pairs) {
    CAPTURE(testing::name_of<Layout>, queries, keys, of_queries.first_channel(), of_keys.first_channel());
    operands<T, C> x(queries, keys);
    operands<T, T> y = rotated<Layout>(x, of_queries, of_keys);
    output<T> got(queries), expected(queries);
    attention(y.queries_view(), y.keys_view(), y.values_view(), expected.view(), options);
    attention<Layout>(x.queries_view(), x.keys_view(), x.values_view(), got.view(),
                      query_key_tables(of_queries, of_keys), options);
    CHECK(testing::same_bits(got.memory, expected.memory));
    if (of_queries.first_channel() == of_keys.first_channel()) {
      output<T> by_one(queries);
      attention<Layout>(x.queries_view(), x.keys_view(), x.values_view(), by_one.view(), of_keys, options);
      CHECK(testing::same_bits(by_one.memory, expected.memory));
    }
    if constexpr (std::is_same_v<T, C>) {
      const auto size = static_cast<std::size_t>(batch * heads * queries * keys);
      std::vector<S> weights(size), expected_weights(size);
      attention_weights<Layout>(x.queries_view(), x.keys_view(), weights,
                                query_key_tables(of_queries, of_keys), options);
      attention_weights(y.queries_view(), y.keys_view(), expected_weights, options);
      CHECK(testing::same_bits(weights, expected_weights));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("attention with a placed table has the bits of attention to channels rotated before",
                   "[attention]", float, double, Eigen::half, Eigen::bfloat16) {
  testing::for_each_layout([](auto layout) {
    check_attention<decltype(layout), TestType>(1, 70);
    check_attention<decltype(layout), TestType>(37, 37);
  });
}

TEST_CASE("16-bit keys are rotated after they are converted to float", "[attention]") {
  testing::for_each_layout([](auto layout) {
    check_attention<decltype(layout), float, Eigen::bfloat16>(2, 70);
    check_attention<decltype(layout), float, Eigen::half>(33, 40);
  });
}

TEMPLATE_TEST_CASE("gradients with a placed table are those of channels rotated before", "[attention]", float,
                   double) {
  using T = TestType;
  const Index n = 19;
  const frequency_table<T> table(frequencies(rotary_dim, 50.0), n);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    for (const Index first : {0, 7, 12}) {
      CAPTURE(testing::name_of<Layout>, first);
      const auto placed = table.at_channel(first);
      operands<T> x(n, n), d(n, n), y = rotated<Layout>(x, placed, placed), d_rotated(n, n);
      output<T> out(n), d_out(n);
      d_out.memory = testing::random_channels<T>(batch * n * heads * value_dim, 8);
      attention(y.queries_view(), y.keys_view(), y.values_view(), out.view());
      const auto tape = [&](operands<T>& of, operands<T>& gradients) {
        return attention_tape<T>{.q = of.queries_view(),
                                 .k = of.keys_view(),
                                 .v = of.values_view(),
                                 .out = out.view(),
                                 .d_out = d_out.view(),
                                 .d_q = gradients.queries_view(),
                                 .d_k = gradients.keys_view(),
                                 .d_v = gradients.values_view()};
      };
      attention_gradient<Layout>(tape(x, d), placed);
      attention_gradient(tape(y, d_rotated));
      rotate_gradient<Layout>(d_rotated.queries_view().channels(first, rotary_dim), table);
      rotate_gradient<Layout>(d_rotated.keys_view().channels(first, rotary_dim), table);
      CHECK(testing::same_bits(d.q, d_rotated.q));
      CHECK(testing::same_bits(d.k, d_rotated.k));
      CHECK(testing::same_bits(d.v, d_rotated.v));
    }
  });
}

TEST_CASE("both tables of xPos can be placed, and stay causal", "[attention]") {
  const Index n = 24;
  const xpos<float> tables(frequencies(rotary_dim), n, {.center = 12, .scale_base = 16});
  operands<float> x(n, n);
  auto y = rotated<half_split>(x, tables.queries().at_channel(9), tables.keys().at_channel(9));
  output<float> got(n), expected(n);
  attention(y.queries_view(), y.keys_view(), y.values_view(), expected.view());
  attention<half_split>(x.queries_view(), x.keys_view(), x.values_view(), got.view(), tables.at_channel(9));
  CHECK(testing::same_bits(got.memory, expected.memory));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        attention<half_split>(x.queries_view(), x.keys_view(), x.values_view(), got.view(),
                              tables.at_channel(9), {.causal = false});
      },
      "xPos needs causal attention"));
}

TEST_CASE("attention throws if the rotated channels exceed the head, and writes nothing", "[attention]") {
  const frequency_table<float> table(frequencies(rotary_dim), 9);
  operands<float> x(9, 9);
  output<float> out(9);
  const output<float> before = out;
  for (const Index first : {Index{13}, std::numeric_limits<Index>::max()}) {
    const auto call = [&] {
      attention<half_split>(x.queries_view(), x.keys_view(), x.values_view(), out.view(),
                            table.at_channel(first));
    };
    CHECK(throws_saying<std::invalid_argument>(call, "attention: the rotated channels must lie in the head",
                                               "of 20 channels, got 8 channels from channel"));
  }
  CHECK(testing::same_bits(out.memory, before.memory));
}
