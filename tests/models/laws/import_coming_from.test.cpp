// SPDX-License-Identifier: MIT
#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <cmath>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/other_libraries.hpp"
#include "support/wide.hpp"

/// The lines of the README's tables "Coming from Hugging Face" and "Coming from ggml" that read model files.
/// See coming_from_hugging_face.test.cpp.

namespace {

using namespace rope;

/// The frequencies of Llama 3.1: factor 8, 1, 4, 8192.
testing::wide llama_3_1(Index i) {
  const testing::wide f = other::inv_freq(5e5L, i, 128);
  const testing::wide z = std::clamp<testing::wide>((8192 * f / (2 * testing::pi) - 1) / 3, 0, 1);
  return (1 - z) * f / 8 + z * f;
}

}  // namespace

TEST_CASE("transformers: the rotary embedding of a config", "[models][coming_from]") {
  const auto config = testing::config("llama_3_1_8b");  // nlohmann::json::parse of config.json
  const model_rope model = import_hugging_face(config);
  const frequency_table table(model.groups()[0].frequencies, 8192);
  CHECK(model.groups()[0].layout == layout_kind::half_split);
  CHECK(other::has_frequencies(model.groups()[0].frequencies, 64, llama_3_1));
  CHECK((table.inv_freq() == model.groups()[0].frequencies.inv_freq()).all());
  CHECK(table.attention_factor() == 1);
}

TEST_CASE("ggml: the rotary embedding of a GGUF file", "[models][coming_from]") {
  const testing::gguf_file lookup =
      testing::gguf("qwen2", {{".embedding_length", 512},
                              {".attention.head_count", 4},
                              {".context_length", 32768},
                              {".rope.freq_base", 1e6},
                              {".rope.scaling.type", "yarn"},
                              {".rope.scaling.factor", 4},
                              {".rope.scaling.original_context_length", 32768}});
  const model_rope model = import_gguf(lookup);
  CHECK(model.groups()[0].layout == layout_kind::half_split);
  CHECK(other::has_frequencies(model.groups()[0].frequencies, 64,
                               [](Index i) { return other::yarn(1e6L, i, 128, 4, 32768); }));
}
