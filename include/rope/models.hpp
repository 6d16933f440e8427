// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_HPP
#define ROPE_MODELS_HPP

/// The rotary embedding of a released model, from its config.json or the metadata of its GGUF file.

#include <rope/config.hpp>  // first: reports an unsupported compiler in one sentence

#include <rope/models/describe.hpp>
#include <rope/models/gguf.hpp>
#include <rope/models/hugging_face.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/models/rotate_layer.hpp>
#include <rope/models/tables.hpp>

#endif  // ROPE_MODELS_HPP
