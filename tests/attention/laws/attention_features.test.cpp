// SPDX-License-Identifier: MIT
// Every option of attention, alone and in every combination, against its definition.
#include <rope/attention/attention.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <rope/attention/weights.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

using namespace attention_call;

namespace {

template <class T, class Threads = rope::this_thread>
tensor run(const features::setting& s, const operands& x, std::vector<double>& sums,
           const Threads& threads = {}, axes order = axes::bshd) {
  sums.assign(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads), unwritten);
  return output_of<T>(x, order, [&](auto q, auto k, auto v, auto out) {
    rope::attention(q, k, v, out, s.with(sums), threads);
  });
}

void describe(const features::setting& s) {
  const auto& o = s.options;
  UNSCOPED_INFO("batch " << s.e.batch << " queries " << s.e.queries << " keys " << s.e.keys << " heads "
                         << s.e.heads << " / " << s.e.kv_heads << " dims " << s.e.dim << ", "
                         << s.e.value_dim);
  UNSCOPED_INFO("causal " << o.causal << " window " << o.window << " sinks " << o.sinks << " softcap "
                          << o.softcap << " scale " << o.scale << " dropout " << o.dropout << " sink logits "
                          << s.sink_logits.size() << " bias " << s.bias.size() << " mask " << bool(o.mask)
                          << " positions " << s.query_positions.size() << ", " << s.key_positions.size()
                          << " counts " << s.key_counts.size() << " segments " << s.query_offsets.size());
}

}  // namespace

TEMPLATE_TEST_CASE("attention follows its definition for all options together", "[attention]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 61;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(60); ++draw) {
    CAPTURE(seed, draw);
    // Long rows of keys are cut into splits, each with its own softmax.
    const features::setting s = features::draw(dice, draw % 6 == 5 ? 3000 : 300);
    describe(s);
    const operands x = random_operands<TestType>(dice.generator(), s.e);
    const features::result exact = features::definition(s, x);
    std::vector<double> sums, sums_of_two;
    const tensor got = run<TestType>(s, x, sums);
    CHECK(features::out_error<TestType>(exact, got) <= 1);
    CHECK(features::log_sum_error<TestType>(exact, sums) <= 1);
    // The work is cut in the same way for every number of threads.
    CHECK(same_bits(run<TestType>(s, x, sums_of_two, testing::own_threads(2)), got));
    CHECK(same_bits(sums_of_two, sums));
    CHECK(same_bits(run<TestType>(s, x, sums_of_two, rope::this_thread{}, axes::bhsd), got));

    const auto q = stored<TestType>(x.q), k = stored<TestType>(x.k);
    std::vector<arithmetic<TestType>> weights(exact.weights.size(), -1);
    rope::attention_weights(view(q, x.q), view(k, x.k), weights, s.options);
    CHECK(features::weight_error(exact, weights) <= 1);
  }
}

namespace {

template <class Layout, class T>
void check_rotation(const features::setting& s, const operands& x) {
  const rope::frequency_table<float> table(rope::frequencies(x.q.dim / 2 * 2), -700, 1400);
  auto q = stored<T>(x.q), k = stored<T>(x.k);
  std::vector<std::int64_t> query_ids, key_ids;
  for (long b = 0; b < s.e.batch; ++b) {
    for (long i = 0; i < s.e.queries; ++i) query_ids.push_back(features::place_of(s, b, i, 0).query);
    for (long j = 0; j < s.e.keys; ++j) {
      // The segment of a key is found from the queries of that segment. Without such a query the key is
      // visible to none.
      std::int64_t position = 0;
      for (long i = 0; i < std::max(1L, s.e.queries); ++i) {
        const auto place = features::place_of(s, b, i, j);
        if (place.together || s.query_offsets.empty()) position = place.key;
      }
      key_ids.push_back(position);
    }
  }
  if (x.q.tokens > 0) rope::rotate<Layout>(view(q, x.q), table, query_ids);
  if (x.k.tokens > 0) rope::rotate<Layout>(view(k, x.k), table, key_ids);
  std::vector<double> sums, rotated_sums(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads));
  const tensor expected = run<T>(s, {loaded(q, x.q), loaded(k, x.k), x.v}, sums);
  const tensor got = output_of<T>(x, axes::bhsd, [&](auto q_view, auto k_view, auto v_view, auto out) {
    rope::attention<Layout>(q_view, k_view, v_view, out, table, s.with(rotated_sums));
  });
  CHECK(same_bits(got, expected));
  CHECK(same_bits(rotated_sums, sums));
}

}  // namespace

TEMPLATE_TEST_CASE("attention with a table rotates by the positions of the options, with the same bits",
                   "[attention]", float, Eigen::bfloat16) {
  const std::uint32_t seed = 62;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(40); ++draw) {
    CAPTURE(seed, draw);
    features::setting s = features::draw(dice);
    s.e.dim = s.e.dim / 2 * 2 + 2;
    describe(s);
    const operands x = random_operands<TestType>(dice.generator(), s.e);
    check_rotation<rope::half_split, TestType>(s, x);
    check_rotation<rope::interleaved, TestType>(s, x);
  }
}

TEMPLATE_TEST_CASE("keys and values that are not visible to a query do not change its output", "[attention]",
                   float, double) {
  const std::uint32_t seed = 63;
  features::dice dice(seed);
  const auto nan = std::numeric_limits<TestType>::quiet_NaN(),
             infinity = std::numeric_limits<TestType>::infinity();
  for (int draw = 0; draw < testing::draws(60); ++draw) {
    CAPTURE(seed, draw);
    const features::setting s = features::draw(dice);
    describe(s);
    const operands x = random_operands<TestType>(dice.generator(), s.e);
    std::vector<double> sums;
    const tensor clean = run<TestType>(s, x, sums);
    // One key and its value become NaN or infinite. Queries that do not attend to it must keep their bits.
    if (s.e.keys == 0) continue;
    operands spoiled = x;
    const long bad = dice.up_to(s.e.keys - 1);
    for (long b = 0; b < s.e.batch; ++b)
      for (long h = 0; h < s.e.kv_heads; ++h) {
        for (long c = 0; c < s.e.dim; ++c) spoiled.k(b, bad, h, c) = static_cast<double>(nan);
        for (long c = 0; c < s.e.value_dim; ++c)
          spoiled.v(b, bad, h, c) = static_cast<double>(c % 2 == 0 ? nan : infinity);
      }
    const tensor got = run<TestType>(s, spoiled, sums);
    const features::result exact = features::definition(s, x);
    tensor unspoiled = exact.out;
    testing::for_each_element(got, [&](long b, long i, long h, long c) {
      if (!features::sees(s, b, h, i, bad)) unspoiled(b, i, h, c) = got(b, i, h, c);
    });
    CHECK(features::out_error<TestType>(exact, unspoiled) <= 1);
    CHECK(features::out_error<TestType>(exact, clean) <= 1);
  }
}

TEMPLATE_TEST_CASE("the offset and the distance of rows in memory do not change the bits of an output",
                   "[attention]", float, double, Eigen::half, Eigen::bfloat16) {
  // Vectors of up to 64 bytes start at another offset in every row. 2 queries are decoding, 40 are a prefill.
  // The channels of a value are contiguous or strided.
  const std::uint32_t seed = 65;
  features::dice dice(seed);
  const long queries = GENERATE(2, 40), channels = GENERATE(1, 29);
  const extents e = {2, queries, 77, 4, 1, 23, channels};
  CAPTURE(seed, queries, channels);
  const operands x = random_operands<TestType>(dice.generator(), e);
  const auto q = stored<TestType>(x.q), k = stored<TestType>(x.k);
  const auto attended = [&](rope::Index shift, rope::Index pad) {
    const auto framed = [&](std::vector<TestType>& memory, long tokens, long heads) {
      const rope::Index row = channels + pad, stride = heads * row;
      memory.resize(static_cast<std::size_t>(e.batch * tokens * stride + shift));
      return rope::head_view<TestType>{memory.data() + shift, e.batch, tokens, heads, channels,
                                       tokens * stride,       stride,  row};
    };
    std::vector<TestType> values, outputs;
    const auto v = framed(values, e.keys, e.kv_heads), out = framed(outputs, queries, e.heads);
    tensor result(e.batch, queries, e.heads, channels);
    for_each_element(x.v, [&](long b, long t, long h, long c) {
      v.at(b, t, h)[c] = static_cast<TestType>(x.v(b, t, h, c));
    });
    rope::attention(view(q, x.q), view(k, x.k), rope::head_view<const TestType>(v), out,
                    {.dropout = 0.25, .dropout_seed = 5});
    for_each_element(result, [&](long b, long t, long h, long c) {
      result(b, t, h, c) = static_cast<double>(out.at(b, t, h)[c]);
    });
    return result;
  };
  const tensor expected = attended(0, 0);
  for (rope::Index shift = 0; shift < 64 / rope::Index(sizeof(TestType)); ++shift)
    for (const rope::Index pad : {0, 3}) {
      CAPTURE(shift, pad);
      CHECK(same_bits(attended(shift, pad), expected));
    }
}

TEST_CASE("keys may have their positions in any order, in every tile", "[attention]") {
  // Tiles of 128 keys in reversed order. The shifts put the first and the last position of a tile next to the
  // first and the last query of a block, where a tile is just visible or just hidden.
  const std::uint32_t seed = 64;
  features::dice dice(seed);
  const long tokens = 512, tile = 128, shift = GENERATE(-1, 0, 1);
  const long window = GENERATE(0, 2), sinks = GENERATE(0, 3);
  CAPTURE(seed, shift, window, sinks);
  features::setting s;
  s.e = {1, tokens, tokens, 4, 1, 4, 3};
  for (long j = 0; j < tokens; ++j) {
    s.query_positions.push_back(j);
    s.key_positions.push_back((tokens / tile - 1 - j / tile) * tile + j % tile + shift);
  }
  // Every key has an entry in the bias and in the mask. Unrelated numbers lie between these entries.
  std::vector<float> biases;
  std::unique_ptr<bool[]> masks(new bool[static_cast<std::size_t>(2 * tokens)]);
  s.mask = std::make_unique<bool[]>(static_cast<std::size_t>(tokens));
  for (std::size_t j = 0; j < static_cast<std::size_t>(tokens); ++j) {
    s.bias.push_back(0.25f * static_cast<float>(dice.up_to(8)) - 1);
    biases.insert(biases.end(), {s.bias.back(), -50});
    masks[2 * j] = s.mask[j] = !dice.one_in(4);
    masks[2 * j + 1] = !s.mask[j];
  }
  s.options = {.window = window,
               .sinks = sinks,
               .bias = rope::score_matrix(s.bias.data(), 1, 1, 1, tokens),
               .mask = rope::score_matrix(s.mask.get(), 1, 1, 1, tokens),
               .query_positions = s.query_positions,
               .key_positions = s.key_positions};
  const operands x = random_operands<float>(dice.generator(), s.e);
  const features::result exact = features::definition(s, x);
  s.options.bias.data = biases.data();
  s.options.mask.data = masks.get();
  s.options.bias.key_stride = s.options.mask.key_stride = 2;
  std::vector<double> sums;
  CHECK(features::out_error<float>(exact, run<float>(s, x, sums)) <= 1);
  CHECK(features::log_sum_error<float>(exact, sums) <= 1);
}

TEST_CASE("a learned sink is counted once, for any number of splits", "[attention]") {
  // Scores of 0 and a logit of 8: the sum of exponentials is keys + exp(8), and every value is 1 before the
  // sink takes its share.
  const long keys = GENERATE(1, 1024, 1025, 5000), queries = GENERATE(1, 20);
  CAPTURE(keys, queries);
  const operands x = {tensor(1, queries, 2, 4, 0.0), tensor(1, keys, 1, 4, 1.0), tensor(1, keys, 1, 3, 1.0)};
  const std::vector<float> logits(2, 8.0f);
  std::vector<double> sums(static_cast<std::size_t>(2 * queries));
  const tensor out = output_of<double>(x, axes::bshd, [&](auto q, auto k, auto v, auto to) {
    rope::attention(q, k, v, to, {.causal = false, .sink_logits = logits, .log_sum_exp = sums});
  });
  const double total = static_cast<double>(keys) + std::exp(8.0);
  const double near_one = 5 * static_cast<double>(keys + 1) * 0x1p-53;
  for (const double sum : sums) CHECK(std::abs(sum - std::log(total)) <= 20 * near_one);
  for (const double value : out.values)
    CHECK(std::abs(value - static_cast<double>(keys) / total) <= near_one);
}

// Float queries and outputs with 16-bit keys and values: attention has the bits of attention to their float
// copies, wherever they are in memory.

namespace {

/// Operands whose keys and values C can represent exactly.
template <class C>
operands mixed_operands(std::mt19937& generator, const extents& e) {
  operands x = random_operands<float>(generator, e);
  x.k = random<C>(generator, x.k);
  x.v = random<C>(generator, x.v);
  return x;
}

/// Calls `attend` on q and out of float and on k and v of C. Each has its own order of axes and lies within
/// other tokens, heads and channels.
template <class C, class Attend>
tensor mixed_output(const operands& x, axes key_order, axes value_order, const Attend& attend) {
  const auto framed = [](const tensor& inner) {
    tensor frame(inner.batch, inner.tokens + 2, inner.heads + 3, inner.dim + 5, 3e4);
    for_each_element(
        inner, [&](long b, long t, long h, long d) { frame(b, t + 1, h + 2, d + 3) = inner(b, t, h, d); });
    return frame;
  };
  const auto window = [](auto whole) {
    return whole.token_range(1, whole.tokens - 2)
        .head_range(2, whole.heads - 3)
        .channels(3, whole.head_dim - 5);
  };
  const tensor k_frame = framed(x.k), v_frame = framed(x.v);
  const auto q = stored<float>(x.q);
  const auto k = stored<C>(k_frame, key_order), v = stored<C>(v_frame, value_order);
  const tensor shape(x.q.batch, x.q.tokens, x.q.heads, x.v.dim, unwritten);
  std::vector<float> out = stored<float>(shape);
  attend(view(q, x.q), window(view(k, k_frame, key_order)), window(view(v, v_frame, value_order)),
         view(out, shape));
  return loaded(out, shape);
}

template <class C, class Threads = rope::this_thread>
tensor mixed(const operands& x, const rope::attention_options& options, axes key_order = axes::bshd,
             axes value_order = axes::bshd, const Threads& threads = {}) {
  return mixed_output<C>(x, key_order, value_order, [&](auto q, auto k, auto v, auto out) {
    rope::attention(q, k, v, out, options, threads);
  });
}

}  // namespace

TEMPLATE_TEST_CASE("16-bit keys and values give the bits of their float copies under every option",
                   "[attention]", Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 91;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(40); ++draw) {
    CAPTURE(seed, draw);
    const features::setting s = features::draw(dice, draw % 8 == 7 ? 2500 : 300);
    const operands x = mixed_operands<TestType>(dice.generator(), s.e);
    const tensor expected = mixed<float>(x, s.options);
    CHECK(features::out_error<float>(features::definition(s, x), expected) <= 1);
    CHECK(same_bits(mixed<TestType>(x, s.options), expected));
    CHECK(same_bits(mixed<TestType>(x, s.options, axes::bhsd, axes::sbhd), expected));
    CHECK(
        same_bits(mixed<TestType>(x, s.options, axes::sbhd, axes::bhsd, testing::own_threads(2)), expected));
  }
}

TEMPLATE_TEST_CASE("a few queries attend to a window and sinks in every group and head_dim", "[attention]",
                   float, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 92;
  std::mt19937 generator(seed);
  const long group = GENERATE(1, 2, 3, 4, 5, 6, 7, 8), kv_heads = 1 + group % 3;
  const auto [dim, value_dim] =
      GENERATE(std::pair{7L, 20L}, std::pair{20L, 7L}, std::pair{33L, 33L}, std::pair{128L, 64L});
  features::setting s;
  s.e = {2, 1 + group % 2, 1100, group * kv_heads, kv_heads, dim, value_dim};
  s.options.window = 1050;  // two splits
  s.options.sinks = 5;
  CAPTURE(seed, group, kv_heads, dim, value_dim);
  const operands x = mixed_operands<TestType>(generator, s.e);
  const tensor got = mixed<TestType>(x, s.options);
  CHECK(features::out_error<float>(features::definition(s, x), got) <= 1);
  CHECK(same_bits(mixed<TestType>(x, s.options, axes::bhsd, axes::bhsd), got));
  CHECK(same_bits(mixed<TestType>(x, s.options, axes::sbhd, axes::bhsd, testing::own_threads(2)), got));
}

TEMPLATE_TEST_CASE("16-bit keys are converted to float before they are rotated", "[attention]", Eigen::half,
                   Eigen::bfloat16) {
  const std::uint32_t seed = 93;
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 3, 40);
  const extents e = {2, queries, 150, 6, 2, 20, 9};
  CAPTURE(seed, queries);
  const operands x = mixed_operands<TestType>(generator, e);
  const rope::frequency_table<float> table(rope::frequencies(16, 50.0), 150);
  const rope::attention_options options = {.window = 90, .sinks = 2};
  const auto rotated = [&]<class Layout, class C>(Layout, C, axes order) {
    return mixed_output<C>(x, order, order, [&](auto q, auto k, auto v, auto out) {
      rope::attention<Layout>(q, k, v, out, table, options);
    });
  };
  for (const axes order : {axes::bshd, axes::bhsd}) {
    CHECK(same_bits(rotated(rope::half_split{}, TestType{}, order),
                    rotated(rope::half_split{}, float{}, order)));
    CHECK(same_bits(rotated(rope::interleaved{}, TestType{}, order),
                    rotated(rope::interleaved{}, float{}, order)));
  }
}
