# amem_warnings: what every target of ours is compiled with. Sanitizers, when asked for, cover the whole build.
add_library(amem_warnings INTERFACE)
# Warnings for C++ only must not reach nanopb's generated C.
target_compile_options(amem_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual;-Wconversion;-Wsign-conversion>"
  "$<$<BOOL:${AMEM_WERROR}>:-Werror>")

# GCC 12 and 13 warn of std::string's own code, wrongly, when they have inlined it just so (GCC bugs 105329, 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(amem_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread>")
endif()

# GCC spends an eighth of its time on looking for memory that it could free. Below 512 MiB it need not.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()

if(AMEM_SANITIZE)
  add_compile_options(-fsanitize=${AMEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # A null pointer faults, which AddressSanitizer reports as well, and x86-64 forgives what is not aligned; with vptr these
  # checks double the time to compile.
  if(AMEM_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=vptr,null,alignment)
  endif()
  add_link_options(-fsanitize=${AMEM_SANITIZE})
  # GCC warns that it does not model fences. The only one is the gate's (shim/gate/gate.h), and what it orders are atomics.
  if(AMEM_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(amem_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()

# What a fuzzer is to find its way through is told by the code itself.
if(AMEM_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
