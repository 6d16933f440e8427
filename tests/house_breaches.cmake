# tests/house.cmake and tests/class_comments.cmake find a breach of each of their rules: planted, one at a time, in a copy of
# the headers, tests and rules.
#
#   cmake -DSCRATCH=<dir> -P tests/house_breaches.cmake

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(copy ${SCRATCH}/copy)
file(REMOVE_RECURSE ${copy})
file(COPY ${root}/include DESTINATION ${copy})
file(COPY ${root}/tests DESTINATION ${copy} FILES_MATCHING PATTERN *.test.cpp
  PATTERN *.cmake)
set(rules house.cmake)

function(inspect)
  execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${copy} -P ${copy}/tests/${rules}
    RESULT_VARIABLE result ERROR_VARIABLE said)
  # CMake wraps what it prints where words end.
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  set(result ${result} PARENT_SCOPE)
  set(said "${said}" PARENT_SCOPE)
endfunction()

# Changes FILE, where the text FROM becomes TO, and expects ${rules} to say SAYS. An empty FROM writes the file anew.
function(breach file from to says)
  set(path ${copy}/${file})
  set(before "")
  set(existed FALSE)
  if(EXISTS ${path})
    set(existed TRUE)
    file(READ ${path} before)
  endif()
  if(from STREQUAL "")
    set(after "${to}")
  else()
    string(REPLACE "${from}" "${to}" after "${before}")
    if(after STREQUAL before)
      message(SEND_ERROR "${file} has no `${from}` to plant a breach in")
      return()
    endif()
  endif()
  file(WRITE ${path} "${after}")
  inspect()
  string(FIND "${said}" "${says}" found)
  if(result EQUAL 0 OR found EQUAL -1)
    message(SEND_ERROR "${rules} must say `${says}` of ${file}, got: ${said}")
  endif()
  if(existed)
    file(WRITE ${path} "${before}")
  else()
    file(REMOVE ${path})
  endif()
endfunction()

inspect()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the copy breaches a rule before anything is planted: ${said}")
endif()

set(line "#include <rope/config.hpp>\n")
string(REPEAT "\n" 300 long)
breach(include/rope/tables/phase.hpp "${line}" "${line}#include <rope/rotation/view.hpp>\n"
  "rotation/ is not below tables/")
breach(include/rope/models/axes.hpp "${line}" "${line}#include <rope/cache/kv_cache.hpp>\n" "cache/ is not below models/")
breach(include/rope/attention/merge.hpp "${line}" "${line}#include <rope/tables/detail/phase_rows.hpp>\n"
  "attention/merge.hpp includes tables/detail/phase_rows.hpp, the detail of another room")
breach(include/rope/attention/merge.hpp "${line}" "${line}#include <rope/rotation/detail/rotation_pass.hpp>\n"
  "attention/ enters other rooms by attention/detail/rotated_tokens.hpp alone")
breach(include/rope/attention/merge.hpp "${line}" "${line}#include <rope/rotation.hpp>\n" "includes the door rotation.hpp")
breach(include/rope/attention/merge.hpp "${line}" "${line}#include \"../cache/kv_cache.hpp\"\n" "a header is included by its place")
breach(include/rope/attention/merge.hpp "${line}" "${line}#include <Eigen/Dense>\n" "the library needs <Eigen/Core> alone")
breach(include/rope/rotation/view.hpp "${line}" "${line}#include <rope/rotation/rotate.hpp>\n"
  "includes itself by way of other headers")
breach(include/rope/rotation/layout.hpp "\n#endif" "${long}\n#endif" "300 is the limit")
string(REPEAT "/" 111 wide)
breach(include/rope/rotation/layout.hpp "\n#endif" "\n${wide}\n#endif" "more than 110 columns")
breach(include/rope/rotation/layout.hpp "namespace detail" "namespace Eigen {}\nnamespace detail" "only base/simd/ may")
breach(include/rope/rotation/layout.hpp "namespace detail" "inline Eigen::ArrayXd x;\nnamespace detail"
  "whose memory may be Eigen's")
breach(include/rope/rotation/layout.hpp "namespace detail" "inline Eigen::Array2Xd x;\nnamespace detail"
  "does not state its storage order")
breach(include/rope/rotation/layout.hpp "ROPE_ROTATION_LAYOUT_HPP" "ROPE_LAYOUT_HPP" "lacks the include guard")
breach(include/rope/rotation/layout.hpp "${line}" "#ifdef __AVX2__\n#endif\n${line}" "conditions belong in config.hpp")
breach(include/rope/layout.hpp "" "#ifndef ROPE_LAYOUT_HPP\n#define ROPE_LAYOUT_HPP\n" "layout.hpp is in no room")
breach(include/rope/cellar/wine.hpp "" "#ifndef ROPE_CELLAR_WINE_HPP\n" "cellar/wine.hpp is in no room")
breach(include/rope/cache/gradient.hpp "" "#ifndef ROPE_CACHE_GRADIENT_HPP\n" "is a backward pass")
breach(tests/house.cmake "set(forward_of_rotation/gradient rotation/rotate)"
  "set(forward_of_rotation/gradient cache/kv_cache)" "must stand beside its forward pass cache/kv_cache.hpp")
breach(tests/house.cmake "set(forward_of_attention/gradient attention/attention)"
  "set(forward_of_attention/gradient attention/pass)" "must stand beside its forward pass attention/pass.hpp")
breach(tests/house.cmake "set(doors\n" "set(doors one two three\n" "9 doors lead into a detail/ of another room; 8 is the limit")
breach(include/rope/tables/angle.hpp "" "#ifndef ROPE_TABLES_ANGLE_HPP\n" "has no tests/tables/angle.test.cpp")
breach(include/rope/tables/angle.hpp "" "#ifndef ROPE_TABLES_ANGLE_HPP\n" "tables.hpp does not include tables/angle.hpp")
breach(include/rope/rope.hpp "#include <rope/cache.hpp>\n" "" "rope.hpp does not include cache.hpp")
breach(include/rope/tables.hpp "#include <rope/tables/table.hpp>\n"
  "#include <rope/tables/table.hpp>\n#include <rope/tables/detail/phase_rows.hpp>\n" "a door shows no detail/")
breach(include/rope/tables.hpp "#include <rope/tables/table.hpp>\n"
  "#include <rope/tables/table.hpp>\n#include <rope/rotation/view.hpp>\n" "rotation/ is not below tables/")
breach(include/rope/rotation.hpp "#include <rope/rotation/view.hpp>\n"
  "#include <rope/rotation/view.hpp>\n#include <rope/rotation/checks.hpp>\n" "which is for the rooms")
breach(tests/tables/angles.test.cpp "" "#include <rope/tables/table.hpp>\n" "a law belongs in tests/tables/laws/")
breach(tests/tables/table.test.cpp "#include <rope/tables/table.hpp>" "#include <rope/rope.hpp>"
  "must include <rope/tables/table.hpp> first")
breach(tests/tables/phase.test.cpp "\"[tables][phase]\"" "\"[phase]\"" "whose first tag is not [tables]")
breach(tests/laws/threads.test.cpp ", \"[house]\")" ")" "whose first tag is not [house]")
breach(tests/tables/phase.test.cpp "" "// Catch::Contains\n" "names Catch::Contains: Catch2 2 and 3 have one name for it")
breach(tests/tables/phase.test.cpp "" "// == Approx(1)\n" "names Approx: Catch2 2 and 3 have one name for it")
breach(tests/cache/laws/decode.test.cpp "\"[cache]\"" "\"[laws]\"" "whose first tag is not [cache]")

set(rules class_comments.cmake)
inspect()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the copy breaches a rule of comments before anything is planted: ${said}")
endif()
breach(include/rope/cache/kv_cache.hpp "///     cache.append<Layout>(k, v, table);\n" "///     cache.append<Layout>(k, v);\n"
  "cache/kv_cache.hpp shows code that its room's laws/uses.test.cpp does not run: kv_cache<float>")
breach(tests/models/laws/uses.test.cpp "model_tables tables(model, 8192);" "model_tables tables(model, 4096);"
  "models/tables.hpp shows code")
breach(include/rope/tables/table.hpp "table, start);\n///\n" "table, start)\n///\n"
  "tables/table.hpp: the comment of frequency_table shows no use of it")
breach(include/rope/rotation/layout.hpp "struct half_split {" "struct half_turn {\n};\n\nstruct half_split {"
  "rotation/layout.hpp: the comment of half_split shows no use of it")
