// SPDX-License-Identifier: MIT
// Operations on registers, compared with scalars lane by lane: splitting and joining channels, sums, signs,
// rows of any length.
#include <rope/base/numbers.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

using namespace rope::detail;
using rope::Index;

/// The lanes of a packet.
template <class A, class P>
std::vector<A> lanes_of(const P& p) {
  std::vector<A> result(std::size_t(lanes<P>));
  store(result.data(), p);
  return result;
}

/// first, first + step, ...
template <class A>
std::vector<A> ascending(Index count, A first, A step) {
  std::vector<A> result;
  for (Index i = 0; i < count; ++i) result.push_back(first + step * static_cast<A>(i));
  return result;
}

template <class A>
void check_lanes() {
  using P = packet<A>;
  constexpr int L = lanes<P>;
  // Offset by one element: nothing here requires aligned memory.
  const auto x = ascending<A>(2 * L + 1, -3, 1), y = ascending<A>(2 * L + 1, 7, -2);
  const P a = load<P>(x.data() + 1), b = load<P>(y.data() + 1);
  const auto check = [&](const P& p, const auto& expected) {
    const std::vector<A> seen = lanes_of<A>(p);
    for (int i = 0; i < L; ++i) {
      CAPTURE(i);
      CHECK(seen[std::size_t(i)] == expected(i));
    }
  };
  const auto of_x = [&](int i) { return x[std::size_t(i + 1)]; };
  const auto of_y = [&](int i) { return y[std::size_t(i + 1)]; };
  check(a, of_x);
  check(add(a, b), [&](int i) { return of_x(i) + of_y(i); });
  check(subtract(a, b), [&](int i) { return of_x(i) - of_y(i); });
  check(multiply(a, b), [&](int i) { return of_x(i) * of_y(i); });
  check(multiply_add(a, b, fill<P>(A(5))), [&](int i) { return of_x(i) * of_y(i) + 5; });
  check(larger(a, b), [&](int i) { return (std::max)(of_x(i), of_y(i)); });
  check(at_least(a, b), [&](int i) { return (std::max)(of_x(i), of_y(i)); });
  A sum = 0, largest = of_x(0);
  for (int i = 0; i < L; ++i) sum += of_x(i), largest = (std::max)(largest, of_x(i));
  CHECK(sum_of_lanes(a) == sum);
  CHECK(largest_lane(a) == largest);

  const auto halves = load_even_odd<P>(x.data() + 1);
  check(halves.even, [&](int i) { return of_x(2 * i); });
  check(halves.odd, [&](int i) { return of_x(2 * i + 1); });
  std::vector<A> again(std::size_t(2 * L + 2), A(-99));
  store_alternating(again.data() + 1, halves.even, halves.odd);
  CHECK(again.front() == A(-99));
  CHECK(again.back() == A(-99));
  CHECK(std::equal(x.begin() + 1, x.end(), again.begin() + 1));

  if constexpr (L > 1) {
    check(multiply_subtract(a, b, fill<P>(A(5))), [&](int i) { return of_x(i) * of_y(i) - 5; });
    check(load_each_twice<P>(x.data() + 1), [&](int i) { return of_x(i / 2); });
    check(alternating_signs<P>(), [](int i) { return i % 2 == 0 ? A(-1) : A(1); });
    check(swap_neighbours(a), [&](int i) { return of_x(i % 2 == 0 ? i + 1 : i - 1); });
    P rows[std::size_t(L)], columns[std::size_t(L)];
    const auto entry = [](int r, int c) { return static_cast<A>(100 * r + c * c); };
    for (int r = 0; r < L; ++r) {
      std::vector<A> row;
      for (int c = 0; c < L; ++c) row.push_back(entry(r, c));
      rows[r] = columns[r] = load<P>(row.data());
    }
    transpose(columns);
    for (int r = 0; r < L; ++r) check(columns[r], [&](int c) { return entry(c, r); });
    check(sums_of_lanes(rows), [&](int r) {
      A all = 0;
      for (int c = 0; c < L; ++c) all += entry(r, c);
      return all;
    });
  }
}

/// Pairs 0, 1, ... with the first channel `pair` and the second `pair` + 100.
template <class T, class P>
void check_pairs() {
  if constexpr (has_packets<T, P> && can_split_even_odd<T, P>) {
    using A = arithmetic<T>;
    constexpr Index L = lanes<P>;
    std::vector<T> from;
    std::vector<A> entries;
    for (Index pair = 0; pair < L; ++pair) {
      from.push_back(static_cast<T>(static_cast<A>(pair)));
      from.push_back(static_cast<T>(static_cast<A>(pair + 100)));
      entries.push_back(static_cast<A>(pair));
    }
    const auto both = load_pairs<P>(from.data());
    const auto first = lanes_of<A>(both.even), second = lanes_of<A>(both.odd);
    const auto of_pairs = lanes_of<A>(load_pair_entries<P, T>(entries.data()));
    for (std::size_t i = 0; i < first.size(); ++i) {
      CAPTURE(i);
      CHECK(second[i] == first[i] + 100);
      CHECK(of_pairs[i] == first[i]);
    }
    auto sorted = first;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == entries);
    std::vector<T> again(from.size() + 2, T(-99));
    store_pairs(again.data() + 1, both.even, both.odd);
    CHECK(static_cast<A>(again.front()) == A(-99));
    CHECK(static_cast<A>(again.back()) == A(-99));
    for (std::size_t i = 0; i < from.size(); ++i) CHECK(again[i + 1] == from[i]);
  }
}

std::uint16_t bits_of(Eigen::bfloat16 x) { return std::bit_cast<std::uint16_t>(x); }

/// Bits of a float of either sign that is not NaN, often half way between two bfloat16 or next to that, or
/// below 2^-126.
std::uint32_t drawn_bits(testing::random& random) {
  const auto sign = static_cast<std::uint32_t>(random.integer(0, 1)) << 31;
  const auto upper = static_cast<std::uint32_t>(random.integer(0, 9) == 0 ? random.integer(0, 0x81)
                                                                          : random.integer(0x82, 0x7f7f))
                     << 16;
  const std::uint32_t lowers[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  const auto lower = random.integer(0, 1) == 0 ? lowers[random.integer(0, 5)]
                                               : static_cast<std::uint32_t>(random.integer(0, 0xffff));
  return random.integer(0, 20) == 0 ? sign : sign | upper | lower;
}

template <class T>
void check_rows() {
  using A = arithmetic<T>;
  const Index longest = 3 * lanes<packet<A>> + 2;
  for (Index count = 0; count <= longest; ++count) {
    CAPTURE(count);
    std::vector<T> x, back(std::size_t(longest + 1), T(98));
    std::vector<A> wide(std::size_t(longest + 1), A(99));
    for (Index i = 0; i < longest; ++i) x.push_back(static_cast<T>(static_cast<A>(i % 50 - 20)));
    widen(x.data(), count, wide.data());
    round_channels(wide.data(), count, back.data());
    for (Index i = 0; i <= longest; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(wide[at] == (i < count ? static_cast<A>(i % 50 - 20) : A(99)));
      CHECK(static_cast<A>(back[at]) == (i < count ? wide[at] : A(98)));
    }
  }
}

/// Rows of floats, every third with an infinity or a NaN, convert to T as static_cast does.
template <class T>
void check_conversions() {
  testing::random random(20261201);
  const Index longest = 5 * lanes<packet<float>> + 3;
  const auto bits_of = [](T value) { return Eigen::numext::bit_cast<std::uint16_t>(value); };
  for (int n = 0; n < 3000; ++n) {
    const auto count = static_cast<Index>(random.integer(0, longest));
    CAPTURE(n, count);
    std::vector<float> x;
    for (Index i = 0; i < longest; ++i) {
      float value = std::bit_cast<float>(drawn_bits(random));
      if (random.integer(0, 1) == 0) value = static_cast<float>(random.integer(-70000, 70000)) / 4096;
      x.push_back(value);
    }
    const std::uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fffffff, 0xffffffff, 0x7fc00001, 0xff80ffff};
    if (n % 3 == 0 && count > 0)
      x[static_cast<std::size_t>(random.integer(0, count - 1))] =
          std::bit_cast<float>(specials[random.integer(0, 5)]);
    std::vector<T> out(std::size_t(longest + 1), T(98.0f));
    convert_channels(x.data(), count, out.data());
    bool equals = true;
    for (Index i = 0; i <= longest; ++i) {
      const auto at = static_cast<std::size_t>(i);
      equals = equals && bits_of(out[at]) == bits_of(i < count ? static_cast<T>(x[at]) : T(98.0f));
    }
    CHECK(equals);
  }
}

template <class A>
void check_infinities() {
  constexpr A most = std::numeric_limits<A>::max(), infinity = std::numeric_limits<A>::infinity();
  // Compared by their bits, which -ffast-math does not change.
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  const auto same = [](A a, A b) { return std::bit_cast<bits>(a) == std::bit_cast<bits>(b); };
  const A nan = std::numeric_limits<A>::quiet_NaN();
  CHECK(same(saturated(infinity), most));
  CHECK(same(saturated(-infinity), -most));
  for (const A x : {A(0), -A(0), A(1), A(-2), most, -most, nan, std::numeric_limits<A>::denorm_min()})
    CHECK(same(saturated(x), x));
  CHECK(same(saturated_to<A>(0.25), A(0.25)));
  CHECK(same(saturated_to<A>(std::numeric_limits<double>::max()), most));
  CHECK(same(saturated_to<A>(-std::numeric_limits<double>::max()), -most));

  std::vector<A> x(9, most);
  CHECK(all_finite(x.data(), 9));
  CHECK(all_finite(x.data(), 0));
  for (const A bad : {infinity, -infinity, nan, -nan})
    for (Index at = 0; at < 9; ++at) {
      x.assign(9, -most);
      x[std::size_t(at)] = bad;
      CAPTURE(at);
      CHECK_FALSE(all_finite(x.data(), 9));
      CHECK_FALSE(all_finite(x.data(), at + 1));
      CHECK(all_finite(x.data(), at));
    }
}

}  // namespace

TEST_CASE("lanes give the results of scalars", "[base]") {
  check_lanes<float>();
  check_lanes<double>();
}

TEST_CASE("pairs are split and joined again, with the table entries of their channels", "[base]") {
  check_pairs<float, packet<float>>();
  check_pairs<double, packet<double>>();
  check_pairs<Eigen::half, packet<float>>();
  check_pairs<Eigen::bfloat16, packet<float>>();
}

TEST_CASE("bfloat16 is rounded to nearest, ties to even, in lanes and in scalars", "[base]") {
  const std::uint64_t seed = 1711;
  CAPTURE(seed);
  testing::random random(seed);
  using P = packet<float>;
  constexpr auto L = static_cast<std::size_t>(lanes<P>);
  for (int n = 0; n < 2000; ++n) {
    std::vector<float> x(2 * L);
    for (float& value : x) value = std::bit_cast<float>(drawn_bits(random));
    std::vector<Eigen::bfloat16> stored(2 * L);
    for (std::size_t i = 0; i < x.size(); ++i) {
      stored[i] = rounded<Eigen::bfloat16>(x[i]);
      // The distance to both neighbours decides. It is computed in integers: a float between two bfloat16 is
      // a whole number of units.
      auto word = std::bit_cast<std::uint32_t>(x[i]);
      if (ROPE_DETAIL_BFLOAT16_INSTRUCTIONS && (word & 0x7f800000u) == 0)
        word &= 0x80000000u;  // they become zeros
      const std::uint32_t below = word >> 16, rest = word & 0xffffu;
      const bool up = rest > 0x8000u || (rest == 0x8000u && below % 2 == 1);
      REQUIRE(bits_of(stored[i]) == below + (up ? 1 : 0));
    }
    if constexpr (has_packets<Eigen::bfloat16, P>) {
      std::vector<float> even, odd;
      for (std::size_t i = 0; i < L; ++i) even.push_back(x[2 * i]), odd.push_back(x[2 * i + 1]);
      std::vector<Eigen::bfloat16> seen(2 * L);
      store_even_odd(seen.data(), load<P>(even.data()), load<P>(odd.data()));
      const auto again = load_even_odd<P>(seen.data());
      const auto wide_even = lanes_of<float>(again.even), wide_odd = lanes_of<float>(again.odd);
      for (std::size_t i = 0; i < L; ++i) {
        REQUIRE(bits_of(seen[2 * i]) == bits_of(stored[2 * i]));
        REQUIRE(bits_of(seen[2 * i + 1]) == bits_of(stored[2 * i + 1]));
        REQUIRE(wide_even[i] == static_cast<float>(stored[2 * i]));
        REQUIRE(wide_odd[i] == static_cast<float>(stored[2 * i + 1]));
      }
    }
  }
}

TEST_CASE("rows of any length are converted to float and rounded, and nothing after them is written",
          "[base]") {
  check_rows<float>();
  check_rows<double>();
  check_rows<Eigen::half>();
  check_rows<Eigen::bfloat16>();
  std::vector<std::int8_t> x;
  for (int i = -128; i < 128; ++i) x.push_back(static_cast<std::int8_t>(i));
  for (const Index count : {255, 256}) {
    std::vector<float> wide(257, 999.0f);
    widen(x.data(), count, wide.data());
    for (Index i = 0; i < 257; ++i)
      CHECK(wide[std::size_t(i)] == (i < count ? static_cast<float>(i - 128) : 999.0f));
  }
}

TEST_CASE("rows of floats convert to 16 bits as numbers do, also with infinities and NaN", "[base]") {
  check_conversions<Eigen::half>();
  check_conversions<Eigen::bfloat16>();
}

TEST_CASE("infinities are recognised by their bits", "[base]") {
  check_infinities<float>();
  check_infinities<double>();
}

TEST_CASE("hyperbolic tangents of a row are those of its packets, and nothing after it is written",
          "[base]") {
  constexpr int L = int{lanes<packet<float>>};
  const auto x = ascending<float>(3 * L, -1.5f, 0.25f);
  for (Index count = 0; count <= 3 * L; count += L) {
    CAPTURE(count);
    std::vector<float> y(std::size_t(3 * L + 1), 99.0f);
    hyperbolic_tangents(x.data(), count, y.data());
    for (Index n = 0; n < count; n += L) {
      const Eigen::Array<float, 1, L> alone = Eigen::Map<const Eigen::Array<float, 1, L>>(x.data() + n);
      const Eigen::Array<float, 1, L> expected = alone.tanh();
      for (int i = 0; i < L; ++i) {
        const float tangent = L == 1 || ROPE_DETAIL_ESTIMATED_QUOTIENTS
                                  ? static_cast<float>(std::tanh(static_cast<double>(alone[i])))
                                  : expected[i];
        CHECK(y[static_cast<std::size_t>(n + i)] == tangent);
        CHECK((expected[i] > 0) == (alone[i] > 0));
      }
    }
    for (Index i = count; i <= 3 * L; ++i) CHECK(y[static_cast<std::size_t>(i)] == 99.0f);
  }
}

// Packets of half convert every half, and every float next to a half or a midpoint of two, as Eigen converts
// scalars.

namespace {

Eigen::half half_of(std::uint32_t bits) {
  return Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(bits));
}
std::uint32_t bits_of(Eigen::half x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }
std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Whether packets P convert every half as scalars do. The payload of a NaN differs between processors.
template <class P>
void check_widening() {
  constexpr std::uint32_t count = 1u << 16;
  std::vector<Eigen::half> x;
  for (std::uint32_t bits = 0; bits < count; ++bits) x.push_back(half_of(bits));
  std::vector<float> wide(count);
  for (std::size_t i = 0; i < count; i += std::size_t(lanes<P>))
    store(wide.data() + i, load<P>(x.data() + i));
  int different = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto expected = static_cast<float>(x[i]);
    different += std::isnan(expected) ? !std::isnan(wide[i]) : bits_of(wide[i]) != bits_of(expected);
  }
  CHECK(different == 0);
}

/// Whether packets P round `x` as scalars do, in every lane.
template <class P>
void check_rounding(const std::vector<float>& x) {
  constexpr auto L = std::size_t(lanes<P>);
  std::vector<Eigen::half> narrow(x.size() + 2, half_of(0xabcd));
  for (std::size_t i = 0; i + L <= x.size(); i += L) store(narrow.data() + 1 + i, load<P>(x.data() + i));
  int different = 0;
  for (std::size_t i = 0; i < x.size() / L * L; ++i) {
    const std::uint32_t seen = bits_of(narrow[i + 1]), expected = bits_of(static_cast<Eigen::half>(x[i]));
    different += std::isnan(x[i]) ? (seen & 0x7fff) <= 0x7c00 : seen != expected;
  }
  CHECK(different == 0);
  CHECK(bits_of(narrow.front()) == 0xabcd);
  CHECK(bits_of(narrow[x.size() / L * L + 1]) == 0xabcd);
}

template <class P>
void check_halfs() {
  if constexpr (has_packets<Eigen::half, P>) {
    const std::uint64_t seed = 1811;
    CAPTURE(seed, lanes<P>);
    check_widening<P>();
    testing::random random(seed);
    std::vector<float> x = {0.0f, -0.0f, 65504.0f, 65519.9f, 65520.0f, -65520.0f, 65536.0f, 1e30f};
    for (const float extreme :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
          std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()})
      x.insert(x.end(), {extreme, -extreme});
    // Each half, and the floats next to it and next to the midpoint between it and the next half.
    for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
      const auto low = static_cast<float>(half_of(bits)), high = static_cast<float>(half_of(bits + 1)),
                 end = bits + 1 == 0x7c00 ? 65536.0f : high, middle = low + (end - low) / 2;
      for (const float near : {low, middle}) {
        const float sign = random.integer(0, 1) == 0 ? 1.0f : -1.0f;
        x.push_back(sign * std::nextafterf(near, 0.0f));
        x.push_back(sign * near);
        x.push_back(sign * std::nextafterf(near, 1e30f));
      }
    }
    for (int i = 0; i < 100000; ++i) {
      const auto bits =
          static_cast<std::uint32_t>(random.integer(0, std::numeric_limits<std::uint32_t>::max()));
      x.push_back(std::bit_cast<float>(bits));
    }
    check_rounding<P>(x);
  }
}

}  // namespace

TEST_CASE("packets of half convert as scalars do", "[base]") {
  check_halfs<packet<float>>();
  check_halfs<half_packet<packet<float>>>();
}

// Sums of products in double contain every channel once. The library decides whether products and sums are
// fused, not the compiler.

using rope::detail::channels_per_step;
using rope::detail::sum_of_products;

TEMPLATE_TEST_CASE("a sum of products contains every product once", "[base]", float, double) {
  testing::random numbers(testing::seed());
  constexpr Index most = 3 * channels_per_step + 5;
  std::vector<TestType> x, y;
  std::int64_t expected = 0;  // all sums are integers below 2^24, so exact in any order
  for (Index count = 0; count <= most; ++count) {
    CAPTURE(count);
    CHECK(sum_of_products(x.data(), y.data(), count) == static_cast<double>(expected));
    const std::int64_t a = numbers.integer(-500, 500), b = numbers.integer(-500, 500);
    x.push_back(static_cast<TestType>(a));
    y.push_back(static_cast<TestType>(b));
    expected += a * b;
  }
}

TEST_CASE("a product of doubles is fused with its sum as multiply_add fuses it", "[base]") {
  volatile double step = 0x1p-30;           // not a constant: clang fuses those anywhere
  const double x = 1 + step, y = 1 - step;  // x y - 1 = -2^-60 if it is rounded once, otherwise 0
  const double expected = rope::detail::multiply_add(x, y, -1.0);
  for (const Index count : {2 * channels_per_step, channels_per_step + 1}) {
    CAPTURE(count);
    std::vector<double> a(static_cast<std::size_t>(count)), b(a.size());
    a[0] = -1;
    b[0] = 1;
    a[channels_per_step] = x;
    b[channels_per_step] = y;
    CHECK(sum_of_products(a.data(), b.data(), count) == expected);
  }
}
