// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_VIEW_CHECKS_HPP
#define ROPE_ROTATION_VIEW_CHECKS_HPP

#include <cstdint>     // std::uintptr_t
#include <functional>  // std::less
#include <utility>     // std::pair

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/type_checks.hpp>
#include <rope/rotation/view.hpp>

/// What can be wrong with the types (type_checks.hpp) and the views of a call, whatever the call is.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Refuses negative extents and views larger than the address space.
///
/// Throws:  std::invalid_argument, std::length_error
template <class T>
void check_view(const char* function, const head_view<T>& x) {
  if (x.batch < 0 || x.tokens < 0 || x.heads < 0 || x.head_dim < 0)
    ROPE_THROW(std::invalid_argument, message(function, ": the extents of a view must not be negative, got [",
                                              x.batch, ", ", x.tokens, ", ", x.heads, ", ", x.head_dim, "]"));
  if (!extents_fit(x.batch, x.tokens, x.heads, x.head_dim, Index(sizeof(T))))
    ROPE_THROW(std::length_error,
               message(function, ": the extents of a view must not exceed the address space, got [", x.batch,
                       ", ", x.tokens, ", ", x.heads, ", ", x.head_dim, "]"));
}

/// Refuses a null pointer where a view has elements. Not for views that are made only to be checked
/// (shape_of).
///
/// Throws:  std::invalid_argument
template <class... T>
void check_memory(const char* function, const head_view<T>&... views) {
  const auto check_one = [function](const auto& x) {
    if (x.data == nullptr && x.batch != 0 && x.tokens != 0 && x.heads != 0 && x.head_dim != 0)
      ROPE_THROW(std::invalid_argument, message(function, ": a view must have data, got null for [", x.batch,
                                                ", ", x.tokens, ", ", x.heads, ", ", x.head_dim, "]"));
  };
  (check_one(views), ...);
}

/// Whether the view covers every element between its first and its last one.
template <class T>
bool is_dense(const head_view<T>& x) {
  Index last = x.head_dim - 1;
  bool ascends = true;
  for (const auto& [extent, stride] :
       {std::pair(x.batch, x.batch_stride), {x.tokens, x.token_stride}, {x.heads, x.head_stride}}) {
    if (extent > 1) last += (extent - 1) * stride;
    ascends = ascends && (extent <= 1 || stride >= 0);
  }
  return ascends && last + 1 == x.size();
}

/// Whether `x` and `out` are the same view or share no element, as far as this can be told: true where one of
/// them has gaps. Strides of extents of 1, which may be anything, are not compared.
template <class T>
bool same_or_disjoint(const head_view<const T>& x, const head_view<T>& out) {
  if (x.size() == 0) return true;
  if (x.data == out.data)
    return (x.batch == 1 || x.batch_stride == out.batch_stride) &&
           (x.tokens == 1 || x.token_stride == out.token_stride) &&
           (x.heads == 1 || x.head_stride == out.head_stride);
  if (!is_dense(x) || !is_dense(out)) return true;
  const std::less<const T*> before;
  return !before(out.data, x.data + x.size()) || !before(x.data, out.data + out.size());
}

/// Whether `place` is in a channel of x, found by dividing its distance from the start by the strides, the
/// longest first. True is certain. False is certain only if every stride is at least as long as what the
/// shorter ones span, as in a window of an array.
template <class T>
bool holds_channel(const head_view<T>& x, const T* place) {
  if (std::less<const T*>{}(place, x.data)) return false;
  struct axis {
    Index extent, stride;
  };
  axis axes[3] = {{x.batch, x.batch_stride}, {x.tokens, x.token_stride}, {x.heads, x.head_stride}};
  const auto order = [&axes](int longer, int shorter) {
    if (axes[longer].stride < axes[shorter].stride) {
      const axis other = axes[longer];
      axes[longer] = axes[shorter];
      axes[shorter] = other;
    }
  };
  order(0, 1);
  order(1, 2);
  order(0, 1);
  // Not place - x.data: allocations of a process of 32 bits may lie farther apart than half of the address
  // space, which a signed difference does not hold, nor is it defined.
  auto rest =
      (reinterpret_cast<std::uintptr_t>(place) - reinterpret_cast<std::uintptr_t>(x.data)) / sizeof(T);
  for (const axis& a : axes) {
    if (a.extent == 1 || a.stride <= 0) continue;
    const auto stride = static_cast<std::uintptr_t>(a.stride);
    if (rest / stride >= static_cast<std::uintptr_t>(a.extent)) return false;
    rest %= stride;
  }
  return rest < static_cast<std::uintptr_t>(x.head_dim);
}

/// Whether the first channel of one view is a channel of the other, as holds_channel tells.
template <class T>
bool share_first_elements(const head_view<T>& a, const head_view<T>& b) {
  return a.size() != 0 && b.size() != 0 && (holds_channel(a, b.data) || holds_channel(b, a.data));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_VIEW_CHECKS_HPP
