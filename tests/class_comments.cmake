# The comment of a class shows its use, in code that a program runs. Run:  cmake -P tests/class_comments.cmake
#
# Indented lines in a documentation comment are code if the last of them ends with a semicolon, and otherwise
# mathematics, a list or a result:
#
#   ///     kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
#   ///     cache.append<Layout>(k, v, table);
#
# 1. Every class and struct that users name has code in its comment.
# 2. All code in the comments of a module, also of its functions, is in tests/<module>/laws/uses.test.cpp. White space
#    does not matter.
#
# -DROOT=<dir> checks another copy of include/ and tests/.

cmake_minimum_required(VERSION 3.24)
include(${CMAKE_CURRENT_LIST_DIR}/strip_whitespace.cmake)
if(DEFINED ROOT)
  set(root ${ROOT})
else()
  cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
endif()
set(complaints "")

# Removes the beginning of `text` up to the end of the first `what`.
macro(cut_behind text what)
  string(FIND "${${text}}" "${what}" cut_begin)
  string(LENGTH "${what}" cut_length)
  math(EXPR cut_begin "${cut_begin} + ${cut_length}")
  string(SUBSTRING "${${text}}" ${cut_begin} -1 ${text})
endmacro()

# Counts the pieces of code in `rest`, and complains about those that `program` does not contain.
function(read_code where rest program)
  set(found 0)
  while(rest MATCHES "(\n *///     [^\n]*)+")
    set(code "${CMAKE_MATCH_0}")
    cut_behind(rest "${code}")
    if(code MATCHES ";( *//[^\n]*)?$")
      math(EXPR found "${found} + 1")
      string(REGEX REPLACE "\n *///     " "\n" code "${code}")
      strip_whitespace("${code}" code)
      string(STRIP "${code}" code)
      string(FIND "${program}" " ${code}" behind_space)
      string(FIND "${program}" "{${code}" behind_brace)
      if(behind_space EQUAL -1 AND behind_brace EQUAL -1)
        string(APPEND complaints "\n  ${where} shows code that its module's laws/uses.test.cpp does not run: ${code}")
      endif()
    endif()
  endwhile()
  set(found ${found} PARENT_SCOPE)
  set(complaints "${complaints}" PARENT_SCOPE)
endfunction()

file(GLOB headers RELATIVE ${root}/include/rope ${root}/include/rope/*/*.hpp)
set(classes 0)
set(pieces 0)
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH module)
  set(program "")
  if(EXISTS ${root}/tests/${module}/laws/uses.test.cpp)
    file(READ ${root}/tests/${module}/laws/uses.test.cpp program)
    strip_whitespace("${program}" program)
  endif()
  file(READ ${root}/include/rope/${header} text)
  string(REPLACE "namespace rope::inline ROPE_ABI::detail" "namespace detail" text "${text}")
  read_code(${header} "${text}" "${program}")
  math(EXPR pieces "${pieces} + ${found}")

  # Classes at the left margin, outside namespace detail. Their comments begin after an empty line.
  set(rest "${text}")
  set(text "")
  string(FIND "${rest}" "\nnamespace detail {\n" begin)
  while(NOT begin EQUAL -1)
    string(SUBSTRING "${rest}" 0 ${begin} before)
    string(APPEND text "${before}")
    cut_behind(rest "\n}  // namespace detail\n")
    string(FIND "${rest}" "\nnamespace detail {\n" begin)
  endwhile()
  string(APPEND text "${rest}")
  while(text MATCHES "\n(struct|class) ([a-z0-9_]+)[^;{]*{")
    set(head "${CMAKE_MATCH_0}")
    set(name ${CMAKE_MATCH_2})
    string(FIND "${text}" "${head}" end)
    string(SUBSTRING "${text}" 0 ${end} comment)
    cut_behind(text "${head}")
    string(PREPEND comment "\n\n")
    string(FIND "${comment}" "\n\n" begin REVERSE)
    string(SUBSTRING "${comment}" ${begin} -1 comment)
    set(known "${complaints}")
    read_code(${header} "${comment}" "${program}")
    set(complaints "${known}") # what the program lacks has been said above
    if(found EQUAL 0)
      string(APPEND complaints "\n  ${header}: the comment of ${name} shows no use of it")
    endif()
    math(EXPR classes "${classes} + 1")
  endwhile()
endforeach()
if(classes LESS 60 OR pieces LESS 90)
  string(APPEND complaints "\n  the headers have ${classes} classes and ${pieces} pieces of code; are they found?")
endif()
if(complaints)
  message(FATAL_ERROR "${complaints}")
endif()
message(STATUS "${classes} classes, ${pieces} pieces of code")
