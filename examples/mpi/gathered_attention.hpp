#ifndef ROPE_EXAMPLES_GATHERED_ATTENTION_HPP
#define ROPE_EXAMPLES_GATHERED_ATTENTION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mpi_calls.hpp"
#include "ring_attention.hpp"
#include "sequence_split.hpp"

/// Computes the result of ring_attention.hpp with the keys and values of all ranks on every rank, ordered by
/// position. It needs one call per sequence and no merge, but memory for all tokens. With few key heads that
/// is little (Llama 3, arXiv:2407.21783, section 3.3.2).

namespace many {

/// A single rank with the whole batch.
inline share everything(const sequence_split& split) {
  return sequence_split{split.offsets, 1, way_to_cut::contiguous}.of(0);
}

/// The count of numbers in each rank's block of keys and values.
template <class T>
std::vector<int> counts_of(const job& ranks, const sequence_split& split, const key_block<T>& own) {
  std::vector<int> counts;
  for (int r = 0; r < ranks.ranks(); ++r)
    counts.push_back(detail::count_of(own.like(split.of(r).size()).numbers.size()));
  return counts;
}

/// Calls visit(row, width) for the heads of every token in a block of all tokens, in the order in which the
/// blocks of the ranks follow each other.
template <class T, class Visit>
void in_order_of_ranks(const job& ranks, const sequence_split& split, key_block<T>& all, const Visit& visit) {
  for (int r = 0; r < ranks.ranks(); ++r) {
    const list tokens = split.of(r).tokens;
    for (const auto& [rows, width] : {std::pair(all.keys(), all.count * all.head_dim),
                                      std::pair(all.values(), all.count * all.value_dim)})
      for (const std::int64_t token : tokens) visit(rows.at(0, static_cast<Index>(token), 0), width);
  }
}

/// The keys and values of all ranks, in the order of the batch.
template <class T>
key_block<T> gather_keys(job& ranks, const sequence_split& split, const key_block<T>& own) {
  const std::vector<T> received =
      ranks.all_gather(std::span<const T>(own.numbers), counts_of(ranks, split, own));
  key_block<T> all = own.like(static_cast<std::size_t>(split.tokens()));
  auto from = received.begin();
  in_order_of_ranks(ranks, split, all, [&](T* row, Index width) {
    std::copy_n(from, width, row);
    from += width;
  });
  return all;
}

/// Attention of this rank's queries to the keys of all ranks, with the result of ring_attention.
template <class T>
attended<T> gathered_attention(job& ranks, const sequence_split& split, const heads<T>& q,
                               const key_block<T>& own) {
  return attend_to_block(q, split.of(ranks.rank()), gather_keys(ranks, split, own), everything(split));
}

/// The backward pass of gathered_attention. It gathers the keys again instead of storing them for every
/// layer. The queries of this rank add to the gradients of all keys. Every rank receives its part of these
/// gradients, and sums them in the order of ranks.
template <class T>
gradients<T> gathered_attention_gradient(job& ranks, const sequence_split& split, const heads<T>& q,
                                         const key_block<T>& own, const attended<T>& forward,
                                         const heads<T>& d_out) {
  gradients<T> d = gradients_of_block(q, split.of(ranks.rank()), gather_keys(ranks, split, own),
                                      everything(split), forward, d_out);
  std::vector<T> for_ranks;
  for_ranks.reserve(d.keys.numbers.size());
  in_order_of_ranks(ranks, split, d.keys,
                    [&](const T* row, Index width) { for_ranks.insert(for_ranks.end(), row, row + width); });
  const std::vector<T> parts = ranks.all_to_all(std::span<const T>(for_ranks), counts_of(ranks, split, own));
  key_block<T> sum = own.like(static_cast<std::size_t>(own.tokens));
  for (std::size_t i = 0; i < parts.size(); ++i) sum.numbers[i % sum.numbers.size()] += parts[i];
  return {std::move(d.q), std::move(sum)};
}

}  // namespace many

#endif  // ROPE_EXAMPLES_GATHERED_ATTENTION_HPP
