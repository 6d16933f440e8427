// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_TOKEN_LOOPS_HPP
#define ROPE_ROTATION_DETAIL_TOKEN_LOOPS_HPP

#include <algorithm>  // std::min

#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// Loops over the tokens and heads of a view.

namespace rope::inline ROPE_ABI::detail {

/// Calls visit(b, t, count) for pieces of tokens [first, last) of the concatenated rows of the batch: `count`
/// tokens of row b from token t on, at most `most`.
template <class T, class Visit>
void for_each_piece(const head_view<T>& x, Index first, Index last, Index most, const Visit& visit) {
  for (Index count; first < last; first += count) {
    const Index b = first < x.tokens ? 0 : first / x.tokens, t = first - b * x.tokens;
    count = (std::min)({last - first, x.tokens - t, most});
    visit(b, t, count);
  }
}

/// Calls visit(b, t) for every token of a view, on `threads`.
///
/// \param views  the number of views of this shape that visit reads or writes, as a measure of its cost
template <class T, class Threads, class Visit>
void for_each_token(const head_view<T>& x, const Threads& threads, const Visit& visit, int views = 1) {
  const double bytes = cost_of(views, x.size(), sizeof(T));
  parallel_pieces(threads, x.batch * x.tokens, bytes, [&](Index first, Index last) {
    for (Index token = first; token < last; ++token) visit(token / x.tokens, token % x.tokens);
  });
}

/// Calls visit(b, t, h) for every head of every token of a view, on `threads`.
template <class T, class Threads, class Visit>
void for_each_head(const head_view<T>& x, const Threads& threads, const Visit& visit, int views = 1) {
  const auto visit_token = [&](Index b, Index t) {
    for (Index h = 0; h < x.heads; ++h) visit(b, t, h);
  };
  for_each_token(x, threads, visit_token, views);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_TOKEN_LOOPS_HPP
