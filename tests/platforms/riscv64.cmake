# RISC-V of 64 bits, without vectors.
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(triple riscv64-linux-gnu)
set(emulator qemu-riscv64)
set(flags "")
include(${CMAKE_CURRENT_LIST_DIR}/linux.cmake)
