// SPDX-License-Identifier: MIT

#include <cstdint>
#include <span>
#include <vector>

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

using rope::half_split;

void arguments(rope::head_view<float> x, Eigen::Tensor<float, 4>& tensor,
               const rope::frequency_table<float>& table) {
  rope::attention<half_split>(x, x, x, x, table, rope::attention_options{});
#ifdef ATTENTION_WITHOUT_OUTPUT
  // EXPECT: ^In file included from .*attention: the fourth argument is the view that is written, attention\(q, k, v, out, ...\)
  rope::head_view<float> r = rope::attention<half_split>(x, x, x, table);  // not the first error
#endif
#ifdef OPTIONS_OF_ATTENTION
  // EXPECT: error: .*attention: after out pass the tables
  rope::attention<half_split>(x, x, x, x, table, 5);
#endif
  rope::attention(x, rope::dhsb(tensor), rope::dhsb(tensor), x);
#ifdef ATTENTION_OF_TENSORS
  // EXPECT: error: .*attention: x must be a head_view; name the order of its axes
  rope::attention(x, tensor, tensor, x);
#endif
}

void types(rope::head_view<float> x, rope::head_view<double> wide, rope::head_view<Eigen::bfloat16> narrow,
           rope::quantized_view<std::int8_t> quantized) {
  rope::attention(x, narrow, narrow, x);
#ifdef ATTENTION_MIXED_STORAGE
  // EXPECT: error: .*attention: k and v have the channel type of q and out, or both the same 16-bit type or std::int8_t
  rope::attention(wide, narrow, narrow, wide);
#endif
#ifdef ATTENTION_MIXED_TYPES
  // EXPECT: error: .*attention: k and v have the channel type of q and out, or both the same 16-bit type or std::int8_t
  rope::attention(x, narrow, x, x);
#endif
  rope::attention(x, quantized, quantized, x);
#ifdef QUANTIZED_DOUBLE_QUERIES
  // EXPECT: error: .*attention: k and v have the channel type of q and out, or both the same 16-bit type or std::int8_t
  rope::attention(wide, quantized, quantized, wide);
#endif
  rope::attention_gradient(rope::attention_tape<float>{
      .q = x, .k = x, .v = x, .out = x, .d_out = x, .d_q = x, .d_k = x, .d_v = x});
#ifdef MIXED_GRADIENT_TYPES
  // EXPECT: error: .*(cannot convert|no viable conversion)
  rope::attention_gradient(rope::attention_tape<float>{
      .q = x, .k = x, .v = x, .out = x, .d_out = x, .d_q = wide, .d_k = wide, .d_v = wide});
#endif
}

template <class Entry>
using lists = Eigen::Matrix<Entry, Eigen::Dynamic, Eigen::Dynamic>;

void options(rope::head_view<float> x, const Eigen::ArrayXXf& scores, const bool* seen,
             [[maybe_unused]] const unsigned char* bytes) {
  rope::attention(x, x, x, x, rope::attention_options{.causal = false});
#ifdef UNKNOWN_ATTENTION_OPTION
  // EXPECT: error: .*attention_options.*casual|error: .*casual.*attention_options
  rope::attention(x, x, x, x, rope::attention_options{.casual = false});
#endif
  rope::attention(x, x, x, x, {.bias = rope::score_matrix(scores)});
#ifdef MASK_OF_AN_EXPRESSION
  // EXPECT: error: .*score_matrix: give an Eigen matrix or array \[queries, keys\] in memory
  rope::attention(x, x, x, x, {.bias = rope::score_matrix(-scores)});
#endif
  rope::attention(x, x, x, x, {.mask = rope::score_matrix(seen, 1, 1, x.tokens, x.tokens)});
#ifdef BIAS_AS_A_MASK
  // EXPECT: error: .*score_matrix: the entries of a mask are bool, those of a bias are float
  rope::attention(x, x, x, x, {.mask = rope::score_matrix(scores)});
#endif
#ifdef MASK_OF_BYTES
  // EXPECT: error: .*score_matrix: entries are bool \(a mask\) or float \(a bias\)
  rope::attention(x, x, x, x, {.mask = rope::score_matrix(bytes, 1, 1, x.tokens, x.tokens)});
#endif
#ifdef SCORES_OF_A_POINTER
  // EXPECT: error: .*score_matrix: give an Eigen matrix or array \[queries, keys\] in memory
  rope::attention(x, x, x, x, {.mask = rope::score_matrix(seen)});
#endif
  const std::vector<std::int64_t> positions;
  rope::attention(x, x, x, x, {.query_positions = positions, .key_positions = positions});
#ifdef POSITIONS_OF_INT
  // EXPECT: error: .*attention_options: positions are lists of std::int64_t
  const std::vector<int> integers;
  rope::attention(x, x, x, x, {.query_positions = integers, .key_positions = integers});
#endif
  rope::attention(x, x, x, x, {.selected = lists<std::int32_t>()});
#ifdef UNSIGNED_SELECTED_KEYS
  // EXPECT: error: .*selected_keys: entries are std::int32_t or std::int64_t, because -1 ends a list
  rope::attention(x, x, x, x, {.selected = lists<std::uint32_t>()});
#endif
}

/// Threads of a program. In the second type the mistake is a function that is not const.
struct pool {
  rope::Index threads() const { return 1; }
  void parallel_for(rope::Index count, const auto& body) const {
    for (rope::Index i = 0; i < count; ++i) body(i);
  }
};
struct changed_pool {
  rope::Index threads() const { return 1; }
  void parallel_for(rope::Index count, const auto& body) {
    for (rope::Index i = 0; i < count; ++i) body(i);
  }
};

void threads(rope::head_view<float> x, const rope::kv_cache<float>& cache, pool& good, changed_pool& bad) {
  rope::attention(x, x, x, x, {}, good);
#ifdef THREADS_OF_ATTENTION
  // EXPECT: error: .*attention: threads are an Eigen::ThreadPoolDevice or a type with threads\(\) and parallel_for\(count, body\), both const
  rope::attention(x, x, x, x, {}, bad);
#endif
  rope::attention(x, cache, x, {}, {}, good);
#ifdef THREADS_OF_CACHED_ATTENTION
  // EXPECT: error: .*attention: threads are an Eigen::ThreadPoolDevice or a type with threads\(\) and parallel_for\(count, body\), both const
  rope::attention(x, cache, x, {}, {}, bad);
#endif
}

void merged(rope::head_view<float> a, Eigen::Tensor<float, 4>& b, std::span<double> sums) {
  rope::merge_attention(a, sums, rope::dhsb(b), sums);
#ifdef MERGE_A_TENSOR
  // EXPECT: error: .*merge_attention: x must be a head_view; name the order of its axes
  rope::merge_attention(a, sums, b, sums);
#endif
#ifdef THREADS_OF_MERGE
  // EXPECT: error: .*merge_attention: threads are an Eigen::ThreadPoolDevice or a type with threads
  rope::merge_attention(a, sums, rope::dhsb(b), sums, 4);
#endif
}

void weights(rope::head_view<float> q, const rope::kv_cache<float>& cache, std::vector<float>& of_float,
             std::vector<double>& of_double) {
  rope::attention_weights(q, q, of_float);
#ifdef WEIGHTS_OF_DOUBLE
  // EXPECT: error: .*attention_weights: weights are numbers that can be written, float, or double where q is double
  rope::attention_weights(q, q, of_double);
#endif
  rope::attention_weights(q, cache, of_float);
#ifdef WEIGHTS_OF_A_CACHE_OF_DOUBLE
  // EXPECT: error: .*attention_weights: weights are numbers that can be written, float, or double where q is double
  rope::attention_weights(q, cache, of_double);
#endif
  rope::attention_weight_sums(q, cache, of_float);
#ifdef WEIGHT_SUMS_OF_DOUBLE
  // EXPECT: error: .*attention_weight_sums: sums are a std::vector or a std::span of numbers that can be written
  rope::attention_weight_sums(q, cache, of_double);
#endif
  rope::attention_weight_sums(q, q, of_float);
#ifdef WEIGHT_SUMS_OF_VIEWS_OF_DOUBLE
  // EXPECT: error: .*attention_weight_sums: sums are a std::vector or a std::span of numbers that can be written
  rope::attention_weight_sums(q, q, of_double);
#endif
}
