// SPDX-License-Identifier: MIT
#ifndef ROPE_EXAMPLES_ONE_BINARY_ATTENTION_LAYER_HPP
#define ROPE_EXAMPLES_ONE_BINARY_ATTENTION_LAYER_HPP

#include <cstddef>
#include <memory>

/// A layer of attention with its cache, for a program that does not know the processor of the layer: built-in
/// types only.
class attention_layer {
 public:
  struct shape {
    std::ptrdiff_t heads, kv_heads, head_dim, capacity;  // capacity: tokens
  };

  virtual ~attention_layer() = default;
  /// Rotates the queries and keys of the next tokens, stores keys and values, and attends to all tokens so
  /// far.
  ///
  /// q, out [tokens, heads, head_dim], k, v [tokens, kv_heads, head_dim]; q is rotated in place
  virtual void attend(std::ptrdiff_t tokens, float* q, const float* k, const float* v, float* out) = 0;
};

/// The definitions of attention_layer.cpp for one instruction set.
using make_attention_layer = std::unique_ptr<attention_layer>(const attention_layer::shape&);

#endif  // ROPE_EXAMPLES_ONE_BINARY_ATTENTION_LAYER_HPP
