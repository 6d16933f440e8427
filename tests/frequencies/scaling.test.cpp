// SPDX-License-Identifier: MIT
#include <rope/frequencies/scaling.hpp>

#include <cmath>
#include <rope/frequencies/scaling_variants.hpp>
#include <stdexcept>
#include <utility>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/schedules.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using namespace testing;

}  // namespace

// Golden: Hugging Face transformers, tests/utils/test_modeling_rope_utils.py (e42e4a4), head_dim 128,
// rope_theta 1e4, max_position_embeddings 2048, five digits.
TEST_CASE("the schedules of Hugging Face's tests agree to all their digits", "[frequencies][scaling]") {
  const frequencies original(128, 1e4);

  SECTION("linear") {
    for (const double factor : {2.0, 10.0, 20.0}) {
      const frequencies f(128, 1e4, linear_scaling{.factor = factor});
      CHECK(divided(f, original, 0, 64, factor));
      CHECK(f.attention_factor() == 1.0);
    }
  }
  SECTION("dynamic") {
    const frequencies f(128, 1e4, dynamic_ntk_scaling{.factor = 10, .max_position = 2048, .length = 16384});
    CHECK(lists(f, 0,
                "1.0000e+00 8.0931e-01 6.5498e-01 5.3008e-01 4.2900e-01 3.4720e-01 2.8099e-01 2.2741e-01 "
                "1.8404e-01 1.4895e-01 1.2055e-01 9.7558e-02 7.8955e-02 6.3899e-02 5.1714e-02 4.1853e-02 "
                "3.3872e-02 2.7413e-02 2.2185e-02 1.7955e-02",
                5));
    CHECK(lists(f, 60, "3.0683e-06 2.4832e-06 2.0097e-06 1.6265e-06", 5));
    CHECK(f.attention_factor() == 1.0);
    CHECK(is_identity(128, 1e4, dynamic_ntk_scaling{.factor = 10, .max_position = 2048, .length = 1}));
  }
  SECTION("yarn") {
    const yarn_scaling rule = {.factor = 10, .original_max_position = 2048};
    const frequencies f(128, 1e4, rule);
    CHECK((f.inv_freq().topRows(17) == original.inv_freq().topRows(17)).all());
    CHECK(lists(f, 17,
                "8.3479e-02 6.9590e-02 5.7925e-02 4.8136e-02 3.9931e-02 3.3061e-02 2.7315e-02 2.2515e-02 "
                "1.8512e-02 1.5177e-02 1.2403e-02 1.0101e-02 8.1924e-03 6.6143e-03 5.3120e-03 4.2400e-03 "
                "3.3599e-03 2.6396e-03 2.0520e-03 1.5746e-03 1.1882e-03 8.7713e-04 6.2810e-04 4.3007e-04 "
                "2.7384e-04",
                5));
    CHECK(divided(f, original, 41, 64, 10));
    CHECK(lists(f, 63, "1.1548e-05", 5));
    for (const auto& [factor, m] :
         {std::pair(2.0, 1.0693147), std::pair(10.0, 1.2302585), std::pair(20.0, 1.2995732)})
      CHECK(rounds_to(frequencies(128, 1e4, yarn_scaling{.factor = factor, .original_max_position = 2048})
                          .attention_factor(),
                      m, 8));
  }
  SECTION("llama3") {
    const frequencies f(128, 1e4, llama3_scaling{.factor = 10, .original_max_position = 2048});
    CHECK((f.inv_freq().topRows(31) == original.inv_freq().topRows(31)).all());
    CHECK(lists(f, 30,
                "1.3335e-02 1.0730e-02 7.7785e-03 5.6009e-03 3.9991e-03 2.8248e-03 1.9675e-03 1.3449e-03 "
                "8.9549e-04 5.7363e-04 3.4539e-04 2.7384e-04",
                5));
    CHECK(divided(f, original, 41, 64, 10));
    CHECK(f.attention_factor() == 1.0);
  }
}

// Golden: recomputed in double precision from the formulas of Hugging Face transformers.
TEST_CASE("dynamic_ntk_scaling agrees with published values to sixteen digits", "[frequencies][scaling]") {
  for (const double length : {1024.0, 2048.0, 4096.0}) {
    const frequencies f(128, 1e4, dynamic_ntk_scaling{.factor = 2, .max_position = 2048, .length = length});
    CHECK(rounds_to(f.inv_freq()(1, 0), length > 2048 ? 0.8509942913412162 : 0.8659643233600653, 16));
    CHECK(rounds_to(f.inv_freq()(63, 0), length > 2048 ? 3.849273282298194e-05 : 1.1547819846894582e-04, 16));
  }
}

TEST_CASE("ntk_scaling divides the frequency of the last pair by exactly its factor",
          "[frequencies][scaling]") {
  // Golden: lucidrains/rotary-embedding-torch, freqs_for = 'lang', theta_rescale_factor = 1 and 4.
  CHECK(lists(frequencies(8, 1e4), 0, "1 0.1 0.01 0.001", 15));
  CHECK(lists(frequencies(8, 1e4, ntk_scaling{4}), 0, "1 0.06299605 0.003968503 0.00025", 7));
  for (const double factor : {1.5, 8.0, 1000.0}) {
    const frequencies f(128, 5e5, ntk_scaling{.factor = factor}), original(128, 5e5);
    CHECK(f.inv_freq()(0, 0) == 1.0);
    CHECK(divided(f, original, 63, 64, factor));
  }
}

TEST_CASE("dynamic_ntk_scaling changes nothing up to max_position and every pair but the first above it",
          "[frequencies][scaling]") {
  for (const double length : {0.0, 1.0, 2047.0, 2048.0})
    CHECK(is_identity(128, 1e4, dynamic_ntk_scaling{.factor = 4, .max_position = 2048, .length = length}));
  const frequencies f(128, 1e4, dynamic_ntk_scaling{.factor = 4, .max_position = 2048, .length = 2049});
  const frequencies original(128, 1e4);
  CHECK((f.inv_freq().bottomRows(63) < original.inv_freq().bottomRows(63)).all());
  // It is ntk_scaling by s L / max_position - (s - 1).
  const frequencies four(128, 1e4, dynamic_ntk_scaling{.factor = 3, .max_position = 2048, .length = 4096});
  CHECK((four.inv_freq() == frequencies(128, 1e4, ntk_scaling{4}).inv_freq()).all());
}

TEST_CASE("a factor of 1 changes nothing", "[frequencies][scaling]") {
  for (const Index dim : {4, 64, 96, 128})
    for (const double base : {1e4, 5e5, 1e6}) {
      CAPTURE(dim, base);
      CHECK(is_identity(dim, base, linear_scaling{1}));
      CHECK(is_identity(dim, base, pair_factor_scaling{list(static_cast<std::size_t>(dim / 2), 1.0)}));
      CHECK(is_identity(dim, base, ntk_scaling{1}));
      CHECK(is_identity(dim, base, dynamic_ntk_scaling{.factor = 1, .max_position = 64, .length = 64}));
      CHECK(is_identity(dim, base, llama3_scaling{.factor = 1}));
      CHECK(is_identity(dim, base, yarn_scaling{.factor = 1, .original_max_position = 4096}));
      CHECK(is_identity(dim, base,
                        yarn_scaling{.factor = 1, .original_max_position = 4096, .truncate = false}));
      CHECK(is_identity(dim, base, proportional_scaling{.partial_rotary_factor = 1}));
    }
}

TEST_CASE("llama3_scaling with equal factors is a step that keeps the boundary", "[frequencies][scaling]") {
  // Golden: Llama 4 Scout, factor 16, low = high = 1.
  const llama3_scaling scout = {.factor = 16, .low_freq_factor = 1, .high_freq_factor = 1};
  const frequencies f(128, 5e5, scout), original(128, 5e5);
  CHECK((f.inv_freq().topRows(35) == original.inv_freq().topRows(35)).all());
  CHECK(lists(f, 34, "9.38473870e-04 4.77810618e-05", 9));
  CHECK(divided(f, original, 35, 64, 16));
  CHECK(lists(f, 63, "1.53446299e-07", 9));

  // Exactly L0 / low tokens long, and the next shorter and longer wavelengths.
  schedule edge = {.rotary_dim = 6, .base = 1e4, .inv_freq = {}};
  edge.restart(1e4);
  const wide_real boundary = 2 * wide_real::pi() / 8192;
  edge.inv_freq.map() << boundary + boundary * 0x1p-120, boundary, boundary - boundary * 0x1p-120;
  const auto before = edge.inv_freq;
  scout.apply(edge);
  CHECK(edge.inv_freq(0) == before(0));
  CHECK(edge.inv_freq(1) == before(1));
  CHECK(edge.inv_freq(2) == before(2) / 16);
}

TEST_CASE("proportional_scaling stops the low-frequency pairs and keeps the pairing of the whole head",
          "[frequencies][scaling]") {
  CHECK(lists(frequencies(16, 1e6, proportional_scaling{.partial_rotary_factor = 0.25}), 0,
              "1 0.1778279 0 0 0 0 0 0", 7));
  const frequencies gemma4(512, 1e6, proportional_scaling{.partial_rotary_factor = 0.25});
  CHECK(lists(gemma4, 0, "1 0.9474635 0.8976871 0.8505258", 7));
  CHECK(lists(gemma4, 62, "0.03522695 0.03337625", 7));
  CHECK((gemma4.inv_freq().topRows(64) == frequencies(512, 1e6).inv_freq().topRows(64)).all());
  CHECK((gemma4.inv_freq().bottomRows(192) == 0.0).all());
  const frequencies divided_by_8(512, 1e6, proportional_scaling{.partial_rotary_factor = 0.25, .factor = 8});
  CHECK((divided_by_8.inv_freq() == gemma4.inv_freq() / 8).all());
  // floor: 0.35 of 16 channels are 2.8 pairs, 0.01 of them none.
  CHECK(lists(frequencies(16, 1e6, proportional_scaling{0.35}), 1, "0.1778279 0", 7));
  CHECK((frequencies(16, 1e6, proportional_scaling{0.01}).inv_freq() == 0.0).all());
}

TEST_CASE("pair_factor_scaling divides every pair by its own factor", "[frequencies][scaling]") {
  const frequencies original(8, 1e4), f(8, 1e4, pair_factor_scaling{.factors = {1, 0.5, 8, 1e30}});
  const double divisors[] = {1, 0.5, 8, 1e30};
  for (Index i = 0; i < 4; ++i) CHECK(divided(f, original, i, i + 1, divisors[i]));
  CHECK(f.attention_factor() == 1.0);
}

TEST_CASE("every scaling throws for a field out of its range with the rule and the value",
          "[frequencies][scaling]") {
  for (const auto& [bad, value] : not_positive) {
    CHECK(rejected(linear_scaling{bad}, "linear_scaling: factor must be positive", value));
    CHECK(rejected(ntk_scaling{bad}, "ntk_scaling: factor must be positive", value));
    CHECK(rejected(dynamic_ntk_scaling{bad, 64, 64}, "dynamic_ntk_scaling: factor must be positive", value));
    CHECK(rejected(llama3_scaling{bad}, "llama3_scaling: factor must be positive", value));
    CHECK(rejected(proportional_scaling{1, bad}, "proportional_scaling: factor must be positive", value));
    CHECK(rejected(dynamic_ntk_scaling{2, bad, 64}, "dynamic_ntk_scaling: max_position must be positive",
                   value));
    CHECK(rejected(pair_factor_scaling{{1, 1, 1, bad}}, "pair_factor_scaling: a factor must be positive",
                   value));
    CHECK(rejected(llama3_scaling{2, bad}, "llama3_scaling: low_freq_factor must be positive", value));
    CHECK(rejected(llama3_scaling{2, 1, bad},
                   "llama3_scaling: high_freq_factor must be finite and at least low_freq_factor", value));
    CHECK(rejected(llama3_scaling{2, 1, 4, bad}, "llama3_scaling: original_max_position must be positive",
                   value));
    CHECK(rejected(proportional_scaling{bad}, "proportional_scaling: partial_rotary_factor must be in (0, 1]",
                   value));
    if (bad != 0)
      CHECK(rejected(dynamic_ntk_scaling{2, 64, bad},
                     "dynamic_ntk_scaling: length must be finite and not negative", value));
  }
  CHECK(rejected(llama3_scaling{2, 4, 1},
                 "llama3_scaling: high_freq_factor must be finite and at least low_freq_factor", "got 1"));
  CHECK(rejected(proportional_scaling{1.25}, "proportional_scaling: partial_rotary_factor must be in (0, 1]",
                 "got 1.25"));
  CHECK(rejected(pair_factor_scaling{{1, 1, 1}},
                 "pair_factor_scaling: factors must have one value per pair, 4", "got 3"));
  CHECK(rejected(pair_factor_scaling{list(5, 1.0)},
                 "pair_factor_scaling: factors must have one value per pair, 4", "got 5"));
  CHECK(rejected(pair_factor_scaling{}, "pair_factor_scaling: factors must have one value per pair, 4",
                 "got 0"));
  // With a single pair there is no lowest frequency to scale.
  CHECK_NOTHROW(frequencies(2, 1e4, dynamic_ntk_scaling{2, 64, 64}));
  CHECK(throws_saying<std::invalid_argument>(
      [] {
        frequencies f(2, 1e4, dynamic_ntk_scaling{2, 64, 65});
      },
      "dynamic_ntk_scaling: rotary_dim must be at least 4", "got 2"));
  CHECK(throws_saying<std::invalid_argument>([] { frequencies f(2, 1e4, ntk_scaling{2}); },
                                             "ntk_scaling: rotary_dim must be at least 4", "got 2"));
}
