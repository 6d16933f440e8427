// SPDX-License-Identifier: MIT
#include <rope/kv_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace attention_call;
using rope::kv_cache;
using testing::throws_saying;

namespace {

/// What a read-only view shows, read element by element.
template <class T>
tensor contents(const rope::head_view<const T>& x) {
  tensor result(x.batch, x.tokens, x.heads, x.head_dim);
  for_each_element(result, [&](long b, long t, long h, long d) {
    result(b, t, h, d) =
        static_cast<double>(x.data[b * x.batch_stride + t * x.token_stride + h * x.head_stride + d]);
  });
  return result;
}

/// Tokens [first, last).
tensor part(const tensor& x, long first, long last) {
  tensor result(x.batch, last - first, x.heads, x.dim);
  for_each_element(result,
                   [&](long b, long t, long h, long d) { result(b, t, h, d) = x(b, first + t, h, d); });
  return result;
}

/// Keys and values of 11 tokens, two rows, three heads.
template <class T>
struct sequence {
  tensor keys, values;

  explicit sequence(std::uint32_t seed = 61) : keys(2, 11, 3, 5), values(2, 11, 3, 4) {
    std::mt19937 generator(seed);
    keys = random<T>(generator, keys);
    values = random<T>(generator, values);
  }
  void append_to(kv_cache<T>& cache, long first, long last, axes order = axes::bshd) const {
    const tensor k = part(keys, first, last), v = part(values, first, last);
    const std::vector<T> k_memory = stored<T>(k, order), v_memory = stored<T>(v, order);
    cache.append(view(k_memory, k, order), view(v_memory, v, order));
  }
  void check(const kv_cache<T>& cache, long size) const {
    CHECK(cache.size() == size);
    CHECK(same_bits(contents(cache.keys()), part(keys, 0, size)));
    CHECK(same_bits(contents(cache.values()), part(values, 0, size)));
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a cache holds what was appended, whatever the pieces and strides", "", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const sequence<TestType> tokens;
  const long piece = GENERATE(1, 2, 3, 4, 5, 6, 10, 11);
  const axes order = GENERATE(axes::bshd, axes::bhsd, axes::sbhd);
  CAPTURE(piece);
  kv_cache<TestType> cache(2, 13, 3, 5, 4);
  for (long first = 0; first < 11; first += piece) {
    tokens.append_to(cache, first, (std::min)(first + piece, 11L), order);
    tokens.check(cache, (std::min)(first + piece, 11L));
  }
  CHECK(cache.capacity() == 13);
}

TEST_CASE("appended views may be windows of larger buffers") {
  const sequence<float> tokens;
  tensor packed(2, 11, 8, 6, unwritten);  // k in heads 1 .. 3, v in heads 4 .. 6, with channels to spare
  for_each_element(tokens.keys, [&](long b, long t, long h, long d) {
    packed(b, t, 1 + h, 1 + d) = tokens.keys(b, t, h, d);
  });
  for_each_element(tokens.values, [&](long b, long t, long h, long d) {
    packed(b, t, 4 + h, 2 + d) = tokens.values(b, t, h, d);
  });
  std::vector<float> memory = stored<float>(packed);
  const rope::head_view<float> all = view(memory, packed);
  kv_cache<float> cache(2, 11, 3, 5, 4);
  cache.append(all.head_range(1, 3).channels(1, 5).token_range(0, 4),
               rope::head_view<const float>(all.head_range(4, 3).channels(2, 4).token_range(0, 4)));
  cache.append(all.head_range(1, 3).channels(1, 5).token_range(4, 7),
               all.head_range(4, 3).channels(2, 4).token_range(4, 7));
  tokens.check(cache, 11);
}

TEST_CASE("values have as many channels as keys unless told otherwise") {
  const kv_cache<float> same(1, 4, 2, 6), other(1, 4, 2, 6, 3);
  CHECK(same.keys().head_dim == 6);
  CHECK(same.values().head_dim == 6);
  CHECK(other.keys().head_dim == 6);
  CHECK(other.values().head_dim == 3);
}

TEST_CASE("a cache shows its tokens read only") {
  STATIC_REQUIRE(
      std::is_same_v<decltype(std::declval<kv_cache<float>&>().keys()), rope::head_view<const float>>);
  STATIC_REQUIRE(
      std::is_same_v<decltype(std::declval<kv_cache<float>&>().values()), rope::head_view<const float>>);
}

TEST_CASE("stored tokens stay where they are while a cache fills") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 1);
  const auto keys = cache.keys(), values = cache.values();
  tokens.append_to(cache, 1, 11);
  CHECK(cache.keys().data == keys.data);
  CHECK(cache.values().data == values.data);
  CHECK(cache.keys().token_stride == keys.token_stride);
  CHECK(same_bits(contents(keys), part(tokens.keys, 0, 1)));
  cache.clear();
  CHECK(cache.keys().data == keys.data);
}

TEST_CASE("the keys of one head are contiguous") {
  const kv_cache<float> cache(2, 11, 3, 5, 4);
  CHECK(cache.keys().token_stride == 5);
  CHECK(cache.values().token_stride == 4);
}

TEST_CASE("tokens that do not fit are refused and nothing is written") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 7, 3, 5, 4);
  CHECK(throws_saying<std::length_error>([&] { tokens.append_to(cache, 0, 8); },
                                         "kv_cache::append: 8 tokens do not fit, the cache holds 0 of 7"));
  tokens.check(cache, 0);
  tokens.append_to(cache, 0, 5);
  CHECK(throws_saying<std::length_error>([&] { tokens.append_to(cache, 5, 8); },
                                         "kv_cache::append: 3 tokens do not fit, the cache holds 5 of 7"));
  tokens.check(cache, 5);
  tokens.append_to(cache, 5, 7);
  CHECK_THROWS_AS(tokens.append_to(cache, 7, 8), std::length_error);
  tokens.append_to(cache, 7, 7);
  tokens.check(cache, 7);

  // Not even into the memory behind the last token.
  cache.truncate(3);
  const std::vector<float> behind(cache.keys().at(0, 3, 0), cache.keys().at(0, 7, 0));
  CHECK_THROWS_AS(sequence<float>(62).append_to(cache, 0, 5), std::length_error);
  CHECK(std::vector<float>(cache.keys().at(0, 3, 0), cache.keys().at(0, 7, 0)) == behind);
}

TEST_CASE("keys and values of another shape are refused and nothing is written") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 2);
  const std::vector<float> memory(1000);
  const auto k = rope::bshd(memory.data(), 2, 4, 3, 5);
  const auto v = rope::bshd(memory.data(), 2, 4, 3, 4);
  const auto refused = [&](auto keys, auto values, const std::string& rule) {
    CHECK(throws_saying<std::invalid_argument>([&] { cache.append(keys, values); },
                                               "kv_cache::append: " + rule));
    tokens.check(cache, 2);
  };
  const auto at = [&](long b, long t, long h, long d) { return rope::bshd(memory.data(), b, t, h, d); };
  refused(at(1, 4, 3, 5), v, "k must be [2, tokens, 3, 5], got [1, 4, 3, 5]");
  refused(at(2, 4, 6, 5), v, "k must be [2, tokens, 3, 5], got [2, 4, 6, 5]");
  refused(at(2, 4, 3, 4), v, "k must be [2, tokens, 3, 5], got [2, 4, 3, 4]");
  refused(k, at(3, 4, 3, 4), "v must be [2, tokens, 3, 4], got [3, 4, 3, 4]");
  refused(k, at(2, 4, 1, 4), "v must be [2, tokens, 3, 4], got [2, 4, 1, 4]");
  refused(k, at(2, 4, 3, 5), "v must be [2, tokens, 3, 4], got [2, 4, 3, 5]");
  refused(k, at(2, 3, 3, 4), "k and v must have the same tokens, got 4 and 3");
  refused(at(2, 5, 3, 5), v, "k and v must have the same tokens, got 5 and 4");
  rope::head_view<const float> negative = k;
  negative.tokens = -1;
  refused(negative, v, "the extents of a view must not be negative, got [2, -1, 3, 5]");
}

TEST_CASE("truncation forgets the newest tokens and makes room for others") {
  const sequence<float> tokens, guessed(62);
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 5);
  guessed.append_to(cache, 5, 11);
  cache.truncate(5);
  tokens.check(cache, 5);
  guessed.append_to(cache, 5, 7);
  cache.truncate(6);
  cache.truncate(6);
  cache.truncate(5);
  tokens.append_to(cache, 5, 11);
  tokens.check(cache, 11);
}

TEST_CASE("truncation to more than is stored or below zero is refused") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 5);
  CHECK(throws_saying<std::out_of_range>([&] { cache.truncate(6); },
                                         "kv_cache::truncate: size must be in [0, 5], got 6"));
  CHECK(throws_saying<std::out_of_range>([&] { cache.truncate(-1); },
                                         "kv_cache::truncate: size must be in [0, 5], got -1"));
  tokens.check(cache, 5);
  cache.truncate(0);
  tokens.check(cache, 0);
}

TEST_CASE("a cleared cache is empty and as large as before") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 11);
  cache.clear();
  tokens.check(cache, 0);
  CHECK(cache.capacity() == 11);
  tokens.append_to(cache, 0, 11);
  tokens.check(cache, 11);
}

TEST_CASE("a copy of a cache grows on its own") {
  const sequence<float> tokens, others(62);
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 5);
  kv_cache<float> copy = cache;
  others.append_to(copy, 5, 11);
  tokens.append_to(cache, 5, 11);
  tokens.check(cache, 11);
  CHECK(same_bits(contents(copy.keys().token_range(5, 6)), part(others.keys, 5, 11)));
  CHECK(same_bits(contents(copy.keys().token_range(0, 5)), part(tokens.keys, 0, 5)));
}

TEST_CASE("a cache without capacity, rows, heads or channels holds nothing") {
  kv_cache<float> cache(2, 0, 3, 5, 4);
  CHECK(cache.size() == 0);
  CHECK(cache.keys().size() == 0);
  const std::vector<float> memory(2 * 3 * 5);
  CHECK_THROWS_AS(cache.append(rope::bshd(memory.data(), 2, 1, 3, 5), rope::bshd(memory.data(), 2, 1, 3, 4)),
                  std::length_error);
  cache.append(rope::bshd(memory.data(), 2, 0, 3, 5), rope::bshd(memory.data(), 2, 0, 3, 4));
  cache.truncate(0);
  cache.clear();
  CHECK(cache.size() == 0);

  for (kv_cache<float> none :
       {kv_cache<float>(0, 4, 3, 5), kv_cache<float>(2, 4, 0, 5), kv_cache<float>(2, 4, 3, 0)}) {
    const auto k = none.keys();
    const rope::head_view<const float> token = rope::bshd(memory.data(), k.batch, 1, k.heads, k.head_dim);
    none.append(token, token);
    CHECK(none.size() == 1);
    CHECK(none.keys().size() == 0);
  }
}

TEST_CASE("extents that are negative or exceed the address space are refused") {
  CHECK(throws_saying<std::invalid_argument>([] { kv_cache<float>(1, -4, 2, 8); },
                                             "kv_cache: extents must not be negative, got [1, -4, 2, 8]"));
  CHECK_THROWS_AS(kv_cache<float>(-1, 4, 2, 8), std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(1, 4, -2, 8), std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(1, 4, 2, -8), std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(1, 4, 2, 8, -8), std::invalid_argument);
  // Also where another extent is 0 or far too large.
  CHECK_THROWS_AS(kv_cache<float>(0, -4, 2, 8), std::invalid_argument);

  const rope::Index huge = (std::numeric_limits<rope::Index>::max)();
  CHECK(throws_saying<std::length_error>(
      [] { kv_cache<float>(1 << 20, 1 << 20, 1 << 20, 128); },
      "kv_cache: [1048576, 1048576, 1048576, 128] exceeds the address space"));
  CHECK_THROWS_AS(kv_cache<float>(1, huge, 1, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(huge, 1, 1, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(1, 1, huge, 2), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(1, 1, 1, 1, huge), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(1, (huge >> 2) + 1, 1, 1), std::length_error);
  // The strides of a view of nothing are products too.
  const rope::Index far = rope::Index{1} << 40;
  CHECK_THROWS_AS(kv_cache<float>(0, far, 1 << 30, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(far, 1 << 30, 0, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(far, 0, 1 << 30, 1), std::length_error);
  CHECK_NOTHROW(kv_cache<float>(0, far, 1 << 10, 1));
}
