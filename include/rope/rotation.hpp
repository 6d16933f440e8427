// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_HPP
#define ROPE_ROTATION_HPP

/// Turn! What a program that only rotates needs: frequencies and the common schedules, positions, tables,
/// rotation and its gradient, and the permutation of weights between layouts.

#include <rope/config.hpp>  // first: what is wrong with the compiler is said in one sentence

#include <rope/base/parallel.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/longrope.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/hadamard.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/head_norm_gradient.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/permute.hpp>
#include <rope/rotation/pope.hpp>
#include <rope/rotation/quantize.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <rope/rotation/view.hpp>
#include <rope/rotation/xpos_gradient.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

#endif  // ROPE_ROTATION_HPP
