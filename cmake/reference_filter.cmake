# What Doxygen reads of a header: cmake/reference.cmake runs it as  cmake -P reference_filter.cmake HEADER
#
# The inline namespace, whose name is that of the compiler's flags, is left out; what follows a member on its line documents
# it; everything in a room is a member of the group with its name, which is one page; and what says nothing to a reader is left
# out: overloads that only tell what is wrong with a call (include/rope/rotation/checks.hpp), copies and moves that
# the compiler makes, and deduction guides.
set(file "${CMAKE_ARGV3}")
file(READ "${file}" text)
string(REPLACE "inline namespace ROPE_ABI {\n" "" text "${text}")
string(REPLACE "}  // namespace ROPE_ABI\n" "" text "${text}")
string(REGEX REPLACE "(\n[^/\n]*[;,}])  +// " "\\1  ///< " text "${text}") # not in a comment, where it is part of some code

string(REGEX REPLACE "\n *ROPE_DETAIL_ASK[A-Z_]*\\([^;]*;" "" text "${text}")
string(REGEX REPLACE "\n *template <[^{};]*requires[^{};]*{\n *static_assert\\([^{}]*\\);\n *}" "" text "${text}")
string(REGEX REPLACE "\n *[a-z_]+\\((const )?[a-z_]+&&?\\) = default;" "" text "${text}")
string(REGEX REPLACE "\n *[a-z_]+& operator=\\((const )?[a-z_]+&&?\\) = default;" "" text "${text}")
string(REGEX REPLACE "\n *friend (constexpr )?bool operator==[^;{]* = default;" "" text "${text}")
string(REGEX REPLACE "\ntemplate <[^;{}]*>\n?[^;{}]*[a-z_]+\\([^;{}]*\\)\n? *->[^;{}]*;" "" text "${text}")

set(title_of_base "Base: memory, messages, threads")
set(title_of_frequencies "Frequencies: how fast does a pair turn?")
set(title_of_positions "Positions: where is a token?")
set(title_of_tables "Tables: which cos and sin?")
set(title_of_rotation "Rotation: turn!")
set(title_of_attention "Attention: who looks at whom?")
set(title_of_cache "Cache: what was seen before?")
set(title_of_block "Block: a whole attention layer")
set(title_of_models "Models: which of all this is my model?")
set(room none)
if(file MATCHES "/rope/([a-z]+)(/[a-z0-9_/]+)?[.]hpp$")
  set(room ${CMAKE_MATCH_1})
endif()
if(DEFINED title_of_${room})
  string(REPLACE "\nnamespace rope {\n" "\nnamespace rope {\n/// \\addtogroup ${room} ${title_of_${room}}\n/// @{\n" text "${text}")
  string(REPLACE "\n}  // namespace rope\n" "\n/// @}\n}  // namespace rope\n" text "${text}")
endif()
if(file MATCHES "/rope[.]hpp$")
  string(APPEND text "\n/// \\mainpage\n/// Rotary position embeddings on Eigen, room by room:\n///\n")
  foreach(room IN ITEMS frequencies positions tables rotation attention cache block models base)
    string(APPEND text "/// - \\ref ${room} \"${title_of_${room}}\"\n")
  endforeach()
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
