// SPDX-License-Identifier: MIT
// Work that a rotation does once for all heads of a token, and the use of packets for either layout. No
// result shows that cos and sin stay in registers from head to head: bench/ measures it.
#include <rope/rotation/rotate.hpp>

#include <algorithm>  // std::count
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"

using rope::Index;
using testing::for_each_layout;
using testing::name_of;

namespace {

/// Positions that count how often each is read.
struct counted_positions {
  std::vector<int>* times;  // [batch * tokens]
  Index tokens;

  std::int64_t operator()(Index b, Index t) const {
    ++(*times)[static_cast<std::size_t>(b * tokens + t)];
    return 2 * t;
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("the position of a token is read once for all its heads", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const Index batch = 2, tokens = 300, head_dim = 22;
  const rope::frequency_table<S> table(rope::frequencies(20), 2 * tokens);
  for_each_layout([&]<class Layout>(Layout) {
    for (const Index heads : {1, 2, 9}) {
      const std::vector<T> in = testing::random_channels<T>(batch * tokens * heads * head_dim, 7);
      std::vector<T> out(in.size());
      for (const bool token_major : {true, false}) {
        const auto view = [&](auto* x) {
          return token_major ? rope::bshd(x, batch, tokens, heads, head_dim)
                             : rope::bhsd(x, batch, heads, tokens, head_dim);
        };
        std::vector<int> times(static_cast<std::size_t>(batch * tokens), 0);
        rope::detail::rotate_into<Layout, false>(view(in.data()), view(out.data()),
                                                 rope::detail::placed(table),
                                                 counted_positions{&times, tokens});
        CAPTURE(name_of<Layout>, heads, token_major);
        CHECK(std::count(times.begin(), times.end(), 1) == batch * tokens);
      }
    }
  });
}

TEMPLATE_LIST_TEST_CASE("either layout rotates in packets if the channel type has packets", "[rotation]",
                        testing::native_types) {
  using namespace rope::detail;
  using T = typename TestType::channel;
  constexpr bool has = has_packets<T, packet<arithmetic<T>>>;
#if defined(EIGEN_VECTORIZE)
  CHECK((has || !std::is_same_v<T, float>));
#endif
  for_each_layout([]<class Layout>(Layout) {
    CAPTURE(name_of<Layout>);
    CHECK(rotates_in_packets<Layout, T, typename TestType::entry> == has);
  });
}
