// SPDX-License-Identifier: MIT
#include <rope/frequencies/scaling.hpp>

#include <cmath>
#include <rope/frequencies/scaling_variants.hpp>

#include "support/catch.hpp"
#include "support/schedules.hpp"
#include "support/wide.hpp"

/// The schedules of released models.

namespace {

using namespace rope;
using namespace testing;

/// The bounds of a YaRN blend for an original schedule.
bool bounds_are(const yarn_scaling& rule, Index rotary_dim, double base, double low, double high,
                int digits) {
  schedule original = {.rotary_dim = rotary_dim, .base = base, .inv_freq = {}};
  original.restart(base);
  const auto got = rule.bounds(original);
  return rounds_to(static_cast<double>(got.low), low, digits) &&
         rounds_to(static_cast<double>(got.high), high, digits);
}

const yarn_scaling qwen25 = {.factor = 4, .original_max_position = 32768};
const yarn_scaling gpt_oss = {.factor = 32, .original_max_position = 4096, .truncate = false};
const yarn_scaling deepseek_v3 = {
    .factor = 40, .original_max_position = 4096, .mscale = 1.0, .mscale_all_dim = 1.0};

}  // namespace

// Golden, as the five below: recomputed in double precision from the formulas of Hugging Face transformers
// and the configs of the released models, nine digits.
TEST_CASE("the schedule of Qwen2.5 with YaRN is the published one", "[frequencies][scaling]") {
  const frequencies f(128, 1e6, qwen25);
  CHECK(lists(f, 0,
              "1 0.805842188 0.649381632 0.523299115 0.421696503 0.339820833 0.273841963 0.220673407 "
              "0.177827941 0.143301257 0.115478198 0.0930572041 0.0749894209 0.060429639 0.0486967525 "
              "0.0392418976 0.0316227766 0.0254829675 0.0205352503 0.016548171 0.0133352143 "
              "0.0107460783 0.00865964323 0.00697830585 0.00537532149 0.00413173802 0.00316842257 "
              "0.00242342238 0.00184827656 0.00140511248 0.00106436098 0.000802959728 0.000602941176 "
              "0.000450323576 0.000334240546 0.000246258407 0.000179841156 0.000129931495 9.2623017e-05 "
              "6.49039432e-05 4.44569853e-05 3.58253143e-05 2.88695496e-05 2.3264301e-05 1.87473552e-05 "
              "1.51074098e-05 1.21741881e-05 9.8104744e-06 7.90569415e-06 6.37074187e-06 5.13381257e-06 "
              "4.13704275e-06 3.33380358e-06 2.68651957e-06 2.16491081e-06 1.74457646e-06 "
              "1.40585331e-06 1.13289591e-06 9.12935318e-07 7.35681794e-07 5.92843426e-07 "
              "4.77738244e-07 3.84981632e-07 3.1023444e-07",
              9));
  CHECK(rounds_to(f.attention_factor(), 1.138629436, 10));
  CHECK(bounds_are(qwen25, 128, 1e6, 23, 40, 17));
  CHECK(bounds_are({.factor = 4, .original_max_position = 32768, .truncate = false}, 128, 1e6, 23.595947608,
                   39.650880710, 11));
}

TEST_CASE("the schedule of gpt-oss is the published one, without and with truncated bounds",
          "[frequencies][scaling]") {
  const frequencies f(64, 150000, gpt_oss);
  CHECK(lists(f, 0,
              "1 0.689044306 0.474782055 0.327145872 0.225418 0.155322989 0.107024421 0.0737445682 "
              "0.0508132748 0.0317056962 0.0193350011 0.0115920493 0.00679495949 0.00386035932 "
              "0.00209379238 0.0010526021 0.000456483919 0.000129318701 3.83088124e-05 2.6396469e-05 "
              "1.81883367e-05 1.25325698e-05 8.63549588e-06 5.95023926e-06 4.09997848e-06 "
              "2.82506683e-06 1.94659621e-06 1.34129104e-06 9.2420895e-07 6.36820915e-07 4.38797825e-07 "
              "3.02351143e-07",
              9));
  CHECK(rounds_to(f.attention_factor(), 1.3465735903, 11));
  CHECK(bounds_are(gpt_oss, 64, 150000, 8.092779116, 17.398024502, 10));
  const yarn_scaling truncated = {.factor = 32, .original_max_position = 4096};
  CHECK(bounds_are(truncated, 64, 150000, 8, 18, 17));
  CHECK(lists(frequencies(64, 150000, truncated), 9,
              "0.03162075 0.01945097 0.01179219 0.007015714 0.004069555 0.002277272 0.001206131 "
              "5.809475e-04 2.279478e-04",
              7));
}

TEST_CASE("the schedules of DeepSeek-V3 and V4 are the published ones", "[frequencies][scaling]") {
  const frequencies f(64, 1e4, deepseek_v3);
  CHECK(lists(f, 0,
              "1 0.749894209 0.562341325 0.421696503 0.316227766 0.237137371 0.177827941 0.133352143 "
              "0.1 0.0749894209 0.0562341325 0.0390069266 0.0268793601 0.0183781462 0.0124479559 "
              "0.00833450895 0.0055 0.00356199749 0.0022493653 0.00137051364 0.000790569415 "
              "0.000414990398 0.000177827941 3.33380358e-05 2.5e-05 1.87473552e-05 1.40585331e-05 "
              "1.05424126e-05 7.90569415e-06 5.92843426e-06 4.44569853e-06 3.33380358e-06",
              9));
  CHECK(f.attention_factor() == 1.0);
  CHECK(bounds_are(deepseek_v3, 64, 1e4, 10, 23, 17));
  CHECK(bounds_are({.factor = 40, .original_max_position = 4096, .truncate = false}, 64, 1e4, 10.472240810,
                   22.513440637, 11));
  const yarn_scaling v4 = {.factor = 16, .original_max_position = 65536};
  CHECK(bounds_are(v4, 64, 160000, 15, 25, 17));
  CHECK(lists(frequencies(64, 160000, v4), 15,
              "3.63553858e-03 2.265625e-03 1.39680129e-03 8.49689727e-04 5.08081963e-04 2.96977778e-04 "
              "1.68179989e-04 9.0867843e-05 4.54442323e-05 1.953125e-05 5.37231267e-06",
              9));
}

TEST_CASE("the softmax multiplier of DeepSeek is not part of the table", "[frequencies][scaling]") {
  const yarn_scaling v2 = {
      .factor = 40, .original_max_position = 4096, .mscale = 0.707, .mscale_all_dim = 0.707};
  CHECK(rounds_to(yarn_softmax_multiplier(deepseek_v3), 1.873854207, 10));
  CHECK(rounds_to(yarn_softmax_multiplier(deepseek_v3) / testing::sqrt(192.0), 0.135233779, 9));
  CHECK(rounds_to(yarn_softmax_multiplier(v2), 1.589626165, 10));
  CHECK(rounds_to(yarn_softmax_multiplier(v2) / testing::sqrt(192.0), 0.114721387, 9));
  for (const yarn_scaling& rule : {deepseek_v3, v2})
    CHECK(frequencies(64, 1e4, rule).attention_factor() == 1.0);
  CHECK(yarn_softmax_multiplier(qwen25) == 1.0);
  CHECK(yarn_softmax_multiplier({.factor = 40, .original_max_position = 4096, .mscale_all_dim = 0.0}) == 1.0);
}

TEST_CASE("the schedule of Llama 3.1 is the published one, as frequencies and as the divisors of a GGUF file",
          "[frequencies][scaling]") {
  const frequencies f(128, 5e5, llama3_scaling{.factor = 8});
  CHECK(lists(f, 0,
              "1 0.814617234 0.663601238 0.540581005 0.440366603 0.358730224 0.292227823 0.23805382 "
              "0.193922745 0.15797281 0.128687373 0.104830952 0.0853971003 0.0695659496 0.0566696214 "
              "0.0461640503 0.0376060309 0.0306345209 0.0249554087 0.020329106 0.0165604401 "
              "0.0134904199 0.0109895285 0.00895225934 0.00729266474 0.00594073038 0.00483942135 "
              "0.00394227603 0.00321144599 0.00216657076 0.00137189357 0.000856751413 0.000524846161 "
              "0.00031269375 0.000178507813 9.55621235e-05 7.78465527e-05 6.34151435e-05 5.16590687e-05 "
              "4.20823677e-05 3.4281022e-05 2.79259113e-05 2.27489286e-05 1.85316693e-05 1.50962172e-05 "
              "1.22976387e-05 1.00178684e-05 8.16072825e-06 6.64786987e-06 5.41546937e-06 "
              "4.41153467e-06 3.59371217e-06 2.92749987e-06 2.38479185e-06 1.94269254e-06 "
              "1.58255082e-06 1.28917317e-06 1.05018268e-06 8.55496913e-07 6.96902529e-07 5.6770881e-07 "
              "4.62465381e-07 3.76732269e-07 3.06892599e-07",
              9));

  // A GGUF file contains the divisors of the original schedule.
  const frequencies original(128, 5e5);
  const list divisors = {1, 1, 1, 1.207484, 1.553415, 2.026313, 2.69453, 3.684253, 5.257327, 8, 8};
  pair_factor_scaling tensor = {.factors = list(64, 1.0)};
  for (Index i = 0; i < 64; ++i) {
    const double divisor = original.inv_freq()(i, 0) / f.inv_freq()(i, 0);
    CHECK(rounds_to(divisor, i < 26 ? 1 : i > 36 ? 8 : divisors[static_cast<std::size_t>(i - 26)], 7));
    tensor.factors[static_cast<std::size_t>(i)] = divisor;
  }
  const frequencies imported(128, 5e5, tensor);
  for (Index i = 0; i < 64; ++i)  // the divisor and the quotient are each rounded once
    CHECK(tolerance::error_in_ulp(imported.inv_freq()(i, 0),
                                  static_cast<testing::wide>(f.inv_freq()(i, 0))) <= 3);
}

TEST_CASE("the schedule of Llama 3.2 is the published one", "[frequencies][scaling]") {
  const frequencies f(64, 5e5, llama3_scaling{.factor = 32});
  CHECK(lists(f, 13,
              "0.00483942135 0.00321144599 0.00129054793 0.000429556797 9.7082878e-05 1.94616382e-05 "
              "1.29147672e-05 8.57025549e-06",
              9));
  CHECK(lists(f, 31, "9.41830673e-08", 9));
}
