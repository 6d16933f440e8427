// SPDX-License-Identifier: MIT
// Which architectures read a key, and what those do that do not name it: recorded/models/probes.json puts the
// same keys into a plain file of every architecture. An architecture that does not read a key must not be
// changed by it, and one that does must be. Properties of nearly every architecture are tested for all of
// them.
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace probes {

using rope::Index;
using testing::json;

inline json file_of(const std::string& name) { return testing::recorded("models/" + name); }

/// Warnings that report how keys of the file were used, without the remarks of a record about its layers.
inline bool is_of_keys(const std::string& warning) {
  for (const char* words : {"assumed", "not understood", "no effect", "another name", "is not used",
                            "is not read", "overruled", "transformers 5", "depends on", "depend on",
                            "not known", "no rope dictionary", "is missing", "as the class slices it",
                            "rounded down", "is unknown", "a window cannot express", "takes the last layer"})
    if (warning.find(words) != std::string::npos) return true;
  return false;
}

/// The whole description. Of its warnings only the remarks about layers.
inline json facets_of(const rope::model_rope& model) {
  json all = {{"layers", model.layers()},
              {"without", model.layers_without_rope()},
              {"windows", model.windows},
              {"causal", model.causal},
              {"sink_logits", model.sink_logits},
              {"without_sinks", model.layers_without_sinks},
              {"scaled", static_cast<int>(model.scaled)},
              {"query_factors", {model.query_rule(4095), model.query_rule(70000)}},
              {"heads", {model.query_heads, model.key_heads}},
              {"max_position", model.max_position},
              {"sliding_window", model.sliding_window},
              {"pattern_named", testing::has_warning(model.warnings, "sliding_window_pattern")}};
  all["notes"] = json::array();
  for (const std::string& warning : model.warnings)
    if (!is_of_keys(warning)) all["notes"].push_back(warning);
  for (const rope::layer_group& group : model.groups()) {
    json speeds = json::array();
    for (Index i = 0; i < group.frequencies.pairs(); ++i)
      speeds.push_back(group.frequencies.inv_freq()(i, 0));
    std::string axes;
    if (!group.mrope_sections.empty()) {
      const rope::frequencies f = rope::frequencies_on_axes(group);
      for (Index i = 0; i < f.pairs(); ++i) {
        Index axis = 0;
        while (axis + 1 < f.axes() && std::abs(f.inv_freq()(i, axis)) <= 0) ++axis;
        axes += static_cast<char>('0' + axis);
      }
    }
    json one = {{"type", group.layer_type},
                {"layout", rope::name_of(group.layout)},
                {"head_dim", group.head_dim},
                {"first_channel", group.first_channel},
                {"rotary_dim", group.rotary_dim()},
                {"base", group.base},
                {"rule", group.rule},
                {"speeds", speeds},
                {"forwards", group.frequencies.inv_freq()(0, 0) > 0},
                {"m", group.frequencies.attention_factor()},
                {"scale", group.scale},
                {"beta_fast", group.number("beta_fast", 0)},
                {"softmax_multiplier", group.softmax_multiplier},
                {"softcap", group.softcap},
                {"axes", axes}};
    if (group.indexer)
      one["indexer"] = {rope::name_of(group.indexer->layout), group.indexer->head_dim,
                        group.indexer->first_channel, group.indexer->rotary_dim};
    all["groups"].push_back(one);
  }
  return all;
}

/// The facets that a probe names: those of the model, and of every group as "group.facet".
inline json facet(const json& facets, const std::string& name) {
  if (facets.contains(name)) return facets.at(name);
  json of_groups = json::array();
  for (const json& group : facets.at("groups")) of_groups.push_back(group.value(name, json()));
  bool alike = true;
  for (const json& one : of_groups) alike = alike && one == of_groups.front();
  return alike ? of_groups.front() : of_groups;
}

/// The description, or the reason why there is none.
inline json outcome_of(const std::string& format, const std::string& architecture, const json& keys) {
  try {
    if (format == "gguf") return facets_of(rope::import_gguf(testing::gguf(architecture, keys)));
    json config = keys;
    if (!config.contains("text_config")) config["model_type"] = architecture;
    return facets_of(rope::import_hugging_face(config));
  } catch (const std::invalid_argument& error) {
    return {{"throws", error.what()}};
  }
}

inline std::vector<std::string> warnings_of(const std::string& format, const std::string& architecture,
                                            const json& file) {
  json config = file;
  if (!config.contains("text_config")) config["model_type"] = architecture;
  return format == "gguf" ? rope::import_gguf(testing::gguf(architecture, file)).warnings
                          : rope::import_hugging_face(config).warnings;
}

/// A key about positions, windows or scores that no warning names, or empty if there is none. A key was read
/// if a warning named it before it was added.
inline std::string unnamed(const std::string& format, const std::string& architecture, const json& before,
                           const json& after, const json& added) {
  const std::vector<std::string> warnings = warnings_of(format, architecture, after);
  for (const auto& item : added.items()) {
    const std::string key = item.key().front() == '.' ? item.key().substr(1) : item.key();
    if (rope::detail::speaks_of_rope(key) && !testing::has_warning(warnings, key) &&
        !testing::has_warning(warnings_of(format, architecture, before), key))
      return key;
  }
  return {};
}

/// The plain file of an architecture: `base` of the format, and the keys that this architecture requires.
inline json plain_file(const json& of_format, const std::string& architecture) {
  return testing::changed(of_format.at("base"), of_format.at("needs").value(architecture, json::object()));
}

/// Without the facets that a probe ignores: a warning about a key is no effect of it.
inline json without(json outcome, const json& names) {
  if (outcome.contains("throws")) return outcome;
  outcome.erase("pattern_named");
  for (const json& name : names) {
    outcome.erase(name.get<std::string>());
    for (json& group : outcome["groups"]) group.erase(name.get<std::string>());
  }
  return outcome;
}

/// The difference between a probe and an architecture, or empty if there is none.
inline std::string finding(const std::string& format, const json& of_format, const json& probe,
                           const std::string& architecture) {
  json before = plain_file(of_format, architecture);
  before.merge_patch(probe.value("with", json::object()));
  if (probe.contains("with_of") && probe.at("with_of").contains(architecture))
    before.merge_patch(probe.at("with_of").at(architecture));
  json after = before;
  after.merge_patch(probe.value("add", json::object()));
  for (const json& key : probe.value("null", json::array())) after[key.get<std::string>()] = nullptr;
  if (probe.value("nested", false)) {
    json text = after;
    text["model_type"] = architecture;
    after = {{"model_type", "of a text and another"}, {"text_config", text}};
  }
  json but_for = json::object();  // by architecture
  for (const json& exception : probe.value("but_for", json::array()))
    for (const json& name : exception.at("of")) but_for[name.get<std::string>()] = exception.at("is");
  const bool excepted = but_for.contains(architecture);
  const json found = outcome_of(format, architecture, after);
  if (probe.contains("expect")) {
    json expect = probe.at("expect");
    if (excepted && but_for.at(architecture).is_string()) {
      const std::string reason = but_for.at(architecture);
      const std::string error = found.value("throws", "nothing thrown");
      return error.find(reason) != std::string::npos ? "" : "expected: " + reason + ", found: " + error;
    }
    if (excepted) expect.merge_patch(but_for.at(architecture));  // null: false
    if (expect.contains("throws")) {
      const std::string error = found.value("throws", "nothing thrown"), reason = expect.at("throws");
      return error.find(reason) != std::string::npos ? "" : "expected: " + reason + ", found: " + error;
    }
    if (found.contains("throws")) return found.at("throws");
    std::string wrong;
    for (const auto& item : expect.items()) {
      const json is = facet(found, item.key());
      bool same = is == item.value();
      if (is.is_number_float() && item.value().is_number())
        same = std::abs(is.get<double>() / item.value().get<double>() - 1) <=
                   4 * std::numeric_limits<double>::epsilon() ||
               is.get<double>() == item.value().get<double>();
      if (!same) wrong += item.key() + " is " + is.dump() + "; ";
    }
    return wrong;
  }
  const json names = probe.value("leaving", json::array());
  const bool same = without(outcome_of(format, architecture, before), names) == without(found, names);
  if (excepted && but_for.at(architecture) == "differs")
    return found.contains("throws") ? found.at("throws").get<std::string>()
           : same                   ? "the key has no effect"
                                    : "";
  if (excepted) {
    const std::string reason = but_for.at(architecture), error = found.value("throws", "nothing thrown");
    return error.find(reason) != std::string::npos ? "" : "expected: " + reason + ", found: " + error;
  }
  if (same && !found.contains("throws") && !probe.value("read", false)) {
    const std::string key = unnamed(format, architecture, before, after, probe.value("add", json::object()));
    return key.empty() ? "" : key + " has no effect, and no warning says so";
  }
  if (same) return "";
  return found.contains("throws") ? found.at("throws").get<std::string>() : "the key has an effect";
}

/// The architectures of a format.
inline std::set<std::string> architectures_of(const std::string& format) {
  std::set<std::string> names;
  const json file = file_of(format);
  for (const json& record : file.at("records")) {
    if (format == "gguf") {
      names.insert(record.at("metadata").at("general.architecture"));
      continue;
    }
    const json& config = record.at("config");
    const json& text = config.contains("text_config") ? config.at("text_config") : config;
    const std::string whole = config.value("model_type", config.value("_class_name", ""));
    names.insert(rope::detail::plain_architecture(text.value("model_type", whole)));
  }
  const json probes = file_of("probes").at(format);
  for (const json& name : probes.value("not_here", json::array())) names.erase(name);
  for (const json& name : probes.value("here_too", json::array())) names.insert(name);
  return names;
}

}  // namespace probes

TEST_CASE("a key changes exactly the architectures that read it", "[models]") {
  const probes::json file = probes::file_of("probes");
  for (const char* format : {"gguf", "hugging_face"}) {
    const auto names = probes::architectures_of(format);
    CHECK(names.size() >= 120);
    for (const probes::json& probe : file.at(format).at("probes"))
      for (const std::string& name : names) {
        const std::string found = probes::finding(format, file.at(format), probe, name);
        if (!found.empty()) FAIL_CHECK(format << ", " << probe.at("name") << ", " << name << ": " << found);
      }
  }
}
