// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_PAGE_VIEW_HPP
#define ROPE_CACHE_PAGE_VIEW_HPP

#include <algorithm>  // std::clamp, std::fill, std::lower_bound
#include <cstdint>
#include <limits>
#include <type_traits>

#include <rope/attention/detail/token_source.hpp>  // block_table
#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/tensor_shape.hpp>  // owns_memory
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>

/// A view of keys and values in the pages of a pool that you own.

namespace rope::inline ROPE_ABI {

/// A view of keys and values in pages, for an engine that serves many sequences and gives each of them whole
/// pages. Token t of sequence s is token t % page_size of page blocks(s, t / page_size), and its position is
/// t.
///
///     const page_view<float> pages({.keys = bhsd(key_pool, page_count, kv_heads, page_size, head_dim),
///                                   .values = bhsd(value_pool, page_count, kv_heads, page_size, value_dim)},
///                                  blocks, lengths);
///     write_pages<Layout>(k, v, pages, table);  // the newest tokens of every sequence
///     attention<Layout>(q, pages, out, table);
///
/// Sequences with a common prefix may share the pages of the prefix. Such a page is listed in several rows of
/// `blocks`.
///
/// \tparam T  a channel type, or std::int8_t. With std::int8_t the pools are quantized_view of heads as
///            `quantize` stores them. Use const T for pages that are only read
///
/// Requires:  the pool and both lists outlive the view, which reads them again in every call
template <class T>
class page_view {
 public:
  using value_type = std::remove_const_t<T>;  // a channel as it is stored

  /// The pages of a pool, in any order of axes.
  struct pool {
    head_view<T> keys;    // [pages, page_size, kv_heads, head_dim]
    head_view<T> values;  // [pages, page_size, kv_heads, value_dim]
  };

  /// \param blocks   any integers, [sequences, blocks], or [sequences * blocks] one sequence after the other;
  ///                 entries after the last token of a sequence are not read
  /// \param lengths  any integers, [sequences]: tokens of each sequence, including those that are written
  ///                 next
  /// \param storage  whether keys are rotated before they are written, or stored raw and rotated when read
  ///
  /// Throws:  std::invalid_argument if keys and values differ in pages, page_size or heads, a page has no
  ///          tokens, or blocks are not a matrix with one row per length
  template <detail::integers_in_memory Blocks>
  page_view(const pool& memory, const Blocks& blocks, detail::row_counts lengths ROPE_DETAIL_LIFETIMEBOUND,
            key_storage storage = key_storage::rotated)
      : page_view(detail::list_of(blocks), memory, lengths, storage) {}
  template <detail::integers_in_memory Blocks>
  requires detail::owns_memory<Blocks> page_view(const pool& memory,
                                                 const Blocks& blocks ROPE_DETAIL_LIFETIMEBOUND,
                                                 detail::row_counts lengths ROPE_DETAIL_LIFETIMEBOUND,
                                                 key_storage storage = key_storage::rotated)
      : page_view(detail::list_of(blocks), memory, lengths, storage) {}

  /// The keys of the pool, [pages, page_size, kv_heads, head_dim].
  const head_view<T>& keys() const { return memory_.keys; }
  /// The values of the pool, [pages, page_size, kv_heads, value_dim].
  const head_view<T>& values() const { return memory_.values; }
  /// Whether keys are stored rotated or raw.
  key_storage storage() const { return storage_; }
  /// Number of sequences.
  Index sequences() const { return static_cast<Index>(lengths_.size()); }
  /// The number of tokens of a page.
  Index page_size() const { return memory_.keys.tokens; }
  /// The number of tokens of a sequence.  Requires: sequence in [0, sequences()). The functions below require
  /// this too
  Index length(Index sequence) const {
    using limits = std::numeric_limits<Index>;
    const std::int64_t given = lengths_[static_cast<std::size_t>(sequence)];
    return static_cast<Index>(std::clamp<std::int64_t>(given, (limits::min)(), (limits::max)()));
  }
  /// The page with token t of a sequence.  Requires: t in [0, length(sequence))
  Index page(Index sequence, Index t) const { return blocks_.page(sequence, t / page_size()); }
  /// The slot of token t in its page.
  Index slot(Index t) const { return t % page_size(); }
  /// The number of blocks of a sequence that hold its tokens.
  Index used_blocks(Index sequence) const {
    return length(sequence) / page_size() + (length(sequence) % page_size() != 0 ? 1 : 0);
  }
  /// The number of entries of `blocks` per sequence.
  Index blocks_of_a_sequence() const { return blocks_of_a_sequence_; }
  /// The page of every block, [sequences, blocks].
  const detail::block_table& blocks() const { return blocks_; }

  /// Checks that the tokens of every sequence are in pages of the pool.
  ///
  /// \param function  the name at the start of error messages
  ///
  /// Throws:  std::invalid_argument if a length is not in [0, blocks * page_size], std::out_of_range if a
  ///          block that holds tokens names a page beyond the pool
  void check_blocks(const char* function) const {
    for (Index s = 0; s < sequences(); ++s) {
      // Compares numbers of blocks, because blocks * page_size may overflow.
      const Index tokens = length(s), used = used_blocks(s);
      if (tokens < 0 || used > blocks_of_a_sequence_)
        detail::throw_invalid(function, "a sequence of ", blocks_of_a_sequence_, " blocks has 0 to ",
                              blocks_of_a_sequence_, " * ", page_size(), " tokens, got ",
                              lengths_[static_cast<std::size_t>(s)], " for sequence ", s);
      for (Index block = 0; block < used; ++block)
        if (const Index page = blocks_.page(s, block); page < 0 || page >= memory_.keys.batch)
          detail::throw_out_of_range(function, "block ", block, " of sequence ", s, " must be a page in [0, ",
                                     memory_.keys.batch, "), got ", page);
    }
  }

 private:
  template <class Integer>
  page_view(const detail::integer_list<Integer>& list, const pool& memory, const detail::row_counts& lengths,
            key_storage storage)
      : memory_(memory), lengths_(lengths), storage_(storage) {
    const head_view<T>&k = memory_.keys, &v = memory_.values;
    detail::check_extents("page_view", k);
    detail::check_extents("page_view", v);
    detail::check_memory("page_view", k, v);
    if (k.batch != v.batch || k.tokens != v.tokens || k.heads != v.heads)
      detail::throw_invalid("page_view",
                            "keys and values must have the same pages, page_size and heads, got ",
                            detail::shape_text({k.batch, k.tokens, k.heads}), " and ",
                            detail::shape_text({v.batch, v.tokens, v.heads}));
    if (k.tokens == 0) detail::throw_invalid("page_view", "a page must hold a token, got 0");
    if (sequences() == 0 ? list.size() != 0
                         : list.size() % sequences() != 0 || (list.rows > 1 && list.rows != sequences()))
      detail::throw_invalid("page_view", "blocks must be [sequences, blocks] for the ", sequences(),
                            " sequences that have lengths, got ",
                            detail::shape_text({list.rows, list.columns}));
    blocks_of_a_sequence_ = sequences() == 0 ? 0 : list.size() / sequences();
    blocks_ = detail::block_table(list, blocks_of_a_sequence_);
  }

  pool memory_;
  detail::block_table blocks_;
  Index blocks_of_a_sequence_ = 0;
  detail::row_counts lengths_;
  key_storage storage_;
};

namespace detail {

/// Checks that no shared page will be changed. Tokens [first(s), first(s) + count(s)) of every sequence s
/// will be changed.
///
/// Throws:  std::invalid_argument if a page that holds such a token is listed twice among the blocks that
///          hold tokens
template <class T, class First, class Count>
void check_pages_are_own(const char* function, const page_view<T>& pages, const First& first,
                         const Count& count) {
  const Index size = pages.page_size();
  Index written = 0;
  const auto for_each_written = [&](const auto& visit) {
    for (Index s = 0; s < pages.sequences(); ++s)
      if (count(s) > 0)
        for (Index block = first(s) / size; block <= (first(s) + count(s) - 1) / size; ++block)
          visit(pages.blocks().page(s, block));
  };
  for_each_written([&](Index) { ++written; });
  Index* changed = workspace<struct changed_pages, Index>(2 * written);
  Index* seen = changed + written;
  written = 0;
  for_each_written([&](Index page) { changed[written++] = page; });
  sort(changed, changed + written);
  std::fill(seen, seen + written, Index{0});
  for (Index s = 0; s < pages.sequences(); ++s)
    for (Index block = 0; block < pages.used_blocks(s); ++block) {
      const Index page = pages.blocks().page(s, block);
      const Index* at = std::lower_bound(changed, changed + written, page);
      if (at != changed + written && *at == page && ++seen[at - changed] > 1)
        throw_invalid(function, "a page that is written must belong to one sequence; page ", page,
                      " is in blocks twice; give sequence ", s, " a copy");
    }
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_PAGE_VIEW_HPP
