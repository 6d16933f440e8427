// SPDX-License-Identifier: MIT
#include <rope/rotation/head_norm.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/attention/attention.hpp>
#include <rope/rotation/gradient.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/reference.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::head_norm;
using rope::head_view;
using rope::Index;
using rope::interleaved;
using rope::norm_mean;
using testing::guarded_memory;
using testing::same_bits;
using testing::throws_saying;
using testing::wide;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// The relative error of a normalised channel: 1 / rms, the weight and both products are each rounded once.
/// In double the mean square is not exact either.
template <class T>
wide norm_bound(Index channels) {
  const wide u = tolerance::unit_roundoff<rope::detail::arithmetic<T>>();
  const wide roundings = std::is_same_v<T, double> ? 9 + static_cast<wide>(channels) / 32 : wide(4);
  return roundings * u * (1 + 16 * u);
}

/// The heads of one token after the norm, in long double: [heads * head_dim].
template <class T, class W>
std::vector<wide> normed(const head_view<const T>& x, const head_norm<W>& norm, Index b, Index t) {
  std::vector<wide> heads;
  wide all = 0;
  for (Index h = 0; h < x.heads; ++h)
    for (Index d = 0; d < x.head_dim; ++d) {
      heads.push_back(static_cast<wide>(x.at(b, t, h)[d]));
      all += heads.back() * heads.back();
    }
  for (Index h = 0; h < x.heads; ++h) {
    wide* const head = heads.data() + h * x.head_dim;
    wide mean = 0;
    for (Index d = 0; d < x.head_dim; ++d) mean += head[d] * head[d];
    mean = norm.mean_over == norm_mean::token ? all / static_cast<wide>(x.heads * x.head_dim)
                                              : mean / static_cast<wide>(x.head_dim);
    const wide rms = testing::sqrt(mean + norm.epsilon);
    for (Index d = 0; d < x.head_dim; ++d) {
      const auto i = static_cast<std::size_t>(h * x.head_dim + d) % norm.weight.size();
      head[d] *= (static_cast<wide>(norm.weight[i]) + norm.offset) / rms;
    }
  }
  return heads;
}

/// The largest error of `after` in units of the allowed error. `table` may be null: then nothing rotates.
template <class Layout, class T, class W, class PositionOf>
wide worst(const head_view<const T>& before, const head_view<const T>& after, const head_norm<W>& norm,
           const frequencies* rotation, Index first, PositionOf position_of) {
  std::vector<double> inv_freq;
  if (rotation != nullptr)
    for (Index i = 0; i < rotation->pairs(); ++i) inv_freq.push_back(rotation->inv_freq()(i, 0));
  const wide m = rotation != nullptr ? static_cast<wide>(rotation->attention_factor()) : 1;
  const wide by_norm =
      norm_bound<T>(norm.mean_over == norm_mean::token ? before.heads * before.head_dim : before.head_dim);
  wide most = 0;
  for (Index b = 0; b < before.batch; ++b)
    for (Index t = 0; t < before.tokens; ++t) {
      const std::vector<wide> heads = normed(before, norm, b, t);
      for (Index h = 0; h < before.heads; ++h) {
        std::vector<wide> head(heads.begin() + h * before.head_dim,
                               heads.begin() + (h + 1) * before.head_dim);
        std::vector<wide> bound;
        for (const wide channel : head) bound.push_back(by_norm * testing::abs(channel));
        std::vector<wide> window(head.begin() + first, head.end());
        const auto pairs_of = [](std::size_t i, std::size_t pairs) {
          return std::is_same_v<Layout, interleaved> ? reference::interleaved(i, pairs)
                                                     : reference::half_split(i, pairs);
        };
        if (!inv_freq.empty())
          window = reference::rotate(window, inv_freq, static_cast<wide>(position_of(b, t)), pairs_of, m);
        for (std::size_t i = 0; i < inv_freq.size(); ++i) {
          const reference::channels pair = pairs_of(i, inv_freq.size());
          const auto at = [&](std::size_t d) { return static_cast<std::size_t>(first) + d; };
          const wide length = m * testing::hypot(head[at(pair[0])], head[at(pair[1])]);
          using A = rope::detail::arithmetic<T>;
          for (const std::size_t d : pair)
            bound[at(d)] =
                (by_norm + 4 * tolerance::unit_roundoff<A>()) * length;  // 2.75, and 1 for a factor
        }
        std::copy(window.begin(), window.end(), head.begin() + first);
        for (std::size_t d = 0; d < head.size(); ++d) {
          if constexpr (tolerance::is_16_bit<T>) bound[d] += tolerance::ulp<T>(head[d]) / 2;
          const wide error = testing::abs(static_cast<wide>(after.at(b, t, h)[d]) - head[d]);
          const wide part = error / bound[d];
          most = part >= 0 ? (std::max)(most, part) : wide(infinity);
        }
      }
    }
  return most;
}

/// Weights around `level`, some of them negative.
template <class W>
std::vector<W> weights_of(Index count, std::uint64_t seed) {
  return testing::random_channels<W>(count, seed);
}

template <class T>
head_view<T> view_of(std::vector<T>& x, int order, Index B, Index L, Index H, Index D) {
  return order == 0   ? rope::bshd(x.data(), B, L, H, D)
         : order == 1 ? rope::bhsd(x.data(), B, H, L, D)
                      : rope::sbhd(x.data(), L, B, H, D);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a normalised head follows the formula within its bound", "[rotation][head_norm]",
                        testing::native_types) {
  using T = typename TestType::channel;
  for (const Index D : {1, 5, 16, 50, 128})
    for (const norm_mean mean : {norm_mean::head, norm_mean::token})
      for (const bool per_head : {false, true}) {
        const Index B = 2, L = 3, H = 4;
        const std::vector<T> before = testing::random_channels<T>(B * L * H * D, 11);
        const std::vector<T> weight = weights_of<T>(per_head ? H * D : D, 12);
        const head_norm<T> norm = {.weight = weight,
                                   .epsilon = 0.125,
                                   .offset = mean == norm_mean::token ? 1.0 : 0.0,
                                   .mean_over = mean};
        std::vector<T> x = before;
        const auto view = rope::bshd(x.data(), B, L, H, D);
        rope::normalize_heads(view, norm);
        const auto was = rope::bshd(before.data(), B, L, H, D);
        CHECK(worst<half_split, T>(was, view, norm, nullptr, 0, [](Index, Index) { return 0; }) <= 1);
        // Another array of weights gives another result.
        if (per_head && D > 1) {
          const head_norm<T> shared = {.weight = std::span<const T>(weight).first(std::size_t(D)),
                                       .epsilon = 0.125,
                                       .offset = norm.offset,
                                       .mean_over = mean};
          CHECK(worst<half_split, T>(was, view, shared, nullptr, 0, [](Index, Index) { return 0; }) > 100);
        }
      }
}

TEMPLATE_LIST_TEST_CASE("a normalised and rotated head follows the formulas within its bound",
                        "[rotation][head_norm]", testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const Index B = 2, L = 4, H = 3, D = 40, first = 8;
  const frequencies rotation = frequencies::custom(frequencies(24).inv_freq(), 1.25);
  const frequency_table<S> table(rotation, -20, 60);
  const std::vector<T> before = testing::random_channels<T>(B * L * H * D, 21);
  const std::vector<float> weight = weights_of<float>(D, 22);
  const head_norm<float> norm = {.weight = weight, .epsilon = 1e-5, .offset = 1};
  const std::vector<int> ids = {7, -20, 59, 0, 3, 3, 1, 40};
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    std::vector<T> x = before;
    const auto view = rope::bshd(x.data(), B, L, H, D);
    rope::normalize_and_rotate<Layout>(view, norm, table.at_channel(first), ids);
    const auto position_of = [&](Index b, Index t) { return ids[static_cast<std::size_t>(b * L + t)]; };
    CHECK(worst<Layout, T>(rope::bshd(before.data(), B, L, H, D), view, norm, &rotation, first,
                           position_of) <= 1);
    // The norm is that of the whole head, not of the rotated channels, and comes before the rotation.
    std::vector<T> other = before;
    const auto wrong = rope::bshd(other.data(), B, L, H, D);
    rope::rotate<Layout>(wrong, table.at_channel(first), ids);
    rope::normalize_heads(wrong, norm);
    CHECK(worst<Layout, T>(rope::bshd(before.data(), B, L, H, D), wrong, norm, &rotation, first,
                           position_of) > 100);
  });
}

TEMPLATE_TEST_CASE("one pass has the bits of the norm followed by the rotation", "[rotation][head_norm]",
                   float, double) {
  using T = TestType;
  const Index B = 2, L = 70, H = 11, D = 24;
  const frequency_table<float> table(frequencies(16, 50.0), -5, 200);
  const std::vector<T> before = testing::random_channels<T>(B * L * H * D, 31),
                       weight = weights_of<T>(H * D, 32);
  std::vector<int> ids(static_cast<std::size_t>(B * L));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i * 37 % 150) - 5;
  const std::vector<int> starts = {100, -5}, offsets = {0, 3, 3, 50, 70};
  for (const norm_mean mean : {norm_mean::head, norm_mean::token}) {
    const head_norm<T> norm = {.weight = weight, .epsilon = 1e-6, .mean_over = mean};
    const auto check = [&](const auto& positions, Index rows) {
      for (int order = 0; order < 3; ++order)
        testing::for_each_layout([&](auto layout) {
          using Layout = decltype(layout);
          std::vector<T> x = before, y = before;
          const auto a = view_of(x, order, B, L, H, D).batch_range(0, rows),
                     b = view_of(y, order, B, L, H, D).batch_range(0, rows);
          rope::normalize_and_rotate<Layout>(a, norm, table.at_channel(5), positions);
          rope::normalize_heads(b, norm);
          CHECK_FALSE(same_bits(x, y));
          rope::rotate<Layout>(b, table.at_channel(5), positions);
          CHECK(same_bits(x, y));
        });
    };
    check(3, B);
    check(ids, B);
    check(rope::row_starts{starts}, B);
    check(rope::segments{offsets}, 1);
    Eigen::Array<std::int64_t, Eigen::Dynamic, Eigen::Dynamic> matrix(B, L);
    for (Index b = 0; b < B; ++b)
      for (Index t = 0; t < L; ++t) matrix(b, t) = 2 * t - b;
    check(matrix, B);
    check(matrix + 1, B);
  }
}

TEMPLATE_TEST_CASE("16-bit channels are computed in float and rounded once", "[rotation][head_norm]",
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const Index B = 2, L = 5, H = 9, D = 40;
  const frequency_table<float> table(frequencies(32), 20);
  const std::vector<T> before = testing::random_channels<T>(B * L * H * D, 41), weight = weights_of<T>(D, 42);
  const std::vector<float> wide_weight(weight.begin(), weight.end());
  const head_norm<T> norm = {.weight = weight, .offset = 1};
  const head_norm<float> wide_norm = {.weight = wide_weight, .offset = 1};
  for (int order = 0; order < 3; ++order)
    testing::for_each_layout([&](auto layout) {
      using Layout = decltype(layout);
      std::vector<T> x = before, y = before, rounded;
      std::vector<float> exact(before.begin(), before.end());
      rope::normalize_and_rotate<Layout>(view_of(x, order, B, L, H, D), norm, table, 4);
      rope::normalize_and_rotate<Layout>(view_of(exact, order, B, L, H, D), wide_norm, table, 4);
      for (const float channel : exact) rounded.push_back(static_cast<T>(channel));
      CHECK(same_bits(x, rounded));
      // A separate norm rounds once more.
      rope::normalize_heads(view_of(y, order, B, L, H, D), norm);
      rope::rotate<Layout>(view_of(y, order, B, L, H, D), table, 4);
      CHECK_FALSE(same_bits(x, y));
      // Float weights with the values of these 16-bit weights give the same result.
      std::vector<T> z = before;
      rope::normalize_and_rotate<Layout>(view_of(z, order, B, L, H, D), wide_norm, table, 4);
      CHECK(same_bits(x, z));
    });
}

TEMPLATE_LIST_TEST_CASE(
    "one call for queries and keys has the bits of two, and out of place those of in place",
    "[rotation][head_norm]", testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const Index B = 2, L = 40, H = 6, K = 2, D = 16, E = 24;
  const frequency_table<S> table(frequencies(16), 60);
  const std::vector<T> q = testing::random_channels<T>(B * L * H * D, 51),
                       k = testing::random_channels<T>(B * L * K * E, 52),
                       q_weight = weights_of<T>(H * D, 53);
  const std::vector<float> k_weight = weights_of<float>(E, 54);
  const head_norm<T> q_norm = {.weight = q_weight};
  const head_norm<float> k_norm = {.weight = k_weight, .epsilon = 0.5, .mean_over = norm_mean::token};
  for (int order = 0; order < 3; ++order) {
    std::vector<T> a = q, b = k, c = q, d = k;
    const auto of_q = [&](std::vector<T>& x) { return view_of(x, order, B, L, H, D); };
    const auto of_k = [&](std::vector<T>& x) { return view_of(x, order, B, L, K, E); };
    rope::normalize_and_rotate<half_split>(of_q(a), of_k(b), q_norm, k_norm, table, 7);
    rope::normalize_and_rotate<half_split>(of_q(c), q_norm, table, 7);
    rope::normalize_and_rotate<half_split>(of_k(d), k_norm, table, 7);
    CHECK(same_bits(a, c));
    CHECK(same_bits(b, d));

    guarded_memory<T> to(2 * B * L * H * D);
    head_view<T> out = rope::bshd(to.data(), B, L, H, 2 * D).channels(3, D);
    rope::normalize_and_rotate_to<half_split>(rope::head_view<const T>(of_q(c = q)), out, q_norm, table, 7);
    CHECK(testing::same_heads(out, of_q(a)));
    CHECK(to.untouched_outside(out));
    CHECK(same_bits(c, q));
    rope::normalize_heads_to(rope::head_view<const T>(of_q(c)), out, q_norm);
    rope::normalize_heads(of_q(c), q_norm);
    CHECK(testing::same_heads(out, of_q(c)));
    CHECK(to.untouched_outside(out));
  }
}

TEMPLATE_TEST_CASE("the bits of a norm do not depend on threads, strides or addresses",
                   "[rotation][head_norm]", float, Eigen::bfloat16) {
  using T = TestType;
  const Index B = 3, L = 200, H = 11, D = 52;
  const frequency_table<float> table(frequencies(52), 400);
  const std::vector<T> before = testing::random_channels<T>(B * L * H * D, 61),
                       weight = weights_of<T>(H * D, 62);
  for (const norm_mean mean : {norm_mean::head, norm_mean::token}) {
    const head_norm<T> norm = {.weight = weight, .mean_over = mean};
    std::vector<T> one = before;
    rope::normalize_and_rotate<interleaved>(rope::bshd(one.data(), B, L, H, D), norm, table, 5);
    for (const Index count : {2, 5}) {
      const testing::own_threads threads(count);
      std::vector<T> many = before;
      rope::normalize_and_rotate<interleaved>(rope::bshd(many.data(), B, L, H, D), norm, table, 5, threads);
      CHECK(same_bits(one, many));
      CHECK(threads.runs() == 1);
    }
    for (int order = 0; order < 3; ++order) {
      std::vector<T> placed(one.size() + 3);
      head_view<T> view = order == 0   ? rope::bshd(placed.data() + 1, B, L, H, D)
                          : order == 1 ? rope::bhsd(placed.data() + 3, B, H, L, D)
                                       : rope::sbhd(placed.data() + 2, L, B, H, D);
      testing::copy_heads(rope::bshd(before.data(), B, L, H, D), view);
      rope::normalize_and_rotate<interleaved>(view, norm, table, 5);
      CHECK(testing::same_heads(view, rope::bshd(one.data(), B, L, H, D)));
    }
  }
}

TEST_CASE("squares beyond the range of float do not overflow", "[rotation][head_norm]") {
  std::vector<float> x = {3e30f, -4e30f}, tiny = {3e-30f, -4e-30f};
  const std::vector<float> weight = {1, 1};
  const head_norm<float> norm = {.weight = weight, .epsilon = 0};
  rope::normalize_heads(rope::bshd(x.data(), 1, 1, 1, 2), norm);
  rope::normalize_heads(rope::bshd(tiny.data(), 1, 1, 1, 2), norm);
  for (const auto& head : {x, tiny}) {
    CHECK(head[0] == testing::Approx(3 / std::sqrt(12.5)));
    CHECK(head[1] == testing::Approx(-4 / std::sqrt(12.5)));
  }
}

TEMPLATE_LIST_TEST_CASE("an invalid norm throws before anything is written", "[rotation][head_norm]",
                        testing::native_types) {
  using T = typename TestType::channel;
  using S = typename TestType::entry;
  const Index B = 2, L = 3, H = 4, D = 8;
  const frequency_table<S> table(frequencies(8), 10);
  guarded_memory<T> a(B * L * H * D), b(B * L * H * D);
  const auto q = rope::bshd(a.data(), B, L, H, D);
  const auto k = rope::bshd(b.data(), B, L, H, D);
  const std::vector<T> weight = weights_of<T>(33, 71);
  const head_norm<T> good = {.weight = std::span<const T>(weight).first(8)};
  const auto rejected = [&](const head_norm<T>& norm, const std::string& text) {
    using rope::normalize_and_rotate;
    CHECK(throws_saying<std::invalid_argument>([&] { rope::normalize_heads(q, norm); },
                                               "rope::normalize_heads: ", text));
    CHECK(throws_saying<std::invalid_argument>([&] { rope::normalize_heads_to(q, k, norm); },
                                               "rope::normalize_heads_to: ", text));
    CHECK(throws_saying<std::invalid_argument>([&] { normalize_and_rotate<half_split>(q, norm, table); },
                                               "rope::normalize_and_rotate: ", text));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { normalize_and_rotate<half_split>(q, k, good, norm, table); },
        "rope::normalize_and_rotate: ", text));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { normalize_and_rotate<half_split>(q, k, norm, good, table); },
        "rope::normalize_and_rotate: ", text));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rope::normalize_and_rotate_to<half_split>(q, k, norm, table); },
        "rope::normalize_and_rotate_to: ", text));
  };
  for (const std::size_t length : std::vector<std::size_t>{0, 1, 7, 9, 31, 33})
    rejected({.weight = std::span<const T>(weight).first(length)},
             "the weight of the norm must have length head_dim or heads * head_dim, 8 or 32, got " +
                 std::to_string(length));
  for (const double epsilon : {-1e-6, infinity, not_a_number})
    rejected({.weight = good.weight, .epsilon = epsilon},
             "the epsilon of the norm must be finite and not negative, its offset finite, got ");
  for (const double offset : {-infinity, not_a_number})
    rejected({.weight = good.weight, .offset = offset}, "offset");

  using rope::normalize_and_rotate;
  CHECK(throws_saying<std::out_of_range>([&] { normalize_and_rotate<half_split>(q, good, table, 8); },
                                         "rope::normalize_and_rotate: position 10"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { normalize_and_rotate<half_split>(q, good, table.at_channel(1)); }, "must lie in the head"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        normalize_and_rotate<half_split>(q, good, table, std::vector<int>{1, 2});
      },
      "got 2"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { normalize_and_rotate<half_split>(q, k.token_range(0, 2), good, good, table); },
      "must have the same batch and tokens"));
  CHECK(
      throws_saying<std::invalid_argument>([&] { normalize_and_rotate<half_split>(q, q, good, good, table); },
                                           "must not share channels", "call normalize_and_rotate_to"));
  CHECK(throws_saying<std::invalid_argument>([&] { rope::normalize_heads_to(q, k.token_range(0, 2), good); },
                                             "rope::normalize_heads_to: out must have the shape of x"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::normalize_and_rotate_to<half_split>(q, k.head_range(0, 2), good, table); },
      "rope::normalize_and_rotate_to: out must have the shape of x"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::normalize_heads(rope::bshd(static_cast<T*>(nullptr), 1, 1, 1, 8), good); },
      "a view must have data"));
  CHECK(a.untouched());
  CHECK(b.untouched());
}

TEMPLATE_TEST_CASE("a weight with any bits of a NaN makes its channel NaN", "[rotation][head_norm]", float,
                   Eigen::half, Eigen::bfloat16) {
  // 0x7fffffff is the NaN of CUDA. Rounding it to bfloat16 must not overflow to -0.
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u}) {
    std::vector<float> weight(40, 1.0f);
    for (std::size_t d : {0u, 5u, 39u}) weight[d] = std::bit_cast<float>(bits);
    std::vector<TestType> x(40, static_cast<TestType>(2.0f));
    rope::normalize_heads(rope::thd(x.data(), 1, 1, 40), head_norm<float>{.weight = weight});
    for (std::size_t d = 0; d < 40; ++d) {
      const float channel = static_cast<float>(x[d]);
      const bool is_nan = (std::bit_cast<std::uint32_t>(channel) & 0x7fffffffu) > 0x7f800000u;
      CHECK(is_nan == (d == 0 || d == 5 || d == 39));
    }
  }
}

TEST_CASE("weights of a norm and sink logits may be Eigen vectors", "[rotation][head_norm]") {
  using span = rope::detail::number_span<float>;
  using row_major = Eigen::Matrix<float, 3, 4, Eigen::RowMajor>;
  STATIC_REQUIRE(std::is_convertible_v<std::span<const float>, span>);
  STATIC_REQUIRE(std::is_convertible_v<std::span<float>, span>);
  STATIC_REQUIRE(std::is_convertible_v<Eigen::VectorXf, span>);
  STATIC_REQUIRE(std::is_convertible_v<Eigen::RowVector4f, span>);
  STATIC_REQUIRE(std::is_convertible_v<Eigen::Map<const Eigen::ArrayXf>, span>);
  STATIC_REQUIRE(std::is_convertible_v<Eigen::MatrixXf::ColXpr, span>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<row_major::ColXpr, span>);  // not contiguous
  STATIC_REQUIRE_FALSE(std::is_convertible_v<Eigen::VectorXd, span>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<row_major, span>);
  const std::vector<float> list = {0.5f, -1, 2, 3};
  const Eigen::VectorXf vector = Eigen::Map<const Eigen::VectorXf>(list.data(), 4);
  const Eigen::MatrixXf matrix = vector.replicate(1, 2);
  const std::vector<float> heads = {1, 2, 3, 4, -5, 6, 7, 8};
  const auto normalised = [&](const head_norm<float>& norm) {
    std::vector<float> x = heads;
    normalize_heads(rope::bshd(x.data(), 1, 2, 1, 4), norm);
    return x;
  };
  const std::vector<float> expected = normalised({.weight = list});
  CHECK(expected != heads);
  CHECK(normalised({.weight = vector}) == expected);
  CHECK(normalised({.weight = vector.segment(0, 4)}) == expected);
  CHECK(normalised({.weight = matrix.col(1)}) == expected);
  const auto attended = [&](const rope::attention_options& options) {
    std::vector<float> q = heads, out(8);
    rope::attention(rope::bshd(q.data(), 1, 1, 4, 2), rope::bshd(q.data(), 1, 1, 4, 2),
                    rope::bshd(q.data(), 1, 1, 4, 2), rope::bshd(out.data(), 1, 1, 4, 2), options);
    return out;
  };
  CHECK(attended({.sink_logits = list}) != attended({}));
  CHECK(attended({.sink_logits = vector}) == attended({.sink_logits = list}));
}

TEST_CASE("views without elements have nothing to normalise", "[rotation][head_norm]") {
  const std::vector<float> weight(8, 1.0f);
  const frequency_table table(frequencies(8), 10);
  float* const none = nullptr;
  for (const norm_mean mean : {norm_mean::head, norm_mean::token}) {
    const head_norm<float> either = {.weight = weight, .mean_over = mean};
    rope::normalize_and_rotate<half_split>(rope::bshd(none, 0, 3, 4, 8), either, table);
    rope::normalize_and_rotate<half_split>(rope::bshd(none, 2, 0, 4, 8), either, table);
    rope::normalize_and_rotate<half_split>(rope::bshd(none, 2, 3, 0, 8), either, table);
    rope::normalize_heads(rope::bshd(none, 2, 3, 4, 0), head_norm<float>{.mean_over = mean});
  }
  SUCCEED();
}

namespace {

template <class T>
using arithmetic = rope::detail::arithmetic<T>;

/// Heads, their weights and the gradient with respect to the output of the norm.
template <class T>
struct problem {
  Index B = 2, L = 3, H = 4, D = 10;
  bool across = false, per_head = false;
  std::vector<T> x, d, weight;
  double epsilon = 0.25, offset = 0.5;

  problem(bool is_across, bool is_per_head) : across(is_across), per_head(is_per_head) {
    x = testing::random_channels<T>(B * L * H * D, 81);
    d = testing::random_channels<T>(B * L * H * D, 82);
    weight = testing::random_channels<T>(per_head ? H * D : D, 83);
  }
  head_norm<T> norm() const {
    return {.weight = weight,
            .epsilon = epsilon,
            .offset = offset,
            .mean_over = across ? rope::norm_mean::token : rope::norm_mean::head};
  }

  /// The loss sum d y in long double, with `x_step` added to one channel and `w_step` to one weight.
  wide loss(std::size_t x_place, wide x_step, std::size_t w_place, wide w_step) const {
    const auto group = static_cast<std::size_t>(across ? H * D : D);
    wide sum = 0;
    for (std::size_t first = 0; first < x.size(); first += group) {
      std::vector<wide> channels;
      wide mean = 0;
      for (std::size_t i = first; i < first + group; ++i) {
        channels.push_back(static_cast<wide>(x[i]) + (i == x_place ? x_step : wide(0)));
        mean += channels.back() * channels.back() / static_cast<wide>(group);
      }
      for (std::size_t i = first; i < first + group; ++i) {
        const std::size_t w = i % weight.size();
        const wide gain = static_cast<wide>(weight[w]) + offset + (w == w_place ? w_step : wide(0));
        sum += static_cast<wide>(d[i]) * gain * channels[i - first] / testing::sqrt(mean + epsilon);
      }
    }
    return sum;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("the gradients of a norm are the derivatives of its formula", "[rotation][head_norm]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  // Central differences of long double with this step have an error of about 1e-12 of the loss, which is of
  // order 100. That is below the rounding of every type except double.
  const wide step = 1e-5;
  const double differences = 1e-8;
  for (const bool across : {false, true})
    for (const bool per_head : {false, true}) {
      const problem<T> p(across, per_head);
      std::vector<T> d_x = p.d;
      std::vector<arithmetic<T>> d_weight(p.weight.size());
      rope::normalize_heads_gradient(rope::bshd(p.x.data(), p.B, p.L, p.H, p.D), p.norm(),
                                     rope::bshd(d_x.data(), p.B, p.L, p.H, p.D), d_weight);
      const std::size_t none = p.x.size();
      // Each result is rounded once to the arithmetic type after sums in double of terms of this size.
      const wide u = 4 * tolerance::unit_roundoff<arithmetic<T>>();
      for (std::size_t i = 0; i < p.x.size(); i += 7) {
        const wide exact = (p.loss(i, step, none, 0) - p.loss(i, -step, none, 0)) / (2 * step);
        const wide rounding = tolerance::is_16_bit<T> ? tolerance::ulp<T>(exact) : wide(0);
        CHECK(testing::abs(static_cast<wide>(d_x[i]) - exact) <= differences + 30 * u + rounding);
      }
      for (std::size_t w = 0; w < p.weight.size(); w += 3) {
        const wide exact = (p.loss(none, 0, w, step) - p.loss(none, 0, w, -step)) / (2 * step);
        CHECK(testing::abs(static_cast<wide>(d_weight[w]) - exact) <= differences + 100 * u);
      }
      // Without memory for it the gradient with respect to the weights is not written, and the other is the
      // same.
      std::vector<T> alone = p.d;
      rope::normalize_heads_gradient(rope::bshd(p.x.data(), p.B, p.L, p.H, p.D), p.norm(),
                                     rope::bshd(alone.data(), p.B, p.L, p.H, p.D));
      CHECK(same_bits(alone, d_x));
    }
}

TEST_CASE("the gradient of norm and rotation is that of the rotation followed by that of the norm",
          "[rotation][head_norm]") {
  const problem<double> p(false, false);
  const rope::frequency_table<double> table(rope::frequencies(8), 20);
  std::vector<double> d_x = p.d;
  const auto view = rope::bshd(d_x.data(), p.B, p.L, p.H, p.D);
  rope::rotate_gradient<half_split>(view, table.at_channel(2), 4);
  rope::normalize_heads_gradient(rope::bshd(p.x.data(), p.B, p.L, p.H, p.D), p.norm(), view);
  const double step = 1e-6;
  const auto loss = [&](std::size_t i, double by) {
    std::vector<double> y = p.x;
    y[i] += by;
    rope::normalize_and_rotate<half_split>(rope::bshd(y.data(), p.B, p.L, p.H, p.D), p.norm(),
                                           table.at_channel(2), 4);
    double sum = 0;
    for (std::size_t n = 0; n < y.size(); ++n) sum += p.d[n] * y[n];
    return sum;
  };
  for (std::size_t i = 0; i < p.x.size(); i += 5)
    CHECK(d_x[i] ==
          testing::Approx((loss(i, step) - loss(i, -step)) / (2 * step)).epsilon(1e-6).margin(1e-6));
}

TEST_CASE("the gradients of a norm do not depend on threads or strides", "[rotation][head_norm]") {
  const Index B = 2, L = 500, H = 8, D = 20;
  const std::vector<float> x = testing::random_channels<float>(B * L * H * D, 84),
                           d = testing::random_channels<float>(B * L * H * D, 85),
                           weight = testing::random_channels<float>(D, 86);
  const head_norm<float> norm = {.weight = weight};
  std::vector<float> one = d, d_weight(weight.size()), others(weight.size());
  rope::normalize_heads_gradient(rope::bshd(x.data(), B, L, H, D), norm, rope::bshd(one.data(), B, L, H, D),
                                 d_weight);
  const testing::own_threads threads(3);
  std::vector<float> many = d;
  rope::normalize_heads_gradient(rope::bshd(x.data(), B, L, H, D), norm, rope::bshd(many.data(), B, L, H, D),
                                 others, threads);
  CHECK(same_bits(one, many));
  CHECK(same_bits(d_weight, others));
  CHECK(threads.runs() == 1);

  std::vector<float> placed(d.size());
  const auto view = rope::bhsd(placed.data(), B, H, L, D);
  testing::copy_heads(rope::bshd(d.data(), B, L, H, D), view);
  rope::normalize_heads_gradient(rope::bshd(x.data(), B, L, H, D), norm, view, others);
  CHECK(testing::same_heads(view, rope::bshd(one.data(), B, L, H, D)));
  CHECK(same_bits(d_weight, others));
}

TEST_CASE("an invalid gradient of the norm throws before anything is written", "[rotation][head_norm]") {
  const problem<float> p(false, false);
  testing::guarded_memory<float> memory(p.B * p.L * p.H * p.D);
  const auto x = rope::bshd(p.x.data(), p.B, p.L, p.H, p.D);
  const auto d = rope::bshd(memory.data(), p.B, p.L, p.H, p.D);
  std::vector<float> d_weight(11, 3.0f);
  const auto rejected = [&](const auto& of, const head_norm<float>& norm, std::span<float> by,
                            const char* text) {
    CHECK(throws_saying<std::invalid_argument>([&] { rope::normalize_heads_gradient(x, norm, of, by); },
                                               "rope::normalize_heads_gradient: ", text));
  };
  rejected(d, p.norm(), std::span(d_weight).first(9), "d_weight must be empty or have length 10, got 9");
  rejected(d, p.norm(), d_weight, "d_weight must be empty or have length 10, got 11");
  rejected(d.token_range(0, 2), p.norm(), {}, "d must have the shape of x, [2, 3, 4, 10], got [2, 2, 4, 10]");
  rejected(d, {.weight = std::span(p.weight).first(9)}, {}, "must have length head_dim or heads * head_dim");
  rejected(d, {.weight = p.weight, .epsilon = -1}, {}, "epsilon of the norm must be finite and not negative");
  CHECK(memory.untouched());
  CHECK(d_weight == std::vector<float>(11, 3.0f));
}
