// SPDX-License-Identifier: MIT
// Changed model files: an import gives a model that keeps every promise of model_rope, or throws
// std::invalid_argument with a text, and is never slow.
#include <rope/models/hugging_face.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <rope/models/gguf.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/model_files.hpp"
#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/random.hpp"
#include "support/recorded.hpp"

// For longer runs: -DROPE_FUZZ_RUNS=1000000 -DROPE_FUZZ_SEED=7
#ifndef ROPE_FUZZ_RUNS
#define ROPE_FUZZ_RUNS 600
#endif
#ifndef ROPE_FUZZ_SEED
#define ROPE_FUZZ_SEED 2024
#endif

namespace {

using testing::json;

constexpr double longest = 2;  // seconds of processor time for one file, with a sanitizer on a busy machine

const json values = {nullptr,
                     true,
                     false,
                     0,
                     1,
                     2,
                     -1,
                     0.5,
                     3,
                     1e-300,
                     1e300,
                     -1e300,
                     1e9,
                     1048577,
                     "",
                     "x",
                     "yarn",
                     "llama",
                     "default",
                     "longrope",
                     "linear",
                     "dynamic",
                     json::array(),
                     {1},
                     {1, 0},
                     {"x"},
                     json::object(),
                     {{"x", 1}},
                     {{"rope_type", "yarn"}},
                     {{"factor", nullptr}}};

/// Every path of a value in the file, at any depth.
void collect(const json& value, const json::json_pointer& path, std::vector<json::json_pointer>& places) {
  if (value.is_object())
    for (const auto& item : value.items()) {
      places.push_back(path / item.key());
      collect(item.value(), path / item.key(), places);
    }
  if (value.is_array() && !value.empty()) {
    places.push_back(path / 0);
    places.push_back(path / (value.size() - 1));
  }
}
std::vector<json::json_pointer> places_in(const json& file) {
  std::vector<json::json_pointer> places;
  collect(file, json::json_pointer(), places);
  return places;
}

const std::vector<const char*> architectures = {"llama",   "gemma3",  "gemma3n", "deepseek2",
                                                "cohere2", "exaone4", "qwen2vl", "qwen3vl",
                                                "smollm3", "llama4",  "phi3",    "gpt-oss"};

const json gguf_entries = {{".embedding_length", 512},
                           {".attention.head_count", 4},
                           {".attention.head_count_kv", 2},
                           {".attention.key_length", 128},
                           {".attention.key_length_swa", 64},
                           {".attention.key_length_mla", 192},
                           {".attention.sliding_window", 1024},
                           {".attention.sliding_window_pattern", {1, 0}},
                           {".attention.compress_rope_freq_base", 1e4},
                           {".context_length", 4096},
                           {".block_count", 2},
                           {".rope.dimension_count", 64},
                           {".rope.dimension_count_swa", 32},
                           {".rope.dimension_count_per_layer", {64, 32}},
                           {".rope.dimension_sections", {16, 8, 8, 0}},
                           {".rope.freq_base", 1e4},
                           {".rope.freq_base_swa", 2e4},
                           {".rope.freq_base_per_layer", {1e4, 2e4}},
                           {".rope.scaling.type", "yarn"},
                           {".rope.scaling.factor", 4},
                           {".rope.scale_linear", 2},
                           {".rope.scaling.attn_factor", 1.5},
                           {".rope.scaling.yarn_attn_factor", 1.5},
                           {".rope.scaling.original_context_length", 1024},
                           {".rope.scaling.yarn_ext_factor", 0.5},
                           {".rope.scaling.yarn_beta_fast", 32},
                           {".rope.scaling.yarn_beta_slow", 1},
                           {".rope.scaling.yarn_log_multiplier", 0.1},
                           {"rope_freqs.weight", std::vector<double>(64, 2.0)},
                           {"rope_factors_short.weight", std::vector<double>(64, 3.0)},
                           {"rope_factors_long.weight", std::vector<double>(64, 4.0)}};

/// The outcomes of imports.
struct tally {
  int imported = 0, rejected = 0;

  /// What does not hold of an import, or nothing.
  template <class Import>
  std::string broken_by(const Import& import, const fuzz::planted_key& planted = {}) {
    const std::clock_t begin = std::clock();
    const fuzz::import_outcome outcome = fuzz::outcome_of(import, planted);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    ++(outcome.imported ? imported : rejected);
    return outcome.broken.empty() && seconds > longest ? "it took " + std::to_string(seconds) + " s"
                                                       : outcome.broken;
  }
};

/// The model, which has groups: without model_without_rope::describe an import of another one throws.
rope::model_rope rotating(rope::model_rope model) {
  if (model.groups().empty()) throw std::logic_error("no group of layers");
  return model;
}

/// Bytes for the draws of one run.
std::vector<std::uint8_t> random_bytes(testing::random& random) {
  std::vector<std::uint8_t> bytes(2000);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.bits());
  return bytes;
}

/// Dictionaries for types of layers, rarely for more types than an import accepts.
json dictionaries(fuzz::bytes& b, fuzz::spoiler& spoil) {
  json all = json::object();
  const long count = b.one_in(20) ? 1026 : b.up_to(5);
  for (long i = 0; i < count; ++i)
    all[b.one_in(3) ? spoil.word() : "type_" + std::to_string(i)] =
        b.coin() ? json{{"rope_type", "default"}}
                 : b.one_of(fuzz::all_configs()).value("rope_scaling", json());
  return all;
}

/// Bases per layer, some of them close to one another or far above every integer.
json bases(fuzz::bytes& b) {
  static const double known[] = {1e4, std::nextafter(1e4, 2e4), 10000.25, 10000.75, 5e5, 1e30, 1e40};
  json all = json::array();
  for (long left = b.one_in(60) ? 16384 + b.up_to(1) : b.up_to(100); left > 0; --left)
    all.push_back(b.one_in(200) ? b.real() : b.one_of(known));
  return all;
}

/// Metadata with about half of the keys, so that the rules which keys override apply too.
json drawn_metadata(fuzz::bytes& b) {
  json metadata = json::object();
  for (const auto& entry : gguf_entries.items())
    if (b.coin()) metadata[entry.key()] = entry.value();
  const std::vector<json> none;
  fuzz::spoiler spoil(b, none);
  for (long change = b.up_to(4); change > 0; --change) spoil.spoil(metadata, gguf_entries);
  if (b.one_in(3)) {
    metadata[".rope.freq_base_per_layer"] = bases(b);
    for (const char* key : {".block_count", ".attention.sliding_window_pattern",
                            ".rope.dimension_count_per_layer", ".rope.dimension_sections"})
      if (!b.one_in(3)) metadata.erase(key);
  }
  return metadata;
}

/// Throws if a layer of an imported file has another base than its list.
void check_bases(const rope::model_rope& model, const testing::gguf_file& file) {
  const auto listed = file.numbers(*file.text("general.architecture") + ".rope.freq_base_per_layer");
  for (std::size_t i = 0; listed && i < listed->size() && !model.groups().empty(); ++i) {
    const auto* group = model.layers().empty() ? &model.groups().front()  // all layers are alike
                                               : model.group(model.layers().at(i));
    if (!group || group->base != (*listed)[i])
      throw std::logic_error("layer " + std::to_string(i) + " has another base");
  }
}

/// The text of a file that fails.
std::string text_of(const json& file) {
  return file.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 4000);
}

}  // namespace

TEST_CASE("a config with any value at any path imports or throws", "[models][import]") {
  tally seen;
  for (const json& original : fuzz::example_configs())
    for (const json::json_pointer& place : places_in(original))
      for (const json& value : values) {
        json spoilt = original;
        spoilt[place] = value;
        const double length = original.at("model_type") == "phi3" ? 200000 : 0;
        const std::string broken =
            seen.broken_by([&] { return rotating(rope::import_hugging_face(spoilt, {.length = length})); });
        if (!broken.empty())
          FAIL(original << " with " << value << " at " << place.to_string() << ": " << broken);
      }
  CHECK(seen.imported > 1000);
  CHECK(seen.rejected > 1000);
}

TEST_CASE("a recorded file with any value at any path imports or throws", "[models][import]") {
  tally seen;
  // A fifth of the values at every path, another fifth at the next one: most keys are in many files, and are
  // tried with all values.
  std::size_t first = 0;
  for (const std::string name : {"hugging_face", "gguf"}) {
    const json all = testing::recorded("models/" + name);
    for (const json& record : all.at("records")) {
      const bool config = record.contains("config");
      const json original = config ? record.at("config") : record.at("metadata");
      for (const json::json_pointer& place : places_in(original))
        for (std::size_t i = first++ % 5; i < values.size(); i += 5) {
          if (place.to_string() == "/general.architecture") continue;
          const json& value = values[i];
          json spoilt = original;
          spoilt[place] = value;
          const std::string broken = seen.broken_by([&] {
            return rotating(
                config ? rope::import_hugging_face(spoilt)
                       : rope::import_gguf(testing::gguf(original.at("general.architecture"), spoilt)));
          });
          // Messages are built only for failures: there are about 19,000 files.
          if (!broken.empty())
            FAIL(original << " with " << value << " at " << place.to_string() << ": " << broken);
        }
    }
  }
  CHECK(seen.imported > 1000);
  CHECK(seen.rejected > 1000);
}

TEST_CASE("a config with several changed paths imports or throws", "[models][import]") {
  const std::uint64_t seed = 93;
  CAPTURE(seed);
  testing::random random(seed);
  const auto any_of = [&](const auto& list) {
    return list[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(list.size()) - 1))];
  };
  const std::vector<json> configs = fuzz::example_configs();
  tally seen;
  for (int sample = 0; sample < testing::draws(1000); ++sample) {
    json spoilt = any_of(configs);
    for (int change = 0; change < 4; ++change) {
      const std::vector<json::json_pointer> places = places_in(spoilt);
      // A key of another model, or another value.
      const json other = any_of(configs);
      if (!spoilt.is_object() || places.empty() || random.integer(0, 1) == 0)
        spoilt.merge_patch(other);
      else
        spoilt[any_of(places)] = any_of(values);
    }
    CAPTURE(sample, spoilt.dump());
    REQUIRE(seen.broken_by([&] { return rotating(rope::import_hugging_face(spoilt)); }) == "");
  }
  CHECK(seen.imported > testing::draws(300));
  CHECK(seen.rejected > testing::draws(300));
}

TEST_CASE("GGUF metadata with any value of any key imports or throws", "[models][gguf]") {
  const json numbers = {nullptr, true, 0,      1,        2,   -1,     0.5,        1e-300, 1e300,
                        1048577, "x",  "none", "linear", {1}, {1, 2}, {0, 1e300}, {-1, 1}};
  tally seen;
  for (const char* architecture : {"llama", "gemma3", "deepseek2", "cohere2"})
    for (const auto& entry : gguf_entries.items())
      for (const json& value : numbers)
        for (const bool removed_lists : {false, true}) {
          json spoilt = gguf_entries;
          if (removed_lists)
            for (const char* key : {".rope.dimension_count_per_layer", ".rope.freq_base_per_layer",
                                    ".rope.dimension_sections", "rope_freqs.weight"})
              spoilt.erase(key);
          spoilt[entry.key()] = value;
          CAPTURE(architecture, entry.key(), value.dump(), removed_lists);
          REQUIRE(seen.broken_by([&] {
            return rotating(rope::import_gguf(testing::gguf(architecture, spoilt), {.length = 2000}));
          }) == "");
        }
  CHECK(seen.imported > 700);
  CHECK(seen.rejected > 500);
}

TEST_CASE("randomly changed configs keep the promises of a model or throw", "[models][import]") {
  testing::random random(ROPE_FUZZ_SEED);
  tally seen;
  for (int run = 0; run < ROPE_FUZZ_RUNS; ++run) {
    const std::vector<std::uint8_t> drawn = random_bytes(random);
    fuzz::bytes b(drawn.data(), drawn.size());
    fuzz::spoiler spoil(b, fuzz::all_configs());
    json file = spoil.spoilt();
    if (b.one_in(10)) file["rope_parameters"] = dictionaries(b, spoil);
    const fuzz::planted_key planted = b.coin() ? fuzz::plant(b, file) : fuzz::planted_key();
    rope::hugging_face_options options{.length = b.one_in(3) ? 200000.0 : 0.0};
    if (b.coin()) options.layout = rope::layout_kind::half_split;
    if (b.coin()) options.without_rope = rope::model_without_rope::describe;
    const std::string broken =
        seen.broken_by([&] { return rope::import_hugging_face(file, options); }, planted);
    if (broken.empty()) continue;
    CAPTURE(run, text_of(file));
    REQUIRE(broken == "");
  }
  CHECK(seen.imported > ROPE_FUZZ_RUNS / 10);
  CHECK(seen.rejected > ROPE_FUZZ_RUNS / 10);
}

TEST_CASE("randomly changed GGUF metadata keeps the promises of a model or throws", "[models][gguf]") {
  testing::random random(ROPE_FUZZ_SEED + 1);
  tally seen;
  for (int run = 0; run < ROPE_FUZZ_RUNS; ++run) {
    const std::vector<std::uint8_t> drawn = random_bytes(random);
    fuzz::bytes b(drawn.data(), drawn.size());
    const testing::gguf_file file = testing::gguf(b.one_of(architectures), drawn_metadata(b));
    rope::gguf_options options{.length = b.one_in(3) ? 200000.0 : 0.0};
    if (b.coin()) options.without_rope = rope::model_without_rope::describe;
    const std::string broken = seen.broken_by([&] {
      rope::model_rope model = rope::import_gguf(file, options);
      check_bases(model, file);
      return model;
    });
    if (broken.empty()) continue;
    CAPTURE(run, text_of(file.entries));
    REQUIRE(broken == "");
  }
  CHECK(seen.imported > ROPE_FUZZ_RUNS / 10);
  CHECK(seen.rejected > ROPE_FUZZ_RUNS / 10);
}
