// SPDX-License-Identifier: MIT
// The backward pass of a block on the caller's threads: the same bits for any number of threads, and every
// step that is large enough uses all of them.
#include <rope/block/gradient.hpp>

#include <array>
#include <cstddef>
#include <vector>

#include "support/block.hpp"
#include "support/catch.hpp"
#include "support/tape.hpp"
#include "support/threaded_block.hpp"

using namespace threaded_block;

namespace {

/// The gradients of a block, one after another.
struct all_gradients {
  using T = float;
  std::array<rows_of<T>, 6> wide;
  std::array<testing::row_of<T>, 6> lists;

  all_gradients(const random_block<T>& of, const rows_of<T>& x, const rows_of<T>& context)
      : wide{x, context, of.q, of.k, of.v, of.o}, lists{of.q_bias, of.k_bias, of.v_bias,
                                                        of.o_bias, of.q_norm, of.k_norm} {}
  multi_head_gradients<T> maps(bool self) {
    const auto map = [&](std::size_t i) {
      return typename projection<T>::weight_map(wide[i].data(), wide[i].rows(), wide[i].cols());
    };
    const auto linear = [&](std::size_t i) {
      return projection<T>(map(i + 2), {lists[i].data(), lists[i].size()});
    };
    return {.x = map(0),
            .context = self ? typename projection<T>::weight_map(nullptr, 0, 0) : map(1),
            .weights = {.q = linear(0),
                        .k = linear(1),
                        .v = linear(2),
                        .o = linear(3),
                        .q_norm = {lists[4].data(), lists[4].size()},
                        .k_norm = {lists[5].data(), lists[5].size()}}};
  }
  friend bool operator==(const all_gradients& a, const all_gradients& b) {
    for (std::size_t i = 0; i < 6; ++i)
      if (a.wide[i] != b.wide[i] || a.lists[i] != b.lists[i]) return false;
    return true;
  }
};

}  // namespace

TEST_CASE("gradients of a block have the same bits on any number of threads", "[block]") {
  const long_rows of;
  const auto block = of.block();
  const auto check = [&](bool self, const auto& call) {
    check_same_bits([&](const auto& threads) {
      all_gradients d(of.memory, of.x, of.context);
      call(d.maps(self), threads);
      return d;
    });
  };
  check(true, [&](const auto& d, const auto& threads) {
    multi_head_attention_gradient(block, {.x = of.x, .batch = batch, .d_out = of.d_out}, d, threads);
  });
  check(true, [&](const auto& d, const auto& threads) {
    multi_head_attention_gradient(block, {.x = of.x, .batch = batch, .d_out = of.d_out}, d, of.table, of.ids,
                                  threads);
  });
  check(true, [&](const auto& d, const auto& threads) {
    multi_head_attention_gradient(block, {.x = of.x, .batch = 1, .d_out = of.d_out}, d, of.table,
                                  segments{of.offsets}, threads);
  });
  check(false, [&](const auto& d, const auto& threads) {
    cross_attention_gradient(block, {.x = of.x, .context = of.context, .batch = batch, .d_out = of.d_out}, d,
                             threads);
  });
  check(false, [&](const auto& d, const auto& threads) {
    cross_attention_gradient(block, {.x = of.x, .context = of.context, .batch = batch, .d_out = of.d_out}, d,
                             of.table, row_starts{of.starts}, 7, threads);
  });
}

TEST_CASE("every step of a backward pass uses the threads", "[block]") {
  const long_rows of;
  std::vector<float> memory(batch * tokens * 16 * 16);
  std::vector<double> sums(batch * tokens * 16);
  attention_options options = of.options.attention;
  options.log_sum_exp = sums;
  const auto heads = [](std::vector<float>& x, Index count, Index dim) {
    return bshd(x.data(), batch, tokens, count, dim);
  };
  const int attends = loops_of([&](const auto& threads) {
    std::vector<float> a(memory), b(memory), c(memory), d(memory), out(memory);
    attention(heads(a, 16, 16), heads(b, 8, 16), heads(c, 8, 8), heads(out, 16, 8), options, threads);
    attention_gradient(
        testing::tape(heads(memory, 16, 16), heads(memory, 8, 16), heads(memory, 8, 8), heads(out, 16, 8),
                      heads(memory, 16, 8), heads(a, 16, 16), heads(b, 8, 16), heads(c, 8, 8)),
        options, {}, threads);
  });
  all_gradients d(of.memory, of.x, of.context);
  const int loops = loops_of([&](const auto& threads) {
    multi_head_attention_gradient(of.block(), {.x = of.x, .batch = batch, .d_out = of.d_out}, d.maps(true),
                                  of.table, {}, threads);
  });
  // Projections, two norms, two rotations, the gradient with respect to heads, the gradients of two rotations
  // and of two norms, and the gradients with respect to weights and tokens.
  CHECK(loops == 12 + attends);
  CHECK(attends > 1);
}

TEST_CASE("without threads the calling thread runs the backward pass", "[block]") {
  const long_rows of;
  const own_threads one(1);
  all_gradients d(of.memory, of.x, of.context), alone = d;
  multi_head_attention_gradient(of.block(), {.x = of.x, .batch = batch, .d_out = of.d_out}, d.maps(true),
                                of.table);
  multi_head_attention_gradient(of.block(), {.x = of.x, .batch = batch, .d_out = of.d_out}, alone.maps(true),
                                of.table, {}, one);
  const bool same = d == alone;
  CHECK(same);
}
