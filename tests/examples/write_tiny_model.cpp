// SPDX-License-Identifier: MIT
// write_tiny_model FAMILY FOLDER [tokenizer.model]: a tiny model of recorded/logits/FAMILY.json as a folder
// that generate_text reads. A tokenizer of SentencePiece is optional, and sets the number of rows of the
// embeddings.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "examples/tiny_model.hpp"
#include "examples/tiny_pieces.hpp"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  try {
    auto record = testing::recorded_logits(argv[1]);
    const std::filesystem::path folder = argv[2];
    std::filesystem::create_directories(folder);
    if (argc == 4) {
      const testing::tiny_pieces pieces;
      std::ofstream(folder / argv[3], std::ios::binary) << pieces.model();
      record["config"]["vocab_size"] = pieces.count();
      for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
        record["tensors"][name][0] = pieces.count();
    }
    std::ofstream(folder / "config.json") << record.at("config").dump(2) << '\n';
    testing::write_tiny_model(record, "BF16", folder / "model.safetensors");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
