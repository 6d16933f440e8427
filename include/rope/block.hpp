// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_HPP
#define ROPE_BLOCK_HPP

/// A whole attention layer: projections, norms, rotation, attention and cache, forward and backward.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/block/gradient.hpp>
#include <rope/block/multi_head_attention.hpp>
#include <rope/block/projected_context.hpp>
#include <rope/block/weights.hpp>

#endif  // ROPE_BLOCK_HPP
