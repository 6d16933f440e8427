// SPDX-License-Identifier: MIT
// A record has no value that no file can show: the tables keep the rules, and each rule names a record that
// breaks it.
#include <rope/models/detail/record_fields.hpp>

#include <algorithm>
#include <cstddef>
#include <rope/models/detail/gguf_importer.hpp>
#include <rope/models/detail/gguf_records.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_records.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.hpp"
#include "support/record_rules.hpp"

namespace {

using namespace rope::detail;
using rope::layout_kind;
using rope::mrope_order;
using testing::broken_rule_of;

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

/// The names of the architectures whose records break a rule.
template <class Record>
std::string breaking(std::span<const Record> records) {
  std::string names;
  for (Record record : records)
    for (std::string_view left = record.names; !left.empty();) {
      record.names = left.substr(0, left.find(' '));
      left.remove_prefix(std::min(record.names.size() + 1, left.size()));
      if (!broken_rule_of(record).empty()) names += std::string(record.names) + "; ";
    }
  return names;
}

}  // namespace

TEST_CASE("every record of the tables keeps the rules", "[models]") {
  CHECK(breaking(hugging_face_plain_records<hugging_face_record>()).empty());
  CHECK(breaking(hugging_face_layered_records<hugging_face_record>()).empty());
  CHECK(breaking(gguf_records()).empty());
}

TEST_CASE("a record of Hugging Face with a value that no file can show breaks a rule", "[models]") {
  constexpr auto compressed = dictionary_form::compressed, per_type = dictionary_form::per_type,
                 by_type = dictionary_form::base_by_type, per_layer = dictionary_form::base_per_layer;
  constexpr auto every = which_slide::every, not_known = which_slide::not_known;
  constexpr auto chunks = window_span::chunks, both = window_span::both_sides;
  check<hugging_face_record>({
      {{.names = "", .filled = {.base = 1}}, "filled.base is"},
      {{.names = "", .filled = {.factor = 2}}, "filled.factor and"},
      {{.names = "", .filled = {.other_factor = 2}}, "filled.factor and"},
      {{.names = "", .form = compressed, .pattern = {1}}, "layers of compressed keys"},
      {{.names = "", .full_head_dim = 8, .form = compressed}, "layers of compressed keys"},
      {{.names = "", .local_base = 1, .form = compressed}, "layers of compressed keys"},
      {{.names = "", .pattern = {1, full_layers::first}}, "pattern.full is"},
      {{.names = "", .pattern = {1, full_layers::first_from_end}}, "pattern.full is"},
      {{.names = "", .pattern = {1, full_layers::last_and_first}}, "pattern.full is"},
      {{.names = "", .pattern = {0, full_layers::last_if_none}}, "pattern.full is"},
      {{.names = "", .pattern = {1, full_layers::last_and_end}}, "pattern.full is"},
      {{.names = "", .other_type = "a", .pattern = {2, full_layers::first, "a"}}, "pattern.key is of"},
      {{.names = "", .other_type = "a", .pattern = {2, full_layers::last_if_none, "a"}}, "pattern.key is of"},
      {{.names = "", .dense_first = true}, "dense_first is"},
      {{.names = "", .other_type = "a", .slides = {not_known}}, "where the other layers do not attend"},
      {{.names = "", .other_type = "a", .slides = {.if_asked = true}},
       "where the other layers do not attend"},
      {{.names = "", .other_type = "a", .window = {1}}, "where the other layers do not attend"},
      {{.names = "", .other_type = "a", .window = {.span = both}}, "where the other layers do not attend"},
      {{.names = "", .window = {1}, .causal = false}, "a window cannot express"},
      {{.names = "", .nested = {.window = 1}, .causal = false}, "a window cannot express"},
      {{.names = "", .slides = {every}, .causal = false}, "a window cannot express"},
      {{.names = "", .window = {1, chunks}, .causal = false}, "a window cannot express"},
      {{.names = "", .window = {.span = window_span::both_sides_if_asked}}, "both_sides_if_asked is"},
      {{.names = "", .form = compressed, .slides = {every}}, "layers that always have types"},
      {{.names = "", .form = by_type, .slides = {every}}, "layers that always have types"},
      {{.names = "", .form = per_layer, .slides = {every}}, "layers that always have types"},
      {{.names = "", .crosses = true, .slides = {every}}, "layers that always have types"},
      {{.names = "", .window = {.span = chunks}, .slides = {every}}, "layers that always have types"},
      {{.names = "", .other_type = "a", .types_slide = true}, "types_slide is of classes whose"},
      {{.names = "", .pattern = {1}, .types_slide = true}, "types_slide is of classes in"},
      {{.names = "", .window = {1}, .types_slide = true}, "types_slide is of classes in"},
      {{.names = "", .form = compressed, .types_slide = true}, "types_slide is of classes in"},
      {{.names = "", .form = per_type, .types_slide = true}, "types_slide is of classes in"},
      {{.names = "", .types_slide = true, .causal = false}, "types_slide is of classes in"},
      {{.names = "", .slides = {not_known}, .types_slide = true}, "types_slide is of classes in"},
      {{.names = "", .last_channels = true, .latent = true}, "latent heads"},
      {{.names = "", .head_dim = 8, .latent = true}, "widths of latent heads"},
      {{.names = "", .nested = {.head_dim = 8}, .latent = true}, "widths of latent heads"},
      {{.names = "", .partial_rotary_factor = 0.5, .latent = true}, "widths of latent heads"},
      {{.names = "", .latent = true, .scale = {.number = 1}}, "widths of latent heads"},
      {{.names = "", .latent = true, .double_head = true}, "widths of latent heads"},
      {{.names = "", .latent = true, .scale = {"a"}}, "widths of latent heads"},
      {{.names = "", .double_head = true, .scale = {.number = 1}}, "double_head has"},
      {{.names = "", .double_head = true, .scale = {"a"}}, "double_head has"},
      {{.names = "x", .window = {.span = both}}, "window is of"},
      {{.names = "x", .window = {.span = chunks}}, "window is of"},
      {{.names = "x", .full_type = "a", .slides = {every}}, "where all layers slide, or none"},
      {{.names = "x", .other_type = "a sliding", .slides = {every}}, "where all layers slide, or none"},
      {{.names = "", .window = {1}, .slides = {not_known}}, "where it is not known"},
      {{.names = "", .window = {.span = both}, .slides = {not_known}}, "where it is not known"},
      {{.names = "", .form = compressed, .window = {.span = chunks}}, "chunks are"},
      {{.names = "", .full_list = "a"}, "full_list is"},
      {{.names = "", .type_ones = "a"}, "type_ones is"},
      {{.names = "", .other_type = "a", .type_ones = "a"}, "type_ones is"},
      {{.names = "", .other_type = "a", .rope_ones = "a"}, "rope_ones is"},
      {{.names = "", .partial_rotary_factor = 0.5, .rotary_dim = 8}, "rotary_dim is"},
      {{.names = "codegen", .partial_rotary_factor = 0.5, .rotary_dim = 8}, "rotary_dim is"},
      {{.names = "llama", .rotary_dim = 8}, "rotary_dim is"},
      {{.names = "", .pattern = {2, full_layers::last, "a"}}, "pattern.key is read"},
      {{.names = "", .other_type = "a", .pattern = {.key = "a"}}, "pattern.key is read"},
      {{.names = "", .pattern = {1, full_layers::last_and_rest}}, "last_and_rest is"},
      {{.names = "", .other_type = "a", .full_list = "b", .type_ones = "a", .pattern = {1}}, "type_ones is"},
      {{.names = "", .rotates_if = {.word = "a"}}, "what a model has instead"},
      {{.names = "", .max_window_layers = 1}, "max_window_layers is"},
      {{.names = "", .scaling_slides = true}, "scaling_slides is"},
      {{.names = "", .local_base = 1, .scaling_slides = true, .form = per_type}, "scaling_slides is"},
      {{.names = "", .local_base = 1, .scaling_slides = true, .form = by_type}, "scaling_slides is"},
      {{.names = "", .rotates_if = {.instead = "a"}}, "what a model has instead"},
      {{.names = "", .form = per_type, .own_rule = true}, "own_rule is"},
      {{.names = "", .form = by_type, .own_rule = true}, "own_rule is"},
      {{.names = "", .own_rule = true, .rotates_if = {"rope_parameters"}}, "own_rule is"},
      {{.names = "", .mrope = mrope_order::blocks, .mrope_side = 1}, "mrope_side is"},
      {{.names = "", .mrope = mrope_order::time_last, .mrope_side = 1}, "mrope_side is"},
      {{.names = "", .mrope = mrope_order::spread, .mrope_side = 1}, "mrope_side is"},
      {{.names = "", .one_base = true}, "one_base is"},
      {{.names = "", .pattern = {2}, .sink_logits = true, .swa_keys = true}, "swa_keys are"},
      {{.names = "", .form = per_type, .sink_logits = true, .swa_keys = true}, "swa_keys are"},
      {{.names = "", .form = per_type, .pattern = {2}, .swa_keys = true}, "swa_keys are"},
      {{.names = "", .base = 1, .form = per_type, .pattern = {2}, .sink_logits = true, .swa_keys = true},
       "swa_keys have"},
      {{.names = "",
        .nested = {.base = 1},
        .form = per_type,
        .pattern = {2},
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.names = "",
        .partial_rotary_factor = 0.5,
        .form = per_type,
        .pattern = {2},
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.names = "",
        .theta_unread = true,
        .form = per_type,
        .pattern = {2},
        .sink_logits = true,
        .swa_keys = true},
       "swa_keys have"},
      {{.names = "", .form = per_type, .pattern = {2}, .sink_logits = true, .swa_keys = true},
       "swa_keys come"},
      {{.names = "x", .needs_window = true}, "where sliding_window"},
      {{.names = "x", .full_rotate = false}, "where sliding_window"},
      {{.names = "x", .slides = {.if_asked = true}}, "where sliding_window"},
      {{.names = "", .indexer_key = "a"}, "indexer_key is"},
  });
}

TEST_CASE("a GGUF architecture without rotation has no record, which could have other values", "[models]") {
  for (const char* name : {"arwkv7", "bert", "bloom", "mpt", "rwkv7", "t5encoder"}) {
    CAPTURE(name);
    REQUIRE(gguf_unrotated_of(name));
    CHECK_FALSE(gguf_unrotated_of(name)->instead.empty());
    for (std::string names(gguf_unrotated_of(name)->names); !names.empty();) {
      const std::string one = names.substr(0, names.find(' '));
      CHECK_FALSE(gguf_record_of(one));
      names.erase(0, one.size() + 1);
    }
  }
}

TEST_CASE("a record of GGUF with a value that no file can show breaks a rule", "[models]") {
  constexpr auto list = pattern_form::list;
  constexpr auto same = sliding_rule::same;
  const char* compressed = "layers of compressed keys";
  check<gguf_record>({
      {{.names = "", .attends_every = 1}, "0 says"},
      {{.names = "", .no_rope_first = true}, "no_rope_first is"},
      {{.names = "", .period_layers = 1}, "period_layers says"},
      {{.names = "", .all_slide = true}, "all_slide is"},
      {{.names = "", .period = 2, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.names = "", .pattern = list, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.names = "", .all_slide = true, .sliding = same, .compressed = true}, "all_slide is"},
      {{.names = "", .needs_window = true, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.names = "", .all_slide = true, .full_rotate = false, .sliding = same}, "all_slide is"},
      {{.names = "x", .sliding = same}, "a window needs"},
      {{.names = "x", .needs_window = true}, "a window needs"},
      {{.names = "", .window_varies = true}, "window_varies is"},
      {{.names = "x", .full_first = true}, "a window needs"},
      {{.names = "x", .needs_swa_base = true}, "a window needs"},
      {{.names = "", .full_first = true, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.names = "", .default_window = 1, .all_slide = true, .sliding = same}, "all_slide is"},
      {{.names = "x", .default_window = 1}, "a window needs"},
      {{.names = "x", .fixed_window = 1}, "a window needs"},
      {{.names = "x", .window = window_kind::chunks}, "a window needs"},
      {{.names = "x", .full_rotate = false}, "a window needs"},
      {{.names = "", .sinks_slide = true}, "sinks_slide needs"},
      {{.names = "x", .sink_logits = true, .sinks_slide = true}, "sinks_slide needs"},
      {{.names = "", .all_slide = true, .sliding = same, .sink_logits = true, .sinks_slide = true},
       "sinks_slide needs"},
      {{.names = "", .sink_logits = true, .sinks_slide = true, .compressed = true}, "sinks_slide needs"},
      {{.names = "", .dense_rotate = true}, "dense_rotate is"},
      {{.names = "", .half_split_sections = true}, "half_split_sections is"},
      {{.names = "", .last_channels = true, .whole_head = true}, "of a whole head"},
      {{.names = "", .sliding = sliding_rule::same, .whole_head = true}, "scaling needs"},
      {{.names = "", .yarn = yarn_keys::all, .whole_head = true}, "scaling needs"},
      {{.names = "", .scores_grow = true, .whole_head = true}, "scaling needs"},
      {{.names = "", .beta_fast = 31, .whole_head = true}, "scaling needs"},
      {{.names = "", .multiplier = log_multiplier::as_given, .whole_head = true}, "scaling needs"},
      {{.names = "", .scale = gguf_scale::one, .scores_grow = true}, "scores_grow multiplies"},
      {{.names = "", .scale = gguf_scale::one, .wide_layers = 1}, "wide_layers is"},
      {{.names = "", .needs_pattern = true}, "a pattern that must be there"},
      {{.names = "", .period = 1, .pattern = list, .needs_pattern = true}, "a pattern that must be there"},
      {{.names = "", .needs_window = true, .default_window = 1}, "where no layer slides"},
      {{.names = "", .full_first = true, .pattern = list}, "full_first is"},
      {{.names = "", .period = 1, .compressed = true}, compressed},
      {{.names = "", .pattern = list, .compressed = true}, compressed},
      {{.names = "", .full_rotate = false, .compressed = true}, compressed},
      {{.names = "", .full_first = true, .compressed = true}, compressed},
      {{.names = "", .needs_window = true, .compressed = true}, compressed},
      {{.names = "", .needs_swa_base = true, .compressed = true}, compressed},
      {{.names = "", .window = window_kind::chunks, .compressed = true}, compressed},
      {{.names = "", .sliding = sliding_rule::same, .compressed = true}, compressed},
      {{.names = "", .sliding = sliding_rule::unscaled, .needs_swa_base = true}, "needs_swa_base is"},
      {{.names = "", .sliding = sliding_rule::bare, .needs_swa_base = true}, "needs_swa_base is"},
      {{.names = "", .sliding = sliding_rule::same, .needs_swa_base = true}, "needs_swa_base is"},
  });
}

TEST_CASE("a list of architectures has names of records", "[models]") {
  std::size_t count = 0;
  for (const std::string_view list :
       {look_ahead_if_asked, own_classes, partial_by_default, dictionary_by_type, null_head_dim,
        rotary_dim_in_file, sizes_in_block_config})
    for (std::size_t at = 1; at < list.size(); at = list.find(' ', at) + 1) {
      const std::string_view name = list.substr(at, list.find(' ', at) - at);
      CAPTURE(std::string(name));
      const auto record = hugging_face_record_of(name);
      CHECK((record && record->names == name));
      ++count;
    }
  CHECK(count > 150);
  CHECK(name_in("one two", "two") == "two");
  CHECK(is_listed("one two", "one"));
  CHECK(is_listed("one two", "two"));
  CHECK(is_listed(" one two ", "two"));
  CHECK_FALSE(is_listed("one two", "wo"));
  CHECK_FALSE(is_listed("one two", "on"));
  CHECK_FALSE(is_listed("one two", ""));
}
