// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_OMNI_POSITIONS_HPP
#define ROPE_POSITIONS_OMNI_POSITIONS_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/positions/multimodal_positions.hpp>

/// The (time, height, width) of every token of a prompt with videos that have sound (TMRoPE). Tokens of
/// frames and of sound alternate in time order. The unit of time is the duration of one token of sound.

namespace rope::inline ROPE_ABI {

/// A video with sound, between two opening and two closing tokens. Sound without video is a text_run, and so
/// are the tokens around an image or a silent video.
///
///     const sounding_video_run clip = {.video = merged_patches(30, 16, 24, 2, 25.0), .audio_tokens = 750};
struct sounding_video_run {
  vision_run video;        // its frame_step: position_id_per_seconds * second_per_grid
  Index audio_tokens = 0;  // of the sound, not negative
};

/// A run of a prompt with sound: text, one image or silent video, or one video with sound.
///
///     for (const omni_run& run : runs)
///       if (run.has_sound) encode_sound(run.audio_tokens);
struct omni_run : prompt_run {
  bool has_sound = false;  // whether it is a video with sound
  Index audio_tokens = 0;  // of the sound

  /// Text, or sound without video; an image or a silent video.
  using prompt_run::prompt_run;
  /// A video with sound.
  omni_run(const sounding_video_run& run)
      : prompt_run(run.video), has_sound(true), audio_tokens(run.audio_tokens) {}
};

namespace detail {

/// The end of a chunk: the first token from `first` on whose time is at least end_time, or `tokens` if there
/// is no such token.
template <class TimeOf>
Index end_of_chunk(Index first, Index tokens, std::int64_t end_time, const TimeOf& time_of) {
  Index i = (std::min)(first, tokens);
  while (i < tokens && time_of(i) < end_time) ++i;
  return i;
}

inline Index tokens_of_run(const char* function, const omni_run& run) {
  const Index video = tokens_of_run(function, static_cast<const prompt_run&>(run));
  if (!run.has_sound) return video;
  const Index both = with_tokens_before(function, video, tokens_of_run(function, text_run{run.audio_tokens}));
  return with_tokens_before(function, both, 4);  // two opening and two closing tokens
}

/// walk_prompt with images and videos as in qwen_vl_positions. The next position is one after the largest
/// coordinate.
template <class Scalar, class Runs, class AddBoth>
prompt_positions<Scalar> walk_omni_prompt(const char* function, const Runs& runs, Scalar start,
                                          const AddBoth& add_both) {
  const auto add_vision = [](auto& walk, const vision_run& run) { walk.add_vision(run); };
  return continued_past_largest(walk_prompt<Scalar>(function, runs, start, add_vision, add_both));
}

}  // namespace detail

/// Positions of Qwen2.5-Omni, in which chunks of video and sound alternate.
///
///     text, image, video:  as qwen_vl_positions
///     a video with sound:  both opening tokens at start; frames and sound from start + 1 on: chunk 1 of the
///                          frames, chunk 1 of the sound, chunk 2 of the frames, ...; both closing tokens one
///                          after the largest coordinate of the last chunk
///
///     const std::vector<omni_run> runs = {text_run{3}, sounding_video_run{{2, 1, 2, 25}, 50}, text_run{2}};
///     const auto prompt = qwen2_5_omni_positions(runs);
///     rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
///
/// \param chunk  positions of a chunk: int(position_id_per_seconds * seconds_per_chunk), 50 in the released
///               model
///
/// Throws:  as qwen_vl_positions; std::invalid_argument unless chunk is from 1 to 2^53
/// Source:  Xu et al. 2025, Qwen2.5-Omni, arXiv:2503.20215; get_rope_index of Hugging Face transformers
template <class Integer = std::int64_t>
prompt_positions<Integer> qwen2_5_omni_positions(const std::vector<omni_run>& runs,
                                                 std::type_identity_t<Integer> start = 0,
                                                 std::int64_t chunk = 50) {
  if (chunk < 1 || chunk > (std::int64_t{1} << 53))
    detail::throw_invalid("qwen2_5_omni_positions", "chunk must be from 1 to 2^53, got ", chunk);
  return detail::walk_omni_prompt<Integer>(
      "qwen2_5_omni_positions", runs, start, [&](auto& walk, const omni_run& run) {
        const Integer opened = walk.prompt.next, first = opened + 1;
        walk.add(opened);
        walk.add(walk.last = opened);
        const Index pictures = detail::tokens_of_run("qwen2_5_omni_positions", run.vision);
        const auto time_of = [&](Index i) { return walk.time_of(i, run.vision); };
        const auto sound_time = [](Index i) { return std::int64_t{i}; };
        Index seen = 0, heard = 0;
        // A token whose time is several chunks later ends only one chunk. The next token ends another one.
        for (std::int64_t end = chunk; seen < pictures || heard < run.audio_tokens; end += chunk) {
          const Index least = end > chunk ? 1 : 0;
          const Index see = detail::end_of_chunk(seen + least, pictures, end, time_of);
          const Index hear = detail::end_of_chunk(heard + least, run.audio_tokens, end, sound_time);
          walk.add_video(first, run.vision, seen, see);
          walk.add_tokens(first, heard, hear);
          seen = see;
          heard = hear;
        }
        walk.add(walk.last + 1);
        walk.add(walk.last + 1);
        walk.prompt.next = walk.last + 2;
      });
}

/// Positions of Qwen3-Omni, in which tokens of video and sound alternate one by one, and frames may lie
/// between two integer positions.
///
///     text, image, video:  as qwen_vl_positions, except time = start + frame * frame_step
///     a video with sound:  the opening tokens at start and start + 1; then the earlier of the next frame
///                          token and the next sound token (at equal times the frame token); once either has
///                          ended, the rest of the other; the closing tokens one and two after that
///
///     const std::vector<omni_run> runs = {text_run{3}, sounding_video_run{{2, 1, 2, 13}, 26}, text_run{2}};
///     const auto prompt = qwen3_omni_positions(runs);
///     rotate<half_split>(queries, frequency_table(frequencies, prompt.coordinates));
///
/// Throws:  as qwen_vl_positions
/// Source:  get_rope_index of Hugging Face transformers, qwen3_omni_moe
template <class Real = double>
prompt_positions<Real> qwen3_omni_positions(const std::vector<omni_run>& runs,
                                            std::type_identity_t<Real> start = 0) {
  return detail::walk_omni_prompt<Real>(
      "qwen3_omni_positions", runs, start, [](auto& walk, const omni_run& run) {
        const Real first = walk.prompt.next + 2;
        walk.add(walk.prompt.next);
        walk.add(walk.last = first - 1);
        const Index pictures = detail::tokens_of_run("qwen3_omni_positions", run.vision);
        Index seen = 0, heard = 0;
        while (seen < pictures && heard < run.audio_tokens) {
          if (first + walk.time_of(seen, run.vision) <= first + static_cast<Real>(heard)) {
            walk.add_video(first, run.vision, seen, seen + 1);
            ++seen;
          } else {
            walk.add_tokens(first, heard, heard + 1);
            ++heard;
          }
        }
        walk.add_video(first, run.vision, seen, pictures);
        walk.add_tokens(first, heard, run.audio_tokens);
        walk.add(walk.last + 1);
        walk.add(walk.last + 2);
        walk.prompt.next = walk.last + 3;
      });
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_OMNI_POSITIONS_HPP
