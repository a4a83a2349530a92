// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda_fake/fake_executor.h"

#include <dlfcn.h>
#include <stdlib.h>

namespace plait::cuda {
namespace {

// Before anything opens a driver.
const int kEnvironmentSet = ::setenv("PLAIT_LIBCUDA", PLAIT_FAKE_LIBCUDA, 1);

}  // namespace

fake::State& fake_state() {
  static fake::State* state = [] {
    void* library = ::dlopen(PLAIT_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
    auto* get = reinterpret_cast<decltype(&plait_fake_cuda_state)>(
        ::dlsym(library, "plait_fake_cuda_state"));
    return get();
  }();
  return *state;
}

}  // namespace plait::cuda
