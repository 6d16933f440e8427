// SPDX-License-Identifier: MIT
// Absorbed attention to a latent_cache is the expanded attention of every head, from its definition in long
// double, within a bound. The bits do not depend on how the tokens were appended.
#include <rope/cache/attention.hpp>
#include <rope/cache/latent_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/attention/attention.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <tuple>
#include <vector>

#include "support/append_tokens.hpp"
#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/own_threads.hpp"
#include "support/reference.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using namespace rope;
using reference::tensor;
using testing::wide;

namespace {

constexpr long latent_dim = 24, rotary_dim = 8, plain_dim = 10, value_dim = 7;
constexpr long width = latent_dim + rotary_dim;
const double scale = 1 / std::sqrt(static_cast<double>(plain_dim + rotary_dim));

/// A layer: matrices U [heads, plain_dim, latent_dim] and V [heads, value_dim, latent_dim], and their
/// operands.
struct layer {
  long batch, tokens, heads;
  tensor up, down, latent, part, q_plain, q_part;

  /// \tparam C  the type of stored latents
  template <class T, class C>
  static layer random(long batch, long tokens, long heads, std::uint32_t seed) {
    std::mt19937 numbers(seed);
    const auto draw = [&]<class X>(X, long b, long t, long h, long d) {
      return attention_call::random<X>(numbers, {b, t, h, d});
    };
    return {batch,
            tokens,
            heads,
            draw(T(), 1, heads, plain_dim, latent_dim),
            draw(T(), 1, heads, value_dim, latent_dim),
            draw(C(), batch, tokens, 1, latent_dim),
            draw(T(), batch, tokens, 1, rotary_dim),
            draw(T(), batch, tokens, heads, plain_dim),
            draw(T(), batch, tokens, heads, rotary_dim)};
  }

  /// The channels of one token and head, rotated.
  template <class Layout>
  static std::vector<wide> rotated(const tensor& x, long b, long t, long h, const frequencies& f) {
    std::vector<wide> head;
    for (long d = 0; d < rotary_dim; ++d) head.push_back(x(b, t, h, d));
    std::vector<double> inv_freq;
    for (Index i = 0; i < f.pairs(); ++i) inv_freq.push_back(f.inv_freq()(i, 0));
    return reference::rotate(head, inv_freq, t, [](std::size_t i, std::size_t pairs) {
      return std::is_same_v<Layout, interleaved> ? reference::interleaved(i, pairs)
                                                 : reference::half_split(i, pairs);
    });
  }

  /// Row `row` of head h of a matrix times the latent of a token.
  wide expanded(const tensor& matrix, long b, long t, long h, long row) const {
    wide sum = 0;
    for (long c = 0; c < latent_dim; ++c) sum += static_cast<wide>(matrix(0, h, row, c)) * latent(b, t, 0, c);
    return sum;
  }

  /// k_h = [U_h c ; rotated part], v_h = V_h c, with causal attention of every head on its own.
  template <class Layout>
  tensor expanded_attention(const frequencies& f) const {
    tensor out(batch, tokens, heads, value_dim);
    for (long b = 0; b < batch; ++b)
      for (long h = 0; h < heads; ++h) {
        std::vector<std::vector<wide>> keys, values;
        for (long t = 0; t < tokens; ++t) {
          std::vector<wide> key, value;
          for (long d = 0; d < plain_dim; ++d) key.push_back(expanded(up, b, t, h, d));
          const std::vector<wide> rotated_part = rotated<Layout>(part, b, t, 0, f);
          key.insert(key.end(), rotated_part.begin(), rotated_part.end());
          for (long d = 0; d < value_dim; ++d) value.push_back(expanded(down, b, t, h, d));
          keys.push_back(key);
          values.push_back(value);
          std::vector<wide> query;
          for (long d = 0; d < plain_dim; ++d) query.push_back(q_plain(b, t, h, d));
          const std::vector<wide> rotated_q_part = rotated<Layout>(q_part, b, t, h, f);
          query.insert(query.end(), rotated_q_part.begin(), rotated_q_part.end());
          std::vector<wide> scores, sums(value_dim);
          for (const std::vector<wide>& k : keys) {
            wide score = 0;
            for (std::size_t d = 0; d < k.size(); ++d) score += query[d] * k[d];
            scores.push_back(score * scale);
          }
          const wide largest = *std::max_element(scores.begin(), scores.end());
          wide sum = 0;
          for (std::size_t j = 0; j < scores.size(); ++j) {
            const wide weight = testing::exp(scores[j] - largest);
            sum += weight;
            for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += weight * values[j][d];
          }
          for (long d = 0; d < value_dim; ++d)
            out(b, t, h, d) = static_cast<double>(sums[static_cast<std::size_t>(d)] / sum);
        }
      }
    return out;
  }

  /// [U_h^T q_h ; the channels to rotate, not yet rotated].
  tensor absorbed_queries() const {
    tensor q(batch, tokens, heads, width);
    for_each_element(q, [&](long b, long t, long h, long c) {
      wide sum = c < latent_dim ? 0 : q_part(b, t, h, c - latent_dim);
      for (long d = 0; d < plain_dim && c < latent_dim; ++d)
        sum += static_cast<wide>(up(0, h, d, c)) * q_plain(b, t, h, d);
      q(b, t, h, c) = static_cast<double>(sum);
    });
    return q;
  }

  /// V_h times the outputs of head h.
  tensor projected(const tensor& out) const {
    tensor result(batch, tokens, heads, value_dim);
    for_each_element(result, [&](long b, long t, long h, long d) {
      wide sum = 0;
      for (long c = 0; c < latent_dim; ++c) sum += static_cast<wide>(down(0, h, d, c)) * out(b, t, h, c);
      result(b, t, h, d) = static_cast<double>(sum);
    });
    return result;
  }

  /// The largest difference of a channel of the projected output from the expanded one. Absorbed attention is
  /// within attention_bound of that of its operands, in the latent. The error of these is one rounding of the
  /// absorbed query, a rotation on either side (the norm of a pair is at most sqrt(2) times its largest
  /// channel), and the rounding of a stored part. An error e of every score changes the mean of latents by 2
  /// e max|c|. V_h multiplies a difference of latents by at most the sum of a row's magnitudes.
  template <class T, class C, class S>
  double bound() const {
    using A = attention_call::arithmetic<T>;
    const reference::attention_rule rule = {.scale = scale};
    tensor q = absorbed_queries(), k(batch, tokens, 1, width);
    const double rotated_key = std::sqrt(2.0) * part.largest(),
                 rotated_query = std::sqrt(2.0) * q_part.largest();
    for_each_element(k, [&](long b, long t, long, long c) {
      k(b, t, 0, c) = c < latent_dim ? latent(b, t, 0, c) : rotated_key;
    });
    for_each_element(q, [&](long b, long t, long h, long c) {
      if (c >= latent_dim) q(b, t, h, c) = rotated_query;
    });
    const auto rotation_error = static_cast<double>(tolerance::rotation_bound<A, S>(1)),
               rounding = static_cast<double>(tolerance::unit_roundoff<A>()),
               storing = tolerance::is_16_bit<C> ? static_cast<double>(tolerance::unit_roundoff<C>()) : 0;
    const double off_q = std::max(rotation_error, rounding), off_k = rotation_error + storing,
                 score = scale * width * q.largest() * k.largest() * (off_q + off_k + off_q * off_k);
    double row = 0;
    for (long h = 0; h < heads; ++h)
      for (long d = 0; d < value_dim; ++d) {
        double sum = 0;
        for (long c = 0; c < latent_dim; ++c) sum += std::abs(down(0, h, d, c));
        row = std::max(row, sum);
      }
    return row * (reference::attention_bound<A>(q, k, latent, rule) + 2.02 * score * latent.largest() +
                  rounding * latent.largest());
  }
};

/// All data of a layer in memory of T.
template <class T>
struct operands {
  std::vector<T> q, latent, part, out;
  head_view<T> queries, latents, parts, output;
  explicit operands(const layer& x)
      : q(testing::stored<T>(x.absorbed_queries())),
        latent(testing::stored<T>(x.latent)),
        part(testing::stored<T>(x.part)),
        out(static_cast<std::size_t>(x.batch * x.tokens * x.heads * latent_dim), T(-99)),
        queries(bshd(q.data(), x.batch, x.tokens, x.heads, width)),
        latents(bshd(latent.data(), x.batch, x.tokens, 1, latent_dim)),
        parts(bshd(part.data(), x.batch, x.tokens, 1, rotary_dim)),
        output(bshd(out.data(), x.batch, x.tokens, x.heads, latent_dim)) {}

  tensor result(const layer& x) const {
    return testing::loaded(out, tensor(x.batch, x.tokens, x.heads, latent_dim));
  }
};

using query_and_storage =
    std::tuple<testing::types<float, float>, testing::types<double, double>,
               testing::types<float, Eigen::half>, testing::types<float, Eigen::bfloat16>>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("absorbed attention is expanded attention", "[cache]", query_and_storage) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  const frequencies f(rotary_dim, 50.0);
  const frequency_table<T> table(f, 200);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    for (const auto& [tokens, heads, piece] :
         {std::tuple(40L, 6L, 40L), {40L, 6L, 1L}, {33L, 40L, 1L}, {150L, 3L, 7L}}) {
      CAPTURE(testing::name_of<Layout>, tokens, heads, piece);
      const layer x = layer::random<T, C>(2, tokens, heads, 71);
      for (const key_storage storage : {key_storage::rotated, key_storage::raw}) {
        CAPTURE(storage == key_storage::raw);
        operands<T> memory(x);
        latent_cache<C> cache(2, tokens, latent_dim, rotary_dim, storage);
        for (long t = 0; t < tokens; t += piece) {
          const long count = std::min(piece, tokens - t);
          const auto c = memory.latents.token_range(t, count), r = memory.parts.token_range(t, count);
          testing::append_tokens<Layout>(cache, c, r, table);
          attention<Layout>(memory.queries.token_range(t, count), cache, memory.output.token_range(t, count),
                            table, {.scale = scale});
        }
        const double error = reference::worst_error<double>(
            x.projected(memory.result(x)), x.expanded_attention<Layout>(f), x.bound<T, C, T>());
        CHECK(error <= 1);
        CHECK(error > 1e-6);  // a bound that is not trivial
      }
    }
  });
}

TEMPLATE_LIST_TEST_CASE("a latent_cache contains the same bits for any pieces of a prompt", "[cache]",
                        query_and_storage) {
  using T = typename TestType::channel;
  using C = typename TestType::entry;
  const long tokens = 45;
  const frequency_table<T> table(frequencies(rotary_dim, 50.0), tokens);
  testing::for_each_layout([&](auto layout) {
    using Layout = decltype(layout);
    for (const long heads : {2L, 30L}) {
      const layer x = layer::random<T, C>(2, tokens, heads, 72);
      operands<T> whole(x);
      latent_cache<C> prefilled(2, tokens, latent_dim, rotary_dim);
      prefilled.template append<Layout>(whole.latents, whole.parts, table);
      attention<Layout>(whole.queries, prefilled, whole.output, table, {.scale = scale});
      operands<T> last(x);
      const auto newest = [&](const head_view<T>& of) { return of.token_range(tokens - 3, 3); };
      attention<Layout>(newest(last.queries), prefilled, newest(last.output), table, {.scale = scale});
      for (const long piece : {1L, 2L, 7L, 44L}) {
        CAPTURE(testing::name_of<Layout>, heads, piece);
        operands<T> pieces(x);
        latent_cache<C> cache(2, tokens, latent_dim, rotary_dim);
        const testing::own_threads threads(2);
        for (long t = 0; t < tokens; t += piece) {
          const long count = std::min(piece, tokens - t);
          cache.template append<Layout>(pieces.latents.token_range(t, count),
                                        pieces.parts.token_range(t, count), table, {}, threads);
        }
        CHECK(testing::same_heads(cache.keys(), prefilled.keys()));
        CHECK(testing::same_heads(cache.values(), prefilled.values()));
        attention<Layout>(pieces.queries, cache, pieces.output, table, {.scale = scale}, {}, threads);
        CHECK(testing::same_bits(pieces.out, whole.out));
        attention<Layout>(newest(pieces.queries), cache, newest(pieces.output), table, {.scale = scale});
        CHECK(testing::same_heads(newest(pieces.output), newest(last.output)));
      }
    }
  });
}

TEST_CASE("absorbed attention has the bits of attention with the latent as keys and as values", "[cache]") {
  const long tokens = 30, heads = 5;
  const frequency_table<float> table(frequencies(rotary_dim, 50.0), tokens);
  const layer x = layer::random<float, float>(2, tokens, heads, 73);
  operands<float> memory(x), plain(x);
  latent_cache<float> cache(2, tokens, latent_dim, rotary_dim);
  cache.append<interleaved>(memory.latents, memory.parts, table);
  attention<interleaved>(memory.queries, cache, memory.output, table, {.scale = scale});
  tensor keys(2, tokens, 1, width);
  for_each_element(keys, [&](long b, long t, long, long c) {
    keys(b, t, 0, c) = c < latent_dim ? x.latent(b, t, 0, c) : x.part(b, t, 0, c - latent_dim);
  });
  const std::vector<float> k = testing::stored<float>(keys);
  attention<interleaved>(plain.queries, bshd(k.data(), 2, tokens, 1, width), plain.latents, plain.output,
                         table.at_channel(latent_dim), {.scale = scale});
  CHECK(testing::same_bits(memory.out, plain.out));
}
