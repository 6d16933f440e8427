// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_THREADED_BLOCK_HPP
#define ROPE_TESTS_THREADED_BLOCK_HPP

/// A block that is large enough for threads in every step, and the expected use of threads by its calls.

#include <rope/block/multi_head_attention.hpp>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"

namespace threaded_block {

using namespace rope;
using testing::block_kind;
using testing::own_threads;
using testing::random_block;
using testing::rows_of;

// Two rows of 550 tokens: more than one tile of tokens, norms and rotations of more than 512 KiB.
constexpr Index batch = 2, tokens = 550, keys = 560;
inline const block_kind kind = {.heads = 16,
                                .kv_heads = 8,
                                .head_dim = 16,
                                .value_dim = 8,
                                .model_dim = 24,
                                .context_dim = 24,
                                .out_dim = 300,
                                .bias = true,
                                .norm = true};

/// The number of loops for which a call requested two threads.
template <class Call>
int loops_of(const Call& call) {
  const own_threads two(2);
  call(two);
  return two.runs();
}

/// `call(threads)` returns the bits of its output.
template <class Call>
void check_same_bits(const Call& call) {
  const own_threads one(1);
  const auto alone = call(one);
  CHECK(one.runs() == 0);
  for (const Index count : {2, 3}) {
    CAPTURE(count);
    const own_threads threads(count);
    const bool same = call(threads) == alone;
    CHECK(same);
    CHECK(threads.runs() > 0);
  }
}

struct long_rows {
  using T = float;
  random_block<T> memory{kind, 701};
  testing::random numbers{702};
  rows_of<T> x = testing::random_rows<T>(numbers, batch*tokens, 24, 2),
             context = testing::random_rows<T>(numbers, batch*keys, 24, 2),
             d_out = testing::random_rows<T>(numbers, batch*tokens, 300, 1);
  frequency_table<T> table{frequencies(16), 2000};
  std::vector<int> ids, starts = {3, 900}, offsets = {0, 5, 600, 1100}, key_offsets = {0, 200, 700, 1120};
  multi_head_options options = memory.options();

  long_rows() {
    for (Index t = 0; t < tokens; ++t) ids.push_back(static_cast<int>(t * 7 % 1999));
    options.attention.window = 40;
  }
  multi_head_attention<T, half_split> block() const { return {memory.weights(), options}; }
};

}  // namespace threaded_block

#endif  // ROPE_TESTS_THREADED_BLOCK_HPP
