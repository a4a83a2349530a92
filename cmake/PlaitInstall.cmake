# Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
# `cmake --install` and the package that find_package(plait) finds.
include_guard()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What users link: plait::plait.
add_library(plait_library INTERFACE)
target_link_libraries(plait_library INTERFACE plait_engine)
set_target_properties(plait_library PROPERTIES EXPORT_NAME plait)
add_library(plait::plait ALIAS plait_library)

get_property(layers GLOBAL PROPERTY PLAIT_LAYERS)
# The reference implementation and the replay are parts of the tools, not of the library.
list(REMOVE_ITEM layers plait_oracle plait_serve plait_check)
install(TARGETS plait_library ${layers} EXPORT plaitTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/plait" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET plait)
  install(TARGETS plait RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/plait")
install(EXPORT plaitTargets NAMESPACE plait:: DESTINATION ${package_dir})
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/plaitConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/plaitConfig.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/plaitConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/plaitConfig.cmake"
  "${PROJECT_BINARY_DIR}/plaitConfigVersion.cmake" DESTINATION ${package_dir})
