// SPDX-License-Identifier: MIT
#include <rope/frequencies/axes_variants.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <utility>
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
using testing::at;
using testing::letters;
using testing::repeated;
using testing::throws_saying;

}  // namespace

// Golden: the sections of Qwen3-VL ([24, 20, 20]) and Qwen3.5 ([11, 11, 10]) expanded by the code of ggml.
TEST_CASE("pairs are assigned to axes as in ggml", "[frequencies][axes]") {
  CHECK(letters(rope::ggml_interleaved_sections({24, 20, 20, 0})) == repeated("THW", 20) + "TEET");
  CHECK(letters(rope::ggml_interleaved_sections({11, 11, 10, 0})) == repeated("THW", 10) + "TH");
  CHECK(letters(rope::ggml_interleaved_sections({2, 3, 3, 1})) == "THWTHWEHW");
  CHECK(rope::ggml_interleaved_sections({24, 20, 20, 0}).axes == 4);
}

TEST_CASE("a score depends on the difference of positions along every axis", "[frequencies][axes]") {
  const std::vector<frequencies> schemes = {
      rope::axial_blocks({8, 12, 12}), rope::on_axes(frequencies(32), rope::interleaved_sections({6, 5, 5})),
      rope::along_directions(frequencies(32), Eigen::ArrayXXd::Random(16, 3))};
  const std::vector<double> q = testing::random_channels<double>(32, 22),
                            k = testing::random_channels<double>(32, 23);
  const auto score = [&](const frequencies& f, const Eigen::ArrayXXd& of_q, const Eigen::ArrayXXd& of_k) {
    std::vector<double> a = q, b = k;
    rope::rotate<half_split>(rope::thd(a.data(), 1, 1, 32), frequency_table<double>(f, of_q));
    rope::rotate<half_split>(rope::thd(b.data(), 1, 1, 32), frequency_table<double>(f, of_k));
    double sum = 0;
    for (std::size_t d = 0; d < 32; ++d) sum += a[d] * b[d];
    return sum;
  };
  // 32 products of channels below 4, each within a few roundings.
  const double rounding = 32 * 16 * 16 * std::numeric_limits<double>::epsilon();
  for (const frequencies& f : schemes)
    for (const auto& shift : {at({7, 0, 0}), at({0, -13, 0}), at({0, 0, 1001}), at({3.5, -0.25, 17})}) {
      const Eigen::ArrayXXd of_q = at({5, 6, 9}), of_k = at({2, 11, -4});
      const double origin = score(f, of_q, of_k);
      CHECK(testing::abs(score(f, of_q + shift, of_k + shift) - origin) <= rounding);
      CHECK(testing::abs(score(f, of_q + shift, of_k) - origin) > 1e3 * rounding);
    }
}

TEST_CASE("sections of ggml must fit", "[frequencies][axes]") {
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, parts...);
  };
  CHECK(rejects([] { rope::ggml_interleaved_sections({}); }, "give one section per axis, got none"));
  CHECK(rejects(
      [] {
        rope::ggml_interleaved_sections({4, -1, 2, 0});
      },
      "rope::ggml_interleaved_sections: a section must be in [0, 2^31), got -1"));
  CHECK(rejects(
      [] {
        rope::ggml_interleaved_sections({4, std::numeric_limits<std::int32_t>::max(), 2, 0});
      },
      "sections must add up to less than 2^31, got 4 + 2147483647"));

  for (const std::vector<Index>& three : {std::vector<Index>{24, 20, 20}, {1}, {1, 2, 3, 4, 5}})
    CHECK(rejects([&] { rope::ggml_interleaved_sections(three); }, "must be (time, height, width, extra)",
                  "got " + std::to_string(three.size())));
}

TEST_CASE("along_directions multiplies each pair by its direction", "[frequencies][axes]") {
  const frequencies schedule(6, 100.0);
  Eigen::Array<float, 3, 2> directions;
  directions << 1, 0, -0.5f, 0.25f, 0, 2;
  const frequencies mixed = rope::along_directions(schedule, directions);
  REQUIRE(mixed.pairs() == 3);
  REQUIRE(mixed.axes() == 2);
  for (Index i = 0; i < 3; ++i)
    for (Index a = 0; a < 2; ++a)
      CHECK(mixed.inv_freq()(i, a) == schedule.inv_freq()(i, 0) * static_cast<double>(directions(i, a)));
}

TEST_CASE("every_pair selects the even and the odd frequencies", "[frequencies][axes]") {
  const frequencies schedule(14, 1e4);
  const frequencies even = rope::every_pair(schedule, 0, 2), odd = rope::every_pair(schedule, 1, 2);
  REQUIRE(even.pairs() == 4);
  REQUIRE(odd.pairs() == 3);
  for (Index i = 0; i < 4; ++i) CHECK(even.inv_freq()(i, 0) == schedule.inv_freq()(2 * i, 0));
  for (Index i = 0; i < 3; ++i) CHECK(odd.inv_freq()(i, 0) == schedule.inv_freq()(2 * i + 1, 0));
  CHECK(rope::every_pair(schedule, 6, 100).pairs() == 1);
  CHECK(rope::every_pair(schedule, 0, (std::numeric_limits<Index>::max)()).pairs() == 1);
  CHECK((rope::every_pair(schedule, 0, 1).inv_freq() == schedule.inv_freq()).all());
}

TEST_CASE("directions must fit, and a range of pairs must be within the schedule", "[frequencies][axes]") {
  CHECK(throws_saying<std::invalid_argument>(
      [] { rope::along_directions(frequencies(8), Eigen::ArrayXXd::Ones(3, 2)); },
      "rope::along_directions: directions must be [4, axes], got [3, 2]"));
  CHECK(throws_saying<std::invalid_argument>(
      [] { rope::along_directions(rope::axial(frequencies(8), 2), Eigen::ArrayXXd::Ones(8, 2)); },
      "the schedule must have one axis, got 2"));
  CHECK(throws_saying<std::invalid_argument>(
      [] { rope::along_directions(frequencies(8), Eigen::ArrayXXd::Ones(4, 0)); }, "not empty"));
  for (const auto& [first, step] : {std::pair<Index, Index>(4, 2), {-1, 2}, {0, 0}, {0, -1}})
    CHECK(throws_saying<std::invalid_argument>(
        [f = first, s = step] { rope::every_pair(frequencies(8), f, s); },
        "rope::every_pair: first must be in [0, 4)",
        "got " + std::to_string(first) + " and " + std::to_string(step)));
}

namespace {

std::string digits_of(const std::vector<Index>& sections) {
  std::string text;
  for (const Index axis : rope::spread_sections(sections).axis_of_pair) text += "0123"[axis];
  return text;
}

}  // namespace

// Golden: get_mrope_interleaved_id_list of vLLM, with force_last for three sections.
TEST_CASE("openPangu spreads the pairs of every axis", "[frequencies][spread_sections]") {
  CHECK(digits_of({24, 20, 20}) == "0120120120120120120120102012012012012012012010201201201201201200");
  CHECK(digits_of({16, 8, 8}) == "01201201020102010201020102010200");
  CHECK(digits_of({3, 2, 2}) == "0120120");
  CHECK(digits_of({2, 1, 1}) == "0120");
  CHECK(digits_of({1, 8, 3}) == "121212111110");
  CHECK(digits_of({5, 9, 2}) == "0121010121011110");
  CHECK(digits_of({4, 8}) == "010101011111");
  CHECK(digits_of({8, 4}) == "010101010000");
  CHECK(rope::spread_sections({24, 20, 20}).axes == 3);
  CHECK(rope::spread_sections({4, 8}).axes == 2);
}

TEST_CASE("every axis has its pairs for any spread", "[frequencies][spread_sections]") {
  for (Index time = 1; time < 12; ++time)
    for (Index height = 0; height < 9; ++height)
      for (Index width = 0; width < 9; width += 2) {
        std::vector<Index> counts(3, 0);
        for (const Index axis : rope::spread_sections({time, height, width}).axis_of_pair)
          ++counts[static_cast<std::size_t>(axis)];
        CAPTURE(time, height, width);
        CHECK(counts == std::vector<Index>{time, height, width});
      }
}

TEST_CASE("sections that cannot be spread throw", "[frequencies][spread_sections]") {
  for (const std::vector<Index>& sections :
       {std::vector<Index>{8}, {2, 2, 2, 2}, {0, 4, 4}, {4, -1, 4}, std::vector<Index>{}})
    CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::spread_sections(sections); },
                                                        "rope::spread_sections"));
}
