// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_READER_HPP
#define ROPE_MODELS_DETAIL_GGUF_READER_HPP

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/number_rule.hpp>

/// Checked access to the metadata of a GGUF file, whose keys start with the name of the architecture. Every
/// error names the key.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class L>
class gguf_reader {
 public:
  explicit gguf_reader(const L& lookup)
      : lookup_(lookup),
        architecture_(required(lookup.text("general.architecture"), "general.architecture")) {}

  const std::string& architecture() const { return architecture_; }
  std::string key(const std::string& name) const { return architecture_ + "." + name; }

  std::optional<double> number(const std::string& name, const number_rule& rule) const {
    const std::string full = key(name);
    const std::optional<double> value = lookup_.number(full);
    if (value) return checked(*value, rule, "import_gguf", full);
    if (lookup_.text(full)) refuse(full, "must be a number");
    return {};
  }
  double required_number(const std::string& name, const number_rule& rule) const {
    return required(number(name, rule), key(name));
  }

  std::optional<std::vector<double>> numbers(const std::string& name, const number_rule& rule) const {
    return list(key(name), rule);
  }
  /// The numbers of a tensor. Its name is not preceded by the architecture, as those of keys are.
  std::optional<std::vector<double>> tensor(const std::string& name) const {
    return list(name, range::positive);
  }

  /// Whether the file has a tensor of that name, as far as the caller's lookup reads tensors.
  bool has_tensor(const std::string& name) const { return lookup_.numbers(name).has_value(); }

  std::string text(const std::string& name, const char* otherwise) const {
    return lookup_.text(key(name)).value_or(otherwise);
  }

  /// A number for the whole model, or the first above 0 of one number per layer; 0 if there is neither.
  Index heads(const std::string& name) const {
    if (const auto one = number(name, range::whole)) return static_cast<Index>(*one);
    const auto per_layer = numbers(name, range::whole);
    if (per_layer)
      for (const double count : *per_layer)
        if (count > 0) return static_cast<Index>(count);
    return 0;
  }

  /// Refuses a value of the file.
  ///
  /// \param rule  that the value breaks, and the value
  ///
  /// Throws:  std::invalid_argument, whose message is the key and the rule
  static void refuse(const std::string& key, const std::string& rule) {
    ROPE_THROW(std::invalid_argument, message("import_gguf: ", key.c_str(), " ", rule.c_str()));
  }
  template <class T>
  static T required(std::optional<T> value, const std::string& key) {
    if (!value) refuse(key, "is missing");
    return *std::move(value);
  }

 private:
  std::optional<std::vector<double>> list(const std::string& full, const number_rule& rule) const {
    std::optional<std::vector<double>> values = lookup_.numbers(full);
    if (values)
      for (const double value : *values) checked(value, rule, "import_gguf", full);
    return values;
  }

  const L& lookup_;
  std::string architecture_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_READER_HPP
