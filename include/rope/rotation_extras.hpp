// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_EXTRAS_HPP
#define ROPE_ROTATION_EXTRAS_HPP

/// The headers of rotation/ that <rope/rotation.hpp> does not include: tensors of any rank and order, norms
/// of heads with their rotation, PoPE, int8 heads, the Hadamard transform, conversion of weights between
/// layouts, scaling of queries, a table per head, and gradients with respect to angles, frequencies,
/// positions, table entries and xPos.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/rotation/angle_gradient.hpp>
#include <rope/rotation/hadamard.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/permute.hpp>
#include <rope/rotation/pope.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <rope/rotation/staged.hpp>

#endif  // ROPE_ROTATION_EXTRAS_HPP
