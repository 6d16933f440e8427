// SPDX-License-Identifier: MIT
#ifndef ROPE_IMPORT_GGUF_HPP
#define ROPE_IMPORT_GGUF_HPP

#include <cmath>
#include <concepts>  // std::convertible_to
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/config.hpp>
#include <rope/detail/architectures.hpp>
#include <rope/detail/derive.hpp>
#include <rope/detail/ggml_scaling.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/number_rule.hpp>
#include <rope/frequencies.hpp>
#include <rope/model_rope.hpp>
#include <rope/scaling.hpp>
#include <rope/scaling_variants.hpp>

/// The rotary embedding of a model, from the metadata of its GGUF file and with the meaning llama.cpp gives
/// to it.

namespace rope {
inline namespace ROPE_ABI {

/// Access to a GGUF file, however the caller reads it; each member returns nothing for a key that is absent
/// or of another type.
///
///     number(key)   a metadata value: integer, float or bool
///     text(key)     a metadata value: string
///     numbers(key)  a metadata value: array; or the tensor of that name, such as "rope_freqs.weight"
template <class L>
concept gguf_lookup = requires(const L& lookup, const std::string& key) {
  { lookup.number(key) } -> std::convertible_to<std::optional<double>>;
  { lookup.text(key) } -> std::convertible_to<std::optional<std::string>>;
  { lookup.numbers(key) } -> std::convertible_to<std::optional<std::vector<double>>>;
};

struct gguf_options {
  /// Tokens of context of a sequence, which decide between rope_factors_short and rope_factors_long. 0 is a
  /// short one.
  double length = 0;
  /// The layout of the weights, where the architecture is not known.
  std::optional<pairing> layout = {};
};

namespace detail {

template <class L>
class gguf_importer {
 public:
  gguf_importer(const L& lookup, const gguf_options& options) : lookup_(lookup), options_(options) {}

  model_rope result() {
    architecture_ = require(lookup_.text("general.architecture"), "general.architecture");
    model_.source = "GGUF";
    model_.architecture = architecture_;
    read_layout();
    model_.max_position = number("context_length", range::positive).value_or(0);
    model_.sliding_window = number("attention.sliding_window", range::not_negative).value_or(0);
    model_.query_heads = heads("attention.head_count");
    model_.key_heads = heads("attention.head_count_kv");
    if (model_.key_heads == 0) model_.key_heads = model_.query_heads;
    const bool gemma3 = architecture_ == "gemma3" || architecture_ == "gemma3n";
    const auto base = number("rope.freq_base", range::above_one),
               base_swa = number("rope.freq_base_swa", range::above_one);
    const auto dimension_swa = number("rope.dimension_count_swa", range::count);
    const bool two_types = base_swa || dimension_swa || (gemma3 && model_.sliding_window > 0);
    add_group(two_types ? "full_attention" : "", "rope.dimension_count", "attention.key_length",
              base.value_or(10000));
    if (two_types) {
      sliding_ = true;
      add_group("sliding_attention", "rope.dimension_count_swa", "attention.key_length_swa",
                base_swa.value_or(gemma3 ? 10000 : base.value_or(10000)));
    }
    for (const char* name : {"rope.freq_base_per_layer", "rope.dimension_count_per_layer"})
      if (lookup_.numbers(key(name)))
        model_.warnings.push_back(key(name) + " is not used; all layers are taken as alike");
    if (lookup_.number(key("attention.compress_rope_freq_base")))
      model_.warnings.push_back(key("attention.compress_rope_freq_base") + " is not used");
    return std::move(model_);
  }

 private:
  std::string key(const std::string& name) const { return architecture_ + "." + name; }

  template <class T>
  T require(std::optional<T> value, const std::string& key) const {
    if (!value) ROPE_THROW(std::invalid_argument, message("import_gguf: ", key.c_str(), " is missing"));
    return *std::move(value);
  }

  std::optional<double> number(const std::string& name, const number_rule& rule) const {
    const std::string full = key(name);
    const std::optional<double> value = lookup_.number(full);
    if (value) return checked(*value, rule, "import_gguf", full);
    if (lookup_.text(full))
      ROPE_THROW(std::invalid_argument, message("import_gguf: ", full.c_str(), " must be a number"));
    return {};
  }

  /// A number for the whole model, or the first of one number per layer.
  Index heads(const std::string& name) const {
    if (const auto one = number(name, range::whole)) return static_cast<Index>(*one);
    const std::optional<std::vector<double>> per_layer = lookup_.numbers(key(name));
    if (!per_layer || per_layer->empty()) return 0;
    return static_cast<Index>(checked(per_layer->front(), range::whole, "import_gguf", key(name)));
  }

  void read_layout() {
    const auto layout = options_.layout ? options_.layout : gguf_layout(architecture_);
    if (!layout)
      ROPE_THROW(std::invalid_argument,
                 message("import_gguf: general.architecture is not an architecture whose layout "
                         "is known; name the layout in the options, got ",
                         architecture_.c_str()));
    layout_ = *layout;
  }

  /// The first of these keys that is there; else the width of the model over its heads.
  Index head_dim(std::initializer_list<const char*> keys) const {
    for (const char* name : keys)
      if (const auto length = number(name, range::count)) return static_cast<Index>(*length);
    const double width = require(number("embedding_length", range::count), key("embedding_length"));
    if (model_.query_heads == 0) require(std::optional<double>(), key("attention.head_count"));
    return static_cast<Index>(width) / model_.query_heads;
  }

  void add_group(const char* layer_type, const char* dimension_key, const char* length_key, double base) {
    const Index head = head_dim({"attention.key_length_mla", length_key, "attention.key_length"});
    auto dimension = number(dimension_key, range::count);
    if (!dimension && sliding_) dimension = number("rope.dimension_count", range::count);
    const Index rotary_dim = dimension ? static_cast<Index>(*dimension) : head;
    if (rotary_dim % 2 != 0 || rotary_dim > head)
      ROPE_THROW(std::invalid_argument,
                 message("import_gguf: ", key(dimension_key).c_str(),
                         " must be even and not above the head, ", head, ", got ", rotary_dim));
    derived rule = schedule_of(rotary_dim, base);
    layer_group group{.layer_type = layer_type,
                      .layout = layout_,
                      .head_dim = head,
                      .first_channel = architecture_ == "deepseek2" ? head - rotary_dim : 0,
                      .frequencies = std::move(rule.frequencies),
                      .softmax_multiplier = rule.softmax_multiplier,
                      .rule = std::move(rule.rule),
                      .base = base,
                      .numbers = std::move(rule.numbers)};
    add_sections(group);
    model_.groups.push_back(std::move(group));
  }

  derived schedule_of(Index rotary_dim, double base) {
    const std::string type_key = key("rope.scaling.type");
    const std::string type = lookup_.text(type_key).value_or("linear");
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope")
      ROPE_THROW(std::invalid_argument,
                 message("import_gguf: ", type_key.c_str(), " must be none, linear, yarn or longrope, got ",
                         type.c_str()));
    auto factor = number("rope.scaling.factor", range::not_negative);
    if (!factor) factor = number("rope.scale_linear", range::not_negative);
    const bool scaled = !sliding_ && type != "none" && factor.value_or(0) != 0;
    const double s = scaled ? *factor : 1;
    const double attn_factor = number("rope.scaling.attn_factor", range::positive).value_or(1) *
                               number("rope.scaling.yarn_attn_factor", range::positive).value_or(1);
    const double given_ext = number("rope.scaling.yarn_ext_factor", range::any_number).value_or(-1);
    const double ext_factor = sliding_ ? 0 : given_ext < 0 ? (type == "yarn" ? 1 : 0) : given_ext;
    const auto original = number("rope.scaling.original_context_length", range::positive);
    const double original_max_position = original.value_or(model_.max_position);
    if (ext_factor == 0) {
      const magnified_linear linear{.factor = s, .magnitude = attn_factor};
      const char* name = s == 1 ? "default" : "linear";
      if (const auto factors = pair_factors(rotary_dim / 2, original_max_position))
        return derive(s == 1 ? "pair factors" : "linear, pair factors", rotary_dim, base, linear, *factors);
      return derive(name, rotary_dim, base, linear);
    }
    if (original_max_position == 0) require(std::optional<double>(), key("context_length"));
    weighted_yarn yarn{.yarn = {.factor = s, .original_max_position = original_max_position},
                       .ext_factor = ext_factor};
    yarn.yarn.beta_fast =
        number("rope.scaling.yarn_beta_fast", range::positive).value_or(yarn.yarn.beta_fast);
    yarn.yarn.beta_slow =
        number("rope.scaling.yarn_beta_slow", range::positive).value_or(yarn.yarn.beta_slow);
    const double multiplier = read_magnitude(yarn.yarn, attn_factor);
    const auto factors = pair_factors(rotary_dim / 2, original_max_position);
    derived result = factors ? derive("yarn, pair factors", rotary_dim, base, yarn, *factors)
                             : derive("yarn", rotary_dim, base, yarn);
    result.softmax_multiplier = multiplier;
    return result;
  }

  /// Sets m as llama.cpp does: A attn_factor, A = g(1) without yarn_log_multiplier, else g(1) / g(its value),
  /// which for deepseek2 is 0.1 mscale_all_dim and stands above and below. Returns the softmax multiplier.
  double read_magnitude(yarn_scaling& yarn, double attn_factor) const {
    const bool deepseek = architecture_ == "deepseek2";
    const auto g = [&](double k) { return yarn.factor <= 1 ? 1.0 : 0.1 * k * std::log(yarn.factor) + 1; };
    double all_dim = number("rope.scaling.yarn_log_multiplier", range::not_negative).value_or(0);
    if (deepseek) all_dim /= 0.1;
    const double above = deepseek ? all_dim : 1;
    yarn.attention_factor = (all_dim == 0 ? g(1) : g(above) / g(all_dim)) * attn_factor;
    const double softmax = attn_factor * g(all_dim);
    return deepseek ? softmax * softmax : 1;
  }

  /// rope_freqs if the file has it, else the list of long or short factors.
  std::optional<pair_factor_scaling> pair_factors(Index pairs, double original_max_position) const {
    const char* by_length =
        options_.length > original_max_position ? "rope_factors_long.weight" : "rope_factors_short.weight";
    for (const char* name : {"rope_freqs.weight", by_length}) {
      std::optional<std::vector<double>> factors = sliding_ ? std::nullopt : lookup_.numbers(name);
      if (!factors) continue;
      if (static_cast<Index>(factors->size()) < pairs)
        ROPE_THROW(std::invalid_argument, message("import_gguf: ", name, " must have one value per pair, ",
                                                  pairs, ", got ", factors->size()));
      factors->resize(static_cast<std::size_t>(pairs));
      for (const double value : *factors) checked(value, range::positive, "import_gguf", name);
      return pair_factor_scaling{*std::move(factors)};
    }
    return {};
  }

  void add_sections(layer_group& group) const {
    const std::string name = key("rope.dimension_sections");
    const std::optional<std::vector<double>> sections = lookup_.numbers(name);
    if (!sections) return;
    Index sum = 0;
    for (const double value : *sections) {
      const auto pairs = static_cast<Index>(checked(value, range::whole, "import_gguf", name));
      sum += pairs;
      if (pairs > 0) group.mrope_sections.push_back(pairs);  // ggml fills up with zeros
    }
    if (sum != group.frequencies.pairs())
      ROPE_THROW(std::invalid_argument,
                 message("import_gguf: ", name.c_str(), " must add up to the number of pairs, ",
                         group.frequencies.pairs(), ", got ", sum));
    group.mrope_interleaved = gguf_interleaves_sections(architecture_);
  }

  const L& lookup_;
  const gguf_options& options_;
  std::string architecture_;
  pairing layout_ = pairing::half_split;
  bool sliding_ = false;  // the group of the sliding layers is being made: it has no scaling
  model_rope model_ = {};
};

}  // namespace detail

/// What an absent key means is what llama.cpp takes: no rope.scaling.type is linear, no factor or a factor of
/// 0 is 1, freq_base is 10000, dimension_count is the whole head. The bounds of YaRN are always rounded
/// outwards, so a model with `truncate: false` differs from its Hugging Face original; compare() shows by how
/// much.
///
/// Throws:  std::invalid_argument naming the key or tensor
/// Source:  llama.cpp, llama-model.cpp and llama-context.cpp; ggml, ggml_rope_ext
template <gguf_lookup L>
model_rope import_gguf(const L& lookup, const gguf_options& options = {}) {
  detail::checked(options.length, detail::range::not_negative, "import_gguf", "options.length");
  return detail::gguf_importer<L>(lookup, options).result();
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_IMPORT_GGUF_HPP
