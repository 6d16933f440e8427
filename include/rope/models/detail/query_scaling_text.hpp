// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_QUERY_SCALING_TEXT_HPP
#define ROPE_MODELS_DETAIL_QUERY_SCALING_TEXT_HPP

#include <algorithm>  // std::max
#include <cmath>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/group_comparison.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// Sentences about what the layers of a model multiply their queries by.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The rule as a formula of the position p.
template <class Scaling>
std::string formula_of(const Scaling& scaling) {
  if (const auto* log_n = std::get_if<log_n_query_scaling>(&scaling.rule))
    return "max(1, ln(p + 1) / ln(" + digits(log_n->train_length) + "))";
  if (const auto* llama4 = std::get_if<llama4_query_scaling>(&scaling.rule)) {
    const std::string p = equal(llama4->offset, 0) ? "p" : "(p + " + digits(llama4->offset) + ")";
    return "1 + " + digits(llama4->attention_scale) + " ln(1 + floor(" + p + " / " +
           digits(llama4->floor_scale) + "))";
  }
  return "1";
}

/// The rule and its layers.
template <class Model>
std::string query_scaling_text(const Model& model) {
  switch (model.scaled) {
    case scaled_queries::none:
      break;
    case scaled_queries::every_layer:
      return "by " + formula_of(model.query_rule) + " at position p, every layer";
    case scaled_queries::layers_without_rope:
      return "by " + formula_of(model.query_rule) + " at position p, the layers without rotation";
    case scaled_queries::not_known:
      return "not known from this file";
  }
  return "none";
}

/// Whether both multiply the queries of the same layers by the same factors.
template <class Model>
bool same_query_scaling(const Model& a, const Model& b, double tolerance) {
  if (a.scaled != b.scaled) return false;
  if (a.scaled == scaled_queries::none || a.scaled == scaled_queries::not_known) return true;
  const auto numbers = [](const auto& scaling) -> std::vector<double> {
    if (const auto* log_n = std::get_if<log_n_query_scaling>(&scaling.rule)) return {log_n->train_length};
    if (const auto* llama4 = std::get_if<llama4_query_scaling>(&scaling.rule))
      return {llama4->floor_scale, llama4->attention_scale, llama4->offset};
    return {};
  };
  const auto x = numbers(a.query_rule), y = numbers(b.query_rule);
  bool same = x.size() == y.size();
  for (std::size_t i = 0; same && i < x.size(); ++i)
    same = (std::abs)(x[i] - y[i]) <= tolerance * (std::max)((std::abs)(x[i]), (std::abs)(y[i]));
  return same;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_QUERY_SCALING_TEXT_HPP
