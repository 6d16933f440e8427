# A job one of whose ranks dies ends within a minute, as a failure, and with a message. On a busy machine Open MPI 4.1
# may not end the processes after MPI_Abort: then the job runs once more. Seen twice, once with an error of mpirun itself
# (ORTE_ERROR_LOG) in place of its report. Run:
#
#   cmake -P dies.cmake COMMAND [ARGUMENT...]

set(command "")
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(n RANGE 3 ${last})
  list(APPEND command "${CMAKE_ARGV${n}}")
endforeach()
foreach(attempt 1 2)
  execute_process(COMMAND ${command} TIMEOUT 60 RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT result MATCHES "timeout" OR NOT said MATCHES "MPI_ABORT was invoked|ORTE_ERROR_LOG")
    break()
  endif()
endforeach()
if(result MATCHES "timeout")
  message(FATAL_ERROR "the job hangs:\n${said}")
endif()
if(result EQUAL 0)
  message(FATAL_ERROR "the job ends as if nothing had happened:\n${said}")
endif()
if(NOT said MATCHES "[Rr]ank 1 |BAD TERMINATION")
  message(FATAL_ERROR "nobody says that a rank died:\n${said}")
endif()
