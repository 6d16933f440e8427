// SPDX-License-Identifier: MIT

#include <vector>

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

using matrix = Eigen::Matrix<float, 4, 4, Eigen::RowMajor>;
using tensor = Eigen::Tensor<float, 2, Eigen::RowMajor>;
using plain_block = rope::multi_head_attention<float>;
using block = rope::multi_head_attention<float, rope::half_split>;
using table = rope::frequency_table<float>;

rope::multi_head_weights<float> weights(const matrix& row_major, const Eigen::MatrixXf& column_major) {
#ifdef COLUMN_MAJOR_WEIGHT
  // EXPECT: error: .*projection: a weight is row-major \[out_features, in_features\]
  return {.q = column_major};
#endif
  return {.q = row_major};
}

void forward(const plain_block& attend, matrix& x, const Eigen::MatrixXf& column_major, tensor& t,
             rope::kv_cache<float>& cache, rope::latent_cache<float>& latents) {
  attend.forward(x, 1, x, rope::this_thread{});
#ifdef COLUMN_MAJOR_TOKENS
  // EXPECT: error: .*multi_head_attention: tokens are a row-major Eigen matrix, map or block
  attend.forward(column_major, 1, x);
#endif
#ifdef CONST_TOKENS
  // EXPECT: error: .*multi_head_attention: the output is read-only
  const matrix read_only = x;
  attend.forward(x, 1, read_only);
#endif
#ifdef LAYER_OF_A_TENSOR_OF_TOKENS
  // EXPECT: error: .*multi_head_attention::forward: tokens are row-major Eigen matrices
  attend.forward(t, 1, t);
#endif
#ifdef THREADS_OF_BLOCK
  // EXPECT: error: .*multi_head_attention::forward: after out pass a table
  attend.forward(x, 1, x, 5);
#endif
  attend.forward(x, cache, x, {}, rope::this_thread{});
#ifdef COUNTS_OF_A_LAYER
  // EXPECT: error: .*multi_head_attention::forward: after out pass a table if it rotates, then
  attend.forward(x, cache, x, rope::this_thread{});
#endif
#ifdef LATENTS_OF_A_LAYER
  // EXPECT: error: .*multi_head_attention::forward: tokens are row-major Eigen matrices.*forward\(x, cache, out
  attend.forward(x, latents, x);
#endif
}

void context(const plain_block& plain, const block& attend, matrix& x, tensor& t, const table& rotates) {
  plain.project_context(Eigen::Map<matrix>(t.data()), 1);
#ifdef CONTEXT_OF_A_TENSOR
  // EXPECT: error: .*multi_head_attention::project_context: tokens are row-major Eigen matrices
  plain.project_context(t, 1);
#endif
  attend.project_context(x, 1, rotates, 5);
#ifdef CONTEXT_WITHOUT_A_TABLE
  // EXPECT: error: .*multi_head_attention::project_context: after the batch pass a table if it rotates
  attend.project_context(x, 1, 5);
#endif
}

void cross(const plain_block& plain, matrix& x, tensor& t, std::vector<float>& list,
           const rope::projected_context<float>& context) {
  plain.cross(x, Eigen::Map<matrix>(list.data()), 1, x);
#ifdef CROSS_OF_A_LIST
  // EXPECT: error: .*multi_head_attention::cross: tokens are row-major Eigen matrices
  plain.cross(x, list, 1, x);
#endif
  plain.cross(x, context, Eigen::Map<matrix>(t.data()));
#ifdef CROSS_OF_A_PROJECTED_CONTEXT_INTO_A_TENSOR
  // EXPECT: error: .*multi_head_attention::cross: tokens are row-major Eigen matrices
  plain.cross(x, context, t);
#endif
}

void rotated_cross(const block& attend, matrix& x, const rope::projected_context<float>& context,
                   const table& rotates) {
  attend.cross(x, x, 1, x, rotates, 0, 0);
#ifdef CROSS_WITHOUT_POSITIONS
  // EXPECT: error: .*multi_head_attention::cross: after out pass a table if it rotates, with positions of x
  attend.cross(x, x, 1, x, rotates);
#endif
  attend.cross(x, context, x, rotates, 0, rope::this_thread{});
#ifdef THREADS_OF_CROSS
  // EXPECT: error: .*multi_head_attention::cross: threads are an Eigen::ThreadPoolDevice or a type with threads
  attend.cross(x, context, x, rotates, 0, 4);
#endif
}

void gradients(const block& attend, matrix& x, const table& rotates, const std::vector<int>& positions) {
  const rope::multi_head_gradients<float> d;
  const rope::multi_head_tape<float> tape{.x = x, .batch = 1, .d_out = x};
  rope::multi_head_attention_gradient(attend, tape, d, rotates, positions);
#ifdef BLOCK_GRADIENT_OF_A_LIST
  // EXPECT: error: .*multi_head_attention_gradient: after the gradients pass a table if the block rotates
  rope::multi_head_attention_gradient(attend, tape, d, positions);
#endif
  rope::multi_head_attention_gradient(attend, tape, d, rotates, 0, rope::this_thread{});
#ifdef THREADS_OF_BLOCK_GRADIENT
  // EXPECT: error: .*multi_head_attention_gradient: threads are an Eigen::ThreadPoolDevice
  rope::multi_head_attention_gradient(attend, tape, d, rotates, 0, 2);
#endif
  const rope::multi_head_tape<float> cross{.x = x, .context = x, .batch = 1, .d_out = x};
  rope::cross_attention_gradient(attend, cross, d, rotates, 0, 0);
#ifdef CROSS_GRADIENT_WITHOUT_POSITIONS
  // EXPECT: error: .*cross_attention_gradient: after the gradients pass a table if the block rotates, with
  rope::cross_attention_gradient(attend, cross, d, rotates);
#endif
}
