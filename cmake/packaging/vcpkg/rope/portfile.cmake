# As an overlay, the port packages the checkout that contains it. A copy in a registry has no checkout, so it
# names the repository and the commit of the version.
set(checkout "${CMAKE_CURRENT_LIST_DIR}/../../../..")
if(EXISTS "${checkout}/include/rope/version.hpp")
  get_filename_component(SOURCE_PATH "${checkout}" ABSOLUTE)
else()
  vcpkg_from_git(OUT_SOURCE_PATH SOURCE_PATH
    URL https://rope.invalid/rope.git
    REF 0000000000000000000000000000000000000000)
endif()

set(VCPKG_BUILD_TYPE release) # only headers
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS -DROPE_BUILD_TESTS=OFF -DROPE_BUILD_EXAMPLES=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/rope)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/licenses")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
