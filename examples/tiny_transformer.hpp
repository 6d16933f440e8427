// A small language model with its backward pass: the layers of Llama (RMS norms, attention, SwiGLU), and one
// of six encodings of positions. Attention and its gradient are calls of rope, the rest is plain Eigen.
//
//     tiny_transformer<float> model({.positions = encoding::rope}, seed);
//     tiny_transformer<float>::vector d = tiny_transformer<float>::vector::Zero(model.parameters().size());
//     const double loss = model.add_gradient(bytes, 1, d);  // of all bytes but the first
//     model.parameters() -= rate * d;
//
// All parameters are one vector, and so are their gradients. `tensors()` lists the offsets, by the names that
// Hugging Face gives the tensors of a Llama.

#ifndef ROPE_EXAMPLES_TINY_TRANSFORMER_HPP
#define ROPE_EXAMPLES_TINY_TRANSFORMER_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/rope.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// The encoding of the order of tokens.
enum class encoding {
  none,        // only the causal mask
  learned,     // a learned vector per position, added to the embedding
  sinusoidal,  // Vaswani et al. 2017, arXiv:1706.03762, section 3.5, added to the embedding
  alibi,       // Press et al. 2021, arXiv:2108.12409: scores fall with the distance, a slope per head
  t5,          // Raffel et al. 2019, arXiv:1910.10683: a learned number per head and bucket of distances
  rope         // Su et al. 2021, arXiv:2104.09864
};

struct tiny_shape {
  encoding positions = encoding::rope;
  rope::Index vocabulary = 256, width = 64, heads = 4, layers = 2, hidden = 160;
  rope::Index context = 64;   // tokens of a sequence in training
  rope::Index longest = 256;  // tokens of the longest sequence ever given
  double base = 10000;        // of the rotation

  static constexpr double epsilon = 1e-5;     // of the norms
  static constexpr rope::Index buckets = 32;  // of distances
  rope::Index head_dim() const { return width / heads; }
};

/// \tparam T  float or double
template <class T>
class tiny_transformer {
 public:
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using column = Eigen::Matrix<T, Eigen::Dynamic, 1>;
  using vector = Eigen::Array<T, Eigen::Dynamic, 1>;
  using Index = rope::Index;

  struct tensor {
    std::string name;
    Index rows, cols, first;  // row-major, from there on
  };

  /// Equal seeds give models with different encodings equal weights in the tensors that they share.
  tiny_transformer(const tiny_shape& shape, std::uint64_t seed)
      : shape_(shape),
        queries_(rope::frequencies(shape.head_dim(), shape.base), shape.longest),
        keys_(queries_) {
    const Index width = shape.width;
    const double of_width = 1 / std::sqrt(static_cast<double>(width)),
                 residual = 1 / std::sqrt(2 * static_cast<double>(shape.layers));
    generator_.seed(seed);
    add("model.embed_tokens.weight", shape.vocabulary, width, embedding_size);
    for (Index i = 0; i < shape.layers; ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      add(prefix + "input_layernorm.weight", 1, width, 0, 1);
      for (const char* name : {"q", "k", "v"})
        add(prefix + "self_attn." + name + "_proj.weight", width, width, of_width);
      add(prefix + "self_attn.o_proj.weight", width, width, of_width * residual);
      add(prefix + "post_attention_layernorm.weight", 1, width, 0, 1);
      add(prefix + "mlp.gate_proj.weight", shape.hidden, width, of_width);
      add(prefix + "mlp.up_proj.weight", shape.hidden, width, of_width);
      add(prefix + "mlp.down_proj.weight", width, shape.hidden,
          residual / std::sqrt(static_cast<double>(shape.hidden)));
    }
    add("model.norm.weight", 1, width, 0, 1);
    add("lm_head.weight", shape.vocabulary, width, of_width / 4);
    if (shape.positions == encoding::learned) add("positions", shape.longest, width, embedding_size);
    if (shape.positions == encoding::t5) add("relative_bias", shape.heads, shape.buckets, 0);
  }

  const tiny_shape& shape() const { return shape_; }
  const std::vector<tensor>& tensors() const { return tensors_; }
  vector& parameters() { return parameters_; }
  const vector& parameters() const { return parameters_; }

  /// Replaces the rotation by a schedule of context extension or xPos, for positions [0, longest).
  void rotate_by(const rope::frequencies& of) {
    queries_ = keys_ = rope::frequency_table<T>(of, shape_.longest);
  }
  void rotate_by(const rope::xpos<T>& tables) { queries_ = tables.queries(), keys_ = tables.keys(); }

  /// [ids, vocabulary]
  matrix logits(std::span<const int> ids) const {
    trace of;
    return forward(ids, 0, of);
  }

  /// The sum of -log p of ids[first + 1], ids[first + 2], ..., each from all ids before it.
  double loss(std::span<const int> ids, Index first = 0) const {
    trace of;
    matrix scores = forward(ids.first(ids.size() - 1), first, of);
    return cross_entropy(scores, ids.subspan(static_cast<std::size_t>(first) + 1), 1);
  }

  /// The loss as above for all ids except the first. Adds `share` times its gradient to d.
  double add_gradient(std::span<const int> ids, T share, vector& d) const {
    trace of;
    matrix scores = forward(ids.first(ids.size() - 1), 0, of);
    const double loss = cross_entropy(scores, ids.subspan(1), share);
    backward(ids.first(ids.size() - 1), of, scores, d);
    return loss;
  }

 private:
  static constexpr double embedding_size = 0.1;  // root mean square of an embedding's channels at the start

  enum part : Index { heads_norm, to_q, to_k, to_v, to_out, mlp_norm, to_gate, to_up, to_down, parts };
  static Index of_layer(Index layer, Index part) { return 1 + layer * parts + part; }
  Index last_norm() const { return of_layer(shape_.layers, 0); }
  Index output() const { return last_norm() + 1; }
  Index extra() const { return last_norm() + 2; }  // the first tensor of the encoding

  /// Results of the forward pass that the backward pass needs.
  struct norm_trace {
    column inverse;       // 1 / root mean square of every row
    matrix unit, result;  // rows divided by their root mean square, and these times the weight
  };
  struct layer_trace {
    norm_trace before_attention, before_mlp;
    matrix q, k, v, attended, gate, up, product;
    std::vector<double> log_sum_exp;
  };
  struct trace {
    std::vector<layer_trace> layers;
    norm_trace last;
    std::vector<float> bias;
  };

  void add(const std::string& name, Index rows, Index cols, double deviation, double mean = 0) {
    const Index first = parameters_.size();
    tensors_.push_back({name, rows, cols, first});
    parameters_.conservativeResize(first + rows * cols);
    for (Index i = first; i < parameters_.size(); ++i) {  // uniform, the same numbers with every library
      const double share = static_cast<double>(generator_() >> 11) / 9007199254740992.0;
      parameters_(i) = static_cast<T>(mean + deviation * std::sqrt(3.0) * (2 * share - 1));
    }
  }
  Eigen::Map<const matrix> weight(Index at) const {
    const tensor& of = tensors_[static_cast<std::size_t>(at)];
    return {parameters_.data() + of.first, of.rows, of.cols};
  }
  Eigen::Map<matrix> slot(vector& d, Index at) const {
    const tensor& of = tensors_[static_cast<std::size_t>(at)];
    return {d.data() + of.first, of.rows, of.cols};
  }

  const matrix& normalise(const matrix& x, Index by, norm_trace& of) const {
    const T size = static_cast<T>(x.cols());
    of.inverse = (x.rowwise().squaredNorm().array() / size + static_cast<T>(shape_.epsilon)).rsqrt();
    of.unit = of.inverse.asDiagonal() * x;
    return of.result = of.unit * weight(by).row(0).asDiagonal();
  }
  /// Adds the gradient with respect to the norm's input to d_x.
  void normalise_back(const norm_trace& of, Index by, const matrix& d_result, matrix& d_x, vector& d) const {
    slot(d, by).row(0) += d_result.cwiseProduct(of.unit).colwise().sum();
    const matrix d_unit = d_result * weight(by).row(0).asDiagonal();
    const column along = d_unit.cwiseProduct(of.unit).rowwise().mean();
    d_x += of.inverse.asDiagonal() * (d_unit - along.asDiagonal() * of.unit);
  }

  /// Distances 0 .. 15 have a bucket each, and larger ones share buckets by their logarithm. All distances
  /// beyond those in training are in the last bucket.
  Index bucket(Index distance) const {
    constexpr Index exact = tiny_shape::buckets / 2;
    if (distance < exact) return distance;
    const double share = std::log(static_cast<double>(distance) / exact) /
                         std::log(std::max(2.0, static_cast<double>(shape_.context) / exact));
    return std::min(shape_.buckets - 1, exact + static_cast<Index>(share * exact));
  }
  /// [heads, tokens, tokens]: the bias of the scores, or empty.
  std::vector<float> bias_of(Index tokens) const {
    const bool learned = shape_.positions == encoding::t5;
    if (!learned && shape_.positions != encoding::alibi) return {};
    std::vector<float> bias(static_cast<std::size_t>(shape_.heads * tokens * tokens));
    std::vector<float> by_distance(static_cast<std::size_t>(tokens));
    float* row = bias.data();
    for (Index h = 0; h < shape_.heads; ++h) {
      const double slope = std::exp2(-8 * static_cast<double>(h + 1) / static_cast<double>(shape_.heads));
      for (Index n = 0; n < tokens; ++n)
        by_distance[static_cast<std::size_t>(n)] = static_cast<float>(
            learned ? static_cast<double>(weight(extra())(h, bucket(n))) : -slope * static_cast<double>(n));
      for (Index i = 0; i < tokens; ++i, row += tokens)
        std::reverse_copy(by_distance.begin(), by_distance.begin() + i + 1, row);
    }
    return bias;
  }
  rope::attention_options options_of(const trace& of, Index tokens, std::span<double> log_sum_exp) const {
    rope::attention_options options = {.log_sum_exp = log_sum_exp};
    if (!of.bias.empty()) options.bias = rope::score_matrix(of.bias.data(), 1, shape_.heads, tokens, tokens);
    return options;
  }
  auto heads(matrix& x) const { return rope::thd(x.data(), x.rows(), shape_.heads, shape_.head_dim()); }
  auto tables() const { return rope::query_key_tables(queries_, keys_); }

  matrix embed(std::span<const int> ids) const {
    matrix x(static_cast<Index>(ids.size()), shape_.width);
    if (x.rows() > shape_.longest)
      throw std::out_of_range("a sequence must have at most " + std::to_string(shape_.longest) +
                              " tokens, got " + std::to_string(x.rows()));
    for (Index t = 0; t < x.rows(); ++t) {
      x.row(t) = weight(0).row(ids[static_cast<std::size_t>(t)]);
      if (shape_.positions == encoding::learned) x.row(t) += weight(extra()).row(t);
      if (shape_.positions != encoding::sinusoidal) continue;
      const double size = embedding_size * std::sqrt(2.0);  // the size of the embeddings
      for (Index i = 0; i < shape_.width; i += 2) {
        const double angle = static_cast<double>(t) *
                             std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(shape_.width));
        x(t, i) += static_cast<T>(size * std::sin(angle));
        x(t, i + 1) += static_cast<T>(size * std::cos(angle));
      }
    }
    return x;
  }

  /// The logits of rows [first, ids).
  matrix forward(std::span<const int> ids, Index first, trace& of) const {
    matrix x = embed(ids);
    of.bias = bias_of(x.rows());
    of.layers.resize(static_cast<std::size_t>(shape_.layers));
    for (Index l = 0; l < shape_.layers; ++l) {
      const auto w = [&](part name) { return weight(of_layer(l, name)).transpose(); };
      layer_trace& now = of.layers[static_cast<std::size_t>(l)];
      const matrix& y = normalise(x, of_layer(l, heads_norm), now.before_attention);
      now.q.noalias() = y * w(to_q);
      now.k.noalias() = y * w(to_k);
      now.v.noalias() = y * w(to_v);
      now.attended.resize(x.rows(), shape_.width);
      now.log_sum_exp.resize(static_cast<std::size_t>(x.rows() * shape_.heads));
      const auto options = options_of(of, x.rows(), now.log_sum_exp);
      if (shape_.positions == encoding::rope)
        rope::attention<rope::half_split>(heads(now.q), heads(now.k), heads(now.v), heads(now.attended),
                                          tables(), options);
      else
        rope::attention(heads(now.q), heads(now.k), heads(now.v), heads(now.attended), options);
      x.noalias() += now.attended * w(to_out);

      const matrix& z = normalise(x, of_layer(l, mlp_norm), now.before_mlp);
      now.gate.noalias() = z * w(to_gate);
      now.up.noalias() = z * w(to_up);
      now.product = now.gate.array() / (1 + (-now.gate.array()).exp()) * now.up.array();
      x.noalias() += now.product * w(to_down);
    }
    return normalise(x.bottomRows(x.rows() - first), last_norm(), of.last) * weight(output()).transpose();
  }

  /// The sum of -log softmax(scores)[target] over the rows; scores become `share` times its gradient.
  static double cross_entropy(matrix& scores, std::span<const int> targets, T share) {
    double loss = 0;
    for (Index t = 0; t < scores.rows(); ++t) {
      auto row = scores.row(t).array();
      const T highest = row.maxCoeff(), right = row(targets[static_cast<std::size_t>(t)]);
      row = (row - highest).exp();
      const T sum = row.sum();
      loss += std::log(static_cast<double>(sum)) + static_cast<double>(highest - right);
      row *= share / sum;
      row(targets[static_cast<std::size_t>(t)]) -= share;
    }
    return loss;
  }

  void backward(std::span<const int> ids, trace& of, const matrix& d_logits, vector& d) const {
    slot(d, output()).noalias() += d_logits.transpose() * of.last.result;
    matrix d_x = matrix::Zero(d_logits.rows(), shape_.width);
    normalise_back(of.last, last_norm(), d_logits * weight(output()), d_x, d);
    for (Index l = shape_.layers - 1; l >= 0; --l) {
      layer_trace& now = of.layers[static_cast<std::size_t>(l)];
      const auto w = [&](part name) { return weight(of_layer(l, name)); };
      const auto add_product = [&](part name, const matrix& d_out, const matrix& in) {
        slot(d, of_layer(l, name)).noalias() += d_out.transpose() * in;
      };
      add_product(to_down, d_x, now.product);
      const matrix d_product = d_x * w(to_down);
      const auto sigmoid = (1 / (1 + (-now.gate.array()).exp())).eval();
      const matrix d_up = d_product.array() * now.gate.array() * sigmoid,
                   d_gate =
                       d_product.array() * now.up.array() * sigmoid * (1 + now.gate.array() * (1 - sigmoid));
      add_product(to_gate, d_gate, now.before_mlp.result);
      add_product(to_up, d_up, now.before_mlp.result);
      matrix d_normed = d_gate * w(to_gate);
      d_normed.noalias() += d_up * w(to_up);
      normalise_back(now.before_mlp, of_layer(l, mlp_norm), d_normed, d_x, d);

      add_product(to_out, d_x, now.attended);
      matrix d_attended = d_x * w(to_out), d_q = now.q, d_k = now.k, d_v = now.v;
      attend_back(of, now, d_attended, d_q, d_k, d_v, d);
      add_product(to_q, d_q, now.before_attention.result);
      add_product(to_k, d_k, now.before_attention.result);
      add_product(to_v, d_v, now.before_attention.result);
      d_normed.noalias() = d_q * w(to_q);
      d_normed.noalias() += d_k * w(to_k);
      d_normed.noalias() += d_v * w(to_v);
      normalise_back(now.before_attention, of_layer(l, heads_norm), d_normed, d_x, d);
    }
    for (Index t = 0; t < d_x.rows(); ++t) slot(d, 0).row(ids[static_cast<std::size_t>(t)]) += d_x.row(t);
    if (shape_.positions == encoding::learned) slot(d, extra()).topRows(d_x.rows()) += d_x;
  }

  void attend_back(const trace& of, layer_trace& now, matrix& d_attended, matrix& d_q, matrix& d_k,
                   matrix& d_v, vector& d) const {
    const Index tokens = d_q.rows();
    const auto options = options_of(of, tokens, now.log_sum_exp);
    const rope::attention_tape<T> tape = {.q = heads(now.q),
                                          .k = heads(now.k),
                                          .v = heads(now.v),
                                          .out = heads(now.attended),
                                          .d_out = heads(d_attended),
                                          .d_q = heads(d_q),
                                          .d_k = heads(d_k),
                                          .d_v = heads(d_v)};
    if (shape_.positions == encoding::rope)
      return rope::attention_gradient<rope::half_split>(tape, tables(), options);
    std::vector<double> d_bias(shape_.positions == encoding::t5 ? of.bias.size() : 0);
    rope::attention_gradient(tape, options, {.bias = d_bias});
    if (d_bias.empty()) return;
    Eigen::Map<matrix> by_bucket = slot(d, extra());
    const double* row = d_bias.data();
    for (Index h = 0; h < shape_.heads; ++h)
      for (Index i = 0; i < tokens; ++i, row += tokens)
        for (Index j = 0; j <= i; ++j) by_bucket(h, bucket(i - j)) += static_cast<T>(row[j]);
  }

  tiny_shape shape_;
  rope::frequency_table<T> queries_, keys_;
  std::mt19937_64 generator_;
  std::vector<tensor> tensors_;
  vector parameters_;
};

#endif  // ROPE_EXAMPLES_TINY_TRANSFORMER_HPP
