// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_SHOWN_HPP
#define ROPE_TESTS_FUZZ_SHOWN_HPP

/// Everything that a cache returns, as bits: a call that throws must not change it.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>

#include "support/heads.hpp"

namespace fuzz {

using rope::Index;
using bits = std::vector<unsigned char>;

template <class X>
void add_number(bits& to, X number) {
  const auto* first = reinterpret_cast<const unsigned char*>(&number);
  to.insert(to.end(), first, first + sizeof number);
}
/// Every element of a view.
template <class T>
void add_bits(bits& to, const rope::head_view<T>& x) {
  testing::for_each_head(x, [&](Index b, Index t, Index h) {
    const auto* first = reinterpret_cast<const unsigned char*>(x.at(b, t, h));
    to.insert(to.end(), first, first + static_cast<std::size_t>(x.head_dim) * sizeof(T));
  });
  if constexpr (std::is_same_v<std::remove_const_t<T>, std::int8_t>) add_bits(to, x.scales);
}

/// Whether a cache accepts a table.
template <class Layout, class Cache, class Table>
bool takes(const Cache& cache, const Table& table) {
  try {
    cache.template check_table<Layout>(table);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

template <class Cache>
Index axes_of(const Cache& cache) {
  if constexpr (requires { cache.axes(); })
    return cache.axes();
  else
    return 0;
}

/// Tokens and their positions, the windows of a ring, and how many queries a call without counts has. A
/// target adds which tables a cache accepts.
template <class Cache>
bits shown_by(const Cache& cache) {
  bits all;
  for (Index r = 0; r < cache.batch(); ++r) {
    add_number(all, cache.size(r));
    if constexpr (requires { cache.coordinates(r); }) {
      for (const std::int64_t place : cache.order(r)) add_number(all, place);
      const auto coordinates = cache.coordinates(r);
      for (Index i = 0; i < coordinates.size(); ++i) add_number(all, coordinates.data()[i]);
    }
    if (axes_of(cache) == 0)
      for (const std::int64_t position : cache.positions(r)) add_number(all, position);
    add_bits(all, cache.keys(r));
    add_bits(all, cache.values(r));
    if constexpr (requires { cache.seen(); }) {
      const std::int64_t seen = cache.seen()[static_cast<std::size_t>(r)];
      add_number(all, seen);
      for (std::int64_t p = seen < 40 ? 0 : seen - 40; p < seen + 3; ++p)
        add_number(all, cache.holds_window(r, p));
    }
  }
  const auto add_list = [&](const auto& list_of) {
    try {
      for (const auto number : list_of()) add_number(all, number);
      add_number(all, 'l');
    } catch (const std::invalid_argument&) {
      add_number(all, 'x');
    }
  };
  add_list([&] { return cache.next_positions(); });
  for (Index queries = 0; queries < 7; ++queries) add_list([&] { return cache.query_counts(queries); });
  return all;
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_SHOWN_HPP
