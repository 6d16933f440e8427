// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_TEXT_LINE_HPP
#define ROPE_MODELS_DETAIL_TEXT_LINE_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <string>

#include <rope/config.hpp>

/// The lines of a description.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A label, and a text that is in one column with those of other lines.
template <class Text>
std::string line(const std::string& label, const Text& text) {
  std::string padded = "  " + label;
  padded.resize((std::max)(padded.size() + 1, std::size_t{26}), ' ');
  return padded + text + "\n";
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_TEXT_LINE_HPP
