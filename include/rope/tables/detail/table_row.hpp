// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_ROW_HPP
#define ROPE_TABLES_DETAIL_TABLE_ROW_HPP

#include <bit>  // std::bit_cast
#include <cstddef>
#include <cstdint>

#include <rope/config.hpp>
#include <rope/tables/detail/phase_row.hpp>
#include <rope/tables/phase.hpp>

/// How phases become a row of a table.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Writes m cos and m sin of a phase, rounded to S.
template <class S>
void write_turned(phase p, double m, S& cos, S& sin) {
  const cos_sin value = cos_sin_of<S>(p);
  cos = static_cast<S>(m * value.cos);
  sin = static_cast<S>(m * value.sin);
}

/// Writes m cos and m sin of every phase of a row, rounded to S.
template <class S>
void write_table_row(const phase_row& phases, double m, S* cos, S* sin) {
  for (std::size_t i = 0; i < phases.size(); ++i) write_turned(phases[i], m, cos[i], sin[i]);
}

/// The same for float, where compilers evaluate several pairs at once from the upper 128 bits of their
/// phases. Angles within 2^-64 turn of a quarter turn need all bits and are written again.
inline void write_table_row(const phase_row& phases, double m, float* cos, float* sin) {
  const std::size_t pairs = phases.size();
  const uint128* upper = phases.upper();
  std::uint64_t close = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::uint64_t quadrant = nearest_quadrant(upper[i].hi), hi = upper[i].hi - (quadrant << 62),
                        sign = 0 - (hi >> 63);
    // The upper bits of -x are those of ~x, unless all bits below are 0.
    const uint128 magnitude = {hi ^ sign, upper[i].lo ^ sign};
    close |= magnitude.hi == 0 ? 1u : 0u;
    const cos_sin value = in_quadrant(quadrant, sign != 0, float_cos_sin(angle_for_float(magnitude)));
    cos[i] = static_cast<float>(m * value.cos);
    sin[i] = static_cast<float>(m * value.sin);
  }
  if (close == 0) return;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::uint64_t hi = upper[i].hi - (nearest_quadrant(upper[i].hi) << 62);
    if (hi == 0 || hi == ~std::uint64_t{0}) write_turned(phases[i], m, cos[i], sin[i]);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_TABLE_ROW_HPP
