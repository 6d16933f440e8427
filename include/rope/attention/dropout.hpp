// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DROPOUT_HPP
#define ROPE_ATTENTION_DROPOUT_HPP

#include <cstdint>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// The dropout mask of attention probabilities in training.

namespace rope::inline ROPE_ABI {

/// A counter-based random mask. Whether the probability of a query and a key is kept depends only on the
/// seed, the batch row, the query head and the two positions. Tiles, chunks, threads and the backward pass
/// therefore use the same mask without storing it. Give every layer and every step its own seed, because
/// equal seeds drop the same entries. Segments of one row drop the same entries, because their positions
/// restart.
///
///     kept  <=>  hash(seed, row, head, query position, key position) / 2^32 >= probability
///
/// The hash chains finalisers of SplitMix64 for the seed, for row and head, and for each position, so
/// adjacent entries are uncorrelated.
///
///     const dropout_mask mask(options.dropout, options.dropout_seed);
///     const bool kept = mask.keeps(row, query_head, query_position, key_position);
///
/// Accuracy:  an entry is dropped with the given probability to within 2^-32
/// Cost:      three 64-bit products per entry
/// Source:    Srivastava et al. 2014, JMLR 15; Steele et al. 2014, Fast splittable pseudorandom number
///            generators, doi:10.1145/2660193.2660195 (the finaliser, constants of D. Stafford's variant 13);
///            Salmon et al. 2011, doi:10.1145/2063384.2063405 (random numbers from counters)
class dropout_mask {
 public:
  /// \param probability  of dropping an entry, in [0, 1)
  /// \param seed         any number; equal seeds give equal masks
  constexpr dropout_mask(double probability, std::uint64_t seed)
      : threshold_(static_cast<std::uint64_t>(probability * 0x1p32)), seed_(detail::finalised(seed + step)) {}

  /// The mask along the keys of one query.
  class row {
   public:
    /// Whether the probability of the key at `key_position` is kept.
    constexpr bool keeps(std::int64_t key_position) const {
      return (detail::finalised(state_ + step * static_cast<std::uint64_t>(key_position)) >> 32) >=
             threshold_;
    }

   private:
    friend class dropout_mask;
    constexpr row(std::uint64_t state, std::uint64_t threshold) : state_(state), threshold_(threshold) {}
    std::uint64_t state_, threshold_;
  };

  /// The mask of the query at `query_position` of head `query_head` in row `batch_row`.
  constexpr row row_of(Index batch_row, Index query_head, std::int64_t query_position) const {
    const std::uint64_t where = detail::finalised(
        seed_ ^ (static_cast<std::uint64_t>(batch_row) << 32 | static_cast<std::uint64_t>(query_head)));
    return {detail::finalised(where + step * static_cast<std::uint64_t>(query_position)), threshold_};
  }

  /// Whether the probability of this query and the key at `key_position` is kept.
  constexpr bool keeps(Index batch_row, Index query_head, std::int64_t query_position,
                       std::int64_t key_position) const {
    return row_of(batch_row, query_head, query_position).keeps(key_position);
  }

 private:
  static constexpr std::uint64_t step = 0x9e3779b97f4a7c15u;  // odd: distinct positions give distinct words

  std::uint64_t threshold_;
  std::uint64_t seed_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_DROPOUT_HPP
