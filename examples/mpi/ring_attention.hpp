#ifndef ROPE_EXAMPLES_RING_ATTENTION_HPP
#define ROPE_EXAMPLES_RING_ATTENTION_HPP

#include <rope/rope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <utility>
#include <vector>

#include "mpi_calls.hpp"
#include "sequence_split.hpp"

/// Causal attention, forward and backward, of sequences whose tokens are spread over ranks. Queries stay
/// where they are, and blocks of keys and values travel around a ring. Each rank rotates its own queries and
/// keys first, so every block is rotated once and not by all ranks that read it.

namespace many {

using rope::Index;

/// Heads of the tokens of a rank, [tokens, count, dim].
template <class T>
struct heads {
  Index tokens, count, dim;
  std::vector<T> numbers;

  heads(Index of_tokens, Index of_heads, Index of_dim)
      : tokens(of_tokens),
        count(of_heads),
        dim(of_dim),
        numbers(static_cast<std::size_t>(of_tokens * of_heads * of_dim)) {}
  rope::head_view<T> view() { return rope::thd(numbers.data(), tokens, count, dim); }
  rope::head_view<const T> view() const { return rope::thd(numbers.data(), tokens, count, dim); }
};

/// Keys and values of a block of tokens, or the gradients with respect to them: one message.
template <class T>
struct key_block {
  Index tokens, count, head_dim, value_dim;
  std::vector<T> numbers;  // [tokens, count, head_dim], then [tokens, count, value_dim]

  key_block(Index of_tokens, Index of_heads, Index of_head_dim, Index of_value_dim)
      : tokens(of_tokens),
        count(of_heads),
        head_dim(of_head_dim),
        value_dim(of_value_dim),
        numbers(static_cast<std::size_t>(of_tokens * of_heads * (of_head_dim + of_value_dim))) {}
  /// Memory for a block of as many heads and channels.
  key_block like(std::size_t of_tokens) const {
    return {static_cast<Index>(of_tokens), count, head_dim, value_dim};
  }
  rope::head_view<T> keys() { return rope::thd(numbers.data(), tokens, count, head_dim); }
  rope::head_view<T> values() {
    return rope::thd(numbers.data() + tokens * count * head_dim, tokens, count, value_dim);
  }
  rope::head_view<const T> keys() const { return rope::thd(numbers.data(), tokens, count, head_dim); }
  rope::head_view<const T> values() const {
    return rope::thd(numbers.data() + tokens * count * head_dim, tokens, count, value_dim);
  }
};

template <class T>
void add(std::vector<T>& to, const std::vector<T>& more) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
}

/// The results of the queries of a rank, as far as the backward pass needs them.
template <class T>
struct attended {
  heads<T> out;
  std::vector<double> log_sum_exp;
  std::int64_t pairs = 0;  // of a query and a visible key: the amount of work
};

enum tag : int { keys_and_values, their_gradients };

/// Calls visit(owner, block) for the block of every rank: first for this rank, then for the rank to
/// the left, and so on. In every step, each block moves one rank to the right. One thread visits a block
/// while this thread waits for the next: MPI moves long messages only while a thread is inside one of its
/// calls.
///
/// \param meanwhile  starts other messages of a step, which also arrive before the step ends
/// \param after      called between the visit of a step and the next step
template <class T, class Visit, class Meanwhile, class After>
void for_each_block(job& ranks, const sequence_split& split, const key_block<T>& own, const Visit& visit,
                    const Meanwhile& meanwhile, const After& after) {
  key_block<T> block = own;
  for (int step = 0; step < ranks.ranks(); ++step) {
    const int owner = (ranks.rank() - step + ranks.ranks()) % ranks.ranks(),
              next_owner = (owner - 1 + ranks.ranks()) % ranks.ranks();
    const bool last = step + 1 == ranks.ranks();
    key_block<T> next = own.like(last ? 0 : split.of(next_owner).size());
    if (!last) {
      ranks.start_receive(next.numbers, ranks.left(), tag::keys_and_values);
      ranks.start_send(block.numbers, ranks.right(), tag::keys_and_values);
    }
    meanwhile(step, owner);
    auto work = std::async(std::launch::async, [&] { visit(owner, std::as_const(block)); });
    ranks.wait();
    work.get();
    after(step, owner);
    block = std::move(next);
  }
}

template <class T, class Visit>
void for_each_block(job& ranks, const sequence_split& split, const key_block<T>& own, const Visit& visit) {
  const auto nothing = [](int, int) {};
  for_each_block(ranks, split, own, visit, nothing, nothing);
}

/// The options for the queries of sequence s of `mine` and keys of `theirs`. No call has tokens of two
/// sequences, so no mask is needed to separate them.
inline rope::attention_options rules_of(const share& mine, const share& theirs, std::size_t s,
                                        std::vector<double>& log_sum_exp, Index heads) {
  const auto width = static_cast<std::size_t>(heads);
  return {.query_positions = mine.positions_of(s),
          .key_positions = theirs.positions_of(s),
          .log_sum_exp = std::span(log_sum_exp).subspan(mine.begin(s) * width, mine.count(s) * width)};
}

/// Tokens of sequence s of a share.
template <class View>
View tokens_of(const View& view, const share& of, std::size_t s) {
  return view.token_range(static_cast<Index>(of.begin(s)), static_cast<Index>(of.count(s)));
}

/// Zeros, and the log-sum-exp of no keys, with which a merge changes nothing.
template <class T>
attended<T> attended_to_nothing(const heads<T>& q, const key_block<T>& block) {
  return {
      {q.tokens, q.count, block.value_dim},
      std::vector<double>(static_cast<std::size_t>(q.tokens * q.count), rope::attention_options::no_keys)};
}

/// The queries of `mine` attend to the keys of `theirs`.
template <class T>
attended<T> attend_to_block(const heads<T>& q, const share& mine, const key_block<T>& block,
                            const share& theirs) {
  attended<T> part = attended_to_nothing(q, block);
  for (std::size_t s = 0; s < mine.sequences(); ++s) {
    const std::int64_t pairs = visible_pairs(mine, theirs, s);
    if (pairs == 0) continue;
    part.pairs += pairs;
    rope::attention(tokens_of(q.view(), mine, s), tokens_of(block.keys(), theirs, s),
                    tokens_of(block.values(), theirs, s), tokens_of(part.out.view(), mine, s),
                    rules_of(mine, theirs, s, part.log_sum_exp, q.count));
  }
  return part;
}

/// Attention of this rank's queries to the keys of all ranks. Blocks are merged in the order of the ring,
/// which is the same in every run, so bits repeat.
///
/// \param q    of this rank's tokens, rotated
/// \param own  keys, rotated, and values of the same tokens
template <class T>
attended<T> ring_attention(job& ranks, const sequence_split& split, const heads<T>& q,
                           const key_block<T>& own) {
  const share mine = split.of(ranks.rank());
  attended<T> all = attended_to_nothing(q, own);
  for_each_block(ranks, split, own, [&](int owner, const key_block<T>& block) {
    const attended<T> part = attend_to_block(q, mine, block, split.of(owner));
    rope::merge_attention(all.out.view(), std::span(all.log_sum_exp), part.out.view(),
                          std::span(part.log_sum_exp));
    all.pairs += part.pairs;
  });
  return all;
}

template <class T>
struct gradients {
  heads<T> q;
  key_block<T> keys;
};

/// The backward pass of attend_to_block: adds the contribution of the queries of `mine` to the gradients of
/// the keys of `theirs`, and of these keys to the gradients of the queries. Each block can be differentiated
/// alone, given the log-sum-exp and the output of all keys.
template <class T>
gradients<T> gradients_of_block(const heads<T>& q, const share& mine, const key_block<T>& block,
                                const share& theirs, const attended<T>& forward, const heads<T>& d_out) {
  gradients<T> d = {{q.tokens, q.count, q.dim}, block.like(theirs.size())};
  std::vector<double> log_sum_exp = forward.log_sum_exp;
  for (std::size_t s = 0; s < mine.sequences(); ++s)
    if (visible_pairs(mine, theirs, s) > 0)
      rope::attention_gradient(rope::attention_tape<T>{.q = tokens_of(q.view(), mine, s),
                                                       .k = tokens_of(block.keys(), theirs, s),
                                                       .v = tokens_of(block.values(), theirs, s),
                                                       .out = tokens_of(forward.out.view(), mine, s),
                                                       .d_out = tokens_of(d_out.view(), mine, s),
                                                       .d_q = tokens_of(d.q.view(), mine, s),
                                                       .d_k = tokens_of(d.keys.keys(), theirs, s),
                                                       .d_v = tokens_of(d.keys.values(), theirs, s)},
                               rules_of(mine, theirs, s, log_sum_exp, q.count));
  return d;
}

/// The backward pass of ring_attention: gradients with respect to the rotated queries, keys and values of
/// this rank's tokens. The gradients of a block follow the block around the ring, one step later, and collect
/// the contribution of each rank. They return to the owner in the end. The owner's part is the first term of
/// the sum, then the contribution of the rank to its right.
///
/// \param forward  what ring_attention or gathered_attention returned
/// \param d_out    gradient with respect to its out
template <class T>
gradients<T> ring_attention_gradient(job& ranks, const sequence_split& split, const heads<T>& q,
                                     const key_block<T>& own, const attended<T>& forward,
                                     const heads<T>& d_out) {
  const share mine = split.of(ranks.rank());
  gradients<T> sum = {{q.tokens, q.count, q.dim}, own.like(mine.size())};
  key_block<T> added = own.like(0), before = own.like(0), passed_on = own.like(0);
  for_each_block(
      ranks, split, own,
      [&](int owner, const key_block<T>& block) {
        gradients<T> d = gradients_of_block(q, mine, block, split.of(owner), forward, d_out);
        added = std::move(d.keys);
        add(sum.q.numbers, d.q.numbers);
      },
      [&](int step, int owner) {
        if (step == 0) return;  // no rank has added to the gradients of the own block yet
        before = own.like(split.of(owner).size());
        ranks.start_receive(before.numbers, ranks.left(), tag::their_gradients);
      },
      [&](int step, int /*owner*/) {
        if (step > 0) add(before.numbers, added.numbers);
        passed_on = step > 0 ? std::move(before) : std::move(added);
        if (ranks.ranks() > 1) ranks.start_send(passed_on.numbers, ranks.right(), tag::their_gradients);
      });
  if (ranks.ranks() == 1) {
    sum.keys = std::move(passed_on);
  } else {
    ranks.start_receive(sum.keys.numbers, ranks.left(), tag::their_gradients);
    ranks.wait();
  }
  return sum;
}

}  // namespace many

#endif  // ROPE_EXAMPLES_RING_ATTENTION_HPP
