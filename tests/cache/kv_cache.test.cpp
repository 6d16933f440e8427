// SPDX-License-Identifier: MIT
#include <rope/cache/kv_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"

using namespace attention_call;
using rope::kv_cache;
using testing::throws_saying;

namespace {

/// The elements of a read-only view.
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

TEMPLATE_TEST_CASE("a cache contains the appended tokens, for any pieces and strides", "[cache]", float,
                   double, Eigen::half, Eigen::bfloat16) {
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

TEST_CASE("appended views may be parts of larger buffers", "[cache]") {
  const sequence<float> tokens;
  tensor packed(2, 11, 8, 6, unwritten);  // k in heads 1 .. 3, v in heads 4 .. 6, with additional channels
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

TEST_CASE("values have as many channels as keys by default", "[cache]") {
  const kv_cache<float> same(1, 4, 2, 6), other(1, 4, 2, 6, 3);
  CHECK(same.keys().head_dim == 6);
  CHECK(same.values().head_dim == 6);
  CHECK(other.keys().head_dim == 6);
  CHECK(other.values().head_dim == 3);
}

TEST_CASE("a cache gives read-only views of its tokens", "[cache]") {
  STATIC_REQUIRE(
      std::is_same_v<decltype(std::declval<kv_cache<float>&>().keys()), rope::head_view<const float>>);
  STATIC_REQUIRE(
      std::is_same_v<decltype(std::declval<kv_cache<float>&>().values()), rope::head_view<const float>>);
}

TEST_CASE("stored tokens do not move while a cache fills", "[cache]") {
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

TEST_CASE("the keys of one head are contiguous", "[cache]") {
  const kv_cache<float> cache(2, 11, 3, 5, 4);
  CHECK(cache.keys().token_stride == 5);
  CHECK(cache.values().token_stride == 4);
}

TEST_CASE("tokens that do not fit throw and nothing is written", "[cache]") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 7, 3, 5, 4);
  CHECK(throws_saying<std::length_error>(
      [&] { tokens.append_to(cache, 0, 8); },
      "kv_cache::append: 8 tokens do not fit into row 0, which holds 0 of 7; call reserve"));
  tokens.check(cache, 0);
  tokens.append_to(cache, 0, 5);
  CHECK(throws_saying<std::length_error>(
      [&] { tokens.append_to(cache, 5, 8); },
      "kv_cache::append: 3 tokens do not fit into row 0, which holds 5 of 7"));
  tokens.check(cache, 5);
  tokens.append_to(cache, 5, 7);
  CHECK_THROWS_AS(tokens.append_to(cache, 7, 8), std::length_error);
  tokens.append_to(cache, 7, 7);
  tokens.check(cache, 7);

  // Not even into the memory after the last token.
  cache.truncate(3);
  const std::vector<float> later(cache.keys().at(0, 3, 0), cache.keys().at(0, 7, 0));
  CHECK_THROWS_AS(sequence<float>(62).append_to(cache, 0, 5), std::length_error);
  CHECK(std::vector<float>(cache.keys().at(0, 3, 0), cache.keys().at(0, 7, 0)) == later);
}

TEST_CASE("keys and values of another shape throw and nothing is written", "[cache]") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 2);
  const std::vector<float> memory(1000);
  const auto k = rope::bshd(memory.data(), 2, 4, 3, 5);
  const auto v = rope::bshd(memory.data(), 2, 4, 3, 4);
  const auto rejected = [&](auto keys, auto values, const std::string& rule) {
    CHECK(throws_saying<std::invalid_argument>([&] { cache.append(keys, values); },
                                               "kv_cache::append: " + rule));
    tokens.check(cache, 2);
  };
  const auto at = [&](long b, long t, long h, long d) { return rope::bshd(memory.data(), b, t, h, d); };
  rejected(at(1, 4, 3, 5), v, "k must be [2, tokens, 3, 5], got [1, 4, 3, 5]");
  rejected(at(2, 4, 6, 5), v, "k must be [2, tokens, 3, 5], got [2, 4, 6, 5]");
  rejected(at(2, 4, 3, 4), v, "k must be [2, tokens, 3, 5], got [2, 4, 3, 4]");
  rejected(k, at(3, 4, 3, 4), "v must be [2, tokens, 3, 4], got [3, 4, 3, 4]");
  rejected(k, at(2, 4, 1, 4), "v must be [2, tokens, 3, 4], got [2, 4, 1, 4]");
  rejected(k, at(2, 4, 3, 5), "v must be [2, tokens, 3, 4], got [2, 4, 3, 5]");
  rejected(k, at(2, 3, 3, 4), "k and v must have the same tokens, got 4 and 3");
  rejected(at(2, 5, 3, 5), v, "k and v must have the same tokens, got 5 and 4");
  rope::head_view<const float> negative = k;
  negative.tokens = -1;
  rejected(negative, v, "the extents of a view must not be negative, got [2, -1, 3, 5]");
}

TEST_CASE("truncation drops the newest tokens, and others may take their slots", "[cache]") {
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

TEST_CASE("a cleared cache is empty and has its capacity", "[cache]") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4);
  tokens.append_to(cache, 0, 11);
  cache.clear();
  tokens.check(cache, 0);
  CHECK(cache.capacity() == 11);
  tokens.append_to(cache, 0, 11);
  tokens.check(cache, 11);
}

TEST_CASE("a copy of a cache grows independently", "[cache]") {
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

TEST_CASE("a cache without capacity, rows, heads or channels is empty", "[cache]") {
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
    CHECK(none.size() == (none.batch() == 0 ? 0 : 1));
    CHECK(none.keys().size() == 0);
  }
}

TEST_CASE("negative extents and extents beyond the address space throw", "[cache]") {
  CHECK(throws_saying<std::invalid_argument>([] { kv_cache<float>(1, -4, 2, 8); },
                                             "kv_cache: extents must not be negative, got [1, -4, 2, 8]"));
  CHECK_THROWS_AS(kv_cache<float>(-1, 4, 2, 8), std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(1, 4, -2, 8), std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(1, 4, 2, -8), std::invalid_argument);
  CHECK_THROWS_AS(kv_cache<float>(1, 4, 2, 8, -8), std::invalid_argument);
  // Also if another extent is 0 or far too large.
  CHECK_THROWS_AS(kv_cache<float>(0, -4, 2, 8), std::invalid_argument);

  const rope::Index huge = (std::numeric_limits<rope::Index>::max)();
  CHECK(throws_saying<std::length_error>(
      [] { kv_cache<float>(1 << 20, 1 << 20, 1 << 20, 128); },
      "kv_cache: extents must not exceed the address space, got [1048576, 1048576, 1048576, 128]"));
  CHECK_THROWS_AS(kv_cache<float>(1, huge, 1, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(huge, 1, 1, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(1, 1, huge, 2), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(1, 1, 1, 1, huge), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(1, (huge >> 2) + 1, 1, 1), std::length_error);
  // The strides of an empty view are products too.
  const rope::Index far = rope::Index{1} << (sizeof(rope::Index) > 4 ? 40 : 20);
  CHECK_THROWS_AS(kv_cache<float>(0, far, 1 << 30, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(far, 1 << 30, 0, 1), std::length_error);
  CHECK_THROWS_AS(kv_cache<float>(far, 0, 1 << 30, 1), std::length_error);
  CHECK_NOTHROW(kv_cache<float>(0, far, 1 << 4, 1));
}

namespace {

using positions = std::vector<std::int64_t>;

template <class T>
positions positions_of(const kv_cache<T>& cache, long b) {
  const auto span = cache.positions(b);
  return {span.begin(), span.end()};
}

/// Tokens `places` of row b of a sequence, which are all tokens of the row of the cache.
template <class T>
void check_row(const kv_cache<T>& cache, long b, const sequence<T>& tokens, const std::vector<long>& places) {
  CHECK(cache.size(b) == static_cast<long>(places.size()));
  const tensor keys = contents(cache.keys(b)), values = contents(cache.values(b));
  bool same = keys.tokens == static_cast<long>(places.size());
  for (std::size_t t = 0; same && t < places.size(); ++t)
    for (long h = 0; h < 3; ++h) {
      for (long d = 0; d < 5; ++d)
        same = same && keys(0, static_cast<long>(t), h, d) == tokens.keys(b, places[t], h, d);
      for (long d = 0; d < 4; ++d)
        same = same && values(0, static_cast<long>(t), h, d) == tokens.values(b, places[t], h, d);
    }
  CHECK(same);
}

}  // namespace

TEST_CASE("rows take as many of the new tokens as their count", "[cache]") {
  const sequence<float> tokens;
  const auto k = stored<float>(tokens.keys), v = stored<float>(tokens.values);
  kv_cache<float> cache(2, 9, 3, 5, 4);
  cache.append(view(k, tokens.keys).token_range(0, 4), view(v, tokens.values).token_range(0, 4),
               std::vector<rope::Index>{4, 1});
  check_row(cache, 0, tokens, {0, 1, 2, 3});
  check_row(cache, 1, tokens, {0});
  cache.append(view(k, tokens.keys).token_range(4, 5), view(v, tokens.values).token_range(4, 5),
               std::vector<rope::Index>{0, 5});
  check_row(cache, 0, tokens, {0, 1, 2, 3});
  check_row(cache, 1, tokens, {0, 4, 5, 6, 7, 8});
  CHECK(positions_of(cache, 1) == positions{0, 1, 2, 3, 4, 5});
  CHECK(positions(cache.next_positions().begin(), cache.next_positions().end()) == positions{4, 6});

  // Row 1 has 3 free slots only, so row 0 takes no token either.
  CHECK(throws_saying<std::length_error>(
      [&] { cache.append(view(k, tokens.keys).token_range(0, 4), view(v, tokens.values).token_range(0, 4)); },
      "rope::kv_cache::append: 4 tokens do not fit into row 1, which holds 6 of 9"));
  check_row(cache, 0, tokens, {0, 1, 2, 3});
  cache.truncate(4, rope::batch_row{1});
  CHECK(cache.size() == 4);
  check_row(cache, 1, tokens, {0, 4, 5, 6});
}

TEST_CASE("the next token comes after the largest position, in whichever slot that is", "[cache]") {
  const sequence<float> tokens;
  kv_cache<float> cache(2, 11, 3, 5, 4, rope::key_storage::raw);
  tokens.append_to(cache, 0, 4);
  cache.shift(1, 1, 50);
  CHECK(positions_of(cache, 0) == positions{0, 51, 2, 3});
  CHECK(cache.next_positions()[0] == 52);
  tokens.append_to(cache, 4, 5);
  CHECK(positions_of(cache, 1) == positions{0, 51, 2, 3, 52});
  cache.truncate(1);
  CHECK(cache.next_positions()[0] == 1);
  cache.clear();
  CHECK(cache.next_positions()[0] == 0);
}

TEMPLATE_TEST_CASE("a 16-bit cache rounds float keys and values once", "[cache]", Eigen::half,
                   Eigen::bfloat16) {
  const sequence<float> tokens;  // floats that the 16-bit type cannot represent
  const auto k = stored<float>(tokens.keys), v = stored<float>(tokens.values);
  kv_cache<TestType> given(2, 11, 3, 5, 4), rotated(2, 11, 3, 5, 4);
  given.append(view(k, tokens.keys), view(v, tokens.values));
  const rope::frequency_table<float> table(rope::frequencies(4), 20);
  rotated.template append<rope::interleaved>(view(k, tokens.keys), view(v, tokens.values), table);

  auto rotated_k = k;  // rotated in float, then rounded
  rope::rotate<rope::interleaved>(view(rotated_k, tokens.keys), table);
  bool same = true;
  const tensor plain = contents(given.keys()), after = contents(rotated.keys());
  const tensor once = loaded(rotated_k, tokens.keys), values = contents(rotated.values());
  const auto rounded = [](double x) {
    return static_cast<double>(static_cast<TestType>(static_cast<float>(x)));
  };
  for_each_element(tokens.keys, [&](long b, long t, long h, long d) {
    same = same && plain(b, t, h, d) == rounded(tokens.keys(b, t, h, d)) &&
           after(b, t, h, d) == rounded(once(b, t, h, d));
  });
  for_each_element(tokens.values, [&](long b, long t, long h, long d) {
    same = same && values(b, t, h, d) == rounded(tokens.values(b, t, h, d));
  });
  CHECK(same);
}

TEST_CASE("threads share the new tokens of rows of any count", "[cache]") {
  const rope::Index batch = 3, tokens = 700, heads = 2,
                    dim = 64;  // 2 MiB, in pieces that begin within rows
  const std::vector<float> memory = testing::random_channels<float>(batch * tokens * heads * dim, 3);
  const auto x = rope::bshd(memory.data(), batch, tokens, heads, dim);
  const rope::frequency_table<> table(rope::frequencies(dim), tokens);
  const std::vector<rope::Index> all = {}, some = {700, 0, 450};
  for (const auto& counts : {all, some}) {
    rope::kv_cache<float> one(batch, tokens, heads, dim), several = one;
    one.append<rope::half_split>(x, x, table, counts);
    several.append<rope::half_split>(x, x, table, counts, testing::own_threads(4));
    for (rope::Index b = 0; b < batch; ++b) {
      CHECK(testing::same_heads(several.keys(b), one.keys(b)));
      CHECK(testing::same_heads(several.values(b), one.values(b)));
    }
  }
}
