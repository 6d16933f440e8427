// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_HPP
#define ROPE_FREQUENCIES_HPP

/// Computes inv_freq of every channel pair, with the schedules of context extension and the axes of images
/// and videos.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/ggml_frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/frequencies/vision_axes.hpp>

#endif  // ROPE_FREQUENCIES_HPP
