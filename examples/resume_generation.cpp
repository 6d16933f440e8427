// Generation that outlives its process. One process generates half of a text, saves its caches and ends.
// Another one reads them and continues with the text of an uninterrupted run. It rejects caches of another
// schedule. The file format is made for this example.
#include <rope/rope.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using rope::half_split;
using rope::Index;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using cache = rope::kv_cache<Eigen::bfloat16>;

struct shape {
  static constexpr Index layers = 2, heads = 8, kv_heads = 2, head_dim = 32, width = heads * head_dim,
                         words = 200, capacity = 128;
};

matrix weights(Index rows, Index columns) {
  static std::mt19937 random(7);
  return matrix::NullaryExpr(rows, columns, [] {
    return (static_cast<float>(random() % 2001) - 1000) * std::sqrt(3e-6f / static_cast<float>(shape::width));
  });
}

/// Attention layers with random weights. Their words mean nothing, but depend on every earlier token.
struct model : shape {
  struct layer {
    matrix q = weights(width, width), k = weights(width, kv_heads*head_dim),
           v = weights(width, kv_heads*head_dim), o = weights(width, width);
  };
  matrix embedding = 16 * weights(words, width), output = weights(words, width);
  std::vector<layer> all = std::vector<layer>(layers);
  rope::frequency_table<float> table;

  explicit model(const rope::frequencies& schedule) : table(schedule, capacity) {}
};

/// A text, and the keys and values of all its tokens except the last, in every layer.
struct session : shape {
  std::vector<std::int32_t> text = {3, 14, 15, 92, 65, 35, 89, 79};
  std::vector<cache> caches = std::vector<cache>(layers, cache(1, capacity, kv_heads, head_dim));

  void generate(const model& m, std::size_t count) {
    for (; count > 0; --count) {
      const auto done = static_cast<std::size_t>(caches[0].size());
      const std::vector<std::int32_t> next(text.begin() + static_cast<std::ptrdiff_t>(done), text.end());
      matrix x = m.embedding(next, Eigen::all), attended(x.rows(), width);
      for (std::size_t l = 0; l < caches.size(); ++l) {
        const matrix q = x * m.all[l].q, k = x * m.all[l].k, v = x * m.all[l].v;
        caches[l].append<half_split>(rope::thd(k, kv_heads), rope::thd(v, kv_heads), m.table);
        rope::attention<half_split>(rope::thd(q, heads), caches[l], rope::thd(attended, heads), m.table);
        x += attended * m.all[l].o;
      }
      Index best = 0;
      (x.bottomRows(1) * m.output.transpose()).row(0).maxCoeff(&best);
      text.push_back(static_cast<std::int32_t>(best));
    }
  }
};

template <class X>
void write(std::ostream& file, const X* first, std::size_t count = 1) {
  file.write(reinterpret_cast<const char*>(first), static_cast<std::streamsize>(count * sizeof(X)));
}
template <class X>
void read(std::istream& file, X* first, std::size_t count = 1) {
  file.read(reinterpret_cast<char*>(first), static_cast<std::streamsize>(count * sizeof(X)));
  if (!file) throw std::runtime_error("the file ends too early");
}

/// Writes the text. Then for every layer the rotation of its keys, the positions of its tokens, and the keys
/// and values of every token, head by head.
void save(const session& s, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = s.text.size();
  write(file, &length);
  write(file, s.text.data(), s.text.size());
  for (const cache& of_layer : s.caches) {
    const rope::key_rotation rotation = of_layer.rotation();
    const std::uint64_t tokens = of_layer.positions(0).size();
    write(file, &rotation);
    write(file, &tokens);
    write(file, of_layer.positions(0).data(), of_layer.positions(0).size());
    for (const auto& heads_of : {of_layer.keys(0), of_layer.values(0)})
      for (Index t = 0; t < heads_of.tokens; ++t)
        for (Index h = 0; h < shape::kv_heads; ++h) write(file, heads_of.at(0, t, h), shape::head_dim);
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

session restore(const std::string& path, const model& m) {
  std::ifstream file(path, std::ios::binary);
  session s;
  std::uint64_t length = 0;
  read(file, &length);
  if (length > shape::capacity) throw std::runtime_error("the text is longer than the caches");
  s.text.resize(length);
  read(file, s.text.data(), s.text.size());
  for (const std::int32_t id : s.text)
    if (id < 0 || id >= shape::words) throw std::runtime_error("the text has an id that is no word");
  for (cache& of_layer : s.caches) {
    rope::key_rotation rotation;
    std::uint64_t tokens = 0;
    read(file, &rotation);
    read(file, &tokens);
    if (rotation != of_layer.rotation_by<half_split>(m.table))
      throw std::runtime_error("the keys were rotated by a schedule that this model does not have");
    if (tokens + 1 != length)
      throw std::runtime_error("a cache must have all tokens of the text but the last");
    std::vector<std::int64_t> positions(tokens);
    std::vector<Eigen::bfloat16> keys(tokens * shape::kv_heads * shape::head_dim), values = keys;
    read(file, positions.data(), positions.size());
    read(file, keys.data(), keys.size());
    read(file, values.data(), values.size());
    const auto view = [&](const std::vector<Eigen::bfloat16>& x) {
      return rope::thd(x.data(), static_cast<Index>(tokens), shape::kv_heads, shape::head_dim);
    };
    of_layer.append_rotated<half_split>(view(keys), view(values), m.table, positions);
  }
  return s;
}

/// The command line of another process of this program.
std::string command(const char* program, const char* step, const std::string& file) {
  return '"' + std::string(program) + "\" " + step + " \"" + file + '"';
}

int run(int count, char** arguments) {
  const rope::frequencies schedule(shape::head_dim, 500000.0),
      longer(shape::head_dim, 500000.0, rope::linear_scaling{.factor = 4});
  constexpr std::size_t half = 24;
  if (count == 3) {
    const std::string step = arguments[1], file = arguments[2];
    const model m(schedule);
    session s = step == "start" ? session() : restore(file, m);
    s.generate(m, half);
    save(s, file);
    std::printf("%-8s a process of its own: %d tokens, the caches hold %d\n", step.c_str(),
                static_cast<int>(s.text.size()), static_cast<int>(s.caches[0].size()));
    return 0;
  }
  const std::string file = "resume_generation.state";
  std::fflush(stdout);
  for (const char* step : {"start", "resume"})
    if (std::system(command(arguments[0], step, file).c_str()) != 0)
      throw std::runtime_error(std::string("the process that should ") + step + " has failed");
  const model m(schedule);
  session never_ended;
  never_ended.generate(m, 2 * half);
  const bool same = restore(file, m).text == never_ended.text;
  std::printf("the text of both processes %s the text of one run:", same ? "is" : "is not");
  for (const std::int32_t word : never_ended.text) std::printf(" %d", static_cast<int>(word));
  std::printf("\n");
  bool rejected = false;
  try {
    restore(file, model(longer));
  } catch (const std::exception& error) {
    rejected = true;
    std::printf("rejected under another schedule: %s\n", error.what());
  }
  std::remove(file.c_str());
  return same && rejected ? 0 : 1;
}

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
