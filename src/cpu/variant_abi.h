// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The binary interface between the CPU backend and a user's variant compiled at run time. Plain
// data only: the two sides may come from different compilers.
#pragma once

#include "core/device/portable.h"

namespace plait::cpu {

/// A parameter: `size` values, 1 for a scalar.
struct VariantArray {
  const float* data;
  device::i32 size;
};

/// In the order of VariantSpec::params.
struct VariantParams {
  const VariantArray* arrays;
};

/// Query rows of a tile.
struct VariantRows {
  device::i32 count;
  const device::i32* request;
  const device::i32* q_pos;
  const device::i32* qo_len;
  const device::i32* kv_len;
  const device::i32* qo_head;
  device::i32 kv_head;
};

/// s[key * ld + row]; on return of `visible`, logits of invisible keys are -inf.
using VariantTileHook = void (*)(float* s, long ld, device::i32 num_keys,
                                 const device::i32* key_pos, const VariantRows& rows,
                                 const VariantParams& params);
/// x[0 .. dim): one vector.
using VariantVectorHook = void (*)(float* x, device::i32 dim, device::i32 request, device::i32 pos,
                                   device::i32 head, const VariantParams& params);

struct VariantTable {
  device::i32 abi;         // kVariantAbi
  device::i32 reduction;   // device::ReductionKind
  VariantTileHook logits;  // null hooks are absent
  VariantTileHook visible;
  VariantTileHook weight;  // kSum: in place, masked logits (-inf) give 0
  VariantVectorHook query;
  VariantVectorHook key;
  VariantVectorHook output;
};

inline constexpr device::i32 kVariantAbi = 1;

}  // namespace plait::cpu
