// SPDX-License-Identifier: MIT
#include <rope/rotation/rotate.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <rope/tables/table.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"

// Every form of a call gives the same bits for the same rotation.

using rope::head_view;
using rope::Index;
using testing::for_each_layout;
using testing::guarded_memory;
using testing::name_of;
using testing::same_bits;
using testing::same_heads;
using testing::scalar_twin;

namespace {

constexpr std::uint32_t seed = 7;

/// A copy of the heads of `x`, contiguous, and its view.
template <class T>
struct copy_of {
  std::vector<T> memory;
  head_view<T> view;

  template <class U>
  explicit copy_of(const head_view<U>& x)
      : memory(static_cast<std::size_t>(x.size())),
        view(rope::bshd(memory.data(), x.batch, x.tokens, x.heads, x.head_dim)) {
    testing::copy_heads(x, view);
  }
};

/// Runs the pieces of a call in reverse order, as threads may.
struct backwards {
  Index threads() const { return 7; }
  template <class Body>
  void parallel_for(Index count, const Body& body) const {
    for (Index i = count; i > 0; --i) body(i - 1);
  }
};

/// Rotates a copy of `x` by a copy of the layout that uses scalars only.
template <class Layout, class T, class S>
copy_of<T> rotated_by_twin(const head_view<T>& x, const rope::frequency_table<S>& table, std::int64_t start) {
  copy_of<T> twin(x);
  rope::rotate<scalar_twin<Layout>>(twin.view, table, start);
  return twin;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("packets give the bits of scalars at every head_dim", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([&]<class Layout>(Layout) {
    for (Index head_dim = 2; head_dim <= 330; head_dim += head_dim < 130 ? 2 : 10) {
      const rope::frequencies frequencies =
          rope::frequencies::custom(rope::frequencies(head_dim).inv_freq(), head_dim % 4 == 0 ? 1.2 : 1.0);
      const rope::frequency_table<S> table(frequencies, 10);
      std::vector<T> memory =
          testing::random_channels<T>(2 * 3 * head_dim, seed + static_cast<std::uint32_t>(head_dim));
      const auto x = rope::thd(memory.data(), 2, 3, head_dim);
      copy_of<T> twin = rotated_by_twin<Layout>(x, table, 5);
      rope::rotate<Layout>(x, table, 5);
      CAPTURE(name_of<Layout>, head_dim);
      CHECK(same_heads(x, twin.view));
      rope::unrotate<Layout>(x, table, 5);
      rope::unrotate<scalar_twin<Layout>>(twin.view, table, 5);
      CHECK(same_heads(x, twin.view));
    }
  });
}

// More than L2 contains: data is prefetched, tokens are processed in blocks and heads a few at a time.
TEMPLATE_LIST_TEST_CASE("packets give the bits of scalars on large data in every axis order", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  struct shape {
    Index tokens, heads, head_dim;
  };
  for_each_layout([]<class Layout>(Layout) {
    for (const auto& [tokens, heads, head_dim] : {shape{600, 3, 96},
                                                  {180, 19, 66},
                                                  {90, 19, 114},
                                                  {90, 19, 130},
                                                  {1400, 1, 130},
                                                  {300, 3, 258},
                                                  {40, 2, 2048}}) {
      const rope::frequency_table<S> table(rope::frequencies(head_dim - 2), tokens + 1);
      std::vector<T> memory = testing::random_channels<T>(2 * tokens * heads * head_dim, seed);
      const std::vector<T> before = memory;
      std::vector<T> other(memory.size());
      const auto out = rope::bhsd(other.data(), 2, heads, tokens, head_dim);
      for (const auto& x : {rope::bshd(memory.data(), 2, tokens, heads, head_dim),
                            rope::bhsd(memory.data(), 2, heads, tokens, head_dim),
                            rope::sbhd(memory.data(), tokens, 2, heads, head_dim)}) {
        memory = before;
        const copy_of<T> twin = rotated_by_twin<Layout>(x, table, 1);
        CAPTURE(name_of<Layout>, tokens, head_dim, x.token_stride);
        rope::rotate_to<Layout>(head_view<const T>(x), out, table, 1);
        CHECK(same_heads(out, twin.view));
        rope::rotate<Layout>(x, table, 1);
        CHECK(same_heads(x, twin.view));
        memory = before;
        rope::rotate<Layout>(x, table, 1, backwards{});
        CHECK(same_heads(x, twin.view));
      }
    }
  });
}

// Three or more heads whose packets would cross cache lines begin with narrower packets.
TEMPLATE_LIST_TEST_CASE("unaligned heads give the same bits", "[rotation]", testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    for (const Index head_dim : {Index{32}, Index{94}, Index{160}})
      for (const Index heads : {2, 3, 17})
        for (Index offset = 0; offset <= 15; ++offset) {
          const rope::frequency_table<S> table(rope::frequencies(head_dim - 2 * (offset % 2)), 10);
          guarded_memory<T> memory(16 + 2 * heads * head_dim + 64), other(16 + 2 * heads * head_dim + 64);
          const auto x = rope::thd(memory.data() + offset, 2, heads, head_dim);
          const auto out = rope::thd(other.data() + 15 - offset, 2, heads, head_dim);
          memory.fill(x, seed);
          const copy_of<T> twin = rotated_by_twin<Layout>(x, table, 3);
          CAPTURE(name_of<Layout>, head_dim, heads, offset);
          rope::rotate_to<Layout>(head_view<const T>(x), out, table, 3);
          CHECK(same_heads(out, twin.view));
          CHECK(other.untouched_outside(out));
          rope::rotate<Layout>(x, table, 3);
          CHECK(same_heads(x, twin.view));
          CHECK(memory.untouched_outside(x));
          rope::unrotate<Layout>(x, table, 3);
          rope::unrotate<scalar_twin<Layout>>(twin.view, table, 3);
          CHECK(same_heads(x, twin.view));
        }
  });
}

TEMPLATE_LIST_TEST_CASE("any strides give the same bits, in place and out of place", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  const Index B = 2, L = 5, H = 3, D = 46;
  // The last two have negative strides.
  const std::array<std::array<Index, 4>, 7> strides = {{{0, L * H * D, H * D, D},
                                                        {3, 2000, 300, 61},
                                                        {1, 47, 1000, 200},
                                                        {2, 1500, 50, 260},
                                                        {0, 50, 120, 800},
                                                        {1900, -950, 180, 60},
                                                        {2200, 2300, -400, -100}}};
  for_each_layout([&]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies(40), 20);
    for (const auto& from : strides)
      for (const auto& to : strides) {
        guarded_memory<T> in(6000), out(6000);
        const head_view<T> x = {in.data() + from[0], B, L, H, D, from[1], from[2], from[3]};
        const head_view<T> y = {out.data() + to[0], B, L, H, D, to[1], to[2], to[3]};
        in.fill(x, seed);
        const copy_of<T> expected = rotated_by_twin<Layout>(x, table, 9);
        CAPTURE(name_of<Layout>, from[2], to[2]);

        rope::rotate_to<Layout>(head_view<const T>(x), y, table, 9);
        CHECK(same_heads(y, expected.view));
        CHECK(in.untouched());
        CHECK(out.untouched_outside(y));

        rope::rotate_to<Layout>(x, x, table, 9);
        CHECK(same_heads(x, expected.view));
        CHECK(in.untouched_outside(x));

        in.fill(x, seed);
        rope::rotate<Layout>(x, table, 9);
        CHECK(same_heads(x, expected.view));
        CHECK(in.untouched_outside(x));
      }
  });
}

TEMPLATE_LIST_TEST_CASE("a batch, its rows, its tokens and its single heads give the same bits", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    const Index B = 3, H = 2, D = 34;
    for (const Index L : {4, 1}) {
      const rope::frequency_table<S> table(rope::frequencies(D), 20);
      const std::vector<T> source = testing::random_channels<T>(B * L * H * D, seed);
      std::vector<T> batch = source, rows = source, tokens = source, heads = source;
      rope::rotate<Layout>(rope::bshd(batch.data(), B, L, H, D), table, 8);
      for (Index b = 0; b < B; ++b) {
        rope::rotate<Layout>(rope::thd(rows.data() + b * L * H * D, L, H, D), table, 8);
        for (Index t = 0; t < L; ++t) {
          T* token = tokens.data() + (b * L + t) * H * D;
          rope::rotate<Layout>(rope::bhsd(token, 1, H, 1, D), table, 8 + t);
          for (Index h = 0; h < H; ++h)
            rope::rotate<Layout>(rope::thd(heads.data() + ((b * L + t) * H + h) * D, 1, 1, D), table, 8 + t);
        }
      }
      CAPTURE(name_of<Layout>, L);
      CHECK(same_bits(rows, batch));
      CHECK(same_bits(tokens, batch));
      CHECK(same_bits(heads, batch));
    }
  });
}

TEMPLATE_LIST_TEST_CASE("unrotate out of place gives the bits of unrotate in place", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies::custom(rope::frequencies(50).inv_freq(), 1.2),
                                         20);
    std::vector<T> x = testing::random_channels<T>(4 * 2 * 60, seed), y(x.size());
    rope::unrotate_to<Layout>(rope::thd(std::as_const(x).data(), 4, 2, 60), rope::thd(y.data(), 4, 2, 60),
                              table, 8);
    rope::unrotate<Layout>(rope::thd(x.data(), 4, 2, 60), table, 8);
    CAPTURE(name_of<Layout>);
    CHECK(same_bits(x, y));
  });
}

TEMPLATE_LIST_TEST_CASE("both layouts rotate the same pairs to the same bits", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for (const Index pairs : {1, 3, 16, 40, 64, 65}) {
    const rope::frequency_table<S> table(rope::frequencies(2 * pairs), 20);
    std::vector<T> x = testing::random_channels<T>(2 * pairs, seed), y(x.size());
    const auto exchange = [&](auto copy) {
      for (Index i = 0; i < pairs; ++i) {
        copy(x[static_cast<std::size_t>(2 * i)], y[static_cast<std::size_t>(i)]);
        copy(x[static_cast<std::size_t>(2 * i + 1)], y[static_cast<std::size_t>(i + pairs)]);
      }
    };
    exchange([](const T& from, T& to) { to = from; });
    rope::rotate<rope::interleaved>(rope::thd(x.data(), 1, 1, 2 * pairs), table, 13);
    rope::rotate<rope::half_split>(rope::thd(y.data(), 1, 1, 2 * pairs), table, 13);
    bool same = true;
    exchange([&](const T& a, const T& b) { same = same && same_bits(&a, &b, 1); });
    CAPTURE(pairs);
    CHECK(same);
  }
}

TEMPLATE_LIST_TEST_CASE("a pair of views gets the bits of two calls", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    for (const auto& [batch, tokens] : {std::pair<Index, Index>{1, 1}, {2, 1}, {2, 5}, {2, 300}}) {
      const rope::frequency_table<S> table(rope::frequencies::custom(rope::frequencies(64).inv_freq(), 1.2),
                                           400);
      const Index q_size = batch * tokens * 9 * 64, k_size = batch * tokens * 2 * 70;
      std::vector<T> q_memory = testing::random_channels<T>(q_size, seed),
                     k_memory = testing::random_channels<T>(k_size, seed + 1);
      const auto q = rope::bhsd(q_memory.data(), batch, 9, tokens, 64),
                 k = rope::bshd(k_memory.data(), batch, tokens, 2, 70);
      const copy_of<T> expected_q = rotated_by_twin<Layout>(q, table, 50),
                       expected_k = rotated_by_twin<Layout>(k, table, 50);
      CAPTURE(name_of<Layout>, batch, tokens);
      rope::rotate<Layout>(q, k, table, 50);
      CHECK(same_heads(q, expected_q.view));
      CHECK(same_heads(k, expected_k.view));
      rope::unrotate<Layout>(q, k, table, 50);
      rope::unrotate<scalar_twin<Layout>>(expected_q.view, table, 50);
      rope::unrotate<scalar_twin<Layout>>(expected_k.view, table, 50);
      CHECK(same_heads(q, expected_q.view));
      CHECK(same_heads(k, expected_k.view));
    }
  });
}

// Zeros, subnormals, ties, the largest values and infinities next to each other in every lane.
TEMPLATE_LIST_TEST_CASE("values at the ends of the range of a type get the bits of scalars", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  using limits = std::numeric_limits<T>;
  if (tolerance::flushes_subnormals && limits::min_exponent == std::numeric_limits<float>::min_exponent)
    return;  // scalars do not
  const T edges[] = {T(0),
                     T(-0.0f),
                     limits::min(),
                     limits::denorm_min(),
                     -limits::min(),
                     T(static_cast<float>(limits::denorm_min()) * 5),
                     limits::max(),
                     limits::lowest(),
                     T(1),
                     limits::epsilon(),
                     T(1.5f),
                     T(-3),
                     limits::infinity()};
  const Index pairs = 37, edge_count = Index(std::size(edges));
  // Exact cosines of 0 and of quarter turns too: results that are exactly representable, and exact ties.
  for (const double speed : {0.0, 0.7853981633974483, 1.0, 1e-3}) {
    const rope::frequency_table<S> table(
        rope::frequencies::custom(Eigen::ArrayXd(Eigen::ArrayXd::Constant(pairs, speed))), 4);
    for_each_layout([&]<class Layout>(Layout) {
      for (Index shift = 0; shift < edge_count; ++shift) {
        std::vector<T> memory;
        for (Index c = 0; c < 2 * 2 * pairs; ++c)
          memory.push_back(edges[static_cast<std::size_t>((c * (shift + 1) + c / edge_count) % edge_count)]);
        const auto x = rope::thd(memory.data(), 1, 2, 2 * pairs);
        const copy_of<T> twin = rotated_by_twin<Layout>(x, table, 1);
        rope::rotate<Layout>(x, table, 1);
        Index different = 0;
        for (std::size_t c = 0; c < memory.size(); ++c) {
          const bool both_nan = memory[c] != memory[c] && twin.memory[c] != twin.memory[c];
          different += both_nan || same_bits(&memory[c], &twin.memory[c], 1) ? 0 : 1;
        }
        CAPTURE(name_of<Layout>, speed, shift);
        CHECK(different == 0);
      }
    });
  }
}

// At every offset in memory, contiguous heads are rotated with the bits of code that takes one channel at a
// time, and memory around them does not change.

using namespace rope;

namespace {

constexpr Index line = 64;

/// The first element of memory that is `past` elements after the beginning of a cache line.
template <class T>
T* place(guarded_memory<T>& memory, Index past) {
  T* first = memory.data() + line / Index(sizeof(T));
  while (reinterpret_cast<std::uintptr_t>(first) % std::uintptr_t(line) !=
         static_cast<std::uintptr_t>(past) * sizeof(T))
    ++first;
  return first;
}

template <class Layout, class T, bool back>
void rotate_view(const head_view<T>& x, const head_view<T>& out, const frequency_table<T>& table) {
  const bool in_place = x.data == out.data;
  if constexpr (back)
    in_place ? unrotate<Layout>(x, table, 3) : unrotate_to<Layout>(x, out, table, 3);
  else
    in_place ? rotate<Layout>(x, table, 3) : rotate_to<Layout>(x, out, table, 3);
}

/// Tokens of heads, in place or from one buffer to another, that begin `past` and `out_past` elements after
/// the beginning of a cache line.
template <class Layout, class T, bool back>
void check(Index heads, Index head_dim, Index past, Index out_past, bool in_place, bool gap) {
  constexpr Index tokens = 2;
  CAPTURE(testing::name_of<Layout>, back, heads, head_dim, past, out_past, in_place, gap);
  const frequency_table<T> table(frequencies(head_dim, 30.0), 9);
  const Index between = gap ? head_dim + 3 : head_dim, size = tokens * heads * between + 4 * line;
  guarded_memory<T> memory(size), other(size);
  const auto view = [&](guarded_memory<T>& of, Index at) {
    return head_view<T>{place(of, at),   1,      tokens, heads, head_dim, tokens * heads * between,
                        heads * between, between};
  };
  const head_view<T> x = view(memory, past), out = in_place ? x : view(other, out_past);
  memory.fill(x, 71);
  std::vector<T> expected(static_cast<std::size_t>(x.size()));
  const auto copy = bshd(expected.data(), 1, tokens, heads, head_dim);
  testing::copy_heads(x, copy);
  if constexpr (back)
    unrotate<testing::scalar_twin<Layout>>(copy, table, 3);
  else
    rotate<testing::scalar_twin<Layout>>(copy, table, 3);
  rotate_view<Layout, T, back>(x, out, table);
  CHECK(testing::same_heads(out, copy));
  CHECK((in_place ? memory : other).untouched_outside(out));
  if (!in_place) CHECK(memory.untouched());
}

}  // namespace

TEMPLATE_TEST_CASE("heads that begin within a cache line rotate with the same bits", "[rotation]", float,
                   double) {
  testing::for_each_layout([](auto layout) {
    using Layout = decltype(layout);
    for (const Index head_dim : {16, 24, 32, 48, 64, 80, 96, 100, 112, 128, 144, 256})
      for (const Index heads : {1, 2, 3, 8, 17})
        for (Index past = 0; past < line / Index(sizeof(TestType)); ++past) {
          check<Layout, TestType, false>(heads, head_dim, past, past, true, false);
          check<Layout, TestType, true>(heads, head_dim, past, past, true, false);
          check<Layout, TestType, false>(heads, head_dim, past, past, false, false);
          check<Layout, TestType, false>(heads, head_dim, past, (past + 4) % 8, false, false);
          check<Layout, TestType, false>(heads, head_dim, past, past, true, true);
        }
  });
}
