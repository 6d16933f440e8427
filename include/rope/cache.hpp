// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_HPP
#define ROPE_CACHE_HPP

/// Caches of keys and values: growing, ring and latent caches, pages, and attention to them.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/cache/attended_rows.hpp>
#include <rope/cache/attention.hpp>
#include <rope/cache/describe.hpp>
#include <rope/cache/growing_cache.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/page_calls.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/cache/page_weights.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/cache/shift_keys.hpp>
#include <rope/cache/token_cache.hpp>
#include <rope/cache/weights.hpp>

#endif  // ROPE_CACHE_HPP
