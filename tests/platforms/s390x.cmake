# z/Architecture, big-endian. By g++, because clang multiplies two floats into a double with one instruction (mdeb), and two
# doubles into a long double (mxdb), which qemu 7.2 computes wrongly: 0.5f * 3f gave 9.2e-5.
set(CMAKE_SYSTEM_PROCESSOR s390x)
set(triple s390x-linux-gnu)
set(emulator qemu-s390x)
set(flags "")
include(${CMAKE_CURRENT_LIST_DIR}/linux.cmake)
find_program(ROPE_S390X_GXX NAMES ${triple}-g++ ${triple}-g++-12 ${triple}-g++-13 ${triple}-g++-14 REQUIRED)
set(CMAKE_CXX_COMPILER ${ROPE_S390X_GXX})
unset(CMAKE_CXX_COMPILER_TARGET)
