# Compiles FILE. With CASE, the compiler must stop with the message that the file expects of this mistake.
cmake_minimum_required(VERSION 3.24)
set(ENV{LC_ALL} C) # plain quotes in the messages

set(compile ${COMPILER} -std=c++20 -fsyntax-only -include ${FIRST} -I ${INCLUDE_DIR})
foreach(dir IN LISTS EIGEN_INCLUDE_DIRS)
  list(APPEND compile -isystem ${dir})
endforeach()

if(NOT CASE)
  execute_process(COMMAND ${compile} ${FILE} RESULT_VARIABLE failed ERROR_VARIABLE messages)
  if(failed)
    message(FATAL_ERROR "${FILE} must compile without a mistake:\n${messages}")
  endif()
  return()
endif()

file(READ ${FILE} text)
if(NOT text MATCHES "#ifdef ${CASE}\n *// EXPECT: ([^\n]+)\n")
  message(FATAL_ERROR "${FILE}: after `#ifdef ${CASE}` comes a line `// EXPECT: <regular expression>`")
endif()
set(expected "${CMAKE_MATCH_1}")

execute_process(COMMAND ${compile} -D${CASE} ${FILE} RESULT_VARIABLE failed ERROR_VARIABLE messages)
if(NOT failed)
  message(FATAL_ERROR "${FILE} must not compile with -D${CASE}")
elseif(NOT messages MATCHES "${expected}")
  message(FATAL_ERROR "${FILE}, ${CASE}: the compiler should say `${expected}` and says:\n${messages}")
endif()
