# For one binary that runs on many processors: compiles sources once per instruction set, and chooses among
# them at run time.
#
#   rope_add_instruction_sets(TARGET SOURCE...)
#
# compiles every SOURCE once for each instruction set and adds the objects to TARGET. ROPE_INSTRUCTION_SET is
# a different name in each, for example for a namespace: baseline, avx2, avx512, avx512_bf16. Baseline has
# only the flags of TARGET. On processors other than x86-64, and with compilers other than GCC and Clang, it
# is the only one. Include directories, definitions, options and compile features come from TARGET and from
# what it links, and so do CXX_STANDARD, CXX_EXTENSIONS and the properties of visibility if they are set before the
# call. One call lists all sources. rope is linked.
#
# TARGET can include <rope_instruction_sets.hpp>, which this function writes:
#
#   ROPE_FOR_EACH_INSTRUCTION_SET(call)    call(name, whether this processor and system run it), the fastest one first
#
# Arguments between a SOURCE and the rest of the program must have built-in types, or classes without types of
# rope, because a view of rope is a different type in every set. Inline functions of other libraries,
# including the standard library, have the same name in all sets. A linker keeps the first one that it finds:
# in a program or a shared library the one of the baseline. In a static library it may be any, so TARGET must not
# be one. examples/one_binary is an example.
function(rope_add_instruction_sets target)
  get_target_property(type ${target} TYPE)
  if(NOT type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
    message(FATAL_ERROR "rope_add_instruction_sets: give a program, a shared library or a module, got ${target}, which is "
      "${type}: in it the linker may take functions of an instruction set that the processor lacks")
  endif()
  if(TARGET ${target}_baseline)
    message(FATAL_ERROR "rope_add_instruction_sets: give all sources of ${target} in one call, got a second one with ${ARGN}")
  endif()
  set(sets baseline)
  set(runs_baseline true)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8
     AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT MSVC)
    list(APPEND sets avx2 avx512 avx512_bf16)
    # Every processor with AVX2 has F16C, which not every compiler can detect.
    set(flags_avx2 -mavx2 -mfma -mf16c)
    set(flags_avx512 ${flags_avx2} -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl)
    set(flags_avx512_bf16 ${flags_avx512} -mavx512vnni -mavx512bf16)
    foreach(set IN ITEMS avx2 avx512 avx512_bf16)
      set(runs "")
      foreach(flag IN LISTS flags_${set})
        if(NOT flag STREQUAL "-mf16c")
          string(REPLACE "-m" "" feature ${flag})
          list(APPEND runs "__builtin_cpu_supports(\"${feature}\")")
        endif()
      endforeach()
      list(JOIN runs " && " runs_${set})
    endforeach()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # GCC bug 105593: its own intrinsics of AVX-512 leave lanes undefined
      list(APPEND flags_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
      list(APPEND flags_avx512_bf16 -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
  endif()

  set(calls "")
  foreach(set IN LISTS sets)
    add_library(${target}_${set} OBJECT ${ARGN})
    target_compile_options(${target}_${set} PRIVATE "$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>" ${flags_${set}})
    target_compile_features(${target}_${set} PRIVATE "$<TARGET_PROPERTY:${target},COMPILE_FEATURES>")
    foreach(property IN ITEMS CXX_STANDARD CXX_EXTENSIONS CXX_VISIBILITY_PRESET VISIBILITY_INLINES_HIDDEN)
      get_target_property(value ${target} ${property})
      if(NOT value MATCHES "-NOTFOUND$")
        set_target_properties(${target}_${set} PROPERTIES ${property} ${value})
      endif()
    endforeach()
    target_compile_definitions(${target}_${set} PRIVATE ROPE_INSTRUCTION_SET=${set}
      "$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>")
    target_include_directories(${target}_${set} PRIVATE "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
    # TARGET's libraries: headers that they generate are written first, and those of imported ones stay SYSTEM.
    target_link_libraries(${target}_${set} PRIVATE rope::rope "$<TARGET_PROPERTY:${target},LINK_LIBRARIES>")
    if(NOT type STREQUAL "EXECUTABLE")
      set_target_properties(${target}_${set} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${set}>) # the baseline first
    string(PREPEND calls " \\\n  call(${set}, (${runs_${set}}))")
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}_instruction_sets)
  file(CONFIGURE OUTPUT ${folder}/rope_instruction_sets.hpp @ONLY CONTENT
"// Written by CMake: the instruction sets that ${target} is compiled for, the fastest one first.
#ifndef ROPE_INSTRUCTION_SETS_HPP
#define ROPE_INSTRUCTION_SETS_HPP

#define ROPE_FOR_EACH_INSTRUCTION_SET(call)@calls@

#endif  // ROPE_INSTRUCTION_SETS_HPP
")
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
