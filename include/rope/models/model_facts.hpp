// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_MODEL_FACTS_HPP
#define ROPE_MODELS_MODEL_FACTS_HPP

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/query_scaling.hpp>

/// Facts about a model, except how each of its layers rotates.

namespace rope::inline ROPE_ABI {

/// A rule of rotation/query_scaling.hpp that is chosen at run time, for example by a model file. Without a
/// rule every factor is 1.
///
///     const query_scaling rule{log_n_query_scaling{.train_length = 2048}};
///     if (!rule.is_one()) scale_queries(q, rule, start);
///
/// Throws:  as its rule does
struct query_scaling {
  /// The rule, or none.
  std::variant<std::monostate, log_n_query_scaling, llama4_query_scaling> rule = {};

  /// True if there is no rule.
  bool is_one() const { return rule.index() == 0; }

  /// The factor of a query at `position`.  Throws: as the rule
  double operator()(std::int64_t position) const {
    if (const auto* log_n = std::get_if<log_n_query_scaling>(&rule)) return (*log_n)(position);
    if (const auto* llama4 = std::get_if<llama4_query_scaling>(&rule)) return (*llama4)(position);
    return 1;
  }
};

/// In model_rope::windows: the attention window of a layer is unknown.
inline constexpr Index not_known_window = -1;

/// Whether a layer rotates.
enum class layer_rotation {
  in_group,  ///< its rotation is in model_rope::group_of_layer
  none,      ///< it does not rotate
  not_known  ///< there is no such layer, or it is not known how it rotates
};

/// Whether model_rope::attention_of_layer returns the options of a layer.
enum class layer_attention {
  in_options,  ///< it returns all of them
  in_chunks,   ///< it needs the key ranges of chunks, which rotate_layer makes (Llama 4)
  not_known    ///< there is no such layer, or the file does not describe its window or scale
};

/// Which layers multiply their queries by model_rope::query_rule.
enum class scaled_queries { none, every_layer, layers_without_rope, not_known };

/// Facts about a model, except how each of its layers rotates.
///
///     const model_facts facts = {.source = "my file", .architecture = "mine", .max_position = 8192};
struct model_facts {
  std::string source = {};                          // "Hugging Face" or "GGUF"
  std::string architecture = {};                    // model_type or general.architecture
  Index query_heads = 0;                            // of a layer; 0: unknown
  Index key_heads = 0;                              // of a layer; 0: unknown
  double max_position = 0;                          // longest context the model declares; 0: unknown
  double sliding_window = 0;                        // tokens of the sliding window; 0: none or unknown
  std::vector<Index> windows = {not_known_window};  // attention_options::window per layer, or one for all
  Index window_of_sliding = not_known_window;       // attention_options::window of sliding layers, if any
  std::string no_window_because = {};               // why the window of an attending layer is unknown
  bool causal = true;                               // false: tokens also attend to later tokens
  bool sink_logits = false;                         // the checkpoint has attention_options::sink_logits
  std::vector<Index> layers_without_sinks = {};     // layers without sink logits, in increasing order
  bool keys_are_values = false;                     // true: un-rotate attention's output (DeepSeek V4)
  query_scaling query_rule = {};                    // the factor on queries in addition to their rotation
  scaled_queries scaled = scaled_queries::none;     // the layers that multiply by this factor
  std::vector<std::string> warnings = {};           // about keys not understood, assumed, renamed or left out
  Index attention_chunk = 0;                        // tokens of a chunk, for layers that attend in chunks
                                                    // (model_rope::chunk_of_layer); 0: none or unknown
};

/// How an import treats a model in which no layer rotates.
enum class model_without_rope {
  refuse,   ///< it throws and gives the reason
  describe  ///< it returns a model_rope without groups: model_rope::instead_of_rope names what it has
            ///< instead. Of its attention only the number of heads and the longest context are known
};

/// Information that a model file lacks.
///
///     const model_rope model = import_hugging_face(json, {.length = 32768});
struct import_options {
  /// The number of tokens of context in a sequence. The frequencies of some rules depend on it. 0 means a
  /// short sequence, which has their initial frequencies.
  double length = 0;
  /// The layout of the weights, if it is not that of the architecture or the architecture is unknown.
  std::optional<layout_kind> layout = {};
  /// Whether a model in which no layer rotates, such as GPT-2, throws or is described.
  model_without_rope without_rope = model_without_rope::refuse;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_MODEL_FACTS_HPP
