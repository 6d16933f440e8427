# Linux on the processor that the including file names, run by qemu-user: `triple`, `emulator`, `flags`. clang compiles the tests in
# a third of the time of g++ and takes the libraries of the cross compiler. Except for ppc64le, tests/digests has programs by both compilers.
set(CMAKE_SYSTEM_NAME Linux)
find_program(ROPE_CLANGXX NAMES clang++ clang++-19 clang++-16 clang++-14 REQUIRED)
find_program(ROPE_QEMU NAMES ${emulator} ${emulator}-static REQUIRED)
set(CMAKE_CXX_COMPILER ${ROPE_CLANGXX})
set(CMAKE_CXX_COMPILER_TARGET ${triple})
set(CMAKE_CXX_FLAGS_INIT ${flags})
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR ${ROPE_QEMU})
