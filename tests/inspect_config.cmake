# What rope_inspect_config advises can be done: it names options it has, and they help. Run:
#
#   cmake -DPROGRAM=build/examples/rope_inspect_config -DSCRATCH=build -P tests/inspect_config.cmake

cmake_minimum_required(VERSION 3.24)

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

# Every failure says what to do in terms of the options there are.
foreach(arguments IN ITEMS "${novel}" "${novel};${SCRATCH}/novel.svg;100" "--lay;half_split;${novel}" "--layout"
    "--layout;halves;${novel}" "${novel};${SCRATCH}/novel.svg;many" "a;b;c;d" "${SCRATCH}/no_such_file.json")
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

# And following it helps.
foreach(layout IN ITEMS interleaved half_split)
  run(code text --layout ${layout} ${novel})
  if(NOT code EQUAL 0 OR NOT text MATCHES "layout +${layout}\n")
    message(SEND_ERROR "rope_inspect_config --layout ${layout} exits with ${code}:\n${text}")
  endif()
endforeach()
