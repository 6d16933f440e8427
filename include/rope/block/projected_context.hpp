// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_PROJECTED_CONTEXT_HPP
#define ROPE_BLOCK_PROJECTED_CONTEXT_HPP

#include <cstdint>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/block/weights.hpp>
#include <rope/cache/detail/cache_step.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// The keys and values of the context of cross-attention, computed once for all steps of a decoder.

namespace rope::inline ROPE_ABI {

/// The keys and values of a context: projected, normalised and rotated once, by
/// `multi_head_attention::project_context`.
///
///     const projected_context<float> encoded = block.project_context(context, batch);
///     block.cross(token, encoded, out);
///
/// A projected_context owns its memory. It does not depend on the context, the block or the weights of the
/// block. Threads may share it. An object that was moved from is empty.
template <class T>
class projected_context {
 public:
  projected_context(const projected_context&) = default;
  projected_context(projected_context&&) = default;
  /// Assigns everything or nothing.
  projected_context& operator=(const projected_context& other) { return *this = projected_context(other); }
  projected_context& operator=(projected_context&&) = default;
  ~projected_context() = default;

  /// The number of rows of the batch.
  Index batch() const { return batch_; }
  /// The number of tokens per row of the batch.
  Index tokens() const { return tokens_; }
  /// The number of heads of keys, which is also that of values.
  Index kv_heads() const { return kv_heads_; }
  /// The number of channels of a key head.
  Index head_dim() const { return head_dim_; }
  /// The number of channels of a value head.
  Index value_dim() const { return value_dim_; }

  /// The keys, [batch, tokens, kv_heads, head_dim], rotated if project_context got a table; valid while this
  /// object lives.
  head_view<const T> keys() const ROPE_DETAIL_LIFETIMEBOUND {
    return bshd(keys_.data(), batch_, tokens_, kv_heads_, head_dim_);
  }
  /// The values, [batch, tokens, kv_heads, value_dim]; valid while this object lives.
  head_view<const T> values() const ROPE_DETAIL_LIFETIMEBOUND {
    return bshd(values_.data(), batch_, tokens_, kv_heads_, value_dim_);
  }

 private:
  template <class, class>
  friend class multi_head_attention;

  projected_context(Index batch, Index tokens, const multi_head_shape& shape)
      : batch_(batch),
        tokens_(tokens),
        kv_heads_(shape.kv_heads),
        head_dim_(shape.head_dim),
        value_dim_(shape.value_dim),
        keys_(checked_size(batch, tokens, shape.kv_heads, shape.head_dim)),
        values_(checked_size(batch, tokens, shape.kv_heads, shape.value_dim)) {}
  /// Throws:  std::length_error if the heads exceed the address space
  static Index checked_size(Index batch, Index tokens, Index heads, Index head_dim) {
    return bshd(static_cast<T*>(nullptr), batch, tokens, heads, head_dim).size();
  }

  head_view<T> writable_keys() { return bshd(keys_.data(), batch_, tokens_, kv_heads_, head_dim_); }
  head_view<T> writable_values() { return bshd(values_.data(), batch_, tokens_, kv_heads_, value_dim_); }

  /// Throws:  std::invalid_argument unless kv_heads, head_dim and value_dim are those of the block, the
  ///          rotation of the keys is `given` (which may be none), and there are `segments` segments
  void check_use(const multi_head_shape& shape, const key_rotation& given, Index segments) const {
    const char* function = "multi_head_attention";
    if (kv_heads_ != shape.kv_heads || head_dim_ != shape.head_dim || value_dim_ != shape.value_dim)
      detail::throw_invalid(function, "the projected context must have [kv_heads, head_dim, value_dim] = ",
                            detail::shape_text({shape.kv_heads, shape.head_dim, shape.value_dim}), ", got ",
                            detail::shape_text({kv_heads(), head_dim(), value_dim()}));
    if (rotation_ != given)
      detail::throw_invalid(function,
                            "queries and the projected context must rotate by one table and layout, got ",
                            !rotation_.known() ? "a table, and keys that are not rotated"
                            : !given.known()   ? "none, and keys that are rotated"
                                               : "another one than that of its keys");
    const Index own = offsets_.empty() ? 0 : static_cast<Index>(offsets_.size()) - 1;
    detail::check_equal(function, "queries and keys", "number of segments", segments, own);
  }

  detail::moved_index batch_, tokens_, kv_heads_, head_dim_, value_dim_;
  number_array<T> keys_, values_;
  key_rotation rotation_;
  std::vector<std::int64_t> offsets_;  // of the keys, if they are in segments
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BLOCK_PROJECTED_CONTEXT_HPP
