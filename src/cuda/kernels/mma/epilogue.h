// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where finished rows go: a partial state, or the output itself (sink, hook and rounding applied).
#pragma once

#include "cuda/kernels/device/ptx_sm80.h"
#include "cuda/kernels/mma/config.h"
#include "cuda/kernels/mma/hooks.h"
#include "cuda/kernels/mma/work.h"

namespace plait::device::mma {

/// Writes finalised rows; shared by attention and merge kernels.
struct OutputWriter {
  using C = Config;
  using Out = Element<C::kODtype>;

  const AttentionParams& p;

  /// Factor and place of one output row.
  struct Row {
    i64 offset;    // elements
    float factor;  // sink
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
      if (p.write_state == 0)
        x = Hooks::output(x, VectorSite{r.request, r.position, r.head, dim}, p);
    }
    return x;
  }

  /// kUnit neighbouring elements from `dim` on; the last of a row may be fewer.
  static constexpr i32 kUnit = C::kHeadDimVo % 8 == 0 ? 8 : 2;

  __device__ __forceinline__ void write(const Row& r, i32 dim, const float (&x)[kUnit]) const {
    float y[kUnit];
#pragma unroll
    for (i32 i = 0; i < kUnit; ++i) y[i] = finish(r, x[i], dim + i);
    if (p.write_state != 0) {
      store_words(static_cast<float*>(p.o) + r.offset + dim, dim, y);
      return;
    }
    if constexpr (kUnit == 8 && kSizeOf<C::kODtype> == 2) {
      auto* at = static_cast<u16*>(p.o) + r.offset + dim;
      if ((reinterpret_cast<u64>(at) & 15) == 0) {
        *reinterpret_cast<uint4*>(at) =
            uint4{Out::narrow_pair(y[0], y[1]), Out::narrow_pair(y[2], y[3]),
                  Out::narrow_pair(y[4], y[5]), Out::narrow_pair(y[6], y[7])};
        return;
      }
    }
    auto* at = static_cast<typename Out::Word*>(p.o) + r.offset + dim;
#pragma unroll
    for (i32 i = 0; i < kUnit; ++i) {
      if (dim + i < C::kHeadDimVo) at[i] = Out::narrow(y[i]);
    }
  }

  static __device__ __forceinline__ void store_words(float* at, i32 dim, const float (&x)[kUnit]) {
    if constexpr (kUnit == 8) {
      if ((reinterpret_cast<u64>(at) & 15) == 0) {
        reinterpret_cast<float4*>(at)[0] = float4{x[0], x[1], x[2], x[3]};
        reinterpret_cast<float4*>(at)[1] = float4{x[4], x[5], x[6], x[7]};
        return;
      }
    }
#pragma unroll
    for (i32 i = 0; i < kUnit; ++i) {
      if (dim + i < C::kHeadDimVo) at[i] = x[i];
    }
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
    return run.state_begin + static_cast<i64>(kv_head - run.head_begin) * run.num_fused_rows +
           local;
  }

  /// All rows, by the whole CTA. `lse` and `parts` lie in shared memory; an output is the sum of
  /// kKeyWarps parts, kQTile rows apart.
  __device__ __forceinline__ void write_rows(const float* lse, const float* parts) const {
    constexpr i32 kUnit = OutputWriter::kUnit;
    constexpr u32 kPerRow = ceil_div(C::kHeadDimVo, kUnit);
    const bool partial = run.state_begin >= 0;
    const float nan = __uint_as_float(0x7FC00000U);
    const u32 count = static_cast<u32>(run.num_fused_rows) * kPerRow;
#pragma unroll 2
    for (u32 i = static_cast<u32>(fresh_thread_index()); i < count; i += C::kThreads) {
      const i32 local = static_cast<i32>(i / kPerRow);
      const i32 dim = static_cast<i32>(i % kPerRow) * kUnit;
      float x[kUnit];
#pragma unroll
      for (i32 e = 0; e < kUnit; ++e) x[e] = 0.0F;
#pragma unroll
      for (i32 w = 0; w < C::kKeyWarps; ++w) {
        const float* part = parts + (w * C::kQTile + local) * C::kShared.result_pitch + dim;
        if constexpr (kUnit == 8) {
          const float4 low = *reinterpret_cast<const float4*>(part);
          const float4 high = *reinterpret_cast<const float4*>(part + 4);
          const float words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (i32 e = 0; e < kUnit; ++e) x[e] += words[e];
        } else {
#pragma unroll
          for (i32 e = 0; e < kUnit; ++e) x[e] += part[e];
        }
      }
      const float row_lse = poisoned ? nan : lse[local];
#pragma unroll
      for (i32 e = 0; e < kUnit; ++e) x[e] = poisoned ? nan : x[e];
      if (partial) {
        const i64 row = state_row(local);
        if (dim == 0) writer.p.state_lse[row] = row_lse;
        OutputWriter::store_words(writer.p.state_o + row * C::kHeadDimVo + dim, dim, x);
      } else {
        const i32 fused = run.fused_row_begin + local;
        if (dim == 0) writer.write_lse(fused, kv_head, row_lse);
        writer.write(writer.open(fused, kv_head, row_lse), dim, x);
      }
    }
  }
};

}  // namespace plait::device::mma
