// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_SECTIONS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_SECTIONS_HPP

#include <algorithm>  // std::max, std::min
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/detail/group_comparison.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

/// The M-RoPE sections of a group, from its rope dictionary and the keys beside it.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Sections as classes understand them that give pairs [1 : 3 height : 3] to height, [2 : 3 width : 3] to
/// width, and the others to time: height and width are cut where they reach beyond the last pair, and time
/// has what they leave.
///
/// Source:  apply_interleaved_mrope of Hugging Face transformers
inline std::vector<Index> sliced_sections(const std::vector<Index>& sections, Index pairs) {
  std::vector<Index> cut = {pairs, 0, 0};
  for (const Index axis : {Index{1}, Index{2}}) {
    const Index most = (std::max)(Index{0}, pairs - axis + 2) / 3;  // of axis, axis + 3, ... below pairs
    cut[static_cast<std::size_t>(axis)] = (std::min)(sections[static_cast<std::size_t>(axis)], most);
    cut[0] -= cut[static_cast<std::size_t>(axis)];
  }
  return cut;
}

/// mrope_section under its names, as written.
template <class J>
std::optional<std::vector<double>> given_sections(json_reader<J>& rope, const hugging_face_record& defaults,
                                                  const char*& key) {
  auto sections = rope.numbers(key, range::whole);
  if (!defaults.xdrope) return sections;
  constexpr const char* older = "xdrope_section";
  auto other = rope.numbers(older, range::whole);
  if (sections && other && *sections != *other) rope.refuse(older, "must agree with mrope_section");
  if (sections || !other) return sections;
  key = older;
  return other;
}

/// ERNIE 4.5 VL before mrope_section: time has freq_allocation pairs, height and width share the others.
///
/// Source:  vLLM, Ernie4_5_VLMoeAttention; 20 is the default of both
template <class J>
std::vector<Index> sections_of_allocation(json_reader<J>& text, json_reader<J>& rope, Index pairs,
                                          model_draft& model) {
  constexpr const char* key = "freq_allocation";
  json_reader<J>& reader = rope.has(key) ? rope : text;
  const auto given = reader.index(key, range::whole);
  if (!text.boolean("rope_3d").value_or(true)) return {};
  const Index time = given.value_or(20);
  if (time > pairs || (pairs - time) % 2 != 0) {
    if (!given) return {};  // the class has no rule for heads of other sizes
    reader.refuse(key, "must leave an even number of the " + std::to_string(pairs) + " pairs, got " +
                           std::to_string(time));
  }
  if (!given)
    model.warnings.push_back("mrope_section is not given; assumed " + std::to_string(time) +
                             " pairs of time, the default of " + model.architecture);
  return {time, (pairs - time) / 2, (pairs - time) / 2};
}

/// Sets the sections of the group and the order of their axes.
template <class J>
void add_sections(json_reader<J>& text, json_reader<J>& rope, const hugging_face_record& defaults,
                  model_draft& model, layer_group& group) {
  const char* key = "mrope_section";
  auto given = given_sections(rope, defaults, key);
  const bool alternate = rope.boolean("mrope_interleaved").value_or(defaults.mrope_interleaved);
  const Index pairs = group.frequencies.pairs();
  std::vector<Index>& sections = group.mrope_sections;
  if (given && static_cast<Index>(given->size()) > max_sections)
    rope.refuse(key, "must have at most " + std::to_string(max_sections) + " values, got " +
                         std::to_string(given->size()));
  if (given)
    for (const double count : *given) sections.push_back(static_cast<Index>(count));
  if (defaults.mrope_time_last && given) {
    if (sections.size() != 3 || sections[0] != sections[1])
      rope.refuse(key, "must be height, width and time, the first two equal, got " +
                           std::to_string(sections.size()) + " values");
    sections = {sections[2], sections[0], sections[1]};
  } else if (defaults.mrope_time_last) {
    sections = sections_of_allocation(text, rope, pairs, model);
  }
  if (sections.empty() && defaults.mrope_side > 0) {
    sections = sliced_sections({0, defaults.mrope_side, defaults.mrope_side}, pairs);
    model.warnings.push_back("mrope_section is not given; assumed [" + joined(sections) +
                             "], the default of " + model.architecture);
  }
  if (sections.empty()) return;
  mrope_order& order = group.section_order;
  order = defaults.mrope_time_last             ? mrope_order::time_last
          : alternate && defaults.mrope_spread ? mrope_order::spread
          : alternate                          ? mrope_order::alternating
                                               : mrope_order::blocks;
  if (order == mrope_order::alternating && sections.size() == 3) {
    const std::vector<Index> cut = sliced_sections(sections, pairs);
    if (cut != sections)
      model.warnings.push_back(rope.path() + key + " [" + joined(sections) + "] does not fit " +
                               std::to_string(pairs) +
                               " pairs in turn; it is cut as the class slices it, to [" + joined(cut) + "]");
    sections = cut;
  }
  Index left = pairs;
  for (const Index count : sections) left -= (std::min)(count, left + 1);
  if (left != 0)
    rope.refuse(key, "must add up to the number of pairs, " + std::to_string(pairs) + ", got [" +
                         joined(sections) + "]");
  if (order == mrope_order::spread && (sections.size() < 2 || sections.size() > 3 || sections[0] == 0))
    rope.refuse(key, "must be time, height and width or height and width, the first not 0, got [" +
                         joined(sections) + "]");
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_SECTIONS_HPP
