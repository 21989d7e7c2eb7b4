# amem_precompile(TARGET HEADER…): large headers of others that most of the target's files include, compiled once; it makes
# a first build a good deal faster. amem_precompile(TARGET REUSE_FROM OTHER): those of a target with the same flags. A
# compiler cache does more for later builds and keeps no precompiled headers, so with one (CMAKE_CXX_COMPILER_LAUNCHER)
# nothing is precompiled. Packages are made without: they are to be the same bytes with a cache and without.
option(AMEM_PRECOMPILE "Precompile large headers where no compiler cache is used" ON)
function(amem_precompile target)
  if(NOT AMEM_PRECOMPILE OR CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  if(ARGV1 STREQUAL REUSE_FROM)
    target_precompile_headers(${target} REUSE_FROM ${ARGV2})
  else()
    list(TRANSFORM ARGN REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>" OUTPUT_VARIABLE headers)
    target_precompile_headers(${target} PRIVATE ${headers})
  endif()
endfunction()

# amem_optimise_little(TARGET): for what only reads a command line and prints. Its code is no slower to notice, and a third faster to compile.
function(amem_optimise_little target)
  if(NOT AMEM_SANITIZE)  # sanitizer builds have flags of their own
    target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  endif()
endfunction()

# amem_unity(TARGET [FILE…]): with AMEM_UNITY several files of the target are compiled as one, but for these, whose names collide
# or whose anonymous types would. It halves the time to build everything once, and takes longer after a change. For more files at a time
# the compiler would need more memory than the gigabyte that it needs now.
option(AMEM_UNITY "Compile several files of a library as one" OFF)
function(amem_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${AMEM_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
