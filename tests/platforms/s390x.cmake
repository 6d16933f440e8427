# z/Architecture, big-endian.
set(CMAKE_SYSTEM_PROCESSOR s390x)
set(triple s390x-linux-gnu)
set(emulator qemu-s390x)
# qemu 7.2 multiplies two doubles into a wrong long double (mxdb, mxdbr).
set(flags -DROPE_TEST_DOUBLE_DOUBLE)
include(${CMAKE_CURRENT_LIST_DIR}/linux.cmake)
