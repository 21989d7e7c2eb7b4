# amem_entry_points(PYPROJECT OUT): sets OUT to the entry points of a pyproject.toml, as entry_points.txt has them.
function(amem_entry_points pyproject out)
  file(READ ${pyproject} text)
  # A table goes on until an empty line or the next table.
  string(REGEX MATCHALL "\\[project\\.entry-points\\.\"[^\"\n]+\"\\]\n([^[\n][^\n]*\n)+" found "${text}\n")
  if(NOT found)
    message(FATAL_ERROR "${pyproject}: there is no entry point to be seen")
  endif()
  string(REGEX REPLACE "project\\.entry-points\\.|\"|;" "" found "${found}")
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
