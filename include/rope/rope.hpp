// SPDX-License-Identifier: MIT
#ifndef ROPE_ROPE_HPP
#define ROPE_ROPE_HPP

/// Rotary position embeddings. Includes every public header except <rope/models.hpp>. Programs that import a
/// model include that header too.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/attention.hpp>
#include <rope/block.hpp>
#include <rope/cache.hpp>
#include <rope/frequencies.hpp>
#include <rope/positions.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>
#include <rope/tables.hpp>
#include <rope/version.hpp>

#endif  // ROPE_ROPE_HPP
