// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_HPP
#define ROPE_MODELS_HPP

/// Which of all this is my model? This door opens the rotary embedding of a config.json or a GGUF file.

#include <rope/config.hpp>  // first: what is wrong with the compiler is said in one sentence

#include <rope/models/axes.hpp>
#include <rope/models/describe.hpp>
#include <rope/models/gguf.hpp>
#include <rope/models/hugging_face.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/models/rotate_layer.hpp>
#include <rope/models/tables.hpp>

#endif  // ROPE_MODELS_HPP
