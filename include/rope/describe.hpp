// SPDX-License-Identifier: MIT
#ifndef ROPE_DESCRIBE_HPP
#define ROPE_DESCRIBE_HPP

#include <algorithm>  // std::max, std::min
#include <cmath>
#include <cstddef>
#include <cstdio>  // std::snprintf
#include <numbers>
#include <string>
#include <vector>

#include <rope/config.hpp>
#include <rope/frequencies.hpp>
#include <rope/model_rope.hpp>

/// Reports about the rotary embedding of a model: every derived number, and where two descriptions of it
/// differ.

namespace rope {
inline namespace ROPE_ABI {

/// What a rule did to the pairs, found by comparing with the original schedule of the same base.
struct pair_census {
  Index kept = 0;              // as in the original schedule
  Index blended = 0;           // slowed by less than the largest divisor
  Index interpolated = 0;      // slowed by the largest divisor, if at least two pairs share it
  Index stopped = 0;           // do not turn
  double largest_divisor = 1;  // original speed over speed, of the pairs that turn
  double shortest_wavelength = 0,
         longest_wavelength = 0;  // tokens per turn, of the pairs that turn; 0: none does
};

inline pair_census census(const layer_group& group) {
  constexpr double same = 1e-6;  // relative; the divisors in GGUF files are floats
  const frequencies original(group.rotary_dim(), group.base);
  const auto& inv_freq = group.frequencies.inv_freq();
  const auto divisor = [&](Index i) { return original.inv_freq()(i, 0) / inv_freq(i, 0); };
  pair_census result;
  bool first = true;
  for (Index i = 0; i < inv_freq.rows(); ++i) {
    if (inv_freq(i, 0) == 0) continue;
    const double wavelength = 2 * std::numbers::pi / std::abs(inv_freq(i, 0));
    result.largest_divisor = first ? divisor(i) : (std::max)(result.largest_divisor, divisor(i));
    result.shortest_wavelength = first ? wavelength : (std::min)(result.shortest_wavelength, wavelength);
    result.longest_wavelength = first ? wavelength : (std::max)(result.longest_wavelength, wavelength);
    first = false;
  }
  for (Index i = 0; i < inv_freq.rows(); ++i) {
    if (inv_freq(i, 0) == 0)
      ++result.stopped;
    else if (std::abs(divisor(i) - 1) <= same)
      ++result.kept;
    else if (std::abs(divisor(i) / result.largest_divisor - 1) <= same)
      ++result.interpolated;
    else
      ++result.blended;
  }
  if (result.interpolated == 1 && inv_freq.rows() > 1) {
    result.interpolated = 0;
    ++result.blended;
  }
  return result;
}

namespace detail {

/// Ten significant digits; %.17g would show the rounding of the decimal fractions people write.
inline std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

inline std::string line(const std::string& label, const std::string& text) {
  std::string padded = "  " + label;
  padded.resize((std::max)(padded.size() + 1, std::size_t{26}), ' ');
  return padded + text + "\n";
}

inline std::string pairs_text(const pair_census& pairs) {
  std::string text = std::to_string(pairs.kept) + " kept";
  if (pairs.interpolated > 0) {
    text += ", " + std::to_string(pairs.blended) + " blended, " + std::to_string(pairs.interpolated) +
            " interpolated (slowed by " + digits(pairs.largest_divisor) + ")";
  } else if (pairs.blended > 0) {
    text += ", " + std::to_string(pairs.blended) + " changed (slowed by up to " +
            digits(pairs.largest_divisor) + ")";
  }
  if (pairs.stopped > 0) text += ", " + std::to_string(pairs.stopped) + " do not turn";
  return text;
}

/// "3, 7, 11": the numbers of a list.
template <class List>
std::string joined(const List& list) {
  std::string text;
  for (const auto& value : list) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

}  // namespace detail

/// Every number the group was made of and that was derived from it, one a line.
inline std::string describe(const layer_group& group) {
  using detail::digits, detail::line;
  const Index last = group.first_channel + group.rotary_dim() - 1;
  const pair_census pairs = census(group);
  const frequencies original(group.rotary_dim(), group.base);
  std::string text;
  text += line("layout", name_of(group.layout));
  text += line("rotated channels", std::to_string(group.first_channel) + " to " + std::to_string(last) +
                                       " of " + std::to_string(group.head_dim) + " (" +
                                       std::to_string(group.frequencies.pairs()) + " pairs)");
  text += line("schedule", group.rule);
  text += line("base", digits(group.base));
  for (const named_number& number : group.numbers) text += line(number.name, digits(number.value));
  text += line("pairs", detail::pairs_text(pairs));
  std::string wavelengths =
      digits(pairs.shortest_wavelength) + " to " + digits(pairs.longest_wavelength) + " tokens";
  if (pairs.kept < group.frequencies.pairs())
    wavelengths += " (by the base alone: to " +
                   digits(2 * std::numbers::pi / original.inv_freq()(original.pairs() - 1, 0)) + ")";
  text += line("wavelengths", wavelengths);
  text += line("attention factor", digits(group.frequencies.attention_factor()) + " (in cos and sin)");
  std::string multiplier = digits(group.softmax_multiplier);
  if (group.softmax_multiplier != 1)
    multiplier += ", so the softmax scale is " + multiplier + " / sqrt(" + std::to_string(group.head_dim) +
                  ") = " + digits(group.softmax_multiplier / std::sqrt(static_cast<double>(group.head_dim)));
  text += line("softmax multiplier", multiplier);
  if (!group.mrope_sections.empty())
    text += line("M-RoPE sections", detail::joined(group.mrope_sections) +
                                        (group.mrope_interleaved ? " (alternating)" : " (in blocks)") +
                                        "; text turns as with one axis");
  return text;
}

/// The whole model: what holds for all layers, each group, and the warnings.
inline std::string describe(const model_rope& model) {
  using detail::digits, detail::line;
  std::string text = model.architecture + " (" + model.source + ")\n";
  if (model.max_position > 0) text += line("longest context", digits(model.max_position) + " tokens");
  if (model.sliding_window > 0) text += line("sliding window", digits(model.sliding_window) + " tokens");
  if (model.query_heads > 0)
    text += line("heads", std::to_string(model.query_heads) + " for queries, " +
                              std::to_string(model.key_heads) + " for keys");
  if (!model.layers_without_rope.empty())
    text += line("layers without rotation", detail::joined(model.layers_without_rope));
  for (const layer_group& group : model.groups) {
    text += "\n" + (group.layer_type.empty() ? "all layers" : group.layer_type);
    const auto count = std::count(model.layers.begin(), model.layers.end(), group.layer_type);
    if (count > 0)
      text += " (" + std::to_string(count) + " of " + std::to_string(model.layers.size()) + " layers)";
    text += "\n" + describe(group);
  }
  if (!model.warnings.empty()) text += "\nnotes\n";
  for (const std::string& warning : model.warnings) text += "  - " + warning + "\n";
  return text;
}

namespace detail {

/// Collects the differences of one group, each with both numbers.
struct group_comparison {
  const model_rope &a, &b;
  std::string where;
  double tolerance;
  std::vector<std::string>& found;

  void say(const std::string& text) const { found.push_back(where + text); }

  void number(const char* name, double x, double y) const {
    if (std::abs(x - y) > tolerance * (std::max)(std::abs(x), std::abs(y)))
      say(std::string(name) + " is " + digits(x) + " in " + a.source + " and " + digits(y) + " in " +
          b.source);
  }

  void layouts(pairing x, pairing y) const {
    if (x == y) return;
    // A converter permutes the rows of q and k from the halves of Hugging Face to the pairs of ggml, never
    // back.
    const bool expected = (a.source == "Hugging Face" && x == pairing::half_split && b.source == "GGUF") ||
                          (b.source == "Hugging Face" && y == pairing::half_split && a.source == "GGUF");
    say(std::string("layout is ") + name_of(x) + " in " + a.source + " and " + name_of(y) + " in " +
        b.source +
        (expected
             ? ", as expected: the converter to GGUF permutes the weights of q and k for this architecture"
             : ", so one of them has the wrong weights"));
  }

  void speeds(const frequencies& x, const frequencies& y) const {
    if (x.pairs() != y.pairs()) return;  // rotary_dim says so
    Index differing = 0, first = 0, last = 0, worst = 0;
    double most = 0;
    for (Index i = 0; i < x.pairs(); ++i) {
      const double f = x.inv_freq()(i, 0), g = y.inv_freq()(i, 0);
      const double larger = (std::max)(std::abs(f), std::abs(g));
      if (std::abs(f - g) <= tolerance * larger) continue;
      if (differing++ == 0) first = i;
      last = i;
      if (std::abs(f - g) / larger > most) {
        most = std::abs(f - g) / larger;
        worst = i;
      }
    }
    if (differing == 0) return;
    const double f = x.inv_freq()(worst, 0), g = y.inv_freq()(worst, 0);
    say("inv_freq differs for " + std::to_string(differing) + " of " + std::to_string(x.pairs()) +
        " pairs, within " + std::to_string(first) + " to " + std::to_string(last) + "; most at pair " +
        std::to_string(worst) + ": " + digits(f) + " in " + a.source + " and " + digits(g) + " in " +
        b.source + (f == 0 ? "" : " (" + digits(100 * (g / f - 1)) + " %)"));
  }
};

}  // namespace detail

/// Where two descriptions of one model differ, such as its Hugging Face config and its GGUF file, one
/// sentence each, with both numbers. Empty if they rotate alike.
///
/// \param tolerance  relative; numbers closer than this are equal. GGUF stores floats
inline std::vector<std::string> compare(const model_rope& a, const model_rope& b, double tolerance = 1e-6) {
  std::vector<std::string> found;
  const auto missing = [&](const model_rope& one, const model_rope& other) {
    for (const layer_group& group : one.groups)
      if (!group.layer_type.empty() && !other.group(group.layer_type))
        found.push_back(group.layer_type + " layers exist in " + one.source + " only");
  };
  missing(a, b);
  missing(b, a);
  const auto without = [](const model_rope& model) {
    return model.layers_without_rope.empty() ? "none" : detail::joined(model.layers_without_rope);
  };
  if (a.layers_without_rope != b.layers_without_rope)
    found.push_back("layers without rotation are " + without(a) + " in " + a.source + " and " + without(b) +
                    " in " + b.source);
  for (std::size_t i = 0; i < (std::min)(a.layers.size(), b.layers.size()); ++i)
    if (a.groups.size() > 1 && a.layers[i] != b.layers[i]) {
      found.push_back("layer " + std::to_string(i) + " is of type " + a.layers[i] + " in " + a.source +
                      " and " + b.layers[i] + " in " + b.source);
      break;
    }
  for (const layer_group& x : a.groups)
    for (const layer_group& y : b.groups) {
      if (x.layer_type != y.layer_type && !x.layer_type.empty() && !y.layer_type.empty()) continue;
      const std::string& type = x.layer_type.empty() ? y.layer_type : x.layer_type;
      const detail::group_comparison group{a, b, type.empty() ? "" : type + ": ", tolerance, found};
      group.layouts(x.layout, y.layout);
      group.number("head_dim", static_cast<double>(x.head_dim), static_cast<double>(y.head_dim));
      group.number("first rotated channel", static_cast<double>(x.first_channel),
                   static_cast<double>(y.first_channel));
      group.number("rotary_dim", static_cast<double>(x.rotary_dim()), static_cast<double>(y.rotary_dim()));
      group.number("base", x.base, y.base);
      for (const char* name : {"low", "high"})
        if (x.number(name, -1) >= 0 && y.number(name, -1) >= 0)
          group.number(name, x.number(name, -1), y.number(name, -1));
      group.speeds(x.frequencies, y.frequencies);
      group.number("attention factor", x.frequencies.attention_factor(), y.frequencies.attention_factor());
      group.number("softmax multiplier", x.softmax_multiplier, y.softmax_multiplier);
      if (x.mrope_sections != y.mrope_sections)
        group.say("M-RoPE sections are [" + detail::joined(x.mrope_sections) + "] in " + a.source + " and [" +
                  detail::joined(y.mrope_sections) + "] in " + b.source);
    }
  return found;
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DESCRIBE_HPP
