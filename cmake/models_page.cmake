# include/rope/models/README.md: what the records of both formats say of every architecture.
#
#   cmake -P cmake/models_page.cmake             writes the page
#   cmake -DCHECK=ON -P cmake/models_page.cmake  fails if it is not what this would write

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(page ${root}/include/rope/models/README.md)

# The value of a field in `record`, or `otherwise`.
function(field name otherwise)
  if(record MATCHES "[.]${name} = \"([^\"]*)\"")
    set(${name} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  elseif(record MATCHES "[.]${name} = ([^,}]+)")
    set(${name} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${name} "${otherwise}" PARENT_SCOPE)
  endif()
endfunction()

# Sentences about `record`, joined by "; ".
macro(say condition text)
  if(${condition})
    list(APPEND words "${text}")
  endif()
endmacro()

# The records of these headers, in the order of their names.
function(read_records)
  set(found "")
  foreach(file IN LISTS ARGN)
    file(READ ${root}/include/rope/models/detail/${file} text)
    string(REGEX REPLACE "[ \n]+" " " text "${text}")
    string(REGEX MATCHALL "{[.]architecture = [^}]*}" in_file "${text}")
    list(APPEND found ${in_file})
  endforeach()
  list(SORT found)
  list(LENGTH found count)
  if(count LESS 100)
    message(FATAL_ERROR "${ARGN}: ${count} records; are they found?")
  endif()
  set(records "${found}" PARENT_SCOPE)
endfunction()

set(text "<!-- written by cmake/models_page.cmake -->
# What the imports know of each architecture

A `config.json` or a GGUF file leaves out what the code of its architecture implies. These tables are what
[import_hugging_face](hugging_face.hpp) and [import_gguf](gguf.hpp) put in its place. A blank cell is the common rule: all
channels of a head turn, in every layer, by base 10000; head_dim is hidden_size / num_attention_heads; scores are multiplied
by 1 / sqrt(head_dim). Where a file has `qk_rope_head_dim` (DeepSeek and its kin), that many channels turn, the last of a head.
An architecture that is in neither table is refused unless the caller names its layout, and nothing else about it is guessed.

The same model may be `half_split` in one table and `interleaved` in the other: converters to GGUF permute the rows of
its weights.

## Hugging Face

Names as in `model_type`, without `_`, `-` and a trailing `text`. *Base* and *head_dim* are those of a file that does not say;
*asked for, unless 128*: a file without head_dim is refused unless hidden_size / num_attention_heads is 128. Files with
`alibi: true`, and baichuan of 40 layers, are refused: nothing turns in them.

| architecture | layout | base | head_dim | what else |
|---|---|---|---|---|
")

read_records(hugging_face_records.hpp hugging_face_layered_records.hpp)
list(LENGTH records hugging_face_count)
foreach(record IN LISTS records)
  field(architecture "")
  field(layout half_split)
  field(base "")
  field(head_dim "")
  field(maybe_head_dim "")
  field(partial_rotary_factor "")
  field(local_base "")
  field(full_head_dim "")
  field(full_every "")
  field(full_offset 0)
  field(full_rotate true)
  field(dense_first "")
  field(no_rope_every "")
  field(scale "")
  field(scale_number "")
  field(softcap "")
  field(slides by_type)
  field(slides_if_asked "")
  field(sliding_window "")
  field(causal true)
  field(sink_logits "")
  field(mrope_interleaved "")
  field(own_rule "")
  set(words "")
  if(base STREQUAL "0")
    set(base "the file says")
  endif()
  if(maybe_head_dim)
    set(head_dim "asked for, unless ${maybe_head_dim}")
  endif()
  say(partial_rotary_factor "the first ${partial_rotary_factor} of the channels turn")
  if(full_every)
    math(EXPR place "${full_offset} + 1")
    set(which "layer ${place} of every ${full_every} attends fully")
    if(full_rotate STREQUAL "false")
      string(APPEND which ", and does not turn where others slide")
    endif()
    list(APPEND words "${which}")
  endif()
  say(dense_first "the first first_k_dense_replace layers are dense and turn, unless prefix_dense_sliding_window_pattern is not 1")
  say(local_base "base ${local_base} where layers slide")
  say(full_head_dim "heads of ${full_head_dim} where layers attend fully")
  say(no_rope_every "every layer ${no_rope_every} does not turn")
  if(scale STREQUAL "one")
    list(APPEND words "scores times 1")
  elseif(scale STREQUAL "query_pre_attn_scalar")
    list(APPEND words "scores times 1 / sqrt(query_pre_attn_scalar), which is ${scale_number} where absent")
  elseif(scale STREQUAL "attention_multiplier")
    list(APPEND words "scores times attention_multiplier")
  endif()
  say(softcap "softcap ${softcap}")
  set(which "")
  if(slides STREQUAL "every")
    set(which "every layer slides if the file has a window")
  elseif(slides STREQUAL "from_max_window_layers")
    set(which "layers from max_window_layers on slide")
  endif()
  if(slides_if_asked)
    if(which)
      string(APPEND which " with use_sliding_window")
    else()
      set(which "nothing slides without use_sliding_window")
    endif()
  endif()
  say(which "${which}")
  if(sliding_window GREATER 0)
    list(APPEND words "window ${sliding_window} where the key is absent")
  endif()
  if(causal STREQUAL "false")
    list(APPEND words "an encoder: not causal")
  endif()
  say(sink_logits "has sink logits")
  say(mrope_interleaved "axes of M-RoPE alternate")
  say(own_rule "a file must have the rope dictionary")
  list(JOIN words "; " words)
  string(APPEND text "| ${architecture} | ${layout} | ${base} | ${head_dim} | ${words} |\n")
endforeach()

string(APPEND text "
## GGUF

Names as in `general.architecture`; what llama.cpp has fixed in its code.

| architecture | layout | what else |
|---|---|---|
")
read_records(gguf_records.hpp)
list(LENGTH records gguf_count)
set(without "")
foreach(record IN LISTS records)
  field(architecture "")
  field(rotates true)
  if(rotates STREQUAL "false")
    list(APPEND without "${architecture}")
    continue()
  endif()
  field(layout half_split)
  field(last_channels "")
  field(period "")
  field(full_first "")
  field(needs_window "")
  field(period_layers "")
  field(full_rotate true)
  field(sliding "")
  field(no_rope_every "")
  field(half_split_sections "")
  field(interleaved_sections "")
  field(scale "")
  field(wide_layers "")
  field(softcap "")
  field(window back)
  field(causal true)
  field(sink_logits "")
  set(words "")
  say(last_channels "the last channels turn")
  if(period)
    set(which "the last of every ${period} layers attends fully")
    if(full_first)
      set(which "the first of every ${period} layers attends fully")
    endif()
    if(needs_window)
      string(APPEND which " if the file has a window")
    endif()
    if(period_layers)
      string(APPEND which " in models of ${period_layers} layers")
    endif()
    if(full_rotate STREQUAL "false")
      string(APPEND which ", and does not turn where others slide")
    endif()
    list(APPEND words "${which}")
  endif()
  if(sliding STREQUAL "unscaled")
    list(APPEND words "layers that slide are not scaled")
  elseif(sliding STREQUAL "own_base")
    list(APPEND words "layers that slide: rope.freq_base_swa, or 10000, not scaled")
  elseif(sliding STREQUAL "as_full")
    list(APPEND words "layers that slide are scaled like the others")
  endif()
  say(no_rope_every "every layer ${no_rope_every} does not turn")
  say(half_split_sections "half_split where there are M-RoPE sections")
  say(interleaved_sections "axes of M-RoPE alternate")
  if(scale STREQUAL "one")
    list(APPEND words "scores times 1")
  elseif(scale STREQUAL "of_key")
    list(APPEND words "scores times attention.scale where the file has it")
  endif()
  say(wide_layers "of ${wide_layers} layers: scores times 1 / sqrt(embedding_length / head_count)")
  say(softcap "softcap ${softcap}")
  if(window STREQUAL "chunks")
    list(APPEND words "the window is a chunk")
  elseif(window STREQUAL "both_sides")
    list(APPEND words "half of the window on either side")
  endif()
  if(causal STREQUAL "false")
    list(APPEND words "an encoder: not causal")
  endif()
  say(sink_logits "has sink logits")
  list(JOIN words "; " words)
  string(APPEND text "| ${architecture} | ${layout} | ${words} |\n")
endforeach()
list(JOIN without ", " without)
string(APPEND text "
Refused, because nothing turns in them: ${without}; and baichuan of 40 layers.

## Not in these tables

- Families of Hugging Face whose layers turn in ways that a record cannot say yet: DeepSeek V4, Step 3.5, Laguna, Mellum, Zaya, Zamba 2,
  MiMo V2, Muse Glimmer, Granite SWA and Granite 4 hybrid, Hunyuan VL, ERNIE 4.5 VL.
- Models where the released files and the reference disagree: MiniMax M2 and M3 in `config.json`, RecurrentGemma.
- Positions that depend on content (PaTH, contextual CoPE, TAPA): no table of cos and sin exists before the tokens are read.
")

if(CHECK)
  file(READ ${page} present)
  if(NOT present STREQUAL text)
    message(FATAL_ERROR "include/rope/models/README.md differs from the records: cmake -P cmake/models_page.cmake")
  endif()
else()
  file(WRITE ${page} "${text}")
endif()
message(STATUS "${hugging_face_count} architectures of Hugging Face, ${gguf_count} of llama.cpp")
