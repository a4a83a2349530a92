// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels/common/params.h"

namespace plait::device::hopper {

/// A CUtensorMap. The copy engine wants it in constant or global memory at a multiple of 64 bytes,
/// which a __grid_constant__ parameter is.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

/// Where rows of K or V lie, for kernels that gather them: the row of token t of page i starts
/// (i * page + t * token) * bytes after that of token 0 of page 0. Numbers are at most
/// kMaxRowNumber.
struct RowUnits {
  u32 page, token, bytes;
};
inline constexpr u32 kMaxRowNumber = 0xFFFFFFFD;

/// The only parameter of a hopper kernel. All maps are rank 5 with 64 elements of a row (128 bytes,
/// swizzled) as the innermost axis:
///   q    [dim mod 64, head in group, query row, part of dim, kv head]
///   k, v [dim mod 64, token in page, part of dim, kv head, page]; ragged: one page
///   k, v of a prefill that gathers, if maps_count_rows: [.., row, .., .., 1], rows by their
///   numbers
/// K and V answer coordinates outside the pool with NaN.
struct HopperParams {
  AttentionParams common;
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;
  RowUnits k_rows, v_rows;
  u32 maps_count_rows;  // a prefill that gathers has maps of rows by number; 0 or 1
};

}  // namespace plait::device::hopper
