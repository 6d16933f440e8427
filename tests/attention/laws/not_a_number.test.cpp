// SPDX-License-Identifier: MIT
// Any NaN in q, k, v or the bias reaches exactly the queries that attend to it, on every path.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <rope/attention/attention.hpp>
#include <rope/attention/gradient.hpp>
#include <rope/attention/merge.hpp>
#include <rope/attention/weights.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/rotation/layout.hpp>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/tape.hpp"

using namespace attention_call;
using rope::half_split;
using rope::kv_cache;
using rope::ring_cache;

namespace {

/// A NaN of T: quiet or signalling, of both signs, with the lowest, the highest, all or no bits of its
/// payload.
template <class T>
T not_a_number(long kind) {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  const T infinity = Eigen::NumTraits<T>::infinity();
  bits word;
  std::memcpy(&word, &infinity, sizeof word);
  constexpr int payload = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : std::is_same_v<T, Eigen::half> ? 10 : 7;
  const auto all = static_cast<bits>((bits(1) << payload) - 1),
             quiet = static_cast<bits>(bits(1) << (payload - 1));
  const bits payloads[] = {quiet,
                           1,
                           all,
                           static_cast<bits>(quiet >> 1),
                           static_cast<bits>(quiet | 1),
                           static_cast<bits>(quiet - 1)};
  word = static_cast<bits>(word | payloads[kind / 2 % 6]);
  if (kind % 2 == 1) word = static_cast<bits>(word | bits(bits(1) << (8 * sizeof(bits) - 1)));
  T result;
  std::memcpy(static_cast<void*>(&result), &word, sizeof word);
  return result;
}
constexpr long kinds = 12;

/// The element that becomes NaN.
enum class operand { q, k, v, bias, d_out };
struct spot {
  operand in;
  long b, t, h, channel;  // of q, k, v, d_out. The entry of the bias is `t`.
};

/// The queries that a NaN reaches: those that attend to its key, or that contain it and attend to at least
/// one key.
class reach {
 public:
  reach(const features::setting& s, const spot& at) : s_(s), at_(at) {
    for (long b = 0; b < s.e.batch; ++b)
      for (long h = 0; h < s.e.heads; ++h)
        for (long i = 0; i < s.e.queries; ++i) {
          bool reached = false;
          for (long j = 0; j < s.e.keys && !reached; ++j)
            reached = holds(b, h, i, j) && features::sees(s, b, h, i, j);
          reached_.push_back(reached);
        }
  }

  bool query(long b, long h, long i) const {
    return reached_[static_cast<std::size_t>((b * s_.e.heads + h) * s_.e.queries + i)];
  }
  /// Whether key j is visible to a query that the NaN reaches.
  bool key(long b, long kv, long j) const {
    const long group = s_.e.heads / s_.e.kv_heads;
    for (long h = kv * group; h < (kv + 1) * group; ++h)
      for (long i = 0; i < s_.e.queries; ++i)
        if (query(b, h, i) && features::sees(s_, b, h, i, j)) return true;
    return false;
  }

 private:
  bool holds(long b, long h, long i, long j) const {
    const auto pick = [](long extent, long at) { return extent == 1 ? 0 : at; };
    const auto& v = s_.options.bias;
    switch (at_.in) {
      case operand::k:
      case operand::v:
        return b == at_.b && j == at_.t && h / (s_.e.heads / s_.e.kv_heads) == at_.h;
      case operand::bias:
        return ((pick(v.batch, b) * v.heads + pick(v.heads, h)) * v.queries + pick(v.queries, i)) * v.keys +
                   pick(v.keys, j) ==
               at_.t;
      default:
        return b == at_.b && i == at_.t && h == at_.h;
    }
  }

  const features::setting& s_;
  spot at_;
  std::vector<bool> reached_;  // [batch, heads, queries]
};

/// Picks a setting and an element. Returns false if the setting has no such element.
bool choose(features::dice& d, const features::setting& s, operand in, spot& at) {
  const bool of_query = in == operand::q || in == operand::d_out;
  if (s.e.queries == 0 || s.e.keys == 0 || (in == operand::bias && s.bias.size() < 2)) return false;
  at = {in, d.up_to(s.e.batch - 1), d.up_to((of_query ? s.e.queries : s.e.keys) - 1),
        d.up_to((of_query ? s.e.heads : s.e.kv_heads) - 1),
        d.up_to((in == operand::v || in == operand::d_out ? s.e.value_dim : s.e.dim) - 1)};
  if (in == operand::bias) at.t = d.up_to(static_cast<long>(s.bias.size()) - 2);
  return true;
}

/// The memory of a call in which one element is NaN.
template <class T, class C>
struct spoiled {
  std::vector<T> q, d_out;
  std::vector<C> k, v;
  std::vector<float> bias;

  spoiled(const features::setting& s, const operands& x, const tensor& g, const spot& at, long kind)
      : q(stored<T>(x.q)), d_out(stored<T>(g)), k(stored<C>(x.k)), v(stored<C>(x.v)), bias(s.bias) {
    const auto put = [&](auto& memory, const tensor& shape) {
      using X = typename std::remove_reference_t<decltype(memory)>::value_type;
      memory[attention_call::place(shape, axes::bshd, at.b, at.t, at.h, at.channel)] = not_a_number<X>(kind);
    };
    if (at.in == operand::q) put(q, x.q);
    if (at.in == operand::k) put(k, x.k);
    if (at.in == operand::v) put(v, x.v);
    if (at.in == operand::d_out) put(d_out, g);
    if (at.in == operand::bias) bias[static_cast<std::size_t>(at.t)] = not_a_number<float>(kind);
  }
};

/// Counts the numbers that should be NaN, and the NaN that should be numbers.
struct verdict {
  long missed = 0, leaked = 0;

  template <class X>
  void see(bool reached, X value) {
    const bool none = std::isnan(static_cast<double>(value));
    missed += reached && !none;
    leaked += !reached && none;
  }
};

template <class T, class C>
void check_forward(std::uint32_t seed, bool rotated) {
  features::dice dice(seed);
  const rope::frequency_table<float> table(rope::frequencies(4), -700, 3000);
  for (int draw = 0; draw < 60; ++draw) {
    CAPTURE(seed, draw);
    features::setting s = features::draw(dice, draw % 10 == 9 ? 1200 : 140);
    if (rotated) s.e.dim += 4;
    const operands x = random_operands<C>(dice.generator(), s.e);
    const tensor g(s.e.batch, s.e.queries, s.e.heads, s.e.value_dim);
    spot at{};
    const auto in = operand(draw % 4);
    if (!choose(dice, s, in, at)) continue;
    spoiled<T, C> memory(s, x, g, at, dice.up_to(kinds - 1));
    if (!memory.bias.empty())
      s.options.bias.data = (s.bias = memory.bias).data();  // a NaN does not hide a key
    std::vector<double> sums(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads));
    const tensor shape(s.e.batch, s.e.queries, s.e.heads, s.e.value_dim, unwritten);
    std::vector<T> out = stored<T>(shape);
    const auto q = view(memory.q, x.q);
    const auto k = view(memory.k, x.k), v = view(memory.v, x.v);
    if (rotated)
      rope::attention<half_split>(q, k, v, view(out, shape), table, s.with(sums));
    else
      rope::attention(q, k, v, view(out, shape), s.with(sums));
    verdict outputs, of_sums, of_weights;
    const reach reaches(s, at);
    std::vector<arithmetic<T>> weights;
    const long scores = s.e.batch * s.e.heads * s.e.queries * s.e.keys;
    if constexpr (std::is_same_v<T, C>)
      if (scores < 20000) {
        weights.resize(static_cast<std::size_t>(scores));
        if (rotated)
          rope::attention_weights<half_split>(q, k, weights, table, s.options);
        else
          rope::attention_weights(q, k, weights, s.options);
      }
    std::size_t n = 0;
    for (long b = 0; b < s.e.batch; ++b)
      for (long i = 0; i < s.e.queries; ++i)
        for (long h = 0; h < s.e.heads; ++h, ++n) {
          const bool reached = reaches.query(b, h, i);
          for (long c = 0; c < s.e.value_dim; ++c)
            outputs.see(reached && (in != operand::v || c == at.channel),
                        out[attention_call::place(shape, axes::bshd, b, i, h, c)]);
          of_sums.see(reached && in != operand::v, sums[n]);
          if (weights.empty() || in == operand::v) continue;
          const rope::dropout_mask kept(s.options.dropout, s.options.dropout_seed);
          for (long j = 0; j < s.e.keys; ++j) {
            const auto p = features::place_of(s, b, i, j);
            of_weights.see(
                reached && features::sees(s, b, h, i, j) &&
                    (s.options.dropout == 0 || kept.keeps(b, h, p.query, p.key)),
                weights[static_cast<std::size_t>(((b * s.e.heads + h) * s.e.queries + i) * s.e.keys + j)]);
          }
        }
    CAPTURE(int(in), at.b, at.t, at.h, at.channel);
    CHECK(outputs.missed == 0);
    CHECK(outputs.leaked == 0);
    CHECK(of_sums.missed == 0);
    CHECK(of_sums.leaked == 0);
    CHECK(of_weights.missed == 0);
    CHECK(of_weights.leaked == 0);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("any NaN reaches exactly the queries that attend to it", "[attention]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  check_forward<TestType, TestType>(91, false);
  check_forward<TestType, TestType>(92, true);
}

TEMPLATE_TEST_CASE("any NaN of 16-bit keys and values reaches exactly the float queries that attend to it",
                   "[attention]", Eigen::half, Eigen::bfloat16) {
  check_forward<float, TestType>(93, false);
  check_forward<float, TestType>(94, true);
}

TEMPLATE_TEST_CASE("any NaN reaches exactly the gradients of visible pairs", "[attention]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  const std::uint32_t seed = 95;
  features::dice dice(seed);
  for (int draw = 0; draw < 60; ++draw) {
    CAPTURE(seed, draw);
    features::setting s = features::draw(dice, 120);
    s.e.queries = (std::min)(s.e.queries, 60L);
    s.options.query_counts = {}, s.options.key_counts = {}, s.options.query_offsets = {},
    s.options.key_offsets = {};
    s.query_counts.clear(), s.key_counts.clear(), s.query_offsets.clear(), s.key_offsets.clear();
    s.query_positions = positions_before_keys(s.e.queries, s.e.keys);
    s.options.query_positions = s.query_positions;
    if (s.options.bias.queries > 1) s.options.bias = {}, s.bias.clear();
    if (s.options.mask.queries > 1) s.options.mask = {};
    const operands x = random_operands<T>(dice.generator(), s.e);
    const tensor g = random<T>(dice.generator(), {s.e.batch, s.e.queries, s.e.heads, s.e.value_dim});
    spot at{};
    const auto in = operand(draw % 5);
    if (!choose(dice, s, in, at)) continue;
    spoiled<T, T> memory(s, x, g, at, dice.up_to(kinds - 1));
    if (!memory.bias.empty())
      s.options.bias.data = (s.bias = memory.bias).data();  // a NaN does not hide a key
    std::vector<double> sums(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads));
    std::vector<T> out = stored<T>(g), d_q = stored<T>(x.q), d_k = stored<T>(x.k), d_v = stored<T>(x.v);
    const auto q = view(memory.q, x.q), k = view(memory.k, x.k), v = view(memory.v, x.v);
    rope::attention(q, k, v, view(out, g), s.with(sums));
    const reach reaches(s, at);
    for (const bool given : {false, true}) {
      rope::attention_options options = s.options;
      if (given) options.log_sum_exp = sums;
      rope::attention_gradient(testing::tape(q, k, v, view(out, g), view(memory.d_out, g), view(d_q, x.q),
                                             view(d_k, x.k), view(d_v, x.v)),
                               options);
      verdict of_q, of_k, of_v;
      for_each_element(x.q, [&](long b, long i, long h, long c) {
        of_q.see(reaches.query(b, h, i), d_q[attention_call::place(x.q, axes::bshd, b, i, h, c)]);
      });
      for (long b = 0; b < s.e.batch; ++b)
        for (long j = 0; j < s.e.keys; ++j)
          for (long h = 0; h < s.e.kv_heads; ++h) {
            const bool reached = reaches.key(b, h, j);
            for (long c = 0; c < s.e.dim; ++c)
              of_k.see(reached, d_k[attention_call::place(x.k, axes::bshd, b, j, h, c)]);
            // Weights do not depend on values, and a channel of the gradient of values depends on the same
            // channel of d_out only.
            for (long c = 0; c < s.e.value_dim; ++c)
              of_v.see(reached && in != operand::v && (in != operand::d_out || c == at.channel),
                       d_v[attention_call::place(x.v, axes::bshd, b, j, h, c)]);
          }
      CAPTURE(given, int(in), at.b, at.t, at.h, at.channel);
      CHECK(of_q.missed == 0);
      CHECK(of_q.leaked == 0);
      CHECK(of_k.missed == 0);
      CHECK(of_k.leaked == 0);
      CHECK(of_v.missed == 0);
      CHECK(of_v.leaked == 0);
    }
  }
}

namespace {

/// Tokens one by one, and by fours, in a cache of 16 bits or of the type of the queries. One key or value of
/// token 5 is NaN.
template <class T, class Cache>
void check_cached(Cache cache, long window, long sinks, bool of_key, long kind, long chunk, bool rotated) {
  const long tokens = 24, bad = kind % 2 == 0 ? 5 : 1, dim = 8;
  const rope::frequency_table<float> table(rope::frequencies(dim), tokens);
  const tensor shape(1, tokens, 2, dim), keys(1, tokens, 1, dim);
  std::mt19937 generator(7);
  auto q = stored<T>(random<T>(generator, shape)), k = stored<T>(random<T>(generator, keys)),
       v = stored<T>(random<T>(generator, keys)), out = q;
  (of_key ? k : v)[attention_call::place(keys, axes::bshd, 0, bad, 0, 3)] = not_a_number<T>(kind);
  for (long first = 0; first < tokens; first += chunk) {
    const auto now = [&](auto whole) { return whole.token_range(first, chunk); };
    rope::attention_options options;
    if constexpr (std::is_same_v<Cache, kv_cache<typename Cache::value_type>>) options.window = window;
    if (rotated) {
      cache.template append<half_split>(now(view(k, keys)), now(view(v, keys)), table);
      rope::attention<half_split>(now(view(q, shape)), cache, now(view(out, shape)), table, options);
    } else {
      cache.append(now(view(k, keys)), now(view(v, keys)));
      rope::attention(now(view(q, shape)), cache, now(view(out, shape)), options);
    }
  }
  verdict found;
  const long reach = window == 0 ? tokens : window;
  for_each_element(shape, [&](long b, long t, long h, long c) {
    const bool sees = t >= bad && (t - bad < reach || bad < sinks);
    found.see(sees && (of_key || c == 3), out[attention_call::place(shape, axes::bshd, b, t, h, c)]);
  });
  CAPTURE(window, sinks, of_key, kind, chunk, rotated);
  CHECK(found.missed == 0);
  CHECK(found.leaked == 0);
}

template <class T, class C>
void check_caches() {
  for (long kind = 0; kind < kinds; ++kind)
    for (const bool of_key : {false, true})
      for (const long chunk : {1L, 4L, 12L})
        for (const bool rotated : {false, true}) {
          check_cached<T>(kv_cache<C>(1, 24, 1, 8), 0, 0, of_key, kind, chunk, rotated);
          check_cached<T>(kv_cache<C>(1, 24, 1, 8), 6, 0, of_key, kind, chunk, rotated);
          if (chunk < 12)
            check_cached<T>(ring_cache<C>(1, {.sinks = 2, .window = 6, .chunk = 4}, 1, 8), 6, 2, of_key, kind,
                            chunk, rotated);
        }
}

}  // namespace

TEMPLATE_TEST_CASE("values that are all NaN do not reach a query for which they are hidden", "[attention]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  using T = TestType;
  constexpr long keys = 512, nothing = 448;  // whole tiles of NaN, then numbers
  for (const long queries : {2, 60}) {       // read in place, packed
    CAPTURE(queries);
    std::vector<T> q(static_cast<std::size_t>(queries * 8), T(0.5f)), k(keys * 8, T(0.25f)),
        v(keys * 8, T(3.0f)), out(q.size());
    std::fill_n(v.begin(), nothing * 8, not_a_number<T>(0));
    const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(queries * keys));
    for (long i = 0; i < queries; ++i)
      for (long j = 0; j < keys; ++j)
        mask[static_cast<std::size_t>(i * keys + j)] = i % 2 == 0 || j >= nothing;
    rope::attention_options options{.causal = false};
    options.mask = rope::score_matrix(mask.get(), 1, 1, queries, keys);
    rope::attention(rope::thd(q.data(), queries, 1, 8), rope::thd(k.data(), keys, 1, 8),
                    rope::thd(v.data(), keys, 1, 8), rope::thd(out.data(), queries, 1, 8), options);
    for (long c = 0; c < queries * 8; ++c) {
      const auto got = static_cast<double>(out[static_cast<std::size_t>(c)]);
      CHECK((c / 8 % 2 == 0 ? std::isnan(got) : got == 3.0));
    }
  }
}

TEST_CASE("any NaN in a cache reaches exactly the queries that attend to its token", "[attention]") {
  check_caches<float, float>();
  check_caches<float, Eigen::half>();
  check_caches<float, Eigen::bfloat16>();
  check_caches<double, double>();
  check_caches<Eigen::half, Eigen::half>();
  check_caches<Eigen::bfloat16, Eigen::bfloat16>();
}

TEST_CASE("merging keeps every NaN of a part with visible keys, and drops those of a part without",
          "[attention]") {
  for (long kind = 0; kind < kinds; ++kind) {
    CAPTURE(kind);
    for (const bool first : {false, true}) {
      std::vector<float> a = {1, 2}, b = {3, 4};
      std::vector<double> sum_a = {0.5}, sum_b = {1.5};
      (first ? a : b)[1] = not_a_number<float>(kind);
      const auto merged = [&] {
        rope::merge_attention(rope::thd(a.data(), 1, 1, 2), std::span<double>(sum_a),
                              rope::thd(b.data(), 1, 1, 2), std::span<const double>(sum_b));
      };
      merged();
      CHECK(std::isfinite(a[0]));
      CHECK(std::isnan(a[1]));
      // A part without visible keys may contain anything.
      a = {1, 2}, b = {3, 4};
      (first ? a : b)[1] = not_a_number<float>(kind);
      sum_a = {0.5}, sum_b = {1.5};
      (first ? sum_a : sum_b)[0] = rope::attention_options::no_keys;
      merged();
      CHECK(a == (first ? std::vector<float>{3, 4} : std::vector<float>{1, 2}));
      CHECK(sum_a[0] == (first ? 1.5 : 0.5));
      a = {1, 2}, b = {3, 4}, sum_a = {0.5}, sum_b = {1.5};
      (first ? sum_a : sum_b)[0] = not_a_number<double>(kind);
      merged();
      CHECK(std::isnan(a[0]));
      CHECK(std::isnan(sum_a[0]));
    }
  }
}
