# Windows: GCC of MinGW-w64 with POSIX threads, run by wine. wine returns 0 if a thread crashes, so
# tests/CMakeLists.txt requires the last line of a program.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_CXX_FLAGS_INIT -Wa,-mbig-obj) # an object of templates has more sections than the usual format counts
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
find_program(ROPE_WINE NAMES wine64 wine PATHS /usr/lib/wine REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${CMAKE_COMMAND} -E env WINEDEBUG=-all ${ROPE_WINE})
