# WebAssembly with the compiler's SIMD of 128 bits. Eigen has no packets for it: those of SSE that Emscripten emulates need
# x86 assembly.
include(${CMAKE_CURRENT_LIST_DIR}/wasm.cmake)
string(APPEND CMAKE_CXX_FLAGS_INIT " -msimd128")
