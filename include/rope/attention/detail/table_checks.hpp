// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_TABLE_CHECKS_HPP
#define ROPE_ATTENTION_DETAIL_TABLE_CHECKS_HPP

#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// What can be wrong with the tables that a call of attention rotates by.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Queries that see nothing are not rotated, so their positions need no row of the table.
template <class Layout, class T, class C, class S>
void check_rotations(const char* function, const head_view<const T>& q, const head_view<const C>& k,
                     const query_key_tables<S>& tables, const visibility& rules) {
  check_rotation<Layout>(function, q, tables.queries(), known_range{rules.query_range()});
  check_rotation<Layout>(function, k, tables.keys(), known_range{rules.key_range()});
}

/// Refuses tables of xPos without the causal rule: scores would grow with the distance of a key ahead of its
/// query.
///
/// Throws:  std::invalid_argument
template <class Tables>
void check_tables(const char* function, const Tables& /*tables*/, const attention_options& options) {
  if constexpr (requires { Tables::needs_causal; })
    if (Tables::needs_causal && !options.causal)
      ROPE_THROW(std::invalid_argument,
                 message(function, ": xPos needs causal attention, got causal = false"));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_TABLE_CHECKS_HPP
