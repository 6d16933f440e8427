// SPDX-License-Identifier: MIT
// The products of a block are sums of products, for every shape of a tile and every storage order.
#include <rope/block/detail/projection_products.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::Index;
using rope::detail::operand;

namespace {

/// A matrix of numbers in [-1, 1] inside a larger one, in row-major or column-major order.
template <class T>
struct matrix {
  Index rows, cols, stride;
  bool by_rows;
  std::vector<T> numbers;

  matrix(Index r, Index c, bool in_rows, testing::random& random)
      : rows(r),
        cols(c),
        stride((in_rows ? c : r) + 3),
        by_rows(in_rows),
        numbers(static_cast<std::size_t>((in_rows ? r : c) * stride + 1)) {
    for (T& number : numbers) number = static_cast<T>(2 * random.unit() - 1);
  }
  operand<T> view() const { return {numbers.data(), by_rows ? stride : 1, by_rows ? 1 : stride}; }
  testing::wide at(Index r, Index c) const {
    return static_cast<testing::wide>(
        numbers[static_cast<std::size_t>(by_rows ? r * stride + c : c * stride + r)]);
  }
};

/// The bound of sums of `depth` products of numbers up to 1 and an initial value, added in any order.
template <class T>
testing::wide bound(Index depth) {
  return static_cast<testing::wide>(depth + 2) * static_cast<testing::wide>(depth + 1) *
         tolerance::unit_roundoff<T>();
}

}  // namespace

TEMPLATE_TEST_CASE("products of a tile are sums of products for every shape", "[block]", float, double) {
  using T = TestType;
  testing::random random(17);
  const Index most = rope::detail::terms_per_pass;
  for (const Index depth : {Index{0}, Index{1}, Index{19}, most, most + 1, 2 * most + 5})
    for (const auto& [rows, cols] : std::vector<std::pair<Index, Index>>{
             {1, 1}, {2, 65}, {6, 8}, {12, 32}, {13, 33}, {24, 64}, {49, 31}, {97, 5}})
      for (const bool a_by_rows : {true, false})
        for (const bool b_by_rows : {true, false}) {
          const matrix<T> a(rows, depth, a_by_rows, random), b(depth, cols, b_by_rows, random);
          const matrix<T> before(rows, cols, true, random);
          for (const bool add : {false, true}) {
            std::vector<T> out = before.numbers;
            rope::detail::multiply_tile(a.view(), b.view(), rows, depth, cols, add, out.data(),
                                        before.stride);
            testing::wide worst = 0;
            bool untouched = true;
            for (Index r = 0; r < rows; ++r)
              for (Index c = 0; c < before.stride; ++c) {
                const auto i = static_cast<std::size_t>(r * before.stride + c);
                if (c >= cols) {
                  untouched = untouched && out[i] == before.numbers[i];
                  continue;
                }
                testing::wide sum = add ? before.at(r, c) : 0;
                for (Index d = 0; d < depth; ++d) sum += a.at(r, d) * b.at(d, c);
                testing::raise_to(worst, testing::abs(static_cast<testing::wide>(out[i]) - sum));
              }
            CAPTURE(rows, depth, cols, a_by_rows, b_by_rows, add);
            CHECK(worst <= bound<T>(depth));
            CHECK(untouched);
          }
        }
}

TEMPLATE_TEST_CASE("a few tokens give the same bits next to any others", "[block]", float, double) {
  using T = TestType;
  testing::random random(18);
  for (const Index depth : {0, 1, 7, 64, 133})
    for (const Index cols : {1, 3, 8, 21}) {
      const Index tokens = 11;
      const matrix<T> x(tokens, depth, true, random), w(cols, depth, true, random);
      const matrix<T> place(tokens, cols, true, random);
      std::vector<T> out = place.numbers, one = out;
      rope::detail::multiply_few(tokens, x.numbers.data(), x.stride, w.numbers.data(), w.stride, depth, cols,
                                 out.data(), place.stride);
      testing::wide worst = 0;
      for (Index t = 0; t < tokens; ++t) {
        rope::detail::multiply_few(Index{1}, x.numbers.data() + t * x.stride, x.stride, w.numbers.data(),
                                   w.stride, depth, cols, one.data() + t * place.stride, place.stride);
        for (Index c = 0; c < cols; ++c) {
          testing::wide sum = 0;
          for (Index d = 0; d < depth; ++d) sum += x.at(t, d) * w.at(c, d);
          worst = (std::max)(
              worst,
              testing::abs(static_cast<testing::wide>(out[static_cast<std::size_t>(t * place.stride + c)]) -
                           sum));
        }
      }
      CAPTURE(depth, cols);
      CHECK(out == one);
      CHECK(worst <= bound<T>(depth));
    }
}
