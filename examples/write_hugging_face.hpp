// Writes a tiny_transformer with rotary positions as a folder that other programs read as a Llama:
// config.json, model.safetensors, and a tokenizer.json whose tokens are bytes.
//
//     write_hugging_face(model, "tiny_lm");
//     const safetensors weights("tiny_lm");
//
// Source: https://github.com/huggingface/safetensors, "Format"; Hugging Face tokenizers, ByteLevel

#ifndef ROPE_EXAMPLES_WRITE_HUGGING_FACE_HPP
#define ROPE_EXAMPLES_WRITE_HUGGING_FACE_HPP

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <nlohmann/json.hpp>
#include <rope/rope.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "tiny_transformer.hpp"

inline nlohmann::json config_of(const tiny_shape& shape) {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_act", "silu"},
          {"hidden_size", shape.width},
          {"intermediate_size", shape.hidden},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads},
          {"num_key_value_heads", shape.heads},
          {"head_dim", shape.head_dim()},
          {"vocab_size", shape.vocabulary},
          {"max_position_embeddings", shape.context},
          {"rope_theta", shape.base},
          {"rms_norm_eps", shape.epsilon},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"torch_dtype", "float32"}};
}

/// Byte-level byte pair encoding without a merge: the id of a byte is the byte.
inline nlohmann::json tokenizer_of_bytes() {
  nlohmann::json vocabulary = nlohmann::json::object();
  unsigned stand_in = 256;  // bytes that are not printed are written as the characters from U+0100 on
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printed = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned point = printed ? byte : stand_in++;
    std::string character(1, static_cast<char>(point));
    if (point >= 128)
      character = {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 63))};
    vocabulary[character] = byte;
  }
  const nlohmann::json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", std::move(vocabulary)},
            {"merges", nlohmann::json::array()}}}};
}

/// Tensors of type F32 under the names of the model. The heads of a Llama of Hugging Face have the layout
/// half_split, like the heads of this model, so projections are written unchanged.
///
/// Throws:  std::runtime_error if the encoding is not rotary, the vocabulary is not bytes, or a file cannot
///          be written
inline void write_hugging_face(const tiny_transformer<float>& model, const std::filesystem::path& folder) {
  static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");
  if (model.shape().positions != encoding::rope || model.shape().vocabulary != 256)
    throw std::runtime_error(
        "write_hugging_face: a Llama has rotary positions, and its tokens here are bytes");
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const auto& tensor : model.tensors()) {
    nlohmann::json extents = {tensor.cols};
    if (tensor.rows > 1) extents = {tensor.rows, tensor.cols};
    const std::uint64_t first = sizeof(float) * static_cast<std::uint64_t>(tensor.first),
                        bytes = sizeof(float) * static_cast<std::uint64_t>(tensor.rows * tensor.cols);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", extents}, {"data_offsets", {first, first + bytes}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the tensors are aligned in the file
  const std::uint64_t length = text.size();
  const auto write = [&folder](const char* name, const auto& content) {
    std::ofstream file(folder / name, std::ios::binary);
    content(file);
    file.close();
    if (!file) throw std::runtime_error((folder / name).string() + " cannot be written");
  };
  std::filesystem::create_directories(folder);
  write("model.safetensors", [&](std::ofstream& file) {
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    file.write(reinterpret_cast<const char*>(model.parameters().data()),
               static_cast<std::streamsize>(sizeof(float)) * model.parameters().size());
  });
  write("config.json", [&](std::ofstream& file) { file << config_of(model.shape()).dump(2) << '\n'; });
  write("tokenizer.json", [](std::ofstream& file) { file << tokenizer_of_bytes().dump(1) << '\n'; });
}

#endif  // ROPE_EXAMPLES_WRITE_HUGGING_FACE_HPP
