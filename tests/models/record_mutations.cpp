// SPDX-License-Identifier: MIT
// Built and run by record_mutations.py, with tables of records that can be changed. Not part of the suite.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "laws/probes.test.cpp"
#include "laws/records.test.cpp"
#include "record_fields.inc"
#include "support/record_rules.hpp"

namespace {

/// Other values of a field. Of the key of a list, one of those that files have. Of a type of layers that do
/// not attend, one of layers that do.
std::vector<double> others(const std::string&, double x) { return {1.5 * x + 3}; }
std::vector<Index> others(const std::string&, Index x) { return {x + 1}; }
std::vector<bool> others(const std::string&, bool x) { return {!x}; }
std::vector<std::string_view> others(const std::string& name, std::string_view x) {
  if (name == "other_type" && x.find("sliding") == std::string_view::npos) return {"sliding_attention"};
  if (name != "full_list") return {"changed"};
  return {x == "attn_layer_indices" ? "full_attn_idxs" : "attn_layer_indices"};
}
/// Every other value.
template <class Enum>
std::vector<Enum> others(const std::string&, Enum x) requires(std::is_enum_v<Enum>) {
  std::vector<Enum> values;
  for (int i = 1; i < count_of(x); ++i)
    values.push_back(static_cast<Enum>((static_cast<int>(x) + i) % count_of(x)));
  return values;
}

rope::detail::hugging_face_record& hugging_face_record_named(const std::string& name) {
  using record = rope::detail::hugging_face_record;
  for (const auto& records : {rope::detail::hugging_face_plain_records<record>(),
                              rope::detail::hugging_face_layered_records<record>()})
    if (const record* own = rope::detail::record_in(records, name)) return const_cast<record&>(*own);
  throw std::invalid_argument("no record of " + name);
}
rope::detail::gguf_record& gguf_record_named(const std::string& name) {
  return const_cast<rope::detail::gguf_record&>(*rope::detail::gguf_record_of(name));
}

/// The architecture of a recorded file, as its table spells it.
std::string architecture_of(const json& record) {
  if (record.contains("metadata")) return record.at("metadata").at("general.architecture");
  try {
    return rope::detail::plain_architecture(
        import_of(record, rope::model_without_rope::describe).architecture);
  } catch (const std::invalid_argument&) {  // the record is of a refused file
    const json& config = record.at("config");
    const json& text = config.contains("text_config") ? config.at("text_config") : config;
    return rope::detail::plain_architecture(text.value("model_type", config.value("model_type", "")));
  }
}

/// Whether a recorded file of the architecture is read differently from its record.
bool is_noticed(const std::vector<const json*>& files) {
  for (const json* file : files) {
    std::string found;
    try {
      if (file->contains("expect")) {
        found = difference(*file, file->at("expect"));
      } else {
        import_of(*file);
        found = "imports";
      }
    } catch (const std::exception& error) {
      const bool rejected =
          file->contains("says") && std::string(error.what()).find(file->at("says")) != std::string::npos;
      found = rejected ? "" : "throws";
    }
    if (found.empty() && file->contains("instead")) found = difference_without_rope(*file);
    if (!found.empty()) return true;
  }
  return false;
}

/// Whether a probe fails for one of the architectures with these names.
bool is_noticed_by_a_probe(const std::string& format, std::string_view names) {
  static const json file = probes::file_of("probes");
  static const std::map<std::string, std::set<std::string>> asked = {
      {"gguf", probes::architectures_of("gguf")}, {"hugging_face", probes::architectures_of("hugging_face")}};
  for (const std::string& architecture : asked.at(format)) {
    if (!rope::detail::is_listed(names, architecture)) continue;
    for (const json& probe : file.at(format).at("probes"))
      if (!probes::finding(format, file.at(format), probe, architecture).empty()) return true;
  }
  return false;
}

/// Whether the list in the environment names a mutant, "format architecture field". Without a list all are
/// tested.
bool is_asked(const std::string& mutant) {
  static const std::set<std::string> listed = [] {
    std::set<std::string> lines;
    const char* path = std::getenv("ROPE_MUTANTS");
    std::ifstream file(path ? path : "");
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }();
  return listed.empty() || listed.count(mutant) > 0;
}

template <class Record>
void ask(const char* format, const std::map<std::string, std::set<std::string>>& written,
         Record& (*named)(const std::string&), const json& files) {
  for (const auto& of_architecture : written) {
    const std::string& architecture = of_architecture.first;
    const std::set<std::string>& fields = of_architecture.second;
    Record& record = named(architecture);
    const std::string_view names = record.names;
    std::vector<const json*> own;
    for (const json& file : files)
      if (rope::detail::is_listed(names, architecture_of(file))) own.push_back(&file);
    each_field(record, [&](const std::string& name, auto& field) {
      if (!is_asked(std::string(format) + " " + architecture + " " + name)) return;
      const auto before = field;
      for (const auto& other : others(name, before)) {
        field = other;
        const bool forbidden = !testing::broken_rule_of(record).empty(),
                   noticed = forbidden || is_noticed(own) || is_noticed_by_a_probe(format, names);
        field = before;
        std::cout << "mutant " << format << " " << architecture << " " << name << " "
                  << (fields.count(name) ? "written " : "default ")
                  << (forbidden ? "forbidden"
                      : noticed ? "killed"
                                : "survives")
                  << "\n";
      }
    });
  }
}

}  // namespace

TEST_CASE("changes of a record are noticed", "[.mutants]") {
  const auto both = [](const char* format) {
    json files = records_of(format, "records");
    for (const json& file : records_of(format, "refused")) files.push_back(file);
    return files;
  };
  const json of_hugging_face = both("hugging_face"), of_gguf = both("gguf");
  ask("hugging_face", written_hugging_face, hugging_face_record_named, of_hugging_face);
  ask("gguf", written_gguf, gguf_record_named, of_gguf);
}
