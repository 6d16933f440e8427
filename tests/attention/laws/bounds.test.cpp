// SPDX-License-Identifier: MIT
// Compares the bounds of attention with the errors that occur, for each option and each storage type alone.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/narrow_products.hpp"
#include "support/quantized.hpp"
#include "support/random.hpp"

using namespace attention_call;

namespace {

/// Sets one option of a call for the extents of a setting.
struct option {
  std::string name;
  std::function<void(features::setting&, std::mt19937&)> put;
};

const std::vector<option>& all_options() {
  using features::setting;
  const auto of = [](auto change) { return [=](setting& s, std::mt19937&) { change(s.options); }; };
  static const std::vector<option> all = {
      {"none", of([](auto& o) { o.causal = false; })},
      {"causal", of([](auto&) {})},
      {"scale", of([](auto& o) { o.scale = -0.7; })},
      {"window", of([](auto& o) { o.window = 60; })},
      {"sinks", of([](auto& o) { o.window = 60, o.sinks = 4; })},
      {"softcap", of([](auto& o) { o.softcap = 1.5; })},
      {"dropout", of([](auto& o) { o.dropout = 0.25, o.dropout_seed = 9; })},
      {"sink_logits",
       [](setting& s, std::mt19937&) {
         s.sink_logits = {-2, -1, 0, 1};
         s.options.sink_logits = s.sink_logits;
       }},
      {"bias",
       [](setting& s, std::mt19937& generator) {
         for (long i = 0; i < s.e.heads * s.e.queries * s.e.keys; ++i)
           s.bias.push_back(static_cast<float>(testing::uniform(generator)));
         s.options.bias = rope::score_matrix(s.bias.data(), 1, s.e.heads, s.e.queries, s.e.keys);
       }},
      {"mask",
       [](setting& s, std::mt19937& generator) {
         s.mask = std::make_unique<bool[]>(static_cast<std::size_t>(s.e.queries * s.e.keys));
         for (long i = 0; i < s.e.queries * s.e.keys; ++i)
           s.mask[static_cast<std::size_t>(i)] = generator() % 4 != 0;
         s.options.mask = rope::score_matrix(s.mask.get(), 1, 1, s.e.queries, s.e.keys);
       }},
      {"key_positions",
       [](setting& s, std::mt19937& generator) {
         for (long j = 0; j < s.e.keys; ++j) s.key_positions.push_back(j);
         std::shuffle(s.key_positions.begin(), s.key_positions.end(), generator);
         s.options.key_positions = s.key_positions;
       }},
      {"query_positions",
       [](setting& s, std::mt19937& generator) {
         for (long i = 0; i < s.e.queries; ++i) s.query_positions.push_back(s.e.keys - 1 - 2 * i);
         std::shuffle(s.query_positions.begin(), s.query_positions.end(), generator);
         s.options.query_positions = s.query_positions;
       }},
      {"key_counts",
       [](setting& s, std::mt19937&) {
         s.key_counts = {s.e.keys - 17};
         s.options.key_counts = s.key_counts;
       }},
      {"query_counts",
       [](setting& s, std::mt19937&) {
         s.query_counts = {s.e.queries - s.e.queries / 3 - 1};
         s.key_counts = {s.e.keys};
         s.options.query_counts = s.query_counts;
         s.options.key_counts = s.key_counts;
       }},
      {"offsets",
       [](setting& s, std::mt19937&) {
         s.query_offsets = {0, 1, s.e.queries};
         s.key_offsets = {0, 40, s.e.keys};
         s.options.query_offsets = s.query_offsets;
         s.options.key_offsets = s.key_offsets;
       }},
      {"key_ranges",
       [](setting& s, std::mt19937&) {
         for (long i = 0; i < s.e.queries; ++i) s.key_ranges.push_back({3 + i % 30, s.e.keys - 40 - i % 7});
         s.options.key_ranges = s.key_ranges;
       }},
      {"selected",
       [](setting& s, std::mt19937& generator) {
         const long keys = s.e.keys - 30;
         s.is_selected.assign(static_cast<std::size_t>(s.e.kv_heads * s.e.queries),
                              std::vector<char>(static_cast<std::size_t>(s.e.keys)));
         for (std::vector<char>& of_query : s.is_selected) {
           std::vector<std::int64_t> order;
           for (long j = 0; j < s.e.keys; ++j) order.push_back(j);
           std::shuffle(order.begin(), order.end(), generator);
           order.resize(static_cast<std::size_t>(keys));
           for (const std::int64_t j : order) of_query[static_cast<std::size_t>(j)] = 1;
         }
         for (long i = 0; i < s.e.queries; ++i)
           for (long kv = 0; kv < s.e.kv_heads; ++kv)
             for (long j = 0; j < s.e.keys; ++j)
               if (s.is_selected[static_cast<std::size_t>(kv * s.e.queries + i)][static_cast<std::size_t>(j)])
                 s.selected.push_back(j);
         s.options.selected = rope::selected_keys(
             s.selected.data(), {.queries = s.e.queries, .key_heads = s.e.kv_heads, .keys = keys});
       }},
  };
  return all;
}

/// All options of a call of attention with queries of T and keys and values of C: the options above, and
/// narrow products if these types have them.
template <class T, class C>
std::vector<option> options_of_channels() {
  using rope::product_precision;
  std::vector<option> all = all_options();
  const auto add = [&](const char* name, product_precision products) {
    all.push_back({name, [=](features::setting& s, std::mt19937&) { s.options.products = products; }});
  };
  if (std::is_same_v<T, Eigen::bfloat16>) add("products in bfloat16", product_precision::bfloat16);
  if (std::is_same_v<C, std::int8_t>) add("products of integers", product_precision::integers);
  return all;
}

/// Which fields differ from their defaults. A new field stops the compilation here: add a row for it above.
std::array<bool, 20> fields_of(const rope::attention_options& options) {
  const auto& [scale, causal, window, softcap, sinks, sink_logits, bias, mask, query_positions, key_positions,
               query_counts, key_counts, query_offsets, key_offsets, dropout, dropout_seed, products,
               log_sum_exp, key_ranges, selected, queries_are_rotated] = options;
  static_cast<void>(queries_are_rotated);  // only for calls with a cache: tests/cache/attention.test.cpp
  return {scale != 0,
          !causal,
          window != 0,
          softcap != 0,
          sinks != 0,
          !sink_logits.empty(),
          static_cast<bool>(bias),
          static_cast<bool>(mask),
          !query_positions.empty(),
          !key_positions.empty(),
          !query_counts.empty(),
          !key_counts.empty(),
          !query_offsets.empty(),
          !key_offsets.empty(),
          dropout != 0,
          dropout_seed != 0,
          products != rope::product_precision::full,
          !log_sum_exp.empty(),
          !key_ranges.empty(),
          static_cast<bool>(selected)};
}

/// The error of one call, as a multiple of the allowed error: of outputs, and of log-sum-exps.
struct errors {
  double out, log_sum;
};

/// The tested types: queries of T, keys and values of C.
template <class T, class C>
struct storage {
  static std::vector<option> options() { return options_of_channels<T, C>(); }

  static errors of_call(const features::setting& s, std::mt19937& generator) {
    if constexpr (std::is_same_v<C, std::int8_t>)
      return of_integers(s, generator);
    else
      return of_floats(s, generator);
  }

 private:
  static errors of_floats(const features::setting& s, std::mt19937& generator) {
    operands x = random_operands<T>(generator, s.e);
    x.k = random<C>(generator, x.k);
    x.v = random<C>(generator, x.v);
    const auto k = stored<C>(x.k, axes::bhsd), v = stored<C>(x.v, axes::bhsd);
    features::result exact = features::definition(s, x);
    if (s.options.products == rope::product_precision::bfloat16)
      narrow_products::add_bfloat16_weights(s, x, exact);
    return of_output(s, x.q, exact, view(k, x.k, axes::bhsd), view(v, x.v, axes::bhsd));
  }

  static errors of_integers(const features::setting& s, std::mt19937& generator) {
    const narrow_products::integer_operands x(generator, s.e);
    const bool narrow = s.options.products == rope::product_precision::integers;
    features::result exact =
        features::definition(s, narrow ? x.numbers() : operands{x.q, x.k.numbers(), x.v.numbers()});
    if (narrow) narrow_products::add_integer_weights(s, x, exact);
    const quantized::memory k(x.k, axes::bhsd, axes::bhsd), v(x.v, axes::bhsd, axes::bhsd);
    return of_output(s, x.q, exact, k.view(), v.view());
  }

  template <class Heads>
  static errors of_output(const features::setting& s, const tensor& queries, const features::result& exact,
                          const Heads& keys, const Heads& values) {
    std::vector<double> sums(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads));
    const tensor shape(s.e.batch, s.e.queries, s.e.heads, s.e.value_dim, unwritten);
    const auto q = stored<T>(queries);
    std::vector<T> out = stored<T>(shape);
    rope::attention(view(q, queries), keys, values, view(out, shape), s.with(sums));
    return {features::out_error<T>(exact, loaded(out, shape)), features::log_sum_error<T>(exact, sums)};
  }
};

}  // namespace

TEST_CASE("the bounds of attention are tested for every option", "[attention]") {
  std::mt19937 generator(172);
  std::vector<double> sums(1);
  std::array<bool, 20> seen = {};
  for (const option& one : options_of_channels<Eigen::bfloat16, Eigen::bfloat16>()) {
    features::setting s;
    s.e = {1, 2, 150, 4, 2, 40, 24};
    one.put(s, generator);
    const auto set = fields_of(s.with(sums));  // every row requests the log-sum-exp
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = seen[i] || set[i];
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    CAPTURE(i);
    CHECK(seen[i]);
  }
}

TEMPLATE_TEST_CASE("bounds of attention are at most 20 times the errors that occur, for every option",
                   "[attention]", (storage<float, float>), (storage<double, double>),
                   (storage<Eigen::half, Eigen::half>), (storage<Eigen::bfloat16, Eigen::bfloat16>),
                   (storage<float, Eigen::half>), (storage<float, Eigen::bfloat16>),
                   (storage<float, std::int8_t>)) {
  const std::uint32_t seed = 171;
  std::mt19937 generator(seed);
  for (const option& one : TestType::options()) {
    CAPTURE(seed, one.name);
    double log_sum = 0;
    for (const long queries : {2L, 70L}) {  // decoding, and a prefill
      CAPTURE(queries);
      double out = 0;
      for (const long keys : {150L, 1300L}) {
        if (testing::is_emulated && keys > 1000) continue;
        features::setting s;
        s.e = {1, queries, keys, 4, 2, 40, 24};
        one.put(s, generator);
        const auto [of_out, of_log_sum] = TestType::of_call(s, generator);
        out = std::max(out, of_out);
        log_sum = std::max(log_sum, of_log_sum);
      }
      CHECK(out <= 1);
      CHECK(out > 0.05);
    }
    CHECK(log_sum <= 1);
    CHECK(log_sum > 0.05);
  }
}
