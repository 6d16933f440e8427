// SPDX-License-Identifier: MIT
// How far the bounds of attention are from the errors that occur, for each option and each storage alone.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <rope/attention/quantized_attention.hpp>
#include <string>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/quantized.hpp"

using namespace attention_call;

namespace {

/// One option of a call, put into a setting of its extents.
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
      {"positions",
       [](setting& s, std::mt19937& generator) {
         for (long j = 0; j < s.e.keys; ++j) s.key_positions.push_back(j);
         std::shuffle(s.key_positions.begin(), s.key_positions.end(), generator);
         s.options.key_positions = s.key_positions;
       }},
      {"counts",
       [](setting& s, std::mt19937&) {
         s.key_counts = {s.e.keys - 17};
         s.options.key_counts = s.key_counts;
       }},
      {"offsets",
       [](setting& s, std::mt19937&) {
         s.query_offsets = {0, 1, s.e.queries};
         s.key_offsets = {0, 40, s.e.keys};
         s.options.query_offsets = s.query_offsets;
         s.options.key_offsets = s.key_offsets;
       }},
  };
  return all;
}

/// What is asked about: attention of T to keys and values of C.
template <class T, class C>
struct storage {
  /// The error of one call, as a multiple of what is allowed: of outputs, and of logarithms of sums.
  static std::pair<double, double> errors(const features::setting& s, std::mt19937& generator) {
    std::vector<double> sums(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads));
    tensor got(0, 0, 0, 0);
    operands x = random_operands<T>(generator, s.e);
    const tensor shape(s.e.batch, s.e.queries, s.e.heads, s.e.value_dim, unwritten);
    std::vector<T> out = stored<T>(shape);
    const auto q = stored<T>(x.q);
    if constexpr (std::is_same_v<C, std::int8_t>) {
      const auto keys = quantized::random_heads(generator, s.e.batch, s.e.keys, s.e.kv_heads, s.e.dim),
                 values =
                     quantized::random_heads(generator, s.e.batch, s.e.keys, s.e.kv_heads, s.e.value_dim);
      const quantized::memory k(keys, axes::bhsd, axes::bhsd), v(values, axes::bhsd, axes::bhsd);
      x.k = keys.numbers();
      x.v = values.numbers();
      rope::attention(view(q, x.q), k.view(), v.view(), view(out, shape), s.with(sums));
    } else {
      x.k = random<C>(generator, x.k);
      x.v = random<C>(generator, x.v);
      const auto k = stored<C>(x.k, axes::bhsd), v = stored<C>(x.v, axes::bhsd);
      rope::attention(view(q, x.q), view(k, x.k, axes::bhsd), view(v, x.v, axes::bhsd), view(out, shape),
                      s.with(sums));
    }
    const features::result exact = features::definition(s, x);
    return {features::out_error<T>(exact, loaded(out, shape)), features::log_sum_error<T>(exact, sums)};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("bounds of attention are within 20 of the errors that occur, option by option",
                   "[attention]", (storage<float, float>), (storage<double, double>),
                   (storage<Eigen::half, Eigen::half>), (storage<Eigen::bfloat16, Eigen::bfloat16>),
                   (storage<float, Eigen::half>), (storage<float, Eigen::bfloat16>),
                   (storage<float, std::int8_t>)) {
  const std::uint32_t seed = 171;
  std::mt19937 generator(seed);
  for (const option& one : all_options()) {
    CAPTURE(seed, one.name);
    double log_sum = 0;
    for (const long queries : {2L, 70L}) {  // decoded, and a prefill
      CAPTURE(queries);
      double out = 0;
      for (const long keys : {150L, 1300L}) {
        features::setting s;
        s.e = {1, queries, keys, 4, 2, 40, 24};
        one.put(s, generator);
        const auto [of_out, of_log_sum] = TestType::errors(s, generator);
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
