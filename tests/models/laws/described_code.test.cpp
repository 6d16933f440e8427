// SPDX-License-Identifier: MIT
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/model_parts.hpp"

/// The C++ that describe() prints, as it prints it: compiled here, and compared with the imported model. The
/// failing assertion prints a text that has changed. Copy it from there.

namespace {

using rope::describe;
using rope::import_gguf;
using rope::import_hugging_face;
using rope::Index;
using testing::config;
using testing::gguf;
using testing::json;

/// The text without white space and comments.
std::string bare(std::string text) {
  for (std::size_t begin = 0; (begin = text.find("/*", begin)) != std::string::npos;)
    text.erase(begin, text.find("*/", begin) + 2 - begin);
  std::string letters;
  for (const char c : text)
    if (c != ' ' && c != '\n') letters += c;
  return letters;
}

/// The code that describe() prints below its numbers.
std::string code_of(const rope::model_rope& model) {
  const std::string text = describe(model), heading = "\nC++ after #include <rope/rope.hpp>\n";
  const std::size_t at = text.find(heading);
  return at == std::string::npos ? "" : text.substr(at + heading.size());
}

bool prints(const rope::model_rope& model, const char* code) {
  if (bare(code_of(model)) == bare(code)) return true;
  UNSCOPED_INFO("it prints\n" << code_of(model));
  return false;
}

/// Whether the layout, every entry of a table and the inv_freq are those of the group, bit for bit.
template <class Layout>
bool same(const rope::frequencies& f, const rope::layer_group& group) {
  const bool half_split = group.layout == rope::layout_kind::half_split;
  const rope::frequency_table table(f, 100), expected(group.frequencies, 100);
  bool equal = std::is_same_v<Layout, rope::half_split> == half_split &&
               (f.inv_freq() == group.frequencies.inv_freq()).all() &&
               f.attention_factor() == group.frequencies.attention_factor();
  for (int position = 0; position < 100; ++position)
    equal = equal && (table.cos(position) == expected.cos(position)).all() &&
            (table.sin(position) == expected.sin(position)).all();
  return equal;
}

bool same(const rope::attention_options& a, const rope::attention_options& b) {
  return a.scale == b.scale && a.causal == b.causal && a.window == b.window && a.softcap == b.softcap;
}

/// The code of a model with one group, and what it gives if it is compiled.
template <class Layout>
void check_code(const rope::model_rope& model, const char* code, const rope::frequencies& f,
                const rope::attention_options& options) {
  CHECK(prints(model, code));
  CHECK(same<Layout>(f, model.groups()[0]));
  CHECK(same(options, model.attention_of_layer(0)));
}

}  // namespace

/// Statements, and their text.
#define ROPE_STATEMENTS(...) \
  __VA_ARGS__                \
  constexpr const char* code = #__VA_ARGS__

TEST_CASE("the code that describe prints compiles and gives the same tables and options",
          "[models][describe]") {
  SECTION("Llama 3.1") {
    const auto model = import_hugging_face(config("llama_3_1_8b"));
    ROPE_STATEMENTS(
        using model_layout = rope::half_split; const rope::frequencies model_frequencies(
            128, 500000,
            rope::llama3_scaling{
                .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8192});
        const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("Gemma 3: two groups") {
    const auto model = import_hugging_face(config("gemma_3_4b"));
    ROPE_STATEMENTS(
        using full_attention_layout = rope::half_split;
        const rope::frequencies full_attention_frequencies(256, 1000000, rope::linear_scaling{.factor = 8});
        const rope::attention_options full_attention_options = {.scale = 0.0625};
        using sliding_attention_layout = rope::half_split;
        const rope::frequencies sliding_attention_frequencies(256, 10000);
        const rope::attention_options sliding_attention_options = {.scale = 0.0625, .window = 1024};);
    CHECK(prints(model, code));
    CHECK(same<full_attention_layout>(full_attention_frequencies, model.groups()[0]));
    CHECK(same<sliding_attention_layout>(sliding_attention_frequencies, model.groups()[1]));
    CHECK(same(full_attention_options, model.attention_of_layer(5)));
    CHECK(same(sliding_attention_options, model.attention_of_layer(0)));
  }
  SECTION("Qwen 2.5 with YaRN") {
    const auto model = import_hugging_face(config("qwen2_5_7b_yarn"));
    ROPE_STATEMENTS(
        using model_layout = rope::half_split; const rope::frequencies model_frequencies(
            128, 1000000,
            rope::yarn_scaling{.factor = 4, .original_max_position = 32768, .beta_fast = 32, .beta_slow = 1});
        const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("gpt-oss: bounds not rounded, a window every second layer") {
    const auto model = import_hugging_face(config("gpt_oss_20b"));
    ROPE_STATEMENTS(using model_layout = rope::half_split; const rope::frequencies model_frequencies(
                        64, 150000,
                        rope::yarn_scaling{.factor = 32,
                                           .original_max_position = 4096,
                                           .beta_fast = 32,
                                           .beta_slow = 1,
                                           .truncate = false});
                    const rope::attention_options model_options_window_128 = {.scale = 0.125, .window = 128};
                    const rope::attention_options model_options_without_window = {.scale = 0.125};);
    check_code<model_layout>(model, code, model_frequencies, model_options_window_128);
    CHECK(same(model_options_without_window, model.attention_of_layer(1)));
  }
  SECTION("LongRoPE: a list, because no rule gives its numbers") {
    const auto model = import_hugging_face(
        json{{"model_type", "phi3"},
             {"hidden_size", 64},
             {"num_attention_heads", 8},
             {"num_key_value_heads", 8},
             {"max_position_embeddings", 131072},
             {"original_max_position_embeddings", 4096},
             {"rope_scaling",
              {{"type", "longrope"}, {"short_factor", {1, 1.5, 2, 3}}, {"long_factor", {1, 2, 16, 64}}}}});
    ROPE_STATEMENTS(
        using model_layout = rope::half_split;
        const double model_frequencies_list[] = {1, 0.06666666666666667, 0.005, 0.0003333333333333333};
        const rope::frequencies model_frequencies = rope::frequencies::custom(
            Eigen::Map<const Eigen::Array<double, 4, 1>>(model_frequencies_list), 1.1902380714238083);
        const rope::attention_options model_options = {.scale = 0.35355339059327373};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("ModernBERT: both directions") {
    const auto model = import_hugging_face(config("modernbert_base"));
    ROPE_STATEMENTS(using full_attention_layout = rope::half_split;
                    const rope::frequencies full_attention_frequencies(64, 160000);
                    const rope::attention_options full_attention_options = {.scale = 0.125, .causal = false};
                    using sliding_attention_layout = rope::half_split;
                    const rope::frequencies sliding_attention_frequencies(64, 10000);
                    const rope::attention_options sliding_attention_options = {
                        .scale = 0.125, .causal = false, .window = 65};);
    check_code<full_attention_layout>(model, code, full_attention_frequencies, full_attention_options);
    CHECK(same<sliding_attention_layout>(sliding_attention_frequencies, model.groups()[1]));
    CHECK(same(sliding_attention_options, model.attention_of_layer(1)));
  }
  SECTION("Gemma 2: softcap") {
    const auto model = import_hugging_face(json{{"model_type", "gemma2"},
                                                {"head_dim", 16},
                                                {"num_hidden_layers", 2},
                                                {"query_pre_attn_scalar", 64},
                                                {"attn_logit_softcapping", 50.0},
                                                {"sliding_window", 4096}});
    ROPE_STATEMENTS(
        using model_layout = rope::half_split; const rope::frequencies model_frequencies(16, 10000);
        const rope::attention_options model_options_window_4096 = {.scale = 0.125,
                                                                   .window = 4096,
                                                                   .softcap = 50};
        const rope::attention_options model_options_without_window = {.scale = 0.125, .softcap = 50};);
    check_code<model_layout>(model, code, model_frequencies, model_options_window_4096);
    CHECK(same(model_options_without_window, model.attention_of_layer(1)));
  }
  SECTION("Qwen3-VL: alternating axes") {
    const auto model = import_hugging_face(
        json{{"model_type", "qwen3_vl"},
             {"text_config",
              {{"model_type", "qwen3_vl_text"},
               {"head_dim", 128},
               {"rope_theta", 5e6},
               {"rope_scaling",
                {{"rope_type", "default"}, {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}}}}}});
    ROPE_STATEMENTS(using model_layout = rope::half_split;
                    const rope::frequencies model_frequencies(128, 5000000);
                    const rope::frequencies model_frequencies_on_axes =
                        rope::on_axes(model_frequencies, rope::interleaved_sections({24, 20, 20}));
                    const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
    CHECK((model_frequencies_on_axes.inv_freq() == frequencies_on_axes(model.groups()[0]).inv_freq()).all());
  }
  SECTION("openPangu: spread axes") {
    const auto model = import_hugging_face(
        json{{"model_type", "openpangu_vl"},
             {"text_config",
              {{"model_type", "openpangu_vl_text"},
               {"head_dim", 128},
               {"rope_theta", 5e6},
               {"rope_scaling",
                {{"rope_type", "default"}, {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}}}}}});
    ROPE_STATEMENTS(using model_layout = rope::half_split;
                    const rope::frequencies model_frequencies(128, 5000000);
                    const rope::frequencies model_frequencies_on_axes =
                        rope::on_axes(model_frequencies, rope::spread_sections({24, 20, 20}));
                    const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
    CHECK((model_frequencies_on_axes.inv_freq() == frequencies_on_axes(model.groups()[0]).inv_freq()).all());
  }
  SECTION("Qwen2-VL: axes") {
    const auto model = import_hugging_face(config("qwen2_vl_7b"));
    ROPE_STATEMENTS(using model_layout = rope::half_split;
                    const rope::frequencies model_frequencies(128, 1000000);
                    const rope::frequencies model_frequencies_on_axes =
                        rope::on_axes(model_frequencies, rope::contiguous_sections({16, 24, 24}));
                    const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
    CHECK((model_frequencies_on_axes.inv_freq() == frequencies_on_axes(model.groups()[0]).inv_freq()).all());
  }
  SECTION("DeepSeek V3: an attention_factor") {
    const auto model = import_hugging_face(config("deepseek_v3"));
    ROPE_STATEMENTS(using model_layout = rope::interleaved; const rope::frequencies model_frequencies(
                        64, 10000,
                        rope::yarn_scaling{.factor = 40,
                                           .original_max_position = 4096,
                                           .beta_fast = 32,
                                           .beta_slow = 1,
                                           .attention_factor = 1});
                    const rope::attention_options model_options = {.scale = 0.1352337788608801};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("Llama 4: layers without rotation, scaled queries") {
    const auto model = import_hugging_face(config("llama_4_scout"));
    ROPE_STATEMENTS(
        using model_layout = rope::interleaved; const rope::frequencies model_frequencies(
            128, 500000,
            rope::llama3_scaling{
                .factor = 16, .low_freq_factor = 1, .high_freq_factor = 1, .original_max_position = 8192});
        rope::attention_options model_options_in_chunks = {.scale = 0.08838834764831843};
        const rope::attention_options unrotated_options = {.scale = 0.08838834764831843};
        const rope::llama4_query_scaling query_scaling = {
            .floor_scale = 8192, .attention_scale = 0.1, .offset = 1};);
    CHECK(prints(model, code));
    CHECK(same<model_layout>(model_frequencies, model.groups()[0]));
    CHECK(same(unrotated_options, model.attention_of_layer(3)));
    const auto ranges = rope::chunk_ranges(model.chunk_of_layer(0), {.queries = 1, .keys = 9});
    model_options_in_chunks.key_ranges = ranges;
    CHECK(same(model_options_in_chunks, model.attention_of_layer(0, ranges)));
    for (const Index position : {0, 5000, 100000})
      CHECK(query_scaling(position) == model.query_scaling_of_layer(3)(position));
  }
  SECTION("nanochat: frequencies below 0") {
    const auto model = import_hugging_face(
        json{{"model_type", "nanochat"}, {"head_dim", 8}, {"rope_parameters", {{"rope_theta", 1e4}}}});
    ROPE_STATEMENTS(using model_layout = rope::half_split;
                    const rope::frequencies model_frequencies =
                        rope::frequencies::custom(-rope::frequencies(8, 10000).inv_freq());
                    const rope::attention_options model_options = {.scale = 0.35355339059327373};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("proportional") {
    const auto model = import_hugging_face(
        json{{"model_type", "gemma4"},
             {"head_dim", 512},
             {"sliding_window", 0},
             {"rope_parameters", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}}}});
    ROPE_STATEMENTS(using model_layout = rope::half_split; const rope::frequencies model_frequencies(
                        512, 10000, rope::proportional_scaling{.partial_rotary_factor = 0.25, .factor = 1});
                    const rope::attention_options model_options = {.scale = 1};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("dynamic NTK") {
    const auto model = import_hugging_face(json{{"model_type", "llama"},
                                                {"head_dim", 16},
                                                {"max_position_embeddings", 2048},
                                                {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}},
                                           {.length = 5000});
    ROPE_STATEMENTS(
        using model_layout = rope::half_split; const rope::frequencies model_frequencies(
            16, 10000, rope::dynamic_ntk_scaling{.factor = 2, .max_position = 2048, .length = 5000});
        const rope::attention_options model_options = {.scale = 0.25};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("ntk of vLLM") {
    const auto model = import_hugging_face(
        json{{"model_type", "llama"},
             {"head_dim", 16},
             {"rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}, {"mixed_b", 0.625}}}});
    ROPE_STATEMENTS(using model_layout = rope::half_split; const rope::frequencies model_frequencies(
                        16, 10000, rope::mixed_ntk_scaling{.factor = 2, .mixed_b = 0.625});
                    const rope::attention_options model_options = {.scale = 0.25};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("Hunyuan's alpha") {
    const auto model = import_hugging_face(
        json{{"model_type", "hunyuan_v1_dense"},
             {"head_dim", 16},
             {"rope_scaling", {{"rope_type", "dynamic"}, {"alpha", 1000}, {"factor", 1}}}});
    ROPE_STATEMENTS(using model_layout = rope::half_split;
                    const rope::frequencies model_frequencies(16, 10000, rope::alpha_scaling{.alpha = 1000});
                    const rope::attention_options model_options = {.scale = 0.25};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("a magnitude that no rule gives") {
    const auto model = import_gguf(gguf("llama", {{".embedding_length", 4096},
                                                  {".attention.head_count", 32},
                                                  {".rope.freq_base", 5e5},
                                                  {".rope.dimension_count", 128},
                                                  {".rope.scaling.type", "linear"},
                                                  {".rope.scaling.factor", 4},
                                                  {".rope.scaling.attn_factor", 1.25}}));
    ROPE_STATEMENTS(using model_layout = rope::interleaved;
                    const rope::frequencies model_frequencies = rope::frequencies::custom(
                        rope::frequencies(128, 500000, rope::linear_scaling{.factor = 4}).inv_freq(), 1.25);
                    const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("divisors of a GGUF file") {
    const auto model = import_gguf(gguf("llama", {{".embedding_length", 64},
                                                  {".attention.head_count", 8},
                                                  {".rope.freq_base", 5e5},
                                                  {".rope.dimension_count", 8},
                                                  {"rope_freqs.weight", {1, 1, 2, 8}}}));
    ROPE_STATEMENTS(using model_layout = rope::interleaved;
                    const double model_frequencies_list[] = {1, 0.03760603093086393, 0.0007071067811865475,
                                                             6.647869871181235e-06};
                    const rope::frequencies model_frequencies = rope::frequencies::custom(
                        Eigen::Map<const Eigen::Array<double, 4, 1>>(model_frequencies_list));
                    const rope::attention_options model_options = {.scale = 0.35355339059327373};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
  }
  SECTION("log-n scaling") {
    const auto model = import_hugging_face(json{{"model_type", "qwen"},
                                                {"hidden_size", 64},
                                                {"num_attention_heads", 4},
                                                {"kv_channels", 16},
                                                {"num_hidden_layers", 2},
                                                {"seq_length", 2048},
                                                {"use_logn_attn", true},
                                                {"use_dynamic_ntk", false}});
    ROPE_STATEMENTS(using model_layout = rope::half_split;
                    const rope::frequencies model_frequencies(16, 10000);
                    const rope::attention_options model_options = {.scale = 0.25};
                    const rope::log_n_query_scaling query_scaling = {.train_length = 2048};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
    for (const Index position : {0, 5000, 100000})
      CHECK(query_scaling(position) == model.query_scaling_of_layer(0)(position));
  }
  SECTION("ERNIE 4.5 VL: time last") {
    const auto model =
        import_hugging_face(json{{"model_type", "ernie4_5_moe_vl"},
                                 {"hidden_size", 1024},
                                 {"num_attention_heads", 8},
                                 {"num_key_value_heads", 4},
                                 {"num_hidden_layers", 2},
                                 {"head_dim", 128},
                                 {"rope_theta", 500000.0},
                                 {"rope_scaling", {{"type", "default"}, {"mrope_section", {22, 22, 20}}}}});
    ROPE_STATEMENTS(using model_layout = rope::interleaved;
                    const rope::frequencies model_frequencies(128, 500000);
                    const rope::frequencies model_frequencies_on_axes =
                        rope::on_axes(model_frequencies, rope::height_width_then_time(22, 20));
                    const rope::attention_options model_options = {.scale = 0.08838834764831843};);
    check_code<model_layout>(model, code, model_frequencies, model_options);
    CHECK((model_frequencies_on_axes.inv_freq() == frequencies_on_axes(model.groups()[0]).inv_freq()).all());
  }
}

TEST_CASE("the code that describe prints is that of the description, changed or unknown",
          "[models][describe]") {
  const auto contains = [](const std::string& text, const std::string& part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) UNSCOPED_INFO("no \"" << part << "\" in\n" << text);
    return found;
  };
  const std::string scout = code_of(import_hugging_face(config("llama_4_scout")));
  CHECK(contains(scout, "40 to 42, 44 to 46 attend in chunks"));
  CHECK(contains(scout, "chunk_ranges(8192, {.queries = queries, .keys = keys})"));
  CHECK(contains(scout, "layers 3, 7, ..., 47 do not rotate"));
  CHECK_FALSE(scout.find("model_options =") != std::string::npos);
  const std::string minicpm = code_of(import_hugging_face(
      json{{"model_type", "minicpm"}, {"head_dim", 64}, {"num_attention_heads", 4}, {"sliding_window", 16}}));
  CHECK(contains(minicpm, "the window is not known from this file"));
  CHECK_FALSE(minicpm.find("model_options =") != std::string::npos);

  // A group without layers has the options that its layers would have.
  json gemma = config("gemma_3_4b");
  gemma["text_config"]["num_hidden_layers"] = 5;
  const std::string five = code_of(import_hugging_face(gemma));
  CHECK(contains(five,
                 "/* no layer of this model has this type */\n  const rope::attention_options "
                 "full_attention_options = {.scale = 0.0625};"));
  CHECK(contains(code_of(import_hugging_face(config("deepseek_v3"))), "table.at_channel(128), start)"));
  CHECK(contains(code_of(import_hugging_face(config("gpt_oss_20b"))), "layers 0, 2, ..., 22 */"));
  CHECK(contains(code_of(import_hugging_face(config("gpt_oss_20b"))), "sink_logits"));

  // Frequencies that differ from those of the rule are listed with all their digits.
  testing::model_parts parts(import_hugging_face(config("llama_3_1_8b")));
  Eigen::ArrayXXd inv_freq = parts.groups[0].frequencies.inv_freq();
  inv_freq(63, 0) = std::nextafter(inv_freq(63, 0), 1.0);
  parts.groups[0].frequencies = rope::frequencies::custom(inv_freq, 1.5);
  const std::string changed = code_of(parts.model());
  CHECK(contains(changed, "const double model_frequencies_list[] = {1, "));
  CHECK(contains(changed, "<const Eigen::Array<double, 64, 1>>(model_frequencies_list), 1.5);"));
  CHECK_FALSE(contains(changed, "llama3_scaling"));
  const std::size_t last = changed.find("};");
  REQUIRE(last != std::string::npos);
  CHECK(std::strtod(changed.c_str() + changed.rfind(' ', last), nullptr) == inv_freq(63, 0));

  // Layer types come from a file: only their letters become part of names.
  parts = {};
  parts.groups = {testing::group_named("*/ system(\"x\"); /*"), testing::group_named("system x"),
                  testing::group_named("1st")};
  parts.layers = {parts.groups[0].layer_type, "system x"};
  parts.windows = {0, 8};
  const std::string names = code_of(parts.model());
  CHECK(contains(names, "using system_x_layout = rope::half_split;"));
  CHECK(contains(names, "using system_x_1_layout = "));
  CHECK(contains(names, "system_x_1_options = {.window = 8};"));
  CHECK(contains(names, "using layers1st_layout = "));
  CHECK(contains(names, "no layer of this model has this type"));
  CHECK_FALSE(names.find('"') != std::string::npos);
}
