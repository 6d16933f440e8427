// A conversation about images. Every message adds text and pictures, and the model answers token by token.
// The caches store the coordinates (time, height, width) of every token, and the position at which text
// continues. In the end one call processes the whole conversation, and must give the same words.
#include <rope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using rope::Index;
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using message = std::vector<rope::prompt_run>;

struct shape {
  static constexpr Index layers = 2, heads = 4, kv_heads = 2, head_dim = 32, width = heads * head_dim;
  static constexpr Index words = 256, capacity = 512;
};

/// How a model assigns its pairs to the axes. All are made from a plain schedule.
struct family {
  const char* name;
  double base;
  rope::axis_assignment axes;
};

matrix random_matrix(Index rows, Index cols) {
  static std::mt19937 random(3);
  return matrix::NullaryExpr(rows, cols, [] {
    return (static_cast<double>(random() % 2001) - 1000) * std::sqrt(3e-6 / shape::width);
  });
}

/// Attention layers with random weights. Their words mean nothing, but depend on every earlier token.
struct model : shape {
  using cache = rope::kv_cache<double>;
  using table = rope::frequency_table<double>;

  matrix embedding = 8 * random_matrix(words, width), q[layers], k[layers], v[layers], o[layers];
  rope::frequencies schedule, on_axes;
  table text = table(schedule, capacity);  // rotates every text token, before and after images

  explicit model(const family& of) : schedule(head_dim, of.base), on_axes(rope::on_axes(schedule, of.axes)) {
    for (Index l = 0; l < layers; ++l) {
      q[l] = 8 * random_matrix(width, width), o[l] = random_matrix(width, width);
      k[l] = 8 * random_matrix(width, kv_heads * head_dim), v[l] = random_matrix(width, kv_heads * head_dim);
    }
  }
  std::vector<cache> caches() const {
    return std::vector<cache>(layers, cache(1, capacity, kv_heads, head_dim, rope::token_axes{3}));
  }
  /// The outputs of the layers for new tokens, whose coordinates are the rows of one table.
  matrix forward(matrix x, std::vector<cache>& caches, const table& where) const {
    matrix attended(x.rows(), width);
    for (Index l = 0; l < layers; ++l) {
      cache& seen = caches[static_cast<std::size_t>(l)];
      const matrix queries = x * q[l], keys = x * k[l], values = x * v[l];
      seen.append<rope::half_split>(rope::thd(keys, kv_heads), rope::thd(values, kv_heads), where);
      rope::attention<rope::half_split>(rope::thd(queries, heads), seen, rope::thd(attended, heads), where);
      x += attended * o[l];
    }
    return x;
  }
  /// The word that follows a token.
  Index word_after(const matrix& hidden, Index token) const {
    Index word;
    (hidden.row(token) * embedding.transpose()).maxCoeff(&word);
    return word;
  }
};

/// All messages and images so far, for one call.
struct transcript {
  matrix inputs = matrix(shape::capacity, shape::width);  // embeddings of words and patches
  message runs = {};
  Index tokens = 0, patches = 0;
  struct answer {
    Index asked_by, word;
  };
  std::vector<answer> answers = {};

  /// Appends a part of the conversation.
  const matrix& add(const message& more, const matrix& x) {
    inputs.middleRows(tokens, x.rows()) = x;
    runs.insert(runs.end(), more.begin(), more.end());
    tokens += x.rows();
    return x;
  }
};

/// Runs the conversation, with an answer of `length` words to each message.
transcript converse(const model& m, std::vector<model::cache>& caches, const std::vector<message>& messages,
                    Index length) {
  transcript chat;
  for (const message& runs : messages) {
    // The cache gives the position of the next message: images take fewer positions than tokens.
    const auto prompt = rope::qwen_vl_positions(runs, caches[0].next_positions()[0]);
    const model::table where(m.on_axes, prompt.coordinates);
    const matrix x = chat.add(runs, 8 * random_matrix(prompt.coordinates.rows(), shape::width));
    for (const auto& run : runs)
      if (run.is_vision) chat.patches += run.vision.frames * run.vision.height * run.vision.width;
    matrix hidden = m.forward(x, caches, where);
    for (Index i = 0; i < length; ++i) {
      const Index word = m.word_after(hidden, hidden.rows() - 1);
      chat.answers.push_back({chat.tokens - 1, word});
      hidden = m.forward(chat.add({rope::text_run{1}}, m.embedding.row(word)), caches, m.text);
    }
  }
  return chat;
}

int main() {
  const std::vector<message> messages = {
      {rope::text_run{9}, rope::merged_patches(1, 12, 16, 2), rope::text_run{5}},
      {rope::text_run{7}},
      {rope::vision_run{3, 4, 6, 2}, rope::vision_run{1, 5, 3}, rope::text_run{4}}};
  bool same = true;
  for (const family& of : {family{"Qwen2-VL", 1e6, rope::contiguous_sections({4, 6, 6})},
                           family{"Qwen3-VL", 5e6, rope::interleaved_sections({6, 5, 5})},
                           family{"Ernie 4.5 VL", 5e5, rope::height_width_then_time(5, 6)}}) {
    const model m(of);
    auto caches = m.caches(), at_once = m.caches();
    const transcript chat = converse(m, caches, messages, 12);

    const auto prompt = rope::qwen_vl_positions(chat.runs);
    const matrix hidden =
        m.forward(chat.inputs.topRows(chat.tokens), at_once, model::table(m.on_axes, prompt.coordinates));
    Index words = 0;
    for (const auto& [asked_by, word] : chat.answers) words += m.word_after(hidden, asked_by) == word;
    const bool there = caches[0].size() == chat.tokens && caches[0].next_positions()[0] == prompt.next &&
                       (caches[0].coordinates(0) == prompt.coordinates.cast<double>()).all();
    std::printf("%-12s  %d tokens, %d of images and a video; text goes on at %d (rope_delta %d): %s\n",
                of.name, static_cast<int>(chat.tokens), static_cast<int>(chat.patches),
                static_cast<int>(prompt.next), static_cast<int>(prompt.delta()),
                there ? "as in the cache" : "FAILED, not in the cache");
    std::printf("%-12s  %d of %d words agree with one prompt\n", "", static_cast<int>(words),
                static_cast<int>(chat.answers.size()));
    same = same && there && words == static_cast<Index>(chat.answers.size());
  }
  return same ? 0 : 1;
}
