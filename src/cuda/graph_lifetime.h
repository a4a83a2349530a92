// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cuda/driver.h"

namespace plait::cuda {

/// Keeps `object` alive as long as `graph`, its clones or what was instantiated from them are. The
/// driver announces their end on a thread that may not call CUDA, so the last reference is parked
/// then and dropped by the next `release_parked`.
void keep_alive_with_graph(const Driver& driver, CuGraph graph, std::shared_ptr<const void> object);

/// Drops what ended graphs kept. Called wherever Plait makes, plans or destroys something.
void release_parked();

}  // namespace plait::cuda
