// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_HPP
#define ROPE_POSITIONS_HPP

/// Where is a token? This door opens lists and maps of positions, grids of images and videos, sequences of
/// text and images.

#include <rope/config.hpp>  // first: what is wrong with the compiler is said in one sentence

#include <rope/positions/grid_positions.hpp>
#include <rope/positions/hunyuan_positions.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/positions/omni_positions.hpp>
#include <rope/positions/position_maps.hpp>
#include <rope/positions/positions.hpp>
#include <rope/positions/token_order.hpp>

#endif  // ROPE_POSITIONS_HPP
