// Prints what a Hugging Face config.json or a GGUF file says about rotary embeddings, with every number derived from
// it, and plots the wavelength of each pair before and after the model's scaling. Of two files it says where they
// differ.
//
// Usage: rope_inspect_config [--layout interleaved|half_split]
//                            [config.json|model.gguf [other.gguf] [plot.svg [length of the sequence]]]
//
// Without a file it reads the config of Llama 3.1. The layout is asked for where that of the architecture is not
// known. The length decides for the schedules that depend on it (dynamic, longrope).

#include <rope/models.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_file.hpp"

namespace {

using rope::Index;

constexpr double width = 860, panel_height = 400;  // of the picture and of each group's panel, pixels
constexpr double left = 80, right = 30, top = 54, bottom = 50;  // margins of a panel
constexpr const char* before_colour = "#9aa0a6";
constexpr const char* after_colour = "#1a6fb5";
constexpr const char* limit_colour = "#c2410c";
constexpr const char* blend_colour = "#fdf3d8";

/// printf into a string.
template <class... Values>
std::string format(const char* pattern, const Values&... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// Text of a config file, for XML.
std::string escaped(const std::string& text) {
  std::string xml;
  for (const char c : text) xml += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return xml;
}

std::string label(double x, double y, const std::string& text, const char* anchor = "start",
                  const char* more = "") {
  return format("<text x='%.1f' y='%.1f' text-anchor='%s' %s>", x, y, anchor, more) + text + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return format("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' %s/>\n", x1, y1, x2, y2, style);
}

/// One group of layers: pairs from left to right, wavelengths in tokens on a logarithmic axis.
class panel {
 public:
  panel(const rope::model_rope& model, const rope::layer_group& group, double offset)
      : pairs_(group.frequencies.pairs()), offset_(offset) {
    const rope::frequencies original(group.rotary_dim(), group.base);
    const rope::pair_census pairs = rope::pair_census_of(group);
    const bool slides = group.layer_type.starts_with("sliding") && model.sliding_window > 0;
    const double reach = slides ? model.sliding_window : model.max_position;
    const double trained = group.number("original_max_position", 0);
    const double longest =
        std::max({pairs.longest_wavelength, wavelength(original, pairs_ - 1), reach, trained, 10.0});
    decades_ = std::ceil(std::log10(std::min(longest, std::numeric_limits<double>::max())));
    svg_ += label(left, offset_ + 22, title(model, group), "start", "font-size='16' font-weight='600'");
    blend(pairs);
    axes();
    if (trained > 0) limit(trained, format("trained on %.0f tokens", trained), trained > reach);
    if (reach > 0 && reach != trained)
      limit(reach, format(slides ? "sliding window %.0f" : "longest context %.0f", reach), reach > trained);
    const bool scaled = pairs.kept < pairs_;
    if (scaled) curve(original, before_colour);
    curve(group.frequencies, after_colour);
    legend(scaled, pairs, group);
  }

  const std::string& svg() const { return svg_; }

 private:
  static std::string title(const rope::model_rope& model, const rope::layer_group& group) {
    const std::string name = model.architecture + (group.layer_type.empty() ? "" : ", " + group.layer_type);
    return escaped(name) + ": " + group.rule +
           format(", base %.0f, %d pairs", group.base, static_cast<int>(group.frequencies.pairs()));
  }

  static double wavelength(const rope::frequencies& frequencies, Index pair) {
    return 2 * std::numbers::pi / frequencies.inv_freq()(pair, 0);
  }

  double x_of(Index pair) const {
    const double last = std::max(static_cast<double>(pairs_ - 1), 1.0);
    return left + (width - left - right) * static_cast<double>(pair) / last;
  }
  double y_of(double tokens) const {
    return offset_ + panel_height - bottom - (panel_height - top - bottom) * std::log10(tokens) / decades_;
  }

  /// A band behind the pairs that are neither kept nor slowed in full.
  void blend(const rope::pair_census& pairs) {
    const auto first = std::find(pairs.changes.begin(), pairs.changes.end(), rope::pair_change::blended);
    if (first == pairs.changes.end() || pairs.interpolated == 0) return;
    const auto begin = static_cast<Index>(first - pairs.changes.begin());
    const double half = x_of(1) - x_of(0), x = x_of(begin) - half / 2;
    const double y = y_of(std::pow(10, decades_));
    svg_ += format("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>\n", x, y,
                   half * static_cast<double>(pairs.blended), y_of(1) - y, blend_colour);
  }

  void axes() {
    const char* grid = "stroke='#e3e5e8'";
    for (int decade = 0; decade <= static_cast<int>(decades_); ++decade) {
      const double y = y_of(std::pow(10, decade));
      svg_ += line(left, y, width - right, y, grid);
      svg_ += label(left - 8, y + 4, format("10<tspan dy='-5' font-size='9'>%d</tspan>", decade), "end");
    }
    const Index step = std::max<Index>(1, (pairs_ + 7) / 8);
    for (Index pair = 0; pair < pairs_; pair += step) {
      svg_ += line(x_of(pair), y_of(1), x_of(pair), y_of(std::pow(10, decades_)), grid);
      svg_ += label(x_of(pair), y_of(1) + 18, std::to_string(pair), "middle");
    }
    svg_ += label((left + width - right) / 2, y_of(1) + 38, "pair", "middle");
    const double middle = (y_of(1) + y_of(std::pow(10, decades_))) / 2;
    svg_ += label(0, 0, "tokens per turn", "middle",
                  format("transform='translate(24 %.1f) rotate(-90)'", middle).c_str());
  }

  void limit(double tokens, const std::string& text, bool above) {
    const double y = y_of(tokens);
    svg_ +=
        line(left, y, width - right, y, format("stroke='%s' stroke-dasharray='5 4'", limit_colour).c_str());
    svg_ += label(left + 8, above ? y - 6 : y + 15, text, "start", format("fill='%s'", limit_colour).c_str());
  }

  void curve(const rope::frequencies& frequencies, const char* colour) {
    std::string points, dots;
    for (Index pair = 0; pair < frequencies.pairs(); ++pair) {
      if (frequencies.inv_freq()(pair, 0) == 0) continue;  // does not turn
      const double x = x_of(pair), y = y_of(wavelength(frequencies, pair));
      points += format("%.1f,%.1f ", x, y);
      dots += format("<circle cx='%.1f' cy='%.1f' r='2.2' fill='%s'/>\n", x, y, colour);
    }
    svg_ +=
        "<polyline points='" + points + "' fill='none' stroke-width='1.5' stroke='" + colour + "'/>\n" + dots;
  }

  void legend(bool scaled, const rope::pair_census& pairs, const rope::layer_group& group) {
    const double y = offset_ + 42;
    double x = left;
    const auto entry = [&](const char* mark, const char* colour, const std::string& text) {
      svg_ += format(mark, x + 5, y - 4, colour);
      svg_ += label(x + 15, y, text);
      x += 40 + 6.2 * static_cast<double>(text.size());
    };
    const char* dot = "<circle cx='%.1f' cy='%.1f' r='4' fill='%s'/>\n";
    entry(dot, after_colour, scaled ? "as the model turns" : "as the model turns (nothing is scaled)");
    if (scaled) entry(dot, before_colour, format("by the base %.0f alone", group.base));
    if (pairs.blended > 0 && pairs.interpolated > 0)
      entry(
          "<g transform='translate(%.1f %.1f)'><rect x='-6' y='-6' width='12' height='12' fill='%s' "
          "stroke='#d9c48a'/></g>\n",
          blend_colour, "between kept and slowed in full");
    if (pairs.stopped > 0)
      svg_ += label(x, y, format("%d pairs do not turn", static_cast<int>(pairs.stopped)));
  }

  Index pairs_;
  double offset_, decades_ = 1;
  std::string svg_;
};

std::string plot(const rope::model_rope& model) {
  const double height = panel_height * static_cast<double>(model.groups.size());
  std::string svg = format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f' "
      "font-family='Helvetica, Arial, sans-serif' font-size='12' fill='#202124'>\n",
      width, height, width, height);
  svg += "<rect width='100%' height='100%' fill='white'/>\n";
  double offset = 0;
  for (const rope::layer_group& group : model.groups) {
    svg += panel(model, group, offset).svg();
    offset += panel_height;
  }
  return svg + "</svg>\n";
}

constexpr const char* usage =
    "usage: rope_inspect_config [--layout interleaved|half_split] [config.json|model.gguf [other.gguf] "
    "[plot.svg [length of the sequence]]]";

bool is_gguf(const std::string& path) { return path.ends_with(".gguf"); }
bool is_model(const std::string& path) { return is_gguf(path) || path.ends_with(".json"); }

rope::model_rope imported(const std::string& path, double length, std::optional<rope::layout_kind> layout) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot be read");
  if (is_gguf(path)) return rope::import_gguf(gguf_file(file), {.length = length, .layout = layout});
  return rope::import_hugging_face(nlohmann::json::parse(file), {.length = length, .layout = layout});
}

int fail(const std::string& what, std::string why) {
  std::replace(why.begin(), why.end(), '\n', ' ');
  std::fprintf(stderr, "rope_inspect_config: \"%s\": %s\n", what.c_str(), why.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> places;  // config, plot, length
  std::optional<rope::layout_kind> layout;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "-h" || argument == "--help") {
      std::puts(usage);
      return 0;
    }
    if (argument == "--layout") {
      const std::string_view name = i + 1 < argc ? argv[++i] : "";
      for (const auto known : {rope::layout_kind::interleaved, rope::layout_kind::half_split})
        if (name == rope::name_of(known)) layout = known;
      if (!layout || name != rope::name_of(*layout))
        return fail(std::string(name), "--layout must be interleaved or half_split");
    } else if (argument.starts_with("-")) {
      return fail(argv[i], std::string("there is no such option; ") + usage);
    } else {
      places.emplace_back(argument);
    }
  }
  std::vector<std::string> models;  // the files to read, then places are the plot and the length
  for (int most = 2; most > 0 && !places.empty() && (models.empty() || is_model(places.front())); --most) {
    models.push_back(places.front());
    places.erase(places.begin());
  }
  if (models.empty()) models.push_back(ROPE_EXAMPLES_DIR "/configs/llama_3_1_8b.json");
  if (places.size() > 2) return fail(places[2], std::string("one argument too many; ") + usage);
  double length = 0;
  if (places.size() > 1) {
    char* end = nullptr;
    length = std::strtod(places[1].c_str(), &end);
    if (end == places[1].c_str() || *end != '\0')
      return fail(places[1], "the length of the sequence must be a number");
  }
  std::string reading = models.front();
  try {
    const rope::model_rope model = imported(reading, length, layout);
    std::fputs(rope::describe(model).c_str(), stdout);
    if (models.size() > 1) {
      reading = models.back();
      const rope::model_rope other = imported(reading, length, layout);
      const std::vector<std::string> differences = rope::compare_models(model, other);
      std::printf("\n%s says %s\n", reading.c_str(), differences.empty() ? "the same" : "otherwise:");
      for (const std::string& difference : differences) std::printf("  %s\n", difference.c_str());
    }
    if (!places.empty()) {
      std::ofstream picture(places[0]);
      picture << plot(model);
      if (!picture.flush()) return fail(places[0], "cannot be written");
      std::printf("\nwrote %s\n", places[0].c_str());
    }
  } catch (const std::exception& error) {
    std::string why = error.what();
    // What the library calls its options is an option of the program.
    if (why.find("the layout in the options") != std::string::npos)
      why += " (--layout interleaved or --layout half_split)";
    return fail(reading, why);
  }
}
