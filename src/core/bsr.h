// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Block-sparse attention as a view: one request, one row block per block row, and the listed
// column blocks as pages with positions over the unmoved K and V.
#pragma once

#include <cstdint>
#include <vector>

#include "core/owned_batch.h"
#include "plait/spec.h"

namespace plait {

/// A block-sparse matrix over (query rows x keys). Row block r lists the column blocks
/// indices[indptr[r]] .. indices[indptr[r + 1] - 1], increasing.
struct BsrPattern {
  std::vector<std::int32_t> block_rows;  // height of each row block, at least 1
  std::vector<std::int32_t> block_cols;  // width of each column block, at least 1
  std::vector<std::int32_t> indptr;      // [block rows + 1]
  std::vector<std::int32_t> indices;     // [indptr.back()]
  /// 0/1 bytes of each listed block, row-major, block after block; empty: all ones.
  std::vector<std::uint8_t> block_mask;

  /// `count` equal blocks; a remainder of `total` makes a smaller last one.
  static std::vector<std::int32_t> uniform(std::int64_t total, std::int32_t size);
};

/// How to run it: reinterpret contiguous K [N, heads, dim] as [N / page_size, page_size, heads,
/// dim] (no copy), V likewise, with this batch, page ids and mask.
struct LoweredBsr {
  std::int32_t page_size = 1;             // bsr_page_size
  std::int64_t num_pages = 0;             // N / page_size
  OwnedBatch batch;                       // one view with positions; kv_len = {N}
  std::vector<std::int32_t> page_ids;     // parallel to batch.views[0].positions
  MaskKind mask = MaskKind::kNone;        // kCustom if there is a block mask
  std::vector<std::uint8_t> custom_mask;  // packed bits [M][N], little-endian; empty unless kCustom
};

/// Tokens of the largest page that divides every column block and, if it is not 0, `kv_chunk`, so
/// that chunks of that size can be planned.
std::int32_t bsr_page_size(const std::vector<std::int32_t>& block_cols, std::int32_t kv_chunk);

/// `mask` composes with the pattern; for kCustom `custom_bits` are its packed bits [M][N]. Throws
/// Error naming the field of the problem file (kv.block_rows ...). O(blocks + pages), and
/// O(M * N) if there is a mask of bits.
LoweredBsr lower_bsr(const BsrPattern& pattern, MaskKind mask,
                     const std::vector<std::uint8_t>& custom_bits = {}, std::int32_t kv_chunk = 0);

}  // namespace plait
