// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "plan/backend.h"

namespace plait {

/// The CUDA families on `options.device`, best first. Throws Error{kBackend} if there is no driver,
/// Error{kInvalidArgument} for a device that is not there. Without a compiler they do with what the
/// disk cache holds.
std::vector<std::unique_ptr<Backend>> make_cuda_backends(const EngineOptions& options);

std::unique_ptr<Operations> make_cuda_operations(const EngineOptions& options);

}  // namespace plait
