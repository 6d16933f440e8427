// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <algorithm>
#include <thread>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"
#include "support/tape.hpp"

using testing::allocations_in;
using testing::held_bytes;

namespace {

constexpr rope::Index tokens = 300, heads = 4, kv_heads = 2, head_dim = 64;

/// Calls of every function that keeps scratch memory for whole inputs.
template <class T>
struct calls {
  static std::vector<T> numbers(rope::Index count) {
    return std::vector<T>(static_cast<std::size_t>(count), T(1));
  }

  std::vector<T> q = numbers(tokens * heads * head_dim), out = q, d_out = q, d_q = q,
                 k = numbers(tokens * kv_heads * head_dim), v = k, d_k = k, d_v = k;
  rope::frequency_table<float> table{rope::frequencies(head_dim), tokens};
  rope::kv_cache<T> cache{1, tokens, kv_heads, head_dim};

  static rope::head_view<T> many(std::vector<T>& x) {
    return rope::bshd(x.data(), 1, tokens, heads, head_dim);
  }
  static rope::head_view<T> few(std::vector<T>& x) {
    return rope::bshd(x.data(), 1, tokens, kv_heads, head_dim);
  }

  void backward() {
    rope::attention_gradient<rope::half_split>(
        testing::tape(many(q), few(k), few(v), many(out), many(d_out), many(d_q), few(d_k), few(d_v)), table);
  }
  void all() {
    rope::attention<rope::half_split>(many(q), few(k), few(v), many(out), table);
    cache.clear();
    cache.template append<rope::half_split>(few(k), few(v), table);
    rope::attention<rope::half_split>(many(q), cache, many(out), table);
    rope::attention<rope::half_split>(many(q).token_range(tokens - 1, 1), cache,
                                      many(out).token_range(tokens - 1, 1), table);
    backward();
  }
};

}  // namespace

TEMPLATE_TEST_CASE("release_scratch frees all memory that a thread kept, and later calls work as before",
                   "[noalloc]", float, double, Eigen::half, Eigen::bfloat16) {
  calls<TestType> made;
  made.all();  // the C++ library's record of a thread's objects stays
  rope::release_scratch();
  const long before = held_bytes();
  made.all();
  const long with_scratch = held_bytes(), kept = with_scratch - before;
  const auto d_k = made.d_k, out = made.out;
  const long copies = held_bytes() - with_scratch;  // including the rounding of malloc
  rope::release_scratch();
  const long left = held_bytes() - before - copies;
  // The rotated copies of q and k are as large as q and k.
  CHECK(kept > static_cast<long>(sizeof(TestType) * (made.q.size() + made.k.size())));
  CHECK(left == 0);

  std::fill(made.d_k.begin(), made.d_k.end(), TestType(7));
  std::fill(made.out.begin(), made.out.end(), TestType(7));
  made.all();
  CHECK(made.d_k == d_k);
  CHECK(made.out == out);
  CHECK(allocations_in([&] { made.all(); }) == 0);
}

TEST_CASE("the scratch memory of attention_gradient with a layout is as documented", "[noalloc]") {
  calls<float> made;
  const auto plain = [&] {
    rope::attention_gradient(testing::tape(made.many(made.q), made.few(made.k), made.few(made.v),
                                           made.many(made.out), made.many(made.d_out), made.many(made.d_q),
                                           made.few(made.d_k), made.few(made.d_v)));
  };
  rope::release_scratch();
  plain();
  const long without = held_bytes();
  made.backward();
  const long with = held_bytes();
  const auto copies = static_cast<long>(sizeof(float) * (made.q.size() + made.k.size()));
  CHECK(with - without >= copies);
  CHECK(with - without < copies + 4096);
}

TEST_CASE("a thread releases only its own scratch memory", "[noalloc]") {
  calls<float> here, there;
  rope::release_scratch();
  here.all();
  long kept = 0, after_release = 0, mine = held_bytes();
  std::thread other([&] {
    there.all();
    rope::release_scratch();
    const long start = held_bytes();
    there.all();
    kept = held_bytes() - start;
    rope::release_scratch();
    after_release = held_bytes() - start;
    there.all();  // freed when the thread ends
  });
  other.join();
  CHECK(kept > 0);
  CHECK(after_release == 0);
  CHECK(held_bytes() - mine < 4096);  // memory of a thread that the C library keeps
  CHECK(allocations_in([&] { here.all(); }) == 0);
}
