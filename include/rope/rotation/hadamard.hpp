// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_HADAMARD_HPP
#define ROPE_ROTATION_HADAMARD_HPP

#include <bit>  // std::has_single_bit
#include <cmath>
#include <cstddef>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/view.hpp>

/// Spreads outlier channels over the whole head before heads are quantized.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Replaces x by H x / sqrt(size).
template <class A>
void transform_head(A* x, Index size) {
  using P = packet<A>;
  for (Index distance = 1; distance < size; distance *= 2)
    for (Index first = 0; first < size; first += 2 * distance) {
      // Replaces `distance` channels from `low` on, and as many from `high` on, by sums and differences.
      A *const low = x + first, *const high = low + distance;
      Index i = 0;
      for (; i + lanes<P> <= distance; i += lanes<P>) {
        const P a = load<P>(low + i), b = load<P>(high + i);
        store(low + i, add(a, b));
        store(high + i, subtract(a, b));
      }
      for (; i < distance; ++i) {
        const A a = low[i], b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  const A factor = static_cast<A>(1 / std::sqrt(static_cast<double>(size)));
  for (Index i = 0; i < size; ++i) x[i] *= factor;
}

}  // namespace detail

/// Multiplies every head by the normalised Hadamard matrix, in place.
///
///     x' = H x / sqrt(head_dim),   H_ij = (-1)^(number of bits set in both i and j)
///
/// The matrix is orthogonal, so q' . k' = q . k: scores do not change. An outlier channel is spread over all
/// channels of the head, so `quantize` needs a smaller scale and rounds the other channels more finely. Call
/// hadamard_transform after the rotation, because the two do not commute, and before quantization:
///
///     rotate<Layout>(q, k, table, start);
///     hadamard_transform(q);
///     hadamard_transform(k);
///     quantize(k, keys);
///
/// Append transformed keys to a cache of rotated keys by `append(k, v)`, and attend with transformed queries
/// by attention(q, cache, out). Values may be transformed too. Attention then returns transformed outputs.
/// The matrix is its own inverse: a second transform gives the original outputs.
///
/// \param x        [batch, tokens, heads, head_dim] with head_dim a power of two; otherwise pass
///                 x.channels(...) with such a count
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Throws:    std::invalid_argument unless head_dim is a power of two, x has data and its heads do not
///            overlap; x is then unchanged
/// Accuracy:  within (log2(head_dim) + 2) eps of the Euclidean length of the head, eps being the unit
///            roundoff of float (double for double channels), if sqrt(head_dim) times that length is finite
///            in this type; one more rounding for 16-bit channels
/// Cost:      head_dim log2(head_dim) additions per head
/// Source:    Ashkboos et al. 2024, QuaRot, arXiv:2404.00456, section 3 (queries and keys after the rotation)
template <class T, class Threads = this_thread>
void hadamard_transform(head_view<T> x, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_WRITABLE("hadamard_transform", "x", T);
  ROPE_DETAIL_CHECK_THREADS("hadamard_transform", Threads);
  if constexpr (!std::is_const_v<T>) {
    detail::check_heads("hadamard_transform", x);
    detail::check_written("hadamard_transform", x);
    if (!std::has_single_bit(static_cast<std::size_t>(x.head_dim)))
      detail::throw_invalid("hadamard_transform", "head_dim must be a power of two, got ", x.head_dim);
    detail::for_each_head(x, threads, [&](Index b, Index t, Index h) {
      T* const channels = x.at(b, t, h);
      detail::write_rounded(channels, x.head_dim, [&](detail::arithmetic<T>* head) {
        if constexpr (!std::is_same_v<T, detail::arithmetic<T>>) detail::widen(channels, x.head_dim, head);
        detail::transform_head(head, x.head_dim);
      });
    });
  }
}

ROPE_DETAIL_ASK_FOR_VIEWS(hadamard_transform, 1);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_HADAMARD_HPP
