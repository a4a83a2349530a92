// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "plait/batch.h"
#include "plait/capacity.h"
#include "plait/spec.h"

namespace plait {

/// The smallest Capacity that takes these batches (one for all groups, or one per group) under
/// `policy`. Validates the batches. For tools that see their batch first; a server states what it
/// wants to serve.
Capacity fit_capacity(std::span<const AttentionSpec> groups, std::span<const Batch> batches,
                      const Policy& policy);

}  // namespace plait
