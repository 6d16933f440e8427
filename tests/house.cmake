# The rules of the house that a compiler does not see. Run:  cmake -P tests/house.cmake

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(complaints "")
function(complain text)
  set(complaints "${complaints}\n  ${text}" PARENT_SCOPE)
endfunction()

# A header includes only headers of the lines above its own.
set(levels
  "version"
  "config"
  "detail/message detail/packet detail/storage detail/wide_integer layout softmax"
  "detail/rotate_kernel detail/workspace frequencies parallel permute phase positions view"
  "detail/attention_kernel scaling table"
  "axes import rotate"
  "attention gradient kv_cache xpos"
  "multi_head_attention"
  "rope")
set(level 0)
foreach(line IN LISTS levels)
  string(REPLACE " " ";" names "${line}")
  foreach(name IN LISTS names)
    set(level_of_${name} ${level})
  endforeach()
  math(EXPR level "${level} + 1")
endforeach()

file(GLOB_RECURSE headers RELATIVE ${root}/include/rope ${root}/include/rope/*.hpp)
foreach(header IN LISTS headers)
  set(file ${root}/include/rope/${header})
  string(REGEX REPLACE "[.]hpp$" "" name ${header})

  file(READ ${file} text)
  string(REGEX REPLACE "[^\n]" "" newlines "${text}")
  string(LENGTH "${newlines}" lines)
  if(lines GREATER 300)
    complain("${header} has ${lines} lines; 300 is the limit")
  endif()

  if(text MATCHES "Eigen::internal|namespace Eigen" AND NOT name STREQUAL "detail/packet")
    complain("${header} uses ${CMAKE_MATCH_0}; only detail/packet.hpp may")
  endif()

  string(TOUPPER "ROPE_${name}_HPP" guard)
  string(REPLACE "/" "_" guard "${guard}")
  if(NOT text MATCHES "\n#ifndef ${guard}\n#define ${guard}\n")
    complain("${header} lacks the include guard ${guard}")
  endif()
  string(REPLACE "\n#ifndef ${guard}\n" "" text "${text}")
  if(text MATCHES "\n[ \t]*(#[ \t]*if[^\n]*)" AND NOT name MATCHES "^(config|detail/.*)$")
    complain("${header} has `${CMAKE_MATCH_1}`; conditions belong in config.hpp or detail/")
  endif()

  if(NOT DEFINED level_of_${name})
    complain("${header} has no level; give it one in tests/house.cmake")
    continue()
  endif()
  file(STRINGS ${file} includes REGEX "^#include <rope/")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include <rope/(.*)[.]hpp>.*" "\\1" included "${include}")
    if(NOT DEFINED level_of_${included} OR NOT level_of_${included} LESS level_of_${name})
      complain("${header} includes ${included}.hpp, which is not below it")
    endif()
  endforeach()

  if(NOT name MATCHES "^(detail/.*|rope|version)$")
    set(test tests/rope/${name}.test.cpp)
    if(NOT EXISTS ${root}/${test})
      complain("${header} has no ${test}")
    else()
      file(STRINGS ${root}/${test} includes REGEX "^#include ")
      list(POP_FRONT includes first)
      if(NOT first MATCHES "^#include <rope/${name}[.]hpp>")
        complain("${test} must include <rope/${header}> first")
      endif()
    endif()
  endif()
endforeach()

file(GLOB tests RELATIVE ${root}/tests/rope ${root}/tests/rope/*.test.cpp)
foreach(test IN LISTS tests)
  string(REGEX REPLACE "[.]test[.]cpp$" ".hpp" header ${test})
  if(NOT header IN_LIST headers)
    complain("tests/rope/${test} has no include/rope/${header}")
  endif()
endforeach()

if(complaints)
  message(FATAL_ERROR "${complaints}")
endif()
