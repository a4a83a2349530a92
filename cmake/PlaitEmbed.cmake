# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# plait_embed(<target> NAME <name> BASE <dir> FILES <file>...)
#
# Compiles text files into a library. The target gets a source that defines, in namespace
# plait::embedded, the table `const File <name>[]` and its length `const std::size_t <name>_count`
# of "core/embedded_file.h": the path relative to BASE, and the text. A changed file is
# embedded again at the next build.
include_guard()

set(PLAIT_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/embed_files.cmake")

function(plait_embed target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;BASE" "FILES")
  set(output "${CMAKE_CURRENT_BINARY_DIR}/embedded_${arg_NAME}.cpp")
  set(list_file "${CMAKE_CURRENT_BINARY_DIR}/embedded_${arg_NAME}.txt")
  list(SORT arg_FILES)
  list(JOIN arg_FILES "\n" lines)
  # Rewritten only on a change, so that a file added or removed re-runs the script.
  file(CONFIGURE OUTPUT "${list_file}" CONTENT "${lines}\n" @ONLY)
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" -D "NAME=${arg_NAME}" -D "BASE=${arg_BASE}"
            -D "LIST=${list_file}" -D "OUTPUT=${output}" -P "${PLAIT_EMBED_SCRIPT}"
    DEPENDS ${arg_FILES} "${list_file}" "${PLAIT_EMBED_SCRIPT}"
    COMMENT "Embedding ${arg_NAME}" VERBATIM)
  set_source_files_properties("${output}" PROPERTIES COMPILE_OPTIONS "-w")
  target_sources(${target} PRIVATE "${output}")
endfunction()
