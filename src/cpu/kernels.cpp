// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Compiles the kernels once per instruction set. Highway is used header-only: its own dispatch
// would need its shared library (simd_target.cpp does ours). The build gives this file the flags
// of x86-64-v2, the oldest instruction set served there; it must therefore not instantiate
// templates of the standard library, which the linker may share with other files.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels.cpp"
// Two neighbours that would add code and bring nothing here.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "cpu/gemm-inl.h"
#include "cpu/kernel_table.h"
#include "cpu/load-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/stream-inl.h"

namespace plait::cpu::HWY_NAMESPACE {

constexpr KernelTable make_table(const char* name, void (*stream_bf16)(const StreamStep&)) {
  return {
      name,
      kLanes,
      // Beyond this the tile path's full lanes win.
      kLanes >= 16 ? 8 : 4,
      {load_rows<LoadF32>, load_rows<LoadF16>, load_rows<LoadBF16>, load_rows<LoadE4M3>,
       load_rows<LoadE5M2>},
      {store_f32, store_f16, store_bf16, store_e4m3, store_e5m2},
      gemm,
      softmax_tile,
      sigmoid_tile,
      scale_tile,
      alibi_tile,
      scale_row,
      blend_row,
      rope_half,
      rope_interleaved,
      rope_angles,
      {stream_step<LoadF32>, stream_step<LoadF16>, stream_bf16, stream_step<LoadE4M3>,
       stream_step<LoadE5M2>},
      read_memory,
  };
}

extern const KernelTable kTable;
const KernelTable kTable = make_table(
#if HWY_TARGET == HWY_AVX3
    "avx512",
#elif HWY_TARGET == HWY_AVX2
    "avx2",
#elif HWY_TARGET == HWY_SSE4
    "sse4",
#elif HWY_TARGET == HWY_NEON
    "neon",
#else
#error "no kernels for this architecture"
#endif
    stream_step<LoadBF16>);

#if HWY_TARGET == HWY_AVX3
extern const KernelTable kBF16Table;
const KernelTable kBF16Table = make_table("avx512_bf16", stream_step_bf16);
#endif

}  // namespace plait::cpu::HWY_NAMESPACE

#if HWY_ONCE

namespace plait::cpu {

const KernelTable* const kKernelTables[] = {
#if HWY_TARGETS & HWY_AVX3
    &N_AVX3::kBF16Table,
    &N_AVX3::kTable,
#endif
#if HWY_TARGETS & HWY_AVX2
    &N_AVX2::kTable,
#endif
    &HWY_STATIC_DISPATCH(kTable),
    nullptr,
};

}  // namespace plait::cpu
#endif  // HWY_ONCE
