// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_MODEL_PARTS_HPP
#define ROPE_TESTS_MODEL_PARTS_HPP

#include <string>
#include <vector>

#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>

namespace testing {

/// A group of that layer type, whose layers rotate by these frequencies.
inline rope::layer_group group_named(const std::string& layer_type,
                                     const rope::frequencies& f = rope::frequencies(8)) {
  return {.layer_type = layer_type,
          .layout = rope::layout_kind::half_split,
          .head_dim = f.rotary_dim(),
          .first_channel = 0,
          .frequencies = f,
          .rule = "default",
          .base = 10000};
}

/// The parts of a model, to be changed and assembled again.
struct model_parts : rope::model_facts {
  std::vector<rope::layer_group> groups;
  std::vector<std::string> layers;
  std::vector<rope::Index> layers_without_rope, layers_not_known;

  model_parts() { source = architecture = "test"; }
  explicit model_parts(const rope::model_rope& model)
      : model_facts(model),
        groups(model.groups()),
        layers(model.layers()),
        layers_without_rope(model.layers_without_rope()),
        layers_not_known(model.layers_not_known()) {}

  rope::model_rope model() const {
    return {
        *this, groups, {.types = layers, .without_rope = layers_without_rope, .not_known = layers_not_known}};
  }
};

}  // namespace testing

#endif  // ROPE_TESTS_MODEL_PARTS_HPP
