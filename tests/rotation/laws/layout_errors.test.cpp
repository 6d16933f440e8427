// SPDX-License-Identifier: MIT
// A user-defined layout with a channel in two pairs would rotate it twice: every call with a layout throws
// before anything is written.
#include <rope/rope.hpp>

#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tape.hpp"

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
/// The first channel with the last, the second with the last but one: a valid layout.
struct mirrored {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return 2 * pairs - 1 - i; }
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
  rejected("attention_gradient",
           [&] { attention_gradient<bad>(testing::tape(x, x, x, x, y, y, y, y), table); });
  CHECK(cache.size() == 3);
  CHECK(memory.untouched());
  CHECK(other.untouched());
}
