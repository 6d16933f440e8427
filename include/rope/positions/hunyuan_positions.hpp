// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_HUNYUAN_POSITIONS_HPP
#define ROPE_POSITIONS_HUNYUAN_POSITIONS_HPP

#include <cstdint>
#include <variant>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>
#include <rope/positions/multimodal_positions.hpp>

/// The coordinates of every token of a HunYuan VL prompt with images (XD-RoPE).

namespace rope::inline ROPE_ABI {
namespace detail {

/// hunyuan_vl_positions, with the type of the runs as a parameter so that it is compiled only if called.
template <class Integer, class Runs>
prompt_positions<Integer> walk_hunyuan_prompt(const char* function, const Runs& runs, Index axes) {
  tokens_of_prompt(function, runs);
  Runs with_ends = runs;  // includes the token that ends each row of an image
  for (auto& run : with_ends)
    if (auto* image = std::get_if<vision_run>(&run)) {
      if (image->frames > 1) throw_invalid(function, "an image must be one frame, got ", image->frames);
      if (image->frames > 0 && image->height > 0 && image->width > 0) ++image->width;
    }
  const Index tokens = tokens_of_prompt(function, with_ends);
  prompt_positions<Integer> prompt{{tokens, axes}, tokens};
  for (Index axis = 0; axis < axes; ++axis)
    for (Index token = 0; token < tokens; ++token) prompt.coordinates(token, axis) = token;
  Index token = 0, images = 0;
  for (const auto& run : with_ends) {
    if (const auto* text = std::get_if<text_run>(&run)) {
      token += text->tokens;
      continue;
    }
    const vision_run& image = *std::get_if<vision_run>(&run);
    if (image.frames == 0 || image.height == 0 || image.width == 0) continue;
    for (Index row = 0; row < image.height; ++row)
      for (Index column = 0; column < image.width; ++column, ++token) {
        prompt.coordinates(token, axes - 3) = column;
        prompt.coordinates(token, axes - 2) = row;
        prompt.coordinates(token, axes - 1) = images;
      }
    ++images;
  }
  return prompt;
}

}  // namespace detail

/// Positions of HunYuan VL: four coordinates per token, (position, width, height, image), or the last three,
/// one per section of the model. All coordinates of a text token are its index in the prompt. A token of an
/// image has
///
///     position  its index in the prompt
///     width     its column, from 0; column vision_run::width is a token that ends the row
///     height    its row, from 0
///     image     the number of its image in the prompt, from 0
///
/// The tokens that open and close an image count as text. Generation continues at the index of the next
/// token, so delta() is 0.
///
///     const auto prompt = hunyuan_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}}, 4);
///     rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
///
/// \param axes  3 or 4
///
/// Throws:  std::invalid_argument for other axes, a negative count, a bad frame_step, or an image of more
///          than one frame; std::length_error if the tokens exceed the address space
/// Source:  get_rope_index of Hugging Face transformers, modeling_hunyuan_vl.py;
///          get_xdrope_input_positions of vLLM
template <class Integer = std::int64_t>
prompt_positions<Integer> hunyuan_vl_positions(const std::vector<prompt_run>& runs, Index axes) {
  if (axes != 3 && axes != 4)
    detail::throw_invalid("hunyuan_vl_positions", "axes must be 3 or 4, got ", axes);
  return detail::walk_hunyuan_prompt<Integer>("hunyuan_vl_positions", runs, axes);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_HUNYUAN_POSITIONS_HPP
