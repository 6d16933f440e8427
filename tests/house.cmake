# The rules of the house that a compiler does not see. Run:  cmake -P tests/house.cmake

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(complaints "")
function(complain text)
  set(complaints "${complaints}\n  ${text}" PARENT_SCOPE)
endfunction()

# A public header reaches only headers of the lines above its own, also by way of detail/.
set(levels
  "version"
  "config"
  "cache_policy dropout layout owned_array parallel position_maps scratch"
  "frequencies grid_positions multimodal_positions phase positions token_order view"
  "permute scaling table temperature"
  "attention_options axes fourier given_table model_rope query_key_tables rotate scaling_variants xpos"
  "attention attention_merge gradient import_gguf import_hugging_face kv_cache model_axes model_tables polar ring_cache"
  "rotate_heads video_axes vision_axes"
  "attention_gradient attention_weights cached_attention describe multi_head_weights xpos_gradient"
  "multi_head_attention"
  "multi_head_attention_gradient"
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

  # See owned_array.hpp.
  string(REGEX REPLACE "//[^\n]*" "" code "${text}")
  if(code MATCHES "Eigen::(Array|Matrix|Vector|RowVector)X|[.]eval\\(\\)|Eigen::Ref<")
    complain("${header} uses ${CMAKE_MATCH_0}, whose memory may be Eigen's; take an owned_array, a map or a view")
  endif()
  # EIGEN_DEFAULT_TO_ROW_MAJOR decides the order of a matrix that does not state its own.
  if(code MATCHES "Eigen::(Array|Matrix)(XX|X[2-4]|[2-4]X)[a-z]+|Eigen::Dynamic, *Eigen::Dynamic *>")
    complain("${header} has `${CMAKE_MATCH_0}`, a matrix that does not state its storage order")
  endif()

  string(TOUPPER "ROPE_${name}_HPP" guard)
  string(REPLACE "/" "_" guard "${guard}")
  if(NOT text MATCHES "\n#ifndef ${guard}\n#define ${guard}\n")
    complain("${header} lacks the include guard ${guard}")
  endif()
  string(REPLACE "\n#ifndef ${guard}\n" "" text "${text}")
  if(NOT name MATCHES "^(config|detail/.*)$" AND text MATCHES "\n[ \t]*(#[ \t]*if[^\n]*)")
    complain("${header} has `${CMAKE_MATCH_1}`; conditions belong in config.hpp or detail/")
  endif()

  set(includes_of_${name} "")
  file(STRINGS ${file} includes REGEX "^#include <rope/")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include <rope/(.*)[.]hpp>.*" "\\1" included "${include}")
    list(APPEND includes_of_${name} ${included})
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

foreach(header IN LISTS headers)
  string(REGEX REPLACE "[.]hpp$" "" name ${header})
  set(reached "")
  set(next ${includes_of_${name}})
  while(next)
    list(POP_FRONT next included)
    if(NOT included IN_LIST reached)
      list(APPEND reached ${included})
      list(APPEND next ${includes_of_${included}})
    endif()
  endwhile()
  if(name IN_LIST reached)
    complain("${header} includes itself by way of other headers")
  endif()
  if(name MATCHES "^detail/")
    continue()
  endif()
  if(NOT DEFINED level_of_${name})
    complain("${header} has no level; give it one in tests/house.cmake")
    continue()
  endif()
  list(FILTER reached EXCLUDE REGEX "^detail/")
  foreach(included IN LISTS reached)
    if(NOT DEFINED level_of_${included} OR NOT level_of_${included} LESS level_of_${name})
      complain("${header} reaches ${included}.hpp, which is not below it")
    endif()
  endforeach()
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
