// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda/jit/arch.h"
#include "cuda/jit/kernel_key.h"
#include "cuda/jit/source_set.h"

namespace plait::cuda {

/// The default set as devices of an architecture use it. The files have the keys of an H200; on
/// devices with less shared memory other tiles are chosen for the same specs.
std::vector<KernelKey> default_kernel_set(const SourceSet& sources, Arch arch);

}  // namespace plait::cuda
