// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "core/leftover.h"

namespace plait {

/// A new directory for this user alone that goes away with the object, whatever it holds then.
class TemporaryDirectory {
 public:
  /// Its path is `prefix` and six characters. Throws Error{kIo} if it cannot be made.
  explicit TemporaryDirectory(const std::filesystem::path& prefix);

  const std::filesystem::path& path() const noexcept { return directory_.path(); }

 private:
  Leftover directory_;
};

}  // namespace plait
