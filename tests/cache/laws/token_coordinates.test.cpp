// SPDX-License-Identifier: MIT
#include <rope/cache/policy.hpp>

#include <cstdint>
#include <limits>
#include <rope/positions/multimodal_positions.hpp>
#include <stdexcept>

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace rope;
using testing::throws_saying;

TEST_CASE("coordinates of tokens are stored as doubles, for any type and storage order", "[cache]") {
  const auto prompt = qwen_vl_positions({text_run{2}, vision_run{1, 2, 2}});
  const token_coordinates tokens(prompt.coordinates);
  CHECK(tokens.rows() == 6);
  CHECK(tokens.axes() == 3);
  CHECK((tokens.coordinates() == prompt.coordinates.cast<double>()).all());

  Eigen::Array<float, Eigen::Dynamic, 2, Eigen::RowMajor> real(2, 2);
  real << 0.5f, -1.25f, 3.0f, 0.0f;
  CHECK((token_coordinates(real).coordinates() == real.cast<double>()).all());
  CHECK(token_coordinates(real.col(1)).axes() == 1);
  CHECK(token_coordinates(2 * real).coordinates()(0, 1) == -2.5);
  constexpr std::int64_t most = std::int64_t{1} << 53;
  CHECK(token_coordinates(Eigen::Array<std::int64_t, 1, 2>(most, -most)).coordinates()(0, 1) == -0x1p53);
}

TEST_CASE("invalid coordinates of tokens throw", "[cache]") {
  const char* rule =
      "rope::token_coordinates: a coordinate must be finite and at most 2^53 in magnitude, got ";
  constexpr std::int64_t beyond = (std::int64_t{1} << 53) + 1;
  const auto rejected = [&](const auto& x, const char* value) {
    CHECK(throws_saying<std::invalid_argument>([&] { token_coordinates{x}; }, rule, value));
  };
  Eigen::ArrayXXd real = Eigen::ArrayXXd::Zero(3, 2);
  for (const double x : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                         -std::numeric_limits<double>::infinity(), 0x1.0000000000001p53}) {
    real(2, 1) = x;
    rejected(real, " at row 2, axis 1");
  }
  rejected(Eigen::Array<std::int64_t, 1, 2>(0, beyond), "9007199254740993 at row 0, axis 1");
  rejected(Eigen::Array<std::int64_t, 1, 2>(-beyond, 0), "-9007199254740993 at row 0, axis 0");
  rejected(Eigen::Array<std::int64_t, 1, 2>(std::numeric_limits<std::int64_t>::min(), 0), "at row 0, axis 0");
  rejected(Eigen::Array<std::uint64_t, 1, 2>(0, ~std::uint64_t{0}), "18446744073709551615 at row 0, axis 1");
}
