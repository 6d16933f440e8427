# Eigen from a subdirectory is in no export set. install(EXPORT) would then stop the whole configuration.
get_target_property(rope_eigen_is_imported Eigen3::Eigen IMPORTED)
if(NOT rope_eigen_is_imported)
  message(STATUS "rope is not installed: Eigen3::Eigen is built here and not a package")
  return()
endif()

include(CMakePackageConfigHelpers)
set(rope_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/rope)
set(rope_pc_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)

install(TARGETS rope rope_instantiations EXPORT rope-targets FILE_SET HEADERS)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/rope)
install(EXPORT rope-targets NAMESPACE rope:: DESTINATION ${rope_package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rope-config.cmake.in ${PROJECT_BINARY_DIR}/rope-config.cmake
  INSTALL_DESTINATION ${rope_package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may change names.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rope-config-version.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/rope-config.cmake ${PROJECT_BINARY_DIR}/rope-config-version.cmake
  ${CMAKE_CURRENT_LIST_DIR}/rope-instruction-sets.cmake ${CMAKE_CURRENT_LIST_DIR}/rope-instantiations.cpp DESTINATION ${rope_package_dir})

# Relative to the file itself, so that the installed tree can move.
file(RELATIVE_PATH rope_pc_to_include ${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/rope.pc.in ${PROJECT_BINARY_DIR}/rope.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rope.pc DESTINATION ${rope_pc_dir})

# Printers for gdb, and for Visual Studio with the inline namespaces of MSVC.
set(rope_debug_dir ${CMAKE_INSTALL_DATADIR}/rope/debug)
execute_process(COMMAND ${CMAKE_COMMAND} -DFROM=${CMAKE_CURRENT_LIST_DIR}/debug/rope.natvis
  -DTO=${PROJECT_BINARY_DIR}/rope.natvis -P ${CMAKE_CURRENT_LIST_DIR}/debug/natvis.cmake COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/debug/rope_gdb.py ${PROJECT_BINARY_DIR}/rope.natvis DESTINATION ${rope_debug_dir})

# `cpack -G DEB` makes a package of the headers for Debian and Ubuntu.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_NAME librope-dev)
  set(CPACK_PACKAGE_CONTACT "rope <rope@rope.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libeigen3-dev (>= 3.4)")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  include(CPack)
endif()
