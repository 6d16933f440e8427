// A small writer of figures as SVG: panels with axes, and lines, arrows, bars and cells in them.
//
//     svg::picture figure(400, 300, "Angle of a pair");
//     svg::panel angles(figure, {70, 60, 300, 180}, {"position (tokens)", 0, 10}, {"angle (rad)", 0, 10});
//     angles.line({{0, 0}, {10, 10}}, svg::blue);
//     std::ofstream("angles.svg") << figure.text();

#ifndef ROPE_EXAMPLES_SVG_PLOT_HPP
#define ROPE_EXAMPLES_SVG_PLOT_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

namespace svg {

// The colours of Okabe and Ito, which colour-blind readers can distinguish too.
inline constexpr const char *blue = "#0072b2", *vermilion = "#d55e00", *green = "#009e73",
                            *purple = "#b3478f", *gold = "#c98a00", *ink = "#202124", *grey = "#757a80";

/// The colours of a figure, and the shades of its curves for this background.
struct palette {
  const char *paper, *ink, *grey, *rule, *blue, *vermilion, *green, *purple;
};
inline constexpr palette light = {"white", ink, grey, "#e3e5e8", blue, vermilion, green, purple};
inline constexpr palette dark = {"#16191d", "#e8eaed", "#a4a9af", "#343a41",
                                 "#56b4e9", "#ff8a3d", "#2dc997", "#e27fc1"};

/// printf into a string.
template <class... Values>
std::string format(const char* pattern, const Values&... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// Escapes markup in a text.
inline std::string escaped(const std::string& text) {
  std::string xml;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20;  // not allowed in XML
    xml += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, control ? ' ' : c);
  }
  return xml;
}

struct point {
  double x, y;
};

/// The name of an axis, and its range.
struct axis {
  std::string name;
  double low, high;
  bool logarithmic = false;                  // both ends are then powers of ten
  std::vector<std::string> categories = {};  // names of 0, 1, 2, ... instead of numbers

  /// 0 at the low end, 1 at the high end. Values beyond the range are drawn at the end.
  double share(double value) const {
    const double share = logarithmic ? std::log10(std::max(value, low) / low) / std::log10(high / low)
                                     : (value - low) / (high - low);
    return std::clamp(share, 0.0, 1.0);
  }

  std::vector<std::pair<double, std::string>> ticks() const {
    std::vector<std::pair<double, std::string>> all;
    for (std::size_t i = 0; i < categories.size(); ++i)
      all.push_back({static_cast<double>(i), categories[i]});
    const double every = std::ceil(std::log10(high / low) / 12);  // at most about a dozen of many decades
    if (logarithmic)
      for (double decade = std::round(std::log10(low)); decade < std::log10(high) + 0.5; decade += every)
        all.push_back({std::pow(10, decade), format("10<tspan dy='-5' font-size='9'>%.0f</tspan>", decade)});
    if (!all.empty()) return all;
    const double power = std::pow(10.0, std::floor(std::log10((high - low) / 4)));
    double step = power;  // 1, 2 or 5 times a power of ten, about five steps
    for (const double times : {1.0, 2.0, 5.0, 10.0})
      if ((high - low) / (times * power) >= 3.5) step = times * power;
    for (double n = std::ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; ++n)
      all.push_back({n * step, format("%g", std::abs(n) < 0.5 ? 0.0 : n * step)});
    return all;
  }
};

class picture {
 public:
  picture(double width, double height, const std::string& title, const std::string& subtitle = "",
          const palette& colours = light)
      : colours_(colours) {
    text_ = format(
        "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f' "
        "font-family='Helvetica, Arial, sans-serif' font-size='12' fill='%s'>\n",
        width, height, width, height, colours_.ink);
    text_ +=
        "<title>" + title + "</title>\n<rect width='100%' height='100%' fill='" + colours_.paper + "'/>\n";
    write(20, 28, title, "start", "font-size='16' font-weight='600'");
    if (!subtitle.empty()) write(20, 47, subtitle, "start", format("fill='%s'", colours_.grey));
  }

  const palette& colours() const { return colours_; }

  void write(double x, double y, const std::string& text, const char* anchor, const std::string& more = "") {
    add(format("<text x='%.1f' y='%.1f' text-anchor='%s' ", x, y, anchor) + more + ">" + text + "</text>\n");
  }
  void add(const std::string& element) { text_ += element; }
  std::string text() const { return text_ + "</svg>\n"; }

 private:
  palette colours_;
  std::string text_;
};

/// The rectangle between the axes, in pixels.
struct box {
  double left, top, width, height;
};

/// A pair of axes. Coordinates are values on the axes.
class panel {
 public:
  panel(picture& figure, const box& place, const axis& x, const axis& y, const std::string& title = "")
      : figure_(figure), place_(place), x_(x), y_(y) {
    const double right = place.left + place.width, bottom = place.top + place.height;
    for (const auto& [value, text] : x_.ticks()) {
      if (x_.categories.empty()) rule(x_of(value), place.top, x_of(value), bottom);
      figure_.write(x_of(value), bottom + 17, text, "middle");
    }
    for (const auto& [value, text] : y_.ticks()) {
      if (y_.categories.empty()) rule(place.left, y_of(value), right, y_of(value));
      figure_.write(place.left - 7, y_of(value) + 4, text, "end");
    }
    figure_.write(place.left + place.width / 2, bottom + 37, x_.name, "middle");
    const double widest = y_.categories.empty() ? 46 : 60;
    figure_.write(0, 0, y_.name, "middle",
                  format("transform='translate(%.1f %.1f) rotate(-90)'", place.left - widest,
                         place.top + place.height / 2));
    figure_.write(place.left + place.width / 2, place.top - 9, title, "middle", "font-weight='600'");
  }

  void line(const std::vector<point>& points, const char* colour, const std::string& more = "") {
    std::string places;
    for (const point& p : points) places += format("%.1f,%.1f ", x_of(p.x), y_of(p.y));
    figure_.add("<polyline points='" + places + "' fill='none' stroke-width='1.6' stroke='" + colour + "' " +
                more + "/>\n");
  }
  void dots(const std::vector<point>& points, const char* colour) {
    for (const point& p : points)
      figure_.add(format("<circle cx='%.1f' cy='%.1f' r='2.2' fill='%s'/>\n", x_of(p.x), y_of(p.y), colour));
  }
  /// A level of y from end to end, with its name in the legend.
  void level(const std::string& name, double y, const char* colour, const char* dashes) {
    curve(name, {{x_.low, y}, {x_.high, y}}, colour, format("stroke-dasharray='%s'", dashes));
  }
  /// A tinted range of x from `low` to `high`, with its name in the legend.
  void band(const std::string& name, double low, double high, const char* colour) {
    figure_.add(format("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s' fill-opacity='0.2'/>\n",
                       x_of(low), place_.top, x_of(high) - x_of(low), place_.height, colour));
    legend(name, colour, "style='stroke-width:12;stroke-opacity:0.2'");
  }
  void arrow(const point& from, const point& to, const char* colour) {
    line({from, to}, colour);
    const double x = x_of(to.x), y = y_of(to.y), angle = std::atan2(y - y_of(from.y), x - x_of(from.x));
    figure_.add(format("<path d='M0 0L-9 -3.5L-9 3.5Z' transform='translate(%.1f %.1f) rotate(%.1f)' ", x, y,
                       angle * 180 / std::numbers::pi) +
                format("fill='%s'/>\n", colour));
  }
  /// A bar from zero to `value` around x, `width` on the axis.
  void bar(double x, double width, double value, const char* colour) {
    const double zero = y_of(0), end = y_of(value);
    figure_.add(format("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>\n",
                       x_of(x - width / 2), std::min(zero, end), x_of(x + width / 2) - x_of(x - width / 2),
                       std::abs(zero - end), colour));
  }
  /// The square of one unit around (x, y), blue with an opacity of `share`.
  void cell(double x, double y, double share) {
    figure_.add(format("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s' fill-opacity='%.3f'/>\n",
                       x_of(x - 0.5), std::min(y_of(y - 0.5), y_of(y + 0.5)), x_of(x + 0.5) - x_of(x - 0.5),
                       std::abs(y_of(y + 0.5) - y_of(y - 0.5)), figure_.colours().blue,
                       std::clamp(share, 0.0, 1.0)));
  }
  /// Text around p.
  void write(const point& p, const std::string& text, const char* colour) {
    figure_.write(x_of(p.x), y_of(p.y) + 4, text, "middle", format("fill='%s'", colour));
  }
  /// A line with its name in the legend.
  void curve(const std::string& name, const std::vector<point>& points, const char* colour,
             const std::string& more = "") {
    line(points, colour, more);
    legend(name, colour, more);
  }
  /// Adds a line to the legend, which is to the right of the panel.
  void legend(const std::string& text, const char* colour, const std::string& more = "") {
    const double x = place_.left + place_.width + 14, y = place_.top + 10 + 19 * legends_++;
    figure_.add(format("<path d='M%.1f %.1fh18' stroke='%s' stroke-width='3' ", x, y - 4, colour) + more +
                "/>\n");
    figure_.write(x + 24, y, text, "start");
  }

 private:
  double x_of(double x) const { return place_.left + place_.width * x_.share(x); }
  double y_of(double y) const { return place_.top + place_.height * (1 - y_.share(y)); }
  void rule(double x1, double y1, double x2, double y2) {
    figure_.add(
        format("<path d='M%.1f %.1fL%.1f %.1f' stroke='%s'/>\n", x1, y1, x2, y2, figure_.colours().rule));
  }

  picture& figure_;
  box place_;
  axis x_, y_;
  int legends_ = 0;
};

/// True if two figures are equal, except for numbers that differ by at most `tolerance`.
inline bool alike(const std::string& a, const std::string& b, double tolerance) {
  const char *left = a.c_str(), *right = b.c_str();
  const auto number = [](char c) { return c >= '0' && c <= '9'; };
  while (*left != '\0' && *right != '\0') {
    if (!number(*left) || !number(*right)) {
      if (*left++ != *right++) return false;
      continue;
    }
    char *left_end = nullptr, *right_end = nullptr;
    const double difference = std::strtod(left, &left_end) - std::strtod(right, &right_end);
    if (!(std::abs(difference) <= tolerance)) return false;
    left = left_end, right = right_end;
  }
  return *left == *right;
}

}  // namespace svg

#endif  // ROPE_EXAMPLES_SVG_PLOT_HPP
