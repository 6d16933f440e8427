// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_POSITION_TABLES_HPP
#define ROPE_TESTS_FUZZ_POSITION_TABLES_HPP

/// Tables of positions for the keys of a target, and how the plain models rotate keys by them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/table.hpp>

#include "fuzz/support/tokens.hpp"

namespace fuzz {

inline constexpr Index pairs = 2;

/// Two schedules of two pairs, and the second with a magnitude.
inline rope::frequencies slow_pairs() { return rope::frequencies(2 * pairs, 50.0); }
inline rope::frequencies fast_pairs(double factor = 1) {
  return rope::frequencies::custom(Eigen::Array2d(1.5, 0.25), factor);
}

/// Tables of these pairs, and one with more pairs than any key has.
struct position_tables {
  std::vector<rope::frequency_table<float>> all;
  std::size_t exact_ones;  // the first of `all`; the angles of the others are not exact
  rope::frequency_table<float> of_more_pairs;

  const rope::frequency_table<float>& operator[](std::size_t i) const { return all[i]; }
  bool exact(std::size_t i) const { return i < exact_ones; }
  std::uint64_t fingerprint(std::size_t i) const { return all[i].fingerprint(); }

  rotation_rule rule(std::size_t i, bool interleaved, Index first_channel = 0) const {
    const auto inv_freq = all[i].inv_freq();
    return {{inv_freq(0, 0), inv_freq(1, 0)},
            static_cast<wide>(all[i].attention_factor()),
            interleaved,
            static_cast<std::size_t>(first_channel)};
  }
  /// Rotates a key to a position.
  ///
  /// \tparam S  the type of the stored rotated key
  template <class S>
  void rotate_key(key& k, Index head_dim, std::size_t i, bool interleaved, std::int64_t position,
                  Index first_channel = 0) const {
    fuzz::rotate_key<S>(k, static_cast<std::size_t>(head_dim), rule(i, interleaved, first_channel), position,
                        true);
    if (!exact(i))
      k.error += 1e-4L;  // an angle in float has a relative error of 2^-24, and is at most 90 rad
  }
};

/// For a kv_cache or latent_cache: two schedules, a magnitude, another range of the first, and angles that
/// are not exact.
inline const position_tables& cache_tables() {
  using table = rope::frequency_table<float>;
  static const position_tables all = {
      {table(slow_pairs(), -40, 90), table(fast_pairs(), -40, 90), table(fast_pairs(1.25), -40, 90),
       table(slow_pairs(), 0, 12), table::with_float_angles(slow_pairs(), -40, 90),
       table(slow_pairs(), Eigen::ArrayXd::LinSpaced(90, 0, 89))},
      4,
      table(rope::frequencies(2 * pairs + 2, 50.0), -40, 90)};
  return all;
}

/// The rotation of the keys of a cache.
struct known_rotation {
  bool known = false, interleaved = false;  // unknown: the caller rotated them, or there are none
  std::size_t table = 0;

  bool is(const position_tables& tables, std::size_t other, bool interleaved_one) const {
    return known && interleaved == interleaved_one && tables.fingerprint(table) == tables.fingerprint(other);
  }
  /// Keys were appended, with a table or without.
  void append(bool by_table, std::size_t by, bool interleaved_one) {
    known = by_table;
    if (by_table) table = by, interleaved = interleaved_one;
  }
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_POSITION_TABLES_HPP
