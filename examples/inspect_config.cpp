// Prints the contents of Hugging Face config.json and GGUF files about rotary embeddings, every number
// derived from them, and the C++ that makes the same without the file. Plots the wavelength of each pair
// before and after the scaling of a model. Lists the differences of files that describe one model. Usage:
// rope_inspect_config --help

#include <rope/models.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numbers>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "config_file.hpp"
#include "gguf_file.hpp"
#include "svg_plot.hpp"
#include "terminal_text.hpp"

namespace {

using rope::Index;

constexpr const char* usage =
    "usage: rope_inspect_config [--layout interleaved|half_split] [--dark] [file ...] [plot.svg] [length]";

constexpr const char* help =
    "\n"
    "  file            any number of config.json and model.gguf, each reported; two are compared, and of "
    "more those whose heads, layers and head_dim agree. Without one, the config of Llama 3.1\n"
    "  plot.svg        where to draw the wavelength of every pair of every file\n"
    "  length          of the sequence, in tokens, for schedules that depend on it (dynamic, longrope)\n"
    "  --layout NAME   interleaved or half_split, where the layout of the architecture is unknown\n"
    "  --dark          draws light on dark\n"
    "  --help          prints this text\n\n"
    "Lines are as long as the terminal is wide, or COLUMNS where it is set; without either they stay "
    "whole.\n";

/// One file that was read.
struct description {
  std::string path;
  rope::model_rope model;
};

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

/// The wavelengths of one group of layers: pairs from left to right, tokens on a logarithmic axis.
///
/// \param named  whether the title names the file
void plot(svg::picture& figure, double top, const description& file, const rope::layer_group& group,
          bool named) {
  const svg::palette& colours = figure.colours();
  const rope::frequencies original(group.rotary_dim(), group.base);
  const rope::pair_census pairs = rope::pair_census_of(group);
  const Index count = group.frequencies.pairs();
  const bool slides = group.layer_type.starts_with("sliding") && file.model.sliding_window > 0;
  const double reach = slides ? file.model.sliding_window : file.model.max_position;
  const double trained = group.number("original_max_position", 0);
  const auto wavelength = [](const rope::frequencies& frequencies, Index pair) {
    return 2 * std::numbers::pi / std::abs(frequencies.inv_freq()(pair, 0));
  };
  const double longest =
      std::max({pairs.longest_wavelength, wavelength(original, count - 1), reach, trained, 10.0});
  const double decades = std::ceil(std::log10(std::min(longest, 1e300)));

  std::string title = named ? file_name(file.path) + ": " : "";
  title += file.model.architecture + (group.layer_type.empty() ? "" : ", " + group.layer_type);
  title += ": " + group.rule + svg::format(", base %.0f, %d pairs", group.base, static_cast<int>(count));
  svg::panel panel(figure, {80, top, 560, 290},
                   {"pair", 0, static_cast<double>(std::max<Index>(count - 1, 1))},
                   {"wavelength (tokens)", 1, std::pow(10, decades), true}, svg::escaped(title));
  const auto curve = [&](const std::string& name, const rope::frequencies& frequencies, const char* colour) {
    std::vector<svg::point> points;
    for (Index pair = 0; pair < count; ++pair)
      if (frequencies.inv_freq()(pair, 0) != 0)  // otherwise it does not rotate
        points.push_back({static_cast<double>(pair), wavelength(frequencies, pair)});
    panel.curve(name, points, colour);
    panel.dots(points, colour);
  };
  if (pairs.blended > 0 && pairs.interpolated > 0) {
    const auto first = std::find(pairs.changes.begin(), pairs.changes.end(), rope::pair_change::blended);
    const double begin = static_cast<double>(first - pairs.changes.begin()) - 0.5;
    panel.band("partly slowed", begin, begin + static_cast<double>(pairs.blended), svg::gold);
  }
  const bool scaled = pairs.kept < count;
  if (scaled) curve(svg::format("by the base %.0f alone", group.base), original, colours.grey);
  curve(scaled ? "as the model rotates" : "as the model rotates, not scaled", group.frequencies,
        colours.blue);
  if (pairs.stopped > 0)
    panel.legend(svg::format("%d pairs do not rotate", static_cast<int>(pairs.stopped)), "none");
  if (trained > 0)
    panel.level(svg::format("trained on %.0f tokens", trained), trained, colours.vermilion, "2 3");
  if (reach > 0)
    panel.level(svg::format(slides ? "sliding window %.0f" : "longest context %.0f", reach), reach,
                colours.vermilion, "7 4");
}

std::string plot(const std::vector<description>& files, const svg::palette& colours) {
  constexpr double head = 45, height = 390;
  std::size_t panels = 0;
  for (const description& file : files) panels += file.model.groups().size();
  svg::picture figure(890, head + height * static_cast<double>(panels), "Wavelength of each pair", "",
                      colours);
  double top = head + 35;
  for (const description& file : files)
    for (const rope::layer_group& group : file.model.groups()) {
      plot(figure, top, file, group, files.size() > 1);
      top += height;
    }
  return figure.text();
}

bool is_gguf(const std::string& path) { return path.ends_with(".gguf"); }

rope::model_rope imported(const std::string& path, double length, std::optional<rope::layout_kind> layout) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot be read");
  constexpr auto without_rope = rope::model_without_rope::describe;
  if (is_gguf(path))
    return rope::import_gguf(gguf_file(file),
                             {.length = length, .layout = layout, .without_rope = without_rope});
  return rope::import_hugging_face(parsed_config(file),
                                   {.length = length, .layout = layout, .without_rope = without_rope});
}

/// True if both files give the same sizes of the model.
bool same_sizes(const rope::model_rope& a, const rope::model_rope& b) {
  const auto agree = [](auto x, auto y) { return x == 0 || y == 0 || x == y; };  // 0: unknown
  const auto head_dim = [](const rope::model_rope& model) {
    return model.groups().empty() ? Index{0} : model.groups()[0].head_dim;
  };
  return agree(a.query_heads, b.query_heads) && agree(a.key_heads, b.key_heads) &&
         agree(a.layers().size(), b.layers().size()) && agree(head_dim(a), head_dim(b));
}

/// The differences of a file from an earlier one, each number with its file.
std::string comparison(description before, description file) {
  if (before.model.source == file.model.source) {
    const bool short_names = file_name(before.path) != file_name(file.path);
    for (description* one : {&before, &file})
      one->model.source = short_names ? file_name(one->path) : one->path;
  }
  const std::vector<std::string> differences = rope::compare_models(before.model, file.model);
  std::string text = "\n" + file.path +
                     (differences.empty() ? " gives the same model as " : " differs from ") + before.path +
                     (differences.empty() ? "\n" : ":\n");
  for (const std::string& difference : differences) text += "  " + difference + "\n";
  return text;
}

struct arguments {
  std::vector<std::string> files;
  std::string plot;   // empty: none
  double length = 0;  // 0: not given
  std::optional<rope::layout_kind> layout;
  bool dark = false, help = false;
};

/// An invalid argument, or a file that cannot be read, with the reason.
struct refusal {
  std::string what, why;
};

arguments understood(int argc, char** argv) {
  arguments given;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    char* end = nullptr;
    const double number = std::strtod(argument.c_str(), &end);
    if (argument == "-h" || argument == "--help") {
      given.help = true;
    } else if (argument == "--dark") {
      given.dark = true;
    } else if (argument == "--layout") {
      const std::string_view name = i + 1 < argc ? argv[++i] : "";
      for (const auto known : {rope::layout_kind::interleaved, rope::layout_kind::half_split})
        if (name == rope::name_of(known)) given.layout = known;
      if (!given.layout || name != rope::name_of(*given.layout))
        throw refusal{std::string(name), "--layout must be interleaved or half_split"};
    } else if (!argument.empty() && *end == '\0') {
      if (!(number > 0 && number < std::numeric_limits<double>::infinity()) || given.length != 0)
        throw refusal{argument, "the length of the sequence must be one positive number"};
      given.length = number;
    } else if (argument.starts_with("-")) {
      throw refusal{argument, std::string("there is no such option; ") + usage};
    } else if (argument.ends_with(".svg")) {
      if (!given.plot.empty()) throw refusal{argument, "there can be one plot, and " + given.plot + " is"};
      given.plot = argument;
    } else if (given.files.empty() || is_gguf(argument) || argument.ends_with(".json")) {
      given.files.push_back(argument);
    } else {
      throw refusal{argument,
                    "must end in .json or .gguf to be read, in .svg to be drawn, or be the length in tokens"};
    }
  }
  if (given.files.empty()) given.files.push_back(ROPE_EXAMPLES_DIR "/configs/llama_3_1_8b.json");
  return given;
}

int fail(const refusal& because) {
  std::string text = "rope_inspect_config: \"" + because.what + "\": " + because.why;
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "%s\n", fitted(text, 0).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const arguments given = understood(argc, argv);
  const std::size_t columns = text_columns();
  if (given.help) {
    const std::string text = std::string(usage) + "\n" + help;
    std::fputs(fitted(text, columns > 0 ? columns : 80).c_str(), stdout);
    return 0;
  }
  const auto print = [&](const std::string& text) { std::fputs(fitted(text, columns).c_str(), stdout); };
  int result = 0;
  std::vector<description> read;
  for (const std::string& path : given.files) try {
      description file{path, imported(path, given.length, given.layout)};
      if (given.files.size() > 1) print((read.empty() ? "== " : "\n== ") + path + "\n\n");
      print(rope::describe(file.model));
      read.push_back(std::move(file));
    } catch (const std::exception& error) {
      std::string why = error.what();
      // Replaces the names of library options by options of the program.
      if (why.find("the layout in the options") != std::string::npos)
        why += " (--layout interleaved or --layout half_split)";
      result = fail({path, why});
    }
  for (auto file = read.begin(); file != read.end(); ++file) {
    const auto before = std::find_if(read.begin(), file, [&](const description& other) {
      return given.files.size() == 2 || same_sizes(other.model, file->model);
    });
    if (before != file) print(comparison(*before, *file));
  }
  if (!given.plot.empty() && !read.empty()) {
    std::ofstream picture(given.plot);
    picture << plot(read, given.dark ? svg::dark : svg::light);
    if (!picture.flush()) return fail({given.plot, "cannot be written"});
    print("\nwrote " + given.plot + "\n");
  }
  return result;
} catch (const refusal& because) {
  return fail(because);
}
