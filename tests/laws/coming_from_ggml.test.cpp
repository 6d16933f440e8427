// SPDX-License-Identifier: MIT
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/attention_reference.hpp"
#include "support/catch.hpp"
#include "support/other_libraries.hpp"
#include "support/wide.hpp"

/// Every line of the README's table "Coming from ggml" that reads no file: its code, against the formulas of
/// ggml_compute_forward_rope and llama.cpp. import_coming_from.test.cpp has the others, and
/// tests/readme.cmake finds the lines in these files.

namespace {

using namespace rope;
using other::has_frequencies;
using other::rotation_error;
using other::tensor4;
constexpr auto halves = other::layout_kind::halves, neighbours = other::layout_kind::neighbours;

/// A ggml tensor ne = {128, 3, 10, 2}: (head_dim, heads, tokens, batch) from fastest to slowest, and its
/// positions.
struct fixture {
  const std::array<Index, 4> ne = {128, 3, 10, 2};
  tensor4 memory = tensor4({2, 10, 3, 128}, 1);
  tensor4 before = memory;
  float* data = memory.data();
  std::vector<std::int32_t> pos = {0, 1, 2, 3, 100, 101, 7, 8, 9, 4000};

  /// The error of `after` with the first 2 pairs channels from `first` on rotated by the frequencies f(i).
  template <class Frequency>
  testing::wide error(const tensor4& after, other::layout_kind layout, Index pairs, const Frequency& f,
                      Index first = 0, testing::wide m = 1) const {
    return other::scaled_rotation_error(
        before, after, layout, pairs,
        [&](Index r, Index i) { return pos[static_cast<std::size_t>(other::on_axis(after, r, 1))] * f(i); },
        [&](Index, Index) { return m; }, first);
  }
};

}  // namespace

TEST_CASE("ggml: ggml_rope_ext", "[library][coming_from]") {
  fixture ggml;
  auto& [ne, memory, before, data, pos] = ggml;
  const auto x = bshd(data, ne[3], ne[2], ne[1], ne[0]);
  frequency_table table(frequencies(128), 4096);
  const auto f = [](Index i) { return other::inv_freq(1e4L, i, 128); };
  SECTION("GGML_ROPE_TYPE_NORMAL, in place") {
    rotate<interleaved>(x, table, pos);
    CHECK(ggml.error(memory, neighbours, 64, f) <= 1);
  }
  SECTION("GGML_ROPE_TYPE_NEOX, in place") {
    rotate<half_split>(x, table, pos);
    CHECK(ggml.error(memory, halves, 64, f) <= 1);
  }
  SECTION("into another tensor") {
    tensor4 result({2, 10, 3, 128}, 9);
    const auto out = bshd(result);
    rotate_to<half_split>(x, out, table, pos);
    CHECK(ggml.error(result, halves, 64, f) <= 1);
    CHECK(memory.values == before.values);
  }
  SECTION("n_dims = 64") {
    rotate<half_split>(x, frequency_table(frequencies(64), 4096), pos);
    CHECK(ggml.error(memory, halves, 32, [](Index i) { return other::inv_freq(1e4L, i, 64); }) <= 1);
  }
  SECTION("ggml_rope_set_offset(y, 32), n_dims = 64") {
    table = frequency_table(frequencies(64), 4096);
    rotate<interleaved>(x, table.at_channel(32), pos);
    CHECK(ggml.error(
              memory, neighbours, 32, [](Index i) { return other::inv_freq(1e4L, i, 64); }, 32) <= 1);
  }
  SECTION("the magnitude of YaRN") {
    const yarn_scaling yarn{.factor = 4, .original_max_position = 1024};
    rotate<half_split>(x, frequency_table(frequencies(128, 1e4, yarn), 4096), pos);
    const auto theta = [](Index i) { return other::yarn(1e4L, i, 128, 4, 1024); };
    CHECK(ggml.error(memory, halves, 64, theta, 0, 1 + 0.1L * testing::log(4.0L)) <= 1);
  }
  SECTION("ggml_rope_ext_back") {
    rotate_gradient<half_split>(x, table, pos);
    CHECK(ggml.error(memory, halves, 64, [&](Index i) { return -f(i); }) <= 1);
    memory = before;
    const frequency_table magnified(frequencies::custom(table.inv_freq(), 1.25), 4096);
    rotate_gradient<half_split>(x, magnified, pos);
    CHECK(ggml.error(
              memory, halves, 64, [&](Index i) { return -f(i); }, 0, 1.25L) <= 1);
  }
}

TEST_CASE("ggml: frequencies", "[library][coming_from]") {
  const double freq_base = 5e5, freq_scale = 0.25;
  constexpr int n_ctx_orig = 8192;
  using other::inv_freq;
  CHECK(has_frequencies(frequencies(128, freq_base, linear_scaling{1 / freq_scale}), 64,
                        [](Index i) { return inv_freq(5e5L, i, 128) / 4; }));
  std::vector<double> freq_factors;
  for (int i = 0; i < 64; ++i) freq_factors.push_back(i < 32 ? 1 : 1 + 0.125 * i);
  CHECK(has_frequencies(frequencies(128, freq_base, pair_factor_scaling{freq_factors}), 64, [&](Index i) {
    return inv_freq(5e5L, i, 128) / freq_factors[static_cast<std::size_t>(i)];
  }));
  const frequencies f(128, freq_base,
                      yarn_scaling{.factor = 1 / freq_scale, .original_max_position = n_ctx_orig});
  CHECK(has_frequencies(f, 64, [](Index i) { return other::yarn(5e5L, i, 128, 4, 8192); }));
  CHECK(testing::abs(f.attention_factor() - (1 + 0.1 * testing::log(4.0))) <= 0x1p-52);

  const double ext_factor = 0.5, attn_factor = 0.75, beta_fast = 2, beta_slow = 8;
  const frequencies all = ggml_frequencies({.n_dims = 128,
                                            .n_ctx_orig = n_ctx_orig,
                                            .freq_base = freq_base,
                                            .freq_scale = freq_scale,
                                            .ext_factor = ext_factor,
                                            .attn_factor = attn_factor,
                                            .beta_fast = beta_fast,
                                            .beta_slow = beta_slow,
                                            .freq_factors = freq_factors});
  // floor of the pair that rotates twice over 8192 positions: 128 ln(8192 / (4 pi)) / (2 ln 5e5) = 31.6.
  CHECK(has_frequencies(all, 64, [&](Index i) {
    const testing::wide share = i <= 31 ? 0.5L : 0;
    return inv_freq(5e5L, i, 128) / freq_factors[static_cast<std::size_t>(i)] * (0.25L * (1 - share) + share);
  }));
  CHECK(testing::abs(all.attention_factor() - 0.75 * (1 + 0.1 * testing::log(4.0))) <= 0x1p-52);
}

// Golden property G28, ggml tests/test-rope.cpp: a rotation to 100 + i followed by one by -67 is a rotation
// to 33 + i. That is a context shift, llama_memory_seq_add. ggml allows 1e-4. The bound here is that of the
// rotations.
TEST_CASE("ggml: a shift of cached keys", "[library][coming_from]") {
  const auto check = [](auto layout, Index n_rot) {
    using Layout = decltype(layout);
    tensor4 keys({1, 24, 2, 256}, 3), expected = keys;  // test-rope.cpp: n_rot of 256 channels
    const auto k = bshd(keys);
    frequency_table table(frequencies(n_rot), -8192, 8192);
    std::vector<int> from, to;
    for (int i = 0; i < 24; ++i) {
      from.push_back(100 + i);
      to.push_back(33 + i);
    }
    rotate<Layout>(k, table, from);
    const std::vector<int> delta(24, -67);
    rotate<Layout>(k, table, delta);
    rotate<Layout>(bshd(expected), table, to);
    testing::wide worst = 0;
    for (Index r = 0; r < keys.rows(); ++r)
      for (Index i = 0; i < n_rot / 2; ++i) {
        const Index u = Layout::first(i, n_rot / 2), v = Layout::second(i, n_rot / 2);
        const testing::wide pair = testing::hypot(static_cast<testing::wide>(expected(r, u)),
                                                  static_cast<testing::wide>(expected(r, v)));
        for (const Index d : {u, v})
          testing::raise_to(worst, testing::abs(static_cast<testing::wide>(keys(r, d)) - expected(r, d)) /
                                       tolerance::group_bound<float>(pair));
      }
    CHECK(worst <= 1);
  };
  for (const Index n_rot : {128, 256}) {
    check(interleaved{}, n_rot);
    check(half_split{}, n_rot);
  }
}

TEST_CASE("ggml: attention and its cache", "[library][coming_from]") {
  const float scale = 0.125f, logit_softcap = 30;
  tensor4 q({2, 4, 9, 64}, 1), k({2, 2, 9, 64}, 2),
      v({2, 2, 9, 64}, 3);        // ne = (head_dim, tokens, heads, batch)
  tensor4 out({2, 9, 4, 64}, 4);  // ne = (head_dim, heads, tokens, batch)
  attention(bhsd(q), bhsd(k), bhsd(v), bshd(out), {.scale = scale, .softcap = logit_softcap});
  const auto by_token = [](const tensor4& x) {
    reference::tensor result(x.extents[0], x.extents[2], x.extents[1], x.extents[3]);
    for (Index r = 0; r < x.rows(); ++r)
      for (Index d = 0; d < x.channels(); ++d)
        result(other::on_axis(x, r, 0), other::on_axis(x, r, 2), other::on_axis(x, r, 1), d) =
            static_cast<double>(x(r, d));
    return result;
  };
  const reference::attention_rule rule = {.scale = 0.125, .softcap = 30};
  const auto exact = reference::attention(by_token(q), by_token(k), by_token(v), rule);
  reference::tensor got = exact;
  for (std::size_t i = 0; i < got.values.size(); ++i) got.values[i] = static_cast<double>(out.values[i]);
  CHECK(reference::worst_error<float>(
            got, exact, reference::attention_bound<float>(by_token(q), by_token(k), by_token(v), rule)) <= 1);

  kv_cache<float> cache(2, 32, 2, 64);
  cache.append(bhsd(k), bhsd(v));
  const Index p0 = 5;
  cache.truncate(p0);
  CHECK(cache.size() == 5);
  CHECK(cache.keys().at(1, 4, 1)[63] == k(9 * 3 + 4, 63));
}

// --grp-attn-n 4 --grp-attn-w 512 of llama.cpp: Self-Extend.
TEST_CASE("ggml: group attention", "[library][coming_from]") {
  const std::int64_t p = 4000;
  const auto ids = key_positions(self_extend{.group = 4, .window = 512}, p, 0, p + 1);
  for (const std::int64_t k : {4000, 3489})
    CHECK(ids[static_cast<std::size_t>(k)] == k);  // within the window
  for (const std::int64_t k : {3488, 100, 0})
    CHECK(p - ids[static_cast<std::size_t>(k)] == p / 4 + 512 - 512 / 4 - k / 4);
}

TEST_CASE("ggml: weights of Hugging Face checkpoints", "[library][coming_from]") {
  const Index n_head = 3;
  Eigen::MatrixXd weight(n_head * 8, 2);
  for (Index r = 0; r < weight.rows(); ++r) weight.row(r).setConstant(static_cast<double>(r));
  permute_rows<half_split, interleaved>(weight, n_head);
  // LlamaModel.permute of convert_hf_to_gguf.py: reshape(n_head, 2, head_dim / 2, -1).swapaxes(1, 2).
  for (Index h = 0; h < n_head; ++h)
    for (Index i = 0; i < 4; ++i)
      for (Index half = 0; half < 2; ++half)
        CHECK(weight(8 * h + 2 * i + half, 1) == static_cast<double>(8 * h + 4 * half + i));
}

// ggml_rope_multi: positions are four blocks (time, height, width, extra) of one per token.
TEST_CASE("ggml: ggml_rope_multi", "[library][coming_from]") {
  tensor4 memory({1, 10, 3, 128}, 1);
  const tensor4 before = memory;
  const auto x = bshd(memory);
  std::vector<std::int32_t> pos;
  for (std::int32_t n = 0; n < 40; ++n) pos.push_back(n < 30 ? n * n % 50 : 0);
  const Index n_tokens = 10;
  const Eigen::Map<const Eigen::Array<std::int32_t, Eigen::Dynamic, 4>> coordinates(pos.data(), n_tokens, 4);
  const auto at = [&](Index r, Index axis) {
    return static_cast<testing::wide>(
        pos[static_cast<std::size_t>(10 * axis + other::on_axis(memory, r, 1))]);
  };
  const auto mrope_axis = [](Index i) { return i < 16 ? 0 : i < 40 ? 1 : 2; };
  SECTION("GGML_ROPE_TYPE_MROPE") {
    const frequencies f = ggml_frequencies(
        {.n_dims = 128, .sections = {16, 24, 24, 0}, .mode = ggml_rope_type::mrope, .freq_base = 1e6});
    rotate<half_split>(x, frequency_table(f, coordinates));
    CHECK(rotation_error(before, memory, halves, 64, [&](Index r, Index i) {
            return at(r, mrope_axis(i)) * other::inv_freq(1e6L, i, 128);
          }) <= 1);
    const frequencies same = on_axes(frequencies(128, 1e6), contiguous_sections({16, 24, 24, 0}));
    CHECK((f.inv_freq() == same.inv_freq()).all());
  }
  SECTION("ggml_rope_multi_back") {
    const frequencies f = ggml_frequencies(
        {.n_dims = 128, .sections = {16, 24, 24, 0}, .mode = ggml_rope_type::mrope, .freq_base = 1e6});
    rotate_gradient<half_split>(x, frequency_table(f, coordinates));
    CHECK(rotation_error(before, memory, halves, 64, [&](Index r, Index i) {
            return -at(r, mrope_axis(i)) * other::inv_freq(1e6L, i, 128);
          }) <= 1);
  }
  SECTION("GGML_ROPE_TYPE_IMROPE") {
    const frequencies f = ggml_frequencies(
        {.n_dims = 128, .sections = {24, 20, 20, 0}, .mode = ggml_rope_type::imrope, .freq_base = 5e6});
    rotate<half_split>(x, frequency_table(f, coordinates));
    CHECK(rotation_error(before, memory, halves, 64, [&](Index r, Index i) {
            const Index axis = i % 3 == 0 ? (i < 72 ? 0 : 3) : i < 60 ? i % 3 : 3;
            return at(r, axis) * other::inv_freq(5e6L, i, 128);
          }) <= 1);
    const frequencies same = on_axes(frequencies(128, 5e6), ggml_interleaved_sections({24, 20, 20, 0}));
    CHECK((f.inv_freq() == same.inv_freq()).all());
  }
  SECTION("GGML_ROPE_TYPE_VISION") {
    const frequencies f =
        ggml_frequencies({.n_dims = 64, .sections = {32, 32, 32, 32}, .mode = ggml_rope_type::vision});
    rotate<half_split>(x, frequency_table(f, coordinates));
    CHECK(rotation_error(before, memory, halves, 64, [&](Index r, Index i) {
            return at(r, i / 32) * other::inv_freq(1e4L, i % 32, 64);
          }) <= 1);
    CHECK((f.inv_freq().leftCols(2) == qwen_vl_vision_frequencies(128).inv_freq()).all());
  }
  SECTION("sections that do not add up to the pairs") {
    const frequencies f = ggml_frequencies(
        {.n_dims = 64, .sections = {8, 3, 3, 0}, .mode = ggml_rope_type::mrope, .freq_base = 1e6});
    rotate<half_split>(x, frequency_table(f, coordinates));
    CHECK(rotation_error(before, memory, halves, 32, [&](Index r, Index i) {
            return at(r, i % 14 < 8 ? 0 : i % 14 < 11 ? 1 : 2) * other::inv_freq(1e6L, i, 64);
          }) <= 1);
  }
}
