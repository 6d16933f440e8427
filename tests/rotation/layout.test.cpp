// SPDX-License-Identifier: MIT
#include <rope/rotation/layout.hpp>

#include <array>
#include <cstddef>
#include <rope/rope.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/reference.hpp"
#include "support/tape.hpp"

namespace {

using rope::Index;

/// The first channel with the last, the second with the last but one, ...: a layout that a user could write.
struct mirrored {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return 2 * pairs - 1 - i; }
};
struct narrow {
  static int first(Index i, Index /*pairs*/) { return static_cast<int>(2 * i); }
  static int second(Index i, Index /*pairs*/) { return static_cast<int>(2 * i + 1); }
};
struct without_second {
  static Index first(Index i, Index /*pairs*/) { return i; }
};
struct of_one_argument {
  static Index first(Index i) { return i; }
  static Index second(Index i) { return i + 1; }
};
struct of_pointers {
  static const char* first(Index /*i*/, Index /*pairs*/) { return ""; }
  static const char* second(Index /*i*/, Index /*pairs*/) { return ""; }
};

/// How often each of the channels [0, 2 * pairs) is named. A channel outside counts as an error in element 0.
template <class Layout>
std::vector<int> uses_of_channels(Index pairs) {
  std::vector<int> uses(static_cast<std::size_t>(2 * pairs), 0);
  for (Index i = 0; i < pairs; ++i)
    for (const Index channel : {Layout::first(i, pairs), Layout::second(i, pairs)})
      uses[channel >= 0 && channel < 2 * pairs ? static_cast<std::size_t>(channel) : 0] += 1;
  return uses;
}

}  // namespace

// Golden: the two diagrams of layout.hpp, which are those of `rotate_every_two` and `rotate_half` in Hugging
// Face transformers (gptj and llama).
TEST_CASE("interleaved pairs neighbours and half_split pairs the halves", "[rotation][layout]") {
  constexpr Index pairs = 4;
  const std::array<std::array<Index, 2>, 4> neighbours = {{{0, 1}, {2, 3}, {4, 5}, {6, 7}}};
  const std::array<std::array<Index, 2>, 4> halves = {{{0, 4}, {1, 5}, {2, 6}, {3, 7}}};
  for (Index i = 0; i < pairs; ++i) {
    CAPTURE(i);
    const auto n = static_cast<std::size_t>(i);
    CHECK(rope::interleaved::first(i, pairs) == neighbours[n][0]);
    CHECK(rope::interleaved::second(i, pairs) == neighbours[n][1]);
    CHECK(rope::half_split::first(i, pairs) == halves[n][0]);
    CHECK(rope::half_split::second(i, pairs) == halves[n][1]);
  }
}

TEMPLATE_TEST_CASE("a layout names every channel once", "[rotation][layout]", rope::interleaved,
                   rope::half_split, mirrored) {
  for (Index pairs = 1; pairs <= 128; ++pairs) {
    CAPTURE(pairs);
    REQUIRE(uses_of_channels<TestType>(pairs) == std::vector<int>(static_cast<std::size_t>(2 * pairs), 1));
  }
}

TEST_CASE("the layouts are those of the reference", "[rotation][layout]") {
  for (std::size_t pairs = 1; pairs <= 128; ++pairs)
    for (std::size_t i = 0; i < pairs; ++i) {
      const auto n = static_cast<Index>(i), count = static_cast<Index>(pairs);
      const auto [a, b] = reference::interleaved(i, pairs);
      const auto [c, d] = reference::half_split(i, pairs);
      CAPTURE(pairs, i);
      REQUIRE(rope::interleaved::first(n, count) == static_cast<Index>(a));
      REQUIRE(rope::interleaved::second(n, count) == static_cast<Index>(b));
      REQUIRE(rope::half_split::first(n, count) == static_cast<Index>(c));
      REQUIRE(rope::half_split::second(n, count) == static_cast<Index>(d));
    }
}

TEST_CASE("a head of two channels is one pair in either layout", "[rotation][layout]") {
  STATIC_REQUIRE(rope::interleaved::first(0, 1) == rope::half_split::first(0, 1));
  STATIC_REQUIRE(rope::interleaved::second(0, 1) == rope::half_split::second(0, 1));
}

TEST_CASE("a user's policy is a layout if it maps a pair to two channels", "[rotation][layout]") {
  STATIC_REQUIRE(rope::pair_layout<rope::interleaved>);
  STATIC_REQUIRE(rope::pair_layout<rope::half_split>);
  STATIC_REQUIRE(rope::pair_layout<mirrored>);
  STATIC_REQUIRE(rope::pair_layout<narrow>);
  STATIC_REQUIRE_FALSE(rope::pair_layout<without_second>);
  STATIC_REQUIRE_FALSE(rope::pair_layout<of_one_argument>);
  STATIC_REQUIRE_FALSE(rope::pair_layout<of_pointers>);
  STATIC_REQUIRE_FALSE(rope::pair_layout<int>);
}

TEST_CASE("calls without a layout have no default", "[rotation][layout]") {
  STATIC_REQUIRE_FALSE(rope::pair_layout<rope::detail::unnamed_layout>);
}

// A user-defined layout with a channel in two pairs would rotate this channel twice, so every call with such
// a layout throws before anything is written.

using namespace rope;
using testing::guarded_memory;
using testing::throws_saying;

namespace {

/// Pair i of the first half of the pairs and pair i of the second half are the same channels.
struct two_pairs_in_one {
  static Index first(Index i, Index pairs) { return i % (pairs / 2); }
  static Index second(Index i, Index pairs) { return i % (pairs / 2) + pairs; }
};
/// The last pair names the first channel of pair 0 instead of its own.
struct last_at_first {
  static Index first(Index i, Index pairs) { return i + 1 == pairs ? 0 : i; }
  static Index second(Index i, Index pairs) { return i + pairs; }
};

}  // namespace

TEST_CASE("a layout with a channel in two pairs throws, for any number of channels", "[rotation]") {
  for (const Index pairs : {4, 512, 514, 2000}) {
    CAPTURE(pairs);
    const frequency_table<float> table(frequencies(2 * pairs), 10);
    guarded_memory<float> memory(2 * pairs);
    const auto x = thd(memory.data(), 1, 1, 2 * pairs);
    const std::string once =
        " the layout must name every channel of [0, " + std::to_string(2 * pairs) + ") once, got channel ";
    CHECK(throws_saying<std::invalid_argument>([&] { rotate<two_pairs_in_one>(x, table, 7); },
                                               "rope::rotate:" + once,
                                               "0 again for pair " + std::to_string(pairs / 2)));
    CHECK(throws_saying<std::invalid_argument>([&] { unrotate<last_at_first>(x, table, 7); },
                                               "rope::unrotate:" + once,
                                               "0 again for pair " + std::to_string(pairs - 1)));
    CHECK(memory.untouched());
    std::vector<float> y(static_cast<std::size_t>(2 * pairs), 1.0f);
    CHECK_NOTHROW(rotate<mirrored>(thd(y.data(), 1, 1, 2 * pairs), table, 7));
  }
}

TEST_CASE("a layout with a channel in two pairs throws in every call", "[rotation]") {
  using bad = two_pairs_in_one;
  const frequency_table<float> table(frequencies(8), 20);
  guarded_memory<float> memory(200), other(400);
  const auto x = bshd(memory.data(), 1, 3, 2, 8), y = bshd(other.data(), 1, 3, 2, 8);
  const auto rejected = [](const char* function, const auto& call) {
    CAPTURE(function);
    CHECK(throws_saying<std::invalid_argument>(call, std::string("rope::") + function + ": ",
                                               "name every channel of [0, 8) once, got"));
  };
  rejected("rotate", [&] { rotate<bad>(x, y, table); });
  rejected("rotate_to", [&] { rotate_to<bad>(x, y, table); });
  rejected("rotate_gradient", [&] { rotate_gradient<bad>(x, table); });
  rejected("angle_gradient", [&] { angle_gradient<bad>(x, y, table); });
  rejected("rotate_heads", [&] { rotate_heads<bad>(x, std::vector(2, table)); });
  rejected("permute_channels", [&] { permute_channels<interleaved, bad>(x); });
  rejected("permute_channels", [&] { permute_channels<bad, interleaved>(x); });
  rejected("pope", [&] { pope<bad>(x.channels(0, 4), bshd(other.data(), 1, 3, 2, 8), table); });
  rejected("attention", [&] { attention<bad>(x, x, x, y, table); });
  kv_cache<float> cache(1, 8, 2, 8), raw(1, 8, 2, 8, 0, key_storage::raw);
  ring_cache<float> ring(1, {.window = 4}, 2, 8);
  rejected("kv_cache::append", [&] { cache.append<bad>(x, x, table); });
  rejected("kv_cache::append_at", [&] { cache.append_at<bad>(x, x, table, 4); });
  rejected("ring_cache::append", [&] { ring.append<bad>(x, x, table); });
  cache.append(x, x);
  raw.append(x, x);
  rejected("attention", [&] { attention<bad>(x, raw, y, table); });
  const auto gradient = [&](Index n) { return bshd(other.data() + n * y.size(), 1, 3, 2, 8); };
  rejected("attention_gradient", [&] {
    attention_gradient<bad>(testing::tape(x, x, x, x, y, gradient(1), gradient(2), gradient(3)), table);
  });
  CHECK(cache.size() == 3);
  CHECK(memory.untouched());
  CHECK(other.untouched());
}
