// SPDX-License-Identifier: MIT
// The arguments of attention in the layers of Hugging Face transformers when their own code runs, compared
// with the import of the same file: recorded/models/transformers_layers.json, written by reference_layers.py.
// Scale, softcap, window, direction, sinks, which layers rotate, how queries grow with their position, and
// frequencies with their sum.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/recorded.hpp"

namespace {

using nlohmann::json;
using rope::Index;

/// Differences between class and import, with a reason: {model_type, what}.
const std::map<std::pair<std::string, std::string>, std::string>& explained() {
  static const std::map<std::pair<std::string, std::string>, std::string> reasons = {
      {{"llama4_text", "grows"}, "it counts tokens, and not their positions"},
      {{"llama4_text", "attn_scale"}, "it counts tokens, and not their positions"},
      {{"llama4_text", "attn_temperature_tuning"}, "it counts tokens, and not their positions"},
      {{"gemma", "use_bidirectional_attention"},
       "its mask is causal, and its attention is told that it is not"},
      {{"gemma2", "use_bidirectional_attention"},
       "its mask is causal, and its attention is told that it is not"},
      {{"muse_glimmer_text", "table"}, "one table of several: every layer may have a base"},
      {{"phimoe", "m"}, "short_mscale or long_mscale comes in its place when it runs"},
      {{"phimoe", "scale"}, "at these positions long_mscale, without a length short_mscale"},
      {{"evolla", "table"}, "the table is that of its encoder of proteins"},
      {{"gemma", "causal"}, "its mask is causal, and its attention is told that it is not"},
      {{"hunyuan_v1_dense", "scale"},
       "a norm after the rotation takes the attention factor away; a note says so"},
      {{"hunyuan_v1_moe", "scale"},
       "a norm after the rotation takes the attention factor away; a note says so"},
      {{"nanochat", "scale"}, "a norm after the rotation takes the attention factor away; a note says so"},
      {{"jetmoe", "scale"}, "experts multiply its queries"},
      {{"longcat_flash", "scale"}, "queries are multiplied before the rotation; a note says so"},
      {{"minimax_m2", "table"},
       "it rotated whole heads then; released files, and the class since, half of them"},
      {{"minimax_m2", "scale"}, "as its table"},
      {{"nomic_bert", "rotary_emb_base"}, "released files have it, for a class of their own"},
  };
  return reasons;
}

/// Lengths of heads are rounded to five digits, an error of at most 5e-5 of each of two. Norms add an epsilon
/// of up to 1e-5.
bool near(double a, double b) { return std::abs(a - b) <= 1.2e-4 * std::max(std::abs(a), std::abs(b)); }

/// Both compute frequencies in double, from powers that may be rounded twice.
bool same(double a, double b) { return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b)); }

/// An answer of every layer, or one for all. Without an answer it is the common one.
json of_layer(const json& found, const char* name, std::size_t at, json common) {
  if (!found.contains(name)) return common;
  const json& value = found.at(name);
  return value.is_array() ? value.at(at) : value;
}

using findings = std::set<std::pair<std::string, std::string>>;  // the quantity, and its difference

/// The window of a mask.
void compare_mask(const json& found, std::size_t at, const rope::attention_options& options,
                  findings& wrong) {
  const std::string mask = of_layer(found, "mask", at, "causal");
  const Index reach = of_layer(found, "window", at, 0);
  if (mask == "none") return;
  if (mask == "other") {
    wrong.emplace("window", "no window says it, import " + std::to_string(options.window));
    return;
  }
  const bool slides = mask == "sliding" || mask == "both_sliding" || mask == "sides";
  const Index window = slides ? reach + (mask == "sides" ? 1 : 0) : 0;
  if (mask == "chunked" || options.window != window)
    wrong.emplace("window",
                  mask + " " + std::to_string(reach) + ", import " + std::to_string(options.window));
}

/// One layer whose options the import knows.
void compare_layer(const json& found, std::size_t at, const rope::model_rope& model, Index layer,
                   findings& wrong) {
  const rope::attention_options options = model.attention_of_layer(layer);
  compare_mask(found, at, options, wrong);
  const bool rotates = of_layer(found, "turns", at, true);
  const bool in_group = model.rotation_of_layer(layer) == rope::layer_rotation::in_group;
  if (rotates != in_group) wrong.emplace("rotation", rotates ? "rotates" : "does not rotate");
  const rope::layer_group& group = in_group ? *model.group_of_layer(layer) : model.groups().front();
  const double head_dim = of_layer(found, "head_dim", at, 0.0);
  if (in_group && static_cast<double>(group.head_dim) != head_dim)
    wrong.emplace("head_dim", std::to_string(head_dim) + ", import " + std::to_string(group.head_dim));
  // Rotated heads of +1 and -1 have this root mean square.
  const double m = group.frequencies.attention_factor(),
               rotated = rotates ? static_cast<double>(group.rotary_dim()) : 0;
  const double length = std::sqrt((rotated * m * m + head_dim - rotated) / head_dim);
  const double q = of_layer(found, "q", at, 1.0), k = of_layer(found, "k", at, 1.0);
  const json given = of_layer(found, "scale", at, json());
  const double scale =
      (given.is_null() ? 1 / std::sqrt(head_dim) : given.get<double>()) * q * k / (length * length);
  if (q > 0 && k > 0 && !near(scale, options.scale))
    wrong.emplace("scale", std::to_string(scale) + ", import " + std::to_string(options.scale));
  if (!near(of_layer(found, "softcap", at, 0.0), options.softcap)) wrong.emplace("softcap", "differs");
  const rope::query_scaling rule = model.query_scaling_of_layer(layer);
  const std::vector<Index> positions = found.value("positions", std::vector<Index>{4095, 70000});
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const double grows = of_layer(found, "grows", at, json::array({1.0, 1.0})).at(i),
                 ours = rule(positions[i]) / rule(0);
    if (!near(grows, ours))
      wrong.emplace("grows", std::to_string(grows) + ", import " + std::to_string(ours));
  }
}

/// The frequencies of every type of layers.
void compare_tables(const json& found, const rope::model_rope& model, findings& wrong) {
  for (const auto& item : found.at("tables").items()) {
    const rope::layer_group* group = item.key().empty() ? &model.groups().front() : model.group(item.key());
    if (!group && item.key() == "main") group = model.group("sliding_attention");
    if (!group && item.key() == "compress") group = model.group("compressed_sparse_attention");
    if (!group) {
      wrong.emplace("table", "no group is named " + item.key());
      continue;
    }
    const json& table = item.value();
    const rope::frequencies& f = group->frequencies;
    const Index last = f.pairs() - 1;
    if (table.at("pairs") != json(f.pairs())) {
      wrong.emplace("table", table.at("pairs").dump() + " pairs, import " + std::to_string(f.pairs()));
      continue;
    }
    double sum = 0;
    for (Index i = 0; i <= last; ++i) sum += std::abs(f.inv_freq()(i, 0));
    const auto theirs = [&](std::size_t at) { return std::abs(table.at("inv_freq").at(at).get<double>()); };
    const bool spread = group->section_order == rope::mrope_order::time_last;  // theirs are ordered by axis
    if (!same(theirs(0), std::abs(f.inv_freq()(0, 0))) ||
        (!spread && !same(theirs(1), std::abs(f.inv_freq()(1, 0)))) ||
        !same(theirs(2), std::abs(f.inv_freq()(last, 0))) ||
        !same(std::abs(table.at("sum").get<double>()), sum))
      wrong.emplace("table", table.dump() + ", import sum " + std::to_string(sum) + " " + group->rule);
    if (!same(table.at("m").get<double>(), f.attention_factor()))
      wrong.emplace("m", table.at("m").dump() + ", import " + std::to_string(f.attention_factor()));
  }
}

/// The values that a model has for all its layers, also if a window is unknown.
void compare_model(const json& found, const rope::model_rope& model, std::size_t layers, findings& wrong) {
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string mask = of_layer(found, "mask", i, "causal");
    if (mask != "none" && model.causal != (mask == "causal" || mask == "sliding" || mask == "chunked"))
      wrong.emplace("causal", mask);
    const bool sinks = of_layer(found, "sinks", i, false);
    const auto layer = found.at("layers").at(i).get<Index>();
    const bool counted = model.layer_count() > 0 && layer >= 0 && layer < model.layer_count();
    if (sinks != (counted ? model.layer_has_sinks(layer) : model.sink_logits))
      wrong.emplace("sinks", "differ");
  }
}

struct count {
  int agree = 0, rejected = 0, layers = 0, left_open = 0;
};

/// The values of the import that differ from those of the class.
findings differences(const json& record, count& counted) {
  findings wrong;
  const json& found = record.at("found");
  try {
    const rope::model_rope model = rope::import_hugging_face(record.at("config"));
    const std::vector<Index> layers = found.at("layers");
    for (std::size_t i = 0; i < layers.size(); ++i) {
      ++counted.layers;
      try {
        if (layers[i] >= 0 && (model.layer_count() == 0 || layers[i] < model.layer_count()))
          compare_layer(found, i, model, layers[i], wrong);
      } catch (const std::invalid_argument&) {
        ++counted.left_open;  // the description reports that it is unknown
      }
    }
    compare_tables(found, model, wrong);
    compare_model(found, model, layers.size(), wrong);
  } catch (const std::invalid_argument&) {
    ++counted.rejected;
    return {};
  }
  const std::string type = record.at("config").at("model_type");
  for (auto one = wrong.begin(); one != wrong.end();)
    one = explained().count({type, one->first}) > 0 ? wrong.erase(one) : std::next(one);
  counted.agree += wrong.empty();
  return wrong;
}

}  // namespace

TEST_CASE("the layers of transformers pass to attention the values of the import",
          "[models][reference_layers]") {
  const json file = testing::recorded("models/transformers_layers");
  count of_files, of_probes;
  const auto check = [](const json& record, const std::string& probe, count& counted) {
    for (const auto& [what, how] : differences(record, counted))
      FAIL_CHECK(record.at("config").at("model_type") << ", " << probe << ": " << what << ": " << how);
  };
  for (const json& record : file.at("records")) check(record, "alone", of_files);
  for (const json& probe : file.at("probes"))
    for (const json& record : probe.at("records")) check(record, probe.at("probe"), of_probes);
  for (const count& counted : {of_files, of_probes}) {
    CAPTURE(counted.agree, counted.rejected, counted.layers, counted.left_open);
    CHECK(counted.agree >= 160);
    CHECK(counted.rejected * 10 < counted.agree);
    if (std::getenv("ROPE_PRINT_COUNTS"))
      WARN(counted.agree << " agree, " << counted.rejected << " are rejected; of " << counted.layers
                         << " layers " << counted.left_open << " are left open");
  }
}

// Which architectures read a key: probes.json has it for each format, and their code decides here.
TEST_CASE("a key changes the result of a class of transformers if probes.json says so",
          "[models][reference_layers]") {
  const json layers = testing::recorded("models/transformers_layers"),
             probes = testing::recorded("models/probes").at("hugging_face").at("probes");
  const auto plain = [](const json& type) {
    return rope::detail::plain_architecture(type.get<std::string>());
  };
  std::size_t compared = 0;
  for (const json& of_classes : layers.at("probes"))
    for (const json& probe : probes) {
      if (probe.at("name") != of_classes.at("probe") || probe.contains("expect")) continue;
      std::set<std::string> readers;
      for (const json& exception : probe.value("but_for", json::array()))
        if (exception.at("is") == "differs")
          for (const json& name : exception.at("of")) readers.insert(name.get<std::string>());
      const std::string key = probe.at("name");
      for (const json& type : of_classes.at("as_before")) {
        ++compared;
        if (readers.count(plain(type)) > 0 && explained().count({type, key}) == 0)
          FAIL_CHECK(key << " changes nothing that " << type << " does");
      }
      for (const json& record : of_classes.at("records")) {
        const json& type = record.at("config").at("model_type");
        ++compared;
        if (readers.count(plain(type)) == 0 && explained().count({type, key}) == 0)
          FAIL_CHECK(key << " changes what " << type << " does");
      }
    }
  CHECK(compared >= 1500);
}
