// SPDX-License-Identifier: MIT
// write_tiny_model FAMILY FOLDER: a tiny model of logits/FAMILY.json as a folder that generate_text reads.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "examples/tiny_model.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto record = testing::recorded_logits(argv[1]);
    const std::filesystem::path folder = argv[2];
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << record.at("config").dump(2) << '\n';
    testing::write_tiny_model(record, "BF16", folder / "model.safetensors");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
