// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_OTHER_ATTENTION_HPP
#define ROPE_BENCH_OTHER_ATTENTION_HPP

#include <rope/config.hpp>

#include <functional>

namespace bench {

/// Causal attention of q [1, tokens, heads, head_dim] to k and v [1, tokens, kv_heads, head_dim] on one
/// thread; there where PyTorch's C++ library is installed.
std::function<void()> torch_attention(float* q, float* k, float* v, rope::Index tokens, rope::Index heads,
                                      rope::Index kv_heads, rope::Index head_dim);

}  // namespace bench

#endif  // ROPE_BENCH_OTHER_ATTENTION_HPP
