// The classic mistakes with rotary embeddings, each in a few lines of code, with its output and with what
// rope does instead. Outputs belong to the last of 48 tokens, compared with attention by the formula. The
// error of a mistake is far larger than rounding, and the error of rope is rounding only. Public reports are
// named if there are any. Mistakes that do not compile are in tests/compile_fail/.

#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "by_the_formula.hpp"

namespace {

using namespace formula;
using rope::half_split;
using rope::Index;

constexpr Index dim = 64, tokens = 48, all = tokens * dim;

// Channels are 1 and -1, in queries 2 and -2, so that |q| |k| / sqrt(dim) is 16.
channels twice(channels x) {
  for (float& channel : x) channel *= 2;
  return x;
}
const channels query = twice(vector_of("query", dim, 1));
const channels keys = vector_of("keys", all, 1), values = vector_of("values", all, 1);
const rope::frequency_table<float> table(rope::frequencies(dim), tokens);

rope::head_view<const float> heads(const channels& x, Index count = 1) {
  return rope::thd(x.data(), static_cast<Index>(x.size()) / dim / count, count, dim);
}

/// Copies of heads, rotated at their positions.
template <class Layout = half_split, class Positions>
channels rotated(channels x, const rope::frequency_table<float>& by, const Positions& positions) {
  rope::rotate<Layout>(rope::thd(x.data(), static_cast<Index>(x.size()) / dim, 1, dim), by, positions);
  return x;
}

/// Attention of queries and keys that are already rotated.
channels attend(const channels& q, const channels& k, const channels& v = values,
                const rope::attention_options& options = {}) {
  channels out(q.size());
  rope::attention(heads(q), heads(k), heads(v), rope::thd(out.data(), heads(q).tokens, 1, dim), options);
  return out;
}

/// The output of the last token by the formula: the values of all tokens, weighted by e^score.
std::vector<double> by_formula(const speeds& speed = speeds_of(dim, 10000), const float* q = query.data(),
                               const float* k = keys.data(), const float* v = values.data(), Index step = dim,
                               double factor = 1) {
  std::vector<double> scores, out(dim);
  for (Index t = 0; t < tokens; ++t)
    scores.push_back(factor * score(q, k + t * step, speed, real(tokens - 1 - t)) / 8);
  const std::vector<double> weights = softmax(scores);
  for (Index t = 0; t < tokens; ++t)
    for (Index c = 0; c < dim; ++c)
      out[static_cast<std::size_t>(c)] += weights[static_cast<std::size_t>(t)] * real(v[t * step + c]);
  return out;
}

/// The largest difference of an output from the formula.
double off(const channels& out, const std::vector<double>& expected = by_formula()) {
  double largest = 0;
  for (std::size_t c = 0; c < expected.size(); ++c) compare(largest, real(out[c]), expected[c]);
  return largest;
}

bool all_true = true;

/// The message with which rope rejects a call.
std::string refusal(const auto& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return std::string("throws \"") + error.what() + '"';
  }
  all_true = false;
  return "FAILED: was accepted";
}

/// One mistake.
///
/// \param wrong  the error of the mistake, which must be more than `least`
/// \param right  the error of rope, which must be rounding
void show(const char* mistake, const char* reported, double wrong, double least, double right,
          const std::string& instead) {
  // A score is at most 16, or 1.3 times 16 with YaRN. It has a rounding for each of its products, and the
  // roundings of the rotations and of YaRN's factor. A weight has twice that relative error. The weighted sum
  // of values, none above 1, adds a rounding for each token.
  const double bound = 2 * 1.3 * 16 * (score_bound + (dim + 2) * unit) + tokens * unit;
  const bool holds = wrong > least && right <= bound;
  std::printf("\n%-66s %8.1e %10.1e%s\n", mistake, wrong, right, holds ? "" : "  FAILED");
  if (*reported != '\0') std::printf("    reported: %s\n", reported);
  std::printf("    rope: %s\n", instead.c_str());
  all_true = all_true && holds;
}

void wrong_pairing() {
  // In these weights, a pair is channels 2i and 2i + 1, as in Meta's release of Llama.
  const auto as_released = [](const channels& x) {
    channels y(x.size());
    for (std::size_t c = 0; c < x.size(); ++c)
      y[c / dim * dim + (c % dim < dim / 2 ? 2 * (c % dim) : 2 * (c % dim) - dim + 1)] = x[c];
    return y;
  };
  const channels q = as_released(query), k = as_released(keys);
  show("weights of one layout rotated in the other", "huggingface/transformers#25199",
       off(attend(rotated<half_split>(q, table, tokens - 1), rotated<half_split>(k, table, 0))), 0.1,
       off(attend(rotated<rope::interleaved>(q, table, tokens - 1), rotated<rope::interleaved>(k, table, 0))),
       "rotate(q, table) does not compile: \"name the layout of the channel pairs\"; there is no default");
}

void rotated_twice() {
  rope::kv_cache<float> cache(1, 2 * tokens, 1, dim);
  cache.append<half_split>(heads(keys), heads(values), table);
  const channels rotated_keys = rotated(keys, table, 0);
  channels out(dim);
  rope::attention<half_split>(heads(query), cache, rope::thd(out.data(), 1, 1, dim), table);
  show("keys rotated before they are cached, and again when they are read", "NeuraLegion/shainet#110",
       off(attend(rotated(query, table, tokens - 1), rotated(rotated_keys, table, 0))), 0.1, off(out),
       "append<Layout> rotates keys; append of rotated keys " +
           refusal([&] { cache.append(heads(rotated_keys), heads(values)); }));
}

void half_positions() {
  std::vector<int> ids, halves;
  for (int p = 2040; p < 2040 + tokens; ++p) {
    ids.push_back(p);
    halves.push_back(static_cast<int>(static_cast<float>(Eigen::half(static_cast<float>(p)))));  // 2049: 2048
  }
  const rope::frequency_table<float> long_table(rope::frequencies(dim), 4096);
  show("positions in float16, which has no odd numbers beyond 2048", "NVIDIA/Megatron-LM#535",
       off(attend(rotated(query, long_table, halves.back()), rotated(keys, long_table, halves))), 0.1,
       off(attend(rotated(query, long_table, ids.back()), rotated(keys, long_table, ids))),
       "ids of any other type do not compile: \"positions are integers\"");
}

void forgotten_offset() {
  rope::kv_cache<float> cache(1, tokens, 1, dim);
  channels out(dim);
  for (Index t = 0; t < tokens; ++t)
    cache.append<half_split>(heads(keys).token_range(t, 1), heads(values).token_range(t, 1), table);
  rope::attention<half_split>(heads(query), cache, rope::thd(out.data(), 1, 1, dim), table);
  show("a new query rotated as if it were at position 0", "Blaizzy/mlx-vlm#1983",
       off(attend(rotated(query, table, 0), {cache.keys().data, cache.keys().data + keys.size()})), 0.1,
       off(out), "attention<Layout>(q, cache, out, table) takes the positions of tokens from the cache");
}

void mask_of_the_first_key() {
  const channels q = rotated(query, table, tokens - 1), k = rotated(keys, table, 0);
  const std::int64_t first[] = {0};
  show("a causal mask that aligns the newest query with the first key", "pytorch/pytorch#108108",
       off(attend(q, k, values, {.query_positions = first})), 0.1, off(attend(q, k)),
       "the last query is aligned with the last key, or positions are given");
}

void short_table() {
  const rope::frequency_table<float> half(rope::frequencies(dim), tokens / 2);
  std::vector<int> clamped;
  for (int t = 0; t < tokens; ++t) clamped.push_back(std::min(t, int(tokens / 2) - 1));
  show("positions beyond the table take its last row", "pegainfer-project/pegainfer#220",
       off(attend(rotated(query, half, clamped.back()), rotated(keys, half, clamped))), 0.1,
       off(attend(rotated(query, table, tokens - 1), rotated(keys, table, 0))),
       refusal([&] { rotated(keys, half, 0); }));
}

void base_of_each_length() {
  const auto table_for = [](Index length) {
    const rope::dynamic_ntk_scaling rule = {.factor = 4, .max_position = 8, .length = real(length)};
    return rope::frequency_table<float>(rope::frequencies(dim, 10000, rule), tokens);
  };
  channels stale, out(dim);
  rope::kv_cache<float> cache(1, tokens, 1, dim), raw(1, tokens, 1, dim, dim, rope::key_storage::raw);
  for (Index t = 0; t < tokens; ++t) {
    const channels key(keys.begin() + t * dim, keys.begin() + (t + 1) * dim);
    for (const float channel : rotated(key, table_for(t + 1), t)) stale.push_back(channel);
  }
  cache.append<half_split>(heads(keys).token_range(0, 9), heads(values).token_range(0, 9), table_for(9));
  raw.append(heads(keys), heads(values));
  rope::attention<half_split>(heads(query), raw, rope::thd(out.data(), 1, 1, dim), table_for(tokens));
  const std::vector<double> expected = by_formula(ntk_speeds(dim, 10000, 4.0L * tokens / 8 - 3));
  show("dynamic NTK: keys cached under the base of a shorter length", "huggingface/transformers#25104",
       off(attend(rotated(query, table_for(tokens), tokens - 1), stale), expected), 0.01, off(out, expected),
       "a cache " + refusal([&] {
         cache.append<half_split>(heads(keys).token_range(9, 1), heads(values).token_range(9, 1),
                                  table_for(10));
       }) + "; raw keys accept every table");
}

/// \param power  of YaRN's factor m in the scores. 2 is correct
void factor_of_yarn(const char* mistake, const char* reported, double power) {
  const rope::yarn_scaling rule = {.factor = 4, .original_max_position = 4096};
  const rope::frequencies yarn(dim, 10000, rule);
  const rope::frequency_table<float> with(yarn, tokens),
      without(rope::frequencies::custom(yarn.inv_freq()), tokens);
  const double m = real(yarn_factor(4));
  const std::vector<double> expected =
      by_formula(yarn_speeds(dim, 10000, 4096, 4), query.data(), keys.data(), values.data(), dim, m * m);
  const rope::attention_options options = {.scale = std::pow(m, power) / 8};
  show(mistake, reported,
       off(attend(rotated(query, without, tokens - 1), rotated(keys, without, 0), values, options), expected),
       0.01, off(attend(rotated(query, with, tokens - 1), rotated(keys, with, 0)), expected),
       "m is in the cos and sin of the table, and attention_factor() returns it; the scale is a separate "
       "number");
}

void float_angles() {
  constexpr std::int64_t start = 1000000, last = start + tokens;
  const rope::frequencies frequencies(dim);
  const auto rounded = rope::frequency_table<float>::with_float_angles(frequencies, start, last);
  const rope::frequency_table<float> exact(frequencies, start, last);
  show("angles in float32, a million tokens into a text", "kekzl/imp#1325",
       off(attend(rotated(query, rounded, last - 1), rotated(keys, rounded, start))), 0.001,
       off(attend(rotated(query, exact, last - 1), rotated(keys, exact, start))),
       "angles are integer fractions of 2 pi; float32 angles have a name, with_float_angles");
}

void rotated_values() {
  const channels q = rotated(query, table, tokens - 1), k = rotated(keys, table, 0);
  channels out(dim);
  rope::attention<half_split>(heads(query), heads(keys), heads(values), rope::thd(out.data(), 1, 1, dim),
                              table);
  show("values rotated like keys", "", off(attend(q, k, rotated(values, table, 0))), 0.1, off(out),
       "attention<Layout>(q, k, v, out, table) rotates q and k on the way, and never v");
}

void order_of_heads() {
  const channels q = twice(vector_of("query", 4 * dim, 2)), k = vector_of("keys", 2 * all, 2),
                 v = vector_of("values", 2 * all, 2);
  // Key heads 0, 1 repeated as 0, 1, 0, 1. Queries 0, 1, 2, 3 need heads 0, 0, 1, 1.
  const auto tiled = [](const channels& x) {
    channels y;
    for (auto token = x.begin(); token != x.end(); token += 2 * dim)
      for (int copy = 0; copy < 2; ++copy) y.insert(y.end(), token, token + 2 * dim);
    return y;
  };
  channels wrong(q.size()), right(q.size());
  rope::attention<half_split>(heads(q, 4), heads(tiled(k), 4), heads(tiled(v), 4),
                              rope::thd(wrong.data(), 1, 4, dim), table);
  rope::attention<half_split>(heads(q, 4), heads(k, 2), heads(v, 2), rope::thd(right.data(), 1, 4, dim),
                              table);
  std::vector<double> expected;
  for (Index h = 0; h < 4; ++h)
    for (const double channel : by_formula(speeds_of(dim, 10000), &q[static_cast<std::size_t>(h * dim)],
                                           &k[static_cast<std::size_t>(h / 2 * dim)],
                                           &v[static_cast<std::size_t>(h / 2 * dim)], 2 * dim))
      expected.push_back(channel);
  show("grouped keys repeated in the order of tiles", "onnx/onnx#7274", off(wrong, expected), 0.1,
       off(right, expected), "query head h reads key head h / group, and no head is repeated in memory");
}

}  // namespace

int main() {
  std::printf("%-66s %8s %10s\n", "mistake", "off by", "rope by");
  wrong_pairing();
  rotated_twice();
  half_positions();
  forgotten_offset();
  mask_of_the_first_key();
  short_table();
  base_of_each_length();
  factor_of_yarn("YaRN: its factor m forgotten", "", 0);
  factor_of_yarn("YaRN: m in the scale of the softmax, where m^2 belongs", "", 1);
  factor_of_yarn("YaRN: m in the tables twice", "sgl-project/sglang#33558", 4);
  float_angles();
  rotated_values();
  order_of_heads();
  return all_true ? 0 : 1;
}
