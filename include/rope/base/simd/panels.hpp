// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_PANELS_HPP
#define ROPE_BASE_SIMD_PANELS_HPP

#include <algorithm>  // std::min, std::fill
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/config.hpp>

/// The matrix products of attention on packed operands. A strip of queries (as many rows as the registers
/// hold sums for) is multiplied by a panel of keys or of value channels (two packets wide). Each step loads
/// two packets of the panel and one number of each row, for two multiply-adds per row.

namespace rope::inline ROPE_ABI::detail {

/// Sizes of the kernel for numbers A.
template <class A>
struct panel_shape {
  /// Rows of a strip. Two sums per row, two packets of the panel and one packet of a row must fit in the
  /// registers.
  static constexpr int rows = registers >= 32 ? 12 : registers >= 16 ? 6 : 2;
  static constexpr int packets = 2;
  /// Keys or channels of a panel.
  static constexpr Index width = packets * lanes<packet<A>>;
  /// Keys of a tile: a multiple of every width. A packed tile of 128 channels takes 64 KiB as float.
  static constexpr Index tile = 128;
  static_assert(tile % width == 0);

  /// `count` rounded up to whole panels.
  static constexpr Index padded(Index count) { return (count + width - 1) / width * width; }
};

/// Products in the arithmetic type, with the interface of pair_products.
template <class A>
struct real_products {
  using number = A;
  using sums = packet<A>;
  using pairs = packet<A>;
  static constexpr Index lanes = detail::lanes<sums>;

  static EIGEN_ALWAYS_INLINE sums zero() { return detail::fill<sums>(A(0)); }
  static EIGEN_ALWAYS_INLINE pairs load(const A* from) { return detail::load<pairs>(from); }
  static EIGEN_ALWAYS_INLINE pairs fill(const A* from) { return detail::fill<pairs>(*from); }
  static EIGEN_ALWAYS_INLINE sums multiply_add(const pairs& a, const pairs& b, const sums& c) {
    return detail::multiply_add(a, b, c);
  }
};

/// The sums of a strip of queries with one panel in registers, [rows][packets], zeros at first.
template <class A, int packet_count, class Products = real_products<A>>
struct strip_sums {
  using number = typename Products::number;
  static constexpr int rows = panel_shape<A>::rows, packets = packet_count;
  typename Products::sums sum[std::size_t(rows * packets)];

  EIGEN_ALWAYS_INLINE strip_sums() {
    for_each([&](auto r, auto n) { sum[r * packets + n] = Products::zero(); });
  }

  /// Calls body(row constant, packet constant) for each sum, unrolled.
  template <class Body>
  static EIGEN_ALWAYS_INLINE void for_each(const Body& body) {
    unrolled(body, std::make_index_sequence<std::size_t(rows * packets)>{});
  }

  /// sum[r][n] += row_numbers[r * step] * panel[n]
  EIGEN_ALWAYS_INLINE void multiply_add_row(const number* row_numbers, Index step, const number* panel) {
    step_unrolled(row_numbers, step, panel, std::make_index_sequence<std::size_t(rows)>{},
                  std::make_index_sequence<std::size_t(packets)>{});
  }

 private:
  /// Numbers of the panel in a register.
  static constexpr Index width =
      std::is_same_v<Products, real_products<A>> ? Products::lanes : 2 * Products::lanes;

  template <class Body, std::size_t... i>
  static EIGEN_ALWAYS_INLINE void unrolled(const Body& body, std::index_sequence<i...>) {
    (body(std::integral_constant<int, int(i) / packets>{}, std::integral_constant<int, int(i) % packets>{}),
     ...);
  }
  template <std::size_t... r, std::size_t... n>
  EIGEN_ALWAYS_INLINE void step_unrolled(const number* row_numbers, Index step, const number* panel,
                                         std::index_sequence<r...>, std::index_sequence<n...> all) {
    const typename Products::pairs columns[] = {Products::load(panel + Index(n) * width)...};
    (row_unrolled<int(r)>(Products::fill(row_numbers + Index(r) * step), columns, all), ...);
  }
  template <int row, std::size_t... n>
  EIGEN_ALWAYS_INLINE void row_unrolled(const typename Products::pairs& of_row,
                                        const typename Products::pairs* columns, std::index_sequence<n...>) {
    ((sum[row * packets + int(n)] = Products::multiply_add(of_row, columns[n], sum[row * packets + int(n)])),
     ...);
  }
};

/// scores[r * tile + n] = sum_d queries[d * rows + r] * keys[d * width + n] for one panel of keys.
///
/// \param queries  [depth, rows]
/// \param keys     [depth, width]
template <class A>
EIGEN_DONT_INLINE void score_panel(const A* queries, const A* keys, Index depth, A* scores) {
  using P = packet<A>;
  using shape = panel_shape<A>;
  strip_sums<A, shape::packets> sums;
  for (Index d = 0; d < depth; ++d)
    sums.multiply_add_row(queries + d * shape::rows, 1, keys + d * shape::width);
  sums.for_each([&](auto r, auto n) {
    store(scores + r * shape::tile + n * lanes<P>, sums.sum[r * shape::packets + n]);
  });
}

/// sums[r * width + c] = shrink[r] * sums[r * width + c] + sum_j weights[r * tile + j] * values[j * width +
/// c] for j in [first, last) and the first `packets` packets of one panel of channels. The sum over j starts
/// at zero, because adding terms one by one to a large sum rounds once per term.
///
/// \param weights  [rows, tile]
/// \param values   [tile, width]
/// \param sums_in_memory  [rows, width]
template <class A, int packets>
EIGEN_DONT_INLINE void value_panel(const A* weights, const A* values, Index first, Index last,
                                   const A* shrink, A* sums_in_memory) {
  using P = packet<A>;
  using shape = panel_shape<A>;
  strip_sums<A, packets> sums;
  for (Index j = first; j < last; ++j)
    sums.multiply_add_row(weights + j, shape::tile, values + j * shape::width);
  sums.for_each([&](auto r, auto n) {
    A* before = sums_in_memory + r * shape::width + n * lanes<P>;
    store(before, multiply_add(fill<P>(shrink[r]), load<P>(before), sums.sum[r * packets + n]));
  });
}

/// packed[d * packed_stride + n] = rows[n * row_stride + d], widened, for n in [0, count), zero up to
/// `padded_count`.
template <class A, class X>
void pack_transposed(const X* rows, Index row_stride, Index count, Index padded_count, Index depth, A* packed,
                     Index packed_stride) {
  using P = packet<A>;
  constexpr Index L = lanes<P>;
  for (Index n = 0; n < padded_count; n += L) {
    const Index here = (std::min)(L, count - n), columns = (std::min)(L, padded_count - n);
    Index d = 0;
    if (here == L) {
      for (; d + L <= depth; d += L) {
        P block[std::size_t(L)];
        unrolled<std::size_t(L)>([&](auto i) { block[i] = load<P>(rows + (n + Index(i)) * row_stride + d); });
        for (Index i = 0; i < L; ++i) {  // prefetched: too many streams for the processor
          const Index after = (n + L + i) * row_stride + d;
          prefetch_after(rows, static_cast<std::uintptr_t>(after * Index(sizeof(X))));
        }
        transpose(block);
        unrolled<std::size_t(L)>(
            [&](auto i) { store(packed + (d + Index(i)) * packed_stride + n, block[i]); });
      }
    }
    for (; d < depth; ++d)
      for (Index i = 0; i < columns; ++i)
        packed[d * packed_stride + n + i] = i < here ? static_cast<A>(rows[(n + i) * row_stride + d]) : A(0);
  }
}

/// Copies channels [0, depth) of one row, widened, into panels `panel_stride` apart, followed by zeros.
template <class A, class X>
void pack_row(const X* row, Index depth, A* packed, Index panel_stride) {
  using P = packet<A>;
  constexpr Index width = panel_shape<A>::width, L = lanes<P>;
  for (Index c = 0; c < depth; c += width, packed += panel_stride) {
    const Index here = (std::min)(width, depth - c);
    if (here == width) {
      for (Index i = 0; i < width; i += L) store(packed + i, load<P>(row + c + i));
    } else {
      for (Index i = 0; i < here; ++i) packed[i] = static_cast<A>(row[c + i]);
      std::fill(packed + here, packed + width, A(0));
    }
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_SIMD_PANELS_HPP
