// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_VIEW_HPP
#define ROPE_ROTATION_VIEW_HPP

#include <algorithm>  // std::max
#include <concepts>
#include <cstddef>
#include <limits>
#include <type_traits>

#include <rope/base/integer_list.hpp>  // dense_of
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>

/// Views of the heads of a batch of sequences in memory. A view owns nothing and copies nothing.
///
/// The letters in the name of a view function are axes: B batch, S tokens of a sequence, H heads, D channels
/// of a head, T the concatenated tokens of a ragged batch. For a pointer, they are in order from the slowest
/// to the fastest axis in memory (row-major, as in C and NumPy). For an Eigen::Tensor, they are in the order
/// of its indices.

namespace rope::inline ROPE_ABI {

/// The types a channel can have. Eigen::half and Eigen::bfloat16 are storage types: arithmetic is in float.
template <class T>
concept channel = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Eigen::half> ||
    std::same_as<T, Eigen::bfloat16>;

template <class T>
struct head_view;

namespace detail {

/// The scales of heads that are not int8: none.
struct no_scales {
  // clang 14 compiles head_view::scale_at where a program instantiates the class explicitly.
  const float* at(Index /*b*/, Index /*t*/, Index /*h*/) const { return nullptr; }
  no_scales batch_range(Index /*first*/, Index /*count*/) const { return {}; }
  no_scales head_range(Index /*first*/, Index /*count*/) const { return {}; }
  no_scales token_range(Index /*first*/, Index /*count*/) const { return {}; }
};
template <class T>
struct scales_of {
  using type = no_scales;
};
template <class T>
requires is_quantized<std::remove_const_t<T>>
struct scales_of<T> {
  using scale = std::conditional_t<std::is_const_v<T>, const float, float>;
  using type = head_view<scale>;
};

}  // namespace detail

/// Heads [batch, tokens, heads, head_dim]. Element (b, t, h, d) is at
///
///     data[b * batch_stride + t * token_stride + h * head_stride + d]
///
///     const head_view<float> q = bshd(data, batch, tokens, heads, head_dim);
///     rotate<half_split>(q.channels(64, 64), table);  // the second half of every head
///
/// int8 heads have one scale per token and head, see quantized_view.hpp.
///
/// \tparam T  a channel type or std::int8_t, const for inputs
///
/// Requires:  extents are not negative and all elements are inside one allocation. Strides count elements.
template <class T>
struct head_view {
  /// The channel type.
  using value_type = std::remove_const_t<T>;
  static_assert(
      channel<value_type> || detail::is_quantized<value_type>,
      "head_view: a channel type is float, double, Eigen::half or Eigen::bfloat16; heads with scales "
      "are std::int8_t");

  T* data;             // element (0, 0, 0, 0)
  Index batch;         // sequences
  Index tokens;        // of a sequence
  Index heads;         // of a token
  Index head_dim;      // channels of a head
  Index batch_stride;  // elements from a sequence to the next
  Index token_stride;  // elements from a token to the next
  Index head_stride;   // elements from a head to the next
  ROPE_DETAIL_NO_UNIQUE_ADDRESS typename detail::scales_of<T>::type scales = {};  // [batch, tokens, heads, 1]

  /// The channels of one head of one token, [head_dim].
  T* at(Index b, Index t, Index h) const {
    return data + b * batch_stride + t * token_stride + h * head_stride;
  }

  /// The scale of one head of one token of int8 heads.
  auto* scale_at(Index b, Index t, Index h) const requires detail::is_quantized<value_type> {
    return scales.at(b, t, h);
  }

  /// Number of channels in the view.
  Index size() const { return batch * tokens * heads * head_dim; }

  /// A read-only view of this memory.
  operator head_view<const T>() const requires(!std::is_const_v<T>) {
    return {data, batch, tokens, heads, head_dim, batch_stride, token_stride, head_stride, scales};
  }

  /// Channels [first, first + count) of every head.  Throws: std::out_of_range
  head_view channels(Index first, Index count) const {
    return window("channels", first, count, 1, &head_view::head_dim, scales);
  }
  /// Sequences [first, first + count) of the batch.  Throws: std::out_of_range
  head_view batch_range(Index first, Index count) const {
    return window("batch_range", first, count, batch_stride, &head_view::batch,
                  scales.batch_range(first, count));
  }
  /// Heads [first, first + count) of every token.  Throws: std::out_of_range
  head_view head_range(Index first, Index count) const {
    return window("head_range", first, count, head_stride, &head_view::heads,
                  scales.head_range(first, count));
  }
  /// Tokens [first, first + count) of every sequence.  Throws: std::out_of_range
  head_view token_range(Index first, Index count) const {
    return window("token_range", first, count, token_stride, &head_view::tokens,
                  scales.token_range(first, count));
  }

 private:
  template <class Scales>
  head_view window(const char* name, Index first, Index count, Index stride, Index head_view::*extent,
                   const Scales& scales_of_part) const {
    head_view part = *this;
    if (first < 0 || count < 0 || first > part.*extent || count > part.*extent - first)
      detail::throw_out_of_range({"head_view::", name, ": first ", first, " and count ", count,
                                  " must stay inside [0, ", part.*extent, ")"});
    if (data != nullptr && count != 0) part.data += first * stride;  // otherwise the part has no elements
    part.*extent = count;
    part.scales = scales_of_part;
    return part;
  }
};

namespace detail {

/// Whether X is T, or X is float and T has 16 bits or is quantized. A T is then exact in X, and an X stored
/// as T is rounded at most once.
template <class X, class T>
inline constexpr bool is_or_widens = std::is_same_v<X, T> ||
                                     (std::is_same_v<X, float> && !std::is_same_v<T, double>);

/// Whether no extent is negative and all are below 2^15 (32-bit Index: 2^7), so that elements of up to 8
/// bytes fit the address space.
constexpr bool are_small(Index a, Index b, Index c, Index d) {
  return static_cast<std::size_t>(a | b | c | d) < std::size_t{1}
                                                       << (std::numeric_limits<Index>::digits - 3) / 4;
}

/// Whether the number of bytes of elements [a, b, c, d] of `bytes` each fits an Index. An extent of 0 counts
/// as 1: strides are products of some extents.
constexpr bool extents_fit(Index a, Index b, Index c, Index d, Index bytes) {
  if (are_small(a, b, c, d)) return true;
  return product_fits(
      {(std::max)(a, Index{1}), (std::max)(b, Index{1}), (std::max)(c, Index{1}), (std::max)(d, Index{1})},
      (std::numeric_limits<Index>::max)() / bytes);
}

/// check_extents of any extents. Not inline, so that a call with small extents costs one comparison.
EIGEN_DONT_INLINE inline void check_large_extents(const char* name, const char* what, Index a, Index b,
                                                  Index c, Index d, Index bytes) {
  if ((a | b | c | d) < 0) throw_invalid(name, what, " must not be negative, got ", shape_text({a, b, c, d}));
  if (!extents_fit(a, b, c, d, bytes))
    throw_length(name, what, " must not exceed the address space, got ", shape_text({a, b, c, d}));
}

/// Throws if an extent is negative or the elements of type T exceed the address space.
///
/// \param what  the name of the extents in messages
///
/// Throws:  std::invalid_argument, std::length_error
template <class T>
void check_extents(const char* name, Index a, Index b, Index c, Index d, const char* what = "extents") {
  if (!are_small(a, b, c, d)) check_large_extents(name, what, a, b, c, d, Index(sizeof(T)));
}

/// Rejects int8 without scales.
template <class T>
constexpr void check_channel() {
  static_assert(
      channel<std::remove_const_t<T>>,
      "head_view: a channel type is float, double, Eigen::half or Eigen::bfloat16; std::int8_t needs "
      "scales, bshd(data, scales, batch, tokens, heads, head_dim)");
}
template <class T>
void check_row_major(const char* name, Index a, Index b, Index c, Index d) {
  check_channel<T>();
  check_extents<T>(name, a, b, c, d);
}

}  // namespace detail

/// [batch, tokens, heads, head_dim], row-major and contiguous: the usual activation order of a transformer.
/// For a column-major tensor (batch, tokens, heads, head_dim) do not pass the pointer: pass the tensor.
///
/// Throws:  std::invalid_argument if an extent is negative; std::length_error if the extents, an extent of 0
///          counted as 1, exceed the address space
template <class T>
head_view<T> bshd(T* data, Index batch, Index tokens, Index heads, Index head_dim) {
  detail::check_row_major<T>("bshd", batch, tokens, heads, head_dim);
  return {data, batch, tokens, heads, head_dim, tokens * heads * head_dim, heads * head_dim, head_dim};
}

/// [batch, heads, tokens, head_dim], row-major and contiguous: the order of attention kernels and caches.
///
/// Throws:  as bshd
template <class T>
head_view<T> bhsd(T* data, Index batch, Index heads, Index tokens, Index head_dim) {
  detail::check_row_major<T>("bhsd", batch, heads, tokens, head_dim);
  return {data, batch, tokens, heads, head_dim, heads * tokens * head_dim, head_dim, tokens * head_dim};
}

/// [tokens, batch, heads, head_dim], row-major and contiguous: the order of Megatron and Transformer Engine.
///
/// Throws:  as bshd
template <class T>
head_view<T> sbhd(T* data, Index tokens, Index batch, Index heads, Index head_dim) {
  detail::check_row_major<T>("sbhd", tokens, batch, heads, head_dim);
  return {data, batch, tokens, heads, head_dim, heads * head_dim, batch * heads * head_dim, head_dim};
}

/// [tokens, heads, head_dim], row-major and contiguous: one sequence, or the concatenated tokens of several;
/// batch is 1.
///
/// Throws:  as bshd
template <class T>
head_view<T> thd(T* data, Index tokens, Index heads, Index head_dim) {
  detail::check_row_major<T>("thd", 1, tokens, heads, head_dim);
  return {data, 1, tokens, heads, head_dim, tokens * heads * head_dim, heads * head_dim, head_dim};
}

namespace detail {

/// The letters of the indices of a tensor, as a template argument.
template <std::size_t size>
struct index_letters {
  char letter[size] = {};  // the last one is '\0'

  constexpr index_letters(const char (&text)[size]) {
    for (std::size_t i = 0; i < size; ++i) letter[i] = text[i] == 't' ? 's' : text[i];
  }
};

template <index_letters letters>
inline constexpr int rank_of = static_cast<int>(sizeof(letters)) - 1;

/// The view of a tensor or an mdspan whose indices have these letters. The caller has checked the letters.
/// For other types a static_assert has already failed: the empty view avoids a second error message.
///
/// Throws:  std::invalid_argument unless the channels and the indices of one letter are contiguous;
///          std::length_error if the extents exceed the address space
template <index_letters letters, class X>
auto view_of_indices(const char* name, X& x) {
  constexpr int rank = rank_of<letters>;
  if constexpr (!numbers_by_index<X, rank>) {
    return head_view<float>{};
  } else {
    const auto memory = indexed_memory_of<rank>(x);
    using T = std::remove_pointer_t<decltype(memory.data)>;
    check_channel<T>();
    head_view<T> view = {memory.data, 1, 1, 1, 1, 1, 1, 1};
    Index channel_stride = 1, reach = 1;  // reach counts an extent of 0 as 1
    for (const std::size_t index : memory.from_fastest) {
      const char letter = letters.letter[index];
      const Index extent = memory.extents[index], stride = memory.strides[index];
      const Index most = (std::max)(extent, Index{1});
      if (extent < 0) throw_invalid(name, "extents must not be negative, got ", extent);
      if (!product_fits({reach, most}, (std::numeric_limits<Index>::max)() / Index(sizeof(T))))
        throw_length(name, "the elements must not exceed the address space, got an extent of ", extent,
                     " after ", reach, " elements");
      const auto take = [&](Index& of_letter, Index& of_stride) {
        if (of_letter == 1)
          of_stride = stride;
        else if (extent > 1 && of_letter > 1 && (stride % of_letter != 0 || stride / of_letter != of_stride))
          throw_invalid(name, "indices of one letter must be contiguous, got strides of ", of_stride, " for ",
                        of_letter, " entries and then ", stride);
        of_letter *= extent;
      };
      if (letter == 'b') take(view.batch, view.batch_stride);
      if (letter == 's') take(view.tokens, view.token_stride);
      if (letter == 'h') take(view.heads, view.head_stride);
      if (letter == 'd') take(view.head_dim, channel_stride);
      reach *= most;
    }
    if (view.head_dim > 1 && channel_stride != 1)
      throw_invalid(name, "channels must be contiguous, got a stride of ", channel_stride,
                    "; copy the mdspan to one with the channels side by side");
    return view;
  }
}

/// An Eigen matrix, array or vector, or a Map, Ref, Block or transpose of one, or an expression.
template <class X>
concept dense = requires(const std::remove_cvref_t<X>& x) {
  dense_of(x);
};

template <class X, bool row_major>
concept matrix_in_memory = dense_in_memory<X> && bool(std::remove_cvref_t<X>::IsRowMajor) == row_major;

/// The view of a row-major matrix [batch * tokens, heads * head_dim], or of the transpose of one. An empty
/// view if the storage order is another one, which the caller rejects at compile time.
template <bool row_major, class Matrix>
auto view_of_matrix(const char* name, Matrix& m, Index batch, Index heads) {
  if constexpr (!matrix_in_memory<Matrix, row_major>) {
    return head_view<float>{};
  } else {
    using T = std::remove_pointer_t<decltype(m.data())>;
    check_channel<T>();
    const Index rows = row_major ? m.rows() : m.cols(), columns = row_major ? m.cols() : m.rows();
    if (heads <= 0 || columns % heads != 0)
      throw_invalid(name, "heads must be positive and divide the ", columns, row_major ? " columns" : " rows",
                    " of the matrix, got ", heads);
    if (batch <= 0 || rows % batch != 0)
      throw_invalid(name, "batch must be positive and divide the ", rows, " rows of the matrix, got ", batch);
    const Index tokens = rows / batch, head_dim = columns / heads, row = m.outerStride();
    return head_view<T>{m.data(), batch, tokens, heads, head_dim, (batch > 1) * tokens * row, row, head_dim};
  }
}

}  // namespace detail

/// Defines a function that makes the view of a tensor with `rank` indices. The letters of its name are these
/// indices, in order. For a tensor of the `other` storage order, the message names the function for the
/// reversed indices.
#define ROPE_DETAIL_TENSOR_VIEW(function, rank, row_major, other, declared, order, reversed)               \
  template <class X>                                                                                       \
  auto function(X&& x) {                                                                                   \
    constexpr bool is_tensor = detail::tensor<X, rank>;                                                    \
    static_assert(is_tensor || detail::strided_span<X, rank>,                                              \
                  #function ": x must be an Eigen::Tensor or TensorMap of rank " #rank                     \
                            "; evaluate a slice, chip, "                                                   \
                            "reshape or expression into one first; another rank is view_as<letters>(x), "  \
                            "matrices are thd(m, heads), bshd(m, batch, heads), dht(m, heads)");           \
    if constexpr (is_tensor)                                                                               \
      static_assert(detail::is_row_major_tensor<std::remove_cvref_t<X>> == row_major,                      \
                    #function ": channels must be the fastest index; this tensor is " other                \
                              ": declare it " declared " Eigen::RowMajor, order it " order                 \
                              " and call " #reversed "(x), or copy it with staged<\"" #function "\">(x)"); \
    return detail::view_of_indices<#function>(#function, x);                                               \
  }                                                                                                        \
  template <detail::owns_memory X>                                                                         \
  auto function(X&& x ROPE_DETAIL_LIFETIMEBOUND) {                                                         \
    return function(x);                                                                                    \
  }                                                                                                        \
  static_assert(true)

// Views of an Eigen::Tensor or TensorMap, named by its own index order: row-major tensors with channels last,
// column-major tensors with channels first. They also take a std::mdspan with contiguous channels and any
// other strides:
//
//     rotate<half_split>(bshd(std::mdspan(data, batch, tokens, heads, head_dim)), table);
//
// Requires:  the tensor outlives the view
// Throws:    std::length_error as bshd of a pointer; std::invalid_argument if channels of an mdspan are not
//            contiguous

/// A row-major tensor (batch, tokens, heads, head_dim).
ROPE_DETAIL_TENSOR_VIEW(bshd, 4, true, "column-major", "with", "(head_dim, heads, tokens, batch)", dhsb);
/// A row-major tensor (batch, heads, tokens, head_dim).
ROPE_DETAIL_TENSOR_VIEW(bhsd, 4, true, "column-major", "with", "(head_dim, tokens, heads, batch)", dshb);
/// A row-major tensor (tokens, batch, heads, head_dim).
ROPE_DETAIL_TENSOR_VIEW(sbhd, 4, true, "column-major", "with", "(head_dim, heads, batch, tokens)", dhbs);
/// A row-major tensor (tokens, heads, head_dim).
ROPE_DETAIL_TENSOR_VIEW(thd, 3, true, "column-major", "with", "(head_dim, heads, tokens)", dht);
/// A column-major tensor (head_dim, heads, tokens, batch).
ROPE_DETAIL_TENSOR_VIEW(dhsb, 4, false, "row-major", "without", "(batch, tokens, heads, head_dim)", bshd);
/// A column-major tensor (head_dim, tokens, heads, batch).
ROPE_DETAIL_TENSOR_VIEW(dshb, 4, false, "row-major", "without", "(batch, heads, tokens, head_dim)", bhsd);
/// A column-major tensor (head_dim, heads, batch, tokens).
ROPE_DETAIL_TENSOR_VIEW(dhbs, 4, false, "row-major", "without", "(tokens, batch, heads, head_dim)", sbhd);
/// A column-major tensor (head_dim, heads, tokens).
ROPE_DETAIL_TENSOR_VIEW(dht, 3, false, "row-major", "without", "(tokens, heads, head_dim)", thd);
#undef ROPE_DETAIL_TENSOR_VIEW

#define ROPE_DETAIL_CHECK_ROW_MAJOR(name, shape)                                                  \
  static_assert(detail::matrix_in_memory<Matrix, true>,                                           \
                name ": the matrix must be row-major in memory with an inner stride of 1, " shape \
                     "; a column-major one [heads * head_dim, tokens] is dht(m, heads) or "       \
                     "thd(m.transpose(), heads); copy a column-major " shape                      \
                     ", a product, an expression or a row of a column-major matrix to a "         \
                     "row-major matrix first")

/// A view of a row-major Eigen matrix [tokens, heads * head_dim]. Also accepts a Map, Ref or Block of one, a
/// row vector (one token) and the transpose of a column-major matrix.
///
/// Requires:  the matrix outlives the view
/// Throws:    std::invalid_argument unless heads is positive and divides the columns
template <detail::dense Matrix>
auto thd(Matrix&& m, Index heads) {
  ROPE_DETAIL_CHECK_ROW_MAJOR("thd", "[tokens, heads * head_dim]");
  return detail::view_of_matrix<true>("thd", m, 1, heads);
}
template <detail::dense Matrix>
requires detail::owns_memory<Matrix>
auto thd(Matrix&& m ROPE_DETAIL_LIFETIMEBOUND, Index heads) { return thd(m, heads); }

/// A view of a row-major matrix [batch * tokens, heads * head_dim], sequence after sequence.
///
/// Throws:  as thd, and std::invalid_argument unless batch is positive and divides the rows
template <detail::dense Matrix>
auto bshd(Matrix&& m, Index batch, Index heads) {
  ROPE_DETAIL_CHECK_ROW_MAJOR("bshd", "[batch * tokens, heads * head_dim]");
  return detail::view_of_matrix<true>("bshd", m, batch, heads);
}
template <detail::dense Matrix>
requires detail::owns_memory<Matrix>
auto bshd(Matrix&& m ROPE_DETAIL_LIFETIMEBOUND, Index batch, Index heads) { return bshd(m, batch, heads); }
#undef ROPE_DETAIL_CHECK_ROW_MAJOR

/// A view of a column-major Eigen matrix [heads * head_dim, tokens], Eigen's default storage order. Also
/// accepts a Map, Ref or Block of one, a column vector (one token) and the transpose of a row-major matrix.
///
/// Requires:  the matrix outlives the view
/// Throws:    std::invalid_argument unless heads is positive and divides the rows
template <detail::dense Matrix>
auto dht(Matrix&& m, Index heads) {
  static_assert(
      detail::matrix_in_memory<Matrix, false>,
      "dht: the matrix must be column-major in memory with an inner stride of 1, [heads * head_dim, "
      "tokens]; a row-major one [tokens, heads * head_dim] is thd(m, heads) or dht(m.transpose(), "
      "heads); evaluate an expression or a column of a row-major matrix first");
  return detail::view_of_matrix<false>("dht", m, 1, heads);
}
template <detail::dense Matrix>
requires detail::owns_memory<Matrix>
auto dht(Matrix&& m ROPE_DETAIL_LIFETIMEBOUND, Index heads) { return dht(m, heads); }

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_VIEW_HPP
