# What Doxygen reads of a header or of a page of the guide: cmake/reference.cmake runs it as
#
#   cmake -P reference_filter.cmake FILE
#
# Pages link to each other, figures have the light form, and links to other files of the repository are plain text.
#
# Of headers:
# The inline namespace, whose name is that of the compiler's flags, is left out; what follows a member on its line documents
# it; everything in a module is a member of the group with its name, which is one page; and what says nothing to a reader is left
# out: overloads that only tell what is wrong with a call (include/rope/rotation/checks.hpp), copies and moves that
# the compiler makes, and deduction guides.
set(file "${CMAKE_ARGV3}")
file(READ "${file}" text)
if(file MATCHES "/([a-z_]+)[.]md$")
  string(REGEX REPLACE "^# ([^\n]*)" "# \\1 {#guide_${CMAKE_MATCH_1}}" text "${text}")
  string(REGEX REPLACE "<!-- [^\n]* -->\n" "" text "${text}")
  string(REGEX REPLACE "<picture>[^\n]* alt=\"([^\"]*)\" src=\"../figures/([^\"]*)\"></picture>" "![\\1](\\2)" text "${text}")
  string(REGEX REPLACE "\\]\\(([a-z_]+)[.]md(#[a-z0-9-]*)?\\)" "](@ref guide_\\1)" text "${text}")
  string(REGEX REPLACE "\\[([^]]*)\\]\\(([.][^)]*|[a-z_]+[.]cpp)\\)" "\\1" text "${text}")
else()
  string(REPLACE "rope::inline ROPE_ABI" "rope" text "${text}")
  string(REGEX REPLACE "(\n[^/\n]*[;,}])  +// " "\\1  ///< " text "${text}") # not in a comment, where it is part of some code

  string(REGEX REPLACE "\n *ROPE_DETAIL_ASK[A-Z_]*\\([^;]*;" "" text "${text}")
  # An overload that has no comment of its own follows the function that has it.
  string(REGEX REPLACE "([;}]\n)( *)(template <|[a-z_]+\\([^\n]*ROPE_DETAIL_LIFETIMEBOUND)" "\\1\\2/// \\\\overload\n\\2\\3" text "${text}")
  string(REGEX REPLACE "\n *template <[^{};]*requires[^{};]*{\n *static_assert\\([^{}]*\\);\n *}" "" text "${text}")
  string(REGEX REPLACE "\n *[a-z_]+\\((const )?[a-z_]+&&?\\) = default;" "" text "${text}")
  string(REGEX REPLACE "\n *[a-z_]+& operator=\\((const )?[a-z_]+&&?\\) = default;" "" text "${text}")
  string(REGEX REPLACE "\n *friend (constexpr )?bool operator==[^;{]* = default;" "" text "${text}")
  string(REGEX REPLACE "\ntemplate <[^;{}]*>\n?[^;{}]*[a-z_]+\\([^;{}]*\\)\n? *->[^;{}]*;" "" text "${text}")

  set(title_of_base "Base: memory, messages, threads")
  set(title_of_frequencies "Frequencies and context extension")
  set(title_of_positions "Positions")
  set(title_of_tables "Tables of cos and sin")
  set(title_of_rotation "Rotation")
  set(title_of_attention "Attention")
  set(title_of_cache "KV cache")
  set(title_of_block "Attention layer")
  set(title_of_models "Importing models")
  set(module none)
  if(file MATCHES "/rope/([a-z]+)(/[a-z0-9_/]+)?[.]hpp$")
    set(module ${CMAKE_MATCH_1})
  endif()
  if(DEFINED title_of_${module})
    string(REPLACE "\nnamespace rope {\n" "\nnamespace rope {\n/// \\addtogroup ${module} ${title_of_${module}}\n/// @{\n" text "${text}")
    string(REPLACE "\n}  // namespace rope\n" "\n/// @}\n}  // namespace rope\n" text "${text}")
  endif()
  if(file MATCHES "/rope[.]hpp$")
    string(APPEND text "\n/// \\mainpage\n/// Rotary position embeddings on Eigen. The guide:\n///\n")
    foreach(page IN ITEMS eigen rope_in_pictures which_schedule port_a_model serve train from_other_code faq)
      string(APPEND text "/// - \\ref guide_${page}\n")
    endforeach()
    string(APPEND text "///\n/// Every call, module by module:\n///\n")
    foreach(module IN ITEMS frequencies positions tables rotation attention cache block models base)
      string(APPEND text "/// - \\ref ${module} \"${title_of_${module}}\"\n")
    endforeach()
  endif()
endif()

# message() would print it as an error.
string(MD5 name "${file}")
set(copy "$ENV{TMPDIR}/rope_reference_${name}.hpp")
if("$ENV{TMPDIR}" STREQUAL "")
  set(copy "/tmp/rope_reference_${name}.hpp")
endif()
file(WRITE "${copy}" "${text}")
execute_process(COMMAND "${CMAKE_COMMAND}" -E cat "${copy}")
file(REMOVE "${copy}")
