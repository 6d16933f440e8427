// SPDX-License-Identifier: MIT
// A view with elements has memory: a null pointer throws in the functions that read or write it, before
// anything is written. A view without elements may have a null pointer.
#include <rope/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tape.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

const frequency_table<float> table(frequencies(4), 10);
const std::string shape = ": a view must have data, got null for [2, 3, 2, 4]";

head_view<float> null() { return bshd(static_cast<float*>(nullptr), 2, 3, 2, 4); }
head_view<float> nothing() { return bshd(static_cast<float*>(nullptr), 2, 0, 2, 4); }

/// Memory that must not be written.
struct ones {
  std::vector<float> memory = std::vector<float>(48, 1.0f);
  head_view<float> view() { return bshd(memory.data(), 2, 3, 2, 4); }
  ~ones() { CHECK(memory == std::vector<float>(48, 1.0f)); }
};

template <class Call>
void check_rejected(const char* function, const Call& call) {
  CAPTURE(function);
  CHECK(throws_saying<std::invalid_argument>(call, std::string("rope::") + function + shape));
}

}  // namespace

TEST_CASE("a view without data throws in every form of rotate", "[library]") {
  ones x;
  check_rejected("rotate", [] { rotate<half_split>(null(), table); });
  check_rejected("unrotate", [] { unrotate<interleaved>(null(), table, 2); });
  check_rejected("rotate_to", [&] { rotate_to<half_split>(null(), x.view(), table); });
  check_rejected("rotate_to", [&] { rotate_to<half_split>(x.view(), null(), table, 3); });
  check_rejected("rotate", [&] { rotate<half_split>(x.view(), null(), table, 3); });
  check_rejected("rotate", [&] { rotate<half_split>(null(), x.view(), table, 3); });
  check_rejected("rotate_gradient", [] { rotate_gradient<half_split>(null(), table); });
  check_rejected("rotate_gradient_to", [&] { rotate_gradient_to<half_split>(x.view(), null(), table); });
  check_rejected("angle_gradient", [&] { angle_gradient<half_split>(x.view(), null(), table); });
  check_rejected("angle_gradient", [&] { angle_gradient<half_split>(null(), x.view(), table); });
  check_rejected("rotate_heads", [] { rotate_heads<half_split>(null(), std::vector(2, table)); });
  check_rejected("scale_queries", [] { scale_queries(null(), [](std::int64_t) { return 2.0; }); });
  check_rejected("permute_channels", [] { permute_channels<interleaved, half_split>(null()); });
  check_rejected("pope", [] {
    std::vector<float> wide(2 * 3 * 2 * 6);
    pope<half_split>(null(), bshd(wide.data(), 2, 3, 2, 6), table);
  });
}

TEST_CASE("a view without data throws in caches and merges", "[library]") {
  ones x;
  kv_cache<float> cache(2, 8, 2, 4), raw(2, 8, 2, 4, 0, key_storage::raw);
  ring_cache<float> ring(2, {.window = 4}, 2, 4);
  check_rejected("kv_cache::append", [&] { cache.append(null(), x.view()); });
  check_rejected("kv_cache::append", [&] { cache.append(x.view(), null()); });
  check_rejected("kv_cache::append", [&] { raw.append(x.view(), null()); });
  check_rejected("kv_cache::append", [&] { cache.append<half_split>(null(), x.view(), table); });
  check_rejected("kv_cache::append", [&] { cache.append<half_split>(x.view(), null(), table); });
  check_rejected("kv_cache::append_at", [&] { cache.append_at(x.view(), null(), 4); });
  check_rejected("ring_cache::append", [&] { ring.append(x.view(), null()); });
  check_rejected("ring_cache::append", [&] { ring.append<half_split>(null(), x.view(), table); });
  CHECK(cache.size() == 0);
  CHECK(raw.size() == 0);
  CHECK(ring.next_positions()[0] == 0);
  std::vector<double> sums(12);
  check_rejected("merge_attention",
                 [&] { merge_attention(null(), std::span(sums), x.view(), std::span<const double>(sums)); });
  check_rejected("merge_attention",
                 [&] { merge_attention(x.view(), std::span(sums), null(), std::span<const double>(sums)); });
}

TEST_CASE("a view without data throws in attention", "[library]") {
  ones x;
  kv_cache<float> cache(2, 8, 2, 4);
  cache.append(x.view(), x.view());
  check_rejected("attention", [&] { attention(null(), x.view(), x.view(), x.view()); });
  check_rejected("attention", [&] { attention(x.view(), null(), x.view(), x.view()); });
  check_rejected("attention", [&] { attention(x.view(), x.view(), null(), x.view()); });
  check_rejected("attention", [&] { attention(x.view(), x.view(), x.view(), null()); });
  check_rejected("attention", [&] { attention<half_split>(null(), x.view(), x.view(), x.view(), table); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), null(), x.view(), x.view(), table); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), x.view(), null(), x.view(), table); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), x.view(), x.view(), null(), table); });
  check_rejected("attention", [&] { attention(null(), cache, x.view()); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), cache, null(), table); });
  std::vector<float> weights(2 * 2 * 3 * 3);
  check_rejected("attention_weights", [&] { attention_weights(null(), x.view(), weights); });
  check_rejected("attention_weights", [&] { attention_weights(x.view(), null(), weights); });
  check_rejected("attention_weights",
                 [&] { attention_weights<half_split>(x.view(), null(), weights, table); });
  const xpos<float> growing(frequencies(4), 10, {.center = 5});
  check_rejected("attention", [&] { attention<half_split>(x.view(), null(), x.view(), x.view(), growing); });
  check_rejected("attention", [&] { attention<half_split>(x.view(), x.view(), null(), x.view(), growing); });
  check_rejected("rate_gradient",
                 [&] { rate_gradient<half_split>(xpos_side::keys, x.view(), null(), growing); });
  check_rejected("attention_gradient", [&] {
    attention_gradient(
        testing::tape(x.view(), x.view(), x.view(), x.view(), x.view(), x.view(), null(), x.view()));
  });
  check_rejected("attention_gradient", [&] {
    attention_gradient<half_split>(
        testing::tape(x.view(), x.view(), x.view(), null(), x.view(), x.view(), x.view(), x.view()), table);
  });
}

TEST_CASE("an empty view needs no data", "[library]") {
  kv_cache<float> cache(2, 8, 2, 4);
  ring_cache<float> ring(2, {.window = 4}, 2, 4);
  CHECK_NOTHROW(rotate<half_split>(nothing(), table));
  CHECK_NOTHROW(rotate_to<half_split>(nothing(), nothing(), table));
  CHECK_NOTHROW(scale_queries(nothing(), llama4_query_scaling{}));
  CHECK_NOTHROW(permute_channels<interleaved, half_split>(nothing()));
  CHECK_NOTHROW(cache.append<half_split>(nothing(), nothing(), table));
  CHECK_NOTHROW(ring.append(nothing(), nothing()));
  CHECK_NOTHROW(attention(nothing(), nothing(), nothing(), nothing()));
  CHECK_NOTHROW(attention<half_split>(nothing(), cache, nothing(), table));
}
