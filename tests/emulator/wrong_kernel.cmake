# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# cmake -D PLAIT=<binary> -D SOURCE=<src folder> -D PROBLEM=<file with a sink> -D SCRATCH=<folder>
#   -P wrong_kernel.cmake
#
# A kernel with a fault has to end `plait check` with exit code 1 and a line that repeats the failure.
set(right "return 1.0F / (1.0F + Math::exp(sink - lse))")
set(wrong "return 0.5F / (1.0F + Math::exp(sink - lse))")
file(REMOVE_RECURSE "${SCRATCH}")
file(COPY "${SOURCE}" DESTINATION "${SCRATCH}")
set(header "${SCRATCH}/src/core/device/state.h")
file(READ "${header}" text)
string(FIND "${text}" "${right}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "${header}: got no '${right}', expected the statement that this test spoils")
endif()
string(REPLACE "${right}" "${wrong}" text "${text}")
file(WRITE "${header}" "${text}")
set(ENV{PLAIT_KERNEL_DIR} "${SCRATCH}/src")

execute_process(COMMAND "${PLAIT}" check --device cuda --family mma "${PROBLEM}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output COMMAND_ECHO STDOUT ECHO_OUTPUT_VARIABLE)
if(NOT result EQUAL 1 OR NOT output MATCHES "repro: plait ([^\n]*)")
  message(FATAL_ERROR "exit ${result}, expected 1 and a line that repeats the failure")
endif()
file(WRITE "${SCRATCH}/repeat.sh" "exec \"$1\" ${CMAKE_MATCH_1}\n")
execute_process(COMMAND sh "${SCRATCH}/repeat.sh" "${PLAIT}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output COMMAND_ECHO STDOUT ECHO_OUTPUT_VARIABLE)
if(NOT result EQUAL 1 OR NOT output MATCHES "0 passed, 1 failed")
  message(FATAL_ERROR "the line itself: exit ${result}, expected 1")
endif()
