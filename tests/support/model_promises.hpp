// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_MODEL_PROMISES_HPP
#define ROPE_TESTS_MODEL_PROMISES_HPP

/// The promises that every imported model keeps, for any contents of the file.

#include <algorithm>
#include <cstddef>
#include <functional>  // std::greater_equal
#include <limits>
#include <stdexcept>
#include <string>

#include <rope/models/describe.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/models/tables.hpp>

#include "support/model_configs.hpp"

namespace testing {

/// The first promise of model_rope that the model breaks, or empty.
inline std::string broken_promise(const rope::model_rope& model) {
  if (model.groups().empty() == model.instead_of_rope().empty())
    return "there are groups and something instead, or neither";
  if (model.groups().empty() &&
      (model.rotation_of_layer(0) != rope::layer_rotation::none ||
       model.rotation_of_layer(model.layer_count()) == rope::layer_rotation::in_group))
    return "a layer rotates and there is no group";
  if (model.groups().size() > 1024) return "there are too many groups";
  if (model.layers().size() > 16384) return "there are too many layers";
  rope::Index pairs = 0;
  for (const rope::layer_group& group : model.groups()) {
    pairs += group.frequencies.pairs();
    if (group.first_channel < 0 || group.first_channel + group.rotary_dim() > group.head_dim)
      return "a group rotates channels that its head lacks";
    if (!(group.frequencies.inv_freq().abs() < 0x1p64).all()) return "a speed is too large";
    if (!(group.softmax_multiplier > 0 && group.softmax_multiplier <= std::numeric_limits<double>::max()))
      return "a softmax multiplier is not positive and finite";
    if (!(group.base > 1)) return "a base is not above 1";
    if (model.groups().size() > 1 && group.layer_type.empty()) return "one group of several has no name";
    if (std::count_if(model.groups().begin(), model.groups().end(),
                      [&](const auto& other) { return other.layer_type == group.layer_type; }) != 1)
      return "two groups have one name";
    if (group.mrope_sections.size() > 8) return "there are too many sections";
    try {
      if (rope::frequencies_on_axes(group).pairs() != group.frequencies.pairs()) return "the axes lose pairs";
    } catch (const std::invalid_argument&) {  // interleaved sections may not find their pairs
      if (group.section_order != rope::mrope_order::alternating) return "the sections do not fit";
    }
  }
  if (pairs > 32768) return "there are too many pairs";
  const auto& without = model.layers_without_rope();
  if (std::adjacent_find(without.begin(), without.end(), std::greater_equal<>()) != without.end())
    return "the layers without rotation are not in order";
  for (std::size_t i = 0; i < model.layers().size(); ++i)
    if (!std::binary_search(without.begin(), without.end(), static_cast<rope::Index>(i)) &&
        !model.group(model.layers()[i]) && !has_warning(model.warnings, "have no rope dictionary"))
      return "layer " + std::to_string(i) + " has no group and there is no warning";
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    const auto layer = static_cast<rope::Index>(i);
    const rope::layer_rotation rotation = model.rotation_of_layer(layer);
    const bool listed =
        std::count(model.layers_not_known().begin(), model.layers_not_known().end(), layer) > 0;
    if ((rotation == rope::layer_rotation::not_known) != listed)
      return "layer " + std::to_string(i) + " is not known and not listed";
    if (!listed && (model.group_of_layer(layer) != nullptr) != (rotation == rope::layer_rotation::in_group))
      return "layer " + std::to_string(i) + " has two answers";
  }
  for (rope::Index layer = -1; layer < 4; ++layer)
    if (const auto kind = model.attention_kind_of_layer(layer); kind == rope::layer_attention::in_options)
      static_cast<void>(model.attention_of_layer(layer));
    else if (kind == rope::layer_attention::in_chunks && model.chunk_of_layer(layer) == 0)
      return "layer " + std::to_string(layer) + " attends in chunks of no token";
  for (const std::string& type : model.attention_types())
    static_cast<void>(model.attention_of_group(type));  // for none of these it throws
  if (rope::describe(model).empty()) return "there is no description";
  if (!rope::compare_models(model, model).empty()) return "the model differs from itself";
  return {};
}

}  // namespace testing

#endif  // ROPE_TESTS_MODEL_PROMISES_HPP
