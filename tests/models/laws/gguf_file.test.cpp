// SPDX-License-Identifier: MIT
// The reader of GGUF files in examples/, on files that are written here, truncated and damaged.
#include "../../../examples/gguf_file.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <rope/models.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

/// Writes a file by the specification: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
class writer {
 public:
  template <class T>
  void put(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof value);
    if constexpr (std::endian::native == std::endian::big) std::reverse(bytes, bytes + sizeof bytes);
    bytes_.append(bytes, sizeof value);
  }
  void put_text(const std::string& text) {
    put(std::uint64_t{text.size()});
    bytes_ += text;
  }
  template <class T>
  void entry(const std::string& key, std::uint32_t type, T value) {
    put_text(key);
    put(type);
    put(value);
  }
  void entry(const std::string& key, const std::string& text) {
    put_text(key);
    put(std::uint32_t{8});
    put_text(text);
  }
  void pad(std::size_t alignment) { bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Llama 3.1 as converted: scalars of several types, a vocabulary, a list, rope_freqs and another tensor.
std::string llama(const std::vector<float>& factors, std::uint32_t alignment = 32,
                  std::uint32_t type_of_factors = 0) {
  writer file;
  file.put(std::uint32_t{0x46554747});
  file.put(std::uint32_t{3});
  file.put(std::uint64_t{2});   // tensors
  file.put(std::uint64_t{12});  // entries
  file.entry("general.architecture", "llama");
  file.entry("general.alignment", 4, alignment);
  file.entry("llama.block_count", 4, std::uint32_t{32});
  file.entry("llama.context_length", 10, std::uint64_t{131072});
  file.entry("llama.embedding_length", 5, std::int32_t{4096});
  file.entry("llama.attention.head_count", 2, std::uint16_t{32});
  file.entry("llama.attention.head_count_kv", 0, std::uint8_t{8});
  file.entry("llama.rope.dimension_count", 11, std::int64_t{128});
  file.entry("llama.rope.freq_base", 6, 500000.0f);
  file.entry("llama.some_flag", 7, std::uint8_t{1});
  file.put_text("tokenizer.ggml.tokens");
  file.put(std::uint32_t{9});
  file.put(std::uint32_t{8});
  file.put(std::uint64_t{3});
  for (const char* token : {"a", "", "long token"}) file.put_text(token);
  file.put_text("llama.list");
  file.put(std::uint32_t{9});
  file.put(std::uint32_t{12});
  file.put(std::uint64_t{2});
  file.put(0.25);
  file.put(-3.0);
  const auto tensor = [&](const char* name, std::vector<std::uint64_t> extents, std::uint32_t type,
                          std::uint64_t offset) {
    file.put_text(name);
    file.put(static_cast<std::uint32_t>(extents.size()));
    for (const std::uint64_t extent : extents) file.put(extent);
    file.put(type);
    file.put(offset);
  };
  tensor("token_embd.weight", {4, 2}, 0, 0);
  tensor("rope_freqs.weight", {factors.size()}, type_of_factors, 64);
  file.pad(alignment);
  for (int n = 0; n < 16; ++n) file.put(-1.0f);  // the other tensor, and the padding before it
  for (const float factor : factors) file.put(factor);
  return file.bytes();
}

gguf_file read(const std::string& bytes) {
  std::istringstream stream(bytes);
  return gguf_file(stream);
}

std::vector<float> llama_factors() {
  const rope::frequencies plain(128, 500000.0), scaled(128, 500000.0, rope::llama3_scaling{.factor = 8});
  std::vector<float> factors;
  for (rope::Index i = 0; i < 64; ++i)
    factors.push_back(static_cast<float>(plain.inv_freq()(i, 0) / scaled.inv_freq()(i, 0)));
  return factors;
}

}  // namespace

TEST_CASE("the bytes of a GGUF file of a model import", "[models]") {
  for (const std::uint32_t alignment : {32u, 64u, 1u}) {
    const gguf_file file = read(llama(llama_factors(), alignment));
    CHECK(file.text("general.architecture") == "llama");
    CHECK(file.number("llama.context_length") == 131072);
    CHECK(file.number("llama.some_flag") == 1);
    CHECK(file.numbers("llama.list") == std::vector<double>{0.25, -3});
    CHECK_FALSE(file.numbers("tokenizer.ggml.tokens"));
    CHECK_FALSE(file.number("general.architecture"));
    CHECK_FALSE(file.numbers("token_embd.weight"));
    const rope::model_rope model = rope::import_gguf(file);
    CHECK(model.query_heads == 32);
    CHECK(model.key_heads == 8);
    const rope::layer_group& group = model.groups().front();
    CHECK(group.layout == rope::layout_kind::interleaved);
    CHECK(group.rotary_dim() == 128);
    const rope::frequencies scaled(128, 500000.0, rope::llama3_scaling{.factor = 8});
    const double factor_rounding = 0x1p-23;  // a factor is a float: 2^-24 of it, plus the roundings of double
    for (rope::Index i = 0; i < 64; ++i)
      CHECK(group.frequencies.inv_freq()(i, 0) ==
            testing::Approx(scaled.inv_freq()(i, 0)).epsilon(factor_rounding));
  }
}

TEST_CASE("a truncated GGUF file throws, wherever it ends", "[models]") {
  const std::string whole = llama({1.0f, 2.0f});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(read(whole.substr(0, length)), std::runtime_error);
  }
  CHECK_NOTHROW(read(whole));
}

TEST_CASE("a damaged GGUF file is read or throws, and nothing else happens", "[models]") {
  const std::string whole = llama({1.0f, 2.0f});
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(generator() % n); };
  int rejected = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = whole;
    for (std::size_t n = below(3) + 1; n > 0; --n) {
      const auto at = below(damaged.size());
      damaged[at] = static_cast<char>(below(4) == 0 ? 0xff : below(256));
    }
    try {
      const gguf_file file = read(damaged);
      try {
        rope::import_gguf(file);
      } catch (const std::exception& error) {
        CHECK(std::string(error.what()).find("rope::") == 0);
      }
    } catch (const std::runtime_error&) {
      ++rejected;
    }
  }
  CHECK(rejected > 2000);
}

TEST_CASE("files that are not little-endian GGUF of version 2 or 3, with factors of float, throw by name",
          "[models]") {
  const auto error_of = [](const std::string& bytes) {
    try {
      read(bytes);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(error_of("") == "is not a GGUF file");
  CHECK(error_of("{\"model_type\": \"llama\"}") == "is not a GGUF file");
  CHECK(error_of(std::string("GGUF\x01\0\0\0", 8)).find("version 2 or 3, got version 1") !=
        std::string::npos);
  CHECK(error_of(std::string("GGUF\0\0\0\x03", 8)).find("got version 50331648") != std::string::npos);
  CHECK(error_of(llama({1.0f, 2.0f}, 32, 1)) ==
        "has rope_freqs.weight of type 1, but it must be F32, type 0");
  CHECK(error_of(llama({})) == "has rope_freqs.weight without 1 to 65536 elements");
  // One entry whose key claims 2^21 characters and has 4.
  const std::string head(
      "GGUF\x03\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\x01\0\0\0\0\0\0\0"
      "\0\0\x20\0\0\0\0\0",
      32);
  CHECK(error_of(head + "name") == "ends before its metadata do");
  CHECK(error_of(head + std::string(std::size_t{1} << 21, 'a')) == "has a text longer than 1 MiB");
}
