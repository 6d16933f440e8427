// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_TINY_PIECES_HPP
#define ROPE_TESTS_TINY_PIECES_HPP

/// A tokenizer.model with a few pieces, as SentencePiece writes it: a protocol buffer,
/// sentencepiece_model.proto.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace testing {

/// Byte pairs with byte fallback, as in Llama 2: <unk>, <s>, </s>, the bytes <0x00> to <0xFF>, the results of
/// merges in their order, and letters.
class tiny_pieces {
 public:
  tiny_pieces() {
    add("<unk>", unknown);
    add("<s>", control);
    add("</s>", control);
    for (unsigned value = 0; value < 256; ++value) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", value);
      add(name, byte);
    }
    const std::string space = "\u2581";
    for (const char* merged : {"he", "_t", "_the", "_d", "og", "_dog"})
      add(merged[0] == '_' ? space + (merged + 1) : merged, normal);
    add(space, normal);
    for (char letter = 'a'; letter <= 'z'; ++letter) add(std::string(1, letter), normal);
    // Words that no merge produces: never read, but written.
    for (char first = 'a'; first <= 'z'; ++first)
      for (const char second : std::string("aeiou"))
        add(space + std::string(1, first) + second + first, normal);
  }

  std::size_t count() const { return count_; }

  std::string model() const {
    const std::string trainer = number(3, 2) /* byte pairs */ + number(35, 1) /* byte_fallback */ +
                                number(40, 0) + number(41, 1) +
                                number(42, 2);  // the ids of <unk>, <s> and </s>
    return pieces_ + field(2, trainer) + field(3, field(1, "identity"));
  }

 private:
  enum kind : std::uint64_t { normal = 1, unknown = 2, control = 3, byte = 6 };

  void add(const std::string& piece, kind of_piece) {
    const float score = -static_cast<float>(count_++);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &score, sizeof bits);
    std::string text = field(1, piece) + varint(2 << 3 | 5);
    for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(bits >> shift & 0xff);
    pieces_ += field(1, text + number(3, of_piece));
  }

  static std::string varint(std::uint64_t value) {
    std::string bytes;
    for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
    return bytes + static_cast<char>(value);
  }
  static std::string number(std::uint64_t field, std::uint64_t value) {
    return varint(field << 3) + varint(value);
  }
  static std::string field(std::uint64_t field, const std::string& bytes) {
    return varint(field << 3 | 2) + varint(bytes.size()) + bytes;
  }

  std::string pieces_;
  std::size_t count_ = 0;
};

}  // namespace testing

#endif  // ROPE_TESTS_TINY_PIECES_HPP
