// A decoder-only language model: embeddings, layers of attention and feed-forward, logits.
//
//     const safetensors weights(folder);
//     const auto model = rope::import_hugging_face(config, {.length = 4096});
//     decoder<float> text(config, model, weights, 4096);
//     const auto logits = text.forward(ids);  // [1, vocabulary], of the last token
//
// rope::import_hugging_face gives each layer's rotation, schedule, attention window and score scale. The rest
// follows from the tensors: a layer has those norms, biases and gates for which the checkpoint has weights.
// `of_gemma` has two facts that neither contains.

#ifndef ROPE_EXAMPLES_DECODER_HPP
#define ROPE_EXAMPLES_DECODER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numbers>
#include <rope/models.hpp>
#include <rope/rope.hpp>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// \tparam T  float or double: the type of the computation, for any type of the checkpoint
template <class T>
class decoder {
 public:
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using row = Eigen::Matrix<T, 1, Eigen::Dynamic>;

  /// \param config    config.json
  /// \param model     the result of import_hugging_face
  /// \param weights   has(name), shape(name), read<T>(name) and names(), such as `safetensors`
  /// \param capacity  of the cache, in tokens
  ///
  /// Throws:  std::runtime_error if a weight is missing, has another shape, or is unknown: no part of a
  ///          checkpoint is left out. Layers must have the same tensors
  template <class Weights>
  decoder(const nlohmann::json& config, const rope::model_rope& model, const Weights& weights,
          rope::Index capacity)
      : model_(model), tables_(model, capacity), heads_(model.query_heads), kv_heads_(model.key_heads) {
    reader<Weights> read{weights, {}};
    const auto number = [&config](const char* key, double otherwise) {
      return config.contains(key) && config[key].is_number() ? config[key].get<double>() : otherwise;
    };
    const bool of_gemma = model.architecture.starts_with("gemma");
    norm_offset_ = of_gemma ? 1 : 0;
    epsilon_ = 1e-5;  // of OLMo, whose config does not have it
    for (const char* key : {"layer_norm_eps", "norm_epsilon", "rms_norm_eps"})
      epsilon_ = number(key, epsilon_);
    subtracts_mean_ = !config.contains("rms_norm_eps");
    clip_ = static_cast<T>(number("clip_qkv", 0));
    residual_scale_ = static_cast<T>(number("residual_multiplier", 1));
    logit_scale_ = static_cast<T>(number("logit_scale", 1) / number("logits_scaling", 1));
    logit_cap_ = static_cast<T>(number("final_logit_softcapping", 0));
    std::string activation = "silu";
    for (const char* key : {"hidden_act", "hidden_activation"})
      if (config.contains(key) && config[key].is_string()) activation = config[key].get<std::string>();
    if (!std::set<std::string>{"silu", "gelu", "gelu_new", "gelu_pytorch_tanh"}.contains(activation))
      throw std::runtime_error("hidden_act must be silu, gelu, gelu_new or gelu_pytorch_tanh, got " +
                               activation);
    if (activation != "silu") shape_ = activation == "gelu" ? gate_shape::gelu : gate_shape::gelu_by_tanh;

    const std::string prefix = weights.has("gpt_neox.embed_in.weight") ? "gpt_neox." : "model.";
    embedding_ = read.matrix_of(prefix, {"embed_tokens", "embed_in"}, any, any).weight;
    const rope::Index words = embedding_.rows(), hidden = embedding_.cols();
    embedding_scale_ =
        static_cast<T>(number("embedding_multiplier", of_gemma ? std::sqrt(static_cast<double>(hidden)) : 1));
    last_norm_ = read.norm_of(prefix, {"norm", "final_layernorm", "final_layer_norm"}, hidden);
    if (weights.has("lm_head.weight") || weights.has("embed_out.weight"))
      output_ = read.matrix_of("", {"lm_head", "embed_out"}, words, hidden);
    else
      output_.weight = embedding_;
    if (!last_norm_.exists) {
      if (model.architecture != "olmo") throw read.missing(prefix + "norm.weight");
      bare_norms_ = last_norm_.exists = true;  // no norm of OLMo has weights
    }
    const double layers = number("num_hidden_layers", 0);
    if (!(layers >= 1)) throw std::runtime_error("config.json must have num_hidden_layers");
    for (rope::Index i = 0; static_cast<double>(i) < layers; ++i) {
      const std::string name = prefix + "layers." + std::to_string(i) + ".";
      layers_.push_back(layer_of(read, name, i, capacity));
      if (read.count(name) != read.count(prefix + "layers.0."))
        throw std::runtime_error("the checkpoint has other tensors in " + name + "* than in layer 0");
    }
    both_norms_in_parallel_ = config.value("use_parallel_residual", prefix == "gpt_neox.");
    for (const std::string& name : weights.names())
      if (!read.taken.contains(name) && !name.ends_with("rotary_emb.inv_freq"))
        throw std::runtime_error("the checkpoint has " + name + ", which this decoder does not know");
  }

  /// Processes the next tokens.
  ///
  /// \param ids   of the tokens
  /// \param rows  how many of the last logits to return
  ///
  /// Returns [rows, vocabulary].
  matrix forward(std::span<const int> ids, rope::Index rows = 1) {
    const auto tokens = static_cast<rope::Index>(ids.size());
    if (rows < 1 || rows > tokens)
      throw std::invalid_argument("rows must be from 1 to the number of ids, " + std::to_string(tokens) +
                                  ", got " + std::to_string(rows));
    matrix x(tokens, embedding_.cols());
    for (rope::Index t = 0; t < tokens; ++t) {
      const int id = ids[static_cast<std::size_t>(t)];
      if (id < 0 || id >= embedding_.rows())
        throw std::out_of_range("no token has the id " + std::to_string(id));
      x.row(t) = embedding_.row(id) * embedding_scale_;
    }
    for (layer& of : layers_) {
      const matrix normed = apply(of.before_attention, x);
      matrix attended = apply(of.after_attention, attend(of, normed));
      const bool parallel = !of.before_mlp.exists && !of.after_mlp.exists;
      if (parallel || both_norms_in_parallel_) {
        const matrix fed = feed_forward(of, parallel ? normed : apply(of.before_mlp, x));
        x += (attended + fed) * residual_scale_;
      } else {
        x += attended * residual_scale_;
        x += apply(of.after_mlp, feed_forward(of, apply(of.before_mlp, x))) * residual_scale_;
      }
    }
    matrix logits = output_(apply(last_norm_, x.bottomRows(rows))) * logit_scale_;
    if (logit_cap_ > 0) logits = logit_cap_ * (logits.array() / logit_cap_).tanh();
    return logits;
  }

  /// Tokens processed so far.
  rope::Index size() const { return layers_.front().cache.size(); }
  rope::Index layers() const { return static_cast<rope::Index>(layers_.size()); }
  /// Rotated keys, and values, of the tokens read so far.
  const rope::kv_cache<T>& cache(rope::Index index) const {
    return layers_.at(static_cast<std::size_t>(index)).cache;
  }
  void clear() {
    for (layer& of : layers_) of.cache.clear();
  }

 private:
  enum class gate_shape { silu, gelu, gelu_by_tanh };
  struct linear {
    matrix weight = {};  // [out, in]
    row bias = {};       // [out] or empty
    matrix operator()(const matrix& x) const {
      matrix y = x * weight.transpose();
      if (bias.size() > 0) y.rowwise() += bias;
      return y;
    }
  };
  struct norm {
    bool exists = false;
    row weight = {}, bias = {};  // or empty
  };
  struct layer {
    rope::kv_cache<T> cache;
    rope::Index index;
    norm before_attention = {}, after_attention = {}, before_mlp = {}, after_mlp = {}, of_queries = {},
         of_keys = {};
    linear q = {}, k = {}, v = {}, o = {}, gate = {}, up = {}, down = {};  // without a gate if that is empty
  };

  static constexpr rope::Index any = -1;  // an extent that may be any

  template <class Weights>
  struct reader {
    const Weights& weights;
    std::set<std::string> taken;

    static std::runtime_error missing(const std::string& name) {
      return std::runtime_error("the checkpoint has no tensor " + name);
    }
    /// How many tensors with this prefix were read.
    std::ptrdiff_t count(const std::string& prefix) const {
      return std::ranges::count_if(taken, [&](const std::string& name) { return name.starts_with(prefix); });
    }
    /// The elements of a tensor that must have this shape.
    std::vector<T> read(const std::string& name, const std::vector<rope::Index>& shape) {
      const auto& stored = weights.shape(name);
      const auto text = [](const auto& extents) {
        std::string list;
        for (const auto extent : extents)
          list += (list.empty() ? "" : ", ") + (extent == any ? "any" : std::to_string(extent));
        return "[" + list + "]";
      };
      if (!std::ranges::equal(shape, stored, [](auto a, auto b) { return a == b || (a == any && b > 0); }))
        throw std::runtime_error(name + " must have the shape " + text(shape) + ", got " + text(stored));
      taken.insert(name);
      return weights.template read<T>(name);
    }
    row vector(const std::string& name, rope::Index length) {
      if (!weights.has(name)) return {};
      return Eigen::Map<const row>(read(name, {length}).data(), length);
    }
    /// The first of these tensors that exists, with its bias if it has one.
    linear matrix_of(const std::string& prefix, std::initializer_list<const char*> names, rope::Index rows,
                     rope::Index columns) {
      for (const char* name : names) {
        const std::string weight = prefix + name + ".weight";
        if (!weights.has(weight)) continue;
        const auto values = read(weight, {rows, columns});
        rows = weights.shape(weight)[0], columns = weights.shape(weight)[1];
        return {Eigen::Map<const matrix>(values.data(), rows, columns),
                vector(prefix + name + ".bias", rows)};
      }
      throw missing(prefix + *names.begin() + ".weight");
    }
    /// The first of these norms that exists, or none. Its weight has `length` elements, or `other_length`.
    norm norm_of(const std::string& prefix, std::initializer_list<const char*> names, rope::Index length,
                 rope::Index other_length = 0) {
      for (const char* name : names) {
        const std::string weight = prefix + name + ".weight";
        if (!weights.has(weight)) continue;
        const auto& shape = weights.shape(weight);
        if (shape.size() == 1 && shape[0] == other_length) length = other_length;
        return {true, vector(weight, length), vector(prefix + name + ".bias", length)};
      }
      return {};
    }
  };

  template <class Weights>
  layer layer_of(reader<Weights>& read, const std::string& prefix, rope::Index index, rope::Index capacity) {
    const auto has = [&](const std::string& name) { return read.weights.has(prefix + name + ".weight"); };
    const rope::layer_group* group = model_.group_of_layer(index);  // throws if it is unknown
    (void)model_.attention_of_layer(index);                         // also throws if it is unknown
    if (group != nullptr && group->first_channel != 0)
      throw std::runtime_error(
          "this decoder does not support heads whose last channels rotate (latent attention)");

    layer of = {.cache = rope::kv_cache<T>(1, capacity, kv_heads_,
                                           (group ? group : &model_.groups().front())->head_dim),
                .index = index};
    const rope::Index head_dim = of.cache.head_dim(), q_rows = heads_ * head_dim,
                      kv_rows = kv_heads_ * head_dim, hidden = embedding_.cols();
    const auto norm_of = [&](const char* name) { return read.norm_of(prefix, {name}, hidden); };
    // Norms before and after attention and feed-forward, by the names that checkpoints give to them.
    of.before_attention = norm_of("input_layernorm");
    if (has("pre_feedforward_layernorm")) {  // Gemma 2, 3
      of.after_attention = norm_of("post_attention_layernorm");
      of.before_mlp = norm_of("pre_feedforward_layernorm");
      of.after_mlp = norm_of("post_feedforward_layernorm");
    } else if (has("post_self_attn_layernorm")) {  // GLM-4
      of.after_attention = norm_of("post_self_attn_layernorm");
      of.before_mlp = norm_of("post_attention_layernorm");
      of.after_mlp = norm_of("post_mlp_layernorm");
    } else if (has("post_feedforward_layernorm")) {  // OLMo 2, 3
      of.after_attention = norm_of("post_attention_layernorm");
      of.after_mlp = norm_of("post_feedforward_layernorm");
    } else {
      of.before_mlp = norm_of("post_attention_layernorm");
    }
    if (bare_norms_) of.before_attention.exists = of.before_mlp.exists = true;
    if (!of.before_attention.exists && !of.after_attention.exists)
      throw read.missing(prefix + "input_layernorm.weight");
    of.of_queries = read.norm_of(prefix, {"self_attn.q_norm"}, head_dim, q_rows);
    of.of_keys = read.norm_of(prefix, {"self_attn.k_norm"}, head_dim, kv_rows);

    if (has("attention.query_key_value")) {  // GPT-NeoX: q, k and v of one head, then of the next
      if (kv_heads_ != heads_)
        throw std::runtime_error(
            "this decoder knows query_key_value only with as many key heads as query heads");
      const linear fused = read.matrix_of(prefix, {"attention.query_key_value"}, 3 * q_rows, hidden);
      of.q = of.k = of.v = {matrix(q_rows, fused.weight.cols()), row(fused.bias.size() / 3)};
      for (rope::Index h = 0; h < heads_; ++h) {
        linear* parts[] = {&of.q, &of.k, &of.v};
        for (rope::Index part = 0; part < 3; ++part) {
          const rope::Index from = (3 * h + part) * head_dim;
          parts[part]->weight.middleRows(h * head_dim, head_dim) = fused.weight.middleRows(from, head_dim);
          if (fused.bias.size() > 0)
            parts[part]->bias.segment(h * head_dim, head_dim) = fused.bias.segment(from, head_dim);
        }
      }
    } else if (has("self_attn.qkv_proj")) {  // Phi-3: all of q, then k, then v
      const linear fused = read.matrix_of(prefix, {"self_attn.qkv_proj"}, q_rows + 2 * kv_rows, hidden);
      of.q = rows_of(fused, 0, q_rows);
      of.k = rows_of(fused, q_rows, kv_rows);
      of.v = rows_of(fused, q_rows + kv_rows, kv_rows);
    } else {
      of.q = read.matrix_of(prefix, {"self_attn.q_proj"}, q_rows, hidden);
      of.k = read.matrix_of(prefix, {"self_attn.k_proj"}, kv_rows, hidden);
      of.v = read.matrix_of(prefix, {"self_attn.v_proj"}, kv_rows, hidden);
    }
    of.o = read.matrix_of(prefix, {"self_attn.o_proj", "self_attn.dense", "attention.dense"}, hidden, q_rows);
    of.down =
        read.matrix_of(prefix, {"mlp.down_proj", "mlp.fc2", "mlp.c_proj", "mlp.dense_4h_to_h"}, hidden, any);
    const rope::Index inner = of.down.weight.cols();
    if (has("mlp.gate_up_proj")) {
      const linear fused = read.matrix_of(prefix, {"mlp.gate_up_proj"}, 2 * inner, hidden);
      of.gate = rows_of(fused, 0, inner);
      of.up = rows_of(fused, inner, inner);
    } else if (has("mlp.down_proj")) {
      of.gate = read.matrix_of(prefix, {"mlp.gate_proj"}, inner, hidden);
      of.up = read.matrix_of(prefix, {"mlp.up_proj"}, inner, hidden);
    } else {
      of.up = read.matrix_of(prefix, {"mlp.fc1", "mlp.c_fc", "mlp.dense_h_to_4h"}, inner, hidden);
    }
    return of;
  }
  static linear rows_of(const linear& fused, rope::Index first, rope::Index count) {
    linear part = {fused.weight.middleRows(first, count), {}};
    if (fused.bias.size() > 0) part.bias = fused.bias.segment(first, count);
    return part;
  }

  /// Every row of x divided by its root mean square, or by its deviation after the mean is subtracted.
  matrix apply(const norm& by, const matrix& x) const {
    if (!by.exists) return x;
    matrix y = x;
    if (subtracts_mean_) y.colwise() -= x.rowwise().mean();
    const auto size = static_cast<T>(x.cols());
    for (rope::Index i = 0; i < y.rows(); ++i)
      y.row(i) /= std::sqrt(y.row(i).squaredNorm() / size + static_cast<T>(epsilon_));
    if (by.weight.size() > 0) y.array().rowwise() *= by.weight.array() + static_cast<T>(norm_offset_);
    if (by.bias.size() > 0) y.rowwise() += by.bias;
    return y;
  }
  /// A norm of each head if the weight has the length of a head, or of all heads of a token together. The
  /// constructor rejects a weight with a row per head, such as Cohere's with use_qk_norm.
  void normalise_heads(const norm& by, matrix& x) const {
    if (!by.exists) return;
    const rope::Index width = by.weight.size(), rows = x.size() / width;
    matrix y = apply(by, Eigen::Map<const matrix>(x.data(), rows, width));
    x = Eigen::Map<const matrix>(y.data(), x.rows(), x.cols());
  }

  matrix attend(layer& of, const matrix& x) const {
    matrix q = of.q(x), k = of.k(x), v = of.v(x), out(x.rows(), q.cols());
    if (clip_ > 0)
      for (matrix* each : {&q, &k, &v}) *each = each->cwiseMax(-clip_).cwiseMin(clip_);
    normalise_heads(of.of_queries, q);
    normalise_heads(of.of_keys, k);
    const auto queries = rope::thd(q, heads_), keys = rope::thd(k, kv_heads_),
               values = rope::thd(v, kv_heads_);
    const auto attended = rope::thd(out, heads_);
    const auto options = rope::rotate_layer(tables_, of.index, queries, keys, of.cache.size());
    of.cache.append(keys, values);
    rope::attention(queries, of.cache, attended, options);
    return of.o(out);
  }

  matrix feed_forward(const layer& of, const matrix& x) const {
    const bool gated = of.gate.weight.size() > 0;
    matrix y = gated ? of.gate(x) : of.up(x);
    y = y.unaryExpr([this](T value) { return activated(value); });
    if (gated) y.array() *= of.up(x).array();
    return of.down(y);
  }
  T activated(T x) const {
    if (shape_ == gate_shape::silu) return x / (1 + std::exp(-x));
    if (shape_ == gate_shape::gelu) return x / 2 * (1 + std::erf(x / std::numbers::sqrt2_v<T>));
    const T inner = std::sqrt(2 * std::numbers::inv_pi_v<T>) * (x + T(0.044715) * x * x * x);
    return x / 2 * (1 + std::tanh(inner));
  }

  rope::model_rope model_;
  rope::model_tables<T> tables_;
  rope::Index heads_, kv_heads_;
  double norm_offset_, epsilon_;
  bool subtracts_mean_, bare_norms_ = false, both_norms_in_parallel_ = false;
  T clip_, residual_scale_, logit_scale_, logit_cap_, embedding_scale_ = 1;
  gate_shape shape_ = gate_shape::silu;
  matrix embedding_;  // [vocabulary, hidden]
  norm last_norm_;
  linear output_;
  std::vector<layer> layers_;
};

#endif  // ROPE_EXAMPLES_DECODER_HPP
