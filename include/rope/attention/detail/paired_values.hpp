// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PAIRED_VALUES_HPP
#define ROPE_ATTENTION_DETAIL_PAIRED_VALUES_HPP

#include <algorithm>  // std::fill_n

#include <rope/attention/detail/rows.hpp>
#include <rope/base/simd/pair_panels.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The values of a tile, packed as pairs of tokens that are neighbours.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// \tparam Products  bfloat16_products or integer_products
template <class Products>
class paired_values {
  using shape = panel_shape<float>;
  using number = typename Products::number;

 public:
  /// Numbers in memory for heads of `channels` channels.
  static constexpr Index size(Index channels) { return shape::tile * shape::padded(channels); }

  paired_values(number* memory, Index channels) : memory_(memory), channels_(channels) {}

  /// Packs values [n, n + count) of the tile, two at a time; half a pair where a run of tokens ends.
  void pack(Index n, Index count, const row_block<typename Products::stored>& rows) const {
    constexpr Index stride = shape::tile * shape::width;
    for (Index j = 0; j < count;) {
      const auto* row = rows.rows + j * rows.stride;
      number* to = memory_ + (n + j) / 2 * 2 * shape::width;
      if ((n + j) % 2 == 0 && j + 1 < count) {
        pack_rows_of_pairs<Products>(row, row + rows.stride, channels_, to, stride);
        j += 2;
      } else {
        if ((n + j) % 2 == 0)  // the other half stays zero if the tile ends here
          for (Index c = 0; c < channels_; c += shape::width)
            std::fill_n(to + c * shape::tile, 2 * shape::width, number{});
        pack_row_of_pairs<Products>(row, (n + j) % 2, channels_, to, stride);
        ++j;
      }
    }
  }

  /// The panel that begins with `channel`, [tile / 2, width] of pairs.
  const number* panel(Index channel) const { return memory_ + channel * shape::tile; }

  /// The sums of a panel in the order of channels.
  static const float* in_order(const float* sums, float* room) {
    for (Index c = 0; c < shape::width; ++c) room[c] = sums[place_of_channel<Products>(c)];
    return room;
  }

 private:
  number* memory_;  // [value_panels, tile / 2, width] of pairs
  Index channels_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_PAIRED_VALUES_HPP
