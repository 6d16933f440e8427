// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_HPP
#define ROPE_ATTENTION_HPP

/// Attention to rotated or unrotated keys: masks, windows and other options, gradients, weights, and merging
/// of partial results.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/attention/attention.hpp>
#include <rope/attention/dropout.hpp>
#include <rope/attention/gradient.hpp>
#include <rope/attention/merge.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/score_view.hpp>
#include <rope/attention/tape.hpp>
#include <rope/attention/weight_sums.hpp>
#include <rope/attention/weights.hpp>
#include <rope/base/scratch.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/selected_keys.hpp>

#endif  // ROPE_ATTENTION_HPP
