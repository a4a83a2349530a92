// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "serve/memory.h"

namespace plait::serve {

/// Throws Error{kBackend} in a build without the CUDA backend.
std::unique_ptr<Memory> make_cuda_memory(Device device);

}  // namespace plait::serve
