// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_SPLITS_HPP
#define ROPE_ATTENTION_DETAIL_SPLITS_HPP

#include <algorithm>  // std::max
#include <atomic>
#include <memory>  // std::construct_at

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/base/scratch.hpp>
#include <rope/config.hpp>

/// The splits that decoding cuts keys into: which ones it reads, and when all of a row are complete.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Splits of keys that some query of their row sees, row by row and in order, and the first split of every
/// row, which holds its learned sink.
struct seen_splits {
  struct split_of_row {
    Index b, split;
  };
  split_of_row* list;
  Index count;
};

template <class T, class Turn, class C>
seen_splits splits_of(const attention_call<T, Turn, C>& call, Index size) {
  struct decode_splits {};
  const Index most = (std::max)(Index{1}, (call.k.tokens + size - 1) / size);
  seen_splits splits = {workspace<decode_splits, seen_splits::split_of_row>(call.q.batch * most), 0};
  for (Index b = 0; b < call.q.batch; ++b) {
    splits.list[splits.count++] = {b, 0};
    block_keys(call.rules, b, 0, call.q.tokens, 0, call.q.heads)
        .for_each_tile(size, [&](Index begin, Index /*count*/) {
          if (begin > 0) splits.list[splits.count++] = {b, begin / size};
        });
  }
  return splits;
}

/// The places of the splits of row b of the batch, one after the other.
struct split_places {
  Index b, first, count;
};

/// How many splits of each row of a call are left, for each of the pieces that its heads and queries are cut
/// into. The thread that completes the last one merges them, and nobody waits.
class pending_splits {
 public:
  pending_splits(const seen_splits& splits, Index batch, Index pieces) : pieces_(pieces) {
    struct pending_places {};
    struct pending_counts {};
    places_ = workspace<pending_places, split_places>(batch);
    counts_ = workspace<pending_counts, std::atomic<Index>>(batch * pieces);
    for (Index place = 0, next; place < splits.count; place = next) {
      const Index b = splits.list[place].b;
      for (next = place; next < splits.count && splits.list[next].b == b;) ++next;
      places_[b] = {b, place, next - place};
      for (Index piece = 0; piece < pieces; ++piece)
        std::construct_at(counts_ + b * pieces + piece, next - place);
    }
  }

  const split_places& places_of(Index b) const { return places_[b]; }
  /// Whether the split that is complete now was the last one of a piece of row b.
  bool complete(Index b, Index piece) const {
    return counts_[b * pieces_ + piece].fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  Index pieces_;
  split_places* places_;        // [batch]
  std::atomic<Index>* counts_;  // [batch, pieces]
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_SPLITS_HPP
