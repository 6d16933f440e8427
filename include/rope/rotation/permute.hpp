// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_PERMUTE_HPP
#define ROPE_ROTATION_PERMUTE_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <type_traits>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>

/// Converts a model from one layout to the other. Scores do not change if the channels of queries and keys
/// are reordered in the same way. Weights that were trained for one layout therefore serve the other once the
/// rows of the query and key projections, their biases and per-head q/k norm weights are permuted. Values and
/// the output projection do not change.

namespace rope::inline ROPE_ABI {
namespace detail {

/// order[c] is the channel in layout From that becomes channel c in layout To.
template <class From, class To>
number_array<Index> channel_order(const char* function, Index head_dim, Index rotary_dim) {
  if (rotary_dim <= 0 || rotary_dim % 2 != 0 || rotary_dim > head_dim)
    throw_invalid(function, "rotary_dim must be even, positive and at most the ", head_dim,
                  " channels from the first rotated one on, got ", rotary_dim);
  const Index pairs = rotary_dim / 2;
  check_layout<From>(function, pairs);
  check_layout<To>(function, pairs);
  number_array<Index> order(rotary_dim);
  for (Index i = 0; i < pairs; ++i) {
    order(To::first(i, pairs)) = From::first(i, pairs);
    order(To::second(i, pairs)) = From::second(i, pairs);
  }
  return order;
}

}  // namespace detail

/// Reorders the rows of a projection in place, so that its outputs have layout To instead of From.
///
///     new row of channel To::first(i)  = old row of channel From::first(i)
///     new row of channel To::second(i) = old row of channel From::second(i),   in every head
///
/// The inverse is the same call with the layouts swapped.
///
/// \tparam From, To    layouts
/// \param  rows        [heads * head_dim, inputs] weight, [heads * head_dim] bias or [head_dim] norm weight
///                     (heads = 1): any writable Eigen matrix or block of any scalar; pass the transpose() of
///                     a weight stored as [inputs, heads * head_dim]
/// \param  heads       the head count of this projection: n_heads for q, n_kv_heads for k
/// \param  rotary_dim  the number of rotated channels, even; 0: all of head_dim from `first` on
/// \param  first       the first rotated channel of the head; other channels are not moved
/// \param  threads     your threads, see base/parallel.hpp
///
/// Throws:  std::invalid_argument if heads does not divide the rows, the rotated channels do not fit, or a
///          layout does not name every channel once; rows is then unchanged
/// Cost:    one read and one write of the rotated rows; allocates the order of the rows and one column
/// Source:  `permute` of llama.cpp's converter (full rotary, equal head counts), generalised
template <class From, class To, class Rows, class Threads = this_thread>
void permute_rows(Rows&& rows, Index heads, Index rotary_dim = 0, Index first = 0,
                  const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("permute_rows", From);
  ROPE_DETAIL_CHECK_LAYOUT("permute_rows", To);
  ROPE_DETAIL_CHECK_THREADS("permute_rows", Threads);
  static_assert(!std::is_const_v<std::remove_reference_t<decltype(rows.coeffRef(0, 0))>>,
                "permute_rows: rows must be writable");
  using scalar = typename std::remove_cvref_t<Rows>::Scalar;
  if (heads <= 0 || rows.rows() % heads != 0)
    detail::throw_invalid("permute_rows", "heads must be positive and divide the ", rows.rows(),
                          " rows, got ", heads);
  const Index head_dim = rows.rows() / heads;
  if (first < 0 || first > head_dim)
    detail::throw_invalid("permute_rows", "first must be in [0, head_dim = ", head_dim, "], got ", first);
  if (rotary_dim == 0) rotary_dim = head_dim - first;
  const auto order = detail::channel_order<From, To>("permute_rows", head_dim - first, rotary_dim);
  const auto permute = [&](Index first_column, Index last_column) {
    std::vector<scalar> old(static_cast<std::size_t>(order.size()));
    for (Index c = first_column; c < last_column; ++c)
      for (Index h = 0; h < heads; ++h) {
        const Index start = h * head_dim + first;
        for (Index r = 0; r < rotary_dim; ++r) old[static_cast<std::size_t>(r)] = rows.coeff(start + r, c);
        for (Index r = 0; r < rotary_dim; ++r)
          rows.coeffRef(start + r, c) = old[static_cast<std::size_t>(order(r))];
      }
  };
  detail::parallel_pieces(threads, rows.cols(), detail::cost_of(rows.size(), sizeof(scalar)), permute);
}

/// Reorders the channels of activations in place from layout From to layout To. `rotate<To>` of the result
/// gives the channels of `rotate<From>` of the original, in the new order.
///
/// \param x           [batch, tokens, heads, head_dim]; pass `x.channels(first, count)` if the rotated
///                    channels do not start at 0
/// \param rotary_dim  the number of rotated channels, even; 0: all of head_dim
/// \param threads     as above
///
/// Throws:  std::invalid_argument if x has no data or its heads overlap, rotary_dim is odd, negative or
///          exceeds head_dim, or a layout does not name every channel once; x is then unchanged
/// Cost:    one read and one write of the rotated channels; allocates their order; scratch for one head per
///          thread
template <class From, class To, class T, class Threads = this_thread>
void permute_channels(head_view<T> x, Index rotary_dim = 0, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("permute_channels", From);
  ROPE_DETAIL_CHECK_LAYOUT("permute_channels", To);
  ROPE_DETAIL_CHECK_WRITABLE("permute_channels", "x", T);
  ROPE_DETAIL_CHECK_THREADS("permute_channels", Threads);
  detail::check_heads("permute_channels", x);
  detail::check_written("permute_channels", x);
  const auto order = detail::channel_order<From, To>("permute_channels", x.head_dim,
                                                     rotary_dim == 0 ? x.head_dim : rotary_dim);
  detail::for_each_head(x, threads, [&](Index b, Index t, Index h) {
    T* const head = x.at(b, t, h);
    T* const old = detail::workspace<struct unpermuted_head, T>(order.size());
    std::copy_n(head, order.size(), old);
    for (Index c = 0; c < order.size(); ++c) head[c] = old[order(c)];
  });
}

template <class From, class To, class X, class... More>
requires(!detail::is_head_view<std::remove_cvref_t<X>>) void permute_channels(X&&, More&&...) {
  static_assert(detail::is_head_view<X>, ROPE_DETAIL_VIEW_SENTENCE("permute_channels"));
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_PERMUTE_HPP
