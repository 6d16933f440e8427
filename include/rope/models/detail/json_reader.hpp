// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_JSON_READER_HPP
#define ROPE_MODELS_DETAIL_JSON_READER_HPP

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/number_rule.hpp>

/// Typed access to the keys of a JSON dictionary. Every error names the key with its path, and the reader
/// knows which keys nobody asked for.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class J>
class json_reader {
 public:
  /// \param object  the dictionary; nullptr is one without keys
  /// \param path    what comes before a key in messages: empty, or "rope_scaling."
  json_reader(const J* object, std::string path) : object_(object), path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  /// Reads these keys as if they were not there.
  void hide(std::vector<std::string> keys) { hidden_ = std::move(keys); }
  bool hides(const std::string& key) const { return contains(hidden_, key); }

  /// The value of a key; nullptr if it is absent or null, which mean the same in these files.
  const J* find(const char* key) {
    if (hides(key)) return nullptr;
    if (!contains(asked_, key)) asked_.emplace_back(key);
    const std::string name = key;
    if (!object_ || !object_->contains(name)) return nullptr;
    const J& value = object_->at(name);
    return value.is_null() ? nullptr : &value;
  }
  bool has(const char* key) { return find(key) != nullptr; }

  /// Numbers that the class of the architecture has for keys that a file leaves out.
  void assume(const char* key, double value) { assumed_.push_back({key, value, false}); }
  /// Calls with(key, value) for each of them that was read.
  template <class F>
  void each_assumed(const F& with) const {
    for (const assumption& one : assumed_)
      if (one.read) with(std::string(one.key), one.value);
  }

  std::optional<double> number(const char* key, const number_rule& rule) {
    if (const J* value = find(key)) return number_of(*value, key, rule);
    if (hides(key) || is_null(key)) return {};
    for (assumption& one : assumed_)
      if (one.key == std::string_view(key)) return one.read = true, one.value;
    return {};
  }
  double required_number(const char* key, const number_rule& rule, const std::string& reason) {
    const auto value = number(key, rule);
    if (!value) missing(key, reason);
    return *value;
  }

  std::optional<Index> index(const char* key, const number_rule& rule = range::count) {
    const auto value = number(key, rule);
    if (!value) return {};
    return static_cast<Index>(*value);
  }

  /// The first of several names of one number.
  std::optional<Index> index_of(std::initializer_list<const char*> keys,
                                const number_rule& rule = range::count) {
    std::optional<Index> first;
    for (const char* key : keys)
      if (const auto value = index(key, rule); value && !first) first = value;
    return first;
  }

  std::optional<bool> boolean(const char* key) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_boolean()) wrong_type(key, "true or false", *value);
    return value->template get<bool>();
  }

  /// Whether the key is there and null, for the few keys where that is a choice.
  bool is_null(const char* key) const {
    const std::string name = key;
    return object_ && !hides(name) && object_->contains(name) && object_->at(name).is_null();
  }
  bool is_text(const char* key) {
    const J* value = find(key);
    return value && value->is_string();
  }
  bool is_list(const char* key) {
    const J* value = find(key);
    return value && value->is_array();
  }
  std::optional<std::string> text(const char* key) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_string()) wrong_type(key, "a string", *value);
    return value->template get<std::string>();
  }

  std::optional<std::vector<double>> numbers(const char* key, const number_rule& rule) {
    const J* value = find(key);
    if (!value) return {};
    if (!value->is_array()) wrong_type(key, "a list of numbers", *value);
    std::vector<double> list;
    for (const J& element : *value) list.push_back(number_of(element, key, rule));
    return list;
  }
  std::vector<double> required_numbers(const char* key, const number_rule& rule, const std::string& reason) {
    auto list = numbers(key, rule);
    if (!list) missing(key, reason);
    return *std::move(list);
  }

  std::optional<std::vector<std::string>> texts(const char* key) {
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

  const J* object(const char* key) {
    const J* value = find(key);
    if (value && !value->is_object()) wrong_type(key, "a dictionary", *value);
    return value;
  }

  /// Calls with(key, value) for each key that is there and was never asked for, null ones left out.
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

  /// Throws:  std::invalid_argument, whose message is the key with its path and the rule that its value
  ///          breaks, with the value
  void refuse(const char* key, const std::string& rule) const {
    ROPE_THROW(std::invalid_argument,
               message("import_hugging_face: ", path_.c_str(), key, " ", rule.c_str()));
  }
  void missing(const char* key, const std::string& reason) const { refuse(key, "is missing; " + reason); }

 private:
  double number_of(const J& value, const char* key, const number_rule& rule) const {
    if (!value.is_number()) wrong_type(key, "a number", value);
    return checked(value.template get<double>(), rule, "import_hugging_face", path_ + key);
  }

  void wrong_type(const char* key, const char* wanted, const J& got) const {
    const char* type = got.is_string()    ? "a string"
                       : got.is_boolean() ? "true or false"
                       : got.is_array()   ? "a list"
                       : got.is_object()  ? "a dictionary"
                       : got.is_null()    ? "null"
                                          : "a number";
    refuse(key, std::string("must be ") + wanted + ", got " + type);
  }

  struct assumption {
    const char* key;
    double value;
    bool read;
  };

  const J* object_;
  std::string path_;
  std::vector<assumption> assumed_ = {};
  std::vector<std::string> asked_, hidden_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_JSON_READER_HPP
