// SPDX-License-Identifier: MIT
#include <rope/rotation/hadamard.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/permute.hpp>
#include <rope/rotation/pope.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

// Every form of a view of heads. Heads are written and read by the container's own indices, so a view that
// exchanges two axes fails.

using rope::head_view;
using rope::Index;
using testing::for_each_layout;
using testing::name_of;

namespace {

constexpr std::uint32_t seed = 3;
constexpr Index B = 2, S = 3, H = 3, D = 40, rotary_dim = 36;  // S == H: a swap of the two would fit
constexpr std::int64_t start = 5;

/// Gives B * S * H heads of D channels random values through `from(b, s, h, d)`, calls `rotate`, and compares
/// `to(b, s, h, d)` with the reference.
template <class Layout, class T, class From, class To, class Rotate>
bool rotates_by_token(From from, To to, Rotate rotate, Index batch = B) {
  const rope::frequencies frequencies(rotary_dim);
  std::vector<T> before = testing::random_channels<T>(batch * S * H * D, seed), after(before.size());
  const auto in = rope::bshd(std::as_const(before).data(), batch, S, H, D);
  const auto out = rope::bshd(after.data(), batch, S, H, D);
  testing::for_each_head(in, [&](Index b, Index s, Index h) {
    for (Index d = 0; d < D; ++d) from(b, s, h, d) = in.at(b, s, h)[d];
  });
  rotate(rope::frequency_table<double>(frequencies, 20));
  testing::for_each_head(out, [&](Index b, Index s, Index h) {
    for (Index d = 0; d < D; ++d) out.at(b, s, h)[d] = to(b, s, h, d);
  });
  const auto position = [](Index, Index s) { return start + s; };
  return testing::worst_error<Layout, double>(in, head_view<const T>(out), frequencies, position) <= 1 &&
         testing::same_heads(in.channels(rotary_dim, D - rotary_dim),
                             out.channels(rotary_dim, D - rotary_dim));
}

/// A test of a container that is rotated in place.
template <class Layout, class T, class At, class Rotate>
bool rotates_in_place(At at, Rotate rotate, Index batch = B) {
  return rotates_by_token<Layout, T>(at, at, rotate, batch);
}

}  // namespace

TEMPLATE_TEST_CASE("heads at a pointer rotate by the position of their token", "[rotation]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  CAPTURE(seed);
  std::vector<T> memory(B * S * H * D);
  T* p = memory.data();
  for_each_layout([p]<class Layout>(Layout) {
    CAPTURE(name_of<Layout>);
    CHECK(rotates_in_place<Layout, T>(
        [p](Index b, Index s, Index h, Index d) -> T& { return p[((b * S + s) * H + h) * D + d]; },
        [p](const auto& table) { rope::rotate<Layout>(rope::bshd(p, B, S, H, D), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [p](Index b, Index s, Index h, Index d) -> T& { return p[((b * H + h) * S + s) * D + d]; },
        [p](const auto& table) { rope::rotate<Layout>(rope::bhsd(p, B, H, S, D), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [p](Index b, Index s, Index h, Index d) -> T& { return p[((s * B + b) * H + h) * D + d]; },
        [p](const auto& table) { rope::rotate<Layout>(rope::sbhd(p, S, B, H, D), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [p](Index, Index s, Index h, Index d) -> T& { return p[(s * H + h) * D + d]; },
        [p](const auto& table) { rope::rotate<Layout>(rope::thd(p, S, H, D), table, start); }, 1));
  });
}

TEMPLATE_TEST_CASE("heads of a row-major tensor rotate by the position of their token", "[rotation]", float,
                   Eigen::half) {
  using T = TestType;
  CAPTURE(seed);
  using tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  tensor x(B, S, H, D), y(B, H, S, D), z(S, B, H, D);
  Eigen::TensorMap<tensor> w(y.data(), B, H, S, D);
  Eigen::Tensor<T, 3, Eigen::RowMajor> v(S, H, D);
  for_each_layout([&]<class Layout>(Layout) {
    CAPTURE(name_of<Layout>);
    CHECK(rotates_in_place<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return x(b, s, h, d); },
        [&](const auto& table) { rope::rotate<Layout>(rope::bshd(x), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return y(b, h, s, d); },
        [&](const auto& table) { rope::rotate<Layout>(rope::bhsd(w), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return z(s, b, h, d); },
        [&](const auto& table) { rope::rotate<Layout>(rope::sbhd(z), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index, Index s, Index h, Index d) -> T& { return v(s, h, d); },
        [&](const auto& table) { rope::rotate<Layout>(rope::thd(v), table, start); }, 1));
  });
}

TEMPLATE_TEST_CASE("heads of a column-major tensor rotate by the position of their token", "[rotation]",
                   double, Eigen::bfloat16) {
  using T = TestType;
  CAPTURE(seed);
  using tensor = Eigen::Tensor<T, 4>;
  tensor x(D, H, S, B), y(D, S, H, B), z(D, H, B, S);
  Eigen::TensorMap<tensor> w(x.data(), D, H, S, B);
  Eigen::Tensor<T, 3> v(D, H, S);
  for_each_layout([&]<class Layout>(Layout) {
    CAPTURE(name_of<Layout>);
    CHECK(rotates_in_place<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return x(d, h, s, b); },
        [&](const auto& table) { rope::rotate<Layout>(rope::dhsb(w), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return y(d, s, h, b); },
        [&](const auto& table) { rope::rotate<Layout>(rope::dshb(y), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return z(d, h, b, s); },
        [&](const auto& table) { rope::rotate<Layout>(rope::dhbs(z), table, start); }));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index, Index s, Index h, Index d) -> T& { return v(d, h, s); },
        [&](const auto& table) { rope::rotate<Layout>(rope::dht(v), table, start); }, 1));
  });
}

TEMPLATE_TEST_CASE("a const tensor is rotated into one of another axis order", "[rotation]", float,
                   Eigen::bfloat16) {
  using T = TestType;
  CAPTURE(seed);
  Eigen::Tensor<T, 4, Eigen::RowMajor> in(B, S, H, D);
  Eigen::Tensor<T, 4> out(D, S, H, B);
  for_each_layout([&]<class Layout>(Layout) {
    std::vector<T> before;
    CAPTURE(name_of<Layout>);
    CHECK(rotates_by_token<Layout, T>(
        [&](Index b, Index s, Index h, Index d) -> T& { return in(b, s, h, d); },
        [&](Index b, Index s, Index h, Index d) -> T& { return out(d, s, h, b); },
        [&](const auto& table) {
          before.assign(in.data(), in.data() + in.size());
          rope::rotate_to<Layout>(rope::bshd(std::as_const(in)), rope::dshb(out), table, start);
        }));
    CHECK(testing::same_bits(in.data(), before.data(), in.size()));
  });
}

TEST_CASE("the heads of one token are the same view in every order of axes", "[rotation]") {
  using namespace rope;
  // The stride of an extent of 1 is never used, so two views of one memory may differ in it.
  const std::vector<float> before = testing::random_channels<float>(2 * 3 * 8, 5);
  const frequency_table<> table(frequencies(8), 10);
  const std::vector<std::int64_t> ids = {3, 7};
  std::vector<float> expected = before;
  rotate<half_split>(bshd(expected.data(), 2, 1, 3, 8), table, ids);
  std::vector<float> memory = before;
  head_view<float> odd = bhsd(memory.data(), 2, 3, 1, 8);
  odd.token_stride = -12345;
  for (const head_view<const float>& x :
       {head_view<const float>(bshd(memory.data(), 2, 1, 3, 8)), head_view<const float>(odd)})
    for (const head_view<float>& out : {bshd(memory.data(), 2, 1, 3, 8), bhsd(memory.data(), 2, 3, 1, 8)}) {
      memory = before;
      rotate_to<half_split>(x, out, table, ids);
      CHECK(testing::same_bits(memory, expected));
    }
  const head_view<const float> one_head = {memory.data(), 2, 3, 1, 8, 24, 8, 999};
  CHECK(detail::are_same(one_head, bshd(memory.data(), 2, 3, 1, 8)));
  const head_view<const float> one_row = {memory.data(), 1, 2, 3, 8, -1, 24, 8};
  CHECK(detail::are_same(one_row, bshd(memory.data(), 1, 2, 3, 8)));
  // Views of one memory in another order, or shifted, overlap.
  const head_view<const float> x = bshd(memory.data(), 1, 2, 3, 8);
  CHECK_FALSE(detail::are_same(x, bhsd(memory.data(), 1, 3, 2, 8)));
  CHECK(detail::share_memory(x, bhsd(memory.data(), 1, 3, 2, 8)));
  CHECK(detail::share_memory(one_row, bshd(memory.data() + 8, 1, 1, 3, 8)));
}

TEST_CASE("no function writes to heads that overlap", "[rotation]") {
  std::vector<float> x(64), before(64), weight(8, 1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) before[i] = x[i] = static_cast<float>(i) - 30;
  rope::head_view<float> expanded = rope::thd(x.data(), 6, 1, 8);
  expanded.token_stride = 0;
  const std::vector<float> input(48, 1.0f);
  const auto in = rope::thd(input.data(), 6, 1, 8);
  const rope::frequency_table<float> table(rope::frequencies(8), 9);
  const auto rejects = [&](const std::string& name, const auto& call) {
    CHECK(testing::throws_saying<std::invalid_argument>(
        call,
        "rope::" + name + ": the channels of a view that is written must not overlap, got a stride of 0"));
    CHECK(testing::same_bits(x, before));
  };
  rejects("hadamard_transform", [&] { rope::hadamard_transform(expanded); });
  rejects("scale_queries", [&] { rope::scale_queries(expanded, [](std::int64_t) { return 2.0; }); });
  rejects("permute_channels", [&] { rope::permute_channels<rope::interleaved, rope::half_split>(expanded); });
  rejects("pope", [&] { rope::pope<rope::half_split>(in.channels(0, 4), expanded, table); });
  rejects("normalize_heads_gradient",
          [&] { rope::normalize_heads_gradient(in, rope::head_norm<float>{.weight = weight}, expanded); });
}

TEST_CASE("an output that overlaps a part of its input throws", "[rotation]") {
  using namespace rope;
  std::vector<float> memory = testing::random_channels<float>(8 * 3 * 8, 6);
  const head_view<const float> x = thd(memory.data() + 24, 4, 3, 8);
  const head_view<float> parts[] = {
      thd(memory.data() + 24 + 1, 4, 3, 8),   // a channel later
      thd(memory.data() + 24 + 8, 4, 3, 8),   // a head
      thd(memory.data() + 24 + 24, 4, 3, 8),  // a token
      thd(memory.data(), 4, 3, 8),            // a token earlier
      bhsd(memory.data() + 24, 1, 3, 4, 8),   // the same memory, in another order
      bhsd(memory.data() + 40, 1, 3, 4, 8)};
  const head_view<float> fits[] = {thd(memory.data() + 24, 4, 3, 8), thd(memory.data() + 96 + 24, 3, 3, 8)};
  const auto fitting = [&](const head_view<float>& out) { return x.token_range(0, out.tokens); };
  const frequency_table<> table(frequencies(8), 10);
  const std::vector<float> ones(8, 1.0f), before = memory;
  const head_norm<float> norm = {.weight = ones};
  const auto rejected = [](const char* name, const auto& call) {
    return testing::throws_saying<std::invalid_argument>(
        call, std::string("rope::") + name +
                  ": out must be x or share no channel with it, and covers a part of x; give other memory");
  };
  const auto overlaps_x = [&](const head_view<float>& d) {
    return testing::throws_saying<std::invalid_argument>(
        [&] { normalize_heads_gradient(fitting(d), norm, d); },
        "rope::normalize_heads_gradient: d must share no memory with x");
  };
  for (const head_view<float>& out : parts) {
    CHECK(rejected("rotate_to", [&] { rotate_to<half_split>(x, out, table); }));
    CHECK(rejected("unrotate_to", [&] { unrotate_to<interleaved>(x, out, table); }));
    CHECK(rejected("normalize_heads_to", [&] { normalize_heads_to(x, out, norm); }));
    CHECK(rejected("normalize_and_rotate_to",
                   [&] { normalize_and_rotate_to<half_split>(x, out, norm, table); }));
    CHECK(overlaps_x(out));
  }
  CHECK(overlaps_x(fits[0]));
  CHECK(testing::same_bits(memory, before));
  CHECK_NOTHROW(normalize_heads_gradient(fitting(fits[1]), norm, fits[1]));
  for (const head_view<float>& out : fits) CHECK_NOTHROW(rotate_to<half_split>(fitting(out), out, table));
}

TEST_CASE("views overlap exactly if a loop over their bytes finds a common one", "[rotation]") {
  using namespace rope;
  std::mt19937 random(seed);
  alignas(8) static unsigned char memory[1 << 13];
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  const auto any_view = [&]<class T>(T*, const head_view<float>* like) {
    const Index first = 2048 / Index(sizeof(T)) + below(96);
    head_view<T> x = {reinterpret_cast<T*>(memory) + first,
                      1 + below(3),
                      1 + below(4),
                      1 + below(3),
                      1 + below(5),
                      below(60) - 20,
                      below(30) - 10,
                      below(12) - 2};
    if (like != nullptr) {
      x.batch_stride = like->batch_stride;
      x.token_stride = like->token_stride;
      x.head_stride = like->head_stride;
    }
    return x;
  };
  const auto bytes_of = [&](const auto& x) {
    std::set<std::ptrdiff_t> bytes;
    for (Index b = 0; b < x.batch; ++b)
      for (Index t = 0; t < x.tokens; ++t)
        for (Index h = 0; h < x.heads; ++h)
          for (Index c = 0; c < x.head_dim * Index(sizeof(*x.data)); ++c)
            bytes.insert(reinterpret_cast<unsigned char*>(x.at(b, t, h)) - memory + c);
    return bytes;
  };
  int shared = 0, disjoint = 0;
  const auto compare = [&](const auto& a, const auto& b) {
    const auto of_a = bytes_of(a), of_b = bytes_of(b);
    const bool overlap =
        std::any_of(of_a.begin(), of_a.end(), [&](std::ptrdiff_t byte) { return of_b.count(byte) > 0; });
    CHECK(detail::share_memory(a, b) == overlap);
    CHECK(detail::share_memory(b, a) == overlap);
    ++(overlap ? shared : disjoint);
  };
  for (int i = 0; i < 400; ++i) {
    const head_view<float> a = any_view(static_cast<float*>(nullptr), nullptr);
    compare(a, any_view(static_cast<float*>(nullptr), &a));
    compare(a, any_view(static_cast<float*>(nullptr), nullptr));
    compare(a, any_view(static_cast<Eigen::half*>(nullptr), nullptr));
  }
  CHECK(shared > 200);
  CHECK(disjoint > 200);
  const head_view<float> none = {nullptr, 0, 3, 2, 4, 0, 8, 4},
                         one = any_view(static_cast<float*>(nullptr), nullptr);
  CHECK_FALSE(detail::share_memory(none, one));
}

TEST_CASE("a writable view whose channels overlap throws", "[rotation]") {
  using namespace rope;
  std::vector<float> memory = testing::random_channels<float>(200, 7);
  const std::vector<float> before = memory, other = memory;
  const frequency_table<> table(frequencies(8), 10);
  const head_view<float> expanded = {memory.data(), 1, 2, 3, 8, 0, 8, 0},
                         overlapping = {memory.data(), 1, 2, 3, 8, 0, 7, 48},
                         single = {memory.data(), 1, 1, 3, 8, 0, 0, 8};
  const auto rejected = [](Index stride, const auto& call) {
    return testing::throws_saying<std::invalid_argument>(
        call, ": the channels of a view that is written must not overlap, got a stride of " +
                  std::to_string(stride) + " between heads of 8 channels; copy an expanded");
  };
  CHECK(rejected(0, [&] { rotate<half_split>(expanded, table); }));
  CHECK(rejected(7, [&] { rotate<half_split>(overlapping, table); }));
  CHECK(rejected(7, [&] { rotate<half_split>(overlapping, thd(memory.data() + 100, 2, 1, 8), table); }));
  CHECK(rejected(0, [&] { rotate<half_split>(thd(memory.data() + 100, 2, 1, 8), expanded, table); }));
  CHECK(rejected(0, [&] { unrotate_to<interleaved>(thd(other.data(), 2, 3, 8), expanded, table); }));
  CHECK(testing::same_bits(memory, before));
  CHECK_NOTHROW(rotate<half_split>(single, table));  // the stride of an extent of 1 is not used
  // An expanded view may be read.
  const head_view<const float> keys = {other.data(), 1, 2, 3, 8, 0, 8, 0};
  CHECK_NOTHROW(rotate_to<half_split>(keys, thd(memory.data(), 2, 3, 8), table));
}

TEMPLATE_TEST_CASE("heads in the rows of a matrix rotate by the position of their row", "[rotation]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  CAPTURE(seed);
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  matrix x(S, H * D), packed = matrix::Constant(S + 2, 3 * H * D, T(-1));
  for_each_layout([&]<class Layout>(Layout) {
    CAPTURE(name_of<Layout>);
    CHECK(rotates_in_place<Layout, T>(
        [&](Index, Index s, Index h, Index d) -> T& { return x(s, h * D + d); },
        [&](const auto& table) { rope::rotate<Layout>(rope::thd(x, H), table, start); }, 1));
    CHECK(rotates_in_place<Layout, T>(
        [&](Index, Index s, Index h, Index d) -> T& { return packed(1 + s, (H + h) * D + d); },
        [&](const auto& table) {
          rope::rotate<Layout>(rope::thd(packed.block(1, H * D, S, H * D), H), table, start);
        },
        1));
    CHECK(rotates_by_token<Layout, T>(
        [&](Index, Index s, Index h, Index d) -> T& { return packed(1 + s, (H + h) * D + d); },
        [&](Index, Index s, Index h, Index d) -> T& { return x(s, h * D + d); },
        [&](const auto& table) {
          const Eigen::Ref<const matrix, 0, Eigen::OuterStride<>> read_only =
              packed.block(1, H * D, S, H * D);
          rope::rotate_to<Layout>(rope::thd(read_only, H),
                                  rope::thd(Eigen::Map<matrix>(x.data(), S, H * D), H), table, start);
        },
        1));
  });
}

TEST_CASE("a single head may have any stride", "[rotation]") {
  // The undefined-behaviour sanitizer reports a pointer that such a stride is added to.
  constexpr Index far = std::numeric_limits<Index>::min() / 8;
  const rope::frequency_table<float> table(rope::frequencies(rotary_dim), 20);
  CAPTURE(seed);
  for_each_layout([&]<class Layout>(Layout) {
    CAPTURE(name_of<Layout>);
    std::vector<float> x = testing::random_channels<float>(B * S * D, seed), expected = x;
    rope::rotate<Layout>(rope::bshd(expected.data(), B, S, 1, D), table, start);
    rope::rotate<Layout>(head_view<float>{x.data(), B, S, 1, D, S * D, D, far}, table, start);
    CHECK(testing::same_bits(x, expected));
    // The search for shared memory compares two views. A stride of this size overflows if it is counted in
    // bytes.
    constexpr Index farther = std::numeric_limits<Index>::max();
    std::vector<float> out(x.size()), back(x.size());
    const head_view<float> written{out.data(), B, S, 1, D, S * D, D, farther};
    rope::unrotate_to<Layout>(rope::bshd(std::as_const(x).data(), B, S, 1, D),
                              rope::bshd(back.data(), B, S, 1, D), table, start);
    rope::unrotate_to<Layout>(head_view<const float>{x.data(), B, S, 1, D, S * D, D, farther}, written, table,
                              start);
    CHECK(testing::same_bits(out, back));
  });
}

#if defined(MAP_NORESERVE) && PTRDIFF_MAX > INT32_MAX  // enough address space
TEMPLATE_TEST_CASE("offsets beyond 32 bits reach the right heads", "[rotation]", float, Eigen::half) {
  using T = TestType;
  CAPTURE(seed);
  // Two heads 2^32 + 64 elements apart. The memory between them is never touched, so it uses address space
  // only.
  constexpr Index far = (Index{1} << 32) + 64, d = 64;
  constexpr std::size_t bytes = static_cast<std::size_t>(far + d) * sizeof(T);
  void* region =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    WARN("this machine does not lend so much address space");
    return;
  }
  T* data = static_cast<T*>(region);
  const rope::frequency_table<float> table(rope::frequencies(64), 20);
  for_each_layout([&]<class Layout>(Layout) {
    const std::vector<T> x = testing::random_channels<T>(2 * d, seed);
    for (const head_view<T> view :
         {head_view<T>{data, 2, 1, 1, d, far, d, d}, head_view<T>{data, 1, 2, 1, d, 0, far, d},
          head_view<T>{data, 1, 1, 2, d, 0, 0, far}}) {
      const auto near = rope::bshd(x.data(), view.batch, view.tokens, view.heads, d);
      std::vector<T> expected = x;
      rope::rotate<Layout>(rope::bshd(expected.data(), view.batch, view.tokens, view.heads, d), table, 7);
      testing::copy_heads(near, view);
      rope::rotate<Layout>(view, table, 7);
      CAPTURE(name_of<Layout>, view.batch, view.tokens, view.heads);
      CHECK(testing::same_bits(data, expected.data(), d));
      CHECK(testing::same_bits(data + far, expected.data() + d, d));
    }
  });
  munmap(region, bytes);
}
#endif
