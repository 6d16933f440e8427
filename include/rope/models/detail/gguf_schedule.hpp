// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_SCHEDULE_HPP
#define ROPE_MODELS_DETAIL_GGUF_SCHEDULE_HPP

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/gguf_records.hpp>
#include <rope/models/detail/model_draft.hpp>

/// The head, the base, the rotated channels and the frequencies of the layers of a GGUF file.

namespace rope::inline ROPE_ABI::detail {

// Scalings of ggml that differ slightly from those of frequencies/scaling.hpp.

/// YaRN with the weight ext_factor of ggml: f_i / s + (yarn_i - f_i / s) ext_factor, s being the factor of
/// YaRN.
struct weighted_yarn : yarn_scaling {
  double ext_factor;

  void apply(schedule& axis) const {
    const number_array<wide_real> original = axis.inv_freq;
    yarn_scaling::apply(axis);
    if (equal(ext_factor, 1)) return;
    for (Index i = 0; i < original.size(); ++i) {
      const wide_real linear = original(i) / factor;
      axis.inv_freq(i) = linear + (axis.inv_freq(i) - linear) * ext_factor;
    }
  }
};

/// Linear scaling as in ggml: any positive factor, and a magnitude.
struct magnified_linear {
  double factor, magnitude;

  void apply(schedule& axis) const {
    for (Index i = 0; i < axis.inv_freq.size(); ++i) axis.inv_freq(i) /= factor;
    axis.attention_factor *= magnitude;
  }
};

void record(auto& numbers, const magnified_linear& rule, const schedule&) {
  if (!equal(rule.factor, 1)) numbers.push_back({"factor", rule.factor});
}

/// The divisors of frequencies in a GGUF file, for layers that are scaled, and the tensor that has them.
/// Converters write 1e30 instead of infinity for a pair that does not rotate (Gemma 4).
struct ggml_pair_factors {
  const char* tensor = nullptr;  // null: no such tensor in the file, and no divisors
  std::vector<double> list = {};

  void apply(schedule& axis) const {
    if (list.empty()) return;
    pair_factor_scaling{list}.apply(axis);
    for (Index i = 0; i < axis.inv_freq.size(); ++i)
      if (list[static_cast<std::size_t>(i)] >= 0.999e30) axis.inv_freq(i) = 0;
  }
};

// The head, the base and the rotated channels of a GGUF file's layers, sliding or not.

/// The number of rotated channels, and the key that gives it.
struct rotated_channels {
  Index count;
  const char* key;
};

/// What the record and the file give for layers with one schedule.
struct gguf_schedule_terms {
  Index rotary_dim;
  double base;
  bool unscaled;
  bool unit_magnitude;  // m = 1, for any value in the file
};

/// m is the attention factor of YaRN without attn_factor. log_multiplier is the k of the enumeration with
/// this name. score_growth multiplies scores by a function of both.
struct gguf_magnitude {
  double m, log_multiplier;
};

/// The scaling of layers with one schedule.
struct gguf_scaling {
  double factor, attn_factor, ext_factor;
};

/// Reads the shape of heads, and makes frequencies as llama.cpp makes them from the scaling keys and factor
/// tensors of a GGUF file.
template <class L>
struct gguf_schedule {
  const gguf_reader<L>& reader;
  const gguf_record& record;
  const model_draft& model;        // with its query_heads and max_position, 0: unknown
  ggml_pair_factors factors = {};  // the result of read_pair_factors

  /// The value of the first of these keys that exists. Otherwise the width of the model divided by its heads.
  Index head_dim(bool slides) const {
    const auto own = reader.index("attention.key_length_mla_swa");
    if (own && slides) return *own;
    for (const char* name :
         {"attention.key_length_mla", slides ? "attention.key_length_swa" : "attention.key_length",
          "attention.key_length"})
      if (const auto length = reader.index(name)) return *length;
    const auto width = static_cast<Index>(reader.required_number("embedding_length", range::count));
    if (model.query_heads > 0) return width / model.query_heads;
    return width / static_cast<Index>(reader.required_number("attention.head_count", range::count));
  }

  double base(bool slides) const {
    constexpr const char* own = "rope.freq_base_swa";
    double base = reader.number("rope.freq_base", range::above_one).value_or(10000);
    if (record.fixed_base > 0) base = record.fixed_base;
    const auto alpha = reader.number("rope.scaling.alpha", range::not_negative);
    if (record.alpha && alpha.value_or(0) > 0) base = stretched(base, *alpha);
    if (!slides || record.sliding == sliding_rule::unscaled || record.sliding == sliding_rule::bare ||
        record.sliding == sliding_rule::same)
      return base;
    if (record.needs_swa_base) return reader.required_number(own, range::above_one);
    return reader.number(own, range::above_one)
        .value_or(record.sliding == sliding_rule::own_base ? 10000 : base);
  }

  rotated_channels dimension(bool slides) const {
    const Index share = record.half_of_full && !slides ? 2 : 1;
    if (!record.whole_head)
      for (const char* name :
           {slides ? "rope.dimension_count_swa" : "rope.dimension_count", "rope.dimension_count"})
        if (const auto given = reader.index(name)) return {*given / share, name};
    return {head_dim(slides) / share, "attention.key_length"};
  }

  /// NTK-aware scaling: base alpha^(d / (d - 2)), d being the number of channels of the whole head.
  double stretched(double base, double alpha) const {
    const Index head = head_dim(false);
    const std::string key = reader.key("rope.scaling.alpha");
    if (head <= 2) reader.refuse(key, "needs heads of more than 2 channels, got ", head);
    const wide_real width = head;
    return checked(static_cast<double>(base * pow(wide_real(alpha), width / (width - 2))), range::above_one,
                   "import_gguf", key + ", as the base it stretches,");
  }

  /// \param factor  the factor of YaRN
  gguf_magnitude magnitude_of(double factor) const {
    const wide_real log_factor = log(wide_real(factor));
    const auto g = [&](double k) { return factor <= 1 ? 1 : k * log_factor / 10 + 1; };
    double k = reader.number("rope.scaling.yarn_log_multiplier", range::not_negative).value_or(0);
    const log_multiplier multiplier = record.multiplier;
    if (multiplier == log_multiplier::ignored) k = 0;
    if (multiplier == log_multiplier::tenths || multiplier == log_multiplier::cancelled) k /= 0.1;
    const double above = multiplier == log_multiplier::cancelled ? k : 1;
    return {static_cast<double>(equal(k, 0) ? g(1) : g(above) / g(k)), k};
  }

  /// The divisors of the first `pairs` pairs. Further divisors in the list have no pair.
  ggml_pair_factors factors_of_pairs(Index pairs) const {
    if (factors.tensor == nullptr) return {};
    if (static_cast<Index>(factors.list.size()) < pairs)
      reader.refuse(factors.tensor, "must have one value per pair, ", pairs, ", got ", factors.list.size());
    return {factors.tensor, {factors.list.begin(), factors.list.begin() + pairs}};
  }

  /// The context length before scaling, for YaRN and for the choice between short and long factors. 0:
  /// unknown.
  double original_max_position() const {
    return reader.number("rope.scaling.original_context_length", range::positive)
        .value_or(model.max_position);
  }

  /// The tensor rope_freqs if the file has it, otherwise the list of long or short factors.
  ggml_pair_factors read_pair_factors(double length) const {
    const char* by_length =
        length > original_max_position() ? "rope_factors_long.weight" : "rope_factors_short.weight";
    for (const char* tensor : {"rope_freqs.weight", by_length})
      if (auto list = reader.tensor(tensor)) return {tensor, *std::move(list)};
    return {};
  }

  gguf_scaling read_scaling(const gguf_schedule_terms& layers) const {
    const std::string type = reader.text("rope.scaling.type", "linear");
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope")
      reader.refuse(reader.key("rope.scaling.type"), "must be none, linear, yarn or longrope, got ", type,
                    "; for another rule see <rope/frequencies.hpp>");
    auto factor = reader.number("rope.scaling.factor", range::not_negative);
    if (!factor) factor = reader.number("rope.scale_linear", range::not_negative);
    const bool scaled = !layers.unscaled && type != "none" && !equal(factor.value_or(0), 0);
    const auto magnitude = reader.number("rope.scaling.yarn_attn_factor", range::positive),
               weight = reader.number("rope.scaling.yarn_ext_factor", range::any_number);
    const bool read = record.yarn == yarn_keys::all;
    const double attn_factor = reader.number("rope.scaling.attn_factor", range::positive).value_or(1) *
                               (read ? magnitude.value_or(1) : 1);
    double ext_factor = read ? weight.value_or(-1) : -1;
    if (ext_factor < 0) ext_factor = type == "yarn" ? 1 : 0;
    return {.factor = scaled ? *factor : 1,
            .attn_factor = layers.unit_magnitude ? 1 : attn_factor,
            .ext_factor = layers.unscaled ? 0 : ext_factor};
  }

  /// The factor on scores in addition to 1 / sqrt(head_dim): (attn_factor m g(k))^2 with g(k) = 1 + 0.1 k
  /// ln(factor). In released files k and m are 1, or k is ignored and m is g(1). Both give g(1)^2, as in the
  /// code of the models. For another k, that code has g(k)^2. llama.cpp has the same for `cancelled`, where m
  /// is 1, but g(1)^2 for `tenths`, where m is g(1) / g(k). This function follows llama.cpp.
  ///
  /// Source: llama.cpp, attn_factor_org and kq_scale in deepseek2.cpp, deepseek32.cpp and glm-dsa.cpp
  double score_growth(const gguf_scaling& scaling) const {
    if (!record.scores_grow) return 1;
    const gguf_magnitude magnitude = magnitude_of(scaling.factor);
    const auto log_factor = static_cast<double>(log(wide_real(scaling.factor)));
    const double m = equal(scaling.ext_factor, 0) ? 1 + 0.1 * log_factor : magnitude.m;
    const double growth = scaling.attn_factor * m * (1 + 0.1 * magnitude.log_multiplier * log_factor);
    return checked(growth * growth, range::positive, "import_gguf",
                   "the softmax multiplier of " + reader.key("rope.scaling.yarn_log_multiplier"));
  }

  layer_group yarn_of(const gguf_schedule_terms& layers, const gguf_scaling& scaling,
                      const ggml_pair_factors& divisors) const {
    const double original = original_max_position();
    if (equal(original, 0)) reader.required_number("context_length", range::positive);
    weighted_yarn yarn{{.factor = scaling.factor, .original_max_position = original}, scaling.ext_factor};
    const auto fast = reader.number("rope.scaling.yarn_beta_fast", range::positive),
               slow = reader.number("rope.scaling.yarn_beta_slow", range::positive);
    yarn.beta_fast = record.beta_fast;
    if (record.yarn != yarn_keys::none) {
      yarn.beta_fast = fast.value_or(yarn.beta_fast);
      yarn.beta_slow = slow.value_or(yarn.beta_slow);
    }
    yarn.attention_factor = layers.unit_magnitude ? 1 : magnitude_of(yarn.factor).m * scaling.attn_factor;
    return derive("yarn", layers.rotary_dim, layers.base, yarn, divisors);
  }

  /// The factor on q . k before the softmax.
  ///
  /// \param multiplier  multiplies 1 / sqrt(head_dim)
  /// \param layers  the number of layers, by which llama.cpp distinguishes the sizes of Gemma
  double scale_of(Index head_dim, Index layers, double multiplier) const {
    if (record.scale == gguf_scale::one) return 1;
    if (record.scale == gguf_scale::output_key)
      return reader.number("attention.output_scale", range::positive).value_or(1 / std::sqrt(128.0));
    if (record.scale == gguf_scale::of_key)
      if (const auto given = reader.number("attention.scale", range::positive)) return *given;
    double width = static_cast<double>(head_dim);
    if (record.wide_layers > 0 && record.wide_layers == layers)
      width = reader.required_number("embedding_length", range::count) /
              reader.required_number("attention.head_count", range::count);
    return multiplier / std::sqrt(width);
  }

  /// The softcap of scores. 0: none.
  double softcap() const {
    if (equal(record.softcap, 0)) return 0;
    return reader.number("attn_logit_softcapping", range::positive).value_or(record.softcap);
  }

  /// The frequencies of layers with one schedule, and the multiplier of their scores.
  layer_group frequencies_of(const gguf_schedule_terms& layers) const {
    const gguf_scaling scaling = read_scaling(layers);
    const ggml_pair_factors divisors =
        layers.unscaled ? ggml_pair_factors{} : factors_of_pairs(layers.rotary_dim / 2);
    const magnified_linear linear{.factor = scaling.factor, .magnitude = scaling.attn_factor};
    const char* unblended = equal(scaling.factor, 1) ? "default" : "linear";
    layer_group result = equal(scaling.ext_factor, 0)
                             ? derive(unblended, layers.rotary_dim, layers.base, linear, divisors)
                             : yarn_of(layers, scaling, divisors);
    if (!divisors.list.empty())
      result.rule = result.rule == "default" ? "pair factors" : result.rule + ", pair factors";
    result.softmax_multiplier = score_growth(scaling);
    return result;
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_GGUF_SCHEDULE_HPP
