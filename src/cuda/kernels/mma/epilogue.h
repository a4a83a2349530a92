// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where finished rows go: a partial state, or the output itself (sink, hook and rounding applied).
#pragma once

#include "cuda/kernels/mma/hooks.h"
#include "cuda/kernels/mma/config.h"
#include "cuda/kernels/mma/work.h"

namespace plait::device::mma {

/// Writes finalised rows; shared by attention and merge kernels.
struct OutputWriter {
  using C = Config;
  using Out = Element<C::kODtype>;

  const AttentionParams& p;

  /// Factor and place of one output row.
  struct Row {
    i64 offset;       // elements
    float factor;     // sink
    i32 request, position, head;
  };

  __device__ __forceinline__ Row open(i32 fused, i32 kv_head, float lse) const {
    Row r;
    const i32 row = fused / C::kGroupSize;
    r.head = kv_head * C::kGroupSize + (fused - row * C::kGroupSize);
    r.offset = row * p.o_stride_row + r.head * p.o_stride_head;
    r.factor = 1.0F;
    r.request = 0;
    r.position = 0;
    if constexpr (C::kSink) {
      if (p.sink != nullptr && p.write_state == 0) {
        r.factor = sink_factor<DeviceMath>(lse, __ldg(p.sink + r.head));
      }
    }
    if constexpr (Hooks::kHasOutput) {
      const GroupView group(p);
      r.request = request_of_row(group, 0, row);
      const i32 begin = plan_array<i32>(group.plan, group.header->q_indptr_offset)[r.request];
      const i32 end = plan_array<i32>(group.plan, group.header->q_indptr_offset)[r.request + 1];
      const i32 kv_len = plan_array<i32>(group.plan, group.header->kv_len_offset)[r.request];
      r.position = row - begin + kv_len - (end - begin);
    }
    return r;
  }

  __device__ __forceinline__ void write_lse(i32 fused, i32 kv_head, float lse) const {
    if constexpr (!C::kSumReduction) {
      if (p.lse == nullptr) return;
      const i32 row = fused / C::kGroupSize;
      const i32 head = kv_head * C::kGroupSize + (fused - row * C::kGroupSize);
      p.lse[row * p.lse_stride_row + head * p.lse_stride_head] = lse;
    }
  }

  __device__ __forceinline__ float finish(const Row& r, float x, i32 dim) const {
    if constexpr (C::kSink) x = __fmul_rn(x, r.factor);
    if constexpr (Hooks::kHasOutput) {
      if (p.write_state == 0) x = Hooks::output(x, VectorSite{r.request, r.position, r.head, dim}, p);
    }
    return x;
  }

  __device__ __forceinline__ void write(const Row& r, i32 dim, float x) const {
    x = finish(r, x, dim);
    if (p.write_state != 0) {
      static_cast<float*>(p.o)[r.offset + dim] = x;
    } else {
      static_cast<typename Out::Word*>(p.o)[r.offset + dim] = Out::narrow(x);
    }
  }

  /// Two neighbouring elements, `dim` even; the second may lie beyond the row.
  __device__ __forceinline__ void write_pair(const Row& r, i32 dim, float x, float y) const {
    constexpr bool kEven = C::kHeadDimVo % 2 == 0;
    if constexpr (kEven && kSizeOf<C::kODtype> == 2) {
      if (p.write_state == 0) {
        auto* at = static_cast<u16*>(p.o) + r.offset + dim;
        if ((reinterpret_cast<u64>(at) & 3) == 0) {
          *reinterpret_cast<u32*>(at) = Out::narrow_pair(finish(r, x, dim), finish(r, y, dim + 1));
          return;
        }
      }
    }
    write(r, dim, x);
    if (kEven || dim + 1 < C::kHeadDimVo) write(r, dim + 1, y);
  }
};

/// The destination of an item's rows.
struct RowSink {
  using C = Config;
  const OutputWriter& writer;
  const Run& run;
  i32 kv_head;
  bool poisoned;  // a bad page id: the rows become NaN

  __device__ __forceinline__ i64 state_row(i32 local) const {
    return run.state_begin + static_cast<i64>(kv_head - run.head_begin) * run.num_fused_rows + local;
  }

  /// One row by one warp. `parts`: kKeyWarps addends, kQTile rows apart, in shared memory.
  __device__ __forceinline__ void write_row(i32 local, float lse, const float* parts,
                                            i32 lane) const {
    const float nan = __uint_as_float(0x7FC00000U);
    const bool partial = run.state_begin >= 0;
    const i32 fused = run.fused_row_begin + local;
    if (poisoned) lse = nan;
    if (lane == 0) {
      if (partial) writer.p.state_lse[state_row(local)] = lse;
      else writer.write_lse(fused, kv_head, lse);
    }
    float* target = writer.p.state_o + (partial ? state_row(local) : 0) * C::kHeadDimVo;
    OutputWriter::Row row{};
    if (!partial) row = writer.open(fused, kv_head, lse);
#pragma unroll 2
    for (i32 dim = lane * 2; dim < C::kHeadDimVo; dim += 64) {
      float2 x{0.0F, 0.0F};
#pragma unroll
      for (i32 w = 0; w < C::kKeyWarps; ++w) {
        const float2 part = *reinterpret_cast<const float2*>(
            parts + w * C::kQTile * C::kShared.result_pitch + dim);
        x.x += part.x;
        x.y += part.y;
      }
      if (poisoned) x = float2{nan, nan};
      if (!partial) {
        writer.write_pair(row, dim, x.x, x.y);
      } else if constexpr (C::kHeadDimVo % 2 == 0) {
        *reinterpret_cast<float2*>(target + dim) = x;
      } else {
        target[dim] = x.x;
        if (dim + 1 < C::kHeadDimVo) target[dim + 1] = x.y;
      }
    }
  }
};

}  // namespace plait::device::mma
