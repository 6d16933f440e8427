// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_UNROTATED_MODEL_HPP
#define ROPE_MODELS_DETAIL_UNROTATED_MODEL_HPP

#include <string>

#include <rope/config.hpp>

/// That no layer of a model rotates, and how that is known.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

struct unrotated_model {
  std::string instead = {};           // what the model has in place of rotation; empty: some layer rotates
  std::string key = {}, reason = {};  // what says so, as a message of the reader continues its key

  bool is_so() const { return !instead.empty(); }
  /// The reason, and what to do.
  std::string refusal() const {
    return reason + "; to import it as a model without groups, pass model_without_rope::describe";
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_UNROTATED_MODEL_HPP
