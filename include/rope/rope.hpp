// SPDX-License-Identifier: MIT
#ifndef ROPE_ROPE_HPP
#define ROPE_ROPE_HPP

/// Rotary position embeddings: the whole library, one door for each of its rooms (see README.md beside this
/// file).

#include <rope/config.hpp>  // first: what is wrong with the compiler is said in one sentence

#include <rope/attention.hpp>
#include <rope/block.hpp>
#include <rope/cache.hpp>
#include <rope/frequencies.hpp>
#include <rope/models.hpp>
#include <rope/positions.hpp>
#include <rope/rotation.hpp>
#include <rope/tables.hpp>
#include <rope/version.hpp>

#endif  // ROPE_ROPE_HPP
