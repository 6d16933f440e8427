// Converts a checkpoint from one pair layout to the other. It permutes rows of query and key weights, and the
// model stays the same. Values, output projections and all other tensors are copied.

#ifndef ROPE_EXAMPLES_CHECKPOINT_LAYOUT_HPP
#define ROPE_EXAMPLES_CHECKPOINT_LAYOUT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <rope/models.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "safetensors.hpp"

namespace checkpoint_layout {

using byte_rows = Eigen::Matrix<unsigned char, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Heads of a model. All layers have the same.
struct shape {
  rope::Index query_heads, key_heads, head_dim, rotary_dim;
};

inline shape shape_of(const rope::model_rope& model) {
  const rope::layer_group& of = model.groups().front();
  for (const rope::layer_group& other : model.groups())
    if (other.head_dim != of.head_dim || other.rotary_dim() != of.rotary_dim() ||
        other.first_channel != of.first_channel || other.layout != of.layout)
      throw std::runtime_error("this program does not support layers whose heads differ in size");
  if (of.first_channel != 0)
    throw std::runtime_error(
        "this program does not support heads whose last channels rotate (latent attention)");
  return {model.query_heads, model.key_heads, of.head_dim, of.rotary_dim()};
}

/// Reorders the rows of one tensor from layout From to layout To, if it makes queries or keys.
///
/// Returns true if it reordered the tensor.
template <class From, class To>
bool reorder(const std::string& name, rope::Index rows, std::vector<std::byte>& bytes, const shape& of) {
  const auto row_bytes = rows == 0 ? 0 : static_cast<rope::Index>(bytes.size()) / rows;
  Eigen::Map<byte_rows> all(reinterpret_cast<unsigned char*>(bytes.data()), rows, row_bytes);
  const auto permute = [&](rope::Index first, rope::Index count, rope::Index heads) {
    if (first + count > rows || count != heads * of.head_dim)
      throw std::runtime_error(name + " has " + std::to_string(rows) +
                               " rows, which the heads of the config do not fit");
    rope::permute_rows<From, To>(all.middleRows(first, count), heads, of.rotary_dim);
  };
  const auto is = [&name](const char* part) { return name.find(part) != std::string::npos; };
  const rope::Index queries = of.query_heads * of.head_dim, keys = of.key_heads * of.head_dim;
  if (is(".qkv_proj.")) {  // Phi-3: all of q, then k, then v
    permute(0, queries, of.query_heads);
    permute(queries, keys, of.key_heads);
  } else if (is(".query_key_value.")) {  // GPT-NeoX: q, k and v of one head, then of the next
    for (rope::Index h = 0; h < of.query_heads; ++h)
      for (const rope::Index part : {3 * h, 3 * h + 1}) permute(part * of.head_dim, of.head_dim, 1);
  } else if (is(".q_norm.") || is(".k_norm.")) {  // of one head, or of all
    permute(0, rows, rows / of.head_dim);
  } else if (is(".q_proj.")) {
    permute(0, rows, of.query_heads);
  } else if (is(".k_proj.")) {
    permute(0, rows, of.key_heads);
  } else {
    return false;
  }
  return true;
}

/// Throws unless `reorder` knows the queries and the keys of every layer that rotates.
inline void demand_known_names(const rope::model_rope& model, const std::vector<std::string>& names) {
  for (rope::Index layer = 0;; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto has = [&](const char* end) {
      return std::ranges::any_of(names, [&](const std::string& name) {
        return name.find(prefix) != std::string::npos && name.ends_with(end);
      });
    };
    if (layer > 0 && !has("")) return;
    if (model.group_of_layer(layer) != nullptr && !has(".qkv_proj.weight") &&
        !has(".query_key_value.weight") && !(has(".q_proj.weight") && has(".k_proj.weight")))
      throw std::runtime_error("layer " + std::to_string(layer) +
                               " must have q_proj and k_proj, qkv_proj or query_key_value: this program "
                               "knows no other names of queries and keys");
  }
}

/// The layout that `convert` has written into a config. Few classes of transformers read this key, so
/// import_hugging_face takes the layout of the class unless the caller passes this one.
inline std::optional<rope::layout_kind> converted_layout(const nlohmann::json& config) {
  const auto at = config.find("rope_interleave");
  if (at == config.end() || !at->is_boolean()) return std::nullopt;
  return at->get<bool>() ? rope::layout_kind::interleaved : rope::layout_kind::half_split;
}

/// Writes folder `to` with the weights of folder `from` in another layout, its config with that layout, and
/// its tokenizer.
///
/// Returns how many tensors were reordered.
/// Throws:  std::runtime_error if the model has that layout already, or unknown heads. Nothing is written
///          then, except if a weight has other rows than its heads: the new file then ends before it
inline int convert(const std::filesystem::path& from, const std::filesystem::path& to,
                   rope::layout_kind layout) {
  nlohmann::json config;
  std::ifstream(from / "config.json") >> config;
  const rope::model_rope model = rope::import_hugging_face(config, {.layout = converted_layout(config)});
  if (model.groups().front().layout == layout)
    throw std::runtime_error(std::string("the weights are ") + rope::name_of(layout) + " already");
  const shape of = shape_of(model);
  const safetensors weights(from);
  demand_known_names(model, weights.names());
  std::filesystem::create_directories(to);
  if (std::filesystem::equivalent(from, to)) throw std::runtime_error("the two folders must differ");
  int reordered = 0;
  weights.copy_to(
      to / "model.safetensors", [&](const std::string& name, const safetensors::shape_type& extents,
                                    std::size_t, std::vector<std::byte>& bytes) {
        const rope::Index rows = extents.empty() ? 1 : extents[0];
        reordered += rope::with_layout(layout, [&](auto target) {
          using To = decltype(target);
          using From =
              std::conditional_t<std::is_same_v<To, rope::interleaved>, rope::half_split, rope::interleaved>;
          return reorder<From, To>(name, rows, bytes, of);
        });
      });
  config["rope_interleave"] = layout == rope::layout_kind::interleaved;
  std::ofstream(to / "config.json") << config.dump(2) << '\n';
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"})
    if (std::filesystem::exists(from / name))
      std::filesystem::copy_file(from / name, to / name, std::filesystem::copy_options::overwrite_existing);
  return reordered;
}

}  // namespace checkpoint_layout

#endif  // ROPE_EXAMPLES_CHECKPOINT_LAYOUT_HPP
