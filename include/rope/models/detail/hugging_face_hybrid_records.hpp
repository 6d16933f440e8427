// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_HYBRID_RECORDS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_HYBRID_RECORDS_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/record_rules.hpp>
#include <rope/rotation/layout.hpp>

/// The records of hugging_face_records.hpp some of whose layers do not attend at all.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// nullptr where there is none.
template <class Record>
const Record* hugging_face_hybrid_record_of(std::string_view architecture) {
  using enum score_scale;
  using enum which_slide;
  static constexpr Record records[] = {
      {.architecture = "bamba",
       .partial_rotary_factor = 0.5,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_list = "attn_layer_indices"},
      {.architecture = "granitemoehybrid",
       .others_attend = false,
       .scale = attention_multiplier,
       .scale_number = 1,
       .turns_if = "position_embedding_type"},
      {.architecture = "lfm2",
       .base = 1e6,
       .other_type = "conv",
       .others_attend = false,
       .full_list = "full_attn_idxs",
       .full_every = 1},
      {.architecture = "lfm2moe",
       .base = 1e6,
       .other_type = "conv",
       .others_attend = false,
       .full_list = "full_attn_idxs",
       .full_every = 1},
      {.architecture = "minimax",
       .base = 1e6,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 2,
       .slides = every},
      {.architecture = "olmohybrid",
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3,
       .last_full = true,
       .turns_if = "rope_parameters"},
      {.architecture = "qwen35",
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3,
       .mrope_interleaved = true,
       .mrope_side = 11},
      {.architecture = "qwen35moe",
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3,
       .mrope_interleaved = true,
       .mrope_side = 11},
      {.architecture = "qwen38flashnext",
       .base = 1e7,
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3,
       .indexer = indexer_turn::first_half_split,
       .indexer_key = "indexer_head_dim",
       .mrope_interleaved = true,
       .mrope_side = 11,
       .note = "the indexer rotates the mean of indexer_compress_ratio keys, by the position of the first"},
      {.architecture = "qwen3next",
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3},
      {.architecture = "qwen4exp",
       .base = 1e7,
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .other_type = "linear_attention",
       .others_attend = false,
       .full_every = 4,
       .full_offset = 3,
       .indexer = indexer_turn::first_half_split,
       .indexer_key = "indexer_head_dim",
       .mrope_interleaved = true,
       .mrope_side = 11,
       .note = "the indexer rotates the mean of indexer_compress_ratio keys, by the position of the first"},
      {.architecture = "zamba2",
       .double_head = true,
       .full_type = "hybrid",
       .others_attend = false,
       .scale = half_head,
       .turns_if = "use_mem_rope"},
  };
  static_assert(keep_the_rules(records), "record_rules.hpp says which fields go together");
  for (const Record& record : records)
    if (record.architecture == architecture) return &record;
  return nullptr;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_HYBRID_RECORDS_HPP
