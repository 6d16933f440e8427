// SPDX-License-Identifier: MIT
#include <rope/rotation/rotate_heads.hpp>

#include <rope/frequencies/vision_axes.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/rotation/rotate.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::head_view;
using rope::Index;
using rope::interleaved;
using testing::same_bits;
using testing::throws_saying;

constexpr Index B = 2, H = 3, L = 6, D = 20;

/// RoPE-Mixed: every head has its own angles, on a grid of 2 x 3 patches.
const std::vector<frequency_table<float>>& tables() {
  static const std::vector<frequency_table<float>> list = [] {
    std::vector<frequency_table<float>> made;
    for (const double angle : {0.1, 1.3, 2.9})
      made.emplace_back(rope::rope_vit_mixed_frequencies(16, angle), rope::grid_positions({2, 3}, {1, -4}));
    return made;
  }();
  return list;
}

}  // namespace

TEMPLATE_TEST_CASE("every head rotates by its own table", "[rotation][rotate_heads]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const std::vector<TestType> before = testing::random_channels<TestType>(B * L * H * D, 71);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    const auto check = [&](const auto& positions) {
      for (const bool tokens_first : {true, false}) {
        const auto view = [&](std::vector<TestType>& x) {
          return tokens_first ? rope::bshd(x.data(), B, L, H, D) : rope::bhsd(x.data(), B, H, L, D);
        };
        std::vector<TestType> x = before, y = before;
        rope::rotate_heads<Layout>(view(x), tables(), positions);
        for (Index h = 0; h < H; ++h)
          rope::rotate<Layout>(view(y).head_range(h, 1), tables()[static_cast<std::size_t>(h)], positions);
        CHECK(same_bits(x, y));
        CHECK_FALSE(same_bits(x, before));
        // Heads differ: the table of the first head alone gives another result.
        std::vector<TestType> z = before;
        rope::rotate<Layout>(view(z), tables()[0], positions);
        CHECK_FALSE(same_bits(x, z));

        rope::unrotate_heads<Layout>(view(x), tables(), positions);
        for (Index h = 0; h < H; ++h)
          rope::unrotate<Layout>(view(y).head_range(h, 1), tables()[static_cast<std::size_t>(h)], positions);
        CHECK(same_bits(x, y));
      }
    };
    check(0);
    check(std::vector<int>{5, 4, 3, 2, 1, 0});
  });
}

TEST_CASE("a head may rotate fewer channels than another", "[rotation][rotate_heads]") {
  const std::vector<frequency_table<float>> mixed = {
      {frequencies(8), 9}, {frequencies(20), 9}, {frequencies(2), 9}};
  std::vector<float> x = testing::random_channels<float>(L * H * D, 72), y = x;
  rope::rotate_heads<half_split>(rope::thd(x.data(), L, H, D), mixed, 3);
  for (Index h = 0; h < H; ++h)
    rope::rotate<half_split>(rope::thd(y.data(), L, H, D).head_range(h, 1),
                             mixed[static_cast<std::size_t>(h)], 3);
  CHECK(same_bits(x, y));
}

TEST_CASE("a call that is invalid for one head changes no head", "[rotation][rotate_heads]") {
  const std::vector<float> before = testing::random_channels<float>(L * H * D, 73);
  const auto rejects = [&](auto error, const auto& list, const auto& positions, const auto&... parts) {
    using exception = decltype(error);
    std::vector<float> x = before;
    const auto view = rope::thd(x.data(), L, H, D);
    const bool rotated = throws_saying<exception>(
        [&] { rope::rotate_heads<half_split>(view, list, positions); }, "rope::rotate_heads: ", parts...);
    const bool unrotated = throws_saying<exception>(
        [&] { rope::unrotate_heads<half_split>(view, list, positions); }, "rope::unrotate_heads: ", parts...);
    return rotated && unrotated && same_bits(x, before);
  };
  const std::invalid_argument argument("");
  const std::out_of_range range("");
  using list = std::vector<frequency_table<float>>;
  CHECK(rejects(argument, list{{frequencies(8), 9}, {frequencies(8), 9}}, 0,
                "give one table per head, 3, got 2"));
  CHECK(rejects(argument, list(4, {frequencies(8), 9}), 0, "got 4"));
  CHECK(rejects(argument, list{{frequencies(8), 9}, {frequencies(8), 9}, {frequencies(22), 9}}, 0,
                "rotary_dim must not exceed head_dim"));
  CHECK(rejects(range, list{{frequencies(8), 9}, {frequencies(8), 9}, {frequencies(8), 5}}, 0, "position 5"));
  CHECK(rejects(argument, list(3, {frequencies(8), 9}), std::vector<int>{1, 2}, "ids must be [tokens] = 6"));

  // Without heads, too.
  const auto rejects_no_heads = [&](Index batch, const std::vector<int>& ids, const char* text) {
    std::vector<float> x = before;
    const rope::head_view<float> view = {x.data(), batch, L, 0, D, 0, 0, 0};
    return throws_saying<std::invalid_argument>([&] { rope::rotate_heads<half_split>(view, list{}, ids); },
                                                "rope::rotate_heads: ", text);
  };
  CHECK(rejects_no_heads(-1, {}, "the extents of a view must not be negative, got [-1, "));
  CHECK(rejects_no_heads(1, {1, 2}, "ids must be [tokens] = 6, got 2"));

  // The factor of the last table has no inverse in its type.
  std::vector<float> x = before;
  const frequencies growing = frequencies::custom(frequencies(8).inv_freq(), 0x1p127);
  const list without_inverse = {{frequencies(8), 9}, {frequencies(8), 9}, {growing, 9}};
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::unrotate_heads<half_split>(rope::thd(x.data(), L, H, D), without_inverse); },
      "rope::unrotate_heads: the attention_factor must be at most 2^126"));
  CHECK(same_bits(x, before));
  rope::head_view<float> expanded = rope::thd(x.data(), L, H, D);
  expanded.head_stride = 0;
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::rotate_heads<half_split>(expanded, list(3, {frequencies(8), 9}));
      },
      "rope::rotate_heads: the channels of a view that is written must not overlap, got a stride of 0"));
  CHECK(same_bits(x, before));
}

TEST_CASE("heads_as_batch makes a batch row of the heads of every key head", "[rotation]") {
  std::vector<float> memory(2 * 3 * 6 * 4);
  const auto checked = [](const head_view<float>& x, Index kv_heads) {
    const head_view<float> rows = rope::heads_as_batch(x, kv_heads);
    const Index group = x.heads / kv_heads;
    bool same = rows.batch == x.batch * kv_heads && rows.tokens == x.tokens && rows.heads == group &&
                rows.head_dim == x.head_dim;
    for (Index b = 0; b < x.batch; ++b)
      for (Index t = 0; t < x.tokens; ++t)
        for (Index h = 0; h < x.heads; ++h)
          same = same && rows.at(b * kv_heads + h / group, t, h % group) == x.at(b, t, h);
    return same;
  };
  for (const Index kv_heads : {1, 2, 3, 6}) {
    CHECK(checked(rope::bhsd(memory.data(), 2, 6, 3, 4), kv_heads));
    CHECK(checked(rope::bshd(memory.data(), 1, 6, 6, 4), kv_heads));
    CHECK(checked(rope::thd(memory.data(), 6, 6, 4), kv_heads));
    CHECK(checked(rope::bhsd(memory.data(), 2, 6, 3, 4).token_range(1, 2).channels(1, 2), kv_heads));
    CHECK(checked(rope::bshd(memory.data(), 2, 0, 6, 4).batch_range(0, 1), kv_heads));
  }
  CHECK(checked(rope::bshd(memory.data(), 2, 3, 6, 4), 1));
  CHECK(rope::heads_as_batch(head_view<const float>(rope::bshd(memory.data(), 2, 3, 0, 4)), 2).batch == 4);
}

TEST_CASE("heads_as_batch throws if no row stride fits", "[rotation]") {
  std::vector<float> memory(2 * 3 * 6 * 4);
  const auto rejected = [](const head_view<float>& x, Index kv_heads, const char* text) {
    return throws_saying<std::invalid_argument>([&] { (void)rope::heads_as_batch(x, kv_heads); },
                                                "heads_as_batch: ", text);
  };
  CHECK(rejected(
      rope::bshd(memory.data(), 2, 3, 6, 4), 2,
      "the batch_stride must be that of 6 heads, as in bhsd, got 72 and a head_stride of 4; copy to bhsd "
      "order, or call it for one row at a time: batch_range(b, 1)"));
  CHECK(rejected(rope::bhsd(memory.data(), 2, 6, 3, 4).head_range(0, 4), 2, "that of 4 heads"));
  CHECK(rejected(rope::bhsd(memory.data(), 2, 6, 3, 4), 4,
                 "kv_heads must be at least 1 and divide 6 heads, got 4"));
  CHECK(rejected(rope::bhsd(memory.data(), 2, 6, 3, 4), 0, "divide 6 heads, got 0"));
  CHECK(rejected(rope::bhsd(memory.data(), 2, 6, 3, 4), -2, "divide 6 heads, got -2"));
}
