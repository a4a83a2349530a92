// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: executes plans with a pool of threads and SIMD kernels chosen at run time.
#pragma once

#include <memory>

#include "plan/backend.h"

namespace plait {

std::unique_ptr<Backend> make_cpu_backend();

/// Throws Error for a bad num_threads or PLAIT_NUM_THREADS.
std::unique_ptr<Operations> make_cpu_operations(const EngineOptions& options);

}  // namespace plait
