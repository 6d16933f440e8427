// SPDX-License-Identifier: MIT
// A rule for several numbers is broken by each of them alone, and throws each time: of a condition with four
// parts, only the parts that a test breaks are tested.
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_parts.hpp"
#include "support/tape.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index batch = 2, tokens = 3, heads = 4, head_dim = 6;

/// Memory for views that are larger by one in any extent.
struct memory {
  std::vector<float> x =
      std::vector<float>(std::size_t((batch + 1) * (tokens + 1) * (heads + 1) * (head_dim + 1)), 7);

  head_view<float> view() { return bshd(x.data(), batch, tokens, heads, head_dim); }
  /// The n-th extent one larger.
  head_view<float> grown(int n) {
    return bshd(x.data(), batch + (n == 0), tokens + (n == 1), heads + (n == 2), head_dim + (n == 3));
  }
  bool untouched() const { return x == std::vector<float>(x.size(), 7); }
};

/// Calls call(extent) for every extent: each throws with `text`, and nothing is written.
template <class Call>
void check_every_extent(const char* text, const memory& written, const Call& call, int extents = 4) {
  for (int n = 0; n < extents; ++n) {
    CAPTURE(text, n);
    CHECK(throws_saying<std::invalid_argument>([&] { call(n); }, text));
    CHECK(written.untouched());
  }
}

}  // namespace

TEST_CASE("two outputs that differ in any extent are not merged", "[library]") {
  memory a, b;
  std::vector<double> sums(200), others(200);
  check_every_extent("merge_attention: the outputs must have the same shape", a, [&](int n) {
    merge_attention(a.view(), std::span<double>(sums), b.grown(n), std::span<const double>(others));
  });
}

TEST_CASE("integers that differ from their heads in any extent throw", "[library]") {
  memory x;
  std::vector<std::int8_t> integers(x.x.size(), 99);
  std::vector<float> scales(x.x.size(), 7);
  const auto narrow = bshd(integers.data(), scales.data(), batch, tokens, heads, head_dim);
  check_every_extent("both views must have the same shape", x, [&](int n) { quantize(x.grown(n), narrow); });
  check_every_extent("both views must have the same shape", x,
                     [&](int n) { dequantize(narrow, x.grown(n)); });
  CHECK(integers == std::vector<std::int8_t>(integers.size(), 99));
}

TEST_CASE("gradients that differ in any extent from their operands throw", "[library]") {
  memory x, d;
  check_every_extent("d_q must be [2, 3, 4, 6]", d, [&](int n) {
    attention_gradient(
        testing::tape(x.view(), x.view(), x.view(), x.view(), x.view(), d.grown(n), d.view(), d.view()));
  });
  check_every_extent("d_v must be [2, 3, 4, 6]", d, [&](int n) {
    attention_gradient(
        testing::tape(x.view(), x.view(), x.view(), x.view(), x.view(), d.view(), d.view(), d.grown(n)));
  });
  const frequency_table<float> table(frequencies(head_dim), 10);
  check_every_extent("inv_freq_gradient", x,
                     [&](int n) { inv_freq_gradient<half_split>(x.view(), d.grown(n), table); });
}

TEST_CASE("an output of pope that differs in any extent throws", "[library]") {
  memory x, out;
  const frequency_table<float> table(pope_frequencies(1), 10);  // adds one channel
  check_every_extent("pope: out must be", out, [&](int n) {
    auto to = out.grown(n);
    if (n < 3) to = to.channels(0, head_dim);  // and one channel too few
    if (n == 3) to = to.channels(0, head_dim - 1);
    pope<half_split>(x.view(), to, table);
  });
}

TEST_CASE("no extent of a matrix of scores may be negative", "[library]") {
  const float score = 0;
  const Index extents[4] = {1, 1, 1, 1};
  for (int n = 0; n < 4; ++n) {
    CAPTURE(n);
    Index e[4] = {extents[0], extents[1], extents[2], extents[3]};
    e[n] = -1;
    CHECK(throws_saying<std::invalid_argument>([&] { score_matrix(&score, e[0], e[1], e[2], e[3]); },
                                               "score_matrix: extents must not be negative", "-1"));
  }
}

namespace {

/// A layout whose first pair is at any channel that a test chooses.
struct any_pair {
  inline static Index u = 0, v = 1;
  static Index first(Index i, Index) { return i == 0 ? u : 2 * i; }
  static Index second(Index i, Index) { return i == 0 ? v : 2 * i + 1; }
};

}  // namespace

TEST_CASE("a layout must map pairs to channels, both of them", "[library]") {
  memory x;
  const frequency_table<float> table(frequencies(head_dim), 10);
  for (const auto& [u, v] : std::vector<std::pair<Index, Index>>{{-1, 1}, {0, -1}, {6, 1}, {0, 6}, {1, 1}}) {
    CAPTURE(u, v);
    any_pair::u = u;
    any_pair::v = v;
    CHECK(throws_saying<std::invalid_argument>([&] { rotate<any_pair>(x.view(), table, 1); },
                                               "the layout must map a pair to two channels of [0, 6)",
                                               "got " + std::to_string(u) + " and " + std::to_string(v)));
    CHECK(x.untouched());
  }
  any_pair::u = 0;
  any_pair::v = 1;
  rotate<any_pair>(x.view(), table, 1);
  CHECK_FALSE(x.untouched());
}

TEST_CASE("weights whose extents exceed all memory throw", "[library]") {
  const float number = 0;
  constexpr Index many = Index{1} << (sizeof(Index) * 4 + 1);
  const head_view<const float> one = {&number, 1, many, 1, 1, 0, 0, 0};
  CHECK(throws_saying<std::length_error>([&] { attention_weights(one, one, std::span<float>()); },
                                         "attention_weights: weights [1, 1, " + std::to_string(many),
                                         "exceed the address space"));
}

TEST_CASE("ids without data throw", "[library]") {
  memory x;
  const frequency_table<float> table(frequencies(head_dim), 10);
  const Eigen::Map<const Eigen::ArrayXi> ids(nullptr, tokens);
  CHECK(throws_saying<std::invalid_argument>([&] { rotate<half_split>(x.view(), table, ids); },
                                             "rotate: ids must have data, got null for 3"));
  CHECK(x.untouched());
}

TEST_CASE("the calling thread runs every piece in order", "[library]") {
  std::vector<Index> pieces;
  const this_thread here;
  here.parallel_for(here.threads() + 3, [&](Index i) { pieces.push_back(i); });
  CHECK(pieces == std::vector<Index>{0, 1, 2, 3});
  here.parallel_for(0, [&](Index i) { pieces.push_back(i); });
  CHECK(pieces.size() == 4);
}

TEST_CASE("a layer of no group has the scale that all groups share, or none", "[library]") {
  const auto model_of = [](double scale, double softcap) {
    testing::model_parts parts;
    parts.groups = {testing::group_named("a"), testing::group_named("b")};
    parts.groups[0].scale = 0.5;
    parts.groups[0].softcap = 30;
    parts.groups[1].scale = scale;
    parts.groups[1].softcap = softcap;
    parts.layers = {"a", "b", "without"};
    parts.layers_without_rope = {2};
    parts.windows = {0};
    return parts.model();
  };
  CHECK(model_of(0.5, 30).attention_of_layer(2).scale == 0.5);
  CHECK(model_of(0.5, 30).attention_of_layer(2).softcap == 30);
  for (const auto& model : {model_of(0.25, 30), model_of(0.5, 20)}) {
    CHECK(model.attention_of_layer(1).scale == model.groups()[1].scale);
    CHECK(throws_saying<std::invalid_argument>([&] { (void)model.attention_of_layer(2); },
                                               "the scale of layer 2 is not known: no group is of its type"));
  }
}

TEST_CASE("two files that place the axes of M-RoPE in different orders differ", "[library]") {
  testing::model_parts parts;
  parts.source = "one";
  parts.groups = {testing::group_named("", frequencies(16))};
  parts.groups[0].mrope_sections = {2, 3, 3};
  const model_rope a = parts.model();
  parts.source = "other";
  CHECK(compare_models(a, parts.model()).empty());
  parts.groups[0].section_order = mrope_order::alternating;
  const model_rope b = parts.model();
  const auto differences = compare_models(a, b);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].find("the axes of M-RoPE lie in blocks in one and alternating in other") !=
        std::string::npos);
}

// A view with elements has memory: a null pointer throws in the functions that read or write it, before
// anything is written. A view without elements may have a null pointer.

namespace {

const frequency_table<float> table(frequencies(4), 10);
const std::string shape = ": a view must have data, got null for [2, 3, 2, 4]";

head_view<float> null() { return bshd(static_cast<float*>(nullptr), 2, 3, 2, 4); }
head_view<float> nothing() { return bshd(static_cast<float*>(nullptr), 2, 0, 2, 4); }

/// Memory that must not be written.
struct ones {
  std::vector<float> memory = std::vector<float>(48, 1.0f);
  head_view<float> view() { return bshd(memory.data(), 2, 3, 2, 4); }
  ~ones() { CHECK(memory == std::vector<float>(48, 1.0f)); }
};

template <class Call>
void check_rejected(const char* function, const Call& call) {
  CAPTURE(function);
  CHECK(throws_saying<std::invalid_argument>(call, std::string("rope::") + function + shape));
}

}  // namespace

TEST_CASE("a view without data throws in every form of rotate", "[library]") {
  ones x;
  check_rejected("rotate", [] { rotate<half_split>(null(), table); });
  check_rejected("unrotate", [] { unrotate<interleaved>(null(), table, 2); });
  check_rejected("rotate_to", [&] { rotate_to<half_split>(null(), x.view(), table); });
  check_rejected("rotate_to", [&] { rotate_to<half_split>(x.view(), null(), table, 3); });
  check_rejected("rotate", [&] { rotate<half_split>(x.view(), null(), table, 3); });
  check_rejected("rotate", [&] { rotate<half_split>(null(), x.view(), table, 3); });
  check_rejected("rotate_gradient", [] { rotate_gradient<half_split>(null(), table); });
  check_rejected("rotate_gradient_to", [&] { rotate_gradient_to<half_split>(x.view(), null(), table); });
  check_rejected("angle_gradient", [&] { angle_gradient<half_split>(x.view(), null(), table); });
  check_rejected("angle_gradient", [&] { angle_gradient<half_split>(null(), x.view(), table); });
  check_rejected("rotate_heads", [] { rotate_heads<half_split>(null(), std::vector(2, table)); });
  check_rejected("scale_queries", [] { scale_queries(null(), [](std::int64_t) { return 2.0; }); });
  check_rejected("permute_channels", [] { permute_channels<interleaved, half_split>(null()); });
  check_rejected("pope", [] {
    std::vector<float> wide(2 * 3 * 2 * 6);
    pope<half_split>(null(), bshd(wide.data(), 2, 3, 2, 6), table);
  });
}

TEST_CASE("a view without data throws in caches and merges", "[library]") {
  ones x;
  kv_cache<float> cache(2, 8, 2, 4), raw(2, 8, 2, 4, 0, key_storage::raw);
  ring_cache<float> ring(2, {.window = 4}, 2, 4);
  check_rejected("kv_cache::append", [&] { cache.append(null(), x.view()); });
  check_rejected("kv_cache::append", [&] { cache.append(x.view(), null()); });
  check_rejected("kv_cache::append", [&] { raw.append(x.view(), null()); });
  check_rejected("kv_cache::append", [&] { cache.append<half_split>(null(), x.view(), table); });
  check_rejected("kv_cache::append", [&] { cache.append<half_split>(x.view(), null(), table); });
  check_rejected("kv_cache::append_at", [&] { cache.append_at(x.view(), null(), 4); });
  check_rejected("ring_cache::append", [&] { ring.append(x.view(), null()); });
  check_rejected("ring_cache::append", [&] { ring.append<half_split>(null(), x.view(), table); });
  CHECK(cache.size() == 0);
  CHECK(raw.size() == 0);
  CHECK(ring.next_positions()[0] == 0);
  std::vector<double> sums(12);
  check_rejected("merge_attention",
                 [&] { merge_attention(null(), std::span(sums), x.view(), std::span<const double>(sums)); });
  check_rejected("merge_attention",
                 [&] { merge_attention(x.view(), std::span(sums), null(), std::span<const double>(sums)); });
}

TEST_CASE("a view without data throws in attention", "[library]") {
  ones x;
  kv_cache<float> cache(2, 8, 2, 4);
  cache.append(x.view(), x.view());
  check_rejected("attention", [&] { attention(null(), x.view(), x.view(), x.view()); });
  check_rejected("attention", [&] { attention(x.view(), null(), x.view(), x.view()); });
  check_rejected("attention", [&] { attention(x.view(), x.view(), null(), x.view()); });
  check_rejected("attention", [&] { attention(x.view(), x.view(), x.view(), null()); });
  check_rejected("attention", [&] { attention<half_split>(null(), x.view(), x.view(), x.view(), table); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), null(), x.view(), x.view(), table); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), x.view(), null(), x.view(), table); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), x.view(), x.view(), null(), table); });
  check_rejected("attention", [&] { attention(null(), cache, x.view()); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), cache, null(), table); });
  std::vector<float> weights(2 * 2 * 3 * 3);
  check_rejected("attention_weights", [&] { attention_weights(null(), x.view(), weights); });
  check_rejected("attention_weights", [&] { attention_weights(x.view(), null(), weights); });
  check_rejected("attention_weights",
                 [&] { attention_weights<half_split>(x.view(), null(), weights, table); });
  const xpos<float> growing(frequencies(4), 10, {.center = 5});
  check_rejected("attention", [&] { attention<half_split>(x.view(), null(), x.view(), x.view(), growing); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), x.view(), null(), x.view(), growing); });
  check_rejected("rate_gradient",
                 [&] { rate_gradient<half_split>(xpos_side::keys, x.view(), null(), growing); });
  check_rejected("attention_gradient", [&] {
    attention_gradient(
        testing::tape(x.view(), x.view(), x.view(), x.view(), x.view(), x.view(), null(), x.view()));
  });
  check_rejected("attention_gradient", [&] {
    attention_gradient<half_split>(
        testing::tape(x.view(), x.view(), x.view(), null(), x.view(), x.view(), x.view(), x.view()), table);
  });
}

TEST_CASE("an empty view needs no data", "[library]") {
  kv_cache<float> cache(2, 8, 2, 4);
  ring_cache<float> ring(2, {.window = 4}, 2, 4);
  CHECK_NOTHROW(rotate<half_split>(nothing(), table));
  CHECK_NOTHROW(rotate_to<half_split>(nothing(), nothing(), table));
  CHECK_NOTHROW(scale_queries(nothing(), llama4_query_scaling{}));
  CHECK_NOTHROW(permute_channels<interleaved, half_split>(nothing()));
  CHECK_NOTHROW(cache.append<half_split>(nothing(), nothing(), table));
  CHECK_NOTHROW(ring.append(nothing(), nothing()));
  CHECK_NOTHROW(attention(nothing(), nothing(), nothing(), nothing()));
  CHECK_NOTHROW(attention<half_split>(nothing(), cache, nothing(), table));
}
