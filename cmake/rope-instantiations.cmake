# For large code bases: `target_link_libraries(TARGET PRIVATE rope::instantiations)` compiles the usual kernels once in TARGET, not
# in each of its files (rope/base/instances.hpp). It adds a source file, which is compiled with the flags of TARGET, and a
# definition. Nothing is built or installed in binary form. Files of TARGET with other flags, such as files of
# rope_add_instruction_sets, do not link.
add_library(rope_instantiations INTERFACE)
add_library(rope::instantiations ALIAS rope_instantiations)
set_target_properties(rope_instantiations PROPERTIES EXPORT_NAME instantiations)
target_sources(rope_instantiations INTERFACE
  $<BUILD_INTERFACE:${CMAKE_CURRENT_LIST_DIR}/rope-instantiations.cpp>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_DATADIR}/cmake/rope/rope-instantiations.cpp>)
target_compile_definitions(rope_instantiations INTERFACE ROPE_EXTERN_TEMPLATES)
target_link_libraries(rope_instantiations INTERFACE rope)
