// SPDX-License-Identifier: MIT
#include <rope/models/describe.hpp>

#include <cmath>
#include <cstddef>
#include <rope/models/gguf.hpp>
#include <rope/models/hugging_face.hpp>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/model_parts.hpp"
#include "support/schedules.hpp"

namespace {

using rope::compare_models;
using rope::describe;
using rope::import_gguf;
using rope::import_hugging_face;
using rope::Index;
using rope::pair_census_of;
using testing::config;
using testing::gguf;
using testing::has_warning;
using testing::json;
using testing::rounds_to;

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) UNSCOPED_INFO("no \"" << part << "\" in\n" << text);
  return found;
}

rope::pair_census census_of(const char* name) {
  return pair_census_of(import_hugging_face(config(name)).groups()[0]);
}

/// The divisors that a converter stores as floats in rope_freqs.
std::vector<double> rope_freqs(const rope::frequencies& scaled, const rope::frequencies& original) {
  std::vector<double> factors;
  for (Index i = 0; i < scaled.pairs(); ++i)
    factors.push_back(
        static_cast<double>(static_cast<float>(original.inv_freq()(i, 0) / scaled.inv_freq()(i, 0))));
  return factors;
}

/// The metadata of Llama 3.1 as converted from `model`.
testing::gguf_file converted_llama31(const rope::model_rope& model) {
  return gguf("llama", {{".embedding_length", 4096},
                        {".attention.head_count", 32},
                        {".rope.freq_base", 5e5},
                        {".rope.dimension_count", 128},
                        {".context_length", 131072},
                        {"rope_freqs.weight",
                         rope_freqs(model.groups()[0].frequencies, rope::frequencies(128, 5e5))}});
}

}  // namespace

TEST_CASE("the pair counts of a description follow from its rule", "[models][describe]") {
  const auto llama = census_of("llama_3_1_8b");
  CHECK(llama.kept == 29);
  CHECK(llama.blended == 6);
  CHECK(llama.interpolated == 29);
  CHECK(llama.stopped == 0);
  CHECK(rounds_to(llama.largest_divisor, 8, 12));
  CHECK(rounds_to(llama.shortest_wavelength, 6.283185307, 10));
  CHECK(rounds_to(llama.longest_wavelength, 20473564.14, 10));

  const auto scout = census_of("llama_4_scout");
  CHECK(scout.kept == 35);
  CHECK(scout.blended == 0);
  CHECK(scout.interpolated == 29);

  const auto qwen = census_of("qwen2_5_7b_yarn");
  CHECK(qwen.kept == 24);  // pair 23 is at the boundary
  CHECK(qwen.blended == 16);
  CHECK(qwen.interpolated == 24);

  using change = rope::pair_change;
  CHECK(std::vector<change>(qwen.changes.begin() + 23, qwen.changes.begin() + 25) ==
        std::vector<change>{change::kept, change::blended});
  CHECK(qwen.changes[39] == change::blended);
  CHECK(qwen.changes[40] == change::interpolated);
  CHECK(qwen.changes.size() == 64);

  const auto original = census_of("llama_3_8b");
  CHECK(original.kept == 64);
  CHECK(original.largest_divisor == 1);

  const auto phi = census_of("phi_3_5_mini");
  CHECK(phi.kept == 1);
  CHECK(phi.blended == 47);
  CHECK(phi.interpolated == 0);

  const auto gemma4 = pair_census_of(
      import_hugging_face(
          json{{"model_type", "gemma4"},
               {"head_dim", 512},
               {"rope_parameters", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}}}})
          .groups()[0]);
  CHECK(gemma4.kept == 64);
  CHECK(gemma4.stopped == 192);
  CHECK(gemma4.changes.back() == rope::pair_change::stopped);
}

TEST_CASE("frequencies below 0 are kept, and described as the other direction", "[models][describe]") {
  const auto model = import_hugging_face(
      json{{"model_type", "nanochat"}, {"head_dim", 8}, {"rope_parameters", {{"rope_theta", 1e4}}}});
  CHECK(model.groups()[0].frequencies.inv_freq()(0, 0) == -1);
  const rope::pair_census census = pair_census_of(model.groups()[0]);
  CHECK(census.kept == 4);
  CHECK(census.largest_divisor == 1);
  CHECK(contains(describe(model), "direction               by minus the position"));
  CHECK_FALSE(describe(import_hugging_face(config("llama_3_1_8b"))).find("direction") != std::string::npos);
}

TEST_CASE("the description has every derived number", "[models][describe]") {
  const std::string qwen = describe(import_hugging_face(config("qwen2_5_7b_yarn")));
  for (const char* part :
       {"qwen2 (Hugging Face)", "half_split", "0 to 127 of 128 (64 pairs)", "yarn", "1000000",
        "low                     23", "high                    40", "1.138629436",
        "24 kept: 0 to 23; 16 blended: 24 to 39; 24 interpolated (slowed by 4): 40 to 63",
        "36 of 64 pairs make one within the longest context", "rotate<half_split>(heads, table)",
        "6.283185307 to 20253023.18 tokens", "32768 tokens by the file, 131072 by its YaRN factor"})
    CHECK(contains(qwen, part));
  const std::string deepseek = describe(import_hugging_face(config("deepseek_v3")));
  for (const char* part : {"128 to 191 of 192", "1.873854207 / sqrt(192) = 0.1352337789", "interleaved",
                           "rotate<interleaved>(heads.channels(128, 64), table)"})
    CHECK(contains(deepseek, part));
  CHECK(contains(describe(import_hugging_face(config("gemma_3_4b"))), "sliding_attention (29 of 34 layers)"));
  CHECK(contains(describe(import_hugging_face(config("llama_4_scout"))), "3, 7, 11, 15"));
  CHECK(contains(describe(import_hugging_face(config("qwen2_vl_7b"))), "16, 24, 24 (in blocks)"));
  CHECK(contains(describe(import_hugging_face(config("phi_3_5_mini"))),
                 "1 kept: 0; 47 changed (slowed by up to 2.839999437): 1 to 47"));
  const std::string llama = describe(import_hugging_face(config("llama_3_1_8b")));
  for (const char* part : {"kept_below_wavelength   2048", "slowed_above_wavelength 8192",
                           "20473564.14 tokens (by the base alone: to 2559195.517)\n"})
    CHECK(contains(llama, part));
  CHECK(contains(describe(import_hugging_face(config("gemma_3_4b"))),
                 "71 of 128 pairs make one within the sliding window"));
  CHECK_FALSE(contains(describe(import_hugging_face(config("llama_3_8b"))), "by the base alone"));
}

TEST_CASE("frequencies raised by a factor below 1 are not described as slowed", "[models][describe]") {
  json config_of = config("qwen2_5_7b_yarn");
  config_of["rope_scaling"]["factor"] = 0.5;
  const auto yarn = import_hugging_face(config_of);
  CHECK(pair_census_of(yarn.groups()[0]).smallest_divisor == testing::Approx(0.5));
  CHECK(pair_census_of(yarn.groups()[0]).largest_divisor == 1);
  CHECK(
      contains(describe(yarn), "24 kept: 0 to 23; 40 changed (frequencies divided by 0.5 to 1): 24 to 63\n"));
  config_of["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 0.5}};
  CHECK(contains(describe(import_hugging_face(config_of)),
                 "64 interpolated (frequencies divided by 0.5): 0 to 63\n"));
}

TEST_CASE("the description has the attention of every layer, or that it is unknown", "[models][describe]") {
  const auto windows = [](const rope::model_rope& model) {
    std::vector<std::string> lines;
    const std::string text = describe(model), label = "\n  window                  ";
    for (std::size_t at = 0; (at = text.find(label, at)) != std::string::npos; at += label.size())
      lines.push_back(text.substr(at + label.size(), text.find('\n', at + 1) - at - label.size()));
    return lines;
  };
  using texts = std::vector<std::string>;
  rope::model_rope model = import_hugging_face(config("gemma_3_4b"));
  CHECK(windows(model) == texts{"none, layers 5, 11, ..., 29", "1024 tokens, the other 29 layers"});
  CHECK(contains(describe(model), "  attention               causal\n"));
  CHECK(windows(import_hugging_face(config("llama_3_8b"))) == texts{"none, every layer"});
  CHECK(windows(import_hugging_face(config("mistral_7b"))) == texts{"4096 tokens, every layer"});
  CHECK(windows(import_hugging_face(config("llama_4_scout"))) ==
        texts{"none, layers 3, 7, ..., 47", "not known from this file, the other 36 layers"});
  CHECK(contains(describe(import_hugging_face(config("modernbert_base"))),
                 "  attention               both ways: a token sees those after it, too\n"));
  CHECK(contains(describe(import_hugging_face(config("gpt_oss_20b"))), "attention_options::sink_logits\n"));
  CHECK_FALSE(contains(describe(model), "sink_logits"));

  model.windows = {rope::not_known_window};
  CHECK(windows(model) == texts{"not known from this file, every layer"});
  model.windows = {};
  CHECK(windows(model) == texts{"not known from this file"});
  model.windows = {8, 8, 0, 16, 16, 16, 16, 8, 0, 8, 8, 16};
  CHECK(windows(model) ==
        texts{"none, layers 2, 8", "8 tokens, layers 0, 1, 7, 9, 10", "16 tokens, the other 5 layers"});
  model.windows = {8, 8, 8, 0, 8, 8, 8, 8, -1};
  CHECK(windows(model) ==
        texts{"none, layer 3", "not known from this file, layer 8", "8 tokens, the other 7 layers"});
  // Four layers with equal steps are abbreviated, three are not, and consecutive layers are no steps.
  model.windows = {0, 8, 0, 8, 0, 8, 8, 8};
  CHECK(windows(model)[0] == "none, layers 0, 2, 4");
  model.windows = {0, 0, 0, 0, 0, 8, 8, 8};
  CHECK(windows(model)[0] == "8 tokens, layers 5 to 7");
  model.windows = {1, 8, 1, 8, 1, 8, 1, 8, 8, 1, 8};
  CHECK(windows(model)[0] == "1 tokens, layers 0, 2, 4, 6, 9");
}

TEST_CASE("the description of a model without rotating layers names its other position encoding",
          "[models][describe]") {
  constexpr auto without_rope = rope::model_without_rope::describe;
  const auto bert = import_gguf(
      gguf("bert", {{".context_length", 512}, {".attention.head_count", 12}, {".block_count", 24}}),
      {.without_rope = without_rope});
  CHECK(describe(bert) ==
        "bert (GGUF)\n"
        "  longest context         512 tokens\n"
        "  heads                   12 for queries, 12 for keys\n"
        "  rotation                none in any layer: this model has learned positions\n");
  const auto rotating = import_hugging_face(
      json{{"model_type", "nomic_bert"}, {"hidden_size", 768}, {"num_attention_heads", 12}});
  const std::vector<std::string> differences = {
      "positions are encoded by learned positions in GGUF and by rotation in Hugging Face"};
  CHECK(compare_models(bert, rotating) == differences);
  CHECK(compare_models(rotating, bert).size() == 1);
  CHECK(compare_models(bert, bert).empty());
}

TEST_CASE("the description of a group counts pairs that do not form a range", "[models][describe]") {
  auto group = import_hugging_face(config("llama_3_8b")).groups()[0];
  Eigen::ArrayXXd inv_freq = group.frequencies.inv_freq();
  inv_freq(3, 0) = inv_freq(9, 0) = 0;
  group.frequencies = rope::frequencies::custom(inv_freq);
  CHECK(contains(describe(group), "62 kept; 2 do not rotate\n"));
  inv_freq.setZero();
  group.frequencies = rope::frequencies::custom(inv_freq);
  CHECK(contains(describe(group), "64 do not rotate: 0 to 63"));
  CHECK(contains(describe(group), "no pair rotates"));
  CHECK_FALSE(contains(describe(group), "full turns"));
}

TEST_CASE("a model does not differ from itself", "[models][describe]") {
  for (const char* name : {"llama_3_1_8b", "gemma_3_4b", "deepseek_v3", "phi_3_5_mini", "qwen2_vl_7b"})
    CHECK(compare_models(import_hugging_face(config(name)), import_hugging_face(config(name))).empty());
  CHECK(compare_models(import_hugging_face(config("gemma_3_4b")),
                       import_hugging_face(config("gemma_3_4b_rope_parameters")))
            .empty());
}

TEST_CASE("a tolerance is relative to the larger number", "[models][describe]") {
  const auto of_base = [](double base) {
    return import_hugging_face(json{{"model_type", "llama"},
                                    {"num_hidden_layers", 2},
                                    {"num_attention_heads", 4},
                                    {"head_dim", 64},
                                    {"rope_theta", base}});
  };
  CHECK(compare_models(of_base(10000), of_base(20000), 0.5).empty());
  CHECK_FALSE(compare_models(of_base(10000), of_base(20000), 0.499).empty());
}

TEST_CASE("Llama 3.1 in GGUF differs only in its layout, as expected", "[models][describe]") {
  const auto original = import_hugging_face(config("llama_3_1_8b"));
  const auto converted = import_gguf(converted_llama31(original));
  const auto found = compare_models(original, converted);
  REQUIRE(found.size() == 1);
  CHECK(has_warning(found, "layout is half_split in Hugging Face and interleaved in GGUF", "expected"));
  REQUIRE(compare_models(converted, original).size() == 1);
  CHECK(has_warning(compare_models(converted, original), "layout", "expected"));
  for (const auto& [i, divisor] : std::vector<std::pair<std::size_t, double>>{{28, 1},
                                                                              {29, 1.207484},
                                                                              {30, 1.553415},
                                                                              {31, 2.026313},
                                                                              {32, 2.69453},
                                                                              {33, 3.684253},
                                                                              {34, 5.257327},
                                                                              {35, 8}})
    CHECK(
        rounds_to(rope_freqs(original.groups()[0].frequencies, rope::frequencies(128, 5e5))[i], divisor, 7));
}

TEST_CASE("Qwen 2.5 with YaRN is equal in GGUF", "[models][describe]") {
  const auto converted = import_gguf(gguf("qwen2", {{".embedding_length", 3584},
                                                    {".attention.head_count", 28},
                                                    {".rope.freq_base", 1e6},
                                                    {".rope.scaling.type", "yarn"},
                                                    {".rope.scaling.factor", 4},
                                                    {".context_length", 32768},
                                                    {".rope.scaling.original_context_length", 32768}}));
  CHECK(compare_models(import_hugging_face(config("qwen2_5_7b_yarn")), converted, 0).empty());
}

TEST_CASE("gpt-oss in GGUF differs in pairs 9 to 17, most in the last", "[models][describe]") {
  const auto converted = import_gguf(gguf("gpt-oss", {{".attention.key_length", 64},
                                                      {".block_count", 24},
                                                      {".attention.sliding_window", 128},
                                                      {".rope.freq_base", 150000},
                                                      {".rope.scaling.type", "yarn"},
                                                      {".rope.scaling.factor", 32},
                                                      {".rope.scaling.original_context_length", 4096}}));
  const auto found = compare_models(import_hugging_face(config("gpt_oss_20b")), converted);
  REQUIRE(found.size() == 3);
  CHECK(has_warning(found, "low is 8.092779116 in Hugging Face and 8 in GGUF"));
  CHECK(has_warning(found, "high is 17.398", "and 18 in GGUF"));
  CHECK(has_warning(found, "9 of 32 pairs, within 9 to 17", "most at pair 17", "0.0001293187", "0.0002279477",
                    "76.2"));
}

TEST_CASE("Gemma 3 is equal in GGUF, layer by layer", "[models][describe]") {
  json entries = {{".attention.key_length", 256},      {".rope.freq_base", 1e6},
                  {".rope.scaling.type", "linear"},    {".rope.scaling.factor", 8},
                  {".attention.sliding_window", 1024}, {".block_count", 34}};
  const auto original = import_hugging_face(config("gemma_3_4b"));
  CHECK(compare_models(original, import_gguf(gguf("gemma3", entries)), 0).empty());
  CHECK(has_warning(compare_models(original, import_gguf(gguf("gemma3n", entries))),
                    "layer 4 is of type sliding_attention in Hugging Face and full_attention in GGUF"));
}

TEST_CASE("the layers of Llama 4 without rotation are equal in GGUF", "[models][describe]") {
  const auto original = import_hugging_face(config("llama_4_scout"));
  json entries = {
      {".attention.key_length", 128},
      {".rope.freq_base", 5e5},
      {".block_count", 48},
      {"rope_freqs.weight", rope_freqs(original.groups()[0].frequencies, rope::frequencies(128, 5e5))}};
  CHECK(compare_models(original, import_gguf(gguf("llama4", entries))).empty());
  entries[".block_count"] = 8;
  CHECK(has_warning(compare_models(original, import_gguf(gguf("llama4", entries))),
                    "layers without rotation are 3, 7, 11, 15", "and 3, 7 in GGUF"));
}

TEST_CASE("DeepSeek-V3 is equal in GGUF", "[models][describe]") {
  const auto converted = import_gguf(gguf("deepseek2", {{".attention.key_length", 192},
                                                        {".rope.dimension_count", 64},
                                                        {".rope.scaling.type", "yarn"},
                                                        {".rope.scaling.factor", 40},
                                                        {".rope.scaling.original_context_length", 4096},
                                                        {".rope.scaling.yarn_log_multiplier", 0.1}}));
  CHECK(compare_models(import_hugging_face(config("deepseek_v3")), converted).empty());
}

TEST_CASE("a difference in visibility is reported", "[models][describe]") {
  const auto original = import_hugging_face(config("gpt_oss_20b"));
  const auto changed_by = [&](auto change) {
    auto other = original;
    other.source = "GGUF";
    change(other);
    return compare_models(original, other);
  };
  using model = rope::model_rope;
  const auto only = [](const std::vector<std::string>& found, const std::string& text) {
    return found.size() == 1 && found.front() == text;
  };
  REQUIRE(original.windows.size() == 24);
  REQUIRE(original.windows[0] == 128);
  REQUIRE(original.windows[1] == 0);
  REQUIRE(original.sink_logits);
  CHECK(changed_by([](model&) {}).empty());
  CHECK(only(changed_by([](model& m) { m.windows[4] = 127; }),
             "the window is 128 tokens in Hugging Face and 127 tokens in GGUF: layer 4"));
  CHECK(only(changed_by([](model& m) { m.windows = {0}; }),
             "the window is 128 tokens in Hugging Face and none in GGUF: layers 0, 2, ..., 22"));
  CHECK(changed_by([](model& m) { m.windows = {64}; }).size() == 2);
  CHECK(changed_by([](model& m) { m.windows = {rope::not_known_window}; }).empty());
  CHECK(changed_by([](model& m) { m.windows = {128, 0, rope::not_known_window}; }).empty());
  CHECK(changed_by([](model& m) { m.windows = {}; }).empty());
  CHECK(changed_by([](model& m) { m.windows = {128, 0}; }).empty());
  CHECK(only(changed_by([](model& m) { m.causal = false; }),
             "attention is causal in Hugging Face and both ways in GGUF"));
  CHECK(only(changed_by([](model& m) { m.sink_logits = false; }),
             "sink logits are in the checkpoint of Hugging Face and not in that of GGUF"));
  CHECK(only(changed_by([](model& m) {
               m.layers_without_sinks = {1, 2};
             }),
             "layers without sink logits are none in Hugging Face and 1, 2 in GGUF"));
  CHECK(changed_by([](model& m) {
          m.layers_without_sinks = {1, 2};
          m.windows = {rope::not_known_window};
        }).size() == (original.layers().empty() ? 0 : 1));
  CHECK(only(changed_by([](model& m) { m.keys_are_values = true; }),
             "keys are values too in GGUF and not in Hugging Face"));
  CHECK(only(changed_by([](model& m) { m.window_of_sliding = 127; }),
             "layers that slide have the window 128 tokens in Hugging Face and 127 tokens in GGUF"));
  CHECK(changed_by([](model& m) { m.window_of_sliding = rope::not_known_window; }).empty());

  auto of_8192 = import_hugging_face(config("llama_4_scout")), of_4096 = of_8192;
  of_4096.attention_chunk = 4096;
  CHECK(only(compare_models(of_8192, of_4096),
             "layers attend in chunks of 8192 tokens in Hugging Face and of 4096 in Hugging Face"));
  of_4096.attention_chunk = 0;  // unknown
  CHECK(compare_models(of_8192, of_4096).empty());
  CHECK(describe(of_8192).find("8192 tokens, in layers that rotate: key_ranges") != std::string::npos);

  auto narrow = import_hugging_face(config("llama_3_8b")), wide = narrow;
  narrow.windows = {512};
  CHECK(only(compare_models(narrow, wide),
             "the window is 512 tokens in Hugging Face and none in Hugging Face: every layer"));
  wide.windows = {512, 256};
  CHECK(only(compare_models(wide, narrow),
             "the window is 256 tokens in Hugging Face and 512 tokens in Hugging Face: layer 1"));
}

TEST_CASE("every difference is reported with both numbers", "[models][describe]") {
  const auto original = import_hugging_face(config("gemma_3_4b"));
  const auto changed_by = [&](auto change) {
    testing::model_parts other(original);
    other.source = "GGUF";
    change(other);
    return compare_models(original, other.model());
  };
  using model = testing::model_parts;
  CHECK(has_warning(changed_by([](model& m) { m.groups[1].layout = rope::layout_kind::interleaved; }),
                    "sliding_attention: layout"));
  CHECK(has_warning(changed_by([](model& m) { m.groups[0].head_dim = 128; }), "head_dim is 256", "128"));
  CHECK(has_warning(changed_by([](model& m) { m.groups[0].first_channel = 64; }),
                    "first rotated channel is 0", "64"));
  CHECK(has_warning(changed_by([](model& m) { m.groups[0].base = 5e5; }), "base is 1000000", "500000"));
  CHECK(has_warning(changed_by([](model& m) { m.groups[0].softmax_multiplier = 2; }),
                    "softmax multiplier is 1", "2"));
  CHECK(has_warning(changed_by([](model& m) {
                      m.groups[0].mrope_sections = {64, 64};
                    }),
                    "M-RoPE sections", "64, 64"));
  CHECK(has_warning(changed_by([](model& m) {
                      m.groups.pop_back();
                      m.layers.clear();
                    }),
                    "sliding_attention layers exist in Hugging Face only"));
  CHECK(has_warning(changed_by([](model& m) { m.groups[0].frequencies = rope::frequencies(128, 1e6); }),
                    "rotary_dim is 256", "128"));
  CHECK(has_warning(
      changed_by([](model& m) { m.groups[1].frequencies = rope::frequencies(256, 2e4); }),
      "sliding_attention: inv_freq differs for 127 of 128 pairs, within 1 to 127; most at pair 127"));
  CHECK(has_warning(changed_by([](model& m) {
                      m.layers_without_rope = {3, 7};
                    }),
                    "layers without rotation are none in Hugging Face and 3, 7 in GGUF"));
  CHECK(has_warning(changed_by([](model& m) { m.layers[5] = "sliding_attention"; }),
                    "layer 5 is of type full_attention in Hugging Face and sliding_attention in GGUF"));
  // No converter stores an interleaved model of Hugging Face as half_split in GGUF.
  testing::model_parts interleaved(original);
  interleaved.groups[0].layout = interleaved.groups[1].layout = rope::layout_kind::interleaved;
  auto halves = original;
  halves.source = "GGUF";
  CHECK(has_warning(compare_models(interleaved.model(), halves), "layout", "wrong weights"));
}

TEST_CASE("printed code names no group twice", "[models][describe]") {
  std::vector<rope::layer_group> groups;
  const std::vector<std::string> types = {"x 2", "x", "x!", "x 3"};
  for (const std::string& type : types) {
    groups.push_back({.layer_type = type,
                      .layout = rope::layout_kind::half_split,
                      .head_dim = 8,
                      .first_channel = 0,
                      .frequencies = rope::frequencies(8, 1e4),
                      .rule = "default",
                      .base = 1e4});
  }
  const std::string text = describe(rope::model_rope({}, groups, {.types = types}));
  for (const char* name : {"x_2", "x", "x_3", "x_3_3"}) {
    CAPTURE(name);
    const std::string one = "using " + std::string(name) + "_layout = ";
    REQUIRE(text.find(one) != std::string::npos);
    CHECK(text.find(one, text.find(one) + 1) == std::string::npos);
  }
}

// llama.cpp, conversion/hunyuan.py: the converter writes base * alpha^(d / (d - 2)) as rope.freq_base.
TEST_CASE("numbers of schedules with equal frequencies are no difference", "[models][describe]") {
  json config = {{"model_type", "hunyuan_v1_dense"},
                 {"num_attention_heads", 4},
                 {"head_dim", 128},
                 {"rope_theta", 1e4},
                 {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000}, {"factor", 1}}}};
  json file = {{".rope.freq_base", 1e4 * std::pow(1000.0, 128.0 / 126)},
               {".attention.head_count", 4},
               {".attention.key_length", 128}};
  const auto differences = [&] {
    return compare_models(import_hugging_face(config), import_gguf(gguf("hunyuan-dense", file)));
  };
  CHECK(differences().empty());
  file[".rope.freq_base"] = 2e6;
  CHECK(has_warning(differences(), "base is 10000 in Hugging Face and 2000000 in GGUF"));
  config = {{"model_type", "llama"},
            {"num_attention_heads", 4},
            {"head_dim", 128},
            {"max_position_embeddings", 4096},
            {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 1}, {"truncate", false}}}};
  const auto exact = import_hugging_face(config);
  config["rope_scaling"]["truncate"] = true;
  CHECK(compare_models(exact, import_hugging_face(config)).empty());
  config["rope_scaling"]["factor"] = 2;
  CHECK(has_warning(compare_models(exact, import_hugging_face(config)), "low is "));
}
