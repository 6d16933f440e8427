// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_WEIGHTS_HPP
#define ROPE_BLOCK_WEIGHTS_HPP

#include <array>     // std::tuple_size of extents
#include <concepts>  // std::convertible_to, std::same_as
#include <cstddef>
#include <new>    // placement new
#include <tuple>  // std::apply
#include <type_traits>

#include <rope/attention/attention.hpp>  // attention_options
#include <rope/base/integer_list.hpp>    // product_fits
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// The parameters of an attention block, as checkpoints store them.

namespace rope::inline ROPE_ABI {

namespace detail {

template <class W, class Weight, class B, class Bias>
concept no_maps = !std::convertible_to<W, Weight> || !std::convertible_to<B, Bias>;

/// An Eigen::Map that can be assigned: it then maps other memory. Assigning to an Eigen::Map copies numbers
/// to the memory that it maps.
template <class Matrix>
class memory_map : public Eigen::Map<Matrix> {
  using map = Eigen::Map<Matrix>;

 public:
  using map::map;
  memory_map(const map& other) : map(other) {}
  memory_map(const memory_map&) = default;
  memory_map& operator=(const memory_map& other) {
    if (this != &other) new (this) memory_map(other);  // as the documentation of Eigen::Map suggests
    return *this;
  }
  /// Rejects expressions and matrices. To copy their numbers, write `map.array() = ...`.
  template <class Other>
  requires(!std::is_same_v<Other, map>) memory_map& operator=(const Eigen::EigenBase<Other>&) = delete;
};

}  // namespace detail

/// A linear layer: y = x W^T + b for rows of tokens. Does not own its weights.
///
///     const projection<const float> q(q_proj.data(), heads * head_dim, model_dim);
///
/// \tparam T  float or double, const if it is only read
template <class T>
struct projection {
  /// The type of the numbers: float or double.
  using scalar = std::remove_const_t<T>;
  /// Row-major [rows, columns].
  using matrix = Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  /// One row.
  using vector = Eigen::Matrix<scalar, 1, Eigen::Dynamic>;
  /// A weight in your memory: an Eigen::Map, but assigning to it maps other memory.
  using weight_map = detail::memory_map<std::conditional_t<std::is_const_v<T>, const matrix, matrix>>;
  /// A bias, or the weight of a norm, in your memory, likewise.
  using bias_map = detail::memory_map<std::conditional_t<std::is_const_v<T>, const vector, vector>>;

  /// W [out_features, in_features], row-major: `nn.Linear.weight` of PyTorch, `*_proj.weight` of Hugging
  /// Face.
  weight_map weight{nullptr, 0, 0};
  /// b [out_features], or empty.
  bias_map bias{nullptr, 0};

  /// No weight and no bias.
  projection() = default;
  /// \param w  [out_features, in_features]
  /// \param b  [out_features] or empty
  projection(weight_map w, bias_map b = {nullptr, 0}) : weight(w), bias(b) {}
  template <std::same_as<Eigen::Map<std::conditional_t<std::is_const_v<T>, const matrix, matrix>>> Map>
  projection(const Map& w, bias_map b = {nullptr, 0}) : projection(weight_map(w), b) {}
  /// A row-major Eigen matrix and, optionally, a bias, which is a row vector or a column vector. Neither is
  /// copied.
  ///
  /// Throws:  std::invalid_argument if there are gaps between the rows of the matrix, as in a block of a
  ///          larger matrix
  template <detail::dense W, detail::dense B = bias_map>
  requires detail::no_maps<W, weight_map, B, bias_map> projection(W&& w, B&& b = {nullptr, 0})
      : projection(weight_map(checked_data(w), w.rows(), w.cols()), checked_bias(b)) {}
  template <detail::dense W, detail::dense B = bias_map>
  requires detail::no_maps<W, weight_map, B, bias_map> && detail::owns_memory<W> projection(
      W&& w ROPE_DETAIL_LIFETIMEBOUND, B&& b = {nullptr, 0})
      : projection(weight_map(checked_data(w), w.rows(), w.cols()), checked_bias(b)) {}
  template <detail::dense W, detail::dense B>
  requires detail::no_maps<W, weight_map, B, bias_map> && detail::owns_memory<B> projection(
      W&& w, B&& b ROPE_DETAIL_LIFETIMEBOUND)
      : projection(weight_map(checked_data(w), w.rows(), w.cols()), checked_bias(b)) {}
  template <detail::dense W, detail::dense B>
  requires detail::no_maps<W, weight_map, B, bias_map> && detail::owns_memory<W> && detail::owns_memory<B>
  projection(W&& w ROPE_DETAIL_LIFETIMEBOUND, B&& b ROPE_DETAIL_LIFETIMEBOUND)
      : projection(weight_map(checked_data(w), w.rows(), w.cols()), checked_bias(b)) {}
  /// A std::mdspan [out_features, in_features], row-major without gaps (layout_right), and optionally a
  /// std::mdspan of a bias.
  ///
  /// Throws:  std::invalid_argument if there are gaps between rows or numbers of the weight, or between
  ///          numbers of the bias
  template <detail::strided_span<2> W>
  requires(!detail::dense<W>) projection(const W& w) : projection(map_of_span<weight_map>(w)) {}
  template <detail::strided_span<2> W, detail::strided_span<1> B>
  requires(!detail::dense<W> && !detail::dense<B>) projection(const W& w, const B& b)
      : projection(map_of_span<weight_map>(w), map_of_span<bias_map>(b)) {}
  /// A row-major array in memory.
  ///
  /// \param w  [out_features, in_features]
  /// \param b  [out_features] or null
  projection(T* w, Index out_features, Index in_features, T* b = nullptr)
      : weight(w, out_features, in_features), bias(b, b == nullptr ? 0 : out_features) {}

 private:
  /// The map of an mdspan, whose numbers must be contiguous in the order of its indices.
  template <class Map, class X>
  static Map map_of_span(const X& x) {
    constexpr int rank = static_cast<int>(X::rank());
    const auto memory = detail::indexed_memory_of<rank>(x);
    Index contiguous = 1;
    for (std::size_t i = rank; i-- > 0; contiguous *= memory.extents[i])
      if (memory.extents[i] > 1 && memory.strides[i] != contiguous)
        detail::throw_invalid("projection", "an mdspan of a ", rank == 1 ? "bias" : "weight",
                              " must be row-major without gaps (layout_right), got a stride of ",
                              memory.strides[i], " on index ", i, " in place of ", contiguous,
                              "; copy it first");
    return std::apply([&](auto... extents) { return Map(memory.data, extents...); }, memory.extents);
  }
  template <class B>
  static bias_map checked_bias(B& b) {
    static_assert(detail::vector_in_memory<B>,
                  "projection: a bias is an Eigen vector in memory with an inner stride of 1");
    return bias_map(b.data(), b.size());
  }
  template <class W>
  static T* checked_data(W& w) {
    static_assert(detail::matrix_in_memory<W, true>,
                  "projection: a weight is row-major [out_features, in_features]; of a column-major matrix "
                  "[in_features, out_features] give w.transpose(), and copy others to a row-major matrix");
    if constexpr (detail::matrix_in_memory<W, true>) {
      if (w.rows() > 1 && w.outerStride() != w.cols())
        detail::throw_invalid("projection",
                              "the rows of a weight must lie next to each other, got a stride of ",
                              w.outerStride(), " for ", w.cols(), " columns; copy the block first");
      return w.data();
    } else {
      return nullptr;
    }
  }
};

/// All parameters of a block. Keys and values have kv_heads heads. The rows of a weight are ordered by head.
///
///     const multi_head_weights<float> weights = {.q = {wq.data(), heads * head_dim, model_dim},
///                                                .k = {wk.data(), kv_heads * head_dim, model_dim},
///                                                .v = {wv.data(), kv_heads * head_dim, model_dim},
///                                                .o = {wo.data(), model_dim, heads * head_dim}};
///
/// \tparam T  const float or const double for the weights, float or double for the gradients with respect to
///            them
template <class T>
struct multi_head_parameters {
  using norm_map = typename projection<T>::bias_map;  // [head_dim], or empty

  projection<T> q = {};  // [heads * head_dim, model_dim]
  projection<T> k = {};  // [kv_heads * head_dim, context_dim]
  projection<T> v = {};  // [kv_heads * value_dim, context_dim]
  projection<T> o = {};  // [out_dim, heads * value_dim]
  /// [head_dim], or empty: the weight of the RMS norm of every query head, before its rotation. A vector w is
  /// given as {w.data(), head_dim}.
  norm_map q_norm{nullptr, 0};
  /// [head_dim], or empty: the weight of the RMS norm of every key head, before its rotation.
  norm_map k_norm{nullptr, 0};
};

/// The weights of a block; float or double, read-only.
template <class T>
using multi_head_weights = multi_head_parameters<const T>;

/// The sizes and constants of a block that its weights do not determine, and its attention options.
///
///     const multi_head_options options = {.heads = 32, .kv_heads = 8, .norm_epsilon = 1e-5};
struct multi_head_options {
  /// The number of query heads. Required, because it does not follow from the weights.
  Index heads = 0;
  /// The number of key and value heads; 0: equal to heads. Source: grouped-query attention, arXiv:2305.13245.
  Index kv_heads = 0;
  /// Added to the mean square of a head by q_norm and k_norm (`rms_norm_eps`).
  double norm_epsilon = 1e-6;
  /// Added to the weights of q_norm and k_norm: 1 for Gemma, whose checkpoints store the gain minus 1.
  double norm_offset = 0;
  /// The attention options of every call; lists, bias and mask have the extents of the call.
  attention_options attention = {};
};

/// The sizes of a block.
///
///     const multi_head_shape& shape = block.shape();
///     kv_cache<float> cache(batch, capacity, shape.kv_heads, shape.head_dim, shape.value_dim);
struct multi_head_shape {
  Index model_dim;    // channels of a token
  Index context_dim;  // channels of a token of the context; in self-attention equal to model_dim
  Index out_dim;      // channels of a token of the output
  Index heads;        // query heads
  Index kv_heads;     // heads of keys and values
  Index head_dim;     // channels of a query or key head
  Index value_dim;    // channels of a value head
};

namespace detail {

/// Throws:  std::invalid_argument unless the rule holds, with the two numbers that it compares
inline void demand_of_block(bool holds, const char* rule, Index first, Index second) {
  check_rule("multi_head_attention", holds, rule, first, second);
}

/// Throws:  std::invalid_argument if a matrix or a vector with elements has no memory
template <class Matrix>
void demand_memory(const char* function, const char* name, const Matrix& x) {
  if (x.data() == nullptr && x.rows() > 0 && x.cols() > 0)
    throw_invalid(function, name, " must have memory, got null for ", shape_text({x.rows(), x.cols()}));
}

/// Throws:  std::invalid_argument if weights and options do not fit together; std::length_error if heads *
///          value_dim exceeds the address space
template <class T>
multi_head_shape checked_shape(const multi_head_parameters<T>& weights, const multi_head_options& options) {
  const auto& [q, k, v, o, q_norm, k_norm] = weights;
  const Index heads = options.heads, kv_heads = options.kv_heads == 0 ? heads : options.kv_heads;
  if (heads == 0)
    throw_invalid("multi_head_attention", "heads must be given in the options, got 0 for ", q.weight.rows(),
                  " rows of the q weight");
  demand_of_block(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
                  "heads must be a positive multiple of kv_heads", heads, kv_heads);
  const Index q_rows = q.weight.rows(), k_rows = k.weight.rows(), v_rows = v.weight.rows();
  demand_of_block(q_rows > 0 && q_rows % heads == 0,
                  "the rows of the q weight must be a positive multiple of heads", q_rows, heads);
  const Index head_dim = q_rows / heads;
  demand_of_block(k_rows == kv_heads * head_dim,
                  "the rows of the k weight and kv_heads * head_dim must be equal", k_rows,
                  kv_heads * head_dim);
  demand_of_block(v_rows > 0 && v_rows % kv_heads == 0,
                  "the rows of the v weight must be a positive multiple of kv_heads", v_rows, kv_heads);
  const Index value_dim = v_rows / kv_heads;
  demand_of_block(k.weight.cols() == v.weight.cols(), "the k and v weights must have the same columns",
                  k.weight.cols(), v.weight.cols());
  if (!product_fits({heads, value_dim}))
    throw_length("multi_head_attention", "heads * value_dim must not exceed the address space, got ", heads,
                 " * ", value_dim);
  demand_of_block(o.weight.cols() == heads * value_dim,
                  "the columns of the o weight and heads * value_dim must be equal", o.weight.cols(),
                  heads * value_dim);
  const auto bias = [&](const projection<T>& of, const char* rule) {
    demand_of_block(of.bias.size() == 0 || of.bias.size() == of.weight.rows(), rule, of.bias.size(),
                    of.weight.rows());
    demand_memory("multi_head_attention", "a weight", of.weight);
    demand_memory("multi_head_attention", "a bias", of.bias);
  };
  bias(q, "the length of the q bias must be 0 or the rows of its weight");
  bias(k, "the length of the k bias must be 0 or the rows of its weight");
  bias(v, "the length of the v bias must be 0 or the rows of its weight");
  bias(o, "the length of the o bias must be 0 or the rows of its weight");
  demand_of_block(q_norm.size() == 0 || q_norm.size() == head_dim,
                  "the length of q_norm must be 0 or head_dim", q_norm.size(), head_dim);
  demand_of_block(k_norm.size() == 0 || k_norm.size() == head_dim,
                  "the length of k_norm must be 0 or head_dim", k_norm.size(), head_dim);
  demand_memory("multi_head_attention", "q_norm", q_norm);
  demand_memory("multi_head_attention", "k_norm", k_norm);
  if (!is_finite(options.norm_epsilon) || options.norm_epsilon < 0 || !is_finite(options.norm_offset))
    throw_invalid("multi_head_attention",
                  "norm_epsilon must be finite and not negative, norm_offset finite, got ",
                  options.norm_epsilon, " and ", options.norm_offset);
  return {q.weight.cols(), k.weight.cols(), o.weight.rows(), heads, kv_heads, head_dim, value_dim};
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BLOCK_WEIGHTS_HPP
