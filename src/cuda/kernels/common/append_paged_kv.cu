// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/ops/vector_loop.h"

PLAIT_OPERATION_LAUNCH_INFO();

namespace plait::device {

struct CacheRow {
  i64 page;
  i32 slot;
};

/// Where token `token` goes; false for padding and for anything out of range.
__device__ __forceinline__ bool find_row(const AppendPagedKvParams& p, i64 token, CacheRow* row) {
  const i32 request = p.batch_indices[token];
  if (request < 0 || request >= p.requests) return false;
  const i32 position = p.positions[token];
  if (position < 0) return false;
  const i64 entry = static_cast<i64>(p.page_indptr[request]) + position / p.page_size;
  if (entry < 0 || entry >= p.page_indptr[request + 1] || entry >= p.num_listed) return false;
  row->page = p.page_ids[entry];
  row->slot = position % p.page_size;
  return row->page >= 0 && row->page < p.num_pages;
}

/// One vector, 16 bytes a lane where both sides and the dim allow it.
__device__ __forceinline__ void append_row(const void* source_base, i64 source_offset,
                                           void* target_base, i64 target_offset, i32 dim,
                                           float scale) {
  using In = Element<KernelConfig::kQDtype>;
  using Out = Element<KernelConfig::kKvDtype>;
  const auto* source = ops::words<KernelConfig::kQDtype>(source_base, source_offset);
  auto* target = ops::words<KernelConfig::kKvDtype>(target_base, target_offset);
  if (KernelConfig::kQDtype == KernelConfig::kKvDtype && scale == 1.0F) {
    const i32 bytes = dim * static_cast<i32>(sizeof(typename In::Word));
    const u64 misalignment =
        reinterpret_cast<u64>(source) | reinterpret_cast<u64>(target) | static_cast<u64>(bytes);
    if (misalignment % 16 == 0) {
      for (i32 i = ops::lane(); i < bytes / 16; i += 32) {
        reinterpret_cast<uint4*>(target)[i] = reinterpret_cast<const uint4*>(source)[i];
      }
      return;
    }
    for (i32 i = ops::lane(); i < dim; i += 32) {
      // The same type: the words are copied, NaN payloads included.
      target[i] = static_cast<typename Out::Word>(source[i]);
    }
    return;
  }
  for (i32 i = ops::lane(); i < dim; i += 32) {
    const float x = In::widen(source[i]);
    target[i] = Out::narrow(scale == 1.0F ? x : __fdiv_rn(x, scale));
  }
}

}  // namespace plait::device

extern "C" __global__ void __launch_bounds__(plait::device::ops::kThreads,
                                             plait::device::ops::kBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::AppendPagedKvParams p) {
  using namespace plait::device;
  ops::for_each_vector(p.tokens, p.kv_heads, [&](i64 token, i32 head) {
    CacheRow row;
    if (!find_row(p, token, &row)) return;
    append_row(p.k, token * p.k_stride_token + head * p.k_stride_head, p.k_cache,
               row.page * p.k_cache_stride_page + row.slot * p.k_cache_stride_slot +
                   head * p.k_cache_stride_head,
               p.k_dim, p.k_scale);
    append_row(p.v, token * p.v_stride_token + head * p.v_stride_head, p.v_cache,
               row.page * p.v_cache_stride_page + row.slot * p.v_cache_stride_slot +
                   head * p.v_cache_stride_head,
               p.v_dim, p.v_scale);
  });
}
