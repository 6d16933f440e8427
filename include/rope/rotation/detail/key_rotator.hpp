// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_KEY_ROTATOR_HPP
#define ROPE_ROTATION_DETAIL_KEY_ROTATOR_HPP

#include <concepts>  // std::invocable
#include <cstdint>
#include <optional>
#include <utility>  // std::move

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/table.hpp>

/// Rotates stored, already rotated keys by the exact difference of two angles.

namespace rope::inline ROPE_ABI::detail {

/// Rotates keys by m R(step * count). Keeps the row of cos and sin for later tokens with the same count.
template <class Layout, class T>
class key_rotator {
  using A = arithmetic<T>;

 public:
  key_rotator(number_array<phase> step, double m, Index first_channel)
      : step_(std::move(step)), m_(m), first_channel_(first_channel), row_(2 * step_.size()) {}

  /// Rotates every head of one token, [heads, head_dim] with `head_stride`, by `count` steps.
  void rotate(const head_view<T>& keys, Index b, Index slot, std::int64_t count) {
    if (count_ == count) return apply(keys, b, slot);
    rotate(keys, b, slot, [&](Index i) { return step_(i) * count; });
    count_ = count;
  }
  /// Rotates every head of one token by m R(phase_of_pair(i)), independent of the steps.
  template <std::invocable<Index> PhaseOfPair>
  void rotate(const head_view<T>& keys, Index b, Index slot, const PhaseOfPair& phase_of_pair) {
    count_.reset();
    A *const cos = row_.data(), *const sin = cos + step_.size();
    for (Index i = 0; i < step_.size(); ++i) write_phase(phase_of_pair(i), m_, cos[i], sin[i]);
    apply(keys, b, slot);
  }

 private:
  void apply(const head_view<T>& keys, Index b, Index slot) const;

  number_array<phase> step_;
  double m_;
  Index first_channel_;
  number_array<A> row_;                // cos [pairs], then sin [pairs]
  std::optional<std::int64_t> count_;  // the number of steps that row_ is for, if any
};

// Not inline, so that programs can compile it once (`extern template`).
template <class Layout, class T>
void key_rotator<Layout, T>::apply(const head_view<T>& keys, Index b, Index slot) const {
  if (keys.heads == 0) return;  // its data may be null
  const auto pairs = step_.size();
  T* channels = keys.at(b, slot, 0) + first_channel_;
  // The stride of a single head is arbitrary and must not be added to a pointer.
  const Index stride = keys.heads == 1 ? 0 : keys.head_stride;
  rotate_token<Layout>(token_heads<T>{channels, channels, keys.heads, stride, stride},
                       table_row<A, false>{row_.data(), row_.data() + pairs, pairs, A(1)});
}

/// The phase of every pair per unit of position, or per unit along every axis.
template <class S>
number_array<phase> steps_of(const frequency_table<S>& table) {
  number_array<phase> steps(table.pairs(), 1, phase{});
  for (Index i = 0; i < steps.size(); ++i)
    for (Index a = 0; a < table.axes(); ++a) steps(i) = steps(i) + phase_of(table.inv_freq(i, a));
  return steps;
}

/// A rotator of keys by steps of the table's angles, without its attention_factor.
///
/// \param on_axes  whether keys have coordinates, which all change by the same number
///
/// Throws:  std::invalid_argument unless the angles are exact
template <class Layout, class T, class S>
key_rotator<Layout, T> shift_rotator(const char* function, const placed_table<S>& placed,
                                     bool on_axes = false) {
  const frequency_table<S>& table = placed.table();
  if (!on_axes && table.source() != table_source::positions)
    throw_invalid(function,
                  "the angle must be position * inv_freq, not of float angles or coordinates; give a table "
                  "of a range of positions");
  return {steps_of(table), 1.0, placed.first_channel()};
}

/// A rotator of keys from the angles of one table to those of another.
///
/// \param on_axes  whether keys have coordinates. The rotator then has no steps: the caller gives each phase
///
/// Throws:  std::invalid_argument unless both have the same pairs and first channel and, without axes, cover
///          a range of positions and have exact angles
template <class Layout, class T, class From, class To>
key_rotator<Layout, T> rebase_rotator(const char* function, const placed_table<From>& placed_from,
                                      const placed_table<To>& placed_to, bool on_axes = false) {
  const frequency_table<From>& from = placed_from.table();
  const frequency_table<To>& to = placed_to.table();
  if (placed_from.first_channel() != placed_to.first_channel())
    throw_invalid(function, "both tables must begin at the same channel, got ", placed_from.first_channel(),
                  " and ", placed_to.first_channel());
  check_equal(function, "both tables", "pairs", from.pairs(), to.pairs());
  const double m = to.attention_factor() / from.attention_factor();
  if (on_axes) return {number_array<phase>(to.pairs(), 1, phase{}), m, placed_to.first_channel()};
  if (from.source() != table_source::positions || to.source() != table_source::positions)
    throw_invalid(function,
                  "the angle must be position * inv_freq in both tables, not of float angles or coordinates, "
                  "but is not in the ",
                  from.source() == table_source::positions ? "second" : "first");
  number_array<phase> step = steps_of(to);
  const number_array<phase> before = steps_of(from);
  for (Index i = 0; i < step.size(); ++i) step(i) = step(i) + -before(i);
  return {std::move(step), m, placed_to.first_channel()};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_KEY_ROTATOR_HPP
