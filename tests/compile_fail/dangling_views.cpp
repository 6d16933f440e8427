// SPDX-License-Identifier: MIT
// EXPECT: value of local variable 'a' will be destroyed.*'b' will.*'c' will.*'d' will.*'e' will.*'f' will.*'g' will.*'h' will.*'i' will.*'j' will.*'k' will.*'l' will.*'m' will.*'n' will.*'o' will.*'p' will.*'q' will.*'s' will

// Objects that refer to a temporary which owns memory: clang warns only if they are stored in a variable.

#include <rope/rope.hpp>

#include <span>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#pragma clang diagnostic error "-Wdangling"

using rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using column_tensor = Eigen::Tensor<float, 4>;
using rope::half_split;

void take(rope::head_view<float> view);
void read(rope::head_view<const float> view);
void take(const rope::projection<const float>& weight);
rope::frequency_table<float> make_table();
rope::multi_head_attention<float> make_block();

#ifdef DANGLING_VIEWS
// EXPECT: value of local variable 'a' will be destroyed.*'b' will.*'c' will.*'d' will.*'e' will.*'f' will.*'g' will.*'h' will.*'i' will.*'j' will.*'k' will.*'l' will.*'m' will.*'n' will.*'o' will.*'p' will.*'q' will
void test(const rows& r, const Eigen::MatrixXf& matrix, tensor& t, rope::head_norm<float> norm) {
  const auto a = rope::bshd(tensor(t));
  const auto b = rope::dhsb(column_tensor(1, 2, 3, 4));
  const auto c = rope::thd(rows(r * r), 1);
  const auto d = rope::bshd(rows(r * r), 1, 1);
  const auto e = rope::dht(Eigen::MatrixXf(matrix * matrix), 1);
  const auto f = rope::view_as<"bshd">(tensor(t));
  const auto g = rope::staged<"bshd">(t).view();
  const auto h = rope::score_matrix(Eigen::MatrixXf(matrix));
  const auto i = make_table().at_channel(4);
  const rope::query_key_tables j(make_table(), make_table());
  const rope::normed_table k(norm, make_table());
  const rope::row_starts l{std::vector<int>{1}};
  const rope::segments m{Eigen::VectorXi(3)};
  const rope::projection<const float> n(rows(r * r));
  const int one[] = {1};
  const rope::segments o{std::span(one), std::vector<int>{5}};
  const rope::page_view<float> p({}, std::vector<int>{0}, std::span(one));
  const rope::projection<const float> q(r, Eigen::VectorXf(3));
  const rope::page_view<float> s({}, std::span(one), std::vector<int>{0});
}
#else
void test(rows& r, Eigen::MatrixXf& matrix, tensor& t, std::vector<int>& list, float* memory,
          const rope::frequency_table<float>& table, rope::head_norm<float> norm) {
  const Eigen::TensorMap<tensor> map(memory, 1, 2, 3, 4);
  const auto a = rope::bshd(t), b = rope::bshd(Eigen::TensorMap<tensor>(map));
  const auto c = rope::thd(matrix.transpose(), 2), d = rope::thd(r.block(0, 0, 2, 2), 1),
             e = rope::dht(matrix, 1);
  const auto f = rope::view_as<"bshd">(Eigen::TensorMap<tensor>(map));
  auto staged = rope::staged<"bshd">(t);
  const auto g = staged.view();
  const auto h = rope::score_matrix(matrix.block(0, 0, 2, 2));
  const auto i = table.at_channel(4);
  const rope::query_key_tables j(table, table), pair(table.at_channel(2), table);
  const rope::normed_table k(norm, table), placed(norm, table.at_channel(2));
  const rope::row_starts l{std::span<const int>(list)};
  const rope::segments m{list};
  const rope::projection<const float> n(r), o(matrix.transpose());
  const rope::segments p{list, std::span<const int>(list)};
  const rope::page_view<float> q({}, list, std::span<const int>(list));
  const rope::projection<const float> s(r, matrix.col(0)), u(matrix.transpose(), matrix.col(0));
  const rope::projected_context<float> context = make_block().project_context(r, 1);
  const auto v = context.keys(), w = context.values();
  const rope::multi_head_shape x = make_block().shape();
  take(rope::bshd(tensor(t)));  // temporaries that live as long as the call
  read(rope::staged<"bshd">(t).view());
  take(rows(r * r));
  rope::rotate<half_split>(a, make_table(), rope::row_starts{std::vector<int>{1}});
  rope::attention(a, a, a, b, {.bias = rope::score_matrix(Eigen::MatrixXf(matrix))});
  rope::attention(a, a, a, b, {.key_counts = std::vector<int>{1}});
  const rope::attention_options counts{.query_counts = list, .key_counts = std::span<const int>(list)};
}
#endif

#ifdef DANGLING_BLOCK
// EXPECT: value of local variable 'a' will be destroyed.*'b' will.*'c' will.*'d' will.*'e' will.*'f' will
void test(const rows& r) {
  const auto a = make_block().project_context(r, 1).keys();
  const auto b = make_block().project_context(r, 1).values();
  const rope::multi_head_shape& c = make_block().shape();
  const rope::multi_head_options& d = make_block().options();
  const rope::multi_head_weights<float>& e = make_block().weights();
  const rope::attention_options f{.key_counts = std::vector<int>{1}};
}
#endif
