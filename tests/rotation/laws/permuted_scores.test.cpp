// SPDX-License-Identifier: MIT
#include <rope/rotation/permute.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

/// A model whose query and key weights are permuted and rotated in the other layout gives the same scores.

namespace {

using namespace rope;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic>;

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
