// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_KEY_ROTATION_HPP
#define ROPE_CACHE_DETAIL_KEY_ROTATION_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // std::move
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/simd/packet.hpp>  // arithmetic
#include <rope/base/storage.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/detail/phase_row.hpp>
#include <rope/tables/detail/table_row.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/table.hpp>

/// How the keys of a cache were rotated, and how they are turned once more by an exact difference of angles.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether two layouts pair the same channels in the same order.
template <class Layout, class Other>
bool same_layout(Index pairs) {
  for (Index i = 0; i < pairs; ++i)
    if (Layout::first(i, pairs) != Other::first(i, pairs) ||
        Layout::second(i, pairs) != Other::second(i, pairs))
      return false;
  return true;
}

/// A number that layouts have in common when they pair the same channels, a hash of these but for the two of
/// the library, which need no loop. A value, because a cache may cross into a shared library, which has types
/// and addresses of its own.
template <class Layout>
std::uint64_t layout_fingerprint(Index pairs) {
  if constexpr (std::is_same_v<Layout, half_split>) {
    return 1;
  } else if constexpr (std::is_same_v<Layout, interleaved>) {
    return pairs == 1 ? 1 : 2;
  } else {
    if (same_layout<Layout, half_split>(pairs)) return layout_fingerprint<half_split>(pairs);
    if (same_layout<Layout, interleaved>(pairs)) return layout_fingerprint<interleaved>(pairs);
    std::uint64_t hash = 2;
    for (Index i = 0; i < pairs; ++i)
      hash = mix(mix(hash, static_cast<std::uint64_t>(Layout::first(i, pairs))),
                 static_cast<std::uint64_t>(Layout::second(i, pairs)));
    return hash;
  }
}

/// The table and the layout that keys were rotated by; nothing for keys that came rotated.
struct key_rotation {
  std::uint64_t table = 0, layout = 0;
  bool known = false;

  friend bool operator==(const key_rotation&, const key_rotation&) = default;
};

template <class Layout, class S>
key_rotation rotation_by(const frequency_table<S>& table) {
  return {table.fingerprint(), layout_fingerprint<Layout>(table.pairs()), true};
}

/// Throws:  std::invalid_argument unless keys of `stored` are those of this layout and table
template <class Layout, class S>
void require_rotation(const char* owner, const key_rotation& stored, const frequency_table<S>& table) {
  if (stored == rotation_by<Layout>(table)) return;
  const auto refuse = [owner](const auto&... got) {
    ROPE_THROW(
        std::invalid_argument,
        message(owner, ": keys must meet the layout and the table they were rotated by, got ", got...));
  };
  if (!stored.known) refuse("a table for keys that came rotated");
  if (stored.table == table.fingerprint()) refuse("their table in another layout");
  refuse("table ", table.fingerprint(), " for keys of table ", stored.table);
}

/// Throws:  std::invalid_argument if keys that come rotated would join keys of a known rotation
inline void require_given_keys(const char* function, const key_rotation& stored) {
  if (stored.known)
    ROPE_THROW(std::invalid_argument,
               message(function, ": this cache rotates its keys, give the table, got none for keys of table ",
                       stored.table));
}

/// Throws:  std::invalid_argument, because a cache of raw keys was given a table
template <class S>
void refuse_raw_keys(const char* function, const frequency_table<S>& table) {
  ROPE_THROW(std::invalid_argument,
             message(function,
                     ": raw keys are rotated when they are read and appended without a layout and table, "
                     "got table ",
                     table.fingerprint()));
}

template <class S>
void refuse_rebase_of_raw_keys(const char* function, const frequency_table<S>& to) {
  ROPE_THROW(std::invalid_argument,
             message(function, ": raw keys have no angles, read them by another table, got table ",
                     to.fingerprint()));
}

inline void check_shift_without_table(const char* function, key_storage storage, std::int64_t delta) {
  if (storage != key_storage::raw)
    ROPE_THROW(
        std::invalid_argument,
        message(function, ": rotated keys are turned by a table, give it and the layout, got a delta of ",
                delta));
}

/// Turns keys by m R(step * count): one row of cos and sin serves every token that turns by the same count.
template <class Layout, class T>
class key_turn {
  using A = arithmetic<T>;

 public:
  key_turn(std::vector<phase> step, double m)
      : step_(std::move(step)), now_(step_.size()), m_(m), row_(2 * step_.size()) {}

  /// Turns every head of one token, [heads, head_dim] with `head_stride`, by `count` steps.
  void turn(const head_view<T>& keys, Index b, Index slot, std::int64_t count) {
    const auto pairs = static_cast<Index>(step_.size());
    if (!written_ || count != count_) {
      for (std::size_t i = 0; i < step_.size(); ++i) now_.set(i, step_[i] * count);
      write_table_row(now_, m_, row_.data(), row_.data() + pairs);
      count_ = count;
      written_ = true;
    }
    rotate_token<Layout>(token_heads<T>{keys.at(b, slot, 0), keys.at(b, slot, 0), keys.heads,
                                        keys.head_stride, keys.head_stride},
                         table_row<A, false>{row_.data(), row_.data() + pairs, pairs, A(1)}, false);
  }

 private:
  std::vector<phase> step_;
  phase_row now_;
  double m_;
  storage<A> row_;  // cos [pairs], then sin [pairs], of count_ steps
  std::int64_t count_ = 0;
  bool written_ = false;
};

/// The phase of every pair per unit of position.
template <class S>
std::vector<phase> steps_of(const frequency_table<S>& table) {
  std::vector<phase> steps(static_cast<std::size_t>(table.pairs()));
  for (std::size_t i = 0; i < steps.size(); ++i)
    steps[i] = phase_of(table.inv_freq()(static_cast<Index>(i), 0));
  return steps;
}

/// What turns keys by steps of the table's angles, without its attention_factor.
///
/// Throws:  std::invalid_argument unless the angles are exact
template <class Layout, class T, class S>
key_turn<Layout, T> turn_by(const char* function, const frequency_table<S>& table) {
  if (!table.is_exact_range())
    ROPE_THROW(std::invalid_argument,
               message(function,
                       ": the angle must be position * inv_freq, not of float angles or coordinates, got "
                       "exact = ",
                       table.is_exact_range()));
  return {steps_of(table), 1.0};
}

/// What turns keys from the angles of one table to those of another.
///
/// Throws:  std::invalid_argument unless both are of the same pairs, over a range of positions, with exact
///          angles
template <class Layout, class T, class S>
key_turn<Layout, T> turn_between(const char* function, const frequency_table<S>& from,
                                 const frequency_table<S>& to) {
  if (from.pairs() != to.pairs())
    ROPE_THROW(std::invalid_argument, message(function, ": both tables must have the same pairs, got ",
                                              from.pairs(), " and ", to.pairs()));
  if (!from.is_exact_range() || !to.is_exact_range())
    ROPE_THROW(
        std::invalid_argument,
        message(function,
                ": the angle must be position * inv_freq in both tables, not of float angles or coordinates, "
                "got exact = ",
                from.is_exact_range(), " and ", to.is_exact_range()));
  std::vector<phase> step = steps_of(to);
  const std::vector<phase> before = steps_of(from);
  for (std::size_t i = 0; i < step.size(); ++i) step[i] = step[i] + -before[i];
  return {std::move(step), to.attention_factor() / from.attention_factor()};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_KEY_ROTATION_HPP
