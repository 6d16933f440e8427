// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_REFUSED_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_REFUSED_HPP

#include <string_view>

#include <rope/config.hpp>

/// Architectures without a record of which it is known why.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

struct refused_architecture {
  std::string_view architecture;  // as plain_architecture spells it
  std::string_view reason;        // what follows its name
};

/// Why an architecture has no record; empty where it has one, or where nothing is known of it.
inline std::string_view reason_to_refuse(std::string_view architecture) {
  static constexpr refused_architecture refused[] = {
      {.architecture = "cosmos3edge", .reason = "which channels its class turns is not known"},
      {.architecture = "minimaxm2",
       .reason = "its released files turn 64 channels of a head, its class all of them"},
      {.architecture = "minimaxm3vl",
       .reason = "its released files turn 64 channels of a head, its class all of them"},
      {.architecture = "recurrentgemma",
       .reason = "its released files turn half of a head, its class all of it"},
  };
  for (const refused_architecture& one : refused)
    if (one.architecture == architecture) return one.reason;
  return {};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_REFUSED_HPP
