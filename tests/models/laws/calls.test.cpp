// SPDX-License-Identifier: MIT
// The calls that README.md and include/rope/README.md list for models, as they are written there:
// tests/readme.cmake.
#include <algorithm>
#include <cstdint>
#include <rope/models.hpp>
#include <rope/rope.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"

TEST_CASE("calls of the pages: models", "[models]") {
  const testing::json json = testing::config("llama_3_1_8b");
  std::vector<float> memory(3 * 3 * 128, 1.0f), result(3 * 128), expected(3 * 128);
  const auto part = [&](std::size_t i) { return rope::thd(memory.data() + i * 3 * 128, 3, 1, 128); };
  const rope::head_view<float> q = part(0), k = part(1), v = part(2),
                               out = rope::thd(result.data(), 3, 1, 128);
  const std::int64_t start = 5;
  const rope::Index layer = 0;

  const rope::model_rope model = rope::import_hugging_face(json);  // what was not understood: model.warnings
  const rope::model_tables tables(model, 8192);  // cos and sin of every layer, once per model

  rope::attention(q, k, v, out, rope::rotate_layer(tables, layer, q, k, start));

  CHECK(memory[0] != 1);
  const rope::layer_group* group = model.group_of_layer(layer);
  REQUIRE(group);
  std::fill(memory.begin(), memory.end(), 1.0f);
  rope::rotate<rope::half_split>(q, k, rope::frequency_table(group->frequencies, 8192), start);
  rope::attention(q, k, v, rope::thd(expected.data(), 3, 1, 128), model.attention_of_layer(layer));
  CHECK(result == expected);
  const testing::gguf_file lookup = testing::gguf(
      "llama", {{".attention.head_count", 32}, {".embedding_length", 4096}, {".block_count", 32}});
  CHECK(rope::import_gguf(lookup).groups()[0].rotary_dim() == 128);
}
