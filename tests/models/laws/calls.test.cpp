// SPDX-License-Identifier: MIT
// The calls that README.md and include/rope/README.md list for models, as they list them: tests/readme.cmake.
#include <cmath>
#include <cstdint>
#include <rope/rope.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"

TEST_CASE("calls of the pages: models", "[models]") {
  const testing::json json = testing::config("llama_3_1_8b");
  std::vector<float> memory(3 * 128, 1.0f);
  const rope::head_view<float> q = rope::thd(memory.data(), 3, 1, 128);
  rope::attention_options options;
  const std::int64_t start = 0;

  const rope::model_rope model = rope::import_hugging_face(json);  // what was not understood: model.warnings
  const rope::layer_group* group = model.group_of_layer(0);        // nullptr: this layer does not rotate
  const rope::frequency_table table(group->frequencies, 8192);     // model_tables keeps one per group
  rope::with_layout(group->layout, [&](auto layout) {              // an enum, to the type that rotate takes
    rope::rotate<decltype(layout)>(q, table.at_channel(group->first_channel));
  });
  options = model.attention_of_layer(0);                           // window, scale, softcap, causal or not
  rope::scale_queries(q, model.query_scaling_of_layer(0), start);  // not 1 for Llama 4, Ministral 3, Qwen 1

  CHECK(memory[0] == 1);
  CHECK(memory[128] != 1);
  CHECK(options.scale == testing::Approx(1 / std::sqrt(128.0)));
  const testing::gguf_file lookup = testing::gguf(
      "llama", {{".attention.head_count", 32}, {".embedding_length", 4096}, {".block_count", 32}});
  CHECK(rope::import_gguf(lookup).groups()[0].rotary_dim() == 128);
}
