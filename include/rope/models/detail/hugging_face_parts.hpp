// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_PARTS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_PARTS_HPP

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/architectures.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_records.hpp>
#include <rope/models/detail/hugging_face_refused.hpp>
#include <rope/models/detail/json_reader.hpp>

/// A config.json of several parts: which dictionary describes the language model, and which keys of the
/// others speak of positions.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether import_hugging_face knows an architecture, or why it refuses it.
inline bool is_known_architecture(const std::string& name) {
  const std::string plain = plain_architecture(name);
  return hugging_face_record_of(plain) || refused_architecture_of(plain);
}

/// `model_type`, else the first of `architectures`, as written; empty if the dictionary has neither.
template <class J>
std::string name_of_part(json_reader<J>& part) {
  if (const auto model_type = part.text("model_type")) return *model_type;
  const auto names = part.texts("architectures");
  return names && !names->empty() ? names->front() : std::string();
}

/// The class that the text_config of some models of several parts has without a model_type; else empty.
///
/// Source: Hugging Face transformers, models/*/configuration_*.py of these models
inline std::string default_text_architecture(const std::string& outer) {
  constexpr std::string_view of_llama = " janus llava llavanext perceptionlm vipllava ";
  return is_listed(of_llama, plain_architecture(outer)) ? "llama" : "";
}

/// The dictionaries from the whole file to its language model, each in the one before it.
template <class J>
class parts_of_config {
 public:
  explicit parts_of_config(const J& config) : whole_(&config) {
    chain_.emplace_back(&config, "");
    descend(config);
    for (std::size_t i = 0; i + 1 < chain_.size(); ++i) chain_[i].find(keys_[i].c_str());
  }

  json_reader<J> text() const { return chain_.back(); }
  /// The dictionaries around the text, the whole file first, and the key of each that leads to the next one.
  std::vector<json_reader<J>> outer() const { return {chain_.begin(), chain_.end() - 1}; }
  const std::vector<std::string>& keys() const { return keys_; }

  /// Whether the file has neither a text model of a known architecture nor sizes of its own.
  bool is_bare() { return chain_.size() == 1 && !has_sizes(chain_.front()); }

  /// Which dictionaries of the file could be read by themselves, to end an error that none was; or nothing.
  std::string hint() const {
    std::string known, others;
    for (const auto& item : whole_->items()) {
      const std::string key = item.key();
      if (!item.value().is_object() || contains(keys_, key)) continue;
      const J* name = json_reader<J>(&item.value(), "").find("model_type");
      if (!name || !name->is_string()) continue;
      const auto architecture = name->template get<std::string>();
      if (is_known_architecture(architecture))
        known += "; " + key + " is of the known architecture " + architecture + "; pass that dictionary";
      others += (others.empty() ? "" : ", ") + key;
    }
    if (!known.empty() || others.empty()) return known;
    return "; to read one of its parts, pass that dictionary: " + others;
  }

 private:
  /// Keys under which a model describes its language model. The first is descended into whatever it has.
  static constexpr const char* text_keys[] = {"text_config",     "thinker_config", "llm_config",
                                              "language_config", "language_model", "decoder"};

  static constexpr std::size_t deepest = 16;  // dictionaries in one another

  static const J* part_of(const J& config, const char* key) {
    const std::string name = key;
    if (!config.contains(name) || !config.at(name).is_object()) return nullptr;
    return &config.at(name);
  }

  /// Whether a dictionary has sizes of its own, so that it describes a model and not only its parts.
  static bool has_sizes(json_reader<J>& part) {
    for (const char* key :
         {"hidden_size", "n_embd", "d_model", "head_dim", "num_attention_heads", "num_hidden_layers"})
      if (part.has(key)) return true;
    return false;
  }

  void push(const char* key, const J& part) {
    keys_.push_back(key);
    chain_.emplace_back(&part, chain_.back().path() + key + ".");
  }

  /// Descends from the last dictionary of the chain to one of a known architecture.
  ///
  /// \return  whether there is one; without it the chain is as before, but for text_config
  bool descend(const J& config) {
    if (chain_.size() > deepest) return false;
    json_reader<J> own(&config, chain_.back().path());
    own.object("text_config");  // throws if it is no dictionary
    if (const J* text = part_of(config, "text_config")) {
      push("text_config", *text);
      return descend(*text) || is_known_architecture(name_of_part(own));
    }
    const bool known = is_known_architecture(name_of_part(own));
    if (known && has_sizes(own)) return true;
    for (const char* key : text_keys) {
      const J* part = part_of(config, key);
      if (!part) continue;
      const auto length = chain_.size();
      push(key, *part);
      if (descend(*part)) return true;
      chain_.erase(chain_.begin() + static_cast<std::ptrdiff_t>(length), chain_.end());
      keys_.resize(length - 1);
    }
    return known;
  }

  const J* whole_;
  std::vector<json_reader<J>> chain_ = {};
  std::vector<std::string> keys_ = {};
};

/// Adds the keys that speak of positions in a dictionary, and in those inside it, each with the path in
/// front. What is inside a key that speaks is not searched, nor what lies deeper than any model file has it.
///
/// \param speaks  which keys do
template <class J, class Speaks>
void add_inner_keys(const J& value, const std::string& path, const Speaks& speaks,
                    std::vector<std::string>& keys, int deepest = 32) {
  if (deepest == 0 || (!value.is_array() && !value.is_object())) return;
  if (value.is_array()) {
    for (const J& element : value) add_inner_keys(element, path, speaks, keys, deepest - 1);
    return;
  }
  for (const auto& item : value.items()) {
    const std::string key = item.key();
    if (item.value().is_null()) continue;
    if (speaks(key))
      keys.push_back(path + key);
    else
      add_inner_keys(item.value(), path + key + ".", speaks, keys, deepest - 1);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_PARTS_HPP
