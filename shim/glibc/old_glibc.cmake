# amem_for_old_glibc(LIBRARY): the library needs no newer symbols than those of the glibc in `oldest`, and the C++ runtime is in it.
set(AMEM_OLDEST_GLIBC_DIR ${CMAKE_CURRENT_LIST_DIR})
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/oldest AMEM_OLDEST_GLIBC)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/oldest)

function(amem_for_old_glibc library)
  target_sources(${library} PRIVATE ${AMEM_OLDEST_GLIBC_DIR}/newer.cpp)
  set_target_properties(${library} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  # That of this machine, whose C library the stub is made of.
  find_program(AMEM_HOST_CC NAMES gcc cc clang REQUIRED)
  set(parts)
  foreach(file IN ITEMS libc.so.6 libpthread.so.0 libdl.so.2 ld-linux-x86-64.so.2)
    execute_process(COMMAND ${AMEM_HOST_CC} -print-file-name=${file} OUTPUT_VARIABLE part OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    if(NOT EXISTS ${part})
      message(FATAL_ERROR "${AMEM_HOST_CC} does not find ${file}, whose symbols the shim is linked to")
    endif()
    list(APPEND parts ${part})
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/glibc)
  file(MAKE_DIRECTORY ${folder})
  set(compile ${AMEM_HOST_CC} -shared -fPIC -nostdlib -x c)
  add_custom_command(OUTPUT ${folder}/libc.so.6
    COMMAND ${Python3_EXECUTABLE} -B ${AMEM_OLDEST_GLIBC_DIR}/stub.py ${AMEM_OLDEST_GLIBC} ${folder}/libc.c ${folder}/libc.map ${CMAKE_READELF} ${parts}
    COMMAND ${compile} ${folder}/libc.c -Wl,-soname,libc.so.6 -Wl,--version-script=${folder}/libc.map -o ${folder}/libc.so.6
    DEPENDS ${AMEM_OLDEST_GLIBC_DIR}/stub.py ${AMEM_OLDEST_GLIBC_DIR}/oldest ${parts} VERBATIM)
  set(stubs ${folder}/libc.so.6)
  # An older glibc has threads and dlsym in files of their own, so the shim needs these too. In a newer one they are empty.
  foreach(name IN ITEMS libpthread.so.0 libdl.so.2)
    add_custom_command(OUTPUT ${folder}/${name} COMMAND ${compile} /dev/null -Wl,-soname,${name} -o ${folder}/${name} VERBATIM)
    list(APPEND stubs ${folder}/${name})
  endforeach()
  add_custom_target(${library}_glibc DEPENDS ${stubs})
  add_dependencies(${library} ${library}_glibc)
  set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${stubs})
  # Options, because of a library CMake would make an -l and an entry in RUNPATH. And nothing that nobody calls: parts of the C++
  # runtime need newer symbols.
  target_link_options(${library} PRIVATE -Wl,--gc-sections -Wl,--no-as-needed ${stubs} -Wl,--as-needed)
  if(AMEM_STATIC) # that compiler adds its C++ runtime, and behind the stubs a C library, which nothing is left for
    target_link_options(${library} PRIVATE -target x86_64-linux-gnu.${AMEM_OLDEST_GLIBC})
  else()
    target_link_options(${library} PRIVATE -nodefaultlibs)
    target_link_libraries(${library} PRIVATE -Wl,-Bstatic -lstdc++ -lgcc -lgcc_eh -Wl,-Bdynamic)
  endif()
endfunction()
