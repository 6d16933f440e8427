// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_TINY_MODEL_HPP
#define ROPE_TESTS_TINY_MODEL_HPP

/// The tiny models of recorded/logits/: their weights are a formula of name and index, record_logits.py has
/// the same.

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/recorded.hpp"

namespace testing {

inline nlohmann::json recorded_logits(const std::string& family) { return recorded("logits/" + family); }

/// Element i of a tensor: an integer from -64 to 63 times a power of two, so that float, bfloat16 and half
/// represent it exactly.
class tiny_weight {
 public:
  tiny_weight(const std::string& name, std::size_t dimensions, bool of_gemma) {
    for (const char c : name) seed_ = (seed_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    const auto contains = [&name](const char* part) { return name.find(part) != std::string::npos; };
    const bool embeds =
        contains("embed_tokens") || contains("embed_in") || contains("lm_head") || contains("embed_out");
    const bool of_heads = contains("q_proj") || contains("k_proj") || contains("v_proj") ||
                          contains("qkv_proj") || contains("query_key_value");
    norm_ = dimensions == 1 && contains("norm") && name.ends_with(".weight") && !of_gemma;
    unit_ = dimensions == 1 ? 1.0 / 512 : embeds ? 1.0 / 64 : of_heads ? 1.0 / 256 : 1.0 / 512;
  }
  double operator()(std::uint64_t i) const {
    std::uint64_t z = seed_ + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const auto k = static_cast<std::int64_t>(z >> 57) - 64;
    return norm_ ? 1 + static_cast<double>(k >> 3) / 64 : static_cast<double>(k) * unit_;
  }

 private:
  std::uint64_t seed_ = 0xcbf29ce484222325u;
  bool norm_;
  double unit_;
};

/// Writes the weights of a record as a safetensors file of F32, BF16 or F16.
inline void write_tiny_model(const nlohmann::json& record, const std::string& type,
                             const std::filesystem::path& path) {
  const bool of_gemma = record.at("config").at("model_type").get<std::string>().starts_with("gemma");
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string bytes;
  const auto add = [&bytes](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const auto& tensor : record.at("tensors").items()) {
    const auto shape = tensor.value().get<std::vector<std::uint64_t>>();
    const tiny_weight weight(tensor.key(), shape.size(), of_gemma);
    const std::size_t first = bytes.size();
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape) count *= extent;
    for (std::uint64_t i = 0; i < count; ++i) {
      const double value = weight(i);
      if (type == "F32") add(static_cast<float>(value));
      if (type == "BF16") add(static_cast<Eigen::bfloat16>(static_cast<float>(value)));
      if (type == "F16") add(static_cast<Eigen::half>(static_cast<float>(value)));
    }
    header[tensor.key()] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {first, bytes.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << bytes;
}

}  // namespace testing

#endif  // ROPE_TESTS_TINY_MODEL_HPP
