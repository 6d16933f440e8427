// SPDX-License-Identifier: MIT
#include <rope/rotation/permute.hpp>

#include <numeric>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

namespace {

using namespace rope;
using testing::throws_saying;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic>;

/// Two invalid layouts: channel 0 twice, and a channel beyond the head.
struct repeated {
  static constexpr Index first(Index /*i*/, Index /*pairs*/) { return 0; }
  static constexpr Index second(Index i, Index pairs) { return i + pairs; }
};
struct outside {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return i + pairs + i / 2; }
};

}  // namespace

// Golden: `permute` of llama.cpp's converter, reshape(heads, 2, head_dim / 2, cols).swapaxes(1, 2).
TEST_CASE("permute_rows from half_split to interleaved is what the GGUF converter does",
          "[rotation][permute]") {
  const Index heads = 3, head_dim = 8, half = head_dim / 2;
  const matrix before = matrix::Random(heads * head_dim, 5);
  matrix after = before;
  permute_rows<half_split, interleaved>(after, heads);
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < half; ++i)
      for (Index j = 0; j < 2; ++j)
        CHECK(after.row(h * head_dim + 2 * i + j) == before.row(h * head_dim + j * half + i));
}

TEST_CASE("rows of the rotated channels are permuted and the other rows do not move", "[rotation][permute]") {
  Eigen::VectorXi rows(16);
  std::iota(rows.begin(), rows.end(), 0);
  const auto permuted = [&](Index heads, Index rotary_dim, Index first) {
    Eigen::VectorXi x = rows;
    permute_rows<interleaved, half_split>(x, heads, rotary_dim, first);
    return std::vector<int>(x.begin(), x.end());
  };
  CHECK(permuted(2, 0, 0) == std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15});
  CHECK(permuted(2, 4, 0) == std::vector<int>{0, 2, 1, 3, 4, 5, 6, 7, 8, 10, 9, 11, 12, 13, 14, 15});
  CHECK(permuted(2, 4, 3) == std::vector<int>{0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 11, 13, 12, 14, 15});
  CHECK(permuted(2, 0, 4) == std::vector<int>{0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11, 12, 14, 13, 15});
  CHECK(permuted(1, 6, 10) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 11, 13, 15});
}

TEMPLATE_TEST_CASE("a second call with the layouts swapped restores every bit", "[rotation]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using array = Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic>;
  std::vector<TestType> memory(24 * 5);
  testing::fill_with_nan(memory);
  const std::vector<TestType> before = memory;
  Eigen::Map<array> rows(memory.data(), 24, 5);
  permute_rows<interleaved, half_split>(rows, 2, 10, 1);
  CHECK(!testing::same_bits(memory, before));
  permute_rows<half_split, interleaved>(rows, 2, 10, 1);
  CHECK(testing::same_bits(memory, before));
  permute_rows<half_split, half_split>(rows, 2);
  CHECK(testing::same_bits(memory, before));

  const auto heads = bshd(memory.data(), 2, 3, 2, 10);
  permute_channels<interleaved, half_split>(heads, 8);
  CHECK(!testing::same_bits(memory, before));
  permute_channels<half_split, interleaved>(heads, 8);
  CHECK(testing::same_bits(memory, before));
}

TEST_CASE("any writable matrix of any order, scalar and stride can be permuted", "[rotation][permute]") {
  using row_major = Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::MatrixXi before = Eigen::MatrixXi::Random(16, 4);
  Eigen::MatrixXi expected = before;
  permute_rows<half_split, interleaved>(expected, 2);

  row_major rows = before;
  permute_rows<half_split, interleaved>(rows, 2);
  CHECK(rows == expected);
  Eigen::MatrixXi stored_transposed = before.transpose();
  permute_rows<half_split, interleaved>(stored_transposed.transpose(), 2);
  CHECK(stored_transposed == expected.transpose());
  Eigen::MatrixXi larger = Eigen::MatrixXi::Constant(20, 7, 5);
  larger.block(3, 2, 16, 4) = before;
  permute_rows<half_split, interleaved>(larger.block(3, 2, 16, 4), 2);
  CHECK(larger.block(3, 2, 16, 4) == expected);
  larger.block(3, 2, 16, 4).setConstant(5);
  CHECK((larger.array() == 5).all());
  Eigen::ArrayXXi array = before.array();
  permute_rows<half_split, interleaved>(array, 2);
  CHECK((array == expected.array()).all());
  std::vector<int> spaced(2 * 16 * 4, 5);
  Eigen::Map<Eigen::MatrixXi, 0, Eigen::InnerStride<2>> strided(spaced.data(), 16, 4);
  strided = before;
  permute_rows<half_split, interleaved>(strided, 2);
  CHECK(strided == expected);
  Eigen::Matrix<int, 16, 1> fixed = before.col(0);
  permute_rows<half_split, interleaved>(fixed, 2);
  CHECK(fixed == expected.col(0));
}

TEMPLATE_LIST_TEST_CASE("permuted activations rotate to the permuted result, bit for bit", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  const frequency_table<typename TestType::entry> table(frequencies(12, 1e4), 4);
  const std::vector<T> before = testing::random_channels<T>(2 * 4 * 3 * 16, 92);
  for (const Index first : {Index{0}, Index{4}, Index{3}}) {
    std::vector<T> rotated_first = before, permuted_first = before;
    const auto heads = [first](std::vector<T>& x) {
      return bhsd(x.data(), 2, 3, 4, 16).channels(first, 16 - first);
    };
    rotate<interleaved>(heads(rotated_first), table);
    permute_channels<interleaved, half_split>(heads(rotated_first), 12);
    permute_channels<interleaved, half_split>(heads(permuted_first), 12);
    rotate<half_split>(heads(permuted_first), table);
    CHECK(testing::same_bits(rotated_first, permuted_first));
  }
}

TEST_CASE("permute_channels without a rotary_dim takes the whole head", "[rotation][permute]") {
  std::vector<double> x = {0, 1, 2, 3, 4, 5};
  permute_channels<half_split, interleaved>(thd(x.data(), 1, 1, 6));
  CHECK(x == std::vector<double>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("heads and rotated channels that do not fit throw and no row moves", "[rotation][permute]") {
  const matrix before = matrix::Random(24, 3);
  matrix x = before;
  const auto reports = [&](const char* text, Index heads, Index rotary_dim = 0, Index first = 0) {
    const bool thrown = throws_saying<std::invalid_argument>(
        [&] { permute_rows<interleaved, half_split>(x, heads, rotary_dim, first); },
        std::string("rope::permute_rows: ") + text);
    return thrown && x == before;
  };
  CHECK(reports("heads must be positive and divide the 24 rows, got 0", 0));
  CHECK(reports("heads must be positive and divide the 24 rows, got -2", -2));
  CHECK(reports("heads must be positive and divide the 24 rows, got 5", 5));
  CHECK(reports("heads must be positive and divide the 24 rows, got 48", 48));
  CHECK(reports("first must be in [0, head_dim = 12], got -1", 2, 4, -1));
  CHECK(reports("first must be in [0, head_dim = 12], got 13", 2, 4, 13));
  CHECK(reports("rotary_dim must be even, positive and at most head_dim = 12, got 14", 2, 14));
  CHECK(reports("rotary_dim must be even, positive and at most head_dim = 8, got 10", 2, 10, 4));
  CHECK(reports("rotary_dim must be even, positive and at most head_dim = 12, got 5", 2, 5));
  CHECK(reports("rotary_dim must be even, positive and at most head_dim = 12, got -4", 2, -4));
  CHECK(reports("rotary_dim must be even, positive and at most head_dim = 3, got 3", 8));
  CHECK(reports("rotary_dim must be even, positive and at most head_dim = 0, got 0", 2, 0, 12));

  std::vector<float> heads = {0, 1, 2, 3, 4, 5, 6};
  const std::vector<float> heads_before = heads;
  const auto view = thd(heads.data(), 1, 1, 7);
  for (const auto& [rotary_dim, got] :
       {std::pair(0, "got 7"), std::pair(8, "got 8"), std::pair(3, "got 3"), std::pair(-2, "got -2")})
    CHECK(throws_saying<std::invalid_argument>(
        [&, r = rotary_dim] { permute_channels<half_split, interleaved>(view, r); },
        "rope::permute_channels: rotary_dim must be even, positive and at most head_dim = 7", got));
  CHECK(heads == heads_before);
}

TEST_CASE("a layout with a channel twice or outside the head throws", "[rotation][permute]") {
  std::vector<double> x = {0, 1, 2, 3, 4, 5};
  const std::vector<double> before = x;
  const auto view = thd(x.data(), 1, 1, 6);
  const auto rejects = [&](auto permute, const char* text) {
    return throws_saying<std::invalid_argument>(permute, "rope::permute_channels: the layout must ", text);
  };
  const char *twice = "name every channel of [0, 6) once, got channel 0 again for pair 1",
             *beyond = "map a pair to two channels of [0, 6), got ";
  CHECK(rejects([&] { permute_channels<half_split, repeated>(view); }, twice));
  CHECK(rejects([&] { permute_channels<repeated, half_split>(view); }, twice));
  CHECK(rejects([&] { permute_channels<half_split, outside>(view); }, beyond));
  CHECK(rejects([&] { permute_channels<outside, half_split>(view); }, beyond));
  CHECK(x == before);
}
