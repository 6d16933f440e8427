# `cmake --workflow --preset reference`: the reference of every public header, one page for each room, in
# build/reference/html. A warning of Doxygen is an error.
find_package(Doxygen REQUIRED)
set(DOXYGEN_FILE_PATTERNS *.hpp)
set(DOXYGEN_EXCLUDE_PATTERNS */detail/* */base/simd/* */rotation/*_checks.hpp)
set(DOXYGEN_EXCLUDE_SYMBOLS rope::detail rope::detail::*)
set(DOXYGEN_INPUT_FILTER "${CMAKE_COMMAND} -P ${CMAKE_CURRENT_LIST_DIR}/reference_filter.cmake")
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/include)
set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/include)
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_HIDE_UNDOC_RELATIONS YES)
set(DOXYGEN_WARN_IF_UNDOCUMENTED YES)
set(DOXYGEN_WARN_IF_INCOMPLETE_DOC NO)  # a parameter whose name says all has no sentence
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_SOURCE_BROWSER NO)
set(DOXYGEN_VERBATIM_HEADERS NO)
set(DOXYGEN_QUIET YES)
doxygen_add_docs(reference ${PROJECT_SOURCE_DIR}/include/rope)
