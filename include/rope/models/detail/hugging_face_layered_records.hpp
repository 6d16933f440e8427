// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERED_RECORDS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERED_RECORDS_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/rotation/layout.hpp>

/// The records of hugging_face_records.hpp whose layers are of more than one kind.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// nullptr where there is none.
inline const hugging_face_record* hugging_face_layered_record_of(std::string_view architecture) {
  using enum layout_kind;
  using enum score_scale;
  using enum which_slide;
  static constexpr hugging_face_record records[] = {
      {.architecture = "afmoe",
       .maybe_head_dim = 128,
       .full_every = 4,
       .full_offset = 3,
       .full_rotate = false,
       .sliding_window = -1},
      {.architecture = "cohere2",
       .layout = interleaved,
       .full_every = 4,
       .full_offset = 3,
       .full_rotate = false,
       .sliding_window = 4096},
      {.architecture = "cohere2moe",
       .layout = interleaved,
       .head_dim = 128,
       .full_every = 4,
       .full_offset = 3,
       .dense_first = true,
       .full_rotate = false,
       .sliding_window = 4096},
      {.architecture = "diffusiongemma",
       .head_dim = 256,
       .full_head_dim = 512,
       .full_every = 6,
       .full_offset = 5,
       .scale = one,
       .own_rule = true},
      {.architecture = "exaone4", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "exaone45", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "exaonemoe", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "gemma2",
       .head_dim = 256,
       .full_every = 2,
       .full_offset = 1,
       .scale = query_pre_attn_scalar,
       .scale_number = 256,
       .softcap = 50},
      {.architecture = "gemma3",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5,
       .scale = query_pre_attn_scalar,
       .scale_number = 256},
      {.architecture = "gemma3n",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 5,
       .full_offset = 4,
       .scale = one},
      {.architecture = "gemma4",
       .head_dim = 256,
       .full_head_dim = 512,
       .full_every = 6,
       .full_offset = 5,
       .scale = one,
       .own_rule = true},
      {.architecture = "gemma4unified",
       .head_dim = 256,
       .full_head_dim = 512,
       .full_every = 6,
       .full_offset = 5,
       .scale = one,
       .own_rule = true},
      {.architecture = "gptoss",
       .base = 150000,
       .head_dim = 64,
       .full_every = 2,
       .full_offset = 1,
       .sink_logits = true,
       .own_rule = true},
      {.architecture = "granitemoehybrid",
       .full_type = "attention",
       .other_type = "mamba",
       .others_attend = false,
       .scale = attention_multiplier,
       .scale_number = 1,
       .turns_if = "position_embedding_type"},
      {.architecture = "llama4", .layout = interleaved, .base = 500000, .head_dim = 128, .no_rope_every = 4},
      {.architecture = "modernbert", .base = 160000, .local_base = 10000, .full_every = 3, .causal = false},
      {.architecture = "modernbertdecoder", .base = 160000, .local_base = 10000, .full_every = 3},
      {.architecture = "olmo3", .base = 500000, .local_base = 500000},
      {.architecture = "olmohybrid",
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3,
       .turns_if = "rope_parameters"},
      {.architecture = "smollm3",
       .base = 2e6,
       .no_rope_every = 4,
       .slides = not_known,
       .slides_if_asked = true},
      {.architecture = "t5gemma2",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5,
       .scale = query_pre_attn_scalar,
       .scale_number = 256},
      {.architecture = "t5gemma2decoder",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5,
       .scale = query_pre_attn_scalar,
       .scale_number = 256},
      {.architecture = "zamba2",
       .double_head = true,
       .full_type = "hybrid",
       .other_type = "mamba",
       .others_attend = false,
       .scale = half_head,
       .turns_if = "use_mem_rope"},
  };
  for (const hugging_face_record& record : records)
    if (record.architecture == architecture) return &record;
  return nullptr;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERED_RECORDS_HPP
