// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Warpgroup matrix products (wgmma) of sm_90a, 16-bit operands, fp32 accumulators. The accumulator
// of a 64 x N product holds, in thread t of the warpgroup, rows 16 * (t / 32) + (t % 32) / 4 and
// that plus 8, columns 8 * i + 2 * (t % 4) and that plus 1: d[4 * i + 2 * (row >= 8) + (column &
// 1)], which is mma.sync's layout once per 8 columns, so P feeds the second product from registers.
#pragma once

#include "cuda/kernels/device/ptx_sm90.h"

namespace plait::device {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Orders register and shared-memory accesses before the next wgmma. Needed before the first one
/// and whenever registers it reads or accumulates into were touched.
PLAIT_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PLAIT_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
PLAIT_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accumulator accesses across a wgmma fence or wait.
template <int kCount>
PLAIT_DEVICE void pin_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Descriptor of a matrix in shared memory with 128-byte swizzled rows, aligned to 1024 bytes.
/// K-major operands (rows along M or N): `row_groups` bytes between groups of 8 rows, `columns`
/// unused. MN-major operands (rows along K): `row_groups` between groups of 8 rows of K,
/// `columns` between blocks of 64 columns.
PLAIT_DEVICE u64 matrix_descriptor(u32 address, u32 row_groups, u32 columns) {
  return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(columns >> 4) << 16 |
         static_cast<u64>(row_groups >> 4) << 32 | u64{1} << 62;
}
/// Moves a descriptor by a multiple of 16 bytes.
PLAIT_DEVICE u64 advance_descriptor(u64 descriptor, u32 bytes) {
  return descriptor + static_cast<u64>(bytes >> 4);
}

// d (+)= A B, one step of 16 along K, of f16 or bf16 (kElement). _ss_k: A and B in shared memory,
// both K-major. _rs_mn: A in registers, B in shared memory, MN-major. The number of accumulators
// says how many columns B has: twice as many.

#define PLAIT_REGISTERS_32                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PLAIT_REGISTERS_64                                                           \
  PLAIT_REGISTERS_32                                                                 \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PLAIT_REGISTERS_128                                                                    \
  PLAIT_REGISTERS_64                                                                           \
  ", "                                                                                         \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
  "%111, "                                                                                     \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define PLAIT_ACCUMULATE_8(i)                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define PLAIT_ACCUMULATE_32(i)                                                  \
  PLAIT_ACCUMULATE_8(i), PLAIT_ACCUMULATE_8(i + 8), PLAIT_ACCUMULATE_8(i + 16), \
      PLAIT_ACCUMULATE_8(i + 24)
#define PLAIT_ACCUMULATORS_32 PLAIT_ACCUMULATE_32(0)
#define PLAIT_ACCUMULATORS_64 PLAIT_ACCUMULATORS_32, PLAIT_ACCUMULATE_32(32)
#define PLAIT_ACCUMULATORS_128 \
  PLAIT_ACCUMULATORS_64, PLAIT_ACCUMULATE_32(64), PLAIT_ACCUMULATE_32(96)

// `operands`: A and B by number, the first of which is `count`; `predicate`: the operand after
// them, which says whether d is added to.
#define PLAIT_WGMMA(columns, count, type, predicate, operands, scales, ...)          \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #predicate                   \
               ", 0;\n\t"                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
               " {" PLAIT_REGISTERS_##count "}, " operands ", p, " scales ";\n\t}"   \
               : PLAIT_ACCUMULATORS_##count                                          \
               : __VA_ARGS__, "r"(static_cast<u32>(accumulate)))

#define PLAIT_WGMMA_SS_K(columns, count, predicate, operands)                                 \
  template <DTypeCode kElement>                                                               \
  PLAIT_DEVICE void wgmma_ss_k(float(&d)[count], u64 a, u64 b, bool accumulate) {             \
    if constexpr (kElement == DTypeCode::kF16) {                                              \
      PLAIT_WGMMA(columns, count, "f16", predicate, operands, "1, 1, 0, 0", "l"(a), "l"(b));  \
    } else {                                                                                  \
      static_assert(kElement == DTypeCode::kBF16, "wgmma takes f16 or bf16 here");            \
      PLAIT_WGMMA(columns, count, "bf16", predicate, operands, "1, 1, 0, 0", "l"(a), "l"(b)); \
    }                                                                                         \
  }
#define PLAIT_WGMMA_RS_MN(columns, count, predicate, operands)                                  \
  template <DTypeCode kElement>                                                                 \
  PLAIT_DEVICE void wgmma_rs_mn(float(&d)[count], const u32(&a)[4], u64 b, bool accumulate) {   \
    if constexpr (kElement == DTypeCode::kF16) {                                                \
      PLAIT_WGMMA(columns, count, "f16", predicate, operands, "1, 1, 1", "r"(a[0]), "r"(a[1]),  \
                  "r"(a[2]), "r"(a[3]), "l"(b));                                                \
    } else {                                                                                    \
      static_assert(kElement == DTypeCode::kBF16, "wgmma takes f16 or bf16 here");              \
      PLAIT_WGMMA(columns, count, "bf16", predicate, operands, "1, 1, 1", "r"(a[0]), "r"(a[1]), \
                  "r"(a[2]), "r"(a[3]), "l"(b));                                                \
    }                                                                                           \
  }

PLAIT_WGMMA_SS_K(64, 32, 34, "%32, %33")
PLAIT_WGMMA_SS_K(128, 64, 66, "%64, %65")
PLAIT_WGMMA_RS_MN(64, 32, 37, "{%32, %33, %34, %35}, %36")
PLAIT_WGMMA_RS_MN(128, 64, 69, "{%64, %65, %66, %67}, %68")
PLAIT_WGMMA_RS_MN(256, 128, 133, "{%128, %129, %130, %131}, %132")

#undef PLAIT_REGISTERS_32
#undef PLAIT_REGISTERS_64
#undef PLAIT_REGISTERS_128
#undef PLAIT_ACCUMULATE_8
#undef PLAIT_ACCUMULATE_32
#undef PLAIT_ACCUMULATORS_32
#undef PLAIT_ACCUMULATORS_64
#undef PLAIT_ACCUMULATORS_128
#undef PLAIT_WGMMA
#undef PLAIT_WGMMA_SS_K
#undef PLAIT_WGMMA_RS_MN

#endif  // __CUDACC__

}  // namespace plait::device
