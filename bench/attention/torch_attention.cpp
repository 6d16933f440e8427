// The same attention in PyTorch's C++ library, as models write it without a fused kernel: scores of all
// pairs, a causal mask, softmax, weighted values.

#include "other_attention.hpp"

#include <torch/torch.h>

#include <cmath>

std::function<void()> bench::torch_attention(float* q, float* k, float* v, rope::Index tokens,
                                             rope::Index heads, rope::Index kv_heads, rope::Index head_dim) {
  torch::set_num_threads(1);
  const auto heads_first = [=](float* x, rope::Index count) {
    return torch::from_blob(x, {1, tokens, count, head_dim}).transpose(1, 2);
  };
  const auto mask = torch::ones({tokens, tokens}, torch::kBool).tril().logical_not();
  return [=, queries = heads_first(q, heads), keys = heads_first(k, kv_heads),
          values = heads_first(v, kv_heads)] {
    const torch::NoGradGuard inference;
    const auto of_group = [&](const torch::Tensor& x) { return x.repeat_interleave(heads / kv_heads, 1); };
    const auto scores =
        torch::matmul(queries, of_group(keys).transpose(2, 3)) / std::sqrt(static_cast<double>(head_dim));
    const auto weights = scores.masked_fill_(mask, -INFINITY).softmax(-1);
    const auto out = torch::matmul(weights, of_group(values)).transpose(1, 2).contiguous();
  };
}
