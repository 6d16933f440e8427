// SPDX-License-Identifier: MIT
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/cache/attention.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_reference.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace attention_call;
using reference::attention_rule;

namespace {

const std::vector<attention_rule> masks = {
    {.causal = true, .window = 0},    {.causal = true, .window = 1},    {.causal = true, .window = 3},
    {.causal = true, .window = 64},   {.causal = true, .window = 1000}, {.causal = false, .window = 0},
    {.causal = false, .window = 1},   {.causal = false, .window = 3},   {.causal = false, .window = 64},
    {.causal = false, .window = 1000}};

struct grouping {
  long heads, kv_heads;
};

}  // namespace

TEST_CASE("attention follows its definition for every length, grouping and mask", "[attention]") {
  const auto [heads, kv_heads] = GENERATE(grouping{1, 1}, grouping{4, 2}, grouping{6, 2}, grouping{8, 1});
  const long queries = GENERATE(1, 2, 7, 64, 65, 130), keys = GENERATE(1, 2, 7, 64, 65, 130);
  const std::uint32_t seed = 11;
  CAPTURE(heads, kv_heads, queries, keys, seed);
  std::mt19937 generator(seed);
  const operands x =
      random_operands<float>(generator, {1 + queries % 2, queries, keys, heads, kv_heads, 2, 3});
  for (const attention_rule& rule : masks) {
    CAPTURE(rule.causal, rule.window);
    CHECK(attention_error<float>(x, rule, attention<float>(x, rule)) <= 1);
  }
}

TEMPLATE_TEST_CASE("attention follows its definition for every channel type, head_dim, scale and softcap",
                   "[attention]", float, double, Eigen::half, Eigen::bfloat16) {
  const long dim = GENERATE(1, 2, 17, 64, 128), queries = GENERATE(1, 7, 65);
  const std::uint32_t seed = 12;
  CAPTURE(dim, queries, seed);
  std::mt19937 generator(seed);
  for (const long value_dim : {dim + 3, 1L})
    for (const double scale : {0.0, 0.3, -1.5})
      for (const double softcap : {0.0, 2.0}) {
        CAPTURE(value_dim, scale, softcap);
        const operands x = random_operands<TestType>(generator, {1, queries, 66, 2, 1, dim, value_dim});
        const attention_rule rule = {.scale = scale, .softcap = softcap};
        CHECK(attention_error<TestType>(x, rule, attention<TestType>(x, rule)) <= 1);
      }
}

TEST_CASE("by default attention is causal, without window or softcap, and scaled by 1 / sqrt(head_dim)",
          "[attention]") {
  std::mt19937 generator(14);
  const operands x = random_operands<float>(generator, {1, 5, 9, 2, 1, 16, 4});
  const tensor got = output_of<float>(
      x, axes::bshd, [](auto q, auto k, auto v, auto out) { rope::attention(q, k, v, out); });
  CHECK(same_bits(got, attention<float>(x, {.scale = 0.25, .causal = true, .window = 0, .softcap = 0})));
}

TEST_CASE("neighbouring query heads share a key head", "[attention]") {
  // One key, so the output is its value: the number of its head.
  operands x = {tensor(1, 1, 6, 2, 1), tensor(1, 1, 2, 2, 1), tensor(1, 1, 2, 1)};
  x.v(0, 0, 1, 0) = 1;
  CHECK(attention<float>(x, {}).values == std::vector<double>{0, 0, 0, 1, 1, 1});
}

TEMPLATE_TEST_CASE("the order of the axes in memory does not change the result", "[attention]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 15;
  CAPTURE(seed);
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 7, 66), keys = GENERATE(1, 67);
  const operands x = random_operands<TestType>(generator, {2, queries, keys, 6, 2, 17, 9});
  const attention_rule rule = {.window = 30};
  const tensor expected = attention<TestType>(x, rule);
  CHECK(attention_error<TestType>(x, rule, expected) <= 1);
  CHECK(same_bits(attention<TestType>(x, rule, axes::bhsd), expected));
  CHECK(same_bits(attention<TestType>(x, rule, axes::sbhd), expected));

  // Each operand has its own order of axes.
  const auto q = stored<TestType>(x.q, axes::bhsd), k = stored<TestType>(x.k, axes::sbhd),
             v = stored<TestType>(x.v);
  const tensor shape(2, queries, 6, 9, unwritten);
  std::vector<TestType> out = stored<TestType>(shape, axes::sbhd);
  const std::vector<std::int64_t> positions = positions_before_keys(queries, keys);
  rope::attention_options options = options_of(rule);
  options.query_positions = positions;
  rope::attention(view(q, x.q, axes::bhsd), view(k, x.k, axes::sbhd), view(v, x.v),
                  view(out, shape, axes::sbhd), options);
  CHECK(same_bits(loaded(out, shape, axes::sbhd), expected));
}

TEST_CASE("Eigen tensors, matrices and ragged tokens are views like any other", "[attention]") {
  std::mt19937 generator(16);
  operands x = random_operands<float>(generator, {1, 5, 9, 4, 2, 8, 6});
  const tensor expected = attention<float>(x, {});

  const auto tensor_of = [](const tensor& from) {
    Eigen::Tensor<float, 4> to(from.dim, from.heads, from.tokens, from.batch);
    for_each_element(
        from, [&](long b, long t, long h, long d) { to(d, h, t, b) = static_cast<float>(from(b, t, h, d)); });
    return to;
  };
  const Eigen::Tensor<float, 4> q = tensor_of(x.q), k = tensor_of(x.k), v = tensor_of(x.v);
  Eigen::Tensor<float, 4> out = tensor_of(tensor(1, 5, 4, 6, unwritten));
  rope::attention(rope::dhsb(q), rope::dhsb(k), rope::dhsb(v), rope::dhsb(out));
  CHECK(same_bits(std::vector<float>(out.data(), out.data() + out.size()), stored<float>(expected)));

  std::fill_n(out.data(), out.size(), float(unwritten));
  rope::attention(rope::thd(q.data(), 5, 4, 8), rope::thd(k.data(), 9, 2, 8), rope::thd(v.data(), 9, 2, 6),
                  rope::thd(out.data(), 5, 4, 6));
  CHECK(same_bits(std::vector<float>(out.data(), out.data() + out.size()), stored<float>(expected)));

  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const matrix mq = matrix::Map(q.data(), 5, 32), mk = matrix::Map(k.data(), 9, 16),
               mv = matrix::Map(v.data(), 9, 12);
  matrix mout = matrix::Constant(5, 24, float(unwritten));
  rope::attention(rope::thd(mq, 4), rope::thd(mk, 2), rope::thd(mv, 2), rope::thd(mout, 4));
  CHECK(same_bits(std::vector<float>(mout.data(), mout.data() + mout.size()), stored<float>(expected)));
}

TEST_CASE("an output that overlaps keys or values throws", "[attention]") {
  std::vector<float> memory(2 * 64 * 8, 1.0f);
  const std::vector<float> before = memory;
  const rope::frequency_table table(rope::frequencies(8), 64);
  std::vector<float> queries(64 * 8, 1.0f);
  const auto q = rope::thd(queries.data(), 64, 1, 8), k = rope::thd(memory.data(), 64, 1, 8),
             v = rope::thd(memory.data() + 64 * 8, 64, 1, 8);
  const auto rejected = [](const auto& call) {
    return testing::throws_saying<std::invalid_argument>(
        call, "rope::attention: out must not share memory with k or v, which are read after out is written");
  };
  CHECK(rejected([&] { rope::attention(q, k, v, k); }));
  CHECK(rejected([&] { rope::attention(q, k, v, v); }));
  CHECK(rejected([&] { rope::attention(q, k, v, rope::thd(memory.data() + 32 * 8, 64, 1, 8)); }));
  CHECK(rejected([&] { rope::attention<rope::half_split>(q, k, v, v, table); }));
  CHECK(rejected([&] {  // heads of one packed buffer
    const auto packed = rope::thd(memory.data(), 16, 8, 8);
    rope::attention(q.token_range(0, 16), packed.head_range(2, 1), packed.head_range(4, 1),
                    packed.head_range(4, 1));
  }));
  const rope::head_view<float> expanded = {queries.data(), 1, 64, 1, 8, 0, 0, 8};
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::attention(q, k, v, expanded); },
      "rope::attention: the channels of a view that is written must not overlap, got a stride of 0"));
  CHECK(memory == before);
  CHECK_NOTHROW(rope::attention(q, k, v, q));
}

TEST_CASE("an output that overlaps the queries throws unless both are one view", "[attention]") {
  std::vector<float> memory(4 * 64 * 8, 1.0f), other(64 * 8, 1.0f);
  const std::vector<float> before = memory;
  const rope::frequency_table table(rope::frequencies(8), 64);
  const auto q = rope::bshd(memory.data(), 1, 16, 4, 8),
             in_other_order = rope::bhsd(memory.data(), 1, 4, 16, 8),
             k = rope::thd(other.data(), 64, 1, 8).token_range(0, 16);
  rope::kv_cache<float> cache(1, 16, 1, 8);
  cache.append(k, k);
  std::vector<std::int8_t> integers(16 * 8, 1);
  std::vector<float> scales(16, 1.0f);
  const auto rounded = rope::bshd(integers.data(), scales.data(), 1, 16, 1, 8);
  const auto rejected = [](const auto& call) {
    return testing::throws_saying<std::invalid_argument>(
        call,
        "rope::attention: out overlaps q but is not the same view; pass q itself as out, or separate memory");
  };
  for (const auto& out : {in_other_order, rope::bshd(memory.data() + 32, 1, 16, 4, 8),
                          rope::bshd(memory.data() + 1, 1, 16, 4, 8)}) {
    CHECK(rejected([&] { rope::attention(q, k, k, out); }));
    CHECK(rejected([&] { rope::attention<rope::half_split>(q, k, k, out, table); }));
    CHECK(rejected([&] { rope::attention(q, rounded, rounded, out); }));
    CHECK(rejected([&] { rope::attention(q, cache, out); }));
  }
  const auto wide = rope::bshd(memory.data(), 1, 16, 4, 16);  // channels next to each other
  CHECK(rejected([&] { rope::attention(wide.channels(0, 8), k, k, wide.channels(4, 8)); }));
  CHECK(memory == before);
  CHECK_NOTHROW(rope::attention(wide.channels(0, 8), k, k, wide.channels(8, 8)));
  CHECK_NOTHROW(rope::attention(q, cache, q));
}

TEMPLATE_TEST_CASE("views into larger buffers are read and written, and nothing around them is",
                   "[attention]", float, double, Eigen::half, Eigen::bfloat16) {
  std::mt19937 generator(17);
  const long queries = GENERATE(1, 7, 66);
  const axes order = GENERATE(axes::bshd, axes::bhsd, axes::sbhd);
  const operands x = random_operands<TestType>(generator, {2, queries, 67, 4, 2, 17, 9});
  const double around = 60000;  // close to the largest half: it would dominate every result

  const auto framed = [&](const tensor& inner) {
    tensor frame(inner.batch, inner.tokens + 3, inner.heads + 2, inner.dim + 5, around);
    for_each_element(
        inner, [&](long b, long t, long h, long d) { frame(b, t + 2, h + 1, d + 3) = inner(b, t, h, d); });
    return frame;
  };
  const auto window = [](auto whole) {
    return whole.token_range(2, whole.tokens - 3)
        .head_range(1, whole.heads - 2)
        .channels(3, whole.head_dim - 5);
  };
  const tensor q = framed(x.q), k = framed(x.k), v = framed(x.v);
  const tensor before = framed(tensor(2, queries, 4, 9, unwritten));
  const auto qm = stored<TestType>(q, order), km = stored<TestType>(k, order),
             vm = stored<TestType>(v, order);
  auto om = stored<TestType>(before, order);
  rope::attention(window(view(qm, q, order)), window(view(km, k, order)), window(view(vm, v, order)),
                  window(view(om, before, order)));
  CHECK(same_bits(om, stored<TestType>(framed(attention<TestType>(x, {})), order)));
}

TEST_CASE("queries may be overwritten by the output", "[attention]") {
  std::mt19937 generator(18);
  const operands x = random_operands<float>(generator, {2, 70, 75, 6, 2, 16, 16});
  const auto k = stored<float>(x.k), v = stored<float>(x.v);
  auto q = stored<float>(x.q);
  rope::attention(view(q, x.q), view(k, x.k), view(v, x.v), view(q, x.q));
  CHECK(same_bits(loaded(q, x.q), attention<float>(x, {})));
}

TEST_CASE("extents of zero are accepted", "[attention]") {
  std::mt19937 generator(19);
  const extents e =
      GENERATE(extents{0, 3, 3, 2, 1, 4, 4}, extents{1, 0, 3, 2, 1, 4, 4}, extents{1, 3, 0, 2, 1, 4, 4},
               extents{1, 3, 3, 0, 1, 4, 4}, extents{1, 3, 3, 0, 0, 4, 4}, extents{1, 3, 3, 2, 1, 0, 4},
               extents{1, 3, 3, 2, 1, 4, 0}, extents{0, 0, 0, 0, 0, 0, 0}, extents{1, 30, 30, 2, 1, 0, 4});
  const bool causal = GENERATE(true, false);
  CAPTURE(e.batch, e.queries, e.keys, e.heads, e.kv_heads, e.dim, e.value_dim, causal);
  const operands x = random_operands<float>(generator, e);
  const tensor got = attention<float>(x, {.causal = causal});
  // Without channels every score is 0, so the output is the mean of the visible values. Without keys it is 0.
  CHECK(attention_error<float>(x, {.causal = causal}, got) <= 1);
}

namespace {

/// Operands that fit together. Each case below makes one of them invalid.
struct call {
  std::vector<float> q, k, v, out;
  rope::head_view<const float> q_view, k_view, v_view;
  rope::head_view<float> out_view;
  rope::attention_options options;

  call()
      : q(2 * 3 * 6 * 4, 1),
        k(2 * 5 * 2 * 4, 1),
        v(2 * 5 * 2 * 7, 1),
        out(2 * 3 * 6 * 7, float(unwritten)),
        q_view(rope::bshd(q.data(), 2, 3, 6, 4)),
        k_view(rope::bshd(k.data(), 2, 5, 2, 4)),
        v_view(rope::bshd(v.data(), 2, 5, 2, 7)),
        out_view(rope::bshd(out.data(), 2, 3, 6, 7)) {}

  call(const call&) = delete;

  void must_fail(const std::string& rule) const {
    CAPTURE(rule);
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention(q_view, k_view, v_view, out_view, options); }, "attention: " + rule));
    CHECK(out == std::vector<float>(out.size(), float(unwritten)));
  }
};

}  // namespace

TEST_CASE("mismatched shapes throw, the message names them, and nothing is written", "[attention]") {
  const auto fails = [](const char* rule, auto change) {
    call c;
    change(c);
    c.must_fail(rule);
  };
  fails("q and k must have the same batch, got 1 and 2", [](call& c) { c.q_view.batch = 1; });
  fails("q and k must have the same batch, got 2 and 1", [](call& c) { c.k_view.batch = 1; });
  fails("k and v must have the same batch, got 2 and 1", [](call& c) { c.v_view.batch = 1; });
  fails("q and out must have the same batch, got 2 and 1", [](call& c) { c.out_view.batch = 1; });
  fails("k and v must have the same tokens, got 4 and 5", [](call& c) { c.k_view.tokens = 4; });
  fails("k and v must have the same tokens, got 5 and 4", [](call& c) { c.v_view.tokens = 4; });
  fails("q and out must have the same tokens, got 3 and 2", [](call& c) { c.out_view.tokens = 2; });
  fails("k and v must have the same heads, got 2 and 1", [](call& c) { c.v_view.heads = 1; });
  fails("q and out must have the same heads, got 6 and 4", [](call& c) { c.out_view.heads = 4; });
  fails("q and k must have the same head_dim, got 3 and 4", [](call& c) { c.q_view.head_dim = 3; });
  fails("v and out must have the same head_dim, got 7 and 6", [](call& c) { c.out_view.head_dim = 6; });
  fails("q.heads must be a multiple of k.heads, got 5 and 2",
        [](call& c) { c.q_view.heads = c.out_view.heads = 5; });
  fails("q.heads must be a multiple of k.heads, got 1 and 2",
        [](call& c) { c.q_view.heads = c.out_view.heads = 1; });
  fails("q.heads must be a multiple of k.heads, got 6 and 0",
        [](call& c) { c.k_view.heads = c.v_view.heads = 0; });
  fails("the extents of a view must not be negative, got [2, -3, 6, 4]",
        [](call& c) { c.q_view.tokens = -3; });
  fails("the extents of a view must not be negative, got [-1, 5, 2, 4]",
        [](call& c) { c.k_view.batch = -1; });
  fails("the extents of a view must not be negative, got [2, 5, -2, 7]",
        [](call& c) { c.v_view.heads = -2; });
  fails("the extents of a view must not be negative, got [2, 3, 6, -7]",
        [](call& c) { c.out_view.head_dim = -7; });
}

TEST_CASE("invalid options throw, the message names them, and nothing is written", "[attention]") {
  const auto fails = [](const char* rule, const rope::attention_options& options) {
    call c;
    c.options = options;
    c.must_fail(rule);
  };
  fails("window must not be negative, got -1", {.window = -1});
  fails("scale must be finite and softcap finite and not negative, got 0 and -2", {.softcap = -2});
  // Beyond these limits the arithmetic would divide by zero or multiply by infinity.
  const char* range = "scale and softcap must be 0 or of a magnitude in [2^-126, 2^126], got ";
  for (const double bad : {1e-50, 1e-39, 1e38, 1e40, 1e300}) {
    fails(range, {.scale = bad});
    fails(range, {.scale = -bad});
    fails(range, {.softcap = bad});
  }
#if !defined(__FAST_MATH__)
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  fails("scale must be finite and softcap finite and not negative, got inf and 0", {.scale = infinity});
  fails("scale must be finite and softcap finite and not negative, got nan and 0", {.scale = nan});
  fails("scale must be finite and softcap finite and not negative, got 1 and inf",
        {.scale = 1, .softcap = infinity});
  fails("scale must be finite and softcap finite and not negative, got 1 and nan",
        {.scale = 1, .softcap = nan});
#endif
}

TEMPLATE_TEST_CASE("the smallest and the largest softcap give finite results", "[attention]", float, double) {
  // With scale = 1 / sqrt(2) these are the smallest and the largest softcap that do not throw.
  const double smallest = std::sqrt(static_cast<double>(std::numeric_limits<TestType>::min()));
  std::vector<TestType> x = {TestType(0.5), TestType(-1), TestType(2), TestType(3)}, out(4);
  const auto tokens = rope::thd(x.data(), 2, 1, 2);
  for (const double softcap : {smallest, 0.5 / smallest}) {
    rope::attention(tokens, tokens, tokens, rope::thd(out.data(), 2, 1, 2), {.softcap = softcap});
    CAPTURE(softcap);
    for (const TestType value : out) CHECK((value >= TestType(-1) && value <= TestType(3)));
    CHECK(out[0] == x[0]);
  }
}

TEST_CASE("a row, token or head that is alone may have any stride", "[attention]") {
  // The undefined-behaviour sanitizer reports a pointer that such a stride is added to.
  constexpr rope::Index far = std::numeric_limits<rope::Index>::min() / 8;
  const rope::frequency_table<float> table(rope::frequencies(8), 40);
  const std::vector<float> x(40 * 8, 0.5f);
  const auto [queries, keys] = GENERATE(std::pair{1L, 1L}, std::pair{1L, 40L}, std::pair{40L, 40L});
  CAPTURE(queries, keys);
  const rope::head_view<const float> q = {x.data(), 1, queries, 1, 8, far, queries == 1 ? far : 8, far},
                                     k = {x.data(), 1, keys, 1, 8, far, keys == 1 ? far : 8, far};
  std::vector<float> got(static_cast<std::size_t>(8 * queries)), expected = got;
  const rope::head_view<float> out = {got.data(), 1, queries, 1, 8, far, queries == 1 ? far : 8, far};
  rope::attention<rope::half_split>(q, k, k, out, table);
  const auto plain = [&](long tokens) { return rope::bshd(x.data(), 1, tokens, 1, 8); };
  rope::attention<rope::half_split>(plain(queries), plain(keys), plain(keys),
                                    rope::bshd(expected.data(), 1, queries, 1, 8), table);
  CHECK(testing::same_bits(got, expected));
}

TEST_CASE("a table with coordinates for every token of a batch needs positions", "[attention]") {
  using rope::half_split;
  const rope::frequency_table<> table(
      rope::axial(rope::frequencies(4), 2),
      Eigen::Matrix<int, 6, 2>{{0, 0}, {0, 1}, {1, 0}, {3, 3}, {2, 5}, {7, 4}});
  auto q = testing::random_channels<float>(6 * 8, 1), k = testing::random_channels<float>(6 * 8, 2);
  const auto v = testing::random_channels<float>(6 * 8, 3);
  std::vector<float> out(6 * 8, -1), expected(6 * 8);
  const auto view = [](auto& x) { return rope::bshd(x.data(), 2, 3, 1, 8); };
  const auto rejected = [&](const rope::attention_options& options, const char* text) {
    return testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention<half_split>(view(q), view(k), view(v), view(out), table, options); },
        "rope::attention: ", text);
  };
  const std::vector<std::int64_t> rows = {0, 1, 2, 3, 4, 5};
  const char* const rule =
      "the table has coordinates for 2 rows of 3 tokens, and without positions every row "
      "would get those of the first; give query_positions and key_positions, b * tokens + "
      "t for token t of row b";
  CHECK(rejected({}, rule));
  CHECK(rejected({.query_positions = rows}, rule));
  CHECK(rejected({.key_positions = rows}, rule));
  CHECK(rejected({.query_positions = rows, .key_positions = rows, .queries_are_rotated = true},
                 "the table rotates q, so queries_are_rotated must be false, got true"));
  CHECK(out == std::vector<float>(out.size(), -1));
  rope::attention<half_split>(view(q), view(k), view(v), view(out), table,
                              {.query_positions = rows, .key_positions = rows});
  rope::rotate<half_split>(view(q), view(k), table, rows);
  rope::attention(view(q), view(k), view(v), view(expected));
  CHECK(out == expected);
}

TEST_CASE("positions from which a table was made throw if attention gets them again", "[attention]") {
  using rope::half_split;
  const std::vector<std::int64_t> ids = {0, 0, 1, 2}, others = {3, 2, 1, 0};  // one token of padding
  const rope::frequency_table<> table(rope::frequencies(8),
                                      Eigen::Map<const Eigen::Matrix<std::int64_t, 4, 1>>(ids.data()));
  const auto x = testing::random_channels<float>(4 * 8, 1);
  std::vector<float> out(4 * 8, -1);
  const auto heads = rope::thd(x.data(), 4, 1, 8);
  const auto result = rope::thd(out.data(), 4, 1, 8);
  const auto rejected = [&](const rope::attention_options& options) {
    const char* const rule =
        "the table was made of these ids, its row r of id number r; leave the ids out, or take a table of "
        "positions, got id 0 for row 0";
    return testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention<half_split>(heads, heads, heads, result, table, options); },
        "rope::attention: ", rule);
  };
  CHECK(rejected({.query_positions = ids, .key_positions = ids}));
  CHECK(rejected({.query_positions = ids}));
  CHECK(rejected({.key_positions = ids}));
  CHECK(out == std::vector<float>(4 * 8, -1));
  CHECK_NOTHROW(rope::attention<half_split>(heads, heads, heads, result, table,
                                            {.query_positions = others, .key_positions = others}));
  CHECK_NOTHROW(rope::attention<half_split>(heads, heads, heads, result, table));
}
