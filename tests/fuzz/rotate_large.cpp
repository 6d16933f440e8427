// SPDX-License-Identifier: MIT
// Rotation of more data than L2 holds, where heads are processed in other groups and orders than in `rotate`:
// compared bit by bit with the same layout one pair at a time, including the memory between heads and around
// them.
#include <rope/rotation/rotate.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "support/heads.hpp"

using namespace rope;
using fuzz::bytes;
using testing::scalar_twin;

namespace {

enum class order { tokens, heads, batch };

/// A call without its memory and layout.
struct request {
  Index batch, tokens, heads, head_dim, reach, margin;
  order in, out;
  bool in_place, back, gathered;
  std::int64_t start;
  std::vector<int> ids;

  Index size() const { return 2 * margin + batch * tokens * heads * reach; }

  template <class T>
  head_view<T> view(T* data, order o) const {
    head_view<T> x = {data + margin, batch, tokens, heads, head_dim, 0, 0, 0};
    x.batch_stride = (o == order::batch ? 1 : tokens) * heads * reach;
    x.token_stride = o == order::heads ? reach : (o == order::batch ? batch : 1) * heads * reach;
    x.head_stride = o == order::heads ? tokens * reach : reach;
    return x;
  }

  template <class Layout, class T, class Table, class Positions>
  void rotate_by(std::vector<T>& x, std::vector<T>& y, const Table& table, const Positions& positions) const {
    const auto heads_in = view(x.data(), in);
    if (in_place && back)
      unrotate<Layout>(heads_in, table, positions);
    else if (in_place)
      rotate<Layout>(heads_in, table, positions);
    else if (back)
      unrotate_to<Layout>(head_view<const T>(heads_in), view(y.data(), out), table, positions);
    else
      rotate_to<Layout>(head_view<const T>(heads_in), view(y.data(), out), table, positions);
  }

  template <class Layout, class T, class Table>
  void call(std::vector<T>& x, std::vector<T>& y, const Table& table) const {
    gathered ? rotate_by<Layout>(x, y, table, ids) : rotate_by<Layout>(x, y, table, start);
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class Layout, class T>
void run(bytes& b) {
  static constexpr std::array<Index, 16> rotary_dims = {64, 128, 32, 256, 16,  80,  96,  72,
                                                        2,  8,   66, 100, 112, 130, 512, 1024};
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Index rotary_dim = b.one_of(rotary_dims), first_channel = b.one_in(3) ? b.up_to(9) : 0;
  request r;
  r.head_dim = first_channel + rotary_dim + (b.one_in(3) ? b.up_to(7) : 0);
  r.reach = r.head_dim + (b.one_in(4) ? b.up_to(5) : 0);
  r.margin = b.one_in(4) ? b.up_to(31) : 0;
  r.heads = b.between(1, 33);
  r.batch = b.between(1, 3);
  constexpr Index own_cache = Index{1} << 18;
  r.tokens = own_cache / (r.batch * r.heads * rotary_dim * Index(sizeof(T))) + b.between(1, 40);
  r.in = static_cast<order>(b.up_to(2));
  r.out = static_cast<order>(b.up_to(2));
  r.in_place = !b.one_in(3);
  r.back = b.one_in(3);
  r.gathered = b.one_in(3);
  r.start = b.up_to(3);
  for (Index t = 0; r.gathered && t < r.tokens; ++t)
    r.ids.push_back(static_cast<int>((t * 7919 + r.start) % (r.tokens + 4)));
  const rope::frequencies plain(rotary_dim);
  const frequency_table<S> table(b.coin() ? plain : rope::frequencies::custom(plain.inv_freq(), 1.25),
                                 r.tokens + 4);

  std::vector<T> x = testing::random_channels<T>(r.size(), 1 + static_cast<std::uint32_t>(b.up_to(255)));
  std::vector<T> twin = x, out(r.in_place ? 0 : x.size(), T(3)), twin_out = out;
  r.call<Layout>(x, out, table.at_channel(first_channel));
  r.call<scalar_twin<Layout>>(twin, twin_out, table.at_channel(first_channel));
  fuzz::check(same_bits(x, twin) && same_bits(out, twin_out), "packets give the bits of pairs one at a time");
}

template <class T>
void run_layout(bytes& b) {
  b.coin() ? run<half_split, T>(b) : run<interleaved, T>(b);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  switch (b.up_to(3)) {
    case 0:
      run_layout<float>(b);
      break;
    case 1:
      run_layout<Eigen::bfloat16>(b);
      break;
    case 2:
      run_layout<Eigen::half>(b);
      break;
    default:
      run_layout<double>(b);
  }
  return 0;
}
