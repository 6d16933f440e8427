// SPDX-License-Identifier: MIT
// A list of integers means the same in every container: its storage order and its strides are used.
#include <rope/rope.hpp>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <span>
#include <stdexcept>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

using namespace rope;
using testing::same_bits;
using testing::throws_saying;

namespace {

constexpr Index B = 2, L = 5, H = 2, D = 8;

const frequency_table<float>& table() {
  static const frequency_table<float> rows(frequencies(D), -20, 120);
  return rows;
}

/// [B, L, H, D] heads, rotated by positions in any form.
template <class P>
std::vector<float> rotated(const P& positions, Index batch = B, Index tokens = L) {
  std::vector<float> x = testing::random_channels<float>(batch * tokens * H * D, 11);
  rotate<half_split>(bshd(x.data(), batch, tokens, H, D), table(), positions);
  return x;
}

/// Rotates every token alone at an integer start.
std::vector<float> one_by_one(const std::vector<int>& ids, Index batch = B, Index tokens = L) {
  std::vector<float> x = testing::random_channels<float>(batch * tokens * H * D, 11);
  for (Index token = 0; token < batch * tokens; ++token)
    rotate<half_split>(thd(x.data() + token * H * D, 1, H, D), table(),
                       ids[static_cast<std::size_t>(token) % ids.size()]);
  return x;
}

const std::vector<int> shared = {3, -7, 41, 0, 99}, each = {3, -7, 41, 0, 99, 8, 117, -20, 5, 12};

/// A user-defined list that has no strides.
struct strided_view {
  const int* first;
  std::size_t count;
  const int* data() const { return first; }
  std::size_t size() const { return count; }
};

}  // namespace

TEST_CASE("a matrix of ids is [batch, tokens] in either storage order", "[library]") {
  const auto expected = one_by_one(each);
  using column_major = Eigen::Array<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  using row_major = Eigen::Matrix<std::int64_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  column_major columns(B, L);
  row_major rows(B, L);
  Eigen::Tensor<int, 2> tensor(B, L);
  Eigen::Tensor<std::int16_t, 2, Eigen::RowMajor> row_tensor(B, L);
  column_major wide = column_major::Constant(2 * B + 1, 3 * L, -19), transposed(L, B);
  for (Index b = 0; b < B; ++b)
    for (Index t = 0; t < L; ++t) {
      const int id = each[static_cast<std::size_t>(b * L + t)];
      columns(b, t) = id;
      rows(b, t) = id;
      tensor(b, t) = id;
      row_tensor(b, t) = static_cast<std::int16_t>(id);
      transposed(t, b) = id;
      wide(2 * b + 1, 3 * t + 2) = id;
    }
  CHECK(same_bits(rotated(each), expected));
  CHECK(same_bits(rotated(columns), expected));
  CHECK(same_bits(rotated(rows), expected));
  CHECK(same_bits(rotated(tensor), expected));
  CHECK(same_bits(rotated(row_tensor), expected));
  CHECK(same_bits(rotated(transposed.transpose()), expected));
  CHECK(same_bits(rotated(Eigen::TensorMap<Eigen::Tensor<const int, 2>>(columns.data(), B, L)), expected));
  CHECK(same_bits(rotated(Eigen::Map<const column_major, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>(
                      &wide(1, 2), B, L, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(3 * wide.rows(), 2))),
                  expected));
  column_major padded = column_major::Constant(B + 2, L + 3, -19);
  padded.block(1, 2, B, L) = columns;
  CHECK(same_bits(rotated(padded.block(1, 2, B, L)), expected));
  const Eigen::Ref<const column_major, 0, Eigen::OuterStride<>> reference = padded.block(1, 2, B, L);
  CHECK(same_bits(rotated(reference), expected));

  std::vector<float> x = testing::random_channels<float>(B * L * H * D, 11), out(x.size());
  rotate_to<half_split>(bshd(x.data(), B, L, H, D), bshd(out.data(), B, L, H, D), table(), columns);
  CHECK(same_bits(out, expected));
  kv_cache<float> by_matrix(B, L, H, D), by_vector(B, L, H, D);
  const auto heads = bshd(x.data(), B, L, H, D);
  by_matrix.append_at<half_split>(heads, heads, table(), columns);
  by_vector.append_at<half_split>(heads, heads, table(), each);
  CHECK(testing::same_heads(by_matrix.keys(), by_vector.keys()));
  CHECK((angle_gradient<half_split>(heads, heads, table(), columns) ==
         angle_gradient<half_split>(heads, heads, table(), each))
            .all());
}

TEST_CASE("a vector of ids is read at its stride", "[library]") {
  const auto expected = one_by_one(shared), all = one_by_one(each);
  Eigen::ArrayXXi in_rows = Eigen::ArrayXXi::Constant(3, L, -20);
  for (Index t = 0; t < L; ++t) in_rows(1, t) = shared[static_cast<std::size_t>(t)];
  CHECK(same_bits(rotated(in_rows.row(1)), expected));
  CHECK(same_bits(rotated(in_rows.row(1).transpose()), expected));
  CHECK(same_bits(rotated(in_rows.middleRows(1, 1)), expected));

  std::vector<int> spaced(2 * each.size(), -20), backwards(each.rbegin(), each.rend());
  for (std::size_t t = 0; t < each.size(); ++t) spaced[2 * t] = each[t];
  using strided = Eigen::Map<const Eigen::VectorXi, 0, Eigen::InnerStride<>>;
  CHECK(same_bits(rotated(strided(spaced.data(), B * L, Eigen::InnerStride<>(2))), all));
  CHECK(same_bits(rotated(strided(spaced.data(), L, Eigen::InnerStride<>(2))), expected));
  CHECK(same_bits(rotated(strided(backwards.data() + B * L - 1, B * L, Eigen::InnerStride<>(-1))), all));
  CHECK(same_bits(rotated(strided(backwards.data() + B * L - 1, L, Eigen::InnerStride<>(-1))), expected));
  CHECK(same_bits(rotated(Eigen::Map<const Eigen::VectorXi, 0, Eigen::InnerStride<2>>(spaced.data(), B * L)),
                  all));
  CHECK(same_bits(rotated(strided(spaced.data(), B * L, Eigen::InnerStride<>(0))),
                  one_by_one(std::vector<int>(1, each[0]))));

  Eigen::Tensor<int, 1> tensor(L);
  for (Index t = 0; t < L; ++t) tensor(t) = shared[static_cast<std::size_t>(t)];
  CHECK(same_bits(rotated(tensor), expected));
  Eigen::MatrixXi square = Eigen::MatrixXi::Constant(L, L, -20);
  for (Index t = 0; t < L; ++t) square(t, t) = shared[static_cast<std::size_t>(t)];
  CHECK(same_bits(rotated(square.diagonal()), expected));
}

TEST_CASE("an expression of ids is evaluated once", "[library]") {
  const Eigen::VectorXi ids = Eigen::Map<const Eigen::VectorXi>(shared.data(), L);
  CHECK(same_bits(rotated(Eigen::VectorXi::LinSpaced(L, 4, 4 + L - 1)), rotated(4)));
  CHECK(same_bits(rotated(Eigen::ArrayXi::LinSpaced(B * L, 0, B * L - 1)),
                  one_by_one({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})));
  CHECK(same_bits(rotated(ids.array() + 6), one_by_one({9, -1, 47, 6, 105})));
  CHECK(same_bits(rotated(ids.reverse()), one_by_one({99, 0, 41, -7, 3})));
  CHECK(same_bits(rotated(ids.transpose().replicate(B, 1)), one_by_one(shared)));
  CHECK(same_bits(rotated(2 * Eigen::MatrixXi::Identity(L, L) * Eigen::VectorXi::Constant(L, 7)),
                  one_by_one({14})));

  Index calls = 0;
  const auto counting =
      Eigen::Array<Index, Eigen::Dynamic, 1>::NullaryExpr(L, [&calls](Index) { return calls++; });
  CHECK(same_bits(rotated(counting), one_by_one({0, 1, 2, 3, 4})));
  CHECK(calls == L);
  // Every head and every pass of one call reads the same ids, also if the ids increase at each read.
  const std::vector<float> before = testing::random_channels<float>(B * L * H * D, 11);
  std::vector<float> x = before;
  rotate_heads<half_split>(bshd(x.data(), B, L, H, D), std::vector(2, table()), counting);
  CHECK(same_bits(x, one_by_one({5, 6, 7, 8, 9})));
  x = before;
  CHECK(throws_saying<std::out_of_range>(
      [&] { rotate<half_split>(bshd(x.data(), B, L, H, D), table(), ids.array() + 21); },
      "position 120 is outside the table's [-20, 120)"));
  CHECK(x == before);
}

TEST_CASE("row starts and segments are read at their strides", "[library]") {
  const std::vector<int> starts = {-9, 0, 70, 0}, offsets = {0, -1, 2, -1, 2, -1, 5, -1};
  using strided = Eigen::Map<const Eigen::VectorXi, 0, Eigen::InnerStride<>>;
  const strided every_other(starts.data(), B, Eigen::InnerStride<>(2)),
      bounds(offsets.data(), 4, Eigen::InnerStride<>(2));
  const std::vector<int> plain = {-9, 70}, plain_offsets = {0, 2, 2, 5}, firsts = {30, 60, 90};
  const std::vector<int> firsts_backwards = {90, 60, 30};
  CHECK(same_bits(rotated(row_starts(every_other)), rotated(row_starts{plain})));
  CHECK(same_bits(rotated(row_starts(plain)), one_by_one({-9, -8, -7, -6, -5, 70, 71, 72, 73, 74})));
  CHECK(same_bits(rotated(segments(bounds), 1), one_by_one({0, 1, 0, 1, 2}, 1)));
  CHECK(same_bits(rotated(segments(plain_offsets), 1), one_by_one({0, 1, 0, 1, 2}, 1)));
  CHECK(same_bits(
      rotated(segments(bounds, strided(firsts_backwards.data() + 2, 3, Eigen::InnerStride<>(-1))), 1),
      one_by_one({30, 31, 90, 91, 92}, 1)));
  CHECK(same_bits(rotated(segments(plain_offsets, firsts), 1), one_by_one({30, 31, 90, 91, 92}, 1)));
  const Eigen::ArrayXXi matrix = Eigen::ArrayXXi::Zero(2, 3);
  CHECK(throws_saying<std::invalid_argument>([&] { row_starts{matrix}; },
                                             "row_starts: give a vector of integers, got a matrix [2, 3]"));
  CHECK(throws_saying<std::invalid_argument>([&] { segments(plain_offsets, matrix); },
                                             "segments: give a vector of integers, got a matrix [2, 3]"));
}

TEST_CASE("counts and offsets of attention may have any integer type and stride", "[library]") {
  constexpr Index tokens = 7;
  const std::vector<float> q = testing::random_channels<float>(B * tokens * H * D, 12),
                           k = testing::random_channels<float>(B * tokens * H * D, 13);
  const auto view = [&](const std::vector<float>& x, Index b, Index first, Index count) {
    return bshd(x.data(), B, tokens, H, D).batch_range(b, 1).token_range(first, count);
  };
  const auto attended = [&](const attention_options& options, Index batch) {
    std::vector<float> out(static_cast<std::size_t>(batch * tokens * H * D), -1.0f);
    attention<half_split>(bshd(q.data(), B, tokens, H, D).batch_range(0, batch),
                          bshd(k.data(), B, tokens, H, D).batch_range(0, batch),
                          bshd(k.data(), B, tokens, H, D).batch_range(0, batch),
                          bshd(out.data(), batch, tokens, H, D), table(), options);
    return out;
  };
  // Every part [first, first + count) of a row alone, in a call without lists. Other tokens are zeros.
  struct part {
    Index b, first, count;
  };
  const auto alone = [&](std::initializer_list<part> parts, Index batch) {
    std::vector<float> out(static_cast<std::size_t>(batch * tokens * H * D), 0.0f);
    for (const auto& [b, first, count] : parts)
      attention<half_split>(view(q, b, first, count), view(k, b, first, count), view(k, b, first, count),
                            bshd(out.data(), batch, tokens, H, D).batch_range(b, 1).token_range(first, count),
                            table());
    return out;
  };
  using strided = Eigen::Map<const Eigen::Array<std::int16_t, Eigen::Dynamic, 1>, 0, Eigen::InnerStride<>>;

  const auto padded = alone({{0, 0, 4}, {1, 0, 7}}, B);
  const std::array<std::uint8_t, 2> counts_of_bytes = {4, 7};
  const std::vector<int> counts = {4, 7};
  const std::int16_t spaced[] = {7, -1, -1, 4};
  const strided backwards(spaced + 3, B, Eigen::InnerStride<>(-3));
  Eigen::Tensor<std::uint64_t, 1> tensor(B);
  tensor.setValues({4, 7});
  CHECK(same_bits(attended({.query_counts = counts, .key_counts = counts_of_bytes}, B), padded));
  CHECK(same_bits(attended({.query_counts = backwards, .key_counts = tensor}, B), padded));

  const auto packed = alone({{0, 0, 3}, {0, 3, 1}, {0, 4, 3}}, 1);
  const std::vector<std::uint32_t> offsets = {0, 3, 3, 4, 7};
  const std::int16_t wide[] = {0, 99, 3, 99, 3, 99, 4, 99, 7};
  CHECK(same_bits(attended({.query_offsets = offsets}, 1), packed));
  CHECK(same_bits(attended({.query_offsets = strided(wide, 5, Eigen::InnerStride<>(2)),
                            .key_offsets = std::array<signed char, 5>{0, 3, 3, 4, 7}},
                           1),
                  packed));

  const std::vector<std::uint64_t> beyond = {7, ~std::uint64_t{0}};
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attended({.query_counts = counts, .key_counts = beyond}, B); },
      "key_counts must be in [0, 7], got 9223372036854775807"));
  const Eigen::ArrayXXi matrix = Eigen::ArrayXXi::Zero(2, 2);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attended({.query_counts = matrix}, B); },
      "counts and offsets: give a vector of integers, got a matrix [2, 2]"));
}

TEST_CASE("offsets of new tokens in pages may have any integer type", "[library]") {
  const std::vector<float> x = testing::random_channels<float>(3 * H * D, 14);
  const std::vector<int> blocks = {1, 0}, lengths = {1, 2};
  const auto written = [&](const detail::any_integers& offsets, const detail::any_integers& queries) {
    std::vector<float> keys(2 * 4 * H * D), values(keys.size()), out(x.size());
    const page_view<float> pages(
        {.keys = bshd(keys.data(), 2, 4, H, D), .values = bshd(values.data(), 2, 4, H, D)},
        Eigen::Map<const Eigen::MatrixXi>(blocks.data(), 2, 1), lengths);
    const auto heads = bshd(x.data(), 1, 3, H, D);
    write_pages<half_split>(heads, heads, pages, table(), offsets);
    attention<half_split>(heads, pages, bshd(out.data(), 1, 3, H, D), table(), {.query_offsets = queries});
    out.insert(out.end(), keys.begin(), keys.end());
    return out;
  };
  const std::vector<std::int64_t> plain = {0, 1, 3};
  const std::vector<std::uint8_t> bytes = {0, 1, 3};
  const Eigen::Array3i array(0, 1, 3);
  CHECK(same_bits(written(bytes, array), written(plain, plain)));
}

TEST_CASE("a matrix of ids of another shape throws", "[library]") {
  std::vector<float> x(static_cast<std::size_t>(B * L * H * D));
  const auto rejected = [&](const auto& ids, const char* shape) {
    return throws_saying<std::invalid_argument>(
        [&] { rotate<half_split>(bshd(x.data(), B, L, H, D), table(), ids); },
        "rope::rotate: a matrix of ids must be [batch, tokens] = [2, 5], got ", shape);
  };
  CHECK(rejected(Eigen::ArrayXXi(Eigen::ArrayXXi::Zero(L, B)), "[5, 2]"));
  CHECK(rejected(Eigen::ArrayXXi::Zero(B, L + 1), "[2, 6]"));
  CHECK(rejected(Eigen::ArrayXXi::Zero(B + 1, L), "[3, 5]"));
  Eigen::Tensor<int, 2> tensor(L, B);
  tensor.setZero();
  CHECK(rejected(tensor, "[5, 2]"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rotate<half_split>(bshd(x.data(), B, L, H, D), table(), std::span<const int>(shared).first(4)); },
      "ids must be [tokens] = 5 or [batch * tokens] = 10, got 4"));
}

TEST_CASE("a type without strides is not a list of positions", "[library]") {
  STATIC_REQUIRE_FALSE(position_form<strided_view>);
  STATIC_REQUIRE_FALSE(position_form<Eigen::Tensor<int, 3>>);
  STATIC_REQUIRE_FALSE(position_form<Eigen::Tensor<float, 1>>);
  STATIC_REQUIRE_FALSE(position_form<Eigen::Array<bool, Eigen::Dynamic, 1>>);
  STATIC_REQUIRE_FALSE(position_form<std::list<int>>);
  STATIC_REQUIRE(position_form<std::array<int, 3>>);
  STATIC_REQUIRE(position_form<Eigen::Ref<const Eigen::ArrayXXi>>);
}

// Every shape, order, stride and place in a larger matrix, compared with the ids read one by one.
TEST_CASE("ids in blocks of matrices, at random strides, are those of the plain list", "[library]") {
  testing::random numbers(testing::seed());
  for (int run = 0; run < 300; ++run) {
    const Index batch = numbers.integer(1, 3), tokens = numbers.integer(1, 4);
    const Index outer = numbers.integer(1, 3), inner = numbers.integer(1, 3);
    CAPTURE(run, batch, tokens, outer, inner);
    std::vector<int> plain;
    for (Index i = 0; i < batch * tokens; ++i) plain.push_back(static_cast<int>(numbers.integer(-20, 119)));
    const auto expected = one_by_one(plain, batch, tokens);
    const auto check = [&]<int order>(std::integral_constant<int, order>) {
      using matrix = Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, order>;
      using stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
      const Index length = (order == Eigen::RowMajor ? tokens : batch) * inner, step = length + outer;
      std::vector<int> memory(static_cast<std::size_t>(step * (batch + tokens) * inner), -20);
      Eigen::Map<matrix, 0, stride> ids(memory.data() + inner, batch, tokens, stride(step, inner));
      for (Index b = 0; b < batch; ++b)
        for (Index t = 0; t < tokens; ++t) ids(b, t) = plain[static_cast<std::size_t>(b * tokens + t)];
      CHECK(same_bits(rotated(ids, batch, tokens), expected));
      CHECK(same_bits(rotated(ids.array() + 0, batch, tokens), expected));
    };
    check(std::integral_constant<int, int(Eigen::RowMajor)>{});
    check(std::integral_constant<int, int(Eigen::ColMajor)>{});
  }
}
