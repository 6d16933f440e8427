// SPDX-License-Identifier: MIT
// The counts of the rows of a batch are a list of any integer type, in every call that takes counts.
#include <rope/block/multi_head_attention.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;

namespace {

constexpr Index batch = 3, tokens = 4, heads = 2, dim = 8;

struct channels {
  std::vector<float> x = testing::random_channels<float>(batch * tokens * heads * dim, 21);
  head_view<const float> view() const { return bshd(x.data(), batch, tokens, heads, dim); }
};

/// All functions that take counts, with one list, for every cache. The outputs are written one after another.
template <class Counts>
std::vector<float> outputs(const Counts& counts) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const channels of;
  const frequency_table<> table(frequencies(dim), 20);
  std::vector<float> all, out(of.x.size());
  const head_view<float> result = bshd(out.data(), batch, tokens, heads, dim);
  const auto keep = [&] { all.insert(all.end(), out.begin(), out.end()); };
  const head_view<const float> x = of.view();

  kv_cache<float> rotated(batch, 20, heads, dim), raw(batch, 20, heads, dim, 0, key_storage::raw);
  ring_cache<float> ring(batch, {.window = 9}, heads, dim), given(batch, {.window = 9}, heads, dim);
  rotated.append<half_split>(x, x, table, counts);
  rotated.append_at<half_split>(x, x, table, 7, counts);
  raw.append(x, x, counts);
  raw.append_at(x, x, 7, counts);
  ring.append<half_split>(x, x, table, counts);
  given.append(x, x, counts);
  attention<half_split>(x, rotated, result, table, {}, counts);
  keep();
  attention<half_split>(x, raw, result, table, {}, counts);
  keep();
  attention<half_split>(x, ring, result, table, {}, counts);
  keep();
  attention(x, given, result, {}, counts);
  keep();

  const matrix w = matrix::Identity(heads * dim, heads * dim);
  const auto weight = projection<const float>{w.data(), w.rows(), w.cols()};
  const multi_head_weights<float> weights{.q = weight, .k = weight, .v = weight, .o = weight};
  const multi_head_attention<float, half_split> block(weights, {.heads = heads, .kv_heads = heads});
  const Eigen::Map<const matrix> in(of.x.data(), batch * tokens, heads * dim);
  Eigen::Map<matrix> to(out.data(), batch * tokens, heads * dim);
  block.forward(in, rotated, to, table, counts);
  keep();
  block.forward(in, given, to, counts);
  keep();
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("counts are a list of any integer type", "[cache]", int, signed char, std::uint8_t, short,
                   std::uint32_t, long, long long, std::uint64_t) {
  using I = TestType;
  const std::vector<Index> plain = {3, 0, 4};
  const std::vector<float> expected = outputs(plain);
  const std::vector<I> list = {3, 0, 4};
  CHECK(testing::same_bits(outputs(list), expected));
  CHECK(testing::same_bits(outputs(std::array<I, 3>{3, 0, 4}), expected));
  CHECK(testing::same_bits(outputs(std::span<const I>(list)), expected));
  const I of_the_language[] = {3, 0, 4};
  CHECK(testing::same_bits(outputs(of_the_language), expected));
  std::vector<I> writable = list;
  CHECK(testing::same_bits(outputs(std::span<I>(writable)), expected));
  Eigen::Array<I, Eigen::Dynamic, 1> array(3);
  array << I(3), I(0), I(4);
  CHECK(testing::same_bits(outputs(array), expected));
  Eigen::Array<I, Eigen::Dynamic, Eigen::Dynamic> matrix(2, 3);
  matrix << I(1), I(1), I(1), I(3), I(0), I(4);
  CHECK(testing::same_bits(outputs(matrix.row(1)), expected));
  CHECK(testing::same_bits(outputs(std::vector<I>{}), outputs(std::vector<Index>{4, 4, 4})));
}

TEST_CASE("an invalid count throws with its value", "[cache]") {
  const channels of;
  kv_cache<float> cache(batch, 20, heads, dim);
  const auto rejected = [&](const auto& counts, const char* got) {
    CHECK(testing::throws_saying<std::invalid_argument>([&] { cache.append(of.view(), of.view(), counts); },
                                                        "rope::kv_cache::append: counts must be ", got));
    CHECK(cache.size() == 0);
  };
  rejected(std::vector<int>{1, -1, 2}, "in [0, tokens] = [0, 4], got -1");
  rejected(std::vector<unsigned>{1, 5, 2}, "in [0, tokens] = [0, 4], got 5");
  rejected(std::vector<std::uint64_t>{1, (std::numeric_limits<std::uint64_t>::max)(), 2},
           "in [0, tokens] = [0, 4], got 9223372036854775807");
  rejected(std::vector<short>{1, 2}, "[batch] = 3, got 2");
  const Eigen::MatrixXi matrix = Eigen::MatrixXi::Ones(3, 2);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { cache.append(of.view(), of.view(), matrix); },
      "counts: give a vector of integers, got a matrix [3, 2]"));
}

TEST_CASE("a list of counts must contain integers", "[cache]") {
  CHECK(std::is_convertible_v<std::vector<int>, detail::row_counts>);
  CHECK(std::is_convertible_v<Eigen::VectorXi, detail::row_counts>);
  CHECK_FALSE(std::is_convertible_v<std::vector<double>, detail::row_counts>);
  CHECK_FALSE(std::is_convertible_v<std::array<bool, 3>, detail::row_counts>);
  CHECK_FALSE(std::is_convertible_v<int, detail::row_counts>);
}
