// Generates text with a language model: a folder of Hugging Face (config.json, model.safetensors,
// tokenizer.json or tokenizer.model), or a checkpoint of llama2.c (model.bin, with tokenizer.bin next to it).
//
//     rope_generate_text MODEL "Once upon a time" --tokens 100
//     rope_generate_text MODEL --ids 1,5,9 --tokens 8 --temperature 0.8 --top-p 0.9 --seed 7

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <rope/models.hpp>
#include <rope/rope.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_layout.hpp"
#include "decoder.hpp"
#include "key_error.hpp"
#include "llama2c.hpp"
#include "safetensors.hpp"
#ifdef ROPE_EXAMPLES_HAVE_PCRE2
#include "byte_level_bpe.hpp"
#endif
#ifdef ROPE_EXAMPLES_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace {

constexpr const char* usage =
    "usage: rope_generate_text MODEL [PROMPT] [options]\n"
    "  MODEL            a folder with config.json and model.safetensors, or a model.bin of llama2.c\n"
    "  PROMPT           the text to go on from\n"
    "  --ids 1,5,9      token ids in place of a prompt; ids are then printed\n"
    "  --tokens N       how many to generate (64)\n"
    "  --temperature T  0, the default, takes the likeliest token; otherwise sampled\n"
    "  --top-p P        samples from the likeliest tokens that have the probability P together (1)\n"
    "  --seed S         of the sampling (1)\n"
    "  --key-error      prints how far the keys of each layer are from themselves in 8 bits\n"
    "  --help           prints this text\n";

struct request {
  std::filesystem::path model;
  std::string prompt;
  std::vector<int> ids;
  int tokens = 64;
  double temperature = 0, top_p = 1;
  unsigned seed = 1;
  bool key_error = false;
};

std::string plain_digits(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

/// Throws:  std::invalid_argument with the values that an option takes
request read_request(const std::vector<std::string>& words) {
  request of;
  std::vector<std::string> plain;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      plain.push_back(words[i]);
      continue;
    }
    const std::string& option = words[i];
    if (option == "--key-error") {
      of.key_error = true;
      continue;
    }
    if (++i == words.size()) throw std::invalid_argument(option + " needs a value");
    const auto number = [&](double least, double most) {
      std::istringstream stream(words[i]);
      double value = 0;
      if (!(stream >> value) || !stream.eof() || !(value >= least && value <= most))
        throw std::invalid_argument(option + " must be a number from " + plain_digits(least) + " to " +
                                    plain_digits(most) + ", got " + words[i]);
      return value;
    };
    if (option == "--ids") {
      std::istringstream stream(words[i]);
      for (std::string id; std::getline(stream, id, ',');) {
        if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos)
          throw std::invalid_argument("--ids must be whole numbers with commas between, got " + words[i]);
        of.ids.push_back(std::stoi(id));
      }
    } else if (option == "--tokens") {
      of.tokens = static_cast<int>(number(1, 1e6));
    } else if (option == "--temperature") {
      of.temperature = number(0, 100);
    } else if (option == "--top-p") {
      of.top_p = number(0, 1);
    } else if (option == "--seed") {
      of.seed = static_cast<unsigned>(number(0, 4294967295.0));
    } else {
      throw std::invalid_argument("there is no option " + option);
    }
  }
  if (plain.empty() || plain.size() > 2) throw std::invalid_argument("give a model, and at most one prompt");
  of.model = plain[0];
  if (plain.size() == 2) of.prompt = plain[1];
  return of;
}

struct text_codec {
  std::function<std::vector<int>(std::string_view)> encode;
  std::function<std::string(int)> decode;
};

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  return nlohmann::json::parse(file);
}

/// The tokenizer of a folder, or nothing if ids are given instead.
text_codec codec_of(const std::filesystem::path& folder) {
#ifdef ROPE_EXAMPLES_HAVE_SENTENCEPIECE
  if (std::filesystem::exists(folder / "tokenizer.model")) {
    auto pieces = std::make_shared<sentencepiece::SentencePieceProcessor>();
    const auto status = pieces->Load((folder / "tokenizer.model").string());
    if (!status.ok()) throw std::runtime_error(status.ToString());
    return {[pieces](std::string_view text) {
              std::vector<int> ids = pieces->EncodeAsIds(std::string(text));
              if (pieces->bos_id() >= 0) ids.insert(ids.begin(), pieces->bos_id());
              return ids;
            },
            [pieces](int id) {
              std::string text = pieces->IdToPiece(id);
              unsigned byte = 0;
              if (std::sscanf(text.c_str(), "<0x%02X>", &byte) == 1)
                return std::string{static_cast<char>(byte)};
              for (std::size_t at = 0; (at = text.find("\u2581", at)) != std::string::npos;)
                text.replace(at, 3, " ");
              return text;
            }};
  }
#endif
#ifdef ROPE_EXAMPLES_HAVE_PCRE2
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    const auto tokenizer = std::make_shared<byte_level_bpe>(read_json(folder / "tokenizer.json"));
    return {[tokenizer](std::string_view text) { return tokenizer->encode(text); },
            [tokenizer](int id) { return tokenizer->decode(id); }};
  }
#endif
  throw std::runtime_error(
      folder.string() +
      " has no tokenizer this program was built for (tokenizer.json needs libpcre2-dev when it is built, "
      "tokenizer.model libsentencepiece-dev); give --ids");
}

/// The likeliest token, or one drawn by the softmax of logits / temperature. Only the likeliest tokens, which
/// together have the probability top_p, are drawn.
int choose(const decoder<float>::matrix& logits, const request& of, std::mt19937& random) {
  rope::Index best = 0;
  const float highest = logits.row(0).maxCoeff(&best);
  if (of.temperature <= 0) return static_cast<int>(best);
  std::vector<int> order(static_cast<std::size_t>(logits.cols()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits(0, a) > logits(0, b); });
  std::vector<double> weights;
  for (const int id : order)
    weights.push_back(std::exp(static_cast<double>(logits(0, id) - highest) / of.temperature));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t kept = 0;
  double sum = 0;
  while (kept < weights.size() && (kept == 0 || sum < of.top_p * all)) sum += weights[kept++];
  double left = static_cast<double>(random()) / 4294967296.0 * sum;
  for (std::size_t i = 0; i < kept; ++i)
    if ((left -= weights[i]) < 0) return order[i];
  return order[kept - 1];
}

bool ends_text(const nlohmann::json& config, int id) {
  if (!config.contains("eos_token_id")) return false;
  const auto& end = config["eos_token_id"];
  return end.is_array() ? std::find(end.begin(), end.end(), id) != end.end() : end == id;
}

template <class Weights>
void generate(const request& of, const nlohmann::json& config, const Weights& weights,
              std::optional<rope::layout_kind> layout, const text_codec& codec) {
  const bool speaks = of.ids.empty();
  const std::vector<int> prompt = speaks ? codec.encode(of.prompt) : of.ids;
  if (prompt.empty()) throw std::runtime_error("a prompt of at least one token is needed");
  const auto length = static_cast<rope::Index>(prompt.size()) + of.tokens;
  const rope::model_rope model =
      rope::import_hugging_face(config, {.length = static_cast<double>(length), .layout = layout});
  for (const std::string& warning : model.warnings) std::cerr << "warning: " << warning << '\n';
  decoder<float> text(config, model, weights, length);

  using clock = std::chrono::steady_clock;
  const auto seconds = [](clock::duration d) { return std::chrono::duration<double>(d).count(); };
  std::mt19937 random(of.seed);
  const auto start = clock::now();
  auto logits = text.forward(prompt);
  const auto read = clock::now();
  if (speaks) std::cout << of.prompt << std::flush;
  int made = 0;
  while (true) {
    const int id = choose(logits, of, random);
    ++made;
    if (ends_text(config, id)) break;
    if (speaks)
      std::cout << codec.decode(id) << std::flush;
    else
      std::cout << (made > 1 ? "," : "") << id << std::flush;
    if (made == of.tokens) break;
    logits = text.forward(std::vector<int>{id});
  }
  const double generating = seconds(clock::now() - read), reading = seconds(read - start);
  std::cout << '\n';
  std::fprintf(stderr, "prompt: %d tokens, %.1f per second; generated: %d tokens, %.1f per second\n",
               static_cast<int>(prompt.size()), static_cast<double>(prompt.size()) / reading, made,
               made / generating);
  for (rope::Index i = 0; i < text.layers() && of.key_error; ++i) {
    const auto error = error_of_8_bit_keys(text.cache(i));
    std::printf("layer %d, keys in 8 bits: %.3f %%, after hadamard_transform %.3f %%, largest channel %.2f\n",
                static_cast<int>(i), 100 * error.stored, 100 * error.transformed, error.outlier);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::cout << usage;
    return 0;
  }
  try {
    const request of = read_request(words);
    if (std::filesystem::is_directory(of.model)) {
      const auto codec = of.ids.empty() ? codec_of(of.model) : text_codec{};
      const nlohmann::json config = read_json(of.model / "config.json");
      generate(of, config, safetensors(of.model), checkpoint_layout::converted_layout(config), codec);
    } else {
      const llama2c_checkpoint checkpoint(of.model);
      text_codec codec;
      if (of.ids.empty()) {
        const auto pieces = std::make_shared<llama2c_tokenizer>(of.model.parent_path() / "tokenizer.bin",
                                                                checkpoint.config().at("vocab_size"));
        codec = {[pieces](std::string_view text) { return pieces->encode(text); },
                 [pieces](int id) { return pieces->decode(id); }};
      }
      generate(of, checkpoint.config(), checkpoint, rope::layout_kind::interleaved, codec);
    }
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << '\n' << usage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
