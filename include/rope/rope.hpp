// SPDX-License-Identifier: MIT
#ifndef ROPE_ROPE_HPP
#define ROPE_ROPE_HPP

/// Rotary position embeddings: the whole library.

#include <rope/attention.hpp>
#include <rope/attention_gradient.hpp>
#include <rope/attention_merge.hpp>
#include <rope/attention_options.hpp>
#include <rope/attention_weights.hpp>
#include <rope/axes.hpp>
#include <rope/cache_policy.hpp>
#include <rope/cached_attention.hpp>
#include <rope/config.hpp>
#include <rope/describe.hpp>
#include <rope/dropout.hpp>
#include <rope/fourier.hpp>
#include <rope/frequencies.hpp>
#include <rope/given_table.hpp>
#include <rope/gradient.hpp>
#include <rope/grid_positions.hpp>
#include <rope/import_gguf.hpp>
#include <rope/import_hugging_face.hpp>
#include <rope/kv_cache.hpp>
#include <rope/layout.hpp>
#include <rope/model_axes.hpp>
#include <rope/model_rope.hpp>
#include <rope/model_tables.hpp>
#include <rope/multi_head_attention.hpp>
#include <rope/multi_head_attention_gradient.hpp>
#include <rope/multi_head_weights.hpp>
#include <rope/multimodal_positions.hpp>
#include <rope/owned_array.hpp>
#include <rope/parallel.hpp>
#include <rope/permute.hpp>
#include <rope/phase.hpp>
#include <rope/polar.hpp>
#include <rope/position_maps.hpp>
#include <rope/positions.hpp>
#include <rope/query_key_tables.hpp>
#include <rope/ring_cache.hpp>
#include <rope/rotate.hpp>
#include <rope/rotate_heads.hpp>
#include <rope/scaling.hpp>
#include <rope/scaling_variants.hpp>
#include <rope/scratch.hpp>
#include <rope/table.hpp>
#include <rope/temperature.hpp>
#include <rope/token_order.hpp>
#include <rope/version.hpp>
#include <rope/video_axes.hpp>
#include <rope/view.hpp>
#include <rope/vision_axes.hpp>
#include <rope/xpos.hpp>
#include <rope/xpos_gradient.hpp>

#endif  // ROPE_ROPE_HPP
