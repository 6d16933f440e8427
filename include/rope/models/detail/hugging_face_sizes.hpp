// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_SIZES_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_SIZES_HPP

#include <initializer_list>
#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/json_reader.hpp>

/// The sizes that configuration classes of Hugging Face transformers have by default. The file of a whole
/// model leaves out of text_config what is equal to them (LLaVA), and that of a text model alone never does.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Sizes of one class; 0: none, or what follows from the other ones.
struct class_sizes {
  std::string_view architecture;  // as plain_architecture spells it
  double hidden_size, query_heads, key_heads, layers, context;
  double nope_channels = 0, rotated_channels = 0;  // of a latent head
};

/// The sizes of an architecture; nullptr where no class is known.
///
/// Source: Hugging Face transformers, configuration_*.py, 2026-08-19: tests/recorded/models has what each
///         class writes
template <class Sizes = class_sizes>
const Sizes* class_sizes_of(std::string_view architecture) {
  static constexpr Sizes sizes[] = {
      {"afmoe", 2048, 16, 0, 32, 16384},
      {"apertus", 4096, 32, 0, 32, 65536},
      {"arcee", 2560, 32, 0, 32, 4096},
      {"aria", 4096, 32, 0, 32, 2048},
      {"axk1", 7168, 64, 0, 61, 32768, 128, 64},
      {"axk2", 2048, 32, 0, 48, 131072, 64, 32},
      {"bamba", 4096, 32, 8, 32, 262144},
      {"bitnet", 2560, 20, 5, 30, 2048},
      {"bltglobaltransformer", 2048, 16, 0, 25, 4096},
      {"bltlocaldecoder", 1024, 16, 0, 9, 24576},
      {"bltlocalencoder", 1024, 16, 0, 1, 24576},
      {"bltpatcher", 768, 12, 0, 14, 8192},
      {"chameleon", 4096, 32, 0, 32, 4096},
      {"cohere", 8192, 64, 0, 40, 8192},
      {"cohere2", 8192, 64, 0, 40, 8192},
      {"cohere2moe", 8192, 64, 0, 40, 8192},
      {"cosmos3edge", 2048, 16, 8, 28, 131072},
      {"csm", 2048, 32, 8, 16, 2048},
      {"csmdepthdecodermodel", 1024, 8, 2, 4, 33},
      {"cwm", 6144, 48, 8, 64, 131072},
      {"dbrx", 2048, 16, 1, 24, 2048},
      {"deepseekocr2", 4096, 32, 0, 32, 2048},
      {"deepseekv2", 4096, 32, 0, 32, 2048, 128, 64},
      {"deepseekv3", 7168, 128, 0, 61, 4096, 128, 64},
      {"deepseekv32", 7168, 128, 0, 61, 163840, 128, 64},
      {"deepseekv4", 4096, 64, 1, 43, 1048576},
      {"diadecoder", 2048, 16, 4, 18, 3072},
      {"diaencoder", 1024, 16, 0, 12, 1024},
      {"diffllama", 2048, 32, 0, 16, 2048},
      {"diffusiongemma", 2304, 8, 4, 30, 131072},
      {"doge", 1024, 8, 0, 32, 2048},
      {"dots1", 4608, 32, 0, 62, 2048},
      {"emu3", 4096, 32, 8, 32, 9216},
      {"ernie45", 1024, 16, 2, 18, 131072},
      {"ernie45moe", 2560, 20, 4, 28, 131072},
      {"ernie45vlmoe", 2560, 20, 4, 28, 131072},
      {"eurobert", 768, 12, 0, 12, 8192},
      {"evolla", 4096, 32, 8, 32, 8192},
      {"exaone4", 4096, 32, 0, 32, 2048},
      {"exaonemoe", 4096, 32, 0, 32, 2048},
      {"falcon", 4544, 71, 0, 32, 2048},
      {"falconh1", 4096, 32, 8, 32, 8192},
      {"flexolmo", 4096, 32, 0, 32, 4096},
      {"gemma", 3072, 16, 0, 28, 8192},
      {"gemma2", 2304, 8, 4, 26, 8192},
      {"gemma3", 2304, 8, 4, 26, 131072},
      {"gemma3n", 2048, 8, 2, 35, 32768},
      {"gemma4", 2304, 8, 4, 30, 131072},
      {"gemma4unified", 2304, 8, 4, 30, 262144},
      {"glm", 4096, 32, 2, 40, 131072},
      {"glm4", 4096, 32, 2, 40, 131072},
      {"glm4moe", 4096, 96, 8, 46, 131072},
      {"glm4moelite", 2048, 20, 0, 47, 202752, 192, 64},
      {"glm4v", 4096, 32, 2, 40, 32768},
      {"glm4vmoe", 4096, 96, 8, 46, 65536},
      {"glmasrencoder", 1280, 20, 0, 32, 1500},
      {"glmimage", 4096, 32, 2, 40, 131072},
      {"glmmoedsa", 6144, 64, 0, 78, 202752, 192, 64},
      {"glmocr", 1024, 16, 8, 16, 131072},
      {"gptneox", 6144, 64, 0, 44, 2048},
      {"gptneoxjapanese", 2560, 32, 0, 32, 2048},
      {"gptoss", 2880, 64, 8, 36, 131072},
      {"granite", 4096, 32, 0, 32, 2048},
      {"granite4vision", 4096, 32, 0, 32, 2048},
      {"granitemoe", 4096, 32, 0, 32, 2048},
      {"granitemoehybrid", 4096, 32, 0, 32, 2048},
      {"granitemoeshared", 4096, 32, 0, 32, 2048},
      {"granitemoeswa", 4096, 32, 0, 32, 2048},
      {"graniteswa", 2560, 20, 4, 24, 8192},
      {"helium", 2560, 20, 0, 24, 4096},
      {"higgsaudiov2", 3072, 24, 8, 28, 2048},
      {"hrm", 1536, 12, 0, 128, 2048},
      {"hunyuanv1dense", 4096, 32, 0, 32, 2048},
      {"hunyuanv1moe", 4096, 32, 0, 32, 2048},
      {"hunyuanvl", 4096, 32, 0, 32, 2048},
      {"hyperclovax", 4096, 32, 0, 32, 2048},
      {"hyv3", 4096, 64, 8, 80, 131072},
      {"jais2", 3328, 26, 0, 32, 8192},
      {"jetmoe", 2048, 32, 16, 12, 4096},
      {"jinaembeddingsv3", 1024, 16, 0, 24, 8194},
      {"kyutaispeechto", 2048, 32, 0, 48, 750},
      {"laguna", 2048, 48, 8, 40, 131072},
      {"lasrencoder", 512, 8, 0, 17, 10000},
      {"lfm2", 2560, 32, 8, 32, 128000},
      {"lfm2moe", 2048, 32, 8, 32, 128000},
      {"llama", 4096, 32, 0, 32, 2048},
      {"llama4", 5120, 40, 8, 48, 131072},
      {"longcatflash", 6144, 64, 0, 56, 131072, 128, 64},
      {"mellum", 2304, 32, 4, 28, 131072},
      {"mimi", 512, 8, 0, 8, 8000},
      {"mimov2flash", 4096, 64, 4, 48, 131072},
      {"minicpm3", 2560, 40, 0, 62, 32768, 64, 32},
      {"minimax", 4096, 32, 8, 32, 131072},
      {"minimaxm2", 3072, 48, 8, 62, 196608},
      {"ministral", 4096, 32, 8, 32, 131072},
      {"ministral3", 4096, 32, 8, 34, 262144},
      {"mistral", 4096, 32, 8, 32, 131072},
      {"mistral4", 4096, 32, 0, 36, 1048576, 64, 64},
      {"mixtral", 4096, 32, 8, 32, 131072},
      {"mllama", 4096, 32, 8, 40, 131072},
      {"modernbert", 768, 12, 0, 22, 8192},
      {"modernbertdecoder", 768, 12, 0, 22, 8192},
      {"moonshine", 288, 8, 0, 6, 512},
      {"moonshinestreaming", 320, 8, 0, 6, 4096},
      {"moshi", 4096, 32, 0, 32, 3000},
      {"museglimmer", 6656, 32, 2, 52, 131072},
      {"museglimmerassistant", 6656, 32, 8, 5, 131072},
      {"nanochat", 768, 6, 0, 12, 2048},
      {"nemotron", 6144, 48, 0, 32, 4096},
      {"nomicbert", 768, 12, 0, 12, 2048},
      {"olmo", 4096, 32, 0, 32, 2048},
      {"olmo2", 4096, 32, 0, 32, 2048},
      {"olmo3", 4096, 32, 0, 32, 2048},
      {"olmoe", 2048, 16, 0, 16, 4096},
      {"olmohybrid", 3840, 30, 0, 32, 65536},
      {"openaiprivacyfilter", 640, 14, 2, 8, 131072},
      {"paddleocrvl", 1024, 16, 2, 18, 131072},
      {"peaudioencoder", 1792, 14, 0, 6, 10000},
      {"persimmon", 4096, 64, 0, 36, 16384},
      {"phi", 2048, 32, 0, 24, 2048},
      {"phi3", 3072, 32, 0, 32, 4096},
      {"phi4multimodal", 3072, 32, 8, 32, 131072},
      {"phimoe", 4096, 32, 8, 32, 131072},
      {"qwen2", 4096, 32, 0, 32, 32768},
      {"qwen25omni", 3584, 28, 4, 28, 32768},
      {"qwen25omnitalker", 3584, 28, 4, 28, 32768},
      {"qwen25vl", 8192, 64, 8, 80, 32768},
      {"qwen2moe", 2048, 16, 0, 24, 32768},
      {"qwen2vl", 8192, 64, 8, 80, 32768},
      {"qwen3", 4096, 32, 0, 32, 32768},
      {"qwen35", 4096, 16, 4, 32, 32768},
      {"qwen35moe", 2048, 16, 2, 40, 32768},
      {"qwen3moe", 2048, 32, 4, 24, 32768},
      {"qwen3next", 2048, 16, 2, 48, 32768},
      {"qwen3omnimoe", 2048, 28, 4, 28, 32768},
      {"qwen3omnimoetalker", 1024, 16, 2, 20, 32768},
      {"qwen3omnimoetalkercodepredictor", 1024, 16, 8, 5, 32768},
      {"qwen3vl", 4096, 32, 0, 32, 128000},
      {"qwen3vlmoe", 2048, 16, 0, 24, 128000},
      {"seedoss", 4096, 80, 8, 64, 524288},
      {"smollm3", 2048, 16, 4, 36, 32768},
      {"solaropen", 4096, 64, 8, 48, 131072},
      {"stablelm", 2560, 32, 0, 32, 4096},
      {"starcoder2", 3072, 24, 2, 30, 4096},
      {"step3p5", 4096, 64, 8, 45, 128000},
      {"t5gemma2", 2304, 8, 4, 26, 131072},
      {"t5gemma2decoder", 2304, 8, 4, 26, 131072},
      {"t5gemmamodule", 2304, 8, 4, 26, 8192},
      {"timesfm25", 1280, 16, 0, 20, 16384},
      {"vaultgemma", 2304, 8, 4, 26, 8192},
      {"voxtralrealtime", 4096, 32, 8, 32, 131072},
      {"voxtralrealtimeencoder", 1280, 32, 0, 32, 1500},
      {"xcodec2", 1024, 16, 0, 12, 4096},
      {"youtu", 2048, 16, 0, 32, 131072, 128, 64},
      {"zamba2", 2560, 32, 0, 54, 4096},
      {"zaya", 2048, 8, 2, 40, 131072},
  };
  for (const Sizes& one : sizes)
    if (one.architecture == architecture) return &one;
  return nullptr;
}

/// Lets a text model in a dictionary of its own have the sizes of its class. A number of layers is not
/// assumed beside a list that has a value for each of them.
template <class J>
void assume_sizes(json_reader<J>& text, std::string_view architecture) {
  const class_sizes* sizes = class_sizes_of(architecture);
  if (!sizes) return;
  const auto assume = [&](double value, std::initializer_list<const char*> names) {
    bool given = !(value > 0);
    for (const char* name : names) given = given || text.has(name);
    if (!given) text.assume(*names.begin(), value);
  };
  assume(sizes->hidden_size, {"hidden_size", "n_embd", "d_model"});
  assume(sizes->query_heads, {"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"});
  const auto heads =
      text.index_of({"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"});
  const auto key_heads = static_cast<Index>(sizes->key_heads);
  const bool divides = key_heads > 0 && heads.value_or(0) % key_heads == 0;
  assume(divides ? sizes->key_heads : 0, {"num_key_value_heads", "multi_query_group_num",
                                          "num_attention_groups", "decoder_num_key_value_heads"});
  assume(sizes->layers, {"num_hidden_layers", "n_layer", "n_layers", "num_layers",
                         "decoder_num_hidden_layers", "layer_types", "layers_block_type", "no_rope_layers",
                         "layer_rope_theta", "hybrid_layer_pattern", "compress_ratios"});
  assume(sizes->context, {"max_position_embeddings", "n_positions", "seq_length", "max_seq_len"});
  assume(sizes->nope_channels, {"qk_nope_head_dim"});
  assume(sizes->rotated_channels, {"qk_rope_head_dim"});
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_SIZES_HPP
