# POWER8, little-endian, with VSX.
set(CMAKE_SYSTEM_PROCESSOR ppc64le)
set(triple powerpc64le-linux-gnu)
set(emulator qemu-ppc64le)
set(flags "")
include(${CMAKE_CURRENT_LIST_DIR}/linux.cmake)
