// SPDX-License-Identifier: MIT
// A ring with axes is a kv_cache with axes that drops tokens which no query can attend to: it has the
// remaining tokens at the same coordinates, the same keys, and attention with a window and sinks.
#include <rope/cache/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <rope/frequencies/axes.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index capacity = 150, heads = 4, kv_heads = 2, head_dim = 10, value_dim = 3;
using Axes = Eigen::ArrayXXd;

const frequencies text_schedule(8, 1e4), on_three = on_axes(text_schedule, interleaved_sections({2, 1, 1}));

void check_ring(std::uint64_t seed) {
  testing::random numbers(seed);
  const auto up_to = [&](Index largest) { return static_cast<Index>(numbers.integer(0, largest)); };
  const ring_policy policy{.sinks = up_to(4), .window = 1 + up_to(5), .chunk = 1 + up_to(4)};
  const Index batch = 1 + up_to(2);
  CAPTURE(seed, policy.sinks, policy.window, policy.chunk, batch);
  ring_cache<float> ring(batch, policy, kv_heads, head_dim, token_axes{3}, value_dim);
  kv_cache<float> all(batch, capacity, kv_heads, head_dim, token_axes{3}, value_dim);
  const frequency_table<> text(text_schedule, -100, 600);
  const reference::model m{heads, kv_heads, head_dim, value_dim, {}, {}};
  const double bound = 2 * reference::decoder_bound<float, float>(m, capacity, 0, true);
  const auto channels = [&](Index tokens, Index width) {
    return testing::random_channels<float>(batch * tokens * width,
                                           static_cast<std::uint32_t>(numbers.bits()));
  };
  const auto whole = [&] {
    const auto next = all.next_coordinates();
    return (next == next.floor()).all();
  };

  const auto append = [&](Index tokens) {
    const auto k = channels(tokens, kv_heads * head_dim), v = channels(tokens, kv_heads * value_dim);
    const auto keys = bshd(k.data(), batch, tokens, kv_heads, head_dim),
               values = bshd(v.data(), batch, tokens, kv_heads, value_dim);
    std::vector<int> counts;
    if (up_to(1) == 0)
      for (Index b = 0; b < batch; ++b) counts.push_back(static_cast<int>(up_to(tokens)));
    const auto both = [&](const frequency_table<>& table) {
      ring.append<half_split>(keys, values, table, counts);
      all.append<half_split>(keys, values, table, counts);
    };
    const Index form = up_to(3);
    if (form == 0 && whole()) return both(text);
    if (form == 1) return both({on_three, ring.next_coordinates(tokens)});
    Axes c((form == 2 ? 1 : batch) * tokens, 3);
    const double unit = up_to(3) == 0 ? 0.5 : 1.0;
    for (Index r = 0; r < c.rows(); ++r)
      for (Index a = 0; a < 3; ++a) c(r, a) = unit * static_cast<double>(up_to(120) - 30);
    both({on_three, c});
  };
  const auto attend = [&] {
    const Index queries = 1 + up_to(policy.chunk + 1);
    std::vector<int> counts;
    Axes c = Axes::Zero(batch * queries, 3);
    bool is_text = true, answered = true;
    for (Index b = 0; b < batch; ++b) {
      const Index size = all.size(b), count = (std::min)(size, up_to(queries));
      counts.push_back(static_cast<int>(count));
      for (Index t = 0; t < count; ++t) {
        c.row(b * queries + t) = all.coordinates(b).row(size - count + t);
        is_text = is_text && (c.row(b * queries + t) == std::floor(c(b * queries + t, 0))).all();
        answered = answered && ring.holds_window(b, size - count + t);
      }
    }
    const auto q = channels(queries, heads * head_dim);
    std::vector<float> out(static_cast<std::size_t>(batch * queries * heads * value_dim), -77),
        expected = out;
    const auto view = [&](std::vector<float>& x) { return bshd(x.data(), batch, queries, heads, value_dim); };
    const frequency_table<> there(on_three, c);
    const frequency_table<>& table = is_text && up_to(1) == 0 ? text : there;
    const auto ask = [&](const auto& cache, std::vector<float>& to, const attention_options& options) {
      attention<half_split>(bshd(q.data(), batch, queries, heads, head_dim), cache, view(to), table, options,
                            counts);
    };
    if (!answered) {
      CHECK(throws_saying<std::invalid_argument>([&] { ask(ring, out, {}); }, "tokens per call"));
      CHECK(out == expected);
      return;
    }
    ask(ring, out, {});
    ask(all, expected, {.window = policy.window, .sinks = policy.sinks});
    CHECK(testing::largest_difference(out, expected) <= bound);
  };
  const auto roll_back = [&] {
    const Index b = up_to(batch - 1);
    const Index size = (std::max)(Index{0}, all.size(b) - up_to(policy.chunk + 2));
    const auto call = [&] { ring.truncate(size, batch_row{b}); };
    // The tokens to which the next query attends besides itself, and the last token, after which text
    // continues.
    const auto order = ring.order(b);
    bool there = true;
    for (Index i = 0; i < size; ++i)
      if (i >= policy.sinks && (size - i < policy.window || i + 1 == size))
        there = there && std::find(order.begin(), order.end(), i) != order.end();
    if (!there) {
      CHECK(throws_saying<std::out_of_range>(call, "were overwritten and the window of token"));
      return;
    }
    call();
    all.truncate(size, batch_row{b});
  };
  const auto check = [&] {
    CHECK((ring.next_coordinates() == all.next_coordinates()).all());
    for (Index b = 0; b < batch; ++b) {
      CHECK(ring.seen()[static_cast<std::size_t>(b)] == all.size(b));
      const auto order = ring.order(b);
      for (std::size_t s = 0; s < order.size(); ++s) {
        if (order[s] == ring_cache<float>::no_position) continue;
        const auto slot = static_cast<Index>(s), token = static_cast<Index>(order[s]);
        CHECK((ring.coordinates(b).row(slot) == all.coordinates(b).row(token)).all());
        CHECK(testing::same_heads(ring.keys(b).token_range(slot, 1), all.keys(b).token_range(token, 1)));
        CHECK(testing::same_heads(ring.values(b).token_range(slot, 1), all.values(b).token_range(token, 1)));
      }
    }
  };
  for (int i = 0; i < 14; ++i) {
    append(up_to(4) == 0 ? (std::min)(ring.capacity() + 1, Index{10}) : 1 + up_to(policy.chunk - 1));
    check();
    attend();
    if (up_to(2) == 0) {
      roll_back();
      check();
      attend();
    }
  }
  ring.clear();
  CHECK(ring.next_positions()[0] == 0);
}

}  // namespace

TEST_CASE("a ring with axes gives the attention of the whole conversation", "[cache]") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) check_ring(seed);
}

TEST_CASE("a ring with axes throws where a kv_cache with axes does", "[cache]") {
  ring_cache<float> ring(1, {.sinks = 1, .window = 3, .chunk = 2}, kv_heads, head_dim, token_axes{3});
  const auto x = testing::random_channels<float>(4 * heads * head_dim, 5);
  std::vector<float> out(x.size(), -77);
  const auto heads_of = [&](Index tokens, Index count) { return bshd(x.data(), 1, tokens, count, head_dim); };
  const auto append = [&](Index tokens, const auto& table) {
    ring.append<half_split>(heads_of(tokens, kv_heads), heads_of(tokens, kv_heads), table);
  };
  const auto ask = [&](Index tokens, const auto& table) {
    attention<half_split>(heads_of(tokens, heads), ring, bshd(out.data(), 1, tokens, heads, head_dim), table);
  };
  const frequency_table<> text(text_schedule, 20), image(on_three, Axes::Constant(2, 3, 4.5)),
      other(on_axes(text_schedule, contiguous_sections({2, 1, 1})), Axes::Zero(2, 3));
  append(2, image);
  const auto rejected = [&](const auto& call, const char* text_of_error) {
    CHECK(throws_saying<std::invalid_argument>(call, text_of_error));
    CHECK(ring.seen()[0] == 2);
    CHECK((ring.coordinates(0) == 4.5).all());
    CHECK(ring.next_coordinates()(0, 2) == 5.5);
    CHECK(std::all_of(out.begin(), out.end(), [](float y) { return y == -77; }));
  };
  rejected([&] { append(2, other); },
           "rope::ring_cache: give the layout and the frequencies that the keys were rotated by, got other");
  rejected([&] { append(1, image); }, "ring_cache::append: coordinates must have [tokens] = 1 or");
  rejected([&] { append(1, text); }, "ring_cache::append: the next position must be an integer");
  rejected([&] { ring.append(heads_of(1, kv_heads), heads_of(1, kv_heads)); }, "this cache rotates its keys");
  rejected(
      [&] {
        append(2, frequency_table<>(on_axes(text_schedule, contiguous_sections({2, 2})), Axes::Zero(2, 2)));
      },
      "tokens of this cache have 3 axes, got coordinates of 2");
  rejected([&] { ring.next_positions(); },
           "ring_cache::next_positions: the next position must be an integer");
  rejected([&] { ring.positions(0); }, "ring_cache::positions: tokens of this cache have 3 axes");
  rejected([&] { ask(2, frequency_table<>(on_three, Axes::Zero(2, 3))); },
           "row 0 is at 0 on axis 0 and the token at 4.5");
  rejected([&] { ask(1, text); }, "a table of positions rotates text only");
  ask(2, image);
  CHECK(out[0] != -77);
  // A window of one token: text cannot continue after an overwritten token.
  ring_cache<float> one(1, {.window = 1, .chunk = 2}, kv_heads, head_dim, token_axes{1});
  one.append(heads_of(4, kv_heads), heads_of(4, kv_heads));
  CHECK(throws_saying<std::out_of_range>([&] { one.truncate(1); }, "tokens before 2 were overwritten"));
  one.truncate(3);
  CHECK(one.next_positions()[0] == 3);
  CHECK(throws_saying<std::invalid_argument>(
      [] {
        ring_cache<float>(1, {.window = 4, .positions = ring_positions::cache}, kv_heads, head_dim,
                          token_axes{3});
      },
      "positions in the cache change with every token and need raw keys"));
}
