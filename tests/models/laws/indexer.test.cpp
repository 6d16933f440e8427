// SPDX-License-Identifier: MIT
// The indexers of sparse attention that a file describes. Their layouts are in recorded/models/.
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"

namespace {

using testing::json;

bool has(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts)
    if (text.find(part) != std::string::npos) return true;
  return false;
}
rope::model_rope hugging_face(const char* model_type) {
  return rope::import_hugging_face(json{{"model_type", model_type},
                                        {"qk_nope_head_dim", 128},
                                        {"qk_rope_head_dim", 64},
                                        {"index_head_dim", 128}});
}
rope::model_rope gguf(const char* architecture, bool named = true) {
  json entries = {
      {".attention.head_count", 4}, {".attention.key_length_mla", 192}, {".rope.dimension_count", 64}};
  if (named) entries[".attention.indexer.key_length"] = 128;
  return rope::import_gguf(testing::gguf(architecture, entries));
}

}  // namespace

TEST_CASE("an indexer with too little known about it has a warning", "[models][indexer]") {
  CHECK(has(hugging_face("deepseek_v3").warnings,
            "index_head_dim is that of an indexer; what it rotates is not known"));
  CHECK_FALSE(hugging_face("deepseek_v3").groups()[0].indexer.has_value());
  CHECK_FALSE(has(hugging_face("deepseek_v32").warnings, "indexer"));
  CHECK(has(gguf("deepseek2").warnings, "deepseek2.attention.indexer.key_length is that of an indexer"));
  CHECK(has(gguf("glm-dsa", false).warnings, "glm-dsa.attention.indexer.key_length is missing"));
  CHECK_FALSE(has(gguf("glm-dsa").warnings, "indexer"));
}

TEST_CASE("descriptions name the rotation of an indexer, and report its differences between two files",
          "[models][indexer][describe]") {
  CHECK(
      describe(hugging_face("deepseek_v32"))
          .find(
              "  indexer                 rotate<half_split>(heads.channels(0, 64), table), its heads having "
              "128 channels\n") != std::string::npos);
  CHECK(describe(hugging_face("deepseek_v3")).find("  indexer ") == std::string::npos);
  const auto found = compare_models(hugging_face("deepseek_v32"), gguf("glm-dsa"));
  CHECK(has(found, "the indexer is rotated by rotate<half_split>"));
  CHECK(has(found, "in Hugging Face and by rotate<interleaved>(heads.channels(0, 64)"));
  CHECK_FALSE(has(compare_models(hugging_face("deepseek_v32"), gguf("deepseek32")), "indexer"));
}
