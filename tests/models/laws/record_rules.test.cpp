// SPDX-License-Identifier: MIT
// A record has no value that no file can show: each rule throws for a record that breaks it.
#include <rope/models/detail/record_rules.hpp>

#include <rope/models/detail/record_fields.hpp>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace {

using namespace rope::detail;
using rope::layout_kind;

/// Records that break one rule, and the first words of the message.
template <class Record>
struct breach {
  Record record;
  const char* rule;
};

template <class Record>
void check(const std::vector<breach<Record>>& breaches) {
  CHECK(broken_rule_of(Record{}).empty());
  for (std::size_t i = 0; i < breaches.size(); ++i) {
    CAPTURE(i);
    const std::string message(broken_rule_of(breaches[i].record)), rule = breaches[i].rule;
    CHECK(message.substr(0, rule.size()) == rule);
  }
}

}  // namespace

TEST_CASE("a record of Hugging Face with a value that no file can show breaks a rule", "[models]") {
  constexpr auto compressed = dictionary_form::compressed, per_type = dictionary_form::per_type,
                 by_type = dictionary_form::base_by_type, per_layer = dictionary_form::base_per_layer;
  constexpr auto every = which_slide::every, not_known = which_slide::not_known;
  constexpr auto chunks = window_span::chunks, both = window_span::both_sides;
  check<hugging_face_record>({
      {{.architecture = "", .filled_base = 1}, "filled_base is"},
      {{.architecture = "", .filled_factor = 2}, "filled_factor and other_factor"},
      {{.architecture = "", .other_factor = 2}, "filled_factor and other_factor"},
      {{.architecture = "", .form = compressed, .full_every = 1}, "layers of compressed keys"},
      {{.architecture = "", .full_head_dim = 8, .form = compressed}, "layers of compressed keys"},
      {{.architecture = "", .local_base = 1, .form = compressed}, "layers of compressed keys"},
      {{.architecture = "", .full_every = 1, .full_offset = 1}, "full_offset and last_full"},
      {{.architecture = "", .last_full = true}, "full_offset and last_full"},
      {{.architecture = "", .full_every = 2, .last_full = true}, "last_full is for"},
      {{.architecture = "", .full_every = 2, .full_offset = 1, .first_full = true, .last_full = true},
       "last_full is for"},
      {{.architecture = "", .full_every = 2, .full_offset = 1, .last_full = true, .ends_full = true},
       "last_full is for"},
      {{.architecture = "", .first_full = true}, "first_full is for"},
      {{.architecture = "", .full_every = 2, .first_full = true}, "first_full is for"},
      {{.architecture = "", .from_end = true}, "from_end is"},
      {{.architecture = "", .dense_first = true}, "dense_first is"},
      {{.architecture = "", .others_attend = false, .slides = not_known},
       "where the other layers do not attend"},
      {{.architecture = "", .others_attend = false, .slides_if_asked = true},
       "where the other layers do not attend"},
      {{.architecture = "", .others_attend = false, .sliding_window = 1},
       "where the other layers do not attend"},
      {{.architecture = "", .others_attend = false, .window = both}, "where the other layers do not attend"},
      {{.architecture = "", .sliding_window = 1, .causal = false}, "a window cannot express"},
      {{.architecture = "", .nested_window = 1, .causal = false}, "a window cannot express"},
      {{.architecture = "", .sliding_window = 1, .window = chunks, .causal = false},
       "a window cannot express"},
      {{.architecture = "", .window = window_span::both_sides_if_asked}, "both_sides_if_asked is"},
      {{.architecture = "", .form = compressed, .slides = every}, "layers that always have types"},
      {{.architecture = "", .form = by_type, .slides = every}, "layers that always have types"},
      {{.architecture = "", .form = per_layer, .slides = every}, "layers that always have types"},
      {{.architecture = "", .crosses = true, .slides = every}, "layers that always have types"},
      {{.architecture = "", .window = chunks, .slides = every}, "layers that always have types"},
      {{.architecture = "", .others_attend = false, .types_slide = true}, "types_slide is of classes whose"},
      {{.architecture = "", .full_every = 1, .types_slide = true}, "types_slide is of classes in"},
      {{.architecture = "", .sliding_window = 1, .types_slide = true}, "types_slide is of classes in"},
      {{.architecture = "", .form = compressed, .types_slide = true}, "types_slide is of classes in"},
      {{.architecture = "", .form = per_type, .types_slide = true}, "types_slide is of classes in"},
      {{.architecture = "", .types_slide = true, .causal = false}, "types_slide is of classes in"},
      {{.architecture = "", .slides = not_known, .types_slide = true}, "types_slide is of classes in"},
      {{.architecture = "", .last_channels = true, .latent = true}, "latent heads"},
      {{.architecture = "", .head_dim = 8, .latent = true}, "widths of latent heads"},
      {{.architecture = "", .nested_head_dim = 8, .latent = true}, "widths of latent heads"},
      {{.architecture = "", .partial_rotary_factor = 0.5, .latent = true}, "widths of latent heads"},
      {{.architecture = "", .latent = true, .scale = score_scale::one}, "widths of latent heads"},
      {{.architecture = "x", .window = both}, "window is of"},
      {{.architecture = "x", .window = chunks}, "window is of"},
      {{.architecture = "x", .full_type = "a", .slides = every}, "where all layers slide, or none"},
      {{.architecture = "x", .other_type = "a", .slides = every}, "where all layers slide, or none"},
      {{.architecture = "", .sliding_window = 1, .slides = not_known}, "where it is not known"},
      {{.architecture = "", .window = both, .slides = not_known}, "where it is not known"},
      {{.architecture = "", .form = compressed, .window = chunks}, "chunks are"},
      {{.architecture = "", .full_list = "a"}, "full_list is"},
      {{.architecture = "", .full_ones = "a"}, "full_ones is"},
      {{.architecture = "", .full_every = 2, .interval = "a"}, "interval is"},
      {{.architecture = "", .others_attend = false, .interval = "a"}, "interval is"},
      {{.architecture = "", .rest_full = true}, "rest_full is"},
      {{.architecture = "", .slide_ones = "a"}, "slide_ones is"},
      {{.architecture = "", .others_attend = false, .slide_ones = "a", .full_every = 2}, "slide_ones is"},
      {{.architecture = "", .others_attend = false, .full_list = "b", .full_ones = "a"}, "full_ones is"},
      {{.architecture = "", .other_type = "a", .others_attend = false}, "no layer is given other_type"},
      {{.architecture = "", .rotates_word = "a"}, "rotates_word is"},
      {{.architecture = "", .scale_number = 1}, "scale_number is"},
      {{.architecture = "", .max_window_layers = 1}, "max_window_layers is"},
      {{.architecture = "", .scaling_slides = true}, "scaling_slides is"},
      {{.architecture = "", .local_base = 1, .scaling_slides = true, .form = per_type}, "scaling_slides is"},
      {{.architecture = "", .local_base = 1, .scaling_slides = true, .form = by_type}, "scaling_slides is"},
      {{.architecture = "", .instead = "a"}, "instead needs"},
      {{.architecture = "", .form = per_type, .own_rule = true}, "own_rule is"},
      {{.architecture = "", .form = by_type, .own_rule = true}, "own_rule is"},
      {{.architecture = "", .own_rule = true, .rotates_if = "rope_parameters"}, "own_rule is"},
      {{.architecture = "", .mrope_interleaved = true, .mrope_time_last = true}, "mrope_time_last has"},
      {{.architecture = "", .mrope_time_last = true, .mrope_spread = true}, "mrope_time_last has"},
      {{.architecture = "", .mrope_time_last = true, .mrope_side = 1}, "mrope_time_last has"},
      {{.architecture = "", .one_base = true}, "one_base is"},
      {{.architecture = "", .full_every = 2, .sink_logits = true, .swa_keys = true}, "swa_keys are"},
      {{.architecture = "", .form = per_type, .sink_logits = true, .swa_keys = true}, "swa_keys are"},
      {{.architecture = "", .form = per_type, .full_every = 2, .swa_keys = true}, "swa_keys are"},
      {{.architecture = "",
        .base = 1,
        .form = per_type,
        .full_every = 2,
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.architecture = "",
        .nested_base = 1,
        .form = per_type,
        .full_every = 2,
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.architecture = "",
        .partial_rotary_factor = 0.5,
        .form = per_type,
        .full_every = 2,
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.architecture = "",
        .theta_unread = true,
        .form = per_type,
        .full_every = 2,
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.architecture = "", .form = per_type, .full_every = 2, .sink_logits = true, .swa_keys = true},
       "swa_keys come"},
      {{.architecture = "x", .needs_window = true}, "where sliding_window"},
      {{.architecture = "x", .full_rotate = false}, "where sliding_window"},
      {{.architecture = "x", .slides_if_asked = true}, "where sliding_window"},
      {{.architecture = "", .indexer_key = "a"}, "indexer_key is"},
  });
}

TEST_CASE("a GGUF record without rotation has no other values", "[models]") {
  const char* rule = "of an architecture that does not rotate";
  constexpr auto none = "learned positions";
  CHECK(broken_rule_of(gguf_record{.architecture = "", .instead = none}).empty());
  check<gguf_record>({
      {{.architecture = "", .layout = layout_kind::interleaved, .instead = none}, rule},
      {{.architecture = "", .instead = none, .alibi_layers = 1}, rule},
      {{.architecture = "", .instead = none, .last_channels = true}, rule},
      {{.architecture = "", .instead = none, .period = 1}, rule},
      {{.architecture = "", .instead = none, .full_first = true}, rule},
      {{.architecture = "", .instead = none, .pattern = pattern_form::list}, rule},
      {{.architecture = "", .instead = none, .needs_window = true}, rule},
      {{.architecture = "", .instead = none, .default_window = 1}, rule},
      {{.architecture = "", .instead = none, .fixed_window = 1}, rule},
      {{.architecture = "", .instead = none, .period_layers = 1}, rule},
      {{.architecture = "", .instead = none, .all_slide = true}, rule},
      {{.architecture = "", .instead = none, .window_varies = true}, rule},
      {{.architecture = "", .instead = none, .full_rotate = false}, rule},
      {{.architecture = "", .instead = none, .sliding = sliding_rule::same}, rule},
      {{.architecture = "", .instead = none, .window = window_kind::chunks}, rule},
      {{.architecture = "", .instead = none, .causal = false}, rule},
      {{.architecture = "", .instead = none, .sink_logits = true}, rule},
      {{.architecture = "", .instead = none, .sinks_slide = true}, rule},
      {{.architecture = "", .instead = none, .attends_every = 2}, rule},
      {{.architecture = "", .instead = none, .no_rope_every = 2}, rule},
      {{.architecture = "", .instead = none, .no_rope_first = true}, rule},
      {{.architecture = "", .instead = none, .half_split_sections = true}, rule},
      {{.architecture = "", .instead = none, .interleaved_sections = true}, rule},
      {{.architecture = "", .instead = none, .scale = gguf_scale::one}, rule},
      {{.architecture = "", .instead = none, .wide_layers = 1}, rule},
      {{.architecture = "", .instead = none, .softcap = 1}, rule},
      {{.architecture = "", .instead = none, .temperature = gguf_temperature::of_length}, rule},
      {{.architecture = "", .instead = none, .indexer = rope::detail::indexer_kind::first_half_split}, rule},
      {{.architecture = "", .instead = none, .multiplier = log_multiplier::as_given}, rule},
      {{.architecture = "", .instead = none, .yarn = yarn_keys::all}, rule},
      {{.architecture = "", .instead = none, .beta_fast = 31}, rule},
      {{.architecture = "", .instead = none, .scores_grow = true}, rule},
      {{.architecture = "", .instead = none, .needs_pattern = true}, rule},
      {{.architecture = "", .instead = none, .needs_swa_base = true}, rule},
      {{.architecture = "", .instead = none, .dense_rotate = true}, rule},
      {{.architecture = "", .instead = none, .rope_pattern = true}, rule},
      {{.architecture = "", .instead = none, .half_of_full = true}, rule},
      {{.architecture = "", .instead = none, .whole_head = true}, rule},
      {{.architecture = "", .instead = none, .unscaled = true}, rule},
      {{.architecture = "", .instead = none, .fixed_base = 1}, rule},
      {{.architecture = "", .instead = none, .alpha = true}, rule},
      {{.architecture = "", .instead = none, .finetuned = true}, rule},
      {{.architecture = "", .instead = none, .compressed = true}, rule},
      {{.architecture = "", .instead = none, .note = "a"}, rule},
  });
}

TEST_CASE("a record of GGUF with a value that no file can show breaks a rule", "[models]") {
  constexpr auto list = pattern_form::list;
  constexpr auto same = sliding_rule::same;
  const char* compressed = "layers of compressed keys";
  check<gguf_record>({
      {{.architecture = "", .attends_every = 1}, "0 says"},
      {{.architecture = "", .no_rope_first = true}, "no_rope_first is"},
      {{.architecture = "", .period_layers = 1}, "period_layers says"},
      {{.architecture = "", .all_slide = true}, "all_slide is"},
      {{.architecture = "", .period = 2, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.architecture = "", .pattern = list, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.architecture = "", .all_slide = true, .sliding = same, .compressed = true}, "all_slide is"},
      {{.architecture = "", .needs_window = true, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.architecture = "", .all_slide = true, .full_rotate = false, .sliding = same}, "all_slide is"},
      {{.architecture = "x", .sliding = same}, "a window needs"},
      {{.architecture = "x", .needs_window = true}, "a window needs"},
      {{.architecture = "", .window_varies = true}, "window_varies is"},
      {{.architecture = "x", .full_first = true}, "a window needs"},
      {{.architecture = "x", .needs_swa_base = true}, "a window needs"},
      {{.architecture = "", .full_first = true, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.architecture = "", .default_window = 1, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.architecture = "x", .default_window = 1}, "a window needs"},
      {{.architecture = "x", .fixed_window = 1}, "a window needs"},
      {{.architecture = "x", .window = window_kind::chunks}, "a window needs"},
      {{.architecture = "x", .full_rotate = false}, "a window needs"},
      {{.architecture = "", .sinks_slide = true}, "sinks_slide needs"},
      {{.architecture = "x", .sink_logits = true, .sinks_slide = true}, "sinks_slide needs"},
      {{.architecture = "", .all_slide = true, .sliding = same, .sink_logits = true, .sinks_slide = true},
       "sinks_slide needs"},
      {{.architecture = "", .sink_logits = true, .sinks_slide = true, .compressed = true},
       "sinks_slide needs"},
      {{.architecture = "", .dense_rotate = true}, "dense_rotate is"},
      {{.architecture = "", .half_split_sections = true}, "half_split_sections is"},
      {{.architecture = "", .last_channels = true, .whole_head = true}, "of a whole head"},
      {{.architecture = "", .sliding = sliding_rule::same, .unscaled = true}, "scaling needs"},
      {{.architecture = "", .yarn = yarn_keys::all, .unscaled = true}, "scaling needs"},
      {{.architecture = "", .scores_grow = true, .unscaled = true}, "scaling needs"},
      {{.architecture = "", .beta_fast = 31, .unscaled = true}, "scaling needs"},
      {{.architecture = "", .multiplier = log_multiplier::as_given, .unscaled = true}, "scaling needs"},
      {{.architecture = "", .scale = gguf_scale::one, .scores_grow = true}, "scores_grow multiplies"},
      {{.architecture = "", .scale = gguf_scale::one, .wide_layers = 1}, "wide_layers is"},
      {{.architecture = "", .needs_pattern = true}, "a pattern that must be there"},
      {{.architecture = "", .period = 1, .pattern = list, .needs_pattern = true},
       "a pattern that must be there"},
      {{.architecture = "", .needs_window = true, .default_window = 1}, "where no layer slides"},
      {{.architecture = "", .full_first = true, .pattern = list}, "full_first is"},
      {{.architecture = "", .period = 1, .compressed = true}, compressed},
      {{.architecture = "", .pattern = list, .compressed = true}, compressed},
      {{.architecture = "", .full_rotate = false, .compressed = true}, compressed},
      {{.architecture = "", .full_first = true, .compressed = true}, compressed},
      {{.architecture = "", .needs_window = true, .compressed = true}, compressed},
      {{.architecture = "", .needs_swa_base = true, .compressed = true}, compressed},
      {{.architecture = "", .window = window_kind::chunks, .compressed = true}, compressed},
      {{.architecture = "", .sliding = sliding_rule::same, .compressed = true}, compressed},
      {{.architecture = "", .sliding = sliding_rule::unscaled, .needs_swa_base = true}, "needs_swa_base is"},
      {{.architecture = "", .sliding = sliding_rule::bare, .needs_swa_base = true}, "needs_swa_base is"},
      {{.architecture = "", .sliding = sliding_rule::same, .needs_swa_base = true}, "needs_swa_base is"},
  });
}
