# Prepares a header or a page of the guide for Doxygen. cmake/reference.cmake runs it as
#
#   cmake -P reference_filter.cmake FILE
#
# On pages, links between pages work, figures have the light form, and links to other files of the repository
# become plain text.
#
# In headers, the filter removes the inline namespace, whose name depends on the compiler's flags. The text
# after a member on its line becomes its documentation. Everything in a module becomes a member of the group
# with its name, which is one page. It also removes code that does not help a reader: overloads that only
# report a wrong call (include/rope/rotation/checks.hpp), copies and moves that the compiler makes, and
# deduction guides.
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
  string(REGEX REPLACE "(\n[^/\n]*[;,}])  +// " "\\1  ///< " text "${text}") # not in a comment with code

  string(REGEX REPLACE "\n *ROPE_DETAIL_ASK[A-Z_]*\\([^;]*;" "" text "${text}")
  # An overload without a comment follows the function that has one.
  string(REGEX REPLACE "([;}]\n)( *)(template <|[a-z_]+\\([^\n]*ROPE_DETAIL_LIFETIMEBOUND)" "\\1\\2/// \\\\overload\n\\2\\3" text "${text}")
  # It would be taken for the name of its parameter.
  string(REGEX REPLACE " ROPE_DETAIL_LIFETIMEBOUND([,)])" "\\1" text "${text}")
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
