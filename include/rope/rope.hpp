// SPDX-License-Identifier: MIT
#ifndef ROPE_ROPE_HPP
#define ROPE_ROPE_HPP

/// Rotary position embeddings: the whole library.

#include <rope/attention/attention.hpp>
#include <rope/attention/dropout.hpp>
#include <rope/attention/gradient.hpp>
#include <rope/attention/merge.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/weights.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/block/gradient.hpp>
#include <rope/block/multi_head_attention.hpp>
#include <rope/block/weights.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/frequencies/video_axes.hpp>
#include <rope/frequencies/vision_axes.hpp>
#include <rope/models/axes.hpp>
#include <rope/models/describe.hpp>
#include <rope/models/gguf.hpp>
#include <rope/models/hugging_face.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/models/tables.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/positions/position_maps.hpp>
#include <rope/positions/positions.hpp>
#include <rope/positions/token_order.hpp>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/permute.hpp>
#include <rope/rotation/pope.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <rope/rotation/view.hpp>
#include <rope/rotation/xpos_gradient.hpp>
#include <rope/tables/fourier.hpp>
#include <rope/tables/given_table.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>
#include <rope/tables/xpos.hpp>
#include <rope/version.hpp>

#endif  // ROPE_ROPE_HPP
