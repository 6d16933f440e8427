// SPDX-License-Identifier: MIT
// For tokenizers too large for this repository, the ids of nine texts (spaces, contractions, digits, scripts,
// emoji, added tokens) were compared with those of @lenml/tokenizers 3.7.2 for Llama 3 and Qwen 2.5 on
// 2026-11-22.
#include "../../examples/byte_level_bpe.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using nlohmann::json;
using ids = std::vector<int>;

constexpr const char* llama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json split(const char* pattern) {
  return {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

/// Letters and digits are unchanged: "a" is 97. Space is U+0120, 32. Newline is U+010A, 10. The bytes of an e
/// with acute are U+00C3 and U+00A9.
json small(const json& pre_tokenizer) {
  json vocab;
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = c;
  for (char c = '0'; c <= '9'; ++c) vocab[std::string(1, c)] = c;
  for (const char c : {'\'', '!', '<', '|', '>'}) vocab[std::string(1, c)] = c;
  vocab["\xc4\xa0"] = 32;
  vocab["\xc4\x8a"] = 10;
  vocab["\xc3\x83"] = 0xc3;
  vocab["\xc2\xa9"] = 0xa9;
  const json merges = {"a b", "b a", "\xc4\xa0 a", "ab a", "1 2", "12 3", "' s"};
  int next = 300;
  for (const std::string& merge : merges.get<std::vector<std::string>>()) {
    const auto space = merge.find(' ');
    vocab[merge.substr(0, space) + merge.substr(space + 1)] = next++;
  }
  vocab["whole"] = 400;
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
          {"pre_tokenizer", pre_tokenizer},
          {"added_tokens", {{{"id", 500}, {"content", "<|end|>"}}, {{"id", 501}, {"content", "<|end|>!"}}}}};
}

const json gpt2 = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};

}  // namespace

TEST_CASE("neighbours are merged in the learned order", "[examples][byte_level_bpe]") {
  const byte_level_bpe tokenizer(small(gpt2));
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.encode("aba") == ids{303});      // a b first, then ab a
  CHECK(tokenizer.encode("bab") == ids{98, 300});  // a b before b a
  CHECK(tokenizer.encode("ba") == ids{301});
  CHECK(tokenizer.encode("x aba") == ids{120, 32, 303});   // a b was learned before the space and a
  CHECK(tokenizer.encode("\xc3\xa9") == ids{0xc3, 0xa9});  // bytes of one character
  CHECK(tokenizer.encode("whole") == ids{119, 104, 111, 108, 101});
  json file = small(gpt2);
  file["model"]["ignore_merges"] = true;
  CHECK(byte_level_bpe(file).encode("whole") == ids{400});
  file["model"]["merges"][0] = {"a", "b"};  // newer files
  CHECK(byte_level_bpe(file).encode("bab") == ids{98, 300});
}

TEST_CASE("patterns cut a text before its bytes are merged", "[examples][byte_level_bpe]") {
  CHECK(byte_level_bpe(small(gpt2)).encode("1234") == ids{305, 52});
  CHECK(byte_level_bpe(small(split(llama3))).encode("1234") == ids{305, 52});      // 123, 4
  CHECK(byte_level_bpe(small(split(llama3))).encode("0123") == ids{48, 304, 51});  // 012, 3
  CHECK(byte_level_bpe(small(split(qwen2))).encode("1234") == ids{49, 50, 51, 52});
  CHECK(byte_level_bpe(small(gpt2)).encode("a  a") == ids{97, 32, 302});  // the last space goes with the word
  CHECK(byte_level_bpe(small(split(llama3))).encode("a's") == ids{97, 306});
  CHECK(byte_level_bpe(small(split(llama3))).encode("a \n a") == ids{97, 32, 10, 302});
}

TEST_CASE("a text without a pattern is one word", "[examples][byte_level_bpe]") {
  json file = small({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  file["model"]["vocab"]["1a"] = 307;
  file["model"]["merges"].push_back("1 a");
  CHECK(byte_level_bpe(file).encode("1a\n1a") == ids{307, 10, 307});
  file["pre_tokenizer"] = gpt2;
  CHECK(byte_level_bpe(file).encode("1a") == ids{49, 97});
}

TEST_CASE("added tokens are found in a text, the longest first", "[examples][byte_level_bpe]") {
  const byte_level_bpe tokenizer(small(gpt2));
  CHECK(tokenizer.encode("a<|end|>ba") == ids{97, 500, 301});
  CHECK(tokenizer.encode("<|end|>!<|end|>") == ids{501, 500});
  CHECK(tokenizer.encode("<|en") == ids{60, 124, 101, 110});
  json file = small(gpt2);
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|end|>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<|end|>", {{"id", "<|end|>"}, {"ids", {500}}}}}}};
  CHECK(byte_level_bpe(file).encode("a") == ids{500, 97});
}

TEST_CASE("tokens give their bytes back", "[examples][byte_level_bpe]") {
  const byte_level_bpe tokenizer(small(gpt2));
  for (const std::string text : {"aba ba 123\nx's", "\xc3\xa9", "a<|end|>b"}) {
    std::string back;
    for (const int id : tokenizer.encode(text)) back += tokenizer.decode(id);
    CHECK(back == text);
  }
  CHECK(tokenizer.decode(12345).empty());
}

TEST_CASE("an almost correct tokenizer throws", "[examples][byte_level_bpe]") {
  const auto rejects = [](const json& file, const std::string& what) {
    return testing::throws_saying<std::runtime_error>([&] { byte_level_bpe{file}; }, "does not know", what);
  };
  json file = small(gpt2);
  file["model"]["byte_fallback"] = true;
  CHECK(rejects(file, "byte_fallback"));
  file = small(gpt2);
  file["model"]["type"] = "Unigram";
  CHECK(rejects(file, "Unigram"));
  file = small(gpt2);
  file["normalizer"] = {{"type", "Lowercase"}};
  CHECK(rejects(file, "Lowercase"));
  file = small(gpt2);
  file["added_tokens"][0]["content"] = "";
  CHECK(rejects(file, "without content"));
  CHECK(rejects(small(split(R"(\w+)")), R"(\w+)"));
  CHECK(rejects(small({{"type", "Metaspace"}}), "Metaspace"));
  CHECK(testing::throws_saying<std::runtime_error>([] { byte_level_bpe(small(gpt2)).encode("\xff"); },
                                                   "UTF-8"));
  CHECK(testing::throws_saying<std::runtime_error>([] { byte_level_bpe(small(gpt2)).encode("A"); },
                                                   "no token"));
}
