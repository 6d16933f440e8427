// SPDX-License-Identifier: MIT
#include <rope/frequencies/vision_axes.hpp>

#include <cmath>
#include <limits>
#include <rope/positions/grid_positions.hpp>
#include <rope/positions/token_order.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::interleaved;
using testing::agrees_with;
using testing::angles;
using testing::at;
using testing::counted_channels;
using testing::throws_saying;

using widths = std::vector<Index>;
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

// Golden: Wan-Video/Wan2.1, `rope_params` and `rope_apply`, in fp64 for channels 1 .. 12 at (1, 2, 3), with
// nine digits.
TEST_CASE("Wan", "[frequencies][video_axes]") {
  CHECK(rope::video_widths(128) == widths{44, 42, 42});
  CHECK(rope::video_widths(96) == widths{32, 32, 32});
  CHECK(rope::video_widths(64) == widths{24, 20, 20});
  CHECK(rope::video_widths(6) == widths{2, 2, 2});
  const frequencies f = rope::wan_frequencies(12);
  CHECK(agrees_with(angles(f, at({1, 2, 3})), {1, 0.01, 2, 0.02, 3, 0.03}, 9));
  CHECK(agrees_with(counted_channels<interleaved>(f, at({1, 2, 3}), 12),
                    {-1.14263966, 1.9220756, 2.95985067, 4.0297995, -7.53651874, 2.04960611, 6.83861071,
                     8.13839072, -10.3211326, -8.62984489, 10.6351044, 12.3245509},
                    9));
  // c = head_dim / 2 pairs: c - 2 floor(c / 3), floor(c / 3), floor(c / 3).
  for (Index head_dim = 6; head_dim <= 256; head_dim += 2) {
    const Index pairs = head_dim / 2;
    CHECK(rope::video_widths(head_dim) ==
          widths{2 * (pairs - 2 * (pairs / 3)), 2 * (pairs / 3), 2 * (pairs / 3)});
  }
}

// Golden: Tencent/HunyuanVideo, base 256, rope_dim_list (4, 4, 4), at (1, 2, 3).
TEST_CASE("HunyuanVideo", "[frequencies][video_axes]") {
  const frequencies f = rope::axial_blocks({4, 4, 4}, 256);
  CHECK(agrees_with(angles(f, at({1, 2, 3})), {1, 0.0625, 2, 0.125, 3, 0.1875}, 9));
  const frequencies whole = rope::axial_blocks({16, 56, 56}, 256);
  CHECK(whole.rotary_dim() == 128);
  CHECK(whole.inv_freq()(8, 1) == 1);
  CHECK(whole.inv_freq()(36, 2) == 1);
}

// Golden: HunyuanVideo15RotaryPosEmbed of Hugging Face diffusers (transformer_hunyuan_video15.py, 58eb52c):
// widths (16, 56, 56), theta 256, by hand with ten digits for pairs 1 and 7 of time, 1 and 27 of the sides,
// at (3, 20, 40).
TEST_CASE("HunyuanVideo 1.5", "[frequencies][video_axes]") {
  const Eigen::ArrayXXd angle = angles(rope::axial_blocks({16, 56, 56}, 256), at({3, 20, 40}));
  CHECK(agrees_with(Eigen::Array<double, 6, 1>(angle(1), angle(7), angle(9), angle(35), angle(37), angle(63)),
                    {1.5, 0.0234375, 16.40670712, 0.09523544173, 32.81341424, 0.1904708835}, 10));
}

// Golden: Flux2PosEmbed of Hugging Face diffusers (transformer_flux2.py, 58eb52c): axes_dims_rope (32, 32,
// 32, 32), theta 2000, by hand with ten digits for pairs 0, 1 and 15 of every axis at (10, 3, 5, 7).
TEST_CASE("Flux 2", "[frequencies][video_axes]") {
  const frequencies f = rope::axial_blocks({32, 32, 32, 32}, 2000);
  CHECK(f.rotary_dim() == 128);
  const Eigen::ArrayXXd angle = angles(f, at({10, 3, 5, 7}));
  Eigen::ArrayXd shown(12);
  for (Index axis = 0; axis < 4; ++axis)
    shown.segment(3 * axis, 3) << angle(16 * axis), angle(16 * axis + 1), angle(16 * axis + 15);
  CHECK(agrees_with(shown,
                    {10, 6.218499808, 0.00804052449, 3, 1.865549942, 0.002412157347, 5, 3.109249904,
                     0.004020262245, 7, 4.352949866, 0.005628367143},
                    10));
  // Text token l is at (0, 0, 0, l): the last 32 channels rotate.
  const frequency_table<float> text(f, at({0, 0, 0, 9}));
  for (Index i = 0; i < 64; ++i) CHECK((text.sin(0)(i) != 0) == (i >= 48));
}

// Golden: Ideogram4MRoPE of Hugging Face diffusers (transformer_ideogram4.py, 58eb52c): head_dim 256, base
// 5e6, sections (24, 20, 20), at (0, 4, 1) + 65536, by hand with 40 digits, of which ten are printed: cos and
// sin of pairs 0, 1, 2, 58, 59, 60, 61, 62 and 127.
TEST_CASE("Ideogram 4", "[frequencies][video_axes]") {
  const frequencies f = rope::on_axes(frequencies(256, 5e6), rope::interleaved_sections({24 + 64, 20, 20}));
  const auto grid = rope::grid_positions({1, 5, 2}, {65536, 65536, 65536});
  const frequency_table<double> table(f, grid);
  const Index row = 4 * 2 + 1;
  CHECK(grid(row, 0) == 65536);
  CHECK(grid(row, 1) == 65540);
  CHECK(grid(row, 2) == 65537);
  const std::vector<Index> pairs = {0, 1, 2, 58, 59, 60, 61, 62, 127};
  Eigen::ArrayXd cos(9), sin(9);
  for (Index i = 0; i < 9; ++i) {
    cos(i) = table.cos(row)(pairs[static_cast<std::size_t>(i)]);
    sin(i) = table.sin(row)(pairs[static_cast<std::size_t>(i)]);
  }
  CHECK(agrees_with(cos,
                    {-0.7218347509, 0.2319214899, -0.6887328649, -0.7586480241, -0.9911506216, -0.9436834742,
                     -0.3322051641, 0.9199820722, 0.9998906916},
                    10));
  CHECK(agrees_with(sin,
                    {0.6920654538, -0.9727345077, -0.7250152004, -0.6515007103, -0.1327420257, -0.3308496646,
                     -0.9432071506, -0.3919604404, 0.01478528856},
                    10));
}

TEST_CASE("CogVideoX", "[frequencies][video_axes]") {
  const frequencies f = rope::cogvideox_frequencies(64);
  CHECK((f.inv_freq() == rope::axial_blocks({16, 24, 24}).inv_freq()).all());
  const Eigen::ArrayXXd grid = rope::cogvideox_positions({.frames = 3, .height = 4, .width = 6});
  const Eigen::ArrayXXd angle = angles(f, grid);
  CHECK(agrees_with(grid.row(9), {0, 7.5, 22.5}, 15));
  CHECK(agrees_with(angle.row(9).segment(8, 2), {7.5, 7.5 * testing::pow(1e4, -1.0 / 12)}, 14));
}

TEST_CASE("Cosmos stretches the base of each axis", "[frequencies][video_axes]") {
  const frequencies f = rope::cosmos_frequencies(128);
  REQUIRE(f.pairs() == 64);
  for (const Index k : {0, 1, 7, 20}) {
    const auto power = [&](double base, double width) {
      return testing::pow(base, -2 * static_cast<double>(k) / width);
    };
    CHECK(testing::Approx(f.inv_freq()(k, 0)).epsilon(1e-13) == power(1e4 * testing::pow(2, 44.0 / 42), 44));
    CHECK(testing::Approx(f.inv_freq()(22 + k, 1)).epsilon(1e-13) == power(1e4, 42));
    CHECK(testing::Approx(f.inv_freq()(43 + k, 2)).epsilon(1e-13) == power(1e4, 42));
  }
  const frequencies taller = rope::cosmos_frequencies(128, {.time = 1, .height = 3, .width = 1});
  CHECK((taller.inv_freq().col(0).head(22) == rope::wan_frequencies(128).inv_freq().col(0).head(22)).all());
  CHECK(taller.inv_freq()(23, 1) < f.inv_freq()(23, 1));
  // half_split pairs channel i with channel i + 64, across the three blocks.
  const Eigen::ArrayXd x = counted_channels<half_split>(f, at({2.4, 0, 0}), 128);
  CHECK(testing::Approx(x(0)).epsilon(1e-14) == testing::cos(2.4) - 65 * testing::sin(2.4));
  CHECK(x(22) == 23);
  CHECK(x(64 + 22) == 87);
}

// Golden: CosmosRotaryPosEmbed of Hugging Face diffusers with `rope_scale` (20 / 24, 2, 2), in fp64 with ten
// digits: frequencies 1, 7 and 20 of time and of height.
TEST_CASE("Cosmos 2 14B Video2World compresses its time", "[frequencies][video_axes]") {
  const frequencies f = rope::cosmos_frequencies(128, {.time = 20.0 / 24, .height = 2, .width = 2});
  const auto& speed = f.inv_freq();
  CHECK(agrees_with(Eigen::Array3d(speed(1, 0), speed(7, 0), speed(20, 0)),
                    {0.6636702554, 0.05671089169, 0.000274819202}, 10));
  CHECK(agrees_with(Eigen::Array3d(speed(22 + 1, 1), speed(22 + 7, 1), speed(22 + 20, 1)),
                    {0.6229774256, 0.03641716788, 7.752578899e-05}, 10));
  CHECK((speed.col(1).segment(22, 21) == speed.col(2).segment(43, 21)).all());
  // The last pair of an axis rotates more slowly by the factor `stretch`.
  const frequencies plain = rope::wan_frequencies(128);
  CHECK(testing::Approx(speed(21, 0)).epsilon(1e-13) == plain.inv_freq()(21, 0) * 1.2);
}

// Golden: LTXVideoRotaryPosEmbed of Hugging Face diffusers for 12 channels, fractions (0.1, 0.5, 0.25), nine
// digits.
TEST_CASE("LTX-Video", "[frequencies][video_axes]") {
  const Eigen::ArrayXXd coordinates = 2 * at({0.1, 0.5, 0.25}) - 1;
  CHECK(agrees_with(angles(rope::ltx_frequencies(12), coordinates),
                    {-1.25663706, 0, -0.785398163, -12566.3706, 0, -7853.98163}, 9));
  // Channels that three axes cannot share come first and do not rotate.
  const frequencies rest = rope::ltx_frequencies(16);
  CHECK(rest.axes() == 3);
  REQUIRE(rest.pairs() == 8);
  CHECK((rest.inv_freq().topRows(2) == 0).all());
  CHECK((rest.inv_freq().bottomRows(6) == rope::ltx_frequencies(12).inv_freq()).all());
  CHECK(rope::ltx_frequencies(6).inv_freq()(2, 2) == std::acos(0.0));
  const frequencies wide = rope::ltx_frequencies(2048);
  for (const Index k : {0, 1, 100, 340}) {
    const testing::wide exact = testing::pi / 2 * testing::pow(1e4L, static_cast<testing::wide>(k) / 340);
    const double got = wide.inv_freq()(1 + 3 * k + 1, 1);
    CHECK(testing::abs(got - exact) <= tolerance::inv_freq() * tolerance::ulp<double>(exact));
  }
}

// Golden: LTX2AudioVideoRotaryPosEmbed with rope_type `split` and apply_split_rotary_emb of Hugging Face
// diffusers (transformer_ltx2.py, 58eb52c) for two heads of 8 channels 1, 2, ..., 16, theta 10, fractions
// (0.13, 0.57, 0.29), by hand with ten digits.
TEST_CASE("LTX-2 splits one list of frequencies over its heads", "[frequencies][video_axes]") {
  const Eigen::ArrayXXd coordinates = 2 * at({0.13, 0.57, 0.29}) - 1;
  const frequencies all = rope::ltx_frequencies(16, 10);
  CHECK(agrees_with(angles(all, coordinates).rightCols(6),
                    {-1.162389282, 0.2199114858, -0.6597344573, -11.62389282, 2.199114858, -6.597344573},
                    10));
  std::vector<frequency_table<double>> tables;
  for (const frequencies& f : rope::frequencies_of_heads(all, 2)) tables.emplace_back(f, coordinates);
  REQUIRE(tables.size() == 2);
  Eigen::ArrayXd x = Eigen::ArrayXd::LinSpaced(16, 1, 16);
  rope::rotate_heads<half_split>(rope::thd(x.data(), 1, 2, 8), tables);
  CHECK(agrees_with(
      x,
      {1, 2, 7.615726052, 2.158521117, 5, 6, 0.02677135739, 8.679907061, 15.07918681, -5.448385398,
       -18.60089269, 16.35695011, 4.755851678, 16.31916348, 0.08240815374, 11.50870033},
      10));
  // Its audio has one axis, time: 8 channels, fraction 0.3.
  CHECK(agrees_with(angles(rope::ltx_frequencies(8, 1e4, 1), 2 * at({0.3}) - 1),
                    {-0.6283185307, -13.53671239, -291.6396276, -6283.185307}, 10));
  // The video of released weights: 4096 channels in 32 heads. The first two pairs do not rotate.
  const auto of_heads = rope::frequencies_of_heads(rope::ltx_frequencies(4096), 32);
  CHECK(of_heads.size() == 32);
  CHECK((of_heads[0].inv_freq().topRows(2) == 0).all());
  CHECK(of_heads[31].inv_freq()(63, 2) == rope::ltx_frequencies(4096).inv_freq()(2047, 2));
}

// Golden: the assignment of Allegro: thirds of the head, each half_split within itself, one axis each.
TEST_CASE("blocks with pairs of their own are ranges of channels", "[frequencies][video_axes]") {
  const Index tokens = 2 * 3 * 2, heads = 2, head_dim = 24;
  const auto grid = rope::grid_positions({2, 3, 2});
  const std::vector<double> before = testing::random_channels<double>(tokens * heads * head_dim, 51);
  std::vector<double> x = before;
  for (Index axis = 0; axis < 3; ++axis)
    rope::rotate<half_split>(rope::thd(x.data(), tokens, heads, head_dim).channels(8 * axis, 8),
                             frequency_table<double>(frequencies(8), grid.col(axis)));
  for (Index t = 0; t < tokens; ++t)
    for (Index h = 0; h < heads; ++h)
      for (Index axis = 0; axis < 3; ++axis)
        for (Index i = 0; i < 4; ++i) {
          const Index u = (t * heads + h) * head_dim + 8 * axis + i;
          const testing::wide angle =
              static_cast<testing::wide>(grid(t, axis)) * testing::pow(10.0L, -static_cast<testing::wide>(i));
          const testing::wide a = before[static_cast<std::size_t>(u)],
                              b = before[static_cast<std::size_t>(u + 4)];
          const testing::wide bound = 2 * tolerance::rotation_bound<double, double>(testing::hypot(a, b));
          CHECK(testing::abs(x[static_cast<std::size_t>(u)] -
                             (a * testing::cos(angle) - b * testing::sin(angle))) <= bound);
          CHECK(testing::abs(x[static_cast<std::size_t>(u + 4)] -
                             (b * testing::cos(angle) + a * testing::sin(angle))) <= bound);
        }
}

// Golden: Kandinsky 5 divides the angles of each axis by a scale_factor, here (1, 2, 2).
TEST_CASE("a scaling per axis is a scaling of its coordinates", "[frequencies][video_axes]") {
  const rope::linear_scaling once{1}, twice{2};
  const frequencies scaled =
      rope::axial({frequencies(16, 1e4, once), frequencies(24, 1e4, twice), frequencies(24, 1e4, twice)});
  const frequencies plain = rope::axial_blocks({16, 24, 24});
  const Eigen::ArrayXXd at_once = at({7, 6, 5}), halved = at({7, 3, 2.5});
  CHECK(((angles(scaled, at_once) - angles(plain, halved)).abs() <=
         8 * std::numeric_limits<double>::epsilon() * angles(plain, halved).abs())
            .all());
}

// Golden: Flux gives a patch the id (0, row, column), and its text, which comes first, (0, 0, 0).
TEST_CASE("the text of Flux does not rotate", "[frequencies][video_axes]") {
  const frequency_table<float> table(rope::axial_blocks({16, 56, 56}),
                                     rope::with_unrotated_tokens(rope::grid_positions({1, 3, 4}), 5));
  for (Index r = 0; r < 5; ++r) CHECK(table.is_identity(r));
  CHECK(table.is_identity(5));  // the first patch is at the origin too
  for (Index r = 6; r < table.rows(); ++r) CHECK_FALSE(table.is_identity(r));
}

TEST_CASE("invalid sizes and numbers of a video model throw", "[frequencies][video_axes]") {
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, parts...);
  };
  for (const Index bad : {Index{0}, Index{4}, Index{7}, Index{127}, Index{-12}}) {
    const std::string value = "got " + std::to_string(bad);
    CHECK(rejects([&] { rope::video_widths(bad); },
                  "rope::video_widths: head_dim must be even and at least 6", value));
    CHECK(rejects([&] { rope::wan_frequencies(bad); },
                  "rope::wan_frequencies: head_dim must be even and at least 6", value));
    CHECK(rejects([&] { rope::cosmos_frequencies(bad); },
                  "rope::cosmos_frequencies: head_dim must be even and at least 12", value));
    CHECK(
        rejects([&] { rope::ltx_frequencies(bad); }, "rope::ltx_frequencies: inner_dim must be even", value));
    CHECK(rejects([&] { rope::cogvideox_frequencies(bad); },
                  "rope::cogvideox_frequencies: head_dim must be positive", value));
  }
  CHECK(rejects([] { rope::cogvideox_frequencies(24); }, "a multiple of 16, got 24"));
  for (const double bad : {0.0, -1.0, infinity, std::numeric_limits<double>::quiet_NaN()})
    CHECK(rejects([&] { rope::cosmos_frequencies(128, {.time = bad}); },
                  "rope::cosmos_frequencies: a stretch must be positive"));
  CHECK(rejects([] { rope::cosmos_frequencies(128, {.height = 1e-4}); },
                "rope::cosmos_frequencies: a stretch must leave a base greater than 1, got 0.0001"));
  for (const Index bad : {8, 10})
    CHECK(rejects([&] { rope::cosmos_frequencies(bad); }, "rope::cosmos_frequencies: head_dim must be even",
                  "at least 12, got " + std::to_string(bad)));
  CHECK(rope::cosmos_frequencies(12).pairs() == 6);
  for (const Index axes : {Index{0}, Index{-1}})
    CHECK(rejects([&] { rope::ltx_frequencies(12, 1e4, axes); }, "axes must be positive, got "));
  CHECK(rejects([&] { rope::ltx_frequencies(6, 1e4, 4); }, "at least 2 for each of 4 axes, got 6"));
  CHECK_NOTHROW(rope::ltx_frequencies(8, 1e4, 4));
  for (const Index heads : {Index{0}, Index{-2}, Index{3}})
    CHECK(rejects([&] { rope::frequencies_of_heads(frequencies(16), heads); },
                  "rope::frequencies_of_heads: heads must be positive and divide 8 pairs, got " +
                      std::to_string(heads)));
  for (const double base : {1.0, -2.0, infinity})
    CHECK(rejects([&] { rope::ltx_frequencies(12, base); }, "base must be finite and greater than 1"));
}
