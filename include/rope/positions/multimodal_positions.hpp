// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_MULTIMODAL_POSITIONS_HPP
#define ROPE_POSITIONS_MULTIMODAL_POSITIONS_HPP

#include <algorithm>  // std::max, std::max_element
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>  // std::move
#include <vector>

#include <rope/base/coordinates.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>

/// The (time, height, width) of every token of a prompt that mixes text, images and videos. A text token has
/// the same position on all axes. All patches of an image have the same time.
///
///     const auto prompt = qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}});
///     rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
///
///     token    text   text   text   image                    text   text
///     time       0      1      2     3   3   3   3             5      6
///     height     0      1      2     3   3   4   4             5      6
///     width      0      1      2     3   4   3   4             5      6
///
/// HunYuan VL has other coordinates (XD-RoPE): see hunyuan_vl_positions.

namespace rope::inline ROPE_ABI {

/// Tokens of text.
///
///     const auto prompt = qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}});
struct text_run {
  Index tokens;  // not negative
};

/// Tokens of an image (one frame) or video, row by row and frame by frame. Extents count merged patches.
///
///     const vision_run image = {.height = 16, .width = 24};  // of 32 x 48 patches, merged 2 x 2
struct vision_run {
  Index frames = 1;       // not negative; an image has one
  Index height = 0;       // rows of merged patches
  Index width = 0;        // columns of merged patches
  double frame_step = 1;  // positions between two frames; Qwen2.5-VL: tokens_per_second * second_per_grid
};

/// A run: consecutive tokens of text, or one image or video.
///
///     for (const prompt_run& run : runs)
///       if (run.is_vision) encode(run.vision.height, run.vision.width);
struct prompt_run {
  bool is_vision;     // whether it is an image or a video
  text_run text;      // without tokens if is_vision
  vision_run vision;  // without patches unless is_vision

  /// Text.
  prompt_run(const text_run& run) : is_vision(false), text(run), vision() {}
  /// An image or a video.
  prompt_run(const vision_run& run) : is_vision(true), text{0}, vision(run) {}
};

struct omni_run;  // omni_positions.hpp

/// A vision_run from the extents before merging (`image_grid_thw`).
///
/// Throws:  std::invalid_argument unless merge is positive and divides height and width
inline vision_run merged_patches(Index frames, Index height, Index width, Index merge,
                                 double frame_step = 1) {
  if (merge <= 0 || height % merge != 0 || width % merge != 0)
    detail::throw_invalid("merged_patches", "merge must be positive and divide height and width, got ", merge,
                          " for ", height, " and ", width);
  return {frames, height / merge, width / merge, frame_step};
}

/// A video of Qwen3-VL: every frame is a separate image, after the text of its timestamp.
///
/// \param text_tokens  [frames], the number of text tokens before each frame
///
/// Throws:  std::invalid_argument unless there is one count per frame
template <class Run = prompt_run>
std::vector<Run> frames_with_timestamps(const vision_run& video, const std::vector<Index>& text_tokens) {
  if (static_cast<Index>(text_tokens.size()) != video.frames)
    detail::throw_invalid("frames_with_timestamps", "text_tokens must have one count per frame, ",
                          video.frames, ", got ", text_tokens.size());
  std::vector<Run> runs;
  for (const Index tokens : text_tokens) {
    runs.push_back(text_run{tokens});
    runs.push_back(vision_run{1, video.height, video.width});
  }
  return runs;
}

/// The coordinates of the tokens of a prompt, and the position at which generation continues.
///
///     const prompt_positions<std::int64_t> prompt = qwen_vl_positions(runs);
///     rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
///     rotate<half_split>(next_query, text_table, tokens_so_far + prompt.delta());
template <class Scalar>
struct prompt_positions {
  owned_array<Scalar> coordinates;  // [tokens, 3]: time, height, width; HunYuan VL differs
  Scalar next;                      // position of the first token after the prompt, on all axes

  /// The position of a token after the prompt minus its index (`rope_deltas`). Such a token n is at n +
  /// delta() on all axes. To decode, a one-axis table at this position gives the same bits.
  Scalar delta() const { return next - static_cast<Scalar>(coordinates.rows()); }
};

namespace detail {

/// The largest number of tokens of a prompt. The size of their coordinates in bytes then fits an Index.
inline constexpr Index max_tokens_of_prompt = (std::numeric_limits<Index>::max)() / 64;

/// The sum of the tokens of a run and of the runs before it.
///
/// Throws:  std::length_error if the sum is too large
inline Index with_tokens_before(const char* function, Index before, Index tokens) {
  if (tokens > max_tokens_of_prompt - before)
    throw_length(function, "the prompt exceeds the address space, got ", before, " + ", tokens, " tokens");
  return before + tokens;
}

/// The number of tokens of a run.
///
/// Throws:  std::invalid_argument if a count or frame_step is invalid; std::length_error if there are too
///          many tokens
inline Index tokens_of_run(const char* function, const text_run& text) {
  if (text.tokens < 0) throw_invalid(function, "the tokens of a run must not be negative, got ", text.tokens);
  return text.tokens;
}
inline Index tokens_of_run(const char* function, const vision_run& vision) {
  const auto& [frames, height, width, frame_step] = vision;
  if (frames < 0 || height < 0 || width < 0)
    throw_invalid(function, "the extents of a run must not be negative, got ",
                  shape_text({frames, height, width}));
  if (!is_within_2_53(frame_step) || frame_step < 0 ||
      !is_within_2_53(frame_step * static_cast<double>(frames)))
    throw_invalid(function, "frame_step must not be negative and frames * frame_step at most 2^53, got ",
                  frame_step, " for ", frames, " frames");
  if (frames == 0 || height == 0 || width == 0) return 0;
  if (!product_fits({frames, height, width}, max_tokens_of_prompt))
    throw_length(function, "a run exceeds the address space, got ", shape_text({frames, height, width}));
  return frames * height * width;
}

inline Index tokens_of_run(const char* function, const prompt_run& run) {
  return run.is_vision ? tokens_of_run(function, run.vision) : tokens_of_run(function, run.text);
}
inline Index tokens_of_run(const char* function, const omni_run& run);

/// Checks every run and returns the number of tokens.
template <class Run>
Index tokens_of_prompt(const char* function, const std::vector<Run>& runs) {
  Index total = 0;
  for (const Run& run : runs) total = with_tokens_before(function, total, tokens_of_run(function, run));
  return total;
}

/// The coordinates of a prompt, added token by token.
template <class Scalar>
struct prompt_walk {
  prompt_positions<Scalar> prompt;
  Index token = 0;
  Scalar last = 0;  // the largest coordinate of what was added last

  void add(Scalar time, Scalar height, Scalar width) {
    prompt.coordinates(token, 0) = time;
    prompt.coordinates(token, 1) = height;
    prompt.coordinates(token++, 2) = width;
  }
  void add(Scalar position) { add(position, position, position); }
  /// Adds tokens first .. end - 1 of text or sound.
  void add_tokens(Scalar start, Index first, Index end) {
    for (Index i = first; i < end; ++i) add(last = start + static_cast<Scalar>(i));
  }

  /// The time of token i of a video after its start.
  static Scalar time_of(Index i, const vision_run& run) {
    const Index frame = i / (run.height * run.width);
    return static_cast<Scalar>(static_cast<double>(frame) * run.frame_step);  // rounded down for integers
  }
  /// Adds tokens first .. end - 1 of a video and sets `last` to their largest coordinate.
  void add_video(Scalar start, const vision_run& run, Index first, Index end) {
    for (Index i = first; i < end; ++i) {
      const Index at = i % (run.height * run.width);
      const Scalar time = start + time_of(i, run), row = start + static_cast<Scalar>(at / run.width),
                   column = start + static_cast<Scalar>(at % run.width);
      const Scalar largest = (std::max)(time, (std::max)(row, column));
      last = i == first ? largest : (std::max)(last, largest);
      add(time, row, column);
    }
  }
  /// Adds an image or a video that begins at prompt.next. The next run begins one after its largest
  /// coordinate.
  void add_vision(const vision_run& run) {
    add_video(prompt.next, run, 0, run.frames * run.height * run.width);
    prompt.next = last + 1;
  }
};

/// The coordinates of the tokens of all runs. add_vision(walk, run) must add an image or a video, and is only
/// called if it has tokens. add_both(walk, run) must add a video with sound. Both must set walk.prompt.next.
template <class Scalar, class Runs, class AddVision, class AddBoth = std::nullptr_t>
prompt_positions<Scalar> walk_prompt(const char* function, const Runs& runs, Scalar start,
                                     const AddVision& add_vision, const AddBoth& add_both = nullptr) {
  prompt_walk<Scalar> walk{{{tokens_of_prompt(function, runs), 3}, start}};
  Scalar& next = walk.prompt.next;
  for (const auto& run : runs) {
    if (!is_coordinate(next))
      throw_out_of_range(function, "a position must be at most 2^53 in magnitude, got ", next);
    if constexpr (!std::is_null_pointer_v<AddBoth>)
      if (run.has_sound) {
        add_both(walk, run);
        continue;
      }
    if (!run.is_vision) {
      walk.add_tokens(next, 0, run.text.tokens);
      next += static_cast<Scalar>(run.text.tokens);
    } else if (tokens_of_run(function, run.vision) > 0) {
      add_vision(walk, run.vision);
    }
  }
  return std::move(walk.prompt);
}

/// The prompt, whose next position becomes one after its largest coordinate.
template <class Scalar>
prompt_positions<Scalar> continued_past_largest(prompt_positions<Scalar> prompt) {
  const auto& all = prompt.coordinates;
  if (all.rows() > 0) prompt.next = *std::max_element(all.data(), all.data() + all.size()) + 1;
  return prompt;
}

}  // namespace detail

/// The start of the run after an image or a video. The choices differ only after a video with more time
/// positions than rows and columns. Qwen3-VL has no such videos, because each of its frames is a separate
/// run.
enum class vision_advance {
  past_time_and_sides,  // one after the largest position: the papers, vLLM, transformers before 5.3
  past_sides            // max(height, width) after the start: transformers since 5.3
};

/// Positions of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. Also of ERNIE 4.5 VL, which counts temporal_merge_size
/// frames of a video as one.
///
///     text:    time = height = width = start + t
///     vision:  time = start + floor(frame * frame_step), height = start + row, width = start + column
///     the next run starts as `advance` defines; generation continues one after the largest position of all
///
/// With past_sides, the times of a video may exceed the positions of the text after it. Such a prompt cannot
/// be continued at `next`: pass the whole prompt in one call.
///
/// Requires:  Integer can hold every coordinate
/// Throws:    std::invalid_argument if a count is negative, a frame_step is negative or not finite, or frames
///            * frame_step exceeds 2^53; std::length_error if the tokens exceed the address space;
///            std::out_of_range if a run starts above 2^53 in magnitude
/// Source:    Wang et al. 2024, Qwen2-VL, arXiv:2409.12191, section 2.1; `get_rope_index` of Hugging Face
///            transformers and of vLLM, which also truncate frame times
template <class Integer = std::int64_t>
prompt_positions<Integer> qwen_vl_positions(const std::vector<prompt_run>& runs,
                                            std::type_identity_t<Integer> start = 0,
                                            vision_advance advance = vision_advance::past_time_and_sides) {
  return detail::continued_past_largest(
      detail::walk_prompt<Integer>("qwen_vl_positions", runs, start, [&](auto& walk, const vision_run& run) {
        const Integer first = walk.prompt.next;
        walk.add_vision(run);
        if (advance == vision_advance::past_sides)
          walk.prompt.next = first + static_cast<Integer>((std::max)(run.height, run.width));
      }));
}

/// Positions of VideoRoPE: every frame is centered on the diagonal of the text positions.
///
///     text:    time = height = width = start + t
///     vision:  time = start + frame * frame_step,
///              height = time + row - floor((rows - 1) / 2), width = time + column - floor((columns - 1) / 2)
///     the next run starts one after the time of the last frame
///
/// The released model has frame_step 2 and the frequencies of on_axes with height_width_then_time(24, 16).
///
/// Throws:  as qwen_vl_positions
/// Source:  Wei et al. 2025, VideoRoPE, arXiv:2502.05173; Wiselnn570/VideoRoPE
template <class Real = double>
prompt_positions<Real> video_rope_positions(const std::vector<prompt_run>& runs,
                                            std::type_identity_t<Real> start = 0) {
  return detail::walk_prompt<Real>(
      "video_rope_positions", runs, start, [](auto& walk, const vision_run& run) {
        const Real first = walk.prompt.next;
        for (Index frame = 0; frame < run.frames; ++frame) {
          const Real time = first + static_cast<Real>(frame) * run.frame_step;
          for (Index row = 0; row < run.height; ++row)
            for (Index column = 0; column < run.width; ++column)
              walk.add(time, time + static_cast<Real>(row - (run.height - 1) / 2),
                       time + static_cast<Real>(column - (run.width - 1) / 2));
        }
        walk.prompt.next = first + static_cast<Real>(run.frames - 1) * run.frame_step + 1;
      });
}

/// Positions of HunYuan VL. A token has four coordinates, (position, width, height, image), or only the last
/// three if `axes` is 3. Each belongs to one section of the model. All coordinates of a text token are its
/// index in the prompt. A token of an image has
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
template <class Integer = std::int64_t, class Runs = std::vector<prompt_run>>  // compiled only if called
prompt_positions<Integer> hunyuan_vl_positions(const std::type_identity_t<Runs>& runs, Index axes) {
  constexpr const char* function = "hunyuan_vl_positions";
  if (axes != 3 && axes != 4) detail::throw_invalid(function, "axes must be 3 or 4, got ", axes);
  detail::tokens_of_prompt(function, runs);
  Runs with_ends = runs;  // includes the token that ends each row of an image
  for (auto& run : with_ends) {
    if (!run.is_vision) continue;
    vision_run& image = run.vision;
    if (image.frames > 1) detail::throw_invalid(function, "an image must be one frame, got ", image.frames);
    if (image.frames > 0 && image.height > 0 && image.width > 0) ++image.width;
  }
  const Index tokens = detail::tokens_of_prompt(function, with_ends);
  prompt_positions<Integer> prompt{{tokens, axes}, static_cast<Integer>(tokens)};
  for (Index axis = 0; axis < axes; ++axis)
    for (Index token = 0; token < tokens; ++token)
      prompt.coordinates(token, axis) = static_cast<Integer>(token);
  Index token = 0, images = 0;
  for (const auto& run : with_ends) {
    token += run.text.tokens;
    const vision_run& image = run.vision;
    if (image.frames == 0 || image.height == 0 || image.width == 0) continue;
    for (Index row = 0; row < image.height; ++row)
      for (Index column = 0; column < image.width; ++column, ++token) {
        prompt.coordinates(token, axes - 3) = static_cast<Integer>(column);
        prompt.coordinates(token, axes - 2) = static_cast<Integer>(row);
        prompt.coordinates(token, axes - 1) = static_cast<Integer>(images);
      }
    ++images;
  }
  return prompt;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_MULTIMODAL_POSITIONS_HPP
