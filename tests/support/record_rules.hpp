// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_RECORD_RULES_HPP
#define ROPE_TESTS_RECORD_RULES_HPP

/// Rules about the fields that a record of an architecture may combine. In a record that breaks a rule, some
/// field has no effect on any file, so no test could check it.

#include <rope/models/detail/gguf_records.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/rotation/layout.hpp>

#include <string_view>

namespace testing {

constexpr bool is_zero(double x) { return !(x < 0) && !(x > 0); }
constexpr bool is_one(double x) { return is_zero(x - 1); }

/// The first broken rule, or empty if the record keeps all rules.
constexpr std::string_view broken_rule_of(const rope::detail::hugging_face_record& r) {
  using namespace rope::detail;
  const bool per_type = r.form == dictionary_form::per_type,
             compressed = r.form == dictionary_form::compressed,
             lists = r.form == dictionary_form::base_by_type, has_pattern = r.pattern.every > 0,
             mixed = r.pattern.every > 1, slides = !is_zero(r.window.tokens) || !is_zero(r.nested.window);
  if (!is_zero(r.filled.base) && !per_type && !compressed)
    return "filled.base is of dictionaries per_type or compressed";
  if ((!is_one(r.filled.factor) || !is_one(r.filled.other_factor)) && !per_type)
    return "filled.factor and filled.other_factor are of dictionaries per_type";
  if (compressed && (has_pattern || r.full_head_dim > 0 || !is_zero(r.local_base)))
    return "layers of compressed keys attend fully nowhere";
  const bool last = r.pattern.full == full_layers::last, rest = r.pattern.full == full_layers::last_and_rest;
  if (!last && !rest && !mixed)
    return "pattern.full is of a pattern in which some layers do not attend fully";
  if (!last && !rest && !r.pattern.key.empty())
    return "pattern.key is of runs whose last layer attends, and of no other layers but the rest";
  if (r.dense_first && !mixed && r.full_rotate)
    return "dense_first is of a pattern of layers, or of layers that would not rotate";
  const bool some_slide = r.slides.which != which_slide::by_type && r.slides.which != which_slide::every;
  if ((some_slide || r.slides.if_asked || slides || r.window.span != window_span::back) && !others_attend(r))
    return "where the other layers do not attend none slides, or all that attend do if there is a window";
  if ((slides || r.slides.which == which_slide::every) && !r.causal &&
      (r.window.span == window_span::back || r.window.span == window_span::chunks))
    return "a window cannot express how far an encoder attends back";
  if (r.window.span == window_span::both_sides_if_asked && !is_listed(look_ahead_if_asked, r.names))
    return "both_sides_if_asked is of classes that read the key that asks";
  const bool always_types = compressed || lists || r.form == dictionary_form::base_per_layer;
  if (r.slides.which != which_slide::by_type &&
      (always_types || r.crosses || r.window.span == window_span::chunks))
    return "layers that always have types, chunks or another sequence to look at do not slide by another "
           "rule";
  if (r.types_slide && !others_attend(r)) return "types_slide is of classes whose layers all attend";
  if (r.types_slide && r.slides.which != which_slide::every &&
      (r.slides.which != which_slide::by_type || has_pattern || slides || always_types || per_type ||
       !r.causal))
    return "types_slide is of classes in which layers slide by another rule, or none does";
  if (r.latent && r.last_channels) return "latent heads always rotate their last channels";
  if (r.latent && (r.head_dim > 0 || r.nested.head_dim > 0 || !is_one(r.partial_rotary_factor) ||
                   r.double_head || !is_zero(r.scale.number) || !r.scale.key.empty()))
    return "widths of latent heads are in the file, and their scale follows";
  if (r.rotary_dim > 0 && (!is_one(r.partial_rotary_factor) || !is_listed(rotary_dim_in_file, r.names)))
    return "rotary_dim is a default of classes that read this key, and leaves no share of a head to assume";
  const bool asks_types = types_slide(r),
             chunks = r.window.span == window_span::chunks && r.no_rope_every > 0;
  if (!asks_types && r.slides.which == which_slide::by_type && r.window.span != window_span::back && !chunks)
    return "window is of classes whose layers may slide";
  if (!asks_types && r.slides.which != which_slide::by_type &&
      (r.full_type != "full_attention" || r.other_type != "sliding_attention"))
    return "where all layers slide, or none, no type is asked for";
  if (r.slides.which == which_slide::not_known && (slides || r.window.span != window_span::back))
    return "where it is not known which layers slide, no window is assumed";
  if (r.window.span == window_span::chunks && always_types)
    return "chunks are for rotated layers of any type";
  if (!r.full_list.empty() && others_attend(r))
    return "full_list is read where the other layers do not attend";
  if (!r.type_ones.empty() && (!has_pattern || !r.full_list.empty()))
    return "type_ones is read in place of pattern.every";
  if (!r.rope_ones.empty() && !others_attend(r)) return "rope_ones is of classes whose layers all attend";
  if (!r.pattern.key.empty() && (others_attend(r) || !has_pattern))
    return "pattern.key is read where the other layers do not attend, in place of pattern.every";
  if (rest && r.pattern.key.empty()) return "last_and_rest is of layers after runs whose length a key has";
  if (r.double_head && (!is_zero(r.scale.number) || !r.scale.key.empty()))
    return "double_head has a scale of its own";
  if (r.max_window_layers != 28 && r.slides.which != which_slide::from_max_window_layers &&
      r.slides.which != which_slide::even_below_max_window_layers)
    return "max_window_layers is where layers begin or end to slide";
  if (r.scaling_slides && (is_zero(r.local_base) || per_type || compressed || lists))
    return "scaling_slides is of layers that slide with a base of their own, and one dictionary for all";
  if ((r.rotates_if.instead != "no positions" || r.rotates_if.word != "rope") && r.rotates_if.key.empty())
    return "what a model has instead, and the word, are of the key rotates_if";
  if (r.own_rule && (per_type || lists || r.rotates_if.key == "rope_parameters"))
    return "own_rule is of a class that does without a rope dictionary";
  if (r.mrope_side > 0 && r.mrope != rope::mrope_order::alternating)
    return "mrope_side is of axes that alternate";
  if (r.one_base && r.form != dictionary_form::base_per_layer)
    return "one_base is of classes that read layer_rope_theta";
  if (r.swa_keys && (!per_type || !mixed || !r.sink_logits))
    return "swa_keys are of dictionaries per_type, layers that slide among others, and sink logits";
  if (r.swa_keys && (!is_zero(r.base - 10000) || !is_zero(r.nested.base) ||
                     !is_one(r.partial_rotary_factor) || r.theta_unread))
    return "swa_keys have a base and a share for each type of layers";
  if (r.swa_keys && r.type_ones.empty()) return "swa_keys come with type_ones";
  if (!reads_window(r) &&
      (r.needs_window || !r.full_rotate || r.slides.if_asked || !is_zero(r.nested.window)))
    return "where sliding_window is not read nothing depends on it";
  if (r.indexer_key != "index_head_dim" && r.indexer == indexer_kind::no_indexer)
    return "indexer_key is of layers with an indexer";
  return {};
}

constexpr std::string_view broken_rule_of(const rope::detail::gguf_record& r) {
  using namespace rope::detail;
  using rope::layout_kind;
  if (r.attends_every == 1) return "0 says that every layer attends";
  if (r.no_rope_first && r.no_rope_every == 0) return "no_rope_first is of the layers of no_rope_every";
  if (r.period_layers > 0 && r.period == 0) return "period_layers says which models have the period";
  if (r.all_slide &&
      (r.period > 0 || r.full_first || r.pattern != pattern_form::number || r.compressed || r.needs_window ||
       r.default_window > 0 || !r.full_rotate || r.sliding != sliding_rule::same))
    return "all_slide is of layers that slide and rotate alike";
  if (r.window_varies && !r.all_slide) return "window_varies is of architectures with all_slide";
  if ((r.sliding != sliding_rule::as_full || r.needs_window || r.default_window > 0 || r.fixed_window > 0 ||
       r.full_first || r.needs_swa_base || r.window != window_kind::back || !r.full_rotate) &&
      !may_slide(r))
    return "a window needs sliding layers";
  if (r.sinks_slide && (!r.sink_logits || !may_slide(r) || r.all_slide || r.compressed))
    return "sinks_slide needs sink logits and sliding layers";
  if (r.dense_rotate && r.full_rotate) return "dense_rotate is for layers that would not rotate";
  if (r.half_split_sections && r.layout == layout_kind::half_split)
    return "half_split_sections is for a layout that is not half_split anyway";
  if (r.last_channels && r.whole_head) return "of a whole head that rotates no channels are the last";
  if (r.whole_head && (r.sliding != sliding_rule::as_full || r.yarn != yarn_keys::none || r.scores_grow ||
                       !is_zero(r.beta_fast - 32) || r.multiplier != log_multiplier::ignored))
    return "scaling needs scaled layers";
  if (r.scores_grow && r.scale != gguf_scale::inverse_root)
    return "scores_grow multiplies the scale of inverse_root";
  if (r.wide_layers > 0 && r.scale != gguf_scale::inverse_root)
    return "wide_layers is of the scale of inverse_root";
  if (r.needs_pattern && (r.period > 0 || r.pattern == pattern_form::number))
    return "a pattern that must be there has no default, and is no number alone";
  if (r.needs_window && r.default_window > 0)
    return "where no layer slides without a window in the file there is no default for it";
  if (r.full_first && r.period == 0 && r.pattern == pattern_form::list)
    return "full_first is of a number for a pattern";
  if (r.compressed && (r.period > 0 || r.pattern != pattern_form::number || !r.full_rotate || r.full_first ||
                       r.needs_window || r.needs_swa_base || r.window != window_kind::back ||
                       r.sliding != sliding_rule::as_full))
    return "layers of compressed keys, and those that slide among them, have a list of their own";
  if (r.needs_swa_base && (r.sliding == sliding_rule::unscaled || r.sliding == sliding_rule::bare ||
                           r.sliding == sliding_rule::same))
    return "needs_swa_base is of layers that slide with a base of their own";
  return {};
}

}  // namespace testing

#endif  // ROPE_TESTS_RECORD_RULES_HPP
