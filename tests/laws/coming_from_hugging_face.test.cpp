// SPDX-License-Identifier: MIT
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/other_libraries.hpp"
#include "support/wide.hpp"

/// Every line of the README's table "Coming from Hugging Face" that needs no JSON: its code, against the
/// results of transformers. import_coming_from.test.cpp has the others, and tests/readme.cmake finds the
/// lines in these files.

namespace {

using namespace rope;
using other::by_token;
using other::has_frequencies;
using other::rotation_error;
using other::tensor4;
constexpr auto halves = other::layout_kind::halves, neighbours = other::layout_kind::neighbours;

struct fixture {
  tensor4 q = tensor4({2, 4, 12, 64}, 1), k = tensor4({2, 2, 12, 64}, 2);  // (batch, heads, tokens, head_dim)
  tensor4 q_before = q, k_before = k;

  /// The error of x rotated by position(row) with the default frequencies of transformers for head_dim 64.
  template <class Position>
  static testing::wide error(const tensor4& before, const tensor4& x, Position position, Index pairs = 32) {
    return rotation_error(before, x, halves, pairs, [&](Index r, Index i) {
      return static_cast<testing::wide>(position(r)) * other::inv_freq(1e4L, i, 2 * pairs);
    });
  }
};

}  // namespace

TEST_CASE("transformers: apply_rotary_pos_emb", "[library][coming_from]") {
  fixture x;
  tensor4 &q = x.q, &k = x.k;
  frequency_table table(frequencies(64), 8192);
  const auto position = [&](const tensor4& t) { return [&](Index r) { return other::on_axis(t, r, 2); }; };
  SECTION("in order") {
    rotate<half_split>(bhsd(q), bhsd(k), table);
    CHECK(x.error(x.q_before, q, position(q)) <= 1);
    CHECK(x.error(x.k_before, k, position(k)) <= 1);
  }
  SECTION("unsqueeze_dim = 2") {
    k = x.k_before = tensor4({2, 4, 2, 64}, 3);  // (batch, tokens, heads, head_dim)
    rotate<half_split>(bshd(q), bshd(k), table);
    CHECK(x.error(x.q_before, q, [&](Index r) { return other::on_axis(q, r, 1); }) <= 1);
    CHECK(x.error(x.k_before, k, [&](Index r) { return other::on_axis(k, r, 1); }) <= 1);
  }
  SECTION("position_ids") {
    std::vector<std::int64_t> position_ids;
    for (std::int64_t n = 0; n < 24; ++n) position_ids.push_back(n * n % 101);
    rotate<half_split>(bhsd(q), table, position_ids);
    CHECK(x.error(x.q_before, q, [&](Index r) {
      return position_ids[static_cast<std::size_t>(12 * other::on_axis(q, r, 0) + other::on_axis(q, r, 2))];
    }) <= 1);
  }
  SECTION("cos and sin of your own") {
    Eigen::ArrayXXf cos(12, 64), sin(12, 64);  // cat((freqs, freqs)), in float
    for (Index t = 0; t < 12; ++t)
      for (Index c = 0; c < 64; ++c) {
        const float angle = static_cast<float>(t) * static_cast<float>(other::inv_freq(1e4L, c % 32, 64));
        cos(t, c) = testing::cos(angle);
        sin(t, c) = testing::sin(angle);
      }
    rotate<half_split>(bhsd(q), table_of_cos_sin(cos, sin, table_form::concatenated));
    // Their angle is a float: half an ulp of one below 16, and inv_freq rounded to float, 2 u of the angle.
    CHECK(x.error(x.q_before, q, position(q)) <= 1 + 4 * 16 / 2.75);
  }
  SECTION("partial_rotary_factor = 0.25") {
    rotate<half_split>(bhsd(q), frequency_table(frequencies(64 / 4), 8192));
    CHECK(x.error(x.q_before, q, position(q), 8) <= 1);
  }
  SECTION("repeat_interleave") {
    rotate<interleaved>(bhsd(q), table);
    CHECK(rotation_error(x.q_before, q, neighbours, 32, [&](Index r, Index i) {
            return static_cast<testing::wide>(other::on_axis(q, r, 2)) * other::inv_freq(1e4L, i, 64);
          }) <= 1);
  }
}

// apply_rotary_pos_emb_interleave of DeepSeek: takes neighbouring channels, rotates them, and leaves them in
// halves.
TEST_CASE("transformers: DeepSeek's rotated channels", "[library][coming_from]") {
  tensor4 q({1, 3, 6, 192}, 1);
  const tensor4 before = q;
  frequency_table table(frequencies(64), 4096);
  rotate<interleaved>(bhsd(q), table.at_channel(128));
  const auto angle = [&](Index r, Index i) {
    return static_cast<testing::wide>(other::on_axis(q, r, 2)) * other::inv_freq(1e4L, i, 64);
  };
  CHECK(rotation_error(before, q, neighbours, 32, angle, 128) <= 1);
  permute_channels<interleaved, half_split>(bhsd(q).channels(128, 64));
  tensor4 split = before;
  for (Index r = 0; r < split.rows(); ++r)
    for (Index i = 0; i < 32; ++i) {
      split(r, 128 + i) = before(r, 128 + 2 * i);
      split(r, 160 + i) = before(r, 129 + 2 * i);
    }
  CHECK(rotation_error(split, q, halves, 32, angle, 128) <= 1);
}

TEST_CASE("transformers: rope types", "[library][coming_from]") {
  using other::inv_freq;
  CHECK(has_frequencies(frequencies(128, 5e5), 64, [](Index i) { return inv_freq(5e5L, i, 128); }));
  CHECK(has_frequencies(frequencies(128, 1e4, linear_scaling{4}), 64,
                        [](Index i) { return inv_freq(1e4L, i, 128) / 4; }));
  const double seq_len = 10000;
  CHECK(has_frequencies(
      frequencies(128, 1e4, dynamic_ntk_scaling{.factor = 2, .max_position = 4096, .length = seq_len}), 64,
      [](Index i) { return inv_freq(1e4L * testing::pow(2 * 10000 / 4096.0L - 1, 128 / 126.0L), i, 128); }));
  const frequencies yarn(128, 1e6, yarn_scaling{.factor = 4, .original_max_position = 32768});
  CHECK(has_frequencies(yarn, 64, [](Index i) { return other::yarn(1e6L, i, 128, 4, 32768); }));
  CHECK(testing::abs(yarn.attention_factor() - (0.1 * testing::log(4.0) + 1)) <= 0x1p-52);
  CHECK(has_frequencies(frequencies(128, 5e5, llama3_scaling{.factor = 8}), 64, [](Index i) {
    const testing::wide f = inv_freq(5e5L, i, 128);
    const testing::wide z = std::clamp<testing::wide>((8192 * f / (2 * testing::pi) - 1) / 3, 0, 1);
    return (1 - z) * f / 8 + z * f;
  }));
  std::vector<double> short_factor, long_factor;
  for (int i = 0; i < 48; ++i) {
    short_factor.push_back(1 + 0.01 * i);
    long_factor.push_back(1 + i);
  }
  const frequencies longrope(96, 1e4,
                             longrope_scaling{.short_factor = short_factor,
                                              .long_factor = long_factor,
                                              .original_max_position = 4096,
                                              .max_position = 131072,
                                              .length = seq_len});
  CHECK(has_frequencies(longrope, 48,
                        [](Index i) { return inv_freq(1e4L, i, 96) / static_cast<testing::wide>(1 + i); }));
  CHECK(testing::abs(longrope.attention_factor() -
                     testing::sqrt(1 + testing::log(32.0) / testing::log(4096.0))) <= 0x1p-52);
  CHECK(has_frequencies(frequencies(512, 1e6, proportional_scaling{.partial_rotary_factor = 0.25}), 256,
                        [](Index i) { return i < 64 ? inv_freq(1e6L, i, 512) : 0.0L; }));
}

// The float32 pipeline itself: both factors of the angle are rounded to float, and so is their product.
TEST_CASE("transformers: float angles", "[library][coming_from]") {
  const frequencies f(128);
  const auto table = frequency_table<>::with_float_angles(f, 0, 8192);
  testing::wide worst = 0;
  for (const std::int64_t p : {1, 4095, 8191})
    for (Index i = 0; i < 64; ++i) {
      const auto angle = static_cast<float>(static_cast<double>(p) *
                                            static_cast<double>(static_cast<float>(f.inv_freq()(i, 0))));
      worst = (std::max)(
          worst, tolerance::error_in_ulp(table.cos(p)[i], testing::cos(static_cast<testing::wide>(angle))));
    }
  CHECK(worst <= tolerance::libm_float());
}

TEST_CASE("transformers: weights of Meta's checkpoints", "[library][coming_from]") {
  const Index heads = 2, head_dim = 6;
  Eigen::MatrixXd weight(heads * head_dim, 1);
  for (Index r = 0; r < weight.rows(); ++r) weight(r, 0) = static_cast<double>(r);
  permute_rows<interleaved, half_split>(weight, heads);
  // permute of convert_llama_weights_to_hf.py: view(heads, head_dim / 2, 2, -1).transpose(1, 2).
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < 3; ++i)
      for (Index half = 0; half < 2; ++half)
        CHECK(weight(6 * h + 3 * half + i, 0) == static_cast<double>(6 * h + 2 * i + half));
}

TEST_CASE("transformers: attention", "[library][coming_from]") {
  fixture x;
  tensor4 &q = x.q, &k = x.k, v({2, 2, 12, 64}, 3), out({2, 4, 12, 64}, 4);
  const auto error = [&](const reference::attention_rule& rule) {
    return other::attention_error(q, k, v, out, rule);
  };
  SECTION("grouped queries") {
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out));
    CHECK(error({}) <= 1);
  }
  SECTION("sliding_window = 4") {
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out), {.window = 4});
    CHECK(error({.window = 4}) <= 1);
  }
  SECTION("attn_logit_softcapping = 50, query_pre_attn_scalar = 256") {
    attention(bhsd(q), bhsd(k), bhsd(v), bhsd(out), {.scale = 1 / std::sqrt(256.0), .softcap = 50});
    CHECK(error({.scale = 1.0 / 16, .softcap = 50}) <= 1);
  }
  SECTION("a cache") {
    kv_cache<float> cache(2, 32, 2, 64);
    cache.append(bhsd(k), bhsd(v));
    const Index n = 7;
    cache.truncate(n);
    CHECK(cache.size() == 7);
    tensor4 one({2, 4, 1, 64}, 5);
    attention(bhsd(one), cache.keys(), cache.values(), bhsd(out).token_range(0, 1));
    tensor4 kept_k({2, 2, 7, 64}, 0), kept_v = kept_k;
    for (Index r = 0; r < kept_k.rows(); ++r)
      for (Index d = 0; d < 64; ++d) {
        kept_k(r, d) = k(r / 7 * 12 + r % 7, d);
        kept_v(r, d) = v(r / 7 * 12 + r % 7, d);
      }
    const auto exact = reference::attention(by_token(one), by_token(kept_k), by_token(kept_v), {});
    double worst = 0;
    for (Index r = 0; r < one.rows(); ++r)
      for (Index d = 0; d < 64; ++d)
        worst =
            (std::max)(worst, testing::abs(static_cast<double>(out(12 * r, d)) - exact(r / 4, 0, r % 4, d)));
    CHECK(worst <=
          reference::attention_bound<float>(by_token(one), by_token(kept_k), by_token(kept_v), {}) + 0x1p-22);
  }
}

TEST_CASE("transformers: temperatures", "[library][coming_from]") {
  fixture x;
  tensor4& q = x.q;
  const std::int64_t n = 16380;  // tokens before this call
  SECTION("Llama 4") {
    scale_queries(bhsd(q), llama4_query_scaling{}, n);
    for (Index r = 0; r < q.rows(); ++r) {
      const auto p = static_cast<testing::wide>(n + other::on_axis(q, r, 2));
      const testing::wide factor = testing::log(testing::floor((p + 1) / 8192) + 1) * 0.1L + 1;
      CHECK(testing::abs(q(r, 5) - factor * x.q_before(r, 5)) <=
            2 * 0x1p-24L * testing::abs(factor * x.q_before(r, 5)));
    }
  }
  SECTION("Ministral 3") {
    scale_queries(bhsd(q), llama4_query_scaling{.floor_scale = 16384, .offset = 0}, n);
    for (Index r = 0; r < q.rows(); ++r) {
      const auto p = static_cast<testing::wide>(n + other::on_axis(q, r, 2));
      const testing::wide factor = testing::log(testing::floor(p / 16384) + 1) * 0.1L + 1;
      CHECK(testing::abs(q(r, 5) - factor * x.q_before(r, 5)) <=
            2 * 0x1p-24L * testing::abs(factor * x.q_before(r, 5)));
    }
  }
  SECTION("Qwen") {
    scale_queries(bhsd(q), log_n_query_scaling{.train_length = 2048}, n);
    for (Index r = 0; r < q.rows(); ++r) {
      const auto p = static_cast<testing::wide>(n + other::on_axis(q, r, 2));
      const testing::wide factor = testing::log(p + 1) / testing::log(2048.0L);
      CHECK(testing::abs(q(r, 5) - factor * x.q_before(r, 5)) <=
            2 * 0x1p-24L * testing::abs(factor * x.q_before(r, 5)));
    }
  }
}

TEST_CASE("transformers: gradients", "[library][coming_from]") {
  fixture x;
  tensor4& d_q = x.q;
  frequency_table table(frequencies(64), 8192);
  rotate_gradient<half_split>(bhsd(d_q), table);
  CHECK(rotation_error(x.q_before, d_q, halves, 32, [&](Index r, Index i) {
          return -static_cast<testing::wide>(other::on_axis(d_q, r, 2)) * other::inv_freq(1e4L, i, 64);
        }) <= 1);
}

// get_rope_index and apply_multimodal_rotary_pos_emb: three tokens of text, an image of 4 x 4 patches, two of
// text.
TEST_CASE("transformers: multimodal positions", "[library][coming_from]") {
  const Index theirs[9][3] = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {3, 3, 4},
                              {3, 4, 3}, {3, 4, 4}, {5, 5, 5}, {6, 6, 6}};
  const auto prompt = qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}});
  CHECK(prompt.delta() == -2);
  tensor4 q({1, 2, 9, 128}, 1);
  const tensor4 before = q;
  SECTION("mrope_section = [16, 24, 24]") {
    const frequencies f = on_axes(frequencies(128, 1e6), contiguous_sections({16, 24, 24}));
    rotate<half_split>(bhsd(q), frequency_table(f, prompt.coordinates));
    CHECK(rotation_error(before, q, halves, 64, [&](Index r, Index i) {
            return static_cast<testing::wide>(theirs[r % 9][i < 16   ? 0
                                                            : i < 40 ? 1
                                                                     : 2]) *
                   other::inv_freq(1e6L, i, 128);
          }) <= 1);
  }
  SECTION("mrope_interleaved") {
    const frequencies f = on_axes(frequencies(128, 5e6), interleaved_sections({24, 20, 20}));
    rotate<half_split>(bhsd(q), frequency_table(f, prompt.coordinates));
    CHECK(rotation_error(before, q, halves, 64, [&](Index r, Index i) {
            return static_cast<testing::wide>(theirs[r % 9][i < 60 ? i % 3 : 0]) *
                   other::inv_freq(5e6L, i, 128);
          }) <= 1);
  }
}

// Qwen2VisionRotaryEmbedding: patches in blocks of 2 x 2, half the pairs by the row and half by the column.
TEST_CASE("transformers: vision towers", "[library][coming_from]") {
  tensor4 q({1, 2, 24, 64}, 1);
  const tensor4 before = q;
  const auto patches = rows_in_order(grid_positions({4, 6}), spatial_merge_order(1, 4, 6, 2));
  frequency_table table(qwen_vl_vision_frequencies(64), patches);
  rotate<half_split>(bhsd(q), table);
  CHECK(rotation_error(before, q, halves, 32, [&](Index r, Index i) {
          const Index patch = r % 24, block = patch / 4, row = block / 3 * 2 + patch % 4 / 2,
                      column = block % 3 * 2 + patch % 2;
          return static_cast<testing::wide>(i < 16 ? row : column) * other::inv_freq(1e4L, i % 16, 32);
        }) <= 1);
}
