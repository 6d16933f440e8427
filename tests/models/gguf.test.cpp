// SPDX-License-Identifier: MIT
#include <rope/models/gguf.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/schedules.hpp"

namespace {

using rope::frequencies;
using rope::import_gguf;
using rope::Index;
using rope::layer_group;
using rope::layout_kind;
using testing::gguf;
using testing::has_warning;
using testing::json;
using testing::lists;
using testing::rounds_to;
using testing::same_schedule;
using testing::throws_saying;

layer_group only_group(const testing::gguf_file& file, const rope::gguf_options& options = {}) {
  const auto model = import_gguf(file, options);
  REQUIRE(model.groups().size() == 1);
  return model.groups().front();
}

/// Metadata of a small Llama, changed by `more`.
testing::gguf_file small(const json& more = json::object(), const char* architecture = "llama") {
  json entries = {{".embedding_length", 512}, {".attention.head_count", 4}, {".context_length", 4096}};
  entries.update(more);
  return gguf(architecture, entries);
}

/// A model of an unknown architecture, whose layers may have windows.
rope::model_rope of_novel(const json& more) {
  return import_gguf(small(more, "novel"), {.layout = layout_kind::interleaved});
}

}  // namespace

TEST_CASE("absent keys give the original schedule of base 10000 for the whole head", "[models][gguf]") {
  const auto model = import_gguf(small());
  const layer_group& group = model.groups().at(0);
  CHECK(model.source == "GGUF");
  CHECK(model.architecture == "llama");
  CHECK(model.max_position == 4096);
  CHECK(model.query_heads == 4);
  CHECK(model.key_heads == 4);
  CHECK(model.warnings ==
        std::vector<std::string>{"llama.rope.freq_base is not given; assumed 10000, as llama.cpp does"});
  CHECK(group.layer_type.empty());
  CHECK(group.layout == layout_kind::interleaved);
  CHECK(group.head_dim == 128);
  CHECK(group.first_channel == 0);
  CHECK(group.rule == "default");
  CHECK(same_schedule(group.frequencies, frequencies(128, 10000)));
}

TEST_CASE("an absent scaling type is linear, and a factor of 0 is 1", "[models][gguf]") {
  const frequencies by_4(128, 10000, rope::linear_scaling{.factor = 4}), original(128, 10000);
  CHECK(same_schedule(only_group(small({{".rope.scaling.factor", 4}})).frequencies, by_4));
  CHECK(same_schedule(only_group(small({{".rope.scaling.factor", 0}})).frequencies, original));
  CHECK(same_schedule(only_group(small({{".rope.scale_linear", 4}})).frequencies, by_4));
  CHECK(same_schedule(only_group(small({{".rope.scale_linear", 2}, {".rope.scaling.factor", 4}})).frequencies,
                      by_4));
  CHECK(same_schedule(
      only_group(small({{".rope.scaling.type", "none"}, {".rope.scaling.factor", 4}})).frequencies,
      original));
  CHECK(same_schedule(
      only_group(small({{".rope.scaling.type", "linear"}, {".rope.scaling.factor", 4}})).frequencies, by_4));
}

TEST_CASE("the head has its own key, and dimension_count of its channels rotate", "[models][gguf]") {
  const auto group = only_group(small({{".attention.key_length", 96}, {".rope.dimension_count", 32}}));
  CHECK(group.head_dim == 96);
  CHECK(same_schedule(group.frequencies, frequencies(32, 10000)));
  CHECK(import_gguf(small({{".attention.head_count_kv", {2, 2}}})).key_heads == 2);
}

TEST_CASE("the magnitude of YaRN is 0.1 ln s + 1, times attn_factor", "[models][gguf]") {
  json yarn = {{".rope.scaling.type", "yarn"},
               {".rope.scaling.factor", 4},
               {".rope.freq_base", 1e6},
               {".rope.scaling.original_context_length", 32768}};
  const auto group = only_group(small(yarn));
  CHECK(
      same_schedule(group.frequencies,
                    frequencies(128, 1e6, rope::yarn_scaling{.factor = 4, .original_max_position = 32768})));
  CHECK(rounds_to(group.frequencies.attention_factor(), 1.138629436, 10));
  CHECK(group.number("low", 0) == 23);
  CHECK(group.number("high", 0) == 40);
  CHECK(group.softmax_multiplier == 1);
  yarn[".rope.scaling.attn_factor"] = 0.5;
  CHECK(rounds_to(only_group(small(yarn)).frequencies.attention_factor(), 1.138629436 / 2, 9));
  yarn.erase(".rope.scaling.original_context_length");
  CHECK(only_group(small(yarn)).number("original_max_position", 0) == 4096);
}

TEST_CASE("ext_factor 0 makes YaRN linear, and a half mixes the two", "[models][gguf]") {
  json yarn = {{".rope.scaling.type", "yarn"},
               {".rope.scaling.factor", 4},
               {".rope.scaling.original_context_length", 2048},
               {".rope.scaling.yarn_beta_fast", 32},
               {".rope.scaling.yarn_ext_factor", 0}};
  CHECK(same_schedule(only_group(small(yarn, "grok")).frequencies,
                      frequencies(128, 1e4, rope::linear_scaling{.factor = 4})));
  yarn[".rope.scaling.yarn_ext_factor"] = 0.5;
  const frequencies half = only_group(small(yarn, "grok")).frequencies;
  const frequencies linear(128, 1e4, rope::linear_scaling{.factor = 4});
  const frequencies full(128, 1e4, rope::yarn_scaling{.factor = 4, .original_max_position = 2048});
  for (Index i = 0; i < 64; ++i) {
    const double expected = (linear.inv_freq()(i, 0) + full.inv_freq()(i, 0)) / 2;
    CHECK(std::abs(half.inv_freq()(i, 0) - expected) <= 4e-16 * expected);
  }
}

TEST_CASE("gpt-oss has rounded bounds in GGUF", "[models][gguf]") {
  const auto group = only_group(gguf("gpt-oss", {{".attention.key_length", 64},
                                                 {".rope.freq_base", 150000},
                                                 {".rope.scaling.type", "yarn"},
                                                 {".rope.scaling.factor", 32},
                                                 {".rope.scaling.original_context_length", 4096}}));
  CHECK(group.number("low", 0) == 8);
  CHECK(group.number("high", 0) == 18);
  CHECK(group.layout == layout_kind::half_split);
  CHECK(lists(group.frequencies, 9,
              "0.03162075 0.01945097 0.01179219 0.007015714 0.004069555 0.002277272 0.001206131", 7));
  CHECK(lists(group.frequencies, 16, "5.809475e-04 2.279478e-04", 7));
}

TEST_CASE("DeepSeek has its multiplier in the softmax, not in the table", "[models][gguf]") {
  const auto deepseek = [](double all_dim) {
    return only_group(gguf("deepseek2", {{".attention.key_length", 192},
                                         {".rope.dimension_count", 64},
                                         {".rope.scaling.type", "yarn"},
                                         {".rope.scaling.factor", 40},
                                         {".rope.scaling.original_context_length", 4096},
                                         {".rope.scaling.yarn_log_multiplier", 0.1 * all_dim}}));
  };
  const auto v3 = deepseek(1);
  CHECK(v3.head_dim == 192);
  CHECK(v3.first_channel == 128);
  CHECK(v3.layout == layout_kind::interleaved);
  CHECK(std::abs(v3.frequencies.attention_factor() - 1) < 1e-15);
  CHECK(rounds_to(v3.softmax_multiplier, 1.873854207, 10));
  CHECK(lists(v3.frequencies, 11, "0.0390069266 0.0268793601 0.0183781462 0.0124479559", 9));
  CHECK(rounds_to(deepseek(0.707).softmax_multiplier, 1.589626165, 10));
  // A latent head of 576 channels has its own length.
  CHECK(only_group(gguf("deepseek2", {{".attention.key_length", 576},
                                      {".attention.key_length_mla", 192},
                                      {".rope.dimension_count", 64}}))
            .first_channel == 128);
}

TEST_CASE("pair factors divide, rope_freqs first and then the list for the length", "[models][gguf]") {
  json entries = {{".rope.dimension_count", 4},
                  {"rope_factors_short.weight", {1, 2}},
                  {"rope_factors_long.weight", {4, 8}},
                  {".rope.scaling.original_context_length", 1024},
                  {".rope.scaling.attn_factor", 1.25}};
  const auto inv_freq = [&](double length) {
    const auto f = only_group(small(entries), {.length = length}).frequencies;
    CHECK(f.attention_factor() == 1.25);
    return std::vector<double>{f.inv_freq()(0, 0), f.inv_freq()(1, 0)};
  };
  CHECK(inv_freq(0) == std::vector<double>{1, 0.005});
  CHECK(inv_freq(1024) == std::vector<double>{1, 0.005});
  CHECK(inv_freq(1025) == std::vector<double>{0.25, 0.00125});
  entries["rope_freqs.weight"] = {1, 10, 99};  // longer than needed
  CHECK(inv_freq(1025) == std::vector<double>{1, 0.001});
}

TEST_CASE("layers with a window have their own base and no scaling", "[models][gguf]") {
  const auto model = import_gguf(gguf("gemma3", {{".attention.key_length", 256},
                                                 {".rope.freq_base", 1e6},
                                                 {".rope.scaling.type", "linear"},
                                                 {".rope.scaling.factor", 8},
                                                 {".attention.sliding_window", 1024}}));
  REQUIRE(model.groups().size() == 2);
  CHECK(same_schedule(model.group("full_attention")->frequencies,
                      frequencies(256, 1e6, rope::linear_scaling{.factor = 8})));
  CHECK(same_schedule(model.group("sliding_attention")->frequencies, frequencies(256, 1e4)));
  const auto own =
      of_novel({{".rope.freq_base", 1e6}, {".rope.freq_base_swa", 2e4}, {".rope.dimension_count_swa", 64}});
  CHECK(same_schedule(own.group("sliding_attention")->frequencies, frequencies(64, 2e4)));
}

TEST_CASE("sections are read without the zeros at their end, and alternate in IMROPE models",
          "[models][gguf]") {
  const json entries = {{".attention.key_length", 128}, {".rope.dimension_sections", {24, 20, 20, 0}}};
  CHECK(only_group(gguf("qwen2vl", entries)).mrope_sections == std::vector<Index>{24, 20, 20});
  CHECK(only_group(gguf("qwen2vl", entries)).section_order == rope::mrope_order::blocks);
  CHECK(only_group(gguf("qwen3vl", entries)).section_order == rope::mrope_order::alternating);
  CHECK(only_group(gguf("qwen3vl", entries)).layout == layout_kind::half_split);
}

TEST_CASE("bases and dimensions per layer make a group for every kind of layer", "[models][gguf]") {
  const json entries = {{".block_count", 5},
                        {".rope.freq_base_per_layer", {5e6, 1e4, 1e4, 5e6, 1e4}},
                        {".rope.dimension_count_per_layer", {64, 128, 128, 64, 128}}};
  const auto model = import_gguf(small(entries));
  REQUIRE(model.groups().size() == 2);
  CHECK(model.groups()[0].layer_type == "base 5000000, 64 channels");
  CHECK(model.groups()[1].layer_type == "base 10000, 128 channels");
  CHECK(same_schedule(model.groups()[0].frequencies, frequencies(64, 5e6)));
  CHECK(same_schedule(model.groups()[1].frequencies, frequencies(128, 1e4)));
  const std::vector<std::size_t> expected = {0, 1, 1, 0, 1};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(model.group_of_layer(static_cast<Index>(i)) == &model.groups()[expected[i]]);
  CHECK(model.rotation_of_layer(5) == rope::layer_rotation::not_known);
  CHECK(model.warnings.empty());

  SECTION("layers known to have a window are named and not scaled") {
    json typed = entries;
    typed.update({{".attention.sliding_window_pattern", {0, 1, 1, 0, 1}}, {".rope.scaling.factor", 4}});
    const auto sliding = of_novel(typed);
    REQUIRE(sliding.groups().size() == 2);
    CHECK(same_schedule(sliding.group("full_attention")->frequencies,
                        frequencies(64, 5e6, rope::linear_scaling{.factor = 4})));
    CHECK(same_schedule(sliding.group("sliding_attention")->frequencies, frequencies(128, 1e4)));
    CHECK(sliding.group_of_layer(4)->layer_type == "sliding_attention");
    CHECK(has_warning(sliding.warnings, "novel.rope.scaling is not applied to sliding layers"));
    // Two bases of one type have their numbers in the name.
    typed[".rope.freq_base_per_layer"] = {5e6, 1e4, 2e4, 5e6, 1e4};
    const auto three = of_novel(typed);
    REQUIRE(three.groups().size() == 3);
    CHECK(three.group_of_layer(3)->layer_type == "full_attention");
    CHECK(three.group_of_layer(2)->layer_type == "sliding_attention, base 20000");
  }
  SECTION("an absent value is that of the model, and so are 0 channels") {
    json bases = entries;
    bases.erase(".rope.dimension_count_per_layer");
    bases[".rope.dimension_count"] = 32;
    CHECK(import_gguf(small(bases)).groups()[1].rotary_dim() == 32);
    json dimensions = entries;
    dimensions.erase(".rope.freq_base_per_layer");
    dimensions.update({{".rope.freq_base", 2e4}, {".rope.dimension_count_per_layer", {64, 0, 0, 64, 0}}});
    const auto mixed = import_gguf(small(dimensions));
    CHECK(same_schedule(mixed.group_of_layer(0)->frequencies, frequencies(64, 2e4)));
    CHECK(same_schedule(mixed.group_of_layer(1)->frequencies, frequencies(128, 2e4)));
  }
  SECTION("a scaling applies to all layers, with a warning, if none is known to have a window") {
    json scaled = entries;
    scaled[".rope.scaling.factor"] = 4;
    const auto all = import_gguf(small(scaled));
    CHECK(
        same_schedule(all.groups()[1].frequencies, frequencies(128, 1e4, rope::linear_scaling{.factor = 4})));
    CHECK(has_warning(all.warnings, "llama.rope.scaling is applied to every layer"));
  }
  SECTION("one group for all of them is still a group of every layer") {
    const auto alike = import_gguf(small({{".rope.freq_base_per_layer", {2e4, 2e4}}}));
    REQUIRE(alike.groups().size() == 1);
    CHECK(same_schedule(alike.group_of_layer(1)->frequencies, frequencies(128, 2e4)));
  }
}

TEST_CASE("bases that differ by less than 1, or exceed every integer, form separate groups",
          "[models][gguf]") {
  const auto model = import_gguf(small({{".rope.freq_base_per_layer", {10000.25, 10000.75, 10000.25}}}));
  REQUIRE(model.groups().size() == 2);
  CHECK(model.groups()[0].layer_type == "base 10000.25");
  CHECK(model.groups()[1].layer_type == "base 10000.75");
  CHECK(same_schedule(model.group_of_layer(1)->frequencies, frequencies(128, 10000.75)));
  CHECK(model.group_of_layer(2) == &model.groups()[0]);
  const auto huge = import_gguf(small({{".rope.freq_base_per_layer", {1e30, 1e40}}}));
  REQUIRE(huge.groups().size() == 2);
  CHECK(huge.groups()[0].layer_type == "base 1e+30");
  CHECK(same_schedule(huge.group_of_layer(1)->frequencies, frequencies(128, 1e40)));
  // Neighbouring doubles, which are equal to ten digits.
  const double next = std::nextafter(10000.0, 2e4);
  const auto close = import_gguf(small({{".rope.freq_base_per_layer", {10000.0, next, next}}}));
  REQUIRE(close.groups().size() == 2);
  CHECK(close.group_of_layer(0)->base == 10000);
  CHECK(close.group_of_layer(2)->base == next);
  CHECK(close.groups()[0].layer_type != close.groups()[1].layer_type);
}

TEST_CASE("the work of importing a GGUF file is bounded", "[models][gguf]") {
  const auto rejects = [](const json& more, const auto&... parts) {
    return testing::throws_saying<std::invalid_argument>([&] { import_gguf(small(more)); },
                                                         "rope::import_gguf: ", parts...);
  };
  CHECK(rejects({{".attention.key_length", 1048576}}, "llama.attention.key_length",
                "must not bring the pairs of all groups of layers above 32768, got 524288"));
  CHECK(rejects({{".attention.key_length", 32768}, {".rope.freq_base_per_layer", {1e4, 2e4, 3e4}}},
                "the pairs of all groups of layers above 32768, got 49152"));
  CHECK(import_gguf(small({{".attention.key_length", 32768}, {".rope.freq_base_per_layer", {1e4, 2e4}}}))
            .groups()
            .size() == 2);
  // Many layers of one kind cost as much as one.
  CHECK(import_gguf(small({{".attention.key_length", 32768},
                           {".rope.freq_base_per_layer", std::vector<double>(100, 1e4)}}))
            .groups()
            .size() == 1);
  std::vector<double> bases;
  for (int i = 0; i < 1025; ++i) bases.push_back(1e4 + i);
  CHECK(rejects({{".rope.dimension_count", 2}, {".rope.freq_base_per_layer", bases}},
                "llama.rope.dimension_count", "must not make more than 1024 groups of layers, got 1025"));
  CHECK(rejects({{".block_count", 16385}}, "llama.block_count", "up to 16384", "got 16385"));
  const std::vector<double> long_list(16385, 1);
  CHECK(rejects({{".rope.dimension_count_per_layer", long_list}}, "llama.rope.dimension_count_per_layer",
                "at most 16384, got 16385"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        import_gguf(gguf("gemma2",
                         {{".attention.key_length", 64}, {".attention.sliding_window_pattern", long_list}}));
      },
      "gemma2.attention.sliding_window_pattern", "at most 16384, got 16385"));
  CHECK(rejects({{".rope.dimension_sections", {64, 0, 0, 0, 0, 0, 0, 0, 0}}}, "llama.rope.dimension_sections",
                "at most 8 values, got 9"));
}

TEST_CASE("a list of divisors is read once, for any number of groups", "[models][gguf]") {
  struct counting {
    testing::gguf_file file;
    int* reads;
    std::optional<double> number(const std::string& key) const { return file.number(key); }
    std::optional<std::string> text(const std::string& key) const { return file.text(key); }
    std::optional<std::vector<double>> numbers(const std::string& key) const {
      if (key == "rope_freqs.weight") ++*reads;
      return file.numbers(key);
    }
  };
  int reads = 0;
  const auto model = import_gguf(counting{small({{".rope.freq_base_per_layer", {1e4, 2e4, 3e4, 4e4}},
                                                 {"rope_freqs.weight", std::vector<double>(64, 2.0)}}),
                                          &reads});
  CHECK(reads == 1);
  REQUIRE(model.groups().size() == 4);
  CHECK(model.groups()[3].frequencies.inv_freq()(0, 0) == 0.5);
}

TEST_CASE("the layers without rotation follow from the architecture", "[models][gguf]") {
  const auto model = [](const char* architecture, const json& more) {
    json entries = {{".attention.key_length", 128}, {".block_count", 8}};
    entries.update(more);
    return import_gguf(gguf(architecture, entries));
  };
  using layers = std::vector<Index>;
  const json window = {{".attention.sliding_window", 4096}}, none = {{".attention.sliding_window", 0}};
  CHECK(model("llama", window).layers_without_rope().empty());
  CHECK(model("smollm3", json::object()).layers_without_rope() == layers{3, 7});
  CHECK(model("smollm3", {{".block_count", 3}}).layers_without_rope().empty());
  CHECK(model("llama4", json::object()).layers_without_rope() == layers{3, 7});
  CHECK(model("llama4", none).layers_without_rope() == layers{7});  // the period is the number of layers
  CHECK(model("cohere2", window).layers_without_rope() == layers{3, 7});
  CHECK(model("cohere2", {{".attention.sliding_window_pattern", {1, 0, 1, 1, 1, 1, 0, 1}}})
            .layers_without_rope() == layers{1, 6});
  CHECK(model("cohere2", {{".attention.sliding_window_pattern", 2}}).layers_without_rope() ==
        layers{1, 3, 5, 7});
  // In these architectures every fourth layer does not rotate, whichever layers have windows.
  for (const json& pattern : {json(2), json({1, 0, 1, 1, 1, 1, 0, 1})}) {
    const json other = {{".attention.sliding_window", 4096}, {".attention.sliding_window_pattern", pattern}};
    CHECK(model("afmoe", other).layers_without_rope() == layers{3, 7});
    CHECK(model("llama4", other).layers_without_rope() == layers{3, 7});
    CHECK(model("smallthinker", other).layers_without_rope() == layers{0, 4});
    CHECK(model("exaone4", other).layers_without_rope().empty());
  }
  CHECK(model("afmoe", none).layers_without_rope() == layers{3, 7});
  CHECK(model("smallthinker", none).layers_without_rope().empty());
  CHECK(model("smallthinker", {{".attention.sliding_window", 4096}, {".block_count", 4}})
            .layers_without_rope()
            .empty());                                            // a period of all layers means none
  CHECK(model("exaone4", window).layers_without_rope().empty());  // only the model of 64 layers has windows
  CHECK(model("exaone4", {{".block_count", 64}}).layers_without_rope().size() == 16);
  CHECK(model("exaone4", {{".block_count", 64}}).group_of_layer(63) == nullptr);
}

TEST_CASE("layers of GGUF files without attention do not rotate", "[models][gguf]") {
  const auto model = [](const char* architecture, const json& more) {
    json entries = {{".attention.key_length", 128}, {".block_count", 4}};
    entries.update(more);
    return import_gguf(gguf(architecture, entries));
  };
  using layers = std::vector<Index>;
  const auto convolutions = model("lfm2", {{".attention.head_count_kv", {0, 0, 8, 0}}});
  CHECK(convolutions.layers_without_rope() == layers{0, 1, 3});
  CHECK(convolutions.windows == layers{-1, -1, 0, -1});
  CHECK(convolutions.key_heads == 8);
  for (const char* name : {"qwen3next", "qwen35", "qwen35moe"}) {
    CHECK(model(name, json::object()).layers_without_rope() == layers{0, 1, 2});
    CHECK(model(name, {{".full_attention_interval", 2}}).layers_without_rope() == layers{0, 2});
    CHECK(model(name, {{".attention.recurrent_layers", {0, 1, 1, 0}}}).layers_without_rope() == layers{1, 2});
  }
  CHECK(model("minimax-01", {{".attention.recurrent_layers", {1, 0, 1, 0}}}).layers_without_rope() ==
        layers{0, 2});
  CHECK(model("llama", {{".attention.head_count_kv", {8, 8, 4, 8}}}).layers_without_rope().empty());
  const auto by_two_keys = model(
      "llama", {{".attention.head_count_kv", {8, 0, 8, 8}}, {".attention.recurrent_layers", {1, 1, 0, 0}}});
  CHECK(by_two_keys.windows == layers{-1, -1, 0, 0});
  CHECK_FALSE(has_warning(by_two_keys.warnings, "slide"));
}

TEST_CASE("lists of a GGUF file without a count of layers have one length", "[models][gguf]") {
  const std::vector<int> many(2000, 0);
  for (const char* name : {"gemma3", "gpt-oss", "llama4", "mimo2"})
    for (const char* key : {".attention.head_count_kv", ".attention.recurrent_layers"}) {
      json entries = {{".attention.key_length", 64},
                      {".attention.sliding_window", 64},
                      {".rope.freq_base_swa", 10000},
                      {".attention.sliding_window_pattern", {1, 0}},
                      {key, many}};
      CHECK(throws_saying<std::invalid_argument>(
          [&] { import_gguf(gguf(name, entries)); }, key + 1,
          "must have as many values as attention.sliding_window_pattern, 2, got 2000"));
      entries[key] = {0, 1};
      CHECK(import_gguf(gguf(name, entries)).layers_without_rope().front() == (key[11] == 'h' ? 0 : 1));
      entries.erase(".attention.sliding_window_pattern");
      entries[key] = many;
      CHECK_NOTHROW(import_gguf(gguf(name, entries)));
    }
}

TEST_CASE("a softcap or an alpha that an architecture does not read has a warning", "[models][gguf]") {
  const json keys = {
      {".attention.key_length", 128}, {".attn_logit_softcapping", 20}, {".rope.scaling.alpha", 4}};
  const auto warnings = [&](const char* name) { return import_gguf(gguf(name, keys)).warnings; };
  CHECK(has_warning(warnings("llama"), "llama.attn_logit_softcapping is not read for llama"));
  CHECK(has_warning(warnings("llama"),
                    "llama.rope.scaling.alpha is not read for llama, got 4; it is taken as 0"));
  CHECK_FALSE(has_warning(warnings("gemma2"), "softcapping"));
  CHECK_FALSE(has_warning(warnings("hunyuan-dense"), "alpha"));
}

TEST_CASE("if no layer has a window, one group is the whole model", "[models][gguf]") {
  const json no_window = {{".attention.key_length", 128}, {".block_count", 6}, {".rope.freq_base_swa", 2e4}};
  json window = no_window;
  window[".attention.sliding_window"] = 64;
  for (const char* name : {"afmoe", "gemma3", "modern-bert", "plamo3"}) {
    CAPTURE(name);
    CHECK(import_gguf(gguf(name, no_window)).groups().size() == 1);
    CHECK(import_gguf(gguf(name, window)).groups().size() == 2);
  }
  CHECK(import_gguf(gguf("exaone4", window)).groups().size() ==
        1);  // only the model of 64 layers has windows
}

TEST_CASE("a pattern of windows that llama.cpp does not read, or not in every version, has a warning",
          "[models][gguf]") {
  const auto warnings = [](const char* architecture, const json& pattern) {
    return import_gguf(gguf(architecture, {{".attention.key_length", 128},
                                           {".block_count", 4},
                                           {".rope.freq_base", 1e4},
                                           {".rope.freq_base_swa", 1e4},
                                           {".attention.sliding_window", 64},
                                           {".attention.sliding_window_pattern", pattern}}))
        .warnings;
  };
  const json list = {0, 1, 1, 0};
  CHECK(has_warning(warnings("gemma2", list), "gemma2.attention.sliding_window_pattern is a list",
                    "a period of 2 for gemma2", "the list, as is done here"));
  CHECK(has_warning(warnings("qwen2", list), "is not read for qwen2", "no layer slides"));
  CHECK(has_warning(warnings("qwen2", 2), "is not read for qwen2"));
  CHECK(has_warning(warnings("exaone4", 2), "is not read for exaone4 of 4 layers; none slides"));
  for (const char* reader : {"gemma4", "mellum"}) CHECK(warnings(reader, list).empty());
  CHECK(warnings("mellum", 2).empty());
  CHECK(warnings("gemma2", 2).size() == 1);  // attn_logit_softcapping
}

TEST_CASE("the values that llama.cpp assumes for absent keys have warnings", "[models][gguf]") {
  const auto assumed = [](const char* architecture, const json& more, const std::string& key,
                          const std::string& what, const json& value) {
    json keys = {{".attention.key_length", 128}, {".block_count", 8}};
    keys.update(more);
    const auto reports = [&](const json& file) {
      return has_warning(import_gguf(gguf(architecture, file)).warnings,
                         architecture + key + " is not given; assumed " + what + ", as llama.cpp does");
    };
    json given = keys;
    given[key] = value;
    return reports(keys) && !reports(given);
  };
  const json none = json::object(), window = {{".attention.sliding_window", 64}};
  CHECK(assumed("llama", none, ".rope.freq_base", "10000", 5e5));
  CHECK(assumed("plamo3", window, ".rope.freq_base_swa", "10000", 5e5));
  CHECK(assumed("gemma2", window, ".attention.sliding_window_pattern",
                "that the last of every 2 layers attends fully", 4));
  CHECK(assumed("modern-bert", window, ".attention.sliding_window_pattern",
                "that the first of every 3 layers attends fully", 4));
  CHECK(assumed("qwen3next", none, ".full_attention_interval", "4", 2));
  CHECK(assumed("gemma2", none, ".attn_logit_softcapping", "50", 20));
  CHECK(assumed("grok", none, ".attention.output_scale", "1 / sqrt(128)", 0.125));
  CHECK(assumed("exaone4", {{".block_count", 64}}, ".attention.sliding_window", "4096", 64));
}

TEST_CASE("Gemma 3 knows its layers with a window", "[models][gguf]") {
  json entries = {{".attention.key_length", 256},
                  {".rope.freq_base", 1e6},
                  {".attention.sliding_window", 1024},
                  {".block_count", 34}};
  const auto model = import_gguf(gguf("gemma3", entries));
  REQUIRE(model.layers().size() == 34);
  CHECK(model.group_of_layer(4)->base == 1e4);
  CHECK(model.group_of_layer(5)->base == 1e6);
  CHECK(import_gguf(gguf("gemma3n", entries)).group_of_layer(4)->base == 1e6);
}

TEST_CASE("a divisor of 1e30 gives a pair that does not rotate", "[models][gguf]") {
  std::vector<double> factors(128, 1.0);
  std::fill(factors.begin() + 32, factors.end(), static_cast<double>(1e30f));  // Gemma 4
  const json entries = {
      {".attention.key_length", 256}, {".rope.freq_base", 1e6}, {"rope_freqs.weight", factors}};
  const auto group = only_group(gguf("gemma4", entries));
  CHECK(same_schedule(group.frequencies,
                      frequencies(256, 1e6, rope::proportional_scaling{.partial_rotary_factor = 0.25})));
  // They are those of the full layers only, whose heads are larger.
  json two_types = entries;
  two_types.update({{".rope.freq_base_swa", 1e4}, {".attention.key_length_swa", 128}});
  const auto model = import_gguf(gguf("gemma4", two_types));
  CHECK(model.group("full_attention")->head_dim == 256);
  CHECK(model.group("sliding_attention")->head_dim == 128);
  CHECK(same_schedule(model.group("full_attention")->frequencies, group.frequencies));
  CHECK(same_schedule(model.group("sliding_attention")->frequencies, frequencies(128, 1e4)));
  CHECK(model.warnings.empty());
}

TEST_CASE("unused keys have warnings", "[models][gguf]") {
  CHECK(has_warning(import_gguf(small({{".attention.compress_rope_freq_base", 1}})).warnings,
                    "compress_rope_freq_base"));
}

TEST_CASE("malformed metadata throws with the name of the key", "[models][gguf]") {
  struct malformed {
    testing::gguf_file file;
    std::vector<const char*> reports;
  };
  const json yarn = {{".rope.scaling.type", "yarn"}, {".rope.scaling.factor", 4}};
  const auto with_yarn = [&](json more) {
    more.update(yarn);
    return small(more);
  };
  for (const auto& [file, reports] : std::vector<malformed>{
           {{json::object()}, {"general.architecture", "missing"}},
           {gguf("novel", json::object()),
            {"general.architecture", "novel", "layout", "see include/rope/models/README.md"}},
           {gguf("llama", {{".attention.head_count", 4}}), {"llama.embedding_length", "missing"}},
           {gguf("llama", {{".embedding_length", 512}}), {"llama.attention.head_count", "missing"}},
           {small({{".attention.head_count", -1}}), {"llama.attention.head_count", "whole number", "-1"}},
           {small({{".context_length", 0}}), {"llama.context_length", "positive"}},
           {small({{".attention.key_length", 0}}), {"llama.attention.key_length", "positive whole number"}},
           {small({{".rope.dimension_count", 33}}), {"llama.rope.dimension_count", "even", "33"}},
           {small({{".rope.dimension_count", 256}}), {"llama.rope.dimension_count", "128", "256"}},
           {small({{".rope.freq_base", 1}}), {"llama.rope.freq_base", "greater than 1"}},
           {small({{".rope.freq_base", "1e4"}}),
            {"llama.rope.freq_base", "must be a number, got the text 1e4"}},
           {small({{".rope.scaling.type", "dynamic"}}),
            {"llama.rope.scaling.type", "yarn", "dynamic", "see <rope/frequencies.hpp>"}},
           {small({{".rope.scaling.factor", -2}}), {"llama.rope.scaling.factor", "not be negative"}},
           {small({{".rope.scaling.attn_factor", 0}}), {"llama.rope.scaling.attn_factor", "positive"}},
           {with_yarn({{".rope.scaling.yarn_beta_fast", 0}}),
            {"llama.rope.scaling.yarn_beta_fast", "positive"}},
           {with_yarn({{".rope.scaling.yarn_log_multiplier", -1}}),
            {"llama.rope.scaling.yarn_log_multiplier"}},
           {gguf(
                "llama",
                {{".attention.key_length", 64}, {".rope.scaling.type", "yarn"}, {".rope.scaling.factor", 4}}),
            {"llama.context_length", "missing"}},
           {small({{"rope_freqs.weight", {1, 2}}}), {"rope_freqs.weight", "64", "2"}},
           {small({{".rope.dimension_count", 4}, {"rope_freqs.weight", {1, 0}}}),
            {"rope_freqs.weight", "positive"}},
           {small({{".rope.dimension_sections", {16, 16}}}),
            {"llama.rope.dimension_sections", "add up", "64", "[16, 16]"}},
           {small({{".block_count", 3}, {".rope.freq_base_per_layer", {2, 3}}}),
            {"llama.rope.freq_base_per_layer", "one value per layer, 3", "got 2"}},
           {small({{".rope.freq_base_per_layer", {2, 3}}, {".rope.dimension_count_per_layer", {64}}}),
            {"llama.rope.dimension_count_per_layer", "one value per layer, 2", "got 1"}},
           {small({{".rope.freq_base_per_layer", json::array()}}),
            {"llama.rope.freq_base_per_layer", "one value per layer", "got 0"}},
           {small({{".rope.dimension_count_per_layer", json::array()}}),
            {"llama.rope.dimension_count_per_layer", "one value per layer", "got 0"}},
           {small({{".attention.head_count", 1024}}), {"llama.attention.key_length", "positive", "got 0"}},
           {gguf("deepseek2", {{".attention.key_length", 8},
                               {".rope.scaling.type", "yarn"},
                               {".rope.scaling.factor", 4},
                               {".rope.scaling.original_context_length", 4096},
                               {".rope.scaling.yarn_log_multiplier", 1e200}}),
            {"deepseek2.rope.scaling.yarn_log_multiplier", "softmax multiplier", "inf"}},
           {small({{".rope.freq_base_per_layer", {2, 1}}}),
            {"llama.rope.freq_base_per_layer", "greater than 1", "got 1"}},
           {small({{".rope.dimension_count_per_layer", {64, 33}}}),
            {"llama.rope.dimension_count_per_layer", "even", "got 33"}},
           {gguf("gemma2", {{".attention.key_length", 64},
                            {".block_count", 3},
                            {".attention.sliding_window_pattern", {1, 0}}}),
            {"gemma2.attention.sliding_window_pattern", "block_count values, 3", "got 2"}},
           {small({{".attention.sliding_window", 1e300}}),
            {"llama.attention.sliding_window", "up to 2^53", "1e+300"}},
           {small({{".attention.sliding_window_pattern", {1, 2}}}),
            {"llama.attention.sliding_window_pattern", "0 or 1", "got 2"}},
       }) {
    CAPTURE(file.entries.dump());
    std::string text;
    try {
      import_gguf(file);
    } catch (const std::invalid_argument& error) {
      text = error.what();
    }
    CAPTURE(text);
    CHECK(text.find("rope::import_gguf: ") == 0);
    for (const char* part : reports) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
  CHECK(testing::throws_saying<std::invalid_argument>([] { import_gguf(small(), {.length = -1}); }, "length",
                                                      "-1"));
  CHECK(only_group(gguf("novel", {{".attention.key_length", 8}}), {.layout = layout_kind::half_split})
            .rotary_dim() == 8);
}

TEST_CASE("scores are scaled and capped as in llama.cpp for each architecture", "[models][gguf]") {
  const auto group = [](const char* architecture, const testing::json& changes = testing::json::object()) {
    const testing::json keys = {{".attention.head_count", 32},
                                {".embedding_length", 5376},
                                {".attention.key_length", 128},
                                {".block_count", 4}};
    return rope::import_gguf(testing::gguf(architecture, testing::changed(keys, changes))).groups().front();
  };
  const auto is = [](double got, double expected) {
    return std::abs(got / expected - 1) <= 4 * std::numeric_limits<double>::epsilon();
  };
  const double root = 1 / std::sqrt(128.0);
  CHECK(is(group("llama").scale, root));
  CHECK(is(group("llama", {{".attention.scale", 0.5}}).scale, root));  // llama.cpp does not read it here
  CHECK(is(group("granite", {{".attention.scale", 0.0078125}}).scale, 0.0078125));
  CHECK(is(group("gemma3", {{".block_count", 62}}).scale, 1 / std::sqrt(168.0)));
  CHECK(is(group("gemma3", {{".block_count", 34}}).scale, root));
  CHECK(is(group("gemma2", {{".block_count", 46}}).scale, 1 / std::sqrt(168.0)));
  CHECK(is(group("gemma3n").scale, 1));
  CHECK(group("llama").softcap == 0);
  CHECK(group("gemma2").softcap == 50);
  CHECK(group("gemma2", {{".attn_logit_softcapping", 40}}).softcap == 40);
  CHECK(group("grok").softcap == 30);
}

// The rules are those of src/models/ in llama.cpp of 2026-08-22, one file per architecture.
TEST_CASE("values that llama.cpp fixes for an architecture are imported with it", "[models][gguf]") {
  const testing::json keys = {{".attention.head_count", 32},
                              {".embedding_length", 4096},
                              {".attention.key_length", 128},
                              {".rope.dimension_count", 64},
                              {".rope.freq_base", 160000},
                              {".attention.sliding_window", 512},
                              {".block_count", 8}};
  const auto model = [&](const char* architecture, const testing::json& changes = testing::json::object()) {
    return rope::import_gguf(testing::gguf(architecture, testing::changed(keys, changes)));
  };
  // S: window and rotation, F: full attention and rotation, n: no rotation
  const auto layers = [](const rope::model_rope& m) {
    std::string text;
    for (rope::Index i = 0; i < 8; ++i) {
      const rope::layer_group* group = m.group_of_layer(i);
      text += !group ? 'n' : group->layer_type == "sliding_attention" ? 'S' : 'F';
    }
    return text;
  };
  CHECK(layers(model("modern-bert")) == "FSSFSSFS");
  CHECK(model("modern-bert").group("sliding_attention")->base == 10000);
  CHECK(layers(model("gemma-embedding")) == "SSSSSFSS");
  CHECK(model("gemma-embedding").group("full_attention")->base == 160000);
  CHECK(layers(model("plamo3")) == "SSSSSSSF");
  CHECK(layers(model("afmoe")) == "FFFnFFFn");  // one base, so one group
  CHECK(layers(model("exaone-moe")) == "FFFnFFFn");
  CHECK(layers(model("smallthinker")) == "nFFFnFFF");
  CHECK(layers(model("smallthinker", {{".attention.sliding_window", nullptr}})) == "FFFFFFFF");
  CHECK(layers(model("smollm3")) == "FFFnFFFn");

  // OLMo 3 in the architecture of OLMo 2: layers with a window are not scaled.
  const rope::model_rope olmo = model("olmo2", {{".rope.scaling.type", "yarn"},
                                                {".rope.scaling.factor", 8},
                                                {".rope.scaling.original_context_length", 8192}});
  CHECK(layers(olmo) == "SSSFSSSF");
  CHECK(olmo.group("sliding_attention")->rule == "default");
  CHECK(olmo.group("sliding_attention")->frequencies.attention_factor() == 1);
  CHECK(olmo.group("full_attention")->rule == "yarn");
  CHECK(olmo.warnings.size() == 1);  // attention.sliding_window_pattern
  const rope::model_rope divided =
      model("olmo2", {{"rope_freqs.weight", std::vector<double>(32, 2.0)}});  // nor divided
  CHECK(same_schedule(divided.group("sliding_attention")->frequencies, frequencies(64, 160000)));
  CHECK(divided.group("full_attention")->rule == "pair factors");

  for (const char* last : {"deepseek2", "minicpm3", "plm", "bailingmoe3"})
    CHECK(model(last).groups().front().first_channel == 64);
  CHECK(model("llama").groups().front().first_channel == 0);
  const testing::json sections = {{".rope.dimension_sections", {12, 10, 10, 0}}};
  CHECK(model("glm4").groups().front().layout == layout_kind::interleaved);
  CHECK(model("glm4", sections).groups().front().layout == layout_kind::half_split);
  CHECK(model("paddleocr", sections).groups().front().section_order == rope::mrope_order::blocks);
  CHECK(model("qwen3tts", sections).groups().front().section_order == rope::mrope_order::alternating);

  // An unknown architecture with both windows and scaling throws.
  const auto novel = [&](const testing::json& changes) {
    return rope::import_gguf(testing::gguf("novel", testing::changed(keys, changes)),
                             {.layout = layout_kind::half_split});
  };
  CHECK(novel(testing::json::object()).groups().size() == 1);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        novel({{".rope.scaling.factor", 4}});
      },
      "both slides and scales", "got novel"));

  for (const char* without : {"starcoder", "bert", "gpt2", "mamba", "t5"})
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { model(without); }, "rope::import_gguf: general.architecture is one without",
        std::string("got ") + without));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        model("baichuan", {{".block_count", 40}});
      },
      "ALiBi", ""));
  CHECK(model("baichuan", {{".block_count", 32}}).groups().size() == 1);
}

TEST_CASE("a window is assumed only for layers that have one", "[models][gguf]") {
  const auto warned = [](const json& more) {
    json entries = {{".embedding_length", 512}, {".attention.head_count", 4}};
    entries.update(more);
    return has_warning(import_gguf(gguf("gemma2", entries)).warnings,
                       "attention.sliding_window is not given; assumed 4096");
  };
  const json one_layer = {{".block_count", 1}},
             none_slides = {{".block_count", 2}, {".attention.sliding_window_pattern", {0, 0}}};
  CHECK(warned(one_layer));
  CHECK_FALSE(warned(none_slides));
}

TEST_CASE("layers of multi-token prediction are not part of a description, with a warning",
          "[models][gguf]") {
  const auto model =
      import_gguf(gguf("smollm3", {{".attention.key_length", 128},
                                   {".block_count", 6},
                                   {".nextn_predict_layers", 2},
                                   {".rope.freq_base_per_layer", {1e4, 2e4, 1e4, 1e4, 1e4, 1e4}}}));
  CHECK(model.layers().size() == 4);
  CHECK(model.groups().size() == 2);
  CHECK(model.layers_without_rope() == std::vector<Index>{3});
  CHECK(has_warning(model.warnings, "smollm3.nextn_predict_layers: the last layers, 2 of them"));
  CHECK(has_warning(import_gguf(gguf("muse-glimmer", {{".attention.key_length", 128}})).warnings,
                    "qk_scale_factor too, which is in attn_q_norm.weight"));
}

TEST_CASE("a key that llama.cpp does not read is reported by its name", "[models][import]") {
  const auto warnings = [](const char* architecture, const json& keys) {
    json entries = {{".block_count", 4}, {".attention.key_length", 128}};
    entries.update(keys);
    return import_gguf(gguf(architecture, entries)).warnings;
  };
  const auto names = [&](const char* architecture, const char* key, double value) {
    return has_warning(warnings(architecture, {{std::string(".") + key, value}}),
                       std::string(key) + " is not read");
  };
  CHECK(names("cogvlm", "rope.freq_base", 777));
  CHECK(names("cogvlm", "rope.dimension_count", 64));
  CHECK(names("cogvlm", "rope.scaling.factor", 4));
  CHECK(names("cogvlm", "rope.scaling.attn_factor", 2));
  CHECK_FALSE(names("cogvlm", "rope.freq_base", 10000));
  CHECK_FALSE(names("llama", "rope.freq_base", 777));
  for (const char* one : {"cohere2", "muse-glimmer"}) CHECK(names(one, "rope.freq_base_swa", 777));
  CHECK(has_warning(warnings("olmo2", {{".attention.sliding_window", 64}, {".rope.freq_base_swa", 777}}),
                    "rope.freq_base_swa is not read"));
  for (const char* one : {"gemma3", "modern-bert", "exaone-moe", "laguna"})
    CHECK_FALSE(names(one, "rope.freq_base_swa", 777));
  CHECK(names("smallthinker", "attention.sliding_window", 512));
  CHECK_FALSE(names("smallthinker", "attention.sliding_window", 0));
  CHECK(names("llama", "attention.scale", 0.5));
  CHECK(names("grok", "attention.scale", 0.5));
  CHECK_FALSE(names("granite", "attention.scale", 0.5));
  CHECK_FALSE(names("llama", "attention.scale", 1 / std::sqrt(128.0)));
  CHECK(has_warning(warnings("deepseek4", {{".attention.compress_ratios", {0, 4, 0, 4}},
                                           {".attention.compress_rope_freq_base", 160000},
                                           {".rope.scaling.attn_factor", 2}}),
                    "rope.scaling.attn_factor is not read"));
  // Both kinds of layers are known, and the schedule of each.
  CHECK_FALSE(has_warning(warnings("deepseek4", {{".attention.compress_ratios", {0, 4, 0, 4}},
                                                 {".attention.compress_rope_freq_base", 160000},
                                                 {".context_length", 4096},
                                                 {".rope.scaling.type", "yarn"},
                                                 {".rope.scaling.factor", 16}}),
                          "rope.scaling is"));
}
