# ARM of 64 bits.
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(triple aarch64-linux-gnu)
set(emulator qemu-aarch64)
set(flags "")
include(${CMAKE_CURRENT_LIST_DIR}/linux.cmake)
