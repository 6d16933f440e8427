// SPDX-License-Identifier: MIT
#include <rope/rotation/permute.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/random.hpp"

namespace {

using namespace rope;
using testing::throws_saying;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic>;

/// Two invalid layouts: channel 0 twice, and a channel beyond the head.
struct repeated {
  static constexpr Index first(Index /*i*/, Index /*pairs*/) { return 0; }
  static constexpr Index second(Index i, Index pairs) { return i + pairs; }
};
struct outside {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return i + pairs + i / 2; }
};

}  // namespace

// Golden: `permute` of llama.cpp's converter, reshape(heads, 2, head_dim / 2, cols).swapaxes(1, 2).
TEST_CASE("permute_rows from half_split to interleaved is what the GGUF converter does",
          "[rotation][permute]") {
  const Index heads = 3, head_dim = 8, half = head_dim / 2;
  const matrix before = matrix::Random(heads * head_dim, 5);
  matrix after = before;
  permute_rows<half_split, interleaved>(after, heads);
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < half; ++i)
      for (Index j = 0; j < 2; ++j)
        CHECK(after.row(h * head_dim + 2 * i + j) == before.row(h * head_dim + j * half + i));
}

TEST_CASE("rows of the rotated channels are permuted and the other rows do not move", "[rotation][permute]") {
  Eigen::VectorXi rows(16);
  std::iota(rows.begin(), rows.end(), 0);
  const auto permuted = [&](Index heads, Index rotary_dim, Index first) {
    Eigen::VectorXi x = rows;
    permute_rows<interleaved, half_split>(x, heads, rotary_dim, first);
    return std::vector<int>(x.begin(), x.end());
  };
  CHECK(permuted(2, 0, 0) == std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15});
  CHECK(permuted(2, 4, 0) == std::vector<int>{0, 2, 1, 3, 4, 5, 6, 7, 8, 10, 9, 11, 12, 13, 14, 15});
  CHECK(permuted(2, 4, 3) == std::vector<int>{0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 11, 13, 12, 14, 15});
  CHECK(permuted(2, 0, 4) == std::vector<int>{0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11, 12, 14, 13, 15});
  CHECK(permuted(1, 6, 10) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 11, 13, 15});
}

TEMPLATE_TEST_CASE("a second call with the layouts swapped restores every bit", "[rotation]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using array = Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic>;
  std::vector<TestType> memory(24 * 5);
  testing::fill_with_nan(memory);
  const std::vector<TestType> before = memory;
  Eigen::Map<array> rows(memory.data(), 24, 5);
  permute_rows<interleaved, half_split>(rows, 2, 10, 1);
  CHECK(!testing::same_bits(memory, before));
  permute_rows<half_split, interleaved>(rows, 2, 10, 1);
  CHECK(testing::same_bits(memory, before));
  permute_rows<half_split, half_split>(rows, 2);
  CHECK(testing::same_bits(memory, before));

  const auto heads = bshd(memory.data(), 2, 3, 2, 10);
  permute_channels<interleaved, half_split>(heads, 8);
  CHECK(!testing::same_bits(memory, before));
  permute_channels<half_split, interleaved>(heads, 8);
  CHECK(testing::same_bits(memory, before));
}

TEST_CASE("any writable matrix of any order, scalar and stride can be permuted", "[rotation][permute]") {
  using row_major = Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::MatrixXi before = Eigen::MatrixXi::Random(16, 4);
  Eigen::MatrixXi expected = before;
  permute_rows<half_split, interleaved>(expected, 2);

  row_major rows = before;
  permute_rows<half_split, interleaved>(rows, 2);
  CHECK(rows == expected);
  Eigen::MatrixXi stored_transposed = before.transpose();
  permute_rows<half_split, interleaved>(stored_transposed.transpose(), 2);
  CHECK(stored_transposed == expected.transpose());
  Eigen::MatrixXi larger = Eigen::MatrixXi::Constant(20, 7, 5);
  larger.block(3, 2, 16, 4) = before;
  permute_rows<half_split, interleaved>(larger.block(3, 2, 16, 4), 2);
  CHECK(larger.block(3, 2, 16, 4) == expected);
  larger.block(3, 2, 16, 4).setConstant(5);
  CHECK((larger.array() == 5).all());
  Eigen::ArrayXXi array = before.array();
  permute_rows<half_split, interleaved>(array, 2);
  CHECK((array == expected.array()).all());
  std::vector<int> spaced(2 * 16 * 4, 5);
  Eigen::Map<Eigen::MatrixXi, 0, Eigen::InnerStride<2>> strided(spaced.data(), 16, 4);
  strided = before;
  permute_rows<half_split, interleaved>(strided, 2);
  CHECK(strided == expected);
  Eigen::Matrix<int, 16, 1> fixed = before.col(0);
  permute_rows<half_split, interleaved>(fixed, 2);
  CHECK(fixed == expected.col(0));
}

TEMPLATE_LIST_TEST_CASE("permuted activations rotate to the permuted result, bit for bit", "[rotation]",
                        testing::native_types) {
  using T = typename TestType::channel;
  const frequency_table<typename TestType::entry> table(frequencies(12, 1e4), 4);
  const std::vector<T> before = testing::random_channels<T>(2 * 4 * 3 * 16, 92);
  for (const Index first : {Index{0}, Index{4}, Index{3}}) {
    std::vector<T> rotated_first = before, permuted_first = before;
    const auto heads = [first](std::vector<T>& x) {
      return bhsd(x.data(), 2, 3, 4, 16).channels(first, 16 - first);
    };
    rotate<interleaved>(heads(rotated_first), table);
    permute_channels<interleaved, half_split>(heads(rotated_first), 12);
    permute_channels<interleaved, half_split>(heads(permuted_first), 12);
    rotate<half_split>(heads(permuted_first), table);
    CHECK(testing::same_bits(rotated_first, permuted_first));
  }
}

TEST_CASE("permute_channels without a rotary_dim takes the whole head", "[rotation][permute]") {
  std::vector<double> x = {0, 1, 2, 3, 4, 5};
  permute_channels<half_split, interleaved>(thd(x.data(), 1, 1, 6));
  CHECK(x == std::vector<double>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("heads and rotated channels that do not fit throw and no row moves", "[rotation][permute]") {
  const matrix before = matrix::Random(24, 3);
  matrix x = before;
  const auto reports = [&](const std::string& text, Index heads, Index rotary_dim = 0, Index first = 0) {
    const bool thrown = throws_saying<std::invalid_argument>(
        [&] { permute_rows<interleaved, half_split>(x, heads, rotary_dim, first); },
        "rope::permute_rows: " + text);
    return thrown && x == before;
  };
  CHECK(reports("heads must be positive and divide the 24 rows, got 0", 0));
  CHECK(reports("heads must be positive and divide the 24 rows, got -2", -2));
  CHECK(reports("heads must be positive and divide the 24 rows, got 5", 5));
  CHECK(reports("heads must be positive and divide the 24 rows, got 48", 48));
  CHECK(reports("first must be in [0, head_dim = 12], got -1", 2, 4, -1));
  CHECK(reports("first must be in [0, head_dim = 12], got 13", 2, 4, 13));
  const auto channels_left = [](int most, int got) {
    return "rotary_dim must be even, positive and at most the " + std::to_string(most) +
           " channels from the first rotated one on, got " + std::to_string(got);
  };
  CHECK(reports(channels_left(12, 14), 2, 14));
  CHECK(reports(channels_left(8, 10), 2, 10, 4));
  CHECK(reports(channels_left(12, 5), 2, 5));
  CHECK(reports(channels_left(12, -4), 2, -4));
  CHECK(reports(channels_left(3, 3), 8));
  CHECK(reports(channels_left(0, 0), 2, 0, 12));

  std::vector<float> heads = {0, 1, 2, 3, 4, 5, 6};
  const std::vector<float> heads_before = heads;
  const auto view = thd(heads.data(), 1, 1, 7);
  for (const auto& [rotary_dim, got] :
       {std::pair(0, "got 7"), std::pair(8, "got 8"), std::pair(3, "got 3"), std::pair(-2, "got -2")})
    CHECK(throws_saying<std::invalid_argument>(
        [&, r = rotary_dim] { permute_channels<half_split, interleaved>(view, r); },
        "rope::permute_channels: rotary_dim must be even, positive and at most the 7 channels", got));
  CHECK(heads == heads_before);
}

TEST_CASE("a layout with a channel twice or outside the head throws", "[rotation][permute]") {
  std::vector<double> x = {0, 1, 2, 3, 4, 5};
  const std::vector<double> before = x;
  const auto view = thd(x.data(), 1, 1, 6);
  const auto rejects = [&](auto permute, const char* text) {
    return throws_saying<std::invalid_argument>(permute, "rope::permute_channels: the layout must ", text);
  };
  const char *twice = "name every channel of [0, 6) once, got channel 0 again for pair 1",
             *beyond = "map a pair to two channels of [0, 6), got ";
  CHECK(rejects([&] { permute_channels<half_split, repeated>(view); }, twice));
  CHECK(rejects([&] { permute_channels<repeated, half_split>(view); }, twice));
  CHECK(rejects([&] { permute_channels<half_split, outside>(view); }, beyond));
  CHECK(rejects([&] { permute_channels<outside, half_split>(view); }, beyond));
  CHECK(x == before);
}

/// A model whose query and key weights are permuted and rotated in the other layout gives the same scores.

namespace {

/// The first channel with the last, the second with the last but one, ...: a layout that a user could write.
struct mirrored {
  static constexpr Index first(Index i, Index /*pairs*/) { return i; }
  static constexpr Index second(Index i, Index pairs) { return 2 * pairs - 1 - i; }
};

/// Which channels of a head rotate.
struct window {
  Index first, rotary_dim;
};

/// Small integers, so that sums of their products are exact in any order.
matrix small_integers(Index rows, Index cols, testing::random& random) {
  matrix result(rows, cols);
  for (Index i = 0; i < result.size(); ++i) result(i) = static_cast<double>(random.integer(-9, 9));
  return result;
}

/// The query or key side of an attention layer: a projection with a bias, and a norm over each head.
struct projection {
  Index heads;
  matrix weight;         // [heads * head_dim, inputs]
  Eigen::VectorXd bias;  // [heads * head_dim]
  Eigen::VectorXd norm;  // [head_dim]

  projection(Index h, Index head_dim, Index inputs, testing::random& random)
      : heads(h),
        weight(small_integers(h * head_dim, inputs, random)),
        bias(small_integers(h * head_dim, 1, random)),
        norm(small_integers(head_dim, 1, random)) {}
  Index head_dim() const { return weight.rows() / heads; }

  template <class From, class To>
  void permute(window w) {
    permute_rows<From, To>(weight, heads, w.rotary_dim, w.first);
    permute_rows<From, To>(bias, heads, w.rotary_dim, w.first);
    permute_rows<From, To>(norm, 1, w.rotary_dim, w.first);
  }

  /// Rotated heads [tokens, heads, head_dim] of inputs [inputs, tokens].
  template <class Layout>
  std::vector<double> rotated(const matrix& inputs, window w, const frequency_table<double>& table) const {
    std::vector<double> x;
    for (Index t = 0; t < inputs.cols(); ++t)
      for (Index h = 0; h < heads; ++h) {
        double squares = 0;
        const auto start = x.size();
        for (Index r = h * head_dim(); r < (h + 1) * head_dim(); ++r) {
          double sum = bias(r);
          for (Index c = 0; c < weight.cols(); ++c) sum += weight(r, c) * inputs(c, t);
          squares += sum * sum;
          x.push_back(sum);
        }
        for (Index d = 0; d < head_dim(); ++d)
          x[start + static_cast<std::size_t>(d)] *= norm(d) / std::sqrt(1 + squares);
      }
    rotate<Layout>(thd(x.data(), inputs.cols(), heads, head_dim()).channels(w.first, w.rotary_dim), table,
                   100);
    return x;
  }
};

/// Channels of a head in an order that does not depend on the layout: those of pair 0, those of pair 1 and so
/// on, then the others.
template <class Layout>
std::vector<Index> order_of_sum(Index head_dim, window w) {
  std::vector<Index> order;
  for (Index i = 0; i < w.rotary_dim / 2; ++i)
    for (const Index d : {Layout::first(i, w.rotary_dim / 2), Layout::second(i, w.rotary_dim / 2)})
      order.push_back(w.first + d);
  for (Index d = 0; d < head_dim; ++d)
    if (d < w.first || d >= w.first + w.rotary_dim) order.push_back(d);
  return order;
}

double dot(const double* a, const double* b, const std::vector<Index>& order) {
  double sum = 0;
  for (const Index d : order) sum += a[d] * b[d];
  return sum;
}

/// The score of every query head with the key head of its group, for every two tokens.
template <class Layout>
std::vector<double> scores(const projection& q, const projection& k, const matrix& inputs, window w) {
  const frequency_table<double> table(frequencies(w.rotary_dim, 1e4), 200);
  const std::vector<double> queries = q.rotated<Layout>(inputs, w, table),
                            keys = k.rotated<Layout>(inputs, w, table);
  const auto qs = thd(queries.data(), inputs.cols(), q.heads, q.head_dim());
  const auto ks = thd(keys.data(), inputs.cols(), k.heads, k.head_dim());
  const std::vector<Index> order = order_of_sum<Layout>(q.head_dim(), w);
  std::vector<double> result;
  for (Index i = 0; i < inputs.cols(); ++i)
    for (Index j = 0; j < inputs.cols(); ++j)
      for (Index h = 0; h < q.heads; ++h)
        result.push_back(dot(qs.at(0, i, h), ks.at(0, j, h / (q.heads / k.heads)), order));
  return result;
}

template <class From, class To>
void check_scores(window w) {
  const std::uint64_t seed = 91;
  CAPTURE(seed, w.first, w.rotary_dim);
  testing::random random(seed);
  projection q(6, 12, 7, random), k(2, 12, 7, random);
  const matrix inputs = small_integers(7, 5, random);
  const std::vector<double> before = scores<From>(q, k, inputs, w);
  CHECK(scores<To>(q, k, inputs, w) != before);
  q.permute<From, To>(w);
  CHECK(scores<To>(q, k, inputs, w) != before);
  k.permute<From, To>(w);
  CHECK(scores<To>(q, k, inputs, w) == before);
  CHECK(scores<From>(q, k, inputs, w) != before);

  // The head count of the other projection is not an error if it divides the rows, but it gives wrong scores.
  permute_rows<To, From>(k.weight, k.heads, w.rotary_dim, w.first);
  permute_rows<From, To>(k.weight, 1, w.rotary_dim, w.first);
  CHECK(scores<To>(q, k, inputs, w) != before);
}

}  // namespace

TEST_CASE("scores have the same bits after weights, biases and norms are permuted to the other layout",
          "[rotation][permute]") {
  for (const window w : {window{0, 12}, window{0, 8}, window{4, 8}, window{2, 6}}) {
    check_scores<interleaved, half_split>(w);
    check_scores<half_split, interleaved>(w);
    check_scores<interleaved, mirrored>(w);
    check_scores<mirrored, half_split>(w);
  }
}
