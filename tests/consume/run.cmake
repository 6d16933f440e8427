# Configures, builds and runs one consumer, and checks that the library did not change its settings.
cmake_minimum_required(VERSION 3.24)

# Settings of the user's environment must not affect the test.
foreach(name CXXFLAGS CPPFLAGS LDFLAGS CMAKE_COLOR_DIAGNOSTICS)
  unset(ENV{${name}})
endforeach()

file(REMOVE_RECURSE ${BINARY})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DEigen3_DIR=${Eigen3_DIR} ${ARGUMENTS}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${BINARY}/app COMMAND_ERROR_IS_FATAL ANY)

file(STRINGS ${BINARY}/CMakeCache.txt enabled REGEX "^ROPE_[A-Z_]+:BOOL=ON$")
if(enabled)
  message(FATAL_ERROR "options of rope are on in a project that only uses it: ${enabled}")
endif()

if(SOURCE MATCHES "/instruction_sets$") # asks for flags, and for a file several times
  file(READ ${BINARY}/compile_commands.json commands)
  string(JSON count LENGTH "${commands}")
  string(REGEX MATCHALL "-fvisibility=hidden" hidden "${commands}")
  list(LENGTH hidden hidden)
  if(NOT hidden EQUAL count)
    message(FATAL_ERROR "${hidden} of ${count} files are compiled with the visibility that the program asks for")
  endif()
  return()
endif()
if(SOURCE MATCHES "/instantiations$")
  # The bits are those of a program that compiles all kernels itself. Without the definitions the program does
  # not link.
  foreach(program IN ITEMS app plain)
    execute_process(COMMAND ${BINARY}/${program} OUTPUT_VARIABLE bits_of_${program} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  if(NOT bits_of_app OR NOT bits_of_app STREQUAL bits_of_plain)
    message(FATAL_ERROR "instantiated kernels give\n${bits_of_app}and kernels compiled where they are called\n${bits_of_plain}")
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} --target lacking RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    message(FATAL_ERROR "a program without ROPE_INSTANTIATE links, so it compiled the kernels itself")
  endif()
  return()
endif()
file(READ ${BINARY}/compile_commands.json commands)
string(JSON count LENGTH "${commands}")
if(NOT count EQUAL 1)
  message(FATAL_ERROR "one source file was to be compiled, not ${count}")
endif()
string(JSON command GET "${commands}" 0 command)
if(command MATCHES " (-[WOmf][^ ]*)")
  message(FATAL_ERROR "the flag ${CMAKE_MATCH_1} reached a project that did not ask for it: ${command}")
endif()
