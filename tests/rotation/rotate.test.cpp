// SPDX-License-Identifier: MIT
#include <rope/rotation/rotate.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/wide.hpp"

// Values from other programs, then the result of each form of a call. The laws that hold for all inputs are
// in tests/laws/rotate_*.test.cpp.

using rope::half_split;
using rope::Index;
using rope::interleaved;
using testing::throws_saying;

namespace {

const std::vector<double> x8 = {1, 2, 3, 4, 5, 6, 7, 8};

/// The error of a decimal number that is printed with `digits` significant digits.
testing::wide printed(testing::wide value, int digits) {
  return 0.5L * testing::pow(10.0L, testing::floor(testing::log10(testing::abs(value))) -
                                        static_cast<testing::wide>(digits) + 1);
}

template <class T>
std::vector<T> as(const std::vector<double>& values) {
  std::vector<T> result;
  for (const double value : values) result.push_back(static_cast<T>(value));
  return result;
}

/// One head, rotated at position 0 of a table of one coordinate, so that a position can be 0.5.
template <class Layout, class T, class S>
std::vector<T> rotated(const std::vector<double>& head, const rope::frequencies& frequencies, double position,
                       Index offset = 0) {
  const rope::frequency_table<S> table(frequencies, Eigen::ArrayXd::Constant(1, position));
  std::vector<T> x = as<T>(head);
  const auto view = rope::thd(x.data(), 1, 1, static_cast<Index>(x.size()));
  rope::rotate<Layout>(view.channels(offset, view.head_dim - offset), table);
  return x;
}

struct golden {
  double position;
  std::vector<double> head;
};

/// A user-defined layout: the first channel with the last, the second with the last but one, ...
struct mirrored {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return 2 * pairs - 1 - i; }
};

struct half_split_backwards {
  static constexpr Index first(Index i, Index pairs) { return i + pairs; }
  static constexpr Index second(Index i, Index /*pairs*/) { return i; }
};

/// Layouts that name an invalid channel.
struct past_the_window {
  static Index first(Index i, Index /*pairs*/) { return i; }
  static Index second(Index i, Index pairs) { return i + pairs + 1; }
};
struct before_the_window {
  static Index first(Index i, Index /*pairs*/) { return i - 1; }
  static Index second(Index i, Index pairs) { return i + pairs; }
};
struct one_channel_twice {
  static Index first(Index i, Index /*pairs*/) { return i; }
  static Index second(Index i, Index /*pairs*/) { return i; }
};

}  // namespace

// tests/rotation/rotate.test.cpp, golden vector G4: x = 1..8, base 10000, evaluated in double from equation
// 34 and from `rotate_half` by a script that shares no code with this library; printed with 9 digits.
TEMPLATE_LIST_TEST_CASE("a head of 8 rotates to the published values", "[rotation]", testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const auto agrees = [](const std::vector<T>& got, const std::vector<double>& head, double factor) {
    for (std::size_t d = 0; d < head.size(); ++d) {
      // |pair| of x = 1..8 is at most |(7, 8)|.
      const auto bound =
          testing::channel_bound<T, S>(factor * testing::hypot(7.0L, 8.0L), head[d]) + printed(head[d], 9);
      CAPTURE(d, double(got[d]), head[d]);
      CHECK(testing::abs(static_cast<testing::wide>(got[d]) - static_cast<testing::wide>(head[d])) <= bound);
    }
  };

  SECTION("interleaved") {
    for (const auto& [position, head] :
         {golden{1,
                 {-1.14263966, 1.9220756, 2.58567883, 4.27951691, 4.939751, 6.04969917, 6.9919965, 8.006996}},
          golden{3,
                 {-1.27223251, -1.83886499, 1.68392864, 4.70790658, 4.81777717, 6.1472777, 6.97596854,
                  8.02096397}},
          golden{100,
                 {1.87505015, 1.2182721, -0.341130144, -4.98834945, -2.34731438, 7.44916876, 6.16636182,
                  8.65886724}},
          golden{-2,
                 {1.40244802, -1.7415911, 3.73487706, 3.32425832, 5.11899203, 5.89880671, 7.01598599,
                  7.98598401}},
          golden{0.5,
                 {-0.0812685153, 2.23459066, 2.7963341, 4.14493855, 4.96993763, 6.0249249, 6.99599913,
                  8.003499}}})
      agrees(rotated<interleaved, T, S>(x8, rope::frequencies(8), position), head, 1);
  }
  SECTION("half_split") {
    for (const auto& [position, head] : {golden{1,
                                                {-3.66705262, 1.39100783, 2.92985117, 3.991998, 3.54298251,
                                                 6.16969182, 7.0296495, 8.003996}},
                                         golden{3,
                                                {-1.69559254, 0.137551738, 2.7886816, 3.97598204, -4.80884247,
                                                 6.32305935, 7.08683674, 8.01196398}},
                                         golden{100,
                                                {3.39414708, 1.58598361, -4.26938998, 3.18134933, 3.80522872,
                                                 -6.1224714, 6.3065291, 8.35936699}},
                                         golden{-2,
                                                {4.1303403, 3.15214914, 3.13939069, 4.01599199, -2.99003161,
                                                 5.48306081, 6.93860405, 7.99198401}},
                                         golden{0.5,
                                                {-1.51954513, 1.69762551, 2.96496265, 3.9959995, 4.86733835,
                                                 6.0924599, 7.01491244, 8.001999}}})
      agrees(rotated<half_split, T, S>(x8, rope::frequencies(8), position), head, 1);
  }
  SECTION("attention_factor 1.2") {
    const auto yarn = rope::frequencies::custom(rope::frequencies(8).inv_freq(), 1.2);
    agrees(
        rotated<half_split, T, S>(x8, yarn, 3),
        {-2.03471104, 0.165062086, 3.34641792, 4.77117844, -5.77061097, 7.58767122, 8.50420408, 9.61435678},
        1.2);
  }
  SECTION("the first 4 channels") {
    const rope::frequencies partial(4);
    agrees(rotated<interleaved, T, S>(x8, partial, 3),
           {-1.27223251, -1.83886499, 2.8786681, 4.08818664, 5, 6, 7, 8}, 1);
    agrees(rotated<half_split, T, S>(x8, partial, 3),
           {-1.41335252, 1.87911807, -2.82885748, 4.05819114, 5, 6, 7, 8}, 1);
  }
  SECTION("the last 4 channels") {
    const rope::frequencies partial(4);
    agrees(rotated<interleaved, T, S>(x8, partial, 3, 4),
           {1, 2, 3, 4, -5.79668253, -5.23435494, 6.75688623, 8.20636877}, 1);
    agrees(rotated<half_split, T, S>(x8, partial, 3, 4),
           {1, 2, 3, 4, -5.93780254, 5.7573362, -6.22434744, 8.17637327}, 1);
  }
  // Golden vector G5.
  SECTION("channels sorted from interleaved to half_split") {
    agrees(rotated<half_split, T, S>({1, 3, 5, 7, 2, 4, 6, 8}, rope::frequencies(8), 3),
           {-1.27223251, 1.68392864, 4.81777717, 6.97596854, -1.83886499, 4.70790658, 6.1472777, 8.02096397},
           1);
  }
  SECTION("frequencies of zero do not change their pairs") {
    agrees(rotated<half_split, T, S>(x8, rope::frequencies::custom(Eigen::Array4d(1, 0.1, 0, 0)), 3),
           {-1.69559254, 0.137551738, 3, 4, -4.80884247, 6.32305935, 7, 8}, 1);
  }
}

TEST_CASE("a position in a range of positions gives the golden head of that position", "[rotation]") {
  const rope::frequency_table<double> table(rope::frequencies(8), -2, 101);
  const std::vector<double> at_100 = {1.87505015,  1.2182721,  -0.341130144, -4.98834945,
                                      -2.34731438, 7.44916876, 6.16636182,   8.65886724};
  const std::vector<double> at_minus_2 = {1.40244802, -1.7415911, 3.73487706, 3.32425832,
                                          5.11899203, 5.89880671, 7.01598599, 7.98598401};
  for (const auto& [position, head] : {golden{100, at_100}, golden{-2, at_minus_2}}) {
    std::vector<double> x = x8;
    rope::rotate<interleaved>(rope::thd(x.data(), 1, 1, 8), table, static_cast<int>(position));
    for (std::size_t d = 0; d < 8; ++d) CHECK_THAT(x[d], testing::WithinAbs(head[d], 5e-9));
  }
}

// Golden vector G22: onnxruntime/test/contrib_ops/rotary_embedding_op_test.cc. Input, cos and sin have 4
// decimals there, so a channel below 2 has an error of at most 2e-4: 2 * 0.5e-4 of the input, 2 * 0.5e-4 *
// |x| of cos and sin, and 0.5e-4 of the output.
TEST_CASE("ONNX Runtime's interleaved case gives its values", "[rotation]") {
  constexpr double decimals = 3.5e-4;
  std::vector<float> x = {-1.0408f, 0.9166f, -1.3042f, -1.1097f, -0.1320f, -0.2751f, -0.2350f, 0.0937f,
                          -1.2188f, 1.1676f, -1.0574f, -0.1188f, -0.7396f, -1.2425f, -0.1752f, 0.6990f,
                          -0.8110f, 0.6737f, -1.1233f, -0.0919f, -0.6861f, 0.7202f,  0.1963f,  0.6142f};
  std::vector<float> expected(x.begin(), x.begin() + 8);
  for (const double value : {-1.6411, -0.3948, -1.0561, -0.1294, 0.6460, -1.2937, -0.1822, 0.6972, -0.2751,
                             -1.0178, -1.1212, -0.1143, -0.3694, -0.9235, 0.1840, 0.6180})
    expected.push_back(static_cast<float>(value));
  rope::rotate<interleaved>(rope::bshd(x.data(), 1, 3, 2, 4),
                            rope::frequency_table<float>(rope::frequencies(4), 3));
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(x[i], testing::WithinAbs(expected[i], i < 8 ? 0 : decimals));
  }
}

TEST_CASE("ONNX Runtime's half_split case gives its values", "[rotation]") {
  constexpr double decimals = 3.5e-4;
  std::vector<float> x = {-1.0408f, 0.9166f,  -1.3042f, -1.1097f, -1.2188f, 1.1676f,  1.0076f,  -0.7529f,
                          -0.2250f, -0.4327f, -1.5071f, -0.4586f, -0.8663f, -0.2656f, 0.1665f,  0.7911f,
                          -0.9320f, -0.8579f, -1.0574f, -0.1188f, -0.9078f, 0.3452f,  -0.5713f, -0.2351f,
                          -0.8480f, 0.5266f,  -1.2944f, -0.0243f, -0.2354f, -0.7087f, -0.9647f, -0.0991f,
                          -0.2994f, -0.0650f, -1.5720f, -1.3211f};
  std::vector<float> expected(x.begin(), x.begin() + 18);
  for (const double value : {-0.8618, -0.0922, -0.9073, -0.7032, -0.5762, -0.2371, -0.4377, 0.5370, -1.2929,
                             -0.7267, -0.2107, -0.7115, -0.4666, -0.0261, -0.2965, -0.8469, -1.5749, -1.3217})
    expected.push_back(static_cast<float>(value));
  rope::rotate<half_split>(rope::bshd(x.data(), 1, 2, 3, 6),
                           rope::frequency_table<float>(rope::frequencies(6), 2));
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(x[i], testing::WithinAbs(expected[i], i < 18 ? 0 : decimals));
  }
}

TEST_CASE("ONNX Runtime's partial case gives its values", "[rotation]") {
  std::vector<float> x = {1.0076f, -0.7529f, -0.2250f, -0.4327f, -1.5071f, -0.4586f};
  const std::vector<float> expected = {1.0076f, -0.0427f, -0.2250f, -0.8673f, -1.5071f, -0.4586f};
  const rope::frequency_table<float> table(rope::frequencies::custom(Eigen::Array2d(0, 1)), 2);
  rope::rotate<half_split>(rope::thd(x.data(), 1, 1, 6), table, 1);
  for (std::size_t d = 0; d < 6; ++d)
    CHECK_THAT(x[d], testing::WithinAbs(expected[d], d % 2 == 1 && d < 4 ? 3.5e-4 : 0));
}

// Golden vector G24: CTranslate2 tests/layers_test.cc, RotaryEmbedding. Computed there from float tables: its
// bound is one of our rotations for the rotation, and one for its angles (positions 2 and 3, rounded once).
TEST_CASE("CTranslate2's case gives its values in both layouts", "[rotation]") {
  const std::vector<float> in = {0.8822692632675171f,  0.9150039553642273f,  0.38286375999450684f,
                                 0.9593056440353394f,  0.3904482126235962f,  0.600895345211029f,
                                 0.10531491041183472f, 0.26949483156204224f, 0.3588126301765442f,
                                 0.19936376810073853f, 0.5471915602684021f,  0.006160438060760498f};
  const std::vector<float> out = {-1.1991642713546753f, 0.421469122171402f,    0.29228904843330383f,
                                  0.9906659722328186f,  0.3878554105758667f,   0.6025721430778503f,
                                  -0.1422920823097229f, -0.25193583965301514f, 0.3276682496070862f,
                                  0.24723657965660095f, 0.5471403002738953f,   0.009696949273347855f};
  const rope::frequency_table<float> table(rope::frequencies(6), 4);
  const std::array<std::size_t, 6> sorted = {0, 2, 4, 1, 3, 5};
  std::vector<float> x = in, y(in.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = in[i / 6 * 6 + sorted[i % 6]];
  rope::rotate<interleaved>(rope::bshd(x.data(), 1, 2, 1, 6), table, 2);
  rope::rotate<half_split>(rope::bshd(y.data(), 1, 2, 1, 6), table, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t u = i - i % 2;
    const auto bound =
        static_cast<double>(2 * tolerance::rotation_bound<float>(testing::hypot(in[u], in[u + 1])));
    CAPTURE(i);
    CHECK_THAT(x[i], testing::WithinAbs(out[i], bound));
  }
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == x[i / 6 * 6 + sorted[i % 6]]);
}

TEMPLATE_LIST_TEST_CASE("a user-defined layout rotates the pairs it names", "[rotation]",
                        testing::all_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const std::vector<T> x = rotated<mirrored, T, S>(x8, rope::frequencies(8), 3);
  const std::vector<T> same = rotated<half_split, T, S>({1, 2, 3, 4, 8, 7, 6, 5}, rope::frequencies(8), 3);
  CHECK(testing::same_bits(x, {same[0], same[1], same[2], same[3], same[7], same[6], same[5], same[4]}));
}

TEST_CASE("exchanging first and second of a layout rotates in the opposite direction", "[rotation]") {
  const rope::frequency_table<double> table(rope::frequencies(8), 10);
  std::vector<double> x = x8, y = x8;
  rope::rotate<half_split_backwards>(rope::thd(x.data(), 1, 1, 8), table, 7);
  rope::unrotate<half_split>(rope::thd(y.data(), 1, 1, 8), table, 7);
  CHECK(x == y);
}

TEST_CASE("a layout with a channel outside the rotated ones throws before anything is written",
          "[rotation]") {
  const rope::frequency_table<double> table(rope::frequencies(6), 10);
  std::vector<double> x = x8;
  const auto view = rope::thd(x.data(), 1, 1, 8);
  CHECK(throws_saying<std::invalid_argument>([&] { rope::rotate<past_the_window>(view, table, 7); },
                                             "rope::rotate: the layout", "[0, 6)", "2 and 6 for pair 2"));
  CHECK(
      throws_saying<std::invalid_argument>([&] { rope::rotate_to<before_the_window>(view, view, table, 7); },
                                           "rope::rotate_to: the layout", "[0, 6)", "-1 and 3 for pair 0"));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::unrotate<one_channel_twice>(view, table, 7); },
                                             "rope::unrotate: the layout", "[0, 6)", "0 and 0 for pair 0"));
  CHECK(x == x8);
}

// `rotate(q, k, table)` was once the form out of place, which wrote the rotated queries over the keys.
TEMPLATE_TEST_CASE("queries and keys given together both rotate, and neither is overwritten", "[rotation]",
                   half_split, interleaved) {
  const rope::frequency_table<float> table(rope::frequencies(8), 20);
  const Index batch = 2, tokens = 3;
  const auto check = [&](const auto& positions, Index batches) {
    std::vector<float> q = testing::random_channels<float>(batches * tokens * 4 * 8, testing::seed()),
                       k = testing::random_channels<float>(batches * tokens * 4 * 8, testing::seed() + 1);
    const std::vector<float> q_before = q, k_before = k;
    std::vector<float> q_alone = q, k_alone = k;
    const auto heads = [&](std::vector<float>& x) { return rope::bshd(x.data(), batches, tokens, 4, 8); };
    rope::rotate<TestType>(heads(q_alone), table, positions);
    rope::rotate<TestType>(heads(k_alone), table, positions);
    rope::rotate<TestType>(heads(q), heads(k), table, positions);
    CHECK(q == q_alone);
    CHECK(k == k_alone);
    rope::unrotate<TestType>(heads(q_alone), table, positions);
    rope::unrotate<TestType>(heads(k_alone), table, positions);
    rope::unrotate<TestType>(heads(q), heads(k), table, positions, rope::this_thread{});
    CHECK(q == q_alone);
    CHECK(k == k_alone);
    for (std::size_t c = 0; c < k.size(); ++c) {
      CHECK(std::abs(q[c] - q_before[c]) < 1e-5f);
      CHECK(std::abs(k[c] - k_before[c]) < 1e-5f);
    }
  };
  const std::vector<int> ids = {7, 0, 19}, starts = {4, 11}, offsets = {0, 1, 3};
  check(2, batch);
  check(ids, batch);
  check(rope::row_starts{starts}, batch);
  check(rope::segments{offsets}, 1);
}

TEST_CASE("ids may be written in braces", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(8), 20);
  const std::vector<int> ids = {3, 0, 19};
  std::vector<float> listed = testing::random_channels<float>(3 * 2 * 8, 21), braced = listed,
                     out(listed.size());
  const auto heads = [](std::vector<float>& x) { return rope::bshd(x.data(), 1, 3, 2, 8); };
  rope::rotate_to<half_split>(heads(listed), heads(out), table, {3, 0, 19});
  rope::rotate<half_split>(heads(listed), table, ids);
  rope::rotate<half_split>(heads(braced), table, {3, 0, 19});
  CHECK(braced == listed);
  CHECK(out == listed);
  rope::rotate<interleaved>(heads(listed), heads(out), table, ids);
  std::vector<float> second = braced;
  rope::rotate<interleaved>(heads(braced), heads(second), table, {3, 0, 19}, rope::this_thread{});
  CHECK(braced == listed);
  CHECK(second == out);
  rope::unrotate<interleaved>(heads(listed), table, ids);
  rope::unrotate<interleaved>(heads(braced), table, {3, 0, 19});
  CHECK(braced == listed);
  rope::rotate<half_split>(heads(listed), table);  // and empty braces are the default start
  rope::rotate<half_split>(heads(braced), table, {});
  CHECK(braced == listed);
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::rotate<half_split>(heads(braced), table, {3, 0});
      },
      "rope::rotate: ids must be [tokens] = 3, got 2"));
  CHECK(throws_saying<std::out_of_range>(
      [&] {
        rope::rotate<half_split>(heads(braced), table, {3, 20, 0});
      },
      "rope::rotate: position 20 is outside the table's [0, 20)"));
  CHECK(braced == listed);
}

TEST_CASE("queries and keys that overlap throw, because shared channels would rotate twice", "[rotation]") {
  const rope::frequency_table<float> table(rope::frequencies(8), 20);
  testing::guarded_memory<float> memory(2 * 3 * 6 * 8);
  const auto packed = rope::bshd(memory.data(), 2, 3, 6, 8);
  const auto rejected = [&](const rope::head_view<float>& q, const rope::head_view<float>& k) {
    return throws_saying<std::invalid_argument>([&] { rope::rotate<half_split>(q, k, table); },
                                                "rope::rotate: q and k must not share channels",
                                                "call rotate_to") &&
           throws_saying<std::invalid_argument>([&] { rope::unrotate<interleaved>(k, q, table, 3); },
                                                "rope::unrotate: q and k must not share channels",
                                                "call unrotate_to");
  };
  CHECK(rejected(packed, packed));
  CHECK(rejected(packed.head_range(0, 4), packed.head_range(3, 2)));
  CHECK(rejected(packed.head_range(2, 4), packed.head_range(0, 3)));
  CHECK(rejected(rope::thd(memory.data(), 3, 2, 8), rope::thd(memory.data() + 47, 3, 2, 8)));
  CHECK(memory.untouched());
  // Adjacent in a token, in a head's channels, and in memory. Empty views too.
  CHECK_NOTHROW(rope::rotate<half_split>(packed.head_range(0, 4), packed.head_range(4, 2), table));
  const auto wide = rope::bshd(memory.data(), 2, 3, 3, 16);
  CHECK_NOTHROW(rope::rotate<half_split>(wide.channels(0, 8), wide.channels(8, 8), table));
  CHECK_NOTHROW(rope::rotate<half_split>(rope::thd(memory.data(), 3, 2, 8),
                                         rope::thd(memory.data() + 48, 3, 2, 8), table));
  CHECK_NOTHROW(rope::rotate<half_split>(packed.head_range(0, 0), packed.head_range(0, 2), table));
}

// As buffers of a 32-bit process may be: farther apart than an Index can count.
TEST_CASE("queries and keys at the two ends of the address space do not overlap", "[rotation]") {
  constexpr std::uintptr_t page = 4096, last_page = (std::numeric_limits<std::uintptr_t>::max)() - page + 1;
  const auto at = [](std::uintptr_t address) {
    return rope::bshd(reinterpret_cast<float*>(address), 2, 3, 2, 8);
  };
  CHECK_FALSE(rope::detail::share_memory(at(page), at(last_page)));
  CHECK_FALSE(rope::detail::share_memory(at(last_page), at(page)));
  CHECK(rope::detail::share_memory(at(last_page), at(last_page + 16 * sizeof(float))));
  CHECK(rope::detail::share_memory(at(last_page + 95 * sizeof(float)), at(last_page)));
  CHECK_FALSE(rope::detail::share_memory(at(last_page + 96 * sizeof(float)), at(last_page)));
}

TEMPLATE_TEST_CASE("queries and keys of two types rotate in one call as in two", "[rotation]",
                   rope::half_split, rope::interleaved) {
  using Layout = TestType;
  const rope::frequency_table<> table(rope::frequencies(8, 50.0), 20);
  auto q = testing::random_channels<float>(2 * 3 * 4 * 10, 41);
  auto k = testing::random_channels<Eigen::bfloat16>(2 * 3 * 2 * 8, 42);
  auto q_alone = q;
  auto k_alone = k;
  const auto unrotated = k;
  const auto queries = rope::bshd(q.data(), 2, 3, 4, 10);
  const auto keys = rope::bshd(k.data(), 2, 3, 2, 8);
  rope::rotate<Layout>(queries, keys, table, 5);
  rope::rotate<Layout>(rope::bshd(q_alone.data(), 2, 3, 4, 10), table, 5);
  rope::rotate<Layout>(rope::bshd(k_alone.data(), 2, 3, 2, 8), table, 5);
  CHECK(q == q_alone);
  CHECK(k == k_alone);
  CHECK(k != unrotated);
  rope::unrotate<Layout>(queries, keys, table, 5);
  rope::unrotate<Layout>(rope::bshd(q_alone.data(), 2, 3, 4, 10), table, 5);
  rope::unrotate<Layout>(rope::bshd(k_alone.data(), 2, 3, 2, 8), table, 5);
  CHECK(q == q_alone);
  CHECK(k == k_alone);
  const auto before = q;
  const auto shared = rope::bshd(reinterpret_cast<Eigen::bfloat16*>(q.data()), 2, 3, 4, 10);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::rotate<Layout>(queries, shared, table, 5); }, "must not share channels"));
  CHECK(q == before);
}

TEMPLATE_TEST_CASE("float heads are rotated into 16 bits as in float, and rounded once", "[rotation]",
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const rope::Index batch = 2, tokens = 150, heads = 3, head_dim = 70;  // more than one piece
  const rope::frequency_table<> table(rope::frequencies(64, 50.0), 400);
  auto x = testing::random_channels<float>(batch * tokens * heads * head_dim, 43);
  const auto given = x;
  const auto from = rope::bshd(x.data(), batch, tokens, heads, head_dim);
  std::vector<int> ids(std::size_t(batch * tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i * 7 % 400);
  auto wide = x;
  const auto expected = rope::bshd(wide.data(), batch, tokens, heads, head_dim);
  std::vector<T> memory(x.size()), shared = memory;
  const auto out = rope::bhsd(memory.data(), batch, heads, tokens, head_dim);
  const auto same = [&] {
    for (rope::Index b = 0; b < batch; ++b)
      for (rope::Index t = 0; t < tokens; ++t)
        for (rope::Index h = 0; h < heads; ++h)
          for (rope::Index d = 0; d < head_dim; ++d)
            if (!(out.at(b, t, h)[d] == static_cast<T>(expected.at(b, t, h)[d]))) return false;
    return true;
  };
  rope::rotate_to<rope::half_split>(from, out, table.at_channel(2), ids);
  rope::rotate<rope::half_split>(expected, table.at_channel(2), ids);
  CHECK(same());
  rope::rotate_to<rope::half_split>(from, rope::bhsd(shared.data(), batch, heads, tokens, head_dim),
                                    table.at_channel(2), ids, testing::own_threads(3));
  CHECK(shared == memory);
  wide = given;
  rope::unrotate_to<rope::half_split>(from, out, table, 5);
  rope::unrotate<rope::half_split>(expected, table, 5);
  CHECK(same());
  CHECK(x == given);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        rope::rotate_to<rope::half_split>(
            from, rope::bshd(reinterpret_cast<T*>(x.data()), batch, tokens, heads, head_dim), table, 5);
      },
      "rotate_to: out has another channel type than x and must share no memory with it"));
  CHECK(x == given);
}
