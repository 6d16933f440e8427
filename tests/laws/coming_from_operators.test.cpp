// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "support/catch.hpp"
#include "support/other_libraries.hpp"
#include "support/wide.hpp"

/// Every line of the tables of examples/coming_from_onnx.md and coming_from_pytorch.md: its code, against the
/// formulas of these operators. tests/readme.cmake finds the lines in this file.

namespace {

using namespace rope;
using other::rotation_error;
using other::tensor4;
constexpr auto halves = other::layout_kind::halves, neighbours = other::layout_kind::neighbours;
using row_major = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// (batch, heads, tokens, head_size), caches of 100 positions, position_ids [batch, tokens].
struct operator_inputs {
  Index batch = 2, heads = 3, tokens = 5, head_size = 64;
  tensor4 x = tensor4({2, 3, 5, 64}, 1), y = tensor4({2, 3, 5, 64}, 2);
  std::vector<std::int64_t> position_ids = {0, 1, 2, 3, 4, 90, 91, 7, 99, 0};
  row_major cos_cache, sin_cache;

  explicit operator_inputs(Index pairs) : cos_cache(100, pairs), sin_cache(100, pairs) {
    for (Index p = 0; p < 100; ++p)
      for (Index i = 0; i < pairs; ++i) {
        const testing::wide angle = static_cast<testing::wide>(p) * other::inv_freq(1e4L, i, 2 * pairs);
        cos_cache(p, i) = static_cast<float>(testing::cos(angle));
        sin_cache(p, i) = static_cast<float>(testing::sin(angle));
      }
  }
  /// The error of y with position(row, token), heads in the order of `axes`: tokens on axis 2, or on axis 1.
  template <class Position>
  testing::wide error(other::layout_kind layout, Index pairs, const Position& position,
                      std::size_t token_axis = 2) const {
    return rotation_error(x, y, layout, pairs, [&](Index r, Index i) {
      const Index b = r / (x.rows() / batch), t = other::on_axis(x, r, token_axis);
      return static_cast<testing::wide>(position(b, t)) * other::inv_freq(1e4L, i, 2 * pairs);
    });
  }
};

}  // namespace

TEST_CASE("ONNX: RotaryEmbedding, also of ONNX Runtime", "[library][coming_from]") {
  operator_inputs in(32);
  auto& [batch, heads, tokens, head_size, x, y, position_ids, cos_cache, sin_cache] = in;
  const auto table = table_of_cos_sin(cos_cache, sin_cache, table_form::half_width);
  const auto listed = [&](Index b, Index t) { return in.position_ids[static_cast<std::size_t>(b * 5 + t)]; };
  SECTION("position_ids, interleaved = 0") {
    rotate_to<half_split>(bhsd(x), bhsd(y), table, position_ids);
    CHECK(in.error(halves, 32, listed) <= 1);
  }
  SECTION("interleaved = 1") {
    rotate_to<interleaved>(bhsd(x), bhsd(y), table, position_ids);
    CHECK(in.error(neighbours, 32, listed) <= 1);
  }
  SECTION("num_heads, input (batch, tokens, hidden_size)") {
    x.extents = y.extents = {2, 5, 3, 64};
    rotate_to<half_split>(bshd(x.data(), batch, tokens, heads, head_size), bshd(y), table, position_ids);
    CHECK(in.error(halves, 32, listed, 1) <= 1);
  }
  SECTION("caches [batch, tokens, pairs] without position_ids") {
    const std::vector<int> first_rows = {0, 5};
    rotate_to<half_split>(bhsd(x), bhsd(y), table, row_starts{first_rows});
    CHECK(in.error(halves, 32, [](Index b, Index t) { return 5 * b + t; }) <= 1);
  }
  SECTION("position_ids of one element") {
    const std::int64_t offset = 40;
    rotate_to<half_split>(bhsd(x), bhsd(y), table, offset);
    CHECK(in.error(halves, 32, [](Index, Index t) { return 40 + t; }) <= 1);
  }
}

TEST_CASE("ONNX: rotary_embedding_dim", "[library][coming_from]") {
  operator_inputs in(16);
  const auto table = table_of_cos_sin(in.cos_cache, in.sin_cache, table_form::half_width);
  for (Index r = 0; r < in.x.rows(); ++r)
    for (Index d = 32; d < 64; ++d) in.y(r, d) = 0;
  rotate_to<half_split>(bhsd(in.x), bhsd(in.y), table, in.position_ids);
  CHECK(in.error(halves, 16, [&](Index b, Index t) {
    return in.position_ids[static_cast<std::size_t>(b * 5 + t)];
  }) <= 1);
}

TEST_CASE("PyTorch: rotary embeddings", "[library][coming_from]") {
  operator_inputs in(32);
  auto& [batch, heads, tokens, head_size, x, y, position_ids, cos, sin] = in;
  y = x;
  SECTION("torch.nn.RotaryEmbedding and F.rotary_embedding") {
    const frequency_table table(frequencies(64, 10000.0), 2048);
    rotate<half_split>(bhsd(y), table, position_ids);
    CHECK(in.error(halves, 32, [&](Index b, Index t) {
      return in.position_ids[static_cast<std::size_t>(b * 5 + t)];
    }) <= 1);
  }
  SECTION("cos and sin that you have") {
    const auto table = table_of_cos_sin(cos, sin, table_form::half_width);
    rotate<interleaved>(bhsd(y), table);
    CHECK(in.error(neighbours, 32, [](Index, Index t) { return t; }) <= 1);
  }
  SECTION("freqs_cis = torch.polar(...), view_as_complex(x) * freqs_cis[start_pos:], and torchtune") {
    x.extents = y.extents = {2, 5, 3, 64};
    const frequency_table table(frequencies(64, 10000.0), 2048);
    const Index start_pos = 7;
    rotate<interleaved>(bshd(y), table, start_pos);
    CHECK(in.error(
              neighbours, 32, [](Index, Index t) { return 7 + t; }, 1) <= 1);
  }
}

TEST_CASE("PyTorch: scaled_dot_product_attention", "[library][coming_from]") {
  tensor4 q({2, 4, 5, 64}, 1), k({2, 2, 5, 64}, 2), v({2, 2, 5, 64}, 3), out({2, 4, 5, 64}, 4);
  const auto error = [&](const reference::attention_rule& rule) {
    return other::attention_error(q, k, v, out, rule);
  };
  SECTION("is_causal = True, enable_gqa = True") {
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out));
    CHECK(error({}) <= 1);
  }
  SECTION("the default") {
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out), {.causal = false});
    CHECK(error({.causal = false}) <= 1);
  }
  SECTION("scale = 0.25") {
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out), {.scale = 0.25});
    CHECK(error({.scale = 0.25}) <= 1);
  }
  SECTION("attn_mask of bool") {
    const std::unique_ptr<bool[]> attn_mask(new bool[25]);
    for (int i = 0; i < 25; ++i) attn_mask[static_cast<std::size_t>(i)] = i % 5 <= i / 5;  // tril
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out),
              {.causal = false, .mask = score_matrix(attn_mask.get(), 1, 1, 5, 5)});
    CHECK(error({}) <= 1);
  }
}
