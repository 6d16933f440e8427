// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_INSTANCES_HPP
#define ROPE_TESTS_INSTANCES_HPP

/// The kernels that most tests call, so that the tests of a program share one compiled instance of each
/// instead of compiling their own. The files next to this one define the functions that are declared here. A
/// test that calls anything else compiles it as usual. The references of attention, its gradients and the
/// block, and the functions that store operands, are here too: without optimisation they take longer than the
/// kernels.

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include "support/attention_features.hpp"
#include "support/attention_gradient_reference.hpp"
#include "support/attention_reference.hpp"
#include "support/block_reference.hpp"
#include "support/decoder_reference.hpp"
#if defined(ROPE_TEST_JSON) && (!defined(ROPE_TEST_DEFINE_INSTANCES) || defined(ROPE_TEST_DEFINE_IMPORTS))
#include "support/model_configs.hpp"
#endif

/// Applies `X(layout, inverse, channels, scalar)` to the rotations of one type of channels.
#define ROPE_TEST_ROTATIONS_BY(X, T, S) \
  X(interleaved, false, T, S)           \
  X(interleaved, true, T, S)            \
  X(half_split, false, T, S)            \
  X(half_split, true, T, S)
#define ROPE_TEST_ROTATIONS(X, T)     \
  ROPE_TEST_ROTATIONS_BY(X, T, float) \
  ROPE_TEST_ROTATIONS_BY(X, T, double)

/// Applies `X(channels, rotation while reading, channels of keys)` to the attentions of one type of channels,
/// and of float queries to another type of keys.
#define ROPE_TEST_ATTENTIONS(X, T) X(T, read_rotation<T>, T)
#define ROPE_TEST_ATTENTIONS_TO(X, C) \
  X(float, no_rotation, C)            \
  X(float, read_rotation<float>, C)

#define ROPE_TEST_ROTATION(layout, inverse, T, S)                              \
  ROPE_TEST_EXTERN template class rotation_plan<layout, inverse, T, S, false>; \
  ROPE_TEST_EXTERN template class rotation_plan<layout, inverse, T, S, true>;
#define ROPE_TEST_KEY_TURNS(T)                                                                         \
  ROPE_TEST_EXTERN template void key_rotator<interleaved, T>::apply(const head_view<T>&, Index, Index) \
      const;                                                                                           \
  ROPE_TEST_EXTERN template void key_rotator<half_split, T>::apply(const head_view<T>&, Index, Index) const;
#define ROPE_TEST_NORM_TURN(layout, S, A)                                                                \
  ROPE_TEST_EXTERN template void rotate_normed_heads<layout>(const table_view<S>&, double, std::int64_t, \
                                                             token_heads<A>);
#define ROPE_TEST_NORM_TURNS(S, A)       \
  ROPE_TEST_NORM_TURN(interleaved, S, A) \
  ROPE_TEST_NORM_TURN(half_split, S, A)
#define ROPE_TEST_ATTENTION(T, rotation, C)                                                               \
  ROPE_TEST_EXTERN template void attend_block(const attention_call<T, rotation, C>&, const query_block&); \
  ROPE_TEST_EXTERN template void attend_split(const attention_call<T, rotation, C>&,                      \
                                              const decode_results<arithmetic<T>>*, const key_split&);    \
  ROPE_TEST_EXTERN template void attend(const attention_call<T, rotation, C>&, const rope::this_thread&);
#define ROPE_TEST_GRADIENT(T)                                                                \
  ROPE_TEST_EXTERN template void add_gradients_of_block(                                     \
      const attention_tape<T>&, const visibility&, const query_block&, const bias_gradient&, \
      const key_sums<arithmetic<T>>&, sum_order&, double*);
#define ROPE_TEST_WEIGHTS(T)                                                               \
  ROPE_TEST_EXTERN template void write_weights(const attention_call<T, read_rotation<T>>&, \
                                               const weights_view<arithmetic<T>>&,         \
                                               const rope::this_thread&);
#define ROPE_TEST_STORED(T)                                          \
  ROPE_TEST_EXTERN template class cache_memory<T, value_place::own>; \
  ROPE_TEST_EXTERN template class stored_tokens<T, value_place::own>;
#define ROPE_TEST_PRODUCT(A)                                                                       \
  ROPE_TEST_EXTERN template void row_products<false>(const A*, Index, const A*, Index, A*, Index); \
  ROPE_TEST_EXTERN template void row_products<true>(const A*, Index, const A*, Index, A*, Index);

#define ROPE_TEST_INSTANCES_OF_FLOAT               \
  ROPE_TEST_ROTATIONS(ROPE_TEST_ROTATION, float)   \
  ROPE_TEST_WEIGHTS(float)                         \
  ROPE_TEST_STORED(float)                          \
  ROPE_TEST_KEY_TURNS(float)                       \
  ROPE_TEST_NORM_TURNS(float, float)               \
  ROPE_TEST_ATTENTIONS(ROPE_TEST_ATTENTION, float) \
  ROPE_TEST_GRADIENT(float)                        \
  ROPE_TEST_PRODUCT(float)
#define ROPE_TEST_INSTANCES_OF_DOUBLE               \
  ROPE_TEST_ROTATIONS(ROPE_TEST_ROTATION, double)   \
  ROPE_TEST_WEIGHTS(double)                         \
  ROPE_TEST_STORED(double)                          \
  ROPE_TEST_KEY_TURNS(double)                       \
  ROPE_TEST_NORM_TURNS(double, double)              \
  ROPE_TEST_NORM_TURNS(float, double)               \
  ROPE_TEST_ATTENTIONS(ROPE_TEST_ATTENTION, double) \
  ROPE_TEST_GRADIENT(double)                        \
  ROPE_TEST_PRODUCT(double)
#define ROPE_TEST_INSTANCES_OF_HALF                      \
  ROPE_TEST_ROTATIONS(ROPE_TEST_ROTATION, Eigen::half)   \
  ROPE_TEST_WEIGHTS(Eigen::half)                         \
  ROPE_TEST_STORED(Eigen::half)                          \
  ROPE_TEST_KEY_TURNS(Eigen::half)                       \
  ROPE_TEST_ATTENTIONS(ROPE_TEST_ATTENTION, Eigen::half) \
  ROPE_TEST_GRADIENT(Eigen::half)
#define ROPE_TEST_INSTANCES_OF_BFLOAT16                      \
  ROPE_TEST_ROTATIONS(ROPE_TEST_ROTATION, Eigen::bfloat16)   \
  ROPE_TEST_WEIGHTS(Eigen::bfloat16)                         \
  ROPE_TEST_STORED(Eigen::bfloat16)                          \
  ROPE_TEST_KEY_TURNS(Eigen::bfloat16)                       \
  ROPE_TEST_ATTENTIONS(ROPE_TEST_ATTENTION, Eigen::bfloat16) \
  ROPE_TEST_GRADIENT(Eigen::bfloat16)
#define ROPE_TEST_INSTANCES_OF_16_BIT_KEYS                  \
  ROPE_TEST_ATTENTIONS_TO(ROPE_TEST_ATTENTION, Eigen::half) \
  ROPE_TEST_ATTENTIONS_TO(ROPE_TEST_ATTENTION, Eigen::bfloat16)
#define ROPE_TEST_INSTANCES_OF_8_BIT_KEYS ROPE_TEST_ATTENTIONS_TO(ROPE_TEST_ATTENTION, std::int8_t)

/// Functions that draw, store and read back numbers of one channel type.
#define ROPE_TEST_OPERANDS(declared, T)                                             \
  declared attention_call::tensor attention_call::random<T>(std::mt19937&, tensor); \
  declared std::vector<T> testing::stored<T, double>(const tensor<double>&, axes);  \
  declared testing::tensor<double> testing::loaded<T, double>(const std::vector<T>&, tensor<double>, axes);

/// Tables, with all functions that fill them, and the numbers that tests draw.
#define ROPE_TEST_TABLES(declared)                \
  declared class rope::number_array<double>;      \
  declared class rope::number_array<long double>; \
  declared class testing::seeded_numbers<void>;   \
  declared class rope::frequency_table<float>;    \
  declared class rope::frequency_table<double>;

/// Readers of model files.
#define ROPE_TEST_IMPORTS(declared)                                                                        \
  declared class nlohmann::basic_json<>;                                                                   \
  declared nlohmann::json nlohmann::json::parse(const char*, const char*, parser_callback_t, bool, bool);  \
  declared nlohmann::json nlohmann::json::parse(std::ifstream&, parser_callback_t, bool, bool);            \
  declared rope::model_rope rope::import_hugging_face(const nlohmann::json&, const hugging_face_options&); \
  declared rope::model_rope rope::import_gguf(const testing::gguf_file&, const gguf_options&);

#ifndef ROPE_TEST_DEFINE_INSTANCES
#define ROPE_TEST_EXTERN extern

namespace rope::inline ROPE_ABI::detail {

ROPE_TEST_INSTANCES_OF_FLOAT
ROPE_TEST_INSTANCES_OF_DOUBLE
ROPE_TEST_INSTANCES_OF_HALF
ROPE_TEST_INSTANCES_OF_BFLOAT16
ROPE_TEST_INSTANCES_OF_16_BIT_KEYS
ROPE_TEST_INSTANCES_OF_8_BIT_KEYS

}  // namespace rope::inline ROPE_ABI::detail

#ifndef ROPE_TEST_DOUBLE_DOUBLE  // on platforms where they are other functions
extern template reference::tensor reference::attention<void>(const tensor&, const tensor&, const tensor&,
                                                             const attention_rule&, std::vector<double>*);
extern template reference::attention_state reference::attend<void>(const wide_tensor&, const wide_tensor&,
                                                                   const wide_tensor&, const full_rule&);
extern template reference::attention_gradients reference::differentiate<void>(
    const wide_tensor&, const wide_tensor&, const wide_tensor&, const wide_tensor&, const wide_tensor&,
    const full_rule&);
extern template std::vector<testing::wide> reference::attend<void>(const model&, const std::vector<double>&,
                                                                   long long, const std::vector<visible>&);
extern template reference::matrix reference::projected<void>(const linear&, const matrix&);
extern template features::result features::definition<void>(const setting&, const operands&);
#endif
ROPE_TEST_OPERANDS(extern template, float)
ROPE_TEST_OPERANDS(extern template, double)
ROPE_TEST_OPERANDS(extern template, Eigen::half)
ROPE_TEST_OPERANDS(extern template, Eigen::bfloat16)
extern template std::vector<std::int8_t> testing::stored<std::int8_t, double>(const tensor<double>&, axes);
ROPE_TEST_TABLES(extern template)
#ifdef ROPE_TEST_JSON
ROPE_TEST_IMPORTS(extern template)
#endif
#endif

#endif  // ROPE_TESTS_INSTANCES_HPP
