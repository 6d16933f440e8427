// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_VIEWS_HPP
#define ROPE_TESTS_FUZZ_VIEWS_HPP

/// Heads anywhere in memory, with red zones around them and between them.

#include <algorithm>
#include <utility>

#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"
#include "support/heads.hpp"

namespace fuzz {

using rope::Index;

/// Axes in any order, with gaps, forwards or backwards, as channels of a larger head. A vector begins
/// anywhere. The memory between the heads and around them is NaN of many bits, which a call must neither read
/// nor write.
///
/// \param broadcast  whether heads may be shared along an axis
template <class T>
rope::head_view<T> draw_view(bytes& b, testing::guarded_memory<T>& memory, Index batch, Index tokens,
                             Index heads, Index head_dim, bool broadcast = false) {
  const Index extents[] = {batch, tokens, heads};
  Index strides[] = {0, 0, 0}, lowest = 0, highest = head_dim;
  int order[] = {2, 1, 0};
  if (b.coin()) std::swap(order[0], order[1]);
  if (b.coin()) std::swap(order[1], order[2]);
  if (b.coin()) std::swap(order[0], order[1]);
  Index reach = head_dim + b.up_to(3);
  for (const int axis : order) {
    const Index reached = std::max(extents[axis], Index{1}) * reach + b.up_to(2);
    strides[axis] = b.one_in(4) ? -reach : reach;
    if (broadcast && b.one_in(4)) strides[axis] = 0;
    if (extents[axis] == 1 && b.one_in(3)) strides[axis] = static_cast<Index>(b.integer() / 8);  // never used
    if (extents[axis] > 1) (strides[axis] < 0 ? lowest : highest) += (extents[axis] - 1) * strides[axis];
    reach = reached;
  }
  const Index margin = 8 + b.up_to(15);
  memory = testing::guarded_memory<T>(highest - lowest + 2 * margin);
  return {
      memory.data() + margin - lowest, batch, tokens, heads, head_dim, strides[0], strides[1], strides[2]};
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_VIEWS_HPP
