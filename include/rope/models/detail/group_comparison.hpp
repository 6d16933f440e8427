// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GROUP_COMPARISON_HPP
#define ROPE_MODELS_DETAIL_GROUP_COMPARISON_HPP

#include <algorithm>  // std::max
#include <cmath>
#include <cstdio>  // std::snprintf
#include <string>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/model_rope.hpp>

/// Sentences about where two groups of layers differ.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What tells a model where its tokens are, and in which file.
template <class Model>
std::string place_text(const Model& model) {
  return (model.groups().empty() ? model.instead_of_rope() : "rotation") + " in " + model.source;
}

/// Ten significant digits; %.17g would show the rounding of the decimal fractions people write.
inline std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

/// "3, 7, 11": the numbers of a list.
template <class List>
std::string joined(const List& list) {
  std::string text;
  for (const auto& value : list) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

/// How the axes of M-RoPE share the pairs.
inline const char* order_of_axes(const layer_group& group) {
  switch (group.section_order) {
    case mrope_order::alternating:
      return "alternating";
    case mrope_order::time_last:
      return "time last, the others alternating";
    case mrope_order::spread:
      return "spread by their shares, the first axis last";
    case mrope_order::blocks:
      break;
  }
  return "in blocks";
}

/// Collects the differences of one group, each with both numbers.
template <class Model>
struct group_comparison {
  const Model &a, &b;
  std::string where;
  double tolerance;
  std::vector<std::string>& found;

  void say(const std::string& text) const { found.push_back(where + text); }

  void number(const char* name, double x, double y) const {
    if ((std::abs)(x - y) > tolerance * (std::max)((std::abs)(x), (std::abs)(y)))
      say(std::string(name) + " is " + digits(x) + " in " + a.source + " and " + digits(y) + " in " +
          b.source);
  }

  void layouts(layout_kind x, layout_kind y) const {
    if (x == y) return;
    // A converter permutes the rows of q and k from the halves of Hugging Face to the pairs of ggml; back
    // only for GLM-4V, as the M-RoPE of ggml turns halves.
    const auto permuted = [](const Model& from, layout_kind of_from, const Model& to) {
      return from.source == "Hugging Face" && to.source == "GGUF" &&
             (of_from == layout_kind::half_split || to.architecture == "glm4");
    };
    const bool expected = permuted(a, x, b) || permuted(b, y, a);
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
      const double f = x.inv_freq(i, 0), g = y.inv_freq(i, 0);
      const double larger = (std::max)((std::abs)(f), (std::abs)(g));
      if ((std::abs)(f - g) <= tolerance * larger) continue;
      if (differing++ == 0) first = i;
      last = i;
      if ((std::abs)(f - g) / larger > most) {
        most = (std::abs)(f - g) / larger;
        worst = i;
      }
    }
    if (differing == 0) return;
    const double f = x.inv_freq(worst, 0), g = y.inv_freq(worst, 0);
    say("inv_freq differs for " + std::to_string(differing) + " of " + std::to_string(x.pairs()) +
        " pairs, within " + std::to_string(first) + " to " + std::to_string(last) + "; most at pair " +
        std::to_string(worst) + ": " + digits(f) + " in " + a.source + " and " + digits(g) + " in " +
        b.source + (equal(f, 0) ? "" : " (" + digits(100 * (g / f - 1)) + " %)"));
  }
};

/// Whether a pair turns by minus the position.
inline bool any_turns_back(const frequencies& of) {
  for (Index a = 0; a < of.axes(); ++a)
    for (Index i = 0; i < of.pairs(); ++i)
      if (of.inv_freq(i, a) < 0) return true;
  return false;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GROUP_COMPARISON_HPP
