// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_CONFIG_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_CONFIG_HPP

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_architecture.hpp>
#include <rope/models/detail/hugging_face_records.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_rope.hpp>

/// The keys of a Hugging Face config.json outside its rope dictionary: whether any layer rotates, the
/// architecture and the shape of a head.

namespace rope::inline ROPE_ABI::detail {

// Models in which no layer rotates: all models of some architectures, and models of others whose file has a
// certain value.

/// Whether the value of the key record.rotates_if.key means that layers rotate.
template <class J>
bool says_that_layers_rotate(json_reader<J>& text, const hugging_face_record& record) {
  const J* value = text.find(record.rotates_if.key);
  if (!value) return false;
  if (value->is_boolean()) return value->template get<bool>();
  if (value->is_string()) return value->template get<std::string>() == record.rotates_if.word;
  const bool dictionary = value->is_object() && record.rotates_if.key == "rope_parameters";
  return dictionary && json_reader<J>(value, "").has("rope_theta");
}

/// Throws if a file specifies a rotation although its architecture has none.
///
/// Source:  Hugging Face transformers, models/kimi_linear and models/glm5_next; mlx-lm, models/kimi_linear.py
template <class J>
void check_that_nothing_rotates(json_reader<J>& text, const std::string& name,
                                const std::string& architecture) {
  const std::string but = ", but nothing rotates in the code of " + architecture + " that is known";
  if (!text.boolean("mla_use_nope").value_or(true))
    text.refuse("mla_use_nope", "is false", but,
                "; remove the key to describe the model as that code has it");
  constexpr const char* kind = "position_embedding_type";
  if (text.is_text(kind) && (*text.text(kind) == "rotary" || *text.text(kind) == "rope"))
    text.refuse(kind, "is \"", *text.text(kind), "\"", but);
  if (name == "t5" && text.has("rope_theta"))  // Chronos 2 calls itself t5
    text.refuse("rope_theta", "is given", but);
  if (const J* attention = name == "mpt" ? text.object("attn_config") : nullptr)
    if (json_reader<J>(attention, "").boolean("rope").value_or(false))
      text.refuse("attn_config.rope", "is true", but);
  const auto rotated = name == "glm5next" ? text.index("qk_rope_head_dim", range::whole) : std::nullopt;
  if (rotated.value_or(0) > 0)
    text.refuse("qk_rope_head_dim", "must be 0, for nothing rotates in the code of ", architecture,
                " that is known, got ", *rotated);
}

template <class J>
unrotated_model unrotated_model_of(json_reader<J>& text, const std::optional<hugging_face_record>& known,
                                   const std::string& architecture) {
  const std::string name = plain_architecture(architecture);
  if (const refused_architecture* refused = refused_architecture_of(name);
      refused && refused->kind == refusal::never_rotates) {
    check_that_nothing_rotates(text, name, architecture);
    return {
        std::string(refused->reason), "model_type",
        "is one in which nothing rotates: it has " + std::string(refused->reason) + ", got " + architecture};
  }
  const hugging_face_record record = known.value_or(hugging_face_record{});
  if (!record.rotates_if.key.empty() && !says_that_layers_rotate(text, record))
    return {std::string(record.rotates_if.instead), std::string(record.rotates_if.key),
            "does not say that layers rotate, and without it no layer of " + architecture +
                " does: it must be " +
                (record.rotates_if.key == "rope_parameters"
                     ? "a dictionary with rope_theta"
                     : "true or \"" + std::string(record.rotates_if.word) + "\"")};
  if (record.needs_window && text.is_null("sliding_window"))
    return {"no positions", "sliding_window",
            "is null: then no layer of " + architecture + " slides, and the others do not rotate"};
  const bool of_ling = record.names == "bailinghybrid";  // SGLang, models/bailing_moe_v3.py
  for (const auto& [key, reads] :
       {std::pair{"mla_use_nope", !known}, std::pair{"use_mla_nope", !known || of_ling}})
    if (reads && text.boolean(key).value_or(false))
      return {"no positions", key, "is true: nothing rotates in " + architecture};
  if (text.index("qk_rope_head_dim", range::whole) == 0 && (!known || known->latent || known->last_channels))
    return {"no positions", "qk_rope_head_dim", "is 0, so no channel of a head rotates"};
  if (text.boolean("alibi").value_or(false))
    return {"ALiBi biases", "alibi", "is true: this model has ALiBi biases in place of rotary embeddings"};
  if (record.names == "llada" && !text.boolean("rope").value_or(true))  // LLaDA, modeling_llada.py: wpe
    return {"learned positions", "rope", "is false: this model has learned positions"};
  if (record.alibi_layers > 0 && text.index("num_hidden_layers") == record.alibi_layers)
    return {"ALiBi biases", "num_hidden_layers",
            "is " + std::to_string(record.alibi_layers) + ": a model of " + architecture +
                " of so many layers has ALiBi biases in place of rotary embeddings"};
  return {};
}

/// Whether no layer rotates according to the types of layers in the file, or to a list of it with a value per
/// layer.
///
/// \param model   with its types and without_rope
/// \param layers  the number of layers, or nothing if unknown
template <class J>
unrotated_model unrotated_by_layers(json_reader<J>& text, const hugging_face_record& record,
                                    const model_draft& model, std::optional<Index> layers) {
  const Index count = model.types.empty() ? layers.value_or(0) : to_index(model.types.size());
  if (count == 0 || to_index(model.without_rope.size()) < count) return {};
  const std::string list(list_of_rotated(record));
  if (text.has(list)) return {"no positions", list, "must not be 0 for every layer: then none rotates"};
  for (const std::string_view key :
       {std::string_view("layer_types"), std::string_view("layers_block_type"), record.type_ones,
        record.full_list, record.pattern.key, std::string_view("sliding_window_pattern")})
    if (text.has(key))
      return {"no positions", std::string(key), "leaves no layer of " + model.architecture + " that rotates"};
  return {};  // a class default, not the file
}

/// The number of heads in the first of these keys that exists. In OpenELM each layer has its own number.
template <class J>
std::optional<Index> heads_of(json_reader<J>& text, model_draft& model,
                              std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!text.is_list(key)) continue;
    const std::vector<double> heads = *text.numbers(key, range::count);
    if (heads.empty()) text.refuse(key, "must not be an empty list");
    for (const double count : heads)
      if (!equal(count, heads[0]))
        model.warn_once(text.path() + key +
                        " differs from layer to layer; the description has that of the first");
    return static_cast<Index>(heads.front());
  }
  return text.index_of(keys);
}

/// The number of key heads of the first layer of Nemotron NAS that attends.
///
/// Source:  DeciLMAttention of the model; vLLM, nemotron_nas.py
template <class J>
std::optional<Index> key_heads_of_blocks(json_reader<J>& text, model_draft& model) {
  constexpr const char* key = "n_heads_in_group";
  std::optional<Index> heads;
  const J* blocks = text.find("block_configs");
  if (!blocks || !blocks->is_array()) return heads;
  for (const J& block : *blocks) {
    json_reader<J> reader(block.is_object() ? &block : nullptr, text.path() + "block_configs: ");
    json_reader<J> attention(reader.object("attention"), reader.path() + "attention.");
    const auto group = attention.index(key);
    if (!group) continue;
    if (model.query_heads % *group != 0)
      attention.refuse(key, "must divide the ", model.query_heads, " query heads, got ", *group);
    if (heads && *heads != model.query_heads / *group)
      model.warn_once(attention.path() + key +
                      " differs from layer to layer; the description has that of the first");
    heads = heads.value_or(model.query_heads / *group);
  }
  return heads;
}

// The record of an architecture.

/// Throws the reason why an architecture has no record. Does nothing if only the layout is in doubt and the
/// caller gave one.
template <class J>
void refuse(const json_reader<J>& text, const refused_architecture& refused, const std::string& architecture,
            bool layout_given) {
  const std::string reason(refused.reason);
  if (refused.kind == refusal::in_doubt && layout_given) return;
  const std::string rule =
      refused.kind == refusal::in_doubt
          ? "has files that disagree with its class, or is not known well enough: " + reason +
                "; name the layout in the options to read the file as it is written"
      : refused.kind == refusal::axes
          ? "has tokens with rows and columns, which this function does not support; make their "
            "frequencies by " +
                reason
      : refused.kind == refusal::parts
          ? "is one of several parts; give this function the description of one of them: " + reason
          : "is one with a rotation or an attention of its own, which " + reason;
  text.refuse("model_type", rule, ", got ", architecture);
}

/// Throws if a rope dictionary belongs to an image encoder.
template <class J>
void refuse_axial(json_reader<J>& rope) {
  for (const char* key : {"rope_type", "type"})
    if (rope.is_text(key) && *rope.text(key) == "axial")
      rope.refuse(key,
                  "is axial: tokens have rows and columns, as in a tower of images; make their frequencies "
                  "by a function of <rope/frequencies.hpp>, such as qwen_vl_vision_frequencies or "
                  "axial_blocks");
}

/// The record of the architecture, as this file changes it. For an unknown architecture, the record has no
/// class defaults, and the layout comes from the caller or the file.
///
/// \param known  the record of the table, or nothing if the architecture is unknown
/// \param hint  the end of the error for an unknown architecture
template <class J>
hugging_face_record record_of(json_reader<J>& text, const std::optional<hugging_face_record>& known,
                              const std::string& architecture, std::optional<layout_kind> given,
                              const std::string& hint) {
  hugging_face_record record = known.value_or(hugging_face_record{});
  const auto interleave = text.boolean("rope_interleave");
  if (const refused_architecture* refused = refused_architecture_of(plain_architecture(architecture)))
    refuse(text, *refused, architecture, given.has_value());
  if (!known)
    for (const char* key : {"rope_parameters", "rope_scaling"})
      if (const J* rope = text.find(key); rope && rope->is_object()) {
        json_reader<J> dictionary(rope, text.path() + key + ".");
        refuse_axial(dictionary);
      }
  if (!known && !given && !interleave)
    text.refuse("model_type",
                "is not an architecture whose layout is known; name the layout in the options, got ",
                architecture, hint, "; for those that are known see include/rope/models/README.md");
  if (interleave) record.layout = *interleave ? layout_kind::interleaved : layout_kind::half_split;
  if (text.boolean("rotary_emb_interleaved").value_or(false)) record.layout = layout_kind::interleaved;
  if (given) record.layout = *given;
  if (record.names == "motif" && text.has("qk_rope_head_dim"))
    text.refuse("qk_rope_head_dim",
                "is of Motif 3, whose released code and its ports disagree on which channels rotate and how "
                "they are scaled");
  for (const char* key : {"param_sink_number", "qk_rope_dim"})
    if (record.names == "pangupromoe" && text.has(key))
      text.refuse(key,
                  "is of Pangu Pro MoE V2, whose ports disagree on whether the first or the last qk_rope_dim "
                  "channels of a head rotate, and whose layers all see learned keys before a text");
  if (record.names == "maple" && !text.boolean("nope_on_global_attention").value_or(true))
    text.refuse("nope_on_global_attention",
                "is false: vLLM then rotates layers that attend fully, but the code of the model never does");
  if (record.names == "grok1" && text.has("rope_type"))
    text.refuse(
        "rope_type",
        "next to the other keys is of Grok 2: SGLang leaves \"original\" unscaled, llama.cpp takes it "
        "for YaRN; remove it, or give a rope_scaling dictionary");
  if (known && !record.latent && text.boolean("use_mla").value_or(false))
    text.refuse("use_mla", "is true: the latent heads of ", architecture, " are not known");
  if (record.double_head && text.boolean("use_long_context").value_or(false))
    text.refuse("use_long_context", "is true: how it stretches the base is not known");
  if (!text.path().empty()) {  // the text model is inside the file of a whole model
    if (record.nested.head_dim > 0) record.head_dim = record.nested.head_dim;
    if (record.nested.base > 0) record.base = record.nested.base;
    if (record.nested.window > 0) record.window.tokens = record.nested.window;
  }
  return record;
}

// The rotated channels of a head.

/// Reads the sizes and the window of Jina VLM from block_config.attn_config. A window of -1, the default,
/// means none. The class reads no key with the same meaning next to block_config: warns if one differs.
///
/// Source: configuration_jvlm.py and blocks_jvlm.py of jina-vlm
template <class J>
void read_block_config(json_reader<J>& text, model_draft& model) {
  const J* const block = json_reader<J>(text).object("block_config");
  json_reader<J> blocks(block, text.path() + "block_config.");
  json_reader<J> attention(blocks.object("attn_config"), blocks.path() + "attn_config.");
  const auto replace = [&](const char* key, const char* inside, const number_rule& rule, double value) {
    const auto beside = text.number(key, rule);
    if (beside && !equal(*beside, value))
      model.warn(text.path() + key + " is overruled by " + attention.path() + inside);
    text.replace(key, value);
  };
  for (const auto& [key, inside] :
       {std::pair{"head_dim", "head_dim"}, std::pair{"num_attention_heads", "n_heads"},
        std::pair{"num_key_value_heads", "n_kv_heads"}})
    if (const auto count = attention.number(inside, range::count)) replace(key, inside, range::count, *count);
  constexpr const char* window = "sliding_window";
  const bool none = equal(attention.number(window, range::any_number).value_or(-1), -1);
  replace(window, window, range::window, none ? 0 : *attention.number(window, range::window));
}

/// The channels of a head that may rotate.
struct head_shape {
  Index head_dim, first_channel, max_rotary_dim;
  bool latent;  // the multi-head latent attention of DeepSeek
};

template <class J>
head_shape head_shape_of(json_reader<J>& text, const hugging_face_record& defaults, model_draft& model) {
  // n_: GPT-J, CodeGen, DBRX; decoder_: Moonshine; num_heads, hidden_dim: AFM 7; embed_dim, dit_: diffusers
  const auto heads = text.index_of(
      {"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads", "num_heads", "dit_heads"});
  const auto given = text.index("head_dim");
  const auto rotated = text.index("qk_rope_head_dim", range::whole);
  if (rotated.value_or(0) > 0 && !defaults.last_channels) {
    const auto nope = text.index("qk_nope_head_dim", range::whole);
    if (*rotated % 2 != 0) text.refuse("qk_rope_head_dim", "must be even, got ", *rotated);
    if (!nope && (!given || *given < *rotated))
      text.missing("qk_nope_head_dim", "the rotated channels of qk_rope_head_dim come after it");
    const Index before = nope ? *nope : *given - *rotated;
    return {before + *rotated, before, *rotated, true};
  }
  if (defaults.latent) text.missing("qk_rope_head_dim", "that many channels of a head rotate");
  auto head_dim =
      given ? given : text.index_of({"kv_channels", "hidden_size_per_head", "attention_head_dim"});
  if (defaults.double_head) head_dim = text.index("attention_head_dim");
  const auto hidden_size =
      text.index_of({"hidden_size", "n_embd", "d_model", "hidden_dim", "embed_dim", "dit_dim"});
  const bool derived = is_listed(null_head_dim, defaults.names) && text.is_null("head_dim");
  if (!head_dim && defaults.head_dim > 0 && !derived) {
    head_dim = defaults.head_dim;
    model.warn_assumed(text.path() + "head_dim", std::to_string(*head_dim));
  }
  if (!head_dim) {
    if (!hidden_size) text.missing("head_dim", "and so is hidden_size");
    if (!heads) text.missing("num_attention_heads", "without head_dim it is needed");
    const Index width = defaults.double_head ? 2 * *hidden_size : *hidden_size;
    if (width % *heads != 0)
      text.refuse("hidden_size", "must be a multiple of num_attention_heads, got ", *hidden_size, " and ",
                  *heads);
    head_dim = width / *heads;
  }
  return {*head_dim, 0, *head_dim, false};
}

/// The shape of a head in layers of a type. Gemma 4 has larger heads in layers that attend fully. Their size
/// is given by one key for these layers, by keys per layer, or by the default. MiMo-V2 may have other heads
/// in sliding layers.
template <class J>
head_shape head_shape_of_type(json_reader<J>& text, const head_shape& head,
                              const hugging_face_record& defaults, const std::string& layer_type,
                              model_draft& model) {
  if (defaults.swa_keys && layer_type == defaults.other_type)
    if (const auto own = text.index("swa_head_dim")) return {*own, 0, *own, false};
  auto full = text.index("global_head_dim");
  if (const J* layers = text.object("per_layer_config"); layers && !full)
    for (const auto& item : layers->items()) {
      json_reader<J> layer(item.value().is_object() ? &item.value() : nullptr, "per_layer_config.");
      const auto head_dim = layer.index("head_dim");
      if (full && head_dim && *full != *head_dim)
        layer.refuse("head_dim", "must be one number for all layers that name it, got ", *full, " and ",
                     *head_dim);
      if (head_dim) full = head_dim;
    }
  if (layer_type != "full_attention" || (!full && defaults.full_head_dim == 0)) return head;
  if (!full) {
    full = defaults.full_head_dim;
    model.warn_assumed(text.path() + "global_head_dim", std::to_string(*full));
  }
  return {*full, 0, *full, false};
}

/// A number, and the path of the key that has it. Both are empty if no key has one.
struct keyed_number {
  std::optional<double> value = {};
  std::string key = {};
};

/// Reads a key into `found` unless an earlier key has a number. If the file has another number under this
/// key, warns that the earlier key overrules it.
template <class J>
void find_number(keyed_number& found, json_reader<J>& reader, const char* key, const number_rule& rule,
                 model_draft& model) {
  const auto value = reader.number(key, rule);
  if (!value) return;
  if (!found.value)
    found = {value, reader.path() + key};
  else if (!equal(*found.value, *value) && reader.has(key))
    model.warn_once(reader.path() + key + " is overruled by " + found.key);
}

/// The share of a head that rotates: in the rope dictionary, or else next to the dictionary, or else the
/// default, which has no key. A warning names each unused share.
///
/// Source:  Hugging Face transformers, convert_rope_params_to_dict
template <class J>
keyed_number rotated_share_of(json_reader<J>& text, json_reader<J>& rope, double default_factor,
                              model_draft& model) {
  keyed_number share;
  find_number(share, rope, "partial_rotary_factor", range::fraction, model);
  for (const char* key : {"partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction"})
    find_number(share, text, key, range::fraction, model);
  return share.value ? share : keyed_number{default_factor};
}

/// The number of rotated channels.
template <class J>
Index rotary_dim_of(json_reader<J>& text, const head_shape& head, const keyed_number& share,
                    model_draft& model) {
  const auto by_share = static_cast<Index>(static_cast<double>(head.max_rotary_dim) * *share.value);
  const auto given = head.latent ? std::optional<Index>() : text.index("rotary_dim");
  const char* const wider = head.latent ? "qk_rope_head_dim" : "rotary_dim";
  // The share of a whole head may also give the channels of a latent head.
  const bool agrees = by_share == given.value_or(head.max_rotary_dim) ||
                      (head.latent && static_cast<Index>(static_cast<double>(head.head_dim) * *share.value) ==
                                          head.max_rotary_dim);
  if ((head.latent || given) && !share.key.empty() && !agrees)
    model.warn_once(share.key + " is overruled by " + text.path() + wider);
  if (head.latent) return head.max_rotary_dim;
  const char* const name = given                    ? "rotary_dim"
                           : equal(*share.value, 1) ? "head_dim"
                                                    : "partial_rotary_factor";
  const std::string key = given || share.key.empty() ? text.path() + name : share.key;
  Index rotary_dim = given.value_or(by_share);
  if (!given && rotary_dim % 2 != 0 && rotary_dim < head.max_rotary_dim) {
    --rotary_dim;
    if (rotary_dim > 0)
      model.warn_once(key + " gives " + std::to_string(rotary_dim + 1) +
                      " rotated channels, rounded down to " + std::to_string(rotary_dim));
  }
  if (rotary_dim > head.head_dim)
    throw_invalid("import_hugging_face", key, " must not be above head_dim, ", head.head_dim, ", got ",
                  rotary_dim);
  if (rotary_dim <= 0 || rotary_dim % 2 != 0)
    throw_invalid("import_hugging_face", key, " must give an even, positive number of rotated channels, got ",
                  rotary_dim);
  return rotary_dim;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_CONFIG_HPP
