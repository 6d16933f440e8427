// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_ARCHITECTURE_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_ARCHITECTURE_HPP

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_records.hpp>
#include <rope/models/detail/record_fields.hpp>

/// Finds the dictionary of the language model in a config.json, and whether its architecture can be imported.

namespace rope::inline ROPE_ABI::detail {

// Architectures without a record, for a known reason.

/// Why an architecture has no record.
enum class refusal {
  in_doubt,           // files and class disagree, or too little is known: the caller's layout is used
  axes,               // tokens have several coordinates, so the name of a layout is not enough
  rotates_otherwise,  // it does not rotate q and k by one position, or no attention option gives its mask
  parts,              // it has several parts, each with its own dictionary
  never_rotates       // no layer rotates
};

struct refused_architecture {
  refusal kind;
  std::string_view names;   // as plain_architecture spells them
  std::string_view reason;  // what follows a name; for axes, what makes the frequencies
};

/// Why an architecture has no record. nullptr if the architecture has a record or is unknown.
///
/// Source: Hugging Face transformers of 2026-08-19 and autumn 2026, modeling_*.py; diffusers 58eb52c of
///         2026-08-23, models/transformers/*.py; mlx-lm and mlx-vlm of 2026-08-22; Hymba, arXiv:2411.13676
template <class Refused = refused_architecture>
const Refused* refused_architecture_of(std::string_view architecture) {
  using enum refusal;
  static constexpr Refused refused[] = {
      {parts, "blt", "patcher_config, encoder_config, decoder_config and global_config"},
      {in_doubt, "minimaxm3vl",
       "its layers of type minimax_m3_sparse attend to blocks of keys that an indexer chooses"},
      {in_doubt, "jinaembeddingsv5",
       "jina-embeddings-v5-text-small is Qwen 3, but its nano version EuroBERT, so write eurobert or qwen3 "
       "as model_type"},
      {in_doubt, "recurrentgemma", "its released files rotate half of a head, its class all of it"},
      {axes,
       "coherecompassvision ernie45vlmoevision exaone45vision glm4vmoevision glm4vvision glm5nextvision "
       "glmocrvision paddleocrvlvision qwen25omnivisionencoder qwen25vlvision qwen2vlvision qwen35moevision "
       "qwen35vision qwen38flashnextvision qwen3omnimoevisionencoder qwen3vlmoevision qwen3vlvision "
       "qwen4expvision step3p5vision videollama3vision",
       "qwen_vl_vision_frequencies"},
      {axes, "allegrotransformer3d",
       "frequencies(head_dim / 3), for each third of a head, half_split, by frame, row and column over "
       "interpolation_scale_t, _h and _w"},
      {axes, "anyflowfartransformer3d",
       "wan_frequencies, for interleaved channels, and cos and sin of a compressed frame are averages"},
      {axes, "easyanimatetransformer3d",
       "cogvideox_frequencies, for interleaved channels, with rows and columns scaled to 60 and 90 over "
       "patch_size"},
      {axes, "heliostransformer3d",
       "axial_blocks(rope_dim, rope_theta), for interleaved channels, and cos and sin of older frames are "
       "averages"},
      {axes, "hunyuandit2d",
       "axial_blocks of two halves of a head, for interleaved channels, column before row, both scaled to 64 "
       "over patch_size"},
      {axes, "ltx2videotransformer3d",
       "ltx_frequencies, for interleaved channels of all heads as one, or frequencies_of_heads of them, for "
       "half_split channels, where rope_type is split"},
      {axes, "luminanextdit2d",
       "custom: each frequency of frequencies(head_dim / 2) by the row, then by the column, for interleaved "
       "channels"},
      {axes, "mochitransformer3d",
       "custom, from learned pos_frequencies of each head, for interleaved channels, by frame, row and "
       "column from the middle, scaled to an area of 192 * 192"},
      {axes, "dinov3vit eomtdinov3 sapiens2", "dino_v3_frequencies"},
      {axes, "edgetamvideo sam2video sam3trackervideo sam3vitmodel",
       "rope_vit_axial_frequencies, with the base of the file, for interleaved channels"},
      {axes, "efficientloftr",
       "custom, over the channels of all heads as one: each frequency of frequencies(hidden_size / 2) by the "
       "row, then by the column, from 1"},
      {axes, "gemma4vision", "frequencies, for each half of a head"},
      {axes, "kimik25vision",
       "custom: each frequency of frequencies(head_dim / 2) by the column, then by the row"},
      {axes, "lightglue", "along_directions, with learned directions"},
      {axes, "llama4visionmodel", "llama4_vision_frequencies"},
      {axes, "minimaxh3 minimaxh3transformer3d",
       "axial_blocks of three widths 2 * rope_freq_dim, for the first 6 * rope_freq_dim channels of a head, "
       "half_split, by (time, row, column)"},
      {axes, "minimaxm3vlvision",
       "axial: frame, row and column have a third of the head each, rounded down to even"},
      {axes, "mlcdvisionmodel", "qwen_vl_vision_frequencies, except for learned angles of the class token"},
      {axes, "museglimmervision", "llama4_vision_frequencies, for half_split channels"},
      {axes, "pixtral", "pixtral_frequencies"},
      {axes, "neomme", "on_axes with interleaved_sections of two equal sections, row before column"},
      {axes, "briafibotransformer2d briatransformer2d krea2transformer2d",
       "axial_blocks(axes_dims_rope, rope_theta), for interleaved channels"},
      {axes,
       "chromatransformer2d fluxtransformer2d hidreamimagetransformer2d longcatimagetransformer2d "
       "ovisimagetransformer2d",
       "axial_blocks(axes_dims_rope), for interleaved channels"},
      {axes, "nucleusmoeimagetransformer2d qwenimagetransformer2d",
       "axial_blocks(axes_dims_rope), for interleaved channels, with rows and columns from the middle of an "
       "image"},
      {axes, "lumina2transformer2d", "axial_blocks(axes_dim_rope), for interleaved channels"},
      {axes, "flux2transformer2d", "axial_blocks(axes_dims_rope, 2000), for interleaved channels"},
      {axes, "cogview4transformer2d",
       "axial_blocks of two halves of a head, for half_split channels, by floor(256 row / rows) and "
       "floor(256 column / columns)"},
      {axes, "cosmos3omnitransformer",
       "on_axes with interleaved_sections(rope_axes_dim), for half_split channels"},
      {axes, "glmimagetransformer2d", "axial_blocks of two halves of a head, for half_split channels"},
      {axes,
       "hunyuanimagetransformer2d hunyuanvideo15transformer3d hunyuanvideoframepacktransformer3d "
       "hunyuanvideotransformer3d motifvideotransformer3d",
       "axial_blocks(rope_axes_dim, 256), for interleaved channels"},
      {axes, "joyimageeditplustransformer3d joyimageedittransformer3d",
       "axial_blocks(rope_dim_list, 256), for interleaved channels"},
      {axes, "kandinsky5transformer3d", "axial_blocks(axes_dims), for interleaved channels"},
      {axes, "prxtransformer2d", "axial_blocks(axes_dim), for interleaved channels"},
      {axes, "zimagetransformer2d", "axial_blocks(axes_dims, 256), for interleaved channels"},
      {axes, "cogvideoxtransformer3d consisidtransformer3d",
       "cogvideox_frequencies, for interleaved channels"},
      {axes, "cosmostransformer3d", "cosmos_frequencies, for half_split channels"},
      {axes, "ltxvideotransformer3d", "ltx_frequencies, for interleaved channels of all heads as one"},
      {axes,
       "anyflowtransformer3d chronoedittransformer3d sanavideotransformer3d skyreelsv2transformer3d "
       "wananimate2transformer3d wananimatetransformer3d wantransformer3d wanvacetransformer3d",
       "wan_frequencies, for interleaved channels"},
      {axes, "ideogram4transformer2d",
       "on_axes with interleaved_sections, for half_split channels, with rows and columns from 65536"},
      {rotates_otherwise, "baichuanm1",
       "convolves keys and values of two tokens before keys rotate, and gives layers of "
       "sliding_window_layers heads of hidden_size / num_swa_attention_heads channels"},
      {rotates_otherwise, "chatglm6b",
       "rotates the first half of a head by the position and the second by the block position: "
       "rotate<half_split> each half by a table of frequencies(head_dim / 2)"},
      {rotates_otherwise, "clvpencoder", "rotates values too"},
      {rotates_otherwise, "deepseekocr2encoder",
       "shows its first num_patches tokens to every token, the others to those after them: a mask that no "
       "option of attention stands for"},
      {rotates_otherwise, "deepseekv41",
       "is not that of DeepSeek V4: layers share the compressed keys of others, which no option of attention "
       "stands for"},
      {rotates_otherwise, "dots3note",
       "gives layers that slide latent heads of other widths, swa_qk_nope_head_dim before "
       "swa_qk_rope_head_dim, with the base swa_rope_theta: rotate<interleaved> the last channels of each "
       "kind by a table of its own"},
      {rotates_otherwise, "falconocr falconperception",
       "rotates half of a head by the position, the rest by row and column with frequencies of each head"},
      {rotates_otherwise, "hymba",
       "puts learned tokens before a text, which its layers that slide always see, and has layers that "
       "attend to the keys of others"},
      {rotates_otherwise, "interns1pro",
       "is by learned sums of cosines and of sines (FoPE), of which fourier_table makes tables"},
      {rotates_otherwise, "jetnemotron",
       "only layers of types attn and swa have: rotate<half_split> their heads by frequencies(hidden_size / "
       "num_attention_heads, rope_theta), where those of swa slide, by "
       "efficient_attention_config.swa.window_size"},
      {rotates_otherwise, "minicpmsala",
       "layers of type minicpm4 have only if attn_use_rope is true, and layers of linear attention if "
       "lightning_use_rope is: rotate<half_split> their heads by frequencies(head_dim, rope_theta)"},
      {rotates_otherwise, "moondream1 moondream2 moondream3",
       "has its sizes in its code: the first 32 of 64 channels of a head rotate, half_split, by "
       "frequencies(32), or frequencies(32, 1500000) for moondream3, and the first 730 tokens see each "
       "other"},
      {rotates_otherwise, "musicflamingo", "rotates features of sound by their time in seconds"},
      {rotates_otherwise, "openpanguv2 panguv2moe",
       "puts param_sink_number learned keys before a text, which every layer sees, and convolves latents: "
       "rotate the last qk_rope_head_dim channels, half_split unless rope_interleave is true, attend to the "
       "learned keys by another call, and join both by merge_attention"},
      {rotates_otherwise, "pangupromoev2",
       "puts param_sink_number learned keys before a text, which every layer sees, and its ports disagree on "
       "whether the first or the last qk_rope_dim channels of a head rotate"},
      {rotates_otherwise, "phi3small",
       "attends to blocks of keys by a pattern of every head: a mask that no option of attention stands for"},
      {rotates_otherwise, "qwen25omnidit", "rotates the first head of every layer and no other"},
      {rotates_otherwise, "seamlessm4t wav2vec2bert wav2vec2conformer",
       "rotates hidden states, if any, before they become queries and keys"},
      {rotates_otherwise, "ernieimagetransformer2d vjepa2",
       "multiplies the two channels of a pair by cos and sin of two different angles"},
      {never_rotates,
       "albert auraflowtransformer2d bart bert camembert distilbert electra gpt2 gptbigcode gptneo mbart "
       "minimaxmusic3rvqdepthdecoder openaigpt opt priortransformer roberta whisper xlmroberta",
       "learned positions"},
      {never_rotates, "bloom mpt", "ALiBi biases"},
      {never_rotates,
       "canarydecoder cogview3plustransformer2d cohereasr dittransformer2d funasrnanoencoder "
       "lattetransformer3d m2m100 marian pegasus pixarttransformer2d sd3transformer2d xglm",
       "sinusoidal positions"},
      {never_rotates, "dreamlitetransformer2d sanatransformer2d transformer2d",
       "sinusoidal positions or none"},
      {never_rotates, "deberta debertav2 granitespeech5encoder parakeetencoder xlnet", "relative positions"},
      {never_rotates, "falconmamba mamba mamba2 rwkv rwkv7", "no attention"},
      {never_rotates, "glm5next jamba kimik3 kimilinear moshidepth nemotronh nemotronhpuzzle phi4flash zamba",
       "no positions"},
      {never_rotates, "inkling inklingmmmodel", "relative biases"},
      {never_rotates, "longt5 mt5 step1 t5 umt5", "biases by distance"},
      {never_rotates, "neucodec xcodec2",
       "head numbers in place of token positions, which cancel in the scores"},
  };
  return record_in(refused, architecture);
}

// A config.json with several parts: the dictionary of the language model, and keys about positions in the
// other parts.

/// Whether an architecture has a record, or a known reason for having none.
inline bool is_known_architecture(const std::string& name) {
  const std::string plain = plain_architecture(name);
  return hugging_face_record_of(plain) || refused_architecture_of(plain);
}

/// `model_type`, or the first of `architectures` if only that one is known, or the class of diffusers, as
/// written. Empty if the dictionary has none of them.
template <class J>
std::string name_of_part(json_reader<J>& part) {
  const auto model_type = part.text("model_type");
  if (model_type && is_known_architecture(*model_type)) return *model_type;
  const auto names = part.texts("architectures");
  const std::string first = names && !names->empty() ? names->front() : std::string();
  if (model_type && !is_known_architecture(first)) return *model_type;
  return first.empty() ? part.text("_class_name").value_or("") : first;
}

/// The architecture under a name that several architectures share, by the keys of the text model.
///
/// Source: LongCat 2.0 and Flash Sparse, mlx-vlm; MiniMax-M2, mlx-lm; jina-embeddings-v3, vLLM; ChatGLM-6B,
///         modeling_chatglm.py of the model
template <class J>
std::string architecture_by_keys(json_reader<J>& text, const std::string& name) {
  const std::string plain = plain_architecture(name);
  const auto says = [&](const char* key, const char* value) {
    return text.is_text(key) && *text.text(key) == value;
  };
  if (plain == "longcatflash" || plain == "longcatcausallm")
    return says("attention_method", "LSA") ? "longcat_flash_sparse" : name;
  if (plain == "chatglm" && text.boolean("position_encoding_2d").value_or(false)) return "chatglm_6b";
  if (plain == "xlmroberta" && says("position_embedding_type", "rotary")) return "xlm_roberta_flash";
  if (plain != "minimax" || !text.is_list("architectures")) return name;
  return contains(*text.texts("architectures"), std::string("MiniMaxM2ForCausalLM")) ? "minimax_m2" : name;
}

/// The dictionaries from the whole file to its language model, each inside the previous one.
template <class J>
class parts_of_config {
 public:
  explicit parts_of_config(const J& config) : whole_(&config) {
    chain_.emplace_back(&config, "");
    descend(config);
    for (std::size_t i = 0; i + 1 < chain_.size(); ++i) chain_[i].find(keys_[i]);
  }

  json_reader<J> text() const { return chain_.back(); }
  /// The dictionaries around the text model, from the whole file inwards.
  std::vector<json_reader<J>> outer() const { return {chain_.begin(), chain_.end() - 1}; }
  /// The key in each of these dictionaries that leads to the next one.
  const std::vector<std::string>& keys() const { return keys_; }

  /// Whether the file has neither a nested text model of a known architecture nor sizes of a model at the
  /// top.
  bool is_bare() { return chain_.size() == 1 && !has_sizes(chain_.front()); }

  /// The end of an error message: it names the dictionaries of the file that could be imported alone. May be
  /// empty.
  ///
  /// \param known_only  whether it names only dictionaries of known architectures
  std::string hint(bool known_only = false) const {
    std::string known, others;
    for (const auto& item : whole_->items()) {
      const std::string key = item.key();
      if (!item.value().is_object() || contains(keys_, key)) continue;
      const J* name = json_reader<J>(&item.value(), "").find("model_type");
      if (!name || !name->is_string()) continue;
      const auto architecture = name->template get<std::string>();
      if (is_known_architecture(architecture))
        known += "; " + key + " is of the known architecture " + architecture + "; pass that dictionary";
      others += (others.empty() ? "" : ", ") + key;
    }
    if (!known.empty() || others.empty() || known_only) return known;
    return "; to read one of its parts, pass that dictionary: " + others;
  }

 private:
  /// Keys of language models in a dictionary without text_config, which is used whatever it contains. The
  /// first of these keys that leads to a known architecture is used.
  static constexpr const char* text_keys[] = {"thinker_config", "llm_config", "language_config",
                                              "language_model", "decoder"};

  static constexpr std::size_t deepest = 16;  // dictionaries inside each other

  static const J* part_of(const J& config, const char* key) {
    const std::string name = key;
    if (!config.contains(name) || !config.at(name).is_object()) return nullptr;
    return &config.at(name);
  }

  /// Whether a dictionary has sizes of a model. Without sizes it only contains the parts of a model.
  static bool has_sizes(json_reader<J>& part) {
    for (const char* key :
         {"hidden_size", "n_embd", "d_model", "head_dim", "num_attention_heads", "num_hidden_layers"})
      if (part.has(key)) return true;
    return false;
  }

  void push(const char* key, const J& part) {
    keys_.push_back(key);
    chain_.emplace_back(&part, chain_.back().path() + key + ".");
  }

  /// Descends from the last dictionary of the chain to a dictionary of a known architecture.
  ///
  /// \return  whether there is such a dictionary. If not, the chain keeps at most a text_config
  bool descend(const J& config) {
    if (chain_.size() > deepest) return false;
    json_reader<J> own(&config, chain_.back().path());
    own.object("text_config");  // throws if it is not a dictionary
    if (const J* text = part_of(config, "text_config")) {
      push("text_config", *text);
      return descend(*text) || is_known_architecture(name_of_part(own));
    }
    const bool known = is_known_architecture(name_of_part(own));
    if (known && has_sizes(own)) return true;
    for (const char* key : text_keys) {
      const J* part = part_of(config, key);
      if (!part) continue;
      const auto length = chain_.size();
      push(key, *part);
      if (descend(*part)) return true;
      chain_.erase(chain_.begin() + static_cast<std::ptrdiff_t>(length), chain_.end());
      keys_.resize(length - 1);
    }
    return known;
  }

  const J* whole_;
  std::vector<json_reader<J>> chain_ = {};
  std::vector<std::string> keys_ = {};
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_ARCHITECTURE_HPP
