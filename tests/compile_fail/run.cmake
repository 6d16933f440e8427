cmake_minimum_required(VERSION 3.24)
set(ENV{LC_ALL} C) # plain quotes in the messages

file(READ ${FILE} text)
if(NOT text MATCHES "// EXPECT: ([^\n]+)\n")
  message(FATAL_ERROR "${FILE} has no line `// EXPECT: <regular expression>`")
endif()
set(expected "${CMAKE_MATCH_1}")

set(compile ${COMPILER} -std=c++20 -fsyntax-only -include ${FIRST} -I ${INCLUDE_DIR})
foreach(dir IN LISTS EIGEN_INCLUDE_DIRS)
  list(APPEND compile -isystem ${dir})
endforeach()

execute_process(COMMAND ${compile} ${FILE} RESULT_VARIABLE failed ERROR_VARIABLE messages)
if(failed)
  message(FATAL_ERROR "${FILE} must compile without SHOULD_FAIL:\n${messages}")
endif()

execute_process(COMMAND ${compile} -DSHOULD_FAIL ${FILE} RESULT_VARIABLE failed ERROR_VARIABLE messages)
if(NOT failed)
  message(FATAL_ERROR "${FILE} must not compile with SHOULD_FAIL")
elseif(NOT messages MATCHES "${expected}")
  message(FATAL_ERROR "${FILE}: the compiler should say `${expected}` and says:\n${messages}")
endif()
