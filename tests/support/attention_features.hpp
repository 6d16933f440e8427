// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ATTENTION_FEATURES_HPP
#define ROPE_TESTS_ATTENTION_FEATURES_HPP

/// Every option of attention together, drawn at random, and its definition in long double loops that share no
/// code with the library (except which entries dropout keeps, which is part of its interface).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <rope/attention/dropout.hpp>
#include <rope/attention/options.hpp>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_reference.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace features {

using attention_call::extents;
using attention_call::operands;
using reference::tensor;
using list = std::vector<std::int64_t>;

/// A call's options, with the memory that they refer to.
struct setting {
  extents e;
  rope::attention_options options;
  list query_positions, key_positions, query_counts, key_counts, query_offsets, key_offsets;
  std::vector<float> sink_logits, bias;
  std::unique_ptr<bool[]> mask;
  std::vector<rope::key_range> key_ranges;
  std::vector<std::int64_t> selected;          // lists of selected keys, in memory order
  std::vector<std::int32_t> selected_words;    // the same, if the call reads integers of 32 bits
  std::vector<std::vector<char>> is_selected;  // [batch * kv_heads * queries][keys], if keys are selected

  rope::attention_options with(std::span<double> log_sum_exp) const {
    rope::attention_options result = options;
    result.log_sum_exp = log_sum_exp;
    return result;
  }
};

class dice {
 public:
  explicit dice(std::uint32_t seed) : generator_(seed) {}
  std::mt19937& generator() { return generator_; }
  long up_to(long n) { return static_cast<long>(generator_() % static_cast<unsigned long>(n + 1)); }
  bool one_in(long n) { return up_to(n - 1) == 0; }

 private:
  std::mt19937 generator_;
};

/// `parts` non-negative numbers that add up to `total`, as offsets.
template <class Dice>
list offsets(Dice& d, long parts, long total) {
  list result = {0, total};
  for (long i = 1; i < parts; ++i) result.push_back(d.up_to(total));
  std::sort(result.begin(), result.end());
  return result;
}

/// The largest number of queries and channels of a setting.
struct most {
  long queries = 150, dim = 41;
};

/// \param d        a dice, or an object with up_to(n), one_in(n) and generator()() like one
/// \param longest  number of keys. Above 300 there are few queries, as in decoding
template <class Dice>
setting draw(Dice& d, long longest = 300, const most& limits = {}) {
  setting s;
  const long kv_heads = 1 + d.up_to(2), heads = kv_heads * (1 + d.up_to(4));
  s.e = {1 + d.up_to(1),
         longest > 300 || d.one_in(3) ? 1 + d.up_to(3) : d.up_to(limits.queries),
         d.up_to(longest),
         heads,
         kv_heads,
         1 + d.up_to(limits.dim - 1),
         1 + d.up_to(limits.dim - 1)};
  const auto [batch, queries, keys, h, kv, dim, value_dim] = s.e;
  auto& o = s.options;
  o.scale = d.one_in(2) ? 0 : 0.1 * static_cast<double>(d.up_to(10)) - 0.5;
  o.causal = !d.one_in(3);
  o.window = d.one_in(2) ? 1 + d.up_to(keys) : 0;
  o.sinks = d.one_in(2) ? d.up_to(9) : 0;
  o.softcap = d.one_in(4) ? 1.5 : 0;
  if (d.one_in(4)) o.dropout = 0.25, o.dropout_seed = d.generator()();
  if (d.one_in(3)) {
    for (long i = 0; i < heads; ++i) s.sink_logits.push_back(0.5f * static_cast<float>(d.up_to(6)) - 2);
    o.sink_logits = s.sink_logits;
  }
  const auto extent = [&](long n) { return d.one_in(3) ? 1 : n; };
  if (d.one_in(3)) {
    const long b = extent(batch), hs = extent(heads), q = extent(queries), k = extent(keys);
    for (long i = 0; i < b * hs * q * k; ++i)
      s.bias.push_back(d.one_in(9) ? std::numeric_limits<float>::lowest()
                                   : 0.25f * static_cast<float>(d.up_to(8)) - 1);
    s.bias.push_back(0);
    o.bias = rope::score_matrix(s.bias.data(), b, hs, q, k);
  }
  if (d.one_in(3)) {
    const long b = extent(batch), hs = extent(heads), q = extent(queries), k = extent(keys);
    s.mask = std::make_unique<bool[]>(static_cast<std::size_t>(b * hs * q * k + 1));
    for (long i = 0; i < b * hs * q * k; ++i) s.mask[static_cast<std::size_t>(i)] = !d.one_in(4);
    o.mask = rope::score_matrix(s.mask.get(), b, hs, q, k);
  }
  switch (d.up_to(4)) {
    case 0:  // listed positions, contiguous or not, shared or not
      if (d.one_in(2)) {
        const long rows = d.one_in(2) ? 1 : batch;
        for (long i = 0; i < rows * queries; ++i) s.query_positions.push_back(d.up_to(2 * keys + 4) - 3);
        o.query_positions = s.query_positions;
      }
      {
        const long rows = d.one_in(2) ? 1 : batch, kind = d.up_to(2), offset = d.up_to(keys),
                   start = d.up_to(9) - 3;
        for (long i = 0; i < rows; ++i)
          for (long j = 0; j < keys; ++j)
            s.key_positions.push_back(kind == 0   ? start + i + j
                                      : kind == 1 ? (j + offset) % std::max(1L, keys) + start
                                                  : d.up_to(2 * keys));
        o.key_positions = s.key_positions;
      }
      break;
    case 1:
      for (long b = 0; b < batch; ++b) s.key_counts.push_back(d.up_to(keys));
      o.key_counts = s.key_counts;
      // Rows with fewer keys than queries have padding among their queries too.
      for (long b = 0; b < batch; ++b)
        s.query_counts.push_back(
            d.up_to(std::min(queries, static_cast<long>(s.key_counts[static_cast<std::size_t>(b)]))));
      if (d.one_in(2) || *std::min_element(s.key_counts.begin(), s.key_counts.end()) < queries)
        o.query_counts = s.query_counts;
      else
        s.query_counts.clear();
      break;
    case 2:
      if (batch == 1) {
        const long parts = 1 + d.up_to(4);
        s.query_offsets = offsets(d, parts, queries);
        s.key_offsets = queries == keys && d.one_in(2) ? s.query_offsets : offsets(d, parts, keys);
        o.query_offsets = s.query_offsets;
        if (queries != keys || !d.one_in(2)) o.key_offsets = s.key_offsets;
        if (o.key_offsets.empty()) s.key_offsets = s.query_offsets;
      }
      break;
    default:
      break;
  }
  // The library counts no query before key 0: such positions are listed, and no segment has more queries than
  // keys.
  const bool is_counted = s.query_positions.empty() && s.key_counts.empty() && queries > keys;
  for (std::size_t part = 0; part + 1 < s.query_offsets.size(); ++part)
    if (const long seen = s.key_offsets[part + 1] - s.key_offsets[part];
        seen > 0 && s.query_offsets[part + 1] - s.query_offsets[part] > seen) {
      for (std::size_t n = 0; n < s.query_offsets.size() && queries <= keys; ++n)
        s.query_offsets[n] = s.key_offsets[n] * queries / std::max(1L, keys);
      if (queries > keys)
        s.query_offsets.clear(), s.key_offsets.clear(), o.query_offsets = o.key_offsets = {};
    }
  if (is_counted && s.query_offsets.empty() && keys > 0) {
    for (long i = 0; i < queries; ++i) s.query_positions.push_back(keys - queries + i);
    o.query_positions = s.query_positions;
  }
  return s;
}

/// Replaces causality, window and sinks of a setting by a range of keys for each query, some of them empty,
/// in one list for all rows or in one for each.
template <class Dice>
void give_ranges(Dice& d, setting& s) {
  s.options.window = s.options.sinks = 0;
  for (long n = (d.one_in(2) ? 1 : s.e.batch) * s.e.queries; n > 0; --n) {
    const long first = d.up_to(s.e.keys);
    s.key_ranges.push_back({first, d.one_in(4) ? s.e.keys - first : d.up_to(s.e.keys - first)});
  }
  s.options.key_ranges = s.key_ranges;
}

/// Lists of selected keys, some of them empty or shorter than others, for all rows or each, and for all key
/// heads or each. The lists of padding may contain anything.
template <class Dice>
void give_selected(Dice& d, setting& s) {
  const auto [batch, queries, keys, heads, kv_heads, dim, value_dim] = s.e;
  if (queries == 0 || batch == 0) return;
  s.options.dropout = 0;
  const long rows = d.one_in(2) ? 1 : batch, lists = d.one_in(2) ? 1 : kv_heads,
             length = 1 + d.up_to(d.one_in(3) ? keys + 2 : std::min(keys, 20L));
  const bool is_wide = d.one_in(2);
  const auto count_of = [](const list& counts, long b, long all) {
    return counts.empty() ? all : static_cast<long>(counts[static_cast<std::size_t>(b)]);
  };
  s.is_selected.assign(static_cast<std::size_t>(batch * kv_heads * queries),
                       std::vector<char>(static_cast<std::size_t>(keys)));
  for (long r = 0; r < rows; ++r)
    for (long i = 0; i < queries; ++i)
      for (long kv = 0; kv < lists; ++kv) {
        long available = keys;
        bool is_padding = true;
        for (long b = r; b < (rows == 1 ? batch : r + 1); ++b) {
          if (i >= count_of(s.query_counts, b, queries)) continue;
          is_padding = false;
          available = std::min(available, count_of(s.key_counts, b, keys));
        }
        std::vector<long> order(static_cast<std::size_t>(available));
        for (std::size_t j = 0; j < order.size(); ++j) {
          order[j] = static_cast<long>(j);
          std::swap(order[j], order[d.generator()() % (j + 1)]);
        }
        const long count =
            is_padding ? 0 : std::min({available, length, d.up_to(9) == 0 ? 0 : d.up_to(keys)});
        for (long n = 0; n < length; ++n) {
          s.selected.push_back(is_padding   ? keys + 7
                               : n < count  ? order[static_cast<std::size_t>(n)]
                               : n == count ? -1
                                            : keys + 9);  // after the end of the list
          for (long b = r; n < count && b < (rows == 1 ? batch : r + 1); ++b)
            for (long h = kv; h < (lists == 1 ? kv_heads : kv + 1); ++h)
              s.is_selected[static_cast<std::size_t>((b * kv_heads + h) * queries + i)]
                           [static_cast<std::size_t>(order[static_cast<std::size_t>(n)])] = 1;
        }
      }
  const rope::selected_shape shape = {.queries = rows * queries, .key_heads = lists, .keys = length};
  s.selected_words.assign(s.selected.begin(), s.selected.end());
  s.options.selected = is_wide ? rope::selected_keys(s.selected.data(), shape)
                               : rope::selected_keys(s.selected_words.data(), shape);
}

/// Position of a query and of a key, and whether the two belong to the same sequence.
struct place {
  long query, key;
  bool together;
};

inline place place_of(const setting& s, long b, long i, long j) {
  if (!s.query_offsets.empty()) {
    for (std::size_t part = 0; part + 1 < s.query_offsets.size(); ++part) {
      const long q0 = s.query_offsets[part], q1 = s.query_offsets[part + 1], k0 = s.key_offsets[part],
                 k1 = s.key_offsets[part + 1];
      if (i >= q0 && i < q1) return {(k1 - k0) - (q1 - q0) + (i - q0), j - k0, j >= k0 && j < k1};
    }
    return {0, 0, false};
  }
  const long count = s.key_counts.empty() ? s.e.keys : s.key_counts[static_cast<std::size_t>(b)];
  const long asking = s.query_counts.empty() ? s.e.queries : s.query_counts[static_cast<std::size_t>(b)];
  const auto listed = [&](const list& of, long tokens, long t) {
    return static_cast<long>(
        of[static_cast<std::size_t>(static_cast<long>(of.size()) == tokens ? t : b * tokens + t)]);
  };
  return {s.query_positions.empty() ? count - asking + i : listed(s.query_positions, s.e.queries, i),
          s.key_positions.empty() ? j : listed(s.key_positions, s.e.keys, j), j < count && i < asking};
}

inline float bias_of(const setting& s, long b, long h, long i, long j) {
  const auto& v = s.options.bias;
  if (!v) return 0;
  const auto pick = [](long extent, long at) { return extent == 1 ? 0 : at; };
  return s.bias[static_cast<std::size_t>(
      ((pick(v.batch, b) * v.heads + pick(v.heads, h)) * v.queries + pick(v.queries, i)) * v.keys +
      pick(v.keys, j))];
}

inline bool sees(const setting& s, long b, long h, long i, long j) {
  const auto& o = s.options;
  const place p = place_of(s, b, i, j);
  if (!p.together) return false;
  if (!s.is_selected.empty() && !s.is_selected[static_cast<std::size_t>(
                                    (b * s.e.kv_heads + h / (s.e.heads / s.e.kv_heads)) * s.e.queries + i)]
                                              [static_cast<std::size_t>(j)])
    return false;
  if (!s.key_ranges.empty()) {
    const bool shared = static_cast<long>(s.key_ranges.size()) == s.e.queries;
    const rope::key_range r = s.key_ranges[static_cast<std::size_t>(shared ? i : b * s.e.queries + i)];
    if (j < r.first || j >= r.first + r.count) return false;
  } else if (o.causal && p.key > p.query) {
    return false;
  }
  if (o.window > 0 && testing::abs(p.query - p.key) >= o.window && !(p.key >= 0 && p.key < o.sinks))
    return false;
  if (bias_of(s, b, h, i, j) < -1e30f) return false;
  if (!o.mask) return true;
  const auto pick = [](long extent, long at) { return extent == 1 ? 0 : at; };
  return s.mask[static_cast<std::size_t>(
      ((pick(o.mask.batch, b) * o.mask.heads + pick(o.mask.heads, h)) * o.mask.queries +
       pick(o.mask.queries, i)) *
          o.mask.keys +
      pick(o.mask.keys, j))];
}

/// The results of attention for one setting, [batch, queries, heads, ...].
struct result {
  tensor out;
  std::vector<double> log_sum_exp;  // no_keys if no key is visible
  std::vector<double> weights;      // [batch, heads, queries, keys]
  // The standard deviations of each in units of u, see rounding.hpp.
  std::vector<double> out_deviation, log_sum_deviation, weight_deviation;
  double keys;
};

/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
result definition(const setting& s, const operands& x) {
  const auto [batch, queries, keys, heads, kv_heads, dim, value_dim] = s.e;
  const auto& o = s.options;
  result r = {tensor(batch, queries, heads, value_dim), {}, {}, {}, {}, {}, static_cast<double>(keys)};
  r.log_sum_exp.resize(static_cast<std::size_t>(batch * queries * heads));
  r.weights.resize(static_cast<std::size_t>(batch * heads * queries * keys));
  r.out_deviation.resize(r.out.values.size());
  r.log_sum_deviation.resize(r.log_sum_exp.size());
  r.weight_deviation.resize(r.weights.size());
  reference::query_errors errors(static_cast<std::size_t>(value_dim));
  std::vector<double> variance(static_cast<std::size_t>(keys));
  const double n = r.keys, depth = static_cast<double>(dim);
  const testing::wide scale =
      o.scale != 0 ? static_cast<testing::wide>(o.scale) : 1 / testing::sqrt(static_cast<testing::wide>(dim));
  const rope::dropout_mask dropout(o.dropout, o.dropout_seed);
  std::vector<testing::wide> score(static_cast<std::size_t>(keys)), part(score.size());
  std::vector<char> seen(score.size());
  for (long b = 0; b < batch; ++b)
    for (long h = 0; h < heads; ++h)
      for (long i = 0; i < queries; ++i) {
        const long kv = h / (heads / kv_heads);
        const bool padding = !s.query_counts.empty() && i >= s.query_counts[static_cast<std::size_t>(b)];
        const bool has_sink = !s.sink_logits.empty() && !padding;
        const testing::wide sink =
            has_sink ? static_cast<testing::wide>(s.sink_logits[static_cast<std::size_t>(h)]) : 0;
        bool any = has_sink;
        testing::wide largest = sink;
        for (long j = 0; j < keys; ++j) {
          seen[static_cast<std::size_t>(j)] = sees(s, b, h, i, j);
          if (!seen[static_cast<std::size_t>(j)]) continue;
          testing::wide sum = 0;
          reference::exact_score exact;
          for (long c = 0; c < dim; ++c) {
            const double query = x.q(b, i, h, c), key = x.k(b, j, kv, c), product = query * key;
            sum += static_cast<testing::wide>(query) * key;
            exact.squares += product * product;
          }
          exact.squares *= static_cast<double>(scale * scale);
          sum *= scale;
          exact.products = static_cast<double>(sum);
          if (o.softcap > 0) sum = o.softcap * testing::tanh(sum / o.softcap);
          exact.capped = static_cast<double>(sum);
          exact.bias = static_cast<double>(bias_of(s, b, h, i, j));
          sum += static_cast<testing::wide>(bias_of(s, b, h, i, j));
          score[static_cast<std::size_t>(j)] = sum;
          variance[static_cast<std::size_t>(j)] = reference::variance_of_score(exact, depth, o.softcap);
          largest = any ? (std::max)(largest, sum) : sum;
          any = true;
        }
        testing::wide total = has_sink ? testing::exp(sink - largest) : 0;
        for (std::size_t j = 0; j < score.size(); ++j) {
          part[j] = seen[j] ? testing::exp(score[j] - largest) : 0;
          total += part[j];
        }
        r.log_sum_exp[static_cast<std::size_t>((b * queries + i) * heads + h)] =
            any ? static_cast<double>(largest + testing::log(total)) : rope::attention_options::no_keys;
        const testing::wide kept = 1 - static_cast<testing::wide>(o.dropout);
        errors.start();
        if (has_sink) {
          const auto distance = static_cast<double>(largest - sink);
          errors.add_without_value(
              static_cast<double>(testing::exp(sink - largest) / total),
              static_cast<double>(sink * sink) + reference::variance_of_exp(distance, n));
        }
        for (long j = 0; j < keys; ++j) {
          if (!seen[static_cast<std::size_t>(j)]) continue;
          const place p = place_of(s, b, i, j);
          const testing::wide distance = largest - score[static_cast<std::size_t>(j)],
                              weight = part[static_cast<std::size_t>(j)] / total;
          double& error = variance[static_cast<std::size_t>(j)];
          error += reference::variance_of_exp(static_cast<double>(distance), n);
          part[static_cast<std::size_t>(j)] = weight / kept;
          if (o.dropout > 0 && !dropout.keeps(b, h, p.query, p.key)) {
            part[static_cast<std::size_t>(j)] = 0;
            errors.add_without_value(static_cast<double>(weight), error);
            continue;
          }
          const auto at = static_cast<std::size_t>(((b * heads + h) * queries + i) * keys + j);
          r.weights[at] = static_cast<double>(weight / kept);
          r.weight_deviation[at] = r.weights[at] * std::sqrt(error);
          errors.add(static_cast<double>(weight), error, [&](std::size_t c) {
            return x.v(b, j, kv, static_cast<long>(c)) / static_cast<double>(kept);
          });
        }
        const auto query = static_cast<std::size_t>((b * queries + i) * heads + h);
        r.log_sum_deviation[query] = errors.log_sum(n);
        for (long j = 0; j < keys; ++j) {  // a weight has the error of the sum as well
          const auto at = static_cast<std::size_t>(((b * heads + h) * queries + i) * keys + j);
          r.weight_deviation[at] += r.weights[at] * errors.log_sum(n);
        }
        for (long c = 0; c < value_dim; ++c) {
          testing::wide exact = 0;
          for (long j = 0; j < keys; ++j)
            if (seen[static_cast<std::size_t>(j)])
              exact += part[static_cast<std::size_t>(j)] * x.v(b, j, kv, c);
          const auto sum = static_cast<double>(exact);
          r.out(b, i, h, c) = sum;
          r.out_deviation[query * static_cast<std::size_t>(value_dim) + static_cast<std::size_t>(c)] =
              errors.output(static_cast<std::size_t>(c), sum, n);
        }
      }
  return r;
}

/// The largest errors of attention for randomly drawn operands, as multiples of the allowed errors
/// (rounding.hpp).
template <class T>
double out_error(const result& exact, const tensor& got) {
  return reference::worst_deviation<T, attention_call::arithmetic<T>>(got.values, exact.out.values,
                                                                      exact.out_deviation, exact.keys);
}
/// For channels of type T. The sums themselves are doubles.
template <class T>
double log_sum_error(const result& exact, const std::vector<double>& got) {
  return reference::worst_deviation<double, attention_call::arithmetic<T>>(
      got, exact.log_sum_exp, exact.log_sum_deviation, exact.keys);
}
template <class A>
double weight_error(const result& exact, const std::vector<A>& got) {
  return reference::worst_deviation<A, A>({got.begin(), got.end()}, exact.weights, exact.weight_deviation,
                                          exact.keys);
}

/// Bounds of the arithmetic type A for any operands, as in attention_bound of the plain reference, plus the
/// errors of the bias (at most B) and the sinks: the largest score grows by their size, and a bias adds its
/// own rounding, that of its product with log2(e) and that of the sum.
template <class A>
struct bounds {
  double score, weight, out;

  bounds(const setting& s, const operands& x) {
    const auto u = static_cast<double>(tolerance::unit_roundoff<A>());
    const auto dim = static_cast<double>(s.e.dim), n = static_cast<double>(s.e.keys);
    const double scale = s.options.scale != 0 ? testing::abs(s.options.scale) : 1 / testing::sqrt(dim);
    const double products = scale * dim * x.q.largest() * x.k.largest();
    const double added = (s.options.bias ? 1.0 : 0.0) + (s.sink_logits.empty() ? 0.0 : 2.0);
    score = 1.01 * u * ((dim + 3 + (s.options.softcap > 0 ? 19 : 0)) * products + 4 * added);
    weight = 1.01 * (2 * score + u * (4 * (products + added) + 5 * (reference::tiles_of_sum(n) + 1))) /
             (1 - s.options.dropout);
    out = x.v.largest() *
              (2 * weight + 1.01 * u * (2 * reference::roundings_of_sum(n) + 4) / (1 - s.options.dropout)) +
          2 * (n + 1) * static_cast<double>(std::numeric_limits<A>::min());
  }
};

}  // namespace features

#endif  // ROPE_TESTS_ATTENTION_FEATURES_HPP
