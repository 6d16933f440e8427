// Reads the checkpoint and tokenizer formats of llama2.c (github.com/karpathy/llama2.c, version 0) for
// `decoder`, as a Llama of Hugging Face. The layout of its q and k is interleaved, as in Meta's training.

#ifndef ROPE_EXAMPLES_LLAMA2C_HPP
#define ROPE_EXAMPLES_LLAMA2C_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

class llama2c_checkpoint {
 public:
  using shape_type = std::vector<std::int64_t>;

  explicit llama2c_checkpoint(const std::filesystem::path& path) : file_(path) {
    std::ifstream stream(path, std::ios::binary);
    std::int32_t header[7] = {};  // dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
    if (!stream.read(reinterpret_cast<char*>(header), sizeof header))
      throw std::runtime_error(name() + ": cannot be read");
    const bool shared = header[5] > 0;  // a negative vocab_size means that the output has its own weights
    const std::int64_t dim = header[0], hidden = header[1], layers = header[2], heads = header[3],
                       kv_heads = header[4], vocabulary = shared ? header[5] : -std::int64_t{header[5]},
                       length = header[6];
    for (const std::int64_t number : {dim, hidden, layers, heads, kv_heads, vocabulary, length})
      if (number <= 0 || number > 1 << 20)
        throw std::runtime_error(name() + ": is no checkpoint of llama2.c");
    if (dim % heads != 0 || heads % kv_heads != 0)
      throw std::runtime_error(name() + ": its heads do not fit its width");
    const std::int64_t kv_dim = dim / heads * kv_heads;
    config_ = {{"model_type", "llama"},
               {"hidden_size", dim},
               {"vocab_size", vocabulary},
               {"eos_token_id", 1},
               {"num_hidden_layers", layers},
               {"num_attention_heads", heads},
               {"num_key_value_heads", kv_heads},
               {"max_position_embeddings", length},
               {"rope_theta", 10000.0},
               {"rms_norm_eps", 1e-5},
               {"hidden_act", "silu"}};
    place_ = sizeof header;
    add("model.embed_tokens", {vocabulary, dim});
    const auto add_to_layers = [&](const char* part, const shape_type& shape) {
      for (std::int64_t i = 0; i < layers; ++i) add("model.layers." + std::to_string(i) + "." + part, shape);
    };
    add_to_layers("input_layernorm", {dim});
    add_to_layers("self_attn.q_proj", {dim, dim});
    add_to_layers("self_attn.k_proj", {kv_dim, dim});
    add_to_layers("self_attn.v_proj", {kv_dim, dim});
    add_to_layers("self_attn.o_proj", {dim, dim});
    add_to_layers("post_attention_layernorm", {dim});
    add_to_layers("mlp.gate_proj", {hidden, dim});
    add_to_layers("mlp.down_proj", {dim, hidden});
    add_to_layers("mlp.up_proj", {hidden, dim});
    add("model.norm", {dim});
    place_ +=
        static_cast<std::uint64_t>(length * (dim / heads)) * sizeof(float);  // its tables of cos and sin
    if (!shared) add("lm_head", {vocabulary, dim});
    if (place_ > std::filesystem::file_size(path))
      throw std::runtime_error(name() + ": ends before its weights do");
  }

  const nlohmann::json& config() const { return config_; }

  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  const shape_type& shape(const std::string& tensor) const { return tensors_.at(tensor).first; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : tensors_) all.push_back(entry.first);
    return all;
  }
  template <class T>
  std::vector<T> read(const std::string& tensor) const {
    const auto& [shape, place] = tensors_.at(tensor);
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    std::vector<float> stored(count);
    std::ifstream stream(file_, std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(place));
    stream.read(reinterpret_cast<char*>(stored.data()), static_cast<std::streamsize>(count * sizeof(float)));
    if (!stream) throw std::runtime_error(name() + ": cannot be read");
    return std::vector<T>(stored.begin(), stored.end());
  }

 private:
  std::string name() const { return file_.string(); }
  void add(const std::string& tensor, const shape_type& shape) {
    tensors_[tensor + ".weight"] = {shape, place_};
    std::uint64_t bytes = sizeof(float);
    for (const std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
    place_ += bytes;
  }

  std::filesystem::path file_;
  std::uint64_t place_ = 0;
  std::map<std::string, std::pair<shape_type, std::uint64_t>> tensors_;
  nlohmann::json config_;
};

/// tokenizer.bin: pieces with scores. Of all neighbours whose join is a piece, the best score is joined
/// first.
class llama2c_tokenizer {
 public:
  llama2c_tokenizer(const std::filesystem::path& path, std::int64_t vocabulary) {
    std::ifstream stream(path, std::ios::binary);
    std::int32_t longest = 0;
    stream.read(reinterpret_cast<char*>(&longest), sizeof longest);
    for (std::int64_t id = 0; id < vocabulary; ++id) {
      float score = 0;
      std::int32_t length = 0;
      stream.read(reinterpret_cast<char*>(&score), sizeof score);
      stream.read(reinterpret_cast<char*>(&length), sizeof length);
      if (!stream || length < 0 || length > 4096)
        throw std::runtime_error(path.string() + ": is no tokenizer of llama2.c with that many pieces");
      std::string text(static_cast<std::size_t>(length), '\0');
      stream.read(text.data(), length);
      ids_.emplace(text, static_cast<int>(id));
      pieces_.push_back({std::move(text), score});
    }
    if (!stream) throw std::runtime_error(path.string() + ": ends before its pieces do");
  }

  /// The ids of a text, after the id that begins a text.
  std::vector<int> encode(std::string_view text) const {
    std::vector<int> ids = {1};
    if (text.empty()) return ids;
    const auto space = ids_.find(" ");
    if (space != ids_.end()) ids.push_back(space->second);
    for (std::size_t i = 0; i < text.size();) {  // characters, or bytes
      std::size_t length = 1;
      while (i + length < text.size() && (static_cast<unsigned char>(text[i + length]) & 0xc0) == 0x80)
        ++length;
      if (const auto at = ids_.find(std::string(text.substr(i, length))); at != ids_.end())
        ids.push_back(at->second);
      else
        for (std::size_t b = 0; b < length; ++b) ids.push_back(static_cast<unsigned char>(text[i + b]) + 3);
      i += length;
    }
    while (true) {
      float best = -std::numeric_limits<float>::infinity();
      std::size_t place = 0;
      int joined = -1;
      for (std::size_t i = 1; i + 1 < ids.size(); ++i) {
        const auto at = ids_.find(piece(ids[i]) + piece(ids[i + 1]));
        if (at == ids_.end() || pieces_[static_cast<std::size_t>(at->second)].score <= best) continue;
        best = pieces_[static_cast<std::size_t>(at->second)].score, place = i, joined = at->second;
      }
      if (joined < 0) return ids;
      ids[place] = joined;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
  }

  /// The bytes of a token. A piece such as <0x0A> is one byte.
  std::string decode(int id) const {
    const std::string& text = piece(id);
    unsigned byte = 0;
    if (std::sscanf(text.c_str(), "<0x%02X>", &byte) == 1) return {static_cast<char>(byte)};
    return text;
  }

 private:
  struct scored_piece {
    std::string text;
    float score;
  };
  const std::string& piece(int id) const { return pieces_.at(static_cast<std::size_t>(id)).text; }

  std::vector<scored_piece> pieces_;
  std::map<std::string, int> ids_;
};

#endif  // ROPE_EXAMPLES_LLAMA2C_HPP
