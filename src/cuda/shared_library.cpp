// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/shared_library.h"

#include <dlfcn.h>

namespace plait::cuda {

std::string to_string(const std::vector<LibraryAttempt>& attempts) {
  std::string text;
  for (const LibraryAttempt& attempt : attempts) {
    if (!text.empty()) text += "; ";
    // The loader's own messages often start with the file name already.
    const bool named = attempt.reason.rfind(attempt.path, 0) == 0;
    text += named ? attempt.reason : attempt.path + ": " + attempt.reason;
  }
  return text;
}

SharedLibrary SharedLibrary::open(const std::string& path, std::vector<LibraryAttempt>* attempts) {
  SharedLibrary library;
  library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  library.name_ = path;
  if (library.handle_ == nullptr) {
    const char* reason = ::dlerror();
    attempts->push_back({path, reason != nullptr ? reason : "the loader gave no reason"});
  }
  return library;
}

void* SharedLibrary::find(const char* symbol) const noexcept {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol);
}

std::string SharedLibrary::resolved_path(const char* symbol) const {
  Dl_info info{};
  void* address = find(symbol);
  if (address != nullptr && ::dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    return info.dli_fname;
  }
  return name_;
}

}  // namespace plait::cuda
