// One attention layer whose heads are split over the ranks of an mpirun. A rank has the weights of its heads
// and their cache. It computes with rope::multi_head_attention as if there were no other heads, and returns
// its part of the sum in the output projection. Query heads that share a key head stay together. If there are
// more ranks than key heads, several ranks have the same key head. The result is compared with one process
// that has all heads, for a prompt and for single tokens, and is computed twice to compare the bits.
//
//     mpirun -np 4 rope_tensor_parallel

#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "claims.hpp"
#include "mpi_calls.hpp"

namespace {

using namespace many;
using rope::half_split;
using rope::Index;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using block = rope::multi_head_attention<double, half_split>;

constexpr Index model_dim = 96, head_dim = 16, prompt = 40, decoded = 6;

/// The weights of all heads, or of the heads of a rank. Heads follow each other in the rows of q, k and v and
/// in the columns of o.
struct layer {
  Index heads, kv_heads;
  matrix q, k, v, o;

  block attention() const {
    const auto weight = [](const matrix& w) {
      return rope::projection<const double>(w.data(), w.rows(), w.cols());
    };
    return block({.q = weight(q), .k = weight(k), .v = weight(v), .o = weight(o)},
                 {.heads = heads, .kv_heads = kv_heads});
  }
};

matrix random_matrix(Index rows, Index columns, std::mt19937& random, double size) {
  std::vector<double> numbers(static_cast<std::size_t>(rows * columns));
  fill(numbers, random);
  return size * Eigen::Map<const matrix>(numbers.data(), rows, columns);
}

layer whole_layer(Index heads, Index kv_heads, std::mt19937& random) {
  const double size = 1 / std::sqrt(double(model_dim));
  const auto rows = [&](Index count) { return random_matrix(count * head_dim, model_dim, random, size); };
  layer all = {heads, kv_heads, rows(heads), rows(kv_heads), rows(kv_heads), {}};
  all.o = random_matrix(model_dim, heads * head_dim, random, size);
  return all;
}

/// The query heads [first, first + count) of a rank, and its key heads.
struct head_split {
  Index first, count, first_kv, kv_count;

  head_split(Index heads, Index kv_heads, Index ranks, Index rank) {
    if (heads % ranks != 0 || (kv_heads % ranks != 0 && ranks % kv_heads != 0))
      throw std::invalid_argument("the ranks must divide " + std::to_string(heads) + " heads, and divide " +
                                  std::to_string(kv_heads) + " key heads or be a multiple, got " +
                                  std::to_string(ranks));
    count = heads / ranks;
    first = rank * count;
    kv_count = std::max(kv_heads / ranks, Index{1});
    first_kv = first / (heads / kv_heads);
  }
};

/// A copy of the weights that a rank would load: its rows, and its columns of the output projection.
layer own_part(const layer& all, const head_split& mine) {
  return {mine.count,
          mine.kv_count,
          all.q.middleRows(mine.first * head_dim, mine.count * head_dim),
          all.k.middleRows(mine.first_kv * head_dim, mine.kv_count * head_dim),
          all.v.middleRows(mine.first_kv * head_dim, mine.kv_count * head_dim),
          all.o.middleCols(mine.first * head_dim, mine.count * head_dim)};
}

/// The sum over all ranks, on all ranks. Each rank adds up one part of the numbers, from rank 0 to the last,
/// and sends its sums to the others. This has the traffic of the usual MPI_Allreduce of long messages, but a
/// fixed order of additions. So bits repeat and are the same on all ranks.
void sum_in_rank_order(job& ranks, matrix& x) {
  const std::int64_t count = x.size(), r = ranks.ranks();
  std::vector<int> counts;
  for (std::int64_t part = 0; part < r; ++part)
    counts.push_back(
        many::detail::count_of(static_cast<std::size_t>(count * (part + 1) / r - count * part / r)));
  const std::span<const double> numbers(x.data(), static_cast<std::size_t>(count));
  const std::vector<double> parts = ranks.all_to_all(numbers, counts);
  std::vector<double> sums(parts.size() / static_cast<std::size_t>(r));
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i % sums.size()] += parts[i];
  const std::vector<double> all = ranks.all_gather(std::span<const double>(sums), counts);
  std::copy(all.begin(), all.end(), x.data());
}

/// Outputs, and the multiply-adds needed for them.
struct layer_run {
  matrix out;
  std::int64_t of_products = 0, of_attention = 0;
};

/// Outputs of a prompt and of the tokens after it, one at a time. `reduce` makes the layer's output of the
/// output of a rank.
template <class Reduce>
layer_run run(const layer& own, const matrix& x, const rope::frequency_table<double>& table,
              const Reduce& reduce) {
  const block attention = own.attention();
  rope::kv_cache<double> cache(1, x.rows(), own.kv_heads, head_dim);
  layer_run all = {matrix(x.rows(), model_dim)};
  for (Index first = 0, count = prompt; first < x.rows(); first += count, count = 1) {
    matrix rows(count, model_dim);
    attention.forward(x.middleRows(first, count), cache, rows, table);
    for (const matrix* w : {&own.q, &own.k, &own.v, &own.o}) all.of_products += count * w->size();
    // The new queries saw the keys of the cache up to their position, since the queries are
    // its last tokens. Each key is multiplied with a query of every head, and its value with a weight.
    const auto positions = cache.positions(0);
    for (const std::int64_t query : positions.last(static_cast<std::size_t>(count)))
      all.of_attention += own.heads * 2 * head_dim *
                          std::count_if(positions.begin(), positions.end(),
                                        [query](std::int64_t key) { return key <= query; });
    reduce(rows);
    all.out.middleRows(first, count) = rows;
  }
  return all;
}

/// A bound of the difference between a channel of the output and the result of one process. With |x| the
/// largest norm of a row or a head, and u the unit roundoff, the error of a head of q, k or v is
///
///     p = sqrt(head_dim) (model_dim + 1) u |x| |w|
///
/// of a score, with 3 u for the rotation of q and of k,
///
///     s = scale ((|q| + |k|) p + 6 u |q| |k|) + (head_dim + 6) u scale |q| |k|
///
/// and of a mean of values p, 2 s |v|, and the roundings of its sums. The row of o multiplies the errors of
/// all heads, and adds the roundings of its sum over heads and ranks. Both sides have this error.
double bound_of(const layer& all, const matrix& x, int ranks) {
  const double u = std::numeric_limits<double>::epsilon() / 2, dim = double(head_dim),
               scale = 1 / std::sqrt(dim);
  const auto largest_row = [](const matrix& m) { return m.rowwise().norm().maxCoeff(); };
  const auto largest_head = [&](const matrix& w) {
    const matrix y = x * w.transpose();
    return Eigen::Map<const matrix>(y.data(), y.size() / head_dim, head_dim).rowwise().norm().maxCoeff();
  };
  const double w = std::max({largest_row(all.q), largest_row(all.k), largest_row(all.v)}),
               q = largest_head(all.q), k = largest_head(all.k), v = largest_head(all.v),
               projected = std::sqrt(dim) * (double(model_dim) + 1) * u * largest_row(x) * w;
  const double score = scale * ((q + k) * projected + (dim + 12) * u * q * k);
  const double mean = 2 * (score + (double(x.rows()) + 20) * u) * v + projected;
  const double heads = double(all.heads), sum = u * (heads * dim + ranks) * heads * v;
  return 2.02 * (heads * mean + sum) * largest_row(all.o);
}

void split_heads(job& ranks, claims& claim, Index heads, Index kv_heads) {
  std::mt19937 random(static_cast<unsigned>(kv_heads));
  const layer all = whole_layer(heads, kv_heads, random);
  const matrix x = random_matrix(prompt + decoded, model_dim, random, 1);
  const rope::frequency_table<double> table(rope::frequencies(head_dim, 10000.0), x.rows());
  const head_split mine(heads, kv_heads, ranks.ranks(), ranks.rank());
  const layer own = own_part(all, mine);

  claim.print("\nquery heads: %d, key heads: %d; a rank has %d and %d%s\n", int(heads), int(kv_heads),
              int(mine.count), int(mine.kv_count),
              ranks.ranks() > kv_heads ? ", which other ranks have, too" : "");
  const auto nothing = [](const matrix&) {};
  const auto in_rank_order = [&](matrix& out) { sum_in_rank_order(ranks, out); };
  const matrix whole = run(all, x, table, nothing).out;
  ranks.take_bytes_sent();
  const layer_run mine_done = run(own, x, table, in_rank_order);
  const matrix& got = mine_done.out;
  const std::int64_t bytes = ranks.take_bytes_sent();
  const matrix again = run(own, x, table, in_rank_order).out;
  const matrix reduced =
      run(own, x, table, [](matrix& out) {
        MPI_Allreduce(MPI_IN_PLACE, out.data(), many::detail::count_of(static_cast<std::size_t>(out.size())),
                      MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      }).out;

  const auto numbers = [](const matrix& m) { return std::vector<double>(m.data(), m.data() + m.size()); };
  const double bound = bound_of(all, x, ranks.ranks());
  claim.within("outputs, away from one process", largest_difference(numbers(got), numbers(whole)), bound);
  claim.within("by MPI_Allreduce", largest_difference(numbers(reduced), numbers(whole)), bound);
  claim.holds("a second run gives the same bits", same_bits(numbers(got), numbers(again)));
  claim.holds("all ranks have the same bits", same_bits(ranks.of_first(numbers(got)), numbers(got)));
  const std::int64_t r = ranks.ranks(), channels = model_dim * head_dim,
                     weights = own.q.size() + own.k.size() + own.v.size() + own.o.size(),
                     tokens = prompt + decoded, visible = tokens * (tokens + 1) / 2,
                     sums = tokens * model_dim * std::int64_t(sizeof(double)),
                     flops = 2 * (mine_done.of_products + mine_done.of_attention);
  claim.print("  weights per rank: %lld; flops: %lld; bytes sent: %lld\n", static_cast<long long>(weights),
              static_cast<long long>(flops), static_cast<long long>(bytes));
  claim.holds("weights as in README.md",
              weights == 2 * channels * (heads / r + std::max(kv_heads / r, std::int64_t{1})));
  claim.holds("flops as in README.md",
              flops == 2 * tokens * weights + visible * 2 * (head_dim + head_dim) * heads / r);
  if (model_dim % r == 0) claim.holds("bytes as in README.md", bytes == 2 * (r - 1) * sums / r);
}

}  // namespace

int main(int argc, char** argv) {
  many::job ranks(&argc, &argv);
  many::claims claim(ranks);
  claim.print("%d ranks; model_dim %d, %d channels per head, %d tokens and %d more one at a time\n",
              ranks.ranks(), int(model_dim), int(head_dim), int(prompt), int(decoded));
  for (const Index kv_heads : {8, 2, 1}) split_heads(ranks, claim, 8, kv_heads);
  return claim.exit_code();
}
