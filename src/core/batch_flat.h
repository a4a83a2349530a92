// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A flat batch: one view with one list of keys per request, wherever they lie. What most steps of a
// server are, and resolved in one pass.
#pragma once

#include <cstdint>

#include "core/device/plan_layout.h"
#include "plait/batch.h"
#include "plait/spec.h"

namespace plait::batch {

/// Whether a record needs nothing but its own request's counts. The shapes of the arrays were
/// checked.
bool is_flat(const AttentionSpec& spec, const Batch& batch);

/// Fills the records and lengths of a flat batch whose indptr arrays were checked, and the longest
/// of them. False if some list is to be refused: whoever names the fault looks again.
bool resolve_flat(const AttentionSpec& spec, const Batch& batch, device::RowBlock* records,
                  std::int32_t* kv_len, std::int64_t* longest);

}  // namespace plait::batch
