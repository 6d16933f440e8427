// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_SELECTED_KEYS_HPP
#define ROPE_POSITIONS_SELECTED_KEYS_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>

/// Sparse attention: the keys that an indexer selects for each query, for attention_options::selected.

namespace rope::inline ROPE_ABI {

/// Extents of contiguous lists of keys, [queries, key_heads, keys].
///
///     const selected_shape shape = {.queries = 1, .key_heads = 2, .keys = 2};
///     const selected_keys lists(top.data(), shape);
struct selected_shape {
  Index queries;        // queries of a row, or batch * queries
  Index key_heads = 1;  // 1: the key heads share the list of their query
  Index keys;           // entries of a list
};

/// The keys that each query attends to, one list per query or per query and key head. A key is given by its
/// index in the row, as in a mask. Lists are in any order. An entry of -1 ends its list. The object is a view
/// of the caller's integers, std::int32_t or std::int64_t.
///
///     const std::vector<int> top = {5, 0, 2, -1};  // of one query
///     attention(q, k, v, out, {.selected = top});
///
/// Lists of the rows of a batch are concatenated, [batch * queries, keys]. Queries of several rows may
/// share their lists, [queries, keys].
class selected_keys {
 public:
  /// No lists: every key remains visible.
  selected_keys() = default;

  /// Lists of an Eigen matrix, an Eigen::Tensor or an mdspan, [queries, keys], or [queries, key heads, keys]
  /// for a tensor or an mdspan of rank 3, of any order of memory. A vector is the list of one query.
  ///
  /// Requires:  the object outlives the view
  /// Throws:    std::invalid_argument if there is no entry
  template <class X>
  requires(!std::is_same_v<std::remove_cvref_t<X>, selected_keys>)
      selected_keys(const X& lists ROPE_DETAIL_LIFETIMEBOUND) {
    constexpr bool is_by_head = detail::numbers_by_index<const X, 3>;
    static_assert(
        is_by_head || detail::integers_in_memory<X>,
        "selected_keys: give lists of std::int32_t or std::int64_t in memory, an Eigen matrix, tensor or "
        "mdspan [queries, keys] or a tensor or mdspan [queries, key heads, keys], or a pointer and a "
        "selected_shape");
    if constexpr (is_by_head) {
      const auto memory = detail::indexed_memory_of<3>(lists);
      set_memory(memory.data);
      queries_ = {memory.extents[0], memory.strides[0]};
      heads_ = {memory.extents[1], memory.strides[1]};
      keys_ = {memory.extents[2], memory.strides[2]};
    } else if constexpr (detail::integers_in_memory<X>) {
      const auto list = detail::list_of(lists);
      set_memory(list.data);
      keys_ = {list.given_columns, list.column_stride};
      queries_ = {list.given_rows, list.rows > 1 ? list.row_stride : keys_.extent * keys_.stride};
    }
    check_extents();
  }

  /// Contiguous lists.
  ///
  /// Throws:  std::invalid_argument if there is no entry; std::length_error if the number of entries
  ///          exceeds an Index
  template <class Integer>
  selected_keys(const Integer* lists, const selected_shape& shape)
      : queries_{shape.queries, 0}, heads_{shape.key_heads, shape.keys}, keys_{shape.keys, 1} {
    set_memory(lists);
    check_extents();
    if (!detail::product_fits({shape.queries, shape.key_heads, shape.keys}))
      detail::throw_length("selected_keys", detail::shape_text({shape.queries, shape.key_heads, shape.keys}),
                           " exceeds the address space");
    queries_.stride = shape.key_heads * shape.keys;
  }

  /// Whether there are lists.
  explicit operator bool() const { return memory_ != nullptr; }

  /// The number of queries.
  Index queries() const { return queries_.extent; }
  /// 1 if the key heads share lists.
  Index key_heads() const { return heads_.extent; }
  /// The number of entries of a list.
  Index keys() const { return keys_.extent; }

  /// Entry n of a list.
  std::int64_t at(Index query, Index key_head, Index n) const {
    const Index place =
        query * queries_.stride + (heads_.extent == 1 ? 0 : key_head * heads_.stride) + n * keys_.stride;
    if (is_wide_) return read<std::int64_t>(place);
    return read<std::int32_t>(place);
  }

  /// The lists of queries [first, first + count).
  selected_keys of_queries(Index first, Index count) const {
    selected_keys part = *this;
    part.memory_ += std::ptrdiff_t{first} * queries_.stride * (is_wide_ ? 8 : 4);
    part.queries_.extent = count;
    return part;
  }

 private:
  struct axis {
    Index extent = 1;  // the number of entries
    Index stride = 0;  // from an entry to the next, in integers
  };

  template <class Integer>
  void set_memory(const Integer* lists) {
    static_assert(std::signed_integral<Integer> && (sizeof(Integer) == 4 || sizeof(Integer) == 8),
                  "selected_keys: entries are std::int32_t or std::int64_t, because -1 ends a list");
    memory_ = reinterpret_cast<const char*>(lists);
    is_wide_ = sizeof(Integer) == 8;
  }
  void check_extents() const {
    if (memory_ == nullptr || queries_.extent <= 0 || heads_.extent <= 0 || keys_.extent <= 0)
      detail::throw_invalid(
          "selected_keys", "lists must have entries, got [queries, key heads, keys] = ",
          detail::shape_text({queries_.extent, heads_.extent, keys_.extent}),
          memory_ == nullptr ? " at a null pointer" : "",
          "; leave the option out where nothing is selected, and begin an empty list with -1");
  }
  /// Reads entry `place`, of any integer type of this size.
  template <class Integer>
  std::int64_t read(Index place) const {
    Integer entry;
    std::memcpy(&entry, memory_ + std::ptrdiff_t{place} * std::ptrdiff_t{sizeof(Integer)}, sizeof(Integer));
    return entry;
  }

  const char* memory_ = nullptr;
  bool is_wide_ = false;
  axis queries_, heads_, keys_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_SELECTED_KEYS_HPP
