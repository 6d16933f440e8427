// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_TOKEN_VIEW_HPP
#define ROPE_BLOCK_DETAIL_TOKEN_VIEW_HPP

#include <type_traits>

#include <rope/config.hpp>

/// Tokens as a block takes them: rows of a matrix in the caller's memory.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// [rows, cols] in rows of contiguous numbers, `stride` apart. Made from a row-major Eigen matrix, map or
/// block, which is never copied, as Eigen::Ref<const ...> would with any other.
///
/// \tparam T  float or double, const where it is only read
template <class T>
class token_view {
 public:
  token_view(T* data, Index rows, Index cols, Index stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {}

  template <class Matrix, class Expression = std::remove_cvref_t<Matrix>>
  requires std::is_base_of_v<Eigen::DenseBase<Expression>, Expression> token_view(Matrix&& matrix)
      : data_(const_cast<T*>(matrix.data())),  // a const map of numbers that may be written
        rows_(matrix.rows()),
        cols_(matrix.cols()),
        stride_(matrix.outerStride()) {
    static_assert(std::is_same_v<typename Expression::Scalar, std::remove_const_t<T>>,
                  "multi_head_attention: tokens are of the type of the block, float or double");
    static_assert(bool(Expression::Flags & Eigen::RowMajorBit) &&
                      bool(Expression::Flags & Eigen::DirectAccessBit) &&
                      int(Expression::InnerStrideAtCompileTime) == 1,
                  "multi_head_attention: tokens are a row-major Eigen matrix, map or block");
    constexpr bool owns = std::is_base_of_v<Eigen::PlainObjectBase<Expression>, Expression>;
    static_assert(std::is_const_v<T> || (bool(Expression::Flags & Eigen::LvalueBit) &&
                                         (!owns || (std::is_lvalue_reference_v<Matrix> &&
                                                    !std::is_const_v<std::remove_reference_t<Matrix>>))),
                  "multi_head_attention: the output is read-only");
  }

  operator token_view<const T>() const requires(!std::is_const_v<T>) {
    return {data_, rows_, cols_, stride_};
  }

  T* data() const { return data_; }
  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  Index size() const { return rows_ * cols_; }
  /// Numbers from one row to the next.
  Index stride() const { return stride_; }

 private:
  T* data_;
  Index rows_, cols_, stride_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_DETAIL_TOKEN_VIEW_HPP
