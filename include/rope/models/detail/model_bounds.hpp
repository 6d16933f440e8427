// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_MODEL_BOUNDS_HPP
#define ROPE_MODELS_DETAIL_MODEL_BOUNDS_HPP

#include <cstddef>
#include <string>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

/// What one model file may ask for. A few hundred bytes can name a million layers, or groups of a million
/// pairs each; within these bounds, far above those of any model, a file costs a fraction of a second and a
/// few megabytes.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

constexpr Index max_layers = 16384, max_groups = 1024, max_pairs_of_groups = 32768, max_sections = 8;
constexpr std::size_t longest_layer_type = 128;  // characters

namespace range {

inline constexpr number_rule layers{
    [](double x) { return count.holds(x) && x <= static_cast<double>(max_layers); },
    "must be a positive whole number up to 16384"};

}  // namespace range

/// The length of a list that has one value per layer.
///
/// \param layers  of the model; 0: not known, which any length of a model fits
/// \param what    "num_hidden_layers values", what the rule calls `layers` values
///
/// \return  the rule that is broken, or nothing
inline std::string broken_rule_of_layer_list(std::size_t length, Index layers, const char* what) {
  if (layers > 0 && length != static_cast<std::size_t>(layers))
    return std::string("must have ") + what + ", " + std::to_string(layers) + ", got " +
           std::to_string(length);
  if (length > static_cast<std::size_t>(max_layers))
    return "must have one value per layer, at most " + std::to_string(max_layers) + ", got " +
           std::to_string(length);
  return {};
}

/// Counts the groups of a file and their pairs.
class group_allowance {
 public:
  /// Throws:  std::invalid_argument unless the file may have one more group of so many pairs
  ///
  /// \param function, where  of the message: who reads, and the key that asks for the pairs
  void take(const char* function, const std::string& where, Index pairs) {
    ++groups_;
    pairs_ += pairs;
    if (groups_ > max_groups)
      ROPE_THROW(std::invalid_argument, message(function, ": ", where.c_str(), " must not make more than ",
                                                max_groups, " groups of layers, got ", groups_));
    if (pairs_ > max_pairs_of_groups)
      ROPE_THROW(std::invalid_argument, message(function, ": ", where.c_str(),
                                                " must not bring the pairs of all groups of layers above ",
                                                max_pairs_of_groups, ", got ", pairs_));
  }

 private:
  Index groups_ = 0, pairs_ = 0;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_MODEL_BOUNDS_HPP
