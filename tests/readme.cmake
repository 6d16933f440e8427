# Every C++ block of the README that names an example is that example, byte for byte:
#
#   <!-- examples/NAME.cpp -->
#   ```cpp
#   ...
#   ```

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
file(READ ${root}/README.md rest)
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
    message(SEND_ERROR "README.md shows a program that differs from ${name}")
  endif()
  math(EXPR blocks "${blocks} + 1")
endwhile()

if(marks EQUAL 0 OR NOT blocks EQUAL marks)
  message(SEND_ERROR "README.md names ${marks} examples, and ${blocks} of these names are followed by a ```cpp block")
endif()
