// SPDX-License-Identifier: MIT
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/other_libraries.hpp"
#include "support/wide.hpp"

/// Every line of the README's table "Coming from rotary-embedding-torch": its code, against the results of
/// that package. The formulas are those of lucidrains/rotary-embedding-torch 8bb4643. tests/readme.cmake
/// finds the lines in this file.

namespace {

using namespace rope;
using other::has_frequencies;
using other::random_array;
using other::rotation_error;
using other::scaled_rotation_error;
using other::tensor4;
constexpr auto neighbours = other::layout_kind::neighbours;

/// `freqs` of RotaryEmbedding(dim, theta).
testing::wide lang(Index i, Index dim, testing::wide theta = 10000) { return other::inv_freq(theta, i, dim); }

/// The token of row r of a (batch, heads, tokens, head_dim) tensor.
Index token(const tensor4& x, Index r) { return other::on_axis(x, r, 2); }

/// Angles [rows, pairs], each column twice: the return values of `forward` and `get_axial_freqs`.
template <class Angle>
Eigen::ArrayXXd repeated(Index rows, Index pairs, Angle angle) {
  Eigen::ArrayXXd freqs(rows, 2 * pairs);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < 2 * pairs; ++c) freqs(r, c) = static_cast<double>(angle(r, c / 2));
  return freqs;
}

struct fixture {
  tensor4 q = tensor4({2, 3, 20, 64}, 1), k = tensor4({2, 3, 20, 64}, 2);  // (batch, heads, tokens, head_dim)
  tensor4 before = q, k_before = k;

  /// The error of q rotated by position(token) with the package's default frequencies of dim = 32.
  template <class Position>
  testing::wide error(Position position, std::size_t token_axis = 2) const {
    return rotation_error(before, q, neighbours, 16, [&](Index r, Index i) {
      return static_cast<testing::wide>(position(other::on_axis(q, r, token_axis))) * lang(i, 32);
    });
  }
};

}  // namespace

TEST_CASE("rotary-embedding-torch: queries and keys", "[library][coming_from]") {
  fixture x;
  tensor4 &q = x.q, &k = x.k;
  frequency_table table(frequencies(32), 8192);
  SECTION("rotate_queries_or_keys(q)") {
    rotate<interleaved>(bhsd(q), table);
    CHECK(x.error([](Index t) { return t; }) <= 1);
  }
  SECTION("both at once") {
    rotate<interleaved>(bhsd(q), bhsd(k), table);
    CHECK(x.error([](Index t) { return t; }) <= 1);
    std::swap(x.q, x.k);
    std::swap(x.before, x.k_before);
    CHECK(x.error([](Index t) { return t; }) <= 1);
  }
  SECTION("offset = 7") {
    rotate<interleaved>(bhsd(q), table, 7);
    CHECK(x.error([](Index t) { return 7 + t; }) <= 1);
  }
  SECTION("seq_before_head_dim = True") {
    rotate<interleaved>(bshd(q), table);
    CHECK(x.error([](Index t) { return t; }, 1) <= 1);
  }
  SECTION("rotate_queries_with_cached_keys(q, k)") {
    k = x.k_before = tensor4({2, 3, 50, 64}, 3);
    const Index q_len = 20, k_len = 50;
    rotate<interleaved>(bhsd(q), table, k_len - q_len);
    rotate<interleaved>(bhsd(k), table);
    CHECK(x.error([](Index t) { return 30 + t; }) <= 1);
    CHECK(rotation_error(x.k_before, k, neighbours, 16, [&](Index r, Index i) {
            return static_cast<testing::wide>(token(k, r)) * lang(i, 32);
          }) <= 1);
    // A cache that rotates only new keys gives the same result.
    tensor4 k_new = x.k_before, v = x.k_before;
    kv_cache<float> cache(2, 64, 3, 64);
    for (Index t = 0; t < k_len; t += 25)
      cache.append<interleaved>(bhsd(k_new).token_range(t, 25), bhsd(v).token_range(t, 25), table);
    Index different = 0;
    const auto keys = cache.keys(), expected = head_view<const float>(bhsd(k));
    for (Index b = 0; b < 2; ++b)
      for (Index t = 0; t < k_len; ++t)
        for (Index h = 0; h < 3; ++h)
          for (Index d = 0; d < 64; ++d) different += keys.at(b, t, h)[d] != expected.at(b, t, h)[d] ? 1 : 0;
    CHECK(different == 0);
  }
}

TEST_CASE("rotary-embedding-torch: frequencies", "[library][coming_from]") {
  CHECK(has_frequencies(frequencies(32, 5e5), 16, [](Index i) { return lang(i, 32, 5e5L); }));
  CHECK(has_frequencies(frequencies(32, 1e4, ntk_scaling{4}), 16,
                        [](Index i) { return lang(i, 32, 1e4L * testing::pow(4.0L, 32.0L / 30)); }));
  CHECK(
      has_frequencies(frequencies(32, 1e4, linear_scaling{2}), 16, [](Index i) { return lang(i, 32) / 2; }));
  CHECK(has_frequencies(frequencies::pixel(16, 256), 8, [](Index i) {
    return testing::pi * (1 + static_cast<testing::wide>(i) * 127 / 7);  // linspace(1, 128, 8) pi
  }));
  CHECK(has_frequencies(frequencies::constant(4), 4, [](Index) { return 1.0L; }));
  const Eigen::Array3f f(0.5f, 0.25f, 3);
  CHECK(
      has_frequencies(frequencies::custom(f), 3, [&](Index i) { return static_cast<testing::wide>(f(i)); }));
}

TEST_CASE("rotary-embedding-torch: interpolated positions", "[library][coming_from]") {
  fixture x;
  tensor4& q = x.q;
  rotate<interleaved>(bhsd(q), frequency_table(frequencies(32, 1e4, linear_scaling{2}), 100), 7);
  CHECK(x.error([](Index t) { return static_cast<testing::wide>(t + 7) / 2; }) <= 1);
}

TEST_CASE("rotary-embedding-torch: some positions", "[library][coming_from]") {
  fixture x;
  tensor4& q = x.q;
  frequency_table table(frequencies(32), 7, 27);
  CHECK(table.first() == 7);
  rotate<interleaved>(bhsd(q), table, table.first());
  CHECK(x.error([](Index t) { return 7 + t; }) <= 1);
}

TEST_CASE("rotary-embedding-torch: any positions", "[library][coming_from]") {
  fixture x;
  tensor4& q = x.q;
  Eigen::ArrayXd t = Eigen::ArrayXd::LinSpaced(20, -3.7, 11.1);
  frequency_table table(frequencies(32), t);
  rotate<interleaved>(bhsd(q), table);
  CHECK(x.error([&](Index token) { return t(token); }) <= 1);
}

TEST_CASE("rotary-embedding-torch: apply_rotary_emb", "[library][coming_from]") {
  fixture x;
  tensor4& t = x.q;
  const auto angle_of = [](Index row, Index i) {
    return static_cast<double>(row) * 0.37 - 2.5 * static_cast<double>(i);
  };
  const auto angle = [&](Index r, Index i) { return angle_of(token(t, r), i); };
  const Eigen::ArrayXXd freqs = repeated(20, 8, angle_of);
  SECTION("as it is") {
    rotate<interleaved>(bhsd(t), table_of_angles(freqs, table_form::repeated));
    CHECK(rotation_error(x.before, t, neighbours, 8, angle) <= 1);
  }
  SECTION("start_index = 40") {
    const auto table = table_of_angles(freqs, table_form::repeated);
    rotate<interleaved>(bhsd(t).channels(40, 16), table);
    CHECK(rotation_error(x.before, t, neighbours, 8, angle, 40) <= 1);
  }
  SECTION("scale = 1.5") {
    rotate<interleaved>(bhsd(t), table_of_angles(freqs, table_form::repeated, 0, 1.5));
    CHECK(scaled_rotation_error(x.before, t, neighbours, 8, angle, [](Index, Index) { return 1.5L; }) <= 1);
  }
  SECTION("a scale per angle") {
    // [tokens, pairs]: their tensors have every column of both twice.
    Eigen::ArrayXXd angles(20, 8);
    for (Index i = 0; i < 8; ++i) angles.col(i) = freqs.col(2 * i);
    const Eigen::ArrayXXd scale = 1 + 0.1 * random_array(20, 8, 6);
    rotate<interleaved>(bhsd(t), table_of_entries(angles.cos() * scale, angles.sin() * scale));
    CHECK(scaled_rotation_error(x.before, t, neighbours, 8, angle, [&](Index r, Index i) {
            return static_cast<testing::wide>(scale(token(t, r), i));
          }) <= 1);
  }
  SECTION("more rows of freqs than tokens") {
    const auto table = table_of_angles(repeated(33, 8, angle_of), table_form::repeated);
    const Index tokens = 20;
    rotate<interleaved>(bhsd(t), table, table.rows() - tokens);
    CHECK(rotation_error(x.before, t, neighbours, 8,
                         [&](Index r, Index i) { return angle_of(13 + token(t, r), i); }) <= 1);
  }
}

TEST_CASE("rotary-embedding-torch: apply_learned_rotations", "[library][coming_from]") {
  fixture x;
  tensor4& t = x.q;
  SECTION("an angle per pair") {
    const Eigen::ArrayXXd rotations = random_array(20, 32, 7);
    rotate<interleaved>(bhsd(t), table_of_angles(rotations, table_form::half_width));
    CHECK(rotation_error(x.before, t, neighbours, 32,
                         [&](Index r, Index i) { return rotations(token(t, r), i); }) <= 1);
  }
  SECTION("freq_ranges") {
    const Eigen::ArrayXXd rotations = random_array(20, 4, 7);
    const Eigen::Array4d freq_ranges(0.5, 1, 2, 4);
    rotate<interleaved>(bhsd(t), table_of_angles(rotations, freq_ranges));
    CHECK(rotation_error(x.before, t, neighbours, 16, [&](Index r, Index i) {
            return static_cast<testing::wide>(rotations(token(t, r), i / 4)) * freq_ranges(i % 4);
          }) <= 1);
  }
  SECTION("rotations that differ between heads") {
    const Eigen::ArrayXXd rotations = random_array(3 * 20, 32, 7);  // (heads, tokens, pairs), stacked
    std::vector<frequency_table<>> tables;
    for (Index h = 0; h < 3; ++h)
      tables.push_back(table_of_angles(rotations.middleRows(20 * h, 20), table_form::half_width));
    rotate_heads<interleaved>(bhsd(t), tables);
    CHECK(rotation_error(x.before, t, neighbours, 32, [&](Index r, Index i) {
            return rotations(20 * other::on_axis(t, r, 1) + token(t, r), i);
          }) <= 1);
  }
  SECTION("a batch of rotations") {
    const Eigen::ArrayXXd rotations = random_array(2 * 20, 32, 7);  // (batch, tokens, pairs), stacked
    const std::vector<Index> starts = {0, 20};
    rotate<interleaved>(bhsd(t), table_of_angles(rotations, table_form::half_width), row_starts{starts});
    CHECK(rotation_error(x.before, t, neighbours, 32, [&](Index r, Index i) {
            return rotations(20 * other::on_axis(t, r, 0) + token(t, r), i);
          }) <= 1);
  }
}

// apply_pope_to_qk of PoPE-pytorch, which the README of rotary-embedding-torch names as its potential
// successor.
TEST_CASE("rotary-embedding-torch: PoPE", "[library][coming_from]") {
  const tensor4 q({1, 2, 5, 16}, 4), k({1, 2, 5, 16}, 5);
  tensor4 pope_q({1, 2, 5, 32}, 0), pope_k({1, 2, 5, 32}, 0);
  const Eigen::ArrayXXd learned = Eigen::ArrayXXd::Constant(2, 16, -0.7);
  frequency_table table(pope_frequencies(16), 1024);
  pope<interleaved>(bhsd(q), bhsd(pope_q), table);
  pope<interleaved>(bhsd(k), bhsd(pope_k), table, pope_bias(learned));
  testing::wide worst = 0;
  for (Index r = 0; r < q.rows(); ++r)
    for (Index i = 0; i < 16; ++i)
      for (const bool key : {false, true}) {
        const testing::wide size =
            testing::log1p(testing::exp(static_cast<testing::wide>(key ? k(r, i) : q(r, i))));
        const testing::wide angle = static_cast<testing::wide>(token(q, r)) *
                                        testing::pow(1e4L, -static_cast<testing::wide>(i) / 16) -
                                    (key ? 0.7L : 0);
        const tensor4& got = key ? pope_k : pope_q;
        testing::raise_to(worst, testing::abs(got(r, 2 * i) - size * testing::cos(angle)) / size);
        testing::raise_to(worst, testing::abs(got(r, 2 * i + 1) - size * testing::sin(angle)) / size);
      }
  CHECK(worst <= 1.75L * tolerance::unit_roundoff<float>());
}

TEST_CASE("rotary-embedding-torch: learned frequencies", "[library][coming_from]") {
  fixture x;
  const tensor4& q = x.q;
  const tensor4 d_q({2, 3, 20, 64}, 8);  // the gradient of a loss with respect to q
  frequency_table table(frequencies(32), 8192);
  const Eigen::ArrayXXd d_freqs = inv_freq_gradient<interleaved>(bhsd(q), bhsd(d_q), table);
  // The result of autograd: the angle of pair i is freqs[i] * token, and rotates (u, v) towards (-v, u).
  for (Index i = 0; i < 16; ++i) {
    testing::wide sum = 0, size = 0;
    for (Index r = 0; r < q.rows(); ++r) {
      const testing::wide u = q(r, 2 * i), v = q(r, 2 * i + 1), a = d_q(r, 2 * i), b = d_q(r, 2 * i + 1);
      sum += static_cast<testing::wide>(token(q, r)) * (u * b - v * a);
      size += static_cast<testing::wide>(token(q, r)) * (testing::abs(u * b) + testing::abs(v * a));
    }
    CHECK(testing::abs(d_freqs(i, 0) - sum) <= static_cast<testing::wide>(q.rows() + 3) * 0x1p-53L * size);
  }
}

TEST_CASE("rotary-embedding-torch: xPos", "[library][coming_from]") {
  fixture x;
  tensor4 &q = x.q, &k = x.k;
  const Index tokens = 20;
  const xpos tables(frequencies(32), tokens, {.center = tokens / 2, .scale_base = 512});
  rotate<interleaved>(bhsd(q), tables.queries());
  rotate<interleaved>(bhsd(k), tables.keys());
  const auto angle = [&](Index r, Index i) { return static_cast<testing::wide>(token(q, r)) * lang(i, 32); };
  const auto scale = [&](Index r, Index i) {  // get_scale: (t - len // 2) / scale_base
    return testing::pow((2 * static_cast<testing::wide>(i) + 0.4L * 32) / (1.4L * 32),
                        static_cast<testing::wide>(token(q, r) - 10) / 512);
  };
  CHECK(scaled_rotation_error(x.before, q, neighbours, 16, angle, scale) <= 1);
  CHECK(scaled_rotation_error(x.k_before, k, neighbours, 16, angle,
                              [&](Index r, Index i) { return 1 / scale(r, i); }) <= 1);
}

TEST_CASE("rotary-embedding-torch: axial frequencies", "[library][coming_from]") {
  tensor4 q({1, 1, 8 * 64 * 32, 64}, 1);  // (batch, heads, 8 * 64 * 32, head_dim)
  const tensor4 before = q;
  const auto cell = [&](Index r, Index axis) {
    const Index t = token(q, r);
    return axis == 0 ? t / (64 * 32) : axis == 1 ? t / 32 % 64 : t % 32;
  };
  SECTION("freqs_for = 'pixel', max_freq = 256") {
    const auto coordinates = grid_coordinates(evenly_spaced(8), evenly_spaced(64), evenly_spaced(32));
    frequency_table table(axial(frequencies::pixel(16, 256), 3), coordinates);
    rotate<interleaved>(bhsd(q), table);
    CHECK(rotation_error(before, q, neighbours, 24, [&](Index r, Index i) {
            return static_cast<testing::wide>(coordinates(token(q, r), i / 8)) * testing::pi *
                   (1 + static_cast<testing::wide>(i % 8) * 127 / 7);
          }) <= 1);
    double off = 0;  // of linspace(-1, 1, n)
    for (Index r = 0; r < q.rows(); ++r)
      for (Index axis = 0; axis < 3; ++axis) {
        const Index extents[] = {8, 64, 32};
        const double at =
            -1 + 2 * static_cast<double>(cell(r, axis)) / static_cast<double>(extents[axis] - 1);
        testing::raise_to(off, testing::abs(coordinates(token(q, r), axis) - at));
      }
    CHECK(off <= 0x1p-52);
  }
  SECTION("freqs_for = 'lang', offsets = (5, 0, 2)") {
    frequency_table table(axial(frequencies(16), 3), grid_positions({8, 64, 32}, {5, 0, 2}));
    rotate<interleaved>(bhsd(q), table);
    CHECK(rotation_error(before, q, neighbours, 24, [&](Index r, Index i) {
            const Index axis = i / 8, offsets[] = {5, 0, 2};
            return static_cast<testing::wide>(cell(r, axis) + offsets[axis]) * lang(i % 8, 16);
          }) <= 1);
  }
  SECTION("broadcat((freqs_t[:, None], freqs_s[None, :]))") {
    const frequencies f_t(8, 100), f_s(24, 1e4);
    frequency_table table(axial({f_t, f_s}), grid_positions({8, 64 * 32}));
    rotate<interleaved>(bhsd(q), table);
    CHECK(rotation_error(before, q, neighbours, 16, [&](Index r, Index i) {
            return i < 4 ? static_cast<testing::wide>(token(q, r) / 2048) * lang(i, 8, 100)
                         : static_cast<testing::wide>(token(q, r) % 2048) * lang(i - 4, 24);
          }) <= 1);
  }
}
