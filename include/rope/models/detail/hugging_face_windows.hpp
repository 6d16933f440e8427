// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_WINDOWS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_WINDOWS_HPP

#include <algorithm>  // std::binary_search
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_layers.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

/// How far back every layer of a config.json looks.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The key that has the window of layers that slide.
template <class J>
const char* window_key(json_reader<J>& text, const hugging_face_record& defaults) {
  const bool other = defaults.swa_keys && !text.has("sliding_window") && text.has("sliding_window_size");
  return other ? "sliding_window_size" : "sliding_window";
}

/// Whether a token sees only tokens before it. Gemma 4 has "all" for true, and "vision", by which tokens of
/// text do.
template <class J>
bool is_causal(json_reader<J>& text, const hugging_face_record& defaults) {
  const char* const key = "use_bidirectional_attention";
  if (!text.is_text(key)) return defaults.causal && !text.boolean(key).value_or(false);
  const std::string both_ways = text.text(key).value_or("");
  if (both_ways != "all" && both_ways != "vision")
    text.refuse(key, "must be true, false, \"all\" or \"vision\", got " + both_ways);
  return defaults.causal && both_ways == "vision";
}

/// attention_options::window of the layers that slide; 0: none does; not_known_window.
///
/// Encoders count the tokens on both sides: ModernBERT sees local_attention / 2 of them on each, or
/// sliding_window, and a Gemma 3 or 4 with use_bidirectional_attention half of sliding_window. A window of
/// attention_options counts the token itself too.
///
/// \param typed  the file says of every layer whether it slides
template <class J>
Index sliding_window_of(json_reader<J>& text, const hugging_face_record& defaults, bool typed = false) {
  const bool by_type = typed && defaults.slides == which_slide::without_rope;  // whether asked or not
  const bool asked = text.boolean("use_sliding_window").value_or(!defaults.slides_if_asked) || by_type;
  const char* const key = window_key(text, defaults);
  if (text.hides(key)) return 0;
  const auto window = text.index(key, range::window), both_sides = text.index("local_attention");
  if (!asked || text.is_null(key) || window == Index{0}) return 0;
  const auto assumed = static_cast<Index>((std::abs)(defaults.sliding_window));
  if (defaults.window == window_span::both_sides || (both_sides && !defaults.causal))
    return window ? *window + 1 : both_sides.value_or(assumed) / 2 + 1;
  if (defaults.window == window_span::each_side) return window.value_or(assumed) + 1;
  if (both_sides && !window) return *both_sides / 2;
  if (!is_causal(text, defaults)) {
    const bool halves = defaults.window == window_span::both_sides_if_asked;
    return halves && (window || assumed > 0) ? window.value_or(assumed) / 2 + 1 : not_known_window;
  }
  if (window) return *window;
  if (assumed > 0) return assumed;
  const bool none = defaults.slides == which_slide::every || defaults.slides == which_slide::without_rope;
  return none ? 0 : not_known_window;
}

/// model_rope::windows.
///
/// \param types    of the layers, or empty
/// \param layers   how many; nothing: not known
/// \param without  the layers that do not rotate, in increasing order
template <class J>
std::vector<Index> windows_of(json_reader<J>& text, const hugging_face_record& defaults,
                              const std::vector<std::string>& types, std::optional<Index> layers,
                              const std::vector<Index>& without) {
  const Index window = sliding_window_of(text, defaults, !types.empty());
  if (!types.empty() && !types_slide(defaults) && defaults.slides != which_slide::by_type)
    return {defaults.slides == which_slide::every || window == 0 ? window : not_known_window};
  const bool from = defaults.slides == which_slide::from_max_window_layers,
             even = defaults.slides == which_slide::even_below_max_window_layers,
             bare = defaults.slides == which_slide::without_rope;
  // Where sliding begins or ends. As a number: g++ 12 takes a std::optional for uninitialised here.
  constexpr Index not_known = -1;
  const Index by_default = defaults.max_window_layers > 0 ? defaults.max_window_layers : not_known,
              first = from || even ? text.index("max_window_layers", range::whole).value_or(by_default)
                                   : not_known;
  std::vector<Index> windows;
  const bool all_that_attend = defaults.slides == which_slide::every && !defaults.others_attend;  // MiniMax
  const Index of_full = all_that_attend ? window : 0;
  const Index of_type = types_slide(defaults) || window == 0 ? window : not_known_window;
  for (const std::string& type : types)
    windows.push_back(is_full(defaults, type)                                 ? of_full
                      : type == defaults.other_type && defaults.others_attend ? of_type
                                                                              : not_known_window);
  if (!windows.empty()) return windows;
  // A class that knows no window has no key for one.
  const bool given = text.has(window_key(text, defaults)) || text.has("local_attention");
  const bool chunks = defaults.window == window_span::chunks;
  if ((chunks || defaults.crosses) && !given)
    for (Index i = 0; i < layers.value_or(0); ++i)
      windows.push_back(std::binary_search(without.begin(), without.end(), i) == chunks ? 0
                                                                                        : not_known_window);
  if (!windows.empty()) return windows;
  if (chunks || defaults.crosses) return {not_known_window};
  if (window == 0 || (defaults.slides == which_slide::every && defaults.others_attend)) return {window};
  if (layers && (bare || first != not_known)) {
    for (Index i = 0; i < *layers; ++i) {
      const bool slides = bare   ? std::binary_search(without.begin(), without.end(), i)
                          : even ? i % 2 == 0 && i < first
                                 : i >= first;
      windows.push_back(slides ? window : 0);
    }
    return windows;
  }
  return {given || defaults.slides != which_slide::by_type ? not_known_window : 0};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_WINDOWS_HPP
