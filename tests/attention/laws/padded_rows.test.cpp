// SPDX-License-Identifier: MIT
// A prompt that is padded on the right gives the results of the prompt: forward, backward, in the weights, in
// a block and in a cache.
#include <rope/block/gradient.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/attention/gradient.hpp>
#include <rope/attention/weights.hpp>
#include <rope/cache/attention.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/decoder_reference.hpp"
#include "support/decoder_step.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tape.hpp"

using namespace rope;
using namespace decoder_step;

namespace {

using list = std::vector<std::int64_t>;

/// Rows of tokens of the reference, padded with NaN on the right. The first `before` tokens of a row have
/// only keys.
struct batch_of_rows {
  reference::model m = model_of<half_split>(4, plain);
  rows all, asking;
  list key_counts, query_counts;
  Index keys = 0, queries = 0;
  std::vector<float> q, k, v;

  batch_of_rows(std::uint32_t seed, const list& lengths, const list& before, Index padding)
      : all(lengths.size()), asking(lengths.size()), key_counts(lengths) {
    std::mt19937 generator(seed);
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      for (long long i = 0; i < lengths[b]; ++i)
        all[b].push_back(reference::random_token<float>(generator, m, i));
      asking[b].assign(all[b].begin() + before[b], all[b].end());
      query_counts.push_back(lengths[b] - before[b]);
      keys = (std::max)(keys, static_cast<Index>(lengths[b]) + padding);
      queries = (std::max)(queries, static_cast<Index>(query_counts[b]) + padding);
    }
    const auto fill = [&](std::vector<float>& to, const rows& from, Index tokens,
                          const std::vector<double> reference::token::*channels, std::size_t width) {
      for (const auto& row : from)
        for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
          for (std::size_t d = 0; d < width; ++d)
            to.push_back(t < row.size() ? static_cast<float>((row[t].*channels)[d])
                                        : std::numeric_limits<float>::quiet_NaN());
    };
    fill(q, asking, queries, &reference::token::q, m.heads * m.dim);
    fill(k, all, keys, &reference::token::k, m.kv_heads * m.dim);
    fill(v, all, keys, &reference::token::v, m.kv_heads * m.value_dim);
  }
  Index batch() const { return static_cast<Index>(all.size()); }
  head_view<const float> q_view() const { return bshd(q.data(), batch(), queries, 4, 8); }
  head_view<const float> k_view() const { return bshd(k.data(), batch(), keys, 2, 8); }
  head_view<const float> v_view() const { return bshd(v.data(), batch(), keys, 2, 5); }
  attention_options options() const { return {.query_counts = query_counts, .key_counts = key_counts}; }
};

template <class T>
head_view<T> row_of(head_view<T> x, Index b, Index tokens) {
  x.data = x.at(b, 0, 0);
  x.batch = 1;
  return x.token_range(0, tokens);
}

const std::vector<std::pair<list, list>> shapes = {{{5, 8, 1, 0}, {0, 0, 0, 0}},
                                                   {{7, 12, 3}, {4, 10, 3}},
                                                   {{70, 20, 90}, {0, 0, 0}},
                                                   {{300, 20}, {299, 18}}};

}  // namespace

TEST_CASE("a row that is padded on the right attends as it does alone", "[attention]") {
  const frequency_table<> table(plain, 320);
  std::uint32_t seed = 5;
  for (const auto& [lengths, before] : shapes) {
    const batch_of_rows x(++seed, lengths, before, 3);
    CAPTURE(lengths, before);
    const auto size = static_cast<std::size_t>(x.batch() * x.queries * 4);
    std::vector<float> out(size * 5, -77);
    std::vector<double> sums(size, -77);
    const head_view<float> result = bshd(out.data(), x.batch(), x.queries, 4, 5);
    attention_options options = x.options();
    options.log_sum_exp = sums;
    attention<half_split>(x.q_view(), x.k_view(), x.v_view(), result, table, options);
    std::vector<float> weights(size * static_cast<std::size_t>(x.keys), -77);
    options.log_sum_exp = {};
    attention_weights<half_split>(x.q_view(), x.k_view(), weights, table, options);

    const double bound = reference::decoder_bound<float, float>(x.m, 300, 0, false);
    double worst = 0;
    bool zeros = true;
    for (std::size_t b = 0; b < x.all.size(); ++b)
      for (std::size_t i = 0; i < static_cast<std::size_t>(x.queries); ++i)
        for (std::size_t h = 0; h < 4; ++h) {
          const auto at = (b * static_cast<std::size_t>(x.queries) + i) * 4 + h;
          const float* row = weights.data() + ((b * 4 + h) * static_cast<std::size_t>(x.queries) + i) *
                                                  static_cast<std::size_t>(x.keys);
          double total = 0;
          for (Index j = 0; j < x.keys; ++j) total += static_cast<double>(row[j]);
          if (i >= x.asking[b].size()) {
            for (std::size_t d = 0; d < 5; ++d) zeros = zeros && out[at * 5 + d] == 0;
            zeros = zeros && sums[at] == attention_options::no_keys && total == 0;
            continue;
          }
          const auto& token = x.asking[b][i];
          const auto expected =
              reference::attend(x.m, token.q, token.position, seen_by(x.all[b], token.position, 0, 0));
          for (std::size_t d = 0; d < 5; ++d) {
            const double error =
                std::abs(static_cast<double>(out[at * 5 + d]) - static_cast<double>(expected[h * 5 + d]));
            worst = error <= worst ? worst : error >= 0 ? error : 1e9;
          }
          zeros = zeros && std::abs(total - 1) < 1e-4 && sums[at] > -100;
          for (Index j = static_cast<Index>(token.position) + 1; j < x.keys; ++j)
            zeros = zeros && row[j] == 0;
        }
    CHECK(worst <= bound);
    CHECK(zeros);

    // Bits agree with the row alone, for any padding.
    for (Index b = 0; b < x.batch(); ++b) {
      const auto asking = static_cast<Index>(x.query_counts[static_cast<std::size_t>(b)]),
                 count = static_cast<Index>(x.key_counts[static_cast<std::size_t>(b)]);
      std::vector<float> alone(static_cast<std::size_t>(asking * 20));
      const head_view<float> to = bshd(alone.data(), 1, asking, 4, 5);
      attention<half_split>(row_of(x.q_view(), b, asking), row_of(x.k_view(), b, count),
                            row_of(x.v_view(), b, count), to, table);
      // The kernels for few and for many queries round in a different order. There are two queries per key.
      if (asking * 2 > 4 * rope::detail::panel_shape<float>::rows)
        CHECK(testing::same_heads(to, row_of(result, b, asking)));
    }
  }
}

TEST_CASE("gradients of a row that is padded on the right are those of the row alone", "[attention]") {
  const frequency_table<> table(plain, 320);
  std::uint32_t seed = 15;
  for (const auto& [lengths, before] : shapes) {
    const batch_of_rows x(++seed, lengths, before, 3);
    CAPTURE(lengths, before);
    const auto tokens = static_cast<std::size_t>(x.batch() * x.queries);
    std::vector<float> out(tokens * 20), d_out = testing::random_channels<float>(Index(tokens) * 20, seed);
    const head_view<float> result = bshd(out.data(), x.batch(), x.queries, 4, 5);
    const head_view<float> upstream = bshd(d_out.data(), x.batch(), x.queries, 4, 5);
    for (Index b = 0; b < x.batch(); ++b)
      for (Index i = x.query_counts[static_cast<std::size_t>(b)]; i < x.queries; ++i)
        std::fill_n(upstream.at(b, i, 0), 20, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> logits = {0.5f, -1, 0, 900};
    std::vector<double> sums(tokens * 4);
    attention_options options = x.options();
    options.sink_logits = logits;
    options.log_sum_exp = sums;
    attention<half_split>(x.q_view(), x.k_view(), x.v_view(), result, table, options);
    options.log_sum_exp = {};
    std::vector<float> d_q(x.q.size(), -77), d_k(x.k.size(), -77), d_v(x.v.size(), -77);
    const auto of_q = bshd(d_q.data(), x.batch(), x.queries, 4, 8);
    const auto of_k = bshd(d_k.data(), x.batch(), x.keys, 2, 8);
    const auto of_v = bshd(d_v.data(), x.batch(), x.keys, 2, 5);
    std::vector<double> by_sinks(4), sum_by_sinks(4);
    attention_gradient<half_split>(
        testing::tape(x.q_view(), x.k_view(), x.v_view(), result, upstream, of_q, of_k, of_v), table, options,
        {.sink_logits = by_sinks});
    for (Index b = 0; b < x.batch(); ++b) {
      const auto asking = static_cast<Index>(x.query_counts[static_cast<std::size_t>(b)]),
                 count = static_cast<Index>(x.key_counts[static_cast<std::size_t>(b)]);
      std::vector<float> q(static_cast<std::size_t>(asking * 32)), k(static_cast<std::size_t>(count * 16)),
          v(static_cast<std::size_t>(count * 10));
      const auto q1 = bshd(q.data(), 1, asking, 4, 8);
      const auto k1 = bshd(k.data(), 1, count, 2, 8);
      const auto v1 = bshd(v.data(), 1, count, 2, 5);
      std::vector<double> sinks(4);
      attention_gradient<half_split>(
          testing::tape(row_of(x.q_view(), b, asking), row_of(x.k_view(), b, count),
                        row_of(x.v_view(), b, count), row_of(result, b, asking), row_of(upstream, b, asking),
                        q1, k1, v1),
          table, {.sink_logits = logits}, {.sink_logits = sinks});
      for (std::size_t h = 0; h < 4; ++h) sum_by_sinks[h] += sinks[h];
      CHECK(testing::same_heads(q1, row_of(of_q, b, asking)));
      CHECK(testing::same_heads(k1, row_of(of_k, b, count)));
      CHECK(testing::same_heads(v1, row_of(of_v, b, count)));
      bool zeros = true;
      for (Index i = asking; i < x.queries; ++i)
        for (Index c = 0; c < 32; ++c) zeros = zeros && of_q.at(b, i, 0)[c] == 0;
      for (Index j = count; j < x.keys; ++j)
        for (Index c = 0; c < 16; ++c)
          zeros = zeros && of_k.at(b, j, 0)[c] == 0 && (c >= 10 || of_v.at(b, j, 0)[c] == 0);
      CHECK(zeros);
    }
    for (std::size_t h = 0; h < 4; ++h) CHECK(by_sinks[h] == testing::Approx(sum_by_sinks[h]));
    // The forward pass writes `no_keys` as the sum of padding, where even a large sink has no weight.
    std::fill(by_sinks.begin(), by_sinks.end(), -77.0);
    options.log_sum_exp = sums;
    attention_gradient<half_split>(
        testing::tape(x.q_view(), x.k_view(), x.v_view(), result, upstream, of_q, of_k, of_v), table, options,
        {.sink_logits = by_sinks});
    for (std::size_t h = 0; h < 4; ++h)
      CHECK(by_sinks[h] == testing::Approx(sum_by_sinks[h]).epsilon(1e-4).margin(1e-4));
  }
}

TEST_CASE("a padded prompt is the same in attention and in a cache", "[attention]") {
  const frequency_table<> table(plain, 20);
  const batch_of_rows x(25, {5, 8, 1, 0}, {0, 0, 0, 0}, 0);
  kv_cache<float> cache(4, 8, 2, 8, 5);
  cache.append<half_split>(x.k_view(), x.v_view(), table, x.key_counts);
  std::vector<float> out(4 * 8 * 20, -77), cached(out);
  std::vector<double> sums(4 * 8 * 4), cached_sums(sums);
  const std::vector<float> logits = {0.5f, -1, 0, 2};
  attention_options options = x.options();
  options.sink_logits = logits;
  options.log_sum_exp = sums;
  attention<half_split>(x.q_view(), x.k_view(), x.v_view(), bshd(out.data(), 4, 8, 4, 5), table, options);
  attention<half_split>(x.q_view(), cache, bshd(cached.data(), 4, 8, 4, 5), table,
                        {.sink_logits = logits, .log_sum_exp = cached_sums});
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - cached[i]) <= 1e-5f);
  for (std::size_t i = 0; i < sums.size(); ++i)
    CHECK((sums[i] == cached_sums[i] || std::abs(sums[i] - cached_sums[i]) <= 1e-5));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        attention<half_split>(x.q_view(), cache, bshd(cached.data(), 4, 8, 4, 5), table,
                              {.query_counts = x.query_counts});
      },
      "rope::attention: a cache knows the positions and counts of its tokens; leave query_counts empty"));
}

TEST_CASE("a block of a padded batch is the block of its rows, forward and backward", "[attention]") {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const frequency_table<> table(frequencies(8), 20);
  const Index tokens = 6, dim = 16;
  const list counts = {4, 6};
  const auto random_matrix = [](Index rows, Index cols, std::uint32_t seed) -> matrix {
    const std::vector<float> numbers = testing::random_channels<float>(rows * cols, seed);
    return 0.25f * Eigen::Map<const matrix>(numbers.data(), rows, cols);
  };
  const matrix wq = random_matrix(dim, dim, 1), wk = random_matrix(dim, dim, 2),
               wv = random_matrix(dim, dim, 3), wo = random_matrix(dim, dim, 4),
               x = random_matrix(2 * tokens, dim, 5), d_out = random_matrix(2 * tokens, dim, 6);
  const auto weight = [](const matrix& w) { return projection<const float>(w.data(), w.rows(), w.cols()); };
  const multi_head_weights<float> weights{.q = weight(wq), .k = weight(wk), .v = weight(wv), .o = weight(wo)};
  const auto block_with = [&](const attention_options& options) {
    return multi_head_attention<float, half_split>(weights,
                                                   {.heads = 2, .kv_heads = 2, .attention = options});
  };
  const auto padded = block_with({.query_counts = counts, .key_counts = counts}), alone = block_with({});
  matrix out(2 * tokens, dim), d_x(2 * tokens, dim);
  padded.forward(x, 2, out, table);
  matrix upstream = d_out;
  upstream.middleRows(4, 2).setZero();  // padding has no gradient
  multi_head_attention_gradient(padded, {.x = x, .batch = 2, .d_out = upstream},
                                multi_head_gradients<float>{.x = {d_x.data(), 2 * tokens, dim}}, table);
  for (const Index b : {0, 1}) {
    const Index count = counts[static_cast<std::size_t>(b)];
    matrix expected(count, dim), d_expected(count, dim);
    const matrix row = x.middleRows(b * tokens, count), d_row = d_out.middleRows(b * tokens, count);
    alone.forward(row, 1, expected, table);
    multi_head_attention_gradient(alone, {.x = row, .batch = 1, .d_out = d_row},
                                  multi_head_gradients<float>{.x = {d_expected.data(), count, dim}}, table);
    CHECK((out.middleRows(b * tokens, count) - expected).cwiseAbs().maxCoeff() <= 1e-5f);
    CHECK((d_x.middleRows(b * tokens, count) - d_expected).cwiseAbs().maxCoeff() <= 1e-5f);
  }
  CHECK(out.middleRows(4, 2).isZero(0));

  // Counts of keys alone would put query 0 of row 0 at position -2, in the forward and in the backward pass.
  const auto silent = block_with({.key_counts = counts});
  const std::string text = "row 0 has 6 queries and 4 keys, so its first query would be at position -2";
  const matrix before = out;
  CHECK(testing::throws_saying<std::invalid_argument>([&] { silent.forward(x, 2, out, table); }, text));
  CHECK(out == before);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        multi_head_attention_gradient(silent, {.x = x, .batch = 2, .d_out = upstream},
                                      multi_head_gradients<float>{.x = {d_x.data(), 2 * tokens, dim}}, table);
      },
      text));
}

TEST_CASE("counts that leave a row more queries than keys throw", "[attention]") {
  const frequency_table<> table(plain, -20, 20);
  const batch_of_rows x(35, {5, 8}, {0, 0}, 0);
  std::vector<float> out(2 * 8 * 20, -77), weights(2 * 4 * 8 * 8), d_q(x.q.size()), d_k(x.k.size()),
      d_v(x.v.size());
  const auto result = bshd(out.data(), 2, 8, 4, 5);
  const list shorter = {5, 3}, ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto rejected = [&](const attention_options& options, bool rotates, const char* text) {
    CAPTURE(text, rotates);
    const auto reports = [&](const char* function, const auto& call) {
      CHECK(testing::throws_saying<std::invalid_argument>(call, std::string(function) + ": " + text));
    };
    const auto plain_call = [&] { attention(x.q_view(), x.k_view(), x.v_view(), result, options); };
    const auto d = [&](auto&&... table_and_options) {
      attention_gradient<half_split>(
          testing::tape(x.q_view(), x.k_view(), x.v_view(), head_view<const float>(result),
                        head_view<const float>(result), bshd(d_q.data(), 2, 8, 4, 8),
                        bshd(d_k.data(), 2, 8, 2, 8), bshd(d_v.data(), 2, 8, 2, 5)),
          table_and_options...);
    };
    if (rotates)
      CHECK_NOTHROW(plain_call());
    else
      reports("rope::attention", plain_call);
    std::fill(out.begin(), out.end(), -77.0f);
    reports("rope::attention",
            [&] { attention<half_split>(x.q_view(), x.k_view(), x.v_view(), result, table, options); });
    reports("rope::attention_weights",
            [&] { attention_weights<half_split>(x.q_view(), x.k_view(), weights, table, options); });
    reports("rope::attention_gradient", [&] { d(table, options); });
    CHECK(out == std::vector<float>(out.size(), -77.0f));
  };
  const char* silent =
      "row 0 has 8 queries and 5 keys, so its first query would be at position -3; give query_counts or "
      "query_positions (padding on the left: a mask), or, for cross-attention without a window and a table, "
      "causal = false";
  rejected({.key_counts = x.key_counts}, false, silent);
  rejected({.causal = false, .window = 2, .key_counts = x.key_counts}, false, silent);
  rejected({.causal = false, .key_counts = x.key_counts}, true, silent);
  rejected({.query_counts = x.key_counts, .key_counts = shorter}, false,
           "row 1 has 8 queries and 3 keys, so its first query would be at position -5; ");
  rejected(
      {.query_counts = x.key_counts}, false,
      "query_counts need key_counts, or query_positions: the last query of a row is aligned with its last "
      "key");
  // If positions do not matter or are listed, the meaning is clear.
  attention(x.q_view(), x.k_view(), x.v_view(), result, {.causal = false, .key_counts = x.key_counts});
  CHECK(std::isfinite(out[8 * 20]));
  attention(x.q_view(), x.k_view(), x.v_view(), result,
            {.query_positions = ids, .query_counts = x.key_counts, .key_counts = x.key_counts});
  CHECK(out[0] == x.v_view().at(0, 0, 0)[0]);
  CHECK(out[5 * 20] == 0);
  const list empty = {0, 8};
  attention(x.q_view(), x.k_view(), x.v_view(), result, {.key_counts = empty});
  CHECK(out[0] == 0);
}

TEST_CASE("more queries than keys throw the same message, however they are counted", "[attention]") {
  const std::vector<float> x(8 * 4, 1.0f);
  std::vector<float> out(x.size(), -77), weights(8 * 8), d_q(x.size()), d_k(x.size()), d_v(x.size());
  const frequency_table<> table(frequencies(4), -8, 8);
  const auto tokens = [](auto& of, Index count) { return bshd(of.data(), 1, count, 1, 4); };
  const list queries = {0, 6}, keys = {0, 2}, six = {6}, two = {2}, ids = {0, 1, 2, 3, 4, 5};
  const auto rejected = [&](const char* function, const char* row, const auto& call) {
    CHECK(testing::throws_saying<std::invalid_argument>(
        call,
        std::string("rope::") + function + ": " + row +
            " 0 has 6 queries and 2 keys, so its first query would be at position -4; give query_counts or "
            "query_positions (padding on the left: a mask), or, for cross-attention without a window and a "
            "table, causal = false"));
    CHECK(out == std::vector<float>(out.size(), -77.0f));
  };
  const auto attend = [&](Index query_tokens, Index key_tokens, const attention_options& options) {
    attention(tokens(x, query_tokens), tokens(x, key_tokens), tokens(x, key_tokens),
              tokens(out, query_tokens), options);
  };
  rejected("attention", "row", [&] { attend(6, 2, {}); });
  rejected("attention", "row", [&] { attend(6, 2, {.causal = false, .window = 9}); });
  rejected("attention", "row", [&] { attend(6, 8, {.key_counts = two}); });
  rejected("attention", "row", [&] { attend(8, 2, {.query_counts = six, .key_counts = two}); });
  rejected("attention", "segment", [&] { attend(6, 2, {.query_offsets = queries, .key_offsets = keys}); });
  rejected("attention", "row", [&] {
    attention<half_split>(tokens(x, 6), tokens(x, 2), tokens(x, 2), tokens(out, 6), table, {.causal = false});
  });
  rejected("attention", "segment", [&] {
    attention<half_split>(tokens(x, 6), tokens(x, 2), tokens(x, 2), tokens(out, 6), table,
                          {.causal = false, .query_offsets = queries, .key_offsets = keys});
  });
  rejected("attention_weights", "row",
           [&] { attention_weights(tokens(x, 6), tokens(x, 2), std::span(weights).first(12)); });
  rejected("attention_gradient", "row", [&] {
    attention_gradient(testing::tape(
        tokens(x, 6), tokens(x, 2), tokens(x, 2), head_view<const float>(tokens(out, 6)),
        head_view<const float>(tokens(out, 6)), tokens(d_q, 6), tokens(d_k, 2), tokens(d_v, 2)));
  });
  // Without rules by position, with given positions, and without keys there is no error.
  attend(6, 2, {.causal = false});
  attend(6, 2, {.query_positions = ids});
  CHECK(out[0] == 1);
  attend(6, 0, {});
  CHECK(out[0] == 0);
}
