// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_SHARED_LIBRARIES_DECODER_HPP
#define ROPE_TESTS_SHARED_LIBRARIES_DECODER_HPP

#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/tables/table.hpp>
#include <vector>

#define EXPORTED __attribute__((visibility("default")))

/// A decoder in two shared libraries that hide everything else: one writes the caches, the other reads them.
namespace decoder {

struct caches {
  rope::kv_cache<float> half_split, interleaved, own;
  rope::ring_cache<float> ring;
};

/// A user-defined layout, which every library compiles for itself: pair i = channels (i, 2 pairs - 1 - i).
struct mirrored {
  static constexpr rope::Index first(rope::Index i, rope::Index) { return i; }
  static constexpr rope::Index second(rope::Index i, rope::Index pairs) { return 2 * pairs - 1 - i; }
};

inline constexpr rope::Index tokens = 5, heads = 2, head_dim = 8;

EXPORTED void append(caches& to, const std::vector<float>& k, const rope::frequency_table<float>& table);
/// The outputs of all four caches, one after another.
EXPORTED std::vector<float> attend(const caches& to, const std::vector<float>& q,
                                   const rope::frequency_table<float>& table);
/// Whether a table with another layout than that of its keys throws.
EXPORTED bool rejects_another_layout(const caches& to, const rope::frequency_table<float>& table);

}  // namespace decoder

#endif  // ROPE_TESTS_SHARED_LIBRARIES_DECODER_HPP
