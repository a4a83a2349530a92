# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# cmake -D BUILD=<build folder> -D EXAMPLES=<examples folder> -D SCRATCH=<folder> -P check_install.cmake
#
# Installs the build into SCRATCH, builds the examples against that with find_package(plait) and
# runs them: what a user of the library does.
foreach(name IN ITEMS BUILD EXAMPLES SCRATCH)
  if(NOT ${name})
    message(FATAL_ERROR "${name}: got nothing, expected a folder")
  endif()
endforeach()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "exit ${result}: ${ARGV}")
  endif()
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${SCRATCH}/prefix")
# Nothing of the source tree may be needed: only the prefix is named.
run("${CMAKE_COMMAND}" -S "${EXAMPLES}" -B "${SCRATCH}/build" -G Ninja
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH=${SCRATCH}/prefix
  -D CMAKE_CXX_COMPILER=${COMPILER})
run("${CMAKE_COMMAND}" --build "${SCRATCH}/build")
run("${CMAKE_CTEST_COMMAND}" --test-dir "${SCRATCH}/build" --output-on-failure --no-tests=error)
file(GLOB_RECURSE leaks "${SCRATCH}/prefix/lib*/cmake/plait/*.cmake")
foreach(file IN LISTS leaks)
  file(READ "${file}" text)
  string(FIND "${text}" "${SOURCE}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "${file} names the source tree ${SOURCE}")
  endif()
endforeach()
