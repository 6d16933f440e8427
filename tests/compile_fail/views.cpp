// SPDX-License-Identifier: MIT

#include <cstdint>

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <int Order>
using tensor = Eigen::Tensor<float, 4, Order>;
template <class Stride>
using map = Eigen::Map<matrix, Eigen::Unaligned, Stride>;

void tensors(tensor<Eigen::RowMajor>& row_major, tensor<Eigen::ColMajor>& column_major,
             Eigen::Tensor<float, 3, Eigen::RowMajor>& three) {
  rope::bshd(row_major);
  rope::dhsb(column_major);
#ifdef COLUMN_MAJOR_TENSOR
  // EXPECT: error: .*bshd: channels must be the fastest index; this tensor is column-major: declare it with Eigen::RowMajor, order it \(head_dim, heads, tokens, batch\) and call dhsb\(x\), or copy it with staged<
  auto& x = column_major;
  rope::bshd(x);
#endif
#ifdef ROW_MAJOR_DHSB
  // EXPECT: error: .*dhsb: channels must be the fastest index; this tensor is row-major: declare it without Eigen::RowMajor, order it \(batch, tokens, heads, head_dim\) and call bshd\(x\)
  rope::dhsb(row_major);
#endif
  rope::view_as<"ssd">(three);
#ifdef RANK_OF_A_VIEW
  // EXPECT: error: .*bshd: x must be an Eigen::Tensor or TensorMap of rank 4; .*another rank is view_as<letters>\(x\)
  rope::bshd(three);
#endif
#ifdef LETTERS_OF_A_VIEW
  // EXPECT: error: .*view_as: channels must be the fastest index
  rope::view_as<"dss">(three);
#endif
  rope::bshd(row_major).batch_range(0, 1);
#ifdef SLICE_OF_A_TENSOR
  // EXPECT: error: .*thd: x must be an Eigen::Tensor or TensorMap of rank 3; evaluate a slice, chip
  rope::thd(row_major.chip(0, 0));
#endif
}

void matrices(matrix& q, const matrix& w, Eigen::MatrixXf& column_major, map<Eigen::OuterStride<>>& rows) {
  rope::thd(q, 4);
#ifdef COLUMN_MAJOR_MATRIX
  // EXPECT: error: .*thd: the matrix must be row-major.*copy a column-major \[tokens, heads \* head_dim\]
  auto& x = column_major;
  rope::thd(x, 4);
#endif
  rope::thd(rows, 4);
#ifdef MATRIX_WITH_GAPS
  // EXPECT: error: .*thd: the matrix must be row-major in memory with an inner stride of 1
  rope::thd(map<Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>(q.data(), 1, 1, {1, 1}), 4);
#endif
  q = q * w;
#ifdef PRODUCT_AS_HEADS
  // EXPECT: error: .*thd: the matrix must be row-major in memory with an inner stride of 1
  auto& x = q;
  rope::thd((x * w).eval(), 4);
#endif
}

void pointers(std::int8_t* data, float* scales) {
  rope::bshd(data, scales, 1, 2, 3, 4);
#ifdef QUANTIZED_WITHOUT_SCALES
  // EXPECT: error: .*std::int8_t needs scales, bshd\(data, scales, batch, tokens, heads, head_dim\)
  rope::bshd(data, 1, 2, 3, 4);
#endif
  rope::thd(scales, 1, 1, 8);
#ifdef INTEGER_SCALAR
  // EXPECT: error: .*head_view: a channel type is
  rope::thd(static_cast<int*>(nullptr), 1, 1, 8);
#endif
}
