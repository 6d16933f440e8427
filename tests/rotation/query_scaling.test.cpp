// SPDX-License-Identifier: MIT
#include <rope/rotation/query_scaling.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using testing::throws_saying;

}  // namespace

// Golden vector G30: transformers' Llama4TextAttention and Qwen's logn list, in fp64.
TEST_CASE("the rules are the published ones", "[rotation][query_scaling]") {
  const llama4_query_scaling llama;
  CHECK(llama(0) == 1.0);
  CHECK(llama(8190) == 1.0);
  CHECK_THAT(llama(8191), testing::WithinAbs(1.069314718, 5e-10));
  CHECK_THAT(llama(16382), testing::WithinAbs(1.069314718, 5e-10));
  CHECK_THAT(llama(16383), testing::WithinAbs(1.109861229, 5e-10));
  CHECK_THAT(llama(131071), testing::WithinAbs(1.283321334, 5e-10));
  CHECK_THAT((llama4_query_scaling{.floor_scale = 100, .attention_scale = 0.5})(199),
             testing::WithinAbs(1 + 0.5 * testing::log(3.0), 1e-15));
  // get_llama_4_attn_scale of Ministral3Attention, which counts p and not p + 1
  CHECK((llama4_query_scaling{.floor_scale = 5e-324, .attention_scale = 0})(1) == 1);
  const llama4_query_scaling ministral{.floor_scale = 16384, .offset = 0};
  CHECK(ministral(16383) == 1.0);
  CHECK_THAT(ministral(16384), testing::WithinAbs(1.069314718, 5e-10));
  CHECK_THAT(ministral(32768), testing::WithinAbs(1.109861229, 5e-10));
  const log_n_query_scaling log_n{.train_length = 4096};
  CHECK(log_n(0) == 1.0);
  CHECK(log_n(4095) == 1.0);
  CHECK(log_n(4096) > 1.0);
  CHECK_THAT(log_n(8191), testing::WithinAbs(13.0 / 12.0, 1e-15));
  CHECK_THAT(log_n(4096 * 4096LL - 1), testing::WithinAbs(2.0, 1e-15));
}

TEST_CASE("every head of a token is scaled by the factor of its position", "[rotation][query_scaling]") {
  const Index batch = 2, tokens = 3, heads = 2, head_dim = 5;
  const auto rule = [](std::int64_t p) { return 1 + 0.125 * static_cast<double>(p); };
  const auto check = [&](auto number, const auto& positions, auto position_of) {
    using T = decltype(number);
    testing::guarded_memory<T> memory(batch * tokens * heads * (head_dim + 1));
    const auto q = bhsd(memory.data(), batch, heads, tokens, head_dim + 1).channels(1, head_dim);
    memory.fill(q, testing::seed());
    const auto before = memory.remembered(q);
    scale_queries(q, rule, positions);
    testing::wide worst = 0;
    testing::for_each_head(q, [&](Index b, Index t, Index h) {
      for (Index d = 0; d < head_dim; ++d) {
        const testing::wide exact =
            static_cast<testing::wide>(before.at(b, t, h)[d]) * rule(position_of(b, t));
        const testing::wide off = testing::abs(static_cast<testing::wide>(q.at(b, t, h)[d]) - exact);
        worst = (std::max)(
            worst, off / (tolerance::detail::bound<T, tolerance::detail::wide<T>>(1, testing::abs(exact))));
      }
    });
    CHECK(worst <= 1);
    CHECK(memory.untouched_outside(q));
  };
  const std::vector<int> ids = {9, 0, 3, 1, 8, 2}, starts = {7, 70};
  const auto all = [&](auto number) {
    check(number, std::int64_t{4}, [](Index, Index t) { return 4 + t; });
    check(number, ids, [&](Index b, Index t) { return ids[static_cast<std::size_t>(b * tokens + t)]; });
    check(number, row_starts{starts},
          [&](Index b, Index t) { return starts[static_cast<std::size_t>(b)] + t; });
  };
  all(float{});
  all(double{});
  all(Eigen::half{});
  all(Eigen::bfloat16{});
}

TEST_CASE("a factor of one changes no bit", "[rotation][query_scaling]") {
  std::vector<float> q(2 * 4);
  testing::fill_with_nan(q);
  const std::vector<float> before = q;
  scale_queries(thd(q.data(), 2, 1, 4), llama4_query_scaling{}, 100);
  CHECK(testing::same_bits(q, before));
}

TEST_CASE("ids of a query scaling may be written in braces", "[rotation][query_scaling]") {
  std::vector<double> q(3, 1.0);
  const auto view = thd(q.data(), 3, 1, 1);
  const auto rule = [](std::int64_t p) { return 1 + static_cast<double>(p); };
  scale_queries(view, rule, {3, 0, 7});
  CHECK(testing::same_bits(q, std::vector<double>{4, 1, 8}));
  CHECK(throws_saying<std::invalid_argument>([&] { scale_queries(view, rule, {7}); }, "ids must be [tokens]",
                                             "got 1"));
  scale_queries(view, rule);
  CHECK(testing::same_bits(q, std::vector<double>{4, 2, 24}));
}

TEST_CASE("positions outside every table have no factor", "[rotation][query_scaling]") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::vector<float> q(3 * 4, 1.0f);
  const auto view = thd(q.data(), 3, 1, 4);
  const auto twice = [](std::int64_t) { return 2.0; };
  const auto rejects = [&](const auto& positions) {
    return throws_saying<std::out_of_range>([&] { scale_queries(view, twice, positions); },
                                            "rope::scale_queries: a position must be below 2^63 - 1",
                                            "got 9223372036854775807 or more");
  };
  CHECK(rejects(most - 2));
  CHECK(rejects(std::uint64_t{1} << 63));
  CHECK(rejects(std::vector<std::uint64_t>{1, std::uint64_t{1} << 63, 2}));
  CHECK(testing::same_bits(q, std::vector<float>(12, 1.0f)));
  scale_queries(view, twice, most - 3);
  CHECK(testing::same_bits(q, std::vector<float>(12, 2.0f)));
}

TEST_CASE("an invalid rule throws before it is applied", "[rotation][query_scaling]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<float> q(3 * 4, 1.0f);
  const std::vector<float> before = q;
  const auto view = thd(q.data(), 3, 1, 4);
  for (const double bad : {1.0, 0.0, -5.0, infinity, std::numeric_limits<double>::quiet_NaN()})
    CHECK(throws_saying<std::invalid_argument>([&] { scale_queries(view, log_n_query_scaling{bad}); },
                                               "train_length"));
  for (const double bad : {0.0, -1.0, infinity})
    CHECK(throws_saying<std::invalid_argument>(
        [&] {
          scale_queries(view, llama4_query_scaling{bad, 0.1});
        },
        "llama4_query_scaling: floor_scale"));
  for (const double bad : {-0.1, infinity})
    CHECK(throws_saying<std::invalid_argument>(
        [&] {
          scale_queries(view, llama4_query_scaling{8192, bad});
        },
        "attention_scale"));
  for (const double bad : {-1.0, infinity})
    CHECK(throws_saying<std::invalid_argument>(
        [&] {
          scale_queries(view, llama4_query_scaling{8192, 0.1, bad});
        },
        "offset must be finite and not negative"));
  // The last token is invalid: nothing is scaled.
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        scale_queries(view, llama4_query_scaling{1, 1}, std::vector<int>{5, 6, -1});
      },
      "got -1"));
  CHECK(throws_saying<std::invalid_argument>([&] { scale_queries(view, log_n_query_scaling{2}, -1); },
                                             "got -1"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        scale_queries(view, llama4_query_scaling{}, std::vector<int>{5, 6});
      },
      "ids must be [tokens] = 3"));
  CHECK(testing::same_bits(q, before));
}
