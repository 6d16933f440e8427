// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_HPP
#define ROPE_ROTATION_HPP

/// Everything for a program that only rotates: frequencies with the common schedules and axes, positions,
/// tables, layouts, views of heads, rotation, its inverse and its gradient. rotation_extras.hpp has the rest
/// of rotation/.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/base/parallel.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/gradient.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

#endif  // ROPE_ROTATION_HPP
