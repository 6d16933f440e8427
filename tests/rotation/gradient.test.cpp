// SPDX-License-Identifier: MIT
#include <rope/rotation/gradient.hpp>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

// The gradient with respect to the heads as a rotation by negative positions; angle_gradient.test.cpp
// compares it with published values and with the derivative of the rotation.

using rope::head_view;
using rope::Index;
using testing::guarded_memory;

TEMPLATE_LIST_TEST_CASE("the gradient with respect to the heads rotates back and keeps the attention_factor",
                        "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const std::uint32_t seed = testing::seed();
  CAPTURE(seed);
  const Index batch = 2, tokens = 5, heads = 3, head_dim = 40;
  for (const double m : {1.0, 1.5, 0.7})
    for (const Index rotary_dim : {2, 18, 40}) {
      CAPTURE(m, rotary_dim);
      const auto frequencies = rope::frequencies::custom(rope::frequencies(rotary_dim).inv_freq(), m);
      const rope::frequency_table<S> table(frequencies, -20, 40);
      const std::vector<std::int64_t> ids = {3, 0, -20, 39, 7};
      testing::for_each_layout([&](auto layout) {
        using L = decltype(layout);
        guarded_memory<T> in(2000), out(2000);
        const auto x = rope::bhsd(in.data() + 1, batch, heads, tokens, head_dim),
                   y = rope::bshd(out.data() + 3, batch, tokens, heads, head_dim);
        in.fill(x, seed);
        const auto position_of = [&](Index, Index t) { return -ids[static_cast<std::size_t>(t)]; };
        rope::rotate_gradient_to<L>(x, y, table, ids);
        CHECK(in.untouched());
        CHECK(out.untouched_outside(y));
        CHECK(testing::worst_error<L, S>(head_view<const T>(x), head_view<const T>(y), frequencies,
                                         position_of) <= 1);
        testing::for_each_head(x, [&](Index b, Index t, Index h) {
          CHECK(testing::same_bits<T>(x.at(b, t, h) + rotary_dim, y.at(b, t, h) + rotary_dim,
                                      head_dim - rotary_dim));
        });
        // In place, as one of a pair, on threads, and in scalars: the same bits.
        const auto again = [&](auto call) {
          const std::vector<T> before = in.now;
          call();
          CHECK(testing::same_heads(x, y));
          CHECK(in.untouched_outside(x));
          in.now = before;
        };
        again([&] { rope::rotate_gradient<L>(x, table, ids); });
        again([&] { rope::rotate_gradient<L>(x.head_range(0, 1), x.head_range(1, 2), table, ids); });
        again([&] { rope::rotate_gradient<L>(x, table, ids, testing::own_threads{3}); });
        if (m == 1) again([&] { rope::unrotate<L>(x, table, ids); });
        const auto twin = [&] { rope::rotate_gradient<testing::scalar_twin<L>>(x, table, ids); };
        if (std::is_same_v<S, rope::detail::arithmetic<T>>) again(twin);
      });
    }
}
