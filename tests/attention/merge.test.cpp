// SPDX-License-Identifier: MIT
#include <rope/attention/merge.hpp>

#include <cmath>
#include <cstdint>
#include <random>
#include <rope/attention/attention.hpp>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace attention_call;

namespace {

/// Attention to keys [first, last) alone, at their positions among all keys.
template <class T>
struct part {
  std::vector<T> out;
  std::vector<double> sums;
  tensor shape;

  part(const operands& x, long first, long last, const rope::attention_options& rule)
      : sums(static_cast<std::size_t>(x.q.batch * x.q.tokens * x.q.heads)),
        shape(x.q.batch, x.q.tokens, x.q.heads, x.v.dim, unwritten) {
    out = stored<T>(shape);
    std::vector<std::int64_t> queries, keys;
    for (long i = 0; i < x.q.tokens; ++i) queries.push_back(x.k.tokens - x.q.tokens + i);
    for (long j = first; j < last; ++j) keys.push_back(j);
    const auto q = stored<T>(x.q), k = stored<T>(x.k), v = stored<T>(x.v);
    auto options = rule;
    options.query_positions = queries;
    options.key_positions = keys;
    options.log_sum_exp = sums;
    rope::attention(view(q, x.q), view(k, x.k).token_range(first, last - first),
                    view(v, x.v).token_range(first, last - first), view(out, shape), options);
  }

  void merge(const part& other) {
    rope::merge_attention(view(out, shape), std::span<double>(sums), view(other.out, shape),
                          std::span<const double>(other.sums));
  }
  tensor output() const { return loaded(out, shape); }
};

template <class T>
void check_parts(const operands& x, const rope::attention_options& rule, double bound, double sum_bound) {
  const part<T> whole(x, 0, x.k.tokens, rule);
  const long n = x.k.tokens;
  for (const auto& cut :
       std::vector<std::vector<long>>{{0, n}, {0, 1, n}, {0, n / 2, n}, {0, n, n}, {0, 5, n / 3, n - 1, n}}) {
    CAPTURE(cut);
    // Merged from the left and from the right: merging is associative and commutative to rounding.
    part<T> left(x, cut[0], cut[1], rule), right(x, cut[cut.size() - 2], cut.back(), rule);
    for (std::size_t p = 1; p + 1 < cut.size(); ++p) left.merge(part<T>(x, cut[p], cut[p + 1], rule));
    for (std::size_t p = cut.size() - 2; p-- > 0;) right.merge(part<T>(x, cut[p], cut[p + 1], rule));
    for (const part<T>* merged : {&left, &right}) {
      CHECK(reference::worst_error<T>(merged->output(), whole.output(), bound) <= 1);
      for (std::size_t i = 0; i < whole.sums.size(); ++i)
        CHECK(std::abs(merged->sums[i] - whole.sums[i]) <=
              (whole.sums[i] == rope::attention_options::no_keys ? 0 : sum_bound));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("attention to parts of the keys merges into attention to all", "[attention]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 65;
  CAPTURE(seed);
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 3, 40);
  const operands x = random_operands<TestType>(generator, {2, queries, 97, 6, 2, 12, 7});
  const reference::attention_rule plain = {.causal = true};
  // Twice the bound of attention, and 3 u per merge: each side has its own error. Parts and merges are
  // rounded to the channel type at most 9 times, and are at most as large as the largest value.
  const auto u = static_cast<double>(tolerance::unit_roundoff<arithmetic<TestType>>());
  const double bound = 2 * reference::attention_bound<arithmetic<TestType>>(x.q, x.k, x.v, plain) + 12 * u +
                       (tolerance::is_16_bit<TestType>
                            ? 9 * static_cast<double>(tolerance::unit_roundoff<TestType>()) * x.v.largest()
                            : 0);
  // The error of a log-sum-exp is at most the error of the scores plus the relative error of the weights that
  // it sums: u (score + weight) on each of the two sides, which attention_bound contains times the largest
  // |v|, 32 u of exponential and logarithm on each side, as in laws/attention_features, and 8 roundings in
  // double for each of 4 merges.
  const double sum_bound =
      reference::attention_bound<arithmetic<TestType>>(x.q, x.k, x.v, plain) / x.v.largest() + 64 * u +
      32 * 0x1p-53;
  check_parts<TestType>(x, {}, bound, sum_bound);
  check_parts<TestType>(x, {.window = 9, .sinks = 2}, bound, sum_bound);
  check_parts<TestType>(x, {.causal = false, .window = 3}, bound, sum_bound);
}

TEST_CASE("merging with an empty part changes nothing, and two empty parts stay empty", "[attention]") {
  const double none = rope::attention_options::no_keys;
  std::vector<float> a = {1, 2, 0, 0}, b = {7, 7, 0, 0};
  std::vector<double> sums_a = {0.5, none}, sums_b = {none, none};
  const auto view_of = [](auto& x) { return rope::thd(x.data(), 2, 1, 2); };
  rope::merge_attention(view_of(a), std::span<double>(sums_a), view_of(b), std::span<const double>(sums_b));
  CHECK(a == std::vector<float>{1, 2, 0, 0});
  CHECK(sums_a == std::vector<double>{0.5, none});
  rope::merge_attention(view_of(b), std::span<double>(sums_b), view_of(a), std::span<const double>(sums_a));
  CHECK(b == a);
  CHECK(sums_b == sums_a);
}

TEMPLATE_TEST_CASE("the offset of rows in memory does not change the bits of a merge", "[attention]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 66;
  CAPTURE(seed);
  std::mt19937 generator(seed);
  const tensor a = random<TestType>(generator, {1, 5, 3, 29}), b = random<TestType>(generator, {1, 5, 3, 29});
  std::vector<double> sums_a, sums_b;
  for (int i = 0; i < 15; ++i) {
    sums_a.push_back(testing::uniform(generator));
    sums_b.push_back(testing::uniform(generator));
  }
  const auto merged = [&](rope::Index shift_a, rope::Index shift_b) {
    auto to = stored<TestType>(a), other = stored<TestType>(b);
    auto sums = sums_a;
    to.insert(to.begin(), static_cast<std::size_t>(shift_a), TestType(0));
    other.insert(other.begin(), static_cast<std::size_t>(shift_b), TestType(0));
    rope::merge_attention(rope::bshd(to.data() + shift_a, 1, 5, 3, 29), std::span<double>(sums),
                          rope::bshd(other.data() + shift_b, 1, 5, 3, 29), std::span<const double>(sums_b));
    to.erase(to.begin(), to.begin() + shift_a);
    return to;
  };
  const std::vector<TestType> expected = merged(0, 0);
  for (rope::Index shift = 1; shift < 64 / rope::Index(sizeof(TestType)); ++shift) {
    CAPTURE(shift);
    CHECK(same_bits(merged(shift, 0), expected));
    CHECK(same_bits(merged(0, shift), expected));
  }
}

TEST_CASE("two parts are weighted by their sums of exponentials", "[attention]") {
  std::vector<double> a = {1}, b = {5}, sums_a = {std::log(3.0)}, sums_b = {0};
  const auto view_of = [](auto& x) { return rope::thd(x.data(), 1, 1, 1); };
  rope::merge_attention(view_of(a), std::span<double>(sums_a), view_of(b), std::span<const double>(sums_b));
  CHECK(std::abs(a[0] - 2) <= 8 * 0x1p-53);
  CHECK(std::abs(sums_a[0] - std::log(4.0)) <= 4 * 0x1p-53);
}

TEST_CASE("parts that do not fit throw before anything is written", "[attention]") {
  std::vector<float> a(8, 1), b(8, 2);
  std::vector<double> sums(4, 0), few(3, 0);
  const auto four = rope::thd(a.data(), 2, 2, 2), other = rope::thd(b.data(), 4, 1, 2),
             same = rope::thd(b.data(), 2, 2, 2);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::merge_attention(four, std::span<double>(sums), other, std::span<const double>(sums)); },
      "merge_attention: the outputs must have the same shape, got [1, 2, 2, 2] and [1, 4, 1, 2]"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::merge_attention(four, std::span<double>(sums), same, std::span<const double>(few)); },
      "merge_attention: a log-sum-exp must have length batch * queries * heads = 4, got 4 and 3"));
  rope::head_view<float> expanded = four;
  expanded.token_stride = 0;
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::merge_attention(expanded, std::span<double>(sums), same, std::span<const double>(sums)); },
      "merge_attention: the channels of a view that is written must not overlap, got a stride of 0"));
  CHECK(a == std::vector<float>(8, 1));
}
