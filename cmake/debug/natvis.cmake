# rope.natvis with the inline namespaces of MSVC in its names of types, which allow a wildcard for template arguments only:
#
#   cmake -DFROM=cmake/debug/rope.natvis -DTO=<file> -P cmake/debug/natvis.cmake
set(namespaces "")
foreach(instructions IN ITEMS baseline_nofma_nof16c avx_nofma_nof16c avx2_fma_f16c avx512bw_fma_f16c baseline_fma_nof16c) # the last: arm64
  foreach(math IN ITEMS ieee fast)
    list(APPEND namespaces v0_${instructions}_${math}_throws_index)
  endforeach()
endforeach()
list(POP_FRONT namespaces first)
file(READ ${FROM} natvis)
string(REPLACE ";" "@semicolon@" natvis "${natvis}") # it would part a list
string(REGEX MATCHALL "<Type Name=\"rope::[^\"]*\">" types "${natvis}")
foreach(type IN LISTS types)
  string(REGEX REPLACE ".*\"rope::(.*)\">" "\\1" name "${type}")
  set(named "<Type Name=\"rope::${first}::${name}\">")
  foreach(namespace IN LISTS namespaces)
    string(APPEND named "\n    <AlternativeType Name=\"rope::${namespace}::${name}\" />")
  endforeach()
  string(REPLACE "${type}" "${named}" natvis "${natvis}")
endforeach()
string(REPLACE "@semicolon@" ";" natvis "${natvis}")
file(WRITE ${TO} "${natvis}")
