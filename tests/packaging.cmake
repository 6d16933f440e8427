# Every statement of the version agrees with include/rope/version.hpp. Run:  cmake -P tests/packaging.cmake
#
# -DROOT=<dir> checks another copy of the repository.

cmake_minimum_required(VERSION 3.24)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH repository)
if(NOT DEFINED ROOT)
  set(ROOT ${repository})
endif()
set(complaints "")

file(STRINGS ${ROOT}/include/rope/version.hpp version REGEX "^#define ROPE_VERSION_STRING ")
string(REGEX REPLACE ".*\"(.+)\".*" "\\1" version "${version}")
string(REGEX REPLACE "[.][0-9]+$" "" minor "${version}")

# Each file, the text before and after the version in it, and which part of the version.
set(places
  "cmake/packaging/vcpkg/rope/vcpkg.json|  \"version-semver\": \"|\",|version"
  "cmake/packaging/conan/conanfile.py|    version = \"|\"|version"
  "cmake/packaging/bazel/rope.MODULE.bazel|    version = \"|\",|version"
  "CITATION.cff|\nversion: |\n|version"
  "CHANGELOG.md|\n## |,|version"
  "README.md|find_package[(]rope | REQUIRED[)]|minor"
  "tests/consume/find_package/CMakeLists.txt|find_package[(]rope | REQUIRED[)]|minor"
  "tests/consume/fetch_content/CMakeLists.txt|GIT_TAG v| FIND|version"
  "tests/consume/fetch_content/CMakeLists.txt|FIND_PACKAGE_ARGS |[)]|minor")
foreach(place IN LISTS places)
  string(REGEX MATCH "^([^|]+)[|]([^|]+)[|]([^|]*)[|](.+)$" place "${place}")
  set(file ${CMAKE_MATCH_1})
  set(before "${CMAKE_MATCH_2}")
  set(after "${CMAKE_MATCH_3}")
  set(wanted ${${CMAKE_MATCH_4}})
  file(READ ${ROOT}/${file} text)
  string(REGEX MATCH "${before}([0-9.]+)${after}" first "${text}")
  if(NOT CMAKE_MATCH_1 STREQUAL wanted)
    string(APPEND complaints "\n  ${file} must state ${wanted}, as include/rope/version.hpp does, not \"${CMAKE_MATCH_1}\"")
  endif()
endforeach()

# The date of a release is stated twice.
file(STRINGS ${ROOT}/CITATION.cff released REGEX "^date-released: ")
if(released MATCHES "([0-9]+-[0-9]+-[0-9]+)")
  set(date ${CMAKE_MATCH_1})
  file(STRINGS ${ROOT}/CHANGELOG.md headings REGEX "^## ")
  list(GET headings 0 heading)
  if(NOT heading MATCHES ", ${date}$")
    string(APPEND complaints "\n  CITATION.cff has the date ${date}, and CHANGELOG.md the heading \"${heading}\"")
  endif()
endif()

if(complaints)
  message(FATAL_ERROR "${complaints}")
endif()
