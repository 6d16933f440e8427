#ifndef ROPE_EXAMPLES_SEQUENCE_SPLIT_HPP
#define ROPE_EXAMPLES_SEQUENCE_SPLIT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Which tokens a rank holds when sequences are cut between ranks.

namespace many {

using list = std::vector<std::int64_t>;

/// `contiguous`: rank r holds the r-th part of every sequence. Under a causal mask the last rank then has
/// most of the work. `zigzag`: of 2 * ranks chunks, chunk r and its mirror image, which is the same work for
/// all: rope::context_parallel_ids, for sequences of any length.
enum class way_to_cut { contiguous, zigzag };

/// What one rank holds.
struct share {
  list tokens;     // where in the batch, ascending
  list positions;  // where in their own sequence: it is these that rotate
  list offsets;    // [sequences + 1]: tokens offsets[s] .. offsets[s + 1] - 1 of the share are of sequence s

  std::size_t size() const { return tokens.size(); }
  std::size_t sequences() const { return offsets.size() - 1; }
  std::size_t begin(std::size_t s) const { return static_cast<std::size_t>(offsets[s]); }
  std::size_t count(std::size_t s) const { return static_cast<std::size_t>(offsets[s + 1] - offsets[s]); }
  std::span<const std::int64_t> positions_of(std::size_t s) const {
    return std::span(positions).subspan(begin(s), count(s));
  }
};

/// Sequences laid end to end (`cu_seqlens`), each of them cut between all ranks. Every rank can tell what
/// every other one holds, so no list of positions is ever sent.
struct sequence_split {
  list offsets;  // [sequences + 1]
  int ranks;
  way_to_cut way;

  std::int64_t tokens() const { return offsets.back(); }

  share of(int rank) const {
    const std::int64_t chunks = way == way_to_cut::zigzag ? 2 * ranks : ranks;
    share mine;
    mine.offsets.push_back(0);
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      const std::int64_t length = offsets[s + 1] - offsets[s];
      const auto take = [&](std::int64_t chunk) {
        for (std::int64_t p = length * chunk / chunks; p < length * (chunk + 1) / chunks; ++p) {
          mine.tokens.push_back(offsets[s] + p);
          mine.positions.push_back(p);
        }
      };
      take(rank);
      if (way == way_to_cut::zigzag) take(chunks - 1 - rank);
      mine.offsets.push_back(static_cast<std::int64_t>(mine.tokens.size()));
    }
    return mine;
  }
};

/// How many keys of `theirs` the queries of `mine` in sequence s see: the work that a block of keys is.
inline std::int64_t visible_pairs(const share& mine, const share& theirs, std::size_t s) {
  const auto keys = theirs.positions_of(s);
  std::int64_t pairs = 0;
  for (const std::int64_t query : mine.positions_of(s))
    pairs += std::upper_bound(keys.begin(), keys.end(), query) - keys.begin();
  return pairs;
}

}  // namespace many

#endif  // ROPE_EXAMPLES_SEQUENCE_SPLIT_HPP
