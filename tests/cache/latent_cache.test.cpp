// SPDX-License-Identifier: MIT
#include <rope/cache/latent_cache.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

using namespace rope;
using testing::throws_saying;

namespace {

constexpr Index batch = 2, capacity = 9, latent_dim = 6, rotary_dim = 4, heads = 3;

template <class T>
struct tokens {
  Index count;
  std::vector<T> q, c, r, out;
  explicit tokens(Index n, std::uint32_t seed = 21)
      : count(n),
        q(testing::random_channels<T>(batch * n * heads * (latent_dim + rotary_dim), seed)),
        c(testing::random_channels<T>(batch * n * latent_dim, seed + 1)),
        r(testing::random_channels<T>(batch * n * rotary_dim, seed + 2)),
        out(static_cast<std::size_t>(batch * n * heads * latent_dim), T(-99)) {}
  head_view<T> queries() { return bshd(q.data(), batch, count, heads, latent_dim + rotary_dim); }
  head_view<const T> latents() const { return bshd(c.data(), batch, count, 1, latent_dim); }
  head_view<const T> parts() const { return bshd(r.data(), batch, count, 1, rotary_dim); }
  head_view<T> output() { return bshd(out.data(), batch, count, heads, latent_dim); }
};

template <class T>
head_view<const T> parts_of(const latent_cache<T>& cache) {
  return cache.keys().channels(latent_dim, rotary_dim);
}

template <class T>
bool same_contents(const latent_cache<T>& a, const latent_cache<T>& b) {
  bool same = true;
  for (Index row = 0; row < batch; ++row) {
    const auto at = a.positions(row), bt = b.positions(row);
    same = same && testing::same_heads(a.keys(row), b.keys(row)) &&
           std::vector(at.begin(), at.end()) == std::vector(bt.begin(), bt.end());
  }
  return same && std::vector(a.next_positions().begin(), a.next_positions().end()) ==
                     std::vector(b.next_positions().begin(), b.next_positions().end());
}

}  // namespace

TEMPLATE_TEST_CASE("a latent_cache stores latents unchanged and rotates the part after them", "[cache]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 30);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    const tokens<T> x(capacity);
    tokens<T> y = x;
    rotate<Layout>(bshd(y.r.data(), batch, capacity, 1, rotary_dim), table);
    latent_cache<T> cache(batch, capacity, latent_dim, rotary_dim),
        given = cache, raw(batch, capacity, latent_dim, rotary_dim, key_storage::raw);
    cache.template append<Layout>(x.latents(), x.parts(), table);
    given.append(y.latents(), y.parts());
    raw.append(x.latents(), x.parts());
    CHECK(cache.size() == capacity);
    CHECK(testing::same_heads(cache.values(), x.latents()));
    CHECK(testing::same_heads(parts_of(cache), y.parts()));
    CHECK(testing::same_heads(cache.keys(), given.keys()));
    CHECK(testing::same_heads(raw.keys().channels(0, latent_dim), x.latents()));
    CHECK(testing::same_heads(parts_of(raw), x.parts()));
    // Stored once: the values are the first channels of the keys.
    CHECK(cache.values().data == cache.keys().data);
    CHECK(cache.keys().token_stride == latent_dim + rotary_dim);
    CHECK(cache.keys(1).data == cache.keys().at(1, 0, 0));
    CHECK(cache.values(1).data == cache.keys(1).data);

    latent_cache<T> at(batch, capacity, latent_dim, rotary_dim);
    tokens<T> z = x;
    const std::vector<int> ids = {7, 0, 3, 3, 20, 1, 2, 29, 5};
    rotate<Layout>(bshd(z.r.data(), batch, capacity, 1, rotary_dim), table, ids);
    at.template append_at<Layout>(x.latents(), x.parts(), table.at_channel(latent_dim), ids);
    CHECK(testing::same_heads(parts_of(at), z.parts()));
    CHECK(at.positions(1)[7] == 29);
    CHECK(at.next_positions()[0] == 30);
    at.clear();
    at.append_at(z.latents(), z.parts(), ids);
    CHECK(testing::same_heads(parts_of(at), z.parts()));
  });
  const latent_cache<T> shape(batch, capacity, latent_dim, rotary_dim, key_storage::raw);
  CHECK(shape.batch() == batch);
  CHECK(shape.capacity() == capacity);
  CHECK(shape.latent_dim() == latent_dim);
  CHECK(shape.rotary_dim() == rotary_dim);
  CHECK(shape.storage() == key_storage::raw);
}

TEST_CASE("a latent_cache of 16 bits rounds float latents and rotated parts once", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 30);
  const tokens<float> x(capacity);
  tokens<float> y = x;
  rotate<half_split>(bshd(y.r.data(), batch, capacity, 1, rotary_dim), table);
  latent_cache<Eigen::bfloat16> cache(batch, capacity, latent_dim, rotary_dim), given = cache;
  cache.append<half_split>(x.latents(), x.parts(), table);
  given.append(y.latents(), y.parts());
  CHECK(testing::same_heads(cache.keys(), given.keys()));
  CHECK(*cache.values().at(1, 4, 0) == static_cast<Eigen::bfloat16>(*x.latents().at(1, 4, 0)));
}

TEMPLATE_TEST_CASE("shift and rebase of a latent_cache rotate only the rotated part", "[cache]", float,
                   double) {
  using T = TestType;
  const frequency_table<T> table(frequencies(rotary_dim, 50.0), -30, 60),
      other(frequencies(rotary_dim, 80.0), -30, 60);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    const tokens<T> x(capacity);
    latent_cache<T> cache(batch, capacity, latent_dim, rotary_dim);
    kv_cache<T> alone(batch, capacity, 1, rotary_dim, latent_dim);
    cache.template append<Layout>(x.latents(), x.parts(), table);
    alone.template append<Layout>(x.parts(), x.latents(), table);
    const auto check = [&](Index size) {
      CHECK(cache.size() == size);
      CHECK(testing::same_heads(cache.values(), alone.values()));
      CHECK(testing::same_heads(parts_of(cache), alone.keys()));
    };
    check(capacity);
    cache.remove(2, 3);
    alone.remove(2, 3);
    check(capacity - 3);
    cache.template shift<Layout>(2, 4, -3, table);
    alone.template shift<Layout>(2, 4, -3, table);
    check(capacity - 3);
    CHECK(cache.positions(1)[5] == 5);
    cache.template shift<Layout>(0, 1, 17, table.at_channel(latent_dim), batch_row{1});
    alone.template shift<Layout>(0, 1, 17, table, batch_row{1});
    check(capacity - 3);
    CHECK(cache.positions(1)[0] == 17);
    CHECK(cache.positions(0)[0] == 0);
    CHECK(cache.next_positions()[1] == 18);
    cache.template rebase<Layout>(table, other);
    alone.template rebase<Layout>(table, other);
    check(capacity - 3);
    CHECK_NOTHROW(cache.template check_table<Layout>(other));
    cache.truncate(4);
    alone.truncate(4);
    check(4);
    cache.template append<Layout>(x.latents().token_range(0, 5), x.parts().token_range(0, 5), other);
    alone.template append<Layout>(x.parts().token_range(0, 5), x.latents().token_range(0, 5), other);
    check(capacity);
  });
}

TEST_CASE("raw parts shift exactly", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 30);
  const tokens<float> x(4);
  latent_cache<float> cache(batch, capacity, latent_dim, rotary_dim, key_storage::raw);
  cache.append(x.latents(), x.parts());
  cache.shift(1, 3, 5);
  cache.shift<interleaved>(0, 1, 2, table);
  CHECK(testing::same_heads(parts_of(cache), x.parts()));
  CHECK(cache.positions(0)[0] == 2);
  CHECK(cache.positions(0)[1] == 6);
}

TEST_CASE("rows of a latent_cache grow independently", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 30);
  tokens<float> x(4);
  latent_cache<float> cache(batch, capacity, latent_dim, rotary_dim);
  const std::vector<int> counts = {4, 1};
  cache.append<interleaved>(x.latents(), x.parts(), table, counts);
  CHECK(cache.size(0) == 4);
  CHECK(cache.size(1) == 1);
  CHECK(testing::same_heads(cache.values(1), x.latents().batch_range(1, 1).token_range(0, 1)));
  CHECK(cache.query_counts(4)[1] == 1);
  attention<interleaved>(x.queries(), cache, x.output(), table, {.scale = 0.3});
  CHECK(*x.output().at(1, 1, 0) == 0);
  // One token attends to itself only.
  CHECK(testing::same_heads(x.output().batch_range(1, 1).token_range(0, 1).head_range(2, 1),
                            x.latents().batch_range(1, 1).token_range(0, 1)));
}

TEST_CASE("a copy of a latent_cache grows independently, and one that was moved from is empty", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 30);
  const tokens<float> x(4), y(4, 33);
  latent_cache<float> cache(batch, capacity, latent_dim, rotary_dim);
  cache.append<interleaved>(x.latents(), x.parts(), table);
  latent_cache<float> copy = cache, other(1, 1, 1, 2);
  copy.append<interleaved>(y.latents(), y.parts(), table);
  CHECK(cache.size() == 4);
  CHECK(testing::same_heads(copy.values().token_range(4, 4), y.latents()));
  other = copy;
  CHECK(same_contents(other, copy));
  other = std::move(copy);
  CHECK(other.size() == 8);
  CHECK(copy.batch() == 0);  // NOLINT: its state after the move is documented
  CHECK(copy.size() == 0);
  CHECK(copy.capacity() == 0);
  CHECK(copy.keys().size() == 0);
  CHECK(copy.latent_dim() == 0);
}

TEST_CASE("a latent_cache throws if an argument does not fit, and does not change", "[cache]") {
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), 30),
      short_table(frequencies(rotary_dim, 50.0), 4), others(frequencies(rotary_dim, 80.0), 30),
      narrow(frequencies(2, 50.0), 30), wide(frequencies(6, 50.0), 30),
      float_angles = frequency_table<>::with_float_angles(frequencies(rotary_dim, 50.0), 0, 30);
  tokens<float> x(3);
  latent_cache<float> cache(batch, capacity, latent_dim, rotary_dim);
  cache.append<half_split>(x.latents(), x.parts(), table);
  const latent_cache<float> before = cache;
  const std::vector<float> out = x.out;
  const auto rejected = [&]<class E>(E, const auto& call, const auto&... parts) {
    CHECK(throws_saying<E>(call, parts...));
    CHECK(same_contents(cache, before));
    CHECK(x.out == out);
    CHECK_NOTHROW(cache.check_table<half_split>(table));
  };
  const std::invalid_argument invalid("");
  const std::out_of_range range("");
  const std::length_error length("");
  const auto c = x.latents(), r = x.parts();
  const auto append = [&](const auto&... arguments) { cache.append<half_split>(arguments...); };

  // Shapes and counts.
  rejected(
      invalid, [&] { append(c.batch_range(0, 1), r, table); },
      "latent_cache::append: latent must be [2, tokens, 1, 6], got [1, 3, 1, 6]");
  rejected(
      invalid, [&] { append(c.channels(0, 5), r, table); }, "latent must be [2, tokens, 1, 6]");
  rejected(
      invalid, [&] { append(c, r.channels(0, 2), table); },
      "rotated_part must be [2, tokens, 1, 4], got [2, 3, 1, 2]");
  rejected(
      invalid, [&] { append(c, r.token_range(0, 2), table); },
      "latent_cache::append: rotated_part and latent must have the same tokens, got 2 and 3");
  rejected(
      invalid,
      [&] {
        append(c, r, table, std::vector<int>{4, 0});
      },
      "counts must be in [0, tokens] = [0, 3], got 4");
  rejected(
      invalid, [&] { append(c, r, table, std::vector<int>{1}); }, "counts must be [batch] = 2, got 1");
  {
    const tokens<float> many(7);
    rejected(
        length, [&] { append(many.latents(), many.parts(), table); },
        "latent_cache::append: 7 tokens do not fit into row 0, which holds 3 of 9");
  }
  // Tables.
  rejected(
      invalid, [&] { append(c, r, narrow); },
      "latent_cache::append: the table must rotate the 4 channels from channel 6 on, which are the rotated "
      "part, "
      "got one of 2 channels from channel 6 on");
  rejected(
      invalid, [&] { append(c, r, wide); }, "got one of 6 channels from channel 6 on");
  rejected(
      invalid, [&] { append(c, r, table.at_channel(0)); }, "got one of 4 channels from channel 0 on");
  rejected(
      invalid, [&] { append(c, r, table.at_channel(7)); }, "got one of 4 channels from channel 7 on");
  rejected(
      invalid, [&] { append(c, r, others); },
      "latent_cache: give the layout and the table that the keys were rotated by, got a table with "
      "different angles");
  rejected(
      invalid, [&] { cache.append<interleaved>(c, r, table); }, "got the right table in another layout");
  rejected(
      range, [&] { append(c, r, short_table); }, "latent_cache::append");
  rejected(
      invalid, [&] { cache.append(c, r); },
      "latent_cache::append: this cache rotates its keys, give the layout and the table, got none; append "
      "keys "
      "that the table rotated before with append_rotated");
  {
    latent_cache<float> given(batch, capacity, latent_dim, rotary_dim),
        raw(batch, capacity, latent_dim, rotary_dim, key_storage::raw);
    given.append(c, r);
    const latent_cache<float> as_given = given;
    CHECK(
        throws_saying<std::invalid_argument>([&] { given.append<half_split>(c, r, table); },
                                             "got a table, but they were rotated before they were appended"));
    CHECK(same_contents(given, as_given));
    CHECK(throws_saying<std::invalid_argument>([&] { raw.append<half_split>(c, r, table); },
                                               "raw keys are rotated when they are read"));
    CHECK(raw.size() == 0);
    raw.append(c, r);
    const latent_cache<float> as_raw = raw;
    CHECK(throws_saying<std::invalid_argument>([&] { raw.rebase<half_split>(table, others); },
                                               "raw keys are stored unrotated"));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { attention(x.queries(), raw, x.output(), {.scale = 1}); },
        "attention: the stored keys are raw, give the layout and the table"));
    CHECK(same_contents(raw, as_raw));
  }
  // Positions.
  rejected(
      range,
      [&] {
        cache.append_at<half_split>(c, r, table, std::vector<int>{1, 2, 30});
      },
      "latent_cache::append_at");
  rejected(
      invalid,
      [&] {
        cache.append_at<half_split>(c, r, table, std::vector<int>{1, 2});
      },
      "latent");
  {
    latent_cache<float> empty(batch, capacity, latent_dim, rotary_dim);
    CHECK(throws_saying<std::out_of_range>(
        [&] {
          empty.append_at(c, r, std::vector<std::int64_t>{0, 1, (std::int64_t{1} << 53) + 1});
        },
        "positions must stay within 2^53"));
    CHECK(empty.size() == 0);
  }
  // Tables of shifts and rebases.
  rejected(
      invalid, [&] { cache.shift<half_split>(0, 1, 1, others); }, "got a table with different angles");
  rejected(
      invalid, [&] { cache.shift<half_split>(0, 1, 1, narrow); },
      "latent_cache::shift: the table must rotate the 4");
  rejected(
      invalid, [&] { cache.rebase<half_split>(others, table); }, "got a table with different angles");
  rejected(
      invalid, [&] { cache.rebase<half_split>(table, narrow); },
      "latent_cache::rebase: the table must rotate the 4");
  rejected(
      invalid, [&] { cache.rebase<half_split>(table, float_angles); }, "but is not in the second");
  rejected(
      invalid, [&] { cache.check_table<half_split>(others); }, "latent_cache: give the layout and the table");
  rejected(
      invalid, [&] { cache.check_table<half_split>(narrow); }, "latent_cache: the table must rotate the 4");
  {
    latent_cache<float> floats(batch, capacity, latent_dim, rotary_dim);
    floats.append<half_split>(c, r, float_angles);
    const latent_cache<float> as_appended = floats;
    CHECK(throws_saying<std::invalid_argument>([&] { floats.shift<half_split>(0, 1, 1, float_angles); },
                                               "the angle must be position * inv_freq"));
    CHECK(same_contents(floats, as_appended));
  }
  // Attention.
  const auto attend = [&](const auto&... arguments) {
    attention<half_split>(x.queries(), cache, x.output(), arguments...);
  };
  rejected(
      invalid, [&] { attend(table); },
      "attention: a latent_cache needs a scale, 1 / sqrt(head_dim) of the expanded heads", "got 0");
  rejected(
      invalid, [&] { attention(x.queries(), cache, x.output()); }, "attention: a latent_cache needs a scale");
  rejected(
      invalid, [&] { attend(others, attention_options{.scale = 1}); },
      "latent_cache: give the layout and the table");
  rejected(
      invalid, [&] { attend(narrow, attention_options{.scale = 1}); },
      "attention: the table must rotate the 4 channels");
  rejected(
      invalid, [&] { attend(table, attention_options{.scale = 1, .dropout = 0.5}); },
      "dropout is for training");
  rejected(
      invalid,
      [&] {
        attention<half_split>(x.queries().channels(0, latent_dim), cache, x.output(), table, {.scale = 1});
      },
      "q and k must have the same head_dim, got 6 and 10");
  rejected(
      invalid,
      [&] { attention<half_split>(x.queries(), cache, x.output().channels(0, 2), table, {.scale = 1}); },
      "v and out must have the same head_dim");
  attend(table, attention_options{.scale = 1});
  CHECK(x.out != out);
}

TEST_CASE("negative extents of a latent_cache and extents beyond the address space throw", "[cache]") {
  constexpr Index huge = (std::numeric_limits<Index>::max)();
  CHECK(
      throws_saying<std::invalid_argument>([] { latent_cache<float>(1, -4, 2, 8); },
                                           "latent_cache: extents must not be negative, got [1, -4, 1, 10]"));
  CHECK_THROWS_AS(latent_cache<float>(-1, 4, 2, 8), std::invalid_argument);
  CHECK(throws_saying<std::invalid_argument>(
      [] { latent_cache<float>(1, 4, -1, 8); },
      "latent_cache: latent_dim and rotary_dim must not be negative, got -1 and 8"));
  CHECK_THROWS_AS(latent_cache<float>(1, 4, 2, -8), std::invalid_argument);
  CHECK(throws_saying<std::length_error>([&] { latent_cache<float>(1, 1, huge, 1); },
                                         "exceed the address space"));
  CHECK_THROWS_AS(latent_cache<float>(1, huge, 2, 2), std::length_error);
  CHECK_NOTHROW(latent_cache<float>(0, 4, 2, 2));
  CHECK_NOTHROW(latent_cache<float>(2, 0, 0, 0));
}

TEST_CASE("a latent_cache gives read-only views of its tokens", "[cache]") {
  STATIC_REQUIRE(
      std::is_same_v<decltype(std::declval<latent_cache<float>&>().keys()), head_view<const float>>);
  STATIC_REQUIRE(
      std::is_same_v<decltype(std::declval<latent_cache<float>&>().values()), head_view<const float>>);
}
