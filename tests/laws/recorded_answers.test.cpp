// SPDX-License-Identifier: MIT
// Schedules, tables and layouts that the code of ggml computed: tests/recorded/, by record_ggml.py.
#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/recorded.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using nlohmann::json;

/// ggml multiplies its angle by base^(-1 / pairs) from pair to pair: after i steps the error is i + 2
/// roundings, plus those of the few operations of a rule. The error of cos and sin is that of the angle plus
/// 2 roundings.
template <class S>
double bound(double angle, Index pair) {
  constexpr double u = std::numeric_limits<S>::epsilon() / 2;
  return u * (std::abs(angle) * static_cast<double>(2 * pair + 8) + 4);
}

frequencies schedule_of(const json& record) {
  const Index rotary_dim = 2 * record.at("pairs").get<Index>();
  const double base = record.at("base");
  if (record.contains("linear"))
    return frequencies(rotary_dim, base, linear_scaling{record.at("linear").get<double>()});
  if (record.contains("divisors"))
    return frequencies(rotary_dim, base,
                       pair_factor_scaling{record.at("divisors").get<std::vector<double>>()});
  if (record.contains("yarn")) {
    const json& yarn = record.at("yarn");
    return frequencies(rotary_dim, base,
                       yarn_scaling{.factor = yarn.at("factor"),
                                    .original_max_position = yarn.at("original_max_position"),
                                    .beta_fast = yarn.at("beta_fast"),
                                    .beta_slow = yarn.at("beta_slow")});
  }
  return frequencies(rotary_dim, base);
}

/// The schedule with its pairs on the axes of a mode of ggml.
frequencies on_axes_of(const std::string& mode, const frequencies& schedule,
                       const std::vector<Index>& sections) {
  if (mode == "MROPE") return on_axes(schedule, contiguous_sections(sections));
  if (mode == "IMROPE") return on_axes(schedule, ggml_interleaved_sections(sections));
  if (mode == "VISION") return axial(schedule, 2);
  return schedule;
}

/// The angle of a pair at a position of as many coordinates as the frequencies have axes.
double angle(const frequencies& f, Index pair, const std::vector<double>& position) {
  double sum = 0;
  for (Index a = 0; a < f.axes(); ++a) sum += f.inv_freq(pair, a) * position[static_cast<std::size_t>(a)];
  return sum;
}

/// How many of the recorded cos and sin a table of one row reproduces within the bound. The row is at
/// `position`.
Index agreeing(const json& record, const frequencies& f, const std::vector<double>& position) {
  Eigen::ArrayXXd row(1, f.axes());
  for (Index a = 0; a < f.axes(); ++a) row(0, a) = position[static_cast<std::size_t>(a)];
  const frequency_table<double> table(f, row);
  const auto cosines = record.at("cos").get<std::vector<double>>(),
             sines = record.at("sin").get<std::vector<double>>();
  REQUIRE(static_cast<Index>(cosines.size()) == f.pairs());
  Index count = 0;
  for (Index i = 0; i < f.pairs(); ++i) {
    const double allowed = bound<double>(angle(f, i, position), i) * f.attention_factor();
    const bool same = std::abs(table.cos(0)(i) - cosines[static_cast<std::size_t>(i)]) <= allowed &&
                      std::abs(table.sin(0)(i) - sines[static_cast<std::size_t>(i)]) <= allowed;
    if (!same) UNSCOPED_INFO("pair " << i << " differs");
    count += same ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("every recorded result names its source, version and date", "[library][recorded]") {
  const std::regex version("commit [0-9a-f]{7,40}\\b|\\b[0-9]+[.][0-9]+[.][0-9]+|\\bb[0-9]{4,}\\b"),
      day("\\b20[0-9]{2}-[01][0-9]-[0-3][0-9]\\b"), month("\\b[A-Z][a-z]{2,8} 20[0-9]{2}\\b");
  const std::vector<std::string> names = testing::all_recorded();
  CHECK(names.size() >= 33);
  for (const std::string& name : names) {
    CAPTURE(name);
    const json file = testing::recorded(name);
    REQUIRE(file.is_object());
    const std::string source = file.value("source", "");
    CAPTURE(source);
    CHECK(std::regex_search(source, std::regex("transformers|llama[.]cpp|ggml")));
    CHECK(std::regex_search(source, version));
    CHECK((std::regex_search(source, day) || std::regex_search(source, month)));
  }
}

TEST_CASE("schedules are those that ggml computes", "[library][recorded]") {
  const json records = testing::recorded("ggml_schedules").at("records");
  CHECK(records.size() == 10);
  for (const json& record : records) {
    CAPTURE(record.at("name"));
    const frequencies f = schedule_of(record);
    CHECK(agreeing(record, f, {1}) == f.pairs());
  }
}

TEST_CASE("tables are those that ggml computes", "[library][recorded]") {
  const json records = testing::recorded("ggml_tables").at("records");
  CHECK(records.size() == 14);
  for (const json& record : records) {
    const std::string mode = record.at("mode");
    CAPTURE(mode, record.at("position").dump());
    const frequencies f =
        on_axes_of(mode, schedule_of(record), record.value("sections", std::vector<Index>{}));
    CHECK(agreeing(record, f, record.at("position")) == f.pairs());
  }
}

TEST_CASE("heads are laid out and rotated as in ggml", "[library][recorded]") {
  const json records = testing::recorded("ggml_layouts").at("records");
  CHECK(records.size() == 10);
  for (const json& record : records) {
    const std::string mode = record.at("mode");
    const Index head_dim = record.at("head_dim"), n_dims = record.at("n_dims"), n_offs = record.at("n_offs");
    CAPTURE(mode, head_dim, n_dims, n_offs);
    const frequencies f = on_axes_of(mode, frequencies(n_dims, record.at("base").get<double>()),
                                     record.at("sections").get<std::vector<Index>>());
    const auto listed = record.at("positions").get<std::vector<double>>();
    Eigen::ArrayXXd positions(2, f.axes());
    for (Index t = 0; t < 2; ++t)
      for (Index a = 0; a < f.axes(); ++a) positions(t, a) = listed[static_cast<std::size_t>(2 * a + t)];
    std::vector<float> x;
    for (int i = 0; i < 4 * head_dim; ++i) x.push_back(static_cast<float>(i % 17 - 8) / 4);
    const auto heads = bshd(x.data(), 1, 2, 2, head_dim);
    const frequency_table<float> table(f, positions);
    if (mode == "NORMAL")
      rotate<interleaved>(heads, table.at_channel(n_offs));
    else
      rotate<half_split>(heads, table.at_channel(n_offs));
    double farthest = 0;
    for (const double p : listed) farthest = (std::max)(farthest, p);
    const auto out = record.at("out").get<std::vector<double>>();
    REQUIRE(out.size() == x.size());
    // A channel is two products of numbers of at most 2 with a cos or sin that has an error of at most the
    // bound, and their sum.
    const double allowed =
        2 * 2 * (bound<float>(farthest, f.pairs()) + std::numeric_limits<float>::epsilon());
    const double largest = testing::largest_difference(x, out);
    CHECK(largest <= allowed);
    CHECK(largest < 0.01);  // another layout, axis or offset differs by far more
  }
}
