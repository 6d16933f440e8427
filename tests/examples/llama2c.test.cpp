// SPDX-License-Identifier: MIT
#include "../../examples/llama2c.hpp"

#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <rope/rope.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../examples/decoder.hpp"
#include "examples/tiny_model.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using rope::Index;

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::temp_directory_path() / ("rope_tests_" + std::to_string(::getpid()) + name);
}

/// Weights of a tensor of the record, rows of q and k in the order of an interleaved model.
std::vector<float> weights_of(const std::string& name, std::size_t rows, std::size_t columns) {
  const testing::tiny_weight weight(name, columns > 0 ? 2 : 1, false);
  const std::size_t count = rows * (columns > 0 ? columns : 1);
  std::vector<float> values(count);
  const bool permuted = name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t from = i;
    if (permuted) {  // heads of 16 channels: row 2 p + s of one is row p + 8 s of the other
      const std::size_t row = i / columns, channel = row % 16;
      from = (row - channel + channel / 2 + 8 * (channel % 2)) * columns + i % columns;
    }
    values[i] = static_cast<float>(weight(from));
  }
  return values;
}

/// The tiny Llama 2 of the records as a llama2.c file.
void write_checkpoint(const std::filesystem::path& path, std::int32_t vocabulary) {
  std::ofstream file(path, std::ios::binary);
  const std::int32_t header[] = {64, 96, 2, 4, 4, vocabulary, 512};
  file.write(reinterpret_cast<const char*>(header), sizeof header);
  const auto add = [&file](const std::string& name, std::size_t rows, std::size_t columns) {
    const auto values = weights_of(name + ".weight", rows, columns);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  };
  add("model.embed_tokens", 96, 64);
  const struct {
    const char* part;
    std::size_t rows, columns;
  } parts[] = {
      {"input_layernorm", 64, 0},   {"self_attn.q_proj", 64, 64}, {"self_attn.k_proj", 64, 64},
      {"self_attn.v_proj", 64, 64}, {"self_attn.o_proj", 64, 64}, {"post_attention_layernorm", 64, 0},
      {"mlp.gate_proj", 96, 64},    {"mlp.down_proj", 64, 96},    {"mlp.up_proj", 96, 64}};
  for (const auto& of : parts)
    for (int layer = 0; layer < 2; ++layer)
      add("model.layers." + std::to_string(layer) + "." + of.part, of.rows, of.columns);
  add("model.norm", 64, 0);
  const std::vector<float> tables(512 * 16, 7);
  file.write(reinterpret_cast<const char*>(tables.data()),
             static_cast<std::streamsize>(tables.size() * sizeof(float)));
  add("lm_head", 96, 64);
}

void write_tokenizer(const std::filesystem::path& path,
                     const std::vector<std::pair<std::string, float>>& pieces) {
  std::ofstream file(path, std::ios::binary);
  const auto add = [&file](auto value) { file.write(reinterpret_cast<const char*>(&value), sizeof value); };
  add(std::int32_t{8});
  for (const auto& [text, score] : pieces) {
    add(score);
    add(static_cast<std::int32_t>(text.size()));
    file << text;
  }
}

}  // namespace

TEST_CASE("a checkpoint of llama2.c gives the logits of the same Llama", "[examples][llama2c]") {
  const auto path = scratch(".bin");
  write_checkpoint(path, -96);
  const auto record = testing::recorded_logits("llama_2");
  const llama2c_checkpoint checkpoint(path);
  const auto model =
      rope::import_hugging_face(checkpoint.config(), {.layout = rope::layout_kind::interleaved});
  decoder<float> text(checkpoint.config(), model, checkpoint, 64);
  std::vector<int> ids;
  for (int i = 0; i < 64; ++i) ids.push_back((7919 * i + 31 * i * i) % 96);
  const auto logits = text.forward(ids, 64);
  constexpr double bound = 32 * std::numeric_limits<float>::epsilon() / 2;
  for (const std::size_t row : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {  // positions 1, 7 and 63
    const Index position = record.at("positions").at(row);
    for (Index id = 0; id < 96; ++id)
      CHECK(std::abs(static_cast<double>(logits(position, id)) -
                     record.at("logits").at(row).at(static_cast<std::size_t>(id)).get<double>()) <
            bound * 12);
  }
}

TEST_CASE("a truncated checkpoint throws", "[examples][llama2c]") {
  using testing::throws_saying;
  const auto path = scratch(".bin");
  write_checkpoint(path, -96);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  CHECK(throws_saying<std::runtime_error>([&] { llama2c_checkpoint{path}; }, "ends before its weights do"));
  write_checkpoint(path, 0);
  CHECK(throws_saying<std::runtime_error>([&] { llama2c_checkpoint{path}; }, "is no checkpoint"));
  CHECK(throws_saying<std::runtime_error>([&] { llama2c_checkpoint{scratch(".none")}; }, "cannot be read"));
}

TEST_CASE("pieces are merged by their scores", "[examples][llama2c]") {
  const auto path = scratch(".tok");
  std::vector<std::pair<std::string, float>> pieces = {{"<unk>", 0.f}, {"<s>", 0.f}, {"</s>", 0.f}};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(b));
    pieces.emplace_back(text, 0.f);
  }
  for (const auto& [text, score] :
       {std::pair{" ", -9.f}, {"a", -9.f}, {"b", -9.f}, {"ab", -2.f}, {"ba", -1.f}, {" a", -3.f}})
    pieces.emplace_back(text, score);
  write_tokenizer(path, pieces);
  const llama2c_tokenizer tokenizer(path, static_cast<std::int64_t>(pieces.size()));
  CHECK(tokenizer.encode("") == std::vector<int>{1});
  CHECK(tokenizer.encode("aba") == std::vector<int>{1, 264, 263});  // " " and "a", then "ba"
  CHECK(tokenizer.encode("ab") == std::vector<int>{1, 259, 262});   // "ab" before " a"
  CHECK(tokenizer.encode("\xc3\xa9") == std::vector<int>{1, 259, 0xc3 + 3, 0xa9 + 3});  // bytes
  CHECK(tokenizer.decode(0xc3 + 3) == "\xc3");
  CHECK(tokenizer.decode(264) == " a");
  CHECK(testing::throws_saying<std::runtime_error>([&] { llama2c_tokenizer(path, 400); },
                                                   "with that many pieces"));
}
