# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# The kinds of target that Plait is made of. Sources are found by folder (CONFIGURE_DEPENDS: a new
# file is picked up by the next build), and a folder without sources makes an empty target, so
# that a layer can be left out.
include_guard()

function(plait_common target)
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:plait_flags> $<BUILD_INTERFACE:plait_warnings>)
endfunction()

# plait_layer(<name> [PUBLIC <target>...] [PRIVATE <target>...])
# The static library plait_<name> from the folder of the caller. PUBLIC names the layers below: a
# layer sees only what it names. PRIVATE names header-only third party code, which is not
# exported.
function(plait_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "PUBLIC;PRIVATE")
  set(target plait_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  if(sources)
    add_library(${target} STATIC ${sources})
    plait_common(${target})
    foreach(dependency IN LISTS arg_PRIVATE)
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${dependency}>)
    endforeach()
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_PUBLIC})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  add_library(plait::${name} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY PLAIT_LAYERS ${target})
endfunction()

# Makes an executable run on machines with an older or no libstdc++. glibc stays dynamic: dlopen
# needs it. A sanitizer's runtime wants the shared libraries.
function(plait_portable target)
  if(NOT PLAIT_SANITIZE AND NOT PLAIT_FUZZ)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# plait_test_folder(<area> LIBRARIES <target>...)
# The executable plait_<area>_test from tests/<area>/*.cpp. Each test becomes a ctest test with
# the label <area> and one of
#   gpu    a suite whose name starts with Gpu: needs a device, skips itself without one
#   slow   a name that contains Slow: left out of the sanitizer runs
#   quick  everything else
function(plait_test_folder area)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${area}/*.cpp")
  if(NOT sources)
    return()
  endif()
  set(target plait_${area}_test)
  add_executable(${target} ${sources})
  plait_common(${target})
  plait_portable(${target})
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES}
    GTest::gtest GTest::gtest_main plait_rapidcheck
    plait_fmt plait_json plait_xxhash plait_dlpack Threads::Threads)
  target_compile_definitions(${target} PRIVATE
    PLAIT_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    PLAIT_TEST_BINARY_DIR="${PROJECT_BINARY_DIR}"
    PLAIT_WITH_CUDA=$<BOOL:${PLAIT_WITH_CUDA}>)
  plait_discover(${target} "-*Slow*:Gpu*:*/Gpu*" "${area}" quick 120)
  plait_discover(${target} "*Slow*:-Gpu*:*/Gpu*" "${area}" slow 600)
  plait_discover(${target} "Gpu*:*/Gpu*" "${area}" gpu 600)
endfunction()

function(plait_discover target filter area tier timeout)
  # A test that runs on after its timeout is killed: a hang is a failure (FIELD case 41).
  if(PLAIT_SANITIZE)
    math(EXPR timeout "3 * ${timeout}")
  endif()
  gtest_discover_tests(${target}
    TEST_PREFIX "${area}/" TEST_FILTER "${filter}" TEST_LIST ${target}_${tier}
    DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT ${timeout})
  # gtest_discover_tests flattens a list of labels, so they are set when ctest reads its files.
  set(labels "${CMAKE_CURRENT_BINARY_DIR}/${target}_${tier}_labels.cmake")
  file(CONFIGURE OUTPUT "${labels}" @ONLY CONTENT
    "foreach(test IN LISTS @target@_@tier@)
  set_tests_properties(\"\${test}\" PROPERTIES LABELS \"@area@;@tier@\")
endforeach()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${labels}")
endfunction()
