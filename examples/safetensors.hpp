// Tensors of a checkpoint in the safetensors format: one file, or the parts that an index names.
//
//     const safetensors weights("folder/of/a/model");
//     const std::vector<float> head = weights.read<float>("lm_head.weight");
//
// The file is untrusted: every length and offset in it is checked to be within the file.
// Source: https://github.com/huggingface/safetensors, "Format"

#ifndef ROPE_EXAMPLES_SAFETENSORS_HPP
#define ROPE_EXAMPLES_SAFETENSORS_HPP

#include <Eigen/Core>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

class safetensors {
 public:
  using shape_type = std::vector<std::int64_t>;

  /// \param path  a file, or a folder with model.safetensors or model.safetensors.index.json
  ///
  /// Throws:  std::runtime_error that names the file if one cannot be read or is malformed
  explicit safetensors(const std::filesystem::path& path) {
    static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in memory");
    const auto index = path / "model.safetensors.index.json";
    if (!std::filesystem::exists(index)) {
      add_file(std::filesystem::is_directory(path) ? path / "model.safetensors" : path);
      return;
    }
    std::ifstream stream(index);
    const auto json = nlohmann::json::parse(stream, nullptr, false);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
      throw std::runtime_error(index.string() + ": must have a dictionary weight_map");
    std::map<std::string, bool> added;
    for (const auto& entry : json["weight_map"].items()) {
      const auto part = entry.value().is_string() ? entry.value().get<std::string>() : "";
      if (part.empty() || std::filesystem::path(part).filename() != part)
        throw std::runtime_error(index.string() + ": parts must be names of files without a path, got " +
                                 entry.value().dump());
      if (!std::exchange(added[part], true)) add_file(path / part);
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  const shape_type& shape(const std::string& name) const { return find(name).shape; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : tensors_) all.push_back(entry.first);
    return all;
  }

  /// The elements of a tensor of type F64, F32, F16 or BF16, in row-major order.
  ///
  /// Throws:  std::runtime_error if there is no such tensor, or it has another type
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const tensor& of = find(name);
    if (of.type == "F32") return converted<T, float>(of);
    if (of.type == "BF16") return converted<T, Eigen::bfloat16>(of);
    if (of.type == "F16") return converted<T, Eigen::half>(of);
    if (of.type == "F64") return converted<T, double>(of);
    throw std::runtime_error(name + ": its type must be F64, F32, F16 or BF16, got " + of.type);
  }

  /// Writes all tensors to one file, with the same types and shapes. edit(name, shape, bytes of an element,
  /// bytes) may change the bytes of each.
  ///
  /// Throws:  std::runtime_error if a file cannot be read or written
  template <class Edit>
  void copy_to(const std::filesystem::path& path, const Edit& edit) const {
    nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
    std::uint64_t end = 0;
    for (const auto& [name, of] : tensors_) {
      header[name] = {{"dtype", of.type}, {"shape", of.shape}, {"data_offsets", {end, end + of.bytes}}};
      end += of.bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // so that elements are aligned
    const std::uint64_t length = text.size();
    std::ofstream stream(path, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&length), sizeof length);
    stream << text;
    for (const auto& [name, of] : tensors_) {
      std::vector<std::byte> bytes = read_bytes(of);
      std::uint64_t count = 1;
      for (const std::int64_t extent : of.shape) count *= static_cast<std::uint64_t>(extent);
      edit(name, of.shape, count == 0 ? std::size_t{0} : static_cast<std::size_t>(of.bytes / count), bytes);
      stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    if (!stream.flush()) throw std::runtime_error(path.string() + ": cannot be written");
  }

 private:
  struct tensor {
    std::filesystem::path file;
    std::string type;
    shape_type shape;
    std::uint64_t first, bytes;  // in the file
  };

  const tensor& find(const std::string& name) const {
    const auto at = tensors_.find(name);
    if (at == tensors_.end()) throw std::runtime_error("the checkpoint has no tensor " + name);
    return at->second;
  }

  void add_file(const std::filesystem::path& path) {
    const auto demand = [&path](bool holds, const std::string& rule) {
      if (!holds) throw std::runtime_error(path.string() + ": " + rule);
    };
    std::ifstream stream(path, std::ios::binary);
    demand(stream && std::filesystem::is_regular_file(path), "cannot be read");
    const std::uint64_t size = std::filesystem::file_size(path);
    std::uint64_t length = 0;
    stream.read(reinterpret_cast<char*>(&length), sizeof length);
    demand(stream && length <= size - sizeof length && length <= std::uint64_t{100} << 20,
           "is no safetensors file: its header does not fit it");
    std::string text(static_cast<std::size_t>(length), ' ');
    stream.read(text.data(), static_cast<std::streamsize>(length));
    const auto header = nlohmann::json::parse(text, nullptr, false);
    demand(stream && header.is_object(), "is no safetensors file: its header is no JSON dictionary");
    const std::uint64_t start = sizeof length + length;
    for (const auto& entry : header.items()) {
      if (entry.key() == "__metadata__") continue;
      const std::string name = "tensor " + entry.key();
      const auto& value = entry.value();
      demand(value.is_object() && value.contains("dtype") && value.contains("shape") &&
                 value.contains("data_offsets") && value["dtype"].is_string() && are_counts(value["shape"]) &&
                 are_counts(value["data_offsets"]) && value["data_offsets"].size() == 2,
             name + " must have dtype, shape and two data_offsets");
      const auto offsets = value["data_offsets"].get<std::vector<std::uint64_t>>();
      demand(offsets[0] <= offsets[1] && offsets[1] <= size - start, name + " lies outside of the file");
      tensor of{path, value["dtype"].get<std::string>(), value["shape"].get<shape_type>(), start + offsets[0],
                offsets[1] - offsets[0]};
      demand(tensors_.emplace(entry.key(), std::move(of)).second, name + " is there twice");
    }
  }

  static bool are_counts(const nlohmann::json& list) {
    if (!list.is_array()) return false;
    for (const auto& number : list)
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > std::uint64_t{1} << 62) return false;
    return true;
  }

  template <class T, class Stored>
  static std::vector<T> converted(const tensor& of) {
    std::uint64_t count = of.bytes / sizeof(Stored), expected = 1;
    for (const std::int64_t extent : of.shape)  // stops before a product beyond `count` could overflow
      expected = extent > 0 && expected > count / static_cast<std::uint64_t>(extent)
                     ? count + 1
                     : expected * static_cast<std::uint64_t>(extent);
    if (count != expected || of.bytes % sizeof(Stored) != 0)
      throw std::runtime_error(of.file.string() + ": a tensor of " + std::to_string(of.bytes) +
                               " bytes does not have its shape");
    const std::vector<std::byte> bytes = read_bytes(of);
    std::vector<T> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      Stored stored;
      std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
      values[i] = static_cast<T>(stored);
    }
    return values;
  }

  static std::vector<std::byte> read_bytes(const tensor& of) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(of.bytes));
    std::ifstream stream(of.file, std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(of.first));
    if (!stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
      throw std::runtime_error(of.file.string() + ": cannot be read");
    return bytes;
  }

  std::map<std::string, tensor> tensors_;
};

#endif  // ROPE_EXAMPLES_SAFETENSORS_HPP
