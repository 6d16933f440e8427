// SPDX-License-Identifier: MIT
// Results of the classes of Hugging Face transformers for the shortest config of each family, and of
// llama.cpp for the metadata for which its code has special rules: recorded/models/hugging_face.json and
// gguf.json.
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
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace {

using rope::Index;
using testing::json;

json records_of(const std::string& name, const char* list) {
  return testing::recorded("models/" + name).at(list);
}

/// A list of both files.
json records(const char* list) {
  json all = json::array();
  for (const char* name : {"hugging_face", "gguf"})
    for (const json& record : records_of(name, list)) all.push_back(record);
  return all;
}

rope::model_rope import_of(const json& record,
                           rope::model_without_rope without_rope = rope::model_without_rope::refuse) {
  if (record.contains("config"))
    return rope::import_hugging_face(record.at("config"), {.without_rope = without_rope});
  return rope::import_gguf(
      testing::gguf(record.at("metadata").at("general.architecture"), record.at("metadata")),
      {.without_rope = without_rope});
}

/// The import's result for a file without rotating layers if it differs from its record, or empty.
std::string difference_without_rope(const json& record) {
  const rope::model_rope model = import_of(record, rope::model_without_rope::describe);
  const std::string instead = record.at("instead");
  const json& file = record.contains("config") ? record.at("config") : record.at("metadata");
  const Index layers = file.value("num_hidden_layers", file.value(".block_count", Index{1})),
              heads = file.value("num_attention_heads", file.value(".attention.head_count", Index{0}));
  std::string found;
  if (!model.groups().empty()) found += "there are groups; ";
  if (model.instead_of_rope() != instead) found += "it has " + model.instead_of_rope() + "; ";
  if (model.query_heads != heads) found += "heads are " + std::to_string(model.query_heads) + "; ";
  for (Index layer = 0; layer < layers; ++layer)
    if (model.rotation_of_layer(layer) != rope::layer_rotation::none ||
        model.group_of_layer(layer) != nullptr)
      found += "layer " + std::to_string(layer) + " rotates; ";
  if (layers > 1 && model.rotation_of_layer(layers) != rope::layer_rotation::not_known)
    found += "there are more layers than " + std::to_string(layers) + "; ";
  return found;
}

/// The source of a record, for messages.
std::string source_of(const json& record) {
  return record.value("config", record.value("metadata", json())).dump();
}

/// The axis of every pair, a digit each. Empty if there are no sections.
std::string axes_of(const rope::layer_group& group) {
  if (group.mrope_sections.empty()) return {};
  const rope::frequencies f = rope::frequencies_on_axes(group);
  std::string axes;
  for (Index i = 0; i < f.pairs(); ++i) {
    Index axis = 0;
    while (axis + 1 < f.axes() && std::abs(f.inv_freq()(i, axis)) <= 0) ++axis;
    axes += static_cast<char>('0' + axis);
  }
  return axes;
}

bool factors_given(const json& expect) { return expect.contains("query_factors"); }

/// The import's result if it differs from `expect`, or empty.
std::string difference(const json& record, const json& expect) {
  const rope::model_rope model = import_of(record);
  std::string found;
  const auto compare = [&](const std::string& key, const auto& got) {
    if (expect.contains(key) && expect.at(key) != json(got)) found += key + " is " + json(got).dump() + "; ";
  };
  // An omitted answer is the common one.
  const auto compare_or = [&](const std::string& key, const auto& common, const auto& got) {
    if (expect.value(key, json(common)) != json(got)) found += key + " is " + json(got).dump() + "; ";
  };
  const rope::layer_group& full = model.groups().front();
  const bool has_large = expect.contains("full_head_dim");
  const rope::layer_group* sliding = model.group("sliding_attention");
  const rope::layer_group& heads = has_large && sliding ? *sliding : full;
  compare("layout", rope::name_of(heads.layout));
  compare("head_dim", heads.head_dim);
  compare_or("first_channel", 0, heads.first_channel);
  compare("rotary_dim", heads.rotary_dim());
  const rope::layer_group* large = model.group("full_attention");
  if (has_large) compare("full_head_dim", large ? large->head_dim : Index{0});
  compare("base", large ? large->base : full.base);
  if (expect.contains("local_base")) compare("local_base", sliding ? sliding->base : 0);
  compare_or("softcap", 0.0, full.softcap);
  compare("sections", full.mrope_sections);
  compare_or("time_last", 0, full.section_order == rope::mrope_order::time_last ? 1 : 0);
  compare_or("causal", 1, model.causal ? 1 : 0);
  compare("axes", axes_of(full));
  compare("rule", full.rule);
  const std::string warned = expect.value("warns", "");
  if (!warned.empty() && !testing::has_warning(model.warnings, warned)) found += "no warning says it; ";
  compare("key_heads", model.key_heads);
  compare("low", full.number("low", -1));
  compare("high", full.number("high", -1));
  compare("group_count", model.groups().size());
  compare_or("sink_logits", 0, model.sink_logits ? 1 : 0);
  compare("without_sinks", model.layers_without_sinks);
  compare("slowest", full.frequencies.inv_freq()(full.frequencies.pairs() - 1, 0));
  const json named = expect.value("groups", json::object());
  for (const auto& item : named.items()) {
    const rope::layer_group* group = model.group(item.key());
    if (!group) {
      found += "no group is named " + item.key() + "; ";
      continue;
    }
    const json is = {{"base", group->base},
                     {"rotary_dim", group->rotary_dim()},
                     {"first_channel", group->first_channel},
                     {"rule", group->rule},
                     {"attention_factor", group->frequencies.attention_factor()}};
    for (const auto& answer : item.value().items())
      if (is.at(answer.key()) != answer.value())
        found += item.key() + ": " + answer.key() + " is " + is.at(answer.key()).dump() + "; ";
  }
  const auto compare_rounded = [&](const std::string& key, double got) {
    if (!expect.contains(key)) return;
    if (!(std::abs(got / expect.at(key).get<double>() - 1) <= 4 * std::numeric_limits<double>::epsilon()))
      found += key + " is " + json(got).dump() + "; ";
  };
  compare_rounded("scale", full.scale);
  compare_rounded("m", full.frequencies.attention_factor());
  const json types = expect.value("types", json{{"S", "sliding_attention"}, {"F", "full_attention"}});
  const std::string layers = expect.value("layers", ""), rotates = expect.value("turns", "");
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (i >= model.layers().size())
      found += "there is no layer " + std::to_string(i) + "; ";
    else if (model.layers()[i] != types.value(std::string(1, layers[i]), "no type"))
      found += "layer " + std::to_string(i) + " is " + model.layers()[i] + "; ";
  compare("windows", model.windows);
  for (std::size_t i = 0; i < rotates.size(); ++i)
    if ((model.rotation_of_layer(static_cast<Index>(i)) == rope::layer_rotation::in_group) !=
        (rotates[i] == 'y'))
      found += "layer " + std::to_string(i) + (rotates[i] == 'y' ? " does not rotate; " : " rotates; ");
  {
    json is = json::object();
    for (const rope::layer_group& group : model.groups())
      if (group.indexer)
        is[group.layer_type.empty() ? "every" : group.layer_type] = {
            {"layout", rope::name_of(group.indexer->layout)},
            {"head_dim", group.indexer->head_dim},
            {"first_channel", group.indexer->first_channel},
            {"rotary_dim", group.indexer->rotary_dim}};
    if (is != expect.value("indexer", json::object())) found += "indexer is " + is.dump() + "; ";
  }
  const char* const scaled[] = {"none", "every layer", "layers that do not rotate", "not known"};
  compare_or("scaled_queries", factors_given(expect) ? "" : "none",
             factors_given(expect) ? "" : scaled[static_cast<int>(model.scaled)]);
  const json factors = expect.value("query_factors", json::object());  // "layer position": factor
  for (const auto& item : factors.items()) {
    const std::size_t space = item.key().find(' ');
    const rope::query_scaling rule = model.query_scaling_of_layer(std::stoll(item.key().substr(0, space)));
    const double got = rule(std::stoll(item.key().substr(space)));
    if (!(std::abs(got / item.value().get<double>() - 1) <= 4 * std::numeric_limits<double>::epsilon()))
      found += "queries at " + item.key() + " times " + json(got).dump() + "; ";
  }
  return found;
}

/// The paths of the answers that are not dictionaries.
std::vector<json::json_pointer> places_of(const json& expect) {
  std::vector<json::json_pointer> places;
  const json flat = expect.flatten();
  for (const auto& item : flat.items()) places.emplace_back(item.key());
  return places;
}

/// An answer in place of `value`.
json another(const json& value) {
  if (!value.is_string()) return value.get<double>() + 2;
  const std::string text = value;
  if (text == "half_split") return "interleaved";
  if (text == "interleaved") return "half_split";
  return std::string(text.size(), text.find_first_not_of("yn") == std::string::npos ? 'n' : 'S');
}

}  // namespace

TEST_CASE("every recorded family is imported as its own code reads it", "[models]") {
  CHECK(records_of("hugging_face", "records").size() >= 110);
  for (const char* name : {"hugging_face", "gguf"}) {  // one that names the indexer of each kind
    std::size_t indexers = 0;
    for (const json& record : records_of(name, "records")) indexers += record.at("expect").count("indexer");
    CHECK(indexers >= 3);
  }
  CHECK(records_of("gguf", "records").size() >= 25);
  for (const json& record : records("records")) {
    CAPTURE(source_of(record), record.at("expect").dump());
    CHECK(difference(record, record.at("expect")) == "");
  }
}

TEST_CASE("a change of any recorded answer is found", "[models]") {
  for (const json& record : records("records"))
    for (const json::json_pointer& place : places_of(record.at("expect"))) {
      json wrong = record.at("expect");
      wrong[place] = another(wrong.at(place));
      CAPTURE(source_of(record), place.to_string());
      CHECK(difference(record, wrong) != "");
    }
}

TEST_CASE("a file that is too incomplete, or without rotation, throws with the reason", "[models]") {
  for (const json& rejected : records("refused")) {
    CAPTURE(source_of(rejected));
    const bool of_gguf = rejected.contains("metadata");
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { import_of(rejected); }, of_gguf ? "rope::import_gguf: " : "rope::import_hugging_face: ",
        rejected.at("says").get<std::string>()));
  }
}

TEST_CASE("a model without rotating layers imports if that is requested, and names its position encoding",
          "[models]") {
  std::set<std::string> instead;
  for (const json& record : records("refused")) {
    CAPTURE(source_of(record));
    if (record.contains("instead")) {
      instead.insert(record.at("instead").get<std::string>());
      CHECK(difference_without_rope(record) == "");
    } else {  // the option does not change other files
      CHECK(testing::throws_saying<std::invalid_argument>(
          [&] { import_of(record, rope::model_without_rope::describe); },
          record.contains("metadata") ? "rope::import_gguf: " : "rope::import_hugging_face: ",
          record.at("says").get<std::string>()));
    }
  }
  CHECK(instead.size() >= 7);
}

TEST_CASE("every architecture of llama.cpp is imported as its code reads it, or throws with the reason",
          "[models]") {
  std::set<std::string> read, rejected, none_rotates, neither;
  for (const json& record : records_of("gguf", "records"))
    if (difference(record, record.at("expect")).empty())
      read.insert(record.at("metadata").at("general.architecture"));
  for (const json& record : records_of("gguf", "refused")) {  // the reason: the tests before
    const std::string name = record.at("metadata").at("general.architecture");
    rejected.insert(name);
    if (record.contains("instead") && difference_without_rope(record).empty()) none_rotates.insert(name);
  }
  std::size_t imported = 0, rotating = 0, without = 0;
  const json architectures = testing::recorded("models/gguf").at("architectures");
  for (const json& name : architectures)
    if (read.count(name) > 0)
      ++rotating, ++imported;
    else if (none_rotates.count(name) > 0)
      ++imported;
    else if (rejected.count(name) > 0)
      ++without;
    else
      neither.insert(name);
  CHECK(neither == std::set<std::string>{});
  CHECK(imported >= 154);
  CHECK(rotating >= 130);
  if (std::getenv("ROPE_PRINT_COUNTS"))
    WARN("llama.cpp: " << imported << " architectures import and agree, of which " << rotating << " rotate, "
                       << without << " throw with a reason, " << neither.size() << " neither");
}
