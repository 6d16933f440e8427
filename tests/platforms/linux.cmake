# Linux on the processor that the including file names, run by qemu-user: `triple`, `emulator`, `flags`.
set(CMAKE_SYSTEM_NAME Linux)
find_program(ROPE_CXX NAMES ${triple}-g++ ${triple}-g++-14 ${triple}-g++-13 ${triple}-g++-12 REQUIRED)
find_program(ROPE_QEMU NAMES ${emulator} ${emulator}-static REQUIRED)
set(CMAKE_CXX_COMPILER ${ROPE_CXX})
set(CMAKE_CXX_FLAGS_INIT ${flags})
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR ${ROPE_QEMU})
