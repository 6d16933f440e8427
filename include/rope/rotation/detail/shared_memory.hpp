// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_SHARED_MEMORY_HPP
#define ROPE_ROTATION_DETAIL_SHARED_MEMORY_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>

#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// Whether two views have a channel in common. Sub-views of one array may alternate in memory without a
/// common channel, such as the queries and keys of a fused projection. The ranges of their addresses overlap.

namespace rope::inline ROPE_ABI::detail {

/// A distance of `least` to `most` steps in memory, `stride` bytes each.
struct memory_steps {
  std::int64_t stride, least, most;
};

/// Whether steps can add up to exactly `distance` bytes. The longest step is first. If each stride is at
/// least as long as the span of all shorter ones, as for sub-views of one array, this takes two tries per
/// stride. The answer is false once no `tries` are left.
EIGEN_DONT_INLINE inline bool leads_to(const memory_steps* steps, const memory_steps* end,
                                       std::int64_t distance, int& tries) {
  if (steps == end) return distance == 0;
  std::int64_t least = 0, most = 0;  // the range that the shorter steps span
  for (const memory_steps* s = steps + 1; s != end; ++s) {
    least += s->least * s->stride;
    most += s->most * s->stride;
  }
  const auto floor = [by = steps->stride](std::int64_t n) { return n / by - (n % by < 0 ? 1 : 0); };
  const std::int64_t last = (std::min)(steps->most, floor(distance - least));
  for (std::int64_t n = (std::max)(steps->least, -floor(most - distance)); n <= last && --tries > 0; ++n)
    if (leads_to(steps + 1, end, distance - n * steps->stride, tries)) return true;
  return false;
}

/// The memory of a view with elements: its first address, and the extent of each axis and its stride in
/// bytes. The last axis is one of bytes. The stride of an extent of 1 is 0 here: in the view it may be huge.
struct viewed_memory {
  std::int64_t address, extents[4], strides[4];

  template <class T>
  explicit viewed_memory(const head_view<T>& x)
      : address(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.data))),
        extents{x.batch, x.tokens, x.heads, x.head_dim * std::int64_t{sizeof(T)}},
        strides{x.batch == 1 ? 0 : x.batch_stride * std::int64_t{sizeof(T)},
                x.tokens == 1 ? 0 : x.token_stride * std::int64_t{sizeof(T)},
                x.heads == 1 ? 0 : x.head_stride * std::int64_t{sizeof(T)}, 1} {}

  /// How far an axis extends before its first entry, as a negative number, and after it, in bytes.
  std::int64_t before(int i) const { return (std::min)((extents[i] - 1) * strides[i], std::int64_t{0}); }
  std::int64_t after(int i) const { return (std::max)((extents[i] - 1) * strides[i], std::int64_t{0}); }
  /// The addresses of all bytes are in [begin, end).
  std::int64_t begin() const { return address + before(0) + before(1) + before(2); }
  std::int64_t end() const { return address + after(0) + after(1) + after(2) + extents[3]; }
};

/// As share_memory, for two views whose ranges of addresses overlap.
EIGEN_DONT_INLINE inline bool find_shared(const viewed_memory& a, const viewed_memory& b) {
  memory_steps steps[8];
  int count = 0;
  for (int i = 0; i < 8; ++i) {
    const viewed_memory& x = i < 4 ? a : b;
    const std::int64_t extent = x.extents[i % 4], stride = x.strides[i % 4];
    if (stride == 0) continue;
    const std::int64_t most = (i < 4) == (stride < 0) ? extent - 1 : 0;
    const memory_steps next = {stride < 0 ? -stride : stride, most - extent + 1, most};
    int place = 0;
    while (place < count && steps[place].stride > next.stride) ++place;
    if (place < count && steps[place].stride == next.stride) {
      steps[place].least += next.least;
      steps[place].most += next.most;
      continue;
    }
    for (int later = count++; later > place; --later) steps[later] = steps[later - 1];
    steps[place] = next;
  }
  int tries = 4096;
  return leads_to(steps, steps + count, a.address - b.address, tries);
}

/// Whether two views share memory. True is always correct. False is correct for sub-views of one array and
/// for equal strides, unless 4096 tries found no overlap.
template <class A, class B>
bool share_memory(const head_view<A>& a, const head_view<B>& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const viewed_memory of_a(a), of_b(b);
  return of_a.begin() < of_b.end() && of_b.begin() < of_a.end() &&
         find_shared(viewed_memory(a), viewed_memory(b));
}

/// Whether two views have the same channels at the same addresses. Strides of extents of 1 are ignored.
template <class T>
bool are_same(const head_view<const T>& x, const head_view<T>& out) {
  return x.data == out.data && x.head_dim == out.head_dim &&
         (x.batch == 1 || x.batch_stride == out.batch_stride) &&
         (x.tokens == 1 || x.token_stride == out.token_stride) &&
         (x.heads == 1 || x.head_stride == out.head_stride);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_SHARED_MEMORY_HPP
