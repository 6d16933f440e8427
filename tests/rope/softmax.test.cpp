// SPDX-License-Identifier: MIT
#include <rope/softmax.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace {

template <class A>
using scores = Eigen::Array<A, 1, Eigen::Dynamic>;

/// A softmax computed piece by piece: the state, and the weights of all keys in units of the final maximum.
template <class A>
struct result {
  rope::softmax_state<A> state;
  scores<A> weights;
};

template <class A>
result<A> in_pieces(const scores<A>& all, const std::vector<Eigen::Index>& pieces) {
  result<A> r = {{}, scores<A>::Zero(all.size())};
  Eigen::Index begin = 0;
  for (const Eigen::Index count : pieces) {
    scores<A> piece = all.segment(begin, count);
    const A shrink = r.state.add(piece);
    if (begin > 0) r.weights.head(begin) *= shrink;
    r.weights.segment(begin, count) = piece;
    begin += count;
  }
  return r;
}

template <class A>
scores<A> random_scores(std::mt19937& generator, Eigen::Index count, double size) {
  scores<A> all(count);
  for (A& score : all) score = static_cast<A>(size * (static_cast<double>(generator()) * 0x1p-31 - 1));
  return all;
}

/// How far a weight may be, relative to itself, from exp(score - maximum) when it came about in `pieces`
/// pieces and scores span `range`. The differences of scores in the exponents add up to at most `range`, each
/// costs its rounding and the range reduction of exp, and every piece costs an exp and a product: see
/// reference::attention_bound, which says why 5 u is enough for these.
template <class A>
double weight_bound(double range, std::size_t pieces) {
  return 1.01 * static_cast<double>(tolerance::unit_roundoff<A>()) *
         (2 * range + 5 * static_cast<double>(pieces));
}

/// Checks state and weights against long double. The sum adds `count` weights, and at most one rounding per
/// piece more.
template <class A>
void check_softmax(const result<A>& got, const scores<A>& all, std::size_t pieces) {
  const A largest = all.maxCoeff();
  const double bound =
      weight_bound<A>(static_cast<double>(largest) - static_cast<double>(all.minCoeff()), pieces);
  const auto smallest =
      static_cast<double>(std::numeric_limits<A>::min());  // what underflow may do to a weight
  long double sum = 0;
  double worst = 0;
  for (Eigen::Index j = 0; j < all.size(); ++j) {
    const long double exact = std::exp(static_cast<long double>(all[j]) - largest);
    sum += exact;
    worst =
        (std::max)(worst, static_cast<double>(std::abs(got.weights[j] - exact) / (bound * exact + smallest)));
  }
  CHECK(worst <= 1);
  CHECK(got.state.maximum == largest);
  CHECK_FALSE(got.state.empty());
  const auto n = static_cast<double>(all.size()), u = static_cast<double>(tolerance::unit_roundoff<A>());
  CHECK(std::abs(static_cast<double>(got.state.sum - sum)) <=
        (bound + 1.01 * u * (n + static_cast<double>(pieces))) * static_cast<double>(sum) + n * smallest);
}

}  // namespace

TEMPLATE_TEST_CASE("a softmax in pieces is the softmax of the whole", "", float, double) {
  const std::uint32_t seed = 51;
  std::mt19937 generator(seed);
  const double size = GENERATE(0.1, 5.0, 60.0);
  CAPTURE(seed, size);
  const scores<TestType> all = random_scores<TestType>(generator, 129, size);
  for (const std::vector<Eigen::Index>& pieces : {std::vector<Eigen::Index>{129},
                                                  {1, 128},
                                                  {128, 1},
                                                  {64, 64, 1},
                                                  {7, 30, 92},
                                                  std::vector<Eigen::Index>(129, 1)})
    check_softmax(in_pieces<TestType>(all, pieces), all, pieces.size());
}

TEMPLATE_TEST_CASE("the largest score may come first, last or in between", "", float, double) {
  scores<TestType> all = scores<TestType>::LinSpaced(60, TestType(-8), TestType(8));
  const std::vector<Eigen::Index> pieces = {1, 9, 20, 30};
  check_softmax(in_pieces<TestType>(all, pieces), all, 4);
  all.reverseInPlace();
  check_softmax(in_pieces<TestType>(all, pieces), all, 4);
  std::rotate(all.begin(), all.begin() + 17, all.end());
  check_softmax(in_pieces<TestType>(all, pieces), all, 4);
}

TEMPLATE_TEST_CASE("an offset of all scores moves the maximum and nothing else", "", float, double) {
  // Multiples of 1/64 up to 10000: their differences are exact in float.
  scores<TestType> all(70);
  for (Eigen::Index j = 0; j < all.size(); ++j) all[j] = TestType((j * 37) % 101 - 50) / 64;
  const std::vector<Eigen::Index> pieces = {10, 40, 20};
  const result<TestType> base = in_pieces<TestType>(all, pieces);
  for (const double offset : {1e4, -1e4, 0.25}) {
    const scores<TestType> moved = all + TestType(offset);
    const result<TestType> r = in_pieces<TestType>(moved, pieces);
    CHECK(r.state.maximum == base.state.maximum + TestType(offset));
    CHECK(r.state.sum == base.state.sum);
    CHECK((r.weights == base.weights).all());
  }
}

TEMPLATE_TEST_CASE("a piece far above the others leaves them no weight and a piece far below gets none", "",
                   float, double) {
  const auto two_pieces = [](double before, double after) {
    scores<TestType> all(5);
    all << TestType(before), TestType(before), TestType(after), TestType(after), TestType(after);
    return in_pieces<TestType>(all, {2, 3});
  };
  // exp of the difference is below the smallest normal number, though not always 0: Eigen's packets stop
  // short of it.
  const auto nothing = static_cast<double>(std::numeric_limits<TestType>::min());
  const result<TestType> rising = two_pieces(-1e4, 1e4);
  CHECK(rising.state.maximum == TestType(1e4));
  CHECK(rising.state.sum == 3);
  CHECK(rising.weights[0] <= nothing);
  CHECK((rising.weights.tail(3) == 1).all());
  const result<TestType> falling = two_pieces(1e4, -1e4);
  CHECK(falling.state.maximum == TestType(1e4));
  CHECK(falling.state.sum == 2);
  CHECK((falling.weights.head(2) == 1).all());
  CHECK(falling.weights[4] <= nothing);
}

TEMPLATE_TEST_CASE("earlier weights keep their unit while the maximum stands", "", float, double) {
  rope::softmax_state<TestType> state;
  scores<TestType> piece(3);
  piece << 1, 3, 2;
  state.add(piece);
  piece << -1, 3, 0;
  CHECK(state.add(piece) == 1);
  piece << -1, 4, 0;
  CHECK(state.add(piece) < TestType(0.5));
}

TEMPLATE_TEST_CASE("a state is empty until it has seen a key, however small its score", "", float, double) {
  const TestType lowest = std::numeric_limits<TestType>::lowest();
  for (const TestType score : {TestType(0), TestType(-1e4), TestType(1e4), lowest / 2, -lowest / 2}) {
    rope::softmax_state<TestType> state;
    CHECK(state.empty());
    scores<TestType> piece = scores<TestType>::Constant(1, score);
    state.add(piece);
    CHECK_FALSE(state.empty());
    CHECK(state.maximum == score);
    CHECK(state.sum == 1);
    CHECK(piece[0] == 1);
  }
}

TEST_CASE("scores may be a part of a larger row") {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> tile(2, 6);
  tile.setConstant(7);
  tile.row(1).segment(2, 3) << 1, 2, 1;
  rope::softmax_state<float> state;
  state.add(tile.row(1).segment(2, 3).array());
  CHECK(state.maximum == 2);
  CHECK(tile(1, 3) == 1);
  CHECK(tile(1, 1) == 7);
  CHECK(tile(1, 5) == 7);
  CHECK((tile.row(0).array() == 7).all());
}
