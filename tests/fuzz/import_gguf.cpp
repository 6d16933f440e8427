// SPDX-License-Identifier: MIT
// GGUF files of any bytes, metadata of any values, and changed recorded ones: an import gives a model that
// keeps its promises, or throws. The reader of the bytes is that of the examples.
#include <rope/models/gguf.hpp>

#include <cstddef>
#include <gguf_file.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/model_files.hpp"

namespace {

using fuzz::json;

const std::vector<json>& originals() {
  static const std::vector<json> all = fuzz::recorded("gguf", "metadata");
  return all;
}

testing::gguf_file file_of(const json& metadata) {
  const json architecture =
      metadata.is_object() ? metadata.value("general.architecture", json("llama")) : json("llama");
  const std::string name = architecture.is_string() ? architecture.get<std::string>() : "llama";
  testing::gguf_file file;
  if (!metadata.is_object()) return file;
  for (const auto& entry : metadata.items())
    file.entries[(!entry.key().empty() && entry.key().front() == '.' ? name : "") + entry.key()] =
        entry.value();
  return file;
}

/// Returns for every key a value from the bytes.
struct oracle {
  fuzz::bytes& b;
  std::string architecture;

  std::optional<double> number(const std::string&) const {
    return b.coin() ? std::optional<double>(b.real()) : std::nullopt;
  }
  std::optional<std::string> text(const std::string& key) const {
    static const char* const types[] = {"none", "linear", "yarn", "longrope", "x", ""};
    if (key == "general.architecture") return architecture;
    return b.coin() ? std::optional<std::string>(b.one_of(types)) : std::nullopt;
  }
  std::optional<std::vector<double>> numbers(const std::string&) const {
    if (b.coin()) return std::nullopt;
    std::vector<double> result(static_cast<std::size_t>(b.up_to(70)), b.real());
    if (!result.empty()) result.back() = b.real();
    return result;
  }
};

}  // namespace

/// Every original unchanged.
extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  for (const json& metadata : originals())
    fuzz::check_import([&] { return rope::import_gguf(file_of(metadata)); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size > 3 && data[0] == 'G' && data[1] == 'G') {
    std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
    std::optional<gguf_file> file;
    try {
      file.emplace(stream);
    } catch (const std::runtime_error&) {  // not a GGUF file
      return 0;
    }
    fuzz::check_import([&] { return rope::import_gguf(*file); });
    return 0;
  }
  if (size > 0 && data[0] == '{') {
    const json metadata = json::parse(data, data + size, nullptr, false);
    if (!metadata.is_discarded()) fuzz::check_import([&] { return rope::import_gguf(file_of(metadata)); });
    return 0;
  }
  fuzz::bytes b(data, size);
  rope::gguf_options options{.length = b.one_in(3) ? b.one_in(8) ? b.real() : 200000 : 0.0,
                             .without_rope = rope::model_without_rope::describe};
  if (b.one_in(3)) options.layout = b.coin() ? rope::layout_kind::half_split : rope::layout_kind::interleaved;
  if (b.one_in(4)) {
    const json& one = b.one_of(originals());
    const oracle lookup{b, one.at("general.architecture").get<std::string>()};
    fuzz::check_import([&] { return rope::import_gguf(lookup, options); });
    return 0;
  }
  const testing::gguf_file file = file_of(fuzz::spoiler(b, originals()).spoilt());
  fuzz::check_import([&] { return rope::import_gguf(file, options); });
  return 0;
}
