# AMEM_CUDA_INCLUDE and AMEM_NCCL_INCLUDE: the folders with the headers of CUDA 13 and NCCL. No library of either is linked.
# deploy/deps.sh looks in the same places for the same headers, and fetches them where none has all.
cmake_minimum_required(VERSION 3.25)
get_filename_component(amem_top ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/cuda_headers.txt amem_cuda_headers REGEX "^[^#]")

# Why a folder will not do; empty: it will.
function(amem_fault_of_cuda result folder)
  set(${result} "" PARENT_SCOPE)
  foreach(header IN LISTS amem_cuda_headers)
    if(NOT EXISTS ${folder}/${header})
      set(${result} "has no ${header}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  file(STRINGS ${folder}/cuda.h line REGEX "^#define CUDA_VERSION ")
  string(REGEX REPLACE "[^0-9]" "" version "${line}")
  if(NOT version GREATER_EQUAL 13000)
    set(${result} "is of CUDA ${version}, which is older than 13000 (any driver from 525 on will do at run time)" PARENT_SCOPE)
  endif()
endfunction()

function(amem_fault_of_nccl result folder)
  set(${result} "" PARENT_SCOPE)
  set(lines)
  if(EXISTS ${folder}/nccl.h)
    file(STRINGS ${folder}/nccl.h lines REGEX "^#define NCCL_(MAJOR|MINOR) ")
  endif()
  string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
  string(REPLACE ";" "." version "${version}")
  if(NOT version VERSION_GREATER_EQUAL 2.27 OR NOT version VERSION_LESS 3)
    set(${result} "has no nccl.h of NCCL 2.27 or newer" PARENT_SCOPE)
  endif()
endfunction()

function(amem_cuda_will_do result folder)
  amem_fault_of_cuda(fault ${folder})
  if(fault)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(amem_nccl_will_do result folder)
  amem_fault_of_nccl(fault ${folder})
  if(fault)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

find_path(AMEM_CUDA_INCLUDE cudaTypedefs.h NO_CMAKE_FIND_ROOT_PATH VALIDATOR amem_cuda_will_do
  HINTS ${amem_top}/build/headers/nvidia/cu13/include ENV CUDA_HOME
  PATHS /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include PATH_SUFFIXES include)
find_path(AMEM_NCCL_INCLUDE nccl.h NO_CMAKE_FIND_ROOT_PATH VALIDATOR amem_nccl_will_do
  HINTS ${amem_top}/build/headers/nvidia/nccl/include ENV NCCL_HOME
  PATHS /usr/local/cuda/include PATH_SUFFIXES include)
if(NOT AMEM_CUDA_INCLUDE OR NOT AMEM_NCCL_INCLUDE)
  list(JOIN amem_cuda_headers ", " names)
  message(FATAL_ERROR
    "amem needs the headers of CUDA 13 (${names}, all in one folder) and of NCCL 2.27 or newer (nccl.h). Run deploy/deps.sh, "
    "which fetches them from NVIDIA's Python packages into build/headers, or install the CUDA toolkit, or pass "
    "-DAMEM_CUDA_INCLUDE=DIR -DAMEM_NCCL_INCLUDE=DIR.")
endif()
# Somebody has named these, or an earlier run of cmake has found them.
foreach(kind IN ITEMS CUDA NCCL)
  string(TOLOWER ${kind} name)
  cmake_language(CALL amem_fault_of_${name} fault ${AMEM_${kind}_INCLUDE})
  if(fault)
    message(FATAL_ERROR "AMEM_${kind}_INCLUDE=${AMEM_${kind}_INCLUDE} ${fault}. Name another folder, or run deploy/deps.sh, which "
      "fetches the headers, and configure with -UAMEM_${kind}_INCLUDE, so that cmake looks for them again.")
  endif()
endforeach()
message(STATUS "CUDA's headers are in ${AMEM_CUDA_INCLUDE}, NCCL's are in ${AMEM_NCCL_INCLUDE}")
