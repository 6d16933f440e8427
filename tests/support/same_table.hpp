// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_SAME_TABLE_HPP
#define ROPE_TESTS_SAME_TABLE_HPP

#include <cstdint>

#include <rope/tables/table.hpp>

namespace testing {

/// Whether every function of two tables returns the same.
template <class S>
bool same_table(const rope::frequency_table<S>& a, const rope::frequency_table<S>& b) {
  if (a.rows() != b.rows() || a.pairs() != b.pairs() || a.axes() != b.axes() || a.first() != b.first() ||
      a.source() != b.source() || a.fingerprint() != b.fingerprint() ||
      a.attention_factor() != b.attention_factor() || a.inv_freq().rows() != b.inv_freq().rows() ||
      a.coordinates().rows() != b.coordinates().rows())
    return false;
  for (std::int64_t p = a.first(); p < a.last(); ++p)
    if (!(a.cos(p) == b.cos(p)).all() || !(a.sin(p) == b.sin(p)).all() ||
        a.is_identity(p) != b.is_identity(p))
      return false;
  return (a.inv_freq() == b.inv_freq()).all() && (a.coordinates() == b.coordinates()).all();
}

}  // namespace testing

#endif  // ROPE_TESTS_SAME_TABLE_HPP
