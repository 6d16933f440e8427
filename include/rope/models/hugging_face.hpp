// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_HUGGING_FACE_HPP
#define ROPE_MODELS_HUGGING_FACE_HPP

#include <concepts>  // std::convertible_to
#include <string>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_importer.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// The rotary embedding of a model, from its Hugging Face config.json:
///
///     const model_rope model = import_hugging_face(nlohmann::json::parse(file));
///     const frequency_table table(model.groups()[0].frequencies, 8192);

namespace rope::inline ROPE_ABI {

/// A JSON value with the member functions of nlohmann::json, which this library does not include.
template <class J>
concept json_like = requires(const J& json, const std::string& key) {
  { json.is_object() } -> std::convertible_to<bool>;
  { json.is_array() } -> std::convertible_to<bool>;
  { json.is_number() } -> std::convertible_to<bool>;
  { json.is_string() } -> std::convertible_to<bool>;
  { json.is_boolean() } -> std::convertible_to<bool>;
  { json.is_null() } -> std::convertible_to<bool>;
  { json.contains(key) } -> std::convertible_to<bool>;
  { json.at(key) } -> std::convertible_to<const J&>;
  { *json.begin() } -> std::convertible_to<const J&>;  // of an array
  json.end();
  json.items();  // of a dictionary: a range of entries with key() and value()
  json.template get<double>();
  json.template get<bool>();
  json.template get<std::string>();
};

/// Information that a config.json lacks. The frequencies of `dynamic`, `longrope` and use_dynamic_ntk (Qwen)
/// depend on its length.
///
///     const model_rope model = import_hugging_face(json, {.length = 32768});
using hugging_face_options = import_options;

/// Reads the rotary embedding of a model from its config.json. The file has either `rope_scaling` next to
/// `rope_theta`, or `rope_parameters`, which may have one dictionary per layer type. From a file with several
/// parts it reads the language model: `text_config`, `thinker_config`, `llm_config`, `language_config`,
/// `language_model` or `decoder`, which may be nested.
///
/// The layout is that of the weights that Hugging Face distributes for the architecture. An absent key has
/// the default of the configuration class of transformers. Warnings name the defaults that differ between
/// classes, and every key about positions, windows or scales that has no effect, anywhere in the file.
///
/// A file may have up to 16384 layers, and up to 1024 groups of layers with 32768 pairs together.
///
/// \param config   the file, as a JSON value that the caller has parsed
/// \param options  information that the file lacks
///
/// Throws:  std::invalid_argument, whose message names the key, if a required key is missing, a value has the
///          wrong type or is out of range, the rope type or the layout of the architecture is not known, or
///          no layer rotates and options.without_rope does not request the description of such a model. If
///          valid values do not fit together, the message may be that of the rule, such as yarn_scaling
/// Source:  Hugging Face transformers, modeling_rope_utils.py
template <class J>
model_rope import_hugging_face(const J& config, const hugging_face_options& options = {}) {
  static_assert(json_like<J>,
                "import_hugging_face: config is a parsed file, not its path or text: "
                "import_hugging_face(nlohmann::json::parse(std::ifstream(path)))");
  if constexpr (json_like<J>) {
    if (!config.is_object())
      detail::throw_invalid(
          "import_hugging_face", "config must be a dictionary, got ", detail::type_of(config),
          config.is_string() ? ": parse the file, nlohmann::json::parse(std::ifstream(path))" : "");
    detail::checked(options.length, detail::range::not_negative, "import_hugging_face", "options.length");
    return detail::hugging_face_importer<J>(config, options).result();
  }
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_HUGGING_FACE_HPP
