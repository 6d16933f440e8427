// SPDX-License-Identifier: MIT
#include <rope/rotation/rotate.hpp>

#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"

// Bits that a rotation must not change.

using rope::head_view;
using rope::Index;
using testing::for_each_layout;
using testing::guarded_memory;
using testing::name_of;
using testing::same_bits;
using testing::same_heads;

namespace {

constexpr std::uint32_t seed = 11;

/// Zeros of both signs, infinities, subnormals and NaN: arithmetic with cos = 1, sin = 0 would change them.
template <class T>
std::vector<T> awkward_channels(Index count) {
  std::vector<T> x(static_cast<std::size_t>(count));
  testing::fill_with_nan(x);
  const T infinity = Eigen::NumTraits<T>::infinity(), subnormal = std::numeric_limits<T>::denorm_min();
  const T values[] = {T(0), T(-0.0f), infinity, -infinity, subnormal, -subnormal, T(1), T(-3)};
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i % 11 < 8) x[i] = values[i % 11];
  return x;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("position 0 changes no bit, in place and out of place", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  for_each_layout([]<class Layout>(Layout) {
    for (const Index head_dim : {2, 10, 64, 90}) {
      const rope::frequencies frequencies(head_dim > 2 ? head_dim - 4 : 2);
      const rope::frequency_table<S> from_0(frequencies, 4), around_0(frequencies, -5, 5);
      const rope::frequency_table<S> coordinates(frequencies, Eigen::Array3d(7, 0, -0.0));
      const std::vector<T> before = awkward_channels<T>(3 * head_dim);
      std::vector<T> x = before, y(before.size(), T(5));
      const auto view = rope::bhsd(x.data(), 1, 3, 1, head_dim),
                 out = rope::bshd(y.data(), 1, 1, 3, head_dim);
      CAPTURE(name_of<Layout>, head_dim);

      rope::rotate<Layout>(view, from_0);
      rope::rotate<Layout>(view, around_0, 0);
      rope::rotate<Layout>(view, coordinates, 1);
      rope::rotate<Layout>(view, coordinates, 2);
      rope::unrotate<Layout>(view, from_0);
      rope::unrotate_to<Layout>(view, view, around_0, 0);
      CHECK(same_bits(x, before));

      rope::rotate_to<Layout>(view, out, from_0);
      CHECK(same_bits(y, before));
      y.assign(y.size(), T(5));
      rope::unrotate_to<Layout>(view, out, coordinates, 1);
      CHECK(same_bits(y, before));
    }
  });
}

TEMPLATE_LIST_TEST_CASE("position 0 is scaled by an attention_factor other than 1", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    const auto frequencies = rope::frequencies::custom(rope::frequencies(32).inv_freq(), 2.0);
    std::vector<T> x = testing::random_channels<T>(32, seed), doubled = x;
    for (T& value : doubled) value = static_cast<T>(static_cast<double>(value) * 2);
    rope::rotate<Layout>(rope::thd(x.data(), 1, 1, 32), rope::frequency_table<S>(frequencies, 1));
    CAPTURE(name_of<Layout>);
    CHECK(x == doubled);
  });
}

TEST_CASE("row 0 of a table of coordinates is rotated like the others", "[rotation]") {
  std::vector<float> x = {1, 2}, y = x;
  rope::rotate<rope::half_split>(rope::thd(x.data(), 1, 1, 2),
                                 rope::frequency_table<float>(rope::frequencies(2), Eigen::Array2i(3, 0)));
  rope::rotate<rope::half_split>(rope::thd(y.data(), 1, 1, 2),
                                 rope::frequency_table<float>(rope::frequencies(2), 4), 3);
  CHECK(x == y);
  CHECK(x != std::vector<float>{1, 2});
}

TEMPLATE_LIST_TEST_CASE("channels that are not rotated keep their bits", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  struct window {
    Index head_dim, first, rotary_dim;
  };
  for_each_layout([]<class Layout>(Layout) {
    for (const auto& [head_dim, first, rotary_dim] : {window{192, 128, 64},
                                                      {128, 0, 64},
                                                      {80, 0, 32},
                                                      {9, 3, 4},
                                                      {7, 1, 6},
                                                      {100, 0, 98},
                                                      {100, 2, 98},
                                                      {256, 31, 182}}) {
      const rope::frequency_table<S> table(rope::frequencies(rotary_dim), 20);
      guarded_memory<T> memory(20 + 3 * 2 * head_dim + 300);
      const auto heads = rope::thd(memory.data() + 20, 3, 2, head_dim);
      const auto rotating = heads.channels(first, rotary_dim);
      memory.fill(rotating, seed);
      CAPTURE(name_of<Layout>, head_dim, first, rotary_dim);

      guarded_memory<T> copy(static_cast<Index>(memory.now.size()));
      const auto out = rope::thd(copy.data() + 5, 3, 2, head_dim);
      rope::rotate_to<Layout>(heads.channels(first, head_dim - first), out.channels(first, head_dim - first),
                              table, 4);
      CHECK(memory.untouched());
      CHECK(copy.untouched_outside(out.channels(first, head_dim - first)));
      const Index rest = head_dim - first - rotary_dim;
      CHECK(same_heads(out.channels(first + rotary_dim, rest), heads.channels(first + rotary_dim, rest)));

      rope::rotate<Layout>(heads.channels(first, head_dim - first), table, 4);
      CHECK(memory.untouched_outside(rotating));
      CHECK(same_heads(rotating, out.channels(first, rotary_dim)));
      CHECK(testing::worst_error<Layout, S>(memory.remembered(rotating), head_view<const T>(rotating),
                                            rope::frequencies(rotary_dim),
                                            [](Index, Index t) { return 4 + t; }) <= 1);
      rope::unrotate<Layout>(heads.channels(first, head_dim - first), table, 4);
      CHECK(memory.untouched_outside(rotating));
    }
  });
}

TEMPLATE_LIST_TEST_CASE("heads and tokens outside a view keep their bits", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies(64), 20);
    constexpr Index q_heads = 4, kv_heads = 2, tokens = 6;
    guarded_memory<T> memory(tokens * (q_heads + 2 * kv_heads) * 64);
    const auto packed = rope::thd(memory.data(), tokens, q_heads + 2 * kv_heads, 64);
    const auto q = packed.head_range(0, q_heads), k = packed.head_range(q_heads, kv_heads),
               v = packed.head_range(q_heads + kv_heads, kv_heads);
    const auto positions_from = [](Index t) { return [t](Index, Index i) { return t + i; }; };
    CAPTURE(name_of<Layout>);

    memory.fill(packed, seed);
    rope::rotate<Layout>(packed.head_range(0, q_heads + kv_heads), table, 3);
    CHECK(memory.untouched_outside(packed.head_range(0, q_heads + kv_heads)));
    CHECK(same_heads(head_view<const T>(v), memory.remembered(v)));
    CHECK(testing::worst_error<Layout, S>(memory.remembered(q), head_view<const T>(q), rope::frequencies(64),
                                          positions_from(3)) <= 1);
    CHECK(testing::worst_error<Layout, S>(memory.remembered(k), head_view<const T>(k), rope::frequencies(64),
                                          positions_from(3)) <= 1);

    memory.fill(packed, seed);
    const auto some = packed.token_range(2, 3);
    rope::rotate<Layout>(some, table, 7);
    CHECK(memory.untouched_outside(some));
    CHECK(testing::worst_error<Layout, S>(memory.remembered(some), head_view<const T>(some),
                                          rope::frequencies(64), positions_from(7)) <= 1);
  });
}

TEMPLATE_LIST_TEST_CASE("NaN and infinity stay within their pair", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    constexpr Index pairs = 37;
    const rope::frequency_table<S> table(rope::frequencies(2 * pairs), 20);
    const std::vector<T> x = testing::random_channels<T>(2 * pairs, seed);
    std::vector<T> clean = x;
    rope::rotate<Layout>(rope::thd(clean.data(), 1, 1, 2 * pairs), table, 5);
    for (Index bad = 0; bad < 2 * pairs; ++bad)
      for (const T poison : {Eigen::NumTraits<T>::quiet_NaN(), Eigen::NumTraits<T>::infinity()}) {
        std::vector<T> y = x;
        y[static_cast<std::size_t>(bad)] = poison;
        rope::rotate<Layout>(rope::thd(y.data(), 1, 1, 2 * pairs), table, 5);
        bool others_same = true, pair_poisoned = true;
        for (Index i = 0; i < pairs; ++i) {
          const Index u = Layout::first(i, pairs), v = Layout::second(i, pairs);
          for (const Index d : {u, v}) {
            const auto at = static_cast<std::size_t>(d);
            if (bad == u || bad == v)
              pair_poisoned = pair_poisoned &&
                              !(std::abs(static_cast<double>(y[at])) <= std::numeric_limits<double>::max());
            else
              others_same = others_same && same_bits(&y[at], &clean[at], 1);
          }
        }
        CAPTURE(name_of<Layout>, bad);
        CHECK(others_same);
        CHECK(pair_poisoned);
      }
  });
}

TEMPLATE_LIST_TEST_CASE("every channel of an output full of NaN is written", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  CAPTURE(seed);
  for_each_layout([]<class Layout>(Layout) {
    for (Index head_dim = 2; head_dim <= 70; head_dim += 2)
      for (const Index rest : {0, 1, 17}) {
        const rope::frequency_table<S> table(rope::frequencies(head_dim), 3);
        const std::vector<T> x = testing::random_channels<T>(3 * 2 * (head_dim + rest), seed);
        std::vector<T> y(x.size());
        testing::fill_with_nan(y);
        rope::rotate_to<Layout>(rope::thd(x.data(), 3, 2, head_dim + rest),
                                rope::thd(y.data(), 3, 2, head_dim + rest), table);
        bool all = true;
        for (const T value : y) all = all && value == value;
        CAPTURE(name_of<Layout>, head_dim, rest);
        CHECK(all);
      }
  });
}

TEMPLATE_LIST_TEST_CASE("a view without tokens, heads or rows does nothing", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  for_each_layout([]<class Layout>(Layout) {
    const rope::frequency_table<S> table(rope::frequencies(4), 1), empty(rope::frequencies(4), 0);
    guarded_memory<T> memory(60), other(60);
    struct shape {
      Index batch, tokens, heads;
    };
    for (const auto& [batch, tokens, heads] : {shape{0, 3, 2}, {2, 0, 3}, {0, 0, 0}})
      for (T* data : {memory.data(), static_cast<T*>(nullptr)}) {
        T* to = data ? other.data() : nullptr;
        rope::rotate<Layout>(rope::bshd(data, batch, tokens, heads, 4), table);
        rope::rotate<Layout>(rope::bhsd(data, batch, heads, tokens, 4), empty, 100);
        rope::unrotate_to<Layout>(rope::sbhd(data, tokens, batch, heads, 4),
                                  rope::sbhd(to, tokens, batch, heads, 4), table);
        rope::rotate<Layout>(rope::bshd(data, batch, tokens, heads, 4), table,
                             std::vector<int>(static_cast<std::size_t>(batch * tokens)));
      }
    const rope::frequency_table<S> two(rope::frequencies(4), 2);
    rope::rotate<Layout>(rope::bshd(memory.data(), 3, 2, 0, 4), two);
    rope::rotate_to<Layout>(rope::bhsd(memory.data(), 3, 0, 2, 4), rope::bshd(other.data(), 3, 2, 0, 4), two);
    rope::rotate<Layout>(rope::bshd(static_cast<T*>(nullptr), 1, 1, 0, 6), two.at_channel(2));
    // Empty views do not overlap, for any strides.
    rope::rotate_to<Layout>(rope::bhsd(memory.data(), 3, 2, 0, 4), rope::bshd(memory.data(), 3, 0, 2, 4),
                            two);
    CHECK(memory.untouched());
    CHECK(other.untouched());
  });
}
