// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_APPEND_TOKENS_HPP
#define ROPE_TESTS_APPEND_TOKENS_HPP

#include <rope/cache/policy.hpp>

namespace testing {

/// Appends tokens to a cache of either storage: raw keys take no table.
///
/// \param counts  of each row, or nothing
template <class Layout, class Cache, class Keys, class Values, class Table, class... Counts>
void append_tokens(Cache& cache, const Keys& keys, const Values& values, const Table& table,
                   const Counts&... counts) {
  if (cache.storage() == rope::key_storage::raw)
    cache.append(keys, values, counts...);
  else
    cache.template append<Layout>(keys, values, table, counts...);
}

}  // namespace testing

#endif  // ROPE_TESTS_APPEND_TOKENS_HPP
