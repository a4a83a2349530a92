// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where tests find files. The environment wins over what the build knew, so that a build folder
// can be copied to another machine and run there.
#pragma once

#include <filesystem>
#include <string>

#include "core/environment.h"

namespace plait::test {

inline std::filesystem::path path_from(const char* variable, const char* built_in) {
  const std::string value = environment(variable);
  return value.empty() ? built_in : value;
}

/// Root of the source tree; PLAIT_TEST_SOURCE_DIR overrides it.
inline std::filesystem::path source_dir() {
  return path_from("PLAIT_TEST_SOURCE_DIR", PLAIT_TEST_SOURCE_DIR);
}

#ifdef PLAIT_TEST_BINARY
/// The `plait` executable under test; PLAIT_TEST_BINARY overrides it.
inline std::filesystem::path plait_binary() {
  return path_from("PLAIT_TEST_BINARY", PLAIT_TEST_BINARY);
}
#endif

/// Folder of recorded traces, empty if the environment does not name one in PLAIT_TRACES.
inline std::filesystem::path traces_dir() { return path_from("PLAIT_TRACES", ""); }

}  // namespace plait::test
