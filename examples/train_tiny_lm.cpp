// Trains a small language model six times, each time with another position encoding. Then measures its loss
// on sequences longer than in training, unchanged, and for the rotation also with the schedules of context
// extension. Seeds, data, their order and the number of steps are equal.
//
//     rope_train_tiny_lm [FOLDER] [--steps N] [--context N] [--spans N] [--threads N] [--seed N]
//                        [--text FILE]
//
// The folder receives two figures and the rotary model, in the format of rope_generate_text. The default text
// is the documentation of rope: the comments of its headers.

#include <rope/models.hpp>
#include <rope/rope.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "safetensors.hpp"
#include "svg_plot.hpp"
#include "tiny_training.hpp"
#include "tiny_transformer.hpp"
#include "write_hugging_face.hpp"

namespace {

using rope::Index;
using model_type = tiny_transformer<float>;

constexpr double lengths[] = {1, 1.5, 2, 3, 4};  // lengths of sequences, divided by that in training
constexpr int extension = 4;                     // the factor of the schedules of context extension
constexpr double highest_rate = 0.004;
constexpr const char* usage =
    "usage: rope_train_tiny_lm [FOLDER] [options]\n"
    "  FOLDER       for two figures and the rotary model (tiny_lm)\n"
    "  --steps N    of every encoding (800)\n"
    "  --context N  bytes of a sequence in training (64)\n"
    "  --spans N    held-out sequences that a loss is the mean of (64)\n"
    "  --threads N  that compute (2)\n"
    "  --seed N     of the weights and of the order of the data (1)\n"
    "  --text FILE  to learn from (the comments of the library)\n"
    "  --help       prints this text\n";

struct request {
  std::filesystem::path folder = "tiny_lm", text = ROPE_EXAMPLES_DIR "/../include/rope_single.hpp";
  Index steps = 800, context = 64, spans = 64, threads = 2, seed = 1;

  Index batch() const { return 8; }
};

/// Throws:  std::invalid_argument with the values that an option takes
request read_request(const std::vector<std::string>& words) {
  request of;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    if (!option.starts_with("--")) {
      of.folder = option;
      continue;
    }
    if (++i == words.size()) throw std::invalid_argument(option + " needs a value");
    const auto number = [&](Index least, Index most) {
      std::istringstream stream(words[i]);
      Index value = 0;
      if (!(stream >> value) || !stream.eof() || value < least || value > most)
        throw std::invalid_argument(option + " must be a whole number from " + std::to_string(least) +
                                    " to " + std::to_string(most) + ", got " + words[i]);
      return value;
    };
    if (option == "--steps")
      of.steps = number(16, 1000000);
    else if (option == "--context")
      of.context = number(8, 4096) / 2 * 2;
    else if (option == "--spans")
      of.spans = number(1, 100000);
    else if (option == "--threads")
      of.threads = number(1, 1024);
    else if (option == "--seed")
      of.seed = number(0, 1000000);
    else if (option == "--text")
      of.text = words[i];
    else
      throw std::invalid_argument("there is no option " + option);
  }
  return of;
}

/// Reads a text file. From a C++ header, only the text after ///.
std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  std::string text;
  const bool header = path.extension() == ".hpp";
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find_first_not_of(' ');
    if (header && (at == std::string::npos || line.compare(at, 3, "///") != 0)) continue;
    text += header ? line.substr(std::min(line.size(), at + 4)) : line;
    text += '\n';
  }
  return text;
}

/// Prints the progress of the whole run on stderr.
class progress {
 public:
  explicit progress(double all) : all_(all) {}

  /// Adds `tokens` to the work done. Evaluation costs a third of training.
  void add(double tokens) {
    done_ += tokens;
    since_ += tokens;
  }
  void show(const char* what, Index step, Index steps, double loss) {
    const double now = seconds();
    if (now - shown_ < 0.5) return;
    std::fprintf(stderr, "\r%-22s step %4td of %4td, loss %.3f, %6.0f tokens/s, %4.0f s left ", what, step,
                 steps, loss, since_ / (now - shown_), now * (all_ - done_) / done_);
    shown_ = now;
    since_ = 0;
  }
  void end() const { std::fprintf(stderr, "\r%78s\r", ""); }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double all_, done_ = 0, since_ = 0, shown_ = 0;
};

struct kind {
  encoding positions;
  const char *name, *colour;
};
constexpr kind kinds[] = {{encoding::none, "none", svg::grey},
                          {encoding::learned, "learned", svg::gold},
                          {encoding::sinusoidal, "sinusoidal", svg::purple},
                          {encoding::alibi, "ALiBi", svg::green},
                          {encoding::t5, "T5 buckets", svg::vermilion},
                          {encoding::rope, "RoPE", svg::blue}};

/// A variant of the rotation of the trained model.
struct schedule {
  const char *name, *colour;
  void (*apply)(model_type&);
};
rope::frequencies scaled(const model_type& model, const auto& by) {
  return rope::frequencies(model.shape().head_dim(), model.shape().base, by);
}
const schedule schedules[] = {
    {"RoPE", svg::blue, [](model_type&) {}},
    {"linear", svg::vermilion,
     [](model_type& model) { model.rotate_by(scaled(model, rope::linear_scaling{.factor = extension})); }},
    {"NTK", svg::green,
     [](model_type& model) { model.rotate_by(scaled(model, rope::ntk_scaling{.factor = extension})); }},
    {"YaRN", svg::purple,
     [](model_type& model) {
       const auto trained = static_cast<double>(model.shape().context);
       model.rotate_by(
           scaled(model, rope::yarn_scaling{.factor = extension, .original_max_position = trained}));
     }},
    {"xPos", svg::gold, [](model_type& model) {  // decays over half the trained length, as in its paper
       const tiny_shape& of = model.shape();
       model.rotate_by(rope::xpos<float>(rope::frequencies(of.head_dim(), of.base), of.longest,
                                         {.center = static_cast<double>(of.longest) / 2,
                                          .scale_base = static_cast<double>(of.context) / 2}));
     }}};

/// Losses at `lengths`, or at steps.
struct curve {
  std::string name;
  const char* colour;
  std::vector<svg::point> points;
};

class experiment {
 public:
  explicit experiment(const request& of)
      : of_(of), threads_{of.threads}, text_(read_text(of.text), extension * of.context), meter_(work()) {}

  const divided_text& text() const { return text_; }
  const progress& meter() const { return meter_; }
  std::uint64_t seed() const { return 1000 * static_cast<std::uint64_t>(of_.seed); }
  tiny_shape shape(encoding positions) const {
    return {.positions = positions, .context = of_.context, .longest = extension * of_.context};
  }

  /// True if three steps have the same bits on one thread and on `threads`.
  bool threads_do_not_matter() const {
    model_type models[] = {{shape(encoding::rope), 1}, {shape(encoding::rope), 1}};
    const standard_threads threads[] = {{1}, {std::max(of_.threads, Index{2})}};
    for (std::size_t i = 0; i < 2; ++i) {
      adam<float> optimiser;
      std::mt19937_64 generator(1);
      for (int step = 0; step < 3; ++step)
        optimiser.step(models[i], text_.batch(of_.batch(), of_.context, generator), 0.001, threads[i]);
    }
    return (models[0].parameters() == models[1].parameters()).all();
  }

  /// Trains on sequences `longer` times as long. Returns the losses of the held-out part during training.
  std::vector<svg::point> train(model_type& model, const char* name, Index steps, Index longer, double rate) {
    std::vector<svg::point> losses;
    adam<float> optimiser;
    std::mt19937_64 generator(seed() + static_cast<std::uint64_t>(longer));
    const Index tokens = of_.batch() * of_.context;
    if (longer == 1) losses.push_back({0, held_out_loss(model, 1)});
    for (Index step = 1; step <= steps; ++step) {
      // Rises over the first twentieth, then falls to a tenth by half a cosine.
      const double share = static_cast<double>(step) / static_cast<double>(steps),
                   now = std::min(1.0, 20 * share) * (0.55 + 0.45 * std::cos(std::numbers::pi * share));
      const auto batch = text_.batch(of_.batch() / longer, longer * of_.context, generator);
      const double loss = optimiser.step(model, batch, now * rate, threads_);
      meter_.add(static_cast<double>(tokens));
      meter_.show(name, step, steps, loss);
      if (longer == 1 && step % between_reads() == 0)
        losses.push_back({static_cast<double>(step), held_out_loss(model, 1)});
    }
    return losses;
  }

  std::vector<svg::point> losses_by_length(const model_type& model) {
    std::vector<svg::point> losses;
    for (const double length : lengths) losses.push_back({length, held_out_loss(model, length)});
    return losses;
  }

 private:
  Index scored() const { return of_.context / 2; }
  Index between_reads() const { return of_.steps / 16; }
  Index before(double length) const {
    return static_cast<Index>(length * static_cast<double>(of_.context)) - scored() + 1;
  }
  /// The losses of the same bytes for every length: the second half of a sequence of the training length.
  /// Only the number of bytes before them differs.
  double held_out_loss(const model_type& model, double length) {
    const auto spans = text_.spans(of_.spans, before(length), scored());
    meter_.add(reading(length));
    return mean_loss(model, spans, before(length) - 1, threads_);
  }
  double reading(double length) const {
    return static_cast<double>(of_.spans) * length * static_cast<double>(of_.context) / 3;
  }
  /// The work of the whole run in tokens.
  double work() const {
    double reads = 0;
    for (const double length : lengths) reads += reading(length);
    const double steps = static_cast<double>(of_.steps) * (6 + 5.0 / 10),
                 reads_on_the_way = static_cast<double>(1 + of_.steps / between_reads());
    return steps * static_cast<double>(of_.batch() * of_.context) + 6 * reads_on_the_way * reading(1) +
           (6 + 10) * reads;
  }

  const request of_;
  standard_threads threads_;
  divided_text text_;
  progress meter_;
};

void print(const std::string& title, const std::vector<curve>& curves) {
  std::printf("\n%s\n%-20s", title.c_str(), "");
  for (const svg::point& at : curves[0].points) std::printf(" %7.4g", at.x);
  std::printf("\n");
  for (const curve& of : curves) {
    std::printf("%-20s", of.name.c_str());
    for (const svg::point& at : of.points) std::printf(" %7.3f", at.y);
    std::printf("\n");
  }
}

/// An axis for all losses, except those above `most`.
svg::axis losses(const std::vector<curve>& curves, double most) {
  double low = most, high = 0;
  for (const curve& of : curves)
    for (const svg::point& at : of.points) {
      low = std::min(low, at.y);
      high = std::max(high, std::min(at.y, most));
    }
  return {"loss of held-out bytes (nats)", std::floor(10 * low - 0.5) / 10, std::ceil(10 * high) / 10};
}

void draw(svg::picture& figure, const svg::box& place, const svg::axis& x, const svg::axis& y,
          const std::string& title, const std::vector<curve>& curves) {
  svg::panel panel(figure, place, x, y, title);
  for (curve of : curves) {
    std::erase_if(of.points, [&y](const svg::point& at) { return at.y > y.high; });
    panel.curve(of.name, of.points, of.colour,
                of.name.ends_with(", as it is") ? "stroke-dasharray='4 3'" : "");
  }
}

void save(const std::filesystem::path& path, const svg::picture& figure) {
  std::ofstream file(path);
  file << figure.text();
  file.close();
  if (!file) throw std::runtime_error(path.string() + " cannot be written");
}

/// `count` bytes that continue the prompt, drawn by the softmax of logits / temperature.
std::string sample(const model_type& model, const std::string& prompt, int count, double temperature) {
  std::mt19937_64 generator(3);
  std::string text = prompt;
  for (int i = 0; i < count; ++i) {
    std::vector<int> ids;
    const auto longest = static_cast<std::size_t>(model.shape().context);
    for (const char c : text.substr(text.size() - std::min(text.size(), longest)))
      ids.push_back(static_cast<int>(static_cast<unsigned char>(c)));
    const Eigen::ArrayXd row =
        model.logits(ids).bottomRows(1).transpose().cast<double>().array() / temperature;
    const Eigen::ArrayXd weights = (row - row.maxCoeff()).exp();
    double left = static_cast<double>(generator() >> 11) / 9007199254740992.0 * weights.sum();
    int id = 0;
    while (id < 255 && (left -= weights(id)) >= 0) ++id;
    text += static_cast<char>(id);
  }
  return text;
}

/// The difference between the logits of the saved model, read and run by decoder.hpp, and the logits of the
/// model that was saved, in units of rounding of the largest logit.
double decoder_error(const model_type& model, const std::filesystem::path& folder, std::span<const int> ids) {
  std::ifstream file(folder / "config.json");
  const auto config = nlohmann::json::parse(file);
  const safetensors weights(folder);
  decoder<float> read(config, rope::import_hugging_face(config), weights, static_cast<Index>(ids.size()));
  const auto logits = model.logits(ids), others = read.forward(ids, static_cast<Index>(ids.size()));
  return static_cast<double>((logits - others).cwiseAbs().maxCoeff() / logits.cwiseAbs().maxCoeff()) *
         16777216;
}

int run(const request& of) {
  std::filesystem::create_directories(of.folder);
  experiment trial(of);
  const std::string context = std::to_string(of.context);
  std::printf("%td bytes of %s, %td of them held out\n", trial.text().size(),
              of.text.filename().string().c_str(), trial.text().held_out());
  std::printf("%td steps of %td sequences of %td bytes\n", of.steps, of.batch(), of.context);
  if (!trial.threads_do_not_matter()) throw std::runtime_error("the threads change the bits");
  std::printf("the first steps on 1 thread and on several: the same bits\n");

  std::vector<curve> training, at_lengths, extended;
  std::vector<model_type> trained;
  for (const kind& one : kinds) {
    trained.emplace_back(trial.shape(one.positions), trial.seed());
    training.push_back(
        {one.name, one.colour, trial.train(trained.back(), one.name, of.steps, 1, highest_rate)});
    at_lengths.push_back({one.name, one.colour, trial.losses_by_length(trained.back())});
  }
  const model_type& rotary = trained.back();
  for (const schedule& one : schedules) {
    model_type model = rotary;
    one.apply(model);
    const std::string name = one.name;
    extended.push_back({name + ", as it is", one.colour, trial.losses_by_length(model)});
    trial.train(model, (name + ", tuned").c_str(), of.steps / 10, extension, highest_rate / 4);
    extended.push_back({name + ", tuned", one.colour, trial.losses_by_length(model)});
  }
  trial.meter().end();
  std::printf("%td parameters without the encoding; %.0f s, %.0f s of processors\n",
              rotary.parameters().size(), trial.meter().seconds(),
              static_cast<double>(std::clock()) / CLOCKS_PER_SEC);

  std::vector<curve> few = training;  // every fourth point, for the table
  for (curve& one : few) {
    std::vector<svg::point> kept;
    for (std::size_t i = 0; i < one.points.size(); i += 4) kept.push_back(one.points[i]);
    one.points = kept;
  }
  print("loss of held-out bytes (nats) after so many steps", few);
  print("loss of the same bytes in sequences so many times as long as in training", at_lengths);
  print("the rotary model with other rotations, and tuned on sequences of four times the length", extended);

  svg::picture first(760, 420, "Six position encodings", "the same model, data and steps");
  draw(first, {70, 80, 510, 270}, {"step", 0, static_cast<double>(of.steps)}, losses(training, 3.2), "",
       training);
  save(of.folder / "tiny_lm_loss.svg", first);
  svg::picture second(1080, 440, "Sequences longer than in training",
                      "the same bytes, with more before them; lengths over the " + context + " of training");
  const svg::axis length = {"length / training length", 1, 4};
  draw(second, {70, 90, 310, 270}, length, losses(at_lengths, 4), "six encodings", at_lengths);
  draw(second, {580, 90, 310, 270}, length, losses(extended, 4), "rotary: scaled to 4, and tuned", extended);
  save(of.folder / "tiny_lm_lengths.svg", second);

  write_hugging_face(rotary, of.folder);
  const auto ids = trial.text().spans(1, of.context / 2, of.context / 2).at(0);
  const double error = decoder_error(rotary, of.folder, ids);
  std::printf("\n%s, read and run by decoder.hpp: logits differ by %.1f u of the largest\n",
              of.folder.string().c_str(), error);
  std::printf("\n%s\n", sample(rotary, "The rotation of ", 400, 0.6).c_str());

  if (!(error <= 64)) throw std::runtime_error("the decoder's logits differ from the trained model");
  for (const curve& one : training)
    if (!(one.points.back().y < one.points.front().y - 0.5))
      throw std::runtime_error(one.name + ": the loss does not fall");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::fputs(usage, stdout);
    return 0;
  }
  try {
    return run(read_request(words));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n%s", error.what(), usage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
