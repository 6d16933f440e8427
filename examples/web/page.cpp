// The C interface of the page, which computes every number that the page shows. Results are JSON.

#include <rope/models.hpp>
#include <rope/rotation.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <ios>
#include <istream>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <optional>
#include <streambuf>
#include <string>
#include <vector>

#include "../config_file.hpp"
#include "../gguf_file.hpp"

namespace {

using nlohmann::json;
using rope::Index;

/// A file with only some slices in memory. A read beyond the slices stops and records its offset.
struct sliced_file : std::streambuf {
  sliced_file(const char* file_name, std::int64_t bytes) : name(file_name), size(bytes) {}

  std::string name;
  std::int64_t size;
  std::map<std::int64_t, std::vector<char>> slices = {};  // by their first byte
  std::optional<std::int64_t> missing = {};
  std::optional<rope::model_rope> model = {};

 protected:
  int_type underflow() override {
    const std::int64_t at = start_ + (gptr() - eback());
    auto slice = slices.upper_bound(at);
    if (slice == slices.begin() || at - (--slice)->first >= std::ssize(slice->second)) {
      if (at < size) missing = at;
      return traits_type::eof();
    }
    char* const bytes = slice->second.data();
    start_ = slice->first;
    setg(bytes, bytes + (at - start_), bytes + slice->second.size());
    return traits_type::to_int_type(*gptr());
  }
  pos_type seekoff(off_type by, std::ios::seekdir from, std::ios::openmode mode) override {
    const std::int64_t at = start_ + (gptr() - eback());
    return seekpos((from == std::ios::beg ? 0 : from == std::ios::cur ? at : size) + by, mode);
  }
  pos_type seekpos(pos_type to, std::ios::openmode) override {
    setg(nullptr, nullptr, nullptr);
    return start_ = to;
  }

 private:
  std::streamoff start_ = 0;  // where the current slice begins
};

std::array<std::optional<sliced_file>, 2> files;  // the model, and a model to compare with

sliced_file& file_of(int file) { return files.at(static_cast<std::size_t>(file)).value(); }

const rope::layer_group& group_of(int file, int group) {
  return file_of(file).model.value().groups().at(static_cast<std::size_t>(group));
}

const char* answer(const json& value) {
  static std::string text;
  text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.c_str();
}

/// A head of ones, rotated to `position`.
std::vector<double> rotated_ones(const rope::layer_group& group, std::int64_t position) {
  std::vector<double> head(static_cast<std::size_t>(group.head_dim), 1.0);
  const rope::frequency_table<double> table(group.frequencies, position, position + 1);
  rope::with_layout(group.layout, [&](auto layout) {
    rope::rotate<decltype(layout)>(rope::thd(head.data(), 1, 1, group.head_dim),
                                   table.at_channel(group.first_channel), position);
  });
  return head;
}

/// Wavelengths of all pairs in tokens: infinity, which JSON has as null, for a pair that does not rotate.
std::vector<double> wavelengths(const rope::frequencies& of) {
  const Eigen::ArrayXd tokens = 2 * std::numbers::pi / of.inv_freq().col(0).array().abs();
  return {tokens.begin(), tokens.end()};
}

json json_of(const rope::model_rope& model, const rope::layer_group& group) {
  const bool slides = group.layer_type.starts_with("sliding") && model.sliding_window > 0;
  json changes = json::array(), pairs = json::array();
  for (const rope::pair_change change : rope::pair_census_of(group).changes)
    changes.push_back(static_cast<int>(change));
  rope::with_layout(group.layout, [&](auto layout) {
    for (Index pair = 0, count = group.frequencies.pairs(); pair < count; ++pair)
      pairs.push_back({group.first_channel + layout.first(pair, count),
                       group.first_channel + layout.second(pair, count)});
  });
  return {{"type", group.layer_type},
          {"layout", rope::name_of(group.layout)},
          {"headDim", group.head_dim},
          {"pairs", pairs},
          {"changes", changes},
          {"before", wavelengths(rope::frequencies(group.rotary_dim(), group.base))},
          {"after", wavelengths(group.frequencies)},
          {"trained", group.number("original_max_position", 0)},
          {slides ? "window" : "context", slides ? model.sliding_window : model.max_position}};
}

json json_of(const rope::model_rope& model) {
  constexpr const char* rotation[] = {"rotates", "no rotation", "rotation unknown"};
  const std::string text = rope::describe(model);
  const std::size_t code = std::min(text.find("\nC++ after "), text.size());
  json groups = json::array(), layers = json::array();
  for (const rope::layer_group& group : model.groups()) groups.push_back(json_of(model, group));
  for (Index layer = 0; layer < std::max<Index>(model.layer_count(), 1); ++layer) {  // 1: every layer
    const auto at = static_cast<std::size_t>(layer);
    layers.push_back({{"type", model.layers().empty() ? "" : model.layers()[at]},
                      {"rotation", rotation[static_cast<int>(model.rotation_of_layer(layer))]},
                      {"window", model.windows[model.windows.size() == 1 ? 0 : at]}});
  }
  return {
      {"report", text.substr(0, code)}, {"code", text.substr(code)}, {"groups", groups}, {"layers", layers}};
}

}  // namespace

extern "C" {

void open_file(int file, const char* name, double size) {
  files.at(static_cast<std::size_t>(file)).emplace(name, static_cast<std::int64_t>(size));
}

/// Memory for the bytes of a slice, which the caller writes.
char* add_slice(int file, double offset, int bytes) {
  std::vector<char>& slice = file_of(file).slices[static_cast<std::int64_t>(offset)];
  slice.resize(static_cast<std::size_t>(bytes));
  return slice.data();
}

/// The model, or {"missing": offset} of a slice to add before the next try, or {"error": text}.
const char* read_model(int file, double length, int layout_number) {
  sliced_file& from = file_of(file);
  from.missing.reset();
  std::istream stream(&from);
  stream.seekg(0);
  constexpr std::optional<rope::layout_kind> layouts[] = {
      {}, rope::layout_kind::interleaved, rope::layout_kind::half_split};
  constexpr auto without_rope = rope::model_without_rope::describe;
  try {
    if (from.name.ends_with(".gguf"))
      from.model = rope::import_gguf(gguf_file(stream), {length, layouts[layout_number], without_rope});
    else if (const json config = parsed_config(stream); !from.missing)
      from.model = rope::import_hugging_face(config, {length, layouts[layout_number], without_rope});
    if (!from.missing) return answer(json_of(*from.model));
  } catch (const std::exception& error) {
    if (!from.missing) return answer({{"error", error.what()}});
  }
  return answer({{"missing", *from.missing}});
}

/// One sentence for each difference between the two files.
const char* compare_files() {
  rope::model_rope a = file_of(0).model.value(), b = file_of(1).model.value();
  if (a.source == b.source) a.source = file_of(0).name, b.source = file_of(1).name;
  return answer(rope::compare_models(a, b));
}

/// A head of ones, rotated.
const char* rotated_head(int file, int group, double position) {
  return answer(rotated_ones(group_of(file, group), static_cast<std::int64_t>(position)));
}

/// Scores q . k / head_dim of a query and a key of ones. The key is at position 0 and the query at each
/// position of a list that ends at the longest context.
const char* scores_by_distance(int file, int group) {
  const rope::layer_group& of = group_of(file, group);
  const double context = file_of(file).model->max_position;
  const std::int64_t last = context >= 1 ? static_cast<std::int64_t>(std::min(context, 0x1p31)) : 8192;
  const std::vector<double> key = rotated_ones(of, 0);
  json positions = json::array(), scores = json::array();
  for (std::int64_t position = 0; position <= last; position += std::max<std::int64_t>(1, position / 48)) {
    const std::vector<double> query = rotated_ones(of, position);
    positions.push_back(position);
    scores.push_back(std::inner_product(key.begin(), key.end(), query.begin(), 0.0) /
                     static_cast<double>(of.head_dim));
  }
  return answer({{"positions", positions}, {"scores", scores}});
}

}  // extern "C"
