# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# Build type, compiler flags, sanitizers and compiler cache.
include_guard()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(PLAIT_CCACHE ccache)
  if(PLAIT_CCACHE)
    # Paths relative to the tree: clones and work trees of it share what the cache holds.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
        "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${PLAIT_CCACHE}")
  endif()
endif()

if(NOT PLAIT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PLAIT_CUDA: got ${PLAIT_CUDA}, expected AUTO, ON or OFF")
endif()
# libcuda and libnvrtc are opened at run time through declarations of our own, so AUTO means ON
# wherever dlopen with these names makes sense.
if(PLAIT_CUDA STREQUAL "AUTO")
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(PLAIT_WITH_CUDA ON)
  else()
    set(PLAIT_WITH_CUDA OFF)
  endif()
else()
  set(PLAIT_WITH_CUDA ${PLAIT_CUDA})
endif()

# Flags that every target of Plait gets; not exported.
add_library(plait_flags INTERFACE)
target_compile_options(plait_flags INTERFACE
  # A multiply-add is fused only where the source says so: results must not depend on what the
  # compiler felt like in an inlined copy.
  -ffp-contract=off)

add_library(plait_warnings INTERFACE)
target_compile_options(plait_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-sign-conversion
  $<$<BOOL:${PLAIT_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlapping copies in `"text" + std::string` (GCC bug 105651).
  target_compile_options(plait_warnings INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Clang reports an integer count turned into a float under -Wconversion, gcc does not; counts
  # are small enough throughout.
  target_compile_options(plait_warnings INTERFACE
    -Wno-implicit-int-float-conversion -Wno-unused-command-line-argument)
elseif(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Reports overlapping copies inside std::string's operator+ that cannot happen (gcc bug 105651).
  target_compile_options(plait_warnings INTERFACE -Wno-restrict)
endif()

if(PLAIT_SANITIZE)
  if(NOT PLAIT_SANITIZE MATCHES "^(address|undefined|thread)(,(address|undefined|thread))*$")
    message(FATAL_ERROR
      "PLAIT_SANITIZE: got ${PLAIT_SANITIZE}, expected a list of address, undefined, thread")
  endif()
  add_compile_options(-fsanitize=${PLAIT_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PLAIT_SANITIZE})
endif()
if(PLAIT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "PLAIT_FUZZ: got compiler ${CMAKE_CXX_COMPILER_ID}, expected Clang")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
