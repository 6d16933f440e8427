// SPDX-License-Identifier: MIT
#include "../../examples/safetensors.hpp"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using nlohmann::json;

/// A file with that header followed by those bytes. `length` is the length that the file claims for the
/// header.
std::filesystem::path file_of(const std::string& header, const std::string& bytes, std::uint64_t length) {
  const auto path =
      std::filesystem::temp_directory_path() / ("rope_tests_" + std::to_string(::getpid()) + ".safetensors");
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << bytes;
  return path;
}
std::filesystem::path file_of(const json& header, const std::string& bytes) {
  const std::string text = header.dump();
  return file_of(text, bytes, text.size());
}

const json two = {{"a", {{"dtype", "F32"}, {"shape", {2, 1}}, {"data_offsets", {0, 8}}}},
                  {"b", {{"dtype", "BF16"}, {"shape", {3}}, {"data_offsets", {8, 14}}}}};
const std::string two_bytes("\0\0\x80\x3f\0\0\0\xc0\x80\x3f\0\x40\x40\xc0", 14);  // 1, -2; 1, 2, -3

}  // namespace

TEST_CASE("tensors are read with their type and shape", "[examples][safetensors]") {
  const safetensors weights(file_of(two, two_bytes));
  CHECK(weights.names() == std::vector<std::string>{"a", "b"});
  CHECK(weights.has("a"));
  CHECK_FALSE(weights.has("c"));
  CHECK(weights.shape("a") == safetensors::shape_type{2, 1});
  CHECK(weights.read<float>("a") == std::vector<float>{1, -2});
  CHECK(weights.read<double>("b") == std::vector<double>{1, 2, -3});
}

TEST_CASE("the parts of a folder are those of its index", "[examples][safetensors]") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("rope_tests_" + std::to_string(::getpid()) + "_parts");
  std::filesystem::create_directories(folder);
  const json part = {{"c", {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8}}}}};
  std::filesystem::rename(file_of(two, two_bytes), folder / "1.safetensors");
  std::filesystem::rename(file_of(part, two_bytes.substr(0, 8)), folder / "2.safetensors");
  const auto index = [&](const std::string& text) {
    std::ofstream(folder / "model.safetensors.index.json") << text;
    return folder;
  };
  const safetensors weights(index(
      R"({"metadata": {}, "weight_map": {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}})"));
  CHECK(weights.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(weights.read<float>("c") == std::vector<float>{1, -2});
  for (const char* wrong :
       {"", "{", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "../1.safetensors"}})", R"({"weight_map": {"a": "3.safetensors"}})"})
    CHECK(testing::throws_saying<std::runtime_error>([&] { safetensors{index(wrong)}; }, folder.string()));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a file with wrong offsets or lengths throws", "[examples][safetensors]") {
  using testing::throws_saying;
  const auto rejects = [](const json& header, const std::string& bytes, const std::string& rule) {
    return throws_saying<std::runtime_error>(
        [&] {
          const safetensors weights(file_of(header, bytes));
          for (const std::string& name : weights.names()) weights.read<float>(name);
        },
        rule);
  };
  const auto with = [](json tensor) { return json{{"a", std::move(tensor)}}; };
  CHECK(rejects(two, two_bytes.substr(1), "lies outside of the file"));
  CHECK(rejects(with({{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {8, 0}}}), two_bytes, "outside"));
  CHECK(rejects(with({{"dtype", "F32"}, {"shape", {3}}, {"data_offsets", {0, 8}}}), two_bytes, "its shape"));
  CHECK(rejects(with({{"dtype", "F32"}, {"shape", {1, 1 << 31, 1 << 31, 8}}, {"data_offsets", {0, 8}}}),
                two_bytes,
                "data_offsets"));  // negative as an int: no count
  CHECK(rejects(with({{"dtype", "F32"}, {"shape", {4294967296u, 4294967296u, 4u}}, {"data_offsets", {0, 8}}}),
                two_bytes, "its shape"));
  CHECK(rejects(with({{"dtype", "I32"}, {"shape", {2}}, {"data_offsets", {0, 8}}}), two_bytes, "got I32"));
  CHECK(rejects(with({{"dtype", "F32"}, {"shape", {-2}}, {"data_offsets", {0, 8}}}), two_bytes,
                "must have dtype"));
  CHECK(rejects(with({{"dtype", "F32"}, {"shape", {2}}}), two_bytes, "must have dtype"));
  CHECK(throws_saying<std::runtime_error>([] { safetensors(file_of("{}", "", 3)); }, "header does not fit"));
  CHECK(throws_saying<std::runtime_error>([] { safetensors(file_of("{}", "", ~std::uint64_t{0})); },
                                          "does not fit"));
  CHECK(throws_saying<std::runtime_error>([] { safetensors(file_of("{]", "", 2)); }, "no JSON dictionary"));
  CHECK(
      throws_saying<std::runtime_error>([] { safetensors("/nowhere/model.safetensors"); }, "cannot be read"));
}

TEST_CASE("changed bytes throw or are read within the file", "[examples][safetensors][fuzz]") {
  std::mt19937 random(11);
  INFO("seed 11");
  const std::string header = two.dump();
  int read = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string changed = header;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits)
      changed[random() % changed.size()] = "0123456789-[]{},\"aF"[random() % 19];
    try {
      const safetensors weights(file_of(changed, two_bytes, changed.size()));
      for (const std::string& name : weights.names()) weights.read<float>(name);
      ++read;
    } catch (const std::runtime_error&) {
    } catch (const nlohmann::json::exception&) {
      FAIL("an error of the JSON library came out for " << changed);
    }
  }
  CHECK(read > 20);  // some changes only rename a tensor
}
