// SPDX-License-Identifier: MIT
#include <rope/rotation/view.hpp>

#include <limits>
#include <numeric>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using rope::head_view;
using rope::Index;
using testing::throws_saying;

namespace {

constexpr Index B = 2, S = 3, H = 4, D = 6;
constexpr Index largest = (std::numeric_limits<Index>::max)();

/// Whether element (b, s, h, d) of the view is where `address_of(b, s, h, d)` says, for all of [B, S, H, D].
template <class T, class AddressOf>
bool is_at(const head_view<T>& x, AddressOf address_of, Index batch = B) {
  bool all = x.batch == batch && x.tokens == S && x.heads == H && x.head_dim == D;
  for (Index b = 0; b < batch; ++b)
    for (Index s = 0; s < S; ++s)
      for (Index h = 0; h < H; ++h)
        for (Index d = 0; d < D; ++d) all = all && x.at(b, s, h) + d == address_of(b, s, h, d);
  return all;
}

template <class View, class T>
constexpr bool is_view_of = std::is_same_v<View, head_view<T>>;

}  // namespace

TEST_CASE("the letters of a factory name the axes of a pointer from slowest to fastest", "[rotation]") {
  std::vector<float> memory(B * S * H * D);
  float* p = memory.data();
  CHECK(is_at(rope::bshd(p, B, S, H, D),
              [p](Index b, Index s, Index h, Index d) { return p + ((b * S + s) * H + h) * D + d; }));
  CHECK(is_at(rope::bhsd(p, B, H, S, D),
              [p](Index b, Index s, Index h, Index d) { return p + ((b * H + h) * S + s) * D + d; }));
  CHECK(is_at(rope::sbhd(p, S, B, H, D),
              [p](Index b, Index s, Index h, Index d) { return p + ((s * B + b) * H + h) * D + d; }));
  CHECK(is_at(
      rope::thd(p, S, H, D), [p](Index, Index s, Index h, Index d) { return p + (s * H + h) * D + d; }, 1));
}

TEMPLATE_TEST_CASE("a view of const memory is read only", "[rotation]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  std::vector<TestType> memory(D);
  const TestType* read_only = memory.data();
  STATIC_REQUIRE(is_view_of<decltype(rope::bshd(read_only, 1, 1, 1, D)), const TestType>);
  STATIC_REQUIRE(is_view_of<decltype(rope::bshd(memory.data(), 1, 1, 1, D)), TestType>);
  STATIC_REQUIRE(std::is_same_v<typename head_view<const TestType>::value_type, TestType>);
  STATIC_REQUIRE(std::is_convertible_v<head_view<TestType>, head_view<const TestType>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<head_view<const TestType>, head_view<TestType>>);
}

TEST_CASE("a writable view converts to a read-only view of the same elements", "[rotation]") {
  std::vector<float> memory(100 + B * S * H * D);
  float* p = memory.data();
  const head_view<float> x = {p, B, S, H, D, 70, 23, 6};
  const head_view<const float> y = x;
  CHECK(is_at(y, [&](Index b, Index s, Index h, Index d) { return x.at(b, s, h) + d; }));
}

TEST_CASE("size counts the channels of a view", "[rotation]") {
  CHECK(rope::bshd<float>(nullptr, B, S, H, D).size() == B * S * H * D);
  CHECK(rope::thd<float>(nullptr, S, H, D).size() == S * H * D);
  CHECK(rope::bshd<float>(nullptr, B, 0, H, D).size() == 0);
}

TEST_CASE("a row-major tensor is viewed in the order of its dimensions", "[rotation]") {
  using tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  tensor x(B, S, H, D), y(B, H, S, D), z(S, B, H, D);
  Eigen::Tensor<float, 3, Eigen::RowMajor> w(S, H, D);
  CHECK(is_at(rope::bshd(x), [&](Index b, Index s, Index h, Index d) { return &x(b, s, h, d); }));
  CHECK(is_at(rope::bhsd(y), [&](Index b, Index s, Index h, Index d) { return &y(b, h, s, d); }));
  CHECK(is_at(rope::sbhd(z), [&](Index b, Index s, Index h, Index d) { return &z(s, b, h, d); }));
  CHECK(is_at(
      rope::thd(w), [&](Index, Index s, Index h, Index d) { return &w(s, h, d); }, 1));
}

TEST_CASE("the factory of a column-major tensor names the fastest index first", "[rotation]") {
  using tensor = Eigen::Tensor<double, 4>;
  tensor x(D, H, S, B), y(D, S, H, B), z(D, H, B, S);
  Eigen::Tensor<double, 3> w(D, H, S);
  CHECK(is_at(rope::dhsb(x), [&](Index b, Index s, Index h, Index d) { return &x(d, h, s, b); }));
  CHECK(is_at(rope::dshb(y), [&](Index b, Index s, Index h, Index d) { return &y(d, s, h, b); }));
  CHECK(is_at(rope::dhbs(z), [&](Index b, Index s, Index h, Index d) { return &z(d, h, b, s); }));
  CHECK(is_at(
      rope::dht(w), [&](Index, Index s, Index h, Index d) { return &w(d, h, s); }, 1));
}

TEST_CASE("a tensor map is viewed like its tensor", "[rotation]") {
  std::vector<Eigen::half> memory(B * S * H * D);
  using row_major = Eigen::Tensor<Eigen::half, 4, Eigen::RowMajor>;
  using column_major = Eigen::Tensor<Eigen::half, 4>;
  Eigen::TensorMap<row_major> x(memory.data(), B, H, S, D);
  Eigen::TensorMap<column_major> y(memory.data(), D, S, H, B);
  CHECK(is_at(rope::bhsd(x), [&](Index b, Index s, Index h, Index d) { return &x(b, h, s, d); }));
  CHECK(is_at(rope::dshb(y), [&](Index b, Index s, Index h, Index d) { return &y(d, s, h, b); }));
  CHECK(rope::bhsd(Eigen::TensorMap<row_major>(memory.data(), B, H, S, D)).at(0, 0, 0) == memory.data());
}

TEST_CASE("a tensor of another index type has the same view", "[rotation]") {
  Eigen::Tensor<float, 4, Eigen::RowMajor, int> x{int(B), int(S), int(H), int(D)};
  CHECK(is_at(rope::bshd(x),
              [&](Index b, Index s, Index h, Index d) { return &x(int(b), int(s), int(h), int(d)); }));
}

TEST_CASE("a const tensor and a map of const memory are read only", "[rotation]") {
  const Eigen::Tensor<float, 4, Eigen::RowMajor> x(B, S, H, D);
  STATIC_REQUIRE(is_view_of<decltype(rope::bshd(x)), const float>);
  const Eigen::TensorMap<const Eigen::Tensor<float, 4, Eigen::RowMajor>> map(x.data(), B, S, H, D);
  STATIC_REQUIRE(is_view_of<decltype(rope::bshd(map)), const float>);
  CHECK(is_at(rope::bshd(x), [&](Index b, Index s, Index h, Index d) { return &x(b, s, h, d); }));
  CHECK(is_at(rope::bshd(map), [&](Index b, Index s, Index h, Index d) { return &x(b, s, h, d); }));
}

TEST_CASE("a row-major matrix contains the heads of a token next to each other in its row", "[rotation]") {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  matrix x(S, H * D);
  const auto in_x = [&](Index, Index s, Index h, Index d) { return &x(s, h * D + d); };
  CHECK(is_at(rope::thd(x, H), in_x, 1));
  CHECK(is_at(rope::thd(Eigen::Map<matrix>(x.data(), S, H * D), H), in_x, 1));
  CHECK(is_at(rope::thd(Eigen::Ref<matrix>(x), H), in_x, 1));
  const auto one_head = rope::thd(x, 1);
  CHECK(one_head.heads == 1);
  CHECK(one_head.head_dim == H * D);
  CHECK(one_head.at(0, 1, 0) + 3 == &x(1, 3));
  Eigen::Array<float, S, H * D, Eigen::RowMajor> fixed;
  CHECK(is_at(
      rope::thd(fixed, H), [&](Index, Index s, Index h, Index d) { return &fixed(s, h * D + d); }, 1));
}

TEST_CASE("a block or a map with a stride keeps the stride of its matrix", "[rotation]") {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  matrix packed(S + 2, 5 + H * D + 7);
  const auto in_packed = [&](Index, Index s, Index h, Index d) { return &packed(1 + s, 5 + h * D + d); };
  CHECK(is_at(rope::thd(packed.block(1, 5, S, H * D), H), in_packed, 1));
  CHECK(is_at(rope::thd(packed.middleRows(1, S).middleCols(5, H * D), H), in_packed, 1));
  const Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>> map(&packed(1, 5), S, H * D,
                                                                       Eigen::OuterStride<>(packed.cols()));
  CHECK(is_at(rope::thd(map, H), in_packed, 1));
  // Two rows of this map end far below a multiple of its stride, which overflows.
  const Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>> far(&packed(0, 0), 2, D,
                                                                       Eigen::OuterStride<>(largest / 2 + 1));
  CHECK(rope::thd(far, 1).token_stride == largest / 2 + 1);
  CHECK(rope::thd(far, 1).batch_stride == 0);
}

TEST_CASE("a const matrix is read only", "[rotation]") {
  using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const matrix x = matrix::Zero(S, H * D);
  STATIC_REQUIRE(is_view_of<decltype(rope::thd(x, H)), const double>);
  STATIC_REQUIRE(is_view_of<decltype(rope::thd(x.topRows(1), H)), const double>);
  STATIC_REQUIRE(
      is_view_of<decltype(rope::thd(Eigen::Map<const matrix>(x.data(), S, H * D), H)), const double>);
  CHECK(is_at(
      rope::thd(x, H), [&](Index, Index s, Index h, Index d) { return &x(s, h * D + d); }, 1));
}

TEST_CASE("matrices and vectors of either storage order are viewed by index", "[rotation]") {
  // Also if Eigen's default storage order is changed.
  using column_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  column_major m(H * D, S);
  const auto in_m = [&](Index, Index s, Index h, Index d) { return &m(h * D + d, s); };
  CHECK(is_at(rope::dht(m, H), in_m, 1));
  CHECK(is_at(rope::thd(m.transpose(), H), in_m, 1));
  CHECK(is_at(rope::dht(Eigen::Map<column_major>(m.data(), H * D, S), H), in_m, 1));
  CHECK(is_at(rope::dht(Eigen::Ref<column_major>(m), H), in_m, 1));
  column_major large(2 + H * D + 3, 1 + S);
  CHECK(is_at(
      rope::dht(large.block(2, 1, H * D, S), H),
      [&](Index, Index s, Index h, Index d) { return &large(2 + h * D + d, 1 + s); }, 1));
  Eigen::Matrix<float, H * D, S, Eigen::ColMajor> fixed;
  CHECK(is_at(
      rope::dht(fixed, H), [&](Index, Index s, Index h, Index d) { return &fixed(h * D + d, s); }, 1));
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> batch(B * S, H * D);
  CHECK(is_at(rope::bshd(batch, B, H),
              [&](Index b, Index s, Index h, Index d) { return &batch(b * S + s, h * D + d); }));
  column_major batch_by_columns(H * D, B * S);
  CHECK(is_at(rope::bshd(batch_by_columns.transpose(), B, H),
              [&](Index b, Index s, Index h, Index d) { return &batch_by_columns(h * D + d, b * S + s); }));
  CHECK(is_at(
      rope::dht(batch.topRows(S).transpose(), H),
      [&](Index, Index s, Index h, Index d) { return &batch(s, h * D + d); }, 1));
  Eigen::VectorXf column(H * D);
  Eigen::RowVectorXf row(H * D);
  CHECK(rope::dht(column, H).at(0, 0, 1) == &column(D));
  CHECK(rope::thd(row, H).at(0, 0, 1) == &row(D));
  CHECK(rope::dht(column.segment(D, 2 * D), 2).at(0, 0, 1) == &column(2 * D));
  CHECK(rope::dht(column, H).tokens == 1);
  CHECK(rope::thd(row, H).tokens == 1);
  CHECK(
      throws_saying<std::invalid_argument>([&] { rope::dht(m, 5); },
                                           "rope::dht: heads must be positive and divide the 24 rows of the "
                                           "matrix, got 5"));
  for (const Index wrong : {Index{0}, Index{-1}, Index{4}})
    CHECK(throws_saying<std::invalid_argument>([&] { rope::bshd(batch, wrong, H); },
                                               "rope::bshd: batch must be positive and divide the 6 rows",
                                               "got " + std::to_string(wrong)));
}

TEST_CASE("a matrix whose columns are not a multiple of the heads throws", "[rotation]") {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> x(3, 10);
  for (const Index heads : {Index{3}, Index{0}, Index{-5}, Index{11}, largest})
    CHECK(throws_saying<std::invalid_argument>([&] { rope::thd(x, heads); },
                                               "rope::thd: heads must be positive and divide", "10 columns",
                                               "got " + std::to_string(heads)));
  CHECK(rope::thd(x, 5).head_dim == 2);
  CHECK(rope::thd(x.leftCols(0), 5).size() == 0);
}

TEST_CASE("negative extents throw in every factory", "[rotation]") {
  float* p = nullptr;
  const auto rejects = [](const char* name, const char* extents, auto call) {
    return throws_saying<std::invalid_argument>(
        call, std::string("rope::") + name + ": extents must not be negative", extents);
  };
  CHECK(rejects("bshd", "[-1, 2, 3, 4]", [p] { rope::bshd(p, -1, 2, 3, 4); }));
  CHECK(rejects("bshd", "[1, -2, 3, 4]", [p] { rope::bshd(p, 1, -2, 3, 4); }));
  CHECK(rejects("bhsd", "[1, 2, -3, 4]", [p] { rope::bhsd(p, 1, 2, -3, 4); }));
  CHECK(rejects("sbhd", "[1, 2, 3, -4]", [p] { rope::sbhd(p, 1, 2, 3, -4); }));
  CHECK(rejects("thd", "-2", [p] { rope::thd(p, -2, 3, 4); }));
  CHECK(rejects("thd", "-3", [p] { rope::thd(p, 2, -3, 4); }));
  CHECK(rejects("thd", "-4", [p] { rope::thd(p, 2, 3, -4); }));
}

TEST_CASE("extents whose product overflows throw in every factory", "[rotation]") {
  // root^2 is 2^62, or 2^30 if an Index has 32 bits.
  constexpr Index most = (std::numeric_limits<Index>::max)(),
                  root = Index{1} << std::numeric_limits<Index>::digits / 2;
  float* p = nullptr;
  const auto rejects = [](const char* name, const std::vector<Index>& extents, auto call) {
    std::string got;
    for (const Index extent : extents) got += (got.empty() ? "" : ", ") + std::to_string(extent);
    return throws_saying<std::length_error>(
        call,
        std::string("rope::") + name + ": extents must not exceed the address space, got [" + got + "]");
  };
  CHECK(rejects("bshd", {root, root, 2, 4}, [p] { rope::bshd(p, root, root, 2, 4); }));
  CHECK(rejects("bshd", {4, most / 2 + 1, 1, 4}, [p] { rope::bshd(p, 4, most / 2 + 1, 1, 4); }));
  CHECK(rejects("bhsd", {1, 1, most, 2}, [p] { rope::bhsd(p, 1, 1, most, 2); }));
  CHECK(rejects("sbhd", {2 * root, 2 * root, 2 * root, 1},
                [p] { rope::sbhd(p, 2 * root, 2 * root, 2 * root, 1); }));
  CHECK(rejects("thd", {1, most, 1, 1}, [p] { rope::thd(p, most, 1, 1); }));  // elements, but not bytes
  // Empty, but strides and counts of tokens are computed.
  CHECK(rejects("bshd", {0, root, root, 2}, [p] { rope::bshd(p, 0, root, root, 2); }));
  CHECK(rope::thd(p, most / 4, 1, 1).tokens == most / 4);
  CHECK(rope::bshd(p, root, root / 4, 1, 1).batch_stride == root / 4);
}

TEST_CASE("channels, head_range and token_range give the requested part of a view", "[rotation]") {
  std::vector<float> memory(B * S * H * D);
  const auto x = rope::bhsd(memory.data(), B, H, S, D);
  const auto window = x.channels(2, 3).head_range(1, 2).token_range(1, 2);
  CHECK(window.batch == B);
  CHECK(window.tokens == 2);
  CHECK(window.heads == 2);
  CHECK(window.head_dim == 3);
  testing::for_each_head(
      window, [&](Index b, Index t, Index h) { CHECK(window.at(b, t, h) == x.at(b, 1 + t, 1 + h) + 2); });
  CHECK(x.batch_range(1, 1).batch == 1);
  testing::for_each_head(x.batch_range(1, 1), [&](Index b, Index t, Index h) {
    CHECK(x.batch_range(1, 1).at(b, t, h) == x.at(1 + b, t, h));
  });
  CHECK(is_at(x.channels(0, D).head_range(0, H).token_range(0, S).batch_range(0, B),
              [&](Index b, Index s, Index h, Index d) { return x.at(b, s, h) + d; }));
}

TEST_CASE("head_range and channels cut the query and key parts out of a packed buffer", "[rotation]") {
  constexpr Index q_heads = 4, kv_heads = 2, packed_heads = q_heads + 2 * kv_heads;
  std::vector<float> memory(S * packed_heads * D);
  const auto packed = rope::thd(memory.data(), S, packed_heads, D);
  const auto k = packed.head_range(q_heads, kv_heads);
  CHECK(k.at(0, 2, 1) == memory.data() + (2 * packed_heads + q_heads + 1) * D);
}

TEST_CASE("a part of a read-only view is read only", "[rotation]") {
  const std::vector<float> memory(D);
  const auto x = rope::thd(memory.data(), 1, 1, D);
  STATIC_REQUIRE(is_view_of<decltype(x.channels(0, 2)), const float>);
  CHECK(x.channels(4, 2).at(0, 0, 0) == memory.data() + 4);
}

TEST_CASE("a part of a view may be empty, also at the end", "[rotation]") {
  std::vector<float> memory(B * S * H * D);
  const auto x = rope::bshd(memory.data(), B, S, H, D);
  CHECK(x.channels(D, 0).size() == 0);
  CHECK(x.head_range(H, 0).size() == 0);
  CHECK(x.token_range(S, 0).size() == 0);
  CHECK(x.batch_range(B, 0).size() == 0);
  // The stride of an extent of 1 is arbitrary, and not added to the pointer.
  auto one = rope::bshd(memory.data(), 1, S, 1, D);
  one.batch_stride = one.head_stride = largest / 2;
  CHECK(one.head_range(1, 0).data == one.data);
  CHECK(one.batch_range(1, 0).data == one.data);
  CHECK(one.batch_range(0, 1).at(0, 1, 0) == memory.data() + D);
}

TEST_CASE("a part outside its view throws", "[rotation]") {
  std::vector<float> memory(B * S * H * D);
  const auto x = rope::bshd(memory.data(), B, S, H, D);
  struct window {
    Index first, count;
  };
  for (const window& asked : {window{-1, 1}, window{1, -1}, window{7, 0}, window{0, 7}, window{6, 1},
                              window{1, largest}, window{largest, 1}, window{-largest - 1, largest}}) {
    const auto rejects = [values = std::to_string(asked.first) + " and count " + std::to_string(asked.count)](
                             const char* name, const std::string& extent, auto call) {
      return throws_saying<std::out_of_range>(call, std::string("rope::head_view::") + name,
                                              "first " + values, extent);
    };
    CHECK(rejects("channels", "inside [0, 6)", [&] { x.channels(asked.first, asked.count); }));
    CHECK(rejects("head_range", "inside [0, 4)", [&] { x.head_range(asked.first, asked.count); }));
    CHECK(rejects("token_range", "inside [0, 3)", [&] { x.token_range(asked.first, asked.count); }));
    CHECK(rejects("batch_range", "inside [0, " + std::to_string(B) + ")",
                  [&] { x.batch_range(asked.first, asked.count); }));
  }
}

TEST_CASE("extents fit if the bytes of their elements, at least one, are an Index", "[rotation]") {
  using rope::detail::extents_fit;
  const Index edge = Index{1} << (std::numeric_limits<Index>::digits - 3) / 4;  // 8 edge^4 is 2^63 or 2^31
  CHECK(extents_fit(edge - 1, edge - 1, edge - 1, edge - 1, 8));
  CHECK_FALSE(extents_fit(edge, edge, edge, edge, 8));
  CHECK(extents_fit(0, 0, 0, largest / 8, 8));
  CHECK_FALSE(extents_fit(0, 0, 0, largest / 8 + 1, 8));
}
