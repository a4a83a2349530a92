// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The first item of each worker in one record, for workers to which every read of the plan is a
// wait.
#pragma once

#include "plan/blob.h"
#include "plan/runs.h"

namespace plait::planning {

/// Writes the starts of all classes, behind their slices, and how much there is to read.
void write_starts(const RunSection& section, const Scratch& scratch, BlobWriter& blob,
                  device::GroupHeader& header);

}  // namespace plait::planning
