// SPDX-License-Identifier: MIT
#include <rope/frequencies/scaling.hpp>

#include <cmath>
#include <cstddef>
#include <string>

#include "support/catch.hpp"
#include "support/schedules.hpp"

namespace {

using namespace rope;
using namespace testing;

/// A LongRoPE rule for four pairs.
longrope_scaling longrope(double length) {
  return {.short_factor = {1, 1.25, 1.5, 2},
          .long_factor = {1, 4, 16, 64},
          .original_max_position = 4096,
          .max_position = 131072,
          .length = length};
}

}  // namespace

// Golden: Hugging Face transformers, tests/utils/test_modeling_rope_utils.py (e42e4a4), head_dim 128,
// rope_theta 1e4, max_position_embeddings 2048.
TEST_CASE("longrope_scaling gives the values of Hugging Face's tests", "[frequencies][scaling]") {
  const frequencies original(128, 1e4);
  longrope_scaling rule = {.short_factor = list(64, 2.0),
                           .long_factor = list(64),
                           .original_max_position = 2048,
                           .max_position = 2048,
                           .length = 1,
                           .factor = 10};
  for (std::size_t i = 0; i < 64; ++i) rule.long_factor[i] = static_cast<double>(i + 1);
  CHECK(divided(frequencies(128, 1e4, rule), original, 0, 64, 2));
  rule.length = 2049;
  const frequencies f(128, 1e4, rule);
  for (Index i = 0; i < 64; ++i) CHECK(divided(f, original, i, i + 1, static_cast<double>(i + 1)));
  CHECK(rounds_to(f.attention_factor(), std::sqrt(1 + std::log(10.0) / std::log(2048.0)), 14));
}

TEST_CASE("longrope_scaling by ones and a factor of 1 changes nothing", "[frequencies][scaling]") {
  for (const Index dim : {4, 64, 96, 128})
    for (const double base : {1e4, 5e5, 1e6}) {
      CAPTURE(dim, base);
      const list ones(static_cast<std::size_t>(dim / 2), 1.0);
      CHECK(is_identity(dim, base, longrope_scaling{ones, ones, 4096, 4096, 9999, {}, {}}));
    }
}

TEST_CASE("longrope_scaling uses the long list above L0, and m does not depend on the list",
          "[frequencies][scaling]") {
  const frequencies original(8, 1e4);
  for (const double length : {0.0, 1.0, 4096.0, 4097.0, 131072.0}) {
    const longrope_scaling rule = longrope(length);
    CAPTURE(length);
    CHECK(rule.uses_long() == (length > 4096));
    const frequencies f(8, 1e4, rule);
    const list& divisors = length > 4096 ? rule.long_factor : rule.short_factor;
    for (Index i = 0; i < 4; ++i)
      CHECK(divided(f, original, i, i + 1, divisors[static_cast<std::size_t>(i)]));
    CHECK(rounds_to(f.attention_factor(), 1.19023807, 9));  // Golden: Phi-3, 128k
  }
}

TEST_CASE("the m of longrope_scaling is attention_factor, or that of factor, or that of max_position over L0",
          "[frequencies][scaling]") {
  const auto m = [](auto change) {
    longrope_scaling rule = longrope(5000);
    change(rule);
    return frequencies(8, 1e4, rule).attention_factor();
  };
  CHECK(rounds_to(m([](auto& r) { r.factor = 4; }), 1.08012345, 9));
  CHECK(rounds_to(m([](auto& r) { r.max_position = 16384; }), 1.08012345, 9));
  CHECK(m([](auto& r) { r.attention_factor = 1.243163121016122; }) == 1.243163121016122);
  CHECK(m([](auto& r) { r.factor = 4, r.attention_factor = 0.5; }) == 0.5);
  CHECK(m([](auto& r) { r.factor = 1; }) == 1.0);
  CHECK(m([](auto& r) { r.factor = 0.25; }) == 1.0);
  CHECK(m([](auto& r) { r.max_position = 4096; }) == 1.0);
  CHECK(m([](auto& r) { r.max_position = 1024; }) == 1.0);
}

TEST_CASE("longrope_scaling throws for fields out of range and lists of the wrong length",
          "[frequencies][scaling]") {
  const auto reports = [](auto change, const char* text, const char* value) {
    longrope_scaling rule = longrope(1);
    change(rule);
    return rejected(rule, std::string("longrope_scaling: ") + text, value);
  };
  for (const auto& [bad, value] : not_positive) {
    const double x = bad;
    CHECK(reports([x](auto& r) { r.original_max_position = x; },
                  "original_max_position must be finite and above 1", value));
    CHECK(reports([x](auto& r) { r.max_position = x; }, "max_position must be positive", value));
    CHECK(reports([x](auto& r) { r.factor = x; }, "factor must be positive", value));
    CHECK(reports([x](auto& r) { r.attention_factor = x; }, "attention_factor must be positive", value));
    // Also in the list that is not used.
    CHECK(reports([x](auto& r) { r.short_factor[3] = x; }, "a factor must be positive", value));
    CHECK(reports([x](auto& r) { r.long_factor[0] = x; }, "a factor must be positive", value));
    if (x != 0)
      CHECK(reports([x](auto& r) { r.length = x; }, "length must be finite and not negative", value));
  }
  CHECK(reports([](auto& r) { r.original_max_position = 1; },
                "original_max_position must be finite and above 1", "got 1"));
  CHECK(reports([](auto& r) { r.short_factor.pop_back(); }, "short_factor must have one value per pair, 4",
                "got 3"));
  CHECK(reports([](auto& r) { r.long_factor.push_back(1); }, "long_factor must have one value per pair, 4",
                "got 5"));
  CHECK(reports([](auto& r) { r.long_factor.clear(); }, "long_factor must have one value per pair, 4",
                "got 0"));
}
