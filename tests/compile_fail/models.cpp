// SPDX-License-Identifier: MIT

#include <optional>
#include <string>
#include <vector>

#include <rope/models.hpp>
#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

/// An object that reads a GGUF file.
struct file {
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::vector<double>> numbers(const std::string& key) const;
};

template <rope::json_like J>
rope::model_rope of_config(const J& config) {
  return rope::import_hugging_face(config);
}
#ifdef CONFIG_BY_ITS_PATH
// EXPECT: error: .*import_hugging_face: config is a parsed file, not its path or text
rope::model_rope of_path() { return rope::import_hugging_face("config.json"); }
#endif

void of_gguf(const file& opened) {
  rope::import_gguf(opened);
#ifdef GGUF_BY_ITS_PATH
  // EXPECT: error: .*import_gguf: lookup is an object that reads the file, not its path
  rope::import_gguf(std::string("model.gguf"));
#endif
}

void layers(const rope::model_rope& model, rope::head_view<float> q, Eigen::Tensor<float, 4>& k) {
  const rope::model_tables<float> tables(model, 64);
#ifdef TABLE_OF_A_MODEL
  // EXPECT: error: .*frequency_table: frequencies come first, .*the tables of a model are model_tables\(model, count\)
  const rope::frequency_table<float> table(model, 64);
#endif
  rope::rotate_layer(tables, 0, q, rope::dhsb(k), 3);
#ifdef LAYER_OF_A_TENSOR
  // EXPECT: error: .*rotate_layer: x must be a head_view; name the order of its axes
  rope::rotate_layer(tables, 0, q, k, 3);
#endif
}
