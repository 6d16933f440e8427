// SPDX-License-Identifier: MIT
// Attention under any mix of its options, for every storage type, from views anywhere in memory, compared
// with its definition. Hidden keys and padding queries may contain anything.
#include <rope/attention/attention.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <rope/tables/table.hpp>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/views.hpp"
#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/heads.hpp"
#include "support/quantized.hpp"
#include "support/tolerance.hpp"

using attention_call::operands;
using features::setting;
using fuzz::bytes;
using fuzz::check;
using reference::tensor;
using rope::head_view;
using rope::Index;
using testing::guarded_memory;

namespace {

/// The choices that features::draw makes, taken from bytes. Numbers that only fill matrices come from one
/// seed.
class dice {
 public:
  explicit dice(bytes& b) : bytes_(b), generator_(static_cast<std::uint32_t>(b.bits(2))) {}
  long up_to(long n) {
    return drawn_++ < 160 ? bytes_.up_to(n)
                          : static_cast<long>(generator_() % static_cast<unsigned long>(n + 1));
  }
  bool one_in(long n) { return up_to(n - 1) == 0; }
  std::mt19937& generator() { return generator_; }

 private:
  bytes& bytes_;
  std::mt19937 generator_;
  int drawn_ = 0;
};

template <class T>
using arithmetic = attention_call::arithmetic<T>;

/// A tensor in memory whose surroundings must not be read.
template <class T>
struct placed {
  guarded_memory<T> memory{0};
  head_view<T> view;

  placed(bytes& b, const tensor& x) : view(fuzz::draw_view(b, memory, x.batch, x.tokens, x.heads, x.dim)) {
    testing::for_each_element(
        x, [&](long i, long t, long h, long d) { view.at(i, t, h)[d] = static_cast<T>(x(i, t, h, d)); });
    memory.before = memory.now;
  }
  head_view<const T> read_only() const { return view; }
};

/// NaN and infinities of both signs in the channels of one head.
template <class T>
void poison(const head_view<T>& x, Index b, Index t, Index h, long kind) {
  using limits = Eigen::NumTraits<T>;
  for (Index d = 0; d < x.head_dim; ++d)
    x.at(b, t, h)[d] = kind == 0             ? limits::quiet_NaN()
                       : (d + kind) % 3 == 0 ? limits::infinity()
                       : (d + kind) % 3 == 1 ? T(-limits::infinity())
                                             : limits::quiet_NaN();
}

/// Makes one thing wrong with ranges of keys.
void spoil_ranges(bytes& b, setting& s, rope::attention_options& o) {
  rope::key_range& range = s.key_ranges[static_cast<std::size_t>(b.up_to(s.e.queries - 1))];
  const bool is_read = s.query_counts.empty();
  switch (is_read ? b.up_to(4) : 3 + b.up_to(1)) {
    case 0:
      range = {-1 - b.up_to(2), 1};
      break;
    case 1:
      range.count = s.e.keys - range.first + 1 + b.up_to(2);
      break;
    case 2:
      range.count = -1 - b.up_to(2);
      break;
    case 3:
      b.coin() ? void(o.window = 1 + b.up_to(3)) : void(o.sinks = 1 + b.up_to(3));
      break;
    default:  // neither one list for all rows nor one for each
      s.key_ranges.resize(s.key_ranges.size() + 2 * static_cast<std::size_t>(s.e.queries) + 1);
  }
  o.key_ranges = s.key_ranges;
}

/// Makes one thing wrong with lists of selected keys.
void spoil_selected(bytes& b, setting& s, rope::attention_options& o) {
  rope::selected_shape shape = {o.selected.queries(), o.selected.key_heads(), o.selected.keys()};
  std::vector<std::int64_t>& list = s.selected;
  const bool is_read = s.query_counts.empty();
  switch (b.up_to(is_read ? 4 : 2)) {
    case 0:
      o.dropout = 0.5;
      break;
    case 1:
      list.resize(list.size() +
                  static_cast<std::size_t>((1 + 2 * shape.queries) * shape.key_heads * shape.keys));
      shape.queries += 1 + 2 * shape.queries;
      break;
    case 2:
      shape.key_heads = s.e.kv_heads + 2;
      list.resize(static_cast<std::size_t>(shape.queries * shape.key_heads * shape.keys));
      break;
    case 3:
      list[0] = s.e.keys + b.up_to(2);
      break;
    default:
      list[0] = -2 - b.up_to(2);
  }
  o.selected = {list.data(), shape};
}

/// Makes one thing wrong with the call, which then throws and writes nothing.
template <class T, class C>
void check_refusals(bytes& b, setting& s, head_view<const T> q, head_view<const C> k, head_view<const C> v,
                    head_view<T> out, std::vector<double>& sums, const guarded_memory<T>& written) {
  rope::attention_options o = s.with(sums);
  const auto nan = std::numeric_limits<double>::quiet_NaN(),
             infinity = std::numeric_limits<double>::infinity();
  const double numbers[] = {nan, infinity, -infinity, -1, 1e300, -1e-300};
  const std::vector<std::int64_t> odd(static_cast<std::size_t>(s.e.batch * (s.e.queries + s.e.keys) + 5), 0);
  const std::vector<float> logits(static_cast<std::size_t>(s.e.heads + 1), 0.0f);
  const std::vector<std::int64_t> beyond(static_cast<std::size_t>(s.e.batch), s.e.queries + s.e.keys + 1),
      below(static_cast<std::size_t>(s.e.batch), -1), backwards = {0, s.e.queries + 1, s.e.queries};
  const float one = 0;
  const bool seen = true;
  const bool has_elements = s.e.queries > 0;
  const bool has_spoiled_ranges = !s.key_ranges.empty() && b.coin();
  if (has_spoiled_ranges) spoil_ranges(b, s, o);
  const bool has_spoiled_lists = !has_spoiled_ranges && o.selected && b.coin();
  if (has_spoiled_lists) spoil_selected(b, s, o);
  switch (has_spoiled_ranges || has_spoiled_lists ? 28 : b.up_to(27)) {
    case 28:
      break;
    case 0:
      o.window = -1 - b.up_to(3);
      break;
    case 1:
      o.sinks = -1 - b.up_to(3);
      break;
    case 2:
      o.softcap = b.one_of(numbers);
      break;
    case 3: {
      const double scales[] = {nan, infinity, -infinity, 1e-310, -1e-310};
      o.scale = b.one_of(scales);
      break;
    }
    case 4: {
      const double shares[] = {nan, infinity, -0.25, 1, 1.5};
      o.dropout = b.one_of(shares);
      break;
    }
    case 5:
      o.sink_logits = logits;
      break;
    case 6:
      s.sink_logits.assign(static_cast<std::size_t>(s.e.heads), 0.0f);
      s.sink_logits.back() = static_cast<float>(b.coin() ? nan : infinity);
      o.sink_logits = s.sink_logits;
      break;
    case 7:
      o.query_positions = odd;
      break;
    case 8:
      o.key_positions = odd;
      break;
    case 9:
      o.key_counts = b.coin() ? beyond : below;
      break;
    case 10:
      o.query_counts = b.coin() ? beyond : below;
      break;
    case 11:
      o.key_counts = std::span(odd).first(static_cast<std::size_t>(s.e.batch) + 1);
      break;
    case 12:
      sums.assign(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads + 1), -7);
      o.log_sum_exp = sums;
      break;
    case 13:
      o.bias = rope::score_matrix(&one, s.e.batch + 1, 1, 1, 1);
      break;
    case 14:
      o.mask = rope::score_matrix(&seen, 1, 1, 1, s.e.keys + 2);
      break;
    case 15:
      o.query_offsets = {};
      o.key_offsets = backwards;
      break;
    case 16:
      o.query_offsets = backwards;
      break;
    case 17:
      o.query_offsets = odd;  // ends with 0, and there are queries or other lists
      o.key_offsets = std::span(odd).first(2);
      break;
    case 18:
      q.batch += 1;
      break;
    case 19:
      k.tokens += 1;
      break;
    case 20:
      v.heads += 1;
      break;
    case 21:
      q.head_dim += 1;
      break;
    case 22:
      out.head_dim += 1;
      break;
    case 23:
      out.tokens += 1;
      break;
    case 24:
      q.heads = out.heads = s.e.kv_heads + 1;
      if (s.e.kv_heads == 1) return;
      break;
    case 25:
      (b.coin() ? q.tokens : q.heads) = -1;
      break;
    case 26:
      if (!has_elements) return;
      b.coin() ? void(q.data = nullptr) : void(out.data = nullptr);
      break;
    default:
      if (s.e.keys == 0) return;
      b.coin() ? void(k.data = nullptr) : void(v.data = nullptr);
  }
  const std::vector<double> sums_before = sums;
  fuzz::rejects<std::invalid_argument>("what does not fit throws", [&] { rope::attention(q, k, v, out, o); });
  check(written.untouched() && testing::same_bits(sums, sums_before), "a call that throws writes nothing");
}

/// The positions by which attention rotates queries and keys, [batch * tokens] each.
struct rotated_positions {
  std::vector<std::int64_t> queries, keys;

  explicit rotated_positions(const setting& s) {
    for (long r = 0; r < s.e.batch; ++r) {
      for (long i = 0; i < s.e.queries; ++i) queries.push_back(features::place_of(s, r, i, 0).query);
      for (long j = 0; j < s.e.keys; ++j) {
        // The segment of a key is that of the queries to which it is visible. Without a query it is visible
        // to none.
        std::int64_t position = 0;
        for (long i = 0; i < std::max(1L, s.e.queries); ++i) {
          const auto place = features::place_of(s, r, i, j);
          if (place.together || s.query_offsets.empty()) position = place.key;
        }
        keys.push_back(position);
      }
    }
  }
};

const rope::frequency_table<float>& table_of(long rotary_dim) {
  static std::map<long, rope::frequency_table<float>> tables;
  auto at = tables.find(rotary_dim);
  if (at == tables.end())
    at = tables
             .emplace(rotary_dim,
                      rope::frequency_table<float>(rope::frequencies(rotary_dim, 50.0), -700, 1400))
             .first;
  return at->second;
}

/// Rotation while operands are read gives the bits of rotate followed by attention. 16-bit keys are converted
/// to float first.
template <class Layout, class T, class C>
void check_rotation(bytes& b, const setting& s, const operands& x) {
  const auto& table = table_of(s.e.dim / 2 * 2);
  const rotated_positions at(s);
  const placed<T> q(b, x.q);
  const placed<C> k(b, x.k), v(b, x.v);
  placed<T> got(b, tensor(x.q.batch, x.q.tokens, x.q.heads, x.v.dim)),
      expected(b, tensor(x.q.batch, x.q.tokens, x.q.heads, x.v.dim));
  std::vector<double> sums(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads)),
      expected_sums = sums;
  rope::attention<Layout>(q.read_only(), k.read_only(), v.read_only(), got.view, table, s.with(sums));
  placed<T> rotated_q(b, x.q), rotated_k(b, x.k), wide_v(b, x.v);
  if (s.e.queries > 0) rope::rotate<Layout>(rotated_q.view, table, at.queries);
  if (s.e.keys > 0) rope::rotate<Layout>(rotated_k.view, table, at.keys);
  rope::attention(rotated_q.read_only(), rotated_k.read_only(), wide_v.read_only(), expected.view,
                  s.with(expected_sums));
  check(got.memory.untouched_outside(got.view), "only the channels of the output are written");
  check(testing::same_heads(got.view, expected.view) && testing::same_bits(sums, expected_sums),
        "rotation while keys are read gives the bits of rotate and attention");
}

/// Heads as rows of a batch are the same heads in the same memory, or a refusal.
template <class C>
void check_heads_as_batch(const head_view<const C>& x, Index kv_heads) {
  const Index group = x.heads / kv_heads;
  if (x.batch > 1 && kv_heads > 1 && x.batch_stride != x.heads * x.head_stride)
    return fuzz::rejects<std::invalid_argument>("heads that are no rows throw",
                                                [&] { rope::heads_as_batch(x, kv_heads); });
  const head_view<const C> rows = rope::heads_as_batch(x, kv_heads);
  check(rows.batch == x.batch * kv_heads && rows.tokens == x.tokens && rows.heads == group &&
            rows.head_dim == x.head_dim,
        "a row has the heads of a key head");
  testing::for_each_head(x, [&](Index r, Index t, Index h) {
    check(rows.at(r * kv_heads + h / group, t, h % group) == x.at(r, t, h), "a head stays where it is");
  });
}

template <class T, class C>
void run(bytes& b) {
  dice d(b);
  const long size = d.up_to(30);
  const long longest = size == 30 ? 1100 : size >= 28 ? 140 : 12;
  const features::most limits = {longest > 12 ? 3L : size == 27 ? 40L : 5L, size == 26 ? 41L : 9L};
  setting s = features::draw(d, longest, limits);
  // No byte decides this, so that inputs of the corpus keep their meaning.
  if (d.generator()() % 4 == 0) features::give_ranges(d, s);
  if (d.generator()() % 4 == 0) features::give_selected(d, s);
  if (longest > 12 && d.up_to(1) == 0) s.e.dim = 1;
  const bool rotates = longest < 1000 && d.up_to(3) == 3;
  if (rotates) s.e.dim = s.e.dim / 2 * 2 + 2;
  static const double magnitudes[] = {1, 1, 1, 1, 0, 8, 64};
  const double magnitude = magnitudes[d.up_to(6)];
  operands x = attention_call::random_operands<C>(d.generator(), s.e);
  for (double& value : x.q.values) value *= magnitude;
  if (rotates && b.coin()) {
    b.coin() ? check_rotation<rope::half_split, T, C>(b, s, x)
             : check_rotation<rope::interleaved, T, C>(b, s, x);
    return;
  }

  placed<T> q(b, x.q);
  placed<C> k(b, x.k), v(b, x.v);
  placed<T> out(b, tensor(s.e.batch, s.e.queries, s.e.heads, s.e.value_dim, attention_call::unwritten));
  check_heads_as_batch(q.read_only(), s.e.kv_heads);
  check_heads_as_batch(k.read_only(), s.e.kv_heads);
  std::vector<double> sums(d.up_to(2) > 0 ? static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads) : 0,
                           -7);
  constexpr bool has_products = std::is_same_v<T, Eigen::bfloat16> && std::is_same_v<C, Eigen::bfloat16>;
  if (has_products && b.coin()) s.options.products = rope::product_precision::bfloat16;
  if (b.one_in(5)) return check_refusals<T, C>(b, s, q.view, k.view, v.view, out.view, sums, out.memory);

  // At most one of the poisoned keys is visible.
  const long kind = b.up_to(3), group = s.e.heads / s.e.kv_heads;
  const long bad_row = b.up_to(s.e.batch - 1), bad_key = b.up_to(s.e.keys - 1),
             bad_head = b.up_to(s.e.kv_heads - 1);
  const bool spoil_seen = b.one_in(4) && s.e.keys > 0, spoil_unseen = !b.one_in(4);
  for (long r = 0; r < s.e.batch && spoil_unseen; ++r) {
    for (long i = 0; i < s.e.queries; ++i)
      if (!s.query_counts.empty() && i >= s.query_counts[static_cast<std::size_t>(r)])
        for (long h = 0; h < s.e.heads; ++h) poison(q.view, r, i, h, kind);
    for (long h = 0; h < s.e.kv_heads; ++h)
      for (long j = 0; j < s.e.keys; ++j) {
        bool is_seen = false;
        for (long g = h * group; g < (h + 1) * group && !is_seen; ++g)
          for (long i = 0; i < s.e.queries && !is_seen; ++i) is_seen = features::sees(s, r, g, i, j);
        if (is_seen) continue;
        poison(k.view, r, j, h, kind);
        poison(v.view, r, j, h, kind);
      }
  }
  if (spoil_seen) {
    poison(k.view, bad_row, bad_key, bad_head, kind);
    poison(v.view, bad_row, bad_key, bad_head, 0);
  }

  rope::attention(q.read_only(), k.read_only(), v.read_only(), out.view, s.with(sums));
  check(out.memory.untouched_outside(out.view), "only the channels of the output are written");

  const features::result exact = features::definition(s, x);
  features::bounds<arithmetic<T>> bound(s, x);
  if (s.options.products != rope::product_precision::full)  // weights that are rounded
    bound.out += std::ldexp(1.0, -8) * x.v.largest() / (1 - s.options.dropout);
  const double near_one = static_cast<double>(tolerance::unit_roundoff<arithmetic<T>>());
  const double sum_bound =
      bound.score + bound.weight + 32 * near_one * std::max(1.0, bound.score / near_one / 8);
  testing::for_each_head(out.view, [&](Index r, Index i, Index h) {
    const bool spoiled =
        spoil_seen && r == bad_row && h / group == bad_head && features::sees(s, r, h, i, bad_key);
    const T* got = out.view.at(r, i, h);
    for (Index c = 0; c < s.e.value_dim; ++c) {
      const auto value = static_cast<double>(got[c]);
      if (spoiled) {
        check(s.options.dropout > 0 || std::isnan(value), "a NaN that is seen is seen in the result");
        continue;
      }
      const double expected = exact.out(r, i, h, c);
      const auto rounding = static_cast<double>(tolerance::ulp<T>(std::abs(expected) + bound.out) / 2);
      if (!(std::abs(value - expected) <= bound.out + rounding)) {
        std::fprintf(stderr, "out(%ld, %ld, %ld, %ld) is %.9g for %.9g, %.3g bounds off\n", long(r), long(i),
                     long(h), long(c), value, expected, std::abs(value - expected) / (bound.out + rounding));
        check(false, "a channel follows the definition");
      }
    }
    if (sums.empty() || spoiled) return;
    const auto at = static_cast<std::size_t>((r * s.e.queries + i) * s.e.heads + h);
    if (!(sums[at] == exact.log_sum_exp[at] || std::abs(sums[at] - exact.log_sum_exp[at]) <= sum_bound)) {
      std::fprintf(stderr, "log_sum_exp is %.9g for %.9g, bound %.3g\n", sums[at], exact.log_sum_exp[at],
                   sum_bound);
      check(false, "a log-sum-exp follows the definition");
    }
  });
}

/// Attention to integers with scales is attention to the numbers that they represent, for any scales of
/// hidden keys.
void run_quantized(bytes& b) {
  dice d(b);
  const long longest = d.one_in(8) ? 1100 : d.one_in(4) ? 140 : 12;
  setting s = features::draw(d, longest, {longest > 12 ? 3L : 40L, d.one_in(2) ? 41L : 9L});
  if (d.generator()() % 4 == 0) features::give_ranges(d, s);
  if (d.generator()() % 4 == 0) features::give_selected(d, s);
  if (d.one_in(2)) s.options.products = rope::product_precision::integers;
  operands x = attention_call::random_operands<float>(d.generator(), s.e);
  auto k = quantized::random_heads(d.generator(), s.e.batch, s.e.keys, s.e.kv_heads, s.e.dim);
  auto v = quantized::random_heads(d.generator(), s.e.batch, s.e.keys, s.e.kv_heads, s.e.value_dim);
  x.k = k.numbers();
  x.v = v.numbers();
  const double kinds[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                          1e38};
  const double kind = kinds[b.up_to(2)];
  const long group = s.e.heads / s.e.kv_heads;
  for (long r = 0; r < s.e.batch; ++r)
    for (long h = 0; h < s.e.kv_heads; ++h)
      for (long j = 0; j < s.e.keys; ++j) {
        bool is_seen = false;
        for (long g = h * group; g < (h + 1) * group && !is_seen; ++g)
          for (long i = 0; i < s.e.queries && !is_seen; ++i) is_seen = features::sees(s, r, g, i, j);
        if (!is_seen) k.scales(r, j, h, 0) = v.scales(r, j, h, 0) = kind;
      }
  const auto order = [&] { return static_cast<testing::axes>(b.up_to(2)); };
  const quantized::memory keys(k, order(), order(), b.coin()), values(v, order(), order(), b.coin());
  const placed<float> q(b, x.q);
  placed<float> out(b, tensor(s.e.batch, s.e.queries, s.e.heads, s.e.value_dim, attention_call::unwritten));
  rope::attention(q.read_only(), keys.view(), values.view(), out.view, s.options);
  check(out.memory.untouched_outside(out.view), "only the channels of the output are written");

  const features::result exact = features::definition(s, x);
  double bound = quantized::bound(s, x);
  if (s.options.products == rope::product_precision::integers) {
    // Every channel of a query and every weight times a scale has an error of half a step, of 2^-15 of the
    // largest: that times the sum of all products of a score, and per key of its tile for a sum of weighted
    // values.
    const double half_step = 1.01 * 0x1p-16, dim = static_cast<double>(s.e.dim);
    const double scale = s.options.scale != 0 ? std::abs(s.options.scale) : 1 / std::sqrt(dim);
    const double score = scale * half_step * dim * x.q.largest() * x.k.largest();
    const double largest_value = x.v.largest() * 2;  // scales of either sign within a factor of two
    bound +=
        (std::expm1(2 * score) * x.v.largest() + 128 * half_step * largest_value) / (1 - s.options.dropout);
  }
  testing::for_each_head(out.view, [&](Index r, Index i, Index h) {
    for (Index c = 0; c < s.e.value_dim; ++c) {
      const double got = static_cast<double>(out.view.at(r, i, h)[c]), expected = exact.out(r, i, h, c);
      const auto rounding = static_cast<double>(tolerance::ulp<float>(std::abs(expected) + bound) / 2);
      if (std::abs(got - expected) <= bound + rounding) continue;
      std::fprintf(stderr, "out(%ld, %ld, %ld, %ld) is %.9g for %.9g, %.3g bounds off\n", long(r), long(i),
                   long(h), long(c), got, expected, std::abs(got - expected) / (bound + rounding));
      check(false, "attention to integers is that to their numbers");
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  bytes b(data, size);
  switch (b.up_to(6)) {
    case 0:
      run<float, float>(b);
      break;
    case 1:
      run<double, double>(b);
      break;
    case 2:
      run<Eigen::half, Eigen::half>(b);
      break;
    case 3:
      run<Eigen::bfloat16, Eigen::bfloat16>(b);
      break;
    case 4:
      run<float, Eigen::half>(b);
      break;
    case 5:
      run<float, Eigen::bfloat16>(b);
      break;
    default:
      run_quantized(b);
  }
  return 0;
}
