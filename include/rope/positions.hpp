// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_HPP
#define ROPE_POSITIONS_HPP

/// The position of every token: lists, starts and segments, grids of images and videos, prompts of text and
/// images, and position maps.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/positions/grid_positions.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/positions/omni_positions.hpp>
#include <rope/positions/position_maps.hpp>
#include <rope/positions/positions.hpp>
#include <rope/positions/selected_keys.hpp>
#include <rope/positions/token_order.hpp>

#endif  // ROPE_POSITIONS_HPP
