// Converts text to token ids and back with a tokenizer.json of byte-level byte pair encoding, as in GPT-2,
// Llama 3, Qwen, SmolLM and OLMo.
//
//     const byte_level_bpe tokenizer(nlohmann::json::parse(file));
//     const std::vector<int> ids = tokenizer.encode("Once upon a time");
//     for (const int id : ids) std::cout << tokenizer.decode(id);
//
// Source: GPT-2, encoder.py; Hugging Face tokenizers, ByteLevel and BPE

#ifndef ROPE_EXAMPLES_BYTE_LEVEL_BPE_HPP
#define ROPE_EXAMPLES_BYTE_LEVEL_BPE_HPP

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

class byte_level_bpe {
 public:
  /// Throws:  std::runtime_error that names an unsupported part of the file: an almost correct tokenizer
  ///          would give other ids than in training
  explicit byte_level_bpe(const nlohmann::json& file) {
    const auto& model = file.at("model");
    demand(model.value("type", "BPE") == "BPE", "model type " + model.value("type", ""));
    demand(!model.contains("byte_fallback") || !model.at("byte_fallback").get<bool>(), "byte_fallback");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      demand(!model.contains(key) || model.at(key).is_null() || model.at(key) == "", key);
    takes_whole_words_ = model.value("ignore_merges", false);
    if (file.contains("normalizer") &&
        !file["normalizer"].is_null())  // NFC: the text is taken to be so already
      demand(file["normalizer"].value("type", "") == "NFC", "normalizer " + file["normalizer"].dump());
    read_pattern(file.at("pre_tokenizer"));
    for (const auto& entry : model.at("vocab").items()) add(entry.key(), entry.value().get<int>());
    for (const auto& merge : model.at("merges")) {
      std::pair<std::string, std::string> pair;
      if (merge.is_array()) {
        pair = {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
      } else {
        const auto text = merge.get<std::string>();
        const auto space = text.find(' ');
        demand(space != std::string::npos, "a merge without a space");
        pair = {text.substr(0, space), text.substr(space + 1)};
      }
      ranks_.emplace(std::move(pair), static_cast<int>(ranks_.size()));
    }
    if (file.contains("added_tokens"))
      for (const auto& token : file["added_tokens"]) {
        const auto text = token.at("content").get<std::string>();
        demand(!text.empty(), "an added token without content");
        added_[text] = token.at("id").get<int>();
        texts_[token.at("id").get<int>()] = text;
      }
    if (file.contains("post_processor")) read_prefix(file["post_processor"]);
  }

  /// The ids of the text, after those that begin every text of this tokenizer. Added tokens, such as
  /// <|endoftext|>, are recognised anywhere.
  std::vector<int> encode(std::string_view text) const {
    std::vector<int> ids = prefix_;
    while (!text.empty()) {
      std::size_t at = text.size(), length = 0;
      int id = 0;
      for (const auto& [added, added_id] : added_) {
        const auto found = text.find(added);
        if (found > at || (found == at && added.size() <= length) || found == std::string_view::npos)
          continue;
        at = found, length = added.size(), id = added_id;
      }
      encode_plain(text.substr(0, at), ids);
      if (length > 0) ids.push_back(id);
      text.remove_prefix(at + length);
    }
    return ids;
  }

  /// The bytes of a token. A character may extend over several tokens.
  std::string decode(int id) const {
    const auto at = texts_.find(id);
    return at == texts_.end() ? std::string() : at->second;
  }

 private:
  static void demand(bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error("tokenizer.json: this tokenizer does not know " + what);
  }

  /// The character for a byte: the byte itself if it is printed, otherwise the next one from U+0100 on.
  static std::string character(unsigned byte) {
    const auto printed = [](unsigned b) {
      return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    };
    unsigned point = byte;
    if (!printed(byte)) {
      point = 256;
      for (unsigned b = 0; b < byte; ++b) point += printed(b) ? 0U : 1U;
    }
    if (point < 128) return {static_cast<char>(point)};
    return {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 63))};
  }

  void add(const std::string& symbols, int id) {
    ids_[symbols] = id;
    static const std::map<std::string, char> bytes = [] {
      std::map<std::string, char> all;
      for (unsigned b = 0; b < 256; ++b) all[character(b)] = static_cast<char>(b);
      return all;
    }();
    std::string text;
    for (std::size_t i = 0; i < symbols.size();) {
      const std::size_t length = static_cast<unsigned char>(symbols[i]) < 128 ? 1 : 2;
      const auto at = bytes.find(symbols.substr(i, length));
      if (at == bytes.end()) {  // an added token, which the vocabulary has unchanged
        text = symbols;
        break;
      }
      text += at->second;
      i += length;
    }
    texts_[id] = text;
  }

  /// How text is split before its bytes are merged.
  void read_pattern(const nlohmann::json& pre_tokenizer) {
    constexpr const char* gpt2 =
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    constexpr const char *begin = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
                         *end = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    std::string pattern = "(?s).+";  // the whole text, unless the file has a pattern
    const auto read = [&](const nlohmann::json& part) {
      const auto type = part.value("type", "");
      if (type == "ByteLevel") {
        if (part.value("use_regex", true)) pattern = gpt2;
        begins_with_space_ = part.value("add_prefix_space", true);
      } else {
        demand(type == "Split" && part.value("behavior", "") == "Isolated" && !part.value("invert", false) &&
                   part.at("pattern").contains("Regex"),
               "pre_tokenizer " + part.dump());
        pattern = part.at("pattern").at("Regex").get<std::string>();
        demand(pattern == std::string(begin) + R"(\p{N}{1,3})" + end ||                  // Llama 3
                   pattern == std::string(begin) + R"(\p{N})" + end || pattern == gpt2,  // Qwen 2
               "the pattern " + pattern);
      }
    };
    if (pre_tokenizer.value("type", "") == "Sequence")
      for (const auto& part : pre_tokenizer.at("pretokenizers")) read(part);
    else
      read(pre_tokenizer);
    int error = 0;
    PCRE2_SIZE offset = 0;
    pattern_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr),
                   pcre2_code_free);
    demand(pattern_ != nullptr, "the pattern " + pattern);
  }

  /// The ids before a text, such as <|begin_of_text|>.
  void read_prefix(const nlohmann::json& processor) {
    if (processor.is_null()) return;
    const auto type = processor.value("type", "");
    if (type == "Sequence")
      for (const auto& part : processor.at("processors")) read_prefix(part);
    if (type != "TemplateProcessing") return;
    for (const auto& part : processor.at("single")) {
      if (!part.contains("SpecialToken")) break;
      const auto name = part["SpecialToken"].at("id").get<std::string>();
      for (const auto& id : processor.at("special_tokens").at(name).at("ids"))
        prefix_.push_back(id.get<int>());
    }
  }

  void encode_plain(std::string_view text, std::vector<int>& ids) const {
    if (text.empty()) return;
    std::string spaced;
    if (begins_with_space_ && text.front() != ' ') text = spaced = " " + std::string(text);
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create_from_pattern(pattern_.get(), nullptr), pcre2_match_data_free);
    for (std::size_t from = 0; from < text.size();) {
      const int found = pcre2_match(pattern_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    from, 0, match.get(), nullptr);
      if (found < 0 && found != PCRE2_ERROR_NOMATCH) throw std::runtime_error("the text is not valid UTF-8");
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
      const std::size_t first = found < 0 ? text.size() : bounds[0],
                        last = found < 0 ? text.size() : bounds[1];
      if (first > from) encode_word(text.substr(from, first - from), ids);
      if (last > first) encode_word(text.substr(first, last - first), ids);
      from = last;
    }
  }

  /// Joins the neighbours whose merge was learned first, until no merge fits.
  void encode_word(std::string_view word, std::vector<int>& ids) const {
    std::vector<std::string> symbols;
    std::string whole;
    for (const char byte : word)
      whole += symbols.emplace_back(character(static_cast<unsigned>(static_cast<unsigned char>(byte))));
    if (takes_whole_words_)
      if (const auto at = ids_.find(whole); at != ids_.end()) return ids.push_back(at->second);
    while (symbols.size() > 1) {
      int best = std::numeric_limits<int>::max();
      std::size_t place = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
        if (const auto at = ranks_.find({symbols[i], symbols[i + 1]});
            at != ranks_.end() && at->second < best)
          best = at->second, place = i;
      if (best == std::numeric_limits<int>::max()) break;
      symbols[place] += symbols[place + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
    for (const std::string& symbol : symbols) {
      const auto at = ids_.find(symbol);
      if (at == ids_.end()) throw std::runtime_error("the vocabulary has no token for a byte of the text");
      ids.push_back(at->second);
    }
  }

  bool takes_whole_words_ = false, begins_with_space_ = false;
  std::shared_ptr<pcre2_code> pattern_;
  std::unordered_map<std::string, int> ids_;
  std::map<std::pair<std::string, std::string>, int> ranks_;
  std::map<std::string, int> added_;
  std::unordered_map<int, std::string> texts_;  // bytes of every token
  std::vector<int> prefix_;
};

#endif  // ROPE_EXAMPLES_BYTE_LEVEL_BPE_HPP
