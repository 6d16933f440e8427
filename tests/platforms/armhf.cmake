# ARMv7 with NEON and fused products.
set(CMAKE_SYSTEM_PROCESSOR armv7l)
set(triple arm-linux-gnueabihf)
set(emulator qemu-arm)
set(flags -mfpu=neon-vfpv4)
include(${CMAKE_CURRENT_LIST_DIR}/linux.cmake)
