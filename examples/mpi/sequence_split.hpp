#ifndef ROPE_EXAMPLES_SEQUENCE_SPLIT_HPP
#define ROPE_EXAMPLES_SEQUENCE_SPLIT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Which tokens each rank has when sequences are split over ranks.

namespace many {

using list = std::vector<std::int64_t>;

/// `contiguous`: rank r has the r-th part of every sequence. With a causal mask the last rank then has most
/// of the work. `zigzag`: of 2 * ranks chunks, rank r has chunk r and its mirror image, which gives all ranks
/// equal work. It is rope::context_parallel_ids for sequences of any length.
enum class way_to_cut { contiguous, zigzag };

/// The tokens of one rank.
struct share {
  list tokens;     // indices in the batch, ascending
  list positions;  // positions in their own sequences, by which they are rotated
  list offsets;    // [sequences + 1]: tokens offsets[s] .. offsets[s + 1] - 1 of the share are of sequence s

  std::size_t size() const { return tokens.size(); }
  std::size_t sequences() const { return offsets.size() - 1; }
  std::size_t begin(std::size_t s) const { return static_cast<std::size_t>(offsets[s]); }
  std::size_t count(std::size_t s) const { return static_cast<std::size_t>(offsets[s + 1] - offsets[s]); }
  std::span<const std::int64_t> positions_of(std::size_t s) const {
    return std::span(positions).subspan(begin(s), count(s));
  }
};

/// Sequences laid end to end (`cu_seqlens`), each split over all ranks. Every rank can compute the tokens of
/// every other rank, so lists of positions are never sent.
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

/// The count of pairs of a query of `mine` and a visible key of `theirs` in sequence s: the work for this
/// block of keys.
inline std::int64_t visible_pairs(const share& mine, const share& theirs, std::size_t s) {
  const auto keys = theirs.positions_of(s);
  std::int64_t pairs = 0;
  for (const std::int64_t query : mine.positions_of(s))
    pairs += std::upper_bound(keys.begin(), keys.end(), query) - keys.begin();
  return pairs;
}

}  // namespace many

#endif  // ROPE_EXAMPLES_SEQUENCE_SPLIT_HPP
