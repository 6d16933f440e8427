// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_FILE_READERS_HPP
#define ROPE_MODELS_DETAIL_FILE_READERS_HPP

#include <cmath>  // std::floor
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/detail/record_fields.hpp>

/// Typed access to the keys of a model file (config.json or GGUF), and the ranges of its numbers.

namespace rope::inline ROPE_ABI::detail {

// The ranges of numbers in model files, and the error for a number outside its range.

/// A condition on a number, as a test and as text. Every number must also be finite.
struct number_rule {
  bool (*holds)(double);
  const char* words;
};

namespace range {

inline constexpr number_rule any_number{[](double) { return true; }, "must be finite"};
inline constexpr number_rule not_negative{[](double x) { return x >= 0; }, "must not be negative"};
inline constexpr number_rule positive{[](double x) { return x > 0; }, "must be positive"};
inline constexpr number_rule above_one{[](double x) { return x > 1; }, "must be greater than 1"};
inline constexpr number_rule zero_or_above_one{[](double x) { return equal(x, 0) || x > 1; },
                                               "must be 0 or greater than 1"};
inline constexpr number_rule fraction{[](double x) { return x > 0 && x <= 1; }, "must be in (0, 1]"};
inline constexpr number_rule zero_or_one{[](double x) { return equal(x, 0) || equal(x, 1); },
                                         "must be 0 or 1"};
/// For numbers of layers, heads and channels. The bound prevents huge allocations for damaged files.
inline constexpr double most = 0x1p20;
inline constexpr number_rule count{[](double x) { return x > 0 && x <= most && equal(std::floor(x), x); },
                                   "must be a positive whole number up to 1048576"};
inline constexpr number_rule whole{[](double x) { return x >= 0 && x <= most && equal(std::floor(x), x); },
                                   "must be a whole number, not negative and up to 1048576"};
/// For the number of tokens of a window. Some files write a large number if there is no window.
inline constexpr number_rule window{[](double x) { return x >= 0 && x <= 0x1p53 && equal(std::floor(x), x); },
                                    "must be a positive whole number up to 2^53, or 0 where no layer slides"};

}  // namespace range

/// Returns the value if it is finite and satisfies the rule. Otherwise throws with the names of the function
/// and of the key.
inline double checked(double value, const number_rule& rule, const char* function, const std::string& key) {
  if (!is_finite(value) || !rule.holds(value)) throw_invalid(function, key, " ", rule.words, ", got ", value);
  return value;
}

/// The type of a JSON value, in words.
template <class J>
const char* type_of(const J& value) {
  return value.is_string()    ? "a string"
         : value.is_boolean() ? "true or false"
         : value.is_array()   ? "a list"
         : value.is_object()  ? "a dictionary"
         : value.is_null()    ? "null"
                              : "a number";
}

/// Typed access to the keys of a JSON dictionary. Every error names the key with its path, and the reader
/// records which keys were read.
template <class J>
class json_reader {
 public:
  /// \param object  the dictionary. nullptr means one without keys
  /// \param path    the prefix of a key in messages: empty, or "rope_scaling."
  json_reader(const J* object, std::string path) : object_(object), path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  /// Treats these keys as absent from now on.
  ///
  /// \param keys  with a space between two of them
  void hide(std::string keys) { hidden_ = std::move(keys); }
  bool hides(std::string_view key) const { return is_listed(hidden_, key); }

  /// The value of a key, or nullptr if the key is absent or its value is null. Both mean the same in most
  /// files. is_null tells them apart, and null has no assumed number.
  const J* find(std::string_view key) {
    if (!hides(key) && !contains(asked_, key)) asked_.emplace_back(key);
    return peek(key);
  }
  /// As above, but does not count as reading the key.
  const J* peek(std::string_view key) const {
    const J* value = given(key);
    return value && !value->is_null() ? value : nullptr;
  }
  /// Whether the key has a value. This does not count as reading a dictionary, whose keys may be unread.
  bool has(std::string_view key) {
    const J* value = peek(key);
    return value && (value->is_object() || find(key));
  }

  /// Sets the value of a key for files without the key: the default of the architecture's class. The first
  /// default of a key holds.
  ///
  /// \param of  the model with this default, if it is not that of the text model's class
  void assume(std::string_view key, double value, const std::string& of = {}) {
    assumed_.push_back({key, value, false, of});
  }
  /// Sets the value of a key that the file has in another dictionary. It replaces the value here.
  void replace(std::string_view key, double value) { replaced_.push_back({key, value, true, {}}); }
  /// Calls with(key, value, of) for each default that was read.
  template <class F>
  void each_assumed(const F& with) const {
    for (const assumption& one : assumed_)
      if (one.read) with(std::string(one.key), one.value, one.of);
  }

  std::optional<double> number(std::string_view key, const number_rule& rule) {
    const J* const value = find(key);
    for (const assumption& one : replaced_)
      if (one.key == key) return one.value;
    if (value) return number_of(*value, key, rule);
    if (hides(key) || is_null(key)) return {};
    for (assumption& one : assumed_)
      if (one.key == key) return one.read = true, one.value;
    return {};
  }
  double required_number(std::string_view key, const number_rule& rule, const std::string& reason) {
    const auto value = number(key, rule);
    if (!value) missing(key, reason);
    return *value;
  }

  std::optional<Index> index(std::string_view key, const number_rule& rule = range::count) {
    const auto value = number(key, rule);
    if (!value) return {};
    return static_cast<Index>(*value);
  }

  /// The value of the first of these keys that exists.
  std::optional<Index> index_of(std::initializer_list<const char*> keys,
                                const number_rule& rule = range::count) {
    std::optional<Index> first;
    for (std::string_view key : keys)
      if (const auto value = index(key, rule); value && !first) first = value;
    return first;
  }

  std::optional<bool> boolean(std::string_view key) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_boolean()) wrong_type(key, "true or false", *value);
    return value->template get<bool>();
  }

  /// Whether the key exists and is null, for the few keys where null has a meaning.
  bool is_null(std::string_view key) const {
    const J* value = given(key);
    return value && value->is_null();
  }
  bool is_text(std::string_view key) {
    const J* value = peek(key);
    return value && value->is_string() && find(key);
  }
  bool is_list(std::string_view key) {
    const J* value = peek(key);
    return value && value->is_array() && find(key);
  }
  std::optional<std::string> text(std::string_view key) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_string()) wrong_type(key, "a string", *value);
    return value->template get<std::string>();
  }

  std::optional<std::vector<double>> numbers(std::string_view key, const number_rule& rule) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_array()) wrong_type(key, "a list of numbers", *value);
    std::vector<double> list;
    for (const J& element : *value) list.push_back(number_of(element, key, rule));
    return list;
  }
  std::vector<double> required_numbers(std::string_view key, const number_rule& rule,
                                       const std::string& reason) {
    auto list = numbers(key, rule);
    if (!list) missing(key, reason);
    return *std::move(list);
  }

  std::optional<std::vector<std::string>> texts(std::string_view key) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_array()) wrong_type(key, "a list of strings", *value);
    std::vector<std::string> list;
    for (const J& element : *value) {
      if (!element.is_string()) wrong_type(key, "a list of strings", element);
      list.push_back(element.template get<std::string>());
    }
    return list;
  }

  const J* object(std::string_view key) {
    const J* value = find(key);
    if (value && !value->is_object()) wrong_type(key, "a dictionary", *value);
    return value;
  }

  /// Calls with(key, value) for each key that exists, is not null and was never read.
  template <class F>
  void each_unasked(const F& with) const {
    if (!object_) return;
    for (const auto& item : object_->items())
      if (!item.value().is_null() && !contains(asked_, item.key())) with(item.key(), item.value());
  }
  std::vector<std::string> unasked() const {
    std::vector<std::string> keys;
    each_unasked([&](const std::string& key, const J&) { keys.push_back(key); });
    return keys;
  }

  /// \param rule  the broken rule and the value, as texts and numbers
  ///
  /// Throws:  std::invalid_argument. The message has the key with its path, then the rule
  template <class... Parts>
  [[noreturn]] void refuse(std::string_view key, const Parts&... rule) const {
    throw_invalid("import_hugging_face", path_, std::string(key), " ", rule...);
  }
  template <class... Parts>
  [[noreturn]] void missing(std::string_view key, const Parts&... reason) const {
    refuse(key, "is missing; ", reason...);
  }

 private:
  /// The value of a key, which may be null, or nullptr if the key is absent.
  const J* given(std::string_view key) const {
    const std::string name(key);
    return object_ && !hides(key) && object_->contains(name) ? &object_->at(name) : nullptr;
  }

  double number_of(const J& value, std::string_view key, const number_rule& rule) const {
    if (!value.is_number()) wrong_type(key, "a number", value);
    return checked(value.template get<double>(), rule, "import_hugging_face", path_ + std::string(key));
  }

  [[noreturn]] void wrong_type(std::string_view key, const char* wanted, const J& got) const {
    refuse(key, "must be ", wanted, ", got ", type_of(got));
  }

  struct assumption {
    std::string_view key;
    double value;
    bool read;
    std::string of;
  };

  const J* object_;
  std::string path_;
  std::vector<assumption> assumed_ = {}, replaced_ = {};
  std::vector<std::string> asked_;
  std::string hidden_;
};

/// Adds the keys about positions in a dictionary and in those inside it, each with its path. Does not search
/// inside a key that was added, or below `deepest` levels.
///
/// \param speaks  whether a key is about positions
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

/// Checked access to the metadata of a GGUF file, whose keys start with the name of the architecture. Every
/// error names the key.
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
    check_absent(full, "a number");
    return {};
  }
  double required_number(const std::string& name, const number_rule& rule) const {
    return required(number(name, rule), key(name));
  }

  std::optional<Index> index(const std::string& name, const number_rule& rule = range::count) const {
    const auto value = number(name, rule);
    if (!value) return {};
    return static_cast<Index>(*value);
  }

  std::optional<std::vector<double>> numbers(const std::string& name, const number_rule& rule) const {
    return list(key(name), rule);
  }
  /// A list of `count` numbers, or one number that stands for all of them.
  ///
  /// Source:  llama.cpp, get_key_or_arr in llama-model-loader.cpp
  std::optional<std::vector<double>> numbers_or_one(const std::string& name, const number_rule& rule,
                                                    Index count) const {
    if (count > 0 && lookup_.number(key(name)))
      if (const auto one = number(name, rule))
        return std::vector<double>(static_cast<std::size_t>(count), *one);
    return numbers(name, rule);
  }
  /// The list at a key that has a number or a list. Nothing if it has a number or does not exist.
  std::optional<std::vector<double>> numbers_if_list(const std::string& name, const number_rule& rule) const {
    return is_list(name) ? numbers(name, rule) : std::nullopt;
  }
  /// The numbers of a tensor. Names of tensors, unlike names of keys, have no prefix of the architecture.
  std::optional<std::vector<double>> tensor(const std::string& name) const {
    return list(name, range::positive);
  }

  /// Whether the file has a number or a list at the key.
  bool has(const std::string& name) const { return lookup_.number(key(name)) || is_list(name); }
  bool is_list(const std::string& name) const { return lookup_.numbers(key(name)).has_value(); }

  /// Whether the file has a tensor of that name, if the caller's lookup reads tensors.
  bool has_tensor(const std::string& name) const { return lookup_.numbers(name).has_value(); }

  std::string text(const std::string& name, const char* otherwise) const {
    const std::optional<std::string> text = lookup_.text(key(name));
    if (!text) check_absent(key(name), "a text");
    return text.value_or(otherwise);
  }

  /// The number of heads in a key: one number for the whole model, or the first positive number of a list
  /// with a value per layer. 0 if there is no such number.
  Index heads(const std::string& name) const {
    const auto per_layer = numbers_if_list(name, range::whole);
    if (!per_layer) return index(name, range::whole).value_or(0);
    for (const double count : *per_layer)
      if (count > 0) return static_cast<Index>(count);
    return 0;
  }

  /// Rejects a value of the file.
  ///
  /// \param rule  the broken rule and the value, as texts and numbers
  ///
  /// Throws:  std::invalid_argument. The message has the key and the rule
  template <class... Parts>
  [[noreturn]] static void refuse(const std::string& key, const Parts&... rule) {
    throw_invalid("import_gguf", key, " ", rule...);
  }
  template <class T>
  static T required(std::optional<T> value, const std::string& key) {
    if (!value) refuse(key, "is missing");
    return *std::move(value);
  }

 private:
  /// Throws if the key, which has no value of the wanted type, has another value.
  void check_absent(const std::string& full, const char* wanted) const {
    if (const auto text = lookup_.text(full)) refuse(full, "must be ", wanted, ", got the text ", *text);
    if (lookup_.number(full) || lookup_.numbers(full))
      refuse(full, "must be ", wanted, lookup_.number(full) ? ", got a number" : ", got a list");
  }

  std::optional<std::vector<double>> list(const std::string& full, const number_rule& rule) const {
    std::optional<std::vector<double>> values = lookup_.numbers(full);
    if (!values) check_absent(full, "a list of numbers");
    if (values)
      for (const double value : *values) checked(value, rule, "import_gguf", full);
    return values;
  }

  const L& lookup_;
  std::string architecture_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_FILE_READERS_HPP
