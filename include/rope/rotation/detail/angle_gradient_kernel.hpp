// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_ANGLE_GRADIENT_KERNEL_HPP
#define ROPE_ROTATION_DETAIL_ANGLE_GRADIENT_KERNEL_HPP

#include <algorithm>  // std::fill, std::min
#include <cstddef>
#include <type_traits>
#include <utility>  // std::move
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/base/storage.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// Sums of products of channel pairs x = (u, v) with their gradients g = (a, b). As complex numbers u + iv
/// and a + ib, conj(x) g has two parts:
///
///     along    u a + v b      how the loss changes with the logarithm of the pair's magnitude
///     across   u b - v a      how the loss changes with the pair's angle
///
/// A rotation maps x to z x, and the gradient g after it to the gradient conj(z) g before it. Both parts are
/// therefore equal before and after the rotation: conj(x) (conj(z) g) = conj(z x) g.
///
/// Sums are in double, in an order that depends on the shapes only, not on the threads. multiply_add decides
/// about fusing products and sums, not the compiler.

namespace rope::inline ROPE_ABI::detail {

/// The two parts above.
enum class part { along, across };

/// Adds one part of every pair of the heads of token t of row b to `sums` [pairs].
template <class Layout, part which, class X, class G>
void add_token(const head_view<const X>& x, const head_view<const G>& d_x, Index b, Index t, Index pairs,
               double* sums) {
  for (Index h = 0; h < x.heads; ++h) {
    const X* value = x.at(b, t, h);
    const G* gradient = d_x.at(b, t, h);
    for (Index i = 0; i < pairs; ++i) {
      const Index first = Layout::first(i, pairs), second = Layout::second(i, pairs);
      const auto u = static_cast<double>(value[first]), v = static_cast<double>(value[second]);
      const auto a = static_cast<double>(gradient[first]), b_ = static_cast<double>(gradient[second]);
      sums[i] += which == part::along ? multiply_add(u, a, v * b_) : multiply_add(u, b_, -(v * a));
    }
  }
}

/// Bytes of heads and of their gradient that a sum reads.
template <class X, class G>
double bytes_read(const head_view<const X>& x, const head_view<const G>& /*d_x*/, Index pairs) {
  return cost_of(x.batch, x.tokens, x.heads, 2 * pairs, sizeof(X) + sizeof(G));
}

/// The rotated heads, their gradient, the table and the positions: checked arguments of a function of
/// angle_gradient.hpp.
template <class X, class G, class S, class Source>
struct turned_heads {
  head_view<const X> x;    // the rotated channels, before the rotation or after it
  head_view<const G> d_x;  // the gradient with respect to them
  const frequency_table<S>& table;
  Source positions;  // of token t of row b: positions(b, t)
};

/// Throws:  as check_rotation; std::invalid_argument if the shapes differ or d_x has no memory
template <class Layout, class X, class G, class Table, class P>
auto checked_gradient(const char* function, const head_view<X>& x, const head_view<G>& d_x,
                      const Table& table, const P& positions) {
  const auto place = placed(table);
  const auto source = position_source(positions, x.tokens);
  check_rotation<Layout>(function, x, place, source);
  check_view(function, d_x);
  check_same_shape(function, x, d_x, "d_x");
  check_memory(function, d_x);
  const Index first = place.first_channel(), count = place.table().rotary_dim();
  return turned_heads<std::remove_const_t<X>, std::remove_const_t<G>, typename Table::scalar,
                      std::remove_const_t<decltype(source)>>{
      x.channels(first, count), d_x.channels(first, count), place.table(), source};
}

/// Throws if the table has given entries: their frequencies and positions are unknown.
///
/// Throws:  std::invalid_argument
template <class S>
void check_made_from_frequencies(const char* function, const frequency_table<S>& table) {
  if (table.source() == table_source::entries)
    throw_invalid(function,
                  "the table must be made from frequencies, got one of given entries: use angle_gradient or "
                  "table_gradient");
}

/// One part of every pair of every token, summed over the heads: [pairs, batch * tokens].
template <class Layout, part which, class X, class G, class S, class Source, class Threads>
number_array<double> sums_by_token(const turned_heads<X, G, S, Source>& heads, const Threads& threads) {
  const auto& x = heads.x;
  const auto& d_x = heads.d_x;
  const Index pairs = heads.table.pairs();
  number_array<double> sums(pairs, x.batch * x.tokens, 0.0);
  parallel_pieces(threads, sums.cols(), bytes_read(x, d_x, pairs), [&](Index first, Index last) {
    for (Index token = first; token < last; ++token)
      add_token<Layout, which>(x, d_x, token / x.tokens, token % x.tokens, pairs,
                               sums.data() + token * pairs);
  });
  return sums;
}

/// For every row of the table, the sum of the columns of `by_token` [n, batch * tokens] whose tokens use that
/// row: [rows, n].
template <class X, class G, class S, class Source>
number_array<double> sums_by_row(const number_array<double>& by_token,
                                 const turned_heads<X, G, S, Source>& heads) {
  const Index tokens = heads.x.tokens;
  number_array<double> by_row(heads.table.rows(), by_token.rows(), 0.0);
  for (Index token = 0; token < by_token.cols(); ++token) {
    const auto row =
        static_cast<Index>(heads.positions(token / tokens, token % tokens) - heads.table.first());
    for (Index i = 0; i < by_token.rows(); ++i) by_row(row, i) += by_token(i, token);
  }
  return by_row;
}

/// One part of every pair, summed over heads and tokens with weights weight(b, t, column): [pairs, columns].
template <class Layout, part which, class X, class G, class S, class Source, class Threads, class Weight>
number_array<double> weighted_sums(const turned_heads<X, G, S, Source>& heads, Index columns,
                                   const Threads& threads, const Weight& weight) {
  const auto& x = heads.x;
  const auto& d_x = heads.d_x;
  const Index pairs = heads.table.pairs();
  // The number of pieces does not depend on the threads: enough pieces for the threads of most machines, and
  // few enough that their sums are small compared to the heads.
  constexpr Index max_pieces = 64;
  const Index tokens = x.batch * x.tokens, pieces = (std::min)(tokens, max_pieces);
  number_array<double> partial(pairs * columns, pieces, 0.0);
  parallel_pieces(threads, pieces, bytes_read(x, d_x, pairs), [&](Index first, Index last) {
    number_array<double> sums(pairs);
    for (Index piece = first; piece < last; ++piece) {
      const Index end = begin_of_piece(tokens, piece + 1, pieces);
      for (Index token = begin_of_piece(tokens, piece, pieces); token < end; ++token) {
        const Index b = token / x.tokens, t = token % x.tokens;
        std::fill(sums.begin(), sums.end(), 0.0);
        add_token<Layout, which>(x, d_x, b, t, pairs, sums.data());
        for (Index c = 0; c < columns; ++c) {
          const double by = weight(b, t, c);
          for (Index i = 0; i < pairs; ++i) {
            double& sum = partial(i + pairs * c, piece);
            sum = multiply_add(by, sums(i), sum);
          }
        }
      }
    }
  });
  number_array<double> total(pairs, columns, 0.0);
  for (Index piece = 0; piece < pieces; ++piece)
    for (Index i = 0; i < total.size(); ++i) total(i) += partial(i, piece);
  return total;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_ANGLE_GRADIENT_KERNEL_HPP
