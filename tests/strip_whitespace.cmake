# One space for any white space, and none after an opening bracket, where a line may have been broken: what code is compared
# by, so that a page, a comment and a formatted program may break it where they like.
function(strip_whitespace text result)
  string(REGEX REPLACE "[ \t\n]+" " " text "${text}")
  string(REGEX REPLACE "([({]) " "\\1" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()
