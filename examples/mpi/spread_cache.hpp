#ifndef ROPE_EXAMPLES_SPREAD_CACHE_HPP
#define ROPE_EXAMPLES_SPREAD_CACHE_HPP

#include <mpi.h>

#include <rope/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mpi_calls.hpp"

/// Decoding against a cache whose tokens are spread over ranks. Every rank attends to its tokens, and an MPI
/// operation of this file reduces the partial results.

namespace many {

/// The result of a head of a query for one part of the keys.
template <class T, std::size_t value_dim>
struct head_partial {
  double log_sum_exp;
  T out[value_dim];

  /// Merges the result for other keys.
  void merge(head_partial& other) {
    constexpr auto dim = static_cast<rope::Index>(value_dim);
    rope::merge_attention(rope::thd(out, 1, 1, dim), std::span(&log_sum_exp, 1),
                          rope::thd(other.out, 1, 1, dim), std::span<const double>(&other.log_sum_exp, 1));
  }
};

/// The reduction of head_partials as an MPI operation, while this object lives.
template <class T, std::size_t value_dim>
class partial_reduction {
  using partial = head_partial<T, value_dim>;

 public:
  partial_reduction() {
    // All ranks have processors of one kind, so bytes mean the same on each.
    MPI_Type_contiguous(sizeof(partial), MPI_BYTE, &type_);
    MPI_Type_commit(&type_);
    // Merging commutes only up to rounding. Declared as not commutative, MPI keeps operands in the order of
    // ranks. It is still free to place the parentheses.
    MPI_Op_create(&merge_all, 0, &op_);
  }
  ~partial_reduction() {
    MPI_Op_free(&op_);
    MPI_Type_free(&type_);
  }
  partial_reduction(const partial_reduction&) = delete;
  partial_reduction& operator=(const partial_reduction&) = delete;

  /// Merges the partial results of all ranks in the order of ranks, from the left, on every rank. Bits are
  /// the same in all runs and on all ranks, which must agree on the next token.
  std::vector<partial> in_rank_order(job& ranks, const std::vector<partial>& mine) const {
    const int count = detail::count_of(mine.size());
    std::vector<partial> all(mine.size() * static_cast<std::size_t>(ranks.ranks()));
    ranks.count_sent(mine.size() * sizeof(partial), ranks.ranks() - 1);
    MPI_Allgather(mine.data(), count, type_, all.data(), count, type_, MPI_COMM_WORLD);
    for (std::size_t left = 0; left + mine.size() < all.size(); left += mine.size())
      MPI_Reduce_local(all.data() + left, all.data() + left + mine.size(), count, type_, op_);
    all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(mine.size()));
    return all;
  }

  /// Merges the partial results of all ranks in log2(ranks) exchanges. MPI guarantees neither the same bits on
  /// all ranks nor in two runs.
  std::vector<partial> in_any_order(const std::vector<partial>& mine) const {
    std::vector<partial> merged(mine.size());
    MPI_Allreduce(mine.data(), merged.data(), detail::count_of(mine.size()), type_, op_, MPI_COMM_WORLD);
    return merged;
  }

 private:
  /// right = left merged with right, the order that MPI requires.
  static void merge_all(void* left, void* right, int* count, MPI_Datatype* /*type*/) {
    auto* const from = static_cast<partial*>(left);
    auto* const to = static_cast<partial*>(right);
    for (int i = 0; i < *count; ++i) {
      partial merged = from[i];
      merged.merge(to[i]);
      to[i] = merged;
    }
  }

  MPI_Datatype type_;
  MPI_Op op_;
};

/// The part of one rank in the attention of a query to a spread cache.
///
/// \param q         [1, 1, heads, head_dim], rotated
/// \param position  of the query. It is given, like the positions of the keys: the last key of this rank need
///                  not be the last one
template <std::size_t value_dim, class T>
std::vector<head_partial<T, value_dim>> attend_to_own_part(rope::head_view<const T> q, std::int64_t position,
                                                           const rope::kv_cache<T>& cache) {
  const auto heads = static_cast<std::size_t>(q.heads);
  std::vector<T> out(heads * value_dim);
  std::vector<double> log_sum_exp(heads);
  rope::attention(q, cache.keys(), cache.values(), rope::thd(out.data(), 1, q.heads, cache.values().head_dim),
                  {.query_positions = std::span(&position, 1),
                   .key_positions = cache.positions(0),
                   .log_sum_exp = log_sum_exp});
  std::vector<head_partial<T, value_dim>> parts(heads);
  for (std::size_t h = 0; h < heads; ++h) {
    parts[h].log_sum_exp = log_sum_exp[h];
    std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(h * value_dim), value_dim, parts[h].out);
  }
  return parts;
}

}  // namespace many

#endif  // ROPE_EXAMPLES_SPREAD_CACHE_HPP
