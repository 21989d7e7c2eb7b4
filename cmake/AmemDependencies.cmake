# Everything amem builds with. All of it is packaged by Debian 12 and Ubuntu 24.04 (deploy/deps.sh installs it), but for
# the CUDA and NCCL headers: those come from a CUDA toolkit, or from NVIDIA's Python packages (deploy/deps.sh again).
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(nanopb REQUIRED)
find_program(AMEM_NANOPB_PLUGIN protoc-gen-nanopb REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
find_library(AMEM_GRPCPP_REFLECTION grpc++_reflection REQUIRED)
find_program(AMEM_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-pull)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)

# CUDA 13 headers: cuda.h and cudaTypedefs.h. No CUDA library is linked.
find_path(AMEM_CUDA_INCLUDE cudaTypedefs.h
  HINTS ${CMAKE_CURRENT_SOURCE_DIR}/build/headers/nvidia/cu13/include ENV CUDA_HOME
  PATHS /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include PATH_SUFFIXES include)
find_path(AMEM_NCCL_INCLUDE nccl.h
  HINTS ${CMAKE_CURRENT_SOURCE_DIR}/build/headers/nvidia/nccl/include ENV NCCL_HOME
  PATHS /usr/local/cuda/include PATH_SUFFIXES include)
if(NOT AMEM_CUDA_INCLUDE OR NOT AMEM_NCCL_INCLUDE)
  message(FATAL_ERROR
    "amem needs the headers of CUDA 13 (cuda.h, cudaTypedefs.h) and NCCL (nccl.h). Run deploy/deps.sh, which fetches "
    "them from NVIDIA's Python packages into build/headers, or install the CUDA toolkit, or pass "
    "-DAMEM_CUDA_INCLUDE=DIR -DAMEM_NCCL_INCLUDE=DIR.")
endif()
file(STRINGS ${AMEM_CUDA_INCLUDE}/cuda.h AMEM_CUDA_VERSION_LINE REGEX "^#define CUDA_VERSION ")
string(REGEX REPLACE "[^0-9]" "" AMEM_CUDA_VERSION "${AMEM_CUDA_VERSION_LINE}")
if(AMEM_CUDA_VERSION LESS 13000)
  message(FATAL_ERROR "${AMEM_CUDA_INCLUDE}/cuda.h is of CUDA ${AMEM_CUDA_VERSION}; amem needs 13000 or newer "
    "(only the headers; any driver from 525 on will do at run time). deploy/deps.sh fetches them.")
endif()

add_library(amem_cuda_headers INTERFACE)
target_include_directories(amem_cuda_headers SYSTEM INTERFACE ${AMEM_CUDA_INCLUDE})
add_library(amem_nccl_headers INTERFACE)
target_include_directories(amem_nccl_headers SYSTEM INTERFACE ${AMEM_NCCL_INCLUDE})
