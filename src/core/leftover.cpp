// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/leftover.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

namespace plait {
namespace {

namespace fs = std::filesystem;

struct Registry {
  std::mutex mutex;
  std::vector<const Leftover*> living;
};

/// Never destroyed: threads may outlive static objects.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  // Its user may have closed it.
  if (fs::is_directory(fs::symlink_status(path, error))) {
    fs::permissions(path, fs::perms::owner_all, error);
  }
  // Threads that go on may put files into a directory while it is emptied.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    fs::remove_all(path, error);
    if (!error) return;
  }
}

}  // namespace

Leftover::Leftover(fs::path path) : path_(std::move(path)) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.living.push_back(this);
}

Leftover::~Leftover() {
  remove_tree(path_);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.living.erase(std::find(all.living.begin(), all.living.end(), this));
}

void remove_leftovers() {
  Registry& all = registry();
  all.mutex.lock();
  for (const Leftover* leftover : all.living) remove_tree(leftover->path());
}

}  // namespace plait
