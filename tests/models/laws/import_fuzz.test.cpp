// SPDX-License-Identifier: MIT
#include <rope/models/hugging_face.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>  // std::advance, std::size
#include <limits>
#include <optional>
#include <rope/models/gguf.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/model_promises.hpp"
#include "support/random.hpp"

// For longer runs: -DROPE_FUZZ_RUNS=1000000 -DROPE_FUZZ_SEED=7
#ifndef ROPE_FUZZ_RUNS
#define ROPE_FUZZ_RUNS 600
#endif
#ifndef ROPE_FUZZ_SEED
#define ROPE_FUZZ_SEED 2024
#endif

/// Model files with several random changes each: an import gives a model that keeps every promise of
/// model_rope within its bounds, or throws std::invalid_argument with a text, and is never slow.

namespace {

using testing::json;

constexpr double longest = 2;  // seconds of processor time for one file, with a sanitizer on a busy machine

const std::vector<std::string> configs = {
    "deepseek_v2_lite", "deepseek_v3",  "gemma_3_4b",    "gemma_3_4b_rope_parameters",
    "glm_4_9b",         "gpt_oss_20b",  "llama_2_7b",    "llama_3_1_8b",
    "llama_3_2_1b",     "llama_3_8b",   "llama_4_scout", "mistral_7b",
    "modernbert_base",  "phi_3_5_mini", "pythia_410m",   "qwen2_5_7b_yarn",
    "qwen2_vl_7b",      "qwen3_8b"};

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

class spoiler {
 public:
  explicit spoiler(std::uint64_t seed) : random_(seed) {
    for (const std::string& name : configs) originals_.push_back(testing::config(name));
  }

  std::size_t below(std::size_t count) {
    return static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(count) - 1));
  }
  bool one_in(std::size_t count) { return below(count) == 0; }

  const json& config() { return originals_[below(originals_.size())]; }

  json spoilt_config() {
    json file = config();
    for (std::size_t change = 1 + below(5); change > 0; --change) spoil(file, config());
    if (one_in(10)) file["rope_parameters"] = dictionaries();
    return file;
  }

  /// Puts a key that no class knows into a dictionary of the file, and returns the path of that dictionary
  /// and of those around it.
  std::vector<std::string> plant(json& file, const char* key) {
    std::vector<std::string> paths;
    json* place = &file;
    while (!place->empty() && !one_in(3)) {
      auto item = place->begin();
      std::advance(item, static_cast<std::ptrdiff_t>(below(place->size())));
      if (!item->is_object()) continue;
      paths.push_back((paths.empty() ? "" : paths.back() + ".") + item.key());
      place = &*item;
    }
    (*place)[key] = 1;
    return paths;
  }

  /// Metadata with about half of the keys, so that the rules which keys override apply too.
  json spoilt_gguf() {
    json file;
    for (const auto& entry : gguf_entries.items())
      if (one_in(2)) file[entry.key()] = entry.value();
    for (std::size_t change = below(5); change > 0; --change) spoil(file, gguf_entries);
    if (one_in(3)) {
      file[".rope.freq_base_per_layer"] = bases();
      for (const char* key : {".block_count", ".attention.sliding_window_pattern",
                              ".rope.dimension_count_per_layer", ".rope.dimension_sections"})
        if (!one_in(3)) file.erase(key);
    }
    return file;
  }

  const char* architecture() { return architectures[below(architectures.size())]; }

 private:
  double number() {
    static const std::vector<double> special = {0,
                                                -0.0,
                                                1,
                                                2,
                                                3,
                                                4,
                                                8,
                                                63,
                                                64,
                                                128,
                                                0.25,
                                                0.5,
                                                1.5,
                                                -1,
                                                1024,
                                                1025,
                                                10000.25,
                                                10000.75,
                                                16384,
                                                16385,
                                                32768,
                                                65536,
                                                65538,
                                                131072,
                                                1048576,
                                                1048577,
                                                0x1p31,
                                                0x1p32,
                                                0x1p53,
                                                0x1p62,
                                                0x1p63,
                                                0x1p64,
                                                1e30,
                                                1e40,
                                                1e300,
                                                -1e300,
                                                1e-300,
                                                5e-324,
                                                std::numeric_limits<double>::max(),
                                                std::numeric_limits<double>::infinity(),
                                                -std::numeric_limits<double>::infinity(),
                                                std::numeric_limits<double>::quiet_NaN()};
    if (one_in(2)) return special[below(special.size())];
    if (one_in(2)) return static_cast<double>(random_.integer(1, 200));
    return random_.scaled(-40, 60);
  }

  std::string word() {
    static const char* const words[] = {"default",
                                        "linear",
                                        "dynamic",
                                        "yarn",
                                        "longrope",
                                        "llama3",
                                        "proportional",
                                        "ntk",
                                        "su",
                                        "mrope",
                                        "none",
                                        "deepseek_yarn",
                                        "full_attention",
                                        "sliding_attention",
                                        "linear_attention",
                                        "llama",
                                        "gemma3",
                                        "cohere2",
                                        "exaone4",
                                        "modernbert",
                                        "deepseek_v3",
                                        "glm4",
                                        "qwen2_vl",
                                        "LLLG",
                                        "G",
                                        "",
                                        "x",
                                        "%s%n",
                                        "\xff\xfe"};
    if (one_in(20)) return std::string(one_in(2) ? 3 : 200, '\0');
    return words[below(std::size(words))];
  }

  std::size_t length() {
    static const std::vector<std::size_t> lengths = {0,  1,  2,  3,  4,   8,     9,    16,
                                                     24, 32, 48, 64, 100, 16384, 16385};
    return one_in(60) ? lengths[below(lengths.size())] : lengths[below(lengths.size() - 2)];
  }

  json list() {
    const std::size_t count = length();
    const json repeated = value(1);
    const bool varied = count <= 100 && one_in(2);
    json all = json::array();
    for (std::size_t i = 0; i < count; ++i) all.push_back(varied ? json(number()) : repeated);
    if (!all.empty() && one_in(4)) all[below(all.size())] = value(1);
    return all;
  }

  /// Bases per layer, some of them close to one another or far above every integer.
  json bases() {
    static const std::vector<double> known = {1e4, std::nextafter(1e4, 2e4), 10000.25, 10000.75, 5e5, 1e30,
                                              1e40};
    json all = json::array();
    for (std::size_t left = length(); left > 0; --left)
      all.push_back(one_in(200) ? number() : known[below(known.size())]);
    return all;
  }

  json dictionaries() {
    json all = json::object();
    const std::size_t count = one_in(20) ? 1026 : below(6);
    for (std::size_t i = 0; i < count; ++i)
      all[one_in(3) ? word() : "type_" + std::to_string(i)] =
          one_in(2) ? json{{"rope_type", "default"}} : config().value("rope_scaling", json());
    return all;
  }

  json value(int depth) {
    switch (below(depth > 0 ? 6 : 8)) {
      case 0:
        return nullptr;
      case 1:
        return one_in(2);
      case 2:
        return word();
      case 3:
        return random_.integer(-3, 300);
      case 6:
        return list();
      case 7:
        return one_in(2) ? dictionaries() : json{{word(), number()}};
      default:
        return number();
    }
  }

  /// The paths of values in the file, at any depth, with one or two elements of each list.
  void collect(const json& file, const json::json_pointer& path, std::vector<json::json_pointer>& places) {
    if (file.is_object())
      for (const auto& item : file.items()) {
        places.push_back(path / item.key());
        collect(item.value(), path / item.key(), places);
      }
    if (file.is_array() && !file.empty()) places.push_back(path / below(file.size()));
  }

  void spoil(json& file, const json& other) {
    std::vector<json::json_pointer> places, others;
    collect(file, json::json_pointer(), places);
    collect(other, json::json_pointer(), others);
    if (!file.is_object() || places.empty()) file = json::object();
    const json::json_pointer place = places.empty() ? json::json_pointer("/x") : places[below(places.size())];
    const json& foreign = other[others[below(others.size())]];
    switch (below(7)) {
      case 0:  // remove a key
        if (!places.empty() && file[place.parent_pointer()].is_object())
          file[place.parent_pointer()].erase(place.back());
        break;
      case 1:  // put a value of another model in its place, or elsewhere
        file[place] = foreign;
        break;
      case 2:  // add the keys of another model
        file.merge_patch(other);
        break;
      case 3:  // add a key of another model with a new value
        if (const json::json_pointer key = others[below(others.size())]; key.parent_pointer().empty())
          file[key] = value(0);
        break;
      case 4:  // change the length of a list
        if (json& list = file[place]; list.is_array()) {
          const std::size_t count = length();
          const json filling = list.empty() ? json(1) : list.back();
          while (list.size() > count) list.erase(list.size() - 1);
          while (list.size() < count) list.push_back(filling);
        }
        break;
      default:
        file[place] = value(0);
    }
  }

  testing::random random_;
  std::vector<json> originals_;
};

/// The outcomes of the imports.
struct tally {
  int imported = 0, rejected = 0;
};

/// A promise that an import breaks, or empty.
template <class Import>
std::string verdict(tally& seen, const Import& import) {
  const std::clock_t begin = std::clock();
  std::string broken;
  try {
    const rope::model_rope model = import();
    ++seen.imported;
    broken = testing::broken_promise(model);
  } catch (const std::invalid_argument& error) {
    ++seen.rejected;
    const std::string text = error.what();
    if (text.find("rope::") != 0 || text.size() < 20) broken = "the text is " + text;
  } catch (const std::exception& error) {
    broken = std::string("another type was thrown, saying: ") + error.what();
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (broken.empty() && seconds > longest) broken = "it took " + std::to_string(seconds) + " s";
  return broken;
}

constexpr auto dump_handling = json::error_handler_t::replace;

}  // namespace

TEST_CASE("randomly changed configs keep the promises of a model or throw", "[models][import]") {
  spoiler spoil(ROPE_FUZZ_SEED);
  tally seen;
  for (int run = 0; run < ROPE_FUZZ_RUNS; ++run) {
    json file = spoil.spoilt_config();
    constexpr const char* planted = "planted_window_key";
    std::optional<std::vector<std::string>> paths;
    if (spoil.one_in(2)) paths = spoil.plant(file, planted);
    rope::hugging_face_options options{.length = spoil.one_in(3) ? 200000.0 : 0.0};
    if (spoil.one_in(2)) options.layout = rope::layout_kind::half_split;
    if (spoil.one_in(2)) options.without_rope = rope::model_without_rope::describe;
    const std::string broken = verdict(seen, [&] {
      const rope::model_rope model = rope::import_hugging_face(file, options);
      // The key has a warning, or a dictionary around it has one.
      bool named = !paths || testing::has_warning(model.warnings, planted);
      for (const std::string& warning : model.warnings)
        for (const std::string& path : paths.value_or(std::vector<std::string>()))
          named = named || warning.rfind(path + " ", 0) == 0;
      if (!named) throw std::logic_error("the planted key has no warning");
      return model;
    });
    if (broken.empty()) continue;
    CAPTURE(run, file.dump(-1, ' ', false, dump_handling).substr(0, 4000));
    REQUIRE(broken == "");
  }
  CHECK(seen.imported > ROPE_FUZZ_RUNS / 10);
  CHECK(seen.rejected > ROPE_FUZZ_RUNS / 10);
}

TEST_CASE("randomly changed GGUF metadata keeps the promises of a model or throws", "[models][gguf]") {
  spoiler spoil(ROPE_FUZZ_SEED + 1);
  tally seen;
  for (int run = 0; run < ROPE_FUZZ_RUNS; ++run) {
    const testing::gguf_file file = testing::gguf(spoil.architecture(), spoil.spoilt_gguf());
    rope::gguf_options options{.length = spoil.one_in(3) ? 200000.0 : 0.0};
    if (spoil.one_in(2)) options.without_rope = rope::model_without_rope::describe;
    const std::string broken = verdict(seen, [&] {
      const rope::model_rope model = rope::import_gguf(file, options);
      if (const auto bases = file.numbers(file.entries["general.architecture"].get<std::string>() +
                                          ".rope.freq_base_per_layer"))
        for (std::size_t i = 0; i < bases->size() && !model.groups().empty(); ++i) {
          const auto* group = model.layers().empty() ? &model.groups().front()  // all layers are alike
                                                     : model.group(model.layers().at(i));
          if (!group || group->base != (*bases)[i])
            throw std::logic_error("layer " + std::to_string(i) + " has another base");
        }
      return model;
    });
    if (broken.empty()) continue;
    CAPTURE(run, file.entries.dump(-1, ' ', false, dump_handling).substr(0, 4000));
    REQUIRE(broken == "");
  }
  CHECK(seen.imported > ROPE_FUZZ_RUNS / 10);
  CHECK(seen.rejected > ROPE_FUZZ_RUNS / 10);
}
