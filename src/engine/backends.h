// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The one place that lists which backends exist.
#pragma once

#include <memory>
#include <vector>

#include "plan/backend.h"

namespace plait::detail {

/// Backends of `options.device`, best first. Throws kBackend if the device cannot be used at all
/// (no driver, no such device), kInvalidArgument for an unknown family.
std::vector<std::unique_ptr<Backend>> make_backends(const EngineOptions& options);

std::unique_ptr<Operations> make_operations(const EngineOptions& options);

}  // namespace plait::detail
