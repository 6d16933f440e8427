# WebAssembly without SIMD and without threads, by Emscripten, run by node.
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH) # the packages of headers are those of this system
find_path(ROPE_EMSCRIPTEN cmake/Modules/Platform/Emscripten.cmake PATHS /usr/share/emscripten $ENV{EMSDK}/upstream/emscripten
  REQUIRED NO_CMAKE_FIND_ROOT_PATH)
find_program(ROPE_NODE node REQUIRED NO_CMAKE_FIND_ROOT_PATH)
include(${ROPE_EMSCRIPTEN}/cmake/Modules/Platform/Emscripten.cmake)
# Before 3.1.50 its loader takes fetch() for that of a browser, and the node of today has one.
set(CMAKE_CROSSCOMPILING_EMULATOR ${ROPE_NODE} --no-experimental-fetch)
string(APPEND CMAKE_CXX_FLAGS_INIT " -fexceptions -include ${CMAKE_CURRENT_LIST_DIR}/std_bit_cast.hpp")
string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -fexceptions -sALLOW_MEMORY_GROWTH -sTOTAL_STACK=8MB -sEXIT_RUNTIME -sNODERAWFS")
