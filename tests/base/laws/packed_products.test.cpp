// SPDX-License-Identifier: MIT
// The matrix products of attention on packed operands, against plain loops. All numbers are small integers,
// so every sum is exact in any order and results are compared exactly.
#include <rope/attention/detail/pair_operands.hpp>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/integer_pairs.hpp>
#include <rope/base/simd/panels.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

namespace {

using namespace rope::detail;
using rope::Index;

/// The value where nothing may be written.
constexpr int untouched = -77;

template <class T>
std::vector<T> drawn(testing::random& random, Index count) {
  std::vector<T> result;
  for (Index i = 0; i < count; ++i)
    result.push_back(static_cast<T>(static_cast<arithmetic<T>>(random.integer(-6, 6))));
  return result;
}

template <class T>
std::vector<T> blank(Index count) {
  return std::vector<T>(std::size_t(count), static_cast<T>(static_cast<arithmetic<T>>(untouched)));
}

template <class T>
arithmetic<T> at(const std::vector<T>& x, Index i) {
  return static_cast<arithmetic<T>>(x.at(static_cast<std::size_t>(i)));
}

template <class A>
void check_shape() {
  using shape = panel_shape<A>;
  CHECK(shape::width % lanes<packet<A>> == 0);
  CHECK(shape::padded(0) == 0);
  CHECK(shape::padded(1) == shape::width);
  CHECK(shape::padded(shape::width) == shape::width);
  CHECK(shape::padded(shape::width + 1) == 2 * shape::width);
  CHECK(shape::padded(shape::tile) == shape::tile);
}

template <class A>
void check_scores(testing::random& random, Index depth) {
  using shape = panel_shape<A>;
  CAPTURE(depth);
  const Index panel_stride = (shape::rows + 1) * shape::width;
  const auto queries = drawn<A>(random, shape::padded(depth) / shape::width * panel_stride),
             keys = drawn<A>(random, depth * shape::width);
  auto scores = blank<A>(shape::rows * shape::tile);
  row_products(queries.data(), panel_stride, keys.data(), depth, scores.data(), shape::tile);
  for (Index r = 0; r < shape::rows; ++r)
    for (Index n = 0; n < shape::tile; ++n) {
      A sum = n < shape::width ? A(0) : A(untouched);
      for (Index d = 0; n < shape::width && d < depth; ++d)
        sum += at(queries, d / shape::width * panel_stride + r * shape::width + d % shape::width) *
               at(keys, d * shape::width + n);
      REQUIRE(at(scores, r * shape::tile + n) == sum);
    }
}

template <class A, int packets, Index row_step, Index depth_step>
void check_values(testing::random& random, Index depth) {
  using shape = panel_shape<A>;
  CAPTURE(packets, row_step, depth);
  const auto numbers = drawn<A>(random, shape::rows * row_step + depth * depth_step),
             values = drawn<A>(random, depth * shape::width), shrinks = drawn<A>(random, shape::rows),
             before = drawn<A>(random, shape::rows * shape::width);
  for (const A* shrink : {static_cast<const A*>(nullptr), shrinks.data()}) {
    auto sums = before;
    add_products_of_panel<A, packets, row_step, depth_step>(numbers.data(), values.data(), depth, shrink,
                                                            sums.data());
    for (Index r = 0; r < shape::rows; ++r)
      for (Index c = 0; c < shape::width; ++c) {
        A sum = at(before, r * shape::width + c);
        if (c < packets * lanes<packet<A>>) {
          if (shrink != nullptr) sum *= at(shrinks, r);
          for (Index j = 0; j < depth; ++j)
            sum += at(numbers, r * row_step + j * depth_step) * at(values, j * shape::width + c);
        }
        REQUIRE(at(sums, r * shape::width + c) == sum);
      }
  }
}

template <class A>
void check_values(testing::random& random, Index depth) {
  using shape = panel_shape<A>;
  check_values<A, 1, shape::tile, 1>(random, depth);
  check_values<A, 2, shape::tile, 1>(random, depth);
  check_values<A, 1, 1, shape::rows + 1>(random, depth);
  check_values<A, 2, 1, shape::rows + 1>(random, depth);
}

template <class A, class X>
void check_packing(testing::random& random, Index count, Index depth) {
  if constexpr (std::is_same_v<X, loadable<X>>) {
    using shape = panel_shape<A>;
    const Index row_stride = depth + 2;
    const auto rows = drawn<X>(random, count * row_stride);
    for (const Index padded : {count, count + 1, shape::padded(count)}) {
      const Index stride = padded + lanes<packet<A>>;
      CAPTURE(count, padded, depth);
      auto packed = blank<A>(depth * stride);
      pack_transposed(rows.data(), row_stride, count, padded, depth, packed.data(), stride);
      for (Index d = 0; d < depth; ++d)
        for (Index n = 0; n < stride; ++n) {
          const A expected = n < count ? at(rows, n * row_stride + d) : n < padded ? A(0) : A(untouched);
          REQUIRE(at(packed, d * stride + n) == expected);
        }
    }

    const Index panels = shape::padded(depth) / shape::width, panel_stride = 5 * shape::width;
    auto in_panels = blank<A>(panels * panel_stride);
    pack_row(rows.data(), depth, in_panels.data(), panel_stride);
    for (Index i = 0; i < panels * panel_stride; ++i) {
      const Index c = i / panel_stride * shape::width + i % panel_stride;
      const bool inside = i % panel_stride < shape::width;
      REQUIRE(at(in_panels, i) == (!inside ? A(untouched) : c < depth ? at(rows, c) : A(0)));
    }
  }
}

using b16 = Eigen::bfloat16;
using shape = panel_shape<float>;

/// The product of pair i of a with pair j of b.
template <class X>
float product_of_pairs(const std::vector<X>& a, Index i, const std::vector<X>& b, Index j) {
  return static_cast<float>(at(a, 2 * i) * at(b, 2 * j) + at(a, 2 * i + 1) * at(b, 2 * j + 1));
}

template <class Products>
void check_scores_of_pairs(testing::random& random, Index count) {
  using number = typename Products::number;
  CAPTURE(count);
  const auto queries = drawn<number>(random, 2 * count * shape::rows),
             keys = drawn<number>(random, 2 * count * shape::width);
  const auto factors = drawn<float>(random, shape::rows), scales = drawn<float>(random, shape::width);
  for (const float* scale : {static_cast<const float*>(nullptr), scales.data()}) {
    auto scores = blank<float>(shape::rows * shape::tile);
    score_panel_of_pairs<Products>(queries.data(), keys.data(), count, factors.data(), scale, scores.data());
    for (Index r = 0; r < shape::rows; ++r)
      for (Index n = 0; n < shape::tile; ++n) {
        float sum = 0;
        for (Index d = 0; n < shape::width && d < count; ++d)
          sum += product_of_pairs(queries, d * shape::rows + r, keys, d * shape::width + n);
        REQUIRE(at(scores, r * shape::tile + n) ==
                (n < shape::width ? at(factors, r) * sum * (scale == nullptr ? 1.0f : at(scales, n))
                                  : static_cast<float>(untouched)));
      }
  }
}

template <class Products>
void check_values_of_pairs(testing::random& random, Index first, Index last) {
  using number = typename Products::number;
  CAPTURE(first, last);
  const auto weights = drawn<number>(random, shape::rows * shape::tile),
             values = drawn<number>(random, shape::tile * shape::width);
  const auto shrink = drawn<float>(random, shape::rows), factors = drawn<float>(random, shape::rows),
             before = drawn<float>(random, shape::rows * shape::width);
  for (const float* factor : {static_cast<const float*>(nullptr), factors.data()}) {
    auto sums = before;
    add_products_of_panel<float, strip_of_pairs<Products>::packets, shape::tile, 2, Products>(
        weights.data() + 2 * first, values.data() + 2 * first * shape::width, last - first, shrink.data(),
        sums.data(), factor);
    for (Index r = 0; r < shape::rows; ++r)
      for (Index c = 0; c < shape::width; ++c) {
        float sum = 0;
        for (Index j = first; j < last; ++j)
          sum += product_of_pairs(weights, r * shape::tile / 2 + j, values, j * shape::width + c);
        REQUIRE(at(sums, r * shape::width + c) == at(shrink, r) * at(before, r * shape::width + c) +
                                                      (factor == nullptr ? 1.0f : at(factors, r)) * sum);
      }
  }
}

template <class Products>
void check_packing_of_pairs(testing::random& random, Index count, Index depth) {
  using number = typename Products::number;
  CAPTURE(count, depth);
  const Index row_stride = depth + 3, pairs = (depth + 1) / 2;
  const auto rows = drawn<typename Products::stored>(random, count * row_stride);
  for (const Index padded : {count, (std::min)(count + 1, Index{shape::width}), Index{shape::width}}) {
    CAPTURE(padded);
    auto packed = blank<number>(2 * pairs * shape::width);
    pack_pairs_transposed<Products>(rows.data(), row_stride, count, padded, depth, packed.data());
    for (Index c = 0; c < 2 * pairs; ++c)
      for (Index n = 0; n < shape::width; ++n) {
        const bool inside = n < count && c < depth;
        REQUIRE(at(packed, 2 * (c / 2 * shape::width + n) + c % 2) == (inside ? at(rows, n * row_stride + c)
                                                                       : n < padded ? 0
                                                                                    : untouched));
      }
  }

  const Index stride = 6;
  const auto row = drawn<number>(random, depth);
  auto strided = blank<number>(pairs * stride);
  pack_strided_pairs(row.data(), depth, strided.data(), stride);
  for (Index i = 0; i < pairs * stride; ++i) {
    const Index c = i / stride * 2 + i % stride;
    REQUIRE(at(strided, i) == (i % stride > 1 ? untouched : c < depth ? at(row, c) : 0));
  }
}

template <class Products>
void check_rows_of_pairs(testing::random& random, Index depth) {
  CAPTURE(depth);
  const auto even = drawn<typename Products::stored>(random, depth),
             odd = drawn<typename Products::stored>(random, depth);
  const Index panels = shape::padded(depth) / shape::width, panel_stride = 2 * shape::width + 4;
  auto together = blank<typename Products::number>(panels * panel_stride), alone = together;
  pack_rows_of_pairs<Products>(even.data(), odd.data(), depth, together.data(), panel_stride);
  pack_row_of_pairs<Products>(odd.data(), 1, depth, alone.data(), panel_stride);
  for (Index p = 0; p < panels; ++p) {
    for (Index i = 0; i < shape::width; ++i) REQUIRE(at(alone, p * panel_stride + 2 * i) == untouched);
    for (Index i = 2 * shape::width; i < panel_stride; ++i) {
      REQUIRE(at(alone, p * panel_stride + i) == untouched);
      REQUIRE(at(together, p * panel_stride + i) == untouched);
    }
  }
  pack_row_of_pairs<Products>(even.data(), 0, depth, alone.data(), panel_stride);
  std::vector<bool> taken(static_cast<std::size_t>(shape::width), false);
  for (Index i = 0; i < shape::width; ++i) {
    const Index place = place_of_channel<Products>(i);
    REQUIRE((0 <= place && place < shape::width));
    taken[std::size_t(place)] = true;
    for (Index p = 0; p < panels; ++p) {
      const Index c = p * shape::width + i, to = p * panel_stride + 2 * place;
      REQUIRE(at(together, to) == (c < depth ? at(even, c) : 0));
      REQUIRE(at(together, to + 1) == (c < depth ? at(odd, c) : 0));
      REQUIRE(at(alone, to) == at(together, to));
      REQUIRE(at(alone, to + 1) == at(together, to + 1));
    }
  }
  CHECK(std::count(taken.begin(), taken.end(), true) == shape::width);
}

/// The channels of pairs that a register holds.
template <class P>
std::vector<b16> channels_of(const typename bfloat16_pairs<P>::pairs& pairs) {
  static_assert(sizeof pairs == std::size_t(2 * lanes<P>) * sizeof(b16));
  std::vector<b16> result(std::size_t(2 * lanes<P>));
  std::memcpy(static_cast<void*>(result.data()), &pairs, sizeof pairs);
  return result;
}

}  // namespace

TEST_CASE("packed products are those of plain loops", "[base]") {
  const std::uint64_t seed = 1721;
  CAPTURE(seed);
  testing::random random(seed);
  check_shape<float>();
  check_shape<double>();
  for (const Index depth : {0, 1, 2, 7, 33}) {
    check_scores<float>(random, depth);
    check_scores<double>(random, depth);
  }
  for (const Index depth : {0, 1, 2, 30, 111}) {
    check_values<float>(random, depth);
    check_values<double>(random, depth);
  }
}

TEST_CASE("rows are packed unchanged, followed by zeros", "[base]") {
  const std::uint64_t seed = 1723;
  CAPTURE(seed);
  testing::random random(seed);
  for (const Index count : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33})
    for (const Index depth : {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 70}) {
      check_packing<float, float>(random, count, depth);
      check_packing<double, double>(random, count, depth);
      check_packing<float, b16>(random, count, depth);
      check_packing<float, Eigen::half>(random, count, depth);
      check_packing<float, std::int8_t>(random, count, depth);
    }
}

using integers = integer_products<integer_floats>;
/// One by one if a strip has more sums than clang unrolls: with AVX-512 it has 384.
using integers_alone =
    std::conditional_t<(shape::rows * shape::width <= 256), integer_products<float>, integers>;

TEMPLATE_TEST_CASE("packed products of pairs are those of plain loops", "[base]", bfloat16_products, integers,
                   integers_alone) {
  const std::uint64_t seed = 1733;
  CAPTURE(seed);
  testing::random random(seed);
  for (const Index count : {0, 1, 2, 7, 33}) check_scores_of_pairs<TestType>(random, count);
  for (const Index first : {0, 1, 17})
    for (const Index count : {0, 1, 2, 30, 47}) check_values_of_pairs<TestType>(random, first, first + count);
}

TEMPLATE_TEST_CASE("pairs are packed unchanged, followed by zeros", "[base]", bfloat16_products, integers,
                   integers_alone) {
  const std::uint64_t seed = 1741;
  CAPTURE(seed);
  testing::random random(seed);
  for (Index count = 1; count <= shape::width; ++count)
    for (const Index depth : {1, 2, 3, 4, 7, 8, 9, 15, 16, 31, 32, 33, 64, 65, 70})
      check_packing_of_pairs<TestType>(random, count, depth);
  for (Index depth = 1; depth <= 4 * shape::width + 1; ++depth) check_rows_of_pairs<TestType>(random, depth);
}

TEST_CASE("pairs in registers are neighbours in memory", "[base]") {
  using P = pair_sums;
  constexpr Index channels = 2 * lanes<P>;
  const std::uint64_t seed = 1747;
  CAPTURE(seed);
  testing::random random(seed);
  const auto x = drawn<b16>(random, channels), y = drawn<b16>(random, channels);
  using products = bfloat16_pairs<P>;
  const auto a = products::load(x.data()), b = products::load(y.data());
  CHECK(channels_of<P>(a) == x);
  for (Index count = 0; count <= channels; ++count) {
    CAPTURE(count);
    const auto seen = channels_of<P>(load_first_pairs<products>(x.data(), count));
    for (Index i = 0; i < channels; ++i) CHECK(at(seen, i) == (i < count ? at(x, i) : 0.0f));
  }
  const auto filled = channels_of<P>(products::fill(x.data()));
  const auto of_tokens = products::of_tokens(a, b);
  const auto even = channels_of<P>(of_tokens.even), odd = channels_of<P>(of_tokens.odd);
  float sums[std::size_t(lanes<P>)];
  store(sums, products::multiply_add(a, b, fill<P>(5.0f)));
  for (Index i = 0; i < lanes<P>; ++i) {
    CAPTURE(i);
    CHECK(sums[i] == product_of_pairs(x, i, y, i) + 5);
    CHECK(at(filled, 2 * i) == at(x, 0));
    CHECK(at(filled, 2 * i + 1) == at(x, 1));
    CHECK(at(even, 2 * i) == at(x, 2 * i));
    CHECK(at(even, 2 * i + 1) == at(y, 2 * i));
    CHECK(at(odd, 2 * i) == at(x, 2 * i + 1));
    CHECK(at(odd, 2 * i + 1) == at(y, 2 * i + 1));
  }
}

TEST_CASE("products of pairs are equal in registers and in scalars, also for subnormal numbers", "[base]") {
  using P = pair_sums;
  using products = bfloat16_pairs<P>;
  constexpr auto L = static_cast<std::size_t>(lanes<P>);
  const std::uint64_t seed = 1759;
  CAPTURE(seed);
  testing::random random(seed);
  const auto number = [&] {
    if (tolerance::flushes_subnormals) return static_cast<float>(random.scaled(-40, 40));
    return static_cast<float>(random.scaled(-140, random.integer(0, 1) == 0 ? -100 : 40));
  };
  for (int n = 0; n < 2000; ++n) {
    std::vector<b16> a, b;
    std::vector<float> sums, seen(L);
    for (std::size_t i = 0; i < 2 * L; ++i) {
      a.push_back(static_cast<b16>(number()));
      b.push_back(static_cast<b16>(number()));
    }
    for (std::size_t i = 0; i < L; ++i) sums.push_back(number());
    store(seen.data(),
          products::multiply_add(products::load(a.data()), products::load(b.data()), load<P>(sums.data())));
    for (std::size_t i = 0; i < L; ++i) {
      const float alone =
          bfloat16_pairs<float>::multiply_add({a[2 * i], a[2 * i + 1]}, {b[2 * i], b[2 * i + 1]}, sums[i]);
      REQUIRE(std::bit_cast<std::uint32_t>(seen[i]) == std::bit_cast<std::uint32_t>(alone));
    }
  }
  // Numbers that the x86 instruction takes as 0, and numbers that it does not.
  const b16 least(0x1p-126f), below(0x1p-130f), large(0x1p20f);
  CHECK(multiply_add_bfloat16(least, large, 0.0f) == 0x1p-106f);
  CHECK(multiply_add_bfloat16(below, large, 0.0f) == (ROPE_DETAIL_BFLOAT16_INSTRUCTIONS ? 0.0f : 0x1p-110f));
}

TEST_CASE("weights are rounded in panels as they are one by one", "[base]") {
  const std::uint64_t seed = 1777;
  CAPTURE(seed);
  testing::random random(seed);
  std::vector<float> weights;
  for (Index j = 0; j < shape::width; ++j)
    weights.push_back(
        std::bit_cast<float>(static_cast<std::uint32_t>(0x3f800000 + random.integer(0, 0x7fffff))));
  auto rounded_weights = blank<b16>(shape::width + 1);
  round_panel(weights.data(), rounded_weights.data());
  for (Index j = 0; j < shape::width; ++j)
    CHECK(at(rounded_weights, j) == static_cast<float>(rounded<b16>(at(weights, j))));
  CHECK(at(rounded_weights, shape::width) == static_cast<float>(untouched));
}
