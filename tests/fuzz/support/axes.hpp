// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_AXES_HPP
#define ROPE_TESTS_FUZZ_AXES_HPP

/// Tokens on two axes: frequencies and tables for them, their possible coordinates, and how the plain models
/// of caches rotate their keys.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <rope/frequencies/axes_variants.hpp>
#include <rope/tables.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/shown.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/types.hpp"

namespace fuzz {

inline constexpr Index axes = 2, rotated_channels = 4;

/// Two pairs each. Those on axes assign the pairs of a schedule in two ways, or rotate each pair along both
/// axes. Text of a schedule rotates by a table of positions, which is equal to every assignment of its pairs
/// to one axis each.
struct axis_tables {
  rope::frequencies slow = rope::frequencies(rotated_channels, 50.0),
                    fast = rope::frequencies::custom(Eigen::Array2d(1.5, 0.25)),
                    scaled = rope::frequencies::custom(Eigen::Array2d(1.5, 0.25), 1.25);
  std::vector<rope::frequencies> on_axes = {
      rope::on_axes(slow, {{0, 1}, axes}), rope::on_axes(slow, {{1, 0}, axes}),
      rope::on_axes(fast, {{0, 1}, axes}), rope::on_axes(scaled, {{0, 1}, axes}), along(slow)};
  std::vector<rope::frequency_table<float>> of_text = {rope::frequency_table<float>(slow, -40, 90),
                                                       rope::frequency_table<float>(fast, -40, 90),
                                                       rope::frequency_table<float>(scaled, -40, 90)};
  /// Tables that no cache on two axes accepts: other angles, given entries, and other axes.
  std::vector<rope::frequency_table<float>> rejected = {
      rope::frequency_table<float>::with_float_angles(slow, -40, 90),
      rope::table_of_angles<float>(Eigen::ArrayXXf::Ones(4, 2), rope::table_form::half_width),
      rope::frequency_table<float>(rope::on_axes(slow, {{0, 2}, 3}), Eigen::ArrayXXd::Zero(2, 3))};
  /// With more pairs than any key here has.
  rope::frequency_table<float> of_more_pairs = rope::frequency_table<float>(
      rope::axial(rope::frequencies(8, 50.0), axes), Eigen::ArrayXXd::Zero(1, axes));

  static rope::frequencies along(const rope::frequencies& schedule) {
    Eigen::Array22d directions;
    directions << 0.5, 0.25, -0.75, 1;
    return rope::along_directions(schedule, directions);
  }
  static const axis_tables& get() {
    static const axis_tables one;
    return one;
  }
};

/// How keys were rotated, or will be: by which of on_axes and like which text. -1: unknown, or there is none.
struct axis_rotation {
  int by = -1, text = -1;
  bool interleaved = false;
  Index first_channel = 0;

  static axis_rotation of(int by, bool interleaved_one, Index first) {
    static constexpr int texts[] = {0, 0, 1, 2, -1};
    return {by, texts[by], interleaved_one, first};
  }
  static axis_rotation of_text(int text, bool interleaved_one, Index first) {
    return {-1, text, interleaved_one, first};
  }
  /// Whether keys of both rotate equally as far as that is known.
  bool agrees_with(const axis_rotation& other) const {
    const bool same = by >= 0 && other.by >= 0 ? by == other.by : text >= 0 && text == other.text;
    return same && interleaved == other.interleaved && first_channel == other.first_channel;
  }
  /// The known rotation after keys of `added`, which rotate equally, were added.
  axis_rotation joined(const axis_rotation& added) const { return added.by >= 0 ? added : *this; }

  wide factor() const { return by == 3 || text == 2 ? 1.25L : 1; }
  /// The frequency of a pair along an axis. Text has one integer on all axes, so it may use either.
  double speed(std::size_t pair, std::size_t axis) const {
    const axis_tables& all = axis_tables::get();
    const double f = by == 2 || by == 3 || (by < 0 && text > 0)
                         ? (pair == 0 ? 1.5 : 0.25)
                         : all.slow.inv_freq()(static_cast<Index>(pair), 0);
    if (by == 4) return f * (pair == 0 ? (axis == 0 ? 0.5 : 0.25) : axis == 0 ? -0.75 : 1);
    return axis == (by == 1 ? 1 - pair : pair) ? f : 0;
  }
};

using coordinates = std::vector<double>;

inline bool is_whole(double x) { return x == std::floor(x); }
inline bool is_text(const coordinates& at) { return at[0] == at[1] && is_whole(at[0]); }
inline double largest_of(const coordinates& at) { return std::max(at[0], at[1]); }
/// Whether the tables of text contain a position.
inline bool is_in_text_tables(double position) { return position >= -40 && position < 90; }
/// Whether the model computes with them exactly.
inline bool is_near(const coordinates& at) { return std::abs(at[0]) < 0x1p36 && std::abs(at[1]) < 0x1p36; }

/// Rotates a key to its coordinates, or with `sign` -1 back from them.
///
/// \param at  may be steps along the axes
template <class T>
void rotate_on_axes(key& k, Index head_dim, const axis_rotation& rotation, const coordinates& at, wide m,
                    int sign = 1) {
  const rotation_rule rule = {std::vector<double>(2, 0), 1, rotation.interleaved,
                              static_cast<std::size_t>(rotation.first_channel)};
  rotate_pairs<T>(k, static_cast<std::size_t>(head_dim), rule, m, [&](std::size_t pair) {
    wide cos = 1, sin = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      const auto [c, s] = rotation_at(static_cast<wide>(at[axis]) * sign, rotation.speed(pair, axis));
      const wide x = cos * c - sin * s;
      sin = sin * c + cos * s, cos = x;
    }
    return std::pair(cos, sin);
  });
}

/// Text, cells of a grid, fractions of them, or, if keys do not rotate there, coordinates at the end of the
/// range.
inline coordinates draw_coordinates(bytes& b, bool far) {
  const long kind = b.up_to(far ? 5 : 3);
  const auto one = [&]() -> double {
    if (kind == 3) return static_cast<double>(b.between(-100, 400)) / 8;
    if (kind > 3 && b.one_in(3)) return (b.coin() ? 1 : -1) * (0x1p53 - static_cast<double>(b.up_to(3)));
    return static_cast<double>(b.between(-4, 40));
  };
  const double first = one();
  return {first, kind == 0 || kind == 4 ? first : one()};
}

/// Rows of coordinates for a table or a cache.
inline Eigen::ArrayXXd rows_of(const std::vector<coordinates>& all) {
  Eigen::ArrayXXd rows(static_cast<Index>(all.size()), axes);
  for (std::size_t r = 0; r < all.size(); ++r)
    for (Index a = 0; a < axes; ++a) rows(static_cast<Index>(r), a) = all[r][static_cast<std::size_t>(a)];
  return rows;
}

/// Calls `f` with a table of that rotation, at these coordinates if it has some.
template <class Call>
void with_table(const axis_rotation& given, const std::vector<coordinates>& at, const Call& f) {
  const axis_tables& all = axis_tables::get();
  if (given.by < 0)
    return f(all.of_text[static_cast<std::size_t>(given.text)].at_channel(given.first_channel));
  const rope::frequency_table<float> table(all.on_axes[static_cast<std::size_t>(given.by)], rows_of(at));
  f(table.at_channel(given.first_channel));
}
/// Calls `f` with a layout, too.
template <class Call>
void with_table_and_layout(const axis_rotation& given, const std::vector<coordinates>& at, const Call& f) {
  with_table(given, at, [&](const auto& table) {
    with_layout(given.interleaved, [&]<class Layout>(Layout layout) { f(layout, table); });
  });
}
/// Whether a cache accepts a table of that rotation.
template <class Cache>
bool agrees_with(const Cache& cache, const axis_rotation& given) {
  bool taken = false;
  with_table_and_layout(
      given, {}, [&]<class Layout>(Layout, const auto& table) { taken = takes<Layout>(cache, table); });
  return taken;
}
/// Compares every rotation() of a cache with the rotation of its keys. Null: none is known.
template <class Cache>
void check_rotations(const Cache& cache, bool empty, const axis_rotation* keys, Index first_channel) {
  for (const bool interleaved_one : {false, true})
    for (int i = 0; i < 8; ++i) {
      const auto given = i < 3 ? axis_rotation::of_text(i, interleaved_one, first_channel)
                               : axis_rotation::of(i - 3, interleaved_one, first_channel);
      check(agrees_with(cache, given) == (empty || (keys != nullptr && keys->agrees_with(given))),
            "a cache knows the rotation of its keys");
    }
}

/// The rotation of the keys of a cache, or sometimes another one.
inline axis_rotation draw_rotation(bytes& b, bool text, bool empty, const axis_rotation& known,
                                   Index first_channel, Index head_dim) {
  const bool other = b.one_in(6);
  const Index first = other && b.coin() ? b.up_to(long(head_dim - rotated_channels)) : first_channel;
  const bool interleaved_one = other ? b.coin() : known.interleaved;
  if (text)
    return axis_rotation::of_text(other ? static_cast<int>(b.up_to(2)) : std::max(known.text, 0),
                                  interleaved_one, first);
  return axis_rotation::of(other || empty ? static_cast<int>(b.up_to(4)) : std::max(known.by, 0),
                           interleaved_one, first);
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_AXES_HPP
