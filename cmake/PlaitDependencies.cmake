# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# Third party code, all of it from Debian packages; docs/dependencies.md says why each is here.
# Every dependency of the library is used header-only, so that an installed Plait needs none.
include_guard()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# A header-only dependency as a SYSTEM include: its warnings are not ours.
function(plait_header_dependency target header)
  find_path(${target}_INCLUDE_DIR ${header} REQUIRED)
  mark_as_advanced(${target}_INCLUDE_DIR)
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE "${${target}_INCLUDE_DIR}")
endfunction()

plait_header_dependency(plait_xxhash xxhash.h)
target_compile_definitions(plait_xxhash INTERFACE XXH_INLINE_ALL)
plait_header_dependency(plait_fmt fmt/format.h)
target_compile_definitions(plait_fmt INTERFACE FMT_HEADER_ONLY=1)
plait_header_dependency(plait_json nlohmann/json.hpp)
plait_header_dependency(plait_hwy hwy/highway.h)
plait_header_dependency(plait_dlpack dlpack/dlpack.h)
if(PLAIT_BUILD_TOOLS)
  plait_header_dependency(plait_cli11 CLI/CLI.hpp)
  # The matrix product that `plait bench` compares with. Static: the tool runs elsewhere too.
  find_library(PLAIT_OPENBLAS libopenblas.a
    PATH_SUFFIXES openblas-pthread ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
  find_path(PLAIT_OPENBLAS_INCLUDE_DIR cblas.h
    PATH_SUFFIXES openblas-pthread ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
  add_library(plait_openblas INTERFACE)
  if(PLAIT_OPENBLAS AND PLAIT_OPENBLAS_INCLUDE_DIR)
    target_include_directories(plait_openblas SYSTEM INTERFACE "${PLAIT_OPENBLAS_INCLUDE_DIR}")
    target_link_libraries(plait_openblas INTERFACE "${PLAIT_OPENBLAS}" Threads::Threads)
    target_compile_definitions(plait_openblas INTERFACE PLAIT_HAVE_OPENBLAS=1)
  else()
    message(STATUS "Plait: no static OpenBLAS, `plait bench` will not report the sgemm bound")
    target_compile_definitions(plait_openblas INTERFACE PLAIT_HAVE_OPENBLAS=0)
  endif()
endif()
if(PLAIT_BUILD_TESTS)
  find_package(GTest REQUIRED)
  # RapidCheck's own templates do not survive -Wconversion; as a SYSTEM include they need not.
  find_path(PLAIT_RAPIDCHECK_INCLUDE_DIR rapidcheck.h REQUIRED)
  find_library(PLAIT_RAPIDCHECK librapidcheck.a REQUIRED)
  add_library(plait_rapidcheck INTERFACE)
  target_include_directories(plait_rapidcheck SYSTEM INTERFACE "${PLAIT_RAPIDCHECK_INCLUDE_DIR}")
  target_link_libraries(plait_rapidcheck INTERFACE "${PLAIT_RAPIDCHECK}")
endif()
if(PLAIT_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
