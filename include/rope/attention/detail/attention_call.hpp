// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ATTENTION_CALL_HPP
#define ROPE_ATTENTION_DETAIL_ATTENTION_CALL_HPP

#include <cstdint>
#include <type_traits>

#include <rope/attention/detail/token_source.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>

/// The arguments of a checked call of attention, for every kernel, and the checks of its tables.
///
/// This file also rotates queries and keys in attention: rotate_into rotates tokens while they are read, and
/// rotate_operands rotates all heads in the backward pass.

namespace rope::inline ROPE_ABI::detail {

/// Rotates queries and keys by their positions in attention. If `inverse`, converts gradients with respect to
/// rotated queries and keys to gradients with respect to unrotated ones. Outputs may be the inputs.
///
/// The table need not have the positions of queries without visible keys. These are rotated by the first row
/// of the table, and the result is never read. Keys past the count of their row are not read. The table of
/// queries may have no rows if no query has a visible key, and the table of keys if every row has 0 keys.
template <class Layout, bool inverse, class T, class S, class Threads>
void rotate_operands(const head_view<const T>& q, const head_view<T>& to_q, const head_view<const T>& k,
                     const head_view<T>& to_k, const query_key_tables<S>& tables, const visibility& rules,
                     const Threads& threads) {
  const auto rotate = [&](const auto& x, const auto& to, const placed_table<S>& table,
                          const auto& positions) {
    if (table.table().rows() > 0)
      rotate_into<Layout, inverse>(x, to, table, positions, threads, reverse_rotation::transpose);
  };
  rotate(q, to_q, tables.queries(), [&, unused = tables.queries().table().first()](Index b, Index t) {
    return rules.keys_of(b, t).empty() ? unused : rules.query_position(b, t);
  });
  const Index rows = rules.options().key_counts.empty() ? k.batch : 1;  // rows with the same number of keys
  for (Index b = 0; b < k.batch; b += rows) {
    const auto counted = [&](const auto& x) {
      return x.batch_range(b, rows).token_range(0, rules.key_count(b));
    };
    rotate(counted(k), counted(to_k), tables.keys(),
           [&](Index row, Index t) { return rules.key_position(b + row, t); });
  }
}

/// Queries and keys are used without rotation.
struct no_rotation {
  static constexpr bool rotates = false;
  static constexpr bool is_given() { return false; }
};

/// How queries and keys are rotated while they are read, if at all. The type does not depend on layouts and
/// tables, so kernels are compiled once for all of them, and for calls without rotation.
template <class T>
class read_rotation {
 public:
  static constexpr bool rotates = true;

  read_rotation() = default;
  /// \param row_of_zero  the table row of position 0: position p uses the row for p + row_of_zero. Visibility
  ///                     uses p
  template <class Layout, class S>
  read_rotation(std::type_identity<Layout> /*layout*/,
                const query_key_tables<S>& tables ROPE_DETAIL_LIFETIMEBOUND, std::int64_t row_of_zero = 0)
      : rotate_(&rotate_rows<Layout, S>),
        queries_(&tables.queries()),
        keys_(&tables.keys()),
        row_of_zero_(row_of_zero),
        first_key_(tables.keys().table().first()),
        end_of_keys_(tables.keys().table().last()) {}

  bool is_given() const { return rotate_ != nullptr; }

  /// Rotates tokens first, first + 1, ... of a row into `to` [tokens, heads, head_dim], with the bits of
  /// `rotate`. `from` has these tokens only, at most one tile of them, at regular strides.
  void rotate_queries(const head_view<const T>& from, const visibility& rules, Index row, Index first,
                      T* to) const {
    rotate(from, queries_, to, [&](Index t) { return row_of_zero_ + rules.query_position(row, first + t); });
  }
  /// A key that is hidden from every query may be at a position outside the table. It is rotated by the
  /// table's first row.
  void rotate_keys(const head_view<const T>& from, const visibility& rules, Index row, Index first,
                   T* to) const {
    rotate(from, keys_, to, [&](Index t) {
      const std::int64_t position = advance(rules.key_position(row, first + t), row_of_zero_);
      return position >= first_key_ && position < end_of_keys_ ? position : first_key_;
    });
  }

 private:
  void rotate(const head_view<const T>& from, const void* table, T* to, const auto& position_of) const {
    std::int64_t positions[panel_shape<arithmetic<T>>::tile];
    for (Index t = 0; t < from.tokens; ++t) positions[t] = position_of(t);
    rotate_(from, table, positions, to);
  }
  template <class Layout, class S>
  static void rotate_rows(const head_view<const T>& from, const void* table, const std::int64_t* positions,
                          T* to) {
    const head_view<T> out = bshd(to, Index{1}, from.tokens, from.heads, from.head_dim);
    rotation_plan<Layout, false, T, S, false>(from, out, *static_cast<const placed_table<S>*>(table))
        .rotate_few(positions);
  }

  void (*rotate_)(const head_view<const T>&, const void*, const std::int64_t*, T*) = nullptr;
  const void* queries_ = nullptr;  // placed_table<S>
  const void* keys_ = nullptr;
  std::int64_t row_of_zero_ = 0, first_key_ = 0, end_of_keys_ = 0;
};

/// The rotation of calls without one. Kernels of keys that have the type of the queries serve both.
template <class T, class C>
using no_rotation_of = std::conditional_t<std::is_same_v<T, C>, read_rotation<T>, no_rotation>;

/// A checked call of attention.
///
/// \tparam T  channels of queries and outputs
/// \tparam C  channels of keys and values: T, or a 16-bit type or integers with scales if T is float
template <class T, class Rotation, class C = T>
struct attention_call {
  /// The type of keys as kernels read them: the wider of T and C if they are rotated, so that a channel is
  /// rounded to 16 bits at most once.
  using rotated = std::conditional_t<Rotation::rotates, T, C>;

  head_view<const T> q;
  token_source<C> k, v;
  head_view<T> out;
  visibility rules;
  Rotation rotation;

  Index group() const { return k.heads == 0 ? 1 : q.heads / k.heads; }
};

/// Checks the tables against the heads and the positions of a call, and returns how queries and keys are
/// rotated. Positions of queries without a visible key need not be in the table, because no rotation of these
/// queries is used.
template <class Layout, class T, class C, class S>
read_rotation<T> checked_rotation(const char* function, const head_view<const T>& q,
                                  const head_view<const C>& k,
                                  const query_key_tables<S>& tables ROPE_DETAIL_LIFETIMEBOUND,
                                  const visibility& rules) {
  const attention_options& options = rules.options();
  check_unrotated(function, options);
  const char* const advice = "give query_positions and key_positions, b * tokens + t for token t of row b";
  if (options.query_offsets.empty() && options.query_positions.empty())
    check_rows_of_batch(function, q.batch, q.tokens, tables.queries().table(), advice);
  if (options.query_offsets.empty() && options.key_positions.empty())
    check_rows_of_batch(function, k.batch, k.tokens, tables.keys().table(), advice);
  check_ids(function, q.tokens, tables.queries().table(), position_source(options.query_positions, q.tokens));
  check_ids(function, k.tokens, tables.keys().table(), position_source(options.key_positions, k.tokens));
  check_rotation<Layout>(function, q, tables.queries(), known_range{rules.query_position_range()});
  check_rotation<Layout>(function, k.batch, k.tokens, k.head_dim, tables.keys(),
                         known_range{rules.key_position_range()});
  return {std::type_identity<Layout>{}, tables};
}

/// The tables of queries and keys. Rejects xPos tables if the options are not causal, or have key_ranges,
/// which replace the causal rule. xPos multiplies the score of a key after its query by a factor that grows
/// with their distance.
///
/// Throws:  std::invalid_argument
template <class Tables>
auto checked_tables(const char* function, const Tables& tables, const attention_options& options) {
  if constexpr (requires { Tables::needs_causal; }) {
    if (Tables::needs_causal && !options.causal)
      throw_invalid(function, "xPos needs causal attention, got causal = false");
    if (Tables::needs_causal && !options.key_ranges.empty())
      throw_invalid(function, "xPos needs causal attention, which key_ranges replace; give a mask, got ",
                    options.key_ranges.size(), " key_ranges");
  }
  return tables_of(tables);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_ATTENTION_CALL_HPP
