# Compiles FILE with FLAGS and the headers of INCLUDE_DIR as a vendored copy, and requires that the compiler
# prints nothing. With EXPECT it must stop instead, with a message that matches, in at most LINES lines.
cmake_minimum_required(VERSION 3.24)
set(ENV{LC_ALL} C) # plain quotes in the messages

set(compile ${COMPILER} ${FLAGS} -I ${INCLUDE_DIR})
foreach(dir IN LISTS EIGEN_INCLUDE_DIRS)
  list(APPEND compile -isystem ${dir})
endforeach()
execute_process(COMMAND ${compile} -fsyntax-only ${FILE} RESULT_VARIABLE failed ERROR_VARIABLE messages)

if(NOT DEFINED EXPECT)
  if(failed OR NOT messages STREQUAL "")
    message(FATAL_ERROR "${FILE} must compile without a word:\n${messages}")
  endif()
  return()
endif()
string(REGEX REPLACE "[^\n]" "" newlines "${messages}")
string(LENGTH "${newlines}" lines)
if(NOT failed)
  message(FATAL_ERROR "${FILE} must not compile with ${FLAGS}")
elseif(NOT messages MATCHES "${EXPECT}")
  message(FATAL_ERROR "the compiler should say `${EXPECT}` and says:\n${messages}")
elseif(lines GREATER LINES)
  message(FATAL_ERROR "the compiler should say so in ${LINES} lines and takes ${lines}:\n${messages}")
endif()
