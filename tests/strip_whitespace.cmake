# One space for any white space, and none after an opening bracket, because a line may be broken there. Code
# is compared in this form, so pages, comments and formatted programs may break lines differently.
function(strip_whitespace text result)
  string(REGEX REPLACE "[ \t\n]+" " " text "${text}")
  string(REGEX REPLACE "([({]) " "\\1" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()
