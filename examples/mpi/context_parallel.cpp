// Attention to one long context that is spread over the ranks of an mpirun. Training, forward and backward,
// with blocks of keys and values that travel around a ring, or with all keys gathered. Several packed
// sequences. Decoding against a cache that is spread too. Each part is compared with one process that has all
// tokens, in float and in double, and runs twice to compare the bits.
//
//     mpirun -np 4 rope_context_parallel                    all parts
//     mpirun -np 4 rope_context_parallel "packed segments"  one: sequence, "packed segments" or decoding
//     mpirun -np 4 rope_context_parallel --die 2 throw      rank 2 fails during a ring: abort, exit or throw

#include <rope/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "claims.hpp"
#include "gathered_attention.hpp"
#include "mpi_calls.hpp"
#include "one_process.hpp"
#include "ring_attention.hpp"
#include "sequence_split.hpp"
#include "spread_cache.hpp"

namespace {

using namespace many;
using rope::half_split;
using rope::Index;

/// Keys and values of some tokens in one message.
template <class T>
key_block<T> pick_keys(const batch<T>& x, const list& tokens) {
  key_block<T> block(static_cast<Index>(tokens.size()), kv_heads, head_dim, value_dim);
  const heads<T> k = pick(x.k, tokens), v = pick(x.v, tokens);
  std::copy(k.numbers.begin(), k.numbers.end(), block.numbers.begin());
  std::copy(v.numbers.begin(), v.numbers.end(),
            block.numbers.begin() + static_cast<std::ptrdiff_t>(k.numbers.size()));
  return block;
}

/// The tokens of a rank, rotated at the positions of their sequences, wherever the sequences were split.
template <class T>
struct own_tokens {
  share mine;
  heads<T> q, d_out;
  key_block<T> keys;

  own_tokens(const batch<T>& x, const sequence_split& split, int rank)
      : mine(split.of(rank)),
        q(pick(x.q, mine.tokens)),
        d_out(pick(x.d_out, mine.tokens)),
        keys(pick_keys(x, mine.tokens)) {
    rope::rotate<half_split>(q.view(), keys.keys(), table(), mine.positions);
  }
};

/// How queries reach the keys of other ranks.
enum class way_to_send { around_the_ring, all_gathered };

/// Forward and backward pass for the tokens of this rank, with its cost.
template <class T>
struct split_run {
  results<T> r;
  std::int64_t pairs, forward_bytes, backward_bytes;
};

template <class T>
split_run<T> run(job& ranks, const batch<T>& x, const sequence_split& split, way_to_send way) {
  const bool ring = way == way_to_send::around_the_ring;
  const own_tokens<T> own(x, split, ranks.rank());
  ranks.take_bytes_sent();
  const attended<T> forward = ring ? ring_attention(ranks, split, own.q, own.keys)
                                   : gathered_attention(ranks, split, own.q, own.keys);
  const std::int64_t forward_bytes = ranks.take_bytes_sent();
  gradients<T> d = ring ? ring_attention_gradient(ranks, split, own.q, own.keys, forward, own.d_out)
                        : gathered_attention_gradient(ranks, split, own.q, own.keys, forward, own.d_out);
  const std::int64_t backward_bytes = ranks.take_bytes_sent();
  rope::rotate_gradient<half_split>(d.q.view(), d.keys.keys(), table(), own.mine.positions);

  heads<T> d_k(d.keys.tokens, kv_heads, head_dim), d_v(d.keys.tokens, kv_heads, value_dim);
  std::copy_n(d.keys.keys().data, d_k.numbers.size(), d_k.numbers.begin());
  std::copy_n(d.keys.values().data, d_v.numbers.size(), d_v.numbers.begin());
  return {{forward.out, d.q, d_k, d_v}, forward.pairs, forward_bytes, backward_bytes};
}

template <class T>
split_run<T> around_the_ring(job& ranks, const batch<T>& x, const sequence_split& split) {
  return run(ranks, x, split, way_to_send::around_the_ring);
}

/// The share of one rank of a result of one process.
template <class T>
void compare(claims& claim, const results<T>& got, const results<T>& whole, const list& tokens,
             const bounds& allowed) {
  const auto within = [&](const char* what, const heads<T>& mine, const heads<T>& all, double bound) {
    claim.within(what, largest_difference(mine.numbers, pick(all, tokens).numbers), bound);
  };
  within("outputs, away from one process", got.out, whole.out, allowed.out);
  within("gradients of queries", got.d_q, whole.d_q, allowed.d_q);
  within("gradients of keys", got.d_k, whole.d_k, allowed.d_k);
  within("gradients of values", got.d_v, whole.d_v, allowed.d_v);
}

template <class T>
void one_sequence(job& ranks, claims& claim) {
  const std::int64_t tokens = 240, r = ranks.ranks();
  const batch<T> x({0, tokens}, 1);
  const results<T> whole = one_process(x, x.d_out);
  const bounds allowed = bounds_of(x, ranks.ranks());
  for (const way_to_cut way : {way_to_cut::contiguous, way_to_cut::zigzag}) {
    const bool zigzag = way == way_to_cut::zigzag;
    const sequence_split split = {x.offsets, ranks.ranks(), way};
    const own_tokens<T> own(x, split, ranks.rank());
    claim.print("\none sequence of %d tokens, cut %s, %s\n", int(tokens), zigzag ? "zigzag" : "contiguously",
                name_of<T>());
    if (zigzag && tokens % (2 * r) == 0)
      claim.holds("the cut equals rope::context_parallel_ids",
                  own.mine.tokens == rope::context_parallel_ids(tokens, r, ranks.rank()));

    const split_run<T> ring = around_the_ring(ranks, x, split);
    compare(claim, ring.r, whole, own.mine.tokens, allowed);
    claim.holds("a second run gives the same bits", same_results(around_the_ring(ranks, x, split).r, ring.r));

    claim.print("  and with all keys gathered\n");
    const split_run<T> gathered = run(ranks, x, split, way_to_send::all_gathered);
    compare(claim, gathered.r, whole, own.mine.tokens, allowed);
    claim.holds("a second run gives the same bits",
                same_results(run(ranks, x, split, way_to_send::all_gathered).r, gathered.r));

    claim.print("  visible pairs per rank:");
    const auto pairs = ranks.all_gather<std::int64_t>(ring.pairs);
    for (const std::int64_t of_rank : pairs) claim.print(" %lld", static_cast<long long>(of_rank));
    const std::int64_t all = tokens * (tokens + 1) / 2;
    claim.print("; the busiest has %.2f of the mean\n",
                double(*std::max_element(pairs.begin(), pairs.end()) * r) / double(all));
    for (const auto& [name, one] : {std::pair("around the ring", &ring), {"all at once", &gathered}})
      claim.print("  bytes sent per rank, %s: %lld forward, %lld backward\n", name,
                  static_cast<long long>(one->forward_bytes), static_cast<long long>(one->backward_bytes));
    if (tokens % (2 * r) != 0) continue;  // shares would differ by a token
    const std::int64_t n = tokens / r, rank = ranks.rank(),
                       block = n * kv_heads * (head_dim + value_dim) * std::int64_t(sizeof(T));
    claim.holds(
        "pairs as in README.md, and as many with all keys gathered",
        ring.pairs == (zigzag ? all / r : n * n * rank + n * (n + 1) / 2) && gathered.pairs == ring.pairs);
    claim.holds("bytes as in README.md", ring.forward_bytes == (r - 1) * block &&
                                             gathered.forward_bytes == (r - 1) * block &&
                                             ring.backward_bytes == (r == 1 ? 0 : (2 * r - 1) * block) &&
                                             gathered.backward_bytes == 2 * (r - 1) * block);
  }
}

/// Several sequences in one batch. Positions start at 0 in each, and no sequence attends to another, although
/// every rank has tokens of all of them. This finds the mistake of Megatron-LM #5243: a table with a row per
/// token of the batch, read at positions, gives later sequences the rows of the first.
template <class T>
void packed_segments(job& ranks, claims& claim) {
  claim.print("\npacked segments, %s\n", name_of<T>());
  const std::int64_t r = ranks.ranks(), me = ranks.rank();
  const share pair = sequence_split{{0, 2 * r, 4 * r}, ranks.ranks(), way_to_cut::zigzag}.of(ranks.rank());
  claim.holds("two sequences of 2 * ranks tokens: this rank's tokens of the batch",
              pair.tokens == list{me, 2 * r - 1 - me, 2 * r + me, 4 * r - 1 - me});
  claim.holds("and their positions, which start again",
              pair.positions == list{me, 2 * r - 1 - me, me, 2 * r - 1 - me});

  // Sequences of one token, of none, and of lengths that the ranks do not divide.
  const batch<T> x({0, 37, 38, 150, 150, 219}, 2);
  const sequence_split split = {x.offsets, ranks.ranks(), way_to_cut::zigzag};
  const own_tokens<T> own(x, split, ranks.rank());
  const results<T> whole = one_process(x, x.d_out);
  const split_run<T> ring = around_the_ring(ranks, x, split);
  compare(claim, ring.r, whole, own.mine.tokens, bounds_of(x, ranks.ranks()));
  claim.holds("a second run gives the same bits", same_results(around_the_ring(ranks, x, split).r, ring.r));
  claim.print("  and with all keys gathered\n");
  compare(claim, run(ranks, x, split, way_to_send::all_gathered).r, whole, own.mine.tokens,
          bounds_of(x, ranks.ranks()));

  // A table with a row per token of the batch is read at tokens. Here sequence s begins at position 50 s.
  list starts;
  Eigen::ArrayXX<std::int64_t> rows(x.q.tokens, 1);
  for (std::size_t s = 0; s + 1 < x.offsets.size(); ++s) {
    starts.push_back(50 * static_cast<std::int64_t>(s));
    for (std::int64_t t = x.offsets[s]; t < x.offsets[s + 1]; ++t) rows(t, 0) = starts[s] + t - x.offsets[s];
  }
  const rope::frequency_table<double> packed(rope::frequencies(head_dim, 10000.0), rows);
  heads<T> all = x.q, q = pick(x.q, own.mine.tokens);
  rope::rotate<half_split>(all.view(), table(), rope::segments{x.offsets, starts});
  rope::rotate<half_split>(q.view(), packed, own.mine.tokens);
  claim.holds("a packed table, read at tokens, rotates a part as the whole",
              same_bits(q.numbers, pick(all, own.mine.tokens).numbers));

  batch<T> poisoned = x;
  const std::int64_t first = x.offsets[2], last = x.offsets[3];
  for (heads<T>* of : {&poisoned.k, &poisoned.v})
    std::fill(of->view().at(0, first, 0), of->view().at(0, last, 0), std::numeric_limits<T>::quiet_NaN());
  const split_run<T> beside = around_the_ring(ranks, poisoned, split);
  list others;  // tokens of this rank in other sequences
  for (std::size_t t = 0; t < own.mine.size(); ++t)
    if (own.mine.tokens[t] < first || own.mine.tokens[t] >= last)
      others.push_back(static_cast<std::int64_t>(t));
  const auto kept = [&](const heads<T>& a, const heads<T>& b) {
    return same_bits(pick(a, others).numbers, pick(b, others).numbers);
  };
  claim.holds("NaN in the keys of one sequence changes no bit of the others",
              kept(beside.r.out, ring.r.out) && kept(beside.r.d_q, ring.r.d_q) &&
                  kept(beside.r.d_k, ring.r.d_k) && kept(beside.r.d_v, ring.r.d_v));
  claim.holds("and reaches its own", others.size() == own.mine.size() ||
                                         largest_difference(beside.r.out.numbers, beside.r.out.numbers) > 0);
}

/// The outputs of one token on each rank, for every decoded token.
template <class T>
struct decoded {
  heads<T> in_rank_order, in_any_order;
  std::int64_t bytes = 0;  // sent per token
};

/// The prompt keeps its zigzag split, and new tokens go to one rank after another. Each rank then has about
/// as many tokens as any other, with gaps in their positions.
template <class T>
decoded<T> decode(job& ranks, const batch<T>& x, Index prompt) {
  const auto head_count = static_cast<std::size_t>(query_heads);
  const partial_reduction<T, value_dim> reduction;
  const share mine = sequence_split{{0, prompt}, ranks.ranks(), way_to_cut::zigzag}.of(ranks.rank());
  rope::kv_cache<T> cache(1, x.q.tokens, kv_heads, head_dim, value_dim);
  const auto append = [&](const list& tokens) {
    cache.template append_at<half_split>(pick(x.k, tokens).view(), pick(x.v, tokens).view(), table(), tokens);
  };
  append(mine.tokens);

  const Index count = x.q.tokens - prompt;
  decoded<T> outputs = {{count, query_heads, value_dim}, {count, query_heads, value_dim}};
  for (Index step = 0; step < count; ++step) {
    const std::int64_t token = prompt + step;
    if (token % ranks.ranks() == ranks.rank()) append({token});
    heads<T> q = pick(x.q, {token});
    rope::rotate<half_split>(q.view(), table(), token);
    const auto part = attend_to_own_part<value_dim>(std::as_const(q).view(), token, cache);
    ranks.take_bytes_sent();
    const auto in_rank_order = reduction.in_rank_order(ranks, part);
    outputs.bytes = ranks.take_bytes_sent();
    const auto in_any_order = reduction.in_any_order(part);
    for (std::size_t h = 0; h < head_count; ++h) {
      const auto head = static_cast<Index>(h);
      std::copy_n(in_rank_order[h].out, value_dim, outputs.in_rank_order.view().at(0, step, head));
      std::copy_n(in_any_order[h].out, value_dim, outputs.in_any_order.view().at(0, step, head));
    }
  }
  return outputs;
}

template <class T>
void decoding(job& ranks, claims& claim) {
  const Index prompt = 240;
  const list tokens = {240, 241, 242, 243, 244, 245, 246};
  const batch<T> x({0, tokens.back() + 1}, 3);
  const heads<T> whole = pick(one_process(x, x.d_out).out, tokens);
  const double bound = bounds_of(x, ranks.ranks()).out;
  const decoded<T> got = decode(ranks, x, prompt), again = decode(ranks, x, prompt);
  claim.print("\ndecoding %d tokens after a prompt of %d, %s\n", int(tokens.size()), int(prompt),
              name_of<T>());
  claim.within("outputs, partial results merged in the order of ranks",
               largest_difference(got.in_rank_order.numbers, whole.numbers), bound);
  claim.within("outputs, by MPI_Allreduce", largest_difference(got.in_any_order.numbers, whole.numbers),
               bound);
  claim.holds("in the order of ranks, all ranks have the same bits",
              same_bits(ranks.of_first(got.in_rank_order.numbers), got.in_rank_order.numbers));
  claim.holds("and a second run, too", same_bits(got.in_rank_order.numbers, again.in_rank_order.numbers));
  claim.print("  bytes sent per rank and token: %lld\n", static_cast<long long>(got.bytes));
  claim.holds(
      "bytes as in README.md",
      got.bytes == (ranks.ranks() - 1) * query_heads *
                       static_cast<std::int64_t>(sizeof(double) + std::size_t(value_dim) * sizeof(T)));
}

/// A rank fails after a full round of the ring, while the others wait for its blocks.
void die_amid_a_ring(job& ranks, int rank, const std::string& how) {
  const batch<float> x({0, 240}, 1);
  const sequence_split split = {x.offsets, ranks.ranks(), way_to_cut::zigzag};
  const own_tokens<float> own(x, split, ranks.rank());
  int step = 0;
  for_each_block(ranks, split, own.keys, [&](int /*owner*/, const key_block<float>& /*block*/) {
    if (step++ != 1 || ranks.rank() != rank) return;
    if (how == "abort") std::abort();
    if (how == "exit") std::_Exit(0);
    throw std::runtime_error("this rank was asked to throw");
  });
}

}  // namespace

int main(int argc, char** argv) {
  many::job ranks(&argc, &argv);
  many::claims claim(ranks);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "--die") {
    die_amid_a_ring(ranks, std::stoi(words[1]), words[2]);
    return 0;
  }
  const std::vector<std::string> all = {"sequence", "packed segments", "decoding"};
  for (const std::string& word : words)
    if (std::find(all.begin(), all.end(), word) == all.end())
      throw std::invalid_argument("parts are sequence, \"packed segments\" and decoding, got " + word);
  const auto wanted = [&](const std::string& part) {
    return words.empty() || std::find(words.begin(), words.end(), part) != words.end();
  };
  const auto parts = [&]<class T>(T) {
    if (wanted("sequence")) one_sequence<T>(ranks, claim);
    if (wanted("packed segments")) packed_segments<T>(ranks, claim);
    if (wanted("decoding")) decoding<T>(ranks, claim);
  };
  claim.print("%d ranks; %d query heads, %d key heads, %d + %d channels\n", ranks.ranks(), int(query_heads),
              int(kv_heads), int(head_dim), int(value_dim));
  parts(float());
  parts(double());
  return claim.exit_code();
}
