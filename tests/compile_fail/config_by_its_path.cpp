// SPDX-License-Identifier: MIT
// EXPECT: error: .*import_hugging_face: config is a parsed file, not its path or text

#include <rope/models.hpp>

#ifdef SHOULD_FAIL
rope::model_rope test() { return rope::import_hugging_face("config.json"); }
#else
template <rope::json_like J>
rope::model_rope test(const J& config) {
  return rope::import_hugging_face(config);
}
#endif
