// SPDX-License-Identifier: MIT
#include <rope/models/hugging_face.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <rope/models/describe.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/schedules.hpp"

namespace {

using rope::frequencies;
using rope::import_hugging_face;
using rope::Index;
using rope::layer_group;
using rope::layout_kind;
using testing::changed;
using testing::config;
using testing::has_warning;
using testing::json;
using testing::lists;
using testing::rounds_to;
using testing::same_schedule;

/// The only group of a model that has one.
layer_group only_group(const json& config, const rope::hugging_face_options& options = {}) {
  const auto model = import_hugging_face(config, options);
  REQUIRE(model.groups().size() == 1);
  return model.groups().front();
}

/// A JSON value of another type than nlohmann's, with only the members that json_like requires.
class plain_json {
 public:
  enum class kind { null, boolean, number, string, array, object };
  struct item {
    std::string name;
    const plain_json* place;
    const std::string& key() const { return name; }
    const plain_json& value() const { return *place; }
  };

  explicit plain_json(const json& other) {
    if (other.is_boolean()) kind_ = kind::boolean, number_ = other.get<bool>() ? 1 : 0;
    if (other.is_number()) kind_ = kind::number, number_ = other.get<double>();
    if (other.is_string()) kind_ = kind::string, text_ = other.get<std::string>();
    if (other.is_array()) kind_ = kind::array;
    if (other.is_object()) kind_ = kind::object;
    if (other.is_structured())
      for (const auto& entry : other.items()) {
        keys_.push_back(entry.key());
        values_.emplace_back(entry.value());
      }
  }

  bool is_object() const { return kind_ == kind::object; }
  bool is_array() const { return kind_ == kind::array; }
  bool is_number() const { return kind_ == kind::number; }
  bool is_string() const { return kind_ == kind::string; }
  bool is_boolean() const { return kind_ == kind::boolean; }
  bool is_null() const { return kind_ == kind::null; }
  bool contains(const std::string& key) const { return std::count(keys_.begin(), keys_.end(), key) > 0; }
  const plain_json& at(const std::string& key) const {
    return values_[static_cast<std::size_t>(std::find(keys_.begin(), keys_.end(), key) - keys_.begin())];
  }
  std::vector<plain_json>::const_iterator begin() const { return values_.begin(); }
  std::vector<plain_json>::const_iterator end() const { return values_.end(); }
  std::vector<item> items() const {
    std::vector<item> all;
    for (std::size_t i = 0; i < keys_.size(); ++i) all.push_back({keys_[i], &values_[i]});
    return all;
  }
  template <class T>
  T get() const {
    if constexpr (std::is_same_v<T, std::string>)
      return text_;
    else
      return static_cast<T>(number_);
  }

 private:
  kind kind_ = kind::null;
  double number_ = 0;
  std::string text_;
  std::vector<std::string> keys_;
  std::vector<plain_json> values_;
};
static_assert(rope::json_like<plain_json> && rope::json_like<json> &&
              rope::json_like<nlohmann::ordered_json>);
static_assert(!rope::json_like<std::string>);

/// A small model that each case below changes.
const json small = json::parse(R"({
  "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4,
  "max_position_embeddings": 64, "rope_theta": 10000.0})");

/// The warnings for it, changed.
std::vector<std::string> warnings(const json& changes) {
  return import_hugging_face(changed(small, changes)).warnings;
}

}  // namespace

// The values are those of the files that examples/configs/README.md names.
TEST_CASE("every example config imports with the rotation of its model", "[models][import]") {
  struct expected {
    const char* name;
    layout_kind layout;
    Index head_dim, first_channel, rotary_dim;
    double base;
    const char* rule;
    Index query_heads, key_heads;
    double max_position, sliding_window;
  };
  const std::vector<expected> models = {
      {"llama_2_7b", layout_kind::half_split, 128, 0, 128, 1e4, "default", 32, 32, 4096, 0},
      {"llama_3_8b", layout_kind::half_split, 128, 0, 128, 5e5, "default", 32, 8, 8192, 0},
      {"llama_3_1_8b", layout_kind::half_split, 128, 0, 128, 5e5, "llama3", 32, 8, 131072, 0},
      {"llama_3_2_1b", layout_kind::half_split, 64, 0, 64, 5e5, "llama3", 32, 8, 131072, 0},
      {"llama_4_scout", layout_kind::interleaved, 128, 0, 128, 5e5, "llama3", 40, 8, 10485760, 0},
      {"mistral_7b", layout_kind::half_split, 128, 0, 128, 1e4, "default", 32, 8, 32768, 4096},
      {"qwen2_5_7b_yarn", layout_kind::half_split, 128, 0, 128, 1e6, "yarn", 28, 4, 32768, 0},
      {"qwen2_vl_7b", layout_kind::half_split, 128, 0, 128, 1e6, "default", 28, 4, 32768, 0},
      {"qwen3_8b", layout_kind::half_split, 128, 0, 128, 1e6, "default", 32, 8, 40960, 0},
      {"gemma_3_4b", layout_kind::half_split, 256, 0, 256, 1e6, "linear", 8, 4, 131072, 1024},
      {"gemma_3_4b_rope_parameters", layout_kind::half_split, 256, 0, 256, 1e6, "linear", 8, 4, 131072, 1024},
      {"phi_3_5_mini", layout_kind::half_split, 96, 0, 96, 1e4, "longrope", 32, 32, 131072, 262144},
      {"deepseek_v2_lite", layout_kind::interleaved, 192, 128, 64, 1e4, "yarn", 16, 16, 163840, 0},
      {"deepseek_v3", layout_kind::interleaved, 192, 128, 64, 1e4, "yarn", 128, 128, 163840, 0},
      {"gpt_oss_20b", layout_kind::half_split, 64, 0, 64, 150000, "yarn", 64, 8, 131072, 128},
      {"pythia_410m", layout_kind::half_split, 64, 0, 16, 1e4, "default", 16, 16, 2048, 0},
      {"glm_4_9b", layout_kind::interleaved, 128, 0, 64, 1e4, "default", 32, 2, 32768, 0},
      {"modernbert_base", layout_kind::half_split, 64, 0, 64, 160000, "default", 12, 12, 8192, 128},
  };
  for (const auto& [name, layout, head_dim, first_channel, rotary_dim, base, rule, query_heads, key_heads,
                    max_position, sliding_window] : models) {
    CAPTURE(name);
    const auto model = import_hugging_face(config(name));
    const layer_group& group = model.groups().front();
    CHECK(model.source == "Hugging Face");
    CHECK(group.layout == layout);
    CHECK(group.head_dim == head_dim);
    CHECK(group.first_channel == first_channel);
    CHECK(group.rotary_dim() == rotary_dim);
    CHECK(group.base == base);
    CHECK(group.rule == rule);
    CHECK(model.query_heads == query_heads);
    CHECK(model.key_heads == key_heads);
    CHECK(model.max_position == max_position);
    CHECK(model.sliding_window == sliding_window);
    for (const std::string& warning : model.warnings) {
      CAPTURE(warning);
      CHECK(warning.find("no effect") == std::string::npos);
      CHECK(warning.find("not used") == std::string::npos);
    }
    if (std::string(rule) == "default")
      CHECK(same_schedule(group.frequencies, frequencies(rotary_dim, base)));
  }
}

TEST_CASE("any JSON type with the members of nlohmann's gives the same import", "[models][import]") {
  for (const char* name :
       {"llama_3_1_8b", "gemma_3_4b_rope_parameters", "phi_3_5_mini", "deepseek_v3", "llama_4_scout"}) {
    CAPTURE(name);
    const auto expected = import_hugging_face(config(name));
    const auto model = import_hugging_face(plain_json(config(name)));
    REQUIRE(model.groups().size() == expected.groups().size());
    for (std::size_t g = 0; g < model.groups().size(); ++g)
      CHECK(same_schedule(model.groups()[g].frequencies, expected.groups()[g].frequencies));
    CHECK(model.layers() == expected.layers());
    CHECK(model.layers_without_rope() == expected.layers_without_rope());
    CHECK(model.warnings == expected.warnings);
  }
  const json spoilt = changed(small, {{"head_dim", "128"}});
  CHECK(testing::throws_saying<std::invalid_argument>([&] { import_hugging_face(plain_json(spoilt)); },
                                                      "head_dim must be a number, got a string"));
}

TEST_CASE("Llama 3.1 and 3.2 have their published frequencies", "[models][import]") {
  const auto llama31 = only_group(config("llama_3_1_8b"));
  CHECK(lists(llama31.frequencies, 0,
              "1 0.814617234 0.663601238 0.540581005 0.440366603 0.358730224 0.292227823 0.23805382", 9));
  CHECK(lists(
      llama31.frequencies, 26,
      "0.00483942135 0.00394227603 0.00321144599 0.00216657076 0.00137189357 0.000856751413 0.000524846161 "
      "0.00031269375 0.000178507813 9.55621235e-05 7.78465527e-05",
      9));
  CHECK(lists(llama31.frequencies, 63, "3.06892599e-07", 9));
  CHECK(llama31.number("factor", 0) == 8);
  CHECK(llama31.number("original_max_position", 0) == 8192);

  const auto llama32 = only_group(config("llama_3_2_1b"));
  CHECK(lists(llama32.frequencies, 13,
              "0.00483942135 0.00321144599 0.00129054793 0.000429556797 9.7082878e-05 1.94616382e-05 "
              "1.29147672e-05 8.57025549e-06",
              9));
  CHECK(lists(llama32.frequencies, 31, "9.41830673e-08", 9));
}

TEST_CASE("Llama 4 steps from unscaled to interpolated pairs, and every fourth layer does not rotate",
          "[models][import]") {
  const auto model = import_hugging_face(config("llama_4_scout"));
  const frequencies& f = model.groups()[0].frequencies;
  CHECK(lists(f, 34, "0.000938473870 4.77810618e-05", 9));
  CHECK(lists(f, 63, "1.53446299e-07", 9));
  CHECK(model.layers_without_rope() == std::vector<Index>{3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47});
  CHECK(model.group_of_layer(2) == &model.groups()[0]);
  CHECK(model.group_of_layer(3) == nullptr);
}

TEST_CASE("Qwen 2.5 with YaRN has its published frequencies", "[models][import]") {
  const auto group = only_group(config("qwen2_5_7b_yarn"));
  CHECK(group.number("low", 0) == 23);
  CHECK(group.number("high", 0) == 40);
  CHECK(rounds_to(group.frequencies.attention_factor(), 1.138629436, 10));
  CHECK(group.softmax_multiplier == 1);
  CHECK(lists(group.frequencies, 0, "1 0.805842188 0.649381632 0.523299115", 9));
  CHECK(lists(
      group.frequencies, 23,
      "0.00697830585 0.00537532149 0.00413173802 0.00316842257 0.00242342238 0.00184827656 0.00140511248 "
      "0.00106436098 0.000802959728 0.000602941176 0.000450323576 0.000334240546 0.000246258407 "
      "0.000179841156 0.000129931495 9.2623017e-05 6.49039432e-05 4.44569853e-05 3.58253143e-05",
      9));
  CHECK(lists(group.frequencies, 63, "3.1023444e-07", 9));
}

TEST_CASE("a factor of null is the quotient of the two lengths", "[models][import]") {
  json qwen = config("qwen2_5_7b_yarn");
  qwen["max_position_embeddings"] = 131072;
  qwen["rope_scaling"]["factor"] = nullptr;
  CHECK(same_schedule(only_group(qwen).frequencies, only_group(config("qwen2_5_7b_yarn")).frequencies));
  CHECK(only_group(qwen).number("factor", 0) == 4);
  qwen["max_position_embeddings"] = 16384;
  CHECK(only_group(qwen).number("factor", 0) == 0.5);
}

// transformers warns about a factor below 1 and uses it. Its get_mscale is then 1.
TEST_CASE("a factor below 1 is used as transformers uses it, with a warning", "[models][import]") {
  json qwen = config("qwen2_5_7b_yarn");
  qwen["rope_scaling"]["factor"] = 0.5;
  const auto model = import_hugging_face(qwen);
  const rope::frequencies yarn(128, 1e6, rope::yarn_scaling{.factor = 0.5, .original_max_position = 32768});
  CHECK(same_schedule(model.groups()[0].frequencies, yarn));
  CHECK(model.groups()[0].frequencies.attention_factor() == 1);
  CHECK(has_warning(model.warnings, "rope_scaling.factor is 0.5, below 1"));
  CHECK_FALSE(has_warning(import_hugging_face(config("qwen2_5_7b_yarn")).warnings, "below 1"));
}

TEST_CASE("gpt-oss has its published frequencies, with bounds that are not rounded", "[models][import]") {
  const auto model = import_hugging_face(config("gpt_oss_20b"));
  const layer_group& group = model.groups()[0];
  CHECK(rounds_to(group.number("low", 0), 8.092779116, 10));
  CHECK(rounds_to(group.number("high", 0), 17.398024502, 11));
  CHECK(rounds_to(group.frequencies.attention_factor(), 1.3465735903, 11));
  CHECK(lists(
      group.frequencies, 0,
      "1 0.689044306 0.474782055 0.327145872 0.225418 0.155322989 0.107024421 0.0737445682 0.0508132748 "
      "0.0317056962 0.0193350011 0.0115920493 0.00679495949 0.00386035932 0.00209379238 0.0010526021 "
      "0.000456483919 0.000129318701 3.83088124e-05 2.6396469e-05 1.81883367e-05 1.25325698e-05 "
      "8.63549588e-06 5.95023926e-06 4.09997848e-06 2.82506683e-06 1.94659621e-06 1.34129104e-06 "
      "9.2420895e-07 6.36820915e-07 4.38797825e-07 3.02351143e-07",
      9));
  CHECK(model.layers().size() == 24);
  CHECK(model.sliding_window == 128);
}

TEST_CASE("DeepSeek rotates the last 64 of 192 channels and scales its softmax", "[models][import]") {
  const auto v3 = only_group(config("deepseek_v3"));
  CHECK(v3.number("low", 0) == 10);
  CHECK(v3.number("high", 0) == 23);
  CHECK(v3.frequencies.attention_factor() == 1);
  CHECK(rounds_to(v3.softmax_multiplier, 1.873854207, 10));
  CHECK(rounds_to(v3.softmax_multiplier / std::sqrt(192.0), 0.1352337788, 9));
  CHECK(lists(
      v3.frequencies, 10,
      "0.0562341325 0.0390069266 0.0268793601 0.0183781462 0.0124479559 0.00833450895 0.0055 0.00356199749 "
      "0.0022493653 0.00137051364 0.000790569415 0.000414990398 0.000177827941 3.33380358e-05 2.5e-05",
      9));
  const auto v2 = only_group(config("deepseek_v2_lite"));
  CHECK(v2.frequencies.attention_factor() == 1);
  CHECK(rounds_to(v2.softmax_multiplier, 1.589626165, 10));
}

TEST_CASE("only latent attention has a softmax multiplier", "[models][import]") {
  const json yarn = {{"rope_scaling",
                      {{"rope_type", "yarn"},
                       {"factor", 4},
                       {"original_max_position_embeddings", 64},
                       {"mscale", 1},
                       {"mscale_all_dim", 1}}}};
  CHECK(only_group(changed(small, yarn)).softmax_multiplier == 1);
}

TEST_CASE("Phi 3.5 uses the list for the requested length, and one magnitude for both", "[models][import]") {
  const json phi = config("phi_3_5_mini");
  const frequencies original(96, 10000);
  const auto divided_by = [&](const frequencies& f, const char* list) {
    const json& factors = phi.at("rope_scaling").at(list);
    for (std::size_t i = 0; i < 48; ++i) {
      const auto row = static_cast<Index>(i);
      const double expected = original.inv_freq()(row, 0) / factors[i].get<double>();
      if (std::abs(f.inv_freq()(row, 0) - expected) > 4e-16 * expected) return false;
    }
    return rounds_to(f.attention_factor(), 1.19023807, 9);
  };
  CHECK(divided_by(only_group(phi).frequencies, "short_factor"));
  CHECK(divided_by(only_group(phi, {.length = 4096}).frequencies, "short_factor"));
  CHECK(divided_by(only_group(phi, {.length = 4097}).frequencies, "long_factor"));
  CHECK(has_warning(import_hugging_face(phi).warnings, "longrope", "set options.length"));
  CHECK_FALSE(has_warning(import_hugging_face(phi, {.length = 5000}).warnings, "depends on the length"));
}

TEST_CASE("the magnitudes of Phi 3.5 MoE are tied to the lists", "[models][import]") {
  const json moe =
      changed(config("phi_3_5_mini"),
              {{"model_type", "phimoe"}, {"rope_scaling", {{"short_mscale", 1.25}, {"long_mscale", 1.5}}}});
  CHECK(only_group(moe, {.length = 1}).frequencies.attention_factor() == 1.25);
  CHECK(only_group(moe, {.length = 5000}).frequencies.attention_factor() == 1.5);
}

TEST_CASE("Gemma 3 has two groups, in the old format and in the new", "[models][import]") {
  for (const char* name : {"gemma_3_4b", "gemma_3_4b_rope_parameters"}) {
    CAPTURE(name);
    const auto model = import_hugging_face(config(name));
    REQUIRE(model.groups().size() == 2);
    const layer_group *full = model.group("full_attention"), *sliding = model.group("sliding_attention");
    REQUIRE(full);
    REQUIRE(sliding);
    CHECK(same_schedule(full->frequencies, frequencies(256, 1e6, rope::linear_scaling{.factor = 8})));
    CHECK(same_schedule(sliding->frequencies, frequencies(256, 1e4)));
    REQUIRE(model.layers().size() == 34);
    CHECK(model.group_of_layer(4) == sliding);
    CHECK(model.group_of_layer(5) == full);
    CHECK(model.group_of_layer(33) == sliding);
    CHECK(model.sliding_window == 1024);
    CHECK(model.query_heads == 8);
    CHECK(model.key_heads == 4);
    CHECK(model.warnings.size() == 1);
    CHECK(has_warning(model.warnings, "text_config.query_pre_attn_scalar is not given; assumed 256"));
  }
}

TEST_CASE("defaults of Gemma 3's configuration class are assumed with a warning", "[models][import]") {
  const auto model = import_hugging_face(json{{"model_type", "gemma3_text"}, {"num_hidden_layers", 6}});
  REQUIRE(model.groups().size() == 2);
  CHECK(same_schedule(model.groups()[0].frequencies, frequencies(256, 1e6)));
  CHECK(same_schedule(model.groups()[1].frequencies, frequencies(256, 1e4)));
  CHECK(has_warning(model.warnings, "rope_theta", "1000000"));
  CHECK(has_warning(model.warnings, "local", "10000"));
}

TEST_CASE("ModernBERT has full attention in every third layer, with its own base", "[models][import]") {
  const auto model = import_hugging_face(config("modernbert_base"));
  REQUIRE(model.groups().size() == 2);
  CHECK(same_schedule(model.group("full_attention")->frequencies, frequencies(64, 160000)));
  CHECK(same_schedule(model.group("sliding_attention")->frequencies, frequencies(64, 10000)));
  CHECK(model.group_of_layer(0)->layer_type == "full_attention");
  CHECK(model.group_of_layer(1)->layer_type == "sliding_attention");
  CHECK(model.group_of_layer(21)->layer_type == "full_attention");
  CHECK(model.sliding_window == 128);
}

TEST_CASE("Qwen2-VL has its sections, and rotates text as with one axis", "[models][import]") {
  const auto group = only_group(config("qwen2_vl_7b"));
  CHECK(group.mrope_sections == std::vector<Index>{16, 24, 24});
  CHECK(group.section_order == rope::mrope_order::blocks);
  CHECK(group.frequencies.axes() == 1);
  const json qwen3vl = {
      {"model_type", "qwen3_vl"},
      {"text_config",
       {{"model_type", "qwen3_vl_text"},
        {"head_dim", 128},
        {"rope_theta", 5e6},
        {"rope_scaling",
         {{"rope_type", "default"}, {"mrope_section", {24, 20, 20}}, {"mrope_interleaved", true}}}}}};
  const auto alternating = only_group(qwen3vl);
  CHECK(alternating.mrope_sections == std::vector<Index>{24, 20, 20});
  CHECK(alternating.section_order == rope::mrope_order::alternating);
}

TEST_CASE("the lists of Hugging Face's own tests are reproduced", "[models][import]") {
  const json model = {
      {"model_type", "llama"}, {"head_dim", 128}, {"rope_theta", 1e4}, {"max_position_embeddings", 2048}};
  const auto scaled = [&](const json& rope, double length = 0) {
    return only_group(changed(model, {{"rope_parameters", rope}}), {.length = length}).frequencies;
  };
  const char* original = "1.0000e+00 8.6596e-01 7.4989e-01 6.4938e-01 5.6234e-01 4.8697e-01 4.2170e-01";
  CHECK(lists(scaled({{"rope_type", "default"}}), 0, original, 5));
  const json dynamic = {{"rope_type", "dynamic"}, {"factor", 10}};
  CHECK(lists(scaled(dynamic, 1), 0, original, 5));
  CHECK(lists(scaled(dynamic, 16384), 0, "1.0000e+00 8.0931e-01 6.5498e-01 5.3008e-01 4.2900e-01 3.4720e-01",
              5));
  CHECK(lists(scaled(dynamic, 16384), 60, "3.0683e-06 2.4832e-06 2.0097e-06 1.6265e-06", 5));
  const json yarn = {{"rope_type", "yarn"}, {"factor", 10}, {"original_max_position_embeddings", 2048}};
  CHECK(lists(scaled(yarn), 0, original, 5));
  CHECK(lists(scaled(yarn), 17,
              "8.3479e-02 6.9590e-02 5.7925e-02 4.8136e-02 3.9931e-02 3.3061e-02 2.7315e-02", 5));
  CHECK(rounds_to(scaled(yarn).attention_factor(), 1.2302585, 8));
  CHECK(scaled(changed(yarn, {{"attention_factor", 0.5}})).attention_factor() == 0.5);
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 10},
                       {"original_max_position_embeddings", 2048},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4}};
  CHECK(lists(scaled(llama3), 30, "1.3335e-02 1.0730e-02 7.7785e-03 5.6009e-03 3.9991e-03", 5));
}

TEST_CASE("Gemma 4 rotates a quarter of the pairs of the whole head", "[models][import]") {
  const json gemma4 = {
      {"model_type", "gemma4_text"},
      {"head_dim", 512},
      {"rope_parameters",
       {{"full_attention",
         {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}}}}};
  const auto group = only_group(gemma4);
  CHECK(group.layer_type == "full_attention");
  CHECK(group.rotary_dim() == 512);
  CHECK(lists(group.frequencies, 0, "1 0.9474635 0.8976871 0.8505258", 7));
  CHECK(lists(group.frequencies, 62, "0.03522695 0.03337625 0 0", 7));
}

// The class puts pair i of a head, (i, i + 64), at 2 i and 2 i + 1, and rotates the first rope_head_dim of
// these channels by the frequencies of a head of that width. The source is
// Hugging Face transformers, models/k2_horizon: K2HorizonAttention.
TEST_CASE("K2 Horizon rotates the first pairs of a head by the frequencies of a narrower one",
          "[models][import]") {
  const json whole = {{"model_type", "k2_horizon"},
                      {"head_dim", 128},
                      {"hidden_size", 6144},
                      {"num_attention_heads", 48},
                      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}}}};
  CHECK(same_schedule(only_group(whole).frequencies, frequencies(128, 1e7)));
  CHECK(
      same_schedule(only_group(changed(whole, {{"rope_head_dim", 128}})).frequencies, frequencies(128, 1e7)));
  for (const Index width : {64, 32, 8}) {
    const layer_group group = only_group(changed(whole, {{"rope_head_dim", width}}));
    CHECK(group.layout == layout_kind::half_split);
    CHECK(group.first_channel == 0);
    REQUIRE(group.frequencies.pairs() == 64);
    for (Index i = 0; i < 64; ++i) {
      const double narrow = std::pow(1e7, -2.0 * static_cast<double>(i) / static_cast<double>(width));
      const double expected = 2 * i < width ? narrow : 0;
      CHECK(std::abs(group.frequencies.inv_freq(i) - expected) <= 1e-15 * expected);
    }
  }
}

TEST_CASE("Gemma 4 has larger heads in its full layers", "[models][import]") {
  const json gemma4 = {
      {"model_type", "gemma4_text"},
      {"head_dim", 256},
      {"global_head_dim", 512},
      {"num_hidden_layers", 2},
      {"sliding_window", 512},
      {"layer_types", {"sliding_attention", "full_attention"}},
      {"rope_parameters",
       {{"full_attention",
         {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}};
  const auto model = import_hugging_face(gemma4);
  const layer_group *full = model.group("full_attention"), *sliding = model.group("sliding_attention");
  REQUIRE((full && sliding));
  CHECK(full->head_dim == 512);
  CHECK(same_schedule(full->frequencies, frequencies(512, 1e6, rope::proportional_scaling{0.25})));
  CHECK(sliding->head_dim == 256);
  CHECK(same_schedule(sliding->frequencies, frequencies(256, 1e4)));
  CHECK(model.warnings.empty());
}

TEST_CASE("legacy names keep their meaning, and have a note", "[models][import]") {
  const json phi = config("phi_3_5_mini");
  const auto longrope = only_group(phi);
  for (const char* old : {"su", "yarn"}) {
    CAPTURE(old);
    const json legacy = changed(phi, {{"rope_scaling", {{"type", old}}}});
    CHECK(same_schedule(only_group(legacy).frequencies, longrope.frequencies));
    CHECK(has_warning(import_hugging_face(legacy).warnings, old, "another name of longrope"));
  }
  const json deepseek = changed(config("deepseek_v3"), {{"rope_scaling", {{"type", "deepseek_yarn"}}}});
  CHECK(same_schedule(only_group(deepseek).frequencies, only_group(config("deepseek_v3")).frequencies));
  CHECK(has_warning(import_hugging_face(deepseek).warnings, "deepseek_yarn is another name of yarn"));
  const json both = changed(small, {{"rope_scaling", {{"type", "linear"}, {"rope_type", "default"}}}});
  CHECK(only_group(both).rule == "default");
  CHECK(has_warning(import_hugging_face(both).warnings, "rope_scaling.type", "linear", "overruled"));
}

TEST_CASE("the old and the new format give equal frequencies, and so does a key in either place",
          "[models][import]") {
  const json rope = {{"rope_type", "llama3"},
                     {"factor", 8},
                     {"low_freq_factor", 1},
                     {"high_freq_factor", 4},
                     {"original_max_position_embeddings", 32}};
  const auto old_form = only_group(changed(small, {{"rope_theta", 5e5}, {"rope_scaling", rope}}));
  const auto new_form = only_group(
      changed(small, {{"rope_theta", nullptr}, {"rope_parameters", changed(rope, {{"rope_theta", 5e5}})}}));
  CHECK(same_schedule(old_form.frequencies, new_form.frequencies));

  // original_max_position_embeddings next to the dictionary overrides the one inside.
  const auto outside =
      only_group(changed(small, {{"rope_scaling", rope}, {"original_max_position_embeddings", 16}}));
  CHECK(outside.number("original_max_position", 0) == 16);
  // Without either, the model was trained at its full length.
  const json trained = changed(rope, {{"original_max_position_embeddings", nullptr}});
  CHECK(only_group(changed(small, {{"rope_scaling", trained}})).number("original_max_position", 0) == 64);
  const json inside = changed(rope, {{"rope_theta", 2e4}});
  CHECK(only_group(changed(small, {{"rope_scaling", inside}})).base == 2e4);
  CHECK(has_warning(import_hugging_face(changed(small, {{"rope_scaling", inside}})).warnings, "rope_theta",
                    "overruled"));
  const json two = changed(small, {{"rope_scaling", rope}, {"rope_parameters", {{"rope_type", "default"}}}});
  CHECK(only_group(two).rule == "llama3");  // as `rope_scaling or rope_parameters` of transformers
  CHECK(has_warning(import_hugging_face(two).warnings, "rope_parameters is overruled"));
}

TEST_CASE("a partial rotation is read under each of its names", "[models][import]") {
  CHECK(only_group(changed(small, {{"partial_rotary_factor", 0.5}})).rotary_dim() == 8);
  CHECK(only_group(changed(small, {{"model_type", "gpt_neox"}, {"rotary_pct", 0.5}})).rotary_dim() == 8);
  CHECK(only_group(changed(small, {{"model_type", "stablelm"}, {"rope_pct", 0.5}})).rotary_dim() == 8);
  CHECK(only_group(changed(small, {{"model_type", "gptj"}, {"rotary_dim", 6}})).rotary_dim() == 6);
  CHECK(only_group(changed(small, {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})).rotary_dim() ==
        8);
  CHECK(only_group(changed(small, {{"model_type", "phi"}})).rotary_dim() == 8);  // by its class
  CHECK(only_group(changed(small, {{"head_dim", 32}})).head_dim == 32);
  CHECK(only_group(changed(small, {{"model_type", "gpt_neox"}, {"rotary_emb_base", 5000.0}})).base == 5000);
  CHECK(only_group(changed(small, {{"model_type", "chatglm"}, {"kv_channels", 32}, {"rope_ratio", 500}}))
            .base == 5e6);
  CHECK(import_hugging_face(changed(small, {{"multi_query_group_num", 2}})).key_heads == 2);
}

TEST_CASE("GPT-J and ChatGLM have their own names for sizes", "[models][import]") {
  const auto gptj = import_hugging_face(json{{"model_type", "gptj"},
                                             {"n_embd", 4096},
                                             {"n_head", 16},
                                             {"n_layer", 28},
                                             {"n_positions", 2048},
                                             {"rotary_dim", 64}});
  CHECK(gptj.groups().at(0).head_dim == 256);
  CHECK(gptj.groups()[0].layout == layout_kind::interleaved);
  CHECK(same_schedule(gptj.groups()[0].frequencies, frequencies(64, 1e4)));
  CHECK(gptj.query_heads == 16);
  CHECK(gptj.key_heads == 16);
  CHECK(gptj.max_position == 2048);
  // OpenELM-270M: heads for each layer.
  const json openelm = {{"model_type", "openelm"},
                        {"model_dim", 1280},
                        {"head_dim", 64},
                        {"num_transformer_layers", 4},
                        {"num_query_heads", {12, 12, 12, 16}},
                        {"num_kv_heads", {3, 3, 3, 4}},
                        {"rope_freq_constant", 10000}};
  const auto elm = import_hugging_face(openelm);
  CHECK(elm.query_heads == 12);
  CHECK(elm.key_heads == 3);
  CHECK(has_warning(elm.warnings, "num_query_heads differs from layer to layer"));
  CHECK(has_warning(elm.warnings, "num_kv_heads differs from layer to layer"));
  const auto alike = import_hugging_face(changed(openelm, {{"num_kv_heads", {4, 4, 4, 4}}}));
  CHECK(alike.key_heads == 4);

  const auto deci = import_hugging_face(json{{"model_type", "deci"},
                                             {"hidden_size", 4096},
                                             {"num_attention_heads", 32},
                                             {"num_key_value_heads_per_layer", {4, 2}}});
  CHECK(deci.key_heads == 4);
  CHECK(has_warning(deci.warnings, "num_key_value_heads_per_layer differs from layer to layer"));
  CHECK_FALSE(has_warning(alike.warnings, "num_kv_heads"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        import_hugging_face(changed(openelm, {{"num_kv_heads", json::array()}}));
      },
      "num_kv_heads must not be an empty list"));
  // GLM-4 9B Chat, from before transformers had the architecture.
  const auto glm = import_hugging_face(json{{"model_type", "chatglm"},
                                            {"hidden_size", 4096},
                                            {"kv_channels", 128},
                                            {"num_attention_heads", 32},
                                            {"multi_query_group_num", 2},
                                            {"num_layers", 40},
                                            {"rope_ratio", 500},
                                            {"seq_length", 131072}});
  CHECK(same_schedule(glm.groups().at(0).frequencies, frequencies(64, 5e6)));
  CHECK(glm.groups()[0].head_dim == 128);
  CHECK(glm.key_heads == 2);
  CHECK(glm.max_position == 131072);
}

TEST_CASE("alpha replaces the factor of dynamic scaling", "[models][import]") {
  const json hunyuan =
      changed(small, {{"head_dim", 128}, {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}}}});
  CHECK(same_schedule(only_group(hunyuan).frequencies,
                      frequencies(128, 1e4, rope::ntk_scaling{.factor = 1000})));
  CHECK(rounds_to(only_group(hunyuan).number("new_base", 0), 11158839.9, 9));
  const json factor = changed(hunyuan, {{"rope_scaling", {{"factor", 1.0}, {"beta_fast", 32}}}});
  CHECK(has_warning(import_hugging_face(factor).warnings, "rope_scaling.factor is not used"));
  CHECK(has_warning(import_hugging_face(factor).warnings, "rope_scaling.beta_fast is not used"));
}

TEST_CASE("the layout follows the architecture, rope_interleave, or the caller", "[models][import]") {
  CHECK(only_group(changed(small, {{"model_type", "cohere"}})).layout == layout_kind::interleaved);
  CHECK(only_group(changed(small, {{"rope_interleave", true}})).layout == layout_kind::half_split);
  CHECK(has_warning(import_hugging_face(changed(small, {{"rope_interleave", true}})).warnings,
                    "rope_interleave is not read by the class of llama and has no effect"));
  CHECK(only_group(changed(small, {{"model_type", "novel"}, {"rope_interleave", true}})).layout ==
        layout_kind::interleaved);
  CHECK(only_group(changed(config("deepseek_v3"), {{"rope_interleave", false}})).layout ==
        layout_kind::half_split);
  const json unknown = changed(small, {{"model_type", "novel"}});
  CHECK(only_group(unknown, {.layout = layout_kind::interleaved}).layout == layout_kind::interleaved);
  const json by_name = changed(small, {{"model_type", nullptr}, {"architectures", {"Glm4ForCausalLM"}}});
  CHECK(only_group(by_name).layout == layout_kind::interleaved);
}

TEST_CASE("a model with layers that do not rotate needs a window", "[models][import]") {
  for (const char* type : {"cohere2", "cohere2_moe"})
    CHECK_THROWS_WITH(
        import_hugging_face(json{
            {"model_type", type}, {"head_dim", 8}, {"num_hidden_layers", 4}, {"sliding_window", nullptr}}),
        testing::ContainsSubstring("sliding_window is null: then no layer of"));
}

TEST_CASE("layers without rotation are given by list or by interval", "[models][import]") {
  const auto without = [](const json& changes) {
    return import_hugging_face(changed(small, changes)).layers_without_rope();
  };
  CHECK(without(json::object()).empty());
  CHECK(without({{"model_type", "smollm3"}, {"no_rope_layers", {1, 0, 1, 0}}}) == std::vector<Index>{1, 3});
  CHECK(without({{"model_type", "smollm3"}, {"no_rope_layer_interval", 3}}) == std::vector<Index>{2});
  CHECK(without({{"no_rope_layers", {1, 0, 1, 0}}}).empty());  // a key of other classes
  CHECK(without({{"model_type", "smollm3"}}) == std::vector<Index>{3});
  CHECK(without({{"model_type", "cohere2"}}) == std::vector<Index>{3});
}

TEST_CASE("EXAONE 4 rotates only its layers with a window, or all if none has one", "[models][import]") {
  const json exaone = changed(small, {{"model_type", "exaone4"}, {"num_hidden_layers", 8}});
  const auto model = [&](const json& changes) { return import_hugging_face(changed(exaone, changes)); };
  using layers = std::vector<Index>;
  // Without a window, as EXAONE 4.0 1.2B.
  json without = exaone;
  without["sliding_window"] = nullptr;
  CHECK(import_hugging_face(without).layers_without_rope().empty());
  CHECK(import_hugging_face(without).layers().empty());
  without["layer_types"] = std::vector<std::string>(8, "full_attention");
  CHECK(import_hugging_face(without).layers_without_rope().empty());
  // The class has 4096 for a key that is absent.
  CHECK(model(json::object()).layers_without_rope() == layers{3, 7});
  // With one, as the 32B, which writes its pattern in letters.
  const json window = {{"sliding_window", 4096}, {"sliding_window_pattern", "LLLG"}};
  CHECK(model(window).layers_without_rope() == layers{3, 7});
  CHECK(model(window).group_of_layer(2) != nullptr);
  CHECK(model(window).group_of_layer(3) == nullptr);
  CHECK(model({{"sliding_window", 4096}}).layers_without_rope() == layers{3, 7});
  CHECK(model({{"sliding_window", 4096}, {"sliding_window_pattern", 2}}).layers_without_rope() ==
        layers{1, 3, 5, 7});
  CHECK(model({{"sliding_window", 4096}, {"sliding_window_pattern", "GL"}}).layers_without_rope() ==
        layers{0, 2, 4, 6});
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        model({{"sliding_window", 4096}, {"sliding_window_pattern", "LLXG"}});
      },
      "sliding_window_pattern", "made of L and G, got LLXG"));
}

TEST_CASE("a key without effect is reported by its name", "[models][import]") {
  CHECK(has_warning(warnings({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"beta_fats", 16}}}}),
                    "rope_scaling.beta_fats", "not used"));
  CHECK(has_warning(warnings({{"rope_parameters", {{"rope_type", "default"}, {"factor", 2}}}}),
                    "rope_parameters.factor", "default"));
  CHECK(has_warning(
      warnings({{"rope_parameters",
                 {{"full_attention", {{"rope_type", "default"}, {"colour", 1}}}, {"factor", 2}}}}),
      "rope_parameters.full_attention.colour"));
  CHECK(has_warning(
      warnings({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}, {"factor", 2}}}}),
      "rope_parameters.factor", "next to"));
  CHECK(has_warning(warnings({{"rope_tehta", 1e6}}), "rope_tehta"));
  CHECK(has_warning(warnings({{"compress_rope_theta", 160000}}), "compress_rope_theta is not understood"));
  CHECK(has_warning(warnings({{"use_rotary", true}}), "use_rotary"));
  for (const char* key : {"query_pre_attn_scalar", "logits_scaling", "mean_window_size", "nope_every"})
    CHECK(has_warning(warnings({{key, 64}}), std::string(key) + " is not understood and has no effect"));
  CHECK(warnings({{"property", 1}, {"hidden_act", "silu"}, {"europe", 2}}).empty());
  CHECK(has_warning(warnings({{"decoder_config", {{"rope_theta", 5e5}, {"width", 2}}}}),
                    "decoder_config.rope_theta is not understood and has no effect"));
  CHECK(warnings({{"decoder_config", {{"width", 2}}}}).empty());
  // A vision tower is named once, and not at all if it has neither rotation nor windows.
  const auto tower = warnings({{"vision_config",
                                {{"a_window", 1},
                                 {"b_window", 2},
                                 {"c_window", 3},
                                 {"d_window", 4},
                                 {"rope_theta", 5e5},
                                 {"width", 2}}}});
  CHECK(tower ==
        std::vector<std::string>{
            "vision_config is not read: it describes another part of the model, with a_window, b_window, "
            "c_window, d_window, rope_theta"});
  CHECK(warnings({{"audio_config", {{"rope_theta", 5e5}}}}) ==
        std::vector<std::string>{
            "audio_config is not read: it describes another part of the model, with rope_theta"});
  CHECK(warnings({{"vision_config", {{"width", 2}}}}).empty());
  CHECK(warnings({{"quantization_config", {{"scale_fmt", "ue8m0"}}}}).empty());  // of weights
  CHECK(warnings({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}}).empty());
}

TEST_CASE("a default of the class is reported by the name of its key", "[models][import]") {
  const auto assumed = [](const char* architecture, const char* key, const json& value) {
    const json file = {{"model_type", architecture}, {"hidden_size", 64}, {"num_attention_heads", 4}};
    const auto reports = [&](const json& config) {
      return has_warning(import_hugging_face(config).warnings, std::string(key) + " is not given; assumed ",
                         std::string(", the default of ") + architecture);
    };
    return reports(file) && !reports(changed(file, {{key, value}}));
  };
  CHECK(assumed("qwen3", "head_dim", 16));
  CHECK(assumed("glm4", "partial_rotary_factor", 0.25));
  CHECK(assumed("stablelm", "partial_rotary_factor", 0.5));
  CHECK(assumed("gemma2", "query_pre_attn_scalar", 16));
  CHECK(assumed("gemma2", "attn_logit_softcapping", 20));
  CHECK(assumed("granite", "attention_multiplier", 0.5));
  CHECK(assumed("falcon_h1", "key_multiplier", 0.5));
}

TEST_CASE("a default of the class that makes layers differ is reported by the name of its key",
          "[models][import]") {
  const json small_of_8 = {{"hidden_size", 64}, {"num_attention_heads", 4}, {"num_hidden_layers", 8}};
  const auto assumed = [&](const char* architecture, const json& more, const std::string& key,
                           const std::string& what, const json& value) {
    json file = changed(small_of_8, more);
    file["model_type"] = architecture;
    const auto reports = [&](const json& config) {
      return has_warning(import_hugging_face(config).warnings,
                         key + " is not given; assumed " + what + ", the default of " + architecture);
    };
    return reports(file) && !reports(changed(file, {{key, value}}));
  };
  json types = json::array();
  for (int i = 0; i < 8; ++i) types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  const json none = json::object(), ones = {1, 1, 1, 0, 1, 1, 1, 0};
  const json window = {{"sliding_window", 64}, {"use_sliding_window", true}};
  CHECK(assumed("gemma2", none, "layer_types", "that the last of every 2 layers attends fully", types));
  CHECK(assumed("modernbert", none, "layer_types", "that the first of every 3 layers attends fully", types));
  CHECK(assumed("step3p5", none, "layer_types", "that every layer attends fully", types));
  CHECK(assumed("qwen3_next", none, "layer_types", "that the last of every 4 layers attends, and no other",
                types));
  CHECK(assumed("qwen3_next", none, "layer_types", "that the last of every 4 layers attends, and no other",
                types));
  CHECK(assumed("smollm3", none, "no_rope_layers", "that the last of every 4 layers does not rotate", ones));
  CHECK(assumed("llama4_text", none, "no_rope_layers", "that the last of every 4 layers does not rotate",
                ones));
  CHECK(assumed("mllama", none, "cross_attention_layers", "3", {3}));
  CHECK(assumed("qwen2", window, "max_window_layers", "28", 4));
  const json two_types = {
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "default"}}}, {"sliding_attention", {{"rope_type", "default"}}}}}};
  CHECK(assumed("gemma4_text", two_types, "global_head_dim", "512", 16));
  // Other keys may give the value, and unused keys are not named.
  const auto silent = [&](const char* architecture, const json& more, const std::string& key) {
    json file = changed(small_of_8, more);
    file["model_type"] = architecture;
    return !has_warning(import_hugging_face(file).warnings, key + " is not given");
  };
  CHECK(silent("cohere2", {{"sliding_window_pattern", 2}}, "layer_types"));
  CHECK(silent("qwen3_next", {{"full_attention_interval", 2}}, "layer_types"));
  CHECK(silent("smollm3", {{"no_rope_layer_interval", 2}}, "no_rope_layers"));
  CHECK(silent("qwen2", none, "max_window_layers"));
  CHECK(silent("llama", none, "layer_types"));
  json by_layer = two_types;
  by_layer["per_layer_config"] = {{"0", {{"head_dim", 8}}}};
  CHECK(silent("gemma4_text", by_layer, "global_head_dim"));
}

TEST_CASE("a share of channels for all layers and a different one for each of them throw",
          "[models][import]") {
  const json step = {{"model_type", "step3p5"},  {"num_hidden_layers", 2},
                     {"head_dim", 64},           {"layer_types", {"full_attention", "sliding_attention"}},
                     {"rope_theta", {1e6, 1e4}}, {"partial_rotary_factors", {0.5, 1.0}}};
  const auto model = import_hugging_face(step);
  CHECK(model.group("full_attention")->rotary_dim() == 32);
  CHECK(model.group("sliding_attention")->rotary_dim() == 64);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        import_hugging_face(changed(step, {{"partial_rotary_factor", 0.5}}));
      },
      "partial_rotary_factor must be that of every layer in partial_rotary_factors, 1, got 0.5"));
  const json same = {{"partial_rotary_factor", 0.5}, {"partial_rotary_factors", {0.5, 0.5}}};
  CHECK(import_hugging_face(changed(step, same)).group("sliding_attention")->rotary_dim() == 32);
}

TEST_CASE("a base that another key overrides is reported by the name of its key", "[models][import]") {
  const auto inside = [](double base) { return json{{"rope_type", "default"}, {"rope_theta", base}}; };
  const json neox = {{"model_type", "gpt_neox"}, {"rope_parameters", inside(500)}};
  CHECK(has_warning(warnings(changed(neox, {{"rotary_emb_base", 777}})),
                    "rotary_emb_base is overruled by rope_parameters.rope_theta"));

  json granite = {{"model_type", "granite_swa"},
                  {"num_hidden_layers", 2},
                  {"layer_rope_theta", {500.0, 500.0}},
                  {"rope_parameters", inside(777)}};
  CHECK(has_warning(warnings(granite), "rope_parameters.rope_theta is overruled by layer_rope_theta"));
  granite["rope_parameters"] = {{"rope_type", "default"}};
  granite["rope_theta"] = 777;
  CHECK(has_warning(warnings(granite), "rope_theta is overruled by layer_rope_theta"));
  granite["rope_theta"] = 500;
  CHECK_FALSE(has_warning(warnings(granite), "overruled"));

  const json deepseek = {{"model_type", "deepseek_v4"},
                         {"layer_types", {"compressed_sparse_attention"}},
                         {"num_hidden_layers", 1},
                         {"compress_rope_theta", 888},
                         {"head_dim", 64},
                         {"qk_rope_head_dim", 8}};
  CHECK(has_warning(warnings(changed(deepseek, {{"rope_scaling", inside(777)}})),
                    "rope_scaling.rope_theta is overruled by compress_rope_theta"));
  const json both = {{"main", inside(777)}, {"compress", inside(999)}};
  CHECK(has_warning(warnings(changed(deepseek, {{"rope_parameters", both}})),
                    "compress_rope_theta is overruled by rope_parameters.compress.rope_theta"));

  const json step = {{"model_type", "step3p5"},
                     {"num_hidden_layers", 2},
                     {"rope_theta", {500.0, 500.0}},
                     {"rope_parameters", {{"full_attention", inside(777)}}}};
  CHECK(has_warning(warnings(step), "rope_theta is overruled by rope_parameters"));
}

TEST_CASE("a key without effect in a dictionary that is read is reported by its path", "[models][import]") {
  const json dbrx = {{"model_type", "dbrx"},
                     {"attn_config", {{"rope_theta", 5e5}, {"clip_qkv", 8}, {"softmax_scale", 2.0}}}};
  CHECK(has_warning(warnings(dbrx), "attn_config.softmax_scale is not understood and has no effect"));
  CHECK_FALSE(has_warning(warnings(dbrx), "clip_qkv"));
  const json gemma = {
      {"model_type", "gemma4_text"},
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "default"}}}, {"sliding_attention", {{"rope_type", "default"}}}}},
      {"per_layer_config",
       {{"0", {{"head_dim", 8}, {"sliding_window", 5}}}, {"1", {{"head_dim", 8}, {"sliding_window", 7}}}}}};
  const auto found = warnings(gemma);
  CHECK(std::count(found.begin(), found.end(),
                   "per_layer_config: sliding_window is not understood and has no effect") == 1);
}

TEST_CASE("a layer type without a rope dictionary is reported by its name", "[models][import]") {
  const auto model = [](const json& types, const json& dictionaries) {
    return import_hugging_face(changed(
        small, {{"num_hidden_layers", nullptr}, {"layer_types", types}, {"rope_parameters", dictionaries}}));
  };
  const json plain = {{"rope_type", "default"}},
             both = {{"full_attention", plain}, {"sliding_attention", plain}};
  const auto misspelt = model({"full_attention", "sliding_atention", "sliding_attention"}, both);
  CHECK(misspelt.rotation_of_layer(1) == rope::layer_rotation::not_known);
  CHECK(misspelt.layers_not_known() == std::vector<Index>{1});
  CHECK_THROWS_AS(misspelt.group_of_layer(1), std::invalid_argument);
  CHECK(misspelt.group_of_layer(0) == misspelt.group("full_attention"));
  CHECK(has_warning(misspelt.warnings, "layers of type sliding_atention have no rope dictionary",
                    "their rotation is unknown"));
  CHECK_FALSE(
      has_warning(model({"full_attention", "sliding_attention"}, both).warnings, "no rope dictionary"));
  // One warning for all of them.
  const auto many = model({"f", "a", "b", "a", "e", "c", "d", "full_attention"}, both);
  CHECK(many.warnings.size() == 2);  // and that the class does not read dictionaries for types
  CHECK(has_warning(many.warnings, "layers of type a, b, c, d and 2 more have"));
  // A single group serves every layer, as one without a name does, without a warning.
  const auto alone = model({"full_attention", "linear_attention"}, {{"full_attention", plain}});
  CHECK(alone.group_of_layer(1) == &alone.groups()[0]);
  CHECK(has_warning(alone.warnings, "type linear_attention", "like full_attention"));
  CHECK(model({"full_attention", "linear_attention"}, plain).warnings.empty());
  // Layers that do not rotate need none.
  const auto cohere =
      import_hugging_face(json{{"model_type", "cohere2"},
                               {"head_dim", 8},
                               {"num_hidden_layers", 4},
                               {"sliding_window", 4096},
                               {"rope_parameters", {{"sliding_attention", {{"rope_theta", 5e4}}}}}});
  CHECK(cohere.layers()[3] == "full_attention");
  CHECK(cohere.warnings.size() == 2);  // layer_types, and dictionaries for types of layers
}

TEST_CASE("layers without attention do not rotate", "[models][import]") {
  const auto without = [](const char* type, json more) {
    more.update({{"model_type", type}, {"head_dim", 8}, {"num_hidden_layers", 4}});
    return import_hugging_face(more).layers_without_rope();
  };
  using layers = std::vector<Index>;
  for (const char* type : {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}) {
    CAPTURE(type);
    CHECK(without(type, json::object()) == layers{0, 1, 2});
    CHECK(without(type, {{"full_attention_interval", 2}}) == layers{0, 2});
    CHECK(without(type, {{"layer_types",
                          {"full_attention", "linear_attention", "linear_attention", "full_attention"}}}) ==
          layers{1, 2});
  }
  for (const char* type : {"lfm2", "lfm2_moe"}) {
    CHECK(without(type, json::object()).empty());
    CHECK(without(type, {{"full_attn_idxs", {1, 2}}}) == layers{0, 3});
    const auto listed = import_hugging_face(
        json{{"model_type", type}, {"head_dim", 8}, {"num_hidden_layers", 2}, {"full_attn_idxs", {1}}});
    CHECK(listed.layers() == std::vector<std::string>{"conv", "full_attention"});
    CHECK(without(type, {{"layer_types", {"conv", "conv", "full_attention", "conv"}}}) == layers{0, 1, 3});
  }
  CHECK(without("bamba", {{"attn_layer_indices", {2}}}) == layers{0, 1, 3});
  CHECK(without("bamba", json::object()) == layers{0, 1, 2, 3});
  CHECK(without("minimax", json::object()) == layers{1, 3});
  // A model too short for a layer with attention gets one at its end.
  CHECK(import_hugging_face(json{{"model_type", "olmo_hybrid"},
                                 {"head_dim", 8},
                                 {"num_hidden_layers", 3},
                                 {"rope_parameters", {{"rope_theta", 500000}}}})
            .layers_without_rope() == layers{0, 1});
  // The class writes "full_attention" and "linear_attention" for the older "attention" and "mamba".
  for (const char* attends : {"attention", "full_attention"})
    CHECK(without("granitemoehybrid", {{"position_embedding_type", "rope"},
                                       {"layer_types", {"mamba", attends, "linear_attention", attends}}}) ==
          layers{0, 2});
}

TEST_CASE("layers of Llama 3.2 Vision that attend to images do not rotate", "[models][import]") {
  const json text = {{"model_type", "mllama_text_model"}, {"num_hidden_layers", 40}};
  const json file = changed(small, {{"model_type", "mllama"}, {"text_config", changed(small, text)}});
  const std::vector<Index> by_default = {3, 8, 13, 18, 23, 28, 33, 38}, named = {1, 4};
  const auto model = import_hugging_face(file);
  CHECK(model.layers_without_rope() == by_default);
  CHECK(model.attention_of_layer(2).window == 0);
  CHECK_THROWS_AS(model.attention_of_layer(3), std::invalid_argument);
  json other = file;
  other["text_config"]["cross_attention_layers"] = named;
  CHECK(import_hugging_face(other).layers_without_rope() == named);
  // In a file whose number of layers follows only from their types.
  other["text_config"].erase("num_hidden_layers");
  other["text_config"]["layer_types"] = std::vector<std::string>(4, "full_attention");
  CHECK(import_hugging_face(other).layers_without_rope() == std::vector<Index>{1});
}

TEST_CASE("the layers without rotation are in order, each listed once", "[models][import]") {
  const auto model = import_hugging_face(json{{"model_type", "exaone4"},
                                              {"head_dim", 8},
                                              {"rope_theta", 1e4},
                                              {"num_hidden_layers", 5},
                                              {"sliding_window", 64},
                                              {"sliding_window_pattern", 2}});
  CHECK(model.layers_without_rope() == std::vector<Index>{1, 3});
}

TEST_CASE("an unknown architecture with windows and scaling throws", "[models][import]") {
  const json novel = changed(small, {{"model_type", "novel"}}),
             slides = changed(novel, {{"sliding_window", 16}}),
             both = changed(slides, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}});
  const rope::hugging_face_options options = {.layout = layout_kind::half_split};
  CHECK_NOTHROW(import_hugging_face(novel, options));
  CHECK_NOTHROW(import_hugging_face(slides, options));
  CHECK(testing::throws_saying<std::invalid_argument>([&] { import_hugging_face(both, options); },
                                                      "model_type", "both slides and scales", "novel"));
  CHECK_NOTHROW(import_hugging_face(changed(both, {{"model_type", "mistral"}})));
}

TEST_CASE("every malformed config throws with the name of the key", "[models][import]") {
  struct malformed {
    json changes;
    std::vector<const char*> reports;
  };
  const auto rope = [](json keys) { return json{{"rope_scaling", std::move(keys)}}; };
  const auto yarn = [&](const json& changes) {
    return rope(
        changed({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 64}}, changes));
  };
  const auto llama3 = [&](const json& changes) {
    return rope(changed({{"rope_type", "llama3"},
                         {"factor", 8},
                         {"low_freq_factor", 1},
                         {"high_freq_factor", 4},
                         {"original_max_position_embeddings", 64}},
                        changes));
  };
  const std::vector<double> eight(8, 2.0), seven(7, 2.0);
  const auto longrope = [&](const json& changes) {
    return rope(changed({{"rope_type", "longrope"},
                         {"short_factor", eight},
                         {"long_factor", eight},
                         {"original_max_position_embeddings", 64}},
                        changes));
  };
  // merge_patch takes null for "remove", and replaces values that are not dictionaries.
  const std::vector<malformed> table = {
      {{{"model_type", nullptr}}, {"model_type", "missing"}},
      {{{"model_type", 3}}, {"model_type", "a string", "a number"}},
      {{{"model_type", "novel"}}, {"model_type", "novel", "layout"}},
      {{{"model_type", nullptr}, {"architectures", "LlamaForCausalLM"}}, {"architectures", "a list"}},
      {{{"model_type", nullptr}, {"architectures", {1}}}, {"architectures", "list of strings", "a number"}},
      {{{"hidden_size", nullptr}}, {"head_dim", "missing", "hidden_size"}},
      {{{"num_attention_heads", nullptr}}, {"num_attention_heads", "missing"}},
      {{{"num_attention_heads", 0}}, {"num_attention_heads", "positive whole number", "got 0"}},
      {{{"num_attention_heads", 5}}, {"hidden_size", "multiple of num_attention_heads", "64", "5"}},
      {{{"head_dim", -8}}, {"head_dim", "positive whole number", "-8"}},
      {{{"head_dim", 12.5}}, {"head_dim", "positive whole number", "12.5"}},
      {{{"head_dim", "128"}}, {"head_dim", "must be a number", "a string"}},
      {{{"head_dim", 15}}, {"head_dim", "even", "15"}},
      {{{"model_type", "gptj"}, {"rotary_dim", 32}}, {"rotary_dim", "head_dim", "16", "32"}},
      {{{"model_type", "gptj"}, {"rotary_dim", 7}}, {"rotary_dim", "even", "7"}},
      {{{"partial_rotary_factor", 0}}, {"partial_rotary_factor", "(0, 1]", "got 0"}},
      {{{"partial_rotary_factor", 1.5}}, {"partial_rotary_factor", "(0, 1]", "1.5"}},
      {{{"partial_rotary_factor", 0.1}}, {"partial_rotary_factor", "even", "got 0"}},
      {{{"model_type", "gpt_neox"}, {"rotary_pct", -0.25}}, {"rotary_pct", "(0, 1]", "-0.25"}},
      {{{"rope_parameters", {{"partial_rotary_factor", 2}}}},
       {"rope_parameters.partial_rotary_factor", "(0, 1]"}},
      {{{"rope_theta", 1}}, {"rope_theta", "greater than 1", "got 1"}},
      {{{"rope_theta", "10000"}}, {"rope_theta", "must be a number", "a string"}},
      {{{"rope_theta", {1e4}}}, {"rope_theta", "must be a number", "a list"}},
      {{{"rope_theta", true}}, {"rope_theta", "must be a number", "true or false"}},
      {{{"model_type", "gemma3_text"}, {"rope_local_base_freq", 0}},
       {"rope_local_base_freq", "greater than 1"}},
      {{{"rope_scaling", "linear"}}, {"rope_scaling", "a dictionary", "a string"}},
      {{{"rope_parameters", {1, 2}}}, {"rope_parameters", "a dictionary", "a list"}},
      {{{"text_config", 1}}, {"text_config", "a dictionary"}},
      {rope({{"rope_type", "lineal"}}), {"rope_scaling.rope_type", "lineal", "linear"}},
      {rope({{"type", "su2"}}), {"rope_scaling.type", "su2"}},
      {rope({{"rope_type", 1}}), {"rope_scaling.rope_type", "a string"}},
      {rope({{"rope_type", "linear"}}), {"rope_scaling.factor", "missing", "linear"}},
      {rope({{"rope_type", "linear"}, {"factor", 0}}), {"rope_scaling.factor", "must be positive", "0"}},
      {rope({{"rope_type", "linear"}, {"factor", "8"}}), {"rope_scaling.factor", "must be a number"}},
      {rope({{"rope_type", "dynamic"}}), {"rope_scaling.factor", "missing", "dynamic"}},
      {rope({{"rope_type", "dynamic"}, {"alpha", 0}}), {"rope_scaling.alpha", "must be positive"}},
      {rope({{"rope_type", "ntk"}}), {"rope_scaling.factor", "missing", "ntk"}},
      {rope({{"rope_type", "ntk"}, {"factor", 2}, {"mixed_b", 0}}), {"rope_scaling.mixed_b", "positive"}},
      {yarn({{"factor", nullptr}}), {"rope_scaling.factor", "missing", "yarn"}},
      {{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}, {"max_position_embeddings", nullptr}},
       {"max_position_embeddings", "missing", "original_max_position_embeddings is not given"}},
      {{{"model_type", "falcon"}, {"alibi", true}}, {"alibi", "ALiBi biases in place of rotary"}},
      {{{"model_type", "baichuan"}, {"num_hidden_layers", 40}}, {"num_hidden_layers", "ALiBi"}},
      {{{"model_type", "deepseek_v3"}, {"qk_rope_head_dim", 0}},
       {"qk_rope_head_dim", "no channel of a head"}},
      {{{"model_type", "gpt_oss"}}, {"rope_parameters", "scaled rule of its own"}},
      {{{"model_type", "nanochat"}, {"rope_theta", nullptr}}, {"rope_theta", "no default"}},
      {yarn({{"original_max_position_embeddings", -1}}),
       {"rope_scaling.original_max_position_embeddings", "-1"}},
      {yarn({{"beta_fast", -1}}), {"rope_scaling.beta_fast", "not be negative", "-1"}},
      {yarn({{"beta_slow", 64}}), {"rope_scaling.beta_fast", "at least beta_slow", "64"}},
      {yarn({{"truncate", "no"}}), {"rope_scaling.truncate", "true or false", "a string"}},
      {yarn({{"attention_factor", -1}}), {"rope_scaling.attention_factor", "positive"}},
      {yarn({{"mscale", -1}}), {"rope_scaling.mscale", "not be negative"}},
      {llama3({{"low_freq_factor", nullptr}}), {"rope_scaling.low_freq_factor", "missing", "llama3"}},
      {llama3({{"high_freq_factor", nullptr}}), {"rope_scaling.high_freq_factor", "missing"}},
      {llama3({{"high_freq_factor", 0.5}}), {"rope_scaling.high_freq_factor", "at least low_freq_factor"}},
      {llama3({{"low_freq_factor", 0}}), {"rope_scaling.low_freq_factor", "positive"}},
      {longrope({{"short_factor", nullptr}}), {"rope_scaling.short_factor", "missing", "longrope"}},
      {longrope({{"long_factor", 2}}), {"rope_scaling.long_factor", "a list of numbers", "a number"}},
      {longrope({{"long_factor", seven}}), {"rope_scaling.long_factor", "one value per pair", "8", "7"}},
      {longrope({{"short_factor", {1, 1, 1, 1, 1, 1, 1, 0}}}),
       {"rope_scaling.short_factor", "positive", "got 0"}},
      {longrope({{"short_factor", {1, 1, 1, 1, 1, 1, 1, "1"}}}),
       {"rope_scaling.short_factor", "must be a number"}},
      {rope({{"mrope_section", {1, 2, 3}}}), {"rope_scaling.mrope_section", "add up", "8", "[1, 2, 3]"}},
      {rope({{"mrope_section", {0.5, 7.5}}}), {"rope_scaling.mrope_section", "whole number", "0.5"}},
      {rope({{"mrope_section", {2, 3, 3}}, {"mrope_interleaved", 1}}),
       {"rope_scaling.mrope_interleaved", "true or false"}},
      {rope({{"rope_type", "proportional"}, {"partial_rotary_factor", 0}}),
       {"rope_scaling.partial_rotary_factor", "(0, 1]"}},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "linear"}}}}}},
       {"rope_parameters.full_attention.factor", "missing"}},
      {{{"model_type", "llama4_text"}, {"no_rope_layers", {1, 0}}},
       {"no_rope_layers", "num_hidden_layers", "4", "2"}},
      {{{"model_type", "llama4_text"}, {"no_rope_layers", {1, 0, 1, 1, 0}}},
       {"no_rope_layers", "num_hidden_layers", "4", "5"}},
      {{{"model_type", "smollm3"},
        {"num_hidden_layers", nullptr},
        {"layer_types", {"full_attention", "full_attention"}},
        {"no_rope_layers", {1, 0, 1}}},
       {"no_rope_layers", "as many values as layer_types, 2, got 3"}},
      {{{"model_type", "llama4_text"}, {"no_rope_layers", {1, 0, 2, 1}}},
       {"no_rope_layers", "0 or 1", "got 2"}},
      {{{"model_type", "llama4_text"}, {"no_rope_layer_interval", 0}},
       {"no_rope_layer_interval", "positive whole number"}},
      {{{"model_type", "llama4"}, {"num_hidden_layers", nullptr}}, {"num_hidden_layers", "missing"}},
      {{{"layer_types", {"full_attention"}}}, {"layer_types", "num_hidden_layers", "4", "1"}},
      {{{"model_type", "deepseek_v3"}, {"qk_rope_head_dim", 8}}, {"qk_nope_head_dim", "missing"}},
      {{{"model_type", "deepseek_v3"}, {"qk_rope_head_dim", 7}, {"qk_nope_head_dim", 8}},
       {"qk_rope_head_dim", "even", "7"}},
      {{{"model_type", "deepseek_v3"}, {"rope_interleave", "yes"}}, {"rope_interleave", "true or false"}},
      {{{"max_position_embeddings", -5}}, {"max_position_embeddings", "positive"}},
      {{{"num_hidden_layers", 1e9}}, {"num_hidden_layers", "up to 16384", "got 1000000000"}},
      {{{"head_dim", 1e300}}, {"head_dim", "up to 1048576"}},
      {{{"sliding_window", 1e300}}, {"sliding_window", "up to 2^53", "1e+300"}},
      {{{"sliding_window", 0.5}}, {"sliding_window", "whole number", "0.5"}},
      {{{"model_type", "gemma4_text"},
        {"global_head_dim", 0},
        {"rope_parameters", {{"rope_type", "default"}}}},
       {"global_head_dim", "positive whole number"}},
      {{{"model_type", "chatglm"}, {"rope_theta", 1e300}, {"rope_ratio", 1e300}},
       {"rope_theta * rope_ratio", "greater than 1", "inf"}},
      {{{"model_type", "chatglm"}, {"rope_theta", 2}, {"rope_ratio", 0.25}},
       {"rope_theta * rope_ratio", "greater than 1", "0.5"}},
      {yarn({{"beta_fast", 1e-7}}), {"rope_scaling.beta_fast", "at least beta_slow", "1e-07 and 1"}},
      {yarn({{"mscale_all_dim", 1e200}, {"attention_factor", 1}}),
       {"rope_scaling.mscale_all_dim", "softmax multiplier", "inf"}},
  };
  CHECK(table.size() >= 40);
  for (const auto& [changes, reports] : table) {
    CAPTURE(changes.dump());
    std::string text;
    try {
      import_hugging_face(changed(small, changes));
    } catch (const std::invalid_argument& error) {
      text = error.what();
    }
    CAPTURE(text);
    CHECK(text.find("rope::") == 0);
    for (const char* part : reports) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("a config without rotation imports if that is requested", "[models][import]") {
  const auto described = [](json config) {
    config.update({{"num_attention_heads", 8}, {"num_hidden_layers", config.value("num_hidden_layers", 3)}});
    return import_hugging_face(config, {.without_rope = rope::model_without_rope::describe});
  };
  const auto falcon =
      described({{"model_type", "falcon"}, {"alibi", true}, {"max_position_embeddings", 2048}});
  CHECK(falcon.instead_of_rope() == "ALiBi biases");
  CHECK(falcon.architecture == "falcon");
  CHECK(falcon.query_heads == 8);
  CHECK(falcon.key_heads == 1);
  CHECK(falcon.max_position == 2048);
  CHECK(falcon.layer_count() == 3);
  CHECK(described({{"model_type", "baichuan"}, {"num_hidden_layers", 40}}).instead_of_rope() ==
        "ALiBi biases");
  CHECK(described({{"model_type", "deepseek_v3"}, {"qk_rope_head_dim", 0}}).instead_of_rope() ==
        "no positions");
  CHECK(described({{"model_type", "whisper"}}).instead_of_rope() == "learned positions");
  CHECK(described({{"model_type", "cohere2"}, {"sliding_window", nullptr}}).instead_of_rope() ==
        "no positions");
  // A model that rotates is equal with and without the option.
  const json llama = testing::config("llama_3_8b");
  const auto rotating = import_hugging_face(llama, {.without_rope = rope::model_without_rope::describe});
  CHECK(rope::describe(rotating) == rope::describe(import_hugging_face(llama)));
}

TEST_CASE("the work of importing a config is bounded", "[models][import]") {
  const auto rejects = [](const json& changes, const auto&... parts) {
    return testing::throws_saying<std::invalid_argument>(
        [&] { import_hugging_face(changed(small, changes)); }, "rope::import_hugging_face: ", parts...);
  };
  const json plain = {{"rope_type", "default"}, {"rope_theta", 10000}};
  json types;
  for (int i = 0; i < 8; ++i) types["type_" + std::to_string(i)] = plain;
  // Types that no list of layers names are those of an unknown architecture.
  const auto of_types = [&](const json& dictionaries, Index head_dim) {
    return changed(small, {{"model_type", "novel"},
                           {"rope_interleave", false},
                           {"head_dim", head_dim},
                           {"rope_parameters", dictionaries}});
  };
  CHECK(rejects({{"head_dim", 1048576}},
                "head_dim must not bring the pairs of all groups of layers above 32768", "got 524288"));
  CHECK(rejects(
      of_types(types, 8194),
      "rope_parameters.type_7 must not bring the pairs of all groups of layers above 32768, got 32776"));
  CHECK(import_hugging_face(of_types(types, 8192)).groups().size() == 8);
  for (int i = 0; i < 1025; ++i) types["type_" + std::to_string(i)] = plain;
  CHECK(rejects(of_types(types, 64), "must not make more than 1024 groups of layers, got 1025"));
  CHECK(rejects({{"num_hidden_layers", 16385}}, "num_hidden_layers", "up to 16384"));
  for (const auto& [key, value] : {std::pair<const char*, json>{"layer_types", "full_attention"},
                                   std::pair<const char*, json>{"no_rope_layers", 1}})
    CHECK(rejects(
        {{"model_type", "smollm3"}, {"num_hidden_layers", nullptr}, {key, std::vector<json>(16385, value)}},
        key, "at most 16384, got 16385"));
  CHECK(
      rejects({{"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {8, 0, 0, 0, 0, 0, 0, 0, 0}}}}},
              "rope_scaling.mrope_section must have at most 8 values, got 9"));
  // The name is in every warning about the dictionary.
  for (const std::size_t length : {std::size_t{0}, std::size_t{129}})
    CHECK(rejects(of_types({{std::string(length, 'x'), plain}}, 64),
                  "a layer type in rope_parameters must have a name of 1 to 128 characters, got " +
                      std::to_string(length)));
}

TEST_CASE("a config that is not a dictionary, and an invalid length, throw", "[models][import]") {
  CHECK(testing::throws_saying<std::invalid_argument>([] { import_hugging_face(json::array()); },
                                                      "import_hugging_face", "dictionary"));
  CHECK(testing::throws_saying<std::invalid_argument>([] { import_hugging_face(small, {.length = -1}); },
                                                      "length", "-1"));
}

TEST_CASE("sections that the class truncates are truncated, with a warning", "[models][import]") {
  const auto sections = [](std::vector<Index> given) {
    return import_hugging_face(
        json{{"model_type", "qwen3_vl_text"},
             {"hidden_size", 1024},
             {"num_attention_heads", 8},
             {"head_dim", 128},
             {"rope_parameters",
              {{"rope_type", "default"}, {"mrope_section", given}, {"mrope_interleaved", true}}}});
  };
  const auto whole = sections({24, 20, 20}), cut = sections({16, 24, 24});
  CHECK(whole.groups().front().mrope_sections == std::vector<Index>{24, 20, 20});
  CHECK_FALSE(has_warning(whole.warnings, "as the class slices it"));
  CHECK(cut.groups().front().mrope_sections == std::vector<Index>{22, 21, 21});
  CHECK(has_warning(cut.warnings, "mrope_section [16, 24, 24] does not fit 64 alternating pairs",
                    "[22, 21, 21]"));
}

TEST_CASE("an architecture with heads of two parts throws if their widths are missing", "[models][import]") {
  for (const char* name : {"axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
                           "glm_moe_dsa", "kimi_k2", "longcat_flash", "minicpm3", "mistral4", "youtu"}) {
    INFO(name);
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] {
          import_hugging_face(json{{"model_type", name},
                                   {"hidden_size", 1024},
                                   {"num_attention_heads", 8},
                                   {"rope_parameters", {{"rope_type", "default"}}}});
        },
        "qk_rope_head_dim is missing"));
  }
}

// A released file is right under the version of transformers that wrote it. If version 5 reads it
// differently, a warning says so. Source of the second: reference_layers.py, transformers c49429ed1f.
TEST_CASE("a warning names keys that transformers 5 reads differently from the version of the file",
          "[models]") {
  const json base = {{"hidden_size", 256}, {"num_attention_heads", 4}, {"num_hidden_layers", 6}};
  const auto model = [&](const char* type, const json& more) {
    json file = base;
    file["model_type"] = type;
    file.update(more);
    return import_hugging_face(file);
  };
  SECTION("partial_rotary_factor under the default rule") {
    const json half = {{"partial_rotary_factor", 0.5}};
    const char* text = "rotates whole heads under the default rule";
    CHECK(model("llama", half).groups().front().rotary_dim() == 32);
    CHECK(has_warning(model("llama", half).warnings, "partial_rotary_factor holds", text));
    CHECK(has_warning(model("llama", {{"rope_parameters", half}}).warnings, "rope_parameters.partial", text));
    CHECK_FALSE(has_warning(model("llama", {{"partial_rotary_factor", 1.0}}).warnings, text));
    CHECK_FALSE(has_warning(model("llama", {{"partial_rotary_factor", 0.5},
                                            {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}})
                                .warnings,
                            text));
    CHECK_FALSE(has_warning(model("phi", half).warnings, text));
    CHECK_FALSE(has_warning(model("internlm2", half).warnings, text));
  }
  SECTION("type in place of rope_type") {
    const auto gemma3 = model("gemma3_text", {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}});
    CHECK(gemma3.group("full_attention")->rule == "linear");
    CHECK(gemma3.warnings ==
          model("gemma3_text", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4}}}}).warnings);
  }
  SECTION("dictionaries for types of layers") {
    const json types = {{"layer_types",
                         {"sliding_attention", "full_attention", "sliding_attention", "full_attention",
                          "sliding_attention", "full_attention"}},
                        {"rope_parameters",
                         {{"full_attention", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 1e6}}},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}};
    CHECK(model("llama", types).group("full_attention")->rule == "linear");
    CHECK(has_warning(model("llama", types).warnings, "rope_parameters has dictionaries for types of layers",
                      "the class of llama in transformers 5 does not read them"));
    CHECK_FALSE(has_warning(model("gemma3_text", types).warnings, "has dictionaries for types of layers"));
  }
}
