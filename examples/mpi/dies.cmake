# A job one of whose ranks dies ends within two minutes, as a failure, and with a message. Run:
#
#   cmake -P dies.cmake COMMAND [ARGUMENT...]

set(command "")
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(n RANGE 3 ${last})
  list(APPEND command "${CMAKE_ARGV${n}}")
endforeach()
execute_process(COMMAND ${command} TIMEOUT 120 RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(result MATCHES "timeout")
  message(FATAL_ERROR "the job hangs:\n${said}")
endif()
if(result EQUAL 0)
  message(FATAL_ERROR "the job ends as if nothing had happened:\n${said}")
endif()
if(NOT said MATCHES "[Rr]ank 1 |BAD TERMINATION")
  message(FATAL_ERROR "nobody says that a rank died:\n${said}")
endif()
