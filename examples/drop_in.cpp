// The attention of a plain C engine before and after the change to rope: a language model in the style of
// llama2.c's run.c. Its two functions `before` and `after` compute the same for one token of one layer. All
// other code is shared.
//
//     rope_drop_in                        a model of random weights, 8 query heads and 4 of keys
//     rope_drop_in model.bin [TOKENS]     a checkpoint of llama2.c

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <random>
#include <rope/rope.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

struct sizes {
  int dim, hidden, layers, heads, kv_heads, vocabulary, length;
  int head_dim() const { return dim / heads; }
  int kv_dim() const { return head_dim() * kv_heads; }
};

struct layer_weights {
  std::vector<float> attention_norm, q, k, v, o, feed_norm, gate, down, up;
};
struct weights {
  sizes of;
  std::vector<float> embedding, last_norm, output;
  std::vector<layer_weights> layers;
};

// ---- before: everything by hand -------------------------------------------------------------------------------------
struct state_before {
  std::vector<float> keys, values;  // [layers, length, kv_dim]
};
void before(const sizes& s, state_before& state, int layer, int position, float* q, float* k, const float* v,
            float* out) {
  const int head_dim = s.head_dim(), kv_dim = s.kv_dim(), group = s.heads / s.kv_heads;
  for (int i = 0; i < s.dim; i += 2) {
    const float frequency =
        1.0f / std::pow(10000.0f, static_cast<float>(i % head_dim) / static_cast<float>(head_dim));
    const float angle = static_cast<float>(position) * frequency, c = std::cos(angle), n = std::sin(angle);
    for (float* x : {q, k}) {
      if (x == k && i >= kv_dim) continue;
      const float u = x[i], w = x[i + 1];
      x[i] = u * c - w * n;
      x[i + 1] = u * n + w * c;
    }
  }
  const std::ptrdiff_t first = std::ptrdiff_t{layer} * s.length * kv_dim;
  std::copy_n(k, kv_dim, &state.keys[static_cast<std::size_t>(first + position * kv_dim)]);
  std::copy_n(v, kv_dim, &state.values[static_cast<std::size_t>(first + position * kv_dim)]);
  std::vector<float> scores(static_cast<std::size_t>(position) + 1);
  for (int h = 0; h < s.heads; ++h) {
    const float* query = q + h * head_dim;
    const float* keys = state.keys.data() + first + h / group * head_dim;
    const float* values = state.values.data() + first + h / group * head_dim;
    float highest = -1e30f, sum = 0;
    for (int t = 0; t <= position; ++t) {
      float score = 0;
      for (int i = 0; i < head_dim; ++i) score += query[i] * keys[t * kv_dim + i];
      scores[static_cast<std::size_t>(t)] = score / std::sqrt(static_cast<float>(head_dim));
      highest = std::max(highest, scores[static_cast<std::size_t>(t)]);
    }
    for (float& score : scores) sum += score = std::exp(score - highest);
    std::fill_n(out + h * head_dim, head_dim, 0.0f);
    for (int t = 0; t <= position; ++t)
      for (int i = 0; i < head_dim; ++i)
        out[h * head_dim + i] += scores[static_cast<std::size_t>(t)] / sum * values[t * kv_dim + i];
  }
}

// ---- after: rope ----------------------------------------------------------------------------------------------------
struct state_after {
  rope::frequency_table<float> table;
  std::vector<rope::kv_cache<float>> caches;  // one per layer
};
void after(const sizes& s, state_after& state, int layer, float* q, float* k, float* v, float* out) {
  auto& cache = state.caches[static_cast<std::size_t>(layer)];
  cache.append<rope::interleaved>(rope::thd(k, 1, s.kv_heads, s.head_dim()),
                                  rope::thd(v, 1, s.kv_heads, s.head_dim()), state.table);
  rope::attention<rope::interleaved>(rope::thd(q, 1, s.heads, s.head_dim()), cache,
                                     rope::thd(out, 1, s.heads, s.head_dim()), state.table);
}
// ---- the rest of the engine -----------------------------------------------------------------------------------------

std::vector<float> times(const std::vector<float>& matrix, const std::vector<float>& x) {
  std::vector<float> y(matrix.size() / x.size());
  for (std::size_t row = 0; row < y.size(); ++row)
    for (std::size_t i = 0; i < x.size(); ++i) y[row] += matrix[row * x.size() + i] * x[i];
  return y;
}
std::vector<float> normed(const std::vector<float>& x, const std::vector<float>& weight) {
  float sum = 0;
  for (const float channel : x) sum += channel * channel;
  const float scale = 1 / std::sqrt(sum / static_cast<float>(x.size()) + 1e-5f);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = weight[i] * (scale * x[i]);
  return y;
}

/// Logits of the token after `id`.
///
/// \param attention  attention(layer, q, k, v, out)
template <class Attention>
std::vector<float> forward(const weights& w, int id, const Attention& attention) {
  const auto dim = static_cast<std::size_t>(w.of.dim);
  std::vector<float> x(dim), out(dim);
  std::copy_n(w.embedding.begin() + static_cast<std::ptrdiff_t>(id) * w.of.dim, dim, x.begin());
  for (int layer = 0; layer < w.of.layers; ++layer) {
    const layer_weights& of = w.layers[static_cast<std::size_t>(layer)];
    const auto h = normed(x, of.attention_norm);
    auto q = times(of.q, h), k = times(of.k, h), v = times(of.v, h);
    attention(layer, q.data(), k.data(), v.data(), out.data());
    const auto attended = times(of.o, out);
    for (std::size_t i = 0; i < dim; ++i) x[i] += attended[i];
    const auto f = normed(x, of.feed_norm), up = times(of.up, f);
    auto gate = times(of.gate, f);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    const auto fed = times(of.down, gate);
    for (std::size_t i = 0; i < dim; ++i) x[i] += fed[i];
  }
  return times(w.output, normed(x, w.last_norm));
}

/// Weights in the order of a checkpoint of llama2.c, each from next(rows, inputs): inputs 0 is a norm.
template <class Next>
weights weights_of(const sizes& s, bool shared, const Next& next) {
  weights w = {s, next(s.vocabulary, s.dim), {}, {}, {}};
  w.layers.resize(static_cast<std::size_t>(s.layers));
  const auto read = [&](std::vector<float> layer_weights::*part, int rows, int inputs) {
    for (layer_weights& of : w.layers) of.*part = next(rows, inputs);
  };
  read(&layer_weights::attention_norm, s.dim, 0);
  read(&layer_weights::q, s.dim, s.dim);
  read(&layer_weights::k, s.kv_dim(), s.dim);
  read(&layer_weights::v, s.kv_dim(), s.dim);
  read(&layer_weights::o, s.dim, s.dim);
  read(&layer_weights::feed_norm, s.dim, 0);
  read(&layer_weights::gate, s.hidden, s.dim);
  read(&layer_weights::down, s.dim, s.hidden);
  read(&layer_weights::up, s.hidden, s.dim);
  w.last_norm = next(s.dim, 0);
  next(s.length * s.head_dim(), 0);  // tables of cos and sin, which run.c does not read either
  w.output = shared ? w.embedding : next(s.vocabulary, s.dim);
  return w;
}

weights random_model() {
  std::mt19937 random(1);
  return weights_of({256, 512, 4, 8, 4, 512, 1024}, false, [&random](int rows, int inputs) {
    std::vector<float> values(static_cast<std::size_t>(rows * std::max(inputs, 1)), 1.0f);
    const float scale = inputs > 0 ? 2 / std::sqrt(static_cast<float>(inputs)) : 0;
    if (inputs > 0)
      for (float& value : values) value = scale * (2 * static_cast<float>(random()) / 4294967296.0f - 1);
    return values;
  });
}
weights read_model(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::int64_t size = file.tellg();
  int header[7] = {};
  file.seekg(0).read(reinterpret_cast<char*>(header), sizeof header);
  const int words = std::abs(std::max(header[5], -(1 << 30)));  // of -2^31 there is no absolute value
  const sizes s = {header[0], header[1], header[2], header[3], header[4], words, header[6]};
  for (const int number : {s.dim, s.hidden, s.layers, s.heads, s.kv_heads, s.vocabulary, s.length})
    if (!file || number < 1 || number > 1 << 18)
      throw std::runtime_error(path + " is no checkpoint of llama2.c");
  // The first token has the id 1.
  if (s.vocabulary < 2 || s.dim % s.heads != 0 || s.heads % s.kv_heads != 0)
    throw std::runtime_error(path + " is no checkpoint of llama2.c");
  if (std::int64_t{s.layers} * s.length * s.kv_dim() > 1 << 30)
    throw std::runtime_error(path + " needs caches of more than 2^30 keys");
  return weights_of(s, header[5] > 0, [&](int rows, int inputs) {
    const std::int64_t bytes = std::int64_t{4} * rows * std::max(inputs, 1);
    if (bytes > size - file.tellg()) throw std::runtime_error(path + " ends before its weights do");
    std::vector<float> values(static_cast<std::size_t>(bytes / 4));
    if (!file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(bytes)))
      throw std::runtime_error(path + " cannot be read");
    return values;
  });
}

struct run {
  std::vector<int> ids;
  double seconds = 0, attention_seconds = 0;
};
/// The likeliest tokens, one after another.
template <class Attention>
run generate(const weights& w, int tokens, const Attention& attention) {
  using clock = std::chrono::steady_clock;
  const auto since = [](clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  };
  run r;
  const auto start = clock::now();
  for (int position = 0, id = 1; position < tokens; ++position) {
    const auto logits = forward(w, id, [&](int layer, float* q, float* k, float* v, float* out) {
      const auto begin = clock::now();
      attention(layer, position, q, k, v, out);
      r.attention_seconds += since(begin);
    });
    id = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    r.ids.push_back(id);
  }
  r.seconds = since(start);
  return r;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const weights w = argc > 1 ? read_model(argv[1]) : random_model();
    const sizes& s = w.of;
    const int tokens = std::min(s.length, argc > 2 ? std::max(1, std::atoi(argv[2])) : 300);
    const auto cache = static_cast<std::size_t>(s.layers) * static_cast<std::size_t>(s.length * s.kv_dim());
    state_before by_hand = {std::vector<float>(cache), std::vector<float>(cache)};
    state_after by_rope = {rope::frequency_table<float>(rope::frequencies(s.head_dim()), s.length), {}};
    for (int layer = 0; layer < s.layers; ++layer)
      by_rope.caches.emplace_back(1, s.length, s.kv_heads, s.head_dim());

    const run first =
        generate(w, tokens, [&](int layer, int position, float* q, float* k, float* v, float* out) {
          before(s, by_hand, layer, position, q, k, v, out);
        });
    const run second = generate(w, tokens, [&](int layer, int, float* q, float* k, float* v, float* out) {
      after(s, by_rope, layer, q, k, v, out);
    });
    std::printf("%d tokens, %d layers, %d query heads, %d key heads, head_dim %d\n", tokens, s.layers,
                s.heads, s.kv_heads, s.head_dim());
    for (const auto& [name, r] : {std::pair("before", &first), std::pair("after", &second)})
      std::printf("%-7s %8.1f tokens per second; attention %6.2f us per token and layer\n", name,
                  tokens / r->seconds, 1e6 * r->attention_seconds / tokens / s.layers);
    const bool same = first.ids == second.ids;
    std::printf("%s\n", same ? "the same tokens" : "DIFFERENT tokens");
    return same ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
