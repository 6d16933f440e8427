// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FAILURES_HPP
#define ROPE_TESTS_FAILURES_HPP

#include <rope/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <type_traits>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"
#include "support/tensor.hpp"

/// Calls with memory for no allocation, for one, two, ... until they succeed.

namespace testing {

/// Whether the C++ library leaks the memory of a vector if the copy of an element fails in its constructor,
/// as libc++ 14 and 15 do (llvm/llvm-project issue 58392).
inline bool vectors_lose_memory() {
  const std::vector<std::vector<double>> elements(1, std::vector<double>(8));
  const long before = held_bytes();
  std::optional<std::vector<std::vector<double>>> copy;
  allow_allocations(1);
  try {
    copy.emplace(elements);
  } catch (const std::bad_alloc&) {
  }
  allow_allocations(-1);
  REQUIRE_FALSE(copy.has_value());
  return held_bytes() != before;
}

/// Calls `call` until it has the memory it needs. `unchanged()` must hold after every failure.
///
/// \param copied  bytes of the smallest vector that the call copies, which the C++ library may leak, or 0
/// \return        how many times it failed
template <class Call, class Unchanged>
long failures_of(const Call& call, const Unchanged& unchanged, long copied = 0) {
  const bool may_lose = copied > 0 && vectors_lose_memory();
  for (long allowed = 0;; ++allowed) {
    REQUIRE(allowed < 20000);
    rope::release_scratch();
    const long before = held_bytes();
    bool failed = false;
    allow_allocations(allowed);
    try {
      call();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    allow_allocations(-1);
    if (!failed) return allowed;
    rope::release_scratch();
    const long left = held_bytes() - before;
    CAPTURE(allowed);
    const bool lost_a_copy = may_lose && left >= copied;
    if (!lost_a_copy) REQUIRE(left == 0);
    REQUIRE(unchanged());
  }
}

/// Checks calls that return a value and change nothing: `same(a, b)` compares the values of two calls.
template <class Make, class Same>
void check_making(const Make& make, const Same& same, long copied = 0) {
  const auto expected = make();  // the C++ library registers a thread's objects once
  std::optional<std::decay_t<decltype(make())>> made;
  const long failures = failures_of([&] { made.emplace(make()); }, [&] { return !made.has_value(); }, copied);
  CHECK(failures > 0);
  CHECK(same(*made, expected));
}

inline constexpr rope::Index batch = 2, tokens = 40, heads = 4, kv_heads = 2, head_dim = 16;

/// Heads of random numbers, a new one for each view.
struct operands {
  std::vector<float> q = numbers(heads, 1), k = numbers(kv_heads, 2), v = numbers(kv_heads, 3),
                     out = numbers(heads, 4);
  rope::frequency_table<float> table{rope::frequencies(head_dim), 3 * tokens};

  static std::vector<float> numbers(rope::Index of_heads, std::uint64_t seed) {
    return random_channels<float>(batch * tokens * of_heads * head_dim, seed);
  }
  static rope::head_view<float> wide(std::vector<float>& x) {
    return rope::bshd(x.data(), batch, tokens, heads, head_dim);
  }
  static rope::head_view<float> narrow(std::vector<float>& x) {
    return rope::bshd(x.data(), batch, tokens, kv_heads, head_dim);
  }
};

/// Checks a call that writes `out`: it writes nothing if it fails, unless it is several calls, and gives the
/// result of a call with enough memory.
template <class Call>
void check_writing(std::vector<float>& out, const Call& call, bool several = false) {
  out.assign(out.size(), 7);
  call();
  const std::vector<float> expected = out;
  out.assign(out.size(), 7);
  const std::vector<float> before = out;
  CHECK(failures_of(call, [&] { return several || same_bits(out, before); }) > 0);
  CHECK(same_bits(out, expected));
}

}  // namespace testing

#endif  // ROPE_TESTS_FAILURES_HPP
