# The advice of rope_inspect_config works: it names options that exist, and they help. It reports every file,
# keeps to the width of a terminal, and draws for light and dark backgrounds. Run:
#
#   cmake -DPROGRAM=build/examples/rope_inspect_config -DSCRATCH=build -P tests/inspect_config.cmake

cmake_minimum_required(VERSION 3.24)

unset(ENV{COLUMNS})
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(configs ${root}/examples/configs)

function(run result output)
  execute_process(COMMAND ${PROGRAM} ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  set(${result} "${code}" PARENT_SCOPE)
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

run(code help --help)
string(REGEX MATCHALL "--[a-z][a-z-]*" known "${help}")
if(NOT code EQUAL 0 OR NOT known)
  message(SEND_ERROR "--help exits with ${code} and names no option:\n${help}")
endif()

set(novel ${SCRATCH}/novel_architecture.json)
file(WRITE ${novel} [[{"model_type": "novel", "head_dim": 8, "rope_theta": 10000}]])

# Every failure names the options that help.
foreach(arguments IN ITEMS "${novel}" "${novel};${SCRATCH}/novel.svg;100" "--lay;half_split;${novel}" "--layout"
    "--layout;halves;${novel}" "${novel};${SCRATCH}/novel.svg;many" "a;b;c;d" "${SCRATCH}/no_such_file.json" "-x" "100;200" "-5" "a.svg;b.svg")
  run(code text ${arguments})
  if(NOT code EQUAL 1)
    message(SEND_ERROR "rope_inspect_config ${arguments} exits with ${code}, not 1:\n${text}")
  endif()
  string(REGEX REPLACE "\"[^\"]*\"" "" advice "${text}") # what was given is quoted
  string(REGEX MATCHALL "--[a-z][a-z-]*" named "${advice}")
  foreach(option IN LISTS named)
    if(NOT option IN_LIST known)
      message(SEND_ERROR "rope_inspect_config ${arguments} advises ${option}, which it does not have:\n${text}")
    endif()
  endforeach()
  if(advice MATCHES "option" AND NOT named)
    message(SEND_ERROR "rope_inspect_config ${arguments} speaks of options and names none:\n${text}")
  endif()
endforeach()

# And these options help.
foreach(layout IN ITEMS interleaved half_split)
  run(code text --layout ${layout} ${novel})
  if(NOT code EQUAL 0 OR NOT text MATCHES "layout +${layout}\n")
    message(SEND_ERROR "rope_inspect_config --layout ${layout} exits with ${code}:\n${text}")
  endif()
endforeach()

# A file that would cost more than that of any model is rejected, with its size in bytes or its depth.
string(REPEAT " " 4194240 blanks)
string(REPEAT "[" 70 open)
string(REPEAT "]" 70 close)
file(WRITE ${SCRATCH}/large.json "{\"model_type\": \"llama\", \"head_dim\": 8, \"rope_theta\": 10000}${blanks}")
file(WRITE ${SCRATCH}/too_large.json "{\"model_type\": \"llama\"}${blanks}${blanks}")
file(WRITE ${SCRATCH}/too_deep.json "{\"model_type\": \"llama\", \"head_dim\": 8, \"x\": ${open}${close}}")
run(code text ${SCRATCH}/large.json)
if(NOT code EQUAL 0)
  message(SEND_ERROR "rope_inspect_config rejects a file of less than 4 MiB:\n${text}")
endif()
foreach(case IN ITEMS "too_large;must be a config of at most 4 MiB" "too_deep;dictionaries at most 64 deep")
  list(GET case 0 name)
  list(GET case 1 reason)
  run(code text ${SCRATCH}/${name}.json)
  string(FIND "${text}" "${reason}" at)
  if(NOT code EQUAL 1 OR at EQUAL -1)
    message(SEND_ERROR "rope_inspect_config ${name}.json exits with ${code} and does not say ${reason}:\n${text}")
  endif()
endforeach()

# The help describes every option in a sentence.
foreach(option IN ITEMS --layout --dark --help file plot.svg length)
  if(NOT help MATCHES "\n  ${option} [^\n]* [a-z]+ [a-z]+")
    message(SEND_ERROR "--help does not explain ${option}:\n${help}")
  endif()
endforeach()

# Text that a run must print, or must not.
function(expect arguments wanted)
  run(code text ${arguments})
  foreach(sentence IN LISTS wanted)
    string(FIND "${text}" "${sentence}" place)
    if(place EQUAL -1)
      message(SEND_ERROR "rope_inspect_config ${arguments} does not print\n  ${sentence}\nbut (${code}):\n${text}")
    endif()
  endforeach()
  foreach(sentence IN LISTS ARGN)
    string(FIND "${text}" "${sentence}" place)
    if(NOT place EQUAL -1)
      message(SEND_ERROR "rope_inspect_config ${arguments} prints\n  ${sentence}\nthough it should not:\n${text}")
    endif()
  endforeach()
endfunction()

# One file has no heading, and each of several has one. Two files are always compared, and more if they are of
# one model.
set(old ${configs}/llama_3_8b.json)
set(new ${configs}/llama_3_1_8b.json)
set(gemma ${configs}/gemma_3_4b.json)
set(gemma_again ${configs}/gemma_3_4b_rope_parameters.json)
expect("${gemma}" "window                  none, layers 5, 11, ..., 29;attention               causal" "== ")
expect("${gemma};${gemma_again}" "== ${gemma}\n;== ${gemma_again}\n;\n${gemma_again} gives the same model as ${gemma}\n")
expect("${old};${gemma}" "${gemma} differs from ${old}:\n;: head_dim is 128 in llama_3_8b.json and 256 in gemma_3_4b.json\n")
expect("${gemma};${old};${gemma_again};${new}"
  "== ${gemma}\n;== ${old}\n;== ${gemma_again}\n;== ${new}\n;${gemma_again} gives the same model as ${gemma}\n;${new} differs from ${old}:\n  inv_freq differs"
  "${old} differs;${old} says;and Hugging Face")
expect("${new}" "C++ after #include <rope/rope.hpp>\n  using model_layout = rope::half_split\\;\n;rope::llama3_scaling{.factor = 8,;rope::rotate<model_layout>")
# A model without rotation is described, alone and next to another.
file(WRITE ${SCRATCH}/gpt2.json [[{"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_positions": 1024}]])
expect("${SCRATCH}/gpt2.json" "none in any layer: this model has learned positions")
expect("${SCRATCH}/gpt2.json;${old}" "positions are encoded by learned positions in gpt2.json and by rotation in llama_3_8b.json")
# A file that cannot be read stops none of the others, and is reported.
expect("${SCRATCH}/no_such_file.json;${old}" "no_such_file.json\": cannot be read;== ${old}\n")
run(code text ${SCRATCH}/no_such_file.json ${old})
if(NOT code EQUAL 1)
  message(SEND_ERROR "a file that cannot be read is not an error: ${code}")
endif()
# Text of a file does not reach the terminal as commands.
file(WRITE ${SCRATCH}/escape.json [[{"model_type": "novel\u001b[31m", "head_dim": 8, "rope_theta": 10000}]])
expect("${SCRATCH}/escape.json;--layout;half_split" "novel?[31m (Hugging Face)")

# Lines keep to COLUMNS, or to the width of the terminal, except for words that are longer. Without either
# they stay whole.
function(longest_line text result)
  string(REGEX REPLACE "[^\n]*/[^\n]*|[^\n]*to rotate heads[^\n]*" "" text "${text}") # paths and calls
  string(REGEX REPLACE "[][\r;]" "x" text "${text}")
  string(REPLACE "\n" ";" lines "${text}")
  set(longest 0)
  foreach(line IN LISTS lines)
    string(LENGTH "${line}" length)
    if(length GREATER longest)
      set(longest ${length})
    endif()
  endforeach()
  set(${result} ${longest} PARENT_SCOPE)
endfunction()
function(expect_width text least most what)
  longest_line("${text}" longest)
  if(longest LESS least OR longest GREATER most)
    message(SEND_ERROR "${what}: the longest line has ${longest} columns, not ${least} to ${most}:\n${text}")
  endif()
endfunction()
set(yarn ${configs}/qwen2_5_7b_yarn.json)
run(code whole ${yarn})
expect_width("${whole}" 100 1000 "no terminal")
foreach(columns IN ITEMS 40 60 80)
  set(ENV{COLUMNS} ${columns})
  run(code text ${yarn})
  math(EXPR least "${columns} - 12")
  expect_width("${text}" ${least} ${columns} "COLUMNS=${columns}")
  # Only the line breaks differ.
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  string(REGEX REPLACE "[ \n]+" " " one_line "${whole}")
  if(NOT text STREQUAL one_line)
    message(SEND_ERROR "with COLUMNS=${columns} other words are printed:\n${text}")
  endif()
  run(code text --help)
  expect_width("${text}" 20 ${columns} "--help with COLUMNS=${columns}")
endforeach()
unset(ENV{COLUMNS})
expect_width("${help}" 70 80 "--help without a terminal")
find_program(script script)
if(script AND CMAKE_HOST_SYSTEM_NAME STREQUAL "Linux")
  execute_process(COMMAND ${script} -qec "stty cols 50 && '${PROGRAM}' '${yarn}'" /dev/null OUTPUT_VARIABLE text)
  expect_width("${text}" 40 50 "a terminal of 50 columns")
endif()

# Both backgrounds, a picture of every group of every file. The title of a panel names its file only if there
# are several.
foreach(ground IN ITEMS white "#16191d")
  set(option "")
  if(NOT ground STREQUAL "white")
    set(option --dark)
  endif()
  run(code text ${option} ${gemma} ${new} ${SCRATCH}/ground.svg)
  file(READ ${SCRATCH}/ground.svg picture)
  string(REGEX MATCHALL "wavelength .tokens." panels "${picture}")
  list(LENGTH panels count)
  if(NOT code EQUAL 0 OR NOT count EQUAL 3 OR NOT picture MATCHES "height='100%' fill='${ground}'"
      OR NOT picture MATCHES "llama_3_1_8b.json: llama: llama3, base 500000")
    message(SEND_ERROR "the plot on ${ground} has ${count} panels (${code}):\n${picture}")
  endif()
endforeach()
