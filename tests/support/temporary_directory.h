// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "core/temporary_directory.h"

namespace plait::test {

/// A fresh directory of the test's own.
class TemporaryDirectory {
 public:
  /// Of the directory, or of `name` in it.
  std::string path(const std::string& name = {}) const {
    return name.empty() ? directory_.path().string() : (directory_.path() / name).string();
  }

 private:
  plait::TemporaryDirectory directory_{std::filesystem::temp_directory_path() / "plait-test-"};
};

}  // namespace plait::test
