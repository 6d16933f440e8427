// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_NEW_TOKENS_HPP
#define ROPE_TESTS_FUZZ_NEW_TOKENS_HPP

/// New tokens of a call: how many each row has, and views of their keys and values.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/cache/kv_cache.hpp>
#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/views.hpp"
#include "support/heads.hpp"

namespace fuzz {

/// Counts of each row, of any integer type, or none: then every row has all tokens. Rarely one is out of
/// range.
template <class Integer>
struct new_counts {
  std::vector<Integer> list;
  bool padded, bad = false;
  Index tokens;

  new_counts(bytes& b, Index batch, Index tokens_of_row, bool padded_one)
      : padded(padded_one), tokens(tokens_of_row) {
    if (padded)
      for (Index r = 0; r < batch; ++r) list.push_back(static_cast<Integer>(b.up_to(long(tokens))));
    bad = padded && batch > 0 && b.one_in(12);
    if (bad) list.back() = b.coin() ? Integer(-1) : static_cast<Integer>(tokens + 1);
  }
  Index of(Index r) const { return padded ? static_cast<Index>(list[static_cast<std::size_t>(r)]) : tokens; }
  rope::detail::row_counts given() const {
    return padded ? rope::detail::row_counts(list) : rope::detail::row_counts();
  }
};

/// Copies the heads of a token into a view.
template <class T>
void put(const rope::head_view<T>& x, Index r, Index t, const wide* heads) {
  for (Index h = 0; h < x.heads; ++h)
    for (Index d = 0; d < x.head_dim; ++d) x.at(r, t, h)[d] = static_cast<T>(heads[h * x.head_dim + d]);
}

/// Keys and values of type K, anywhere in memory.
template <class K>
struct new_heads {
  testing::guarded_memory<K> k_memory{0}, v_memory{0};
  rope::head_view<K> k, v;

  new_heads(bytes& b, Index batch, Index tokens, Index heads, Index head_dim, Index value_dim)
      : k(draw_view(b, k_memory, batch, tokens, heads, head_dim)),
        v(draw_view(b, v_memory, batch, tokens, heads, value_dim)) {}
  new_heads(const new_heads&) = delete;
  new_heads& operator=(const new_heads&) = delete;

  void put(Index r, Index t, const wide* key, const wide* value) {
    fuzz::put(k, r, t, key);
    fuzz::put(v, r, t, value);
  }
  rope::head_view<const K> keys() const { return k; }
  void remember() {
    k_memory.before = k_memory.now;
    v_memory.before = v_memory.now;
  }
  /// Makes one extent, or the memory of the keys, wrong.
  ///
  /// \param kind  0 to 9, of which 8 and 9 need heads
  void spoil(long kind) {
    switch (kind) {
      case 0:
        k.batch += 1;
        break;
      case 1:
        v.heads += 1;
        break;
      case 2:
        k.head_dim -= 1;
        break;
      case 3:
        v.head_dim += 1;
        break;
      case 4:
        v.tokens += 1;
        break;
      case 5:
        k.tokens = -1;
        break;
      case 6:
        k.tokens += 1;
        break;
      case 7:
        v.tokens = -1;
        break;
      case 8:
        k.data = nullptr;
        break;
      default:
        v.data = nullptr;
    }
  }
  bool untouched_outside() const { return k_memory.untouched_outside(k) && v_memory.untouched_outside(v); }
  bool untouched() const { return k_memory.untouched() && v_memory.untouched(); }
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_NEW_TOKENS_HPP
