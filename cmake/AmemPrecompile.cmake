# amem_precompile(TARGET HEADER…): large headers of others that most of the target's files include, compiled once; it makes
# a first build a good deal faster. amem_precompile(TARGET REUSE_FROM OTHER): those of a target with the same flags. A
# compiler cache does more for later builds and keeps no precompiled headers, so with one (CMAKE_CXX_COMPILER_LAUNCHER)
# nothing is precompiled.
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
