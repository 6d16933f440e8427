// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_QUANTIZED_CHANNELS_HPP
#define ROPE_BASE_QUANTIZED_CHANNELS_HPP

#include <algorithm>  // std::max
#include <bit>        // std::bit_width
#include <cstdint>

#include <rope/base/numbers.hpp>
#include <rope/base/simd/channel_rows.hpp>  // load of int8
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>  // as_computed
#include <rope/config.hpp>

/// Converts the channels of a head to 8-bit integers with one scale, and back.

namespace rope::inline ROPE_ABI::detail {

/// The scale by which integers are multiplied. It is NaN if `scale` is NaN or infinite, so that every channel
/// of such a head is NaN. The lower bits of that NaN are 0, as `rounded` requires. Uses only the bits,
/// because -ffast-math assumes that there are no NaNs or infinities.
inline float usable_scale(float scale) {
  const auto bits = bit_cast<std::uint32_t>(scale);
  return bit_cast<float>((bits & 0x7f800000u) == 0x7f800000u ? (bits & 0x80000000u) | 0x7fc00000u : bits);
}

/// Whether |x| < limit. False for NaN. Compares bits, to be correct under -ffast-math too.
inline bool is_below(float x, float limit) {
  return (bit_cast<std::uint32_t>(x) & 0x7fffffffu) < bit_cast<std::uint32_t>(limit);
}

/// out[i] = scale * integers[i], each rounded once.
///
/// \param scale  as usable_scale returns it
template <class A>
void dequantize_channels(const std::int8_t* integers, Index count, A scale, A* out) {
  using P = packet<A>;
  Index i = 0;
  if constexpr (has_packets<std::int8_t, P>) {
    const P factor = fill<P>(scale);
    for (; i + lanes<P> <= count; i += lanes<P>) store(out + i, multiply(load<P>(integers + i), factor));
  }
  for (; i < count; ++i) out[i] = static_cast<A>(integers[i]) * scale;
}

/// Rounds x / scale to the nearest integers, ties to even, and returns scale = max |x| / most.
///
/// A head with max |x| below 2^(b - 125), where b is the bit width of `most`, becomes zeros with a scale of
/// 0. With 8 bits, this limit is 2^-118. A head with a NaN or an infinity becomes zeros with a
/// scale of NaN.
///
/// \param most  the largest magnitude of an integer, below 2^22
template <class Integer>
float quantize_channels(const float* x, Index count, Integer* out, std::int32_t most = 127) {
  // The bits of magnitudes, as integers, have the order of the magnitudes, with NaN after infinity.
  std::int32_t largest = 0;
  for_each_index(0, count, [&](Index i) {
    largest = (std::max)(largest, bit_cast<std::int32_t>(x[i]) & std::int32_t{0x7fffffff});
  });
  constexpr std::int32_t infinity = 0x7f800000;
  const auto digits = static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(most)));
  const std::int32_t smallest = (127 - 125 + digits) << 23;
  if (largest >= infinity || largest < smallest) {
    for (Index i = 0; i < count; ++i) out[i] = 0;
    return bit_cast<float>(largest < smallest ? std::int32_t{0} : std::int32_t{0x7fc00000});
  }
  const float scale = as_computed(bit_cast<float>(largest) / static_cast<float>(most)),
              inverse = as_computed(1.0f / scale);
  // A sum with 1.5 * 2^23 has the nearest integer in its last bits. The constant is subtracted as bits,
  // because -ffast-math would cancel a difference of floats.
  constexpr float shift = 0x1.8p23f;
  constexpr auto bits_of_shift = bit_cast<std::int32_t>(shift);
  for_each_index(0, count, [&](Index i) {
    out[i] = static_cast<Integer>(bit_cast<std::int32_t>(multiply_add(x[i], inverse, shift)) - bits_of_shift);
  });
  return scale;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_QUANTIZED_CHANNELS_HPP
