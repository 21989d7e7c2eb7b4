# For builds with the libraries of deploy/static.sh, which copies this file beside them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(AMEM_STATIC ${CMAKE_CURRENT_LIST_DIR})
set(CMAKE_C_COMPILER ${AMEM_STATIC}/bin/cc)
set(CMAKE_CXX_COMPILER ${AMEM_STATIC}/bin/c++)
set(CMAKE_AR ${AMEM_STATIC}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${AMEM_STATIC}/bin/ranlib CACHE FILEPATH "")
# Libraries and headers are those that static.sh has made; programs are those of this machine, which runs what it builds.
file(GLOB CMAKE_FIND_ROOT_PATH ${AMEM_STATIC}/packages/*)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# The debug information of the compiler's own objects names this folder, and build ids are made of it. Packages and wheels have none.
add_link_options(-Wl,--strip-all)
