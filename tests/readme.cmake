# The pages say what is so: README.md and those it leads to. Run:  cmake -P tests/readme.cmake
#
# 1. Every C++ block that names an example is that example, byte for byte:
#
#   <!-- examples/NAME.cpp -->
#   ```cpp
#   ...
#   ```

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
include(${CMAKE_CURRENT_LIST_DIR}/squeeze.cmake)
file(GLOB pages RELATIVE ${root} ${root}/*.md ${root}/bench/*.md ${root}/cmake/packaging/*.md
  ${root}/examples/*.md ${root}/examples/*/*.md ${root}/include/rope/*.md ${root}/include/rope/*/*.md ${root}/tests/*.md)

set(all_blocks 0)
foreach(page IN LISTS pages)
  file(READ ${root}/${page} rest)
  string(REGEX MATCHALL "<!-- examples/" marks "${rest}")
  list(LENGTH marks marks)
  set(blocks 0)
  while(rest MATCHES "<!-- (examples/[^\n]*[.]cpp) -->\n+```cpp\n")
    set(name ${CMAKE_MATCH_1})
    string(FIND "${rest}" "${CMAKE_MATCH_0}" begin)
    string(LENGTH "${CMAKE_MATCH_0}" length)
    math(EXPR begin "${begin} + ${length}")
    string(SUBSTRING "${rest}" ${begin} -1 rest)
    string(FIND "${rest}" "```" end)
    string(SUBSTRING "${rest}" 0 ${end} code)

    file(READ ${root}/${name} example)
    if(NOT code STREQUAL example)
      message(SEND_ERROR "${page} shows a program that differs from ${name}")
    endif()
    math(EXPR blocks "${blocks} + 1")
  endwhile()
  if(NOT blocks EQUAL marks)
    message(SEND_ERROR "${page} names ${marks} examples, and ${blocks} of these names are followed by a ```cpp block")
  endif()
  math(EXPR all_blocks "${all_blocks} + ${blocks}")
endforeach()
if(all_blocks LESS 2)
  message(SEND_ERROR "the pages show ${all_blocks} programs; README.md has one and examples/README.md another")
endif()

# 2. Every piece of code in the second column of a table that names tests occurs in one of them, white space aside:
#
#   <!-- tests/laws/NAME.test.cpp tests/laws/OTHER.test.cpp -->
#   | theirs | here | difference |
#   |---|---|---|
#   | ... | `code` `more code` | ... |

set(lines 0)
set(tables 0)
foreach(page IN LISTS pages)
  file(READ ${root}/${page} rest)
  while(rest MATCHES "<!-- (tests/[^\n]*[.]cpp) -->\n")
    set(names ${CMAKE_MATCH_1})
    string(FIND "${rest}" "${CMAKE_MATCH_0}" begin)
    string(LENGTH "${CMAKE_MATCH_0}" length)
    math(EXPR begin "${begin} + ${length}")
    string(SUBSTRING "${rest}" ${begin} -1 rest)
    math(EXPR tables "${tables} + 1")

    set(tests "")
    string(REPLACE " " ";" files "${names}")
    foreach(file IN LISTS files)
      file(READ ${root}/${file} text)
      string(APPEND tests "${text}")
    endforeach()
    squeeze("${tests}" tests)

    # Rows are cut off the front one by one: as a list they would fall apart at the semicolons of the code.
    while(rest MATCHES "^[|]([^|\n]*)[|]([^\n]*)\n")
      set(cells "${CMAKE_MATCH_2}")
      string(LENGTH "${CMAKE_MATCH_0}" length)
      string(SUBSTRING "${rest}" ${length} -1 rest)
      string(FIND "${cells}" "|" end)
      string(SUBSTRING "${cells}" 0 ${end} cell)
      while(cell MATCHES "`([^`]*)`")
        set(code "${CMAKE_MATCH_1}")
        string(FIND "${cell}" "`${code}`" begin)
        string(LENGTH "`${code}`" length)
        math(EXPR begin "${begin} + ${length}")
        string(SUBSTRING "${cell}" ${begin} -1 cell)
        squeeze("${code}" code)
        string(FIND "${tests}" "${code}" found)
        if(found EQUAL -1)
          message(SEND_ERROR "${page} shows `${code}`, which ${names} does not run")
        endif()
        math(EXPR lines "${lines} + 1")
      endwhile()
    endwhile()
    if(NOT rest STREQUAL "" AND NOT rest MATCHES "^\n")
      message(SEND_ERROR "${page} has a table of ${names} that does not end with an empty line")
    endif()
  endwhile()
  string(REGEX MATCHALL "<!-- tests/" marks "${rest}")
  if(marks)
    message(SEND_ERROR "${page} has a table of tested code that is not read")
  endif()
endforeach()
if(tables LESS 11 OR lines LESS 130)
  message(SEND_ERROR "the pages have ${tables} tables of tested code with ${lines} pieces of code; are they found?")
endif()

# 3. Every other program of a page occurs in the test that it names, white space aside:
#
#   <!-- in tests/NAME.test.cpp -->
#   ```cpp
#   ...
#   ```

foreach(page IN LISTS pages)
  file(READ ${root}/${page} text)
  string(REGEX MATCHALL "```cpp" starts "${text}")
  list(LENGTH starts programs)
  string(REGEX MATCHALL "<!-- [^\n]*[.]cpp -->\n+```cpp" starts "${text}")
  list(LENGTH starts named)
  if(NOT programs EQUAL named)
    message(SEND_ERROR "${page} has ${programs} programs and names the file of ${named}")
  endif()
  while(text MATCHES "<!-- in (tests/[^\n ]*[.]cpp) -->\n```cpp\n")
    set(name ${CMAKE_MATCH_1})
    string(FIND "${text}" "${CMAKE_MATCH_0}" begin)
    string(LENGTH "${CMAKE_MATCH_0}" length)
    math(EXPR begin "${begin} + ${length}")
    string(SUBSTRING "${text}" ${begin} -1 text)
    string(FIND "${text}" "\n```" end)
    string(SUBSTRING "${text}" 0 ${end} code)
    file(READ ${root}/${name} test)
    squeeze("${code}" code)
    squeeze("${test}" test)
    string(FIND "${test}" "${code}" found)
    if(found EQUAL -1)
      message(SEND_ERROR "${page} shows a program that ${name} does not run")
    endif()
    math(EXPR lines "${lines} + 1")
  endwhile()
endforeach()

# 4. Every link to a file of the repository leads to one, and README.md is short.
foreach(page IN LISTS pages)
  cmake_path(GET page PARENT_PATH folder)
  file(READ ${root}/${page} text)
  string(REGEX REPLACE "```[^`]*```|`[^`\n]*`" "" text "${text}")
  string(REGEX MATCHALL "\\]\\([^)]*\\)" links "${text}")
  foreach(link IN LISTS links)
    string(REGEX REPLACE "^..([^)#]*).*" "\\1" link "${link}")
    if(NOT link MATCHES "^(http|$)" AND NOT EXISTS ${root}/${folder}/${link})
      message(SEND_ERROR "${page} links to ${link}, which is not there")
    endif()
  endforeach()
endforeach()
file(STRINGS ${root}/README.md lines)
list(LENGTH lines lines)
if(lines GREATER 150)
  message(SEND_ERROR "README.md has ${lines} lines; 150 is the limit. Put the rest on a page where the thing lives")
endif()
