#ifndef ROPE_EXAMPLES_ONE_PROCESS_HPP
#define ROPE_EXAMPLES_ONE_PROCESS_HPP

#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "claims.hpp"
#include "ring_attention.hpp"
#include "sequence_split.hpp"

/// Computes the results of context_parallel in one process that has all tokens, and bounds of the difference
/// between both.

namespace many {

constexpr Index query_heads = 8, kv_heads = 2, head_dim = 32, value_dim = 16;

inline const rope::frequency_table<double>& table() {
  static const rope::frequency_table<double> rows(rope::frequencies(head_dim, 10000.0), 512);
  return rows;
}

template <class T>
const char* name_of() {
  return std::is_same_v<T, float> ? "float" : "double";
}

/// Sequences laid end to end, with unrotated q and k, and the gradient with respect to the output of
/// attention.
template <class T>
struct batch {
  list offsets;
  heads<T> q, k, v, d_out;

  batch(const list& of_sequences, unsigned seed)
      : offsets(of_sequences),
        q(of_sequences.back(), query_heads, head_dim),
        k(of_sequences.back(), kv_heads, head_dim),
        v(of_sequences.back(), kv_heads, value_dim),
        d_out(of_sequences.back(), query_heads, value_dim) {
    std::mt19937 random(seed);
    for (heads<T>* x : {&q, &k, &v, &d_out}) fill(x->numbers, random);
  }
};

/// Output and gradients of all tokens, or of the tokens of a share.
template <class T>
struct results {
  heads<T> out, d_q, d_k, d_v;
};

template <class T>
bool same_results(const results<T>& a, const results<T>& b) {
  return same_bits(a.out.numbers, b.out.numbers) && same_bits(a.d_q.numbers, b.d_q.numbers) &&
         same_bits(a.d_k.numbers, b.d_k.numbers) && same_bits(a.d_v.numbers, b.d_v.numbers);
}

/// The expected result: one call with all tokens.
template <class T>
results<T> one_process(const batch<T>& x, const heads<T>& d_out) {
  results<T> r = {{x.q.tokens, query_heads, value_dim},
                  {x.q.tokens, query_heads, head_dim},
                  {x.q.tokens, kv_heads, head_dim},
                  {x.q.tokens, kv_heads, value_dim}};
  const rope::attention_options options = {.query_offsets = x.offsets};
  rope::attention<rope::half_split>(x.q.view(), x.k.view(), x.v.view(), r.out.view(), table(), options);
  rope::attention_gradient<rope::half_split>(rope::attention_tape<T>{.q = x.q.view(),
                                                                     .k = x.k.view(),
                                                                     .v = x.v.view(),
                                                                     .out = r.out.view(),
                                                                     .d_out = d_out.view(),
                                                                     .d_q = r.d_q.view(),
                                                                     .d_k = r.d_k.view(),
                                                                     .d_v = r.d_v.view()},
                                             table(), options);
  return r;
}

/// The part of some tokens.
template <class T>
heads<T> pick(const heads<T>& x, const list& tokens) {
  heads<T> picked(static_cast<Index>(tokens.size()), x.count, x.dim);
  for (Index t = 0; t < picked.tokens; ++t)
    std::copy_n(x.view().at(0, static_cast<Index>(tokens[static_cast<std::size_t>(t)]), 0), x.count * x.dim,
                picked.view().at(0, t, 0));
  return picked;
}

/// Bounds of the difference between two orders of sums, per channel.
struct bounds {
  double out, d_q, d_k, d_v;
};

template <class T>
double largest_norm(const heads<T>& x) {
  double largest = 0;
  for (Index t = 0; t < x.tokens; ++t)
    for (Index h = 0; h < x.count; ++h) {
      double squares = 0;
      for (Index c = 0; c < x.dim; ++c) squares += std::pow(double(x.view().at(0, t, h)[c]), 2);
      largest = std::max(largest, std::sqrt(squares));
    }
  return largest;
}

/// Let u be the unit roundoff, |x| the largest norm of a head, which rotations do not change, S = scale |q| |k|,
/// and t = ceil(n / 96) + 2 the number of tiles and runs of tiles of n keys or queries. The relative error of a
/// weight is
///
///     e = u ((head_dim + 6) S + 5 (t + 1))
///
/// when it is computed, and 2 e more in a quotient of sums. A mean of values then has 2 e, and a gradient 4 e,
/// and at most 240 + t roundings of the sums. tests/support/attention_reference.hpp has the reasons. Both sides
/// have this error, and a merge adds 3 u.
///
/// The slopes of scores are w_ij (d_out_i . v_j - d_out_i . out_i). Their errors, relative to 2 |d_out| |v|
/// w_ij, and the error of `out` are weighted in sums. These weights add up to 1 for a query. For a key they
/// add up to at most the attention that it receives from all queries, which is the gradient of the sum of
/// outputs with respect to its value.
///
/// In float, small mistakes could hide below these bounds, in double none.
template <class T>
bounds bounds_of(const batch<T>& x, int ranks) {
  const double u = double(std::numeric_limits<T>::epsilon()) / 2, scale = 1 / std::sqrt(double(head_dim)),
               q = largest_norm(x.q), k = largest_norm(x.k), v = largest_norm(x.v),
               d_out = largest_norm(x.d_out);
  heads<T> ones = x.d_out;
  std::fill(ones.numbers.begin(), ones.numbers.end(), T(1));
  const double most = largest_of(one_process(x, ones).d_v.numbers);

  const auto tiles = [](Index n) { return std::ceil(double(n) / 96) + 2; };
  const double weight = u * ((double(head_dim) + 6) * scale * q * k + 5 * (tiles(x.q.tokens) + 1)),
               sums = u * (240 + tiles(x.q.tokens * query_heads));
  // 1 % covers terms of second order.
  const double out = (2.02 * (2 * weight + 2 * sums + 4 * u) + 3 * u * ranks) * v;
  const double part = 2.02 * (4 * weight + 2 * sums + u * (double(value_dim) + 4)) + u * ranks;
  const double slope = 2 * part * d_out * v + d_out * std::sqrt(double(value_dim)) * out,
               rotated_back = 3 * u * 2 * d_out * v;
  return {out, scale * (slope + rotated_back) * k, scale * (slope + rotated_back) * q * most,
          part * d_out * most};
}

}  // namespace many

#endif  // ROPE_EXAMPLES_ONE_PROCESS_HPP
