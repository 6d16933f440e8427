// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_RUN_TIME_QUERY_SCALING_HPP
#define ROPE_MODELS_RUN_TIME_QUERY_SCALING_HPP

#include <cstdint>
#include <variant>

#include <rope/config.hpp>
#include <rope/rotation/query_scaling.hpp>

/// The query scaling that a model file names.

namespace rope {
inline namespace ROPE_ABI {

/// A rule of rotation/query_scaling.hpp that is chosen at run time, by a model file for example; without one
/// every factor is 1.
///
///     const query_scaling rule{log_n_query_scaling{.train_length = 2048}};
///     if (!rule.is_one()) scale_queries(q, rule, start);
///
/// Throws:  as its rule does
struct query_scaling {
  /// The rule, or none.
  std::variant<std::monostate, log_n_query_scaling, llama4_query_scaling> rule = {};

  /// Whether there is no rule.
  bool is_one() const { return rule.index() == 0; }

  /// The factor of a query at `position`.  Throws: as the rule
  double operator()(std::int64_t position) const {
    if (const auto* log_n = std::get_if<log_n_query_scaling>(&rule)) return (*log_n)(position);
    if (const auto* llama4 = std::get_if<llama4_query_scaling>(&rule)) return (*llama4)(position);
    return 1;
  }
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_RUN_TIME_QUERY_SCALING_HPP
