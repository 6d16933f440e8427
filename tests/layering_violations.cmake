# tests/layering.cmake and tests/class_comments.cmake find a violation of each of their rules, made one at a
# time in a copy of the headers, tests and rules.
#
#   cmake -DSCRATCH=<dir> -P tests/layering_violations.cmake

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(copy ${SCRATCH}/copy)
file(REMOVE_RECURSE ${copy})
file(COPY ${root}/include DESTINATION ${copy})
file(COPY ${root}/tests DESTINATION ${copy} FILES_MATCHING PATTERN *.test.cpp
  PATTERN *.cmake)
set(rules layering.cmake)

function(inspect)
  execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${copy} -P ${copy}/tests/${rules}
    RESULT_VARIABLE result ERROR_VARIABLE printed)
  # CMake wraps its output at the ends of words.
  string(REGEX REPLACE "[ \n]+" " " printed "${printed}")
  set(result ${result} PARENT_SCOPE)
  set(printed "${printed}" PARENT_SCOPE)
endfunction()

# Changes the text FROM of FILE to TO, and expects that ${rules} prints EXPECTED. With an empty FROM it writes the
# whole file.
function(violate file from to expected)
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
      message(SEND_ERROR "${file} has no `${from}` to violate a rule in")
      return()
    endif()
  endif()
  file(WRITE ${path} "${after}")
  inspect()
  string(FIND "${printed}" "${expected}" found)
  if(result EQUAL 0 OR found EQUAL -1)
    message(SEND_ERROR "${rules} must print `${expected}` of ${file}, got: ${printed}")
  endif()
  if(existed)
    file(WRITE ${path} "${before}")
  else()
    file(REMOVE ${path})
  endif()
endfunction()

inspect()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the copy violates a rule before anything is changed: ${printed}")
endif()

set(line "#include <rope/config.hpp>\n")
string(REPEAT "\n" 450 long)
violate(include/rope/tables/phase.hpp "${line}" "${line}#include <rope/rotation/view.hpp>\n"
  "rotation/ is not below tables/")
violate(include/rope/models/tables.hpp "${line}" "${line}#include <rope/cache/kv_cache.hpp>\n" "cache/ is not below models/")
violate(include/rope/attention/merge.hpp "${line}" "${line}#include <rope/tables/detail/table_arguments.hpp>\n"
  "attention/merge.hpp includes tables/detail/table_arguments.hpp, the detail of another module")
violate(include/rope/attention/merge.hpp "${line}" "${line}#include <rope/rotation/detail/rotation_plan.hpp>\n"
  "attention/ includes details of other modules in attention/detail/attention_call.hpp alone")
violate(include/rope/attention/merge.hpp "${line}" "${line}#include <rope/rotation.hpp>\n" "includes the public header rotation.hpp")
violate(include/rope/attention/merge.hpp "${line}" "${line}#include \"../cache/kv_cache.hpp\"\n" "a header is included by its place")
violate(include/rope/attention/merge.hpp "${line}" "${line}#include <Eigen/Dense>\n" "the library needs <Eigen/Core> alone")
violate(include/rope/rotation/view.hpp "${line}" "${line}#include <rope/rotation/rotate.hpp>\n"
  "includes itself by way of other headers")
violate(include/rope/rotation/layout.hpp "\n#endif" "${long}\n#endif" "450 is the limit")
string(REPEAT "/" 111 wide)
violate(include/rope/rotation/layout.hpp "\n#endif" "\n${wide}\n#endif" "more than 110 columns")
violate(include/rope/rotation/layout.hpp "namespace detail" "namespace Eigen {}\nnamespace detail" "only base/simd/ may")
violate(include/rope/rotation/layout.hpp "namespace detail" "inline Eigen::ArrayXd x;\nnamespace detail"
  "whose memory may be Eigen's")
violate(include/rope/rotation/layout.hpp "namespace detail" "inline Eigen::Array2Xd x;\nnamespace detail"
  "does not state its storage order")
violate(include/rope/rotation/layout.hpp "ROPE_ROTATION_LAYOUT_HPP" "ROPE_LAYOUT_HPP" "lacks the include guard")
violate(include/rope/rotation/layout.hpp "${line}" "#ifdef __AVX2__\n#endif\n${line}" "conditions belong in config.hpp")
violate(include/rope/layout.hpp "" "#ifndef ROPE_LAYOUT_HPP\n#define ROPE_LAYOUT_HPP\n" "layout.hpp is in no module")
violate(include/rope/cellar/wine.hpp "" "#ifndef ROPE_CELLAR_WINE_HPP\n" "cellar/wine.hpp is in no module")
violate(include/rope/cache/gradient.hpp "" "#ifndef ROPE_CACHE_GRADIENT_HPP\n" "is a backward pass")
violate(tests/layering.cmake "set(forward_of_rotation/gradient rotation/rotate)"
  "set(forward_of_rotation/gradient cache/kv_cache)" "must be in the folder of its forward pass cache/kv_cache.hpp")
violate(tests/layering.cmake "set(forward_of_attention/gradient attention/attention)"
  "set(forward_of_attention/gradient attention/pass)" "must be in the folder of its forward pass attention/pass.hpp")
violate(tests/layering.cmake "set(shared_details\n" "set(shared_details one two three\n"
  "9 headers in a detail/ are shared with other modules; 8 is the limit")
violate(include/rope/tables/angle.hpp "" "#ifndef ROPE_TABLES_ANGLE_HPP\n" "has no tests/tables/angle.test.cpp")
violate(include/rope/tables/angle.hpp "" "#ifndef ROPE_TABLES_ANGLE_HPP\n" "tables.hpp does not include tables/angle.hpp")
violate(include/rope/rope.hpp "#include <rope/cache.hpp>\n" "" "rope.hpp does not include cache.hpp")
violate(include/rope/rope.hpp "#include <rope/rotation_extras.hpp>\n" "" "rope.hpp does not include rotation_extras.hpp")
violate(include/rope/rope.hpp "#include <rope/cache.hpp>\n" "#include <rope/cache.hpp>\n#include <rope/models.hpp>\n"
  "rope.hpp includes models.hpp, which programs include by themselves")
violate(include/rope/rotation_extras.hpp "#include <rope/rotation/pope.hpp>\n" "" "rotation.hpp does not include rotation/pope.hpp")
violate(include/rope/tables.hpp "#include <rope/tables/table.hpp>\n"
  "#include <rope/tables/table.hpp>\n#include <rope/tables/detail/table_rows.hpp>\n" "a public header shows no detail/")
violate(include/rope/tables.hpp "#include <rope/tables/table.hpp>\n"
  "#include <rope/tables/table.hpp>\n#include <rope/rotation/view.hpp>\n" "rotation/ is not below tables/")
violate(include/rope/rotation.hpp "#include <rope/rotation/view.hpp>\n"
  "#include <rope/rotation/view.hpp>\n#include <rope/rotation/checks.hpp>\n" "which is for the modules")
violate(tests/tables/angles.test.cpp "" "#include <rope/tables/table.hpp>\n" "a law belongs in tests/tables/laws/")
violate(tests/tables/table.test.cpp "#include <rope/tables/table.hpp>" "#include <rope/rope.hpp>"
  "must include <rope/tables/table.hpp> first")
violate(tests/tables/phase.test.cpp "\"[tables][phase]\"" "\"[phase]\"" "whose first tag is not [tables]")
violate(tests/laws/pools.test.cpp ", \"[library]\")" ")" "whose first tag is not [library]")
violate(tests/tables/phase.test.cpp "" "// Catch::Contains\n" "names Catch::Contains: Catch2 2 and 3 have one name for it")
violate(tests/tables/phase.test.cpp "" "// == Approx(1)\n" "names Approx: Catch2 2 and 3 have one name for it")
violate(tests/cache/laws/chunkings.test.cpp "\"[cache]\"" "\"[laws]\"" "whose first tag is not [cache]")

set(rules class_comments.cmake)
inspect()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the copy violates a rule of comments before anything is changed: ${printed}")
endif()
violate(include/rope/cache/kv_cache.hpp "///     cache.append<Layout>(k, v, table);\n" "///     cache.append<Layout>(k, v);\n"
  "cache/kv_cache.hpp shows code that its module's laws/uses.test.cpp does not run: kv_cache<float>")
violate(tests/models/laws/uses.test.cpp "model_tables tables(model, 8192);" "model_tables tables(model, 4096);"
  "models/tables.hpp shows code")
violate(include/rope/tables/table.hpp "table, start);\n///\n" "table, start)\n///\n"
  "tables/table.hpp: the comment of frequency_table shows no use of it")
violate(include/rope/rotation/layout.hpp "struct half_split {" "struct half_turn {\n};\n\nstruct half_split {"
  "rotation/layout.hpp: the comment of half_split shows no use of it")
