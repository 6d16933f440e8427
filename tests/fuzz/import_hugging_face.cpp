// SPDX-License-Identifier: MIT
// config.json of any bytes, and changed real ones: an import gives a model that keeps its promises, or
// throws.
#include <rope/models/hugging_face.hpp>

#include <cstddef>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/model_files.hpp"

namespace {

using fuzz::json;

rope::hugging_face_options draw_options(fuzz::bytes& b) {
  rope::hugging_face_options options{.without_rope = rope::model_without_rope::describe};
  if (b.one_in(3)) options.length = b.one_in(8) ? b.real() : 200000;
  if (b.coin()) options.layout = b.coin() ? rope::layout_kind::half_split : rope::layout_kind::interleaved;
  return options;
}

}  // namespace

/// Every original unchanged.
extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  for (const json& file : fuzz::all_configs())
    fuzz::check_import([&] { return rope::import_hugging_face(file); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size > 0 && data[0] == '{') {
    const json file = json::parse(data, data + size, nullptr, false);
    if (!file.is_discarded()) fuzz::check_import([&] { return rope::import_hugging_face(file); });
    return 0;
  }
  fuzz::bytes b(data, size);
  const rope::hugging_face_options options = draw_options(b);
  json file = fuzz::spoiler(b, fuzz::all_configs()).spoilt();
  const fuzz::planted_key planted = b.coin() ? fuzz::plant(b, file) : fuzz::planted_key();
  fuzz::check_import([&] { return rope::import_hugging_face(file, options); }, planted);
  return 0;
}
