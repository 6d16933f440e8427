// SPDX-License-Identifier: MIT
// A program that flushes subnormal numbers to zero (audio hosts, -ffast-math anywhere in it): results without
// subnormal numbers keep their bits, copied numbers keep them too, and the error of all others is at most
// that of the smallest normal numbers that were flushed.
#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/tape.hpp"
#include "support/tensor.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#define ROPE_TEST_CAN_FLUSH
#elif defined(__aarch64__)
#define ROPE_TEST_CAN_FLUSH
#endif

#ifdef ROPE_TEST_CAN_FLUSH

using rope::half_split;
using rope::Index;

namespace {

/// During its lifetime, subnormal results on this thread are zero (FTZ), and so are subnormal operands (DAZ).
class flushing {
 public:
#if defined(__SSE2__)
  flushing() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~flushing() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  flushing() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ | std::uint64_t{1} << 24));
  }
  ~flushing() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  std::uint64_t before_;
#endif
 public:
  flushing(const flushing&) = delete;
  flushing& operator=(const flushing&) = delete;
};

/// The results of a call with and without flushing.
template <class Call>
bool same_bits_flushed(const Call& call) {
  const auto expected = call();
  const flushing now;
  return testing::same_bits(call(), expected);
}

constexpr Index batch = 2, tokens = 70, heads = 4, kv_heads = 2, head_dim = 16;

template <class T>
testing::tensor<T> numbers(Index of_heads, std::uint64_t seed) {
  return testing::random_tensor<T>(batch, tokens, of_heads, head_dim, seed);
}

}  // namespace

TEST_CASE("a thread can flush subnormal numbers", "[library]") {
  volatile float tiny = std::numeric_limits<float>::min();
  volatile double tiny_double = std::numeric_limits<double>::min();
  {
    const flushing now;
    CHECK(tiny / 2 == 0);
    CHECK(tiny_double / 2 == 0);
  }
  CHECK(tiny / 2 != 0);
}

TEMPLATE_TEST_CASE("tables have the same bits if subnormal numbers are flushed", "[library]", float, double) {
  using S = TestType;
  const auto entries = [](const rope::frequency_table<S>& table) {
    std::vector<S> all;
    for (std::int64_t p = table.first(); p < table.last(); ++p) {
      all.insert(all.end(), table.cos(p).begin(), table.cos(p).end());
      all.insert(all.end(), table.sin(p).begin(), table.sin(p).end());
    }
    return all;
  };
  const Eigen::ArrayXXd real = Eigen::ArrayXXd::Random(40, 1) * 1e3;
  CHECK(same_bits_flushed([&] { return entries({rope::frequencies(128, 1e6), -100, 100}); }));
  CHECK(same_bits_flushed([&] { return entries({rope::frequencies(128, 1e9), 1 << 30, (1 << 30) + 50}); }));
  CHECK(same_bits_flushed([&] { return entries({rope::frequencies(64), real}); }));
  CHECK(same_bits_flushed([&] {
    return entries(
        {rope::frequencies(64, 1e4, rope::yarn_scaling{.factor = 4, .original_max_position = 2048}), 30});
  }));
  CHECK(same_bits_flushed(
      [&] { return entries(rope::frequency_table<S>::with_float_angles(rope::frequencies(64), 0, 30)); }));
}

TEMPLATE_TEST_CASE("calls have the same bits if subnormal numbers are flushed", "[library]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 2 * tokens);
  CHECK(same_bits_flushed([&] {
    auto x = numbers<T>(heads, 11);
    rope::rotate<half_split>(view(x), table, 9);
    rope::rotate<rope::interleaved>(view(x), table, 30);
    return x;
  }));
  CHECK(same_bits_flushed([&] {
    auto x = numbers<T>(heads, 12);
    const std::vector<T> weight = testing::random_channels<T>(head_dim, 13);
    rope::normalize_and_rotate<half_split>(view(x), rope::head_norm<T>{.weight = weight}, table, 9);
    return x;
  }));
  // Keys at large distances, so that many weights are tiny.
  CHECK(same_bits_flushed([&] {
    auto q = numbers<T>(heads, 14), k = numbers<T>(kv_heads, 15), v = numbers<T>(kv_heads, 16), out = q;
    rope::attention<half_split>(view(q), view(k), view(v), view(out), table,
                                {.scale = 20, .window = 50, .sinks = 2});
    return out;
  }));
  CHECK(same_bits_flushed([&] {
    auto q = numbers<T>(heads, 17), k = numbers<T>(kv_heads, 18), v = numbers<T>(kv_heads, 19), out = q;
    rope::kv_cache<T> cache(batch, tokens, kv_heads, head_dim);
    cache.template append<half_split>(view(k), view(v), table);
    rope::attention<half_split>(view(q).token_range(0, 1), cache, view(out).token_range(0, 1), table,
                                {.scale = 20});
    return out;
  }));
  if constexpr (sizeof(T) >= sizeof(float))
    CHECK(same_bits_flushed([&] {
      auto q = numbers<T>(heads, 20), k = numbers<T>(kv_heads, 21), v = numbers<T>(kv_heads, 22), out = q,
           d_out = numbers<T>(heads, 23), d_q = q, d_k = k, d_v = v;
      rope::attention(view(q), view(k), view(v), view(out));
      rope::attention_gradient(
          testing::tape(view(q), view(k), view(v), view(out), view(d_out), view(d_q), view(d_k), view(d_v)));
      d_q.values.insert(d_q.values.end(), d_k.values.begin(), d_k.values.end());
      d_q.values.insert(d_q.values.end(), d_v.values.begin(), d_v.values.end());
      return d_q.values;
    }));
}

TEST_CASE("subnormal numbers of half are normal floats, and are kept", "[library]") {
  const rope::frequency_table<float> table(rope::frequencies(head_dim), 2 * tokens);
  CHECK(same_bits_flushed([&] {
    auto x = numbers<Eigen::half>(heads, 31);
    for (Eigen::half& channel : x.values) channel = Eigen::half(static_cast<float>(channel) * 0x1p-20f);
    rope::rotate<half_split>(view(x), table, 9);
    return x;
  }));
}

TEMPLATE_TEST_CASE("copied numbers stay subnormal when others are flushed", "[library]", float, double) {
  using T = TestType;
  const rope::frequency_table<float> table(rope::frequencies(8), tokens);
  testing::tensor<T> x(batch, tokens, heads, head_dim, std::numeric_limits<T>::denorm_min()), out = x;
  std::fill(out.values.begin(), out.values.end(), T(7));
  const auto before = x;
  {
    const flushing now;
    rope::rotate_to<half_split>(view(x), view(out), table, 0);
    rope::rotate<half_split>(view(x), table, 0);
  }
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (const auto* after : {&x, &out}) {
        auto copy = *after;
        // Position 0 does not rotate, nor do channels from 8 on.
        CHECK(testing::same_bits(view(copy).at(b, 0, h), before.values.data(), head_dim));
        CHECK(testing::same_bits(view(copy).at(b, 5, h) + 8, before.values.data(), head_dim - 8));
      }
}

TEMPLATE_TEST_CASE("the error of subnormal channels is at most the flushed amount", "[library]", float,
                   double) {
  using T = TestType;
  constexpr T smallest = std::numeric_limits<T>::min();
  const rope::frequency_table<T> table(rope::frequencies(head_dim), 2 * tokens);
  auto x = numbers<T>(heads, 41);  // of 2^-7 to 4
  for (T& channel : x.values) channel *= smallest;
  auto expected = x, found = x;
  rope::rotate<half_split>(view(expected), table, 9);
  {
    const flushing now;
    rope::rotate<half_split>(view(found), table, 9);
  }
  // Of u' = u c - v s, both operands, both products and the result may each lose less than `smallest`.
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(found.values[i] - expected.values[i]) <= 5 * smallest);
  }
}

#else

TEST_CASE("a thread can flush subnormal numbers", "[library]") {
  WARN("not run: needs x86-64 or aarch64, whose threads can flush subnormal numbers");
}

#endif
